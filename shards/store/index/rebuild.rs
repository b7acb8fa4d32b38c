//! Reads keys from the log again, where neither a file nor a run has them.
//!
//! One task makes one run: of at most a run's usual length, or up to where the runs in memory begin. Segments that are
//! gone, and space without records, are passed over. It reads the log and nothing else.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use message::PhysicalOffset;
use reactor::{BackgroundTask, Step};
use sys::disk::{Disk, DiskFile, OpenMode};

use super::file::read_full;
use super::keys::RecordKeys;
use super::run::Run;
use super::scan::{Found, record_at};
use crate::layout::{offset_file_name, parse_offset_file_name};

/// Bytes read at once; a step takes one piece.
const PIECE_BYTES: usize = 2 << 20;

/// Where the log of the shard lies.
pub(crate) struct LogView {
    /// Folder of the segments.
    pub dir: PathBuf,
    /// Length of each, in bytes.
    pub segment_bytes: u64,
    /// Offset of the shard's first byte.
    pub base: PhysicalOffset,
}

/// The task. Its output is a [`Run`].
pub(crate) struct Rebuild {
    log: Arc<LogView>,
    run: Option<Run>,
    max_items: usize,
    position: PhysicalOffset,
    to: PhysicalOffset,
    /// The open segment and where it starts.
    segment: Option<(PhysicalOffset, Arc<dyn DiskFile>)>,
    /// Starts of the segments on disk, ascending; read once.
    segments: Option<Vec<u64>>,
    /// At least this much is read next: a record was longer than a piece.
    want: usize,
}

impl Rebuild {
    /// Reads the records that start in `from..to`.
    pub fn new(log: Arc<LogView>, from: PhysicalOffset, to: PhysicalOffset, max_items: usize) -> Self {
        let run = Some(Run::new(from));
        Self { log, run, max_items, position: from, to, segment: None, segments: None, want: PIECE_BYTES }
    }

    /// Opens the segment that holds `position`, or the next one there is. `false`: none is left before the end.
    fn enter_segment(&mut self, disk: &dyn Disk) -> io::Result<bool> {
        if self.segments.is_none() {
            let names = disk.list(&self.log.dir)?;
            let mut starts: Vec<u64> = names.iter().filter_map(|item| parse_offset_file_name(&item.name)).collect();
            starts.sort_unstable();
            self.segments = Some(starts);
        }
        let starts = self.segments.as_deref().expect("was just read");
        let next = starts.partition_point(|start| start.saturating_add(self.log.segment_bytes) <= self.position.0);
        let Some(&start) = starts.get(next).filter(|&&start| start < self.to.0) else { return Ok(false) };
        let file = match disk.open(&self.log.dir.join(offset_file_name(start)), OpenMode::Read) {
            Ok(file) => file,
            // Removed by retention since the folder was read: the next one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.position = PhysicalOffset(start).plus(self.log.segment_bytes);
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        self.position = self.position.max(PhysicalOffset(start));
        self.segment = Some((PhysicalOffset(start), file));
        Ok(true)
    }

    /// Reads one piece of the open segment.
    fn read_piece(&mut self) -> io::Result<()> {
        let Some((start, file)) = self.segment.clone() else { return Ok(()) };
        let segment_end = start.plus(self.log.segment_bytes);
        let len = self.want.min(segment_end.since(self.position) as usize);
        let mut bytes = vec![0; len];
        let filled = read_full(&*file, &mut bytes, self.position.since(start))?;
        bytes.truncate(filled);
        self.want = PIECE_BYTES;
        if !self.take_records(&bytes, filled == len, segment_end) {
            self.segment = None;
            self.position = segment_end;
        }
        Ok(())
    }

    /// Takes the keys of a piece; `whole`: the file had all that was asked. Whether the segment goes on.
    fn take_records(&mut self, bytes: &[u8], whole: bool, segment_end: PhysicalOffset) -> bool {
        let run = self.run.as_mut().expect("until the task is done");
        let start = self.position;
        while self.position < self.to && run.len() < self.max_items {
            let rest = &bytes[self.position.since(start) as usize..];
            match record_at(rest, self.position, segment_end.since(self.position)) {
                Found::Record(record) => {
                    let (at, time) = (self.position, record.store_timestamp_ms());
                    let mut put = |hash| run.push(hash, at, time);
                    RecordKeys::scan(record.properties()).hashes(record.topic(), record.sys_flag(), &mut put);
                    self.position = self.position.plus(u64::from(record.size()));
                }
                Found::Skip(count) => self.position = self.position.plus(count as u64),
                // The next piece starts with it; a file that is shorter than it should be holds no more.
                Found::Cut(size) => {
                    self.want = size.max(PIECE_BYTES);
                    return whole || self.position > start;
                }
                Found::End => return false,
            }
        }
        true
    }
}

impl BackgroundTask for Rebuild {
    fn step(&mut self, disk: &dyn Disk) -> io::Result<Step> {
        let full = self.run.as_ref().is_some_and(|run| run.len() >= self.max_items);
        let more = self.position < self.to && !full;
        if more && (self.segment.is_some() || self.enter_segment(disk)?) {
            self.read_piece()?;
            return Ok(Step::More);
        }
        let mut run = self.run.take().expect("until the task is done");
        run.cover(if full { self.position } else { self.to });
        Ok(Step::Done(Box::new(run)))
    }
}
