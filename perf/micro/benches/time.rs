//! `cargo bench -p micro`: nanoseconds of each case, measured by criterion. A text after `--` selects cases by their name.

use std::time::{Duration, Instant};

use criterion::Criterion;
use micro::{Case, Operation};

fn main() {
    // Long enough for a spread, short enough for all cases within a few minutes.
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
        .sample_size(30)
        .configure_from_args();
    for case in micro::cases() {
        let mut instance = Instance { case: &case, operation: None, left: 0 };
        criterion.bench_function(case.name, |bencher| bencher.iter_custom(|calls| instance.time(calls)));
    }
    criterion.final_summary();
}

/// The instance of a case that is called now. Each serves its number of calls, so that what a case writes is bounded.
struct Instance<'a> {
    case: &'a Case,
    operation: Option<Operation>,
    left: u64,
}

impl Instance<'_> {
    /// The time of so many calls, all of them of warm instances.
    fn time(&mut self, mut calls: u64) -> Duration {
        let mut total = Duration::ZERO;
        while calls > 0 {
            if self.left == 0 {
                // The old one gives its memory and folder back first.
                self.operation = None;
                self.left = self.case.calls.into();
            }
            let operation = self.operation.get_or_insert_with(|| self.case.warm());
            let now = calls.min(self.left);
            let start = Instant::now();
            (0..now).for_each(|_| operation());
            total += start.elapsed();
            calls -= now;
            self.left -= now;
        }
        total
    }
}
