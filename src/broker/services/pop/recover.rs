//! Taking up what an earlier process left: saved progress, Java's files, and the revive queues behind them.

use super::book::{Book, NewCheck};
use super::order::OrderInfo;
use super::records::{self, Note, OwnedName};
use super::waiting::Token;
use super::{LOOK_EVERY_US, Running, revive_topic};
use crate::services::ShardContext;
use crate::services::progress::Found;
use crate::snapshot::QueuePlaces;
use hashbrown::HashSet;
use message::properties::{find, name};
use message::record::RecordView;
use message::{PhysicalOffset, QueueOffset};
use remoting::json::JsonRef;
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use store::{QueueEntry, ReadStep};

/// Records that are looked at in one piece.
const PIECE: usize = 256;

/// The service of this shard, with everything that is outstanding.
pub(super) fn start(cx: &mut ShardContext<'_, '_>, found: &Found) -> Option<Running> {
    let topic: Arc<str> = revive_topic(&cx.options.cluster_name).into();
    let (width, shards) = match cx.snapshot.topic(topic.as_bytes()) {
        Some(known) => match known.places {
            QueuePlaces::System { width, shards } => (width, shards),
            QueuePlaces::First | QueuePlaces::Rules(_) => (known.read_queues, 1),
        },
        None => (cx.options.revive_queues, 1),
    };
    let mut running = Running {
        options: cx.options.clone(),
        first_queue: u32::from(cx.id.0) * width,
        shards: u32::from(shards),
        book: Book::new(width),
        waiting: Slab::new(),
        parked: Slab::new(),
        asked: BTreeMap::new(),
        next_ask: 0,
        commits: Vec::new(),
        commits_end: PhysicalOffset(0),
        told_positions: vec![0; width.max(1) as usize],
        order_due: BTreeSet::new(),
        delivered: found.delivered.clone(),
        own: (0..width.max(1)).map(|_| VecDeque::new()).collect(),
        foreign: BTreeMap::new(),
        foreign_parked: false,
        unmarked: Vec::new(),
        draft: records::Draft::default(),
        offsets: Vec::new(),
        due_parked: false,
        hold_revive_until_us: 0,
        next_look_us: cx.now().mono_us + LOOK_EVERY_US,
        due_us: None,
        topic,
    };
    let log_end = running.take_progress(cx, found);
    for queue in 0..running.book.revive_queues() {
        let from = running.begin_of(cx, found, queue);
        running.read_all(cx, queue, from, log_end);
    }
    running.delivered = running.still_wanted();
    running.plan(cx);
    Some(running)
}

impl Running {
    /// Takes the saved offsets and ordered queues; gives the end of the log that they belong to.
    fn take_progress(&mut self, cx: &mut ShardContext<'_, '_>, found: &Found) -> u64 {
        let now_us = cx.now().mono_us;
        let progress = found.progress.as_ref();
        for (key, queues) in progress.iter().flat_map(|progress| &progress.pop.next) {
            let Some((topic, group)) = key.split_once('@') else { continue };
            let log_end = progress.map_or(0, |progress| progress.log_end);
            if cx.shard.is_deleted(topic.as_bytes(), PhysicalOffset(log_end)) {
                continue;
            }
            let pair = self.book.find_or_add(&topic.into(), &group.into());
            for (queue_id, next) in queues {
                self.book.set_next(pair, *queue_id, *next, now_us);
            }
        }
        if let Some(file) = &found.java.order_info
            && let Ok(json) = JsonRef::parse(file)
        {
            for (key, queues) in json.get("table").entries() {
                for (queue_id, info) in queues.entries() {
                    self.take_order(cx, &key.string(), queue_id.as_i64(), OrderInfo::from_json(info));
                }
            }
        }
        for (key, queues) in progress.iter().flat_map(|progress| &progress.pop.order) {
            for (queue_id, text) in queues {
                let info = JsonRef::parse(text.as_bytes()).ok().and_then(OrderInfo::from_json);
                self.take_order(cx, key, Some(i64::from(*queue_id)), info);
            }
        }
        progress.map_or(0, |progress| progress.log_end)
    }

    /// An ordered queue from a file: the one that was used last counts.
    fn take_order(&mut self, cx: &ShardContext<'_, '_>, key: &str, queue_id: Option<i64>, info: Option<OrderInfo>) {
        let (Some((topic, group)), Some(info)) = (key.split_once('@'), info) else { return };
        let Some(queue_id) = queue_id.and_then(|id| u32::try_from(id).ok()) else { return };
        if cx.snapshot.topic(topic.as_bytes()).is_some_and(|topic| topic.shard_of(queue_id) == cx.id) {
            let pair = self.book.find_or_add(&topic.into(), &group.into());
            let queue = self.book.pair_mut(pair).queues.entry(queue_id).or_default();
            if queue.order.as_ref().is_none_or(|own| own.last_ms <= info.last_ms) {
                self.set_order(pair, queue_id, Some(info));
            }
        }
    }

    /// From where a revive queue is read: our own progress, or that of a Java broker that has run since.
    fn begin_of(&self, cx: &ShardContext<'_, '_>, found: &Found, queue: u32) -> u64 {
        let own = found.progress.as_ref().and_then(|progress| progress.pop.revive.get(&queue)).copied().unwrap_or(0);
        let bounds = cx.shard.bounds(self.topic.as_bytes(), self.first_queue + queue).unwrap_or_default();
        let key = crate::snapshot::topic_at_group(&self.topic, message::names::REVIVE_GROUP);
        let java = found.java.system_offsets.get(&key).and_then(|offsets| offsets.get(&(self.first_queue + queue)));
        let java = java.map(|offset| offset + 1).filter(|next| *next <= bounds.max.0);
        let own = if own > bounds.max.0 { 0 } else { own };
        own.max(java.unwrap_or(0)).max(bounds.min.0)
    }

    fn read_all(&mut self, cx: &mut ShardContext<'_, '_>, queue: u32, from: u64, log_end: u64) {
        let topic = self.topic.clone();
        let queue_id = self.first_queue + queue;
        let mut next = from;
        loop {
            let mut entries = Vec::new();
            let read = cx.now_or_wait(|shard| {
                entries.clear();
                shard.queue_entries(topic.as_bytes(), queue_id, QueueOffset(next), PIECE, &mut entries)
            });
            let end = match read {
                Ok(end) => end.0,
                Err(error) => {
                    tracing::error!(queue_id, next, %error, "a part of the POP check points cannot be read");
                    next + PIECE as u64
                }
            };
            for entry in &entries {
                match cx.now_or_wait(|shard| shard.record_at(entry.offset)) {
                    Ok(Some(record)) => self.take_note(cx, queue, entry, &record, log_end),
                    Ok(None) => {}
                    Err(error) => tracing::error!(queue_id, %error, "a POP check point cannot be read"),
                }
            }
            self.book.seen(queue, end);
            if end <= next {
                return;
            }
            next = end;
        }
    }

    /// Reads what somebody else wrote into the revive queues.
    pub(super) fn read_foreign(&mut self, cx: &mut ShardContext<'_, '_>) {
        while let Some((&queue, &from)) = self.foreign.first_key_value() {
            if self.foreign_parked {
                return;
            }
            let (topic, queue_id) = (self.topic.clone(), self.first_queue + queue);
            let mut entries = Vec::new();
            let step = cx.shard.queue_entries(topic.as_bytes(), queue_id, QueueOffset(from), PIECE, &mut entries);
            let mut end = match step {
                ReadStep::Ready(end) => end.0,
                ReadStep::Missing(missing) => {
                    self.foreign_parked = true;
                    return cx.park(missing, Token::Foreign.ticket());
                }
                ReadStep::Failed(_) => from,
            };
            for entry in &entries {
                match cx.record_at(entry.offset) {
                    ReadStep::Ready(Some(record)) => self.take_note(cx, queue, entry, &record, 0),
                    ReadStep::Missing(missing) => {
                        self.foreign_parked = true;
                        cx.park(missing, Token::Foreign.ticket());
                        end = entry.queue_offset.0;
                        break;
                    }
                    ReadStep::Ready(None) | ReadStep::Failed(_) => {}
                }
            }
            if self.foreign_parked || end > from {
                self.foreign.insert(queue, end);
            } else {
                self.foreign.remove(&queue);
            }
        }
    }

    /// A record of a revive queue that this process did not write.
    fn take_note(&mut self, cx: &ShardContext<'_, '_>, queue: u32, entry: &QueueEntry, record: &[u8], log_end: u64) {
        let Ok(view) = RecordView::parse(record) else { return };
        let tag = find(view.properties(), name::TAGS).unwrap_or_default();
        let at = entry.queue_offset.0;
        let gone = |topic: &str| cx.shard.is_deleted(topic.as_bytes(), entry.offset);
        match records::read(tag, view.body()) {
            // Of a topic that was deleted since, and perhaps made anew.
            Some(Note::Check { of, .. }) if gone(&of.topic) => {}
            Some(Note::Order { topic, .. }) if gone(&topic) => {}
            Some(Note::Check { of, invisible_ms, distances, acked }) => {
                let new = NewCheck {
                    start: of.start,
                    pop_time_ms: of.pop_time_ms,
                    invisible_ms,
                    distances: &distances,
                    revive_queue: queue,
                };
                self.take_check(cx, &of, &new, acked, entry.offset.0, at);
            }
            Some(Note::Ack { of, offsets }) => {
                let pair = self.book.find(&of.topic, &of.group);
                let name = (of.start, of.pop_time_ms);
                if let Some((slot, _)) = pair.and_then(|p| self.book.ack(p, of.queue_id, name, offsets.into_iter())) {
                    self.book.ack_written(slot, at);
                }
            }
            Some(Note::Order { topic, group, queue_id, next, info }) if entry.offset.0 >= log_end => {
                let pair = self.book.find_or_add(&topic.into(), &group.into());
                self.book.set_next(pair, queue_id, next, cx.now().mono_us);
                self.set_order(pair, queue_id, Some(info));
            }
            Some(Note::Order { .. }) | None => {}
        }
        self.book.seen(queue, at + 1);
    }

    fn take_check(
        &mut self,
        cx: &ShardContext<'_, '_>,
        of: &OwnedName,
        new: &NewCheck<'_>,
        acked: u32,
        physical: u64,
        at: u64,
    ) {
        let here = |topic: &Arc<crate::snapshot::Topic>| topic.shard_of(of.queue_id) == cx.id;
        if new.distances.is_empty() || !cx.snapshot.topic(of.topic.as_bytes()).is_some_and(here) {
            return;
        }
        let pair = self.book.find_or_add(&of.topic.as_str().into(), &of.group.as_str().into());
        let Some(slot) = self.book.add(pair, of.queue_id, new) else { return };
        let last = new.start + u64::from(new.distances[new.distances.len() - 1]);
        let next = self.book.pair(pair).queues.get(&of.queue_id).map_or(0, |queue| queue.next);
        if last >= next {
            self.book.set_next(pair, of.queue_id, last + 1, cx.now().mono_us);
        }
        self.book.written(slot, physical, at);
        let bits = new.distances.iter().enumerate().filter(|(bit, _)| acked & 1 << bit != 0);
        let offsets = bits.map(|(_, distance)| new.start + u64::from(*distance));
        if let Some((slot, _)) = self.book.ack(pair, of.queue_id, (new.start, new.pop_time_ms), offsets) {
            self.book.ack_written(slot, at);
        }
    }

    /// Of what was brought back before a crash, what a check point that is left may still ask for.
    fn still_wanted(&self) -> HashSet<u64> {
        let names = self.book.checks().flat_map(|check| check.held().map(|(at, _)| check.name_of(at)));
        names.filter(|name| self.delivered.contains(name)).collect()
    }
}
