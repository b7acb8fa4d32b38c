//! Whether to look for work for some microseconds before sleeping.
//!
//! A sleep and a wake-up cost more than what they save when work comes back within a few dozen microseconds: the next
//! request of a client that waits for each answer, or the answer of another core. Role: decides from how the last waits went.
//! Invariants: a core whose waits are long never looks; looks in vain make it look ever more rarely. Pure.

/// Waits without a look after looks in vain, at most.
const LONGEST_PAUSE: u32 = 1023;

/// What the last waits of a core were like.
#[derive(Debug)]
pub(crate) struct Spin {
    /// Longest look.
    limit_us: u64,
    /// How long the last wait took.
    last_us: u64,
    /// Waits that are still to pass without a look.
    pause: u32,
    /// Length of the last pause.
    last_pause: u32,
}

impl Spin {
    /// Looks of at most `limit_us`; 0: none.
    pub(crate) fn new(limit_us: u64) -> Spin {
        Spin { limit_us, last_us: u64::MAX, pause: 0, last_pause: 0 }
    }

    /// Whether to look before this wait.
    pub(crate) fn is_worthwhile(&mut self) -> bool {
        if self.limit_us == 0 || self.last_us > self.limit_us {
            return false;
        }
        let looks = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        looks
    }

    /// A look found work after so long.
    pub(crate) fn found(&mut self, after_us: u64) {
        self.last_us = after_us;
        self.last_pause = 0;
    }

    /// A look found nothing.
    pub(crate) fn in_vain(&mut self) {
        self.last_pause = (self.last_pause * 2 + 1).min(LONGEST_PAUSE);
        self.pause = self.last_pause;
    }

    /// A sleep ended; the wait took so long, with the look before it.
    pub(crate) fn slept(&mut self, wait_us: u64) {
        self.last_us = wait_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_after_short_waits_only() {
        let mut spin = Spin::new(40);
        assert!(!spin.is_worthwhile(), "nothing is known");
        spin.slept(41);
        assert!(!spin.is_worthwhile());
        spin.slept(40);
        assert!(spin.is_worthwhile());
        spin.found(40);
        assert!(spin.is_worthwhile());
        spin.slept(200_000);
        assert!(!spin.is_worthwhile(), "idle");
        let mut never = Spin::new(0);
        never.slept(0);
        assert!(!never.is_worthwhile());
    }

    /// A client on the same processor cannot run while the core looks: the sleeps are short and the looks in vain.
    #[test]
    fn looks_in_vain_become_rare() {
        let mut spin = Spin::new(40);
        let mut looks = 0;
        for _ in 0..10_000 {
            spin.slept(10);
            if spin.is_worthwhile() {
                looks += 1;
                spin.in_vain();
            }
        }
        assert!((10..25).contains(&looks), "{looks}");
        while !spin.is_worthwhile() {}
        spin.found(5);
        spin.in_vain();
        assert!(!spin.is_worthwhile() && spin.is_worthwhile(), "one that finds something is trusted again");
    }
}
