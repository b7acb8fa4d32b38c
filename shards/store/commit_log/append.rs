//! The writing end of the log: staging records, the one write of a turn, reserving space, the next segment.
//!
//! Invariants: staged bytes are contiguous in offsets; a failed write leaves `written` where it was; space is reserved
//! before anything is staged for it, so that a full disk refuses appends and never breaks a write.

use std::io::{self, IoSlice};
use std::sync::Arc;

use message::record::{self, BLANK_RECORD_BYTES};
use sys::disk::DiskFile;

use super::segment::{PreparedFiles, Reserved, open_segment};
use super::{CommitLog, PrepareSegment, ReserveSpace, Segment};
use crate::error::AppendError;
use crate::limits;

/// Staged bytes for one segment: from `buffer_at` in the buffer to the next piece, or to its end.
pub(super) struct Piece {
    base: u64,
    /// Position in the segment.
    position: u64,
    buffer_at: usize,
}

/// What the log wants from the background.
pub(crate) enum Prepared {
    /// The next segment.
    Segment(PrepareSegment),
    /// Space in the present one.
    Space(ReserveSpace),
}

impl CommitLog {
    /// Makes room for `size` contiguous bytes and tells where they will lie. The caller then fills [`Self::staging`].
    pub(crate) fn reserve(&mut self, size: usize) -> Result<u64, AppendError> {
        let needed = size as u64 + BLANK_RECORD_BYTES as u64;
        if needed > self.segment_size {
            return Err(AppendError::Illegal("larger than a commit log file"));
        }
        let base = self.base_of(self.staged);
        let position = self.staged - base;
        if position + needed <= self.segment_size {
            self.ensure_writable(base)?;
            self.ensure_reserved(base, position + needed)?;
            self.ensure_piece(base, position);
            return Ok(self.staged);
        }
        // The next segment first: when it cannot be made, nothing has been staged.
        let next = base + self.segment_size;
        self.ensure_writable(next)?;
        self.ensure_reserved(next, needed)?;
        self.ensure_writable(base)?;
        self.ensure_reserved(base, position + BLANK_RECORD_BYTES as u64)?;
        self.ensure_piece(base, position);
        let left = u32::try_from(self.segment_size - position).expect("segments are below 4 GiB");
        self.buffer.extend_from_slice(&record::blank_record(left));
        self.staged = next;
        self.ensure_piece(next, 0);
        Ok(next)
    }

    /// The turn's buffer: to be extended by exactly the bytes that were reserved, then [`Self::commit_staged`].
    pub(crate) fn staging(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Counts `size` bytes that were put into [`Self::staging`].
    pub(crate) fn commit_staged(&mut self, size: usize) {
        self.staged += size as u64;
    }

    /// Whether anything waits for [`Self::write`].
    pub(crate) fn has_staged(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Writes all that is staged. After an error nothing counts as written; the caller must not append any more, since
    /// parts may lie in the file.
    pub(crate) fn write(&mut self) -> io::Result<()> {
        for (index, piece) in self.pieces.iter().enumerate() {
            let end = self.pieces.get(index + 1).map_or(self.buffer.len(), |next| next.buffer_at);
            let bytes = &self.buffer[piece.buffer_at..end];
            let at = self.index_of(piece.base).expect("a staged piece has its segment");
            if let Err(error) = self.segments[at].write_file().write_at(&[IoSlice::new(bytes)], piece.position) {
                self.discard();
                return Err(error);
            }
        }
        self.pieces.clear();
        self.written = self.staged;
        self.recycle();
        Ok(())
    }

    /// Forgets what is staged.
    pub(crate) fn discard(&mut self) {
        self.pieces.clear();
        self.staged = self.written;
        self.recycle();
    }

    /// A descriptor for a sync of the segment that holds `offset`; `None` when all are in use.
    pub(crate) fn take_sync_file(&mut self, base: u64) -> Option<Arc<dyn DiskFile>> {
        let at = self.index_of(base)?;
        self.segments[at].sync_files.pop()
    }

    /// Gives a descriptor back after its sync.
    pub(crate) fn return_sync_file(&mut self, base: u64, file: Arc<dyn DiskFile>) {
        if let Some(at) = self.index_of(base) {
            self.segments[at].sync_files.push(file);
        }
    }

    /// The descriptor that a written segment is written by.
    pub(crate) fn written_file(&self, base: u64) -> Option<&Arc<dyn DiskFile>> {
        let segment = &self.segments[self.index_of(base)?];
        segment.is_written_to().then(|| segment.write_file())
    }

    /// Work for the background, asked for once: the next segment when this one fills up, space when it runs short.
    pub(crate) fn wants(&mut self, preparing: bool) -> Option<Prepared> {
        let base = self.base_of(self.written);
        let position = self.written - base;
        let at = self.index_of(base)?;
        let segment = &mut self.segments[at];
        if !segment.writable_and_idle() {
            return None;
        }
        if segment.reserved_to < self.segment_size && segment.reserved_to < position + limits::ALLOCATE_LOW_WATER_BYTES
        {
            segment.reserving = true;
            let from = segment.reserved_to;
            let to = (from + limits::ALLOCATE_STEP_BYTES).min(self.segment_size);
            return Some(Prepared::Space(ReserveSpace { file: Arc::clone(segment.write_file()), base, from, to }));
        }
        let next = base + self.segment_size;
        if preparing || self.has_segment(next) || position < self.segment_size / 100 * limits::PREPARE_AT_PERCENT {
            return None;
        }
        Some(Prepared::Segment(PrepareSegment {
            path: self.path_of(next),
            base: next,
            size: self.segment_size,
            sync_descriptors: self.sync_descriptors,
        }))
    }

    /// A segment that the background made. Ignored when it was made here in the meantime.
    pub(crate) fn segment_prepared(&mut self, prepared: PreparedFiles) {
        if prepared.base == self.capacity_end() {
            let mut segment = Segment::closed(prepared.base);
            segment.adopt(prepared.files, prepared.reserved_to);
            self.segments.push_back(segment);
        }
    }

    /// Space that the background reserved.
    pub(crate) fn space_reserved(&mut self, reserved: &Reserved) {
        if let Some(at) = self.index_of(reserved.base) {
            self.segments[at].reserving = false;
            self.segments[at].reserved_to = self.segments[at].reserved_to.max(reserved.to);
        }
    }

    /// A reservation failed: the next append tries by itself.
    pub(crate) fn reservation_failed(&mut self) {
        for segment in &mut self.segments {
            segment.reserving = false;
        }
    }

    /// Makes sure that a segment exists and is open for writes.
    fn ensure_writable(&mut self, base: u64) -> Result<(), AppendError> {
        let known = self.index_of(base);
        if known.is_some_and(|at| self.segments[at].is_written_to()) {
            return Ok(());
        }
        let path = self.path_of(base);
        if self.segments.is_empty() {
            self.disk.create_dir_all(&self.dir).map_err(|error| not_made(&error))?;
        }
        let files = open_segment(&*self.disk, &path, self.segment_size, self.sync_descriptors)
            .map_err(|error| not_made(&error))?;
        let at = known.unwrap_or_else(|| {
            assert_eq!(base, self.capacity_end(), "segments follow each other");
            self.segments.push_back(Segment::closed(base));
            self.segments.len() - 1
        });
        // What recovery left of a segment may or may not have blocks: it is reserved again from the end.
        let reserved_to = self.written.saturating_sub(base);
        self.segments[at].adopt(files, reserved_to);
        Ok(())
    }

    fn ensure_reserved(&mut self, base: u64, to: u64) -> Result<(), AppendError> {
        let at = self.index_of(base).expect("the segment was made");
        let segment = &mut self.segments[at];
        if segment.reserved_to >= to {
            return Ok(());
        }
        let from = segment.reserved_to;
        let target = (from + limits::ALLOCATE_INLINE_BYTES).max(to).min(self.segment_size);
        segment.write_file().allocate(from, target - from).map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => AppendError::NoSpace,
            _ => not_made(&error),
        })?;
        segment.reserved_to = target;
        Ok(())
    }

    fn ensure_piece(&mut self, base: u64, position: u64) {
        if self.pieces.last().is_none_or(|piece| piece.base != base) {
            self.pieces.push(Piece { base, position, buffer_at: self.buffer.len() });
        }
    }

    fn recycle(&mut self) {
        /// A turn rarely stages more; a buffer that once grew beyond it is given back.
        const KEPT_BYTES: usize = 8 << 20;
        self.buffer.clear();
        self.buffer.shrink_to(KEPT_BYTES);
    }
}

impl Segment {
    fn writable_and_idle(&self) -> bool {
        self.is_written_to() && !self.reserving
    }
}

fn not_made(error: &io::Error) -> AppendError {
    if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        AppendError::NoSpace
    } else {
        AppendError::SegmentNotMade(error.to_string())
    }
}
