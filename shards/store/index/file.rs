//! Java's IndexFile: layout, header, items, names (FORMAT.md §6).
//!
//! Invariants: a header counts only items that were durable before it; an item's `previous` is always smaller than its
//! own number, which ends every walk; item 0 is never used. Nothing here decides when a file is written.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use message::PhysicalOffset;
use sys::disk::DiskFile;

/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = 40;
/// Bytes of a slot: the number of its newest item.
pub(crate) const SLOT_BYTES: usize = 4;
/// Bytes of an item.
pub(crate) const ITEM_BYTES: usize = 20;
/// Digits of a file's name: yyyyMMddHHmmssSSS.
const NAME_DIGITS: usize = 17;

/// How large the files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Hash slots (`maxHashSlotNum`).
    pub slots: u32,
    /// Places for items, the unused item 0 included (`maxIndexNum`).
    pub items: u32,
}

impl Geometry {
    pub fn file_bytes(self) -> u64 {
        self.item_at(self.items)
    }

    pub fn slot_of(self, hash: u32) -> u32 {
        hash % self.slots
    }

    pub fn slot_at(self, slot: u32) -> u64 {
        HEADER_BYTES as u64 + u64::from(slot) * SLOT_BYTES as u64
    }

    pub fn item_at(self, number: u32) -> u64 {
        self.slot_at(self.slots) + u64::from(number) * ITEM_BYTES as u64
    }
}

/// The first 40 bytes of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    /// Store time of the first item, ms since 1970.
    pub begin_ms: i64,
    /// Store time of the last item, ms since 1970.
    pub end_ms: i64,
    /// Offset of the first item's record.
    pub begin: PhysicalOffset,
    /// Offset of the last item's record: its start, not its end.
    pub end: PhysicalOffset,
    /// Slots that have an item.
    pub used_slots: u32,
    /// Number of the next item: 1 in an empty file.
    pub count: u32,
}

impl Header {
    pub const EMPTY: Self =
        Self { begin_ms: 0, end_ms: 0, begin: PhysicalOffset(0), end: PhysicalOffset(0), used_slots: 0, count: 1 };

    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Self {
        let long = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let int = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        Self {
            begin_ms: long(0) as i64,
            end_ms: long(8) as i64,
            begin: PhysicalOffset(long(16)),
            end: PhysicalOffset(long(24)),
            used_slots: int(32),
            count: int(36).max(1),
        }
    }

    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.begin_ms.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.end_ms.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.begin.0.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.end.0.to_be_bytes());
        bytes[32..36].copy_from_slice(&self.used_slots.to_be_bytes());
        bytes[36..].copy_from_slice(&self.count.to_be_bytes());
        bytes
    }

    /// Whether the header can be that of a file with items in a log that holds `log`.
    pub fn is_sound(&self, geometry: Geometry, shard_base: PhysicalOffset, log_end: PhysicalOffset) -> bool {
        let offsets = shard_base <= self.begin && self.begin <= self.end && self.end < log_end;
        offsets && (2..=geometry.items).contains(&self.count)
    }

    /// Takes an item into account.
    pub fn add(&mut self, offset: PhysicalOffset, store_timestamp_ms: i64) {
        if self.count == 1 {
            (self.begin, self.begin_ms) = (offset, store_timestamp_ms);
        }
        (self.end, self.end_ms) = (offset, store_timestamp_ms);
        self.count += 1;
    }

    /// Seconds of an item since the file's first one, as Java counts them.
    pub fn seconds(&self, store_timestamp_ms: i64) -> u32 {
        if self.begin_ms <= 0 {
            return 0;
        }
        (store_timestamp_ms.saturating_sub(self.begin_ms) / 1000).clamp(0, i64::from(i32::MAX)) as u32
    }
}

/// One item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub hash: u32,
    pub offset: PhysicalOffset,
    /// Since the header's begin time, rounded down.
    pub seconds: u32,
    /// The next older item of the slot; 0 ends the chain.
    pub previous: u32,
}

impl Item {
    pub fn decode(bytes: &[u8; ITEM_BYTES]) -> Self {
        let int = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let offset = PhysicalOffset(u64::from_be_bytes(bytes[4..12].try_into().expect("8 bytes")));
        Self { hash: int(0), offset, seconds: int(12), previous: int(16) }
    }

    pub fn encode(&self) -> [u8; ITEM_BYTES] {
        let mut bytes = [0; ITEM_BYTES];
        bytes[..4].copy_from_slice(&self.hash.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.offset.0.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.seconds.to_be_bytes());
        bytes[16..].copy_from_slice(&self.previous.to_be_bytes());
        bytes
    }
}

/// A file of the index as it was after some merge. The descriptor is for reading; a merge opens its own.
#[derive(Clone)]
pub(crate) struct IndexFile {
    pub name: FileName,
    pub file: Arc<dyn DiskFile>,
    pub header: Header,
}

/// Fills `buf` from `at`, as far as the file goes; how many bytes it had. The rest of `buf` is left as it is.
pub(crate) fn read_full(file: &dyn DiskFile, buf: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buf.len() {
        match file.read_at(&mut buf[filled..], at + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

/// The name of a file as a number; newer files have larger ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileName(pub u64);

impl FileName {
    /// `None`: not the name of an index file.
    pub fn parse(name: &str) -> Option<Self> {
        let digits = name.len() == NAME_DIGITS && name.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| name.parse().ok().map(Self)).flatten()
    }

    /// The name of a file made at this time.
    pub fn of_time(wall_ms: i64) -> Self {
        let time =
            TimeZone::system().to_datetime(Timestamp::from_millisecond(wall_ms).unwrap_or(Timestamp::UNIX_EPOCH));
        let fields = [
            (time.month() as u64, 100),
            (time.day() as u64, 100),
            (time.hour() as u64, 100),
            (time.minute() as u64, 100),
            (time.second() as u64, 100),
            (time.millisecond() as u64, 1000),
        ];
        let year = u64::try_from(time.year()).unwrap_or(0);
        Self(fields.iter().fold(year, |number, (field, width)| number * width + field))
    }

    pub fn path(self, dir: &Path) -> PathBuf {
        dir.join(format!("{:017}", self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_rise_with_the_time() {
        let first = FileName::of_time(1_796_047_905_076);
        assert_eq!(FileName::parse(&format!("{:017}", first.0)), Some(first));
        assert!(FileName::of_time(1_796_047_905_077) > first && FileName::of_time(1_796_134_305_076) > first);
        assert_eq!(FileName::parse("2026113014114509x"), None);
        assert_eq!(FileName::parse("20261130141145091.bak"), None);
    }

    #[test]
    fn header_and_item_keep_their_fields() {
        let header = Header {
            begin_ms: 1,
            end_ms: 2,
            begin: PhysicalOffset(3),
            end: PhysicalOffset(4),
            used_slots: 5,
            count: 6,
        };
        assert_eq!(Header::decode(&header.encode()), header);
        let item = Item { hash: 7, offset: PhysicalOffset(8), seconds: 9, previous: 10 };
        assert_eq!(Item::decode(&item.encode()), item);
        assert_eq!(header.seconds(3_001), 3);
        assert_eq!(header.seconds(-5_000), 0);
        assert_eq!(Header::EMPTY.seconds(3_001), 0);
    }
}
