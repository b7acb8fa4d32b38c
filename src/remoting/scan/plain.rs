//! The JSON header as every real client writes it: no white space, plain names, the code before the fields.
//!
//! Role: the quick way through such a header, eight bytes at a time. Whatever is unusual ends in `None`, and the caller
//! reads the header again by the general rules; so this file may give up, but must never disagree.

use super::names::Names;
use super::{SLOTS, ScannedHeader, Slots, Span};
use crate::codes::LanguageCode;
use crate::cursor;
use crate::frame::PREFIX_BYTES;
use message::words::{HIGHS, ONES, equal_bits_of_16, first_byte};

/// Reads the header in `bytes`, a frame without its body, into fresh `scanned` and `slots`. `None`: it is unusual (what was
/// set by then is to be dropped).
pub(super) fn scan(bytes: &[u8], scanned: &mut ScannedHeader, slots: &mut Slots) -> Option<()> {
    const NAME_OF_4: u64 = 0x00FF_FFFF_FFFF_FFFF;
    const CODE: u64 = word(*b"\"code\":\0");
    const FLAG: u64 = word(*b"\"flag\":\0");
    const OPAQUE: u64 = word(*b"\"opaque\"");
    const VERSION: u64 = word(*b"\"version");
    const LANGUAGE: u64 = word(*b"\"languag");
    const FIELDS: u64 = word(*b"\"extFiel");
    const SERIALIZE: u64 = word(*b"\"seriali");
    let mut at = after(bytes, PREFIX_BYTES, b"{")?;
    let mut names = None;
    let mut seen_fields = false;
    loop {
        let name = load8(bytes, at);
        if name & NAME_OF_4 == CODE {
            if names.is_some() {
                return None; // a second code may need the fields again
            }
            (scanned.code, at) = int(bytes, at + 7)?;
            names = Some(Names::of(scanned.code));
        } else if name & NAME_OF_4 == FLAG {
            (scanned.flag, at) = int(bytes, at + 7)?;
        } else if name == OPAQUE {
            (scanned.opaque, at) = int(bytes, after(bytes, at + 8, b":")?)?;
        } else if name == VERSION {
            (scanned.version, at) = int(bytes, after(bytes, at + 8, b"\":")?)?;
        } else if name == LANGUAGE {
            (scanned.language, at) = language(bytes, after(bytes, at + 8, b"e\":")?)?;
        } else if name == FIELDS {
            if std::mem::replace(&mut seen_fields, true) {
                return None;
            }
            let value_at = after(bytes, at + 8, b"ds\":")?;
            at = match after(bytes, value_at, b"{") {
                Some(first) => fields(bytes, first, names?, slots)?,
                None => after(bytes, value_at, b"null")?,
            };
        } else {
            let json = if name == SERIALIZE { after(bytes, at + 8, b"zeTypeCurrentRPC\":\"JSON\"") } else { None };
            at = match json {
                Some(next) => next,
                None => other_member(bytes, at)?,
            };
        }
        match bytes.get(at)? {
            b',' => at += 1,
            b'}' => break,
            _ => return None,
        }
    }
    (at + 1 == bytes.len()).then_some(())
}

/// The members of `extFields` from its first name on; gives where its closing brace was passed.
fn fields(bytes: &[u8], mut at: usize, names: Names, slots: &mut Slots) -> Option<usize> {
    const LETTER: u64 = word(*b"\"\0\":\0\0\0\0");
    const LETTER_MASK: u64 = 0xFFFF_00FF;
    // A whole field whose value is one character, as most numbers of a send are.
    const ONE: u64 = word(*b"\"\0\":\"\0\",");
    const ONE_MASK: u64 = 0xFFFF_00FF_FFFF_00FF;
    const LETTERS: usize = 26;
    if bytes.get(at) == Some(&b'}') {
        return Some(at + 1);
    }
    loop {
        let name = load8(bytes, at);
        let letter = usize::from(((name >> 8) as u8).wrapping_sub(b'a'));
        let is_plain = letter < LETTERS && !matches!((name >> 40) as u8, b'"' | b'\\');
        if name & ONE_MASK == ONE && is_plain && names == Names::SendShort {
            if let Some(place) = slots.get_mut(letter) {
                *place = Span { start: at as u32 + 5, len: 1, escaped: false };
            }
            at += 8;
            continue;
        }
        let slot;
        if name & LETTER_MASK == LETTER && letter < SLOTS && names == Names::SendShort {
            slot = letter;
            at += 4;
        } else {
            let (start, end) = plain_text(bytes, at)?;
            slot = names.slot(&bytes[start..end]).unwrap_or(SLOTS);
            at = after(bytes, end + 1, b":")?;
        }
        let (value, next) = value(bytes, at)?;
        if let Some(place) = slots.get_mut(slot) {
            *place = value;
        }
        match bytes.get(next)? {
            b',' => at = next + 1,
            b'}' => return Some(next + 1),
            _ => return None,
        }
    }
}

/// A quoted text or a bare word, and what follows it.
#[inline(always)]
fn value(bytes: &[u8], at: usize) -> Option<(Span, usize)> {
    if bytes.get(at) != Some(&b'"') {
        return bare_value(bytes, at);
    }
    let start = at + 1;
    let (end, escaped) = closing_quote(bytes, start)?;
    Some((Span { start: start as u32, len: (end - start) as u32, escaped }, end + 1))
}

fn bare_value(bytes: &[u8], at: usize) -> Option<(Span, usize)> {
    let len = bytes.get(at..)?.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'-').count();
    let span = Span { start: at as u32, len: len as u32, escaped: false };
    // null and the rarer kinds of values are for the general rules.
    (len > 0 && span.bytes(bytes) != b"null").then_some((span, at + len))
}

/// Any other name with a scalar value.
fn other_member(bytes: &[u8], at: usize) -> Option<usize> {
    const KNOWN: [&[u8]; 6] = [b"code", b"flag", b"opaque", b"version", b"language", b"extFields"];
    let (start, end) = plain_text(bytes, at)?;
    if KNOWN.contains(&&bytes[start..end]) {
        return None;
    }
    let (_, next) = value(bytes, after(bytes, end + 1, b":")?)?;
    Some(next)
}

fn language(bytes: &[u8], at: usize) -> Option<(LanguageCode, usize)> {
    if let Some(next) = after(bytes, at, b"\"JAVA\"") {
        return Some((LanguageCode::Java, next));
    }
    if bytes.get(at) != Some(&b'"') {
        let (number, next) = int(bytes, at)?;
        return Some((LanguageCode::from_number(number), next));
    }
    let (start, end) = plain_text(bytes, at)?;
    let name = &bytes[start..end];
    // A number in quotes counts as a number.
    name.iter().all(u8::is_ascii_uppercase).then_some((LanguageCode::from_name(name), end + 1))
}

/// Where a text in quotes without escapes starts and ends.
#[inline]
fn plain_text(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let start = after(bytes, at, b"\"")?;
    let (end, escaped) = closing_quote(bytes, start)?;
    (!escaped).then_some((start, end))
}

/// Where the text that starts at `at` has its closing quote, and whether backslashes come before it.
#[inline(always)]
fn closing_quote(bytes: &[u8], mut at: usize) -> Option<(usize, bool)> {
    let mut escaped = false;
    while let Some(part) = bytes.get(at..).and_then(<[u8]>::first_chunk::<16>) {
        let (quotes, backslashes) = (equal_bits_of_16(part, b'"'), equal_bits_of_16(part, b'\\'));
        let before_quote = backslashes & !quotes & quotes.wrapping_sub(1);
        if before_quote == 0 {
            // No backslash comes before the first quote.
            if quotes != 0 {
                return Some((at + quotes.trailing_zeros() as usize, escaped));
            }
            at += 16;
            continue;
        }
        escaped = true;
        at += if before_quote << 1 & (quotes | backslashes) == 0 && before_quote < 1 << 15 {
            // Escapes of letters, all of them.
            if quotes != 0 {
                return Some((at + quotes.trailing_zeros() as usize, true));
            }
            16
        } else {
            before_quote.trailing_zeros() as usize + 2
        };
    }
    closing_quote_at_end(bytes, at, escaped)
}

/// Fewer than 16 bytes are left. Kept out of the places that look for a quote.
#[cold]
fn closing_quote_at_end(bytes: &[u8], at: usize, escaped: bool) -> Option<(usize, bool)> {
    let (end, more) = cursor::closing_quote(bytes, at, b'"')?;
    Some((end, escaped || more))
}

/// A number of 1 to 10 digits, perhaps negative, that fits 32 bits.
#[inline]
fn int(bytes: &[u8], at: usize) -> Option<(i32, usize)> {
    let negative = bytes.get(at) == Some(&b'-');
    let start = at + usize::from(negative);
    let text = load8(bytes, start);
    let digit = (text as u8).wrapping_sub(b'0');
    if digit <= 9 && !negative && !((text >> 8) as u8).is_ascii_digit() {
        return Some((digit.into(), at + 1)); // as most flags are
    }
    let (mut value, mut len) = leading_digits(text);
    if len == 8 {
        while let Some(digit) = bytes.get(start + len).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit <= 9) {
            value = value * 10 + u64::from(digit);
            len += 1;
            if len > 10 {
                return None;
            }
        }
    }
    let value = i32::try_from(if negative { -(value as i64) } else { value as i64 }).ok()?;
    (len > 0).then_some((value, start + len))
}

/// The number that up to eight digits at the front of a word make, and how many they are.
#[inline]
fn leading_digits(text: u64) -> (u64, usize) {
    let (values, others) = digit_values(text);
    let len = first_byte(others);
    if len == 0 { (0, 0) } else { (eight_digits(values << (64 - 8 * len)), len) }
}

/// Bytes as values of digits, and the high bit of each byte that is no digit.
#[inline]
const fn digit_values(text: u64) -> (u64, u64) {
    let values = text ^ (ONES * b'0' as u64);
    (values, (values.wrapping_add(ONES * 0x76) | values) & HIGHS)
}

/// The number in the first `len` bytes (1 to 8) of a word, if all are digits.
#[inline]
fn exact_digits(text: u64, len: usize) -> Option<u64> {
    let (values, others) = digit_values(text);
    let unused = 64 - 8 * len as u32;
    (others << unused == 0).then(|| eight_digits(values << unused))
}

/// A number of 1 to 16 plain digits; `None` for any other text.
#[inline]
pub(super) fn number(bytes: &[u8], start: usize, len: usize) -> Option<i64> {
    let text = load8(bytes, start);
    match len {
        1 => {
            let digit = (text as u8).wrapping_sub(b'0');
            (digit <= 9).then_some(digit.into())
        }
        2..=8 => exact_digits(text, len).map(|value| value as i64),
        9..=16 => {
            let high = exact_digits(text, 8)?;
            let low = exact_digits(load8(bytes, start + 8), len - 8)?;
            Some((high * POWERS[len - 8] + low) as i64)
        }
        _ => None,
    }
}

const POWERS: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// Eight digits, the first in the lowest byte, as values 0 to 9.
#[inline]
const fn eight_digits(values: u64) -> u64 {
    let pairs = (values.wrapping_mul(10) + (values >> 8)) & 0x00FF_00FF_00FF_00FF;
    let fours = (pairs.wrapping_mul(100) + (pairs >> 16)) & 0x0000_FFFF_0000_FFFF;
    (fours.wrapping_mul(10_000) + (fours >> 32)) & 0xFFFF_FFFF
}

/// Eight bytes, the first lowest; zeros behind the end.
#[inline]
fn load8(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..).and_then(<[u8]>::first_chunk) {
        Some(bytes) => word(*bytes),
        None => load_tail(bytes, at),
    }
}

#[cold]
fn load_tail(bytes: &[u8], at: usize) -> u64 {
    let rest = bytes.get(at..).unwrap_or_default();
    rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

const fn word(bytes: [u8; 8]) -> u64 {
    u64::from_le_bytes(bytes)
}

/// Where `text` ends if it stands at `at`.
#[inline]
fn after(bytes: &[u8], at: usize, text: &[u8]) -> Option<usize> {
    bytes.get(at..)?.starts_with(text).then_some(at + text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_length() {
        let digits = b"12345678901234567";
        for len in 0..=17 {
            let text = [&b"xx"[..], &digits[..len], b"\","].concat();
            let expected = std::str::from_utf8(&digits[..len]).unwrap().parse().ok().filter(|_| len <= 16);
            assert_eq!(number(&text, 2, len), expected, "{len}");
            assert_eq!(number(&text[..2 + len], 2, len), expected, "{len} at the end");
        }
        // Digits of the next text must not be taken for this one's.
        assert_eq!(number(b"123456", 0, 3), Some(123));
        assert_eq!(number(b"12345678999", 0, 9), Some(123_456_789));
        for bad in ["-1", "1x", "+1", "1.5", "12345678x", "1234567/", "1234567:"] {
            assert_eq!(number(bad.as_bytes(), 0, bad.len()), None, "{bad}");
        }
    }

    #[test]
    fn ints() {
        let read = |text: &str| int(format!("{text},").as_bytes(), 0);
        assert_eq!(read("0"), Some((0, 1)));
        assert_eq!(read("-2147483648"), Some((i32::MIN, 11)));
        assert_eq!(read("2147483647"), Some((i32::MAX, 10)));
        assert_eq!(read("2147483648"), None);
        assert_eq!(read("12345678901"), None);
        assert_eq!(read("-"), None);
        assert_eq!(read("00000000012"), None);
    }
}
