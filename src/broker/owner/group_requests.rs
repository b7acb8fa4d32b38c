//! Requests that make, change and show groups and clients: 200, 201, 203, 204, 207, 225, 300, 328, 343, 345, 352.

use super::answer::{Asker, Outcome, body_object};
use super::clients::Client;
use super::flow::Held;
use super::groups::{group_from_json, group_json};
use super::topic_requests::part_of;
use super::{Owner, OwnerAction, Refusal, Ticket, Turn};
use crate::snapshot::{Group, MessageModel, Subscription, is_readable};
use message::names;
use remoting::json::JsonRef;
use remoting::{Command, Json, ResponseCode};
use std::collections::BTreeSet;

impl Owner {
    /// 200.
    pub(super) fn update_group(
        &mut self,
        turn: &mut Turn<'_>,
        asker: &Asker,
        command: &Command,
    ) -> Result<Outcome, Refusal> {
        let group = wish(body_object(command)?)?;
        self.put_groups(turn, asker, vec![group])
    }

    /// 225: all or none.
    pub(super) fn update_groups(
        &mut self,
        turn: &mut Turn<'_>,
        asker: &Asker,
        command: &Command,
    ) -> Result<Outcome, Refusal> {
        let body = body_object(command)?;
        let list = body.get("groupConfigList");
        if !list.is_list() {
            return Err(Refusal::new(ResponseCode::SystemError, "the body has no groupConfigList"));
        }
        let groups = list.items().map(wish).collect::<Result<Vec<_>, _>>()?;
        self.put_groups(turn, asker, groups)
    }

    fn put_groups(&mut self, turn: &mut Turn<'_>, asker: &Asker, groups: Vec<Group>) -> Result<Outcome, Refusal> {
        let mut book = self.groups.clone();
        let mut changed = false;
        for group in groups {
            changed |= book.update(group, turn.now.wall_ms).map_err(Refusal::parameter)?;
        }
        self.groups = book;
        let held = Held::Reply(asker.clone(), asker.ok());
        if changed {
            self.flow.groups_changed(Some(held))
        } else {
            self.when_known(turn, held)
        }
        Ok(Outcome::Later)
    }

    /// A pull met an unknown group.
    pub(super) fn ensure_group(&mut self, turn: &mut Turn<'_>, ticket: Ticket, group: &str) {
        if self.group_or_new(group, turn.now.wall_ms).is_some() {
            return self.when_known(turn, Held::Resume(ticket));
        }
        let remark = format!("subscription group [{group}] does not exist");
        let refusal = Refusal::new(ResponseCode::SubscriptionGroupNotExist, remark);
        turn.out.push(OwnerAction::Resume { ticket, outcome: Err(refusal) });
    }

    /// 207.
    pub(super) fn delete_group(
        &mut self,
        turn: &mut Turn<'_>,
        asker: &Asker,
        command: &Command,
    ) -> Result<Outcome, Refusal> {
        let group = command.ext.text("groupName")?;
        tracing::info!(group, peer = %asker.origin.peer, "a group is to be deleted");
        if command.ext.boolean("cleanOffset").unwrap_or(false) && self.offsets.drop_group(group) {
            self.flow.publish();
        }
        let removed = self.groups.remove(group, turn.now.wall_ms);
        let held = Held::Reply(asker.clone(), asker.ok());
        if removed {
            self.flow.groups_changed(Some(held))
        } else {
            self.flow.after_journal(held, false)
        }
        Ok(Outcome::Later)
    }

    /// 353: forbids or allows a group to read a topic, if it is told which; tells how it is.
    pub(super) fn group_forbidden(
        &mut self,
        turn: &mut Turn<'_>,
        asker: &Asker,
        command: &Command,
    ) -> Result<Outcome, Refusal> {
        let (group, topic) = (command.ext.text("group")?, command.ext.text("topic")?);
        names::check_group(group.as_bytes()).map_err(|e| Refusal::parameter(e.group_remark(group.as_bytes())))?;
        names::check_topic(topic.as_bytes()).map_err(|e| Refusal::parameter(e.topic_remark(topic.as_bytes())))?;
        let asked = command.ext.boolean("readable");
        let changed = asked.is_some_and(|yes| self.groups.set_readable(group, topic, yes, turn.now.wall_ms));
        let readable = is_readable(self.groups.forbidden(), group, topic);
        let body = Json::bean([("group", group.into()), ("readable", readable.into()), ("topic", topic.into())]);
        let held = Held::Reply(asker.clone(), asker.json(&body).with_remark(""));
        if changed {
            self.flow.groups_changed(Some(held))
        } else {
            self.when_known(turn, held)
        }
        Ok(Outcome::Later)
    }

    /// 201: all groups, or the part that the header asks for.
    pub(super) fn all_groups(&self, asker: &Asker, command: &Command) -> Result<Outcome, Refusal> {
        let all = self.groups.table().sorted();
        let part = part_of(command, self.groups.version(), "groupSeq", "maxGroupNum", all.len())?;
        let body = Json::bean([
            ("dataVersion", self.groups.version().to_json()),
            ("forbiddenTable", self.groups.forbidden_json()),
            ("subscriptionGroupTable", self.groups.table_json(&all[part])),
        ]);
        Ok(Outcome::Now(asker.json(&body).with_field("totalGroupNum", all.len())))
    }

    /// 352.
    pub(super) fn group_config(&self, asker: &Asker, command: &Command) -> Result<Outcome, Refusal> {
        let group = self.groups.get(command.ext.text("group")?);
        let missing = || Refusal::new(ResponseCode::SubscriptionGroupNotExist, "No group in this broker");
        Ok(Outcome::Now(asker.json(&group_json(group.ok_or_else(missing)?))))
    }

    /// 203.
    pub(super) fn consumer_connections(&self, asker: &Asker, command: &Command) -> Result<Outcome, Refusal> {
        let name = command.ext.text("consumerGroup")?;
        let group = self.clients.group(name).ok_or_else(|| {
            Refusal::new(ResponseCode::ConsumerNotOnline, format!("the consumer group[{name}] not online"))
        })?;
        let model = match group.model {
            MessageModel::Broadcasting => "BROADCASTING",
            MessageModel::Clustering => "CLUSTERING",
        };
        let table = group.subscriptions.iter().map(|(topic, s)| (topic.to_string(), subscription_json(s)));
        let body = Json::bean([
            ("connectionSet", Json::list(group.clients().into_iter().map(connection_json))),
            ("consumeFromWhere", (&*group.from_where).into()),
            ("consumeType", group.consume_type.name().into()),
            ("messageModel", model.into()),
            ("subscriptionTable", Json::map(table)),
        ]);
        Ok(Outcome::Now(asker.json(&body)))
    }

    /// 204.
    pub(super) fn producer_connections(&self, asker: &Asker, command: &Command) -> Result<Outcome, Refusal> {
        let name = command.ext.text("producerGroup")?;
        let clients = self
            .clients
            .producers(name)
            .ok_or_else(|| Refusal::new(ResponseCode::SystemError, format!("the producer group[{name}] not exist")))?;
        let body = Json::bean([("connectionSet", Json::list(clients.into_iter().map(connection_json)))]);
        Ok(Outcome::Now(asker.json(&body)))
    }

    /// 328.
    pub(super) fn all_producers(&self, asker: &Asker) -> Outcome {
        let info = |c: &Client| {
            Json::bean([
                ("clientId", (&*c.id).into()),
                ("language", c.language.name().into()),
                ("lastUpdateTimestamp", c.seen_ms.into()),
                ("remoteIP", format!("/{}", c.peer).into()),
                ("version", c.version.into()),
            ])
        };
        let groups = self.clients.producer_groups();
        let data = groups.map(|(name, clients)| (name.to_string(), Json::list(clients.into_iter().map(info))));
        Outcome::Now(asker.json(&Json::bean([("data", Json::map(data))])))
    }

    /// 300.
    pub(super) fn consumers_of_topic(&self, asker: &Asker, command: &Command) -> Result<Outcome, Refusal> {
        let topic = command.ext.text("topic")?;
        let online = self.clients.groups().filter(|(_, g)| g.subscriptions.contains_key(topic)).map(|(n, _)| &**n);
        let groups: BTreeSet<&str> = online.chain(self.offsets.groups_of(topic)).collect();
        Ok(Outcome::Now(asker.json(&Json::bean([("groupList", Json::list(groups))]))))
    }

    /// 343.
    pub(super) fn topics_of_group(&self, asker: &Asker, command: &Command) -> Result<Outcome, Refusal> {
        let group = command.ext.text("group")?;
        let body = Json::bean([
            ("brokerAddr", self.options.address.to_string().into()),
            ("topicList", Json::list(self.offsets.topics_of(group))),
        ]);
        Ok(Outcome::Now(asker.json(&body)))
    }

    /// 345.
    pub(super) fn subscription_of_group(&self, asker: &Asker, command: &Command) -> Result<Outcome, Refusal> {
        let (group, topic) = (command.ext.text("group")?, command.ext.get("topic"));
        let found = topic.and_then(|t| self.clients.group(group)?.subscriptions.get(t));
        let body = Json::bean([
            ("group", group.into()),
            ("subscriptionData", found.map(|s| subscription_json(s)).unwrap_or(Json::Null)),
            ("topic", topic.map(str::to_owned).into()),
        ]);
        Ok(Outcome::Now(asker.json(&body)))
    }
}

fn wish(json: JsonRef<'_>) -> Result<Group, Refusal> {
    let blank = || Refusal::parameter(names::NameError::Blank.group_remark(b""));
    group_from_json(json).ok_or_else(blank)
}

fn connection_json(client: &Client) -> Json {
    Json::bean([
        ("clientAddr", client.peer.to_string().into()),
        ("clientId", (&*client.id).into()),
        ("language", client.language.name().into()),
        ("version", client.version.into()),
    ])
}

/// A subscription as Java's `SubscriptionData`.
fn subscription_json(s: &Subscription) -> Json {
    Json::bean([
        ("classFilterMode", s.class_filter_mode.into()),
        ("codeSet", Json::list(s.codes.iter().copied())),
        ("expressionType", (&*s.expression_type).into()),
        ("subString", (&*s.expression).into()),
        ("subVersion", s.version.into()),
        ("tagsSet", Json::list(s.tags.iter().map(|t| &**t))),
        ("topic", (&*s.topic).into()),
    ])
}
