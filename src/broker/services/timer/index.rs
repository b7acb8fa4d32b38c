//! What waits for a time, by that time: the timers of one shard in memory.
//!
//! Role: a heap of compact entries, 24 bytes each, whatever the span of times is. Invariant: entries come out by due time, then
//! those that cancel before the others, then by queue offset. Pure.

use message::PhysicalOffset;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// One waiting record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// When it is due, ms since 1970.
    pub due_ms: i64,
    /// Its record.
    pub offset: PhysicalOffset,
    rank: u64,
}

/// Set in the rank of an entry that is a message; not set: it cancels one.
const MESSAGE: u64 = 1 << 63;

/// The place of an entry in the order of delivery.
pub type Key = (i64, u64);

impl Timed {
    /// An entry of the queue.
    pub fn new(due_ms: i64, queue_offset: u64, cancels: bool, offset: PhysicalOffset) -> Self {
        Self { due_ms, offset, rank: queue_offset | if cancels { 0 } else { MESSAGE } }
    }

    /// Its offset in the queue.
    pub fn queue_offset(&self) -> u64 {
        self.rank & !MESSAGE
    }

    /// Whether it cancels another.
    pub fn cancels(&self) -> bool {
        self.rank & MESSAGE == 0
    }

    /// Its place in the order.
    pub fn key(&self) -> Key {
        (self.due_ms, self.rank)
    }
}

impl Ord for Timed {
    /// Reversed: the first due is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// See the head of the file.
#[derive(Debug, Default)]
pub struct TimerIndex {
    heap: BinaryHeap<Timed>,
}

impl TimerIndex {
    /// Adds an entry.
    pub fn push(&mut self, timed: Timed) {
        self.heap.push(timed);
    }

    /// The first of all.
    pub fn first(&self) -> Option<&Timed> {
        self.heap.peek()
    }

    /// Takes the first out if it is due.
    pub fn pop_due(&mut self, now_ms: i64) -> Option<Timed> {
        let first = self.heap.peek_mut()?;
        (first.due_ms <= now_ms).then(|| PeekMut::pop(first))
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ten_million_fit_the_promise() {
        // Growing by doubling, at most twice this.
        assert!(size_of::<Timed>() * 10_000_000 * 2 <= 1 << 30);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100_000, failure_persistence: None, ..ProptestConfig::default() })]
        /// Against a sorted list, with a clock that jumps either way.
        #[test]
        fn comes_out_as_from_a_sorted_list(
            steps in prop::collection::vec((0..100i64, any::<bool>(), -120..120i64), 1..40),
        ) {
            let (mut index, mut list, mut now) = (TimerIndex::default(), Vec::<Timed>::new(), 50i64);
            for (at, (due_ms, cancels, jump)) in steps.into_iter().enumerate() {
                let timed = Timed::new(due_ms, at as u64, cancels, PhysicalOffset(at as u64 * 7));
                prop_assert_eq!((timed.queue_offset(), timed.cancels()), (at as u64, cancels));
                index.push(timed);
                let place = list.partition_point(|other| {
                    (other.due_ms, !other.cancels(), other.queue_offset()) < (due_ms, !cancels, at as u64)
                });
                list.insert(place, timed);
                now += jump;
                prop_assert_eq!(index.first(), list.first());
                while let Some(timed) = index.pop_due(now) {
                    prop_assert_eq!(timed, list.remove(0));
                }
                prop_assert!(list.first().is_none_or(|first| first.due_ms > now));
                prop_assert_eq!((index.len(), index.is_empty()), (list.len(), list.is_empty()));
            }
        }
    }
}
