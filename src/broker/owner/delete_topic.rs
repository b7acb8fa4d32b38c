//! Deletion of a topic (request 215), step by step:
//! out of every core's snapshot → ends of the logs → tombstone on disk → out of `topics.json` and the offsets → the shards forget its
//! queues → name servers told → answered. A crash before the tombstone leaves the topic as it was; one after it leaves it empty.
//! What asks for the topic meanwhile waits until the deletion is over.

use super::answer::{Asker, Outcome};
use super::flow::Held;
use super::{Owner, OwnerAction, OwnerRequest, Refusal, Then, Turn};
use crate::gather::{Gathered, ShardAnswer, ShardAsk};
use remoting::{Command, ResponseCode};
use std::io;

/// A deletion under way.
#[derive(Debug, Default)]
pub(crate) struct Deletion {
    askers: Vec<Asker>,
    /// Requests that want the topic, made after it.
    waiting: Vec<OwnerRequest>,
    /// The write of its tombstone.
    token: Option<u64>,
}

impl Owner {
    pub(super) fn delete_topic(
        &mut self,
        turn: &mut Turn<'_>,
        asker: &Asker,
        command: &Command,
    ) -> Result<Outcome, Refusal> {
        let topic = command.ext.get("topic").unwrap_or_default();
        if topic.trim().is_empty() {
            return Err(Refusal::parameter("The specified topic is blank."));
        }
        if self.topics.is_system(topic) {
            return Err(Refusal::parameter(format!("The topic[{topic}] is conflict with system topic.")));
        }
        if self.is_light(topic) {
            // Messages of other topics come into it all the time: there is no moment after which all are new.
            return Err(Refusal::parameter(format!("The topic[{topic}] is a light queue, which cannot be deleted.")));
        }
        if let Some(deletion) = self.deletions.get_mut(topic) {
            deletion.askers.push(asker.clone());
            return Ok(Outcome::Later);
        }
        tracing::info!(topic, peer = %asker.origin.peer, "a topic is to be deleted");
        if self.topics.get(topic).is_none() {
            self.drop_offsets_of(topic);
            self.flow.after_journal(Held::Reply(asker.clone(), asker.ok()), false);
            return Ok(Outcome::Later);
        }
        self.deletions.insert(topic.to_owned(), Deletion { askers: vec![asker.clone()], ..Deletion::default() });
        self.flow.publish_topics();
        // A write in flight may still bring the topic into the durable table; the snapshot leaves it out all the same.
        self.flow.after_publish(Held::Unpublished(topic.to_owned()));
        let _ = turn;
        Ok(Outcome::Later)
    }

    /// Keeps a request for a topic that is being deleted until that is over. Gives it back when it is not.
    pub(super) fn wait_for_deletion(&mut self, topic: &str, request: OwnerRequest) -> Option<OwnerRequest> {
        match self.deletions.get_mut(topic) {
            Some(deletion) => {
                deletion.waiting.push(request);
                None
            }
            None => Some(request),
        }
    }

    /// No core takes messages for the topic any more.
    pub(super) fn deletion_unpublished(&mut self, turn: &mut Turn<'_>, topic: String) {
        if let Err(refusal) = self.gather_all(turn, &ShardAsk::End, Then::Delete(topic.clone())) {
            self.deletion_failed(turn, &topic, &refusal.remark);
        }
    }

    pub(super) fn delete_with_ends(&mut self, turn: &mut Turn<'_>, topic: String, gathered: Gathered) {
        let ends: Option<Vec<_>> = gathered
            .answers
            .iter()
            .map(|(_, answer)| match answer {
                Some(ShardAnswer::End(end)) => Some(*end),
                _ => None,
            })
            .collect();
        let Some(ends) = ends else { return self.deletion_failed(turn, &topic, "a shard did not answer in time") };
        let token = self.token();
        if let Some(deletion) = self.deletions.get_mut(&topic) {
            deletion.token = Some(token);
            turn.out.push(OwnerAction::PersistTombstone { token, topic: topic.into(), ends });
        }
    }

    pub(super) fn tombstone_written(&mut self, turn: &mut Turn<'_>, token: u64, result: io::Result<()>) {
        let found = self.deletions.iter().find(|(_, d)| d.token == Some(token)).map(|(topic, _)| topic.clone());
        let Some(topic) = found else { return };
        if let Err(error) = result {
            return self.deletion_failed(turn, &topic, &error.to_string());
        }
        self.topics.remove(&topic, turn.now.wall_ms);
        self.drop_offsets_of(&topic);
        self.flow.topics_changed(Some(Held::Removed(topic)));
    }

    /// The files say that the topic is gone.
    pub(super) fn deletion_removed(&mut self, turn: &mut Turn<'_>, topic: String) {
        let ask = ShardAsk::DeleteTopic(topic.as_str().into());
        if let Err(refusal) = self.gather_all(turn, &ask, Then::Forgotten(topic.clone())) {
            self.deletion_failed(turn, &topic, &refusal.remark);
        }
    }

    pub(super) fn topic_forgotten(&mut self, turn: &mut Turn<'_>, topic: &str, gathered: Gathered) {
        if !gathered.complete() {
            return self.deletion_failed(turn, topic, "a shard did not forget the topic in time");
        }
        let Some(deletion) = self.deletions.remove(topic) else { return };
        self.flow.publish();
        for asker in deletion.askers {
            let response = asker.ok();
            self.when_known(turn, Held::Registered(asker, response));
        }
        self.serve_waiting(turn, deletion.waiting);
    }

    pub(super) fn deletion_failed(&mut self, turn: &mut Turn<'_>, topic: &str, why: &str) {
        let Some(deletion) = self.deletions.remove(topic) else { return };
        tracing::error!(topic, why, "a topic could not be deleted");
        self.flow.publish_topics();
        let remark = format!("the topic {topic} could not be deleted: {why}");
        for asker in deletion.askers {
            let refusal = Refusal::new(ResponseCode::SystemError, remark.clone());
            asker.answer(asker.refuse(&refusal), turn.out);
        }
        self.serve_waiting(turn, deletion.waiting);
    }

    fn serve_waiting(&mut self, turn: &mut Turn<'_>, waiting: Vec<OwnerRequest>) {
        for request in waiting {
            self.request(turn, request);
        }
    }

    fn drop_offsets_of(&mut self, topic: &str) {
        if self.offsets.drop_topic(topic) {
            self.flow.publish();
        }
    }
}
