//! `cargo bench -p micro`: nanoseconds of each case, measured by criterion. A text after `--` selects cases by their name.

use std::time::{Duration, Instant};

use criterion::{Bencher, Criterion};
use micro::Case;

fn main() {
    // Long enough for a spread, short enough for all cases within a few minutes.
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
        .sample_size(30)
        .configure_from_args();
    for case in micro::cases() {
        criterion.bench_function(case.name, |bencher| time(bencher, &case));
    }
    criterion.final_summary();
}

/// Times calls of instances that are warm. Each instance serves its number of calls, so that what a case writes is bounded.
fn time(bencher: &mut Bencher<'_>, case: &Case) {
    bencher.iter_custom(|calls| {
        let (mut left, mut total) = (calls, Duration::ZERO);
        while left > 0 {
            let mut operation = case.warm();
            let now = left.min(case.calls.into());
            let start = Instant::now();
            (0..now).for_each(|_| operation());
            total += start.elapsed();
            left -= now;
        }
        total
    });
}
