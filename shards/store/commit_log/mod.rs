//! The commit log of one shard: a row of files of equal size, written at one end.
//!
//! Role: owner of the segments and of the turn's staged bytes. Invariants: `start <= written <= staged`; offset = segment
//! base + position; a record lies in one segment, and each segment keeps room for a blank record; bytes behind `written`
//! are never read; nothing is written past what was reserved. It knows no queue and judges no record.

mod append;
mod segment;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sys::disk::{Disk, DiskFile, Mapping};

pub(crate) use append::Prepared;
pub(crate) use segment::{PrepareSegment, PreparedFiles, ReserveSpace, Reserved, Segment};

use crate::error::OpenError;
use crate::layout::{offset_file_name, parse_offset_file_name};
use crate::limits;

/// The log.
pub(crate) struct CommitLog {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    segment_size: u64,
    /// Descriptors for syncs that each written segment has.
    sync_descriptors: usize,
    /// Where the log of this shard begins when it has no segment.
    first_base: u64,
    /// Without holes, ascending; the last may be prepared and empty.
    segments: VecDeque<Segment>,
    /// Everything below was written.
    written: u64,
    /// End of the staged bytes.
    staged: u64,
    /// The staged bytes of this turn, one record behind the other.
    buffer: Vec<u8>,
    /// Where they go: one piece for each segment that the turn touches.
    pieces: Vec<append::Piece>,
    /// Segments that are open for reading, roughly by last use.
    open_order: VecDeque<u64>,
}

impl CommitLog {
    /// The log over the segments that [`list_segments`] found; `end` is where recovery says that it ends.
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        dir: &Path,
        segment_size: u64,
        sync_descriptors: usize,
        first_base: u64,
        bases: &[u64],
    ) -> Self {
        let segments: VecDeque<_> = bases.iter().map(|&base| Segment::closed(base)).collect();
        let start = segments.front().map_or(first_base, |segment| segment.base);
        Self {
            disk,
            dir: dir.to_owned(),
            segment_size,
            sync_descriptors,
            first_base,
            segments,
            written: start,
            staged: start,
            buffer: Vec::new(),
            pieces: Vec::new(),
            open_order: VecDeque::new(),
        }
    }

    /// Offset of the first byte.
    pub(crate) fn start(&self) -> u64 {
        self.segments.front().map_or(self.written.max(self.first_base), |segment| segment.base)
    }

    /// Everything below is written.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// End of the last segment, whether written or not.
    pub(crate) fn capacity_end(&self) -> u64 {
        self.segments.back().map_or(self.first_base, |segment| segment.base + self.segment_size)
    }

    pub(crate) fn segment_size(&self) -> u64 {
        self.segment_size
    }

    pub(crate) fn bases(&self) -> impl DoubleEndedIterator<Item = u64> {
        self.segments.iter().map(|segment| segment.base)
    }

    /// Whether there is a segment with this base.
    pub(crate) fn has_segment(&self, base: u64) -> bool {
        self.index_of(base).is_some_and(|at| self.segments[at].base == base)
    }

    /// Sets the end that recovery found.
    pub(crate) fn set_end(&mut self, end: u64) {
        assert!(self.buffer.is_empty(), "recovery is over before the first append");
        assert!(self.start() <= end && end <= self.capacity_end().max(self.first_base), "end {end} outside the log");
        self.written = end;
        self.staged = end;
    }

    /// The base of the segment that holds this offset. No segment need exist there.
    pub(crate) fn base_of(&self, offset: u64) -> u64 {
        let start = self.segments.front().map_or(self.first_base, |segment| segment.base);
        start + (offset - start) / self.segment_size * self.segment_size
    }

    /// An open descriptor for reads and the position of `offset` in it. `None` outside the log.
    pub(crate) fn locate(&mut self, offset: u64) -> io::Result<Option<(Arc<dyn DiskFile>, u64)>> {
        let Some(at) = self.index_of(offset) else { return Ok(None) };
        let file = self.open_for_reads(at)?;
        Ok(Some((file, offset - self.segments[at].base)))
    }

    /// The mapping that holds `len` bytes from `offset`, and the position in it. `None` outside the written log, or
    /// when the range leaves its segment.
    pub(crate) fn mapped(&mut self, offset: u64, len: u64) -> io::Result<Option<(Arc<dyn Mapping>, u64)>> {
        let Some(at) = self.checked_range(offset, len) else { return Ok(None) };
        let file = self.open_for_reads(at)?;
        let segment = &mut self.segments[at];
        let map = match &segment.mapping {
            Some(map) => Arc::clone(map),
            None => {
                let map = file.map(self.segment_size)?;
                segment.mapping = Some(Arc::clone(&map));
                map
            }
        };
        Ok(Some((map, offset - self.segments[at].base)))
    }

    /// Whether the range is written and lies in one segment.
    pub(crate) fn holds(&self, offset: u64, len: u64) -> bool {
        self.checked_range(offset, len).is_some()
    }

    /// The base of the first segment and its successor's: what retention may take away. `None` while there is only the
    /// segment being written.
    pub(crate) fn oldest_removable(&self) -> Option<u64> {
        let front = self.segments.front()?;
        (front.base + self.segment_size <= self.written).then_some(front.base)
    }

    /// Takes the first segment out of the log; its file is to be removed by the caller. Readers that hold its mapping
    /// keep it.
    pub(crate) fn remove_oldest(&mut self) -> Option<PathBuf> {
        let base = self.oldest_removable()?;
        self.segments.pop_front();
        self.open_order.retain(|&open| open != base);
        Some(self.path_of(base))
    }

    pub(crate) fn path_of(&self, base: u64) -> PathBuf {
        self.dir.join(offset_file_name(base))
    }

    /// Recovery's cut: removes the segments behind `end`, and makes everything behind it in its own segment zero, so
    /// that it cannot be taken for records later. Gives the number of removed files.
    pub(crate) fn cut(&mut self, end: u64) -> io::Result<u32> {
        let mut removed = 0;
        while self.segments.back().is_some_and(|segment| segment.base > end) {
            let base = self.segments.pop_back().expect("a segment is there").base;
            self.disk.remove_file(&self.path_of(base))?;
            removed += 1;
        }
        if let Some(at) = self.index_of(end) {
            let base = self.segments[at].base;
            let file = self.disk.open(&self.path_of(base), sys::disk::OpenMode::ReadWrite)?;
            file.set_len(end - base)?;
            file.set_len(self.segment_size)?;
            file.sync_data()?;
        }
        if removed > 0 {
            self.disk.sync_dir(&self.dir)?;
        }
        Ok(removed)
    }

    fn checked_range(&self, offset: u64, len: u64) -> Option<usize> {
        let end = offset.checked_add(len)?;
        let at = self.index_of(offset)?;
        (end <= self.written && end <= self.segments[at].base + self.segment_size).then_some(at)
    }

    fn index_of(&self, offset: u64) -> Option<usize> {
        let start = self.segments.front()?.base;
        let at = offset.checked_sub(start)? / self.segment_size;
        (at < self.segments.len() as u64).then_some(at as usize)
    }

    /// Opens a segment for reads, closing the one longest open when there are too many.
    fn open_for_reads(&mut self, at: usize) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(file) = &self.segments[at].file {
            return Ok(Arc::clone(file));
        }
        let base = self.segments[at].base;
        let file = self.disk.open(&self.path_of(base), sys::disk::OpenMode::Read)?;
        self.segments[at].file = Some(Arc::clone(&file));
        self.open_order.push_back(base);
        if self.open_order.len() > limits::OPEN_SEGMENTS {
            let oldest = self.open_order.pop_front().expect("the list is not empty");
            if let Some(at) = self.index_of(oldest)
                && !self.segments[at].is_written_to()
            {
                self.segments[at].file = None;
                self.segments[at].mapping = None;
            }
        }
        Ok(file)
    }

    /// One fact a line, for tests.
    #[cfg(test)]
    pub(crate) fn validate(&self) {
        assert!(self.start() <= self.written);
        assert!(self.written <= self.staged);
        assert!(self.staged <= self.capacity_end().max(self.first_base));
        for (a, b) in self.segments.iter().zip(self.segments.iter().skip(1)) {
            assert_eq!(a.base + self.segment_size, b.base);
        }
    }
}

/// The log's files as they were found.
pub(crate) struct FoundSegments {
    /// Bases, ascending and without holes.
    pub(crate) bases: Vec<u64>,
    /// An empty file behind the last one: a crash while it was made.
    empty_last: Option<PathBuf>,
}

impl FoundSegments {
    /// Removes the empty file.
    pub(crate) fn remove_empty_last(&self, disk: &dyn Disk) -> Result<(), OpenError> {
        let Some(path) = &self.empty_last else { return Ok(()) };
        disk.remove_file(path).map_err(OpenError::io(path))?;
        let dir = path.parent().expect("a segment lies in a folder");
        disk.sync_dir(dir).map_err(OpenError::io(dir))
    }
}

/// Looks at the log's files and checks every size. Changes nothing.
pub(crate) fn list_segments(disk: &dyn Disk, dir: &Path, segment_size: u64) -> Result<FoundSegments, OpenError> {
    let mut files: Vec<_> = disk
        .list(dir)
        .map_err(OpenError::io(dir))?
        .into_iter()
        .filter(|item| !item.is_dir)
        .filter_map(|item| parse_offset_file_name(&item.name).map(|base| (base, item.len)))
        .collect();
    files.sort_unstable();
    let empty_last = files.pop_if(|&mut (_, len)| len == 0).map(|(base, _)| dir.join(offset_file_name(base)));
    if let Some(&(base, found)) = files.iter().find(|&&(_, len)| len != segment_size) {
        let path = dir.join(offset_file_name(base));
        return Err(OpenError::WrongSize { path, found, expected: segment_size, setting: "mappedFileSizeCommitLog" });
    }
    for pair in files.windows(2) {
        if pair[0].0 + segment_size != pair[1].0 {
            return Err(OpenError::MissingSegment(dir.join(offset_file_name(pair[0].0 + segment_size))));
        }
    }
    Ok(FoundSegments { bases: files.into_iter().map(|(base, _)| base).collect(), empty_last })
}
