//! The queue of one delay level: what is read, what is due, what is delivered.
//!
//! Role: a pure state machine; time and entries come in, what to do next goes out. Invariants: deliveries are started in the
//! order of the queue; [`LevelQueue::done`] never passes a message that is not stored, and never falls. Bounded: at most
//! [`AHEAD`] entries read and [`IN_FLIGHT`] deliveries under way.

use message::PhysicalOffset;
use std::collections::VecDeque;
use store::QueueEntry;

/// Entries read at once.
pub const AHEAD: usize = 128;
/// Deliveries that wait to be stored.
pub const IN_FLIGHT: usize = 1024;

/// What a level wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The entries from this offset on.
    Read(u64),
    /// This message is due.
    Deliver(QueueEntry),
    /// Nothing before this time, in ms since 1970.
    Wait(i64),
    /// Nothing before something is told.
    Nothing,
}

/// See the head of the file.
#[derive(Debug)]
pub struct LevelQueue {
    /// The level's delay.
    delay_ms: i64,
    /// Next offset to read.
    next: u64,
    /// There may be messages from `next` on.
    more: bool,
    /// Read, not yet due or delivered, in order.
    ahead: VecDeque<QueueEntry>,
    /// Under way, in order; `true`: stored.
    in_flight: VecDeque<(QueueEntry, bool)>,
}

impl LevelQueue {
    /// A queue of which everything below `done` is delivered.
    pub fn new(delay_ms: i64, done: u64) -> Self {
        Self { delay_ms, next: done, more: true, ahead: VecDeque::new(), in_flight: VecDeque::new() }
    }

    /// Everything below is delivered.
    pub fn done(&self) -> u64 {
        let in_flight = self.in_flight.front().map(|(entry, _)| entry.queue_offset.0);
        let ahead = self.ahead.front().map(|entry| entry.queue_offset.0);
        in_flight.into_iter().chain(ahead).fold(self.next, u64::min)
    }

    /// What to do at this time.
    pub fn next(&self, now_ms: i64) -> Next {
        if self.in_flight.len() >= IN_FLIGHT {
            return Next::Nothing;
        }
        match self.ahead.front() {
            Some(entry) if self.is_due(entry, now_ms) => Next::Deliver(*entry),
            Some(entry) => Next::Wait(entry.tag),
            None if self.more => Next::Read(self.next),
            None => Next::Nothing,
        }
    }

    /// Where the first message and those behind it lie, as far as they are due too.
    pub fn due(&self, now_ms: i64) -> impl Iterator<Item = PhysicalOffset> {
        self.ahead.iter().take_while(move |entry| self.is_due(entry, now_ms)).map(|entry| entry.offset)
    }

    /// Further ahead than the level reaches: the clock was set back, or the levels were changed. Then, as in Java, now.
    fn is_due(&self, entry: &QueueEntry, now_ms: i64) -> bool {
        entry.tag <= now_ms || entry.tag > now_ms.saturating_add(self.delay_ms)
    }

    /// There are new messages.
    pub fn grew(&mut self) {
        self.more = true;
    }

    /// The entries that were asked for; reading goes on at `next`.
    pub fn read(&mut self, entries: &[QueueEntry], next: u64) {
        self.more = next > self.next;
        self.next = next.max(self.next);
        self.ahead.extend(entries);
    }

    /// The delivery of the first message was started.
    pub fn started(&mut self) {
        self.leave(false);
    }

    /// The first message needs no delivery.
    pub fn passed(&mut self) {
        self.leave(true);
        self.settle();
    }

    /// The delivery of a message is stored, or is to be started again.
    pub fn stored(&mut self, queue_offset: u64, stored: bool) {
        let of = |entry: &QueueEntry| entry.queue_offset.0;
        let Ok(at) = self.in_flight.binary_search_by_key(&queue_offset, |(entry, _)| of(entry)) else { return };
        if stored {
            self.in_flight[at].1 = true;
            self.settle();
        } else if let Some((entry, _)) = self.in_flight.remove(at) {
            let place = self.ahead.partition_point(|other| of(other) < queue_offset);
            self.ahead.insert(place, entry);
            self.settle();
        }
    }

    /// The first message is under way. It may have been so before: then its place is not at the end.
    fn leave(&mut self, stored: bool) {
        if let Some(entry) = self.ahead.pop_front() {
            let place = self.in_flight.partition_point(|(other, _)| other.queue_offset < entry.queue_offset);
            self.in_flight.insert(place, (entry, stored));
        }
    }

    fn settle(&mut self) {
        while self.in_flight.pop_front_if(|(_, stored)| *stored).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::QueueOffset;
    use proptest::prelude::*;

    fn entry(queue_offset: u64, due_ms: i64) -> QueueEntry {
        QueueEntry {
            queue_offset: QueueOffset(queue_offset),
            offset: PhysicalOffset(queue_offset * 100),
            size: 100,
            tag: due_ms,
        }
    }

    #[test]
    fn what_is_due_goes_out_in_order() {
        let mut level = LevelQueue::new(1_000, 5);
        assert_eq!(level.next(0), Next::Read(5));
        level.read(&[entry(5, 10), entry(6, 20)], 7);
        assert_eq!(level.next(9), Next::Wait(10));
        assert_eq!(level.next(10), Next::Deliver(entry(5, 10)));
        level.started();
        assert_eq!((level.next(10), level.done()), (Next::Wait(20), 5));
        level.stored(5, true);
        assert_eq!(level.done(), 6);
        // More than the level's delay ahead: the clock was set back.
        assert_eq!(level.next(-981), Next::Deliver(entry(6, 20)));
        level.passed();
        assert_eq!((level.done(), level.next(0)), (7, Next::Read(7)));
        level.read(&[], 7);
        assert_eq!(level.next(0), Next::Nothing);
        level.grew();
        assert_eq!(level.next(0), Next::Read(7));
    }

    #[test]
    fn a_failed_delivery_is_started_again_and_holds_progress() {
        let mut level = LevelQueue::new(1_000, 0);
        level.read(&[entry(0, 1), entry(1, 1), entry(2, 1)], 3);
        level.started();
        level.started();
        level.stored(1, true);
        level.stored(0, false);
        assert_eq!((level.done(), level.next(1)), (0, Next::Deliver(entry(0, 1))));
        level.started();
        level.stored(7, true);
        level.stored(0, true);
        assert_eq!(level.done(), 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        /// Whatever is told in whatever order: each message is delivered once, none is passed by progress before.
        #[test]
        fn each_message_is_delivered_once(
            dues in prop::collection::vec(0..500i64, 1..60),
            steps in prop::collection::vec((0..4u8, any::<u16>()), 0..400),
        ) {
            let entries: Vec<QueueEntry> = (0..).zip(&dues).map(|(at, &due)| entry(at, due)).collect();
            let (mut level, mut now, mut visible) = (LevelQueue::new(100, 0), 0i64, 0usize);
            let (mut flying, mut stored) = (Vec::new(), Vec::new());
            let mut done = 0;
            for (kind, value) in steps.into_iter().chain([(9, 0)]) {
                match kind {
                    0 => { visible = (visible + usize::from(value) % 5).min(entries.len()); level.grew(); }
                    1 => now += i64::from(value % 40),
                    2 => now -= i64::from(value % 300),
                    3 if !flying.is_empty() => {
                        let offset = flying.remove(usize::from(value) % flying.len());
                        let good = value % 3 > 0;
                        if good { stored.push(offset); }
                        level.stored(offset, good);
                    }
                    9 => { visible = entries.len(); level.grew(); now = 10_000; }
                    _ => {}
                }
                let at_end = kind == 9;
                loop {
                    match level.next(now) {
                        Next::Read(from) => {
                            let to = visible.min(from as usize + 7).max(from as usize);
                            level.read(&entries[from as usize..to], to as u64);
                        }
                        Next::Deliver(entry) => {
                            let offset = entry.queue_offset.0;
                            prop_assert!(!flying.contains(&offset) && !stored.contains(&offset), "twice");
                            prop_assert!(entry.tag <= now || entry.tag > now + 100, "early");
                            level.started();
                            if at_end { stored.push(offset); level.stored(offset, true); } else { flying.push(offset); }
                        }
                        Next::Wait(due) => { prop_assert!(due > now); break; }
                        Next::Nothing => break,
                    }
                }
                if at_end {
                    for offset in std::mem::take(&mut flying) { stored.push(offset); level.stored(offset, true); }
                }
                prop_assert!(level.done() >= done);
                done = level.done();
                prop_assert!((0..done).all(|offset| stored.contains(&offset)));
            }
            prop_assert_eq!(done, entries.len() as u64);
        }
    }
}
