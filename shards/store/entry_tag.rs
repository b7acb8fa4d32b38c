//! The tag value of a consume-queue entry: Java's hash of TAGS, or the time at which a waiting message is due.
//!
//! Role: the one rule for it, in the turn of an append and again when recovery reads the log. In the topic of delay levels it
//! is the due time, as in Java. In the topic of timers, where Java never looks at it, it is the due time to the millisecond
//! (`TIMER_OUT_MS` alone is floored), and minus `TIMER_OUT_MS` for a record that cancels another. Invariant: a time is never taken for a hash:
//! hashes have 32 bits, times do not fit them. Pure.

use message::names;
use message::properties::{find, find_each, name};

use crate::index::RecordKeys;

/// `TIMER_OUT_MS` is at most this far before the time that was asked for, in ms: the largest `timerPrecisionMs`.
const LARGEST_PRECISION_MS: i64 = 60_000;

/// What says when a record of the timers' topic is due.
const TIMER_NAMES: [&[u8]; 5] = [
    name::TIMER_OUT_MS,
    name::TIMER_DELAY_SEC,
    name::TIMER_DELAY_MS,
    name::TIMER_DELIVER_MS,
    name::TIMER_DELETE_UNIQUE_KEY,
];

/// The tag value of a record. `found` is what its properties hold, `level_ms` the delay of each level.
pub(crate) fn of_record(
    topic: &[u8],
    properties: &[u8],
    found: &RecordKeys<'_>,
    store_ms: i64,
    level_ms: &[i64],
) -> i64 {
    let due_ms = match topic.first() {
        Some(b'S') if topic == names::SCHEDULE_TOPIC => level_due(properties, store_ms, level_ms),
        Some(b'r') if topic == names::TIMER_TOPIC => timer_due(properties, store_ms),
        _ => None,
    };
    due_ms.unwrap_or_else(|| found.tags_code())
}

/// Whether the tag values of a topic are times (or were written by Java): what they should be then depends on settings.
pub(crate) fn is_time(topic: &[u8]) -> bool {
    topic == names::SCHEDULE_TOPIC || topic == names::TIMER_TOPIC
}

fn level_due(properties: &[u8], store_ms: i64, level_ms: &[i64]) -> Option<i64> {
    let level = number(find(properties, name::DELAY)?).filter(|&level| level > 0)?;
    let level = usize::try_from(level).unwrap_or(usize::MAX).min(level_ms.len());
    Some(store_ms.saturating_add(*level_ms.get(level.checked_sub(1)?)?))
}

/// The tag value of a record of the timers' topic, from its properties and store time; `None` when it has no time.
#[must_use]
pub fn timer_due(properties: &[u8], store_ms: i64) -> Option<i64> {
    let [out, delay_sec, delay_ms, deliver_ms, cancels] = find_each(properties, TIMER_NAMES);
    let out_ms = number(out?)?;
    let exact = if let Some(text) = delay_sec {
        number(text).and_then(|seconds| seconds.checked_mul(1_000)?.checked_add(store_ms))
    } else if let Some(text) = delay_ms {
        number(text).and_then(|delay_ms| delay_ms.checked_add(store_ms))
    } else {
        deliver_ms.and_then(number)
    };
    if cancels.is_some() {
        // Before all messages of its tick, whatever was asked for.
        return out_ms.checked_neg().filter(|&due_ms| i32::try_from(due_ms).is_err());
    }
    // A record that was stored again later, or under a clock that was set back, has only `TIMER_OUT_MS` to go by.
    let near =
        exact.filter(|exact| exact.checked_sub(out_ms).is_some_and(|ms| (0..=LARGEST_PRECISION_MS).contains(&ms)));
    let due_ms = near.unwrap_or(out_ms);
    Some(due_ms).filter(|&due_ms| i32::try_from(due_ms).is_err())
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORED: i64 = 1_700_000_000_250;

    fn tag(topic: &[u8], properties: &str) -> i64 {
        let text = properties.replace('=', "\x01").replace(';', "\x02");
        of_record(topic, text.as_bytes(), &RecordKeys::scan(text.as_bytes()), STORED, &[1_000, 5_000])
    }

    #[test]
    fn levels_give_the_time_that_java_computes() {
        for (properties, expected) in [
            ("DELAY=1;TAGS=A;", STORED + 1_000),
            ("DELAY=2;", STORED + 5_000),
            ("DELAY=9;", STORED + 5_000),
            ("DELAY=0;TAGS=A;", 65),
            ("DELAY=x;TAGS=A;", 65),
            ("TAGS=A;", 65),
        ] {
            assert_eq!(tag(names::SCHEDULE_TOPIC, properties), expected, "{properties}");
            assert_eq!(tag(b"SCHEDULE_TOPIC", properties), tag(b"t", properties));
        }
        let none = of_record(names::SCHEDULE_TOPIC, b"DELAY\x011\x02", &RecordKeys::default(), STORED, &[]);
        assert_eq!(none, 0);
    }

    #[test]
    fn timers_give_the_time_that_was_asked_for() {
        for (properties, expected) in [
            ("TIMER_OUT_MS=1700000003000;TIMER_DELIVER_MS=1700000003123;", 1_700_000_003_123),
            ("TIMER_OUT_MS=1700000003000;TIMER_DELIVER_MS=1700000004000;", 1_700_000_004_000),
            ("TIMER_OUT_MS=1700000003000;TIMER_DELAY_SEC=3;TIMER_DELIVER_MS=5;", STORED + 3_000),
            ("TIMER_OUT_MS=1700000003000;TIMER_DELAY_MS=3001;", STORED + 3_001),
            // Stored again, long after it was sent.
            ("TIMER_OUT_MS=1700000003000;TIMER_DELAY_SEC=172800;", 1_700_000_003_000),
            ("TIMER_OUT_MS=1700000003000;TIMER_DELAY_SEC=9223372036854775807;", 1_700_000_003_000),
            ("TIMER_OUT_MS=1700000003000;TIMER_DELIVER_MS=x;", 1_700_000_003_000),
            ("TIMER_OUT_MS=1700000003000;", 1_700_000_003_000),
            ("TIMER_OUT_MS=1700000003000;TIMER_DELIVER_MS=1700000003001;TIMER_DEL_UNIQKEY=t+i;", -1_700_000_003_000),
            ("TIMER_DELIVER_MS=1700000003123;TAGS=A;", 65),
            ("TIMER_OUT_MS=12;TAGS=A;", 65),
            ("TIMER_OUT_MS=-9223372036854775808;TIMER_DEL_UNIQKEY=t+i;TAGS=A;", 65),
        ] {
            assert_eq!(tag(names::TIMER_TOPIC, properties), expected, "{properties}");
        }
        assert_eq!(tag(b"rmq_sys_other", "TIMER_OUT_MS=1700000003000;TAGS=A;"), 65);
    }
}
