//! The store of one shard: commit log, consume queues, index, checkpoint, in the files of RocketMQ.
//!
//! Role: everything that is kept on disk, in Java's formats where Java has one (`FORMAT.md` is the document). Invariants:
//! records enter through one append; nothing is written through a mapping; nothing here reads a clock, waits for the
//! disk longer than a page-cache write, or starts a thread: time comes as `Now`, the disk as `dyn Disk`, and long work
//! leaves as [`ShardCommand`]s. It knows no request, no connection and no other shard.

pub mod config_file;
mod error;
pub mod home;
pub mod index;
mod layout;
mod limits;
pub mod manifest;
pub mod offset_journal;
mod options;
pub mod placement;
mod step;
pub mod tombstones;
mod types;

mod shard;

pub use error::{AppendError, OpenError, ReadError, WriteError};
pub use config_file::ConfigDir;
pub use home::StoreHome;
pub use index::{Index, IndexHistory, IndexProgress, KeyLookup};
pub use offset_journal::OffsetJournal;
pub use options::{FlushMode, StoreOptions};
pub use shard::Shard;
pub use layout::{MAX_SHARDS, SHARD_SPAN, ShardId, ShardLayout, StoreLayout};
pub use placement::Placement;
pub use step::{ColdSource, Completion, FetchId, Missing, MissingRange, ReadStep, ShardCommand};
pub use tombstones::Tombstones;
pub use types::{
    Appended, Boundary, Bounds, GetStatus, IndexKind, KeyQuery, PullLimits, Pulled, RecoveryReport, ShardStatus, Visible,
};
