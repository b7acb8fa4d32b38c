//! The queues of a shard in memory: who exists, its bounds, the tail of its entries.
//!
//! Role: one hash lookup from a topic to its queues; counters by which a queue offset is given out; tails of entries.
//! Invariants of a queue: `min <= visible <= dispatched <= next`; `tail_start <= written <= dispatched`, so that what is
//! not in a file is in the tail; `dispatched = tail_start + tail.len()`. It touches no file.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use message::names;
use slab::Slab;

use super::entry::Entry;
use crate::limits;

/// Place of a queue in the table. Reused after a deletion: hold the number ([`Queue::uid`]) beside it across turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slot(pub(crate) u32);

/// A queue. Small: there may be 80,000.
pub(crate) struct Queue {
    topic: u32,
    /// Queue id in its topic.
    pub(crate) id: u32,
    /// Unique in the life of the process.
    pub(crate) uid: u64,
    /// First offset that can be read.
    pub(crate) min: u64,
    /// The next offset to give out; staged appends are counted.
    pub(crate) next: u64,
    /// Readers see entries below.
    pub(crate) visible: u64,
    /// The entries of a queue begin here, readable or not: its first file begins at or before it.
    pub(crate) first: u64,
    /// Entries below are in the files.
    pub(crate) written: u64,
    /// Entries below are durable in the files.
    pub(crate) synced: u64,
    /// Offset of the first entry of `tail`.
    tail_start: u64,
    tail: VecDeque<Entry>,
    /// End of the last record that has an entry.
    pub(crate) last_end: u64,
    /// Store time of the last record, ms since 1970; 0 when there was none.
    pub(crate) last_store_ms: i64,
    /// Whether it stands in the list of those with unwritten entries.
    pub(crate) in_dirty: bool,
    /// Whether it stands in the list of those with entries that are not durable.
    pub(crate) in_unsynced: bool,
    /// Recovery has to make it again from the log.
    pub(crate) lost: bool,
}

impl Queue {
    /// Offset after the last entry.
    pub(crate) fn dispatched(&self) -> u64 {
        self.tail_start + self.tail.len() as u64
    }

    /// Entries not in the files yet.
    pub(crate) fn unwritten(&self) -> u64 {
        self.dispatched() - self.written
    }

    pub(crate) fn tail_start(&self) -> u64 {
        self.tail_start
    }

    /// Entries `from..`, at most `max`, if they are all in memory.
    pub(crate) fn in_tail(&self, from: u64, max: usize) -> Option<impl Iterator<Item = &Entry>> {
        let skip = usize::try_from(from.checked_sub(self.tail_start)?).ok()?;
        (skip < self.tail.len()).then(|| self.tail.range(skip..self.tail.len().min(skip.saturating_add(max))))
    }

    #[cfg(test)]
    pub(crate) fn validate(&self) {
        assert!(self.first <= self.min);
        assert!(self.min <= self.visible, "min {} visible {}", self.min, self.visible);
        assert!(self.visible <= self.dispatched());
        assert!(self.dispatched() <= self.next);
        assert!(self.tail_start <= self.written);
        assert!(self.written <= self.dispatched());
        assert!(self.synced <= self.written);
        assert!(self.in_dirty || self.unwritten() == 0);
    }
}

/// The queues of one topic.
struct Topic {
    name: Arc<[u8]>,
    /// Queue id and slot, ascending by id.
    queues: Vec<(u32, Slot)>,
}

/// All queues.
pub(crate) struct QueueTable {
    topics: Slab<Topic>,
    by_name: HashTable<u32>,
    hasher: RandomState,
    queues: Slab<Queue>,
    next_uid: u64,
    /// Topics that are light queues.
    light: usize,
    /// Unwritten entries of all queues.
    unwritten: u64,
    /// Entries in all tails.
    in_tails: u64,
    /// Queues with unwritten entries, the longest waiting first.
    pub(crate) dirty: VecDeque<(Slot, u64)>,
    /// Queues with entries that are not durable in their files.
    pub(crate) unsynced: Vec<(Slot, u64)>,
    /// Where the sweep over the tails goes on.
    sweep_at: usize,
}

impl QueueTable {
    pub(crate) fn new() -> Self {
        Self {
            topics: Slab::new(),
            by_name: HashTable::new(),
            hasher: RandomState::default(),
            queues: Slab::new(),
            next_uid: 1,
            light: 0,
            unwritten: 0,
            in_tails: 0,
            dirty: VecDeque::new(),
            unsynced: Vec::new(),
            sweep_at: 0,
        }
    }

    /// The queue, if it exists.
    pub(crate) fn find(&self, topic: &[u8], queue_id: u32) -> Option<Slot> {
        let hash = self.hasher.hash_one(topic);
        let at = *self.by_name.find(hash, |&at| *self.topics[at as usize].name == *topic)?;
        find_id(&self.topics[at as usize].queues, queue_id).ok()
    }

    /// The queue, made empty at offset 0 if it does not exist.
    pub(crate) fn find_or_make(&mut self, topic: &[u8], queue_id: u32) -> Slot {
        let hash = self.hasher.hash_one(topic);
        let topics = &self.topics;
        let at = match self.by_name.find(hash, |&at| *topics[at as usize].name == *topic) {
            Some(&at) => at,
            None => {
                self.light += usize::from(names::is_lmq(topic));
                let at = self.topics.insert(Topic { name: topic.into(), queues: Vec::new() }) as u32;
                let (topics, hasher) = (&self.topics, &self.hasher);
                self.by_name.insert_unique(hash, at, |&at| hasher.hash_one(&*topics[at as usize].name));
                at
            }
        };
        match find_id(&self.topics[at as usize].queues, queue_id) {
            Ok(slot) => slot,
            Err(place) => {
                let slot = Slot(self.queues.insert(empty_queue(at, queue_id, self.next_uid)) as u32);
                self.next_uid += 1;
                self.topics[at as usize].queues.insert(place, (queue_id, slot));
                slot
            }
        }
    }

    pub(crate) fn get(&self, slot: Slot) -> &Queue {
        &self.queues[slot.0 as usize]
    }

    pub(crate) fn get_mut(&mut self, slot: Slot) -> &mut Queue {
        &mut self.queues[slot.0 as usize]
    }

    /// The queue in the slot if it is still the one with this number.
    pub(crate) fn live(&mut self, slot: Slot, uid: u64) -> Option<&mut Queue> {
        self.queues.get_mut(slot.0 as usize).filter(|queue| queue.uid == uid)
    }

    pub(crate) fn topic_of(&self, slot: Slot) -> &Arc<[u8]> {
        &self.topics[self.get(slot).topic as usize].name
    }

    /// Starts a queue at an offset other than 0, before its first entry.
    pub(crate) fn start_at(&mut self, slot: Slot, offset: u64) {
        let queue = self.get_mut(slot);
        assert_eq!(queue.dispatched(), queue.first, "only an empty queue is moved");
        queue.min = offset;
        queue.next = offset;
        queue.visible = offset;
        queue.first = offset;
        queue.written = offset;
        queue.synced = offset;
        queue.tail_start = offset;
    }

    /// Sets what recovery found in the files: entries `min..max`, beginning at `first`.
    pub(crate) fn restore(&mut self, slot: Slot, first: u64, min: u64, max: u64) {
        self.start_at(slot, max);
        let queue = self.get_mut(slot);
        queue.first = first.min(min);
        queue.min = min;
    }

    /// Nothing that a queue has in its files is known to be durable.
    pub(crate) fn doubt(&mut self, slot: Slot) {
        let queue = &mut self.queues[slot.0 as usize];
        queue.synced = queue.first;
        if !queue.in_unsynced {
            queue.in_unsynced = true;
            self.unsynced.push((slot, queue.uid));
        }
    }

    /// Makes a queue empty again, at offset 0.
    pub(crate) fn reset(&mut self, slot: Slot) {
        let queue = &mut self.queues[slot.0 as usize];
        self.unwritten -= queue.unwritten();
        self.in_tails -= queue.tail.len() as u64;
        let fresh = Queue {
            in_dirty: queue.in_dirty,
            in_unsynced: queue.in_unsynced,
            lost: queue.lost,
            ..empty_queue(queue.topic, queue.id, queue.uid)
        };
        *queue = fresh;
    }

    /// Adds the next entry. Its offset must have been given out.
    pub(crate) fn push(&mut self, slot: Slot, entry: Entry, store_ms: i64) {
        let queue = &mut self.queues[slot.0 as usize];
        queue.tail.push_back(entry);
        if entry.has_record() {
            queue.last_end = entry.end();
            queue.last_store_ms = store_ms;
        }
        debug_assert!(queue.dispatched() <= queue.next, "an entry has an offset that was given out");
        if !queue.in_dirty {
            queue.in_dirty = true;
            self.dirty.push_back((slot, queue.uid));
        }
        self.unwritten += 1;
        self.in_tails += 1;
    }

    /// Entries below `to` are in the files now.
    pub(crate) fn set_written(&mut self, slot: Slot, to: u64) {
        let allowance = match limits::TAIL_ENTRIES / 2 / self.queues.len().max(1) {
            0..limits::QUEUE_TAIL_LEAST => 0,
            part => part.min(limits::QUEUE_TAIL_ENTRIES),
        };
        let queue = &mut self.queues[slot.0 as usize];
        if to <= queue.written {
            return;
        }
        assert!(to <= queue.dispatched(), "only dispatched entries are written");
        self.unwritten -= to - queue.written;
        queue.written = to;
        if !queue.in_unsynced {
            queue.in_unsynced = true;
            self.unsynced.push((slot, queue.uid));
        }
        let kept = queue.tail.len();
        let surplus = kept.saturating_sub(allowance).min((queue.written - queue.tail_start) as usize);
        self.in_tails -= surplus as u64;
        drop_front(queue, surplus);
        self.sweep();
    }

    /// Topics that are light queues.
    pub(crate) fn light(&self) -> usize {
        self.light
    }

    /// Unwritten entries of all queues.
    pub(crate) fn unwritten(&self) -> u64 {
        self.unwritten
    }

    pub(crate) fn len(&self) -> usize {
        self.queues.len()
    }

    /// Slots of all queues.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.queues.iter().map(|(at, _)| Slot(at as u32))
    }

    /// Each topic with the slots of its queues, ascending by id.
    pub(crate) fn topics(&self) -> impl Iterator<Item = (&Arc<[u8]>, &[(u32, Slot)])> {
        self.topics.iter().map(|(_, topic)| (&topic.name, &*topic.queues))
    }

    /// Slots of a topic's queues.
    pub(crate) fn topic_slots(&self, topic: &[u8]) -> &[(u32, Slot)] {
        let hash = self.hasher.hash_one(topic);
        let at = self.by_name.find(hash, |&at| *self.topics[at as usize].name == *topic);
        at.map_or(&[], |&at| &self.topics[at as usize].queues)
    }

    /// Removes the queues of a topic; gives the topic's name if it had any.
    pub(crate) fn remove_topic(&mut self, topic: &[u8]) -> Option<Arc<[u8]>> {
        let hash = self.hasher.hash_one(topic);
        let topics = &self.topics;
        let found = self.by_name.find_entry(hash, |&at| *topics[at as usize].name == *topic).ok()?;
        let (at, _) = found.remove();
        let topic = self.topics.remove(at as usize);
        self.light -= usize::from(names::is_lmq(&topic.name));
        for (_, slot) in topic.queues {
            let queue = self.queues.remove(slot.0 as usize);
            self.unwritten -= queue.unwritten();
            self.in_tails -= queue.tail.len() as u64;
        }
        Some(topic.name)
    }

    /// Keeps the memory of all tails within its bound: drops what is in files, queue by queue.
    fn sweep(&mut self) {
        if self.in_tails <= limits::TAIL_ENTRIES as u64 + self.unwritten {
            return;
        }
        let end = self.queues.iter().next_back().map_or(0, |(at, _)| at + 1);
        for _ in 0..end {
            if self.in_tails <= limits::TAIL_ENTRIES as u64 / 2 + self.unwritten {
                return;
            }
            self.sweep_at = if self.sweep_at + 1 < end { self.sweep_at + 1 } else { 0 };
            if let Some(queue) = self.queues.get_mut(self.sweep_at) {
                let surplus = (queue.written - queue.tail_start) as usize;
                drop_front(queue, surplus);
                self.in_tails -= surplus as u64;
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn validate(&self) {
        let queues = self.queues.iter().map(|(_, queue)| queue);
        assert_eq!(self.unwritten, queues.clone().map(Queue::unwritten).sum::<u64>());
        assert_eq!(self.in_tails, queues.clone().map(|queue| queue.tail.len() as u64).sum::<u64>());
        queues.for_each(Queue::validate);
    }
}

fn find_id(queues: &[(u32, Slot)], queue_id: u32) -> Result<Slot, usize> {
    // With one shard the ids of a topic are 0, 1, 2, …: the first guess is right.
    match queues.get(queue_id as usize) {
        Some(&(id, slot)) if id == queue_id => Ok(slot),
        _ => queues.binary_search_by_key(&queue_id, |&(id, _)| id).map(|at| queues[at].1),
    }
}

fn drop_front(queue: &mut Queue, count: usize) {
    if count == queue.tail.len() {
        queue.tail = VecDeque::new();
    } else {
        queue.tail.drain(..count);
    }
    queue.tail_start += count as u64;
}

fn empty_queue(topic: u32, id: u32, uid: u64) -> Queue {
    Queue {
        topic,
        id,
        uid,
        min: 0,
        next: 0,
        visible: 0,
        first: 0,
        written: 0,
        synced: 0,
        tail_start: 0,
        tail: VecDeque::new(),
        last_end: 0,
        last_store_ms: 0,
        in_dirty: false,
        in_unsynced: false,
        lost: false,
    }
}
