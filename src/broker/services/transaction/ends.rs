//! END_TRANSACTION (37): the end of a half message as its producer asks for it.
//!
//! Role: finds the half, checks that the request is about it, and appends what the end brings. Invariants: the checks stand in
//! the order of Java; an end is carried out once, whatever comes how often in which order; nothing is answered before it is
//! stored. Oneway requests go the same way. The ends of a turn are collected, so that their halves are read at once.

use super::halves::{Asked, End, HalfId, Outcome};
use super::records::Half;
use super::{MAX_WAITING, Task, Transaction, TransactionRequest, answer};
use crate::crossing::ReplyTo;
use crate::owner::Refusal;
use crate::processor::delay::{self, DelayTexts};
use crate::services::ShardContext;
use crate::shard_host::append_refusal;
use crate::snapshot::{Snapshot, Topic};
use message::{PhysicalOffset, sys_flag};
use remoting::ResponseCode;
use smallvec::{SmallVec, smallvec};
use store::{AppendError, ReadStep, ReadTogether};

/// A request, read and routed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndTransaction {
    /// The half's place in the half queue, as the client says; may be nonsense.
    pub table_offset: i64,
    /// The half's place in the log.
    pub offset: PhysicalOffset,
    /// The producer's group; empty for none.
    pub group: SmallVec<[u8; 32]>,
    /// What is asked.
    pub end: End,
    /// It answers a check.
    pub from_check: bool,
}

/// The ends of a turn, and what their halves are read into.
#[derive(Debug, Default)]
pub(super) struct EndsOfTurn {
    ends: Vec<(ReplyTo, EndTransaction)>,
    offsets: Vec<PhysicalOffset>,
    records: ReadTogether,
}

impl EndsOfTurn {
    /// Takes one more.
    pub(super) fn push(&mut self, to: ReplyTo, request: EndTransaction) {
        self.ends.push((to, request));
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

/// Halves that are read at once.
const TOGETHER: usize = 256;

impl Transaction {
    /// Carries out what came in this turn, in its order. The halves of neighbours are read together.
    pub(super) fn carry_out_asked(&mut self, cx: &mut ShardContext<'_, '_>) {
        let EndsOfTurn { mut ends, mut offsets, mut records } = std::mem::take(&mut self.asked);
        let mut left = ends.drain(..);
        while !left.as_slice().is_empty() {
            offsets.clear();
            let next = &left.as_slice()[..left.len().min(TOGETHER)];
            offsets.extend(next.iter().map(|(_, request)| PhysicalOffset(self.half_of(request).offset)));
            cx.shard.read_together(&offsets, &mut records);
            for (at, (to, request)) in left.by_ref().take(offsets.len()).enumerate() {
                let id = self.half_of(&request);
                match records.get(at) {
                    Some(bytes) if id.offset == offsets[at].0 => self.end_of(cx, to, request, id, bytes),
                    _ => self.end_alone(cx, to, request, id),
                }
            }
        }
        drop(left);
        // What was asked for in between comes next turn.
        ends.append(&mut self.asked.ends);
        self.asked = EndsOfTurn { ends, offsets, records };
    }

    /// Where the half lies now that a request is about.
    fn half_of(&self, request: &EndTransaction) -> HalfId {
        self.halves.current(HalfId { queue_offset: request.table_offset as u64, offset: request.offset.0 })
    }

    /// Carries a request out, or lets it wait for cold bytes.
    fn end_alone(&mut self, cx: &mut ShardContext<'_, '_>, to: ReplyTo, request: EndTransaction, id: HalfId) {
        match cx.record_at(PhysicalOffset(id.offset)) {
            ReadStep::Ready(Some(bytes)) => self.end_of(cx, to, request, id, &bytes),
            ReadStep::Ready(None) => refuse(cx, &to, &not_found()),
            ReadStep::Missing(missing) => self.park(cx, to, TransactionRequest::End(request), missing),
            ReadStep::Failed(error) => cx.answers.refuse(&to, ResponseCode::SystemError, &error.to_string()),
        }
    }

    /// Carries a request out. `bytes` is the record of its half.
    fn end_of(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        to: ReplyTo,
        request: EndTransaction,
        id: HalfId,
        bytes: &[u8],
    ) {
        let mut texts = DelayTexts::default();
        let half = match self.check_names(cx, bytes, id, &request) {
            Ok(half) => half,
            Err(refusal) => return refuse(cx, &to, &refusal),
        };
        match self.halves.ask(id, request.end) {
            Asked::CarryOut if request.end == End::Rollback => {
                self.marks.add(id.queue_offset);
                self.waiting.insert(id.queue_offset, smallvec![to]);
            }
            Asked::CarryOut => self.commit(cx, to, id, half, &mut texts),
            Asked::Joined => self.waiting.entry(id.queue_offset).or_default().push(to),
            Asked::Later if self.deferred.len() < MAX_WAITING => {
                self.deferred.entry(id.queue_offset).or_default().push((to, request));
            }
            Asked::Later => refuse(cx, &to, &busy()),
            Asked::Done(None) => answer(cx, &to),
            Asked::Done(Some(Outcome::Ended(end))) if end == request.end => answer(cx, &to),
            Asked::Done(Some(outcome)) => refuse(cx, &to, &over(outcome)),
            Asked::Contradicts => refuse(cx, &to, &system_error("the other end of the transaction is under way")),
            Asked::Unknown => refuse(cx, &to, &not_found()),
        }
    }

    /// Whether a record is the half that a request is about.
    fn check_names<'a>(
        &self,
        cx: &ShardContext<'_, '_>,
        bytes: &'a [u8],
        id: HalfId,
        request: &EndTransaction,
    ) -> Result<Half<'a>, Refusal> {
        let half = Half::parse(bytes).filter(|half| half.record.queue_id() == self.half_queue as i32);
        let half = half.filter(|half| half.target().is_some()).ok_or_else(not_found)?;
        let timeout_ms = cx.snapshot.settings.transaction_timeout_ms;
        if !request.from_check && half.is_late(cx.now().wall_ms, timeout_ms) {
            let remark =
                "the end comes after the CHECK_IMMUNITY_TIME_IN_SECONDS of the message: it waits for its check";
            return Err(Refusal::new(ResponseCode::IllegalOperation, remark));
        }
        if half.group() != Some(&request.group[..]) {
            return Err(system_error("The producer group wrong"));
        }
        if half.record.queue_offset().0 != id.queue_offset {
            return Err(system_error("The transaction state table offset wrong"));
        }
        Ok(half)
    }

    fn commit<'s: 'a, 'a>(
        &mut self,
        cx: &mut ShardContext<'s, '_>,
        to: ReplyTo,
        id: HalfId,
        mut half: Half<'a>,
        texts: &'a mut DelayTexts,
    ) {
        let Some((real, real_queue)) = target(cx.snapshot, &half) else {
            self.drop_half(cx, id, "its topic is gone");
            let refusal = Refusal::new(ResponseCode::TopicNotExist, "the topic of the transaction is gone");
            return refuse(cx, &to, &refusal);
        };
        let shard = real.shard_of(real_queue);
        let here = shard == cx.id;
        let task = if here { Task::Commit(id.queue_offset) } else { Task::CommitAway(id.queue_offset) };
        let (rules, now_ms) = (&cx.snapshot.delays, cx.now().wall_ms);
        half.deliver();
        let wished = delay::Target { topic: real.name.as_bytes(), queue_id: real_queue, shard };
        let waiting = match half.asks_delay {
            true => delay::redirect(&mut half.list, wished, rules, now_ms, texts),
            false => Ok(None),
        };
        let (topic, queue_id) = match waiting {
            Ok(Some(waiting)) => (waiting.topic, waiting.queue_id),
            Ok(None) => (real.name.as_bytes(), real_queue),
            Err(refusal) => {
                self.halves.reopen(id.queue_offset, 0);
                return refuse(cx, &to, &refusal);
            }
        };
        let sys_flag = sys_flag::with_transaction(half.record.sys_flag(), sys_flag::TRANSACTION_COMMIT);
        match cx.put(shard, &half.fields(topic, queue_id, sys_flag), task.waiter()) {
            Ok(()) => {
                self.waiting.insert(id.queue_offset, smallvec![to]);
                if here {
                    self.marks.add(id.queue_offset);
                }
            }
            Err(error) => {
                self.halves.reopen(id.queue_offset, 0);
                refuse(cx, &to, &not_appended(&error));
            }
        }
    }
}

/// Where the message of a half goes now; `None` when its topic is gone. A queue that the topic has no more is replaced by another.
pub(super) fn target<'a>(snapshot: &'a Snapshot, half: &Half<'_>) -> Option<(&'a Topic, u32)> {
    let (name, queue_id) = half.target()?;
    let deleting = snapshot.deleting.iter().any(|deleting| deleting.as_bytes() == name);
    let topic = snapshot.topic(name).filter(|topic| !deleting && topic.queues() > 0)?;
    let queues = if topic.write_queues > 0 { topic.write_queues } else { topic.queues() };
    let queue_id = if queue_id < topic.queues() { queue_id } else { queue_id % queues };
    Some((topic, queue_id))
}

pub(super) fn refuse(cx: &mut ShardContext<'_, '_>, to: &ReplyTo, refusal: &Refusal) {
    let code = ResponseCode::from_i32(refusal.code).unwrap_or(ResponseCode::SystemError);
    cx.answers.refuse(to, code, &refusal.remark);
}

fn system_error(remark: &str) -> Refusal {
    Refusal::new(ResponseCode::SystemError, remark)
}

/// The refusal of an end that is about no half message.
#[must_use]
pub fn not_found() -> Refusal {
    system_error("Find prepared transaction message failed")
}

pub(super) fn busy() -> Refusal {
    Refusal::new(ResponseCode::SystemBusy, "too many transactions wait to be ended")
}

fn over(outcome: Outcome) -> Refusal {
    system_error(match outcome {
        Outcome::Ended(End::Commit) => "the transaction was committed before",
        Outcome::Ended(End::Rollback) => "the transaction was rolled back before",
        Outcome::GivenUp => "the half message was checked too often, or is too old: it was given up",
        Outcome::Dropped => "the half message was dropped: its topic or its record is gone",
    })
}

pub(super) fn not_appended(error: &AppendError) -> Refusal {
    let (code, remark) = append_refusal(error);
    Refusal::new(code, remark)
}
