//! Which entries of the timers' queue are done, though they are done in the order of their times and not of the queue.
//!
//! Role: a pure book of few numbers that outlives the process. The queue is cut into spans; in a span everything up to a mark in
//! the order of times is done, but for a short list of exceptions: what is under way, and what came when its time was over.
//! When a clock was set back and many come with times before the mark, a new span begins. Invariants: an entry that is not done
//! is never taken for done, nor the other way round; the list has at most [`MOST_LATE`] entries that came late.

use super::index::{Key, Timed};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Entries below the mark that are not done, after which a new span begins.
pub const MOST_LATE: usize = 2048;

/// What of it outlives the process; as a whole also what a process starts from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DoneBook {
    /// Everything below is done.
    pub low: u64,
    /// Entries from here on were not read yet: not done.
    pub read_to: u64,
    /// By `to`, ascending.
    spans: Vec<Span>,
    /// Queue offsets of entries up to their span's mark that are not done.
    late: BTreeSet<u64>,
}

/// A stretch of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Span {
    /// End, exclusive; of the last one there is none.
    to: u64,
    /// Up to here everything is done.
    mark: Key,
    /// Entries that are not done.
    #[serde(skip)]
    pending: u64,
}

const NO_MARK: Key = (i64::MIN, 0);

impl DoneBook {
    /// A book in which everything below `low` is done.
    pub fn new(low: u64) -> Self {
        Self { low, read_to: low, ..Self::default() }
    }

    /// Whether an entry was done when the book was saved.
    pub fn is_done(&self, entry: &Timed) -> bool {
        let offset = entry.queue_offset();
        if offset < self.low || offset >= self.read_to {
            return offset < self.low;
        }
        let span = self.spans.get(self.span_of(offset));
        span.is_some_and(|span| entry.key() <= span.mark) && !self.late.contains(&offset)
    }

    /// An entry was read from the queue, in the order of the queue, and is to be done.
    pub fn read(&mut self, entry: &Timed) {
        let offset = entry.queue_offset();
        self.read_to = self.read_to.max(offset + 1);
        if self.spans.last().is_none_or(|last| entry.key() <= last.mark && self.late.len() >= MOST_LATE) {
            if let Some(last) = self.spans.last_mut() {
                last.to = offset;
            }
            self.spans.push(Span { to: u64::MAX, mark: NO_MARK, pending: 0 });
        }
        let last = self.spans.last_mut().expect("there is one now");
        last.pending += 1;
        if entry.key() <= last.mark {
            self.late.insert(offset);
        }
    }

    /// An entry that was not done when the book was saved, by the process that goes on with it.
    pub fn resume(&mut self, entry: &Timed) {
        if entry.queue_offset() >= self.read_to {
            return self.read(entry);
        }
        let at = self.span_of(entry.queue_offset());
        self.spans[at].pending += 1;
    }

    /// All that was not done was resumed.
    pub fn resumed(&mut self) {
        self.drop_first_spans();
    }

    /// Everything below was read.
    pub fn read_up_to(&mut self, queue_offset: u64) {
        self.read_to = self.read_to.max(queue_offset);
    }

    /// An entry, the first in the order of times, is being done.
    pub fn start(&mut self, entry: &Timed) {
        let at = self.span_of(entry.queue_offset());
        self.spans[at].mark = self.spans[at].mark.max(entry.key());
        self.late.insert(entry.queue_offset());
    }

    /// An entry that was started is done.
    pub fn done(&mut self, entry: &Timed) {
        if !self.late.remove(&entry.queue_offset()) {
            return;
        }
        let at = self.span_of(entry.queue_offset());
        self.spans[at].pending -= 1;
        self.drop_first_spans();
    }

    fn drop_first_spans(&mut self) {
        while let [first, _, ..] = self.spans[..]
            && first.pending == 0
        {
            self.low = first.to;
            self.spans.remove(0);
        }
    }

    /// What is to be saved.
    pub fn saved(&self) -> Self {
        match self.spans[..] {
            [only] if only.pending == 0 => Self::new(self.read_to),
            _ => self.clone(),
        }
    }

    fn span_of(&self, queue_offset: u64) -> usize {
        self.spans.partition_point(|span| span.to <= queue_offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::PhysicalOffset;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        /// Against a set of what is done; saved and started again now and then, under a clock that jumps.
        #[test]
        fn tells_exactly_what_is_done(
            steps in prop::collection::vec((0..8u8, 0..400i64, any::<u16>()), 1..600),
        ) {
            let mut book = DoneBook::new(0);
            let (mut waiting, mut under_way) = (BTreeMap::<Key, Timed>::new(), Vec::<Timed>::new());
            let (mut all, mut now) = (Vec::<(Timed, bool)>::new(), 0i64);
            for (kind, value, pick) in steps {
                match kind {
                    0..=2 => {
                        for more in 0..=i64::from(pick) % 40 {
                            let at = all.len() as u64;
                            let entry = Timed::new(now - 20 + value + more, at, pick % 7 == 0, PhysicalOffset(at));
                            book.read(&entry);
                            waiting.insert(entry.key(), entry);
                            all.push((entry, false));
                        }
                    }
                    3 => now += value,
                    4 => now -= 3 * value,
                    5 | 6 => {
                        while let Some((&key, _)) = waiting.first_key_value().filter(|(key, _)| key.0 <= now)
                            && under_way.len() < 20
                        {
                            let entry = waiting.remove(&key).unwrap();
                            book.start(&entry);
                            under_way.push(entry);
                        }
                        while under_way.len() > usize::from(pick) % 20 {
                            let entry = under_way.swap_remove(usize::from(pick) % under_way.len());
                            book.done(&entry);
                            all[entry.queue_offset() as usize].1 = true;
                        }
                    }
                    _ => {
                        let text = serde_json::to_vec(&book.saved()).unwrap();
                        let old: DoneBook = serde_json::from_slice(&text).unwrap();
                        for (entry, done) in &all {
                            prop_assert_eq!(old.is_done(entry), *done, "{:?} in {:?}", entry, old);
                        }
                        // A new process goes on.
                        book = old;
                        waiting.clear();
                        under_way.clear();
                        for (entry, _) in all.iter().filter(|(_, done)| !done) {
                            book.resume(entry);
                            waiting.insert(entry.key(), *entry);
                        }
                        book.resumed();
                    }
                }
            }
        }
    }

    #[test]
    fn a_clock_set_back_begins_a_new_span_and_the_old_ones_go() {
        let mut book = DoneBook::new(0);
        let entry = |at: u64, due_ms| Timed::new(due_ms, at, false, PhysicalOffset(at));
        book.read(&entry(0, 1_000_000));
        book.read(&entry(1, 5_000_000));
        book.start(&entry(0, 1_000_000));
        book.done(&entry(0, 1_000_000));
        let many = 10 * MOST_LATE as u64;
        for at in 2..many {
            book.read(&entry(at, at as i64));
        }
        assert_eq!((book.spans.len(), book.late.len()), (2, MOST_LATE));
        for at in 2..many {
            book.start(&entry(at, at as i64));
            book.done(&entry(at, at as i64));
        }
        assert_eq!((book.late.len(), book.saved().low), (0, 0));
        book.start(&entry(1, 5_000_000));
        book.done(&entry(1, 5_000_000));
        assert_eq!(book.saved(), DoneBook::new(many));
    }
}
