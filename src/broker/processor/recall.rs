//! Recall handles of timed messages, and RECALL_MESSAGE (370), which brings them back.
//!
//! A handle is the URL form of base64 over `v1 topic broker time id`, with blanks between; the time is one ms after
//! `TIMER_OUT_MS`, which was floored. Invariants: a handle that was made here reads back to its parts; nonsense is refused.

use super::delay::Waiting;
use crate::gather::{Gathered, RecallAsk, ShardAnswer};
use crate::owner::Refusal;
use crate::snapshot::{PERM_WRITE, Snapshot, Topic};
use message::names;
use remoting::{Command, ResponseCode};
use std::net::SocketAddr;
use std::sync::Arc;

/// What a message that is to wait can be recalled by; empty when it cannot. `topic` is its own.
#[must_use]
pub fn handle_of(waiting: &Waiting, topic: &[u8], broker: &str, unique_id: &[u8]) -> String {
    match waiting.timer_out_ms {
        Some(out_ms) if !names::is_retry_topic(topic) => {
            let mut time = itoa::Buffer::new();
            let time = time.format(out_ms.saturating_add(1)).as_bytes();
            encode(&[VERSION, topic, broker.as_bytes(), time, unique_id].join(&b' '))
        }
        _ => String::new(),
    }
}

/// A handle, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle {
    /// Topic of the message.
    pub topic: Vec<u8>,
    /// Name of the broker that has it.
    pub broker: Vec<u8>,
    /// One ms after its `TIMER_OUT_MS`, as it was written: may be nonsense.
    pub time: Vec<u8>,
    /// Its unique id.
    pub unique_id: Vec<u8>,
}

const VERSION: &[u8] = b"v1";

/// Checks a RECALL_MESSAGE (370), in Java's order. `now_ms` is the wall clock.
///
/// # Errors
/// What is wrong with it.
pub fn admit(
    command: &Command,
    snapshot: &Snapshot,
    broker: &str,
    client: SocketAddr,
    now_ms: i64,
) -> Result<(Arc<Topic>, RecallAsk), Refusal> {
    let refused = |code, remark: &str| Refusal::new(code, remark.to_owned());
    let illegal = |remark| refused(ResponseCode::IllegalOperation, remark);
    if !snapshot.settings.recall {
        return Err(refused(ResponseCode::NoPermission, "recall failed, operation is forbidden"));
    }
    if snapshot.settings.broker_permission & PERM_WRITE == 0 {
        return Err(refused(ResponseCode::ServiceNotAvailable, "recall failed, broker service not available"));
    }
    let name = command.ext.get("topic").unwrap_or_default();
    let Some(topic) = snapshot.topic(name.as_bytes()) else {
        let remark = format!("recall failed, the topic[{name}] not exist");
        return Err(Refusal::new(ResponseCode::TopicNotExist, remark));
    };
    let handle = parse(command.ext.get("recallHandle").unwrap_or_default().as_bytes());
    let handle = handle.ok_or_else(|| illegal("recall handle is invalid"))?;
    if handle.topic != name.as_bytes() {
        return Err(illegal("recall failed, topic not match"));
    }
    if handle.broker != broker.as_bytes() {
        return Err(illegal("recall failed, broker service not available"));
    }
    let time_ms = std::str::from_utf8(&handle.time).ok().and_then(|text| text.parse::<i64>().ok());
    let time_ms = time_ms
        .filter(|time_ms| time_ms.checked_sub(now_ms).is_some_and(|left| left > 0 && left < snapshot.delays.max_ms))
        .ok_or_else(|| illegal("recall failed, timestamp invalid"))?;
    let ask = RecallAsk {
        topic: topic.name.clone(),
        unique_id: handle.unique_id.into(),
        time_ms,
        group: command.ext.get("producerGroup").unwrap_or_default().into(),
        client,
    };
    Ok((topic.clone(), ask))
}

/// The answer of all shards together.
///
/// # Errors
/// One has not stored it, and says why.
pub fn join(gathered: &Gathered) -> Result<(), Refusal> {
    let code = |answer: &Option<ShardAnswer>| match answer {
        Some(ShardAnswer::Recalled(code)) => *code,
        _ => ResponseCode::SystemError,
    };
    match gathered.answers.iter().map(|(_, answer)| code(answer)).find(|code| *code != ResponseCode::Success) {
        None => Ok(()),
        Some(ResponseCode::IllegalOperation) => {
            Err(Refusal::new(ResponseCode::IllegalOperation, "recall failed, timestamp invalid".to_owned()))
        }
        Some(_) => Err(Refusal::new(ResponseCode::SystemError, "recall failed, execute error".to_owned())),
    }
}

/// Reads a handle; `None` when it is none.
#[must_use]
pub fn parse(handle: &[u8]) -> Option<Handle> {
    let text = decode(handle)?;
    let mut parts = text.split(|&byte| byte == b' ');
    if parts.next()? != VERSION {
        return None;
    }
    let mut next = || parts.next().map(<[u8]>::to_vec);
    let handle = Handle { topic: next()?, broker: next()?, time: next()?, unique_id: next()? };
    (!handle.unique_id.is_empty()).then_some(handle)
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn encode(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    let (whole, rest) = bytes.as_chunks::<3>();
    whole.iter().for_each(|&[a, b, c]| out.extend_from_slice(&digits([a, b, c])));
    match *rest {
        [a] => out.extend_from_slice(&[&digits([a, 0, 0])[..2], b"=="].concat()),
        [a, b] => out.extend_from_slice(&[&digits([a, b, 0])[..3], b"="].concat()),
        _ => {}
    }
    String::from_utf8(out).expect("digits of base64 are ASCII")
}

fn digits([a, b, c]: [u8; 3]) -> [u8; 4] {
    let bits = u32::from_be_bytes([0, a, b, c]);
    [18, 12, 6, 0].map(|shift| ALPHABET[(bits >> shift & 63) as usize])
}

/// Reads the URL form of base64, with its padding or without; `None` when it is something else.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let padding = text.iter().rev().take_while(|&&byte| byte == b'=').count();
    let (digits, padded) = (&text[..text.len() - padding], padding > 0);
    if digits.is_empty() || digits.len() % 4 == 1 || (padded && (padding > 2 || !text.len().is_multiple_of(4))) {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for chunk in digits.chunks(4) {
        let mut bits = 0u32;
        for &digit in chunk {
            let value = match digit {
                b'A'..=b'Z' => digit - b'A',
                b'a'..=b'z' => digit - b'a' + 26,
                b'0'..=b'9' => digit - b'0' + 52,
                b'-' => 62,
                b'_' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
        }
        bits <<= 6 * (4 - chunk.len());
        out.extend_from_slice(&bits.to_be_bytes()[1..chunk.len()]);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn waiting(timer_out_ms: Option<i64>) -> Waiting {
        Waiting { topic: names::TIMER_TOPIC, queue_id: 0, timer_out_ms }
    }

    #[test]
    fn a_handle_is_that_of_java() {
        let handle = handle_of(&waiting(Some(1_700_000_000_000)), b"TopicTest", "broker-a", b"0A");
        // As java.util.Base64's URL encoder writes "v1 TopicTest broker-a 1700000000001 0A".
        assert_eq!(handle, "djEgVG9waWNUZXN0IGJyb2tlci1hIDE3MDAwMDAwMDAwMDEgMEE=");
        let read = parse(handle.as_bytes()).unwrap();
        assert_eq!((&read.topic[..], &read.broker[..]), (&b"TopicTest"[..], &b"broker-a"[..]));
        assert_eq!((&read.time[..], &read.unique_id[..]), (&b"1700000000001"[..], &b"0A"[..]));
        assert_eq!(handle_of(&waiting(None), b"TopicTest", "b", b"0A"), "");
        assert_eq!(handle_of(&waiting(Some(1)), b"%RETRY%g", "b", b"0A"), "");
    }

    #[test]
    fn nonsense_is_no_handle() {
        for text in [
            "",
            "garbage",
            "YWJj",
            "broken",
            "djEg",
            "====",
            "djE=",
            "djEgYSBiIGM=",
            "d*Eg",
            "A",
            "AAAAA",
            "AA=",
            "A===",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        assert!(parse(encode(b"v1 a b c d").as_bytes()).is_some());
        assert_eq!(parse(encode(b"v2 a b c d").as_bytes()), None);
        assert_eq!(parse(encode(b"v1 a b c ").as_bytes()), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn base64_reads_back(bytes in prop::collection::vec(any::<u8>(), 1..60), other in prop::collection::vec(any::<u8>(), 0..20)) {
            let text = encode(&bytes);
            prop_assert_eq!(text.len() % 4, 0);
            prop_assert_eq!(decode(text.as_bytes()), Some(bytes.clone()));
            prop_assert_eq!(decode(text.trim_end_matches('=').as_bytes()), Some(bytes));
            let _ = parse(&other);
        }
    }
}
