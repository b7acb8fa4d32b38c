//! Work for a shard: requests as they are after their checks, on their way to the queue.
//!
//! Role: plain values between `core` (or a lane) and `shard_host`. Invariants: topic, queue and permissions were checked against
//! the snapshot of the connection's core; counts and offsets are still the client's and may be nonsense.

use crate::crossing::ReplyTo;
use crate::snapshot::{Group, PendingReset, Subscription, Topic};
use message::PhysicalOffset;
use message::properties::PropertiesSource;
use smallvec::SmallVec;
use std::net::SocketAddr;
use std::sync::Arc;
use store::Boundary;

/// Numbers of a send, checked and routed; the bytes (topic, properties, body) travel beside it.
#[derive(Clone, Copy, Debug)]
pub struct SendNumbers {
    /// The queue.
    pub queue_id: u32,
    /// The sender's own flag.
    pub flag: i32,
    /// System flag.
    pub sys_flag: i32,
    /// The sender's time, ms since 1970.
    pub born_timestamp_ms: i64,
    /// The sender's address.
    pub born_host: SocketAddr,
    /// How often it was delivered before.
    pub reconsume_times: i32,
    /// The body is a batch (code 320).
    pub batch: bool,
    /// The sender waits for the flush (`WAIT` is not `false`).
    pub wait: bool,
}

/// A pull, checked and routed.
#[derive(Clone, Debug)]
pub struct PullWork {
    /// The topic.
    pub topic: Arc<Topic>,
    /// The group.
    pub group: Arc<Group>,
    /// The queue.
    pub queue_id: u32,
    /// Where to read from; may be out of any range.
    pub offset: i64,
    /// Most records asked for; may be nonsense.
    pub max_count: i32,
    /// Most bytes by the live settings.
    pub max_bytes: u32,
    /// Which tags.
    pub filter: TagFilter,
    /// The filter came with the request; else it follows the heartbeats of the group.
    pub own_filter: bool,
    /// Version of the snapshot that it was checked against.
    pub checked_version: u64,
    /// How long it may be held when nothing is there, in ms; `None`: not at all.
    pub suspend_ms: Option<u64>,
    /// A server-side reset that answers it instead of the queue, unless another pull took it before.
    pub reset: Option<PendingReset>,
}

/// What a reader wants.
#[derive(Clone, Debug)]
pub enum TagFilter {
    /// Everything.
    All,
    /// The tags with these hash codes.
    Codes(SmallVec<[i32; 4]>),
    /// The tags of a heartbeat's subscription.
    Subscribed(Arc<Subscription>),
}

/// A pull in the wait list.
#[derive(Debug)]
pub struct HeldPull {
    /// Who waits; not counted as in flight.
    pub reply: ReplyTo,
    /// What it asked.
    pub work: PullWork,
}

/// A question about one queue, or one record.
#[derive(Clone, Debug)]
pub struct QueueQuestion {
    /// The topic; empty for [`Question::Record`].
    pub topic: Box<[u8]>,
    /// The queue.
    pub queue_id: u32,
    /// What is asked.
    pub question: Question,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// 30.
    MaxOffset,
    /// 31.
    MinOffset,
    /// 32.
    EarliestStoreTime,
    /// 29.
    OffsetByTime {
        /// Milliseconds since 1970.
        timestamp_ms: i64,
        /// Which side.
        boundary: Boundary,
    },
    /// 33.
    Record(PhysicalOffset),
}

/// The bytes of a send.
#[derive(Clone, Copy, Debug)]
pub struct SendBytes<'a> {
    /// Topic.
    pub topic: &'a [u8],
    /// Properties as they are to be stored.
    pub properties: PropertiesSource<'a>,
    /// Body, or batch body.
    pub body: &'a [u8],
    /// The unique id for the answer's `transactionId`; empty for none.
    pub unique_id: &'a [u8],
}

impl SendBytes<'_> {
    /// All of them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.topic.len() + self.properties.encoded_len() + self.body.len() + self.unique_id.len()
    }

    /// Whether there is no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
