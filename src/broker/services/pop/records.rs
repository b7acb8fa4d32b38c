//! The records of the revive topic: check points, acknowledgements, and the state of ordered queues.
//!
//! Role: their JSON bodies and properties, written by hand into buffers that the caller keeps, byte for byte as Java's beans are
//! written; and read back leniently, for they may be another broker's. Pure.

use super::numbers::write_numbers;
use super::order::OrderInfo;
use message::properties::{MAX_PROPERTIES_BYTES, name};
use remoting::json::JsonRef;
use smallvec::SmallVec;

/// Tag of a check point.
pub const CHECK_TAG: &[u8] = b"ck";
/// Tag of the acknowledgement of one message.
pub const ACK_TAG: &[u8] = b"ack";
/// Tag of the acknowledgement of several messages of one check point.
pub const BATCH_ACK_TAG: &[u8] = b"bAck";
/// Tag of the state of an ordered queue. Java's revive service passes over it.
pub const ORDER_TAG: &[u8] = b"order";
/// Most messages of a check point: the bits of Java's map of acknowledged ones.
pub const MAX_MESSAGES: usize = 32;

/// Names a check point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckName<'a> {
    /// The topic of the messages.
    pub topic: &'a str,
    /// The group.
    pub group: &'a str,
    /// The queue.
    pub queue_id: u32,
    /// First offset.
    pub start: u64,
    /// When it was popped, ms since 1970.
    pub pop_time_ms: i64,
}

/// Body and properties of a record, kept for their capacity.
#[derive(Debug, Default)]
pub struct Draft {
    /// The body.
    pub body: Vec<u8>,
    /// The properties text.
    pub properties: Vec<u8>,
}

impl Draft {
    /// A check point; `distances` from the start, ascending.
    pub fn check(&mut self, of: &CheckName<'_>, broker: &str, invisible_ms: i64, distances: &[u32], now_ms: i64) {
        self.body.clear();
        self.text("{\"bm\":0,\"bn\":");
        self.quoted(broker);
        self.text(",\"c\":");
        self.quoted(of.group);
        self.text(",\"d\":[");
        write_numbers(&mut self.body, distances.iter().map(|distance| u64::from(*distance)));
        self.member("],\"it\":", invisible_ms);
        self.member(",\"n\":", distances.len() as i64);
        self.member(",\"pt\":", of.pop_time_ms);
        self.member(",\"q\":", i64::from(of.queue_id));
        self.member(",\"ro\":0,\"so\":", of.start as i64);
        self.text(",\"t\":");
        self.quoted(of.topic);
        self.text("}");
        self.properties(CHECK_TAG, of, of.start as i64, broker, "ck", now_ms);
    }

    /// The acknowledgement of some messages of a check point.
    pub fn ack(&mut self, of: &CheckName<'_>, broker: &str, offsets: &[u64], now_ms: i64) {
        self.body.clear();
        let single = if let [one] = offsets { Some(*one as i64) } else { None };
        self.member("{\"ao\":", single.unwrap_or(-1));
        if single.is_none() {
            self.text(",\"aol\":[");
            write_numbers(&mut self.body, offsets.iter().copied());
            self.text("]");
        }
        self.text(",\"bn\":");
        self.quoted(broker);
        self.text(",\"c\":");
        self.quoted(of.group);
        self.member(",\"pt\":", of.pop_time_ms);
        self.member(",\"q\":", i64::from(of.queue_id));
        self.member(",\"so\":", of.start as i64);
        self.text(",\"t\":");
        self.quoted(of.topic);
        self.text("}");
        let tag = if single.is_some() { ACK_TAG } else { BATCH_ACK_TAG };
        self.properties(tag, of, single.unwrap_or(-1), broker, "ack", now_ms);
    }

    /// The state of an ordered queue, and where its group goes on.
    pub fn order(&mut self, topic: &str, group: &str, queue_id: u32, next: u64, info: &OrderInfo) {
        self.body.clear();
        self.text("{\"c\":");
        self.quoted(group);
        self.member(",\"next\":", next as i64);
        self.text(",\"order\":");
        self.body.extend_from_slice(&info.to_json().to_vec());
        self.member(",\"q\":", i64::from(queue_id));
        self.text(",\"t\":");
        self.quoted(topic);
        self.text("}");
        self.properties.clear();
        pair(&mut self.properties, name::TAGS, ORDER_TAG);
    }

    /// `TIMER_DELIVER_MS` is the time of writing: a Java broker takes the newest one for how far the topic has got.
    fn properties(&mut self, tag: &[u8], of: &CheckName<'_>, offset: i64, broker: &str, kind: &str, now_ms: i64) {
        let out = &mut self.properties;
        out.clear();
        let mut number = itoa::Buffer::new();
        pair(out, name::TIMER_DELIVER_MS, number.format(now_ms).as_bytes());
        out.extend_from_slice(name::UNIQ_KEY);
        out.push(message::properties::NAME_VALUE_SEPARATOR);
        out.extend_from_slice(of.topic.as_bytes());
        out.push(b'@');
        out.extend_from_slice(number.format(of.queue_id).as_bytes());
        out.push(b'@');
        out.extend_from_slice(number.format(offset).as_bytes());
        out.push(b'@');
        out.extend_from_slice(of.group.as_bytes());
        out.push(b'@');
        out.extend_from_slice(number.format(of.pop_time_ms).as_bytes());
        for part in [broker, kind] {
            out.push(b'@');
            out.extend_from_slice(part.as_bytes());
        }
        out.push(message::properties::PROPERTY_SEPARATOR);
        pair(out, name::TAGS, tag);
        debug_assert!(out.len() < MAX_PROPERTIES_BYTES, "names are short");
    }

    fn text(&mut self, text: &str) {
        self.body.extend_from_slice(text.as_bytes());
    }

    fn number(&mut self, number: i64) {
        self.body.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    fn member(&mut self, before: &str, number: i64) {
        self.text(before);
        self.number(number);
    }

    /// A text in quotes. Names of topics and groups need no escapes; a broker's may.
    fn quoted(&mut self, text: &str) {
        self.body.push(b'"');
        if text.bytes().all(|byte| byte >= b' ' && !matches!(byte, b'"' | b'\\')) {
            self.text(text);
            return self.body.push(b'"');
        }
        for byte in text.bytes() {
            match byte {
                b'"' | b'\\' => self.body.extend_from_slice(&[b'\\', byte]),
                0..=0x1F => self.body.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
                _ => self.body.push(byte),
            }
        }
        self.body.push(b'"');
    }
}

fn pair(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.push(message::properties::NAME_VALUE_SEPARATOR);
    out.extend_from_slice(value);
    out.push(message::properties::PROPERTY_SEPARATOR);
}

/// What a record of the revive topic says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A check point.
    Check {
        /// Its name.
        of: OwnedName,
        /// How long its messages are invisible, ms.
        invisible_ms: i64,
        /// Offsets of the messages, as distances from the start.
        distances: SmallVec<[u32; MAX_MESSAGES]>,
        /// Bits of those that are acknowledged already.
        acked: u32,
    },
    /// An acknowledgement.
    Ack {
        /// Of which check point.
        of: OwnedName,
        /// Of these offsets.
        offsets: SmallVec<[u64; MAX_MESSAGES]>,
    },
    /// The state of an ordered queue.
    Order {
        /// The topic.
        topic: String,
        /// The group.
        group: String,
        /// The queue.
        queue_id: u32,
        /// Where the group goes on.
        next: u64,
        /// The state.
        info: OrderInfo,
    },
}

/// A [`CheckName`] with its texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedName {
    /// The topic of the messages.
    pub topic: String,
    /// The group.
    pub group: String,
    /// The queue.
    pub queue_id: u32,
    /// First offset.
    pub start: u64,
    /// When it was popped, ms since 1970.
    pub pop_time_ms: i64,
    /// The broker that wrote it; empty when it does not say.
    pub broker: String,
}

/// Reads a record; `None` when it is of no kind that counts here, or makes no sense.
#[must_use]
pub fn read(tag: &[u8], body: &[u8]) -> Option<Note> {
    let json = JsonRef::parse(body).ok()?;
    match tag {
        CHECK_TAG => read_check(json),
        ACK_TAG => {
            let offset = u64::try_from(either(json, "ao", "ackOffset").as_i64()?).ok()?;
            Some(Note::Ack { of: read_name(json, true)?, offsets: SmallVec::from_slice(&[offset]) })
        }
        BATCH_ACK_TAG => {
            let list = either(json, "aol", "ackOffsetList");
            let offsets: Option<_> = list.items().map(|offset| u64::try_from(offset.as_i64()?).ok()).collect();
            Some(Note::Ack { of: read_name(json, true)?, offsets: offsets? })
        }
        ORDER_TAG => Some(Note::Order {
            topic: json.get("t").as_str()?.into_owned(),
            group: json.get("c").as_str()?.into_owned(),
            queue_id: u32::try_from(json.get("q").as_i64()?).ok()?,
            next: u64::try_from(json.get("next").as_i64()?).ok()?,
            info: OrderInfo::from_json(json.get("order"))?,
        }),
        _ => None,
    }
}

fn read_check(json: JsonRef<'_>) -> Option<Note> {
    let count = usize::try_from(json.get("n").as_i64()?).ok().filter(|count| *count <= MAX_MESSAGES)?;
    let distances: Option<SmallVec<[u32; MAX_MESSAGES]>> =
        json.get("d").items().map(|distance| u32::try_from(distance.as_i64()?).ok()).collect();
    let mut distances = distances?;
    if distances.is_empty() {
        // Written before there were distances: without gaps.
        distances = (0..count as u32).collect();
    }
    if distances.len() > MAX_MESSAGES {
        return None;
    }
    Some(Note::Check {
        of: read_name(json, false)?,
        invisible_ms: json.get("it").as_i64()?,
        distances,
        acked: json.get("bm").as_i64().unwrap_or(0) as u32,
    })
}

fn read_name(json: JsonRef<'_>, long: bool) -> Option<OwnedName> {
    let member = |short: &str, name: &str| if long { either(json, short, name) } else { json.get(short) };
    Some(OwnedName {
        topic: member("t", "topic").as_str()?.into_owned(),
        group: member("c", "consumerGroup").as_str()?.into_owned(),
        queue_id: u32::try_from(member("q", "queueId").as_i64()?).ok()?,
        start: u64::try_from(member("so", "startOffset").as_i64()?).ok()?,
        pop_time_ms: member("pt", "popTime").as_i64()?,
        broker: member("bn", "brokerName").as_str().unwrap_or_default().into_owned(),
    })
}

fn either<'a>(json: JsonRef<'a>, short: &str, long: &str) -> JsonRef<'a> {
    let found = json.get(short);
    if found.is_null() { json.get(long) } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::properties::find;
    use proptest::prelude::*;

    const OF: CheckName<'_> =
        CheckName { topic: "t", group: "g", queue_id: 3, start: 5, pop_time_ms: 1_700_000_000_000 };

    fn owned(of: &CheckName<'_>) -> OwnedName {
        OwnedName {
            topic: of.topic.into(),
            group: of.group.into(),
            queue_id: of.queue_id,
            start: of.start,
            pop_time_ms: of.pop_time_ms,
            broker: "broker-a".into(),
        }
    }

    #[test]
    fn check_points_and_acks_have_javas_form() {
        let mut draft = Draft::default();
        draft.check(&OF, "broker-a", 3000, &[0, 2], 9);
        let want = r#"{"bm":0,"bn":"broker-a","c":"g","d":[0,2],"it":3000,"n":2,"pt":1700000000000,"q":3,"ro":0,"so":5,"t":"t"}"#;
        assert_eq!(std::str::from_utf8(&draft.body).unwrap(), want);
        assert_eq!(find(&draft.properties, name::UNIQ_KEY), Some(&b"t@3@5@g@1700000000000@broker-a@ck"[..]));
        assert_eq!(find(&draft.properties, name::TAGS), Some(&b"ck"[..]));
        draft.ack(&OF, "broker-a", &[7], 9);
        let want = r#"{"ao":7,"bn":"broker-a","c":"g","pt":1700000000000,"q":3,"so":5,"t":"t"}"#;
        assert_eq!(std::str::from_utf8(&draft.body).unwrap(), want);
        assert_eq!(find(&draft.properties, name::UNIQ_KEY), Some(&b"t@3@7@g@1700000000000@broker-a@ack"[..]));
        draft.ack(&OF, "broker-a", &[5, 7], 9);
        assert_eq!(find(&draft.properties, name::TAGS), Some(&b"bAck"[..]));
        assert_eq!(
            read(BATCH_ACK_TAG, &draft.body),
            Some(Note::Ack { of: owned(&OF), offsets: SmallVec::from_slice(&[5, 7]) })
        );
    }

    #[test]
    fn what_another_broker_wrote_is_read() {
        let old = br#"{"startOffset":5,"popTime":7,"consumerGroup":"g","topic":"t","queueId":0,"ackOffset":6}"#;
        let Some(Note::Ack { of, offsets }) = read(ACK_TAG, old) else { panic!("no ack") };
        assert_eq!((of.start, of.pop_time_ms, of.broker.as_str(), &offsets[..]), (5, 7, "", &[6][..]));
        let dense = br#"{"so":5,"pt":7,"it":9,"bm":2,"n":3,"q":0,"t":"t","c":"g","ro":0,"bn":"b","reviveTime":16}"#;
        let Some(Note::Check { distances, acked, .. }) = read(CHECK_TAG, dense) else { panic!("no check point") };
        assert_eq!((&distances[..], acked), (&[0, 1, 2][..], 2));
        for bad in [
            &b"{"[..],
            b"{}",
            br#"{"so":-1,"pt":7,"it":9,"n":1,"q":0,"t":"t","c":"g"}"#,
            br#"{"so":1,"pt":7,"it":9,"n":99,"q":0,"t":"t","c":"g"}"#,
        ] {
            assert_eq!(read(CHECK_TAG, bad), None);
        }
        assert_eq!(read(b"other", old), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 10_000, ..ProptestConfig::default() })]
        #[test]
        fn records_read_back(start in 0u64..1 << 60, pop: i64, queue: u32, broker in "[ -~]{1,12}", invisible: i64, steps in proptest::collection::vec(0u32..99, 1..32)) {
            let distances: SmallVec<[u32; MAX_MESSAGES]> = steps.iter().scan(0, |at, step| { *at += step + 1; Some(*at) }).collect();
            let of = CheckName { start, pop_time_ms: pop, queue_id: queue, ..OF };
            let want = OwnedName { broker: broker.clone(), ..owned(&of) };
            let mut draft = Draft::default();
            draft.check(&of, &broker, invisible, &distances, 1);
            let check = Note::Check { of: want.clone(), invisible_ms: invisible, distances: distances.clone(), acked: 0 };
            prop_assert_eq!(read(CHECK_TAG, &draft.body), Some(check));
            let offsets: SmallVec<[u64; MAX_MESSAGES]> = distances.iter().map(|d| start + u64::from(*d)).collect();
            draft.ack(&of, &broker, &offsets, 1);
            let tag = find(&draft.properties, name::TAGS).unwrap().to_vec();
            prop_assert_eq!(read(&tag, &draft.body), Some(Note::Ack { of: want, offsets }));
        }

        #[test]
        fn any_bytes_read_without_a_panic(body in proptest::collection::vec(any::<u8>(), 0..80), tag in 0usize..4) {
            let _ = read([CHECK_TAG, ACK_TAG, BATCH_ACK_TAG, ORDER_TAG][tag], &body);
        }
    }
}
