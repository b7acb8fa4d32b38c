//! Results for the tests of the reports.

use crate::result::{FORMAT, Kind, Latency, RunOptions, RunResult, Sample, Totals, histogram};

/// A run of so many seconds with plausible figures.
pub fn run(label: &str, seconds: u32) -> RunResult {
    let mut h = histogram();
    (0..10_000u64).for_each(|n| h.saturating_record(100_000 + n * n));
    let sample = |s: u32| Sample {
        at_s: f64::from(s + 1),
        length_s: 1.0,
        operations: 500_000 + u64::from(s % 7) * 1_000,
        errors: 0,
        p50_ns: Some(700_000),
        p99_ns: Some(5_000_000),
        max_ns: Some(20_000_000),
        broker_cpu_s: Some(0.97),
        broker_resident_bytes: Some(90 << 20),
        broker_anonymous_bytes: Some(14 << 20),
        load_cpu_s: Some(0.5),
    };
    RunResult {
        format: FORMAT,
        tool: "ringmq 0.1.0".into(),
        command: "ringmq bench produce".into(),
        label: label.into(),
        workload: "produce".into(),
        broker: "127.0.0.1:10911".into(),
        options: RunOptions {
            size: "128".into(),
            connections: 8,
            window: 64,
            batch: 1,
            topics: 1,
            queues: 8,
            ..RunOptions::default()
        },
        started: "2026-01-01T00:00:00Z".into(),
        warm_up_s: 3.0,
        measured_s: 10.0,
        totals: Totals { operations: 5_000_000, messages: 5_000_000, bytes: 640_000_000, errors: [].into() },
        rate: 500_000.0,
        latencies: vec![Latency::of(Kind::Send, &h)],
        samples: (0..seconds).map(sample).collect(),
        broker_cpu_ns_per_operation: Some(1_700.0),
        load_cpu_ns_per_operation: Some(900.0),
        steps: Vec::new(),
        notes: Vec::new(),
    }
}
