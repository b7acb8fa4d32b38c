//! Texts as Java reads them as numbers.
//!
//! Role: `Double.valueOf` without its hexadecimal form. The whole kinds are read by Rust's own parser, which takes the same texts.

/// The number of a text, trimmed as Java trims.
pub(super) fn double(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?.trim_matches(|c: char| c <= ' ');
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    match unsigned {
        "NaN" => return Some(f64::NAN),
        "Infinity" if text.starts_with('-') => return Some(f64::NEG_INFINITY),
        "Infinity" => return Some(f64::INFINITY),
        _ => {}
    }
    let text = text.strip_suffix(['f', 'F', 'd', 'D']).unwrap_or(text);
    // Rust also reads words, which Java does not.
    let decimal = text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.' | b'e' | b'E'));
    decimal.then(|| text.parse().ok())?
}

/// A whole number of one kind.
pub(super) fn whole<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_are_those_of_java() {
        for (text, expected) in [
            ("1", Some(1.0)),
            (" -1.5e3\t", Some(-1500.0)),
            ("+.5d", Some(0.5)),
            ("5.F", Some(5.0)),
            ("1e400", Some(f64::INFINITY)),
            ("1e-400", Some(0.0)),
            ("-Infinity", Some(f64::NEG_INFINITY)),
            ("infinity", None),
            ("inf", None),
            ("nan", None),
            ("e5", None),
            (".", None),
            ("", None),
            ("+", None),
            ("d", None),
            ("1dd", None),
            ("1 2", None),
            ("--1", None),
            ("1_0", None),
            ("0x10", None),
            ("\u{a0}1", None),
        ] {
            assert_eq!(double(text.as_bytes()), expected, "{text:?}");
        }
        assert!(double(b"-NaN").is_some_and(f64::is_nan));
        assert_eq!(double(b"\xff"), None);
    }

    #[test]
    fn whole_numbers_have_no_blanks_and_no_overflow() {
        assert_eq!(whole::<i32>(b"+5"), Some(5));
        assert_eq!(whole::<i32>(b"-2147483648"), Some(i32::MIN));
        for text in [&b"2147483648"[..], b" 5", b"5 ", b"5.0", b"", b"-", b"5L", b"\xff"] {
            assert_eq!(whole::<i32>(text), None);
        }
        assert_eq!(whole::<i64>(b"9223372036854775807"), Some(i64::MAX));
    }
}
