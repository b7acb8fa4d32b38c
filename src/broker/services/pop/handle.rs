//! What POP clients are told of messages, and bring back: receipt handles, names of retry topics, offset lists.
//!
//! Role: pure texts, as Java's `ExtraInfoUtil` and `KeyBuilder` have them. Invariants: any text parses to a handle or to an
//! error in words, never to a panic; a handle proves nothing: whoever uses it looks its check point up.

use super::numbers::write_numbers;
use message::names;
use smallvec::SmallVec;
use std::fmt::Write as _;

/// The revive queue that handles of ordered POPs name.
pub const ORDER_REVIVE_QUEUE: i32 = 999;

/// The numbers of a receipt handle, as a client sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle<'a> {
    /// First offset of the check point.
    pub start: i64,
    /// When it was popped, ms since 1970.
    pub pop_time_ms: i64,
    /// How long it is invisible, ms.
    pub invisible_ms: i64,
    /// Revive queue of its shard, or [`ORDER_REVIVE_QUEUE`].
    pub revive_queue: i32,
    /// The broker that gave it out.
    pub broker: &'a str,
}

impl<'a> Handle<'a> {
    /// Reads `start popTime invisibleTime reviveQid retry broker …`; what follows is of no matter here.
    ///
    /// # Errors
    /// What is wrong, in words (Java answers such a handle with an exception: code 1).
    pub fn parse(text: &'a str) -> Result<Self, String> {
        let parts: Vec<&str> = text.splitn(10, ' ').collect();
        let [start, pop_time, invisible, revive_queue, _retry, broker, ..] = parts[..] else {
            return Err(format!("the receipt handle has {} parts, at least 6 are needed", parts.len()));
        };
        let number =
            |text: &str| text.parse::<i64>().map_err(|_| format!("the receipt handle has no number: {text:?}"));
        let revive_queue = number(revive_queue)?;
        Ok(Self {
            start: number(start)?,
            pop_time_ms: number(pop_time)?,
            invisible_ms: number(invisible)?,
            revive_queue: i32::try_from(revive_queue)
                .map_err(|_| format!("the receipt handle has no revive queue {revive_queue}"))?,
            broker,
        })
    }

    /// Whether it was given out by an ordered POP.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        self.revive_queue == ORDER_REVIVE_QUEUE
    }
}

/// Which kind of retry topic a topic is: 0 none, 1 with `_`, 2 with `+`.
#[must_use]
pub fn retry_kind(topic: &str) -> u8 {
    if !names::is_retry_topic(topic.as_bytes()) {
        0
    } else if topic.contains('+') {
        2
    } else {
        1
    }
}

/// The retry topic of a topic and group.
#[must_use]
pub fn retry_topic(topic: &str, group: &str, v2: bool) -> String {
    format!("%RETRY%{group}{}{topic}", if v2 { '+' } else { '_' })
}

/// Appends the name of the retry topic of a topic and group.
pub fn write_retry_topic(out: &mut SmallVec<[u8; 128]>, topic: &str, group: &str, v2: bool) {
    for part in [names::RETRY_PREFIX, group.as_bytes(), if v2 { b"+" } else { b"_" }, topic.as_bytes()] {
        out.extend_from_slice(part);
    }
}

/// The topic that a handle's `retry` part stands for; `None` for a part that is none of 0, 1, 2.
#[must_use]
pub fn real_topic(topic: &str, group: &str, retry: &str) -> Option<String> {
    match retry {
        "0" => Some(topic.to_owned()),
        "1" => Some(retry_topic(topic, group, false)),
        "2" => Some(retry_topic(topic, group, true)),
        _ => None,
    }
}

/// The topic behind a POP retry topic of a group; the topic itself when it is none.
#[must_use]
pub fn normal_topic<'a>(topic: &'a str, group: &str) -> &'a str {
    let behind = topic.strip_prefix("%RETRY%").and_then(|rest| rest.strip_prefix(group));
    behind.and_then(|rest| rest.strip_prefix(['_', '+'])).unwrap_or(topic)
}

/// Appends the handle of one message, for a retry record (the others' are made by their clients).
#[expect(clippy::too_many_arguments, reason = "the eight parts of a handle")]
pub fn write_handle(
    out: &mut String,
    start: u64,
    pop_time_ms: i64,
    invisible_ms: i64,
    revive_queue: u32,
    kind: u8,
    broker: &str,
    queue_id: u32,
    offset: u64,
) {
    let _ = write!(out, "{start} {pop_time_ms} {invisible_ms} {revive_queue} {kind} {broker} {queue_id} {offset}");
}

/// Appends one queue to `startOffsetInfo`.
pub fn write_start(out: &mut String, kind: u8, queue_id: u32, start: u64) {
    begin_queue(out, kind, queue_id);
    out.push_str(itoa::Buffer::new().format(start));
}

/// Appends one queue to `msgOffsetInfo`.
pub fn write_offsets(out: &mut String, kind: u8, queue_id: u32, offsets: impl Iterator<Item = u64>) {
    begin_queue(out, kind, queue_id);
    let mut bytes = std::mem::take(out).into_bytes();
    write_numbers(&mut bytes, offsets);
    *out = String::from_utf8(bytes).expect("digits and separators");
}

fn begin_queue(out: &mut String, kind: u8, queue_id: u32) {
    separate(out);
    let mut number = itoa::Buffer::new();
    out.push_str(number.format(kind));
    out.push(' ');
    out.push_str(number.format(queue_id));
    out.push(' ');
}

/// Appends one message to `orderCountInfo`.
pub fn write_offset_count(out: &mut String, kind: u8, queue_id: u32, offset: u64, count: i32) {
    separate(out);
    let _ = write!(out, "{kind} qo{queue_id}%{offset} {count}");
}

/// Appends one queue to `orderCountInfo`, for clients that look there.
pub fn write_queue_count(out: &mut String, kind: u8, queue_id: u32, count: i32) {
    separate(out);
    let _ = write!(out, "{kind} {queue_id} {count}");
}

fn separate(out: &mut String) {
    if !out.is_empty() {
        out.push(';');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn retry_topics_have_two_forms() {
        for (v2, kind, name) in [(false, 1, "%RETRY%g_t"), (true, 2, "%RETRY%g+t")] {
            assert_eq!(retry_topic("t", "g", v2), name);
            let mut written = SmallVec::new();
            write_retry_topic(&mut written, "t", "g", v2);
            assert_eq!(&written[..], name.as_bytes());
            assert_eq!((retry_kind(name), normal_topic(name, "g")), (kind, "t"));
            assert_eq!(real_topic("t", "g", &kind.to_string()).as_deref(), Some(name));
        }
        assert_eq!((retry_kind("t"), normal_topic("t", "g"), retry_kind("a+b")), (0, "t", 0));
        assert_eq!(normal_topic("%RETRY%other_t", "g"), "%RETRY%other_t");
        assert_eq!((real_topic("t", "g", "0").as_deref(), real_topic("t", "g", "3")), (Some("t"), None));
    }

    #[test]
    fn lists_are_joined_as_clients_take_them_apart() {
        let mut out = String::new();
        write_start(&mut out, 0, 3, 7);
        write_start(&mut out, 1, 0, 0);
        assert_eq!(out, "0 3 7;1 0 0");
        out.clear();
        write_offsets(&mut out, 0, 3, [7, 9].into_iter());
        write_offsets(&mut out, 2, 0, [0].into_iter());
        assert_eq!(out, "0 3 7,9;2 0 0");
        out.clear();
        write_offset_count(&mut out, 0, 3, 7, 2);
        write_queue_count(&mut out, 0, 3, 0);
        assert_eq!(out, "0 qo3%7 2;0 3 0");
    }

    #[test]
    fn a_forged_handle_is_an_error_in_words() {
        let good = "5 1700000000000 3000 2 0 broker-a 1 6";
        let want = Handle {
            start: 5,
            pop_time_ms: 1_700_000_000_000,
            invisible_ms: 3000,
            revive_queue: 2,
            broker: "broker-a",
        };
        assert_eq!(Handle::parse(good), Ok(want));
        assert_eq!(Handle::parse(&format!("{good} 123456")), Ok(want), "a ninth part is a proxy's");
        for bad in [
            "",
            " ",
            "5",
            "5 1 3000 2 0",
            "x 1 2 3 0 b",
            "5  1 2 0 b 1",
            "5 1 2 99999999999 0 b",
            "9223372036854775808 1 2 3 0 b",
        ] {
            assert!(Handle::parse(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 100_000, ..ProptestConfig::default() })]
        /// What is written reads back; what is cut or changed never panics.
        #[test]
        fn handles_read_back(start: u64, pop: i64, invisible: i64, revive in 0u32..1000, queue: u32, offset: u64, cut in 0usize..80, garbage: u8) {
            let start = start >> 1;
            let mut text = String::new();
            write_handle(&mut text, start, pop, invisible, revive, 0, "broker-a", queue, offset);
            let read = Handle::parse(&text).unwrap();
            prop_assert_eq!((read.start as u64, read.pop_time_ms, read.invisible_ms, read.revive_queue), (start, pop, invisible, revive as i32));
            prop_assert_eq!((read.broker, read.is_ordered()), ("broker-a", revive == 999));
            let mut bytes = text.into_bytes();
            bytes.truncate(cut);
            if let Some(byte) = bytes.get_mut(cut / 2) {
                *byte = garbage & 0x7F;
            }
            let _ = Handle::parse(std::str::from_utf8(&bytes).unwrap());
        }
    }
}
