//! CONSUMER_SEND_MSG_BACK (36): a message that a consumer could not use comes back later, or goes to the dead letters; and
//! the same for clients that send the retry themselves (310 to a retry topic).
//!
//! Role: who may send what back, what becomes of a message, and what its copy says. The message itself is read by the shard
//! that holds it, so the second half of the checks runs there. It reads and writes no shard.

use crate::owner::Refusal;
use crate::snapshot::{Group, PERM_WRITE, Snapshot};
use crate::work::SendBack;
use message::PhysicalOffset;
use message::ids::{IdText, OffsetMessageId};
use message::names;
use message::properties::{PropertyList, name};
use message::record::RecordView;
use remoting::codes::version;
use remoting::{Command, ResponseCode};
use std::borrow::Cow;
use std::net::IpAddr;
use store::ShardId;

/// Queues of a group's dead-letter topic.
pub const DLQ_QUEUES: u32 = 1;
/// The delay level of a first retry whose level the client leaves to the broker; each try is one level later.
const FIRST_LEVEL: i32 = 3;

/// A header of 36.
#[derive(Clone, Copy, Debug)]
pub struct SendBackHeader<'a> {
    /// The consumer group.
    pub group: &'a str,
    /// Where the message lies in the commit log.
    pub offset: i64,
    /// 0: the broker chooses; negative: to the dead letters at once.
    pub delay_level: i32,
    /// Counts for the flags of a retry topic that is made.
    pub unit_mode: bool,
    /// Tries that the client allows; `None` leaves that to the group.
    pub max_reconsume_times: Option<i32>,
}

impl<'a> SendBackHeader<'a> {
    /// Reads a request. Clients before 3.4.9 have no say in the number of tries.
    ///
    /// # Errors
    /// A field is missing or no number.
    pub fn parse(command: &'a Command) -> Result<Self, Refusal> {
        let ext = &command.ext;
        let max_reconsume_times = ext.optional_i32("maxReconsumeTimes")?;
        Ok(Self {
            group: ext.text("group")?,
            offset: ext.i64("offset")?,
            delay_level: ext.i32("delayLevel")?,
            unit_mode: ext.boolean("unitMode").unwrap_or(false),
            max_reconsume_times: max_reconsume_times.filter(|_| command.version >= version::V3_4_9),
        })
    }
}

/// What to do with a send-back.
#[derive(Debug)]
pub enum Admission {
    /// Let this shard read the message.
    Read(ShardId, SendBack),
    /// The group is not known here: ask the owner, then check again.
    NeedGroup,
    /// Answer with success: the group wants no retries.
    Nothing,
    /// Answer with this.
    Refuse(Refusal),
}

/// Checks a send-back against the metadata, in a store of `shards` shards. `asked` says that the owner has answered already.
/// `any_queue` is a number that changes from call to call.
pub fn admit(
    header: &SendBackHeader<'_>,
    snapshot: &Snapshot,
    broker_ip: IpAddr,
    shards: u16,
    any_queue: u32,
    asked: bool,
) -> Admission {
    let refuse = |code: ResponseCode, remark: String| Admission::Refuse(Refusal::new(code, remark));
    let Some(group) = snapshot.group_or_light(header.group.as_bytes()).map(Cow::into_owned) else {
        if !asked {
            return Admission::NeedGroup;
        }
        return Admission::Refuse(no_group(header.group));
    };
    if snapshot.settings.broker_permission & PERM_WRITE == 0 {
        return refuse(ResponseCode::NoPermission, format!("the broker[{broker_ip}] sending message is forbidden"));
    }
    if group.retry_queues == 0 {
        return Admission::Nothing;
    }
    let retry_topic = names::retry_topic(header.group);
    if snapshot.topic(retry_topic.as_bytes()).is_some_and(|topic| !topic.writable()) {
        return refuse(ResponseCode::NoPermission, format!("the topic[{retry_topic}] sending message is forbidden"));
    }
    let offset = PhysicalOffset::from_i64(header.offset);
    let shard = offset.and_then(ShardId::of).filter(|shard| shard.0 < shards);
    let (Some(offset), Some(shard)) = (offset, shard) else {
        return Admission::Refuse(no_message(header.offset));
    };
    let work = SendBack {
        group: group.clone(),
        offset,
        delay_level: header.delay_level,
        max_reconsume_times: header.max_reconsume_times.unwrap_or(group.retry_max_times),
        unit_mode: header.unit_mode,
        any_queue,
        asked: false,
    };
    Admission::Read(shard, work)
}

/// The refusal of a group that neither exists nor can be made.
#[must_use]
pub fn no_group(group: &str) -> Refusal {
    Refusal::new(ResponseCode::SubscriptionGroupNotExist, format!("subscription group not exist, {group}"))
}

/// The refusal of an offset where no message starts.
#[must_use]
pub fn no_message(offset: i64) -> Refusal {
    Refusal::new(ResponseCode::SystemError, format!("look message by offset failed, {offset}"))
}

/// The refusal when a retry or dead-letter topic went away again.
#[must_use]
pub fn no_topic(topic: &str) -> Refusal {
    Refusal::new(ResponseCode::SystemError, format!("topic[{topic}] not exist"))
}

/// What becomes of a message that is sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It comes back after this delay level (1 or more).
    Retry(i32),
    /// It goes to the dead letters.
    DeadLetter,
}

impl Fate {
    /// By the tries it had.
    #[must_use]
    pub fn of(work: &SendBack, reconsume_times: i32) -> Self {
        if reconsume_times >= work.max_reconsume_times || work.delay_level < 0 {
            Self::DeadLetter
        } else if work.delay_level == 0 {
            // A count below 0 (a sender may say so) would be a level that is none.
            Self::Retry(reconsume_times.saturating_add(FIRST_LEVEL).max(1))
        } else {
            Self::Retry(work.delay_level)
        }
    }

    /// The topic that takes the copy.
    #[must_use]
    pub fn topic(self, group: &Group) -> String {
        match self {
            Self::Retry(_) => names::retry_topic(&group.name),
            Self::DeadLetter => names::dlq_topic(&group.name),
        }
    }

    /// The queues of that topic when it must be made.
    #[must_use]
    pub fn queues(self, group: &Group) -> u32 {
        match self {
            Self::Retry(_) => group.retry_queues,
            Self::DeadLetter => DLQ_QUEUES,
        }
    }

    /// The system flag of that topic when it must be made: a retry topic in unit mode is a subscription of a unit.
    #[must_use]
    pub fn topic_sys_flag(self, unit_mode: bool) -> i32 {
        match self {
            Self::Retry(_) if unit_mode => 2,
            _ => 0,
        }
    }

    /// The queue of the copy; the topic has `write_queues`.
    #[must_use]
    pub fn queue_id(self, work: &SendBack, write_queues: u32) -> u32 {
        match self {
            Self::Retry(_) => work.any_queue % work.group.retry_queues.min(write_queues).max(1),
            Self::DeadLetter => 0,
        }
    }
}

/// Memory for what [`properties`] puts in.
pub struct CopyTexts {
    level: String,
    origin_id: IdText,
}

impl CopyTexts {
    /// Of a message and its fate.
    #[must_use]
    pub fn new(record: &RecordView<'_>, fate: Fate) -> Self {
        let level = match fate {
            Fate::Retry(level) => level,
            Fate::DeadLetter => 0,
        };
        let id = OffsetMessageId { store_host: record.store_host(), offset: record.physical_offset() };
        Self { level: level.to_string(), origin_id: id.text() }
    }
}

/// The properties of the copy, as Java's map has them: those of the message, where it came from first, and its delay.
#[must_use]
pub fn properties<'a>(record: &RecordView<'a>, texts: &'a CopyTexts) -> PropertyList<'a> {
    let mut list = PropertyList::parse(record.properties());
    if !list.contains(name::RETRY_TOPIC) {
        list.put(name::RETRY_TOPIC, record.topic());
    }
    list.put(name::WAIT, b"false");
    list.put(name::DELAY, texts.level.as_bytes());
    if list.get(name::ORIGIN_MESSAGE_ID).is_none_or(|id| id.iter().all(u8::is_ascii_whitespace)) {
        list.put(name::ORIGIN_MESSAGE_ID, texts.origin_id.as_bytes());
    }
    list
}

/// A retry that a client sends itself, as the dead-letter rule needs it.
#[derive(Clone, Copy, Debug)]
pub struct RetrySend {
    /// How often the message was delivered.
    pub reconsume_times: i32,
    /// Tries that the client allows; `None` leaves that to the group.
    pub max_reconsume_times: Option<i32>,
    /// Version of the client.
    pub version: i32,
}

impl RetrySend {
    /// Whether it goes to the dead letters by its number of tries alone. (A send-back does so one try earlier: its message has
    /// not been counted yet.)
    #[must_use]
    pub fn is_over(&self, group: &Group) -> bool {
        let of_client = self.max_reconsume_times.filter(|_| self.version >= version::V3_4_9);
        self.reconsume_times > of_client.unwrap_or(group.retry_max_times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LiveSettings;
    use crate::fixtures::{group, snapshot, topic};
    use crate::snapshot::Topic;
    use message::QueueOffset;
    use message::properties::PropertiesSource;
    use message::record::{RecordFields, encode, patch};
    use std::sync::Arc;
    use store::SHARD_SPAN;

    fn header(group: &str) -> SendBackHeader<'_> {
        SendBackHeader { group, offset: 0, delay_level: 0, unit_mode: false, max_reconsume_times: None }
    }

    fn outcome(header: &SendBackHeader<'_>, snapshot: &Snapshot, asked: bool) -> Result<u16, i32> {
        match admit(header, snapshot, "127.0.0.1".parse().unwrap(), 2, 5, asked) {
            Admission::Read(shard, _) => Ok(shard.0),
            Admission::NeedGroup => Err(-1),
            Admission::Nothing => Err(0),
            Admission::Refuse(refusal) => Err(refusal.code),
        }
    }

    #[test]
    fn checks_in_the_order_of_java() {
        let closed = Topic { perm: 4, ..topic("%RETRY%closed") };
        let without = Group { retry_queues: 0, ..group("without") };
        let all = snapshot([closed], [group("g"), group("closed"), without]);
        let span = SHARD_SPAN as i64;
        for (header, asked, expected) in [
            (header("g"), false, Ok(0)),
            (SendBackHeader { offset: span, ..header("g") }, false, Ok(1)),
            (SendBackHeader { offset: 2 * span, ..header("g") }, false, Err(1)),
            (SendBackHeader { offset: -1, ..header("g") }, false, Err(1)),
            (SendBackHeader { offset: i64::MAX, ..header("g") }, false, Err(1)),
            (header("unknown"), false, Err(-1)),
            (header("unknown"), true, Err(26)),
            (SendBackHeader { offset: -1, ..header("without") }, false, Err(0)),
            (SendBackHeader { offset: -1, ..header("closed") }, false, Err(16)),
        ] {
            assert_eq!(outcome(&header, &all, asked), expected, "{header:?}");
        }
        let drained = LiveSettings { broker_permission: 4, ..LiveSettings::default() };
        let drained = Snapshot { settings: Arc::new(drained), ..all };
        assert_eq!(outcome(&header("without"), &drained, false), Err(16));
        assert_eq!(outcome(&header("unknown"), &drained, true), Err(26));
    }

    #[test]
    fn old_clients_have_no_say_in_the_number_of_tries() {
        for (client_version, expected) in [(120, None), (121, Some(2)), (493, Some(2))] {
            let mut command = Command::request(remoting::RequestCode::ConsumerSendMsgBack, 1)
                .with_field("group", "g")
                .with_field("offset", 5)
                .with_field("delayLevel", -1)
                .with_field("maxReconsumeTimes", 2);
            command.version = client_version;
            assert_eq!(SendBackHeader::parse(&command).unwrap().max_reconsume_times, expected);
        }
        for missing in ["group", "offset", "delayLevel"] {
            let mut command = Command::request(remoting::RequestCode::ConsumerSendMsgBack, 1)
                .with_field("group", "g")
                .with_field("offset", 5)
                .with_field("delayLevel", 0);
            command.ext.remove(missing);
            assert_eq!(SendBackHeader::parse(&command).unwrap_err().code, 1, "{missing}");
        }
    }

    fn work(delay_level: i32, max_reconsume_times: i32) -> SendBack {
        SendBack {
            group: Arc::new(Group { retry_queues: 3, ..group("g") }),
            offset: PhysicalOffset(0),
            delay_level,
            max_reconsume_times,
            unit_mode: false,
            any_queue: 7,
            asked: false,
        }
    }

    #[test]
    fn levels_and_dead_letters() {
        for (level, max, times, expected) in [
            (0, 16, 0, Fate::Retry(3)),
            (0, 16, 15, Fate::Retry(18)),
            (0, 16, 16, Fate::DeadLetter),
            (0, i32::MAX, i32::MAX - 1, Fate::Retry(i32::MAX)),
            (0, 16, i32::MIN, Fate::Retry(1)),
            (5, 16, 2, Fate::Retry(5)),
            (99, 16, 2, Fate::Retry(99)),
            (-1, 16, 0, Fate::DeadLetter),
            (1, 0, 0, Fate::DeadLetter),
            (1, -1, 0, Fate::DeadLetter),
        ] {
            assert_eq!(Fate::of(&work(level, max), times), expected, "level {level}, {times} of {max}");
        }
        let (retry, dead) = (Fate::Retry(3), Fate::DeadLetter);
        let work = work(0, 16);
        assert_eq!((retry.topic(&work.group), dead.topic(&work.group)), ("%RETRY%g".into(), "%DLQ%g".into()));
        assert_eq!((retry.queues(&work.group), dead.queues(&work.group)), (3, 1));
        assert_eq!((retry.queue_id(&work, 3), retry.queue_id(&work, 2), retry.queue_id(&work, 0)), (1, 1, 0));
        assert_eq!((retry.topic_sys_flag(true), retry.topic_sys_flag(false), dead.topic_sys_flag(true)), (2, 0, 0));
    }

    #[test]
    fn retries_of_clients_are_over_one_try_later() {
        let group = Group { retry_max_times: 2, ..group("g") };
        for (times, max, client_version, expected) in [
            (2, None, 493, false),
            (3, None, 493, true),
            (3, Some(3), 493, false),
            (4, Some(3), 493, true),
            (3, Some(3), 120, true),
            (0, Some(-1), 493, true),
        ] {
            let send = RetrySend { reconsume_times: times, max_reconsume_times: max, version: client_version };
            assert_eq!(send.is_over(&group), expected, "{send:?}");
        }
    }

    fn record(properties: &str) -> Vec<u8> {
        let fields = RecordFields {
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp_ms: 0,
            born_host: "127.0.0.1:1".parse().unwrap(),
            store_host: "127.0.0.1:10911".parse().unwrap(),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            topic: b"orders",
            body: b"x",
            properties: PropertiesSource::Text(properties.as_bytes()),
        };
        let mut bytes = Vec::new();
        encode(&mut bytes, &fields).unwrap();
        patch(&mut bytes, QueueOffset(0), PhysicalOffset(4096), 0);
        bytes
    }

    #[test]
    fn a_copy_says_where_it_came_from_first() {
        let copy = |properties: &str, fate: Fate| {
            let bytes = record(&properties.replace('=', "\x01").replace(';', "\x02"));
            let view = RecordView::parse(&bytes).unwrap();
            let texts = CopyTexts::new(&view, fate);
            let mut out = Vec::new();
            super::properties(&view, &texts).write(&mut out);
            let text = String::from_utf8(out).unwrap().replace('\x01', "=");
            let mut pairs: Vec<String> = text.split_terminator('\x02').map(str::to_owned).collect();
            pairs.sort();
            pairs.join(";")
        };
        assert_eq!(
            copy("TAGS=T;KEYS=k;WAIT=true;", Fate::Retry(3)),
            "DELAY=3;KEYS=k;ORIGIN_MESSAGE_ID=7F00000100002A9F0000000000001000;RETRY_TOPIC=orders;TAGS=T;WAIT=false"
        );
        assert_eq!(
            copy("ORIGIN_MESSAGE_ID=first;RETRY_TOPIC=before;DELAY=9;p=v;", Fate::DeadLetter),
            "DELAY=0;ORIGIN_MESSAGE_ID=first;RETRY_TOPIC=before;WAIT=false;p=v"
        );
    }
}
