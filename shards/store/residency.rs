//! Which ranges of the log are known to be in memory, for the time of one turn.
//!
//! Role: lets the pulls of a turn share the question to the kernel. Invariants: what is known was asked for in this turn
//! (`forget` ends it); bounded. It asks nothing itself.

use smallvec::SmallVec;

/// Ranges that are kept.
const SPANS: usize = 8;

/// What the reads of this turn have learned.
#[derive(Default)]
pub(crate) struct Residency {
    spans: SmallVec<[(u64, u64); SPANS]>,
    /// The one to be replaced next.
    oldest: usize,
}

impl Residency {
    /// Whether all of the range is known to be in memory.
    pub(crate) fn covers(&self, from: u64, to: u64) -> bool {
        self.spans.iter().any(|&(start, end)| start <= from && to <= end)
    }

    /// Whether something was noted in this turn: more reads are likely to come, and close by.
    pub(crate) fn is_in_use(&self) -> bool {
        !self.spans.is_empty()
    }

    /// Keeps a range that is in memory.
    pub(crate) fn note(&mut self, from: u64, to: u64) {
        if self.spans.len() < SPANS {
            self.spans.push((from, to));
        } else {
            self.spans[self.oldest] = (from, to);
            self.oldest = (self.oldest + 1) % SPANS;
        }
    }

    /// The turn is over.
    pub(crate) fn forget(&mut self) {
        self.spans.clear();
        self.oldest = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_what_was_noted_until_the_turn_is_over() {
        let mut known = Residency::default();
        assert!(!known.is_in_use() && !known.covers(0, 0));
        known.note(100, 200);
        assert!(known.covers(100, 200) && known.covers(150, 160));
        assert!(!known.covers(99, 120) && !known.covers(150, 201));
        known.forget();
        assert!(!known.covers(150, 160) && !known.is_in_use());
    }

    #[test]
    fn keeps_the_newest_of_many() {
        let mut known = Residency::default();
        (0..100).for_each(|at| known.note(at * 10, at * 10 + 5));
        assert_eq!(known.spans.len(), SPANS);
        assert!(known.covers(990, 995) && known.covers(920, 925) && !known.covers(910, 915));
    }
}
