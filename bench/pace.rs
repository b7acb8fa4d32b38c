//! The schedule of an open loop: when each operation is meant to begin.
//!
//! Role: intended times alone. Invariants: they depend on nothing but the start and the rate: a broker that stalls, or a
//! load generator that is late, moves none of them, so that latencies that count from them miss nothing. Pure: the time is
//! passed in.

/// Later than this no sleep ends, as a rule.
const LATEST_WAKE_NS: f64 = 100_000.0;

/// Equal distances from a start, some of n threads' share of them.
#[derive(Clone, Debug)]
pub struct Pace {
    start_ns: u64,
    step_ns: f64,
    next: u64,
}

impl Pace {
    /// `rate` operations a second of all threads together; this is number `thread` of `threads`, whose times lie between
    /// those of the others.
    #[must_use]
    pub fn new(start_ns: u64, rate: f64, thread: u32, threads: u32) -> Pace {
        let step_ns = 1e9 / rate * f64::from(threads);
        let shift = 1e9 / rate * f64::from(thread);
        Pace { start_ns: start_ns + shift as u64, step_ns, next: 0 }
    }

    /// Until when to sleep at most; `None`: better not at all. A sleep ends some dozens of microseconds late, and that lateness
    /// is not the server's: so just before an operation is due, and while its answer may come, a slow schedule stays
    /// awake, for at most three twentieths of the time.
    #[must_use]
    pub fn sleep_until_ns(&self, now_ns: u64) -> Option<u64> {
        let awake_ns = (self.step_ns / 20.0).min(LATEST_WAKE_NS) as u64;
        let until_ns = self.due_ns().saturating_sub(awake_ns);
        let answered = self.next == 0 || now_ns >= self.time_of(self.next - 1) + 2 * awake_ns;
        (answered && now_ns < until_ns).then_some(until_ns)
    }

    /// When the next operation is meant to begin.
    #[must_use]
    pub fn due_ns(&self) -> u64 {
        self.time_of(self.next)
    }

    fn time_of(&self, number: u64) -> u64 {
        self.start_ns + (number as f64 * self.step_ns) as u64
    }

    /// The intended time of the next operation if it has come; that operation is taken then.
    pub fn take(&mut self, now_ns: u64) -> Option<u64> {
        let due = self.due_ns();
        (due <= now_ns).then(|| {
            self.next += 1;
            due
        })
    }

    /// How many operations should have begun and were not taken.
    #[must_use]
    pub fn behind(&self, now_ns: u64) -> u64 {
        let due = self.due_ns();
        if due > now_ns { 0 } else { ((now_ns - due) as f64 / self.step_ns) as u64 + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::histogram;

    #[test]
    fn times_lie_equally_apart_and_do_not_drift() {
        let mut pace = Pace::new(1_000, 3.0, 0, 1);
        let times: Vec<u64> = std::iter::from_fn(|| pace.take(u64::MAX)).take(3_000_001).collect();
        assert_eq!(times[0], 1_000);
        assert_eq!(times[3_000_000], 1_000 + 1_000_000 * 1_000_000_000);
        assert!(times.windows(2).all(|pair| (pair[1] - pair[0]).abs_diff(333_333_333) <= 1));
    }

    #[test]
    fn a_slow_schedule_is_awake_around_its_operations() {
        let mut slow = Pace::new(1_000_000, 200.0, 0, 1);
        assert_eq!(slow.sleep_until_ns(0), Some(900_000));
        assert_eq!((slow.sleep_until_ns(900_000), slow.sleep_until_ns(1_000_000)), (None, None));
        assert_eq!(slow.take(1_050_000), Some(1_000_000));
        assert_eq!((slow.sleep_until_ns(1_199_999), slow.sleep_until_ns(1_200_000)), (None, Some(5_900_000)));
        // 100 us between operations: 5 before and 10 after.
        let mut quick = Pace::new(0, 10_000.0, 0, 1);
        assert_eq!(quick.take(0), Some(0));
        assert_eq!(
            (quick.sleep_until_ns(9_999), quick.sleep_until_ns(10_000), quick.sleep_until_ns(95_000)),
            (None, Some(95_000), None)
        );
    }

    #[test]
    fn threads_share_one_schedule() {
        let mut times: Vec<u64> = (0..4)
            .flat_map(|thread| {
                let mut pace = Pace::new(0, 1_000.0, thread, 4);
                std::iter::from_fn(move || pace.take(999_999_999)).collect::<Vec<_>>()
            })
            .collect();
        times.sort_unstable();
        assert_eq!(times, (0..1000).map(|n| n * 1_000_000).collect::<Vec<u64>>());
    }

    #[test]
    fn nothing_is_due_before_its_time() {
        let mut pace = Pace::new(500, 1e6, 0, 1);
        assert_eq!((pace.take(499), pace.behind(499)), (None, 0));
        assert_eq!((pace.take(500), pace.take(500)), (Some(500), None));
        assert_eq!(pace.behind(10_500), 10);
    }

    /// A server that takes 100 us for each request, one after the other, and stands still for a second.
    #[test]
    fn a_stall_counts_for_all_that_it_delays() {
        const SERVICE_NS: u64 = 100_000;
        let stall = 1_000_000_000..2_000_000_000;
        let mut pace = Pace::new(0, 1_000.0, 0, 1);
        let (mut free_at, mut seen) = (0u64, histogram());
        while let Some(intended) = pace.take(4_000_000_000) {
            // One connection, window 1: it is sent when the one before was answered.
            let sent = free_at.max(intended);
            let begun = if stall.contains(&sent) { stall.end } else { sent };
            free_at = begun + SERVICE_NS;
            seen.record(free_at - intended).unwrap();
        }
        assert_eq!(seen.len(), 4_001, "the schedule was kept");
        // A thousand requests were meant for the stall: they waited 500 ms on average. Counted from the real send, only
        // the one that hit the stall would have been slow.
        let slow = seen.count_between(100_000_000, u64::MAX);
        assert!((950..1_050).contains(&slow), "{slow} slow ones");
        assert!(seen.value_at_quantile(0.99) > 900_000_000 && seen.value_at_quantile(0.7) < 1_000_000);
    }
}
