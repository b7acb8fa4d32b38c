//! One shard: the public face of the store.
//!
//! Role: ties log, queues, index, flush and checkpoint together; one core owns it.

use std::sync::Arc;

use bytes::Bytes;
use message::record::RecordFields;
use message::{PhysicalOffset, QueueOffset};
use reactor::{JobOutput, Now};
use sys::disk::Disk;

use crate::{
    AppendError, Appended, Boundary, Bounds, Completion, FetchId, IndexKind, KeyQuery, Missing, OpenError, PullLimits,
    Pulled, ReadStep, RecoveryReport, ShardCommand, ShardId, ShardStatus, StoreHome, StoreOptions, Visible, WriteError,
};

/// A unit of storage, owned by one core.
pub struct Shard {}

#[allow(unused_variables, clippy::unimplemented, reason = "signatures first; bodies follow at once")]
impl Shard {
    /// Opens the shard and recovers it.
    pub fn open(
        disk: Arc<dyn Disk>,
        home: &StoreHome,
        id: ShardId,
        options: StoreOptions,
        now: Now,
    ) -> Result<(Self, RecoveryReport), OpenError> {
        unimplemented!()
    }

    /// Stages records of one queue.
    pub fn append(&mut self, now: Now, records: &[RecordFields<'_>]) -> Result<Appended, AppendError> {
        unimplemented!()
    }

    /// Writes what the turn staged, and dispatches it.
    pub fn write_staged(&mut self, now: Now) -> Result<(), WriteError> {
        unimplemented!()
    }

    /// Everything below is durable.
    pub fn durable_to(&self) -> PhysicalOffset {
        unimplemented!()
    }

    /// Everything below is visible to readers.
    pub fn visible_to(&self) -> PhysicalOffset {
        unimplemented!()
    }

    /// End of the log, staged records not counted.
    pub fn end(&self) -> PhysicalOffset {
        unimplemented!()
    }

    /// Whether appends are taken.
    pub fn is_writable(&self) -> Result<(), AppendError> {
        unimplemented!()
    }

    /// Turns the shard read-only for a reason of the caller (a flush that took too long).
    pub fn set_read_only(&mut self, reason: &str) {
        unimplemented!()
    }

    /// What the shard wants done since the last call.
    pub fn take_commands(&mut self) -> Vec<ShardCommand> {
        unimplemented!()
    }

    /// The result of a command.
    pub fn completed(&mut self, now: Now, token: u32, result: std::io::Result<JobOutput>) -> Completion {
        unimplemented!()
    }

    /// Each message that became visible since the last call, in order.
    pub fn newly_visible(&mut self, f: &mut dyn FnMut(Visible<'_>)) {
        unimplemented!()
    }

    /// Called each turn's end: flush interval, queue batches, checkpoint.
    pub fn tick(&mut self, now: Now) {
        unimplemented!()
    }

    /// When `tick` wants to be called at the latest, in monotonic microseconds; `None` while nothing is pending.
    pub fn next_tick_us(&self) -> Option<u64> {
        unimplemented!()
    }

    /// Bounds of a queue; `None` if it does not exist here.
    pub fn bounds(&self, topic: &[u8], queue_id: u32) -> Option<Bounds> {
        unimplemented!()
    }

    /// Records from a queue, by Java's rules.
    pub fn pull(
        &mut self,
        topic: &[u8],
        queue_id: u32,
        from: QueueOffset,
        limits: PullLimits,
        matches: &mut dyn FnMut(i64) -> bool,
    ) -> ReadStep<Pulled> {
        unimplemented!()
    }

    /// Brings missing bytes into memory.
    pub fn fetch(&mut self, missing: Missing) -> FetchId {
        unimplemented!()
    }

    /// The whole record that starts here, checked; `None` if none does.
    pub fn record_at(&mut self, offset: PhysicalOffset) -> ReadStep<Option<Bytes>> {
        unimplemented!()
    }

    /// The queue offset of a time.
    pub fn offset_by_time(
        &mut self,
        topic: &[u8],
        queue_id: u32,
        timestamp_ms: i64,
        boundary: Boundary,
    ) -> ReadStep<QueueOffset> {
        unimplemented!()
    }

    /// Store time of a message, ms since 1970; `None` if it is not there.
    pub fn store_time_at(&mut self, topic: &[u8], queue_id: u32, offset: QueueOffset) -> ReadStep<Option<i64>> {
        unimplemented!()
    }

    /// Records by key or tag.
    pub fn query_by_key(
        &mut self,
        topic: &[u8],
        key: &[u8],
        max: usize,
        begin_ms: i64,
        end_ms: i64,
        kind: IndexKind,
    ) -> ReadStep<KeyQuery> {
        unimplemented!()
    }

    /// Queues of a topic: id, bounds, store time of the last message (ms since 1970, 0 when it never had one).
    pub fn topic_queues(&self, topic: &[u8]) -> Vec<(u32, Bounds, i64)> {
        unimplemented!()
    }

    /// All queues: topic, id, bounds.
    pub fn all_queues(&self) -> impl Iterator<Item = (&[u8], u32, Bounds)> {
        std::iter::empty()
    }

    /// Drops the queues of a topic; its records are ignored from now on (the tombstone must be written first).
    pub fn delete_topic(&mut self, topic: &[u8]) {
        unimplemented!()
    }

    /// The shard's numbers.
    pub fn status(&self) -> ShardStatus {
        unimplemented!()
    }

    /// Writes and syncs everything, then the checkpoint.
    pub fn close(&mut self) -> std::io::Result<()> {
        unimplemented!()
    }
}
