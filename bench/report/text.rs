//! A result as a summary for a terminal.

use std::fmt::Write;

use super::units::{bytes, count, duration, number};
use crate::result::{DISCONNECTED, Latency, Mode, RunOptions, RunResult, Step, TIMED_OUT};

/// Several lines, aligned, the last one ended.
pub fn to_text(result: &RunResult) -> String {
    let mut text = String::new();
    // A text always takes what is written.
    let _ =
        writeln!(text, "{} on {} by {}", one_line(&result.workload), one_line(&result.broker), one_line(&result.tool));
    let _ = writeln!(text, "{}", load(&result.options));
    let _ = writeln!(
        text,
        "measured {} s after {} s of warm-up, from {}\n",
        number(result.measured_s),
        number(result.warm_up_s),
        one_line(&result.started)
    );
    for (name, value) in figures(result) {
        let _ = writeln!(text, "{name:<12} {}", one_line(&value));
    }
    if !result.latencies.is_empty() {
        text.push('\n');
        text.push_str(&aligned(&latency_table(&result.latencies)));
    }
    if !result.steps.is_empty() {
        text.push('\n');
        text.push_str(&aligned(&step_table(&result.steps)));
    }
    for note in &result.notes {
        let _ = writeln!(text, "note: {}", one_line(note));
    }
    text
}

/// Head and one row for each step of a search.
fn step_table(steps: &[Step]) -> Vec<Vec<String>> {
    let head = ["step", "rate", "p99", "failed", "sustained"];
    let row = |s: &Step| {
        let kept = if s.is_sustained { "yes" } else { "no" };
        [number(s.target_rate), number(s.rate), duration(s.p99_ns as f64), count(s.failed), kept.into()].to_vec()
    };
    std::iter::once(head.map(String::from).to_vec()).chain(steps.iter().map(row)).collect()
}

/// What was asked for, in one line.
pub fn load(o: &RunOptions) -> String {
    let mode = match (o.mode, o.target_rate) {
        (Mode::Closed, _) => "closed loop".to_string(),
        (Mode::Open, rate) => format!("open loop, {}/s", number(rate.unwrap_or(f64::NAN))),
    };
    let mut text = format!(
        "{mode}, {} connections x {} in flight, size {}, batch {}, {} topics x {} queues",
        o.connections,
        o.window,
        one_line(&o.size),
        o.batch,
        count(o.topics.into()),
        o.queues
    );
    if o.groups > 0 {
        let _ = write!(text, ", {} groups", o.groups);
    }
    if let Some(flush) = &o.flush {
        let _ = write!(text, ", {}", one_line(flush));
    }
    for (name, value) in &o.other {
        let _ = write!(text, ", {} {}", one_line(name), one_line(value));
    }
    text
}

/// The figures of a run beside its latencies: name and value.
pub fn figures(result: &RunResult) -> Vec<(&'static str, String)> {
    let t = &result.totals;
    let per_second = |n: u64| number(n as f64 / result.measured_s);
    let mut rows = vec![
        ("operations", format!("{}, {}/s", count(t.operations), number(result.rate))),
        ("messages", format!("{}, {}/s", count(t.messages), per_second(t.messages))),
        ("bodies", format!("{}, {}/s", bytes(t.bytes as f64), bytes(t.bytes as f64 / result.measured_s))),
        ("errors", errors(result)),
    ];
    if let Some(ns) = result.broker_cpu_ns_per_operation {
        rows.push(("broker CPU", format!("{} ns per operation, {} cores", number(ns), number(ns * result.rate / 1e9))));
    }
    let largest = |of: fn(&crate::result::Sample) -> Option<u64>| result.samples.iter().filter_map(of).max();
    if let Some(most) = largest(|s| s.broker_anonymous_bytes) {
        let resident =
            largest(|s| s.broker_resident_bytes).map_or(String::new(), |r| format!(", {} resident", bytes(r as f64)));
        rows.push(("broker memory", format!("{} anonymous{resident}, at most", bytes(most as f64))));
    }
    if let Some(ns) = result.load_cpu_ns_per_operation {
        rows.push(("load CPU", format!("{} ns per operation, {} cores", number(ns), number(ns * result.rate / 1e9))));
    }
    rows
}

fn errors(result: &RunResult) -> String {
    let t = &result.totals;
    if t.errors.is_empty() {
        return "0".into();
    }
    let named = t.errors.iter().map(|(code, n)| match *code {
        TIMED_OUT => format!("{} without an answer in time", count(*n)),
        DISCONNECTED => format!("{} whose connection ended", count(*n)),
        code => format!("{} with response code {code}", count(*n)),
    });
    format!("{}: {}", count(t.failed()), named.collect::<Vec<_>>().join(", "))
}

/// Head and one row for each kind.
pub fn latency_table(latencies: &[Latency]) -> Vec<Vec<String>> {
    let head = ["latency", "count", "min", "mean", "p50", "p90", "p99", "p99.9", "p99.99", "max"];
    let row = |l: &Latency| {
        let mut row = vec![l.kind.name().to_string(), count(l.count)];
        let ns = [l.min_ns as f64, l.mean_ns].into_iter();
        let rest = [l.p50_ns, l.p90_ns, l.p99_ns, l.p999_ns, l.p9999_ns, l.max_ns].map(|ns| ns as f64);
        row.extend(ns.chain(rest).map(duration));
        row
    };
    std::iter::once(head.map(String::from).to_vec()).chain(latencies.iter().map(row)).collect()
}

/// Rows as lines: the first column to the left, the others to the right.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| rows.iter().filter_map(|r| r.get(at)).map(|c| c.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            let _ = if at == 0 {
                write!(line, "{cell:<width$}", width = widths[at])
            } else {
                write!(line, "  {cell:>width$}", width = widths[at])
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A name from outside without what would end a line or move a terminal's cursor.
fn one_line(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixtures::run;
    use crate::result::{Kind, histogram};

    #[test]
    fn a_summary_has_every_figure() {
        let mut result = run("ringmq", 10);
        result.totals.errors = [(TIMED_OUT, 1_500), (14, 2)].into();
        let text = to_text(&result);
        for part in [
            "produce on 127.0.0.1:10911",
            "closed loop, 8 connections x 64 in flight, size 128",
            "5,000,000, 500,000/s",
            "1,502: 1,500 without an answer in time, 2 with response code 14",
            "1,700 ns per operation, 0.85 cores",
            "14.0 MiB anonymous",
            "p99.99",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn columns_stand_below_each_other() {
        let result = run("x", 3);
        let table = aligned(&latency_table(&result.latencies));
        let lengths: Vec<usize> = table.lines().map(|l| l.chars().count()).collect();
        assert!(lengths.len() == 2 && lengths[0] == lengths[1], "{table}");
    }

    #[test]
    fn empty_and_hostile_results_give_a_text() {
        let mut result = run("x", 0);
        result.workload = "a\nb\x1b[2J".into();
        result.measured_s = 0.0;
        result.rate = f64::NAN;
        result.latencies = vec![Latency::of(Kind::Delay, &histogram())];
        result.options.mode = Mode::Open;
        let text = to_text(&result);
        assert!(!text.contains('\x1b') && text.starts_with("a?b?[2J on "), "{text}");
        result.latencies.clear();
        result.totals.operations = u64::MAX;
        assert!(to_text(&result).contains("18,446,744,073,709,551,615"));
    }
}
