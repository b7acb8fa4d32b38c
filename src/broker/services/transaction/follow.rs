//! Which entries of the half queue are taken, and how far the two queues of transactions are needed.
//!
//! Role: the start, which takes up what the store holds (and what a Java broker did with it); the reading of new entries, behind the
//! ends; and what Java is told: the offsets of the broker's own group. Invariants: at start a half is open unless a mark, the
//! saved progress, or a record made from it says otherwise; only offsets that are durable are told. Entries are read at most
//! once a second, or when a check needs them: an end brings its half along itself.

use super::halves::{HalfId, Halves};
use super::marks::{self, Marks};
use super::{Task, Transaction, TransactionProgress};
use crate::owner::OwnerRequest;
use crate::services::ShardContext;
use crate::services::progress::{Found, JavaProgress};
use crate::snapshot::topic_at_group;
use bytes::Bytes;
use message::record::RecordView;
use message::{QueueOffset, names};
use store::{Bounds, QueueEntry, ReadStep};

/// Entries that are read at once.
const ENTRIES_A_STEP: usize = 4_096;
/// How often new entries are read and the offsets are told, in microseconds.
const EVERY_US: u64 = 1_000_000;
/// Marks of a Java broker that are kept for halves that it wrote again.
const MAX_JAVA_MARKS: usize = 1 << 20;

/// How far the half queue is followed.
#[derive(Debug, Default)]
pub struct Follow {
    /// End of the half queue, as far as it is visible.
    end: u64,
    /// Entries are cold; they are being fetched.
    fetching: bool,
    next_read_us: u64,
    /// Something ended or was marked since the offsets were looked at.
    changed: bool,
    next_tell_us: u64,
    /// Offsets of the half and op queue that wait for the log to be durable up to here.
    waiting: Option<([u64; 2], u64)>,
    told: [u64; 2],
}

impl Follow {
    /// The half queue is visible up to here.
    pub fn visible(&mut self, end: u64) {
        self.end = self.end.max(end);
    }

    /// Something ended.
    pub fn changed(&mut self) {
        self.changed = true;
    }

    /// Whether there are entries at or above `next` to be read.
    pub fn is_behind(&self, next: u64) -> bool {
        next < self.end
    }

    /// When there is something to do, in monotonic microseconds.
    pub fn due_us(&self, next: u64) -> Option<u64> {
        let read = (self.is_behind(next) && !self.fetching).then_some(self.next_read_us);
        let tell = (self.changed || self.waiting.is_some()).then_some(self.next_tell_us);
        [read, tell].into_iter().flatten().min()
    }
}

impl Transaction {
    /// Takes up what the store holds.
    pub(super) fn take_up(&mut self, cx: &mut ShardContext<'_, '_>, found: &Found) {
        let own = found.progress.as_ref().map(|progress| &progress.transaction);
        let (half, op) = self.first_offsets(cx, own, &found.java);
        self.halves = Halves::starting_at(half);
        self.marks = Marks::starting_at(op);
        let topic = names::HALF_TOPIC;
        let queue = self.half_queue;
        let halves = &mut self.halves;
        let next = each_entry(cx, topic, queue, half, |_, entry| {
            halves.take(HalfId { queue_offset: entry.queue_offset.0, offset: entry.offset.0 });
        });
        self.halves.advance(next);
        self.follow.visible(next);
        let mut marked = Vec::new();
        let (marks, queue) = (&mut self.marks, self.op_queue);
        each_entry(cx, names::OP_HALF_TOPIC, queue, op, |cx, entry| {
            let record = record_of(cx, entry);
            let of_record: Vec<u64> = record.as_ref().map_or_else(Vec::new, |bytes| halves_of(bytes));
            marks.found(entry.queue_offset.0, of_record.iter().copied());
            marked.extend(of_record);
        });
        for half in marked {
            if !self.halves.ended_before(half) && self.java_marks.len() < MAX_JAVA_MARKS {
                self.java_marks.insert(half);
            }
        }
        let delivered = self.halves.open().filter(|id| found.delivered.contains(&id.offset)).map(|id| id.queue_offset);
        let unmarked = own.map_or(&[][..], |own| &own.unmarked).iter().copied();
        for half in delivered.chain(unmarked).collect::<Vec<u64>>() {
            if self.halves.ended_before(half) {
                self.marks.add(half);
            }
        }
        self.follow.changed();
        if !self.halves.is_empty() {
            tracing::info!(shard = cx.id.0, open = self.halves.len(), "half messages wait for their end");
        }
    }

    /// Where the queues are read from: our own progress, unless a Java broker has got further since.
    fn first_offsets(
        &self,
        cx: &ShardContext<'_, '_>,
        own: Option<&TransactionProgress>,
        java: &JavaProgress,
    ) -> (u64, u64) {
        let bounds = |topic, queue| cx.shard.bounds(topic, queue).unwrap_or_default();
        let (half_bounds, op_bounds) =
            (bounds(names::HALF_TOPIC, self.half_queue), bounds(names::OP_HALF_TOPIC, self.op_queue));
        let of_java = |topic: &[u8], queue: u32| {
            let key = topic_at_group(&String::from_utf8_lossy(topic), names::TRANSACTION_GROUP);
            java.system_offsets.get(&key)?.get(&queue).copied()
        };
        let java = (of_java(names::HALF_TOPIC, self.half_queue), of_java(names::OP_HALF_TOPIC, self.op_queue));
        let own = own.and_then(|own| Some((own.half?, own.op)));
        choose(own, java, half_bounds, op_bounds)
    }

    /// Takes new entries of the half queue. `fetched`: bytes that were missing are there.
    pub(super) fn follow_queue(&mut self, cx: &mut ShardContext<'_, '_>, fetched: bool) {
        let follow = &mut self.follow;
        follow.fetching &= !fetched;
        let now_us = cx.now().mono_us;
        let next = self.halves.next();
        if !follow.is_behind(next) || follow.fetching || (!fetched && now_us < follow.next_read_us) {
            return;
        }
        let most = usize::try_from(follow.end - next).unwrap_or(usize::MAX).min(ENTRIES_A_STEP);
        let mut entries = Vec::new();
        match cx.shard.queue_entries(names::HALF_TOPIC, self.half_queue, QueueOffset(next), most, &mut entries) {
            ReadStep::Ready(to) => {
                for entry in &entries {
                    self.halves.take(HalfId { queue_offset: entry.queue_offset.0, offset: entry.offset.0 });
                }
                self.halves.advance(to.0);
                self.follow.changed();
                if !self.follow.is_behind(self.halves.next()) {
                    self.follow.next_read_us = now_us + EVERY_US;
                }
            }
            ReadStep::Missing(missing) => {
                follow.fetching = true;
                cx.park(missing, Task::Follow.ticket());
            }
            ReadStep::Failed(error) => {
                tracing::error!(shard = cx.id.0, %error, "the queue of half messages cannot be read");
                follow.next_read_us = now_us + EVERY_US;
            }
        }
    }

    /// Tells the owner, for Java and for slaves, how far the two queues are done with.
    pub(super) fn publish(&mut self, cx: &mut ShardContext<'_, '_>) {
        let now_us = cx.now().mono_us;
        if now_us < self.follow.next_tell_us {
            return;
        }
        if let Some((offsets, _)) = self.follow.waiting.take_if(|(_, end)| *end <= cx.shard.durable_to().0) {
            let queues = [(names::HALF_TOPIC, self.half_queue), (names::OP_HALF_TOPIC, self.op_queue)];
            for ((topic, queue_id), offset) in queues.into_iter().zip(offsets) {
                cx.answers.lanes.owner(OwnerRequest::CommitOffset {
                    group: names::TRANSACTION_GROUP.to_owned(),
                    topic: String::from_utf8_lossy(topic).into_owned(),
                    queue_id,
                    offset: offset as i64,
                    peer: cx.store_host,
                });
            }
            self.follow.told = offsets;
        }
        self.follow.next_tell_us = now_us + EVERY_US;
        if self.follow.waiting.is_none() && std::mem::take(&mut self.follow.changed) {
            let low = self.halves.low();
            let offsets = [low, self.marks.low(low)];
            if offsets != self.follow.told {
                self.follow.waiting = Some((offsets, cx.shard.end().0));
            }
        }
    }
}

/// Offsets of the half and op queue to read from, out of our own and those of a Java broker. Java's are believed when they are
/// further than ours, and in the queue; the two of a broker belong together.
fn choose(
    own: Option<(u64, u64)>,
    (java_half, java_op): (Option<u64>, Option<u64>),
    half: Bounds,
    op: Bounds,
) -> (u64, u64) {
    let java_half = java_half.filter(|java| *java <= half.max.0 && own.is_none_or(|(own, _)| own < *java));
    let (from_half, from_op) = match (own, java_half) {
        (_, Some(java)) => (java, java_op.filter(|java| *java <= op.max.0).unwrap_or(op.min.0)),
        (Some(own), None) => own,
        (None, None) => (half.min.0, op.min.0),
    };
    (from_half.clamp(half.min.0, half.max.0), from_op.clamp(op.min.0, op.max.0))
}

/// Gives each entry of a queue from `from` on, waiting for the disk; gives the offset behind the last. For the start.
fn each_entry(
    cx: &mut ShardContext<'_, '_>,
    topic: &[u8],
    queue_id: u32,
    from: u64,
    mut visit: impl FnMut(&mut ShardContext<'_, '_>, &QueueEntry),
) -> u64 {
    let mut next = from;
    loop {
        let mut entries = Vec::new();
        let step = cx.now_or_wait(|shard| {
            entries.clear();
            shard.queue_entries(topic, queue_id, QueueOffset(next), ENTRIES_A_STEP, &mut entries)
        });
        let to = match step {
            Ok(to) => to.0,
            Err(error) => {
                let shard = cx.id.0;
                panic!(
                    "what waits in shard {shard} cannot be taken up: a queue of transactions cannot be read: {error}"
                );
            }
        };
        for entry in &entries {
            visit(cx, entry);
        }
        if to == next {
            return next;
        }
        next = to;
    }
}

/// The record of an entry; `None` when it cannot be read, which is logged.
fn record_of(cx: &mut ShardContext<'_, '_>, entry: &QueueEntry) -> Option<Bytes> {
    let offset = entry.offset;
    let bytes = cx.now_or_wait(|shard| shard.record_at(offset));
    if let Ok(None) | Err(_) = bytes {
        tracing::error!(
            shard = cx.id.0,
            offset = offset.0,
            "an end mark cannot be read: its half messages are checked"
        );
    }
    bytes.ok().flatten()
}

fn halves_of(bytes: &[u8]) -> Vec<u64> {
    RecordView::parse(bytes).map_or_else(|_| Vec::new(), |record| marks::parse(record.body()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn java_is_believed_when_it_is_further_and_in_the_queue() {
        let bounds = |min, max| Bounds { min: QueueOffset(min), max: QueueOffset(max) };
        for (own, java, expected) in [
            (None, (None, None), (10, 5)),
            (Some((20, 9)), (None, None), (20, 9)),
            (Some((20, 9)), (Some(15), Some(12)), (20, 9)),
            (Some((20, 9)), (Some(20), Some(12)), (20, 9)),
            (Some((20, 9)), (Some(21), Some(12)), (21, 12)),
            (Some((20, 9)), (Some(21), None), (21, 5)),
            (Some((20, 9)), (Some(21), Some(16)), (21, 5)),
            (Some((20, 9)), (Some(31), Some(12)), (20, 9)),
            (None, (Some(30), Some(15)), (30, 15)),
            (None, (Some(31), Some(15)), (10, 5)),
            (Some((99, 99)), (None, None), (30, 15)),
            (Some((1, 1)), (None, None), (10, 5)),
        ] {
            assert_eq!(choose(own, java, bounds(10, 30), bounds(5, 15)), expected, "{own:?} {java:?}");
        }
    }
}
