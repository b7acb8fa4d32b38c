//! Java's `.properties` text: the format of `broker.conf`, `namesrv.conf` and of the configuration requests.
//!
//! Role: text to pairs with line numbers, and pairs back to text that Java reads. UTF-8, as RocketMQ's documents say
//! (Java's own loader takes Latin-1 and `\u` escapes; both agree on ASCII and on escapes). It knows no key.

use std::fmt;

/// One `key=value` of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Property {
    /// Key with its escapes undone.
    pub key: String,
    /// Value with its escapes undone, without the white space before it.
    pub value: String,
    /// Where the pair starts, counted from 1.
    pub line: usize,
}

/// A text that is no `.properties` text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertiesError {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: &'static str,
}

impl fmt::Display for PropertiesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for PropertiesError {}

/// Reads a whole text. A key that comes twice is given twice: for Java the last one counts.
///
/// # Errors
/// A text that is not UTF-8, or a `\u` escape that is cut, no hexadecimal number or half of a surrogate pair.
pub fn parse(text: &[u8]) -> Result<Vec<Property>, PropertiesError> {
    let text = std::str::from_utf8(text).map_err(|error| PropertiesError {
        line: 1 + text[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count(),
        what: "not UTF-8",
    })?;
    let mut pairs = Vec::new();
    let mut lines = natural_lines(text.strip_prefix('\u{feff}').unwrap_or(text)).enumerate();
    while let Some((at, first)) = lines.next() {
        let first = first.trim_start_matches(is_space);
        if first.is_empty() || first.starts_with(['#', '!']) {
            continue;
        }
        let mut logical = first.to_owned();
        while ends_with_continuation(&logical) {
            logical.pop();
            match lines.next() {
                Some((_, next)) => logical.push_str(next.trim_start_matches(is_space)),
                None => break,
            }
        }
        let (key, value) = split(&logical);
        let undo = |part| unescape(part).map_err(|what| PropertiesError { line: at + 1, what });
        pairs.push(Property { key: undo(key)?, value: undo(value)?, line: at + 1 });
    }
    Ok(pairs)
}

/// Appends `key=value` and a line feed in the plain form that RocketMQ's tools show: only what would otherwise be read
/// back differently is escaped.
pub fn write(key: &str, value: &str, out: &mut String) {
    for (at, c) in key.char_indices() {
        if matches!(c, '=' | ':' | ' ') || (at == 0 && matches!(c, '#' | '!')) {
            out.push('\\');
        }
        push_escaped(c, out);
    }
    out.push('=');
    for (at, c) in value.char_indices() {
        if at == 0 && c == ' ' {
            out.push('\\');
        }
        push_escaped(c, out);
    }
    out.push('\n');
}

fn push_escaped(c: char, out: &mut String) {
    match c {
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\u{c}' => out.push_str("\\f"),
        c => out.push(c),
    }
}

/// Lines end with LF, CR or CR LF.
fn natural_lines(text: &str) -> impl Iterator<Item = &str> {
    text.split('\n').flat_map(|line| line.strip_suffix('\r').unwrap_or(line).split('\r'))
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\u{c}')
}

fn ends_with_continuation(line: &str) -> bool {
    line.bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 1
}

/// Key and value of a logical line: the key ends at the first bare `=`, `:` or white space.
fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = line
        .char_indices()
        .find(|&(_, c)| {
            let ends = !escaped && (is_space(c) || matches!(c, '=' | ':'));
            escaped = !escaped && c == '\\';
            ends
        })
        .map_or(line.len(), |(at, _)| at);
    let value = line[end..].trim_start_matches(is_space);
    let value = value.strip_prefix(['=', ':']).unwrap_or(value);
    (&line[..end], value.trim_start_matches(is_space))
}

fn unescape(part: &str) -> Result<String, &'static str> {
    let mut out = String::with_capacity(part.len());
    let mut chars = part.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('t') => out.push('\t'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('f') => out.push('\u{c}'),
            Some('u') => out.push(unicode(&mut chars)?),
            Some(other) => out.push(other),
            None => {}
        }
    }
    Ok(out)
}

/// The character of a `\uXXXX` escape whose `\u` was taken; two of them make one character beyond the basic plane.
fn unicode(chars: &mut std::str::Chars<'_>) -> Result<char, &'static str> {
    let high = unit(chars)?;
    if let Some(c) = char::from_u32(high) {
        return Ok(c);
    }
    let low = if chars.as_str().starts_with("\\u") {
        chars.nth(1);
        unit(chars)?
    } else {
        0
    };
    let pair = [high as u16, low as u16];
    char::decode_utf16(pair).next().and_then(Result::ok).ok_or("half of a surrogate pair")
}

fn unit(chars: &mut std::str::Chars<'_>) -> Result<u32, &'static str> {
    let mut value = 0;
    for _ in 0..4 {
        let digit = chars.next().and_then(|c| c.to_digit(16)).ok_or("a \\u escape needs four hexadecimal digits")?;
        value = value * 16 + digit;
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String, usize)> {
        parse(text.as_bytes()).unwrap().into_iter().map(|p| (p.key, p.value, p.line)).collect()
    }

    fn one(text: &str) -> (String, String) {
        let all = pairs(text);
        assert_eq!(all.len(), 1, "{text:?}");
        (all[0].0.clone(), all[0].1.clone())
    }

    #[test]
    fn reads_as_java_does() {
        for (text, key, value) in [
            ("a=b", "a", "b"),
            ("  a  =  b c ", "a", "b c "),
            ("a:b", "a", "b"),
            ("a b", "a", "b"),
            ("a", "a", ""),
            ("a=", "a", ""),
            ("a = = b", "a", "= b"),
            ("a\\=b=c", "a=b", "c"),
            ("a\\ b c", "a b", "c"),
            ("a=1\\\n   2\\\r\n 3", "a", "123"),
            ("a=x\\\\\n", "a", "x\\"),
            ("a=\\u4e2d\\ud83d\\ude00\\t\\q", "a", "中😀\tq"),
            ("# no\n! no\n\n \t\na=b", "a", "b"),
            ("a=b\\", "a", "b"),
            ("messageDelayLevel=1s 5s 10s", "messageDelayLevel", "1s 5s 10s"),
            ("namesrvAddr=1.2.3.4:9876;h:1", "namesrvAddr", "1.2.3.4:9876;h:1"),
        ] {
            assert_eq!(one(text), (key.to_owned(), value.to_owned()), "{text:?}");
        }
    }

    #[test]
    fn counts_lines() {
        let all = pairs("a=1\n#\nb=2\\\n 3\r\nc=4\rd=5");
        let lines: Vec<usize> = all.iter().map(|p| p.2).collect();
        assert_eq!(lines, [1, 3, 5, 6]);
    }

    #[test]
    fn names_the_line_of_an_error() {
        for (text, line) in [(&b"a=1\nb=\\u12"[..], 2), (b"a=\\ud800x", 1), (b"a=1\n\n\xff", 3), (b"a=\\uzzzz", 1)] {
            assert_eq!(parse(text).unwrap_err().line, line, "{text:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_written_reads_back(key in "[^\\x00\r\u{feff}]{1,12}", value in ".{0,20}|[ \\\\\n\r\t=:#!]{0,6}") {
            let mut text = String::new();
            write(&key, &value, &mut text);
            let all = pairs(&text);
            proptest::prop_assert_eq!(all, vec![(key, value, 1)]);
        }

        #[test]
        fn any_bytes_are_read_or_refused(text in proptest::collection::vec(proptest::num::u8::ANY, 0..80)) {
            let _ = parse(&text);
        }
    }
}
