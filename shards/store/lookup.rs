//! Single records and searches: by physical offset, by queue offset, by time, by key.
//!
//! Invariants: a record is handed out only whole, checked and visible; a search by time reads heads of records, never
//! bodies; a key query returns only records whose topic, key and time were compared, never a hash collision.

use std::ops::Range;

use bytes::Bytes;
use message::properties::{name, pairs};
use message::record::{MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES, RecordView, peek_size};
use message::{PhysicalOffset, QueueOffset, sys_flag};

use crate::consume_queue::{Entry, Slot};
use crate::index::{self, KeyLookup};
use crate::limits;
use crate::shard::Shard;
use crate::step::{ColdSource, Missing, MissingRange, ReadStep};
use crate::types::{Boundary, IndexKind, KeyQuery};

/// Bytes of a record's head that hold its store time, whatever its hosts are.
const HEAD_BYTES: u64 = 80;
/// First read of a record whose size is not known.
const FIRST_READ_BYTES: u64 = 4096;
/// Records whose starts are this near to each other are read together.
const NEAR_BYTES: u64 = 4096;
/// Most bytes of one read of several records.
const TOGETHER_BYTES: u64 = 256 << 10;

/// Records that were read together, see [`Shard::read_together`]. Kept by who reads, for its memory.
#[derive(Debug, Default)]
pub struct ReadTogether {
    bytes: Vec<u8>,
    /// Where each record lies in `bytes`; empty for one that was not read.
    found: Vec<Range<usize>>,
    /// Places of the offsets that were asked for, by offset.
    order: Vec<u32>,
}

impl ReadTogether {
    /// The record at the offset that was asked for at this place. `None` says nothing: ask for it alone.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<&[u8]> {
        let range = self.found.get(at)?;
        (!range.is_empty()).then(|| &self.bytes[range.clone()])
    }
}

/// Goes on with the value of a step, or returns the step.
macro_rules! ready {
    ($step:expr) => {
        match $step {
            ReadStep::Ready(value) => value,
            ReadStep::Missing(missing) => return ReadStep::Missing(missing),
            ReadStep::Failed(error) => return ReadStep::Failed(error),
        }
    };
}

/// The record at the start of `bytes`, if it is whole, checked, and says that it lies at `offset`.
pub(crate) fn whole_record(bytes: &[u8], offset: PhysicalOffset) -> Option<RecordView<'_>> {
    RecordView::parse_checked(bytes).ok().filter(|record| record.physical_offset() == offset)
}

impl Shard {
    /// The whole record that starts at `offset`, checked; `None` if no visible record starts there.
    pub fn record_at(&mut self, offset: PhysicalOffset) -> ReadStep<Option<Bytes>> {
        let visible = self.visible_to().0;
        if offset.0 < self.log.start() || offset.0 >= visible {
            return ReadStep::Ready(None);
        }
        let segment_end = self.log.base_of(offset.0) + self.log.segment_size();
        let available = visible.min(segment_end) - offset.0;
        let head = ready!(self.log_bytes(offset.0, available.min(FIRST_READ_BYTES)));
        let Ok(size) = peek_size(&head) else { return ReadStep::Ready(None) };
        if u64::from(size) > available {
            return ReadStep::Ready(None);
        }
        let bytes = if size as usize <= head.len() { head } else { ready!(self.log_bytes(offset.0, u64::from(size))) };
        let bytes = bytes.slice(..size as usize);
        let good = whole_record(&bytes, offset).is_some();
        ReadStep::Ready(good.then_some(bytes))
    }

    /// Appends what is in memory of a span of the log, which lies in one segment; gives how much that is.
    pub(crate) fn read_resident(&mut self, span: Range<u64>, into: &mut Vec<u8>) -> usize {
        let base = into.len();
        into.resize(base + (span.end - span.start) as usize, 0);
        let read = match self.log.locate(span.start) {
            Ok(Some((file, position))) => file.read_at_resident(&mut into[base..], position).ok().flatten(),
            _ => None,
        };
        into.truncate(base + read.unwrap_or(0));
        into.len() - base
    }

    /// Reads records that are in memory, neighbours at once. What it finds is as good as from [`Shard::record_at`]; what it does
    /// not find may be there all the same. Takes at most 8 KiB of memory for each.
    pub fn read_together(&mut self, offsets: &[PhysicalOffset], into: &mut ReadTogether) {
        into.bytes.clear();
        into.found.clear();
        into.found.resize(offsets.len(), 0..0);
        into.order.clear();
        into.order.extend(0..offsets.len() as u32);
        into.order.sort_by_key(|at| offsets[*at as usize]);
        let order = std::mem::take(&mut into.order);
        let (start, visible) = (self.log.start(), self.visible_to().0);
        let is_near = |a: &u32, b: &u32| offsets[*b as usize].0 - offsets[*a as usize].0 <= NEAR_BYTES;
        for near in order.chunk_by(is_near) {
            let mut rest = near;
            while let Some(first) = rest.first().map(|at| offsets[*at as usize].0) {
                let end = self.log.base_of(first.max(start)).saturating_add(self.log.segment_size()).min(visible);
                let limit = end.min(first.saturating_add(TOGETHER_BYTES));
                let count = rest.iter().take_while(|at| offsets[**at as usize].0 < limit).count();
                let (run, later) = rest.split_at(count.max(1));
                rest = later;
                if first >= start && first < visible {
                    let last = offsets[run[run.len() - 1] as usize].0;
                    self.read_run(offsets, run, first..end.min(last + FIRST_READ_BYTES), into);
                }
            }
        }
        into.order = order;
    }

    /// One read of [`Shard::read_together`]: the records at `places` of `offsets`, all in `range` of one segment.
    fn read_run(&mut self, offsets: &[PhysicalOffset], places: &[u32], range: Range<u64>, into: &mut ReadTogether) {
        let (base, start) = (into.bytes.len(), range.start);
        self.read_resident(range, &mut into.bytes);
        let held = &into.bytes[base..];
        for &place in places {
            let offset = offsets[place as usize];
            let at = (offset.0 - start) as usize;
            if let Some(record) = held.get(at..).and_then(|bytes| whole_record(bytes, offset)) {
                into.found[place as usize] = base + at..base + at + record.size() as usize;
            }
        }
    }

    /// Store time of a message, ms since 1970; `None` if the queue does not hold it.
    pub fn store_time_at(&mut self, topic: &[u8], queue_id: u32, offset: QueueOffset) -> ReadStep<Option<i64>> {
        let Some(slot) = self.table.find(topic, queue_id) else { return ReadStep::Ready(None) };
        let queue = self.table.get(slot);
        if offset.0 < queue.min || offset.0 >= queue.visible {
            return ReadStep::Ready(None);
        }
        let Some(entry) = ready!(self.entry_at(slot, offset.0)) else { return ReadStep::Ready(None) };
        self.store_time_of(&entry)
    }

    /// The queue offset of a time: the first message stored at or after it (`Lower`; the queue's maximum if there is
    /// none), or the last one stored at or before it (`Upper`; the queue's minimum if there is none). 0 without a queue.
    pub fn offset_by_time(
        &mut self,
        topic: &[u8],
        queue_id: u32,
        timestamp_ms: i64,
        boundary: Boundary,
    ) -> ReadStep<QueueOffset> {
        let Some(slot) = self.table.find(topic, queue_id) else { return ReadStep::Ready(QueueOffset(0)) };
        let bounds = self.bounds_of(slot);
        // `Upper` is one before the first message that is later.
        let searched = match boundary {
            Boundary::Lower => timestamp_ms,
            Boundary::Upper => timestamp_ms.saturating_add(1),
        };
        let (mut low, mut high) = (bounds.min.0, bounds.max.0);
        while low < high {
            let middle = low + (high - low) / 2;
            let (probe, stored_ms) = ready!(self.store_time_from(slot, middle, high));
            if stored_ms.is_none_or(|stored_ms| stored_ms >= searched) {
                high = middle;
            } else {
                low = probe + 1;
            }
        }
        ReadStep::Ready(QueueOffset(match boundary {
            Boundary::Lower => low,
            Boundary::Upper => low.saturating_sub(1).max(bounds.min.0),
        }))
    }

    /// Records of a topic by key or tag, newest first, stored in `begin_ms..=end_ms`, at most `max`.
    pub fn query_by_key(
        &mut self,
        topic: &[u8],
        key: &[u8],
        max: usize,
        begin_ms: i64,
        end_ms: i64,
        kind: IndexKind,
    ) -> ReadStep<KeyQuery> {
        /// Candidates beyond `max`: some may be records of other keys with the same hash.
        const SPARE: usize = 32;
        /// A frame holds no more.
        const ANSWER_BYTES: usize = 15 << 20;
        let hash = match kind {
            IndexKind::Key => index::key_hash(topic, key),
            IndexKind::Tag => index::tag_hash(topic, key),
        };
        let max = max.min(limits::KEY_QUERY_COUNT);
        let lookup = KeyLookup { hash, begin_ms, end_ms, limit: max + SPARE };
        let candidates = match self.upkeep.take_candidates(&lookup) {
            Some(candidates) => candidates,
            None => ready!(self.index.lookup(lookup)),
        };
        let (last_index_timestamp_ms, last_index_offset) = self.index.last();
        let mut answer = KeyQuery { records: Vec::new(), last_index_timestamp_ms, last_index_offset };
        let mut bytes = 0;
        for &offset in &candidates {
            match self.record_at(offset) {
                ReadStep::Ready(Some(found)) => {
                    let is_wanted = self.is_wanted(&found, offset, topic, key, begin_ms..=end_ms, kind);
                    if is_wanted && (bytes == 0 || bytes + found.len() <= ANSWER_BYTES) {
                        bytes += found.len();
                        answer.records.push(found);
                    }
                }
                ReadStep::Ready(None) => {}
                other => {
                    // The index may have walked through its files for this: not again.
                    self.upkeep.keep_candidates(lookup, candidates);
                    return other.map(|_| answer);
                }
            }
            if answer.records.len() == max {
                break;
            }
        }
        ReadStep::Ready(answer)
    }

    fn is_wanted(
        &self,
        bytes: &[u8],
        offset: PhysicalOffset,
        topic: &[u8],
        key: &[u8],
        times: std::ops::RangeInclusive<i64>,
        kind: IndexKind,
    ) -> bool {
        let Ok(record) = RecordView::parse(bytes) else { return false };
        record.topic() == topic
            && times.contains(&record.store_timestamp_ms())
            && has_key(record.properties(), key, kind)
            && !self.tombstones.covers(topic, offset)
    }

    /// Store time of the first message with a record in `from..to`, and its queue offset; `None` if there is none.
    fn store_time_from(&mut self, slot: Slot, from: u64, to: u64) -> ReadStep<(u64, Option<i64>)> {
        for offset in from..to {
            if let Some(entry) = ready!(self.entry_at(slot, offset))
                && let Some(stored_ms) = ready!(self.store_time_of(&entry))
            {
                return ReadStep::Ready((offset, Some(stored_ms)));
            }
        }
        ReadStep::Ready((to, None))
    }

    fn entry_at(&mut self, slot: Slot, offset: u64) -> ReadStep<Option<Entry>> {
        let mut entries = Vec::with_capacity(1);
        let read = self.entries_at(slot, offset, 1, &mut entries);
        read.map(|()| entries.pop().filter(Entry::has_record))
    }

    fn store_time_of(&mut self, entry: &Entry) -> ReadStep<Option<i64>> {
        let len = u64::from(entry.size).min(HEAD_BYTES);
        if len < HEAD_BYTES.min(MIN_RECORD_BYTES as u64) || !self.log.holds(entry.offset, u64::from(entry.size)) {
            return ReadStep::Ready(None);
        }
        let head = ready!(self.log_bytes(entry.offset, len));
        ReadStep::Ready(store_time(&head, entry.offset))
    }

    /// Bytes of the written log, from memory or as a range to fetch.
    fn log_bytes(&mut self, from: u64, len: u64) -> ReadStep<Bytes> {
        match self.in_memory(from, from + len, true) {
            Ok(Some(bytes)) => ReadStep::Ready(bytes),
            Ok(None) => match self.log.locate(from) {
                Ok(Some((file, position))) => {
                    let range = MissingRange { file_range: position..position + len, address: from };
                    ReadStep::Missing(Missing { file, source: ColdSource::Log, ranges: vec![range] })
                }
                Ok(None) => ReadStep::Failed(crate::ReadError::Io("outside the log".to_owned())),
                Err(error) => ReadStep::Failed(error.into()),
            },
            Err(error) => ReadStep::Failed(error.into()),
        }
    }
}

/// The store time in the head of a record.
fn store_time(head: &[u8], offset: u64) -> Option<i64> {
    let number =
        |at: usize| head.get(at..at + 8).map(|bytes| u64::from_be_bytes(bytes.try_into().expect("eight bytes")));
    let word = |at: usize| head.get(at..at + 4).map(|bytes| u32::from_be_bytes(bytes.try_into().expect("four bytes")));
    if !matches!(word(4)?, MAGIC_V1 | MAGIC_V2) || number(28)? != offset {
        return None;
    }
    let born_host = if word(36)? as i32 & sys_flag::BORN_HOST_V6 == 0 { 8 } else { 20 };
    number(48 + born_host).map(|time| time as i64)
}

/// Whether a record has the key, or the tags.
fn has_key(properties: &[u8], key: &[u8], kind: IndexKind) -> bool {
    pairs(properties).any(|(property, value)| match kind {
        IndexKind::Key if property == name::UNIQ_KEY => value == key,
        IndexKind::Key if property == name::KEYS => value.split(|&byte| byte == b' ').any(|word| word == key),
        IndexKind::Tag if property == name::TAGS => value == key,
        _ => false,
    })
}
