//! Delay levels and timers: whether a message is to wait, where, and what its record says while it does.
//!
//! Role: the one function through which every record with a delay goes: sends, send-backs, commits of half messages, POP's
//! copies. It decides by Java's rules and writes Java's properties; the record that waits is then byte-equal to the
//! reference's. Invariants: a message waits in a system queue of the shard of its real queue; a record that waited for a timer
//! (`TIMER_OUT_MS`) is never timed again; numbers that overflow are refused, never taken for the past. It reads no clock.

use crate::config::DelayRules;
use crate::owner::Refusal;
use message::names;
use message::properties::{PropertyList, name};
use remoting::ResponseCode;
use store::ShardId;

/// The queue that a message is for.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Its topic.
    pub topic: &'a [u8],
    /// Its queue.
    pub queue_id: u32,
    /// The shard of the queue.
    pub shard: ShardId,
}

/// Where a message waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// [`names::SCHEDULE_TOPIC`] or [`names::TIMER_TOPIC`].
    pub topic: &'static [u8],
    /// Queue of that topic, in the shard of the message's own queue.
    pub queue_id: u32,
    /// `TIMER_OUT_MS`, of timed messages.
    pub timer_out_ms: Option<i64>,
}

/// Memory for the numbers that [`redirect`] puts into the properties.
#[derive(Default)]
pub struct DelayTexts {
    level: itoa::Buffer,
    queue_id: itoa::Buffer,
    out_ms: itoa::Buffer,
}

/// Decides whether a message waits. If so, its properties say for which queue, and it is to be stored under the topic and queue
/// of the answer, else as it was. Not for half messages: those are asked about at their commit. `now_ms` is the wall clock.
///
/// # Errors
/// MESSAGE_ILLEGAL for a level or a time that is no number, overflows or lies too far ahead, and for the recall of a message
/// whose time is over; SYSTEM_ERROR for a timer where there are none.
pub fn redirect<'a>(
    list: &mut PropertyList<'a>,
    target: Target<'a>,
    rules: &DelayRules,
    now_ms: i64,
    texts: &'a mut DelayTexts,
) -> Result<Option<Waiting>, Refusal> {
    let DelayTexts { level: level_text, queue_id: queue_text, out_ms: out_text } = texts;
    let waiting = match level(list)? {
        asked @ 1.. => {
            for timed in [name::TIMER_DELIVER_MS, name::TIMER_DELAY_SEC, name::TIMER_DELAY_MS] {
                list.remove(timed);
            }
            let max = rules.level_ms.len() as u32;
            if asked > max {
                list.put(name::DELAY, level_text.format(max).as_bytes());
            }
            let queue_id = u32::from(target.shard.0) * rules.schedule_width + asked.min(max) - 1;
            Waiting { topic: names::SCHEDULE_TOPIC, queue_id, timer_out_ms: None }
        }
        0 => match timer_out_ms(list, rules, now_ms)? {
            None => return Ok(None),
            Some(out_ms) => {
                list.put(name::TIMER_OUT_MS, out_text.format(out_ms).as_bytes());
                let queue_id = u32::from(target.shard.0) * rules.timer_width;
                Waiting { topic: names::TIMER_TOPIC, queue_id, timer_out_ms: Some(out_ms) }
            }
        },
    };
    list.put(name::REAL_TOPIC, target.topic);
    list.put(name::REAL_QUEUE_ID, queue_text.format(target.queue_id).as_bytes());
    Ok(Some(waiting))
}

/// The delay level that is asked for; 0 for none.
pub fn level(list: &PropertyList<'_>) -> Result<u32, Refusal> {
    let Some(text) = list.get(name::DELAY) else { return Ok(0) };
    match std::str::from_utf8(text).ok().and_then(|text| text.parse::<i32>().ok()) {
        Some(level) => Ok(u32::try_from(level).unwrap_or(0)),
        None => {
            let text = String::from_utf8_lossy(text);
            Err(illegal(format!("the message is illegal: the delay level {text:?} is no number")))
        }
    }
}

/// `TIMER_OUT_MS` of a message that is to be timed: its time, floored as Java does it. `None` when it is not, or its time has
/// come.
fn timer_out_ms(list: &PropertyList<'_>, rules: &DelayRules, now_ms: i64) -> Result<Option<i64>, Refusal> {
    let relative = |unit_ms: i64| move |value: i64| value.checked_mul(unit_ms)?.checked_add(now_ms);
    let asked = if let Some(text) = list.get(name::TIMER_DELAY_SEC) {
        number(text).and_then(relative(1_000))
    } else if let Some(text) = list.get(name::TIMER_DELAY_MS) {
        number(text).and_then(relative(1))
    } else if let Some(text) = list.get(name::TIMER_DELIVER_MS) {
        number(text)
    } else {
        return Ok(None);
    };
    if list.contains(name::TIMER_OUT_MS) {
        return Ok(None);
    }
    if !rules.timer {
        let remark = "accurate timer message is not enabled, timerWheelEnable is false".into();
        return Err(Refusal { code: ResponseCode::SystemError.to_i32(), remark });
    }
    let refused = || {
        illegal(format!(
            "timer message illegal, the delay time should not be bigger than the max delay {}ms; \
             or if set del msg, the delay time should be bigger than the current time",
            rules.max_ms
        ))
    };
    let due_ms = asked.ok_or_else(refused)?;
    if due_ms <= now_ms {
        return if list.contains(name::TIMER_DELETE_UNIQUE_KEY) { Err(refused()) } else { Ok(None) };
    }
    if due_ms.checked_sub(now_ms).is_none_or(|ahead_ms| ahead_ms > rules.max_ms) {
        return Err(refused());
    }
    let precision_ms = rules.precision_ms;
    // An exact multiple goes one tick back, as in Java.
    let floored = due_ms.div_euclid(precision_ms) * precision_ms;
    Ok(Some(if floored == due_ms { due_ms - precision_ms } else { floored }))
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn illegal(remark: String) -> Refusal {
    Refusal { code: ResponseCode::MessageIllegal.to_i32(), remark }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: i64 = 1_700_000_000_500;

    fn rules() -> DelayRules {
        DelayRules {
            level_ms: vec![1_000, 5_000, 10_000],
            timer: true,
            precision_ms: 1_000,
            max_ms: 259_200_000,
            schedule_width: 18,
            timer_width: 1,
        }
    }

    /// The outcome for these properties, and the properties after it, separators as `=` and `;`.
    fn outcome(properties: &str, shard: u16, rules: &DelayRules) -> Result<(Option<(String, u32)>, String), i32> {
        let text = properties.replace('=', "\x01").replace(';', "\x02");
        let mut texts = DelayTexts::default();
        let mut list = PropertyList::parse(text.as_bytes());
        let target = Target { topic: b"orders", queue_id: 7, shard: ShardId(shard) };
        let waiting =
            redirect(&mut list, target, rules, NOW, &mut texts).map_err(|refusal| refusal.code)?.map(|waiting| {
                let out_ms = waiting.timer_out_ms.map(|ms| ms.to_string());
                assert_eq!(out_ms.as_deref().map(str::as_bytes), list.get(b"TIMER_OUT_MS"));
                (String::from_utf8_lossy(waiting.topic).into_owned(), waiting.queue_id)
            });
        let mut out = Vec::new();
        list.write(&mut out);
        Ok((waiting, String::from_utf8(out).unwrap().replace('\x01', "=").replace('\x02', ";")))
    }

    fn schedule(queue_id: u32) -> Option<(String, u32)> {
        Some(("SCHEDULE_TOPIC_XXXX".into(), queue_id))
    }

    fn timer(queue_id: u32) -> Option<(String, u32)> {
        Some(("rmq_sys_wheel_timer".into(), queue_id))
    }

    #[test]
    fn levels_are_those_of_java() {
        let real = "REAL_QID=7;";
        for (properties, shard, expected, after) in [
            ("DELAY=1;", 0, schedule(0), format!("DELAY=1;REAL_TOPIC=orders;{real}")),
            ("DELAY=3;", 2, schedule(38), format!("DELAY=3;REAL_TOPIC=orders;{real}")),
            ("DELAY=4;", 0, schedule(2), format!("DELAY=3;REAL_TOPIC=orders;{real}")),
            ("DELAY=2147483647;", 0, schedule(2), format!("DELAY=3;REAL_TOPIC=orders;{real}")),
            ("DELAY=+2;TIMER_DELAY_MS=x;", 0, schedule(1), format!("DELAY=+2;REAL_TOPIC=orders;{real}")),
            ("DELAY=0;", 0, None, "DELAY=0;".into()),
            ("DELAY=-1;", 0, None, "DELAY=-1;".into()),
            ("a=b;", 0, None, "a=b;".into()),
        ] {
            let (waiting, text) = outcome(properties, shard, &rules()).unwrap();
            assert_eq!(waiting, expected, "{properties}");
            let sorted = |text: &str| {
                let mut pairs: Vec<String> = text.split(';').map(String::from).collect();
                pairs.sort();
                pairs
            };
            assert_eq!(sorted(&text), sorted(&after), "{properties}");
        }
        for properties in ["DELAY=x;", "DELAY=4Pinpoint-Flags;", "DELAY=99999999999;", "DELAY= 1;", "DELAY=1.5;"] {
            assert_eq!(outcome(properties, 0, &rules()), Err(13), "{properties}");
        }
    }

    #[test]
    fn times_are_floored_and_checked_as_in_java() {
        for (properties, out_ms) in [
            ("TIMER_DELAY_SEC=1;", NOW + 500),
            ("TIMER_DELAY_MS=499;", NOW - 500),
            ("TIMER_DELAY_MS=500;", NOW - 500),
            ("TIMER_DELAY_MS=501;", NOW + 500),
            ("TIMER_DELIVER_MS=1700000009999;", 1_700_000_009_000),
            ("TIMER_DELIVER_MS=1700000010000;", 1_700_000_009_000),
            ("TIMER_DELAY_SEC=2;TIMER_DELAY_MS=9999;TIMER_DELIVER_MS=x;", NOW + 1_500),
            ("TIMER_DELAY_SEC=259200;", NOW - 500 + 259_200_000),
            ("DELAY=0;TIMER_DELAY_SEC=1;", NOW + 500),
        ] {
            let (waiting, text) = outcome(properties, 3, &rules()).unwrap();
            assert_eq!(waiting, timer(3), "{properties}");
            assert!(text.contains(&format!("TIMER_OUT_MS={out_ms};")), "{properties}: {text}");
            assert!(text.contains("REAL_TOPIC=orders;") && text.contains("REAL_QID=7;"), "{text}");
        }
        for properties in [
            "TIMER_DELAY_SEC=0;",
            "TIMER_DELAY_MS=-5;",
            "TIMER_DELIVER_MS=1;",
            "TIMER_DELIVER_MS=1700000000500;",
            "TIMER_DELIVER_MS=-9223372036854775808;",
            "TIMER_DELAY_SEC=9;TIMER_OUT_MS=1;",
            "TIMER_DEL_UNIQKEY=a+b;",
        ] {
            assert_eq!(outcome(properties, 0, &rules()).unwrap().0, None, "{properties}");
        }
        for properties in [
            "TIMER_DELAY_SEC=9223372036854775807;",
            "TIMER_DELAY_SEC=9223372036854775;",
            "TIMER_DELAY_SEC=-9223372036854775808;",
            "TIMER_DELAY_MS=9223372036854775807;",
            "TIMER_DELIVER_MS=9223372036854775807;",
            "TIMER_DELAY_SEC=259201;",
            "TIMER_DELAY_SEC=x;",
            "TIMER_DELAY_SEC=;TIMER_DELIVER_MS=y;",
            "TIMER_DELIVER_MS=1;TIMER_DEL_UNIQKEY=a+b;",
        ] {
            assert_eq!(outcome(properties, 0, &rules()), Err(13), "{properties}");
        }
        let off = DelayRules { timer: false, ..rules() };
        assert_eq!(outcome("TIMER_DELAY_SEC=1;", 0, &off), Err(1));
        assert_eq!(outcome("DELAY=1;TIMER_DELAY_SEC=1;", 0, &off).unwrap().0, schedule(0));
    }

    #[test]
    fn a_message_that_waited_is_not_sent_to_wait_again() {
        let (_, text) = outcome("TIMER_DELAY_SEC=5;", 0, &rules()).unwrap();
        assert_eq!(outcome(&text, 0, &rules()).unwrap(), (None, text));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn any_number_is_refused_or_waits_for_a_sound_time(
            key in prop::sample::select(vec!["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"]),
            value in prop_oneof![any::<i64>(), -1_000_000..1_000_000_000i64, NOW - 5_000..NOW + 300_000_000],
        ) {
            let text = format!("{key}\x01{value}\x02");
            let mut texts = DelayTexts::default();
            let mut list = PropertyList::parse(text.as_bytes());
            let target = Target { topic: b"t", queue_id: 0, shard: ShardId(0) };
            let exact = match key {
                "TIMER_DELAY_SEC" => i128::from(value) * 1000 + i128::from(NOW),
                "TIMER_DELAY_MS" => i128::from(value) + i128::from(NOW),
                _ => i128::from(value),
            };
            match redirect(&mut list, target, &rules(), NOW, &mut texts) {
                Ok(Some(waiting)) => {
                    let out = i128::from(waiting.timer_out_ms.unwrap());
                    prop_assert!(exact > i128::from(NOW) && exact <= i128::from(NOW) + 259_200_000);
                    prop_assert!(out % 1000 == 0 && out < exact && exact - out <= 1000);
                }
                Ok(None) => prop_assert!(exact <= i128::from(NOW)),
                Err(refusal) => {
                    prop_assert_eq!(refusal.code, 13);
                    prop_assert!(exact > i128::from(NOW) + 259_200_000 || exact < i128::from(i64::MIN));
                }
            }
        }
    }
}
