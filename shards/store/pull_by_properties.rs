//! Pulling records of a queue by what their properties say.
//!
//! Role: the first stage of such a pull; the second one is that of every pull. It reads records to choose them, so it is bounded in
//! bytes too. Invariants: those of `pull.rs`; a step that has looked at anything ends with it rather than ask for more from the
//! disk, so that every run moves on however little memory there is for cold bytes; a record that cannot be read as one is passed
//! over, as the second stage does.

use bytes::Bytes;
use message::QueueOffset;
use message::record::RecordView;
use smallvec::SmallVec;

use crate::consume_queue::{Entry, Slot};
use crate::limits;
use crate::pull::{Runs, Selected, Selection};
use crate::shard::Shard;
use crate::step::{Missing, ReadStep};
use crate::types::{GetStatus, PullLimits, Pulled};

/// Entries in one piece, with what may still be chosen of them.
struct Look<'a> {
    limits: PullLimits,
    accepts: &'a mut dyn FnMut(&[u8]) -> bool,
    chosen: Selection,
    /// Bytes of the chosen records.
    chosen_bytes: u64,
    /// Bytes that were read to choose.
    read_bytes: u64,
    /// Records below are gone from the log.
    gone_below: u64,
}

/// How looking at a piece ended.
enum Looked {
    /// All of it was looked at.
    All,
    /// A limit was met.
    Enough,
    /// What comes next is on the disk.
    Cold(Missing),
}

impl Shard {
    /// Records of a queue from `from` on whose properties text `accepts` takes. Like [`Shard::pull`], and besides it looks at
    /// two megabytes of records at most: `next_begin` is behind what was looked at.
    pub fn pull_by_properties(
        &mut self,
        topic: &[u8],
        queue_id: u32,
        from: QueueOffset,
        limits: PullLimits,
        accepts: &mut dyn FnMut(&[u8]) -> bool,
    ) -> ReadStep<Pulled> {
        let (slot, bounds) = match self.begin_pull(topic, queue_id, from) {
            Ok(found) => found,
            Err(none) => return ReadStep::Ready(none.into_pulled()),
        };
        let max_count = limits.max_count.clamp(1, limits::PULL_COUNT as i32);
        let mut look = Look {
            limits: PullLimits { max_count, ..limits },
            accepts,
            chosen: Selection { entries: Selected::new(), next: from.0, otherwise: GetStatus::NoMatchedMessage },
            chosen_bytes: 0,
            read_bytes: 0,
            gone_below: 0,
        };
        let mut piece = std::mem::take(&mut self.upkeep.entries);
        let end = self.look_from(slot, bounds.max.0, &mut look, &mut piece);
        self.upkeep.entries = piece;
        match end {
            ReadStep::Ready(()) => self.finish_pull(&look.chosen, bounds),
            _ if look.chosen.next > from.0 => self.finish_pull(&look.chosen, bounds),
            ReadStep::Missing(missing) => ReadStep::Missing(missing),
            ReadStep::Failed(error) => ReadStep::Failed(error),
        }
    }

    fn look_from(&mut self, slot: Slot, max: u64, look: &mut Look<'_>, piece: &mut Vec<Entry>) -> ReadStep<()> {
        /// Entries that are looked at together, at least: as many as most pulls want.
        const PIECE: u64 = 32;
        let max_count = look.limits.max_count as u64;
        let stop = max.min(look.chosen.next + limits::SCAN_ENTRIES.max(max_count));
        while look.chosen.next < stop && (look.chosen.entries.len() as u64) < max_count {
            piece.clear();
            let from = look.chosen.next;
            let wanted = (stop - from).min(PIECE.max(max_count)) as usize;
            match self.entries_at(slot, from, wanted, piece) {
                ReadStep::Ready(()) => {}
                other => return other,
            }
            if piece.is_empty() {
                // The file of these entries is lost: on with the next one.
                if look.chosen.entries.is_empty() {
                    look.chosen.otherwise = GetStatus::OffsetFoundNull;
                    let per_file = self.queue_files.entries_per_file();
                    look.chosen.next = (from / per_file + 1).saturating_mul(per_file).min(max);
                }
                return ReadStep::Ready(());
            }
            match self.look_at(piece, look) {
                Ok(Looked::All) => look.chosen.next = from + piece.len() as u64,
                Ok(Looked::Enough) => return ReadStep::Ready(()),
                Ok(Looked::Cold(missing)) => return ReadStep::Missing(missing),
                Err(error) => return ReadStep::Failed(error.into()),
            }
        }
        ReadStep::Ready(())
    }

    /// Looks at the records of entries, which begin at `look.chosen.next`; leaves there the first that was not looked at.
    fn look_at(&mut self, piece: &[Entry], look: &mut Look<'_>) -> std::io::Result<Looked> {
        let first = look.chosen.next;
        let mut entries = Selected::new();
        let mut offsets: SmallVec<[u64; 32]> = SmallVec::new();
        for (offset, entry) in (first..).zip(piece) {
            if !entry.has_record() || entry.offset < look.gone_below {
                continue;
            }
            if self.log.holds(entry.offset, u64::from(entry.size)) {
                entries.push(*entry);
                offsets.push(offset);
            } else if entry.offset < self.log.start() {
                if look.chosen.entries.is_empty() && entries.is_empty() {
                    look.chosen.otherwise = GetStatus::MessageWasRemoving;
                }
                look.gone_below = self.log.start();
            }
        }
        let runs: SmallVec<[_; 4]> = Runs::new(&entries, self.log.start(), self.log.segment_size()).collect();
        for (at, run) in runs.iter().enumerate() {
            look.chosen.next = offsets[run.first];
            if look.read_bytes > 0 && look.read_bytes + (run.to - run.from) > limits::LOOK_BYTES {
                return Ok(Looked::Enough);
            }
            let Some(bytes) = self.in_memory(run.from, run.to, true)? else {
                return self.missing_runs(&runs[at..]).map(Looked::Cold);
            };
            look.read_bytes += run.to - run.from;
            for index in run.first..run.end {
                look.chosen.next = offsets[index];
                if self.is_full_for(look, &entries[index]) {
                    return Ok(Looked::Enough);
                }
                self.choose(&entries[index], run.from, &bytes, look);
            }
        }
        Ok(Looked::All)
    }

    fn is_full_for(&self, look: &Look<'_>, entry: &Entry) -> bool {
        let Look { limits, chosen, chosen_bytes, .. } = look;
        self.is_full(chosen.entries.len(), *chosen_bytes, entry, limits.max_count as usize, limits.max_bytes)
    }

    /// Takes an entry if the properties of its record, which lies in `bytes` from log offset `base` on, are accepted.
    fn choose(&mut self, entry: &Entry, base: u64, bytes: &Bytes, look: &mut Look<'_>) {
        let start = (entry.offset - base) as usize;
        let record = RecordView::parse(&bytes[start..start + entry.size as usize]);
        let own = record.ok().filter(|one| one.size() == entry.size && one.physical_offset().0 == entry.offset);
        let Some(record) = own else {
            tracing::error!(shard = %self.id, offset = entry.offset, "a damaged record is left out of a pull");
            self.damaged_records += 1;
            return;
        };
        if (look.accepts)(record.properties()) {
            look.chosen_bytes += u64::from(entry.size);
            look.chosen.entries.push(*entry);
        }
    }

    /// What is not in memory of some runs, up to the bytes that one pull may look at: all of one file, which one fetch brings.
    fn missing_runs(&mut self, runs: &[crate::pull::Run]) -> std::io::Result<Missing> {
        let mut missing = None;
        let mut bytes = 0;
        for run in runs {
            bytes += run.to - run.from;
            if missing.is_some() && bytes > limits::LOOK_BYTES {
                break;
            }
            self.note_missing(run, &mut missing)?;
        }
        self.read_ahead(&mut missing);
        missing.ok_or_else(|| std::io::Error::other("a record is neither in memory nor on the disk"))
    }
}
