//! What a shard is asked and what it answers: the value types of its public functions.
//!
//! Role: plain data; no behaviour beyond names.

use bytes::Bytes;
use message::{PhysicalOffset, QueueOffset};
use smallvec::SmallVec;
use sys::LogSlice;

/// Where appended records lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Queue offset of the first record; the others follow without a gap.
    pub queue_offset: QueueOffset,
    /// Physical offset of each record.
    pub offsets: SmallVec<[PhysicalOffset; 1]>,
    /// End of the last record: the append is durable when `durable_to` has reached it.
    pub end: PhysicalOffset,
    /// Store time of all of them, ms since 1970.
    pub store_timestamp_ms: i64,
}

impl Appended {
    /// Physical offset of the first record.
    #[must_use]
    pub fn first(&self) -> PhysicalOffset {
        self.offsets[0]
    }
}

/// Smallest offset of a queue and the one after its largest, as visible to readers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// First offset that can still be read; equal to `max` when nothing can.
    pub min: QueueOffset,
    /// Offset of the next message.
    pub max: QueueOffset,
}

/// One message that became visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visible<'a> {
    /// Topic.
    pub topic: &'a [u8],
    /// Queue.
    pub queue_id: u32,
    /// The queue's largest offset + 1, this message counted.
    pub max_offset: QueueOffset,
    /// The tag value of its consume-queue entry.
    pub tags_code: i64,
}

/// Limits of one pull, beside those in the options.
#[derive(Clone, Copy, Debug)]
pub struct PullLimits {
    /// Most records (`maxMsgNums`), as the client sent it: any value is safe.
    pub max_count: i32,
    /// Most bytes, at least one record apart.
    pub max_bytes: u32,
}

impl PullLimits {
    /// At most `max_count` records, no own limit of bytes.
    #[must_use]
    pub const fn count(max_count: i32) -> Self {
        Self { max_count, max_bytes: u32::MAX }
    }
}

/// Records on their way out: mostly one slice.
pub type Slices = SmallVec<[LogSlice; 2]>;

/// What a pull found.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// Java's status.
    pub status: GetStatus,
    /// Where the reader goes on.
    pub next_begin: QueueOffset,
    /// Smallest offset of the queue (0 when there is no queue).
    pub min: QueueOffset,
    /// Largest offset + 1 of the queue (0 when there is no queue).
    pub max: QueueOffset,
    /// The records, concatenated.
    pub slices: Slices,
    /// Bytes in `slices`.
    pub bytes: u32,
    /// Records in `slices`.
    pub count: u32,
    /// Bytes of log between the last record looked at and the end of the log: how far behind this reader is.
    pub behind_bytes: u64,
    /// Store time of the last record returned is not known without reading it; this is the physical offset of the last
    /// one, for statistics. 0 when none was returned.
    pub last_offset: PhysicalOffset,
}

/// Java's `GetMessageStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GetStatus {
    /// Records are returned.
    Found,
    /// Entries were looked at and none matched.
    NoMatchedMessage,
    /// The records are gone from the log.
    MessageWasRemoving,
    /// The entries are gone.
    OffsetFoundNull,
    /// Beyond the end by more than one.
    OffsetOverflowBadly,
    /// At the end.
    OffsetOverflowOne,
    /// Below the first offset.
    OffsetTooSmall,
    /// No such queue here.
    NoMatchedLogicQueue,
    /// The queue never held a message.
    NoMessageInQueue,
}

impl GetStatus {
    /// Java's name of the status, which is the remark of the answer.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Found => "FOUND",
            Self::NoMatchedMessage => "NO_MATCHED_MESSAGE",
            Self::MessageWasRemoving => "MESSAGE_WAS_REMOVING",
            Self::OffsetFoundNull => "OFFSET_FOUND_NULL",
            Self::OffsetOverflowBadly => "OFFSET_OVERFLOW_BADLY",
            Self::OffsetOverflowOne => "OFFSET_OVERFLOW_ONE",
            Self::OffsetTooSmall => "OFFSET_TOO_SMALL",
            Self::NoMatchedLogicQueue => "NO_MATCHED_LOGIC_QUEUE",
            Self::NoMessageInQueue => "NO_MESSAGE_IN_QUEUE",
        }
    }
}

/// Which message of a time a search wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    /// The first one stored at or after the time.
    Lower,
    /// The last one stored at or before the time.
    Upper,
}

/// What a key query looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexKind {
    /// One of KEYS, or the unique key.
    Key,
    /// The whole TAGS text.
    Tag,
}

/// Answer to a key query.
#[derive(Clone, Debug, Default)]
pub struct KeyQuery {
    /// Whole records, newest first, topic and key checked.
    pub records: Vec<Bytes>,
    /// Store time of the newest indexed record, ms since 1970.
    pub last_index_timestamp_ms: i64,
    /// Physical offset of the newest indexed record.
    pub last_index_offset: PhysicalOffset,
}

/// A shard's own numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardStatus {
    /// First physical offset of the log.
    pub min_offset: PhysicalOffset,
    /// End of the log: written.
    pub max_offset: PhysicalOffset,
    /// Everything below is durable.
    pub durable_to: PhysicalOffset,
    /// The checkpoint vouches for queues and index below.
    pub vouched_to: PhysicalOffset,
    /// Written and not yet durable, in bytes.
    pub dirty_bytes: u64,
    /// Queues known.
    pub queues: u32,
    /// Consume-queue entries not yet in their files.
    pub unwritten_entries: u64,
    /// Store time of the first record still there, ms since 1970; -1 when not known.
    pub earliest_store_timestamp_ms: i64,
    /// Store time of the last record, ms since 1970; 0 when there is none.
    pub last_store_timestamp_ms: i64,
    /// Why no append is taken; `None` while writable.
    pub read_only: Option<String>,
    /// Records skipped because their bytes are damaged.
    pub damaged_records: u64,
    /// Reads that went to the background.
    pub cold_reads: u64,
}

/// What recovery found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The previous process closed the store.
    pub clean: bool,
    /// The queue table and checkpoint were RingMQ's own and agreed.
    pub trusted: bool,
    /// Where the walk through the log began.
    pub walked_from: PhysicalOffset,
    /// Where the log ends.
    pub end: PhysicalOffset,
    /// Records walked over.
    pub records: u64,
    /// Bytes behind the end that were no records and were cut off.
    pub cut_bytes: u64,
    /// Commit-log files removed behind the end.
    pub removed_segments: u32,
    /// Records in the middle of the log that are damaged; their queue entries are blank.
    pub damaged_records: u64,
    /// Queues whose files were lost or short and were made again from the log.
    pub rebuilt_queues: u32,
}
