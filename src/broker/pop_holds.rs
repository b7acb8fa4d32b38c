//! POPs and notifications that wait for messages, on the core of their connection.
//!
//! Role: a pure step machine: hold, wake, expire, drop with the connection. Owner of the limits on holds. Invariants: a hold
//! leaves exactly once; a wake takes the oldest of each group that it is for, so that one message does not run them all. It runs
//! no pop and writes no answer.

use crate::crossing::ReplyTo;
use crate::services::pop::request::PopRun;
use foldhash::fast::{FixedState, RandomState};
use hashbrown::HashMap;
use reactor::{ConnectionId, Now};
use slab::Slab;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Holds of one core (Java's `maxPopPollingSize`). Beyond, a pop is answered POLLING_FULL.
pub const MAX_HOLDS: usize = 100_000;
/// Holds of one topic, group and queue (Java's `popPollingSize`).
pub const MAX_HOLDS_OF_QUEUE: usize = 1_024;

/// A pop that waits.
#[derive(Debug)]
pub struct HeldPop {
    /// Who waits; not counted as in flight.
    pub to: ReplyTo,
    /// What it asked.
    pub run: Box<PopRun>,
}

/// The holds of one core.
#[derive(Debug, Default)]
pub struct PopHolds {
    holds: Slab<Hold>,
    topics: HashMap<Arc<str>, Groups, RandomState>,
    connections: HashMap<ConnectionId, Vec<u32>, RandomState>,
    due: BTreeSet<(u64, u32)>,
}

/// Holds of one topic by group, oldest first.
type Groups = HashMap<Arc<str>, VecDeque<u32>, FixedState>;

#[derive(Debug)]
struct Hold {
    held: HeldPop,
    look_us: u64,
    deadline_us: u64,
}

impl PopHolds {
    /// How many are held.
    pub fn len(&self) -> usize {
        self.holds.len()
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// Whether a pop of this group and queue may be held.
    pub fn has_room(&self, topic: &str, group: &str, queue_id: i32) -> bool {
        self.holds.len() < MAX_HOLDS && self.count(topic, group, queue_id) < MAX_HOLDS_OF_QUEUE
    }

    /// Pops of this topic, group and queue (as they name it) that wait.
    pub fn count(&self, topic: &str, group: &str, queue_id: i32) -> usize {
        let list = self.topics.get(topic).and_then(|groups| groups.get(group));
        let of_queue = |slot: &&u32| self.holds[**slot as usize].held.run.header.queue_id.max(-1) == queue_id.max(-1);
        list.map_or(0, |list| list.iter().filter(of_queue).count())
    }

    /// Holds a pop until `deadline_us`; it looks again by itself at `look_us`.
    pub fn hold(&mut self, held: HeldPop, look_us: u64, deadline_us: u64) {
        let look_us = look_us.min(deadline_us);
        let slot = self.holds.vacant_key() as u32;
        self.due.insert((look_us, slot));
        self.connections.entry(held.to.conn).or_default().push(slot);
        let groups = self.topics.entry(held.run.topic.name.clone()).or_default();
        groups.entry(held.run.group.name.clone()).or_default().push_back(slot);
        self.holds.insert(Hold { held, look_us, deadline_us });
    }

    /// Something came for a topic: takes the oldest hold of the group, or of each group.
    pub fn wake(&mut self, topic: &str, group: Option<&str>) -> Vec<HeldPop> {
        let Some(groups) = self.topics.get(topic) else { return Vec::new() };
        let first: Vec<u32> = match group {
            Some(group) => groups.get(group).and_then(|list| list.front()).copied().into_iter().collect(),
            None => groups.values().filter_map(|list| list.front().copied()).collect(),
        };
        first.into_iter().map(|slot| self.take(slot)).collect()
    }

    /// The oldest hold of a topic and group that is left.
    pub fn first(&self, topic: &str, group: &str) -> Option<&HeldPop> {
        let slot = *self.topics.get(topic)?.get(group)?.front()?;
        Some(&self.holds[slot as usize].held)
    }

    /// Takes every hold that is to look again now; the flag says that its time is up.
    pub fn expire(&mut self, now: Now) -> Vec<(HeldPop, bool)> {
        let mut out = Vec::new();
        while let Some(&(at_us, slot)) = self.due.first() {
            if at_us > now.mono_us {
                break;
            }
            let over = self.holds[slot as usize].deadline_us <= now.mono_us;
            out.push((self.take(slot), over));
        }
        out
    }

    /// When the first of them looks again, in monotonic microseconds.
    pub fn next_us(&self) -> Option<u64> {
        self.due.first().map(|(at_us, _)| *at_us)
    }

    /// Takes every hold: the core stops.
    pub fn take_all(&mut self) -> Vec<HeldPop> {
        let slots: Vec<u32> = self.holds.iter().map(|(slot, _)| slot as u32).collect();
        slots.into_iter().map(|slot| self.take(slot)).collect()
    }

    /// A connection is gone: its holds go too.
    pub fn connection_closed(&mut self, conn: ConnectionId) {
        for slot in self.connections.get(&conn).cloned().unwrap_or_default() {
            self.take(slot);
        }
    }

    fn take(&mut self, slot: u32) -> HeldPop {
        let Hold { held, look_us, .. } = self.holds.remove(slot as usize);
        self.due.remove(&(look_us, slot));
        if let Some(list) = self.connections.get_mut(&held.to.conn) {
            list.retain(|other| *other != slot);
            if list.is_empty() {
                self.connections.remove(&held.to.conn);
            }
        }
        let (topic, group) = (&held.run.topic.name, &held.run.group.name);
        if let Some(groups) = self.topics.get_mut(topic) {
            if let Some(list) = groups.get_mut(group) {
                list.retain(|other| *other != slot);
                if list.is_empty() {
                    groups.remove(group);
                }
            }
            if groups.is_empty() {
                self.topics.remove(topic);
            }
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use proptest::prelude::*;
    use reactor::CoreId;
    use remoting::SerializeType;
    use std::collections::BTreeMap;

    fn held(opaque: i32, conn: u32, group: &str) -> HeldPop {
        let conn = ConnectionId { core: CoreId(0), slot: conn, generation: 0 };
        let to = ReplyTo { conn, opaque, form: SerializeType::Json, oneway: false, bytes: 0, counted: false };
        HeldPop { to, run: Box::new(fixtures::pop_run("t", group)) }
    }

    fn at(mono_us: u64) -> Now {
        Now { mono_us, wall_ms: 0 }
    }

    #[test]
    fn a_wake_takes_the_oldest_of_each_group() {
        let mut holds = PopHolds::default();
        for (opaque, group) in [(1, "a"), (2, "a"), (3, "b")] {
            holds.hold(held(opaque, 0, group), 100, 100);
        }
        assert_eq!((holds.count("t", "a", -1), holds.count("t", "a", 0)), (2, 0));
        let opaques = |woken: Vec<HeldPop>| {
            let mut opaques: Vec<i32> = woken.iter().map(|held| held.to.opaque).collect();
            opaques.sort_unstable();
            opaques
        };
        assert!(holds.wake("other", None).is_empty() && holds.wake("t", Some("c")).is_empty());
        assert_eq!(opaques(holds.wake("t", Some("b"))), [3]);
        assert_eq!(opaques(holds.wake("t", None)), [1]);
        assert_eq!(holds.first("t", "a").map(|held| held.to.opaque), Some(2));
    }

    #[test]
    fn a_hold_that_looks_early_is_not_over() {
        let mut holds = PopHolds::default();
        holds.hold(held(1, 0, "a"), 50, 100);
        assert!(holds.expire(at(49)).is_empty());
        assert_eq!(holds.next_us(), Some(50));
        let (early, over) = holds.expire(at(50)).pop().unwrap();
        assert!(!over);
        holds.hold(early, 200, 100);
        assert!(holds.expire(at(100)).pop().unwrap().1);
    }

    #[test]
    fn a_queue_has_a_limit() {
        let mut holds = PopHolds::default();
        for opaque in 0..MAX_HOLDS_OF_QUEUE as i32 {
            assert!(holds.has_room("t", "a", -1));
            holds.hold(held(opaque, 0, "a"), 1, 1);
        }
        assert!(!holds.has_room("t", "a", -1) && holds.has_room("t", "a", 0) && holds.has_room("t", "b", -1));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn each_hold_leaves_once(steps in proptest::collection::vec((0u8..5, 0u32..4, 0usize..3, 0u64..6), 1..150)) {
            let groups = ["a", "b", "c"];
            let mut holds = PopHolds::default();
            let mut inside: BTreeMap<i32, u32> = BTreeMap::new();
            for (next, (what, conn, group, number)) in steps.into_iter().enumerate() {
                let out = match what {
                    0 | 1 => {
                        holds.hold(held(next as i32, conn, groups[group]), next as u64 + number, next as u64 + number);
                        inside.insert(next as i32, conn);
                        continue;
                    }
                    2 => holds.wake("t", (number > 2).then_some(groups[group])),
                    3 => holds.expire(at(next as u64)).into_iter().map(|(held, _)| held).collect(),
                    _ => {
                        holds.connection_closed(ConnectionId { core: CoreId(0), slot: conn, generation: 0 });
                        inside.retain(|_, of| *of != conn);
                        Vec::new()
                    }
                };
                for held in out {
                    prop_assert!(inside.remove(&held.to.opaque).is_some());
                }
                prop_assert_eq!(holds.len(), inside.len());
                prop_assert_eq!(holds.is_empty(), holds.topics.is_empty() && holds.connections.is_empty() && holds.due.is_empty());
            }
        }
    }
}
