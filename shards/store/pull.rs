//! Pulling records of a queue, by Java's rules.
//!
//! Two stages: entries are selected by offset, filter and limits alone; then the bytes of the selected records are
//! gathered. Invariants: at least one record is returned if one matches; `next_begin` never goes back and always moves
//! when entries were looked at; records that this process wrote are handed out from the mapping once they are known to be
//! in memory; all others are checked first, and damaged ones are left out.

use std::io;

use bytes::Bytes;
use message::record::RecordView;
use message::{PhysicalOffset, QueueOffset};
use smallvec::SmallVec;
use sys::{LogSlice, MappedRun};

use crate::consume_queue::{Entry, EntryReader, Slot, read_entries};
use crate::limits;
use crate::shard::Shard;
use crate::step::{ColdSource, Missing, MissingRange, ReadStep};
use crate::types::{Bounds, GetStatus, PullLimits, Pulled, Slices};

pub(crate) type Selected = SmallVec<[Entry; 32]>;

/// What the first stage chose.
pub(crate) struct Selection {
    pub(crate) entries: Selected,
    pub(crate) next: u64,
    /// Why nothing was chosen.
    pub(crate) otherwise: GetStatus,
}

/// Records that lie close together in the log.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    /// Range of the selected entries.
    pub(crate) first: usize,
    pub(crate) end: usize,
    /// Range of the log.
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Shard {
    /// Records of a queue from `from` on that `matches` accepts by their tag value. Every status of Java's broker can
    /// come, with the offset at which its client goes on.
    pub fn pull(
        &mut self,
        topic: &[u8],
        queue_id: u32,
        from: QueueOffset,
        limits: PullLimits,
        matches: &mut dyn FnMut(i64) -> bool,
    ) -> ReadStep<Pulled> {
        self.pull_noting(topic, queue_id, from, limits, matches, None)
    }

    /// As [`Shard::pull`], with the queue offset of each returned record in `offsets`, in their order. What `offsets` held
    /// before is dropped.
    pub fn pull_with_offsets(
        &mut self,
        topic: &[u8],
        queue_id: u32,
        from: QueueOffset,
        limits: PullLimits,
        matches: &mut dyn FnMut(i64) -> bool,
        offsets: &mut Vec<QueueOffset>,
    ) -> ReadStep<Pulled> {
        offsets.clear();
        self.upkeep.left_out.clear();
        let step = self.pull_noting(topic, queue_id, from, limits, matches, Some(offsets));
        let mut at = 0;
        offsets.retain(|_| {
            at += 1;
            !self.upkeep.left_out.contains(&(at - 1))
        });
        step
    }

    fn pull_noting(
        &mut self,
        topic: &[u8],
        queue_id: u32,
        from: QueueOffset,
        limits: PullLimits,
        matches: &mut dyn FnMut(i64) -> bool,
        offsets: Option<&mut Vec<QueueOffset>>,
    ) -> ReadStep<Pulled> {
        let (slot, bounds) = match self.begin_pull(topic, queue_id, from) {
            Ok(found) => found,
            Err(none) => return ReadStep::Ready(none.into_pulled()),
        };
        match self.select(slot, from.0, bounds.max.0, limits, matches, offsets) {
            ReadStep::Ready(selection) => self.finish_pull(&selection, bounds),
            ReadStep::Missing(missing) => ReadStep::Missing(missing),
            ReadStep::Failed(error) => ReadStep::Failed(error),
        }
    }

    /// The queue and its bounds, or why nothing is to be read at `from`.
    pub(crate) fn begin_pull(&self, topic: &[u8], queue_id: u32, from: QueueOffset) -> Result<(Slot, Bounds), Nothing> {
        let Some(slot) = self.table.find(topic, queue_id) else {
            return Err(Nothing { status: GetStatus::NoMatchedLogicQueue, next: 0, bounds: Bounds::default() });
        };
        let bounds = self.bounds_of(slot);
        let (min, max) = (bounds.min.0, bounds.max.0);
        let (status, next) = match from.0 {
            _ if max == 0 => (GetStatus::NoMessageInQueue, 0),
            offset if offset < min => (GetStatus::OffsetTooSmall, min),
            offset if offset == max => (GetStatus::OffsetOverflowOne, max),
            offset if offset > max => (GetStatus::OffsetOverflowBadly, max),
            _ => return Ok((slot, bounds)),
        };
        Err(Nothing { status, next, bounds })
    }

    /// From the chosen entries to the answer.
    pub(crate) fn finish_pull(&mut self, selection: &Selection, bounds: Bounds) -> ReadStep<Pulled> {
        let mut pulled = Nothing { status: selection.otherwise, next: selection.next, bounds }.into_pulled();
        let Some(last) = selection.entries.last() else { return ReadStep::Ready(pulled) };
        pulled.behind_bytes = self.log.written().saturating_sub(last.end());
        pulled.last_offset = PhysicalOffset(last.offset);
        match self.gather(&selection.entries, &mut pulled) {
            Ok(None) => {
                let found = pulled.count > 0;
                pulled.status = if found { GetStatus::Found } else { GetStatus::NoMatchedMessage };
                ReadStep::Ready(pulled)
            }
            Ok(Some(missing)) => ReadStep::Missing(missing),
            Err(error) => ReadStep::Failed(error.into()),
        }
    }

    /// First stage. Stops with what it has when more entries would have to come from the disk.
    fn select(
        &mut self,
        slot: Slot,
        from: u64,
        max: u64,
        wanted: PullLimits,
        matches: &mut dyn FnMut(i64) -> bool,
        mut offsets: Option<&mut Vec<QueueOffset>>,
    ) -> ReadStep<Selection> {
        /// Entries that are read in one piece while none was passed over: as many as most pulls want.
        const FIRST_PIECE: u64 = 32;
        let max_count = wanted.max_count.clamp(1, limits::PULL_COUNT as i32) as usize;
        let stop = max.min(from + limits::SCAN_ENTRIES.max(max_count as u64));
        let mut chosen = Selection { entries: Selected::new(), next: from, otherwise: GetStatus::NoMatchedMessage };
        let mut piece = std::mem::take(&mut self.upkeep.entries);
        let mut bytes = 0;
        // Records below are gone from the log.
        let mut gone_below = 0;
        let mut step = FIRST_PIECE.max(max_count as u64);
        let end = 'scan: loop {
            if chosen.next >= stop || chosen.entries.len() >= max_count {
                break 'scan ReadStep::Ready(());
            }
            piece.clear();
            match self.entries_at(slot, chosen.next, (stop - chosen.next).min(step) as usize, &mut piece) {
                ReadStep::Ready(()) => {}
                _ if !chosen.entries.is_empty() => break 'scan ReadStep::Ready(()),
                other => break 'scan other,
            }
            if piece.is_empty() {
                // The file of these entries is lost: on with the next one.
                if chosen.entries.is_empty() {
                    chosen.otherwise = GetStatus::OffsetFoundNull;
                    let per_file = self.queue_files.entries_per_file();
                    chosen.next = (chosen.next / per_file + 1).saturating_mul(per_file).min(max);
                }
                break 'scan ReadStep::Ready(());
            }
            for entry in &piece {
                if self.is_full(chosen.entries.len(), bytes, entry, max_count, wanted.max_bytes) {
                    break 'scan ReadStep::Ready(());
                }
                chosen.next += 1;
                if !entry.has_record() || entry.offset < gone_below || !matches(entry.tag) {
                    continue;
                }
                if self.log.holds(entry.offset, u64::from(entry.size)) {
                    bytes += u64::from(entry.size);
                    chosen.entries.push(*entry);
                    if let Some(offsets) = &mut offsets {
                        offsets.push(QueueOffset(chosen.next - 1));
                    }
                } else if chosen.entries.is_empty() && entry.offset < self.log.start() {
                    chosen.otherwise = GetStatus::MessageWasRemoving;
                    gone_below = self.log.start();
                }
            }
            step = limits::SCAN_ENTRIES;
        };
        self.upkeep.entries = piece;
        end.map(|()| chosen)
    }

    /// Java's `isTheBatchFull`: whether a record more would be over a limit. Never for the first one.
    pub(crate) fn is_full(&self, count: usize, bytes: u64, entry: &Entry, max_count: usize, max_bytes: u32) -> bool {
        if count == 0 {
            return false;
        }
        let in_memory = self.log.written().saturating_sub(entry.offset) <= self.options.in_memory_window_bytes;
        let (most, most_bytes) = if in_memory {
            (self.options.pull_memory_count, self.options.pull_memory_bytes)
        } else {
            (self.options.pull_disk_count, self.options.pull_disk_bytes)
        };
        let bytes = bytes + u64::from(entry.size);
        count >= max_count.min(most as usize) || bytes > u64::from(max_bytes.min(most_bytes))
    }

    /// Entries from `from` on; see [`read_entries`].
    pub(crate) fn entries_at(&mut self, slot: Slot, from: u64, max: usize, out: &mut Vec<Entry>) -> ReadStep<()> {
        let mut reader = EntryReader {
            disk: &*self.disk,
            files: &self.queue_files,
            cache: &mut self.queue_readers,
            windows: &mut self.queue_windows,
            cold: &mut self.cold,
        };
        read_entries(&mut reader, &self.table, slot, from, max, out)
    }

    /// Second stage: the bytes of the selected records, or what is missing for them (all of one file at a time).
    fn gather(&mut self, entries: &[Entry], pulled: &mut Pulled) -> io::Result<Option<Missing>> {
        let mut missing: Option<Missing> = None;
        self.upkeep.left_out.clear();
        let resident = self.is_span_resident(entries)?;
        for run in Runs::new(entries, self.log.start(), self.log.segment_size()) {
            if missing.is_some() {
                self.note_missing(&run, &mut missing)?;
            } else if run.from >= self.opened_at && (resident || self.is_resident(run.from, run.to)?) {
                self.map_records(&entries[run.first..run.end], run, pulled)?;
            } else if let Some(bytes) = self.in_memory(run.from, run.to, true)? {
                self.copy_records(entries, run, &bytes, pulled);
            } else {
                self.note_missing(&run, &mut missing)?;
            }
        }
        self.read_ahead(&mut missing);
        Ok(missing)
    }

    /// One dense range: a reader that goes on wants what follows.
    pub(crate) fn read_ahead(&self, missing: &mut Option<Missing>) {
        if let Some(missing) = missing
            && let [only] = &mut missing.ranges[..]
        {
            let base = only.address - only.file_range.start;
            let end = self.log.written().min(base + self.log.segment_size()) - base;
            only.file_range.end = end.min(only.file_range.end + limits::READ_AHEAD_BYTES);
        }
    }

    /// Whether all that lies between the first and the last record is in memory: asked once, if that is not too far.
    fn is_span_resident(&mut self, entries: &[Entry]) -> io::Result<bool> {
        let from = entries.iter().map(|entry| entry.offset).min().unwrap_or(0);
        let to = entries.iter().map(Entry::end).max().unwrap_or(0);
        let short = to - from <= limits::RESIDENT_SPAN_BYTES;
        Ok(short && from >= self.opened_at && self.log.holds(from, to - from) && self.is_resident(from, to)?)
    }

    /// Whether the range, which lies in one segment, is in memory. From the second question of a turn on it is put for what
    /// follows too: many readers are at work, and most of them close together.
    fn is_resident(&mut self, from: u64, to: u64) -> io::Result<bool> {
        if self.residency.covers(from, to) {
            return Ok(true);
        }
        let Some((file, position)) = self.log.locate(from)? else { return Ok(false) };
        if self.residency.is_in_use() {
            let segment_end = from - position + self.log.segment_size();
            let end = (from + limits::RESIDENT_SPAN_BYTES).min(self.log.written()).min(segment_end);
            if end > to && file.is_resident(position, end - from)? {
                self.residency.note(from, end);
                return Ok(true);
            }
        }
        let resident = file.is_resident(position, to - from)?;
        if resident {
            self.residency.note(from, to);
        }
        Ok(resident)
    }

    /// The records of a run as ranges of the mapping, neighbours joined.
    fn map_records(&mut self, entries: &[Entry], run: Run, pulled: &mut Pulled) -> io::Result<()> {
        let Some((map, start)) = self.log.mapped(run.from, run.to - run.from)? else {
            return Err(io::Error::other("a selected record lies outside the log"));
        };
        let mut runs: SmallVec<[MappedRun; 32]> = SmallVec::new();
        for entry in entries {
            let offset = start + (entry.offset - run.from);
            match runs.last_mut() {
                Some(last) if last.offset + u64::from(last.len) == offset => last.len += entry.size,
                _ => runs.push(MappedRun { offset, len: entry.size }),
            }
            pulled.bytes += entry.size;
            pulled.count += 1;
        }
        pulled.slices.push(LogSlice::of_runs(map, &runs));
        Ok(())
    }

    /// The bytes of a range, from the cold cache or the page cache.
    pub(crate) fn in_memory(&mut self, from: u64, to: u64, use_page_cache: bool) -> io::Result<Option<Bytes>> {
        if let Some(found) = self.cold.get(ColdSource::Log, from, to - from) {
            return found.map(Some).map_err(|error| io::Error::other(error.to_string()));
        }
        if !use_page_cache {
            return Ok(None);
        }
        let Some((file, position)) = self.log.locate(from)? else { return Ok(None) };
        let mut bytes = vec![0; (to - from) as usize];
        let read = file.read_at_resident(&mut bytes, position)?;
        Ok((read == Some(bytes.len())).then(|| Bytes::from(bytes)))
    }

    /// Checked records of a run out of its bytes; neighbours stay one slice.
    fn copy_records(&mut self, entries: &[Entry], run: Run, bytes: &Bytes, pulled: &mut Pulled) {
        let mut open: Option<(usize, usize)> = None;
        for (at, entry) in entries.iter().enumerate().take(run.end).skip(run.first) {
            let start = (entry.offset - run.from) as usize;
            let end = start + entry.size as usize;
            if !is_good(&bytes[start..end], entry) {
                tracing::error!(shard = %self.id, offset = entry.offset, "a damaged record is left out of a pull");
                self.damaged_records += 1;
                self.upkeep.left_out.push(at);
                continue;
            }
            pulled.bytes += entry.size;
            pulled.count += 1;
            open = match open {
                Some((from, to)) if to == start => Some((from, end)),
                Some((from, to)) => {
                    pulled.slices.push(LogSlice::Heap(bytes.slice(from..to)));
                    Some((start, end))
                }
                None => Some((start, end)),
            };
        }
        if let Some((from, to)) = open {
            pulled.slices.push(LogSlice::Heap(bytes.slice(from..to)));
        }
    }

    /// Adds a run to what is missing, if it lies in the same file.
    pub(crate) fn note_missing(&mut self, run: &Run, missing: &mut Option<Missing>) -> io::Result<()> {
        if self.cold.get(ColdSource::Log, run.from, run.to - run.from).is_some() {
            return Ok(());
        }
        let Some((file, position)) = self.log.locate(run.from)? else {
            return Err(io::Error::other("a selected record lies outside the log"));
        };
        let range = MissingRange { file_range: position..position + (run.to - run.from), address: run.from };
        let base = run.from - position;
        match missing {
            None => *missing = Some(Missing { file, source: ColdSource::Log, ranges: vec![range] }),
            Some(list) if list.ranges[0].address - list.ranges[0].file_range.start == base => list.ranges.push(range),
            Some(_) => {}
        }
        Ok(())
    }
}

/// Cuts selected entries into runs, none of which leaves its segment.
pub(crate) struct Runs<'a> {
    entries: &'a [Entry],
    next: usize,
    log_start: u64,
    segment_size: u64,
}

impl<'a> Runs<'a> {
    pub(crate) fn new(entries: &'a [Entry], log_start: u64, segment_size: u64) -> Self {
        Self { entries, next: 0, log_start, segment_size }
    }

    fn segment_of(&self, entry: &Entry) -> u64 {
        (entry.offset - self.log_start) / self.segment_size
    }
}

impl Iterator for Runs<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        /// Reading over a gap this small is cheaper than another read.
        const GAP_BYTES: u64 = 4 << 10;
        const RUN_BYTES: u64 = 256 << 10;
        let first = self.next;
        let entry = self.entries.get(first)?;
        let segment = self.segment_of(entry);
        let mut run = Run { first, end: first + 1, from: entry.offset, to: entry.end() };
        while let Some(entry) = self.entries.get(run.end)
            && entry.offset >= run.to
            && self.segment_of(entry) == segment
            && entry.offset - run.to <= GAP_BYTES
            && entry.end() - run.from <= RUN_BYTES
        {
            run.to = entry.end();
            run.end += 1;
        }
        self.next = run.end;
        Some(run)
    }
}

/// Whether these are the bytes of the entry's record, undamaged.
pub(crate) fn is_good(bytes: &[u8], entry: &Entry) -> bool {
    RecordView::parse_checked(bytes)
        .is_ok_and(|record| record.size() == entry.size && record.physical_offset().0 == entry.offset)
}

/// A pull that returns no record.
pub(crate) struct Nothing {
    status: GetStatus,
    next: u64,
    bounds: Bounds,
}

impl Nothing {
    pub(crate) fn into_pulled(self) -> Pulled {
        Pulled {
            status: self.status,
            next_begin: QueueOffset(self.next),
            min: self.bounds.min,
            max: self.bounds.max,
            slices: Slices::new(),
            bytes: 0,
            count: 0,
            behind_bytes: 0,
            last_offset: PhysicalOffset(0),
        }
    }
}
