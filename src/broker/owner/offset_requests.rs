//! Consumer offsets asked, committed and copied: 14, 15, 314, and the commit flag of pulls.

use super::answer::{Asker, Outcome};
use super::flow::Held;
use super::queues::QueuesByShard;
use super::{Owner, Refusal, Then, Turn};
use crate::gather::Gathered;
use remoting::{Command, ResponseCode};
use std::net::SocketAddr;
use store::Bounds;

/// A query of an offset that is not stored: the answer depends on the queue's smallest offset.
#[derive(Debug)]
pub(crate) struct Query {
    asker: Asker,
    queues: QueuesByShard,
    /// A light queue: there is none before its first message.
    light: bool,
}

impl Owner {
    /// 14.
    pub(super) fn query_offset(
        &mut self,
        turn: &mut Turn<'_>,
        asker: &Asker,
        command: &Command,
    ) -> Result<Outcome, Refusal> {
        let ext = &command.ext;
        let (group, topic) = (ext.text("consumerGroup")?, ext.text("topic")?);
        let queue_id = u32::try_from(ext.i32("queueId")?).ok();
        if let Some(offset) = queue_id.and_then(|q| self.offsets.query(group, topic, q)) {
            return Ok(Outcome::Now(asker.ok().with_field("offset", offset)));
        }
        if ext.boolean("setZeroIfNotFound") == Some(false) {
            let remark = "Not found, do not set to zero, maybe this group boot first";
            return Err(Refusal::new(ResponseCode::QueryNotFound, remark));
        }
        let light = self.is_light(topic);
        let mut queues = QueuesByShard::default();
        if let (Some(q), Some(topic)) = (queue_id, self.topic_or_light(topic)) {
            queues.add(&topic, q..q + 1);
        }
        self.gather(turn, queues.bounds(), Then::QueryOffset(Query { asker: asker.clone(), queues, light }))?;
        Ok(Outcome::Later)
    }

    /// 15. Answered when the journal has it.
    pub(super) fn update_offset(&mut self, asker: &Asker, command: &Command) -> Result<Outcome, Refusal> {
        let ext = &command.ext;
        let (group, topic) = (ext.text("consumerGroup")?, ext.text("topic")?);
        let (queue_id, offset) = (ext.i32("queueId")?, ext.i64("commitOffset")?);
        self.commit_allowed(group, topic, queue_id, offset)?;
        self.offsets.commit(group, topic, queue_id as u32, offset);
        self.flow.after_journal(Held::Reply(asker.clone(), asker.ok()), false);
        Ok(Outcome::Later)
    }

    /// The commit flag of a pull.
    pub(super) fn commit_of_pull(&mut self, group: &str, topic: &str, queue_id: u32, offset: i64, peer: SocketAddr) {
        let queue = i32::try_from(queue_id).unwrap_or(-1);
        match self.commit_allowed(group, topic, queue, offset) {
            Ok(()) => {
                self.offsets.commit(group, topic, queue_id, offset);
            }
            Err(refusal) => {
                tracing::debug!(group, topic, queue_id, %peer, refusal.remark, "a pull's offset was not committed")
            }
        }
    }

    /// Whether a group may commit this: the group and the topic exist, and the queue does or did.
    fn commit_allowed(&self, group: &str, topic: &str, queue_id: i32, offset: i64) -> Result<(), Refusal> {
        if !self.has_group(group) {
            let remark = format!("Group {group} not exist!");
            return Err(Refusal::new(ResponseCode::SubscriptionGroupNotExist, remark));
        }
        let missing = || Refusal::new(ResponseCode::TopicNotExist, format!("Topic {topic} not exist!"));
        let known = self.topic_or_light(topic).filter(|_| !self.deletions.contains_key(topic)).ok_or_else(missing)?;
        let queue = u32::try_from(queue_id).ok();
        if !queue.is_some_and(|q| q < known.queues() || self.offsets.has(group, topic, q)) {
            return Err(Refusal::parameter(format!("Topic {topic} has no queue {queue_id}")));
        }
        if offset < 0 {
            return Err(Refusal::parameter(format!("The offset {offset} is below 0")));
        }
        Ok(())
    }

    /// 43.
    pub(super) fn all_offsets(&self, asker: &Asker) -> Outcome {
        Outcome::Now(asker.json(&self.offsets.to_json(self.offsets_version)))
    }

    /// 314.
    pub(super) fn clone_offsets(&mut self, asker: &Asker, command: &Command) -> Result<Outcome, Refusal> {
        let ext = &command.ext;
        let (from, to) = (ext.text("srcGroup")?, ext.text("destGroup")?);
        let topics: Vec<String> = match ext.get("topic").filter(|t| !t.trim().is_empty()) {
            Some(topic) => vec![topic.to_owned()],
            None => self.offsets.topics_of(from).into_iter().map(str::to_owned).collect(),
        };
        let offline = ext.boolean("offline").unwrap_or(false);
        for topic in &topics {
            if self.topic_or_light(topic).is_none() {
                continue;
            }
            let subscribed = self
                .clients
                .group(from)
                .is_none_or(|g| g.subscriptions.is_empty() || g.subscriptions.contains_key(topic.as_str()));
            if offline || subscribed {
                self.offsets.clone_group(from, to, topic);
            }
        }
        self.flow.after_journal(Held::Reply(asker.clone(), asker.ok()), false);
        Ok(Outcome::Later)
    }
}

impl Query {
    pub fn finish(self, gathered: Gathered, turn: &mut Turn<'_>) {
        let Self { asker, queues, light } = self;
        let Some(states) = queues.states(gathered) else {
            let refusal = Refusal::new(ResponseCode::SystemError, "the shard of the queue did not answer in time");
            return asker.answer(asker.refuse(&refusal), turn.out);
        };
        let from_start = |bounds: &Bounds| bounds.min.0 == 0 && (!light || bounds.max.0 > 0);
        let response = if states.values().all(|s| from_start(&s.bounds)) {
            asker.ok().with_field("offset", 0)
        } else {
            let remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first";
            asker.response(ResponseCode::QueryNotFound).with_remark(remark)
        };
        asker.answer(response, turn.out);
    }
}
