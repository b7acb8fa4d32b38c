//! SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): who may send what to which queue.

use crate::owner::Refusal;
use crate::snapshot::{PERM_WRITE, Snapshot, Topic};
use message::names;
use message::properties::{MAX_PROPERTIES_BYTES, PropertyList, name};
use message::sys_flag;
use remoting::ResponseCode;
use remoting::scan::HeaderText;
use std::net::SocketAddr;
use store::{ShardId, light_queues};

/// A send's header, whatever its field names were.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendHeader<'a> {
    /// Topic.
    pub topic: &'a [u8],
    /// The topic whose settings an automatically created one takes.
    pub default_topic: &'a [u8],
    /// Queues of an automatically created topic.
    pub default_topic_queues: i32,
    /// Queue; negative: the broker chooses.
    pub queue_id: i32,
    /// System flag.
    pub sys_flag: i32,
    /// The sender's time, ms since 1970.
    pub born_timestamp_ms: i64,
    /// The sender's own flag.
    pub flag: i32,
    /// Properties text.
    pub properties: HeaderText<'a>,
    /// How often it was delivered before.
    pub reconsume_times: i32,
    /// Unit mode: counts for the flags of an automatically created topic.
    pub unit_mode: bool,
    /// The body is a batch.
    pub batch: bool,
}

/// What to do with a send.
#[derive(Debug)]
pub enum Admission {
    /// Append it to this queue.
    Append(Place),
    /// The topic is not known here: ask the owner, then check again.
    NeedTopic,
    /// Answer with this.
    Refuse(Refusal),
}

/// The queue that a send goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The queue.
    pub queue_id: u32,
    /// Its shard.
    pub shard: ShardId,
    /// The topic's messages carry several tags.
    pub multi_tag: bool,
    /// The message is a dead letter: it waits for no delay.
    pub dead_letter: bool,
}

/// Checks a send against the metadata. `asked` says that the owner has answered already: no second question. `any_queue` is a
/// number that changes from call to call, for senders that leave the queue to the broker.
pub fn admit(
    header: &SendHeader<'_>,
    body_len: usize,
    snapshot: &Snapshot,
    peer: SocketAddr,
    broker_ip: std::net::IpAddr,
    any_queue: u32,
    asked: bool,
) -> Admission {
    let settings = &snapshot.settings;
    let refuse = |code: ResponseCode, remark: String| Admission::Refuse(Refusal { code: code.to_i32(), remark });
    if settings.broker_permission & PERM_WRITE == 0 {
        return refuse(ResponseCode::NoPermission, format!("the broker[{broker_ip}] sending message is forbidden"));
    }
    // A known name was checked when its topic was made.
    let light;
    let topic: &Topic = match snapshot.topic(header.topic) {
        Some(topic) => topic,
        None => match snapshot.light_topic(header.topic).filter(|_| names::check_topic(header.topic).is_ok()) {
            Some(topic) => {
                light = topic;
                &light
            }
            None => return admit_unknown(header, asked),
        },
    };
    if names::is_protected_topic(header.topic) {
        return refuse(ResponseCode::NoPermission, forbidden(header.topic));
    }
    let queue_id = match u32::try_from(header.queue_id) {
        Ok(id) if id >= topic.queues() => {
            let remark = format!(
                "request queueId[{id}] is illegal, topic[{}] has {} queues to read and {} to write, Producer: {peer}",
                topic.name, topic.read_queues, topic.write_queues
            );
            return refuse(ResponseCode::InvalidParameter, remark);
        }
        Ok(id) => id,
        Err(_) if topic.write_queues == 0 => {
            return refuse(ResponseCode::InvalidParameter, format!("topic[{}] has no queue to write to", topic.name));
        }
        Err(_) => any_queue % topic.write_queues,
    };
    if body_len == 0 {
        return refuse(ResponseCode::MessageIllegal, "the message is illegal: message body is null".into());
    }
    if body_len > settings.max_message_size as usize {
        let remark = format!(
            "the message is illegal: message size exceeded, body of {body_len} bytes, limit {}",
            settings.max_message_size
        );
        return refuse(ResponseCode::MessageIllegal, remark);
    }
    if header.batch && names::is_retry_topic(header.topic) {
        return refuse(ResponseCode::MessageIllegal, "batch request does not support retry group".into());
    }
    Admission::Append(Place {
        queue_id,
        shard: topic.shard_of(queue_id),
        multi_tag: topic.multi_tag,
        dead_letter: false,
    })
}

fn admit_unknown(header: &SendHeader<'_>, asked: bool) -> Admission {
    let refuse = |code: ResponseCode, remark: String| Admission::Refuse(Refusal { code: code.to_i32(), remark });
    if let Err(error) = names::check_topic(header.topic) {
        return refuse(ResponseCode::InvalidParameter, error.topic_remark(header.topic));
    }
    if names::is_protected_topic(header.topic) {
        return refuse(ResponseCode::NoPermission, forbidden(header.topic));
    }
    if asked {
        let topic = String::from_utf8_lossy(header.topic);
        return refuse(ResponseCode::TopicNotExist, format!("topic[{topic}] not exist, apply first please!"));
    }
    Admission::NeedTopic
}

fn forbidden(topic: &[u8]) -> String {
    format!("Sending message to topic[{}] is forbidden.", String::from_utf8_lossy(topic))
}

/// The flags of a topic that a send in unit mode creates.
#[must_use]
pub fn topic_sys_flag(header: &SendHeader<'_>) -> i32 {
    match (header.unit_mode, names::is_retry_topic(header.topic)) {
        (false, _) => 0,
        (true, false) => 1,
        (true, true) => 2,
    }
}

/// What the properties of a message ask for beyond being stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asks {
    /// It may have to wait: [`super::delay::redirect`] decides.
    pub delay: bool,
    /// It is a half message.
    pub half: bool,
}

/// Looks through the properties of a message that is sent alone, once.
///
/// # Errors
/// They ask for what this broker does not do yet; such a message is refused, never stored as a plain one. (`TRAN_MSG` asks only
/// with the value true.)
pub fn asks<'a>(pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Result<Asks, Refusal> {
    let mut asks = Asks::default();
    for (key, value) in pairs {
        // All names in question start with one of these; nearly all others do not.
        if !matches!(key.first(), Some(b'T' | b'D')) {
            continue;
        }
        match key {
            name::TRANSACTION_PREPARED => asks.half = value.eq_ignore_ascii_case(b"true"),
            name::DELAY | name::TIMER_DELAY_SEC | name::TIMER_DELAY_MS | name::TIMER_DELIVER_MS => asks.delay = true,
            _ => {}
        }
    }
    Ok(asks)
}

/// Properties that a batch, or a member of one, cannot have: members are stored as they are, so that it would be forgotten.
/// (`TRAN_MSG` asks only with the value true, `DELAY` only above 0, light queues only where there are some.)
///
/// # Errors
/// It has one.
pub fn check_batch<'a>(pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>, light: bool) -> Result<(), Refusal> {
    for (key, value) in pairs {
        // All names in question start with one of these; nearly all others do not.
        if !matches!(key.first(), Some(b'T' | b'D' | b'I')) {
            continue;
        }
        let illegal = |what: &str| {
            let remark = format!("the message is illegal: a batch cannot have {what}");
            Err(Refusal { code: ResponseCode::MessageIllegal.to_i32(), remark })
        };
        match key {
            name::TRANSACTION_PREPARED if value.eq_ignore_ascii_case(b"true") => return illegal("a transaction"),
            name::DELAY => match std::str::from_utf8(value).ok().and_then(|text| text.parse::<i32>().ok()) {
                Some(level) if level <= 0 => {}
                Some(_) => return illegal("a delay level"),
                None => return illegal("a delay level that is no number"),
            },
            name::INNER_MULTI_DISPATCH if light => return illegal("light queues"),
            name::TIMER_DELAY_SEC | name::TIMER_DELAY_MS | name::TIMER_DELIVER_MS | name::TIMER_DELETE_UNIQUE_KEY => {
                return illegal("a timer");
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks the properties of a send (of a batch: those of its header) as Java's map has them; gives what they ask for.
///
/// # Errors
/// They ask for what is not served.
pub fn check_properties(header: &SendHeader<'_>, light: bool, list: &PropertyList<'_>) -> Result<Asks, Refusal> {
    if header.batch {
        check_batch(list.iter(), light)?;
        return Ok(Asks::default());
    }
    let mut asks = asks(list.iter())?;
    if asks.half {
        // A retry of a delivered transaction by an old client: Java takes it for a plain message.
        asks.half = header.reconsume_times <= 0 || super::delay::level(list)? == 0;
    } else if sys_flag::transaction(header.sys_flag) != 0 {
        let remark = "the message is illegal: transaction bits without TRAN_MSG";
        return Err(Refusal { code: ResponseCode::MessageIllegal.to_i32(), remark: remark.into() });
    }
    Ok(asks)
}

/// Checks the light queues that a message names, where there are light queues. One that is to wait is stored without asking for
/// them, and must be right when it is delivered.
///
/// # Errors
/// A name cannot be that of a light queue.
pub fn check_light(named: Option<&[u8]>) -> Result<(), Refusal> {
    named.map_or(Ok(()), light_queues::check).map_err(|why| Refusal {
        code: ResponseCode::MessageIllegal.to_i32(),
        remark: format!("the message is illegal: {why}"),
    })
}

/// Checks the length of what is to be stored.
///
/// # Errors
/// It is over the limit.
pub fn check_length(list: &PropertyList<'_>) -> Result<(), Refusal> {
    let bytes = list.encoded_len();
    if bytes <= MAX_PROPERTIES_BYTES {
        return Ok(());
    }
    let remark = format!("the message is illegal: properties of {bytes} bytes, limit {MAX_PROPERTIES_BYTES}");
    Err(Refusal { code: ResponseCode::MessageIllegal.to_i32(), remark })
}

/// Whether the sender waits for the flush: Java's reading of `WAIT`.
#[must_use]
pub fn waits(wait: Option<&[u8]>) -> bool {
    wait.is_none_or(|value| value.eq_ignore_ascii_case(b"true"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LiveSettings;
    use crate::fixtures::{snapshot, topic};
    use message::properties::pairs;
    use std::sync::Arc;

    fn outcome(header: &SendHeader<'_>, body_len: usize, snapshot: &Snapshot, asked: bool) -> Result<u32, i32> {
        let peer = "127.0.0.1:5".parse().unwrap();
        match admit(header, body_len, snapshot, peer, "127.0.0.1".parse().unwrap(), 6, asked) {
            Admission::Append(place) => Ok(place.queue_id),
            Admission::NeedTopic => Err(-1),
            Admission::Refuse(refusal) => Err(refusal.code),
        }
    }

    fn to(topic: &[u8], queue_id: i32) -> SendHeader<'_> {
        SendHeader { topic, queue_id, ..SendHeader::default() }
    }

    #[test]
    fn checks_in_the_order_of_java() {
        let all = snapshot([topic("t"), Topic { write_queues: 2, ..topic("w") }, topic("SELF_TEST_TOPIC")], []);
        let limit = LiveSettings::default().max_message_size as usize;
        for (header, body_len, asked, expected) in [
            (to(b"t", 0), 1, false, Ok(0)),
            (to(b"t", 3), limit, false, Ok(3)),
            (to(b"t", 4), 1, false, Err(29)),
            (to(b"t", i32::MAX), 1, false, Err(29)),
            (to(b"t", -1), 1, false, Ok(6 % 4)),
            (to(b"t", i32::MIN), 1, false, Ok(6 % 4)),
            (to(b"w", -1), 1, false, Ok(6 % 2)),
            (to(b"w", 3), 1, false, Ok(3)),
            (to(b"t", 0), limit + 1, false, Err(13)),
            (to(b"t", 0), 0, false, Err(13)),
            (to(b"unknown", 0), 1, false, Err(-1)),
            (to(b"unknown", 0), 1, true, Err(17)),
            (to(b"bad topic!", 0), 1, false, Err(29)),
            (to(b"", 0), 1, false, Err(29)),
            (to(&[b'a'; 128], 0), 1, false, Err(29)),
            (to(b"SCHEDULE_TOPIC_XXXX", 0), 1, false, Err(16)),
            (to(b"SELF_TEST_TOPIC", 0), 1, false, Err(16)),
        ] {
            assert_eq!(outcome(&header, body_len, &all, asked), expected, "{header:?}");
        }
        let drained = LiveSettings { broker_permission: 4, ..LiveSettings::default() };
        let drained = Snapshot { settings: Arc::new(drained), ..all };
        assert_eq!(outcome(&to(b"t", 0), 1, &drained, false), Err(16));
    }

    #[test]
    fn what_is_not_served_is_refused_and_never_stored_as_plain() {
        let asked = |text: &str| asks(pairs(text.as_bytes())).map_err(|refusal| refusal.code);
        for text in ["DELAY\x010\x02", "DELAY\x01x\x02", "TIMER_DELAY_MS\x011\x02", "TIMER_DELIVER_MS\x011\x02"] {
            assert_eq!(asked(text), Ok(Asks { delay: true, half: false }), "{text:?}");
        }
        assert_eq!(asked("TAGS\x01DELAY\x02TIMER_OUT_MS\x011\x02TRAN_MSG\x01no\x02"), Ok(Asks::default()));
        assert_eq!(asked("TRAN_MSG\x01True\x02"), Ok(Asks { delay: false, half: true }));
        assert_eq!(
            asked("INNER_MULTI_DISPATCH\x01%LMQ%a\x02"),
            Ok(Asks::default()),
            "means nothing: there are no light queues"
        );
        for (text, expected) in [
            ("TRAN_MSG\x01true\x02", Err(13)),
            ("TRAN_MSG\x01false\x02", Ok(())),
            ("DELAY\x013\x02", Err(13)),
            ("DELAY\x010\x02DELAY\x01-1\x02", Ok(())),
            ("DELAY\x01x\x02", Err(13)),
            ("DELAY\x0199999999999\x02", Err(13)),
            ("TIMER_DELAY_MS\x011\x02", Err(13)),
            ("TIMER_DELAY_SEC\x011\x02", Err(13)),
            ("TIMER_DELIVER_MS\x011\x02", Err(13)),
            ("INNER_MULTI_DISPATCH\x01%LMQ%a\x02", Ok(())),
            ("TAGS\x01DELAY\x02KEYS\x01TRAN_MSG\x02", Ok(())),
        ] {
            assert_eq!(
                check_batch(pairs(text.as_bytes()), false).map_err(|refusal| refusal.code),
                expected,
                "{text:?}"
            );
        }
        let read = |header: &SendHeader<'static>| {
            let mut memory = Vec::new();
            let mut list = PropertyList::default();
            header.properties.read_properties(&mut list, &mut memory);
            check_properties(header, false, &list)
        };
        for sys_flag in [4, 8, 12] {
            let header = SendHeader { sys_flag, ..to(b"t", 0) };
            assert_eq!(read(&header).unwrap_err().code, 13, "bits alone");
            let header = SendHeader { properties: HeaderText::plain(b"TRAN_MSG\x01true\x02"), ..header };
            assert!(read(&header).unwrap().half);
        }
        let retried = |text: &'static [u8]| {
            let header = SendHeader {
                sys_flag: 4,
                properties: HeaderText::plain(text),
                reconsume_times: 1,
                ..to(b"%RETRY%g", 0)
            };
            read(&header).map_err(|refusal| refusal.code)
        };
        let plain = Asks { delay: true, half: false };
        assert_eq!(retried(b"TRAN_MSG\x01true\x02DELAY\x013\x02"), Ok(plain), "by an old client");
        assert_eq!(retried(b"TRAN_MSG\x01true\x02DELAY\x010\x02"), Ok(Asks { half: true, ..plain }));
    }
}
