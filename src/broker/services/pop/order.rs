//! One queue of an ordered POP: who holds which messages, and until when.
//!
//! Role: pure; Java's `OrderInfo`. Invariants: while a message that was given out is neither acknowledged nor visible again, the
//! queue gives nothing to another attempt; the same attempt gets its messages again. It reads no clock.

use super::handle::{write_offset_count, write_queue_count};
use remoting::Json;
use remoting::json::{JsonRef, Key};
use std::collections::BTreeMap;

/// What was given out last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrderInfo {
    /// Names the attempt of the client that got it; asked again by the same, it is given again.
    pub attempt: Option<Box<str>>,
    /// When it was popped, ms since 1970.
    pub pop_time_ms: i64,
    /// How long it is invisible, ms.
    pub invisible_ms: i64,
    /// The offsets, ascending; at most 32.
    pub offsets: Vec<u64>,
    /// Bit of each offset that was acknowledged.
    pub acked: u64,
    /// Offsets whose invisible time was changed, with the time when they are visible again.
    pub next_visible_ms: BTreeMap<u64, i64>,
    /// How often an offset was given out before; none for 0.
    pub consumed: BTreeMap<u64, i32>,
    /// When it was used last, ms since 1970.
    pub last_ms: i64,
}

/// What an acknowledgement does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderAck {
    /// Nothing: another pop, or an offset that it did not give out.
    Unknown,
    /// It counts; the group goes on at this offset.
    Next(u64),
}

impl OrderInfo {
    /// Whether the queue gives nothing to this attempt now.
    #[must_use]
    pub fn blocks(&self, attempt: Option<&str>, now_ms: i64) -> bool {
        let same = self.attempt.is_some() && self.attempt.as_deref() == attempt;
        !same && self.unacked().any(|offset| self.visible_at(offset) > now_ms)
    }

    /// When everything that is not acknowledged is visible again; `None` when all is acknowledged.
    #[must_use]
    pub fn free_at_ms(&self) -> Option<i64> {
        self.unacked().map(|offset| self.visible_at(offset)).max()
    }

    /// The state after a pop gave out `offsets` (at least one, ascending).
    #[must_use]
    pub fn pop(
        before: Option<Self>,
        attempt: Option<&str>,
        pop_time_ms: i64,
        invisible_ms: i64,
        offsets: &[u64],
    ) -> Self {
        let consumed = match before {
            Some(before) if before.attempt.is_some() && before.attempt.as_deref() == attempt => before.consumed,
            Some(before) => offsets
                .iter()
                .filter(|offset| before.offsets.contains(offset))
                .map(|offset| (*offset, before.consumed.get(offset).map_or(1, |count| count.saturating_add(1))))
                .collect(),
            None => BTreeMap::new(),
        };
        Self {
            attempt: attempt.filter(|attempt| !attempt.is_empty()).map(Into::into),
            pop_time_ms,
            invisible_ms,
            offsets: offsets.to_vec(),
            acked: 0,
            next_visible_ms: BTreeMap::new(),
            consumed,
            last_ms: pop_time_ms,
        }
    }

    /// Acknowledges one message of the pop of this time.
    pub fn ack(&mut self, offset: u64, pop_time_ms: i64) -> OrderAck {
        let at = self.offsets.iter().position(|own| *own == offset);
        let Some(at) = at.filter(|_| pop_time_ms == self.pop_time_ms) else { return OrderAck::Unknown };
        self.acked |= 1 << at;
        match self.unacked().next() {
            Some(first) => OrderAck::Next(first),
            None => OrderAck::Next(self.offsets.last().map_or(0, |last| last + 1)),
        }
    }

    /// Makes a message visible again at another time; tells whether it is one of this pop.
    pub fn change(&mut self, offset: u64, pop_time_ms: i64, visible_ms: i64) -> bool {
        let known = pop_time_ms == self.pop_time_ms && self.unacked().any(|own| own == offset);
        if known {
            self.next_visible_ms.insert(offset, visible_ms);
        }
        known
    }

    /// Appends what a client is told of how often the messages were given out before.
    pub fn write_counts(&self, out: &mut String, kind: u8, queue_id: u32) {
        for (offset, count) in &self.consumed {
            write_offset_count(out, kind, queue_id, *offset, *count);
        }
        let all_seen = self.consumed.len() == self.offsets.len();
        let least = if all_seen { self.consumed.values().copied().min().unwrap_or(0) } else { 0 };
        write_queue_count(out, kind, queue_id, least);
    }

    /// The form of Java's `consumerOrderInfo.json`.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let first = self.offsets.first().copied().unwrap_or(0);
        let relative = |(at, offset): (usize, &u64)| Json::Int(if at == 0 { first } else { offset - first } as i64);
        let by_offset = |offset: u64, value: i64| (Key::Int(offset as i64), Json::Int(value));
        let mut members = Vec::new();
        members.extend(self.attempt.as_deref().map(|attempt| (Key::from("a"), Json::from(attempt))));
        members.push((Key::from("cm"), Json::Int(self.acked as i64)));
        members.push((Key::from("i"), Json::Int(self.invisible_ms)));
        members.push((Key::from("l"), Json::Int(self.last_ms)));
        members.push((Key::from("o"), Json::List(self.offsets.iter().enumerate().map(relative).collect())));
        let counts = self.consumed.iter().map(|(offset, count)| by_offset(*offset, i64::from(*count))).collect();
        members.push((Key::from("oc"), Json::Object(counts)));
        if !self.next_visible_ms.is_empty() {
            let times = self.next_visible_ms.iter().map(|(offset, ms)| by_offset(*offset, *ms)).collect();
            members.push((Key::from("ot"), Json::Object(times)));
        }
        members.push((Key::from("popTime"), Json::Int(self.pop_time_ms)));
        Json::Object(members)
    }

    /// Reads that form; `None` when it makes no sense.
    #[must_use]
    pub fn from_json(json: JsonRef<'_>) -> Option<Self> {
        let numbers: Option<Vec<u64>> = json.get("o").items().map(|o| u64::try_from(o.as_i64()?).ok()).collect();
        let relative = numbers?;
        let first = *relative.first()?;
        let rest = relative[1..].iter().map(|distance| first.checked_add(*distance));
        let offsets: Vec<u64> = std::iter::once(Some(first)).chain(rest).collect::<Option<_>>()?;
        if offsets.len() > 64 || !offsets.is_sorted() {
            return None;
        }
        let pairs = |name: &str| -> BTreeMap<u64, i64> {
            let of =
                |(key, value): (JsonRef<'_>, JsonRef<'_>)| Some((u64::try_from(key.as_i64()?).ok()?, value.as_i64()?));
            json.get(name).entries().filter_map(of).collect()
        };
        Some(Self {
            attempt: json.get("a").as_str().map(|attempt| attempt.as_ref().into()),
            pop_time_ms: json.get("popTime").as_i64()?,
            invisible_ms: json.get("i").as_i64().unwrap_or(0),
            offsets,
            acked: json.get("cm").as_i64().unwrap_or(0) as u64,
            next_visible_ms: pairs("ot"),
            consumed: pairs("oc").into_iter().map(|(offset, count)| (offset, count as i32)).collect(),
            last_ms: json.get("l").as_i64().unwrap_or(0),
        })
    }

    fn unacked(&self) -> impl Iterator<Item = u64> {
        self.offsets.iter().enumerate().filter(|(at, _)| self.acked & 1 << at == 0).map(|(_, offset)| *offset)
    }

    fn visible_at(&self, offset: u64) -> i64 {
        let changed = self.next_visible_ms.get(&offset).copied();
        changed.unwrap_or(self.pop_time_ms.saturating_add(self.invisible_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_queue_is_one_attempts_until_all_is_acked_or_visible_again() {
        let mut info = OrderInfo::pop(None, Some("a"), 1000, 500, &[3, 5]);
        assert!(info.blocks(Some("b"), 1499) && info.blocks(None, 1000) && !info.blocks(Some("a"), 1000));
        assert!(!info.blocks(Some("b"), 1500));
        assert_eq!(info.ack(5, 999), OrderAck::Unknown);
        assert_eq!(info.ack(4, 1000), OrderAck::Unknown);
        assert_eq!(info.ack(5, 1000), OrderAck::Next(3));
        assert!(info.change(3, 1000, 9000) && !info.change(5, 1000, 9000) && info.blocks(Some("b"), 8999));
        assert_eq!(info.free_at_ms(), Some(9000));
        assert_eq!(info.ack(3, 1000), OrderAck::Next(6));
        assert_eq!((info.ack(3, 1000), info.free_at_ms()), (OrderAck::Next(6), None), "twice");
        assert!(!info.blocks(None, 0));
    }

    #[test]
    fn counts_grow_with_each_attempt_and_not_within_one() {
        let first = OrderInfo::pop(None, Some("a"), 0, 1, &[3, 4]);
        let counts = |info: &OrderInfo| {
            let mut out = String::new();
            info.write_counts(&mut out, 0, 7);
            out
        };
        assert_eq!(counts(&first), "0 7 0");
        let second = OrderInfo::pop(Some(first), Some("b"), 1, 1, &[4, 5]);
        assert_eq!(counts(&second), "0 qo7%4 1;0 7 0");
        let again = OrderInfo::pop(Some(second), Some("b"), 2, 1, &[4, 5]);
        assert_eq!(counts(&again), "0 qo7%4 1;0 7 0");
        let third = OrderInfo::pop(Some(again), Some("c"), 3, 1, &[4, 5]);
        assert_eq!(counts(&third), "0 qo7%4 2;0 qo7%5 1;0 7 1");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 10_000, ..ProptestConfig::default() })]
        #[test]
        fn it_reads_back(attempt: Option<bool>, pop: i64, invisible: i64, start in 0u64..1 << 50, steps in proptest::collection::vec(1u64..9, 0..31), acked: u32) {
            let mut offsets = vec![start];
            steps.iter().for_each(|step| offsets.push(offsets.last().unwrap() + step));
            let attempt = attempt.map(|long| if long { "an \"attempt\"" } else { "x" });
            let mut info = OrderInfo::pop(None, attempt, pop, invisible, &offsets);
            info.change(start, pop, 77);
            info.acked = u64::from(acked);
            info.consumed.insert(start, 4);
            let text = info.to_json().to_vec();
            prop_assert_eq!(OrderInfo::from_json(JsonRef::parse(&text).unwrap()), Some(info));
        }

        #[test]
        fn any_json_reads_without_a_panic(text in "[\\{\\[\"a-z0-9:,\\]\\}-]{0,60}") {
            if let Ok(json) = JsonRef::parse(text.as_bytes()) {
                let _ = OrderInfo::from_json(json);
            }
        }
    }
}
