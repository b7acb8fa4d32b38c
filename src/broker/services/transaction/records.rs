//! The records and frames of transactions, byte for byte those of Java: pure.
//!
//! Role: from a half message to the delivered one, to the one that is written again for a check, and to the frame that asks
//! the producer; and what a half says of itself. It decides nothing about the state of a half.

use message::ids::OffsetIdPrefix;
use message::properties::{PropertiesSource, PropertyList, name};
use message::record::{RecordFields, RecordView, encode, patch};
use message::{PhysicalOffset, QueueOffset, names};
use remoting::{Command, RequestCode};

/// Bytes of properties that a half message must leave free, so that it can be counted and delayed later on.
pub const ROOM_BYTES: usize = 80;

/// When a half is checked, by the settings.
#[derive(Clone, Copy, Debug)]
pub struct CheckRules {
    /// `transactionTimeOut`, ms.
    pub timeout_ms: u32,
    /// `transactionCheckMax`.
    pub max_checks: u32,
    /// `fileReservedTime`, hours.
    pub reserved_hours: u32,
}

/// What is to be done with a half that nobody has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is too young: look again after so many ms.
    After(u64),
    /// Its producer is to be asked; the count of this check.
    Check(u32),
    /// It was asked often enough, or is too old.
    GiveUp,
}

/// What a half message says of itself.
#[derive(Clone, Debug)]
pub struct Half<'a> {
    /// The record.
    pub record: RecordView<'a>,
    /// Its properties.
    pub list: PropertyList<'a>,
    /// Its properties ask for a delay: [`crate::processor::delay::redirect`] decides.
    pub asks_delay: bool,
    real_topic: Option<&'a [u8]>,
    real_queue: Option<&'a [u8]>,
    group: Option<&'a [u8]>,
    immunity: Option<&'a [u8]>,
}

impl<'a> Half<'a> {
    /// The half message of these bytes; `None` for a record of another topic.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let record = RecordView::parse(bytes).ok().filter(|record| record.topic() == names::HALF_TOPIC)?;
        let list = PropertyList::parse(record.properties());
        let (mut real_topic, mut real_queue, mut group, mut immunity) = (None, None, None, None);
        let mut asks_delay = false;
        for (name, value) in list.iter() {
            match name {
                name::REAL_TOPIC => real_topic = Some(value),
                name::REAL_QUEUE_ID => real_queue = Some(value),
                name::PRODUCER_GROUP => group = Some(value),
                name::CHECK_IMMUNITY_TIME => immunity = Some(value),
                name::DELAY | name::TIMER_DELAY_SEC | name::TIMER_DELAY_MS | name::TIMER_DELIVER_MS => {
                    asks_delay = true;
                }
                _ => {}
            }
        }
        Some(Self { record, list, asks_delay, real_topic, real_queue, group, immunity })
    }

    /// Topic and queue that it is for.
    pub fn target(&self) -> Option<(&'a [u8], u32)> {
        Some((self.real_topic?, number(self.real_queue?)?))
    }

    /// The producer group.
    pub fn group(&self) -> Option<&'a [u8]> {
        self.group
    }

    /// Its age in ms by the sender's clock, or by ours when the sender's is ahead.
    fn age_ms(&self, now_ms: i64) -> u64 {
        let by_sender = now_ms.saturating_sub(self.record.born_timestamp_ms());
        let age = if by_sender < 0 { now_ms.saturating_sub(self.record.store_timestamp_ms()) } else { by_sender };
        u64::try_from(age).unwrap_or(0)
    }

    /// Whether an end that is no answer to a check comes too late: after the time that the sender chose itself.
    pub fn is_late(&self, now_ms: i64, timeout_ms: u32) -> bool {
        self.immunity.is_some_and(|own| self.age_ms(now_ms) > immunity_ms(Some(own), timeout_ms))
    }

    /// Whether its producer is to be asked now.
    pub fn verdict(&self, now_ms: i64, rules: CheckRules) -> Verdict {
        let times = self.list.get(name::TRANSACTION_CHECK_TIMES).map_or(0, |text| number(text).unwrap_or(0));
        let age_ms = self.age_ms(now_ms);
        if times >= rules.max_checks || age_ms > u64::from(rules.reserved_hours) * 3_600_000 {
            return Verdict::GiveUp;
        }
        let immunity_ms = immunity_ms(self.immunity, rules.timeout_ms);
        if age_ms <= immunity_ms { Verdict::After(immunity_ms - age_ms + 1) } else { Verdict::Check(times + 1) }
    }

    /// Makes the properties those of the delivered message.
    pub fn deliver(&mut self) {
        self.list.remove(name::REAL_TOPIC);
        self.list.remove(name::REAL_QUEUE_ID);
    }

    /// The record with the properties as they are now, made from this one.
    pub fn fields<'b>(&'b self, topic: &'b [u8], queue_id: u32, sys_flag: i32) -> RecordFields<'b> {
        RecordFields {
            topic,
            queue_id: queue_id as i32,
            sys_flag,
            prepared_transaction_offset: self.record.physical_offset().to_i64(),
            properties: PropertiesSource::List(self.list.view()),
            ..self.record.fields()
        }
    }
}

/// Target topic, target queue and properties of a half that was given up, as those of a new half; `None` for another record.
#[must_use]
pub fn resumed<'a>(record: &RecordView<'a>) -> Option<(&'a [u8], u32, PropertyList<'a>)> {
    if record.topic() != names::TRANS_CHECK_MAX_TIME_TOPIC {
        return None;
    }
    let mut list = PropertyList::parse(record.properties());
    let topic = list.get(name::REAL_TOPIC)?;
    let queue_id = number(list.get(name::REAL_QUEUE_ID)?)?;
    list.put(name::TRANSACTION_CHECK_TIMES, b"0");
    Some((topic, queue_id, list))
}

/// Ms before the first check: the sender's own time, but never less than the broker's.
fn immunity_ms(own: Option<&[u8]>, timeout_ms: u32) -> u64 {
    let own_ms = own.and_then(number::<u64>).map_or(0, |seconds| seconds.saturating_mul(1_000));
    own_ms.max(u64::from(timeout_ms))
}

fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The request that asks a producer about a half message, but for where that lies after it was written again.
#[derive(Debug)]
pub struct CheckRequest {
    record: Vec<u8>,
    store_timestamp_ms: i64,
    unique_id: Option<String>,
}

impl CheckRequest {
    /// About this half, with its properties as they are to be shown. `None` if it is for nothing.
    pub fn new(half: &Half<'_>) -> Option<Self> {
        let (topic, queue_id) = half.target()?;
        let mut shown = half.list.clone();
        shown.put(name::WAIT, b"false");
        let fields = RecordFields {
            topic,
            queue_id: queue_id as i32,
            properties: PropertiesSource::List(shown.view()),
            ..half.record.fields()
        };
        let mut record = Vec::new();
        encode(&mut record, &fields).ok()?;
        let unique_id = half.list.get(name::UNIQ_KEY).map(|id| String::from_utf8_lossy(id).into_owned());
        Some(Self { record, store_timestamp_ms: half.record.store_timestamp_ms(), unique_id })
    }

    /// The request about the half as it lies now.
    pub fn command(
        mut self,
        opaque: i32,
        at: (QueueOffset, PhysicalOffset),
        ids: &OffsetIdPrefix,
        broker: &str,
    ) -> Command {
        let (queue_offset, offset) = at;
        patch(&mut self.record, queue_offset, offset, self.store_timestamp_ms);
        Command::request(RequestCode::CheckTransactionState, opaque)
            .oneway()
            .with_field("bname", broker)
            .with_field("commitLogOffset", offset.0)
            .with_field("topic", String::from_utf8_lossy(names::HALF_TOPIC))
            .with_optional("msgId", self.unique_id.as_deref())
            .with_field("tranStateTableOffset", queue_offset.0)
            .with_field("offsetMsgId", ids.id(offset).as_str())
            .with_optional("transactionId", self.unique_id.as_deref())
            .with_body(self.record)
    }
}
