//! The bit positions by which a Java broker marks messages for an SQL92 filter.
//!
//! Role: written into `consumerFilter.json`, because a Java broker drops all filters of a file whose positions are not its own. This
//! broker marks no message. Pure; the numbers follow from Java's defaults (`maxErrorRateOfBloomFilter` 20,
//! `expectConsumerNumUseFilter` 32).

/// Bits of a mark.
pub const BITS: u32 = 112;
/// Positions of one filter.
const POSITIONS: usize = 3;

/// The positions of a group's filter for a topic.
pub fn positions(group: &str, topic: &str) -> [u32; POSITIONS] {
    let hash = murmur3_128(format!("{group}#{topic}").as_bytes());
    let (low, high) = (hash as i32, (hash >> 32) as i32);
    std::array::from_fn(|at| {
        let mixed = low.wrapping_add((at as i32 + 1).wrapping_mul(high));
        (if mixed < 0 { !mixed } else { mixed }) as u32 % BITS
    })
}

/// First half of the 128-bit MurmurHash3 for 64-bit machines, with seed 0.
fn murmur3_128(bytes: &[u8]) -> u64 {
    const C1: u64 = 0x87C3_7B91_1142_53D5;
    const C2: u64 = 0x4CF5_AD43_2745_937F;
    let first = |k: u64| k.wrapping_mul(C1).rotate_left(31).wrapping_mul(C2);
    let second = |k: u64| k.wrapping_mul(C2).rotate_left(33).wrapping_mul(C1);
    let (mut h1, mut h2) = (0u64, 0u64);
    let (blocks, tail) = bytes.as_chunks::<16>();
    let halves = |block: &[u8; 16]| {
        let block = u128::from_le_bytes(*block);
        (block as u64, (block >> 64) as u64)
    };
    for block in blocks {
        let (k1, k2) = halves(block);
        h1 = (h1 ^ first(k1)).rotate_left(27).wrapping_add(h2).wrapping_mul(5).wrapping_add(0x52DC_E729);
        h2 = (h2 ^ second(k2)).rotate_left(31).wrapping_add(h1).wrapping_mul(5).wrapping_add(0x3849_5AB5);
    }
    let mut last = [0; 16];
    last[..tail.len()].copy_from_slice(tail);
    let (k1, k2) = halves(&last);
    h1 ^= first(k1) ^ bytes.len() as u64;
    h2 ^= second(k2) ^ bytes.len() as u64;
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    mix(h1).wrapping_add(mix(h2))
}

fn mix(mut k: u64) -> u64 {
    for factor in [0xFF51_AFD7_ED55_8CCD, 0xC4CE_B9FE_1A85_EC53] {
        k = (k ^ k >> 33).wrapping_mul(factor);
    }
    k ^ k >> 33
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_known_texts() {
        for (text, hash) in [
            ("", 0),
            ("hello", 0xCBD8_A7B3_41BD_9B02),
            ("hello, world", 0x342F_AC62_3A5E_BC8E),
            ("19 Jan 2038 at 3:14:07 AM", 0xB89E_5988_B737_AFFC),
            ("The quick brown fox jumps over the lazy dog.", 0xCD99_481F_9EE9_02C9),
        ] {
            assert_eq!(murmur3_128(text.as_bytes()), hash, "{text}");
        }
    }

    #[test]
    fn positions_are_those_of_java() {
        assert_eq!(positions("g", "t"), [22, 87, 58]);
        assert_eq!(positions("%x|y_group", "t"), [90, 58, 48]);
    }
}
