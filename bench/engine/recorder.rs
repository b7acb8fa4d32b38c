//! What a thread has counted since the last tick.
//!
//! Invariants: an operation counts in the interval in which it ended; histograms are made once for each kind and interval.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::result::{Kind, histogram};

/// Number of kinds.
const KINDS: usize = 7;
const ALL: [Kind; KINDS] =
    [Kind::Send, Kind::Pull, Kind::EndToEnd, Kind::Transaction, Kind::Delay, Kind::Pop, Kind::Ack];

/// Failures by code, each with the first remark that came with it.
pub type Failures = BTreeMap<i32, (u64, String)>;

/// What a thread counts.
pub struct Recorder {
    histograms: [Option<Box<Histogram<u64>>>; KINDS],
    main: Kind,
    /// Operations of the main kind.
    pub operations: u64,
    /// Messages in them.
    pub messages: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// What failed.
    pub failures: Failures,
    failed: u64,
    /// Messages whose send was acknowledged, ever.
    pub acknowledged: u64,
    /// Messages that a consumer got, ever.
    pub received: u64,
    /// Delayed messages that came before their time, ever, and the largest advance in nanoseconds.
    pub early: (u64, u64),
}

/// What was counted in an interval.
#[derive(Clone, Debug)]
pub struct Tick {
    /// Which thread.
    pub thread: u32,
    /// Which interval; [`u32::MAX`] for what came after the measured time.
    pub interval: u32,
    /// Operations of the main kind.
    pub operations: u64,
    /// Messages in them.
    pub messages: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Latencies by kind.
    pub latencies: Vec<(Kind, Histogram<u64>)>,
    /// What failed.
    pub failures: Failures,
    /// How many that are.
    pub failed: u64,
    /// Messages whose send was acknowledged since the start of the run.
    pub acknowledged: u64,
    /// Messages that consumers got since the start of the run.
    pub received: u64,
    /// Delayed messages that came before their time since the start of the run, and the largest advance in nanoseconds.
    pub early: (u64, u64),
    /// Processor time of the thread since its start, nanoseconds.
    pub cpu_ns: u64,
    /// When it was taken, by the run's clock.
    pub at_ns: u64,
}

impl Recorder {
    /// An empty one; operations of the `main` kind count.
    #[must_use]
    pub fn new(main: Kind) -> Recorder {
        Recorder {
            histograms: Default::default(),
            main,
            operations: 0,
            messages: 0,
            bytes: 0,
            failures: Failures::new(),
            failed: 0,
            acknowledged: 0,
            received: 0,
            early: (0, 0),
        }
    }

    /// A latency alone.
    pub fn latency(&mut self, kind: Kind, ns: u64) {
        self.histograms[kind as usize].get_or_insert_with(|| Box::new(histogram())).saturating_record(ns);
    }

    /// A message that came so long before its time.
    pub fn came_early(&mut self, ns: u64) {
        self.early = (self.early.0 + 1, self.early.1.max(ns));
    }

    /// An operation that ended well.
    pub fn done(&mut self, kind: Kind, ns: u64, messages: u64, bytes: u64) {
        self.latency(kind, ns);
        self.count(kind, messages, bytes);
    }

    /// The same without a latency: a request that gets no answer.
    pub fn count(&mut self, kind: Kind, messages: u64, bytes: u64) {
        if kind == self.main {
            self.operations += 1;
            self.messages += messages;
            self.bytes += bytes;
        }
        match kind {
            Kind::Send | Kind::Transaction => self.acknowledged += messages,
            Kind::Pull | Kind::Pop => self.received += messages,
            Kind::EndToEnd | Kind::Delay | Kind::Ack => {}
        }
    }

    /// Failures with a code.
    pub fn failed(&mut self, code: i32, count: u64, remark: impl FnOnce() -> String) {
        if count > 0 {
            self.failed += count;
            self.failures.entry(code).or_insert_with(|| (0, remark())).0 += count;
        }
    }

    /// What was counted since the last call.
    pub fn tick(&mut self, thread: u32, interval: u32, cpu_ns: u64, at_ns: u64) -> Tick {
        let latencies = ALL.into_iter().filter_map(|kind| {
            let histogram = self.histograms[kind as usize].as_mut().filter(|h| !h.is_empty())?;
            let copy = (**histogram).clone();
            histogram.reset();
            Some((kind, copy))
        });
        Tick {
            thread,
            interval,
            latencies: latencies.collect(),
            operations: std::mem::take(&mut self.operations),
            messages: std::mem::take(&mut self.messages),
            bytes: std::mem::take(&mut self.bytes),
            failures: std::mem::take(&mut self.failures),
            failed: std::mem::take(&mut self.failed),
            acknowledged: self.acknowledged,
            received: self.received,
            early: self.early,
            cpu_ns,
            at_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_their_places() {
        for (place, kind) in ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place);
        }
    }

    #[test]
    fn a_tick_holds_what_came_since_the_last() {
        let mut recorder = Recorder::new(Kind::Send);
        recorder.done(Kind::Send, 1_000, 32, 4_096);
        recorder.done(Kind::Pull, 2_000, 7, 70);
        recorder.failed(2, 3, || "busy".into());
        recorder.failed(2, 1, || unreachable!("the first remark stays"));
        recorder.failed(9, 0, || unreachable!("nothing failed"));
        let tick = recorder.tick(1, 4, 99, 5);
        assert_eq!((tick.operations, tick.messages, tick.bytes, tick.failed), (1, 32, 4_096, 4));
        assert_eq!((tick.acknowledged, tick.received), (32, 7));
        assert_eq!(tick.failures[&2], (4, "busy".to_owned()));
        assert_eq!(
            tick.latencies.iter().map(|(k, h)| (*k, h.len())).collect::<Vec<_>>(),
            [(Kind::Send, 1), (Kind::Pull, 1)]
        );
        let next = recorder.tick(1, 5, 100, 6);
        assert_eq!((next.operations, next.failed, next.latencies.len(), next.acknowledged), (0, 0, 0, 32));
    }
}
