//! Numbers as people read them.
//!
//! Role: figures to short text, also for values that no run should give (infinite, not a number).

/// A count with separators: `546,586`.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A figure that is no count: with separators from 1,000 on, with three digits below, `-` when it is no number.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".into();
    }
    if value < 0.0 {
        return format!("-{}", number(-value));
    }
    if value >= 999.5 {
        return count(value.round() as u64);
    }
    let decimals = if value >= 99.95 || value == 0.0 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.decimals$}")
}

/// The same text as a tick of an axis: without zeros behind the point.
pub fn tick(text: &str) -> String {
    let (value, unit) = text.split_once(' ').map_or((text, ""), |(value, unit)| (value, unit));
    let value = if value.contains('.') { value.trim_end_matches('0').trim_end_matches('.') } else { value };
    if unit.is_empty() { value.into() } else { format!("{value} {unit}") }
}

/// Nanoseconds in the unit that fits: `716 µs`.
pub fn duration(ns: f64) -> String {
    let (size, unit) = match ns.abs() {
        ns if ns < 999.5 => (1.0, "ns"),
        ns if ns < 999_500.0 => (1e3, "µs"),
        ns if ns < 999_500_000.0 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    format!("{} {unit}", number(ns / size))
}

/// Bytes in the unit that fits: `13.9 MiB`.
pub fn bytes(value: f64) -> String {
    let (size, unit) = match value.abs() {
        b if b < 1024.0 => (1.0, "B"),
        b if b < 1048576.0 => (1024.0, "KiB"),
        b if b < 1073741824.0 => (1048576.0, "MiB"),
        _ => (1073741824.0, "GiB"),
    };
    format!("{} {unit}", number(value / size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_as_people_read_them() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
        assert_eq!(number(0.0), "0");
        assert_eq!(number(1.234), "1.23");
        assert_eq!(number(99.96), "100");
        assert_eq!(number(12345.6), "12,346");
        assert_eq!(number(f64::NAN), "-");
        assert_eq!(number(-2.5), "-2.50");
        assert_eq!(tick("10.0 ms"), "10 ms");
        assert_eq!(tick("0.20"), "0.2");
        assert_eq!(tick("100"), "100");
        assert_eq!(duration(999.0), "999 ns");
        assert_eq!(duration(716_000.0), "716 µs");
        assert_eq!(duration(999_600.0), "1.00 ms");
        assert_eq!(duration(6e11), "600 s");
        assert_eq!(duration(f64::INFINITY), "- s");
        assert_eq!(bytes(100.0), "100 B");
        assert_eq!(bytes(14.0 * 1048576.0), "14.0 MiB");
    }
}
