//! Who holds which messages: the next offset of each queue and group, and the check points that are outstanding.
//!
//! Role: the pure machine of POP in one shard. Invariants: a message below a queue's next offset is acknowledged, on its way to
//! the retry topic, or held by exactly one check point; a check point leaves only when each of its messages is acknowledged and
//! the records that say so are written; what a revive queue holds below [`Book::position`] is of no use any more. It reads no
//! clock and knows no record's bytes. Memory: about 350 bytes a check point, at most [`MAX_CHECKS`] of them.

use super::order::OrderInfo;
use super::records::MAX_MESSAGES;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use slab::Slab;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Outstanding check points of a shard: about 350 MiB. Beyond, a pop finds nothing until some are acknowledged or expire.
pub const MAX_CHECKS: usize = 1_000_000;

/// Offsets of a check point.
pub type Offsets = SmallVec<[u64; MAX_MESSAGES]>;

/// Everything outstanding in one shard.
#[derive(Debug)]
pub struct Book {
    names: HashMap<Arc<str>, HashMap<Arc<str>, u32, FixedState>, FixedState>,
    pairs: Slab<Pair>,
    checks: Slab<Check>,
    due: BTreeSet<(i64, u32)>,
    revive: Vec<ReviveQueue>,
}

/// A topic and a group.
#[derive(Debug)]
pub struct Pair {
    /// The topic.
    pub topic: Arc<str>,
    /// The group.
    pub group: Arc<str>,
    /// The queues of this shard that were popped.
    pub queues: BTreeMap<u32, Queue>,
    /// What the owner has of the group's offsets is known.
    pub known: bool,
    /// When it was popped last, in monotonic microseconds.
    pub used_us: u64,
}

/// One queue of a topic and group.
#[derive(Debug, Default)]
pub struct Queue {
    /// The next offset to pop.
    pub next: u64,
    /// The owner is to be told of `next`.
    pub dirty: bool,
    /// When `next` changed last, in monotonic microseconds.
    pub changed_us: u64,
    /// The last reset that was taken.
    pub reset_taken: u64,
    /// What an ordered pop gave out.
    pub order: Option<Box<OrderInfo>>,
    checks: BTreeMap<(u64, i64), u32>,
}

/// What a pop gave out and is not done with.
#[derive(Clone, Debug)]
pub struct Check {
    /// Topic and group.
    pub pair: u32,
    /// The queue.
    pub queue_id: u32,
    /// First offset.
    pub start: u64,
    /// When it was popped, ms since 1970.
    pub pop_time_ms: i64,
    /// How long it is invisible, ms.
    pub invisible_ms: i64,
    /// Revive queue of the shard, from 0.
    pub revive_queue: u32,
    /// Physical offset of its record; 0 while it is being written.
    pub physical: u64,
    /// Its offset in the revive queue.
    at: u64,
    distances: Distances,
    acked: u32,
    reviving: u32,
    /// Records about it that are being written.
    unwritten: u32,
    /// Its place in `due`.
    due_ms: i64,
}

/// Offsets relative to the start; without gaps in most check points.
#[derive(Clone, Debug)]
enum Distances {
    Dense(u32),
    Listed(Box<[u32]>),
}

#[derive(Debug, Default)]
struct ReviveQueue {
    outstanding: BTreeSet<(u64, u32)>,
    /// One more than the last record seen.
    end: u64,
}

/// A check point to be.
#[derive(Clone, Copy, Debug)]
pub struct NewCheck<'a> {
    /// First offset.
    pub start: u64,
    /// When it is popped, ms since 1970.
    pub pop_time_ms: i64,
    /// How long it is invisible, ms.
    pub invisible_ms: i64,
    /// Offsets of the messages, as distances from the start: 1 to [`MAX_MESSAGES`], ascending.
    pub distances: &'a [u32],
    /// Revive queue of the shard, from 0.
    pub revive_queue: u32,
}

impl Distances {
    fn of(list: &[u32]) -> Self {
        let dense = list.iter().enumerate().all(|(at, distance)| *distance as usize == at);
        if dense { Self::Dense(list.len() as u32) } else { Self::Listed(list.into()) }
    }

    fn len(&self) -> u32 {
        match self {
            Self::Dense(count) => *count,
            Self::Listed(list) => list.len() as u32,
        }
    }

    fn get(&self, at: u32) -> u32 {
        match self {
            Self::Dense(_) => at,
            Self::Listed(list) => list[at as usize],
        }
    }

    fn position(&self, distance: u64) -> Option<u32> {
        match self {
            Self::Dense(count) => u32::try_from(distance).ok().filter(|at| at < count),
            Self::Listed(list) => {
                let distance = u32::try_from(distance).ok()?;
                list.iter().position(|own| *own == distance).map(|at| at as u32)
            }
        }
    }
}

impl Check {
    /// Its due time, ms since 1970.
    pub fn revive_ms(&self) -> i64 {
        self.pop_time_ms.saturating_add(self.invisible_ms)
    }

    /// Index and offset of each message that is neither acknowledged nor on its way to the retry topic.
    pub fn held(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let free = !(self.acked | self.reviving);
        (0..self.distances.len())
            .filter(move |at| free & 1 << at != 0)
            .map(|at| (at, self.start + u64::from(self.distances.get(at))))
    }

    /// How what comes back names itself: unlike any other record's physical offset, for a check point is longer than its
    /// messages are many.
    pub fn name_of(&self, at: u32) -> u64 {
        self.physical + u64::from(at)
    }

    /// The offset of a message by its index.
    pub fn offset(&self, at: u32) -> u64 {
        self.start + u64::from(self.distances.get(at))
    }

    fn all(&self) -> u32 {
        u32::MAX >> (MAX_MESSAGES as u32 - self.distances.len())
    }

    fn is_done(&self) -> bool {
        self.unwritten == 0 && self.reviving == 0 && self.acked & self.all() == self.all()
    }
}

impl Book {
    /// A book of a shard with so many revive queues.
    pub fn new(revive_queues: u32) -> Self {
        let revive = (0..revive_queues.max(1)).map(|_| ReviveQueue::default()).collect();
        let names = HashMap::with_hasher(FixedState::default());
        Self { names, pairs: Slab::new(), checks: Slab::new(), due: BTreeSet::new(), revive }
    }

    /// Number of revive queues.
    pub fn revive_queues(&self) -> u32 {
        self.revive.len() as u32
    }

    /// Outstanding check points.
    pub fn len(&self) -> usize {
        self.checks.len()
    }

    /// Whether no check point is outstanding.
    pub fn is_empty(&self) -> bool {
        self.checks.is_empty()
    }

    /// Whether a pop may add a check point.
    pub fn has_room(&self) -> bool {
        self.checks.len() < MAX_CHECKS
    }

    /// The pair of these names.
    pub fn find(&self, topic: &str, group: &str) -> Option<u32> {
        self.names.get(topic)?.get(group).copied()
    }

    /// The pair of these names, made if there is none.
    pub fn find_or_add(&mut self, topic: &Arc<str>, group: &Arc<str>) -> u32 {
        if let Some(id) = self.find(topic, group) {
            return id;
        }
        let (names, pair) = (topic.clone(), group.clone());
        let id = self.pairs.insert(Pair {
            topic: topic.clone(),
            group: group.clone(),
            queues: BTreeMap::new(),
            known: false,
            used_us: 0,
        }) as u32;
        self.names.entry(names).or_default().insert(pair, id);
        id
    }

    /// A pair.
    pub fn pair(&self, id: u32) -> &Pair {
        &self.pairs[id as usize]
    }

    /// A pair.
    pub fn pair_mut(&mut self, id: u32) -> &mut Pair {
        &mut self.pairs[id as usize]
    }

    /// All pairs.
    pub fn pairs(&self) -> impl Iterator<Item = (u32, &Pair)> {
        self.pairs.iter().map(|(id, pair)| (id as u32, pair))
    }

    /// A check point.
    pub fn check(&self, slot: u32) -> Option<&Check> {
        self.checks.get(slot as usize)
    }

    /// All check points.
    pub fn checks(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().map(|(_, check)| check)
    }

    /// Sets the next offset of a queue.
    pub fn set_next(&mut self, pair: u32, queue_id: u32, next: u64, now_us: u64) {
        let queue = self.pairs[pair as usize].queues.entry(queue_id).or_default();
        if queue.next != next || queue.changed_us == 0 {
            *queue = Queue { next, dirty: true, changed_us: now_us.max(1), ..std::mem::take(queue) };
        }
    }

    /// A pop gave out messages of a queue: they are held by a check point that is being written. `None`: one of this name is
    /// there.
    pub fn add(&mut self, pair: u32, queue_id: u32, new: &NewCheck<'_>) -> Option<u32> {
        debug_assert!((1..=MAX_MESSAGES).contains(&new.distances.len()), "a check point has 1 to 32 messages");
        let queue = self.pairs[pair as usize].queues.entry(queue_id).or_default();
        let name = (new.start, new.pop_time_ms);
        if queue.checks.contains_key(&name) {
            return None;
        }
        let check = Check {
            pair,
            queue_id,
            start: new.start,
            pop_time_ms: new.pop_time_ms,
            invisible_ms: new.invisible_ms,
            revive_queue: new.revive_queue,
            physical: 0,
            at: 0,
            distances: Distances::of(new.distances),
            acked: 0,
            reviving: 0,
            unwritten: 1,
            due_ms: 0,
        };
        let slot = self.checks.insert(check) as u32;
        queue.checks.insert(name, slot);
        Some(slot)
    }

    /// The record of a check point is written: at `at` of its revive queue.
    pub fn written(&mut self, slot: u32, physical: u64, at: u64) {
        let check = &mut self.checks[slot as usize];
        (check.physical, check.at, check.due_ms) = (physical, at, check.revive_ms());
        self.due.insert((check.due_ms, slot));
        let revive = &mut self.revive[check.revive_queue as usize];
        revive.outstanding.insert((at, slot));
        revive.end = revive.end.max(at + 1);
        self.one_written(slot);
    }

    /// The record of a check point was not written: its messages are to be popped again.
    pub fn not_written(&mut self, slot: u32) {
        let check = self.checks.remove(slot as usize);
        let queue = self.pairs[check.pair as usize].queues.entry(check.queue_id).or_default();
        queue.checks.remove(&(check.start, check.pop_time_ms));
        if check.acked == 0 {
            queue.next = queue.next.min(check.start);
        }
    }

    /// A check point that was added is not to be written after all; the queue goes on where it was.
    pub fn withdraw(&mut self, slot: u32) {
        let check = self.checks.remove(slot as usize);
        if let Some(queue) = self.pairs[check.pair as usize].queues.get_mut(&check.queue_id) {
            queue.checks.remove(&(check.start, check.pop_time_ms));
        }
    }

    /// Acknowledges messages of a check point: gives it with those offsets for which that is new. A record must be written for
    /// them, then [`Book::ack_written`] called.
    pub fn ack(
        &mut self,
        pair: u32,
        queue_id: u32,
        name: (u64, i64),
        offsets: impl Iterator<Item = u64>,
    ) -> Option<(u32, Offsets)> {
        let slot = *self.pairs.get(pair as usize)?.queues.get(&queue_id)?.checks.get(&name)?;
        let check = &mut self.checks[slot as usize];
        let mut new = Offsets::new();
        for offset in offsets {
            let at = offset.checked_sub(check.start).and_then(|distance| check.distances.position(distance));
            if let Some(at) = at
                && (check.acked | check.reviving) & 1 << at == 0
            {
                check.acked |= 1 << at;
                new.push(offset);
            }
        }
        if new.is_empty() {
            return None;
        }
        check.unwritten += 1;
        Some((slot, new))
    }

    /// The record of an acknowledgement is written: at `at` of the check point's revive queue.
    pub fn ack_written(&mut self, slot: u32, at: u64) {
        if let Some(check) = self.checks.get(slot as usize) {
            let end = &mut self.revive[check.revive_queue as usize].end;
            *end = (*end).max(at + 1);
            self.one_written(slot);
        }
    }

    /// No record of an acknowledgement could be appended: it does not count.
    pub fn not_acked(&mut self, slot: u32, offsets: &[u64]) {
        let Some(check) = self.checks.get_mut(slot as usize) else { return };
        for offset in offsets {
            if let Some(at) = check.distances.position(offset - check.start) {
                check.acked &= !(1 << at);
            }
        }
        check.unwritten -= 1;
    }

    /// A message goes to the retry topic: nobody can acknowledge it any more.
    pub fn reviving(&mut self, slot: u32, at: u32) {
        self.checks[slot as usize].reviving |= 1 << at;
    }

    /// It could not go there after all: it is held again.
    pub fn not_revived(&mut self, slot: u32, at: u32) {
        if let Some(check) = self.checks.get_mut(slot as usize) {
            check.reviving &= !(1 << at);
        }
    }

    /// What was on its way to the retry topic is there: as acknowledged, when the record about it is written. Gives the offsets.
    pub fn revived(&mut self, slot: u32) -> Offsets {
        let Some(check) = self.checks.get_mut(slot as usize) else { return Offsets::new() };
        let there = std::mem::take(&mut check.reviving);
        check.acked |= there;
        check.unwritten += u32::from(there != 0);
        (0..check.distances.len()).filter(|at| there & 1 << at != 0).map(|at| check.offset(at)).collect()
    }

    /// Forgets everything about a topic: it is deleted. What is being written or brought back is forgotten when that is over.
    pub fn forget_topic(&mut self, topic: &str) {
        let groups: Vec<(Arc<str>, u32)> =
            self.names.get(topic).into_iter().flatten().map(|(group, pair)| (group.clone(), *pair)).collect();
        for (group, id) in groups {
            let queues = self.pairs[id as usize].queues.values();
            let slots: Vec<u32> = queues.flat_map(|queue| queue.checks.values().copied()).collect();
            slots.into_iter().for_each(|slot| self.forget(slot));
            let pair = &mut self.pairs[id as usize];
            pair.known = false;
            pair.queues.retain(|_, queue| !queue.checks.is_empty());
            for queue in pair.queues.values_mut() {
                let checks = std::mem::take(&mut queue.checks);
                *queue = Queue { checks, ..Queue::default() };
            }
            if pair.queues.is_empty() {
                self.remove_pair(id, topic, &group);
            }
        }
    }

    fn remove_pair(&mut self, id: u32, topic: &str, group: &str) {
        self.pairs.remove(id as usize);
        if let Some(groups) = self.names.get_mut(topic) {
            groups.remove(group);
            if groups.is_empty() {
                self.names.remove(topic);
            }
        }
    }

    /// The check point that is due first, and when, ms since 1970.
    pub fn first_due(&self) -> Option<(i64, u32)> {
        self.due.first().copied()
    }

    /// A due check point is looked at again at another time; `i64::MAX`: not before it was postponed again.
    pub fn postpone(&mut self, slot: u32, due_ms: i64) {
        if let Some(check) = self.checks.get_mut(slot as usize) {
            self.due.remove(&(check.due_ms, slot));
            check.due_ms = due_ms;
            self.due.insert((due_ms, slot));
        }
    }

    /// Forgets a check point: its topic or group is gone. One that is being written or brought back goes when that is over.
    pub fn forget(&mut self, slot: u32) {
        let Some(check) = self.checks.get_mut(slot as usize) else { return };
        check.acked |= check.all() & !check.reviving;
        if check.is_done() {
            self.remove(slot);
        }
    }

    /// From where on a revive queue is to be read by who knows nothing else.
    pub fn position(&self, revive_queue: u32) -> u64 {
        let revive = &self.revive[revive_queue as usize];
        revive.outstanding.first().map_or(revive.end, |(at, _)| *at)
    }

    /// Everything of a revive queue below `end` was read.
    pub fn seen(&mut self, revive_queue: u32, end: u64) {
        let own = &mut self.revive[revive_queue as usize].end;
        *own = (*own).max(end);
    }

    /// Whether a queue has check points.
    pub fn is_queue_idle(&self, pair: u32, queue_id: u32) -> bool {
        let queue = self.pairs[pair as usize].queues.get(&queue_id);
        queue.is_none_or(|queue| queue.checks.is_empty() && queue.order.is_none() && !queue.dirty)
    }

    /// Forgets pairs that nobody popped since `before_us` and that hold nothing: the owner knows their offsets.
    pub fn forget_idle(&mut self, before_us: u64) {
        let is_idle = |id: u32, pair: &Pair| {
            pair.used_us < before_us && pair.queues.keys().all(|queue_id| self.is_queue_idle(id, *queue_id))
        };
        let idle: Vec<u32> = self.pairs().filter(|(id, pair)| is_idle(*id, pair)).map(|(id, _)| id).collect();
        for id in idle {
            let (topic, group) = (self.pairs[id as usize].topic.clone(), self.pairs[id as usize].group.clone());
            self.remove_pair(id, &topic, &group);
        }
    }

    fn one_written(&mut self, slot: u32) {
        let check = &mut self.checks[slot as usize];
        check.unwritten -= 1;
        if check.is_done() {
            self.remove(slot);
        }
    }

    fn remove(&mut self, slot: u32) {
        let check = self.checks.remove(slot as usize);
        self.due.remove(&(check.due_ms, slot));
        self.revive[check.revive_queue as usize].outstanding.remove(&(check.at, slot));
        if let Some(queue) = self.pairs[check.pair as usize].queues.get_mut(&check.queue_id) {
            queue.checks.remove(&(check.start, check.pop_time_ms));
        }
    }
}

#[cfg(test)]
#[path = "book_tests.rs"]
mod tests;
