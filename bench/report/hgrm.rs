//! `.hgrm`: the percentile text form that plotters of HdrHistogram read.
//!
//! Role: the steps of a latency as that text. Values are milliseconds, as these plotters expect.

use std::fmt::Write;

use crate::result::Latency;

const NS_PER_MS: f64 = 1e6;

/// The text of one latency; without any value it has its head and foot only.
pub fn to_hgrm(latency: &Latency) -> String {
    let mut text = format!("{:>12} {:>14} {:>10} {:>14}\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
    for &(quantile, ns, total) in &latency.steps {
        let value = ns as f64 / NS_PER_MS;
        // A text always takes what is written.
        let _ = if quantile < 1.0 {
            writeln!(text, "{value:>12.6} {quantile:>14.12} {total:>10} {:>14.2}", 1.0 / (1.0 - quantile))
        } else {
            writeln!(text, "{value:>12.6} {quantile:>14.12} {total:>10} {:>14}", "inf")
        };
    }
    let (mean, deviation) = (latency.mean_ns / NS_PER_MS, latency.deviation_ns / NS_PER_MS);
    let max = latency.max_ns as f64 / NS_PER_MS;
    let _ = writeln!(text, "#[Mean    = {mean:>12.6}, StdDeviation   = {deviation:>12.6}]");
    let _ = writeln!(text, "#[Max     = {max:>12.6}, Total count    = {:>12}]", latency.count);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Kind, histogram};

    #[test]
    fn the_steps_are_lines_that_end_at_the_maximum() {
        let mut h = histogram();
        (1..=1_000u64).for_each(|n| h.saturating_record(n * 1_000_000));
        let text = to_hgrm(&Latency::of(Kind::Send, &h));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("Value") && lines[0].contains("1/(1-Percentile)") && lines[1].is_empty());
        let rows: Vec<Vec<f64>> = lines[2..]
            .iter()
            .filter(|l| !l.starts_with('#'))
            .map(|l| l.split_whitespace().map(|word| word.parse().unwrap()).collect())
            .collect();
        assert!(rows.len() > 20 && rows.iter().all(|r| r.len() == 4));
        let last = rows.last().unwrap();
        assert_eq!((last[1], last[2]), (1.0, 1_000.0));
        assert!((last[0] - 1_000.0).abs() < 1.0, "{last:?}");
        assert!(text.ends_with(&format!("Total count    = {:>12}]\n", 1_000)));
    }

    #[test]
    fn nothing_measured_is_a_head_and_a_foot() {
        let text = to_hgrm(&Latency::of(Kind::Send, &histogram()));
        assert_eq!(text.lines().count(), 4);
    }
}
