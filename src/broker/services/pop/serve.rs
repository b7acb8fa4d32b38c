//! Pops, peeks and notifications: one visit of a walk through the shards.

use super::handle::{ORDER_REVIVE_QUEUE, retry_kind, write_handle, write_offsets, write_start};
use super::records::MAX_MESSAGES;
use super::request::{PopRequest, PopRun, RunKind};
use super::waiting::{Then, Token};
use super::watch::Watches;
use super::{Asked, Running};
use crate::crossing::{CoreMessage, ReplyTo};
use crate::owner::{OwnerRequest, PopToOwner};
use crate::response;
use crate::services::{ServiceRequest, ShardContext};
use crate::snapshot::Topic;
use bytes::Bytes;
use message::QueueOffset;
use message::names;
use message::properties::{PropertiesSource, PropertyList, name};
use message::record::{self, RecordFields, RecordView};
use remoting::ResponseCode;
use smallvec::SmallVec;
use std::sync::Arc;
use store::{Bounds, Missing, PullLimits, ReadStep, Slices};
use sys::LogSlice;

/// Entries of a queue that one visit looks at one by one.
const SCAN: usize = 256;

/// What became of one queue in a visit.
enum Visit {
    /// On with the next.
    Next,
    /// Bytes are missing.
    Missing(Missing),
    /// The owner has to say first where the group is.
    Unknown(u32),
}

/// Messages of one queue.
pub(super) struct Batch {
    pub(super) offsets: SmallVec<[u64; MAX_MESSAGES]>,
    slices: Slices,
    bytes: u32,
    next: u64,
}

impl Running {
    /// Carries on a walk in this shard.
    pub(super) fn run(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        watches: &mut Watches,
        to: ReplyTo,
        mut run: Box<PopRun>,
    ) {
        let mut waiting = None;
        while let Some((topic, queue_id)) = run.next_queue(cx.id) {
            match self.visit(cx, &mut run, &topic, queue_id, &mut waiting) {
                Visit::Next => {}
                // What it has already is enough for now.
                Visit::Missing(_) | Visit::Unknown(_) if waiting.is_some() => {}
                Visit::Missing(missing) => {
                    run.again();
                    let slot = self.parked.insert((to, run)) as u32;
                    return cx.park(missing, Token::Walk(slot).ticket());
                }
                Visit::Unknown(pair) => {
                    run.again();
                    let slot = self.parked.insert((to, run)) as u32;
                    return self.ask_offsets(cx, pair, slot);
                }
            }
            if run.found.failed.is_some() {
                break;
            }
        }
        match waiting {
            Some(waiting) => self.waiting[waiting as usize].then = Then::Run(to, run),
            None => self.leave(cx, watches, to, run),
        }
    }

    /// Bytes that a walk waited for are there.
    pub(super) fn unpark(&mut self, cx: &mut ShardContext<'_, '_>, watches: &mut Watches, slot: u32) {
        if let Some((to, run)) = self.parked.try_remove(slot as usize) {
            self.run(cx, watches, to, run);
        }
    }

    /// A walk waits for where a group is; the owner is asked once for all that do.
    fn ask_offsets(&mut self, cx: &mut ShardContext<'_, '_>, pair: u32, walk: u32) {
        let (topic, group) = (self.book.pair(pair).topic.clone(), self.book.pair(pair).group.clone());
        if let Some(asked) = self.asked.values_mut().find(|asked| asked.topic == topic && asked.group == group) {
            return asked.walks.push(walk);
        }
        self.next_ask = self.next_ask.wrapping_add(1);
        let ask = self.next_ask;
        self.asked.insert(ask, Asked { topic: topic.clone(), group: group.clone(), walks: vec![walk] });
        let request = PopToOwner::Offsets { shard: cx.id, ask, topic, group };
        cx.answers.lanes.owner(OwnerRequest::Pop(request));
    }

    /// The owner says where a group is.
    pub(super) fn offsets_known(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        watches: &mut Watches,
        ask: u32,
        offsets: &[(u32, i64)],
    ) {
        let Some(Asked { topic, group, walks }) = self.asked.remove(&ask) else { return };
        let pair = self.book.find_or_add(&topic, &group);
        self.book.pair_mut(pair).known = true;
        for (queue_id, offset) in offsets {
            let next = self.book.pair(pair).queues.get(queue_id).map_or(0, |queue| queue.next);
            let committed = u64::try_from(*offset).unwrap_or(0);
            if committed > next || !self.book.pair(pair).queues.contains_key(queue_id) {
                self.book.set_next(pair, *queue_id, committed, cx.now().mono_us);
            }
        }
        for slot in walks {
            self.unpark(cx, watches, slot);
        }
        self.plan(cx);
    }

    /// A visit is over: on to the next shard, or to the answer.
    pub(super) fn leave(&mut self, cx: &mut ShardContext<'_, '_>, _: &mut Watches, to: ReplyTo, mut run: Box<PopRun>) {
        if let Some(why) = &run.found.failed {
            return cx.answers.refuse(&to, ResponseCode::ServiceNotAvailable, why);
        }
        run.visited += 1;
        run.place = (0, 0);
        if !run.is_full(cx.snapshot.settings.max_pull_bytes)
            && let Some(shard) = run.shard()
        {
            return cx.forward(shard, to, ServiceRequest::Pop(PopRequest::Run(run)));
        }
        let nothing = run.found.count == 0 && !run.found.has_message;
        if nothing && run.kind != RunKind::Peek && run.header.poll_ms > 0 {
            cx.answers.lanes.post(to.conn.core, CoreMessage::HoldPop { to, run });
        } else {
            response::pop(cx.answers, &to, &run, ResponseCode::PollingTimeout);
        }
    }

    fn visit(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        run: &mut PopRun,
        topic: &Arc<Topic>,
        queue_id: u32,
        waiting: &mut Option<u32>,
    ) -> Visit {
        let pair = self.book.find_or_add(&topic.name, &run.group.name);
        self.book.pair_mut(pair).used_us = cx.now().mono_us;
        if !self.book.pair(pair).known {
            return Visit::Unknown(pair);
        }
        if run.kind == RunKind::Pop {
            self.take_reset(cx, pair, queue_id);
        }
        let bounds = cx.shard.bounds(topic.name.as_bytes(), queue_id).unwrap_or_default();
        let next = self.next_of(cx, run, pair, queue_id, bounds);
        let rest = bounds.max.0.saturating_sub(next) as i64;
        if run.header.order && self.is_blocked(pair, queue_id, run.header.attempt.as_deref(), cx.now().wall_ms) {
            return Visit::Next;
        }
        let full = run.is_full(cx.snapshot.settings.max_pull_bytes) || !self.book.has_room();
        if rest == 0 || full || run.kind == RunKind::Notify {
            run.found.rest = run.found.rest.saturating_add(rest);
            run.found.has_message |= run.kind == RunKind::Notify && rest > 0;
            return Visit::Next;
        }
        let is_retry = !Arc::ptr_eq(topic, &run.topic);
        let rewrite = is_retry && run.kind == RunKind::Pop;
        let step = if rewrite || run.filter.expression().is_some() {
            self.read_each(cx, run, topic, queue_id, next, rewrite)
        } else {
            self.read(cx, run, topic, queue_id, next)
        };
        let batch = match step {
            ReadStep::Ready(batch) => batch,
            ReadStep::Missing(missing) => return Visit::Missing(missing),
            ReadStep::Failed(error) => {
                tracing::error!(topic = &*topic.name, queue_id, next, %error, "a queue cannot be popped");
                return Visit::Next;
            }
        };
        run.found.rest = run.found.rest.saturating_add(bounds.max.0.saturating_sub(batch.next) as i64);
        self.give(cx, run, topic, queue_id, pair, next, batch, waiting);
        Visit::Next
    }

    /// Gives out what was read: it is held by a check point, or by the state of the ordered queue.
    #[expect(clippy::too_many_arguments, reason = "one batch of one queue for one walk")]
    fn give(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        run: &mut PopRun,
        topic: &Arc<Topic>,
        queue_id: u32,
        pair: u32,
        start: u64,
        batch: Batch,
        waiting: &mut Option<u32>,
    ) {
        let now_us = cx.now().mono_us;
        if run.kind == RunKind::Pop {
            let given = match (batch.offsets.is_empty(), run.header.order) {
                (true, _) => Ok(true),
                (false, true) => self.hold_ordered(cx, run, topic, queue_id, pair, &batch, waiting),
                (false, false) => self.hold(cx, run, topic, queue_id, pair, start, &batch, waiting),
            };
            match given {
                Ok(true) => {}
                Ok(false) => return,
                Err(why) => {
                    run.found.failed = Some(why);
                    return;
                }
            }
            if batch.offsets.is_empty() || !run.header.order {
                self.book.set_next(pair, queue_id, batch.next, now_us);
            }
        }
        if batch.offsets.is_empty() {
            return;
        }
        let kind = retry_kind(&topic.name);
        write_start(&mut run.found.starts, kind, queue_id, start);
        write_offsets(&mut run.found.offsets, kind, queue_id, batch.offsets.iter().copied());
        run.found.count += batch.offsets.len() as u32;
        run.found.bytes += batch.bytes;
        run.found.slices.extend(batch.slices);
    }

    /// Where a group goes on in a queue. A pop keeps what it decides.
    fn next_of(&mut self, cx: &ShardContext<'_, '_>, run: &PopRun, pair: u32, queue_id: u32, bounds: Bounds) -> u64 {
        let Bounds { min, max } = bounds;
        let known = self.book.pair(pair).queues.get(&queue_id).map(|queue| queue.next);
        let next = match known {
            Some(next) => next.clamp(min.0, max.0.max(min.0)),
            None if run.header.from_min || names::is_retry_topic(self.book.pair(pair).topic.as_bytes()) => min.0,
            // A queue that still has its first message is young: nothing of it is skipped.
            None if min.0 == 0 => 0,
            None => max.0.saturating_sub(1),
        };
        if run.kind == RunKind::Pop && known != Some(next) {
            self.book.set_next(pair, queue_id, next, cx.now().mono_us);
        }
        next
    }

    /// A server-side reset: the group goes on where it says.
    fn take_reset(&mut self, cx: &mut ShardContext<'_, '_>, pair: u32, queue_id: u32) {
        if cx.snapshot.resets.is_empty() || !cx.snapshot.settings.server_side_reset {
            return;
        }
        let (topic, group) = (self.book.pair(pair).topic.clone(), self.book.pair(pair).group.clone());
        let Some(reset) = cx.snapshot.pending_reset(topic.as_bytes(), group.as_bytes(), queue_id) else { return };
        let queue = self.book.pair_mut(pair).queues.entry(queue_id).or_default();
        if queue.reset_taken == reset.id {
            return;
        }
        queue.reset_taken = reset.id;
        self.set_order(pair, queue_id, None);
        self.book.set_next(pair, queue_id, u64::try_from(reset.offset).unwrap_or(0), cx.now().mono_us);
        let (topic, group) = (topic.to_string(), group.to_string());
        cx.answers.lanes.owner(OwnerRequest::ResetTaken { topic, group, queue_id, id: reset.id });
    }

    fn read(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        run: &PopRun,
        topic: &Topic,
        queue_id: u32,
        next: u64,
    ) -> ReadStep<Batch> {
        let limits = limits(cx, run);
        let from = QueueOffset(next);
        let matches = &mut |tag: i64| run.filter.matches(tag);
        let step =
            cx.shard.pull_with_offsets(topic.name.as_bytes(), queue_id, from, limits, matches, &mut self.offsets);
        step.map(|pulled| Batch {
            offsets: self.offsets.iter().map(|offset| offset.0).collect(),
            slices: pulled.slices,
            bytes: pulled.bytes,
            next: pulled.next_begin.0.max(next),
        })
    }

    /// Messages that are looked at one by one: for what their properties say, or to make those of a retry topic (`rewrite`)
    /// into messages of the topic that was asked for, with their handles.
    fn read_each(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        run: &PopRun,
        topic: &Topic,
        queue_id: u32,
        start: u64,
        rewrite: bool,
    ) -> ReadStep<Batch> {
        let limits = limits(cx, run);
        let mut entries = Vec::new();
        let name = topic.name.as_bytes();
        let end = match cx.shard.queue_entries(name, queue_id, QueueOffset(start), SCAN, &mut entries) {
            ReadStep::Ready(end) => end.0,
            ReadStep::Missing(missing) => return ReadStep::Missing(missing),
            ReadStep::Failed(error) => return ReadStep::Failed(error),
        };
        let mut batch = Batch { offsets: SmallVec::new(), slices: Slices::new(), bytes: 0, next: end.max(start) };
        let mut bytes = Vec::new();
        let revive_queue = run.revive_queue % self.book.revive_queues();
        for entry in &entries {
            let enough = batch.offsets.len() >= limits.max_count as usize || bytes.len() >= limits.max_bytes as usize;
            if enough {
                batch.next = entry.queue_offset.0;
                break;
            }
            if !run.filter.matches(entry.tag) {
                continue;
            }
            let found = match cx.record_at(entry.offset) {
                ReadStep::Ready(found) => found,
                ReadStep::Missing(missing) if batch.offsets.is_empty() => return ReadStep::Missing(missing),
                ReadStep::Failed(error) if batch.offsets.is_empty() => return ReadStep::Failed(error),
                ReadStep::Missing(_) | ReadStep::Failed(_) => {
                    batch.next = entry.queue_offset.0;
                    break;
                }
            };
            let Some(record) = found else { continue };
            let Ok(view) = RecordView::parse(&record) else { continue };
            if run.filter.expression().is_some_and(|expression| !expression.matches(view.properties())) {
                continue;
            }
            if !rewrite {
                bytes.extend_from_slice(&record);
                batch.offsets.push(entry.queue_offset.0);
                continue;
            }
            let mut handle = String::new();
            let kind = retry_kind(&topic.name);
            let (pop_ms, invisible_ms, broker) = (run.pop_time_ms, run.header.invisible_ms, &self.options.broker_name);
            let offset = entry.queue_offset.0;
            write_handle(&mut handle, start, pop_ms, invisible_ms, revive_queue, kind, broker, queue_id, offset);
            as_asked(&view, &run.topic.name, &handle, &mut bytes);
            batch.offsets.push(offset);
        }
        batch.bytes = bytes.len() as u32;
        if !bytes.is_empty() {
            batch.slices.push(LogSlice::Heap(Bytes::from(bytes)));
        }
        ReadStep::Ready(batch)
    }

    /// A topic is deleted: nothing of it is held any more.
    pub(super) fn forget_topic(&mut self, topic: &str) {
        let gone: Vec<u32> = self.book.pairs().filter(|(_, pair)| &*pair.topic == topic).map(|(id, _)| id).collect();
        self.order_due.retain(|(_, pair, _)| !gone.contains(pair));
        self.book.forget_topic(topic);
    }

    /// Makes the retry or dead-letter topic of a group.
    pub(super) fn make_topic(&self, cx: &mut ShardContext<'_, '_>, topic: String, queues: u32) {
        cx.answers.lanes.owner(OwnerRequest::Pop(PopToOwner::MakeTopic { topic, queues }));
    }
}

fn limits(cx: &ShardContext<'_, '_>, run: &PopRun) -> PullLimits {
    let most = cx.snapshot.settings.max_pull_bytes;
    let max_count = run.wanted().min(MAX_MESSAGES as u32) as i32;
    PullLimits { max_count, max_bytes: most.saturating_sub(run.found.bytes).max(1) }
}

/// Appends a retry record as a record of the topic that was asked for: with its handle, and a short topic's header.
fn as_asked(view: &RecordView<'_>, topic: &str, handle: &str, out: &mut Vec<u8>) {
    let mut list = PropertyList::parse(view.properties());
    if !list.contains(name::POP_CK) {
        list.put(name::POP_CK, handle.as_bytes());
    }
    let properties = PropertiesSource::List(list.view());
    let fields = RecordFields { topic: topic.as_bytes(), properties, ..view.fields() };
    let start = out.len();
    match record::encode(out, &fields) {
        Ok(_) => {
            record::patch(&mut out[start..], view.queue_offset(), view.physical_offset(), view.store_timestamp_ms())
        }
        // With the handle its properties are too long: as it is, its client makes the handle.
        Err(_) => out.extend_from_slice(view.bytes()),
    }
}

const _: () = assert!(ORDER_REVIVE_QUEUE == 999, "as clients know it");

#[cfg(test)]
mod tests {
    use super::*;
    use message::properties::find;

    #[test]
    fn a_retry_record_becomes_one_of_the_topic() {
        let host = "127.0.0.1:10911".parse().unwrap();
        let fields = RecordFields {
            queue_id: 0,
            flag: 3,
            sys_flag: 0,
            born_timestamp_ms: 7,
            born_host: host,
            store_host: host,
            reconsume_times: 1,
            prepared_transaction_offset: 99,
            topic: b"%RETRY%g_t",
            body: b"body",
            properties: PropertiesSource::Text(b"TAGS\x01a\x02"),
        };
        let mut stored = Vec::new();
        record::encode(&mut stored, &fields).unwrap();
        record::patch(&mut stored, QueueOffset(4), message::PhysicalOffset(55), 66);
        let mut out = b"before".to_vec();
        as_asked(&RecordView::parse(&stored).unwrap(), "t", "1 2 3", &mut out);
        let view = RecordView::parse_checked(&out[6..]).unwrap();
        assert_eq!((view.topic(), view.body(), view.reconsume_times()), (&b"t"[..], &b"body"[..], 1));
        assert_eq!((view.queue_offset().0, view.physical_offset().0, view.store_timestamp_ms()), (4, 55, 66));
        assert_eq!(find(view.properties(), name::POP_CK), Some(&b"1 2 3"[..]));
        assert_eq!(find(view.properties(), b"TAGS"), Some(&b"a"[..]));
        let long = [b"k\x01".to_vec(), vec![b'x'; 32_760], b"\x02".to_vec()].concat();
        let mut stored = Vec::new();
        record::encode(&mut stored, &RecordFields { properties: PropertiesSource::Text(&long), ..fields }).unwrap();
        let mut out = Vec::new();
        as_asked(&RecordView::parse(&stored).unwrap(), "t", "1 2 3", &mut out);
        assert_eq!(out, stored, "no room for the handle");
    }
}
