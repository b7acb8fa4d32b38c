//! One entry of a consume queue: 20 bytes, big endian.
//!
//! ```text
//! 0 physical offset (8) | 8 record size (4) | 12 tag value (8)
//! ```
//!
//! Unused space is zero; an entry is valid when its offset is not negative and its size positive.

/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: usize = 20;
/// The size in an entry that stands for no record (Java fills the space before a queue's first message with it).
const BLANK_SIZE: u32 = 0x7FFF_FFFF;

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Physical offset of the record.
    pub(crate) offset: u64,
    /// Size of the record.
    pub(crate) size: u32,
    /// Hash of the tag, or what else the topic keeps there.
    pub(crate) tag: i64,
}

impl Entry {
    /// The entry for a queue offset that has no record.
    pub(crate) const BLANK: Self = Self { offset: 0, size: BLANK_SIZE, tag: 0 };

    /// Whether a record belongs to it.
    pub(crate) fn has_record(&self) -> bool {
        self.size != BLANK_SIZE
    }

    /// End of its record in the log; 0 for a blank entry.
    pub(crate) fn end(&self) -> u64 {
        if self.has_record() { self.offset.saturating_add(u64::from(self.size)) } else { 0 }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.offset.to_be_bytes());
        out.extend_from_slice(&self.size.to_be_bytes());
        out.extend_from_slice(&self.tag.to_be_bytes());
    }

    /// The entry in these 20 bytes; `None` where none was written.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ENTRY_BYTES] = bytes.get(..ENTRY_BYTES)?.try_into().expect("twenty bytes");
        let offset = u64::from_be_bytes(bytes[..8].try_into().expect("eight bytes"));
        let size = u32::from_be_bytes(bytes[8..12].try_into().expect("four bytes"));
        let tag = i64::from_be_bytes(bytes[12..].try_into().expect("eight bytes"));
        (offset <= i64::MAX as u64 && size > 0 && size <= BLANK_SIZE).then_some(Self { offset, size, tag })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn java_bytes() {
        let mut bytes = Vec::new();
        Entry { offset: 0x0102, size: 0x93, tag: -2 }.encode(&mut bytes);
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0x93, 255, 255, 255, 255, 255, 255, 255, 254]);
        assert_eq!(Entry::decode(&bytes), Some(Entry { offset: 0x0102, size: 0x93, tag: -2 }));
        assert_eq!(Entry::decode(&[0; 20]), None);
        assert_eq!(Entry::decode(&[255; 20]), None);
        assert_eq!(Entry::decode(&bytes[..19]), None);
    }
}
