//! Clients come, stay and go: 34, 35, 38, 46, closed connections, and the notice (40) to the members of a group.

use super::answer::{Asker, Outcome, body_object};
use super::clients::{Change, Client, ConsumeType, ConsumerBeat};
use super::flow::Held;
use super::{Owner, OwnerAction, Refusal, Turn};
use crate::filter::Compiled;
use crate::snapshot::{MessageModel, Subscription};
use crate::work::{MessageFilter, is_tag_kind};
use message::hash::java_hash;
use reactor::ConnectionId;
use remoting::json::JsonRef;
use remoting::{Command, Json, RequestCode, ResponseCode};
use std::sync::Arc;

/// How often silent clients are looked for, µs.
const CHECK_INTERVAL_US: u64 = 5_000_000;

impl Owner {
    /// 34. Answered when every core knows what it brought; at once when it brought nothing new.
    pub(super) fn heartbeat(
        &mut self,
        turn: &mut Turn<'_>,
        asker: &Asker,
        command: &Command,
    ) -> Result<Outcome, Refusal> {
        let body = body_object(command)?;
        let id = body.get("clientID").string();
        let fingerprint = body.get("heartbeatFingerprint").as_i32().unwrap_or(0);
        let without_list = fingerprint != 0 && body.get("withoutSub").as_bool() == Some(true);
        let client = Client::of(&asker.origin, asker.language, asker.version, &id, turn.now);
        let mut send_list = fingerprint == 0;
        for consumer in body.get("consumerDataSet").items() {
            let beat = consumer_beat(consumer, fingerprint, without_list);
            let unit = consumer.get("unitMode").as_bool() == Some(true);
            let change = self.consumer_beats(turn, &consumer.get("groupName").string(), &client, beat, unit);
            send_list |= change.send_list;
        }
        for producer in body.get("producerDataSet").items() {
            let group = producer.get("groupName").string();
            if !group.is_empty() && group.len() <= message::names::RETRY_OR_DLQ_TOPIC_MAX_LENGTH {
                self.clients.producer(&group.into(), client.clone());
            }
        }
        let response = asker.ok().with_field("IS_SUPPORT_HEART_BEAT_V2", true).with_field("IS_SUB_CHANGE", send_list);
        self.when_known(turn, Held::Reply(asker.clone(), response));
        Ok(Outcome::Later)
    }

    fn consumer_beats(
        &mut self,
        turn: &mut Turn<'_>,
        name: &str,
        client: &Client,
        beat: ConsumerBeat,
        unit: bool,
    ) -> Change {
        let Some(group) = self.group_or_new(name, turn.now.wall_ms) else {
            tracing::debug!(
                group = name,
                client = &*client.id,
                "a consumer of a group that does not exist and cannot be made"
            );
            return Change::default();
        };
        let listed = beat.subscriptions.iter().flatten();
        let order = listed.filter_map(|s| self.topics.get(&s.topic)).any(|t| t.order);
        if self.ensure_retry_topic(&group, order, unit, turn.now.wall_ms) {
            self.flow.topics_changed(None);
        }
        let listed = beat.subscriptions.as_deref();
        let filtered = listed.is_some_and(|list| self.filters.register(&group.name, list, turn.now.wall_ms));
        let mut change = self.clients.consumer(&group.name, client.clone(), beat);
        change.publish |= filtered;
        self.clients_changed(turn, &group.name, &change);
        change
    }

    /// 35.
    pub(super) fn unregister(
        &mut self,
        turn: &mut Turn<'_>,
        asker: &Asker,
        command: &Command,
    ) -> Result<Outcome, Refusal> {
        command.ext.text("clientID")?;
        if let Some(group) = command.ext.get("producerGroup") {
            self.clients.remove_producer(group, asker.origin.conn);
        }
        if let Some(group) = command.ext.get("consumerGroup")
            && let Some(change) = self.clients.remove_consumer(group, asker.origin.conn)
        {
            self.clients_changed(turn, &group.into(), &change);
        }
        self.when_known(turn, Held::Reply(asker.clone(), asker.ok()));
        Ok(Outcome::Later)
    }

    /// 38.
    pub(super) fn consumer_list(&self, asker: &Asker, command: &Command) -> Result<Outcome, Refusal> {
        let name = command.ext.text("consumerGroup")?;
        let group = self
            .clients
            .group(name)
            .ok_or_else(|| Refusal::new(ResponseCode::SystemError, format!("no consumer for this group, {name}")))?;
        let ids = Json::list(group.clients().into_iter().map(|c| &*c.id));
        Ok(Outcome::Now(asker.json(&Json::bean([("consumerIdList", ids)]))))
    }

    /// 46: whether a subscription that is no tag expression can be served.
    pub(super) fn check_client(&self, asker: &Asker, command: &Command) -> Result<Outcome, Refusal> {
        let body = body_object(command)?;
        let subscription = body.get("subscriptionData");
        let kind = subscription.get("expressionType");
        let kind = kind.as_str().unwrap_or("TAG".into());
        if is_tag_kind(Some(kind.as_bytes())) {
            return Ok(Outcome::Now(asker.ok()));
        }
        if !self.settings.property_filter {
            let remark = format!("The broker does not support consumer to filter message by {kind}");
            return Err(Refusal::new(ResponseCode::SystemError, remark));
        }
        let text = subscription.get("subString").string();
        match MessageFilter::parse(Some(kind.as_bytes()), text.as_bytes(), &mut Compiled::default()) {
            Ok(_) => Ok(Outcome::Now(asker.ok())),
            Err(cause) => {
                let remark = format!("the expression cannot be parsed: {cause}");
                Err(Refusal::new(ResponseCode::SubscriptionParseFailed, remark))
            }
        }
    }

    pub(super) fn connection_closed(&mut self, turn: &mut Turn<'_>, conn: ConnectionId) {
        for (group, change) in self.clients.close(conn) {
            self.clients_changed(turn, &group, &change);
        }
        self.calls_of_closed(turn, conn);
    }

    pub(super) fn expire_clients(&mut self, turn: &mut Turn<'_>) {
        if turn.now.mono_us.saturating_sub(self.clients_checked_us) < CHECK_INTERVAL_US {
            return;
        }
        self.clients_checked_us = turn.now.mono_us;
        for (group, change) in self.clients.expire(turn.now.mono_us, self.options.client_expiry_ms * 1000) {
            tracing::info!(group = &*group, "a silent consumer was dropped");
            self.clients_changed(turn, &group, &change);
        }
    }

    fn clients_changed(&mut self, turn: &mut Turn<'_>, name: &Arc<str>, change: &Change) {
        if change.publish {
            match self.clients.group(name) {
                Some(group) => {
                    let mut consumers = group.for_snapshot();
                    self.filters.attach(name, &mut consumers);
                    self.consumers.insert(name.clone(), Arc::new(consumers))
                }
                None => {
                    self.filters.unregister(name, turn.now.wall_ms);
                    self.consumers.remove(name.as_bytes())
                }
            };
            self.flow.publish();
        }
        let told = self.groups.get(name).is_none_or(|g| g.notify_consumer_ids_changed);
        let Some(group) = self.clients.group(name).filter(|_| change.notify && told) else { return };
        if group.model == MessageModel::Broadcasting {
            return;
        }
        for client in group.clients() {
            let command = Command::request(RequestCode::NotifyConsumerIdsChanged, self.calls.next_opaque())
                .with_field("consumerGroup", &**name)
                .oneway();
            turn.out.push(OwnerAction::Push { conn: client.conn, command });
        }
    }
}

fn consumer_beat(json: JsonRef<'_>, fingerprint: i32, without_list: bool) -> ConsumerBeat {
    let consume_type = match json.get("consumeType").as_str().as_deref() {
        Some("CONSUME_ACTIVELY") => ConsumeType::Actively,
        Some("CONSUME_POP") => ConsumeType::Pop,
        _ => ConsumeType::Passively,
    };
    let model = match json.get("messageModel").as_str().as_deref() {
        Some("BROADCASTING") => MessageModel::Broadcasting,
        _ => MessageModel::Clustering,
    };
    let from_where = json.get("consumeFromWhere").as_str().unwrap_or("CONSUME_FROM_LAST_OFFSET".into());
    let list = || json.get("subscriptionDataSet").items().filter_map(subscription).collect();
    ConsumerBeat {
        consume_type,
        model,
        from_where: Arc::from(&*from_where),
        subscriptions: (!without_list).then(list),
        fingerprint,
    }
}

/// A Java `SubscriptionData`; `None` without a topic. Missing codes of a tag expression are worked out.
fn subscription(json: JsonRef<'_>) -> Option<Subscription> {
    let topic = json.get("topic").as_str()?;
    let expression = json.get("subString").as_str().unwrap_or("*".into());
    let kind = json.get("expressionType").as_str().filter(|k| !k.is_empty()).unwrap_or("TAG".into());
    let mut tags: Vec<Arc<str>> = json.get("tagsSet").items().filter_map(|t| Some(Arc::from(&*t.as_str()?))).collect();
    let mut codes: Vec<i32> = json.get("codeSet").items().filter_map(|c| c.as_i32()).collect();
    if kind == "TAG" && codes.is_empty() && expression != "*" {
        tags = expression.split("||").map(str::trim).filter(|t| !t.is_empty()).map(Arc::from).collect();
        codes = tags.iter().map(|t| java_hash(t.as_bytes())).collect();
    }
    codes.sort_unstable();
    codes.dedup();
    tags.sort_unstable();
    tags.dedup();
    Some(Subscription {
        topic: Arc::from(&*topic),
        expression: Arc::from(&*expression),
        expression_type: Arc::from(&*kind),
        version: json.get("subVersion").as_i64().unwrap_or(0),
        codes,
        tags,
        class_filter_mode: json.get("classFilterMode").as_bool() == Some(true),
        filter: None,
    })
}
