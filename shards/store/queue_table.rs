//! The queue table file: what a checkpoint pass vouches for, queue by queue.
//!
//! ```text
//! magic (8) | version (4) | topics (4) | vouched offset (8) | store time of the last record below it (8)
//! topic:  length (2) | name | queues (4)
//! queue:  id (4) | first (8) | min (8) | max (8) | end of the last record (8) | its store time (8)
//! CRC of everything before (4)                                                  big endian, times in ms since 1970
//! ```
//!
//! Role: makes a start quick on many queues, and notices a queue whose files were lost or cut. Written whole to a
//! temporary name and renamed. Invariant: every entry that it counts is durable, and so is its record.

use std::sync::Arc;

const MAGIC: &[u8; 8] = b"RMQQTBL\n";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 32;
const QUEUE_BYTES: usize = 44;

/// One queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueRow {
    pub(crate) topic: Arc<[u8]>,
    pub(crate) id: u32,
    /// Offset of the first entry that its files may hold.
    pub(crate) first: u64,
    /// First readable offset.
    pub(crate) min: u64,
    /// Offset after the last entry.
    pub(crate) max: u64,
    /// End of the last record that has an entry; 0 when there is none.
    pub(crate) last_end: u64,
    /// Store time of it.
    pub(crate) last_store_ms: i64,
}

/// The file's content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueTableFile {
    /// Everything below has its entries in the queues' files.
    pub(crate) vouched: u64,
    /// Store time of the last record below.
    pub(crate) last_store_ms: i64,
    /// Queues; those of one topic follow each other.
    pub(crate) rows: Vec<QueueRow>,
}

impl QueueTableFile {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_BYTES + 4 + self.rows.len() * (QUEUE_BYTES + 32));
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_be_bytes());
        out.extend_from_slice(&0u32.to_be_bytes());
        out.extend_from_slice(&self.vouched.to_be_bytes());
        out.extend_from_slice(&self.last_store_ms.to_be_bytes());
        let mut topics = 0u32;
        for group in self.rows.chunk_by(|a, b| a.topic == b.topic) {
            topics += 1;
            out.extend_from_slice(&(group[0].topic.len() as u16).to_be_bytes());
            out.extend_from_slice(&group[0].topic);
            out.extend_from_slice(&(group.len() as u32).to_be_bytes());
            for row in group {
                out.extend_from_slice(&row.id.to_be_bytes());
                for number in [row.first, row.min, row.max, row.last_end, row.last_store_ms as u64] {
                    out.extend_from_slice(&number.to_be_bytes());
                }
            }
        }
        out[12..16].copy_from_slice(&topics.to_be_bytes());
        let crc = crc32fast::hash(&out);
        out.extend_from_slice(&crc.to_be_bytes());
        out
    }

    /// Reads the file; `None` if it is not whole or makes no sense.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (content, crc) = bytes.split_last_chunk::<4>()?;
        if crc32fast::hash(content).to_be_bytes() != *crc {
            return None;
        }
        let mut rest = content;
        if take::<8>(&mut rest)? != *MAGIC || u32::from_be_bytes(take(&mut rest)?) != VERSION {
            return None;
        }
        let topics = u32::from_be_bytes(take(&mut rest)?);
        let vouched = u64::from_be_bytes(take(&mut rest)?);
        let last_store_ms = i64::from_be_bytes(take(&mut rest)?);
        let mut rows = Vec::new();
        for _ in 0..topics {
            let len = usize::from(u16::from_be_bytes(take(&mut rest)?));
            let topic: Arc<[u8]> = rest.split_off(..len)?.into();
            for _ in 0..u32::from_be_bytes(take(&mut rest)?) {
                rows.push(decode_row(&topic, &mut rest)?);
            }
        }
        rest.is_empty().then_some(Self { vouched, last_store_ms, rows })
    }
}

fn decode_row(topic: &Arc<[u8]>, rest: &mut &[u8]) -> Option<QueueRow> {
    let id = u32::from_be_bytes(take(rest)?);
    let [first, min, max, last_end] = {
        let mut number = || take(rest).map(u64::from_be_bytes);
        [number()?, number()?, number()?, number()?]
    };
    let last_store_ms = i64::from_be_bytes(take(rest)?);
    let sane = first <= min && min <= max && max <= i64::MAX as u64 / 20 && last_end <= i64::MAX as u64;
    sane.then(|| QueueRow { topic: Arc::clone(topic), id, first, min, max, last_end, last_store_ms })
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    rest.split_off(..N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_every_cut_is_noticed() {
        let row = |topic: &[u8], id| QueueRow {
            topic: topic.into(),
            id,
            first: 0,
            min: 3,
            max: 1000,
            last_end: 1 << 56,
            last_store_ms: -1,
        };
        let file =
            QueueTableFile { vouched: 99, last_store_ms: 5, rows: vec![row(b"a", 0), row(b"a", 7), row(b"b", 0)] };
        let bytes = file.encode();
        assert_eq!(QueueTableFile::decode(&bytes), Some(file));
        for cut in 0..bytes.len() {
            assert_eq!(QueueTableFile::decode(&bytes[..cut]), None);
        }
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x40;
            assert_eq!(QueueTableFile::decode(&bad), None, "byte {at}");
        }
        let empty = QueueTableFile::default();
        assert_eq!(QueueTableFile::decode(&empty.encode()), Some(empty));
    }
}
