//! A gather's question, run on one shard.
//!
//! Role: `ShardAsk` to `ShardAnswer`, as a step that can be run again when cold bytes have come. Invariants: a run that misses
//! bytes changed nothing; answers are within the question's byte budget (at least one record apart). It knows no coordinator.

use crate::gather::{QueueAsk, QueueState, ShardAnswer, ShardAsk};
use crate::stats::Traffic;
use message::QueueOffset;
use std::sync::Arc;
use store::{Bounds, ReadStep, Shard};

/// Runs a question once.
pub fn run(shard: &mut Shard, traffic: &Traffic, ask: &ShardAsk) -> ReadStep<ShardAnswer> {
    match ask {
        ShardAsk::Queues(queues) => queue_states(shard, queues),
        ShardAsk::AllQueues => ReadStep::Ready(ShardAnswer::AllQueues(all_queues(shard))),
        ShardAsk::OffsetByTime { queues, timestamp_ms, boundary } => {
            each(queues, |queue| shard.offset_by_time(queue.topic.as_bytes(), queue.queue_id, *timestamp_ms, *boundary))
                .map(ShardAnswer::Offsets)
        }
        ShardAsk::StoreTimes(queues) => {
            each(queues, |(queue, offset)| shard.store_time_at(queue.topic.as_bytes(), queue.queue_id, *offset))
                .map(ShardAnswer::StoreTimes)
        }
        ShardAsk::DeleteTopic(topic) => {
            shard.delete_topic(topic.as_bytes());
            ReadStep::Ready(ShardAnswer::Deleted)
        }
        ShardAsk::End => ReadStep::Ready(ShardAnswer::End(shard.end())),
        ShardAsk::Status => ReadStep::Ready(ShardAnswer::Status(Box::new(shard.status()), Box::new(*traffic))),
        ShardAsk::RecordAt(offset) => shard.record_at(*offset).map(ShardAnswer::Record),
        ShardAsk::Recall(_) => ReadStep::Ready(ShardAnswer::Failed("a recall is for the timers of the shard".into())),
        ShardAsk::QueryByKey { topic, key, max, begin_ms, end_ms, kind, max_bytes } => shard
            .query_by_key(topic.as_bytes(), key.as_bytes(), *max as usize, *begin_ms, *end_ms, *kind)
            .map(|mut found| {
                let mut left = *max_bytes as usize;
                let fits = found.records.iter().take_while(|record| take_bytes(&mut left, record.len())).count();
                found.records.truncate(fits.max(1));
                ShardAnswer::ByKey(found)
            }),
    }
}

/// Bounds and last store time of each queue. The time of the newest message may be cold.
fn queue_states(shard: &mut Shard, queues: &[QueueAsk]) -> ReadStep<ShardAnswer> {
    each(queues, |queue| {
        let (topic, queue_id) = (queue.topic.as_bytes(), queue.queue_id);
        let Some(bounds) = shard.bounds(topic, queue_id) else { return ReadStep::Ready(None) };
        if bounds.min == bounds.max {
            return ReadStep::Ready(Some(QueueState { bounds, last_store_time_ms: 0 }));
        }
        let newest = QueueOffset(bounds.max.0 - 1);
        shard
            .store_time_at(topic, queue_id, newest)
            .map(|time| Some(QueueState { bounds, last_store_time_ms: time.unwrap_or(0) }))
    })
    .map(ShardAnswer::Queues)
}

fn all_queues(shard: &Shard) -> Vec<(QueueAsk, Bounds)> {
    let mut all: Vec<(QueueAsk, Bounds)> = Vec::new();
    let mut last: Option<Arc<str>> = None;
    for (topic, queue_id, bounds) in shard.all_queues() {
        let Ok(name) = std::str::from_utf8(topic) else { continue };
        let topic = last.take_if(|before| **before == *name).unwrap_or_else(|| name.into());
        last = Some(topic.clone());
        all.push((QueueAsk { topic, queue_id }, bounds));
    }
    all
}

/// One answer for each item, or the first thing that is missing.
fn each<I, T>(items: &[I], mut step: impl FnMut(&I) -> ReadStep<T>) -> ReadStep<Vec<T>> {
    let mut answers = Vec::with_capacity(items.len());
    for item in items {
        match step(item) {
            ReadStep::Ready(answer) => answers.push(answer),
            ReadStep::Missing(missing) => return ReadStep::Missing(missing),
            ReadStep::Failed(error) => return ReadStep::Failed(error),
        }
    }
    ReadStep::Ready(answers)
}

fn take_bytes(left: &mut usize, bytes: usize) -> bool {
    let fits = bytes <= *left;
    *left = left.saturating_sub(bytes);
    fits
}
