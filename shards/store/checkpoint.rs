//! The checkpoint file: Java's fields, and behind them an area of our own that Java ignores.
//!
//! ```text
//!    0 store time of the last flushed record (8) | 8 of the last record in a flushed queue (8) | 16 in a flushed index (8)
//!   24 master flushed offset (8) | 32 confirm offset (8)                                        times in ms since 1970
//!  256 magic (8) | version (4) | 0 (4) | durable offset (8) | vouched offset (8)
//!  288 index: everything below (8) | number of the newest file (8) | its items (4) | files (4)
//!  312 the five fields above again (40) | CRC of our area so far (4)
//! ```
//!
//! Invariants: 4,096 bytes, big endian. Our area counts only while its copies equal Java's fields: a Java broker that
//! worked on the store in the meantime has changed them. The durable offset is a lower bound: up to it a bad record is
//! damage, behind it a torn tail.

use message::PhysicalOffset;

use crate::index::IndexProgress;

/// Bytes of the file.
pub(crate) const CHECKPOINT_BYTES: usize = 4096;
/// Where the store time of the last record in a flushed queue stands.
pub(crate) const QUEUES_TIME_AT: u64 = 8;
/// In the sector of Java's fields: a power cut leaves both as they were, or both as they were written.
const AREA_AT: usize = 256;
const MAGIC: &[u8; 8] = b"RMQCKPT\n";
const VERSION: u32 = 1;
/// Where the copies of Java's fields stand in our area.
const COPIES_AT: usize = 56;
const AREA_BYTES: usize = COPIES_AT + 40;
const _: () = assert!(AREA_AT + AREA_BYTES + 4 <= 512, "one sector");

/// Java's five fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct JavaFields {
    /// Store time of the last record that is durable, ms since 1970.
    pub(crate) log_ms: i64,
    /// Store time of the last record whose queue entry is durable, ms since 1970.
    pub(crate) queues_ms: i64,
    /// Store time of the last record whose index item is durable, ms since 1970.
    pub(crate) index_ms: i64,
    /// Replication.
    pub(crate) master_flushed: i64,
    /// Replication.
    pub(crate) confirm: i64,
}

/// Our area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnArea {
    /// The log was durable at least up to here.
    pub(crate) durable: u64,
    /// The queue entries were durable for everything below.
    pub(crate) vouched: u64,
    /// How far the index files reach.
    pub(crate) index: IndexProgress,
}

/// What the file says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// Java's part.
    pub(crate) java: JavaFields,
    /// Our part, if it is whole.
    pub(crate) own: Option<OwnArea>,
    /// Whether our part was written together with Java's fields as they are now.
    pub(crate) agrees: bool,
}

impl Checkpoint {
    /// Java's rule: records stored before this time are in flushed files. Negative when nothing is known.
    pub(crate) fn safe_ms(&self) -> i64 {
        self.java.log_ms.min(self.java.queues_ms).saturating_sub(3000)
    }

    pub(crate) fn encode(java: JavaFields, own: OwnArea) -> Vec<u8> {
        let mut bytes = vec![0; CHECKPOINT_BYTES];
        bytes[..40].copy_from_slice(&java.encode());
        let area = &mut bytes[AREA_AT..AREA_AT + AREA_BYTES + 4];
        area[..8].copy_from_slice(MAGIC);
        area[8..12].copy_from_slice(&VERSION.to_be_bytes());
        area[16..24].copy_from_slice(&own.durable.to_be_bytes());
        area[24..32].copy_from_slice(&own.vouched.to_be_bytes());
        area[32..40].copy_from_slice(&own.index.to.0.to_be_bytes());
        area[40..48].copy_from_slice(&own.index.newest_file.to_be_bytes());
        area[48..52].copy_from_slice(&own.index.items.to_be_bytes());
        area[52..56].copy_from_slice(&own.index.files.to_be_bytes());
        area[COPIES_AT..AREA_BYTES].copy_from_slice(&java.encode());
        let crc = crc32fast::hash(&area[..AREA_BYTES]);
        area[AREA_BYTES..].copy_from_slice(&crc.to_be_bytes());
        bytes
    }

    /// Reads the file; `None` when it is too short to hold even Java's fields.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let java_bytes = bytes.get(..40)?;
        let field = |at: usize| i64::from_be_bytes(java_bytes[at..at + 8].try_into().expect("eight bytes"));
        let java = JavaFields {
            log_ms: field(0),
            queues_ms: field(8),
            index_ms: field(16),
            master_flushed: field(24),
            confirm: field(32),
        };
        let mut checkpoint = Self { java, own: None, agrees: false };
        let Some(area) = bytes.get(AREA_AT..AREA_AT + AREA_BYTES + 4) else { return Some(checkpoint) };
        let number = |at: usize| u64::from_be_bytes(area[at..at + 8].try_into().expect("eight bytes"));
        let crc = crc32fast::hash(&area[..AREA_BYTES]).to_be_bytes();
        if area[..8] == *MAGIC && area[8..12] == VERSION.to_be_bytes() && area[AREA_BYTES..] == crc {
            let counts = number(48);
            let index = IndexProgress {
                to: PhysicalOffset(number(32)),
                newest_file: number(40),
                items: (counts >> 32) as u32,
                files: counts as u32,
            };
            checkpoint.own = Some(OwnArea { durable: number(16), vouched: number(24), index });
            checkpoint.agrees = area[COPIES_AT..AREA_BYTES] == *java_bytes;
        }
        Some(checkpoint)
    }
}

impl JavaFields {
    fn encode(&self) -> [u8; 40] {
        let mut bytes = [0; 40];
        let fields = [self.log_ms, self.queues_ms, self.index_ms, self.master_flushed, self.confirm];
        for (place, field) in bytes.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_be_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_area_is_distrusted_after_java() {
        let java = JavaFields { log_ms: 5000, queues_ms: 4500, index_ms: 4400, master_flushed: 0, confirm: 7 };
        let index = IndexProgress { to: PhysicalOffset(9), newest_file: 20_261_130_000_000_000, items: 3, files: 2 };
        let own = OwnArea { durable: 1 << 40, vouched: 77, index };
        let mut bytes = Checkpoint::encode(java, own);
        assert_eq!(bytes.len(), CHECKPOINT_BYTES);
        let read = Checkpoint::decode(&bytes).unwrap();
        assert_eq!(read, Checkpoint { java, own: Some(own), agrees: true });
        assert_eq!(read.safe_ms(), 1500);
        bytes[15] += 1;
        let read = Checkpoint::decode(&bytes).unwrap();
        assert_eq!((read.agrees, read.own, read.java.queues_ms), (false, Some(own), 4501));
        bytes[AREA_AT + 20] ^= 1;
        assert_eq!(Checkpoint::decode(&bytes).unwrap().own, None);
        assert_eq!(Checkpoint::decode(&bytes[..40]).unwrap().own, None);
        assert_eq!(Checkpoint::decode(&bytes[..39]), None);
    }
}
