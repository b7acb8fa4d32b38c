//! One file of the commit log, and the background work on it: making the next one, reserving space.
//!
//! Role: open descriptors of a segment and how much of it is reserved. Invariant: a written segment holds its sync
//! descriptors from before its first write in this process (Linux reports a write-back error once for each open file).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use reactor::{BackgroundTask, Step};
use sys::disk::{Disk, DiskFile, Mapping, OpenMode};

use crate::limits;

/// A file of the log.
pub(crate) struct Segment {
    /// Offset of its first byte.
    pub(crate) base: u64,
    /// Open for reads; for writes too when it has been written in this process.
    pub(crate) file: Option<Arc<dyn DiskFile>>,
    /// View of the whole file.
    pub(crate) mapping: Option<Arc<dyn Mapping>>,
    /// Descriptors that no sync is using.
    pub(crate) sync_files: Vec<Arc<dyn DiskFile>>,
    /// Whether `file` may be written.
    writable: bool,
    /// Space is reserved up to this position.
    pub(crate) reserved_to: u64,
    /// A reservation in the background is under way.
    pub(crate) reserving: bool,
}

impl Segment {
    /// A segment of which nothing is open.
    pub(crate) fn closed(base: u64) -> Self {
        Self {
            base,
            file: None,
            mapping: None,
            sync_files: Vec::new(),
            writable: false,
            reserved_to: 0,
            reserving: false,
        }
    }

    pub(crate) fn is_written_to(&self) -> bool {
        self.writable
    }

    /// The descriptor for writes, which [`Segment::adopt`] must have given.
    pub(crate) fn write_file(&self) -> &Arc<dyn DiskFile> {
        assert!(self.writable, "segment {} was not opened for writes", self.base);
        self.file.as_ref().expect("a writable segment has its file")
    }

    /// Takes freshly opened descriptors; a mapping over the old one stays valid.
    pub(crate) fn adopt(&mut self, files: SegmentFiles, reserved_to: u64) {
        self.file = Some(files.file);
        self.sync_files = files.sync_files;
        self.writable = true;
        self.reserved_to = self.reserved_to.max(reserved_to);
    }
}

/// Open descriptors of a segment that is to be written.
pub(crate) struct SegmentFiles {
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) sync_files: Vec<Arc<dyn DiskFile>>,
}

/// Makes (if absent) and opens a segment file at its full size. Durable in its folder when it returns.
pub(crate) fn open_segment(
    disk: &dyn Disk,
    path: &Path,
    size: u64,
    sync_descriptors: usize,
) -> io::Result<SegmentFiles> {
    let file = disk.open(path, OpenMode::Create)?;
    if file.len()? != size {
        file.set_len(size)?;
        file.sync_data()?;
        disk.sync_dir(path.parent().expect("a segment lies in a folder"))?;
    }
    let sync_files =
        (0..sync_descriptors).map(|_| disk.open(path, OpenMode::ReadWrite)).collect::<io::Result<Vec<_>>>()?;
    Ok(SegmentFiles { file, sync_files })
}

/// Background: makes the next segment and reserves its first step.
pub(crate) struct PrepareSegment {
    pub(crate) path: PathBuf,
    pub(crate) base: u64,
    pub(crate) size: u64,
    pub(crate) sync_descriptors: usize,
}

/// What [`PrepareSegment`] is done with.
pub(crate) struct PreparedFiles {
    pub(crate) base: u64,
    pub(crate) files: SegmentFiles,
    pub(crate) reserved_to: u64,
}

impl BackgroundTask for PrepareSegment {
    fn step(&mut self, disk: &dyn Disk) -> io::Result<Step> {
        let files = open_segment(disk, &self.path, self.size, self.sync_descriptors)?;
        let reserved_to = limits::ALLOCATE_STEP_BYTES.min(self.size);
        files.file.allocate(0, reserved_to)?;
        Ok(Step::Done(Box::new(PreparedFiles { base: self.base, files, reserved_to })))
    }
}

/// Background: reserves more space of a segment.
pub(crate) struct ReserveSpace {
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) base: u64,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// What [`ReserveSpace`] is done with.
pub(crate) struct Reserved {
    pub(crate) base: u64,
    pub(crate) to: u64,
}

impl BackgroundTask for ReserveSpace {
    fn step(&mut self, _disk: &dyn Disk) -> io::Result<Step> {
        self.file.allocate(self.from, self.to - self.from)?;
        Ok(Step::Done(Box::new(Reserved { base: self.base, to: self.to })))
    }
}
