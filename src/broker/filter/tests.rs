//! Filters against a second evaluator, and the rules of the reference one by one.

use super::oracle::{Maker, NAMES};
use super::{Expression, MAX_TEXT_BYTES};
use rand::SeedableRng;
use rand::rngs::StdRng;

#[test]
fn agrees_with_an_independent_evaluator() {
    const CASES: u64 = 100_000;
    let mut seen = [0u64; 2];
    for case in 0..CASES {
        let mut random = StdRng::seed_from_u64(case);
        let mut maker = Maker(&mut random);
        let tree = maker.truth(1 + (case % 5) as u32);
        let mut text = String::new();
        maker.write(&tree, 0, &mut text);
        if text.len() > MAX_TEXT_BYTES {
            continue;
        }
        let compiled = Expression::compile(&text).unwrap_or_else(|error| panic!("case {case}: {error}: {text}"));
        assert!(!compiled.ignores_rest(), "case {case}: {text}");
        for _ in 0..4 {
            let (message, properties) = maker.message();
            let expected = tree.matches(&message);
            let shown = String::from_utf8_lossy(&properties);
            assert_eq!(compiled.matches(&properties), expected, "case {case}: {text}\n{shown:?} {NAMES:?}");
            seen[usize::from(expected)] += 1;
        }
    }
    assert!(seen[0] > CASES / 2 && seen[1] > CASES / 2, "both answers are common: {seen:?}");
}

fn matches(text: &str, properties: &str) -> bool {
    let properties: String = properties
        .split(';')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| format!("{name}\x01{value}\x02"))
        .collect();
    Expression::compile(text).unwrap_or_else(|error| panic!("{text}: {error}")).matches(properties.as_bytes())
}

#[test]
fn numbers_are_read_as_their_kind() {
    for (text, value, expected) in [
        ("a > 5", "6", true),
        ("a > 5", "6.5", false),
        ("NOT (a > 5)", "6.5", false),
        ("a > 5.0", "6", true),
        ("a > 5.0", "6.5", true),
        ("a > 5", "9223372036854775807", false),
        ("a > 2147483648", "9223372036854775807", true),
        ("a > 5.0", "9223372036854775808", true),
        ("a = 6", "6", true),
        ("a = 6", "6.0", false),
        ("a = 6.0", "6", true),
        ("6 = a", "+6", true),
        ("a < -2", "-3", true),
        ("a = -2147483648", "-2147483648", true),
        ("a BETWEEN 6 AND 7", "6", true),
        ("a BETWEEN -1 AND 1.5", "1", true),
        ("a NOT BETWEEN 6 AND 7", "8", true),
        ("a NOT BETWEEN 6 AND 7", "abc", false),
        ("TRUE = a", "true", true),
        ("TRUE = a", "abc", false),
        ("a = FALSE", "abc", true),
        ("a = 12L", "12", true),
        ("a = 'abc'", "abc", true),
        ("a <> 'abc'", "abd", true),
        ("a = 5 OR a = 'abc'", "abc", false),
        ("a = 'abc' OR a = 5", "abc", true),
    ] {
        assert_eq!(matches(text, &format!("a={value}")), expected, "{text} with {value}");
    }
}

#[test]
fn missing_properties_are_unknown() {
    for (text, properties, expected) in [
        ("a = 1", "", false),
        ("NOT (a = 1)", "", false),
        ("a <> 1", "", false),
        ("a = a", "", true),
        ("a = b", "", true),
        ("a <> b", "a=1", true),
        ("a <> b", "b=1", false),
        ("a IS NULL", "", true),
        ("a IS NULL", "a=", true),
        ("a IS NOT NULL", "a=x", true),
        ("a = 1 OR b = 1", "b=1", true),
        ("a = 1 AND b = 1", "b=1", false),
        ("a IN ('x')", "", false),
        ("a NOT IN ('x')", "", false),
        ("a NOT IN ('x')", "a=y", true),
        ("a NOT CONTAINS 'x'", "", false),
        ("a NOT CONTAINS 'x'", "a=y", true),
        ("a CONTAINS ''", "a=y", false),
        ("a NOT CONTAINS ''", "a=y", false),
        ("NOT ((a > 1) CONTAINS '')", "a=y", true),
        ("a", "a=true", false),
        ("NOT a", "a=true", true),
        ("NOT a", "", false),
        ("a > b", "a=10;b=9", true),
        ("a > b", "a=x;b=9", false),
        ("A = 'x'", "a=x", false),
        ("a = 'x'", "a=y;a=x", true),
        ("TAGS = 'odd' AND i < 6", "TAGS=odd;i=5", true),
    ] {
        assert_eq!(matches(text, properties), expected, "{text} with {properties}");
    }
}

#[test]
fn what_follows_is_not_looked_at() {
    for text in ["a = 1 b", "a = 1)", "a = 1 'x", "a = 1 b %", "a = 1 -- no line end", "a=1 2", "a = 1 'x'' b"] {
        let compiled = Expression::compile(text);
        // The token behind the expression must still be one.
        assert_eq!(compiled.is_ok(), !text.ends_with("'x"), "{text}");
        assert!(compiled.is_err() || compiled.is_ok_and(|one| one.ignores_rest() && one.matches(b"a\x011\x02")));
    }
    assert!(matches("a = 007", "a=0"), "a zero is a whole number");
    assert!(!Expression::compile("a = 1 -- a comment\n /* another */ ").unwrap().ignores_rest());
}

#[test]
fn errors_name_place_and_cause() {
    for (text, position, cause) in [
        ("", 1, "expected a value or a property, found the end"),
        ("a >", 4, "expected a value or a property, found the end"),
        ("i > AND (", 5, "expected a value or a property, found AND"),
        ("a IN (", 7, "expected a text in quotes, found the end"),
        ("a IN ('b'", 10, "expected ), found the end"),
        ("a IN (5)", 7, "expected a text in quotes, found the number 5"),
        ("5 IN ('b')", 1, "IN is for a property alone"),
        ("a = = 3", 5, "expected a value or a property, found ="),
        ("((a=1)", 7, "expected ), found the end"),
        ("a > 'b'", 5, "a text has no order"),
        ("a > TRUE", 5, "this value has no order"),
        ("a < 1 < 2", 1, "a truth value has no order"),
        ("a = NULL", 5, "NULL cannot be compared (it is IS NULL)"),
        ("TRUE = 5", 8, "a truth value cannot be compared with this"),
        ("5", 1, "this is neither true nor false"),
        ("a = 1 AND 'b'", 11, "this is neither true nor false"),
        ("NOT -a", 5, "this is neither true nor false"),
        ("a != 1", 3, "!= is not known (it is <>)"),
        ("主 = 1", 1, "the character '主' has no meaning here"),
        ("a = '主' AND b = 'x", 17, "a text without its closing quote"),
        ("a = .", 5, "a point without a digit"),
        ("a = 1 \u{a0}", 7, "the character '\\u{a0}' has no meaning here"),
        ("a = 9223372036854775808", 5, "a whole number over 64 bits"),
        ("a > 0.0", 5, "a decimal number that is 0 or nearly (a whole 0 is allowed)"),
        ("a > 1e309", 5, "a decimal number that is too large"),
        ("a BETWEEN 2 AND 1", 1, "the low end of BETWEEN is over its high end"),
        ("a NOT = 1", 7, "expected a comparison after NOT, found ="),
        ("a IS 1", 6, "expected NULL, found the number 1"),
        ("a BETWEEN 1 2", 13, "expected AND, found the number 2"),
    ] {
        let error = Expression::compile(text).expect_err(text);
        assert_eq!((error.position, &*error.cause), (position, cause), "{text}");
        assert_eq!(error.to_string(), format!("{cause} at character {position}"));
    }
}

#[test]
fn length_and_depth_are_bounded() {
    let nested = |count: usize| format!("{}a = 1{}", "(".repeat(count), ")".repeat(count));
    assert!(Expression::compile(&nested(64)).is_ok());
    assert_eq!(Expression::compile(&nested(65)).unwrap_err().cause, "nested deeper than 64");
    for part in ["NOT ", "-", "+", "-(", "NOT ("] {
        assert!(Expression::compile(&format!("{}a", part.repeat(70))).is_err(), "{part}");
    }
    assert!(Expression::compile(&format!("a{}", " IS NULL".repeat(64))).is_ok());
    assert!(Expression::compile(&format!("a{}", " IS NULL".repeat(65))).is_err());
    let long = format!("a = '{}'", "x".repeat(MAX_TEXT_BYTES - 6));
    assert!(Expression::compile(&long).is_ok());
    assert_eq!(Expression::compile(&(long + " ")).unwrap_err().position, MAX_TEXT_BYTES + 1);
    let many = vec!["a = 'x'"; 340].join(" OR ");
    assert!(matches(&many, "a=x"), "a long list is not deep");
    let names: Vec<String> = (0..400).map(|at| format!("n{at}")).collect();
    let text = names.iter().map(|name| format!("{name}=1")).collect::<Vec<_>>().join(" OR ");
    assert!(matches(&text, "n399=1;n7=0"));
}
