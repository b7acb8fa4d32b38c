//! Fuzz entry point of filters: a `fn(&[u8])` that panics when an invariant breaks.
//!
//! Role: the same function runs under `cargo fuzz` and under `message::fuzz_driver`. Test support only.

use super::{Expression, MAX_TEXT_BYTES};

/// An expression, a zero byte, a properties text: no panic, bounded memory, errors that point into the text, and an answer that
/// does not depend on brackets around the expression.
pub fn filter(data: &[u8]) {
    let (text, properties) = data.split_at(data.iter().position(|&byte| byte == 0).unwrap_or(data.len()));
    let text = String::from_utf8_lossy(text);
    let expression = match Expression::compile(&text) {
        Ok(expression) => expression,
        Err(error) => {
            assert!(error.position >= 1 && error.position <= text.chars().count() + 1, "{error}");
            return assert!(!error.cause.is_empty());
        }
    };
    assert!(text.len() <= MAX_TEXT_BYTES);
    assert!(expression.heap_bytes() <= 2 * text.len() + (64 << 10), "{} bytes", expression.heap_bytes());
    let found = expression.matches(properties);
    let _ = expression.matches(text.as_bytes());
    if !expression.ignores_rest()
        && let Ok(bracketed) = Expression::compile(&format!("({text}\n)"))
        && !bracketed.ignores_rest()
    {
        assert_eq!(bracketed.matches(properties), found);
    }
}

#[cfg(test)]
mod tests {
    use super::filter;
    use message::fuzz_driver::{Driver, executions};

    const TOKENS: [&[u8]; 30] = [
        b" NOT ",
        b" AND ",
        b" OR ",
        b" BETWEEN ",
        b" IN (",
        b"TRUE",
        b"FALSE",
        b"NULL",
        b" IS ",
        b" CONTAINS ",
        b" STARTSWITH ",
        b" ENDSWITH ",
        b"'",
        b"''",
        b"(",
        b")",
        b",",
        b"-",
        b"+",
        b">=",
        b"<>",
        b"=",
        b"--",
        b"/*",
        b"*/",
        b"\x00a\x016\x02",
        b"1e5",
        b"9223372036854775807",
        b"0.5",
        b"a",
    ];

    #[test]
    fn fuzz_filter() {
        let deep = ["(", "NOT ", "-(", "- "].map(|part| part.repeat(70) + "a");
        let long = ["a OR ", "a=1 OR ", "'a'=b and ", "a is null and "].map(|part| part.repeat(400) + "a");
        let lists = ["a IN ('b'", "a NOT IN ('x'"].map(|start| start.to_owned() + &",''".repeat(1000) + ")");
        let seeds = [
            "a > 5 AND b BETWEEN -1.5 AND 3\0a\x016\x02b\x011\x02",
            "color IN ('red') OR (color = 'it''s blue' AND i NOT BETWEEN 0 AND 7)\0color\x01red\x02",
            "NOT (a CONTAINS 'x' OR a NOT STARTSWITH 'y' OR b ENDSWITH 'z') AND c IS NOT NULL\0a\x01xyz\x02",
            "-(-(a BETWEEN 1 AND 2) BETWEEN 1 AND 2) BETWEEN 1 AND 2\0a\x01NaN\x02",
        ];
        let seeds = seeds.map(str::to_owned).into_iter().chain(deep).chain(long).chain(lists);
        Driver::new(0x5A1, seeds.map(String::into_bytes)).with_tokens(&TOKENS).run("filter", executions(), filter);
    }
}
