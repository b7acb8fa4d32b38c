//! BATCH_ACK_MESSAGE (200151): what its body acknowledges.
//!
//! Role: a body to checked items, sorted by shard. A body as clients write it is read in one pass (`plain`); every other one by
//! the general rules, with the same result. Handles are not judged here: the shard of the queue looks them up.

use super::pop::group_name;
use crate::owner::Refusal;
use crate::services::pop::handle;
use crate::services::pop::request::{AckItem, Bits};
use crate::snapshot::Snapshot;
use remoting::ResponseCode;
use remoting::json::JsonRef;
use smallvec::SmallVec;
use std::borrow::Cow;

mod plain;

/// Bytes of a batch acknowledgement's bit set that are looked at: more than a check point can span.
const MAX_BITS_BYTES: usize = 8 << 10;

/// Reads a body: what is acknowledged, sorted by shard. What names no topic or queue that is here is left out.
///
/// # Errors
/// There is nothing in it (208), or it makes no sense (1).
pub fn items(body: &[u8], snapshot: &Snapshot) -> Result<SmallVec<[AckItem; 1]>, Refusal> {
    let nothing = || Refusal::new(ResponseCode::NoMessage, "there is nothing to acknowledge");
    if body.is_empty() {
        return Err(nothing());
    }
    let acks = match plain::read(body) {
        Some(acks) => acks,
        None => read(body)?,
    };
    if acks.is_empty() {
        return Err(nothing());
    }
    let mut items = SmallVec::new();
    for ack in &acks {
        items.extend(ack.item(snapshot)?);
    }
    items.sort_by_key(|item: &AckItem| item.shard);
    Ok(items)
}

fn bad(why: &str) -> Refusal {
    Refusal::new(ResponseCode::SystemError, format!("the body is not as expected: {why}"))
}

/// One acknowledgement of a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ack<'a> {
    topic: Cow<'a, str>,
    group: Cow<'a, str>,
    retry: Cow<'a, str>,
    queue_id: i64,
    revive_queue: i64,
    start: i64,
    pop_time_ms: i64,
    bits: Cow<'a, str>,
}

type Acks<'a> = SmallVec<[Ack<'a>; 1]>;

impl Ack<'_> {
    /// `None`: it names nothing that is here.
    fn item(&self, snapshot: &Snapshot) -> Result<Option<AckItem>, Refusal> {
        let real = match &*self.retry {
            "0" => Cow::Borrowed(&*self.topic),
            retry => handle::real_topic(&self.topic, &self.group, retry).ok_or_else(|| bad("retry"))?.into(),
        };
        let bits = bits(&self.bits).ok_or_else(|| bad("bitSet"))?;
        let Some(topic) = snapshot.topic(real.as_bytes()) else { return Ok(None) };
        let Some(queue_id) = u32::try_from(self.queue_id).ok().filter(|id| *id < topic.queues()) else {
            return Ok(None);
        };
        Ok(Some(AckItem {
            shard: topic.shard_of(queue_id),
            topic: topic.name.clone(),
            group: group_name(&self.group, snapshot),
            queue_id,
            start: self.start,
            pop_time_ms: self.pop_time_ms,
            ordered: self.revive_queue == i64::from(handle::ORDER_REVIVE_QUEUE),
            bits,
        }))
    }
}

/// Members of an acknowledgement, short and long.
const MEMBERS: [[&str; 2]; 8] = [
    ["t", "topic"],
    ["c", "consumerGroup"],
    ["r", "retry"],
    ["q", "queueId"],
    ["rq", "reviveQueueId"],
    ["so", "startOffset"],
    ["pt", "popTime"],
    ["b", "bitSet"],
];

/// Reads any body.
fn read(body: &[u8]) -> Result<Acks<'_>, Refusal> {
    let body = JsonRef::parse(body).map_err(|error| bad(&error.to_string()))?;
    body.get("acks").items().map(read_one).collect()
}

fn read_one(item: JsonRef<'_>) -> Result<Ack<'_>, Refusal> {
    let mut values = [JsonRef::NULL; 8];
    for (key, value) in item.entries() {
        if let Some(key) = key.as_str()
            && let Some(at) = MEMBERS.iter().position(|names| names.contains(&&*key))
        {
            values[at] = value;
        }
    }
    let text = |at: usize| values[at].as_str().ok_or_else(|| bad(MEMBERS[at][1]));
    let number = |at: usize| values[at].as_i64().ok_or_else(|| bad(MEMBERS[at][1]));
    Ok(Ack {
        topic: text(0)?,
        group: text(1)?,
        retry: text(2)?,
        queue_id: number(3)?,
        revive_queue: number(4)?,
        start: number(5)?,
        pop_time_ms: number(6)?,
        bits: text(7)?,
    })
}

/// A bit set as Java's library writes it: base64 of its bytes.
fn bits(text: &str) -> Option<Bits> {
    let text = text.trim_end_matches('=');
    let text = &text.as_bytes()[..text.len().min(MAX_BITS_BYTES / 3 * 4)];
    let mut bytes = Bits::new();
    for group in text.chunks(4) {
        let mut value = 0u32;
        for byte in group {
            let six = match byte {
                b'A'..=b'Z' => byte - b'A',
                b'a'..=b'z' => byte - b'a' + 26,
                b'0'..=b'9' => byte - b'0' + 52,
                b'+' | b'-' => 62,
                b'/' | b'_' => 63,
                _ => return None,
            };
            value = value << 6 | u32::from(six);
        }
        let count = match group.len() {
            4 => 3,
            3 => 2,
            2 => 1,
            _ => return None,
        };
        value <<= 6 * (4 - group.len());
        bytes.extend_from_slice(&value.to_be_bytes()[1..1 + count]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{group, snapshot, topic};
    use proptest::prelude::*;

    const BODY: &str =
        r#"{"acks":[{"b":"BQE=","c":"g","it":9,"pt":7,"q":1,"r":"0","rq":2,"so":5,"t":"t"}],"brokerName":"b"}"#;
    /// What changes a meaning.
    const PIECES: [&str; 20] = [
        "",
        ",",
        ":",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "'",
        "\\",
        "null",
        "-",
        "1.0",
        "99999999999999999999",
        " ",
        "\"so\":",
        "\"acks\":",
        "\"topic\":\"x\",",
        "\"0\"",
        "é",
    ];

    #[test]
    fn batches_are_read_as_java_writes_them() {
        let known = snapshot([topic("t")], [group("g")]);
        let read = |body: &str| {
            let read = items(body.as_bytes(), &known);
            if let Some(acks) = plain::read(body.as_bytes()) {
                assert_eq!(super::read(body.as_bytes()), Ok(acks), "{body}");
            }
            read
        };
        let body =
            r#"{"acks":[{"b":"BQE=","c":"g","it":9,"pt":7,"q":1,"r":"0","rq":2,"so":5,"t":"t"}],"brokerName":"b"}"#;
        assert!(plain::read(body.as_bytes()).is_some());
        let items = read(body).unwrap();
        assert_eq!((items.len(), items[0].queue_id, items[0].start, items[0].pop_time_ms), (1, 1, 5, 7));
        assert_eq!(items[0].offsets().collect::<Vec<_>>(), [5, 7, 13]);
        assert!(
            read(&body.replace("\"t\":\"t\"", "\"t\":\"gone\"")).unwrap().is_empty(),
            "an unknown topic is passed over"
        );
        for (body, code) in [
            ("", 208),
            ("{}", 208),
            (r#"{"acks":[]}"#, 208),
            ("[", 1),
            (r#"{"acks":[{"t":"t"}]}"#, 1),
            (&body.replace("\"r\":\"0\"", "\"r\":\"7\""), 1),
            (&body.replace("BQE=", "B*E="), 1),
        ] {
            assert_eq!(read(body).unwrap_err().code, code, "{body}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn any_text_is_bits_or_nothing(text in ".{0,40}") {
            if let Some(bytes) = bits(&text) {
                prop_assert!(bytes.len() <= text.len());
            }
        }

        /// The quick way and the general one never disagree, whatever is changed in a body.
        #[test]
        fn both_ways_read_the_same(
            cuts in proptest::collection::vec((0usize..240, 0usize..12, 0usize..PIECES.len()), 0..4),
            second: bool,
        ) {
            let mut body = BODY.to_owned();
            if second {
                body = body.replace("}]", "},{\"t\":\"u\",\"c\":\"g\",\"r\":\"1\",\"q\":0,\"rq\":999,\"so\":0,\"pt\":-3,\"b\":\"\"}]");
            }
            for (at, len, piece) in cuts {
                let (at, end) = (body.floor_char_boundary(at), body.floor_char_boundary(at + len));
                body.replace_range(at..end, PIECES[piece]);
            }
            if let Some(acks) = plain::read(body.as_bytes()) {
                prop_assert_eq!(read(body.as_bytes()), Ok(acks), "{}", body);
            }
        }
    }
}
