//! Every bound of the store that no setting changes, with its reason.

/// A record may be this much larger than the largest body: head, topic and properties.
pub const RECORD_OVERHEAD_BYTES: u32 = 64 << 10;

/// Space is reserved this far ahead of the write position, in one background step: enough for a burst, little enough
/// that the reservation never keeps the device busy for long.
pub const ALLOCATE_STEP_BYTES: u64 = 64 << 20;
/// The next step is asked for when less than this is left.
pub const ALLOCATE_LOW_WATER_BYTES: u64 = 32 << 20;
/// What is reserved inline when the background has not come in time. Small: the core waits for it.
pub const ALLOCATE_INLINE_BYTES: u64 = 1 << 20;
/// Below this fill of a segment the next one is not prepared: an empty store must stay small.
pub const PREPARE_AT_PERCENT: u64 = 50;

/// Syncs in flight: more do not shorten the wait, they only cost CPU.
pub const SYNCS_IN_FLIGHT: usize = 4;
/// Write-back is started for each piece of this size, so that few dirty pages are left for the sync.
pub const WRITE_BACK_STEP_BYTES: u64 = 4 << 20;

/// Open commit-log files that are only read, beside the one being written.
pub const OPEN_SEGMENTS: usize = 128;
/// Open consume-queue files of the reading side; 80,000 queues share them.
pub const OPEN_QUEUE_FILES: usize = 512;
/// Open consume-queue files of the writing side. Few: a queue is written at most once a second or every few thousand
/// entries, so opening its file each time costs nothing beside the write, and descriptors are not tied to idle queues.
pub const OPEN_QUEUE_WRITERS: usize = 2;

/// Entries of one queue that are kept in memory after they were written: hot readers need no file. With many queues each keeps
/// its part of [`TAIL_ENTRIES`], or none when that is less than is worth the memory around it.
pub const QUEUE_TAIL_ENTRIES: usize = 2048;
/// The least that a queue keeps.
pub const QUEUE_TAIL_LEAST: usize = 16;
/// Entries of all queues that are kept in memory although they were written (24 bytes each).
pub const TAIL_ENTRIES: usize = 512 << 10;
/// This many unwritten entries of a shard start a write batch at once.
pub const QUEUE_BATCH_ENTRIES: usize = 64 << 10;
/// With many queues, this many for each queue that waits: to write one entry costs as much as to write fifty.
pub const QUEUE_BATCH_ENTRIES_EACH: usize = 32;
/// But never more than this (24 bytes each, and as much again around them).
pub const QUEUE_BATCH_ENTRIES_MOST: usize = 1 << 20;
/// Queues of one batch: a core collects them in half a millisecond, and their files are written in some ten.
pub const QUEUE_BATCH_QUEUES: usize = 1024;
/// Without enough unwritten entries for a batch, one is written this often.
pub const QUEUE_WRITE_AFTER_US: u64 = 1_000_000;
/// Beyond this many unwritten entries the background is no longer waited for: the next batch is written inline. 48 MiB, and as
/// much again around them: a core that is busy without a pause leaves the background little of its processor.
pub const UNWRITTEN_ENTRIES: usize = 2 << 20;

/// Cold ranges kept in memory, in bytes.
pub const COLD_CACHE_BYTES: usize = 64 << 20;
/// Entries that are read from a queue's file at once and kept: eight usual pulls, less than two pages.
pub const ENTRY_WINDOW: u64 = 256;
/// Windows of entries that are kept (6 KiB each).
pub const ENTRY_WINDOWS: usize = 512;

/// A cold read of the log goes on behind what was asked for: sequential readers want it next.
pub const READ_AHEAD_BYTES: u64 = 512 << 10;
/// Residency is tested for a whole span up to this size, and for each record beyond it.
pub const RESIDENT_SPAN_BYTES: u64 = 1 << 20;

/// Entries of a consume queue that one pull looks at, at least (Java: 16,000 bytes).
pub const SCAN_ENTRIES: u64 = 800;
/// Bytes of records that one pull by properties reads, at most (one run of records more than that is never read): about half a
/// millisecond of copying.
pub const LOOK_BYTES: u64 = 2 << 20;
/// Most records of one pull whatever the client asks.
pub const PULL_COUNT: u32 = 1024;
/// Most light queues of a shard (Java's `maxLmqConsumeQueueNum`).
pub const LIGHT_QUEUES: usize = 20_000;

/// Most records of one key query.
pub const KEY_QUERY_COUNT: usize = 64;

/// The checkpoint file is written this often, as Java does.
pub const CHECKPOINT_INTERVAL_US: u64 = 1_000_000;
/// A pass over the dirty queues begins after this much log.
pub const PASS_LOG_BYTES: u64 = 256 << 20;
/// And this much more for each queue that the pass would write or sync: with 80,000 of them that is what costs.
pub const PASS_LOG_BYTES_EACH: u64 = 8 << 10;
/// A pass over the dirty queues begins after this time, if there was any append.
pub const PASS_INTERVAL_US: u64 = 30_000_000;

/// The log is read in pieces of this size by recovery.
pub const WALK_BUFFER_BYTES: usize = 4 << 20;
