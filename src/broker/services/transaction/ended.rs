//! What is remembered of half messages that have ended: that they did, while the queue is not read up to them, and for a while
//! how. Pure.
//!
//! Invariants: [`EndedAhead`] forgets nothing above what it was told to forget; [`Outcomes`] never tells the outcome of another
//! half. Memory: a bit for each half from the first that is ahead to the last; half a MiB for the outcomes.

use super::halves::{End, Outcome};
use std::collections::VecDeque;

/// Outcomes that are remembered: those of the last so many halves of the queue, at least.
const MAX_RECENT: usize = 1 << 16;
const WORD: u64 = u64::BITS as u64;

/// A set of queue offsets that lie close together, emptied from below.
#[derive(Debug, Default)]
pub struct EndedAhead {
    /// Which word of the whole queue's bits the first one is.
    base: u64,
    words: VecDeque<u64>,
}

impl EndedAhead {
    /// Adds an offset.
    pub fn insert(&mut self, at: u64) {
        let word = at / WORD;
        if self.words.is_empty() {
            self.base = word;
        }
        while word < self.base {
            self.base -= 1;
            self.words.push_front(0);
        }
        let index = (word - self.base) as usize;
        if index >= self.words.len() {
            self.words.resize(index + 1, 0);
        }
        self.words[index] |= 1 << (at % WORD);
    }

    /// Whether an offset is in it.
    pub fn contains(&self, at: u64) -> bool {
        let word = (at / WORD).checked_sub(self.base).and_then(|index| self.words.get(index as usize));
        word.is_some_and(|word| word >> (at % WORD) & 1 == 1)
    }

    /// Takes out everything below `next`, and what follows from there without a gap; gives the first offset that does not.
    pub fn forget_below(&mut self, mut next: u64) -> u64 {
        loop {
            while self.base < next / WORD && self.words.pop_front().is_some() {
                self.base += 1;
            }
            let Some(first) = self.words.front_mut().filter(|_| self.base == next / WORD) else { return next };
            let ended = u64::from((*first >> (next % WORD)).trailing_ones());
            next += ended;
            if ended == 0 || !next.is_multiple_of(WORD) {
                *first &= u64::MAX << (next % WORD);
                return next;
            }
        }
    }
}

/// What became of the last halves that ended. One that ended long ago may still be known.
#[derive(Debug, Default)]
pub struct Outcomes {
    /// By the lower bits of the queue offset: the offset + 1, then two bits of the outcome; 0 for none.
    slots: Vec<u64>,
}

impl Outcomes {
    /// A half has ended.
    pub fn remember(&mut self, queue_offset: u64, outcome: Outcome) {
        let kind = match outcome {
            Outcome::Ended(End::Commit) => 0,
            Outcome::Ended(End::Rollback) => 1,
            Outcome::GivenUp => 2,
            Outcome::Dropped => 3,
        };
        if self.slots.is_empty() {
            self.slots = vec![0; MAX_RECENT];
        }
        self.slots[slot(queue_offset)] = (queue_offset + 1) << 2 | kind;
    }

    /// How it ended, if that is known.
    pub fn get(&self, queue_offset: u64) -> Option<Outcome> {
        let kept = *self.slots.get(slot(queue_offset))?;
        (kept >> 2 == queue_offset.checked_add(1)?).then_some(match kept & 3 {
            0 => Outcome::Ended(End::Commit),
            1 => Outcome::Ended(End::Rollback),
            2 => Outcome::GivenUp,
            _ => Outcome::Dropped,
        })
    }
}

fn slot(queue_offset: u64) -> usize {
    queue_offset as usize % MAX_RECENT
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_last_outcomes_are_known() {
        let mut outcomes = Outcomes::default();
        assert_eq!(outcomes.get(0), None);
        let all = [Outcome::Ended(End::Commit), Outcome::Ended(End::Rollback), Outcome::GivenUp, Outcome::Dropped];
        let last = 2 * MAX_RECENT as u64 + 7;
        for at in 0..last {
            outcomes.remember(at, all[at as usize % 4]);
        }
        for at in 0..last + 10 {
            let known = at < last && at >= last - MAX_RECENT as u64;
            assert_eq!(outcomes.get(at), known.then_some(all[at as usize % 4]), "{at}");
        }
        assert_eq!(outcomes.get(u64::MAX), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_set_that_is_emptied_from_below(
            start in 0u64..300,
            ops in prop::collection::vec((0u64..200, prop::bool::weighted(0.2)), 0..400),
        ) {
            let (mut set, mut model, mut next) = (EndedAhead::default(), BTreeSet::new(), start);
            for (ahead, forget) in ops {
                if forget {
                    let from = next + ahead / 8;
                    next = from;
                    model.retain(|at| *at >= next);
                    while model.remove(&next) {
                        next += 1;
                    }
                    prop_assert_eq!(set.forget_below(from), next);
                } else {
                    set.insert(next + 1 + ahead);
                    model.insert(next + 1 + ahead);
                }
                for at in next.saturating_sub(70)..next + 270 {
                    prop_assert_eq!(set.contains(at), model.contains(&at), "{}", at);
                }
            }
        }
    }
}
