//! Work for a shard: requests as they are after their checks, on their way to the queue.
//!
//! Role: plain values between `core` (or a lane) and `shard_host`. Invariants: topic, queue and permissions were checked against
//! the snapshot of the connection's core; counts and offsets are still the client's and may be nonsense.

use crate::crossing::ReplyTo;
use crate::filter::{Compiled, Expression};
use crate::snapshot::{Group, PendingReset, Subscription, Topic};
use message::PhysicalOffset;
use message::hash::java_hash;
use message::properties::PropertiesSource;
use smallvec::SmallVec;
use std::net::SocketAddr;
use std::sync::Arc;
use store::Boundary;

/// Numbers of a send, checked and routed; the bytes (topic, properties, body) travel beside it.
#[derive(Clone, Copy, Debug)]
pub struct SendNumbers {
    /// The queue that takes it.
    pub queue_id: u32,
    /// The queue that the sender is told: another than that when the message is to wait.
    pub answered_queue_id: u32,
    /// The sender's own flag.
    pub flag: i32,
    /// System flag.
    pub sys_flag: i32,
    /// The sender's time, ms since 1970.
    pub born_timestamp_ms: i64,
    /// The sender's address.
    pub born_host: SocketAddr,
    /// How often it was delivered before.
    pub reconsume_times: i32,
    /// The body is a batch (code 320).
    pub batch: bool,
    /// The sender waits for the flush (`WAIT` is not `false`).
    pub wait: bool,
}

/// A pull, checked and routed.
#[derive(Clone, Debug)]
pub struct PullWork {
    /// The topic.
    pub topic: Arc<Topic>,
    /// The group.
    pub group: Arc<Group>,
    /// The queue.
    pub queue_id: u32,
    /// Where to read from; may be out of any range.
    pub offset: i64,
    /// Where the client asked from: less than `offset` once a held pull has moved past messages that are not for it.
    pub asked_offset: i64,
    /// Most records asked for; may be nonsense.
    pub max_count: i32,
    /// Most bytes by the live settings.
    pub max_bytes: u32,
    /// Which messages.
    pub filter: MessageFilter,
    /// The filter came with the request; else it follows the heartbeats of the group.
    pub own_filter: bool,
    /// Version of the snapshot that it was checked against.
    pub checked_version: u64,
    /// How long it may be held when nothing is there, in ms; `None`: not at all.
    pub suspend_ms: Option<u64>,
    /// Until when it is held again, in monotonic µs, if what woke it is not for it. Only a filter by properties asks the messages
    /// themselves, so only its pulls are woken in vain.
    pub hold_until_us: Option<u64>,
    /// A server-side reset that answers it instead of the queue, unless another pull took it before.
    pub reset: Option<PendingReset>,
}

/// Which messages of a queue a reader wants.
#[derive(Clone, Debug)]
pub enum MessageFilter {
    /// Everything.
    All,
    /// The tags with these hash codes.
    Codes(SmallVec<[i32; 4]>),
    /// The tags of a heartbeat's subscription.
    Subscribed(Arc<Subscription>),
    /// Those whose properties an SQL92 expression accepts.
    Sql(Arc<Expression>),
}

impl MessageFilter {
    /// The filter that a request brings along: a text and its kind, which is `TAG` when left out. An expression is looked for
    /// in `compiled` first.
    ///
    /// # Errors
    /// The text is not one of its kind, or the kind is not known: why.
    pub fn parse(kind: Option<&[u8]>, text: &[u8], compiled: &mut Compiled) -> Result<Self, String> {
        if is_tag_kind(kind) {
            return tags(text).ok_or_else(|| "there is no tag in it".to_owned());
        }
        if text.is_empty() {
            return Err("the expression is empty".to_owned());
        }
        let kind = kind.unwrap_or_default();
        if kind != SQL92 {
            return Err(format!("the expression type {} is not known", String::from_utf8_lossy(kind)));
        }
        compiled.get(&String::from_utf8_lossy(text)).map(Self::Sql).map_err(|error| error.to_string())
    }

    /// Whether a message with this tag value may be for the reader: Java's comparison by hash code. Of an SQL92 filter any may be,
    /// until its properties were asked.
    #[must_use]
    pub fn matches(&self, tags_code: i64) -> bool {
        match self {
            Self::All | Self::Sql(_) => true,
            Self::Codes(codes) => codes.contains(&(tags_code as i32)),
            Self::Subscribed(subscription) => subscription.codes.binary_search(&(tags_code as i32)).is_ok(),
        }
    }

    /// What the properties of a message are asked, if anything.
    #[must_use]
    pub fn expression(&self) -> Option<&Expression> {
        match self {
            Self::Sql(expression) => Some(expression),
            Self::All | Self::Codes(_) | Self::Subscribed(_) => None,
        }
    }
}

/// The expression type of SQL92 filters.
pub const SQL92: &[u8] = b"SQL92";

/// Whether an expression type means tags: Java's name of them, or nothing.
#[must_use]
pub fn is_tag_kind(kind: Option<&[u8]>) -> bool {
    matches!(kind, None | Some(b"" | b"TAG"))
}

/// The filter of `A || B`; `None` for a text of separators only. Parts are trimmed, empty ones count for nothing.
fn tags(text: &[u8]) -> Option<MessageFilter> {
    if matches!(text, b"" | b"*") {
        return Some(MessageFilter::All);
    }
    let text = String::from_utf8_lossy(text);
    // Java's split drops trailing empty parts and then wants at least one.
    if text.split("||").all(str::is_empty) {
        return None;
    }
    let tags = text.split("||").map(|part| part.trim_matches(|c: char| c <= ' ')).filter(|tag| !tag.is_empty());
    let codes: SmallVec<[i32; 4]> = tags.map(|tag| java_hash(tag.as_bytes())).collect();
    Some(MessageFilter::Codes(codes))
}

/// A pull in the wait list.
#[derive(Debug)]
pub struct HeldPull {
    /// Who waits; not counted as in flight.
    pub reply: ReplyTo,
    /// What it asked.
    pub work: PullWork,
}

/// A question about one queue, or one record.
#[derive(Clone, Debug)]
pub struct QueueQuestion {
    /// The topic; empty for [`Question::Record`].
    pub topic: Box<[u8]>,
    /// The queue.
    pub queue_id: u32,
    /// What is asked.
    pub question: Question,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// 30.
    MaxOffset,
    /// 31.
    MinOffset,
    /// 32.
    EarliestStoreTime,
    /// 29.
    OffsetByTime {
        /// Milliseconds since 1970.
        timestamp_ms: i64,
        /// Which side.
        boundary: Boundary,
    },
    /// 33.
    Record(PhysicalOffset),
}

/// A message to be sent back (36), checked as far as it can be without the message.
#[derive(Clone, Debug)]
pub struct SendBack {
    /// The consumer group.
    pub group: Arc<Group>,
    /// Where the message lies.
    pub offset: PhysicalOffset,
    /// 0: the broker chooses; negative: to the dead letters.
    pub delay_level: i32,
    /// Tries after which it goes to the dead letters.
    pub max_reconsume_times: i32,
    /// Counts for the flags of a retry topic that is made.
    pub unit_mode: bool,
    /// Chooses the queue of the copy.
    pub any_queue: u32,
    /// The owner was asked for the topic of the copy.
    pub asked: bool,
}

/// The bytes of a send.
#[derive(Clone, Copy, Debug)]
pub struct SendBytes<'a> {
    /// Topic.
    pub topic: &'a [u8],
    /// Properties as they are to be stored.
    pub properties: PropertiesSource<'a>,
    /// Body, or batch body.
    pub body: &'a [u8],
    /// The unique id for the answer's `transactionId`; empty for none.
    pub unique_id: &'a [u8],
    /// Of a timed message, what it can be recalled by; empty for none.
    pub recall_handle: &'a [u8],
}

impl SendBytes<'_> {
    /// All of them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.topic.len()
            + self.properties.encoded_len()
            + self.body.len()
            + self.unique_id.len()
            + self.recall_handle.len()
    }

    /// Whether there is no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(text: &str) -> Option<Vec<i32>> {
        match MessageFilter::parse(None, text.as_bytes(), &mut Compiled::default()).ok()? {
            MessageFilter::All => Some(vec![]),
            MessageFilter::Codes(codes) => Some(codes.to_vec()),
            MessageFilter::Subscribed(_) | MessageFilter::Sql(_) => panic!("tags were asked for"),
        }
    }

    #[test]
    fn subscription_texts_are_read_as_java_reads_them() {
        let (a, b) = (java_hash(b"A"), java_hash(b"B c"));
        assert_eq!(codes("*"), Some(vec![]));
        assert_eq!(codes(""), Some(vec![]));
        assert_eq!(codes("A"), Some(vec![a]));
        assert_eq!(codes(" A  ||\tB c || "), Some(vec![a, b]));
        assert_eq!(codes("|| A ||"), Some(vec![a]));
        assert_eq!(codes("||"), None);
        assert_eq!(codes("||||"), None);
        let blank = MessageFilter::parse(Some(b"TAG"), b"  ", &mut Compiled::default());
        assert!(matches!(blank, Ok(MessageFilter::Codes(codes)) if codes.is_empty()), "matches nothing");
    }

    #[test]
    fn expressions_are_compiled_or_refused() {
        let filter = MessageFilter::parse(Some(SQL92), b"a = 1", &mut Compiled::default()).unwrap();
        assert!(filter.matches(7), "the tag says nothing");
        assert!(filter.expression().is_some_and(|one| one.matches(b"a\x011\x02") && !one.matches(b"")));
        for (kind, text, error) in [
            (SQL92, &b"a ="[..], "expected a value or a property, found the end at character 4"),
            (SQL92, b"", "the expression is empty"),
            (b"sql92", b"a = 1", "the expression type sql92 is not known"),
        ] {
            assert_eq!(MessageFilter::parse(Some(kind), text, &mut Compiled::default()).unwrap_err(), error);
        }
    }
}
