//! The check back: producers are asked what became of half messages that nobody has ended.
//!
//! Role: one pass over the open halves in each `transactionCheckInterval`, in slices. A half that is old enough is counted, written
//! again (so that the queue moves on, as in Java) and sent to any live producer of its group; one without a live producer is
//! left for the next pass as it is; one that was asked often enough, or is too old, goes to the topic for these. Invariants: an
//! end that comes first wins; what does not fit any more is asked about where it lies; at most [`MAX_IN_FLIGHT`] checks of a
//! shard are under way.

use super::ends::target;
use super::halves::{ByOffset, Due, HalfId, Outcome};
use super::records::{CheckRequest, CheckRules, Half, Verdict};
use super::{Task, Transaction};
use crate::crossing::CoreMessage;
use crate::owner::OwnerRequest;
use crate::services::{ShardContext, Stored};
use bytes::Bytes;
use hashbrown::{HashMap, HashSet};
use message::properties::{PropertyList, name};
use message::{PhysicalOffset, QueueOffset, names};
use reactor::ConnectionId;
use std::sync::Arc;
use store::{AppendError, ReadStep};

/// Checks of a shard that are under way at once; each may hold a message.
pub const MAX_IN_FLIGHT: usize = 16;
/// Open halves that a slice of a pass looks at.
const LOOK: usize = 4_096;
/// Producer groups that are told apart in memory.
const MAX_GROUPS: usize = 1 << 16;

/// How far the checks are.
#[derive(Debug, Default)]
pub struct Checks {
    next_pass_us: u64,
    /// The pass goes on with halves from here on, up to the second number.
    pass: Option<(u64, u64)>,
    under_way: ByOffset<Step>,
    groups: Groups,
    /// Groups that have no producer, as far as this pass knows.
    silent: HashSet<u32, foldhash::fast::RandomState>,
    opaque: i32,
}

/// How far one check is.
#[derive(Debug)]
enum Step {
    /// Its record is being read, or the owner asked.
    Judging,
    /// Its record is being read again, for this producer.
    Producer(ConnectionId),
    /// It is being written again; then the producer gets the request.
    Moving(ConnectionId, CheckRequest),
    /// It is being given up.
    GivingUp,
}

/// Numbers of producer groups, from 1 on; 0 stands for any group beyond the limit.
#[derive(Debug, Default)]
struct Groups(HashMap<Box<[u8]>, u32, foldhash::fast::RandomState>);

impl Groups {
    fn number(&mut self, group: &[u8]) -> u32 {
        let next = self.0.len() as u32 + 1;
        match self.0.get(group) {
            Some(number) => *number,
            None if self.0.len() >= MAX_GROUPS => 0,
            None => {
                self.0.insert(group.into(), next);
                next
            }
        }
    }
}

impl Checks {
    /// The first pass is one interval away.
    pub fn start(&mut self, cx: &ShardContext<'_, '_>) {
        self.next_pass_us = cx.now().mono_us + interval_us(cx);
    }

    /// When there is something to do, in monotonic microseconds; `any`: there may be open halves.
    pub fn due_us(&self, any: bool) -> Option<u64> {
        match self.pass {
            Some(_) if self.under_way.len() < MAX_IN_FLIGHT => Some(0),
            Some(_) => None,
            None => any.then_some(self.next_pass_us),
        }
    }
}

fn interval_us(cx: &ShardContext<'_, '_>) -> u64 {
    u64::from(cx.snapshot.settings.transaction_check_interval_ms) * 1_000
}

impl Transaction {
    /// Begins a pass when it is time, and runs a slice of it.
    pub(super) fn run_checks(&mut self, cx: &mut ShardContext<'_, '_>) {
        let now_us = cx.now().mono_us;
        if self.checks.pass.is_none() {
            if now_us < self.checks.next_pass_us {
                return;
            }
            self.checks.next_pass_us = now_us + interval_us(cx);
            self.checks.silent.clear();
            self.checks.pass = Some((0, self.halves.next()));
        }
        let mut look = LOOK;
        while let Some((from, until)) = self.checks.pass
            && self.checks.under_way.len() < MAX_IN_FLIGHT
            && look > 0
        {
            let (due, next) = self.halves.due(from, now_us, look);
            self.checks.pass = next.filter(|next| *next < until).map(|next| (next, until));
            match due {
                Some(due) if due.id.queue_offset < until => self.check(cx, due),
                Some(_) => self.checks.pass = None,
                None => break,
            }
            look -= 1;
        }
    }

    fn check(&mut self, cx: &mut ShardContext<'_, '_>, due: Due) {
        if due.group != 0 && self.checks.silent.contains(&due.group) {
            return;
        }
        self.halves.begin_check(due.id.queue_offset);
        self.checks.under_way.insert(due.id.queue_offset, Step::Judging);
        self.check_again(cx, due.id.queue_offset);
    }

    /// Goes on with a check whose record may have been cold.
    pub(super) fn check_again(&mut self, cx: &mut ShardContext<'_, '_>, queue_offset: u64) {
        let Some(offset) = self.halves.offset_of(queue_offset).filter(|_| self.halves.is_checking(queue_offset)) else {
            self.checks.under_way.remove(&queue_offset);
            return;
        };
        let id = HalfId { queue_offset, offset };
        let bytes = match cx.record_at(PhysicalOffset(offset)) {
            ReadStep::Ready(Some(bytes)) => bytes,
            ReadStep::Ready(None) => {
                self.checks.under_way.remove(&queue_offset);
                return self.drop_half(cx, id, "its record is gone");
            }
            ReadStep::Missing(missing) => return cx.park(missing, Task::Check(queue_offset).ticket()),
            ReadStep::Failed(error) => {
                tracing::error!(shard = cx.id.0, offset, %error, "a half message cannot be read");
                return self.put_off(queue_offset, 0);
            }
        };
        match self.checks.under_way.get(&queue_offset) {
            Some(Step::Judging) => self.judge(cx, id, &bytes),
            Some(Step::Producer(conn)) => {
                let conn = *conn;
                self.write_again(cx, id, &bytes, conn);
            }
            Some(Step::Moving(..) | Step::GivingUp) | None => {}
        }
    }

    /// Ends a check without an effect; the half is not looked at before `check_at_us`.
    fn put_off(&mut self, queue_offset: u64, check_at_us: u64) {
        self.checks.under_way.remove(&queue_offset);
        self.halves.reopen(queue_offset, check_at_us);
    }

    fn judge(&mut self, cx: &mut ShardContext<'_, '_>, id: HalfId, bytes: &Bytes) {
        let Some(half) = Half::parse(bytes).filter(|half| half.target().is_some()) else {
            self.checks.under_way.remove(&id.queue_offset);
            return self.drop_half(cx, id, "it is no half message");
        };
        let first =
            half.list.get(name::TRANSACTION_PREPARED_QUEUE_OFFSET).and_then(|text| std::str::from_utf8(text).ok());
        let marked =
            first.and_then(|text| text.parse().ok()).is_some_and(|first: u64| self.java_marks.contains(&first));
        if marked || target(cx.snapshot, &half).is_none() {
            self.checks.under_way.remove(&id.queue_offset);
            let why = if marked { "a Java broker ended it under its first offset" } else { "its topic is gone" };
            return self.drop_half(cx, id, why);
        }
        match half.verdict(cx.now().wall_ms, rules(cx)) {
            Verdict::After(ms) => {
                let check_at_us = cx.now().mono_us.saturating_add(ms.saturating_mul(1_000));
                self.put_off(id.queue_offset, check_at_us);
            }
            Verdict::GiveUp => self.give_up(cx, id, &half),
            Verdict::Check(_) => match half.group().map(String::from_utf8_lossy) {
                Some(group) => {
                    let number = self.checks.groups.number(group.as_bytes());
                    self.halves.set_group(id.queue_offset, number);
                    let (shard, half) = (cx.id, id.queue_offset);
                    cx.answers.lanes.owner(OwnerRequest::FindProducer { shard, half, group: group.into_owned() });
                }
                None => self.put_off(id.queue_offset, 0),
            },
        }
    }

    /// The owner has looked for a producer.
    pub(super) fn check_with(&mut self, cx: &mut ShardContext<'_, '_>, queue_offset: u64, conn: Option<ConnectionId>) {
        if !self.halves.is_checking(queue_offset) {
            self.checks.under_way.remove(&queue_offset);
            return;
        }
        match conn {
            Some(conn) => {
                self.checks.under_way.insert(queue_offset, Step::Producer(conn));
                self.check_again(cx, queue_offset);
            }
            None => {
                if let Some(group) = self.halves.group_of(queue_offset).filter(|group| *group != 0) {
                    self.checks.silent.insert(group);
                }
                self.put_off(queue_offset, 0);
            }
        }
    }

    /// Writes a half again with its new count. The old one is marked in the same turn.
    fn write_again(&mut self, cx: &mut ShardContext<'_, '_>, id: HalfId, bytes: &Bytes, conn: ConnectionId) {
        let mut text = itoa::Buffer::new();
        let Some(mut half) = Half::parse(bytes) else { return self.put_off(id.queue_offset, 0) };
        let Verdict::Check(times) = half.verdict(cx.now().wall_ms, rules(cx)) else {
            return self.put_off(id.queue_offset, 0);
        };
        let times = text.format(times).as_bytes();
        half.list.put(name::TRANSACTION_CHECK_TIMES, times);
        let Some(request) = CheckRequest::new(&half) else {
            // It cannot be counted any more: it is asked about as it is.
            half.list = PropertyList::parse(half.record.properties());
            return self.check_in_place(cx, id, &half, conn);
        };
        let outcome = {
            let fields = half.fields(names::HALF_TOPIC, self.half_queue, half.record.sys_flag());
            cx.put(cx.id, &fields, Task::Move(id.queue_offset).waiter())
        };
        match outcome {
            Ok(()) => {
                self.halves.begin_move(id.queue_offset);
                self.marks.add(id.queue_offset);
                self.checks.under_way.insert(id.queue_offset, Step::Moving(conn, request));
            }
            Err(AppendError::Illegal(why)) => {
                tracing::warn!(shard = cx.id.0, offset = id.offset, why, "a half message cannot be written again");
                self.put_off(id.queue_offset, 0);
                self.ask_producer(cx, conn, request, id);
            }
            Err(error) => {
                tracing::warn!(shard = cx.id.0, offset = id.offset, %error, "a check is put off");
                self.put_off(id.queue_offset, 0);
            }
        }
    }

    fn check_in_place(&mut self, cx: &mut ShardContext<'_, '_>, id: HalfId, half: &Half<'_>, conn: ConnectionId) {
        self.put_off(id.queue_offset, 0);
        match CheckRequest::new(half) {
            Some(request) => self.ask_producer(cx, conn, request, id),
            None => {
                tracing::warn!(shard = cx.id.0, offset = id.offset, "a half message cannot be shown to its producer")
            }
        }
    }

    /// A half was written again, or not.
    pub(super) fn moved(&mut self, cx: &mut ShardContext<'_, '_>, old: u64, stored: Result<Stored, String>) {
        let step = self.checks.under_way.remove(&old);
        match (step, stored) {
            (Some(Step::Moving(conn, request)), Ok(stored)) => {
                let new = HalfId { queue_offset: stored.queue_offset.0, offset: stored.offset.0 };
                self.halves.moved(old, new, 0);
                self.ask_producer(cx, conn, request, new);
            }
            (_, stored) => {
                tracing::warn!(shard = cx.id.0, queue_offset = old, ?stored, "a half message was not written again");
                self.marks.withdraw(old);
                self.halves.reopen(old, 0);
            }
        }
        self.follow.changed();
        self.ask_deferred(old);
    }

    fn ask_producer(&mut self, cx: &mut ShardContext<'_, '_>, conn: ConnectionId, request: CheckRequest, id: HalfId) {
        self.checks.opaque = self.checks.opaque.wrapping_add(1) & i32::MAX;
        let at = (QueueOffset(id.queue_offset), PhysicalOffset(id.offset));
        let command = request.command(self.checks.opaque, at, &cx.identity.id_prefix, &cx.identity.broker);
        cx.answers.lanes.post(conn.core, CoreMessage::Push { conn, frame: command.to_frame() });
    }

    /// Moves a half to the topic of those that were given up.
    fn give_up(&mut self, cx: &mut ShardContext<'_, '_>, id: HalfId, half: &Half<'_>) {
        let Some(topic) = cx.snapshot.topic(names::TRANS_CHECK_MAX_TIME_TOPIC).map(Arc::clone) else {
            cx.answers.lanes.owner(OwnerRequest::EnsureSystemTopic { topic: "TRANS_CHECK_MAX_TIME_TOPIC", queues: 1 });
            return self.put_off(id.queue_offset, 0);
        };
        let shard = topic.shard_of(0);
        let here = shard == cx.id;
        let task = if here { Task::GiveUp(id.queue_offset) } else { Task::GiveUpAway(id.queue_offset) };
        let fields = half.fields(topic.name.as_bytes(), 0, half.record.sys_flag());
        match cx.put(shard, &fields, task.waiter()) {
            Ok(()) => {
                tracing::warn!(shard = cx.id.0, offset = id.offset, "a half message is given up");
                self.halves.begin_move(id.queue_offset);
                self.checks.under_way.insert(id.queue_offset, Step::GivingUp);
                if here {
                    self.marks.add(id.queue_offset);
                }
            }
            Err(AppendError::Illegal(why)) => {
                self.checks.under_way.remove(&id.queue_offset);
                self.drop_half(cx, id, why);
            }
            Err(_) => self.put_off(id.queue_offset, 0),
        }
    }

    /// A half that is given up is stored, or not. `away`: in another shard, so that it is marked only now.
    pub(super) fn given_up(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        half: u64,
        stored: Result<Stored, String>,
        away: bool,
    ) {
        self.checks.under_way.remove(&half);
        match stored {
            Ok(_) => {
                if away {
                    self.marks.add(half);
                }
                self.settle(cx, half, Outcome::GivenUp);
            }
            Err(remark) => {
                tracing::warn!(shard = cx.id.0, queue_offset = half, remark, "a half message was not given up");
                self.marks.withdraw(half);
                self.halves.reopen(half, 0);
                self.ask_deferred(half);
            }
        }
    }
}

fn rules(cx: &ShardContext<'_, '_>) -> CheckRules {
    let settings = &cx.snapshot.settings;
    CheckRules {
        timeout_ms: settings.transaction_timeout_ms,
        max_checks: settings.transaction_check_max,
        reserved_hours: settings.file_reserved_hours,
    }
}
