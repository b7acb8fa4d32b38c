//! The pairs of a properties text, read from the text itself or from the inside of a JSON string that holds it.
//!
//! Role: the one pass that [`crate::properties::PropertyList`] is read by. Separators are found 64 bytes at a time, as a bit
//! for each, so that no search waits for the one before it. In JSON the separators are escapes and nearly all escapes there
//! are; names and values are slices of the frame then. It knows no property, and keeps nothing.

use crate::hash::{ascii_word, java_hash};
use crate::properties::{NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR};
use crate::words::{HIGHS, below_bits_of_16, equal_bits_of_16};

/// Takes the well-formed pairs of a text, in its order.
pub(crate) trait PairSink<'a> {
    /// A pair, neither part empty, and the Java hash of its name; `false` ends the reading.
    fn pair(&mut self, name: &'a [u8], value: &'a [u8], hash: u32) -> bool;
}

/// The reading ended early: the sink has enough, or the text has to be unescaped first.
#[derive(Debug)]
pub(crate) struct NotRead;

/// Gives the pairs of `text` to `sink`. `ESCAPED`: it is the inside of a JSON string, and has no escapes but separators;
/// no value has one in it.
#[inline]
pub(crate) fn read_pairs<'a, const ESCAPED: bool>(text: &'a [u8], sink: &mut impl PairSink<'a>) -> Result<(), NotRead> {
    let width = if ESCAPED { 6 } else { 1 };
    let (mut from, mut name_end) = (0, None);
    for base in (0..text.len()).step_by(64) {
        let mut bits = bits_of_64(text, base);
        while bits != 0 {
            let at = base + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            match separator_at::<ESCAPED>(text, at)? {
                Some(NAME_VALUE_SEPARATOR) if name_end.is_none() => name_end = Some(at),
                Some(PROPERTY_SEPARATOR) => {
                    give(text, from, name_end, at, width, sink)?;
                    (from, name_end) = (at + width, None);
                }
                // Part of a value. An escaped one makes the value another text than its slice.
                Some(_) if ESCAPED => return Err(NotRead),
                _ => {}
            }
        }
    }
    give(text, from, name_end, text.len(), width, sink)
}

/// The separator at a byte that may be one.
#[inline]
fn separator_at<const ESCAPED: bool>(text: &[u8], at: usize) -> Result<Option<u8>, NotRead> {
    if !ESCAPED {
        return Ok(Some(text[at]).filter(|byte| matches!(*byte, NAME_VALUE_SEPARATOR | PROPERTY_SEPARATOR)));
    }
    match text[at..].first_chunk() {
        Some(br"\u0001") => Ok(Some(NAME_VALUE_SEPARATOR)),
        Some(br"\u0002") => Ok(Some(PROPERTY_SEPARATOR)),
        _ => Err(NotRead),
    }
}

/// Gives the pair of `text[from..to]` to `sink`, if it is well formed.
#[inline]
fn give<'a>(
    text: &'a [u8],
    from: usize,
    name_end: Option<usize>,
    to: usize,
    width: usize,
    sink: &mut impl PairSink<'a>,
) -> Result<(), NotRead> {
    let Some(end) = name_end.filter(|end| *end > from && end + width < to) else { return Ok(()) };
    let taken = sink.pair(&text[from..end], &text[end + width..to], name_hash(text, from, end));
    if taken { Ok(()) } else { Err(NotRead) }
}

/// The Java hash of `text[from..end]`, which is not empty. Most names are of at most 8 ASCII characters.
#[inline]
fn name_hash(text: &[u8], from: usize, end: usize) -> u32 {
    if end - from <= 8
        && let Some(word) = text[from..].first_chunk()
    {
        // The name alone, moved up: zeros in front do not count.
        let name = u64::from_le_bytes(*word) << (64 - 8 * (end - from));
        if name & HIGHS == 0 {
            return ascii_word(name);
        }
    }
    java_hash(&text[from..end]) as u32
}

/// Bit n: byte n of the 64 from `base` on may be, or start, a separator. No bits behind the end.
#[inline]
fn bits_of_64(text: &[u8], base: usize) -> u64 {
    let block = &text[base..];
    if let Some(block) = block.first_chunk::<64>() {
        let (parts, _) = block.as_chunks::<16>();
        return parts.iter().rev().fold(0, |bits, part| bits << 16 | candidates(part));
    }
    let (parts, rest) = block.as_chunks::<16>();
    let mut bits = parts.iter().rev().fold(0, |bits, part| bits << 16 | candidates(part));
    if !rest.is_empty() {
        let last = match text.last_chunk::<16>() {
            // The last 16 bytes, without those that were looked at.
            Some(last) => candidates(last) >> (16 - rest.len()),
            None => {
                let mut last = [0xFF; 16];
                last[..rest.len()].copy_from_slice(rest);
                candidates(&last)
            }
        };
        bits |= last << (16 * parts.len());
    }
    bits
}

/// A separator is 1 or 2, or starts with a backslash.
#[inline]
fn candidates(part: &[u8; 16]) -> u64 {
    below_bits_of_16(part, PROPERTY_SEPARATOR + 1) | equal_bits_of_16(part, b'\\')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bit_for_each_candidate_and_none_behind_the_end(text in prop::collection::vec(prop::sample::select(&b"ab\x01\x02\x00\x03\\\x80\xFF"[..]), 1..200)) {
            for base in (0..text.len()).step_by(64) {
                let block = text[base..].iter().take(64).enumerate();
                let expected = block.filter(|(_, byte)| **byte <= 2 || **byte == b'\\').fold(0, |bits, (at, _)| bits | 1 << at);
                prop_assert_eq!(bits_of_64(&text, base), expected);
            }
        }
    }
}
