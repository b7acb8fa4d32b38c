//! What a run has measured, as one value: the joint between the engine, the reports and the comparison.
//!
//! Role: plain data and its JSON. Invariants: times are nanoseconds unless the name says otherwise (`_s`), sizes bytes;
//! names of fields in JSON are those here and do not change, new ones have a default; what was not measured is `None`
//! (JSON `null`), never 0. It knows no connection and no plot.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Version of the JSON form: changes only when a field changes its meaning.
pub const FORMAT: u32 = 1;

/// The longest latency that is told apart: ten minutes. What takes longer counts as this.
pub const HIGHEST_NS: u64 = 600_000_000_000;

/// Key in [`Totals::errors`] of an operation without an answer in time.
pub const TIMED_OUT: i32 = -1;
/// Key in [`Totals::errors`] of an operation whose connection ended.
pub const DISCONNECTED: i32 = -2;

/// An empty histogram for latencies in nanoseconds up to [`HIGHEST_NS`], with three significant digits (some 300 KiB).
/// Record with `saturating_record`.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, HIGHEST_NS, 3).expect("constant bounds")
}

/// One run against one broker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// [`FORMAT`].
    pub format: u32,
    /// Name and version of what made the load (`ringmq 0.1.0`).
    pub tool: String,
    /// The command line.
    pub command: String,
    /// How legends call this run (`ringmq`, `java`); the workload unless told.
    pub label: String,
    /// Name of the workload (`produce`, `consume`, `end-to-end`, ...).
    pub workload: String,
    /// `host:port` of the broker.
    pub broker: String,
    /// What was asked for.
    pub options: RunOptions,
    /// Begin of the measured time, RFC 3339 in UTC.
    pub started: String,
    /// Seconds of load before the measured time.
    pub warm_up_s: f64,
    /// Measured seconds.
    pub measured_s: f64,
    /// What was done in the measured time.
    pub totals: Totals,
    /// Operations per second of the measured time.
    pub rate: f64,
    /// One for each kind of operation that occurred; the main one first.
    pub latencies: Vec<Latency>,
    /// One for each measured second, in order; the last may be a part of a second.
    #[serde(default)]
    pub samples: Vec<Sample>,
    /// Processor time of the broker for one operation.
    pub broker_cpu_ns_per_operation: Option<f64>,
    /// Processor time of the load generator for one operation.
    pub load_cpu_ns_per_operation: Option<f64>,
    /// The search for the highest rate, step by step.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// What else is to be known: ended early, lost messages, first remarks of errors.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// One step of the search for the highest rate that a broker sustains.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Operations per second that were asked for.
    pub target_rate: f64,
    /// Those that came.
    pub rate: f64,
    /// 99 % of the latencies are no longer.
    pub p99_ns: u64,
    /// Operations that failed, or were not begun in time.
    pub failed: u64,
    /// Whether it was sustained.
    pub is_sustained: bool,
}

/// What a run was asked to do. A new option has a default.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunOptions {
    /// Body bytes of a message, as given: a number, a list or a range with its distribution.
    pub size: String,
    /// Connections.
    pub connections: u32,
    /// Requests in flight on each connection (closed loop), or their limit (open loop).
    pub window: u32,
    /// Messages of one request: of a batch sent, or of a pull or pop at most.
    pub batch: u32,
    /// Topics.
    pub topics: u32,
    /// Queues of each topic.
    pub queues: u32,
    /// Consumer groups.
    pub groups: u32,
    /// `flushDiskType` of the broker, when known.
    pub flush: Option<String>,
    /// Closed or open loop.
    pub mode: Mode,
    /// Operations per second of an open loop.
    pub target_rate: Option<f64>,
    /// Further options, by their name on the command line.
    pub other: BTreeMap<String, String>,
}

/// What decides when an operation begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The answer of another: a slow broker gets less load.
    #[default]
    Closed,
    /// The clock: latencies count from the intended time, so that a stall counts for all that it delays.
    Open,
}

/// Sums over the measured time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Operations that were answered well: requests, or messages for kinds that count messages (`end_to_end`).
    pub operations: u64,
    /// Messages in them.
    pub messages: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// How many failed, by response code; [`TIMED_OUT`] and [`DISCONNECTED`] where there was none.
    #[serde(default)]
    pub errors: BTreeMap<i32, u64>,
}

impl Totals {
    /// How many operations failed.
    pub fn failed(&self) -> u64 {
        self.errors.values().sum()
    }
}

/// What a latency is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A send, until its answer.
    Send,
    /// A pull, until its answer.
    Pull,
    /// A message, from its send until a consumer has it.
    EndToEnd,
    /// Half message and end of a transaction, until the second answer.
    Transaction,
    /// How much later than asked a delayed message came.
    Delay,
    /// A pop, until its answer.
    Pop,
    /// An ack, until its answer.
    Ack,
}

impl Kind {
    /// The name in JSON and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Pull => "pull",
            Self::EndToEnd => "end_to_end",
            Self::Transaction => "transaction",
            Self::Delay => "delay",
            Self::Pop => "pop",
            Self::Ack => "ack",
        }
    }
}

/// The latencies of one kind of operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Of what.
    pub kind: Kind,
    /// How many.
    pub count: u64,
    /// The shortest.
    pub min_ns: u64,
    /// Their mean.
    pub mean_ns: f64,
    /// Standard deviation.
    pub deviation_ns: f64,
    /// Half are no longer than this.
    pub p50_ns: u64,
    /// 90 % are no longer.
    pub p90_ns: u64,
    /// 99 % are no longer.
    pub p99_ns: u64,
    /// 99.9 % are no longer.
    pub p999_ns: u64,
    /// 99.99 % are no longer.
    pub p9999_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// The histogram as steps of its percentile curve, finer towards 1: `[quantile, value in ns, how many up to it]`.
    #[serde(default)]
    pub steps: Vec<(f64, u64, u64)>,
}

impl Latency {
    /// Sums up a histogram of nanoseconds.
    pub fn of(kind: Kind, histogram: &Histogram<u64>) -> Latency {
        /// Steps for each halving of what is left until quantile 1.
        const TICKS: u32 = 5;
        let steps = histogram.iter_quantiles(TICKS).scan(0, |total, step| {
            *total += step.count_since_last_iteration();
            Some((rounded(step.quantile_iterated_to(), 1e10), step.value_iterated_to(), *total))
        });
        let at = |quantile| histogram.value_at_quantile(quantile);
        Latency {
            kind,
            count: histogram.len(),
            min_ns: histogram.min(),
            mean_ns: rounded(histogram.mean(), 10.0),
            deviation_ns: rounded(histogram.stdev(), 10.0),
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            p9999_ns: at(0.9999),
            max_ns: histogram.max(),
            steps: if histogram.is_empty() { Vec::new() } else { steps.collect() },
        }
    }
}

/// As a text of few digits, which is read back as the same number.
fn rounded(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

/// What one second saw.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// End of this interval, seconds from the begin of the measured time.
    pub at_s: f64,
    /// Length of the interval, about 1.
    pub length_s: f64,
    /// Operations that ended in it.
    pub operations: u64,
    /// Operations that failed in it.
    pub errors: u64,
    /// Half of the main kind's latencies are no longer; `None` without any.
    pub p50_ns: Option<u64>,
    /// 99 % are no longer.
    pub p99_ns: Option<u64>,
    /// The longest.
    pub max_ns: Option<u64>,
    /// Processor time of the broker in this interval, seconds; needs its process id, as the next two.
    pub broker_cpu_s: Option<f64>,
    /// Resident memory of the broker at the end, mapped files included.
    pub broker_resident_bytes: Option<u64>,
    /// Anonymous part of it.
    pub broker_anonymous_bytes: Option<u64>,
    /// Processor time of the load generator in this interval, seconds.
    pub load_cpu_s: Option<f64>,
}

impl RunResult {
    /// The latencies of a kind.
    pub fn latency(&self, kind: Kind) -> Option<&Latency> {
        self.latencies.iter().find(|l| l.kind == kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_becomes_its_percentiles() {
        let mut h = histogram();
        for ns in 1..=100_000u64 {
            h.saturating_record(ns * 1_000);
        }
        h.saturating_record(u64::MAX);
        let l = Latency::of(Kind::Send, &h);
        let near = |value: u64, wanted: u64| value.abs_diff(wanted) as f64 <= wanted as f64 / 500.0;
        assert_eq!(l.count, 100_001);
        assert!(near(l.p50_ns, 50_000_000) && near(l.p99_ns, 99_000_000) && near(l.p9999_ns, 99_990_000), "{l:?}");
        assert!(near(l.max_ns, HIGHEST_NS));
        let (quantile, value, count) = *l.steps.last().unwrap();
        assert_eq!((quantile, value, count), (1.0, l.max_ns, l.count));
        assert!(l.steps.is_sorted_by(|a, b| a.0 <= b.0 && a.1 <= b.1 && a.2 <= b.2));
        assert!(l.steps.len() < 200);
    }

    #[test]
    fn an_empty_histogram_is_all_zero() {
        let l = Latency::of(Kind::Pull, &histogram());
        assert_eq!((l.count, l.min_ns, l.max_ns, l.p9999_ns, l.steps.len()), (0, 0, 0, 0, 0));
        assert!(l.mean_ns == 0.0 && l.deviation_ns == 0.0);
    }

    #[test]
    fn names_of_kinds_are_those_of_json() {
        use Kind::*;
        for kind in [Send, Pull, EndToEnd, Transaction, Delay, Pop, Ack] {
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{}\"", kind.name()));
        }
    }
}
