//! What clients ask of POP, checked and on its way through the shards.
//!
//! Role: plain values. A pop of any queue, and a batch of acknowledgements, walk through the shards one after the other: the
//! value itself travels, with what it has found so far, so that it never takes more than was asked for. Invariants: topics,
//! queues and permissions were checked on the connection's core; numbers are still the client's and may be nonsense.

use super::handle;
use crate::snapshot::{Group, Topic};
use crate::work::MessageFilter;
use reactor::CoreId;
use smallvec::SmallVec;
use std::sync::Arc;
use store::{ShardId, Slices};

/// A request to the POP service of a shard.
#[derive(Debug)]
pub enum PopRequest {
    /// 200050, 200052, 200054: one visit of a walk.
    Run(Box<PopRun>),
    /// 200051.
    Ack(Box<AckAsk>),
    /// 200151: one visit of a walk.
    Acks(Box<AckRun>),
    /// 200053.
    Change(Box<ChangeAsk>),
    /// A pop is held: its core is to be told of what it may get.
    Watch(Box<WatchAsk>),
}

/// Which request a run answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunKind {
    /// 200050.
    Pop,
    /// 200052: reads and holds nothing.
    Peek,
    /// 200054: whether there is something to pop.
    Notify,
}

/// The header of a pop, as it came, without its topic and group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PopHeader {
    /// Queue; below 0: any.
    pub queue_id: i32,
    /// Most messages.
    pub max_messages: i32,
    /// How long they are invisible, ms.
    pub invisible_ms: i64,
    /// How long it may be held, ms.
    pub poll_ms: i64,
    /// When the client asked, ms since 1970.
    pub born_ms: i64,
    /// A new group starts at the smallest offset.
    pub from_min: bool,
    /// Filter.
    pub expression: Option<Box<str>>,
    /// `TAG` (also when absent) or `SQL92`.
    pub expression_type: Option<Box<str>>,
    /// FIFO.
    pub order: bool,
    /// Names the client's attempt of an ordered pop.
    pub attempt: Option<Box<str>>,
}

/// A pop, peek or notification on its way through the shards.
#[derive(Debug)]
pub struct PopRun {
    /// Which request.
    pub kind: RunKind,
    /// As it came, for a later look.
    pub header: PopHeader,
    /// The topic.
    pub topic: Arc<Topic>,
    /// The group.
    pub group: Arc<Group>,
    /// Its retry topics for the topic, as far as they exist.
    pub retries: SmallVec<[Arc<Topic>; 2]>,
    /// Which messages.
    pub filter: MessageFilter,
    /// When the answer says that it popped, ms since 1970.
    pub pop_time_ms: i64,
    /// Revive queue of each shard, from 0.
    pub revive_queue: u32,
    /// Where the rotation over the queues starts.
    pub turn: u32,
    /// Retry topics come first.
    pub retry_first: bool,
    /// The shards that it visits, in order.
    pub shards: SmallVec<[ShardId; 8]>,
    /// How many of them it has left behind.
    pub visited: usize,
    /// Where it is in its visit: topics done, queues of the next one done.
    pub place: (usize, u32),
    /// How often it has been held and looked again.
    pub looks: u32,
    /// What it found.
    pub found: PopFound,
}

/// What a run has found.
#[derive(Debug, Default)]
pub struct PopFound {
    /// `startOffsetInfo`.
    pub starts: String,
    /// `msgOffsetInfo`.
    pub offsets: String,
    /// `orderCountInfo`.
    pub counts: String,
    /// The records.
    pub slices: Slices,
    /// Bytes in `slices`.
    pub bytes: u32,
    /// Records in `slices`.
    pub count: u32,
    /// Messages that are left in the queues that it looked at.
    pub rest: i64,
    /// There is something to pop (a notification's answer).
    pub has_message: bool,
    /// A shard could not give what it has: why.
    pub failed: Option<String>,
}

impl PopRun {
    /// How many messages may still be added.
    pub fn wanted(&self) -> u32 {
        (self.header.max_messages.max(0) as u32).saturating_sub(self.found.count)
    }

    /// Whether nothing more is to be looked for.
    pub fn is_full(&self, max_bytes: u32) -> bool {
        match self.kind {
            RunKind::Notify => self.found.has_message,
            RunKind::Pop | RunKind::Peek => self.wanted() == 0 || self.found.bytes >= max_bytes,
        }
    }

    /// The shard that it visits.
    pub fn shard(&self) -> Option<ShardId> {
        self.shards.get(self.visited).copied()
    }

    /// The next queue of shard `id` in this visit, with its topic; `None` when the visit is over.
    pub fn next_queue(&mut self, id: ShardId) -> Option<(Arc<Topic>, u32)> {
        loop {
            let (at, done) = self.place;
            let retries = self.retries.len();
            let is_topic = if self.retry_first { at == retries } else { at == 0 };
            let topic = match at {
                _ if at > retries => return None,
                _ if is_topic => &self.topic,
                _ if self.retry_first => &self.retries[at],
                _ => &self.retries[at - 1],
            };
            let only = u32::try_from(self.header.queue_id).ok().filter(|_| is_topic);
            let queues = if only.is_some() { 1 } else { topic.read_queues };
            if done >= queues {
                self.place = (at + 1, 0);
                continue;
            }
            self.place.1 += 1;
            let queue_id = only.unwrap_or_else(|| (self.turn % queues + done) % queues);
            if topic.shard_of(queue_id) == id {
                return Some((topic.clone(), queue_id));
            }
        }
    }

    /// The queue that [`PopRun::next_queue`] gave last comes again.
    pub fn again(&mut self) {
        self.place.1 -= 1;
    }

    /// Starts anew: nothing visited, nothing found.
    pub fn rewind(&mut self) {
        (self.visited, self.place, self.found) = (0, (0, 0), PopFound::default());
    }
}

/// The shards that a pop visits: those of its queues, in the order of the rotation, and those of its retry topics.
pub fn shards_of(topic: &Topic, retries: &[Arc<Topic>], queue_id: i32, turn: u32) -> SmallVec<[ShardId; 8]> {
    let mut shards = SmallVec::new();
    let mut add = |shard: ShardId| {
        if !shards.contains(&shard) {
            shards.push(shard);
        }
    };
    match u32::try_from(queue_id) {
        Ok(queue_id) => add(topic.shard_of(queue_id)),
        Err(_) => {
            let queues = topic.read_queues;
            (0..queues).for_each(|at| add(topic.shard_of((turn % queues + at) % queues)));
        }
    }
    for retry in retries {
        (0..retry.read_queues).for_each(|queue_id| add(retry.shard_of(queue_id)));
    }
    shards
}

/// One message, as an acknowledgement or a change names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckAsk {
    /// The topic of the queue: a retry topic for a retried message.
    pub topic: Arc<str>,
    /// The group.
    pub group: Arc<str>,
    /// The queue.
    pub queue_id: u32,
    /// The message.
    pub offset: i64,
    /// The handle.
    pub handle: Box<str>,
}

/// A change of an invisible time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeAsk {
    /// Which message.
    pub of: AckAsk,
    /// From now on, ms.
    pub invisible_ms: i64,
}

/// Acknowledged messages of one check point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckItem {
    /// The shard of the queue.
    pub shard: ShardId,
    /// The topic of the queue.
    pub topic: Arc<str>,
    /// The group.
    pub group: Arc<str>,
    /// The queue.
    pub queue_id: u32,
    /// First offset of the check point.
    pub start: i64,
    /// When it was popped, ms since 1970.
    pub pop_time_ms: i64,
    /// Given out by an ordered pop.
    pub ordered: bool,
    /// Bit of each message, from the start on, as bytes; the least bit of the first is the start itself.
    pub bits: Bits,
}

/// Bits of acknowledged messages; nearly always those of one check point.
pub type Bits = SmallVec<[u8; 16]>;

impl AckItem {
    /// The offsets.
    pub fn offsets(&self) -> impl Iterator<Item = i64> + '_ {
        let bit = |at: usize| self.bits[at / 8] & 1 << (at % 8) != 0;
        (0..self.bits.len() * 8).filter(move |at| bit(*at)).map(|at| self.start.saturating_add(at as i64))
    }
}

/// A batch of acknowledgements on its way through the shards; sorted by shard.
#[derive(Debug)]
pub struct AckRun {
    /// What is acknowledged.
    pub items: SmallVec<[AckItem; 1]>,
    /// How many are done.
    pub done: usize,
}

/// What a held pop waits for.
#[derive(Clone, Debug)]
pub struct WatchAsk {
    /// The core that holds it.
    pub core: CoreId,
    /// The topic.
    pub topic: Arc<Topic>,
    /// The group.
    pub group: Arc<Group>,
    /// The queue; below 0: any.
    pub queue_id: i32,
    /// FIFO.
    pub order: bool,
    /// Tell it at once when there is something already.
    pub look: bool,
}

impl WatchAsk {
    /// The names of the retry topics that it waits for, too.
    pub fn retry_topics(&self) -> [String; 2] {
        [false, true].map(|v2| handle::retry_topic(&self.topic.name, &self.group.name, v2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn run(queue_id: i32, retry_first: bool) -> PopRun {
        let retry = Topic { read_queues: 1, ..fixtures::topic("%RETRY%g_t") };
        let plain = fixtures::pop_run("t", "g");
        PopRun {
            header: PopHeader { queue_id, ..plain.header },
            retries: SmallVec::from_iter([Arc::new(retry)]),
            turn: 6,
            retry_first,
            ..plain
        }
    }

    #[test]
    fn a_visit_takes_each_queue_once_from_the_rotation_on() {
        for (queue_id, retry_first, want) in [
            (-1, false, &[("t", 2), ("t", 3), ("t", 0), ("t", 1), ("%RETRY%g_t", 0)][..]),
            (-1, true, &[("%RETRY%g_t", 0), ("t", 2), ("t", 3), ("t", 0), ("t", 1)]),
            (3, false, &[("t", 3), ("%RETRY%g_t", 0)]),
            (3, true, &[("%RETRY%g_t", 0), ("t", 3)]),
        ] {
            let mut run = run(queue_id, retry_first);
            let first = run.next_queue(ShardId(0)).unwrap();
            run.again();
            assert_eq!(run.next_queue(ShardId(0)).unwrap(), first);
            run.again();
            let mut got = Vec::new();
            while let Some((topic, queue_id)) = run.next_queue(ShardId(0)) {
                got.push((topic.name.to_string(), queue_id));
            }
            let got: Vec<_> = got.iter().map(|(name, queue_id)| (name.as_str(), *queue_id)).collect();
            assert_eq!(got, want);
            assert!(run.next_queue(ShardId(0)).is_none(), "over is over");
        }
        assert!(run(-1, false).next_queue(ShardId(1)).is_none(), "no queue of another shard");
    }

    #[test]
    fn bits_are_offsets_from_the_start() {
        let item = |start, bits: &[u8]| AckItem {
            shard: ShardId(0),
            topic: "t".into(),
            group: "g".into(),
            queue_id: 0,
            start,
            pop_time_ms: 0,
            ordered: false,
            bits: bits.iter().copied().collect(),
        };
        assert_eq!(item(5, &[0b101, 1]).offsets().collect::<Vec<_>>(), [5, 7, 13]);
        assert_eq!(item(i64::MAX, &[2]).offsets().collect::<Vec<_>>(), [i64::MAX]);
        assert_eq!(item(5, &[]).offsets().count(), 0);
    }
}
