//! What can go wrong at each boundary of the store, as small enums.
//!
//! Role: the caller's decision table (which response code, refuse to start or not). What must not happen is not here:
//! it asserts.

use std::io;
use std::path::PathBuf;

/// Why a store cannot be opened. Nothing on the disk was changed when one of these comes from a check.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the store.
    #[error("the store {0} is in use by another process (its lock file is held)")]
    Locked(PathBuf),
    /// The store was made by a newer version of RingMQ.
    #[error("the store {path} has format version {found}; this version reads up to {known}")]
    Newer {
        /// Folder of the store.
        path: PathBuf,
        /// Version in its manifest.
        found: u64,
        /// Newest version known here.
        known: u64,
    },
    /// A kind of RocketMQ store that RingMQ does not read.
    #[error("the store {path} is {what}, which RingMQ cannot open")]
    Unsupported {
        /// Folder of the store.
        path: PathBuf,
        /// What was found there.
        what: String,
    },
    /// Fewer shards asked for than the store has.
    #[error(
        "the store {path} has {has} shards; --shards {asked} would hide what is in the others (leave --shards away, or export the store)"
    )]
    FewerShards {
        /// Folder of the store.
        path: PathBuf,
        /// Shards in its manifest.
        has: u16,
        /// Shards asked for.
        asked: u16,
    },
    /// A file of another size than the settings say.
    #[error("{path} has {found} bytes instead of {expected} ({setting})")]
    WrongSize {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: u64,
        /// The length by the settings.
        expected: u64,
        /// Java's name of the setting.
        setting: &'static str,
    },
    /// The store has no queues for so many delay levels.
    #[error("messageDelayLevel has {levels} levels; this store can have 1 to {room}")]
    DelayLevels {
        /// Levels of the configuration.
        levels: u32,
        /// Levels that the store has queues for.
        room: u32,
    },
    /// Light queues in a store of several shards.
    #[error("multi-dispatch needs a store with one shard; the store {path} has {shards}")]
    LightQueues {
        /// Folder of the store.
        path: PathBuf,
        /// Shards that it has, or was to get.
        shards: u16,
    },
    /// The commit log has a hole.
    #[error("the commit log file {0} is missing between others")]
    MissingSegment(PathBuf),
    /// Anything else in the files that makes no sense.
    #[error("{path}: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The system refused.
    #[error("{path}: {error}")]
    Io {
        /// File or folder.
        path: PathBuf,
        /// What it said.
        #[source]
        error: io::Error,
    },
}

impl OpenError {
    /// An I/O error with the path that it is about.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::Io { path, error }
    }
}

/// Why records are not appended. None of them is stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// A part of the record does not fit its length field, the body is over the limit, or the batch does not fit into
    /// one commit-log file.
    #[error("the message is illegal: {0}")]
    Illegal(&'static str),
    /// It needs a light queue more than there can be.
    #[error("there are {} light queues already, and can be no more", crate::limits::LIGHT_QUEUES)]
    TooManyLightQueues,
    /// No space is left for the commit log.
    #[error("no space left for the commit log")]
    NoSpace,
    /// The shard takes no writes any more: a write or a sync failed.
    #[error("the shard is read-only: {0}")]
    ReadOnly(String),
    /// The next commit-log file could not be made.
    #[error("the next commit log file cannot be made: {0}")]
    SegmentNotMade(String),
}

/// The write of a turn failed: nothing that was staged is stored.
#[derive(Debug, thiserror::Error)]
#[error("the write to the commit log failed: {0}")]
pub struct WriteError(#[from] pub io::Error);

/// Why a read cannot be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The device failed.
    #[error("read failed: {0}")]
    Io(String),
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error.to_string())
    }
}
