//! The store of one shard: commit log, consume queues, index, checkpoint, in the files of RocketMQ.
//!
//! Role: everything that is kept on disk, in Java's formats where Java has one (`FORMAT.md` is the document). Invariants:
//! records enter through one append; nothing is written through a mapping; nothing here reads a clock, waits for the
//! disk longer than a page-cache write, or starts a thread: time comes as `Now`, the disk as `dyn Disk`, and long work
//! leaves as [`ShardCommand`]s. It knows no request, no connection and no other shard.

// The whole store.
pub mod config_file;
pub mod home;
mod layout;
pub mod manifest;
pub mod offset_journal;
pub mod placement;
pub mod tombstones;

// A shard, along the path of a record.
mod append;
mod commit_log;
mod consume_queue;
mod dispatch;
mod entry_tag;
mod flush;
mod follow;
mod look_ahead;
pub mod index;
pub mod light_queues;
mod shard;

mod cold_cache;
mod lookup;
mod pull;
mod pull_by_properties;
mod residency;

mod checkpoint;
mod queue_table;
mod recovery;
mod retention;
mod upkeep;
mod walk;

pub mod fuzz;
pub mod fuzz_meta;
pub mod verify;

#[cfg(test)]
mod shard_tests;

mod error;
mod limits;
mod options;
mod step;
mod types;

pub use config_file::ConfigDir;
pub use entry_tag::timer_due;
pub use error::{AppendError, OpenError, ReadError, WriteError};
pub use follow::QueueEntry;
pub use home::StoreHome;
pub use index::{Index, IndexHistory, IndexProgress, KeyLookup};
pub use layout::{MAX_SHARDS, SHARD_SPAN, ShardId, ShardLayout, StoreLayout};
pub use look_ahead::LookAhead;
pub use lookup::ReadTogether;
pub use offset_journal::OffsetJournal;
pub use options::{DELAY_LEVEL_S, FlushMode, StoreOptions};
pub use placement::Placement;
pub use shard::Shard;
pub use step::{ColdSource, Completion, FetchId, Missing, MissingRange, ReadStep, ShardCommand};
pub use tombstones::Tombstones;
pub use types::{
    Appended, Boundary, Bounds, GetStatus, IndexKind, KeyQuery, PullLimits, Pulled, RecoveryReport, ShardStatus,
    Slices, Visible,
};
