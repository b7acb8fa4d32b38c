//! Requests that make, change and show topics: 17, 18, 21, 305, 351, and the unknown topic of a send.

use super::answer::{Asker, Outcome, body_object};
use super::flow::Held;
use super::topics::{TopicWish, parse_attributes, topic_json, wish_from_json};
use super::version::DataVersion;
use super::{Origin, Owner, OwnerAction, OwnerRequest, Refusal, RetryWaiter, Turn};
use crate::snapshot::{Group, PERM_READ, PERM_WRITE};
use message::names;
use remoting::json::JsonRef;
use remoting::json::Key;
use remoting::{Command, Json, ResponseCode};
use std::sync::Arc;

/// Most topics or groups of one part of a listing (Java's `splitMetadataSize`).
const PART: usize = 1_000;

impl Owner {
    /// 17.
    pub(super) fn update_topic(
        &mut self,
        turn: &mut Turn<'_>,
        asker: &Asker,
        command: &Command,
    ) -> Result<Outcome, Refusal> {
        let wish = wish_of(command)?;
        if let Some(Outcome::Later) = self.park_for_deletion(&wish.name, asker.origin, command) {
            return Ok(Outcome::Later);
        }
        self.topics.check_admin(&wish).map_err(Refusal::parameter)?;
        let changed = self.topics.update(wish, turn.now.wall_ms).map_err(bad_attributes)?;
        self.topics_settled(turn, asker, changed);
        Ok(Outcome::Later)
    }

    /// 18: all or none.
    pub(super) fn update_topics(
        &mut self,
        turn: &mut Turn<'_>,
        asker: &Asker,
        command: &Command,
    ) -> Result<Outcome, Refusal> {
        let body = body_object(command)?;
        let list = body.get("topicConfigList");
        if !list.is_list() {
            return Err(Refusal::new(ResponseCode::SystemError, "the body has no topicConfigList"));
        }
        let wishes: Option<Vec<TopicWish>> = list.items().map(wish_from_json).collect();
        let wishes = wishes.ok_or_else(|| Refusal::parameter("The specified topic is blank."))?;
        for wish in &wishes {
            self.topics.check_admin(wish).map_err(Refusal::parameter)?;
            if let Some(Outcome::Later) = self.park_for_deletion(&wish.name, asker.origin, command) {
                return Ok(Outcome::Later);
            }
        }
        let mut book = self.topics.clone();
        let mut changed = false;
        for wish in wishes {
            changed |= book.update(wish, turn.now.wall_ms).map_err(bad_attributes)?;
        }
        self.topics = book;
        self.topics_settled(turn, asker, changed);
        Ok(Outcome::Later)
    }

    /// A send met an unknown topic.
    pub(super) fn ensure_topic(&mut self, turn: &mut Turn<'_>, request: OwnerRequest) {
        let OwnerRequest::EnsureTopic { topic: name, .. } = &request else { return };
        let name = name.clone();
        let Some(request) = self.wait_for_deletion(&name, request) else { return };
        let OwnerRequest::EnsureTopic { ticket, topic, default_topic, default_queues, topic_sys_flag, peer } = request
        else {
            return;
        };
        let now_ms = turn.now.wall_ms;
        if self.topics.get(&topic).is_some() {
            return self.when_known(turn, Held::Resume(ticket));
        }
        let group = topic.strip_prefix("%RETRY%").map(str::to_owned);
        let made = match group {
            Some(group) => match self.group_or_new(&group, now_ms) {
                Some(settings) => {
                    let wish = TopicWish { sys_flag: topic_sys_flag, ..retry_wish(&settings) };
                    self.topics.ensure(wish, now_ms)
                }
                None => false,
            },
            None => self.topics.create_by_send(
                &topic,
                &default_topic,
                default_queues,
                topic_sys_flag,
                &self.settings.clone(),
                now_ms,
            ),
        };
        if made {
            tracing::info!(topic, default_topic, %peer, "a topic was made by a send");
            return self.flow.topics_changed(Some(Held::Resume(ticket)));
        }
        let remark = format!(
            "topic[{topic}] not exist, apply first please! See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
        );
        let refusal = Refusal::new(ResponseCode::TopicNotExist, remark);
        turn.out.push(OwnerAction::Resume { ticket, outcome: Err(refusal) });
    }

    /// A retry or a dead letter needs its topic: Java's `createTopicInSendMessageBackMethod`.
    pub(super) fn ensure_named_retry_topic(&mut self, turn: &mut Turn<'_>, request: OwnerRequest) {
        let OwnerRequest::EnsureRetryTopic { topic: name, .. } = &request else { return };
        let name = name.clone();
        let Some(request) = self.wait_for_deletion(&name, request) else { return };
        let OwnerRequest::EnsureRetryTopic { waiter, topic, queues, topic_sys_flag } = request else { return };
        let held = match waiter {
            RetryWaiter::Frame(ticket) => Held::Resume(ticket),
            RetryWaiter::SendBack(job) => Held::SendBack(job),
        };
        let wish = TopicWish { sys_flag: topic_sys_flag, ..TopicWish::plain(&topic, queues, 6) };
        if self.topics.get(&topic).is_none() && self.topics.ensure(wish, turn.now.wall_ms) {
            tracing::info!(topic, "a topic was made for retries");
            return self.flow.topics_changed(Some(held));
        }
        self.when_known(turn, held);
    }

    /// Makes a topic that the broker itself writes to.
    pub(super) fn ensure_system_topic(&mut self, turn: &Turn<'_>, name: &str, queues: u32) {
        let wish = TopicWish::plain(name, queues, PERM_READ | PERM_WRITE);
        if self.topics.get(name).is_none()
            && !self.deletions.contains_key(name)
            && self.topics.ensure(wish, turn.now.wall_ms)
        {
            tracing::info!(topic = name, queues, "a topic of the broker's own was made");
            self.flow.topics_changed(None);
        }
    }

    /// Makes the retry topic of a group that a consumer just named. Returns whether topics changed.
    pub(super) fn ensure_retry_topic(&mut self, group: &Group, order: bool, unit: bool, now_ms: i64) -> bool {
        let sys_flag = if unit { 2 } else { 0 };
        let wish = TopicWish { order, sys_flag, ..retry_wish(group) };
        !self.deletions.contains_key(&wish.name) && self.topics.ensure(wish, now_ms)
    }

    /// 21: all topics, or the part that the header asks for.
    pub(super) fn all_topics(&self, asker: &Asker, command: &Command) -> Result<Outcome, Refusal> {
        let all = self.topics.table().sorted();
        let version = self.topics.version();
        let part = part_of(command, version, "topicSeq", "maxTopicNum", all.len())?;
        let table = all[part].iter().map(|(n, t)| (n.to_string(), topic_json(t)));
        let body = Json::bean([
            ("dataVersion", version.to_json()),
            ("mappingDataVersion", DataVersion { timestamp_ms: version.timestamp_ms, ..Default::default() }.to_json()),
            ("topicConfigTable", Json::map(table)),
            ("topicQueueMappingDetailMap", Json::Object(Vec::new())),
            ("topicQueueMappingInfoMap", Json::Object(Vec::new())),
        ]);
        Ok(Outcome::Now(asker.json(&body).with_field("totalTopicNum", all.len())))
    }

    /// 351.
    pub(super) fn topic_config(&self, asker: &Asker, command: &Command) -> Result<Outcome, Refusal> {
        let name = command.ext.text("topic")?;
        let shown = self.topic_or_light(name).filter(|_| !self.deletions.contains_key(name));
        let topic = shown.ok_or_else(|| {
            Refusal::new(ResponseCode::TopicNotExist, format!("No topic in this broker. topic: {name}"))
        })?;
        Ok(Outcome::Now(asker.json(&topic_json(&topic))))
    }

    /// 305.
    pub(super) fn system_topics(&self, asker: &Asker) -> Outcome {
        let body = Json::bean([("topicList", Json::list(self.topics.system_names()))]);
        Outcome::Now(asker.json(&body))
    }

    fn topics_settled(&mut self, turn: &mut Turn<'_>, asker: &Asker, changed: bool) {
        let held = Held::Registered(asker.clone(), asker.ok());
        if changed { self.flow.topics_changed(Some(held)) } else { self.when_known(turn, held) }
    }

    fn park_for_deletion(&mut self, topic: &str, origin: Origin, command: &Command) -> Option<Outcome> {
        let request = OwnerRequest::Request { origin, command: command.clone() };
        self.wait_for_deletion(topic, request).is_none().then_some(Outcome::Later)
    }

    /// A group, made now if groups are made by themselves. `None`: it cannot be.
    pub(super) fn group_or_new(&mut self, name: &str, now_ms: i64) -> Option<Arc<Group>> {
        if let Some(group) = self.groups.get(name) {
            return Some(group.clone());
        }
        if !self.settings.auto_create_group {
            return None;
        }
        if self.groups.ensure(name, now_ms)? {
            tracing::info!(group = name, "a group was made by its first use");
            self.flow.groups_changed(None);
        }
        self.groups.get(name).cloned()
    }
}

/// The retry topic of a group.
fn retry_wish(group: &Group) -> TopicWish {
    TopicWish::plain(&names::retry_topic(&group.name), group.retry_queues.max(1), 6)
}

fn bad_attributes(remark: String) -> Refusal {
    Refusal::new(ResponseCode::SystemError, remark)
}

fn wish_of(command: &Command) -> Result<TopicWish, Refusal> {
    let ext = &command.ext;
    let queues = |field: &'static str| -> Result<u32, Refusal> {
        let number = ext.i32(field)?;
        u32::try_from(number).map_err(|_| Refusal::parameter(format!("{field} cannot be {number}")))
    };
    let perm = ext.i32("perm")?;
    Ok(TopicWish {
        name: ext.text("topic")?.to_owned(),
        read_queues: queues("readQueueNums")?,
        write_queues: queues("writeQueueNums")?,
        perm: u32::try_from(perm).map_err(|_| Refusal::parameter(format!("perm cannot be {perm}")))?,
        sys_flag: ext.optional_i32("topicSysFlag")?.unwrap_or(0),
        multi_tag: match ext.get("topicFilterType") {
            None | Some("SINGLE_TAG") => false,
            Some("MULTI_TAG") => true,
            Some(other) => return Err(Refusal::parameter(format!("topicFilterType cannot be {other}"))),
        },
        order: ext.boolean("order").unwrap_or(false),
        attributes: parse_attributes(ext.get("attributes").unwrap_or_default()).map_err(bad_attributes)?,
    })
}

/// Which part of `len` sorted entries a listing asks for: all, unless it names a version, a start or a most. A listing of another
/// version starts anew.
pub(super) fn part_of(
    command: &Command,
    version: DataVersion,
    start: &'static str,
    most: &'static str,
    len: usize,
) -> Result<std::ops::Range<usize>, Refusal> {
    let (asked, from, max) =
        (command.ext.get("dataVersion"), command.ext.optional_i32(start)?, command.ext.optional_i32(most)?);
    if asked.is_none() && from.is_none() && max.is_none() {
        return Ok(0..len);
    }
    let same = asked
        .and_then(|text| JsonRef::parse(text.as_bytes()).ok().map(DataVersion::from_json))
        .is_some_and(|v| v == version);
    let at = |n: i32| usize::try_from(n).unwrap_or(0);
    let begin = if same { at(from.unwrap_or(0)).min(len) } else { 0 };
    let count = max.map_or(PART, at).min(PART);
    Ok(begin..len.min(begin + count))
}

/// A message queue as Java's tools name it, as the key of a table.
pub(super) fn queue_key(broker: &str, topic: &str, queue_id: u32) -> Key {
    Key::Object(Box::new(queue_json(broker, topic, queue_id)))
}

/// A message queue as Java's tools name it.
pub(super) fn queue_json(broker: &str, topic: &str, queue_id: u32) -> Json {
    Json::bean([("brokerName", broker.into()), ("queueId", i64::from(queue_id).into()), ("topic", topic.into())])
}
