//! Following the log and its queues: what whoever keeps state beside the log reads, apart from pulls.
//!
//! Role: entries of a queue by offset, the records of the log from an offset on, and bytes brought into memory at once
//! while nobody is served yet. Invariants: only what is visible is given; an entry without a record is passed over. It
//! knows no meaning of a topic.

use std::io;

use message::record::RecordView;
use message::{PhysicalOffset, QueueOffset};

use crate::error::ReadError;
use crate::recovery::{LogFiles, max_record};
use crate::shard::Shard;
use crate::step::{ColdSource, Missing, ReadStep};
use crate::walk::Walk;

/// An entry of a queue, as a follower sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueEntry {
    /// Its offset in the queue.
    pub queue_offset: QueueOffset,
    /// Where its record lies.
    pub offset: PhysicalOffset,
    /// Size of the record, in bytes.
    pub size: u32,
    /// The tag value.
    pub tag: i64,
}

impl Shard {
    /// Appends visible entries of a queue from `from` on to `out`; looks at no more than `max`. Gives the offset to go on
    /// from: `from` itself when nothing is there (yet).
    pub fn queue_entries(
        &mut self,
        topic: &[u8],
        queue_id: u32,
        from: QueueOffset,
        max: usize,
        out: &mut Vec<QueueEntry>,
    ) -> ReadStep<QueueOffset> {
        let Some(slot) = self.table.find(topic, queue_id) else { return ReadStep::Ready(from) };
        let bounds = self.bounds_of(slot);
        let from = from.0.max(bounds.min.0);
        if from >= bounds.max.0 {
            return ReadStep::Ready(QueueOffset(from));
        }
        let mut entries = Vec::new();
        let wanted = (bounds.max.0 - from).min(max as u64) as usize;
        match self.entries_at(slot, from, wanted, &mut entries) {
            ReadStep::Ready(()) => {}
            ReadStep::Missing(missing) => return ReadStep::Missing(missing),
            ReadStep::Failed(error) => return ReadStep::Failed(error),
        }
        if entries.is_empty() {
            // The file of these entries is lost: on with the next one.
            let per_file = self.queue_files.entries_per_file();
            return ReadStep::Ready(QueueOffset(((from / per_file + 1) * per_file).min(bounds.max.0)));
        }
        let next = from + entries.len() as u64;
        let found = (from..)
            .zip(entries)
            .filter(|(_, entry)| entry.has_record() && self.log.holds(entry.offset, u64::from(entry.size)));
        out.extend(found.map(|(queue_offset, entry)| QueueEntry {
            queue_offset: QueueOffset(queue_offset),
            offset: PhysicalOffset(entry.offset),
            size: entry.size,
            tag: entry.tag,
        }));
        ReadStep::Ready(QueueOffset(next))
    }

    /// Brings missing bytes into memory and waits for the disk: for the start, when nobody is served yet. Run the step
    /// again afterwards; what could not be read fails there.
    pub fn fetch_now(&mut self, missing: Missing) {
        self.cold_reads += 1;
        for range in missing.ranges {
            let mut bytes = vec![0; (range.file_range.end - range.file_range.start) as usize];
            match missing.file.read_at(&mut bytes, range.file_range.start) {
                Ok(read) if read == bytes.len() => self.cold.insert(missing.source, range.address, bytes.into()),
                Ok(read) => {
                    let error = format!("{read} of {} bytes at {}", bytes.len(), range.address);
                    self.cold.insert_error(missing.source, range.address, ReadError::Io(error));
                }
                Err(error) => self.cold.insert_error(missing.source, range.address, error.into()),
            }
        }
        debug_assert!(!matches!(missing.source, ColdSource::Index(_)), "the index has its own look-ups");
    }

    /// Gives each whole record from `from` (the start of a record) on to `visit`, up to the end of the log. Reads the
    /// files and waits for the disk: for the start. Errors: the disk's.
    pub fn walk(&self, from: PhysicalOffset, visit: &mut dyn FnMut(&RecordView<'_>)) -> io::Result<()> {
        let from = from.0.max(self.log.start());
        let until = self.log.written();
        if from >= until {
            return Ok(());
        }
        let size = self.log.segment_size();
        let mut files = LogFiles::new(&*self.disk, &self.layout.commit_log, self.log.bases());
        let most = max_record(&self.options, size);
        let mut walk = Walk::new(&mut files, self.log.base_of(from), size, most, until)?;
        walk.run(from, until, &mut |record, _, damaged| {
            if !damaged {
                visit(record);
            }
            Ok(())
        })?;
        Ok(())
    }
}
