//! What the store is told by the configuration, checked before it gets here.
//!
//! Role: one plain value handed to the store by value; nothing reads settings anywhere else. Bounds that do not depend
//! on the configuration stand in `limits.rs`.

use std::sync::Arc;

/// When a record counts as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushMode {
    /// Once it is written; a power cut loses at most the last flush interval.
    Async,
    /// Once a sync that covers it has succeeded.
    Sync,
}

/// Settings of the store. `Default` gives RocketMQ's defaults.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Size of a commit-log file in bytes (`mappedFileSizeCommitLog`), 64 KiB to 2 GiB - 1.
    pub segment_size_bytes: u64,
    /// Size of a consume-queue file in bytes (`mappedFileSizeConsumeQueue`), a multiple of 20.
    pub queue_file_size_bytes: u64,
    /// When an append is answered (`flushDiskType`).
    pub flush: FlushMode,
    /// Period of the flush of everything dirty, in milliseconds (`flushIntervalCommitLog`).
    pub flush_interval_ms: u64,
    /// Largest body of a message in bytes (`maxMessageSize`); a record may have 64 KiB more.
    pub max_message_size_bytes: u32,
    /// Hash slots of an index file (`maxHashSlotNum`).
    pub max_hash_slots: u32,
    /// Items of an index file, the unused item 0 included (`maxIndexNum`).
    pub max_index_items: u32,
    /// Whether keys are indexed at all (`messageIndexEnable`).
    pub message_index_enable: bool,
    /// Hours after which a commit-log file may be deleted (`fileReservedTime`).
    pub file_reserved_time_h: u32,
    /// A record at most this far behind the end of the log counts as in memory for the limits of a pull
    /// (`accessMessageInMemoryMaxRatio` of the machine's memory), in bytes.
    pub in_memory_window_bytes: u64,
    /// Largest answer to a pull of fresh records, in bytes (`maxTransferBytesOnMessageInMemory`).
    pub pull_memory_bytes: u32,
    /// Most records in an answer to a pull of fresh records (`maxTransferCountOnMessageInMemory`).
    pub pull_memory_count: u32,
    /// Largest answer to a pull of old records, in bytes (`maxTransferBytesOnMessageInDisk`).
    pub pull_disk_bytes: u32,
    /// Most records in an answer to a pull of old records (`maxTransferCountOnMessageInDisk`).
    pub pull_disk_count: u32,
    /// The delay of each level in ms, level 1 first (`messageDelayLevel`): a waiting record's entry holds its due time.
    pub delay_level_ms: Arc<[i64]>,
    /// Messages that name light queues get entries in these, too (`enableLmq` with `enableMultiDispatch`). For stores with one
    /// shard only.
    pub light_queues: bool,
}

/// RocketMQ's delay levels, in seconds.
pub const DELAY_LEVEL_S: [i64; 18] =
    [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200];

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            segment_size_bytes: 1 << 30,
            queue_file_size_bytes: 6_000_000,
            flush: FlushMode::Async,
            flush_interval_ms: 500,
            max_message_size_bytes: 4 << 20,
            max_hash_slots: 5_000_000,
            max_index_items: 20_000_000,
            message_index_enable: true,
            file_reserved_time_h: 72,
            in_memory_window_bytes: 1 << 30,
            pull_memory_bytes: 256 << 10,
            pull_memory_count: 32,
            pull_disk_bytes: 64 << 10,
            pull_disk_count: 8,
            delay_level_ms: DELAY_LEVEL_S.map(|seconds| seconds * 1_000).into(),
            light_queues: false,
        }
    }
}
