//! The one way to ask several shards: the coordinator sends each shard its own question, collects the answers, and goes on when all
//! are there, or at the deadline with what there is and the names of the shards that are missing. Pure: the core carries the messages.
//!
//! Bounds: at most [`MAX_GATHERS`] open at once; the byte budget of an answer is part of the question.

use message::QueueOffset;
use reactor::Now;
use remoting::ResponseCode;
use slab::Slab;
use std::sync::Arc;
use store::{Bounds, ShardId};

/// Open gathers of one core; one more is refused, the caller answers SYSTEM_BUSY.
pub const MAX_GATHERS: usize = 4096;

/// A question to one shard, executed on the shard's core. Reads that miss cold bytes park there and are run again.
#[derive(Clone, Debug, PartialEq)]
pub enum ShardAsk {
    /// Bounds and last store time of these queues, in the same order.
    Queues(Vec<QueueAsk>),
    /// Bounds of every queue that the shard has.
    AllQueues,
    /// Offset of the first message at or after (lower) or the last at or before (upper) a time, for each queue.
    OffsetByTime {
        /// The queues asked.
        queues: Vec<QueueAsk>,
        /// Milliseconds since 1970.
        timestamp_ms: i64,
        /// Which side.
        boundary: store::Boundary,
    },
    /// Store time of the message at an offset of each queue; `None` where there is none.
    StoreTimes(Vec<(QueueAsk, QueueOffset)>),
    /// Forgets a topic: its queues are dropped. The tombstone is on disk already.
    DeleteTopic(Arc<str>),
    /// End of the log: the physical offset that the next record will get (for tombstones).
    End,
    /// Counters for code 28 and the metrics.
    Status,
    /// The whole record at a physical offset of this shard (codes 33 and 309).
    RecordAt(message::PhysicalOffset),
    /// Recall a timed message, if this shard has it (code 370). Answered when that is stored.
    Recall(Arc<RecallAsk>),
    /// Records by key (code 12).
    QueryByKey {
        /// The topic.
        topic: Arc<str>,
        /// The key, or the unique id.
        key: Arc<str>,
        /// Most records of the answer.
        max: u32,
        /// Store time from, ms, inclusive.
        begin_ms: i64,
        /// Store time to, ms, inclusive.
        end_ms: i64,
        /// Key or tag.
        kind: store::IndexKind,
        /// Most bytes of the answer; records beyond are left out.
        max_bytes: u32,
    },
}

/// A timed message that is not to be delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecallAsk {
    /// Its topic.
    pub topic: Arc<str>,
    /// Its unique id.
    pub unique_id: Box<[u8]>,
    /// The time in its handle: one ms after `TIMER_OUT_MS`, so not after it is due.
    pub time_ms: i64,
    /// The producer group that asks.
    pub group: Box<str>,
    /// The client that asks.
    pub client: std::net::SocketAddr,
}

/// A queue in a question.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueueAsk {
    /// Its topic.
    pub topic: Arc<str>,
    /// Its id.
    pub queue_id: u32,
}

/// What a shard answers; the variant of the question of the same name.
#[derive(Clone, Debug)]
pub enum ShardAnswer {
    /// To `Queues`: `None` for a queue that the shard does not have.
    Queues(Vec<Option<QueueState>>),
    /// To `AllQueues`.
    AllQueues(Vec<(QueueAsk, Bounds)>),
    /// To `OffsetByTime`.
    Offsets(Vec<QueueOffset>),
    /// To `StoreTimes`.
    StoreTimes(Vec<Option<i64>>),
    /// To `DeleteTopic`.
    Deleted,
    /// To `End`.
    End(message::PhysicalOffset),
    /// To `Status`.
    Status(Box<store::ShardStatus>, Box<crate::stats::Traffic>),
    /// To `RecordAt`.
    Record(Option<bytes::Bytes>),
    /// To `Recall`: a response code.
    Recalled(ResponseCode),
    /// To `QueryByKey`.
    ByKey(store::KeyQuery),
    /// The shard could not: an I/O error or quarantined bytes, in words.
    Failed(String),
}

/// Bounds of a queue and when its newest message was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueState {
    /// Smallest and largest offset.
    pub bounds: Bounds,
    /// Store time of the newest message, ms since 1970; 0 when the queue is empty.
    pub last_store_time_ms: i64,
}

/// What a gather brought.
#[derive(Debug)]
pub struct Gathered {
    /// Answers in the order of the questions; `None` where the deadline passed or the shard failed.
    pub answers: Vec<(ShardId, Option<ShardAnswer>)>,
}

impl Gathered {
    /// Whether every shard answered.
    pub fn complete(&self) -> bool {
        self.answers.iter().all(|(_, a)| a.is_some())
    }
}

/// The open gathers of one coordinator; `C` is what it goes on with.
#[derive(Debug)]
pub struct Gathers<C> {
    open: Slab<Open<C>>,
    next_generation: u32,
}

#[derive(Debug)]
struct Open<C> {
    generation: u32,
    deadline_us: u64,
    answers: Vec<(ShardId, Option<ShardAnswer>)>,
    missing: usize,
    then: C,
}

impl<C> Default for Gathers<C> {
    fn default() -> Self {
        Self { open: Slab::new(), next_generation: 0 }
    }
}

impl<C> Gathers<C> {
    /// Opens a gather over `shards` (at least one; each may occur once) and returns the id that answers carry. `Err` gives `then`
    /// back when too many are open.
    pub fn start(
        &mut self,
        now: Now,
        shards: impl IntoIterator<Item = ShardId>,
        timeout_ms: u64,
        then: C,
    ) -> Result<u64, C> {
        if self.open.len() >= MAX_GATHERS {
            return Err(then);
        }
        let answers: Vec<_> = shards.into_iter().map(|s| (s, None)).collect();
        assert!(!answers.is_empty(), "a gather asks at least one shard");
        self.next_generation = self.next_generation.wrapping_add(1);
        let generation = self.next_generation;
        let deadline_us = now.mono_us + timeout_ms * 1000;
        let missing = answers.len();
        let slot = self.open.insert(Open { generation, deadline_us, answers, missing, then });
        Ok(u64::from(generation) << 32 | slot as u64)
    }

    /// Takes one shard's answer; returns the whole when it was the last. Late and unknown answers are dropped.
    pub fn answer(&mut self, id: u64, shard: ShardId, answer: ShardAnswer) -> Option<(C, Gathered)> {
        let slot = (id & u64::from(u32::MAX)) as usize;
        let open = self.open.get_mut(slot).filter(|o| u64::from(o.generation) == id >> 32)?;
        let place = open.answers.iter_mut().find(|(s, a)| *s == shard && a.is_none())?;
        if let ShardAnswer::Failed(why) = answer {
            tracing::warn!(shard = shard.0, why, "a shard could not answer");
        } else {
            place.1 = Some(answer);
        }
        open.missing -= 1;
        if open.missing > 0 {
            return None;
        }
        let open = self.open.remove(slot);
        Some((open.then, Gathered { answers: open.answers }))
    }

    /// Closes every gather whose deadline has passed and returns what came.
    pub fn expire(&mut self, now: Now) -> Vec<(C, Gathered)> {
        let due: Vec<usize> =
            self.open.iter().filter(|(_, o)| o.deadline_us <= now.mono_us).map(|(slot, _)| slot).collect();
        due.into_iter()
            .map(|slot| {
                let open = self.open.remove(slot);
                (open.then, Gathered { answers: open.answers })
            })
            .collect()
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}
