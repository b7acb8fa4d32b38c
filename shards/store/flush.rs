//! Making the log durable: group commit without a timer, and the flush of each interval.
//!
//! Role: which syncs are in flight, what each covers, how far the log is durable. Invariants: `durable` moves in order,
//! and only over syncs that succeeded together with every one before them; after a failed sync it never moves again (the
//! kernel has marked the pages clean: a later success proves nothing). It knows no file, only bases of segments.

use std::collections::VecDeque;

use crate::options::FlushMode;

/// A sync of one segment, to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SyncPart {
    /// The group it belongs to.
    pub(crate) group: u64,
    /// The segment.
    pub(crate) base: u64,
}

/// Syncs that together make everything below `to` durable.
struct Group {
    number: u64,
    to: u64,
    store_ms: i64,
    outstanding: u32,
}

/// How far the log is durable, and what is on its way.
pub(crate) struct Flush {
    mode: FlushMode,
    interval_us: u64,
    max_in_flight: usize,
    durable: u64,
    /// Store time of the last durable record.
    durable_ms: i64,
    /// Syncs that were started cover everything below.
    started: u64,
    in_flight: VecDeque<Group>,
    next_group: u64,
    last_start_us: u64,
    /// Start the next sync without waiting for the interval.
    wanted: bool,
    failure: Option<String>,
}

impl Flush {
    pub(crate) fn new(mode: FlushMode, interval_ms: u64, max_in_flight: usize, now_us: u64) -> Self {
        Self {
            mode,
            interval_us: interval_ms.max(1) * 1000,
            max_in_flight,
            durable: 0,
            durable_ms: 0,
            started: 0,
            in_flight: VecDeque::new(),
            next_group: 0,
            last_start_us: now_us,
            wanted: false,
            failure: None,
        }
    }

    pub(crate) fn mode(&self) -> FlushMode {
        self.mode
    }

    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    /// Store time of the last durable record, ms since 1970.
    pub(crate) fn durable_ms(&self) -> i64 {
        self.durable_ms
    }

    /// Why the log is not durable beyond `durable` any more.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// The next tick starts a sync of what is dirty, whatever the interval says.
    pub(crate) fn want(&mut self) {
        self.wanted = true;
    }

    /// When the next sync is due at the latest, if anything is dirty.
    pub(crate) fn next_us(&self, written: u64) -> Option<u64> {
        let idle = self.failure.is_some() || written <= self.started || !self.in_flight.is_empty();
        (!idle).then_some(self.last_start_us + self.interval_us)
    }

    /// Whether a sync is to be started now for what lies between the last one and `written`.
    pub(crate) fn is_due(&self, written: u64, now_us: u64) -> bool {
        if self.failure.is_some() || written <= self.started || self.in_flight.len() >= self.max_in_flight {
            return false;
        }
        match self.mode {
            FlushMode::Sync => true,
            FlushMode::Async => self.wanted || now_us.saturating_sub(self.last_start_us) >= self.interval_us,
        }
    }

    /// First offset that no started sync covers.
    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    /// Starts a group over these segments; everything below `written` lies in them or is covered already. `store_ms` is
    /// the store time of the last record below `written`.
    pub(crate) fn start(
        &mut self,
        written: u64,
        store_ms: i64,
        bases: &[u64],
        now_us: u64,
    ) -> impl Iterator<Item = SyncPart> {
        assert!(written > self.started && !bases.is_empty(), "a sync covers something");
        let number = self.next_group;
        self.next_group += 1;
        self.in_flight.push_back(Group { number, to: written, store_ms, outstanding: bases.len() as u32 });
        self.started = written;
        self.last_start_us = now_us;
        self.wanted = false;
        bases.iter().map(move |&base| SyncPart { group: number, base })
    }

    /// A part of a group has come back. Whether `durable` moved or the flush failed just now.
    pub(crate) fn completed(&mut self, group: u64, result: Result<(), String>) -> bool {
        if let Err(reason) = result {
            return self.fail(reason);
        }
        if let Some(group) = self.in_flight.iter_mut().find(|candidate| candidate.number == group) {
            group.outstanding -= 1;
        }
        let before = self.durable;
        while self.failure.is_none()
            && let Some(group) = self.in_flight.pop_front_if(|group| group.outstanding == 0)
        {
            assert!(group.to >= self.durable, "groups cover the log in order");
            self.durable = group.to;
            self.durable_ms = group.store_ms;
        }
        self.durable > before
    }

    /// Nothing more becomes durable. Whether that is news.
    pub(crate) fn fail(&mut self, reason: String) -> bool {
        if self.failure.is_some() {
            return false;
        }
        self.failure = Some(reason);
        true
    }

    /// The caller has synced everything below `to` itself (recovery, close), with nothing in flight or in doubt.
    pub(crate) fn all_durable(&mut self, to: u64, store_ms: i64) {
        assert!(self.failure.is_none(), "nothing is durable after a failed sync");
        self.durable = self.durable.max(to);
        self.durable_ms = store_ms;
        self.started = self.started.max(to);
        self.in_flight.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(flush: &mut Flush, written: u64, bases: &[u64]) -> Vec<SyncPart> {
        assert!(flush.is_due(written, 0));
        flush.start(written, 0, bases, 0).collect()
    }

    #[test]
    fn durable_moves_in_order() {
        let mut flush = Flush::new(FlushMode::Sync, 500, 4, 0);
        let first = start(&mut flush, 10, &[0])[0];
        let second = start(&mut flush, 30, &[0, 16]);
        assert!(!flush.is_due(30, 0), "nothing new");
        assert!(!flush.completed(second[0].group, Ok(())));
        assert!(!flush.completed(second[1].group, Ok(())), "the first is still out");
        assert_eq!(flush.durable(), 0);
        assert!(flush.completed(first.group, Ok(())));
        assert_eq!(flush.durable(), 30);
    }

    #[test]
    fn a_failure_is_final() {
        let mut flush = Flush::new(FlushMode::Sync, 500, 4, 0);
        let first = start(&mut flush, 10, &[0])[0];
        let second = start(&mut flush, 20, &[0])[0];
        assert!(flush.completed(first.group, Err("EIO".into())));
        assert!(!flush.completed(second.group, Ok(())));
        assert_eq!((flush.durable(), flush.failure()), (0, Some("EIO")));
        assert!(!flush.is_due(30, 1 << 40), "no sync is tried again");
        // Also when the later one fails first: the earlier may still succeed, but only up to its own end.
        let mut flush = Flush::new(FlushMode::Sync, 500, 4, 0);
        let (first, second) = (start(&mut flush, 10, &[0])[0], start(&mut flush, 20, &[0])[0]);
        assert!(flush.completed(second.group, Err("EIO".into())));
        flush.completed(first.group, Ok(()));
        assert_eq!(flush.durable(), 0, "an overlapping sync failed: nothing is acknowledged");
    }

    #[test]
    fn async_waits_for_its_interval() {
        let mut flush = Flush::new(FlushMode::Async, 500, 4, 1_000_000);
        assert!(!flush.is_due(10, 1_499_999));
        assert_eq!(flush.next_us(10), Some(1_500_000));
        assert!(flush.is_due(10, 1_500_000));
        flush.want();
        assert!(flush.is_due(10, 1_000_001));
        assert_eq!(flush.next_us(0), None);
    }
}
