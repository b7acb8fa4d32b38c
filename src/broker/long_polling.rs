//! Pulls that wait for messages, on the core of their shard.
//!
//! Role: a pure step machine: hold, wake by what became visible, expire by deadline, drop with the connection. Owner of the
//! limits on holds. Invariants: a hold leaves exactly once (woken, expired, dropped or flushed with its topic); a wake names a
//! hold only if the queue's end passed its offset and the tag of a new message fits. It runs no pull and writes no answer.

use crate::connections::MAX_HELD_PULLS;
use crate::work::{HeldPull, PullWork};
use hashbrown::HashMap;
use reactor::{ConnectionId, Now};
use slab::Slab;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// Holds of one core. Beyond, a pull is answered PULL_NOT_FOUND at once: its client asks again.
pub const MAX_HOLDS: usize = 200_000;
/// Longest hold, in ms: well below the idle time-out of a connection.
pub const MAX_HOLD_MS: u64 = 60_000;

/// The held pulls of one core.
#[derive(Debug, Default)]
pub struct LongPolls {
    holds: Slab<Hold>,
    queues: HashMap<Arc<str>, HashMap<u32, Vec<u32>, foldhash::fast::FixedState>, foldhash::fast::RandomState>,
    connections: HashMap<ConnectionId, Vec<u32>, foldhash::fast::RandomState>,
    deadlines: BinaryHeap<Reverse<(u64, u32, u64)>>,
    next_serial: u64,
}

#[derive(Debug)]
struct Hold {
    serial: u64,
    pull: HeldPull,
}

impl LongPolls {
    /// How many are held.
    pub fn len(&self) -> usize {
        self.holds.len()
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// Holds a pull until `deadline_us`; gives it back when the core or its connection holds too many.
    #[must_use = "a pull that is given back must be answered"]
    pub fn hold(&mut self, pull: HeldPull, deadline_us: u64) -> Option<HeldPull> {
        let of_connection = self.connections.entry(pull.reply.conn).or_default();
        if self.holds.len() >= MAX_HOLDS || of_connection.len() >= MAX_HELD_PULLS as usize {
            return Some(pull);
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        let entry = self.holds.vacant_entry();
        let slot = entry.key() as u32;
        of_connection.push(slot);
        self.queues.entry(pull.work.topic.name.clone()).or_default().entry(pull.work.queue_id).or_default().push(slot);
        self.deadlines.push(Reverse((deadline_us, slot, serial)));
        entry.insert(Hold { serial, pull });
        None
    }

    /// A message became visible: moves every hold of its queue that it satisfies to `woken`, and those whose filter is no
    /// longer right, as `changed` says.
    pub fn wake(
        &mut self,
        topic: &[u8],
        queue_id: u32,
        max_offset: u64,
        tags_code: i64,
        changed: impl Fn(&PullWork) -> bool,
        woken: &mut Vec<HeldPull>,
    ) {
        if self.holds.is_empty() {
            return;
        }
        let Ok(topic) = std::str::from_utf8(topic) else { return };
        let Some(waiting) = self.queues.get(topic).and_then(|queues| queues.get(&queue_id)) else { return };
        let fits = |slot: &u32| {
            let work = &self.holds[*slot as usize].pull.work;
            let behind = i64::try_from(max_offset).is_ok_and(|max| max > work.offset);
            behind && (work.filter.matches(tags_code) || changed(work))
        };
        let ready: Vec<u32> = waiting.iter().copied().filter(fits).collect();
        woken.extend(ready.into_iter().map(|slot| self.take(slot)));
    }

    /// Moves every hold whose time is up to `expired`.
    pub fn expire(&mut self, now: Now, expired: &mut Vec<HeldPull>) {
        while let Some(&Reverse((deadline_us, slot, serial))) = self.deadlines.peek() {
            if deadline_us > now.mono_us && !self.is_stale(slot, serial) {
                return;
            }
            self.deadlines.pop();
            if !self.is_stale(slot, serial) {
                expired.push(self.take(slot));
            }
        }
    }

    /// When the first of them is to be looked at, in monotonic microseconds.
    pub fn next_deadline_us(&self) -> Option<u64> {
        self.deadlines.peek().map(|Reverse((deadline_us, ..))| *deadline_us)
    }

    /// Moves every hold of a topic to `out`: it was deleted. None of them is to be held again.
    pub fn flush_topic(&mut self, topic: &str, out: &mut Vec<HeldPull>) {
        let slots: Vec<u32> =
            self.queues.get(topic).into_iter().flat_map(|queues| queues.values().flatten().copied()).collect();
        out.extend(slots.into_iter().map(|slot| self.take_for_good(slot)));
    }

    /// Moves every hold to `out`: the core stops. None of them is to be held again.
    pub fn flush_all(&mut self, out: &mut Vec<HeldPull>) {
        let slots: Vec<u32> = self.holds.iter().map(|(slot, _)| slot as u32).collect();
        out.extend(slots.into_iter().map(|slot| self.take_for_good(slot)));
    }

    /// A connection is gone: its holds go too.
    pub fn connection_closed(&mut self, conn: ConnectionId) {
        for slot in self.connections.remove(&conn).unwrap_or_default() {
            self.take(slot);
        }
    }

    fn is_stale(&self, slot: u32, serial: u64) -> bool {
        self.holds.get(slot as usize).is_none_or(|hold| hold.serial != serial)
    }

    fn take_for_good(&mut self, slot: u32) -> HeldPull {
        let mut pull = self.take(slot);
        pull.work.hold_until_us = None;
        pull
    }

    fn take(&mut self, slot: u32) -> HeldPull {
        let pull = self.holds.remove(slot as usize).pull;
        if let Some(list) = self.connections.get_mut(&pull.reply.conn) {
            remove(list, slot);
            if list.is_empty() {
                self.connections.remove(&pull.reply.conn);
            }
        }
        let topic = &pull.work.topic.name;
        let queues = self.queues.get_mut(topic).expect("a hold is listed under its topic");
        let list = queues.get_mut(&pull.work.queue_id).expect("a hold is listed under its queue");
        remove(list, slot);
        if list.is_empty() {
            queues.remove(&pull.work.queue_id);
        }
        if queues.is_empty() {
            self.queues.remove(topic);
        }
        // Stale deadlines leave when their time comes; a flood of quick wakes must not pile them up.
        if self.deadlines.len() > 64 + 4 * self.holds.len() {
            let holds = &self.holds;
            self.deadlines.retain(|Reverse((_, slot, serial))| {
                holds.get(*slot as usize).is_some_and(|hold| hold.serial == *serial)
            });
        }
        pull
    }
}

fn remove(list: &mut Vec<u32>, slot: u32) {
    if let Some(at) = list.iter().position(|&other| other == slot) {
        list.swap_remove(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crossing::ReplyTo;
    use crate::fixtures;
    use crate::work::MessageFilter;
    use proptest::prelude::*;
    use reactor::CoreId;
    use remoting::SerializeType;
    use smallvec::smallvec;

    const NONE: [i32; 0] = [];

    fn held(opaque: i32, conn: u32, topic: &str, queue_id: u32, offset: i64, filter: MessageFilter) -> HeldPull {
        let conn = ConnectionId { core: CoreId(0), slot: conn, generation: 0 };
        HeldPull {
            reply: ReplyTo { conn, opaque, form: SerializeType::Json, oneway: false, bytes: 0, counted: false },
            work: PullWork {
                topic: Arc::new(fixtures::topic(topic)),
                group: Arc::new(fixtures::group("g")),
                queue_id,
                offset,
                asked_offset: offset,
                max_count: 32,
                max_bytes: u32::MAX,
                filter,
                own_filter: true,
                checked_version: 0,
                suspend_ms: None,
                hold_until_us: None,
                reset: None,
            },
        }
    }

    fn at(mono_us: u64) -> Now {
        Now { mono_us, wall_ms: 0 }
    }

    fn woken(polls: &mut LongPolls, topic: &str, queue_id: u32, max_offset: u64, tags_code: i64) -> Vec<i32> {
        let mut out = Vec::new();
        polls.wake(topic.as_bytes(), queue_id, max_offset, tags_code, |_| false, &mut out);
        out.iter().map(|held| held.reply.opaque).collect()
    }

    fn expired(polls: &mut LongPolls, mono_us: u64) -> Vec<i32> {
        let mut out = Vec::new();
        polls.expire(at(mono_us), &mut out);
        out.iter().map(|held| held.reply.opaque).collect()
    }

    #[test]
    fn a_message_wakes_whom_it_is_for() {
        let mut polls = LongPolls::default();
        let tag = |code| MessageFilter::Codes(smallvec![code]);
        for (opaque, queue_id, offset, filter) in [
            (1, 0, 0, MessageFilter::All),
            (2, 0, 0, tag(7)),
            (3, 0, 5, MessageFilter::All),
            (4, 1, 0, MessageFilter::All),
        ] {
            assert!(polls.hold(held(opaque, 0, "t", queue_id, offset, filter), 1000).is_none());
        }
        assert_eq!(woken(&mut polls, "other", 0, 9, 0), NONE);
        assert_eq!(woken(&mut polls, "t", 0, 1, 8), [1], "another tag, and an offset that is not reached");
        assert_eq!(woken(&mut polls, "t", 0, 5, 7), [2], "an offset equal to the maximum has nothing to read");
        assert_eq!(woken(&mut polls, "t", 0, 6, 7), [3]);
        assert_eq!(expired(&mut polls, 999), NONE);
        assert_eq!(expired(&mut polls, 1000), [4]);
        assert!(polls.is_empty() && polls.queues.is_empty() && polls.connections.is_empty());
    }

    #[test]
    fn limits_give_the_pull_back() {
        let mut polls = LongPolls::default();
        for opaque in 0..MAX_HELD_PULLS as i32 {
            assert!(polls.hold(held(opaque, 0, "t", 0, 0, MessageFilter::All), 1).is_none());
        }
        assert!(polls.hold(held(-1, 0, "t", 0, 0, MessageFilter::All), 1).is_some());
        assert!(polls.hold(held(-1, 1, "t", 0, 0, MessageFilter::All), 1).is_none(), "another connection");
    }

    proptest! {
        /// Whatever happens, each hold leaves exactly once, and never by a wake that is not for it.
        #[test]
        fn each_hold_leaves_once(steps in proptest::collection::vec((0u8..5, 0u32..4, 0u32..3, 0u64..6), 1..200)) {
            let mut polls = LongPolls::default();
            let mut inside = std::collections::BTreeMap::new();
            for (next, (what, conn, queue_id, number)) in steps.into_iter().enumerate() {
                let opaque = next as i32;
                let mut out = Vec::new();
                match what {
                    0 | 1 => {
                        let pull = held(opaque, conn, "t", queue_id, number as i64, MessageFilter::All);
                        prop_assert!(polls.hold(pull, next as u64 + number).is_none());
                        inside.insert(opaque, (conn, queue_id, number, next as u64 + number));
                        continue;
                    }
                    2 => polls.wake(b"t", queue_id, number, 0, |_| false, &mut out),
                    3 => polls.expire(at(next as u64), &mut out),
                    _ => {
                        polls.connection_closed(ConnectionId { core: CoreId(0), slot: conn, generation: 0 });
                        inside.retain(|_, entry| entry.0 != conn);
                    }
                }
                for left in &out {
                    let entry = inside.remove(&left.reply.opaque);
                    prop_assert!(entry.is_some());
                    let (_, of_queue, offset, deadline) = entry.unwrap();
                    match what {
                        2 => prop_assert!(of_queue == queue_id && number > offset),
                        _ => prop_assert!(deadline <= next as u64),
                    }
                }
                prop_assert!(what != 2 || inside.values().all(|e| e.1 != queue_id || e.2 >= number));
                prop_assert!(what != 3 || inside.values().all(|e| e.3 > next as u64));
                prop_assert_eq!(polls.len(), inside.len());
            }
        }
    }
}
