//! Eight bytes at a time, in a word whose lowest byte is the first, and 16 at a time, as a bit for each.
//!
//! Role: the tricks that the readers of properties, headers and JSON share. Pure.

use wide::u8x16;

/// One in each byte.
pub const ONES: u64 = 0x0101_0101_0101_0101;
/// The high bit of each byte: set in what is not ASCII.
pub const HIGHS: u64 = 0x8080_8080_8080_8080;

/// The high bit of each byte that is zero. Exact up to the first one: borrows only reach above a true zero.
#[inline]
#[must_use]
pub const fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & HIGHS
}

/// The high bit of each byte that is `byte`, up to the first one exactly.
#[inline]
#[must_use]
pub const fn equal_bytes(word: u64, byte: u8) -> u64 {
    zero_bytes(word ^ (ONES * byte as u64))
}

/// Which byte the lowest of some high bits belongs to; 8 for none.
#[inline]
#[must_use]
pub const fn first_byte(highs: u64) -> usize {
    highs.trailing_zeros() as usize / 8
}

/// Bit n: byte n of the 16 is `byte`.
#[inline]
#[must_use]
pub fn equal_bits_of_16(bytes: &[u8; 16], byte: u8) -> u64 {
    u8x16::new(*bytes).simd_eq(u8x16::splat(byte)).to_bitmask().into()
}

/// Bit n: byte n of the 16 is below `limit`, which is not 0.
#[inline]
#[must_use]
pub fn below_bits_of_16(bytes: &[u8; 16], limit: u8) -> u64 {
    let bytes = u8x16::new(*bytes);
    bytes.min(u8x16::splat(limit - 1)).simd_eq(bytes).to_bitmask().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bit_for_each_equal_byte(bytes in prop::collection::vec(prop::sample::select(&b"\0\"\\a!\x7F\x80\xA2\xFF"[..]), 16)) {
            let part = bytes.first_chunk().unwrap();
            for byte in [b'"', b'\\', 0, 0x80] {
                let expected = (0..16).filter(|place| part[*place] == byte).fold(0, |bits, place| bits | 1 << place);
                prop_assert_eq!(equal_bits_of_16(part, byte), expected);
            }
            for limit in [1, b' ', b'"', 0x80, 0xFF] {
                let expected = (0..16).filter(|place| part[*place] < limit).fold(0, |bits, place| bits | 1 << place);
                prop_assert_eq!(below_bits_of_16(part, limit), expected);
            }
        }
    }

    #[test]
    fn the_first_of_equal_bytes() {
        for at in 0..8 {
            let mut bytes = *b"\x00\x7F\x80\xFF!#[]";
            bytes[at] = b'"';
            let word = u64::from_le_bytes(bytes);
            assert_eq!(first_byte(equal_bytes(word, b'"')), at);
            bytes[7] = b'"';
            assert_eq!(first_byte(equal_bytes(u64::from_le_bytes(bytes), b'"')), at, "the first of two");
            assert_eq!(equal_bytes(word, b'\\'), 0);
        }
        assert_eq!(first_byte(0), 8);
        assert_eq!(first_byte(zero_bytes(u64::from_le_bytes(*b"\x01\x80\x00\x01\x00abc"))), 2);
    }
}
