//! How much memory ten million waiting timers need: fills the index of one shard and prints the resident bytes of the process.

use broker::services::timer::done::DoneBook;
use broker::services::timer::index::{Timed, TimerIndex};
use message::PhysicalOffset;
use std::time::Instant;

const TIMERS: u64 = 10_000_000;

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("the system's own numbers");
    let pages: u64 = status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number of pages");
    pages * 4096
}

fn main() {
    let (mut index, mut done) = (TimerIndex::default(), DoneBook::new(0));
    let before = resident_bytes();
    let started = Instant::now();
    let (mut most_us, mut seed) = (0, 1u64);
    for queue_offset in 0..TIMERS {
        // Due within three days, in no order.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let due_ms = 1_700_000_000_000 + (seed >> 33) as i64 % 259_200_000;
        let timed = Timed::new(due_ms, queue_offset, false, PhysicalOffset(queue_offset * 300));
        let one = Instant::now();
        done.read(&timed);
        index.push(timed);
        most_us = most_us.max(one.elapsed().as_micros());
    }
    let (filled, grown) = (started.elapsed(), resident_bytes() - before);
    let started = Instant::now();
    let mut fired = 0u64;
    while let Some(timed) = index.pop_due(1_700_000_000_000 + 25_920_000) {
        done.start(&timed);
        done.done(&timed);
        fired += 1;
    }
    let each_ns = started.elapsed().as_nanos() / u128::from(fired.max(1));
    println!("{TIMERS} timers: {grown} bytes resident, {} each", grown / TIMERS);
    println!("filled in {} ms, at most {most_us} us for one; {fired} fired, {each_ns} ns each", filled.as_millis());
}
