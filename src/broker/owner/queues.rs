//! Questions about the queues of topics, split by the shards that hold them.

use crate::gather::{Gathered, QueueAsk, QueueState, ShardAnswer, ShardAsk};
use crate::snapshot::Topic;
use message::QueueOffset;
use std::collections::BTreeMap;
use std::ops::Range;
use store::ShardId;

/// Queues by the shard that holds them.
#[derive(Debug, Default)]
pub(crate) struct QueuesByShard(BTreeMap<u16, Vec<QueueAsk>>);

/// What is known of queues, by topic and id.
pub(crate) type ByQueue<V> = BTreeMap<(String, u32), V>;

impl QueuesByShard {
    /// Adds queues of a topic.
    pub fn add(&mut self, topic: &Topic, ids: Range<u32>) {
        for queue_id in ids {
            let ask = QueueAsk { topic: topic.name.clone(), queue_id };
            self.0.entry(topic.shard_of(queue_id).0).or_default().push(ask);
        }
    }

    /// Asks for bounds.
    pub fn bounds(&self) -> Vec<(ShardId, ShardAsk)> {
        self.0.iter().map(|(shard, queues)| (ShardId(*shard), ShardAsk::Queues(queues.clone()))).collect()
    }

    /// Asks for offsets by time.
    pub fn by_time(&self, timestamp_ms: i64) -> Vec<(ShardId, ShardAsk)> {
        let ask = |queues: &Vec<QueueAsk>| ShardAsk::OffsetByTime {
            queues: queues.clone(),
            timestamp_ms,
            boundary: store::Boundary::Lower,
        };
        self.0.iter().map(|(shard, queues)| (ShardId(*shard), ask(queues))).collect()
    }

    /// The answers to [`QueuesByShard::bounds`]; `None` when a shard did not answer. A queue that no message ever reached has the
    /// bounds 0 and 0.
    pub fn states(&self, gathered: Gathered) -> Option<ByQueue<QueueState>> {
        self.by_queue(gathered, |answer| match answer {
            ShardAnswer::Queues(states) => Some(states.into_iter().map(|s| s.unwrap_or(EMPTY)).collect()),
            _ => None,
        })
    }

    /// The answers to [`QueuesByShard::by_time`]; `None` when a shard did not answer.
    pub fn offsets(&self, gathered: Gathered) -> Option<ByQueue<i64>> {
        self.by_queue(gathered, |answer| match answer {
            ShardAnswer::Offsets(offsets) => Some(offsets.into_iter().map(|o| o.to_i64()).collect()),
            _ => None,
        })
    }

    fn by_queue<V>(&self, gathered: Gathered, read: impl Fn(ShardAnswer) -> Option<Vec<V>>) -> Option<ByQueue<V>> {
        let mut all = ByQueue::new();
        for (shard, answer) in gathered.answers {
            let asked = self.0.get(&shard.0)?;
            let values = read(answer?)?;
            all.extend(asked.iter().zip(values).map(|(q, v)| ((q.topic.to_string(), q.queue_id), v)));
        }
        Some(all)
    }
}

const EMPTY: QueueState =
    QueueState { bounds: store::Bounds { min: QueueOffset(0), max: QueueOffset(0) }, last_store_time_ms: 0 };

/// Store times of messages at offsets of queues, by the shard that holds them.
#[derive(Debug, Default)]
pub(crate) struct TimesByShard(BTreeMap<u16, Vec<(QueueAsk, QueueOffset)>>);

impl TimesByShard {
    /// Adds an offset; one below 0 is no message and not asked.
    pub fn add(&mut self, topic: &Topic, queue_id: u32, offset: i64) {
        if let Some(offset) = QueueOffset::from_i64(offset) {
            let ask = QueueAsk { topic: topic.name.clone(), queue_id };
            self.0.entry(topic.shard_of(queue_id).0).or_default().push((ask, offset));
        }
    }

    /// The questions.
    pub fn asks(&self) -> Vec<(ShardId, ShardAsk)> {
        self.0.iter().map(|(shard, asked)| (ShardId(*shard), ShardAsk::StoreTimes(asked.clone()))).collect()
    }

    /// The answers, ms since 1970, where there is a message; `None` when a shard did not answer.
    pub fn times(&self, gathered: Gathered) -> Option<BTreeMap<(String, u32, i64), i64>> {
        let mut all = BTreeMap::new();
        for (shard, answer) in gathered.answers {
            let ShardAnswer::StoreTimes(times) = answer? else { return None };
            for ((queue, offset), time) in self.0.get(&shard.0)?.iter().zip(times) {
                all.extend(time.map(|t| ((queue.topic.to_string(), queue.queue_id, offset.to_i64()), t)));
            }
        }
        Some(all)
    }
}
