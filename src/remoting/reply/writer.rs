//! One frame, written field by field into a region that is reserved at once.
//!
//! Role: the two forms of an answer's header, for [`super`]. It must not know which fields an answer has. Invariants: what does
//! not fit the region is counted and left out, and the frame is then written again into a region that it fits; nothing is
//! written more than [`WINDOW`] bytes behind the place that is counted. The pieces are copied with lengths that are known when
//! this is compiled, and numbers become digits in words: a copy whose length is only known later costs more than its bytes.

use crate::codes::version;
use crate::command::FLAG_RESPONSE;
use crate::cursor::{escape, has_escapes_of_16};
use crate::frame::{self, PREFIX_BYTES, SerializeType};
use message::PhysicalOffset;
use message::ids::{OffsetIdPrefix, hex16};
use message::words::ONES;

/// The name of a field in both forms.
pub(super) struct Name {
    /// Its length and the name.
    pub(super) compact: &'static [u8],
    /// The end of the value before, the name, the start of the value.
    pub(super) json: &'static [u8],
}

/// A [`Name`] of a literal.
macro_rules! name {
    ($name:literal) => {
        &$crate::reply::writer::Name {
            compact: const { &$crate::reply::writer::compact_name::<{ 2 + $name.len() }>($name) },
            json: concat!("\",\"", $name, "\":\"").as_bytes(),
        }
    };
}
pub(super) use name;

/// What stands before the length of a compact value: a name of `N - 2` bytes and its length.
pub(super) const fn compact_name<const N: usize>(name: &str) -> [u8; N] {
    let mut out = [0; N];
    let (length, place) = out.split_at_mut(2);
    length.copy_from_slice(&(name.len() as u16).to_be_bytes());
    place.copy_from_slice(name.as_bytes());
    out
}

/// Appends a frame without its body, of which `body_len` bytes must follow: the header with what `fields` adds to it. `room`:
/// how many bytes it may take, if it is written once; when they are too few it is written again.
#[inline(always)]
pub(super) fn frame<const JSON: bool>(
    out: &mut Vec<u8>,
    start: &Start<'_>,
    room: usize,
    body_len: usize,
    fields: impl Fn(&mut Writer<'_, JSON>),
) {
    let (form, at) = (if JSON { SerializeType::Json } else { SerializeType::Compact }, out.len());
    let mut room = room;
    loop {
        out.resize(at + room, 0);
        let len = written(&mut out[at..], start, &fields);
        if len + WINDOW <= room {
            out.truncate(at + len);
            return frame::finish(out, at, form, body_len);
        }
        out.truncate(at);
        room = len + WINDOW;
    }
}

/// Writes a header as far as it fits the region; gives where it ends, or would end.
#[inline(never)] // what it computes is not to be moved out of the loop around it
fn written<const JSON: bool>(region: &mut [u8], start: &Start<'_>, fields: &impl Fn(&mut Writer<'_, JSON>)) -> usize {
    let mut writer = Writer::<JSON> { region, at: PREFIX_BYTES as u32, first: true };
    writer.header(start, fields);
    writer.at as usize
}

/// What each header has.
pub(super) struct Start<'a> {
    pub(super) code: i32,
    pub(super) opaque: i32,
    pub(super) remark: Option<&'a str>,
    /// Whether there is a block of fields, be it empty.
    pub(super) has_fields: bool,
}

/// Most bytes that are written at once and partly written over.
const WINDOW: usize = 16;

/// Writes one header, in JSON or the compact form.
pub(super) struct Writer<'a, const JSON: bool> {
    region: &'a mut [u8],
    /// Where the next byte goes. Counts on when the region is full. In 32 bits, of which a header needs 24: then no place that
    /// follows from it can wrap, and each piece is one check.
    at: u32,
    /// No field is written yet.
    first: bool,
}

impl<const JSON: bool> Writer<'_, JSON> {
    #[inline(always)]
    fn header(&mut self, start: &Start<'_>, fields: &impl Fn(&mut Self)) {
        let remark = start.remark.unwrap_or_default();
        if JSON {
            self.put(b"{\"code\":");
            self.digits(start.code.into());
            if start.has_fields {
                self.put(b",\"extFields\":{");
                fields(self);
                self.put(if self.first { b"}" } else { b"\"}" });
            }
            self.put(b",\"flag\":1,\"language\":\"JAVA\",\"opaque\":");
            self.digits(start.opaque.into());
            if start.remark.is_some() {
                self.put(b",\"remark\":\"");
                self.escaped(remark.as_bytes());
                self.put(b"\"");
            }
            self.put(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":493}");
        } else {
            let [high, low] = (start.code as i16).to_be_bytes();
            let [version_high, version_low] = (version::CURRENT as i16).to_be_bytes();
            self.put(&[high, low, 0, version_high, version_low]); // 0: JAVA, as in JSON
            self.put(&start.opaque.to_be_bytes());
            self.put(&FLAG_RESPONSE.to_be_bytes());
            self.put(&(remark.len() as u32).to_be_bytes());
            self.put(remark.as_bytes());
            let length_at = self.at as usize;
            self.put(&[0; 4]);
            fields(self);
            let length = self.at - length_at as u32 - 4;
            if let Some(place) = self.region.get_mut(length_at..length_at + 4) {
                place.copy_from_slice(&length.to_be_bytes());
            }
        }
    }

    /// Bytes as they are.
    #[inline(always)]
    fn put(&mut self, bytes: &[u8]) {
        let at = self.at as usize;
        if let Some(place) = self.region.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
        self.at += bytes.len() as u32;
    }

    /// The first `len` of some bytes; the others are written over by what comes next, or cut off at the end.
    #[inline(always)]
    fn put_front<const N: usize>(&mut self, bytes: [u8; N], len: usize) {
        const { assert!(N <= WINDOW) };
        let at = self.at as usize;
        if let Some(place) = self.region.get_mut(at..at + N) {
            place.copy_from_slice(&bytes);
        }
        self.at += len as u32;
    }

    #[inline(always)]
    fn digits(&mut self, value: i64) {
        if let 0..=9 = value {
            self.put(&[b'0' + value as u8]);
        } else {
            self.at = put_decimal::<true>(self.region, self.at, value);
        }
    }

    /// What stands before a value.
    #[inline(always)]
    fn name(&mut self, name: &Name) {
        if JSON {
            // The piece begins with the end of the value before it, which the first field has not.
            if std::mem::replace(&mut self.first, false) {
                self.put(&name.json[2..]);
            } else {
                self.put(name.json);
            }
        } else {
            self.put(name.compact);
        }
    }

    /// The length of a compact value.
    #[inline(always)]
    fn length(&mut self, len: usize) {
        if !JSON {
            self.put(&(len as u32).to_be_bytes());
        }
    }

    /// A value that needs no escapes.
    #[inline(always)]
    pub(super) fn plain(&mut self, name: &Name, value: &[u8]) {
        self.name(name);
        self.length(value.len());
        self.put(value);
    }

    #[inline(always)]
    pub(super) fn number(&mut self, name: &Name, value: i64) {
        self.name(name);
        match value {
            _ if JSON => self.digits(value),
            0..=9 => self.put(&[0, 0, 0, 1, b'0' + value as u8]),
            _ => self.at = put_decimal::<false>(self.region, self.at, value),
        }
    }

    #[inline(always)]
    pub(super) fn text(&mut self, name: &Name, value: &[u8]) {
        self.name(name);
        self.length(value.len());
        if JSON {
            self.escaped(value);
        } else {
            self.put(value);
        }
    }

    /// Offset message ids, separated by commas.
    #[inline(always)]
    pub(super) fn ids(&mut self, name: &Name, prefix: &OffsetIdPrefix, offsets: &[PhysicalOffset]) {
        self.name(name);
        let id_len = prefix.as_bytes().len() + 16;
        self.length((offsets.len() * (id_len + 1)).saturating_sub(1));
        for (place, offset) in offsets.iter().enumerate() {
            if place > 0 {
                self.put(b",");
            }
            self.short_text(prefix.as_bytes());
            self.put(&hex16(offset.0));
        }
    }

    /// A text of mostly 16 to 32 bytes, without a copy of a length that is not known before.
    #[inline(always)]
    fn short_text(&mut self, text: &[u8]) {
        match (text.first_chunk::<16>(), text.last_chunk::<16>()) {
            (Some(first), Some(last)) if text.len() <= 32 => {
                self.put_front(*first, text.len() - 16);
                self.put(last);
            }
            _ => self.put(text),
        }
    }

    /// A text with what JSON escapes; most texts have nothing of it.
    #[inline(always)]
    fn escaped(&mut self, text: &[u8]) {
        if let (16..=32, Some(first), Some(last)) = (text.len(), text.first_chunk::<16>(), text.last_chunk::<16>()) {
            if !has_escapes_of_16(first) && !has_escapes_of_16(last) {
                self.put_front(*first, text.len() - 16);
                return self.put(last);
            }
        } else if let (8..16, Some(first), Some(last)) = (text.len(), text.first_chunk::<8>(), text.last_chunk::<8>())
            && !has_escapes_of_16(&both(first, last))
        {
            self.put_front(*first, text.len() - 8);
            return self.put(last);
        }
        self.at = put_escaped::<JSON>(self.region, self.at, text);
    }
}

const _: () = assert!(version::CURRENT == 493 && FLAG_RESPONSE == 1, "written out above");

#[inline(always)]
fn both(low: &[u8; 8], high: &[u8; 8]) -> [u8; 16] {
    (u128::from(u64::from_le_bytes(*low)) | u128::from(u64::from_le_bytes(*high)) << 64).to_le_bytes()
}

/// Puts a text of any length with what JSON escapes; gives where it ends.
#[inline(never)]
fn put_escaped<const JSON: bool>(region: &mut [u8], at: u32, text: &[u8]) -> u32 {
    let mut writer = Writer::<JSON> { region, at, first: false };
    escape(text, |piece| writer.put(piece));
    writer.at
}

/// Puts a value that is a number, and before it its length in the compact form; gives where it ends.
#[inline(never)]
fn put_decimal<const JSON: bool>(region: &mut [u8], at: u32, value: i64) -> u32 {
    const HALF: u64 = 100_000_000;
    let mut writer = Writer::<JSON> { region, at, first: false };
    let unsigned = value as u64;
    if unsigned < HALF {
        let (text, len) = decimal(unsigned as u32);
        writer.length(len);
        writer.put_front(text, len);
    } else if unsigned < HALF * HALF {
        let high = (unsigned / HALF) as u32;
        // Ids of requests have no more than ten digits.
        let (text, len) = if high < 100 { short_decimal(high) } else { decimal(high) };
        writer.length(len + 8);
        writer.put_front(text, len);
        writer.put(&(eight_digits((unsigned % HALF) as u32) + ZEROS).to_le_bytes());
    } else {
        return put_long_decimal::<JSON>(writer.region, at, value);
    }
    writer.at
}

/// The same for 17 digits and more, or a sign.
#[cold]
#[inline(never)]
fn put_long_decimal<const JSON: bool>(region: &mut [u8], at: u32, value: i64) -> u32 {
    let mut writer = Writer::<JSON> { region, at, first: false };
    let mut buffer = itoa::Buffer::new();
    let text = buffer.format(value).as_bytes();
    writer.length(text.len());
    writer.put(text);
    writer.at
}

/// The character 0 in each byte.
const ZEROS: u64 = ONES * b'0' as u64;

/// The text of a number below 100 and its length.
#[inline(always)]
fn short_decimal(value: u32) -> ([u8; 8], usize) {
    let tens = (value * 103) >> 10;
    let digits = u64::from(tens | ((value - tens * 10) << 8)) + ZEROS;
    if tens == 0 { ((digits >> 8).to_le_bytes(), 1) } else { (digits.to_le_bytes(), 2) }
}

/// The text of a number below 10^8 and its length.
#[inline(always)]
fn decimal(value: u32) -> ([u8; 8], usize) {
    let digits = eight_digits(value);
    // The last digit stays, be it zero.
    let zeros = (digits | 1 << 56).trailing_zeros() & 56;
    (((digits + ZEROS) >> zeros).to_le_bytes(), 8 - zeros as usize / 8)
}

/// The eight digits of a number below 10^8 as values 0 to 9, the first in the lowest byte.
#[inline]
const fn eight_digits(value: u32) -> u64 {
    let value = value as u64;
    // Halves of four, two and one digit beside each other; the quotients by 100 and 10 are exact for such numbers.
    let fours = (value / 10_000) | ((value % 10_000) << 32);
    let hundreds = ((fours * 5_243) >> 19) & 0x0000_007F_0000_007F;
    let pairs = hundreds | ((fours - hundreds * 100) << 16);
    let tens = ((pairs * 103) >> 10) & 0x000F_000F_000F_000F;
    tens | ((pairs - tens * 10) << 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn digits_of_every_length() {
        let of = |value: i64| {
            let mut texts = [false, true].map(|counted| {
                let mut region = [0; 64];
                let end = match counted {
                    false => put_decimal::<true>(&mut region, 3, value),
                    true => put_decimal::<false>(&mut region, 3, value),
                };
                region[3..end as usize].to_vec()
            });
            let count = texts[1].drain(..4).fold(0, |count, byte| count << 8 | usize::from(byte));
            assert_eq!((texts[1].len(), &texts[1]), (count, &texts[0]));
            String::from_utf8(texts[0].clone()).unwrap()
        };
        for power in 0..=18 {
            for value in [10i64.pow(power) - 1, 10i64.pow(power), 10i64.pow(power) + 1, 7 * 10i64.pow(power)] {
                assert_eq!(of(value), value.to_string());
            }
        }
        for value in [-1, i64::MIN, i64::MAX, i32::MIN.into()] {
            assert_eq!(of(value), value.to_string());
        }
        // Every value of each half.
        for value in 0..10_000 {
            assert_eq!(of(value), value.to_string());
            assert_eq!(of(value * 10_000), (value * 10_000).to_string());
            assert_eq!(of(value * 100_000_000 + 5), (value * 100_000_000 + 5).to_string());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_small_region_writes_the_same(room in 0usize..400, text: Vec<u8>, before: Vec<u8>, value: i64, shift in 0u32..64) {
            let offsets = [PhysicalOffset(7), PhysicalOffset(value as u64)];
            let prefix = OffsetIdPrefix::new("127.0.0.1:10911".parse().unwrap());
            let write = |room| {
                let (mut out, start) = (before.clone(), Start { code: 3, opaque: value as i32, remark: Some("r"), has_fields: true });
                frame::<true>(&mut out, &start, room, 5, |writer| {
                    writer.number(name!("one"), value >> shift);
                    writer.text(name!("two"), &text);
                    writer.ids(name!("three"), &prefix, &offsets);
                });
                frame::<false>(&mut out, &start, room, 5, |writer| {
                    writer.text(name!("two"), &text);
                    writer.ids(name!("three"), &prefix, &offsets);
                    writer.number(name!("one"), value >> shift);
                });
                out
            };
            prop_assert_eq!(write(room), write(10_000));
        }
    }
}
