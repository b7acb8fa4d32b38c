//! Resetting a group's offsets (222): by the broker itself, or by telling the members (220) when that is switched off.

use super::answer::{Asker, Outcome};
use super::flow::Held;
use super::queues::{ByQueue, QueuesByShard};
use super::topic_requests::{queue_json, queue_key};
use super::{Owner, OwnerAction, Refusal, Then, Turn};
use crate::gather::Gathered;
use crate::snapshot::Topic;
use remoting::{Command, Json, LanguageCode, RequestCode, ResponseCode};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A reset that waits for the queues' offsets.
#[derive(Debug)]
pub(crate) struct Reset {
    asker: Asker,
    topic: Arc<Topic>,
    group: String,
    timestamp_ms: i64,
    force: bool,
    /// The offset that is asked for instead of a time, of one queue.
    wanted: Option<i64>,
    queues: QueuesByShard,
}

impl Owner {
    /// 222.
    pub(super) fn reset_offset(
        &mut self,
        turn: &mut Turn<'_>,
        asker: &Asker,
        command: &Command,
    ) -> Result<Outcome, Refusal> {
        let ext = &command.ext;
        let (topic, group) = (ext.text("topic")?, ext.text("group")?);
        let timestamp_ms = ext.optional_i64("timestamp")?.unwrap_or(0);
        let queue_id = ext.optional_i32("queueId")?.unwrap_or(-1);
        let wanted = ext.optional_i64("offset")?.filter(|o| *o != -1);
        let missing = || Refusal::new(ResponseCode::TopicNotExist, format!("Topic {topic} does not exist"));
        let topic =
            self.topic_or_light(topic).filter(|t| !self.deletions.contains_key(&*t.name)).ok_or_else(missing)?;
        if !self.has_group(group) {
            let remark = format!("Group {group} does not exist");
            return Err(Refusal::new(ResponseCode::SubscriptionGroupNotExist, remark));
        }
        let ids = match (self.settings.server_side_reset, u32::try_from(queue_id)) {
            (true, Ok(q)) if q < topic.queues() => q..q + 1,
            (true, Ok(q)) => return Err(Refusal::parameter(format!("Topic {} has no queue {q}", topic.name))),
            (true, Err(_)) => 0..topic.read_queues,
            (false, _) => 0..topic.write_queues,
        };
        if ids.is_empty() {
            return Err(Refusal::new(ResponseCode::SystemError, "No queues to reset."));
        }
        let wanted = wanted.filter(|_| queue_id >= 0);
        let mut queues = QueuesByShard::default();
        queues.add(&topic, ids);
        let bounds = wanted.is_some() || timestamp_ms < 0;
        let asks = if bounds { queues.bounds() } else { queues.by_time(timestamp_ms) };
        let reset = Reset {
            asker: asker.clone(),
            topic: topic.clone(),
            group: group.to_owned(),
            timestamp_ms,
            force: ext.boolean("isForce").unwrap_or(false),
            wanted,
            queues,
        };
        self.gather(turn, asks, Then::Reset(reset))?;
        Ok(Outcome::Later)
    }

    pub(super) fn reset_with(&mut self, turn: &mut Turn<'_>, reset: Reset, gathered: Gathered) {
        let asker = reset.asker.clone();
        let done = reset.targets(gathered).and_then(|targets| match self.settings.server_side_reset {
            true => {
                self.reset_here(&reset, &targets);
                Ok(())
            }
            false => self.reset_at_clients(turn, &reset, targets),
        });
        if let Err(refusal) = done {
            asker.answer(asker.refuse(&refusal), turn.out);
        }
    }

    fn reset_here(&mut self, reset: &Reset, targets: &ByQueue<i64>) {
        for ((topic, queue_id), offset) in targets {
            self.offsets.reset(&reset.group, topic, *queue_id, *offset);
        }
        let response = reset.asker.json(&self.offset_table(targets));
        self.flow.after_journal(Held::Reply(reset.asker.clone(), response), true);
    }

    fn reset_at_clients(&mut self, turn: &mut Turn<'_>, reset: &Reset, targets: ByQueue<i64>) -> Result<(), Refusal> {
        let mut table = ByQueue::new();
        for ((topic, queue_id), offset) in targets {
            let current = self.offsets.query(&reset.group, &topic, queue_id).ok_or_else(|| {
                let remark = format!("THe consumer group <{}> not exist", reset.group);
                Refusal::new(ResponseCode::SystemError, remark)
            })?;
            let target = if reset.force { offset } else { offset.min(current) };
            table.insert((topic, queue_id), target);
        }
        let Some(members) = self.clients.group(&reset.group) else {
            let remark = format!(
                "Consumer not online, so can not reset offset, Group: {} Topic: {} Timestamp: {}",
                reset.group, reset.topic.name, reset.timestamp_ms
            );
            return Err(Refusal::new(ResponseCode::ConsumerNotOnline, remark));
        };
        let body = match reset.asker.language {
            LanguageCode::Cpp => self.offset_list(&table),
            _ => self.offset_table(&table),
        }
        .to_vec();
        for client in members.clients() {
            let command = Command::request(RequestCode::ResetConsumerClientOffset, self.calls.next_opaque())
                .with_field("group", &reset.group)
                .with_field("isForce", reset.force)
                .with_field("timestamp", reset.timestamp_ms)
                .with_field("topic", &*reset.topic.name)
                .with_body(body.clone())
                .oneway();
            turn.out.push(OwnerAction::Push { conn: client.conn, command });
        }
        reset.asker.answer(reset.asker.json(&self.offset_table(&table)), turn.out);
        Ok(())
    }

    fn offset_table(&self, table: &ByQueue<i64>) -> Json {
        let broker = &self.options.broker_name;
        let entries = table.iter().map(|((t, q), offset)| (queue_key(broker, t, *q), Json::Int(*offset)));
        Json::bean([("offsetTable", Json::Object(entries.collect()))])
    }

    fn offset_list(&self, table: &ByQueue<i64>) -> Json {
        let broker = &self.options.broker_name;
        let item = |((t, q), offset): (&(String, u32), &i64)| {
            let Json::Object(mut members) = queue_json(broker, t, *q) else { return Json::Null };
            members.insert(1, ("offset".into(), Json::Int(*offset)));
            Json::Object(members)
        };
        Json::bean([("offsetTable", Json::list(table.iter().map(item)))])
    }
}

impl Reset {
    /// Where each queue is to go on.
    fn targets(&self, gathered: Gathered) -> Result<ByQueue<i64>, Refusal> {
        let silent = || Refusal::new(ResponseCode::SystemError, "a shard did not answer in time");
        if let Some(wanted) = self.wanted {
            let states = self.queues.states(gathered).ok_or_else(silent)?;
            for state in states.values() {
                let (min, max) = (state.bounds.min.to_i64(), state.bounds.max.to_i64());
                if wanted < min || wanted > max {
                    let remark = format!("Target offset {wanted} not in consume queue range [{min}-{max}]");
                    return Err(Refusal::new(ResponseCode::SystemError, remark));
                }
            }
            return Ok(states.into_keys().map(|queue| (queue, wanted)).collect());
        }
        if self.timestamp_ms < 0 {
            let states = self.queues.states(gathered).ok_or_else(silent)?;
            return Ok(states.into_iter().map(|(q, s)| (q, s.bounds.max.to_i64())).collect::<BTreeMap<_, _>>());
        }
        self.queues.offsets(gathered).ok_or_else(silent)
    }
}
