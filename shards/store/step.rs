//! How the store talks to whoever runs it: re-runnable read steps, commands to the driver, completions.
//!
//! Role: the types by which a shard asks for syncs, write-back and background work without doing any of it itself, so
//! that the real engine and the simulator can drive the same code. No behaviour.

use std::ops::Range;
use std::sync::Arc;

use reactor::Job;
use sys::disk::DiskFile;

use crate::error::ReadError;

/// Result of one run of a read.
#[derive(Debug)]
pub enum ReadStep<T> {
    /// Done, from bytes in memory.
    Ready(T),
    /// These bytes are on the disk: hand them to [`Shard::fetch`](crate::Shard::fetch), and run the step again when its
    /// completion has come.
    Missing(Missing),
    /// It cannot be answered.
    Failed(ReadError),
}

impl<T> ReadStep<T> {
    /// The step with its result changed.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> ReadStep<U> {
        match self {
            Self::Ready(value) => ReadStep::Ready(f(value)),
            Self::Missing(missing) => ReadStep::Missing(missing),
            Self::Failed(error) => ReadStep::Failed(error),
        }
    }
}

/// Whose bytes a cold range holds: part of the key of the cold cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ColdSource {
    /// The commit log; addresses are physical offsets.
    Log,
    /// The consume queue with this number (unique in the life of the process); addresses are byte positions in it.
    Queue(u64),
    /// A file of the index; addresses are positions in it. The number is the index's own.
    Index(u64),
}

/// One range that is not in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingRange {
    /// Bytes of the file.
    pub file_range: Range<u64>,
    /// The address of the first of them in its source.
    pub address: u64,
}

/// Ranges of one file that a read step needs and that are not in memory.
#[derive(Clone)]
pub struct Missing {
    /// The file, open.
    pub file: Arc<dyn DiskFile>,
    /// What it belongs to.
    pub source: ColdSource,
    /// The ranges, ascending.
    pub ranges: Vec<MissingRange>,
}

impl std::fmt::Debug for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Missing").field("source", &self.source).field("ranges", &self.ranges).finish_non_exhaustive()
    }
}

/// A fetch in flight; told back by [`Completion::Fetched`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FetchId(pub u32);

/// What a shard wants done. Tokens are the shard's own; each comes back once through
/// [`Shard::completed`](crate::Shard::completed).
pub enum ShardCommand {
    /// `fdatasync` of this descriptor.
    Sync {
        /// The descriptor, opened before the writes that it covers.
        file: Arc<dyn DiskFile>,
        /// Comes back with the result.
        token: u32,
    },
    /// Start write-back of a range; nothing comes back.
    WriteBack {
        /// The file.
        file: Arc<dyn DiskFile>,
        /// First byte in the file.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Work for the background executor.
    Background {
        /// The work.
        job: Job,
        /// Comes back with the result.
        token: u32,
    },
}

/// What a completion means to the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// Nothing to do.
    Nothing,
    /// `durable_to` moved, or a sync failed: look at `durable_to` and `is_writable`.
    Durable,
    /// The bytes of this fetch are there (or known to be unreadable): run the parked step again.
    Fetched(FetchId),
}
