//! POP and its kin (200050 to 200055, 200151): who may pop what, and what an acknowledgement names.
//!
//! The checks stand in the order of Java's processors. Handles are not judged here: the shard of the queue looks them up.

use crate::config::BrokerOptions;
use crate::filter::Compiled;
use crate::owner::Refusal;
use crate::services::pop::handle;
use crate::services::pop::request::{AckAsk, ChangeAsk, PopFound, PopHeader, PopRun, RunKind, shards_of};
use crate::services::pop::revive_topic;
use crate::snapshot::{Group, PERM_READ, QueuePlaces, Snapshot, Topic};
use crate::work::{MessageFilter, is_tag_kind};
use remoting::scan::{self, Span};
use remoting::{Command, ResponseCode};
use smallvec::SmallVec;
use std::net::SocketAddr;
use std::sync::Arc;
use store::ShardId;

/// Most messages of a pop.
pub const MAX_MESSAGES: i32 = 32;
/// A pop that should have been answered this long ago is not worth running, ms.
const TOO_LATE_MS: i64 = 500;

/// What to do with a pop.
#[derive(Debug)]
pub enum Admission {
    /// Walk through the shards.
    Run(Box<PopRun>),
    /// The group is not known here: ask the owner, then check again.
    NeedGroup,
    /// Answer with this.
    Refuse(Refusal),
}

/// What a pop is checked against.
pub struct Checks<'a> {
    /// The metadata.
    pub snapshot: &'a Snapshot,
    /// The broker's settings.
    pub options: &'a BrokerOptions,
    /// The client.
    pub peer: SocketAddr,
    /// ms since 1970.
    pub now_ms: i64,
    /// The owner was asked for the group already.
    pub asked: bool,
    /// Grows with each pop of the core: rotates over queues, revive queues, and chances.
    pub turn: u32,
    /// Revive queues of each shard ([`revive_queues`]).
    pub revive_queues: u32,
}

/// How many revive queues each shard has.
pub fn revive_queues(snapshot: &Snapshot, options: &BrokerOptions) -> u32 {
    match snapshot.topic(revive_topic(&options.cluster_name).as_bytes()).map(|t| (&t.places, t.read_queues)) {
        Some((QueuePlaces::System { width, .. }, _)) => *width,
        Some((_, queues)) => queues,
        None => options.revive_queues,
    }
}

/// Reads the header of a pop.
pub fn pop_header(frame: &[u8], fields: &scan::PopHeader, now_ms: i64) -> PopHeader {
    let text = |span: Span| (!span.is_empty()).then(|| String::from_utf8_lossy(&span.text(frame)).into());
    // Nearly every pop wants everything.
    let kind = fields.expression_type;
    let all = fields.expression.bytes(frame) == b"*" && is_tag_kind((!kind.is_empty()).then(|| kind.bytes(frame)));
    PopHeader {
        queue_id: fields.queue_id.max(-1),
        order: fields.order,
        attempt: text(fields.attempt),
        born_ms: if fields.born_ms == 0 { now_ms } else { fields.born_ms },
        max_messages: fields.max_msg_nums,
        invisible_ms: fields.invisible_ms,
        poll_ms: fields.poll_ms,
        from_min: fields.init_mode == 0,
        expression: if all { None } else { text(fields.expression) },
        expression_type: if all { None } else { text(fields.expression_type) },
    }
}

/// Reads the header of a peek or notification.
///
/// # Errors
/// A field is missing or no number (Java fails on it, code 1).
pub fn look_header(kind: RunKind, command: &Command, now_ms: i64) -> Result<PopHeader, Refusal> {
    let ext = &command.ext;
    let (_, _) = (ext.text("consumerGroup")?, ext.text("topic")?);
    let notify = kind == RunKind::Notify;
    let mut header = PopHeader {
        queue_id: ext.i32("queueId")?.max(-1),
        order: notify && ext.boolean("order").unwrap_or(false),
        attempt: ext.get("attemptId").filter(|text| !text.is_empty()).map(Into::into),
        born_ms: ext.optional_i64("bornTime")?.filter(|born_ms| *born_ms != 0).unwrap_or(now_ms),
        from_min: true,
        ..PopHeader::default()
    };
    if notify {
        header.poll_ms = ext.i64("pollTime")?;
    } else {
        header.max_messages = ext.i32("maxMsgNums")?.min(MAX_MESSAGES);
    }
    Ok(header)
}

/// Checks a pop, peek or notification of a topic and a group. `last`: it was held and its time is up, whatever its own numbers
/// say.
pub fn admit(
    kind: RunKind,
    (topic, group): (&str, &str),
    mut header: PopHeader,
    checks: &Checks<'_>,
    compiled: &mut Compiled,
    last: bool,
) -> Admission {
    let Checks { snapshot, options, now_ms, turn, .. } = checks;
    if last {
        header.poll_ms = 0;
    } else if kind == RunKind::Pop
        && let Err(refusal) = check_numbers(&header, options, *now_ms)
    {
        return Admission::Refuse(refusal);
    }
    let (topic, group) = match allowed(topic, group, header.queue_id, checks, kind == RunKind::Pop) {
        Ok(Some(found)) => found,
        Ok(None) => return Admission::NeedGroup,
        Err(refusal) => return Admission::Refuse(refusal),
    };
    let (expression_type, expression) = (header.expression_type.as_deref(), header.expression.as_deref());
    let filter = match expression {
        None => MessageFilter::All,
        Some(text) => match MessageFilter::parse(expression_type.map(str::as_bytes), text.as_bytes(), compiled) {
            Ok(filter) => filter,
            Err(why) => {
                let remark = format!("parse the consumer's subscription failed: {why}");
                return Admission::Refuse(Refusal::new(ResponseCode::SubscriptionParseFailed, remark));
            }
        },
    };
    let retries: SmallVec<[Arc<Topic>; 2]> = match header.order {
        true => SmallVec::new(),
        false => retry_topics(&topic, &group, snapshot, options.retry_topic_v2),
    };
    Admission::Run(Box::new(PopRun {
        kind,
        pop_time_ms: *now_ms,
        revive_queue: turn % checks.revive_queues.max(1),
        turn: *turn,
        // Spread evenly: 37 and 100 have no common divisor.
        retry_first: turn.wrapping_mul(37) % 100 < options.pop_retry_percent,
        shards: shards_of(&topic, &retries, header.queue_id, *turn),
        header,
        topic,
        group,
        retries,
        filter,
        visited: 0,
        place: (0, 0),
        looks: 0,
        found: PopFound::default(),
    }))
}

/// A topic, and a group that may read it.
type Readable = (Arc<Topic>, Arc<Group>);

fn check_numbers(header: &PopHeader, options: &BrokerOptions, now_ms: i64) -> Result<(), Refusal> {
    let broker = options.ip();
    if now_ms.saturating_sub(header.born_ms).saturating_sub(header.poll_ms) > TOO_LATE_MS {
        let remark = format!("the broker[{broker}] pop message is timeout too much");
        return Err(Refusal::new(ResponseCode::PollingTimeout, remark));
    }
    if header.max_messages > MAX_MESSAGES {
        return Err(Refusal::parameter(format!(
            "the broker[{broker}] pop message's num is greater than {MAX_MESSAGES}"
        )));
    }
    if header.max_messages < 1 {
        return Err(Refusal::parameter(format!("the broker[{broker}] pop message's num is less than 1")));
    }
    if !options.timer_wheel_enable {
        let remark = format!("the broker[{broker}] pop message is forbidden because timerWheelEnable is false");
        return Err(Refusal::new(ResponseCode::SystemError, remark));
    }
    Ok(())
}

/// Topic and group, if the group may read the topic; `None`: the group is to be made first.
fn allowed(
    topic: &str,
    group: &str,
    queue_id: i32,
    checks: &Checks<'_>,
    pop: bool,
) -> Result<Option<Readable>, Refusal> {
    let snapshot = checks.snapshot;
    let doing = if pop { "pop message" } else { "peeking message" };
    if snapshot.settings.broker_permission & PERM_READ == 0 {
        let remark = format!("the broker[{}] {doing} is forbidden", checks.options.ip());
        return Err(Refusal::new(ResponseCode::NoPermission, remark));
    }
    let topic = known_topic(topic, snapshot)?;
    if !topic.readable() {
        let remark = format!("the topic[{}] peeking message is forbidden", topic.name);
        return Err(Refusal::new(ResponseCode::NoPermission, remark));
    }
    if i64::from(queue_id) >= i64::from(topic.read_queues) || topic.read_queues == 0 {
        return Err(Refusal::parameter(illegal_queue(queue_id, &topic, checks.peer)));
    }
    let Some(group_found) = snapshot.group(group.as_bytes()) else {
        if !checks.asked {
            return Ok(None);
        }
        let remark = format!("subscription group [{group}] does not exist");
        return Err(Refusal::new(ResponseCode::SubscriptionGroupNotExist, remark));
    };
    if !group_found.consume_enable {
        let remark = format!("subscription group no permission, {group}");
        return Err(Refusal::new(ResponseCode::NoPermission, remark));
    }
    Ok(Some((topic, group_found.clone())))
}

fn known_topic(topic: &str, snapshot: &Snapshot) -> Result<Arc<Topic>, Refusal> {
    let missing =
        || Refusal::new(ResponseCode::TopicNotExist, format!("topic[{topic}] not exist, apply first please!"));
    snapshot.topic(topic.as_bytes()).cloned().ok_or_else(missing)
}

fn illegal_queue(queue_id: i32, topic: &Topic, peer: SocketAddr) -> String {
    let (name, queues) = (&topic.name, topic.read_queues);
    format!("queueId[{queue_id}] is illegal, topic:[{name}] topicConfig.readQueueNums:[{queues}] consumer:[{peer}]")
}

/// The retry topics that a pop reads, too: the one that is written now, and the other form that is left from before.
fn retry_topics(topic: &Topic, group: &Group, snapshot: &Snapshot, v2: bool) -> SmallVec<[Arc<Topic>; 2]> {
    let forms: &[bool] = if v2 { &[true, false] } else { &[false] };
    let mut name: SmallVec<[u8; 128]> = SmallVec::new();
    forms
        .iter()
        .filter_map(|v2| {
            name.clear();
            handle::write_retry_topic(&mut name, &topic.name, &group.name, *v2);
            snapshot.topic(&name)
        })
        .filter(|retry| retry.readable() && retry.read_queues > 0)
        .cloned()
        .collect()
}

/// Checks 200055: the topic, the group and the queue that it asks about. `None`: the group is to be made first.
///
/// # Errors
/// As for a pop.
pub fn polling_info(command: &Command, checks: &Checks<'_>) -> Result<Option<(String, String, i32)>, Refusal> {
    let ext = &command.ext;
    let (topic, group, queue_id) = (ext.text("topic")?, ext.text("consumerGroup")?, ext.i32("queueId")?.max(-1));
    let found = allowed(topic, group, queue_id, checks, false)?;
    Ok(found.map(|_| (topic.to_owned(), group.to_owned(), queue_id)))
}

/// Checks 200051: the message and its shard.
///
/// # Errors
/// Unknown topic (17), bad queue (13), missing fields (1).
pub fn ack(command: &Command, snapshot: &Snapshot, peer: SocketAddr) -> Result<(ShardId, AckAsk), Refusal> {
    let ext = &command.ext;
    let topic = known_topic(ext.text("topic")?, snapshot)?;
    let queue_id = ext.i32("queueId")?;
    let queue = u32::try_from(queue_id).ok().filter(|queue_id| *queue_id < topic.read_queues);
    let illegal = || Refusal::new(ResponseCode::MessageIllegal, illegal_queue(queue_id, &topic, peer));
    let queue_id = queue.ok_or_else(illegal)?;
    let ask = AckAsk {
        topic: topic.name.clone(),
        group: group_name(ext.text("consumerGroup")?, snapshot),
        queue_id,
        offset: ext.i64("offset")?,
        handle: ext.text("extraInfo")?.into(),
    };
    Ok((topic.shard_of(queue_id), ask))
}

/// The name of a group that is perhaps not there any more: what it holds can still be acknowledged.
pub(super) fn group_name(name: &str, snapshot: &Snapshot) -> Arc<str> {
    snapshot.group(name.as_bytes()).map_or_else(|| name.into(), |group| group.name.clone())
}

/// Checks 200053.
///
/// # Errors
/// As [`ack`].
pub fn change(command: &Command, snapshot: &Snapshot, peer: SocketAddr) -> Result<(ShardId, ChangeAsk), Refusal> {
    let (shard, of) = ack(command, snapshot, peer)?;
    Ok((shard, ChangeAsk { of, invisible_ms: command.ext.i64("invisibleTime")? }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LiveSettings;
    use crate::fixtures::{group, snapshot, topic};
    use remoting::RequestCode;
    use remoting::scan::{Fields, scan};

    const NOW_MS: i64 = 1_700_000_000_000;

    fn peer() -> SocketAddr {
        "127.0.0.1:40000".parse().unwrap()
    }

    fn request() -> Command {
        Command::request(RequestCode::PopMessage, 0)
            .with_field("consumerGroup", "g")
            .with_field("topic", "t")
            .with_field("queueId", -1)
            .with_field("maxMsgNums", 32)
            .with_field("invisibleTime", 1000)
            .with_field("pollTime", 0)
            .with_field("bornTime", NOW_MS)
            .with_field("initMode", 0)
    }

    fn run(command: &Command, snapshot: &Snapshot, options: &BrokerOptions, turn: u32) -> Admission {
        let revive_queues = revive_queues(snapshot, options);
        let checks = Checks { snapshot, options, peer: peer(), now_ms: NOW_MS, asked: true, turn, revive_queues };
        let frame = command.to_frame();
        match scan(&frame).unwrap().fields {
            Fields::Pop(fields) => {
                let (topic, group) = (fields.topic.text(&frame), fields.group.text(&frame));
                let names = (std::str::from_utf8(&topic).unwrap(), std::str::from_utf8(&group).unwrap());
                let header = pop_header(&frame, &fields, NOW_MS);
                admit(RunKind::Pop, names, header, &checks, &mut Compiled::default(), false)
            }
            Fields::Invalid(error) => Admission::Refuse(error.into()),
            other => panic!("{other:?}"),
        }
    }

    fn code(command: &Command, snapshot: &Snapshot, options: &BrokerOptions) -> i32 {
        match run(command, snapshot, options, 0) {
            Admission::Run(_) => 0,
            Admission::NeedGroup => -1,
            Admission::Refuse(refusal) => refusal.code,
        }
    }

    #[test]
    fn bad_pops_get_the_references_codes() {
        let options = BrokerOptions::with_address("127.0.0.1:10911".parse().unwrap());
        let known = snapshot([topic("t")], [group("g")]);
        assert_eq!(code(&request(), &known, &options), 0);
        for (field, value, want) in [
            ("maxMsgNums", "33", 29),
            ("maxMsgNums", "0", 29),
            ("maxMsgNums", "-1", 29),
            ("maxMsgNums", "-2147483648", 29),
            ("maxMsgNums", "x", 1),
            ("bornTime", "1", 210),
            ("bornTime", "0", 0),
            ("pollTime", "9223372036854775807", 0),
            ("topic", "other", 17),
            ("queueId", "4", 29),
            ("queueId", "3", 0),
            ("queueId", "-2147483648", 0),
            ("consumerGroup", "nobody", 26),
            ("exp", "||", 23),
            ("exp", "A || B", 0),
        ] {
            assert_eq!(code(&request().with_field(field, value), &known, &options), want, "{field} {value}");
        }
        let sql = |text: &str| request().with_field("expType", "SQL92").with_field("exp", text);
        assert_eq!([code(&sql("a = 1"), &known, &options), code(&sql("a ="), &known, &options)], [0, 23]);
        let no_timer = BrokerOptions { timer_wheel_enable: false, ..options.clone() };
        assert_eq!(code(&request(), &known, &no_timer), 1);
        let mut forbidden = snapshot([topic("t")], [group("g")]);
        forbidden.settings = Arc::new(LiveSettings { broker_permission: 2, ..LiveSettings::default() });
        assert_eq!(code(&request(), &forbidden, &options), 16);
        let closed = snapshot([Topic { perm: 2, ..topic("t") }], [group("g")]);
        assert_eq!(code(&request(), &closed, &options), 16);
        let disabled = snapshot([topic("t")], [Group { consume_enable: false, ..group("g") }]);
        assert_eq!(code(&request(), &disabled, &options), 16);
    }

    #[test]
    fn retries_come_first_in_one_of_five_pops() {
        let options = BrokerOptions::with_address("127.0.0.1:10911".parse().unwrap());
        let known = snapshot([topic("t"), topic("%RETRY%g_t"), topic("%RETRY%g+t")], [group("g")]);
        let first = |options: &BrokerOptions| {
            let runs = (0..1000).map(|turn| match run(&request(), &known, options, turn) {
                Admission::Run(run) => run,
                other => panic!("{other:?}"),
            });
            let runs: Vec<_> = runs.collect();
            let retries: Vec<String> = runs[0].retries.iter().map(|retry| retry.name.to_string()).collect();
            (runs.iter().filter(|run| run.retry_first).count(), retries)
        };
        assert_eq!(first(&options), (200, vec!["%RETRY%g_t".to_owned()]));
        let v2 = BrokerOptions { retry_topic_v2: true, pop_retry_percent: 0, ..options };
        assert_eq!(first(&v2), (0, vec!["%RETRY%g+t".to_owned(), "%RETRY%g_t".to_owned()]));
    }

    #[test]
    fn acks_name_a_queue_that_is_there() {
        let known = snapshot([topic("t")], [group("g")]);
        let request = |queue_id: i32| {
            Command::request(RequestCode::AckMessage, 0)
                .with_field("consumerGroup", "g")
                .with_field("topic", "t")
                .with_field("queueId", queue_id)
                .with_field("offset", 5)
                .with_field("extraInfo", "x")
        };
        for (queue_id, want) in [(3, Ok(())), (4, Err(13)), (-1, Err(13))] {
            let got = ack(&request(queue_id), &known, peer()).map(|_| ()).map_err(|refusal| refusal.code);
            assert_eq!(got, want, "{queue_id}");
        }
        let unknown = request(0).with_field("topic", "other");
        assert_eq!(ack(&unknown, &known, peer()).unwrap_err().code, 17);
    }
}
