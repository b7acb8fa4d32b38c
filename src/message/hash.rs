//! Java's `String.hashCode`, over the UTF-16 units of UTF-8 text, and what RocketMQ derives from it.
//!
//! Role: tag values of the consume queue, key hashes of the index file. Bytes that are not UTF-8 count as Java's decoder
//! would turn them (U+FFFD for each bad sequence), so that hashes of odd texts still agree with a Java peer's.

use crate::words::HIGHS;

/// `hashCode` of a Java string of this UTF-8 text.
#[must_use]
pub fn java_hash(text: &[u8]) -> i32 {
    extend(0, text) as i32
}

/// The tag value of the consume queue for a TAGS property: its hash, sign-extended; 0 for no tag.
#[must_use]
pub fn tag_hash(tag: Option<&[u8]>) -> i64 {
    tag.map_or(0, |text| i64::from(java_hash(text)))
}

/// The hash of an index item: `abs(hashCode(topic + "#" + key))`, with the one value that has no `abs` mapped to 0.
#[must_use]
pub fn index_key_hash(topic: &[u8], key: &[u8]) -> u32 {
    IndexKeyPrefix::new(topic).key(key)
}

/// The running hash of `topic#`, to be finished with any number of keys.
#[derive(Clone, Copy, Debug)]
pub struct IndexKeyPrefix(u32);

impl IndexKeyPrefix {
    /// The prefix of a topic.
    #[must_use]
    pub fn new(topic: &[u8]) -> Self {
        Self(extend(extend(0, topic), b"#"))
    }

    /// The prefix of `topic#T#`, under which 5.4.0 indexes the whole TAGS text.
    #[must_use]
    pub fn for_tags(self) -> Self {
        Self(extend(self.0, b"T#"))
    }

    /// The hash of an index item for this prefix and `key`: 0 to 2^31 - 1.
    #[must_use]
    pub fn key(self, key: &[u8]) -> u32 {
        let hash = (extend(self.0, key) as i32).wrapping_abs();
        if hash < 0 { 0 } else { hash as u32 }
    }
}

/// `hashCode` of an ASCII constant, at compile time.
#[must_use]
pub const fn java_hash_ascii(text: &[u8]) -> i32 {
    let (mut hash, mut at) = (0u32, 0);
    while at < text.len() {
        assert!(text[at] < 0x80, "only for ASCII");
        hash = hash.wrapping_mul(31).wrapping_add(text[at] as u32);
        at += 1;
    }
    hash as i32
}

/// Continues a hash with more text, eight bytes at a time. Exact for text split at character boundaries.
#[inline]
fn extend(mut hash: u32, text: &[u8]) -> u32 {
    let (words, rest) = text.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        if word & HIGHS != 0 {
            return extend_wide(hash, &text[8 * at..]);
        }
        hash = hash.wrapping_mul(POWER_8).wrapping_add(ascii_word(word));
    }
    for (at, &byte) in rest.iter().enumerate() {
        if byte >= 0x80 {
            return extend_wide(hash, &rest[at..]);
        }
        hash = step(hash, u32::from(byte));
    }
    hash
}

const POWER_4: u32 = 31 * 31 * 31 * 31;
const POWER_8: u32 = POWER_4.wrapping_mul(POWER_4);

/// The hash of eight ASCII characters, the first in the lowest byte. Zeros in front of a shorter text change nothing.
#[inline]
pub(crate) const fn ascii_word(word: u64) -> u32 {
    const BYTES: u64 = 0x00FF_00FF_00FF_00FF;
    const PAIRS: u64 = 0x0000_FFFF_0000_FFFF;
    // Neighbours are joined in lanes of twice the width: two characters are below 2^12, four below 2^22.
    let pairs = (word & BYTES) * 31 + (word >> 8 & BYTES);
    let fours = (pairs & PAIRS) * (31 * 31) + (pairs >> 16 & PAIRS);
    (fours as u32).wrapping_mul(POWER_4).wrapping_add((fours >> 32) as u32)
}

#[cold]
fn extend_wide(mut hash: u32, text: &[u8]) -> u32 {
    for chunk in text.utf8_chunks() {
        for unit in chunk.valid().encode_utf16() {
            hash = step(hash, u32::from(unit));
        }
        if !chunk.invalid().is_empty() {
            hash = step(hash, 0xFFFD);
        }
    }
    hash
}

const fn step(hash: u32, unit: u32) -> u32 {
    hash.wrapping_mul(31).wrapping_add(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_java() {
        // Values printed by jshell of JDK 17.
        assert_eq!(java_hash(b""), 0);
        assert_eq!(java_hash(b"TagA"), 2_598_919);
        assert_eq!(java_hash(b"A"), 65);
        assert_eq!(java_hash("主题".as_bytes()), 659_901);
        assert_eq!(java_hash("😀".as_bytes()), 1_772_899);
        assert_eq!(java_hash(b"polygenelubricants"), i32::MIN);
        assert_eq!(java_hash_ascii(b"TagA"), java_hash(b"TagA"));
    }

    #[test]
    fn words_of_eight_give_what_single_characters_give() {
        let text: Vec<u8> = (0..40).map(|at| 0x7F - at * 3).collect();
        for len in 0..text.len() {
            let one_by_one = text[..len].iter().fold(7, |hash, &byte| step(hash, u32::from(byte)));
            assert_eq!(extend(7, &text[..len]), one_by_one, "{len}");
            // A wide character at every place of a word.
            let wide = [&text[..len], "é".as_bytes(), &text[..len]].concat();
            let expected = step(one_by_one, 0xE9);
            assert_eq!(extend(7, &wide), text[..len].iter().fold(expected, |hash, &byte| step(hash, u32::from(byte))));
        }
    }

    #[test]
    fn index_hash_is_never_negative() {
        // "#" is appended to the topic: a topic and key whose joined hash is i32::MIN must give 0.
        assert_eq!(index_key_hash(b"t", b"k"), java_hash(b"t#k").unsigned_abs());
        let prefix = IndexKeyPrefix(extend(0, b"polygenelubricant"));
        assert_eq!(prefix.key(b"s"), 0);
        assert_eq!(IndexKeyPrefix::new(b"t").for_tags().key(b"x"), java_hash(b"t#T#x").unsigned_abs());
    }
}
