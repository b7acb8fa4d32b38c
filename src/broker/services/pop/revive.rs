//! What was not acknowledged in its invisible time comes back: by way of the group's retry topic, or to its dead letters.
//!
//! Invariants: a message is copied before its check point says so; the copy names its check point and index, so that a crash
//! between the two does not double it; what cannot be read any more is passed over with a line in the log, and never looped on.

use super::handle::{normal_topic, retry_topic};
use super::records::CheckName;
use super::waiting::{Then, Token};
use super::{LOOK_EVERY_US, Running};
use crate::processor::delay::{self, DelayTexts, Target};
use crate::services::ShardContext;
use crate::snapshot::Topic;
use bytes::Bytes;
use message::QueueOffset;
use message::names;
use message::properties::{PropertiesSource, PropertyList};
use message::record::{RecordFields, RecordView};
use std::sync::Arc;
use store::{AppendError, Missing, ReadStep, ShardId};

/// Check points that one turn takes on.
const CHECKS_A_TURN: usize = 64;
/// A check point whose retry topic is being made, or whose shard takes no record, is looked at again after this, ms.
const AGAIN_MS: i64 = 200;
/// A message that is younger than the pop that is said to have given it out, by more than this, is another one: its topic was
/// deleted and made anew.
const CLOCK_SLACK_MS: i64 = 60_000;
/// When it was given out first.
const FIRST_POP_TIME: &[u8] = b"1ST_POP_TIME";
/// The group that it comes back to.
const ORIGIN_GROUP: &[u8] = b"ORIGIN_GROUP";
/// The topic of a dead letter.
const DLQ_ORIGIN_TOPIC: &[u8] = b"DLQ_ORIGIN_TOPIC";

/// What became of a due check point.
enum Due {
    /// It is taken care of, or comes up again by itself.
    Done,
    /// Bytes are missing.
    Missing(Missing),
    /// The shard takes no record now.
    Refused(String),
}

/// Why the messages of a check point are not all on their way.
enum Halt {
    /// Bytes are missing.
    Missing(Missing),
    /// The shard takes no record now.
    Refused(String),
    /// A topic is being made.
    Later(String),
}

/// A check point that is due.
struct Expired {
    slot: u32,
    topic: Arc<str>,
    group: Arc<str>,
    queue_id: u32,
    pop_time_ms: i64,
    physical: u64,
    /// Tries of the group.
    tries: i32,
    /// Its retry topic.
    retry: Arc<Topic>,
}

/// Where a message goes.
struct Way<'a> {
    topic: &'a Arc<Topic>,
    dead: bool,
}

impl Running {
    /// Brings back what is due.
    pub(super) fn revive_due(&mut self, cx: &mut ShardContext<'_, '_>) {
        let now = cx.now();
        if self.due_parked || now.mono_us < self.hold_revive_until_us {
            return;
        }
        for _ in 0..CHECKS_A_TURN {
            let Some((_, slot)) = self.book.first_due().filter(|(due_ms, _)| *due_ms <= now.wall_ms) else { return };
            match self.revive(cx, slot) {
                Due::Done => {}
                Due::Missing(missing) => {
                    self.due_parked = true;
                    return cx.park(missing, Token::Due.ticket());
                }
                Due::Refused(why) => {
                    tracing::warn!(shard = cx.id.0, why, "messages that were not acknowledged cannot come back now");
                    self.hold_revive_until_us = now.mono_us + LOOK_EVERY_US;
                    return;
                }
            }
        }
    }

    fn revive(&mut self, cx: &mut ShardContext<'_, '_>, slot: u32) -> Due {
        let Some(check) = self.book.check(slot) else { return Due::Done };
        let held: Vec<(u32, u64)> = check.held().collect();
        if held.is_empty() {
            // Everything is acknowledged or on its way; what is being written ends it.
            self.book.postpone(slot, i64::MAX);
            return Due::Done;
        }
        let pair = self.book.pair(check.pair);
        let (topic, group) = (pair.topic.clone(), pair.group.clone());
        let (queue_id, pop_time_ms, physical) = (check.queue_id, check.pop_time_ms, check.physical);
        let has_topic = cx.snapshot.topic(normal_topic(&topic, &group).as_bytes()).is_some();
        let Some(settings) = cx.snapshot.group(group.as_bytes()).filter(|_| has_topic) else {
            tracing::info!(
                topic = &*topic,
                group = &*group,
                "the topic or group of a check point is gone: it is dropped"
            );
            self.book.forget(slot);
            return Due::Done;
        };
        let tries = settings.retry_max_times;
        let Some(retry) = self.retry_way(cx, &topic, &group) else {
            self.book.postpone(slot, self.again_ms(cx));
            return Due::Done;
        };
        let of = Expired { slot, topic, group, queue_id, pop_time_ms, physical, tries, retry };
        let mut waiting = None;
        let mut end = Ok(());
        for (at, offset) in held {
            end = self.bring_back(cx, &of, at, offset, &mut waiting);
            if end.is_err() {
                break;
            }
        }
        self.drop_unused(&mut waiting);
        match end {
            Ok(()) | Err(Halt::Missing(_) | Halt::Later(_)) if waiting.is_some() => {
                // It comes up again when the copies are written.
                self.book.postpone(slot, i64::MAX);
                Due::Done
            }
            Err(Halt::Missing(missing)) => Due::Missing(missing),
            Err(Halt::Refused(why)) => {
                self.book.postpone(slot, if waiting.is_some() { i64::MAX } else { self.again_ms(cx) });
                Due::Refused(why)
            }
            Err(Halt::Later(why)) => {
                self.revived(cx, slot, Some(why));
                Due::Done
            }
            Ok(()) => {
                self.revived(cx, slot, None);
                Due::Done
            }
        }
    }

    /// Copies one message of an expired check point to where it comes back from. What is gone is passed over.
    fn bring_back(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        of: &Expired,
        at: u32,
        offset: u64,
        waiting: &mut Option<u32>,
    ) -> Result<(), Halt> {
        let Expired { slot, topic, queue_id, .. } = of;
        let record = match message_at(cx, topic, *queue_id, offset) {
            ReadStep::Ready(record) => record,
            ReadStep::Missing(missing) => return Err(Halt::Missing(missing)),
            ReadStep::Failed(error) => {
                tracing::error!(topic = &**topic, queue_id, offset, %error, "a message that is due cannot be read");
                None
            }
        };
        let view = record.as_deref().and_then(|record| RecordView::parse(record).ok());
        let latest_ms = of.pop_time_ms.saturating_add(CLOCK_SLACK_MS);
        let own = of.physical + u64::from(at);
        if let Some(view) = view.filter(|view| view.store_timestamp_ms() <= latest_ms)
            && !self.delivered.remove(&own)
        {
            let dead = of.tries >= 0 && view.reconsume_times() >= of.tries;
            let way =
                if dead { self.topic_or_make(cx, names::dlq_topic(&of.group), 1) } else { Some(of.retry.clone()) };
            let Some(way) = way else { return Err(Halt::Later("the dead-letter topic is being made".to_owned())) };
            let waiter = *waiting.get_or_insert_with(|| self.wait(Then::Revived(*slot)));
            let way = Way { topic: &way, dead };
            match self.copy(cx, &way, of, &view, own, Token::Copy { waiting: waiter, at }) {
                Ok(()) => self.waiting[waiter as usize].left += 1,
                Err(AppendError::Illegal(why)) => {
                    tracing::error!(
                        topic = &**topic,
                        queue_id,
                        offset,
                        why,
                        "a message cannot come back: it is dropped"
                    );
                }
                Err(error) => return Err(Halt::Refused(error.to_string())),
            }
        }
        self.book.reviving(*slot, at);
        Ok(())
    }

    fn again_ms(&self, cx: &ShardContext<'_, '_>) -> i64 {
        cx.now().wall_ms.saturating_add(AGAIN_MS)
    }

    /// The copies of a check point are written, or some were refused.
    pub(super) fn revived(&mut self, cx: &mut ShardContext<'_, '_>, slot: u32, failed: Option<String>) {
        let there = self.book.revived(slot);
        if !there.is_empty() {
            self.mark(cx, slot, there);
        }
        if self.book.check(slot).is_some_and(|check| check.held().next().is_some()) {
            let again = if failed.is_some() { self.again_ms(cx) } else { cx.now().wall_ms };
            self.book.postpone(slot, again);
        }
    }

    /// Writes that messages of a check point are done with.
    fn mark(&mut self, cx: &mut ShardContext<'_, '_>, slot: u32, offsets: super::book::Offsets) {
        let Some(check) = self.book.check(slot) else { return };
        let pair = self.book.pair(check.pair);
        let of = CheckName {
            topic: &pair.topic,
            group: &pair.group,
            queue_id: check.queue_id,
            start: check.start,
            pop_time_ms: check.pop_time_ms,
        };
        self.draft.ack(&of, &self.options.broker_name, &offsets, cx.now().wall_ms);
        let revive_queue = check.revive_queue;
        let put = self.put_waiting(cx, revive_queue, &mut None, |waiting| Token::Ack { waiting, slot });
        if put.is_err() {
            self.unmarked.push((slot, offsets));
        }
    }

    /// Marks once more what could not be marked.
    pub(super) fn mark_again(&mut self, cx: &mut ShardContext<'_, '_>) {
        for (slot, offsets) in std::mem::take(&mut self.unmarked) {
            self.mark(cx, slot, offsets);
        }
    }

    /// The topic by which messages of a topic come back; `None`: it is being made.
    fn retry_way(&self, cx: &mut ShardContext<'_, '_>, topic: &str, group: &str) -> Option<Arc<Topic>> {
        let name = if names::is_retry_topic(topic.as_bytes()) {
            topic.to_owned()
        } else {
            retry_topic(topic, group, self.options.retry_topic_v2)
        };
        // A queue for each shard: what comes back stays in the shard that it came from.
        self.topic_or_make(cx, name, self.shards)
    }

    fn topic_or_make(&self, cx: &mut ShardContext<'_, '_>, name: String, queues: u32) -> Option<Arc<Topic>> {
        let known = cx.snapshot.topic(name.as_bytes()).cloned();
        if known.is_none() {
            self.make_topic(cx, name, queues);
        }
        known
    }

    fn copy(
        &self,
        cx: &mut ShardContext<'_, '_>,
        way: &Way<'_>,
        of: &Expired,
        view: &RecordView<'_>,
        own: u64,
        token: Token,
    ) -> Result<(), AppendError> {
        let queue_id = queue_here(way.topic, cx.id);
        let pop_time = itoa::Buffer::new().format(of.pop_time_ms).to_owned();
        let mut texts = DelayTexts::default();
        let mut list = PropertyList::parse(view.properties());
        if view.reconsume_times() == 0 || !list.contains(FIRST_POP_TIME) {
            list.put(FIRST_POP_TIME, pop_time.as_bytes());
        }
        list.put(ORIGIN_GROUP, of.group.as_bytes());
        if way.dead && !list.contains(DLQ_ORIGIN_TOPIC) {
            list.put(DLQ_ORIGIN_TOPIC, view.topic());
        }
        let shard = way.topic.shard_of(queue_id);
        let target = Target { topic: way.topic.name.as_bytes(), queue_id, shard };
        // A message that was delayed once says so still: it waits again. What says nonsense comes back at once.
        let wait = match way.dead {
            true => None,
            false => {
                delay::redirect(&mut list, target, &cx.snapshot.delays, cx.now().wall_ms, &mut texts).unwrap_or(None)
            }
        };
        let (topic, queue_id) = wait.map_or((target.topic, queue_id), |wait| (wait.topic, wait.queue_id));
        let fields = RecordFields {
            queue_id: queue_id as i32,
            topic,
            born_host: cx.store_host,
            store_host: cx.store_host,
            reconsume_times: view.reconsume_times().saturating_add(1),
            prepared_transaction_offset: own as i64,
            properties: PropertiesSource::List(list.view()),
            ..view.fields()
        };
        match cx.put(shard, &fields, token.waiter()) {
            // What was added does not fit any more: the message comes back without.
            Err(AppendError::Illegal(_)) if wait.is_none() => {
                let plain = RecordFields { properties: PropertiesSource::Text(view.properties()), ..fields };
                cx.put(shard, &plain, token.waiter())
            }
            other => other,
        }
    }
}

/// The queue of a topic by which a message stays in its shard; the first one when there is none.
fn queue_here(topic: &Topic, shard: ShardId) -> u32 {
    (0..topic.write_queues).find(|queue_id| topic.shard_of(*queue_id) == shard).unwrap_or(0)
}

/// The record at an offset of a queue; `None` when it is not there any more.
fn message_at(cx: &mut ShardContext<'_, '_>, topic: &str, queue_id: u32, offset: u64) -> ReadStep<Option<Bytes>> {
    let mut entries = Vec::new();
    match cx.shard.queue_entries(topic.as_bytes(), queue_id, QueueOffset(offset), 1, &mut entries) {
        ReadStep::Ready(_) => {}
        ReadStep::Missing(missing) => return ReadStep::Missing(missing),
        ReadStep::Failed(error) => return ReadStep::Failed(error),
    }
    match entries.first().filter(|entry| entry.queue_offset.0 == offset) {
        Some(entry) => cx.record_at(entry.offset),
        None => ReadStep::Ready(None),
    }
}
