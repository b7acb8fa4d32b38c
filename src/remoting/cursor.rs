//! A cursor over JSON text as RocketMQ's peers write it.
//!
//! Role: the tokens that `scan`, `command` and `json` share. Accepts what fastjson accepts: keys and texts in double or
//! single quotes, bare words as keys and values, objects as keys, any white space, a comma before a closing bracket.
//! Errors are the byte where the text stops making sense. It allocates nothing.

use message::words::{below_bits_of_16, equal_bits_of_16, equal_bytes, first_byte};

/// Objects and lists nested deeper than this are refused.
pub(crate) const MAX_DEPTH: u32 = 64;

/// The byte at which a text stops making sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) usize);

/// A scalar token: where its text lies, without its quotes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// The text has backslashes.
    pub(crate) escaped: bool,
    pub(crate) quoted: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    pub(crate) at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    pub(crate) fn malformed<T>(&self) -> Result<T, Malformed> {
        Err(Malformed(self.at))
    }

    #[inline]
    pub(crate) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[inline]
    pub(crate) fn space(&mut self) {
        while self.peek().is_some_and(|byte| byte <= b' ') {
            self.at += 1;
        }
    }

    /// Takes one byte, after white space.
    #[inline]
    pub(crate) fn eat(&mut self, byte: u8) -> bool {
        if self.peek() != Some(byte) {
            self.space();
        }
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    #[inline]
    pub(crate) fn expect(&mut self, byte: u8) -> Result<(), Malformed> {
        if self.eat(byte) { Ok(()) } else { self.malformed() }
    }

    /// What a token says.
    #[inline]
    pub(crate) fn raw(&self, token: Token) -> &'a [u8] {
        &self.bytes[token.start..token.end]
    }

    /// A scalar: quoted text or a bare word.
    #[inline]
    pub(crate) fn scalar(&mut self) -> Result<Token, Malformed> {
        match self.peek() {
            Some(quote @ (b'"' | b'\'')) => {
                let start = self.at + 1;
                let (end, escaped) = closing_quote(self.bytes, start, quote).ok_or(Malformed(self.at))?;
                self.at = end + 1;
                Ok(Token { start, end, escaped, quoted: true })
            }
            _ => self.word(),
        }
    }

    fn word(&mut self) -> Result<Token, Malformed> {
        let start = self.at;
        while self.peek().is_some_and(is_word) {
            self.at += 1;
        }
        if self.at == start {
            return self.malformed();
        }
        Ok(Token { start, end: self.at, escaped: false, quoted: false })
    }

    /// Skips any value; `depth` is how deep it lies already.
    pub(crate) fn skip(&mut self, depth: u32) -> Result<(), Malformed> {
        self.space();
        match self.peek() {
            Some(b'{') => self.skip_object(depth + 1),
            Some(b'[') => {
                let mut list = self.enter_list(depth + 1)?;
                while list.next(self)? {
                    self.skip(depth + 1)?;
                }
                Ok(())
            }
            _ => self.scalar().map(drop),
        }
    }

    fn skip_object(&mut self, depth: u32) -> Result<(), Malformed> {
        let mut object = self.enter_object(depth)?;
        while object.next(self)? {
            self.skip(depth)?;
            self.expect(b':')?;
            self.skip(depth)?;
        }
        Ok(())
    }

    pub(crate) fn enter_object(&mut self, depth: u32) -> Result<Members, Malformed> {
        self.enter(b'{', b'}', depth)
    }

    pub(crate) fn enter_list(&mut self, depth: u32) -> Result<Members, Malformed> {
        self.enter(b'[', b']', depth)
    }

    fn enter(&mut self, open: u8, close: u8, depth: u32) -> Result<Members, Malformed> {
        if depth > MAX_DEPTH {
            return self.malformed();
        }
        self.expect(open)?;
        Ok(Members { close, first: true })
    }
}

/// Walks the members of an object or list whose opening bracket was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Members {
    close: u8,
    first: bool,
}

impl Members {
    /// Moves to the next member; `false` after the closing bracket, which is taken.
    #[inline]
    pub(crate) fn next(&mut self, cursor: &mut Cursor<'_>) -> Result<bool, Malformed> {
        let comma = !self.first && cursor.eat(b',');
        if cursor.eat(self.close) {
            return Ok(false);
        }
        let first = std::mem::replace(&mut self.first, false);
        cursor.space();
        if (first || comma) && cursor.peek().is_some() { Ok(true) } else { cursor.malformed() }
    }
}

const fn is_word(byte: u8) -> bool {
    byte > b' ' && !matches!(byte, b',' | b':' | b'{' | b'}' | b'[' | b']' | b'"' | b'\'')
}

/// Where the text that starts at `at` has its closing quote, and whether backslashes come before it.
#[inline]
pub(crate) fn closing_quote(bytes: &[u8], mut at: usize, quote: u8) -> Option<(usize, bool)> {
    let mut escaped = false;
    loop {
        at += quote_or_backslash(bytes.get(at..)?, quote)?;
        if bytes[at] == quote {
            return Some((at, escaped));
        }
        escaped = true;
        at += 2;
    }
}

/// Eight bytes at a time; texts of headers are short.
#[inline]
fn quote_or_backslash(bytes: &[u8], quote: u8) -> Option<usize> {
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let hits = equal_bytes(word, quote) | equal_bytes(word, b'\\');
        if hits != 0 {
            return Some(at * 8 + first_byte(hits));
        }
    }
    let base = words.len() * 8;
    rest.iter().position(|&byte| byte == quote || byte == b'\\').map(|at| base + at)
}

/// Appends a text with its JSON escapes resolved: UTF-8 out, surrogate pairs joined, lone surrogates as `?` (what Java
/// writes for them). A backslash before anything else means that thing.
pub(crate) fn unescape(raw: &[u8], out: &mut Vec<u8>) {
    // Never longer than its escapes; the eight bytes that are copied at once may reach behind the end.
    out.reserve(raw.len() + 8);
    let mut rest = raw;
    while let Some(at) = copy_to_backslash(rest, out) {
        // The two separators of properties are nearly all escapes that there are.
        let separator = rest[at..].first_chunk::<6>().map_or(0, |escape| match escape {
            br"\u0001" => 1,
            br"\u0002" => 2,
            _ => 0,
        });
        if separator != 0 {
            out.push(separator);
            rest = &rest[at + 6..];
            continue;
        }
        let kind = rest.get(at + 1).copied();
        rest = rest.get(at + 2..).unwrap_or_default();
        match kind {
            Some(b'u') => rest = unescape_unicode(rest, out),
            Some(b'n') => out.push(b'\n'),
            Some(b't') => out.push(b'\t'),
            Some(b'r') => out.push(b'\r'),
            Some(b'b') => out.push(8),
            Some(b'f') => out.push(12),
            Some(other) => out.push(other),
            None => {}
        }
    }
}

/// Appends the text up to its first backslash, or all of it; gives where that is.
#[inline]
fn copy_to_backslash(text: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    let (words, rest) = text.as_chunks::<8>();
    for (at, bytes) in words.iter().enumerate() {
        let hits = equal_bytes(u64::from_le_bytes(*bytes), b'\\');
        out.extend_from_slice(bytes);
        if hits != 0 {
            let found = first_byte(hits);
            out.truncate(out.len() - 8 + found);
            return Some(at * 8 + found);
        }
    }
    let found = rest.iter().position(|&byte| byte == b'\\');
    out.extend_from_slice(&rest[..found.unwrap_or(rest.len())]);
    found.map(|found| words.len() * 8 + found)
}

/// The four digits after `\u` and, for a high surrogate, the low one that follows; gives what is left.
fn unescape_unicode<'a>(digits: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
    let Some(unit) = hex4(digits) else {
        out.push(b'?');
        return digits;
    };
    let rest = &digits[4..];
    if unit < 0x80 {
        out.push(unit as u8);
        return rest;
    }
    let low = rest.strip_prefix(b"\\u").and_then(hex4).filter(|low| (0xDC00..0xE000).contains(low));
    let (code, rest) = match low {
        Some(low) if (0xD800..0xDC00).contains(&unit) => {
            (0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00), &rest[6..])
        }
        _ => (unit, rest),
    };
    let letter = char::from_u32(code).unwrap_or('?');
    out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
    rest
}

fn hex4(digits: &[u8]) -> Option<u32> {
    let digits = digits.first_chunk::<4>()?.map(|digit| HEX_VALUES[usize::from(digit)]);
    let bad = digits.iter().any(|&value| value > 15);
    let unit = digits.iter().fold(0, |unit, &value| unit << 4 | u32::from(value));
    (!bad).then_some(unit)
}

/// The value of each hexadecimal digit; 255 for what is none.
const HEX_VALUES: [u8; 256] = {
    let mut values = [255; 256];
    let mut value = 0;
    while value < 16 {
        values[b"0123456789abcdef"[value] as usize] = value as u8;
        values[b"0123456789ABCDEF"[value] as usize] = value as u8;
        value += 1;
    }
    values
};

/// Appends a text as a JSON string, escaped as fastjson does.
pub(crate) fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    escape(text, |piece| out.extend_from_slice(piece));
    out.push(b'"');
}

/// Whether any of 16 bytes needs an escape.
#[inline]
pub(crate) fn has_escapes_of_16(bytes: &[u8; 16]) -> bool {
    escapes_of_16(bytes) != 0
}

/// Bit n: byte n of the 16 needs an escape.
#[inline]
fn escapes_of_16(bytes: &[u8; 16]) -> u64 {
    below_bits_of_16(bytes, b' ') | equal_bits_of_16(bytes, b'"') | equal_bits_of_16(bytes, b'\\')
}

/// How many bytes at the front of a text need no escape, or a few less near its end; most texts have nothing else.
#[inline]
fn plain_front(text: &[u8]) -> usize {
    let (blocks, rest) = text.as_chunks::<16>();
    for (at, block) in blocks.iter().enumerate() {
        let escapes = escapes_of_16(block);
        if escapes != 0 {
            return at * 16 + escapes.trailing_zeros() as usize;
        }
    }
    text.len() - rest.len()
}

/// Hands out the pieces of a text as it stands between the quotes of a JSON string.
#[inline]
pub(crate) fn escape(text: &[u8], mut put: impl FnMut(&[u8])) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut from = 0;
    for (at, &byte) in text.iter().enumerate().skip(plain_front(text)) {
        if byte >= b' ' && byte != b'"' && byte != b'\\' {
            continue;
        }
        put(&text[from..at]);
        from = at + 1;
        let short = match byte {
            b'"' | b'\\' => byte,
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            8 => b'b',
            12 => b'f',
            _ => 0,
        };
        if short == 0 {
            put(&[b'\\', b'u', b'0', b'0', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        } else {
            put(&[b'\\', short]);
        }
    }
    put(&text[from..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(raw: &str) -> String {
        let mut out = Vec::new();
        unescape(raw.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn escapes() {
        assert_eq!(plain(r"a\u0001b\u0002"), "a\u{1}b\u{2}");
        assert_eq!(plain(r#"\"\\\/\n\t\r\b\f"#), "\"\\/\n\t\r\u{8}\u{c}");
        assert_eq!(plain(r"\ud83d\ude00\u4e3b"), "😀主");
        assert_eq!(plain(r"\ud83dx\ude00"), "?x?");
        assert_eq!(plain(r"\uZZ"), "?ZZ");
        assert_eq!(plain("\\"), "");
        let mut out = Vec::new();
        write_text(&mut out, "a\u{1}\"\\\n😀/".as_bytes());
        assert_eq!(out, r#""a\u0001\"\\\n😀/""#.as_bytes());
    }

    #[test]
    fn quotes_are_found_at_every_distance() {
        for before in 0..40 {
            let mut text = "x".repeat(before);
            text.push('"');
            text.push_str(&"y\\".repeat(9));
            assert_eq!(closing_quote(text.as_bytes(), 0, b'"'), Some((before, false)), "{before}");
            let escaped = format!("{}\\\"{}\"", "z".repeat(before), "w".repeat(before));
            assert_eq!(closing_quote(escaped.as_bytes(), 0, b'"'), Some((2 * before + 2, true)));
        }
        assert_eq!(closing_quote(b"abc\\", 0, b'"'), None);
        assert_eq!(closing_quote(b"abc\\\"", 0, b'"'), None);
    }
}
