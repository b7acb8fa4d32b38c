//! Timers of a core: a heap of (time, order of setting, token).

use crate::service::Token;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Timers that are set.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(u64, u64, Token)>>,
    set: u64,
}

impl Timers {
    /// Sets a timer, in microseconds of the monotonic clock.
    pub(crate) fn set(&mut self, at_us: u64, token: Token) {
        self.set += 1;
        self.heap.push(Reverse((at_us, self.set, token)));
    }

    /// Takes the earliest timer that is due.
    pub(crate) fn pop_due(&mut self, now_us: u64) -> Option<Token> {
        let Reverse((at_us, ..)) = self.heap.peek()?;
        if *at_us > now_us {
            return None;
        }
        self.heap.pop().map(|Reverse((.., token))| token)
    }

    /// When the earliest timer is due.
    pub(crate) fn next_us(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at_us, ..))| *at_us)
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_time_and_then_by_order_of_setting() {
        let mut timers = Timers::default();
        for (at_us, token) in [(30, 1), (10, 2), (20, 3), (10, 4), (10, 5)] {
            timers.set(at_us, Token(token));
        }
        assert_eq!(timers.next_us(), Some(10));
        assert_eq!(timers.pop_due(9), None);
        let due: Vec<u64> = std::iter::from_fn(|| timers.pop_due(20)).map(|token| token.0).collect();
        assert_eq!(due, [2, 4, 5, 3]);
        assert_eq!((timers.next_us(), timers.len()), (Some(30), 1));
    }
}
