//! PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): who may read what, and through which filter.

use crate::filter::Compiled;
use crate::owner::Refusal;
use crate::snapshot::{MessageModel, PERM_READ, Snapshot, Subscription, is_readable};
use crate::work::{MessageFilter, PullWork, is_tag_kind};
use message::sys_flag::{PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND};
use remoting::ResponseCode;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// A pull's header.
#[derive(Clone, Copy, Debug, Default)]
pub struct PullHeader<'a> {
    /// Consumer group.
    pub group: &'a [u8],
    /// Topic.
    pub topic: &'a [u8],
    /// Queue.
    pub queue_id: i32,
    /// Where to read from.
    pub queue_offset: i64,
    /// Most records.
    pub max_msg_nums: i32,
    /// Bits of `message::sys_flag::PULL_*`.
    pub sys_flag: i32,
    /// The offset to commit, with its bit.
    pub commit_offset: i64,
    /// How long it may be held, in ms, with its bit.
    pub suspend_timeout_ms: i64,
    /// Subscription text, with its bit.
    pub subscription: Option<&'a [u8]>,
    /// Version of the reader's subscription.
    pub sub_version: i64,
    /// `TAG` (also when absent) or `SQL92`.
    pub expression_type: Option<&'a [u8]>,
    /// Code 361.
    pub lite: bool,
}

/// What to do with a pull.
#[derive(Debug)]
pub enum Admission {
    /// Read; the header says whether to commit.
    Read(PullWork),
    /// The group is not known here: ask the owner, then check again.
    NeedGroup,
    /// Answer with this; the number is Java's `forbiddenType`, 0 for none.
    Refuse(Refusal, i32),
}

/// Java's `ForbiddenType`.
mod forbidden {
    pub const NOT: i32 = 0;
    pub const BROKER: i32 = 1;
    pub const GROUP: i32 = 2;
    pub const TOPIC: i32 = 3;
    pub const BROADCASTING: i32 = 4;
    pub const SUBSCRIPTION: i32 = 5;
}

/// Whether the header asks to commit an offset.
#[must_use]
pub fn commits(header: &PullHeader<'_>) -> bool {
    header.sys_flag & PULL_COMMIT_OFFSET != 0 && header.commit_offset >= 0
}

/// Checks a pull against the metadata. `asked` says that the owner has answered already: no second question. `compiled` keeps
/// the expressions that came with pulls.
pub fn admit(
    header: &PullHeader<'_>,
    snapshot: &Snapshot,
    peer: SocketAddr,
    broker_ip: IpAddr,
    asked: bool,
    compiled: &mut Compiled,
) -> Admission {
    let settings = &snapshot.settings;
    let refuse = |code: ResponseCode, forbidden: i32, remark: String| {
        Admission::Refuse(Refusal { code: code.to_i32(), remark }, forbidden)
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if settings.broker_permission & PERM_READ == 0 {
        let remark = format!("the broker[{broker_ip}] pulling message is forbidden");
        return refuse(ResponseCode::NoPermission, forbidden::BROKER, remark);
    }
    if header.lite && !settings.lite_pull {
        let remark = format!("the broker[{broker_ip}] for lite pull consumer is forbidden");
        return refuse(ResponseCode::NoPermission, forbidden::BROKER, remark);
    }
    let Some(group) = snapshot.group_or_light(header.group) else {
        if !asked {
            return Admission::NeedGroup;
        }
        let remark = format!("subscription group [{}] does not exist", text(header.group));
        return refuse(ResponseCode::SubscriptionGroupNotExist, forbidden::NOT, remark);
    };
    if !group.consume_enable {
        let remark = format!("subscription group no permission, {}", group.name);
        return refuse(ResponseCode::NoPermission, forbidden::GROUP, remark);
    }
    let Some(topic) = snapshot.topic_or_light(header.topic) else {
        let remark = format!("topic[{}] not exist, apply first please!", text(header.topic));
        return refuse(ResponseCode::TopicNotExist, forbidden::NOT, remark);
    };
    if !topic.readable() {
        let remark = format!("the topic[{}] pulling message is forbidden", topic.name);
        return refuse(ResponseCode::NoPermission, forbidden::TOPIC, remark);
    }
    let Some(queue_id) = u32::try_from(header.queue_id).ok().filter(|&id| id < topic.read_queues) else {
        let remark = format!(
            "queueId[{}] is illegal, topic:[{}] topicConfig.readQueueNums:[{}] consumer:[{peer}]",
            header.queue_id, topic.name, topic.read_queues
        );
        return refuse(ResponseCode::InvalidParameter, forbidden::NOT, remark);
    };
    let filter = match filter(header, snapshot, group.consume_broadcast_enable, compiled) {
        Ok(filter) => filter,
        Err((refusal, forbidden)) => return Admission::Refuse(refusal, forbidden),
    };
    let suspend_ms = (header.sys_flag & PULL_SUSPEND != 0).then(|| {
        let asked_ms = u64::try_from(header.suspend_timeout_ms).unwrap_or(0);
        if settings.long_polling { asked_ms } else { u64::from(settings.short_polling_ms) }
    });
    let reset =
        if settings.server_side_reset { snapshot.pending_reset(header.topic, header.group, queue_id) } else { None };
    Admission::Read(PullWork {
        topic: topic.into_owned(),
        group: group.into_owned(),
        queue_id,
        offset: header.queue_offset,
        asked_offset: header.queue_offset,
        max_count: header.max_msg_nums.min(settings.max_pull_count as i32),
        max_bytes: settings.max_pull_bytes,
        filter,
        own_filter: header.sys_flag & PULL_SUBSCRIPTION != 0,
        checked_version: snapshot.version,
        suspend_ms,
        hold_until_us: None,
        reset,
    })
}

/// Whether the group has changed its subscription to the topic since the pull was held. Its client looks at what it gets
/// with the subscription that it had when it asked, so such a pull must not bring messages of the new one.
pub fn subscription_changed(work: &PullWork, snapshot: &Snapshot) -> bool {
    if work.own_filter || work.checked_version >= snapshot.version {
        return false;
    }
    let consumers = snapshot.consumers.get(work.group.name.as_bytes());
    let Some(now) = consumers.and_then(|consumers| consumers.subscription(work.topic.name.as_bytes())) else {
        return false;
    };
    let Some(now) = subscribed(now) else { return true };
    match (&work.filter, now) {
        (MessageFilter::All, MessageFilter::All) => false,
        (MessageFilter::Subscribed(held), MessageFilter::Subscribed(now)) => held.codes != now.codes,
        (MessageFilter::Sql(held), MessageFilter::Sql(now)) => *held != now,
        _ => true,
    }
}

/// Checks a held pull once more before it runs, if the metadata changed since: whether it may still read.
///
/// # Errors
/// The refusal and Java's `forbiddenType`.
pub fn check_again(work: &PullWork, snapshot: &Snapshot) -> Result<(), (Refusal, i32)> {
    if work.checked_version >= snapshot.version {
        return Ok(());
    }
    let refuse =
        |code: ResponseCode, forbidden: i32, remark: String| Err((Refusal { code: code.to_i32(), remark }, forbidden));
    match snapshot.topic_or_light(work.topic.name.as_bytes()) {
        None => {
            let remark = format!("topic[{}] not exist, apply first please!", work.topic.name);
            return refuse(ResponseCode::TopicNotExist, forbidden::NOT, remark);
        }
        Some(topic) if !topic.readable() => {
            let remark = format!("the topic[{}] pulling message is forbidden", topic.name);
            return refuse(ResponseCode::NoPermission, forbidden::TOPIC, remark);
        }
        Some(_) => {}
    }
    if snapshot.group(work.group.name.as_bytes()).is_some_and(|group| !group.consume_enable) {
        let remark = format!("subscription group no permission, {}", work.group.name);
        return refuse(ResponseCode::NoPermission, forbidden::GROUP, remark);
    }
    let (group, topic) = (work.group.name.as_bytes(), work.topic.name.as_bytes());
    match read_forbidden(snapshot, group, topic).filter(|_| !work.own_filter) {
        Some(refusal) => Err(refusal),
        None => Ok(()),
    }
}

/// The refusal of a group that is kept from a topic. Costs nothing while no group is.
fn read_forbidden(snapshot: &Snapshot, group: &[u8], topic: &[u8]) -> Option<(Refusal, i32)> {
    if snapshot.forbidden.is_empty() {
        return None;
    }
    let (group, topic) = (String::from_utf8_lossy(group), String::from_utf8_lossy(topic));
    if is_readable(&snapshot.forbidden, &group, &topic) {
        return None;
    }
    let remark = format!("the consumer group[{group}] is forbidden for topic[{topic}]");
    Some((Refusal::new(ResponseCode::NoPermission, remark), forbidden::SUBSCRIPTION))
}

/// The filter of a pull: of its own text, or of its group's heartbeats.
fn filter(
    header: &PullHeader<'_>,
    snapshot: &Snapshot,
    broadcast: bool,
    compiled: &mut Compiled,
) -> Result<MessageFilter, (Refusal, i32)> {
    let refuse =
        |code: ResponseCode, forbidden: i32, remark: String| Err((Refusal { code: code.to_i32(), remark }, forbidden));
    if header.sys_flag & PULL_SUBSCRIPTION != 0 {
        return own_filter(header, snapshot, compiled);
    }
    let Some(consumers) = snapshot.consumers.get(header.group) else {
        let remark = "the consumer's group info not exist".into();
        return refuse(ResponseCode::SubscriptionNotExist, forbidden::NOT, remark);
    };
    if !broadcast && consumers.model == MessageModel::Broadcasting {
        let group = String::from_utf8_lossy(header.group);
        let remark = format!("the consumer group[{group}] can not consume by broadcast way");
        return refuse(ResponseCode::NoPermission, forbidden::BROADCASTING, remark);
    }
    if let Some(refusal) = read_forbidden(snapshot, header.group, header.topic) {
        return Err(refusal);
    }
    let Some(subscription) = consumers.subscription(header.topic) else {
        let remark = "the consumer's subscription not exist".into();
        return refuse(ResponseCode::SubscriptionNotExist, forbidden::NOT, remark);
    };
    if subscription.version < header.sub_version {
        let remark = "the consumer's subscription not latest".into();
        return refuse(ResponseCode::SubscriptionNotLatest, forbidden::NOT, remark);
    }
    let Some(filter) = subscribed(subscription) else {
        let remark = "The broker's consumer filter data is not exist!Your expression may be wrong!".into();
        return refuse(ResponseCode::FilterDataNotExist, forbidden::NOT, remark);
    };
    if !is_tag_kind(Some(subscription.expression_type.as_bytes())) {
        if subscription.filter.as_ref().is_some_and(|filter| filter.version < header.sub_version) {
            let remark = "the consumer's consumer filter data not latest".into();
            return refuse(ResponseCode::FilterDataNotLatest, forbidden::NOT, remark);
        }
        check_property_filter(subscription.expression_type.as_bytes(), snapshot)?;
    }
    Ok(filter)
}

/// The filter that a pull brings along.
fn own_filter(
    header: &PullHeader<'_>,
    snapshot: &Snapshot,
    compiled: &mut Compiled,
) -> Result<MessageFilter, (Refusal, i32)> {
    let text = header.subscription.unwrap_or_default();
    if !is_tag_kind(header.expression_type) && !text.is_empty() {
        check_property_filter(header.expression_type.unwrap_or_default(), snapshot)?;
    }
    MessageFilter::parse(header.expression_type, text, compiled).map_err(|cause| {
        let remark = format!("parse the consumer's subscription failed: {cause}");
        (Refusal { code: ResponseCode::SubscriptionParseFailed.to_i32(), remark }, forbidden::NOT)
    })
}

/// The filter of a subscription; `None` for one that is no tag expression and has nothing registered.
fn subscribed(subscription: &Arc<Subscription>) -> Option<MessageFilter> {
    if is_tag_kind(Some(subscription.expression_type.as_bytes())) {
        let all = subscription.class_filter_mode || matches!(&*subscription.expression, "*" | "");
        return Some(if all { MessageFilter::All } else { MessageFilter::Subscribed(subscription.clone()) });
    }
    let filter = subscription.filter.as_ref()?;
    Some(if subscription.class_filter_mode {
        MessageFilter::All
    } else {
        MessageFilter::Sql(filter.expression.clone())
    })
}

/// Without `enablePropertyFilter` nothing but tags is a filter.
fn check_property_filter(kind: &[u8], snapshot: &Snapshot) -> Result<(), (Refusal, i32)> {
    if snapshot.settings.property_filter {
        return Ok(());
    }
    let kind = String::from_utf8_lossy(kind);
    let remark = format!("The broker does not support consumer to filter message by {kind}");
    Err((Refusal { code: ResponseCode::SystemError.to_i32(), remark }, forbidden::NOT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LiveSettings;
    use crate::filter::Expression;
    use crate::fixtures::{group, snapshot, topic};
    use crate::snapshot::{Group, GroupConsumers, PropertyFilter, Topic};
    use std::collections::BTreeMap;

    const OWN: i32 = PULL_SUBSCRIPTION;

    fn from<'a>(group: &'a [u8], topic: &'a [u8], queue_id: i32, sys_flag: i32) -> PullHeader<'a> {
        PullHeader { group, topic, queue_id, sys_flag, subscription: Some(b"*"), ..PullHeader::default() }
    }

    /// The code (and Java's forbidden type); 0 for a pull that is run, -1 for one that waits for its group.
    fn outcome(header: &PullHeader<'_>, snapshot: &Snapshot, asked: bool) -> (i32, i32) {
        let peer = "127.0.0.1:5".parse().unwrap();
        match admit(header, snapshot, peer, "127.0.0.1".parse().unwrap(), asked, &mut Compiled::default()) {
            Admission::Read(_) => (0, 0),
            Admission::NeedGroup => (-1, 0),
            Admission::Refuse(refusal, forbidden) => (refusal.code, forbidden),
        }
    }

    /// `filter`: the version of a registered expression.
    fn subscription(topic: &str, kind: &str, filter: Option<i64>) -> (Arc<str>, Arc<Subscription>) {
        let expression = Arc::new(Expression::compile("A").unwrap());
        let subscription = Subscription {
            topic: topic.into(),
            expression: "A".into(),
            expression_type: kind.into(),
            version: 100,
            codes: vec![65],
            tags: vec!["A".into()],
            class_filter_mode: false,
            filter: filter.map(|version| PropertyFilter { expression, version }),
        };
        (topic.into(), Arc::new(subscription))
    }

    fn metadata() -> Snapshot {
        let stopped = Group { consume_enable: false, ..group("stopped") };
        let alone = Group { consume_broadcast_enable: false, ..group("alone") };
        let mut all = snapshot(
            [topic("t"), topic("sql"), topic("broken"), topic("older"), Topic { perm: 2, ..topic("write-only") }],
            [group("g"), group("idle"), stopped, alone],
        );
        for (name, model) in [("g", MessageModel::Clustering), ("alone", MessageModel::Broadcasting)] {
            let subscriptions = BTreeMap::from([
                subscription("t", "TAG", None),
                subscription("sql", "SQL92", Some(100)),
                subscription("broken", "SQL92", None),
                subscription("older", "SQL92", Some(99)),
            ]);
            all.consumers.insert(name.into(), Arc::new(GroupConsumers { model, subscriptions }));
        }
        all
    }

    #[test]
    fn checks_in_the_order_of_java() {
        let all = metadata();
        for (header, asked, expected) in [
            (from(b"g", b"t", 0, OWN), false, (0, 0)),
            (from(b"g", b"t", 0, 0), false, (0, 0)),
            (from(b"new", b"t", 0, OWN), false, (-1, 0)),
            (from(b"new", b"t", 0, OWN), true, (26, 0)),
            (from(b"stopped", b"t", 0, OWN), false, (16, 2)),
            (from(b"g", b"none", 0, OWN), false, (17, 0)),
            (from(b"g", b"write-only", 9, OWN), false, (16, 3)),
            (from(b"g", b"t", 4, OWN), false, (29, 0)),
            (from(b"g", b"t", -1, OWN), false, (29, 0)),
            (PullHeader { subscription: Some(b"||"), ..from(b"g", b"t", 0, OWN) }, false, (23, 0)),
            (PullHeader { expression_type: Some(b"SQL92"), ..from(b"g", b"t", 0, OWN) }, false, (1, 0)),
            (from(b"idle", b"t", 0, 0), false, (24, 0)),
            (from(b"alone", b"t", 0, 0), false, (16, 4)),
            (from(b"g", b"write-only", 0, 0), false, (16, 3)),
            (PullHeader { sub_version: 101, ..from(b"g", b"t", 0, 0) }, false, (25, 0)),
            (PullHeader { sub_version: 100, ..from(b"g", b"t", 0, 0) }, false, (0, 0)),
            (from(b"g", b"sql", 0, 0), false, (1, 0)),
            (from(b"g", b"broken", 0, 0), false, (27, 0)),
            (PullHeader { sub_version: 100, ..from(b"g", b"older", 0, 0) }, false, (28, 0)),
            (PullHeader { sub_version: 99, ..from(b"g", b"older", 0, 0) }, false, (1, 0)),
        ] {
            assert_eq!(outcome(&header, &all, asked), expected, "{header:?}");
        }
        let forbidden =
            BTreeMap::from([("g".to_owned(), BTreeMap::from([("t".to_owned(), 4), ("sql".to_owned(), 2)]))]);
        let kept = Snapshot { forbidden: Arc::new(forbidden), ..all.clone() };
        assert_eq!(outcome(&from(b"g", b"t", 0, 0), &kept, false), (16, 5));
        assert_eq!(
            outcome(&from(b"g", b"t", 0, OWN), &kept, false),
            (0, 0),
            "as in Java, only by the group's heartbeats"
        );
        assert_eq!(outcome(&from(b"g", b"sql", 0, 0), &kept, false), (1, 0), "not about reading");
        for (settings, lite, expected) in [
            (LiveSettings { broker_permission: 2, ..LiveSettings::default() }, false, (16, 1)),
            (LiveSettings { lite_pull: false, ..LiveSettings::default() }, true, (16, 1)),
            (LiveSettings { lite_pull: false, ..LiveSettings::default() }, false, (0, 0)),
        ] {
            let all = Snapshot { settings: Arc::new(settings), ..all.clone() };
            let header = PullHeader { lite, ..from(b"g", b"t", 0, OWN) };
            assert_eq!(outcome(&header, &all, false), expected);
        }
    }
}
