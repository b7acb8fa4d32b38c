//! The two clocks. Read once a turn by the driver of a core; nobody else asks the system for the time.

use rustix::time::{ClockId, clock_gettime};

/// Microseconds of the monotonic clock, from an arbitrary start.
pub fn monotonic_us() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}

/// Milliseconds since 1970. May step back.
pub fn wall_ms() -> i64 {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec * 1_000 + time.tv_nsec / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_monotonic_clock_advances_with_sleep() {
        let before = monotonic_us();
        std::thread::sleep(std::time::Duration::from_millis(5));
        let passed_us = monotonic_us() - before;
        assert!((5_000..2_000_000).contains(&passed_us), "{passed_us} us passed");
    }

    #[test]
    fn the_wall_clock_agrees_with_the_standard_library() {
        let std_ms = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_millis() as i64;
        assert!((wall_ms() - std_ms).abs() < 1_000);
    }
}
