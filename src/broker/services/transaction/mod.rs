//! Transactions of one shard: half messages, their ends, and the questions back to their producers.
//!
//! Role: the glue between the pure parts (`halves`, `marks`, `records`) and the shard: `ends` carries out END_TRANSACTION, `checks`
//! asks producers, `follow` takes up what the store holds and tells how far the queues are needed. Invariants: a committed message
//! and the mark of its half are appended in one turn, and the message names its half, so that a crash between them is seen;
//! a client is told only what is stored; a half whose record or topic is gone is dropped, never looked at for ever; what is
//! told to the owner (for Java) is durable. Memory: about 50 bytes for each half that is open, [`checks::MAX_IN_FLIGHT`] messages
//! under check. It knows no connection but those that it answers.

mod checks;
mod ended;
mod ends;
mod follow;
pub mod halves;
pub mod marks;
pub mod records;
mod resume;

#[cfg(test)]
mod halves_tests;
#[cfg(test)]
mod records_tests;

pub use ends::{EndTransaction, not_found};

use ends::{busy, refuse};

use crate::crossing::ReplyTo;
use crate::services::progress::{Found, Progress};
use crate::services::{ServiceKind, ServiceTicket, ShardContext, ShardService, Stored, Waiter};
use crate::snapshot::{QueuePlaces, Snapshot};
use halves::{ByOffset, End, HalfId, Halves, Outcome};
use marks::Marks;
use message::properties::PropertiesSource;
use message::record::RecordFields;
use message::{PhysicalOffset, names};
use reactor::ConnectionId;
use remoting::{Command, ResponseCode};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use store::{Missing, ShardId};

/// After this what the store refused is tried again, in microseconds.
const RETRY_US: u64 = 1_000_000;

/// Requests that may wait for cold bytes, or for a half that is written again; more are refused.
const MAX_WAITING: usize = 1 << 16;

/// What it saves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TransactionProgress {
    /// All halves below this queue offset are ended; `None` when no half was ever looked at.
    pub half: Option<u64>,
    /// Offset in the op queue from which marks are needed.
    pub op: u64,
    /// Ended halves whose mark is not written yet.
    pub unmarked: Vec<u64>,
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionRequest {
    /// 37.
    End(EndTransaction),
    /// 323: what was given up, and lies at this offset, is to be checked again.
    ResumeCheck(PhysicalOffset),
}

/// The service of one shard.
#[derive(Debug, Default)]
pub struct Transaction {
    halves: Halves,
    marks: Marks,
    /// Marks are not tried before this time, in monotonic microseconds.
    marks_at_us: u64,
    half_queue: u32,
    op_queue: u32,
    /// Ends that came in this turn.
    asked: ends::EndsOfTurn,
    /// Who waits for the end of a half that is under way.
    waiting: ByOffset<SmallVec<[ReplyTo; 1]>>,
    /// Ends that came while their half was being written again.
    deferred: ByOffset<Vec<(ReplyTo, EndTransaction)>>,
    /// Requests that wait for cold bytes, by number.
    parked: ByOffset<(ReplyTo, TransactionRequest)>,
    next_parked: u64,
    follow: follow::Follow,
    checks: checks::Checks,
    /// Marks of a Java broker for halves that it wrote again and did not find any more.
    java_marks: BTreeSet<u64>,
}

/// What a token of this service stands for; the number is below 2^56.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// The message of a committed half, in this shard.
    Commit(u64),
    /// The same in another shard.
    CommitAway(u64),
    /// A record of marks.
    Mark(u64),
    /// A half that is written again.
    Move(u64),
    /// A half that is given up, in this shard.
    GiveUp(u64),
    /// The same in another shard.
    GiveUpAway(u64),
    /// A request waits for bytes.
    Request(u64),
    /// A check waits for bytes.
    Check(u64),
    /// Entries of the half queue are cold.
    Follow,
}

const NUMBER_BITS: u32 = 56;

impl Task {
    fn ticket(self) -> ServiceTicket {
        let (kind, number) = match self {
            Self::Commit(half) => (0, half),
            Self::CommitAway(half) => (1, half),
            Self::Mark(batch) => (2, batch),
            Self::Move(half) => (3, half),
            Self::GiveUp(half) => (4, half),
            Self::GiveUpAway(half) => (5, half),
            Self::Request(number) => (6, number),
            Self::Check(half) => (7, half),
            Self::Follow => (8, 0),
        };
        ServiceTicket { kind: ServiceKind::Transaction, token: kind << NUMBER_BITS | number }
    }

    fn of(token: u64) -> Self {
        let number = token & ((1 << NUMBER_BITS) - 1);
        match token >> NUMBER_BITS {
            0 => Self::Commit(number),
            1 => Self::CommitAway(number),
            2 => Self::Mark(number),
            3 => Self::Move(number),
            4 => Self::GiveUp(number),
            5 => Self::GiveUpAway(number),
            6 => Self::Request(number),
            7 => Self::Check(number),
            8 => Self::Follow,
            other => unreachable!("no task has the kind {other}"),
        }
    }

    fn waiter(self) -> Waiter {
        Waiter::Service(self.ticket())
    }
}

/// The queue of a system topic in which the half messages (or the marks) of a shard lie.
#[must_use]
pub fn queue_of(snapshot: &Snapshot, topic: &[u8], shard: ShardId) -> u32 {
    let width = match snapshot.topic(topic).map(|topic| &topic.places) {
        Some(QueuePlaces::System { width, .. }) => *width,
        _ => 1,
    };
    u32::from(shard.0) * width
}

/// A record of marks that marks nothing, and its waiter. It opens the log of a store whose first message waits for something:
/// what is made from that message names its offset, and 0 would name nothing (neither to us nor to clients).
#[must_use]
pub fn opening_mark(now_ms: i64, store_host: SocketAddr) -> (RecordFields<'static>, Waiter) {
    (mark_fields(0, b",", now_ms, store_host), Task::Mark(OPENING_BATCH).waiter())
}

/// The number of no batch.
const OPENING_BATCH: u64 = (1 << NUMBER_BITS) - 1;

fn mark_fields(queue_id: u32, body: &[u8], now_ms: i64, store_host: SocketAddr) -> RecordFields<'_> {
    RecordFields {
        queue_id: queue_id as i32,
        flag: 0,
        sys_flag: 0,
        born_timestamp_ms: now_ms,
        born_host: store_host,
        store_host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        topic: names::OP_HALF_TOPIC,
        body,
        properties: PropertiesSource::Text(marks::PROPERTIES),
    }
}

impl ShardService for Transaction {
    fn start(&mut self, cx: &mut ShardContext<'_, '_>, found: &Found) {
        self.half_queue = queue_of(cx.snapshot, names::HALF_TOPIC, cx.id);
        self.op_queue = queue_of(cx.snapshot, names::OP_HALF_TOPIC, cx.id);
        self.take_up(cx, found);
        self.checks.start(cx);
    }

    fn visible(&mut self, topic: &[u8], queue_id: u32, max_offset: u64, _tag: i64) {
        if topic == names::HALF_TOPIC && queue_id == self.half_queue {
            self.follow.visible(max_offset);
        }
    }

    fn run(&mut self, cx: &mut ShardContext<'_, '_>) {
        let now_us = cx.now().mono_us;
        self.carry_out_asked(cx);
        if self.marks_at_us <= now_us {
            self.write_marks(cx);
        }
        self.follow_queue(cx, false);
        self.run_checks(cx);
        self.publish(cx);
    }

    fn stored(&mut self, cx: &mut ShardContext<'_, '_>, token: u64, stored: Result<Stored, String>) {
        match (Task::of(token), stored) {
            (Task::Commit(half), Ok(_)) => self.settle(cx, half, Outcome::Ended(End::Commit)),
            (Task::CommitAway(half), Ok(_)) => {
                self.marks.add(half);
                self.settle(cx, half, Outcome::Ended(End::Commit));
            }
            (Task::Commit(half) | Task::CommitAway(half), Err(remark)) => self.not_ended(cx, half, &remark),
            (Task::Mark(batch), Ok(at)) => {
                for half in self.marks.stored(batch, at.queue_offset.0) {
                    if self.halves.ending(half) == Some(End::Rollback) {
                        self.settle(cx, half, Outcome::Ended(End::Rollback));
                    }
                }
                self.follow.changed();
            }
            (Task::Mark(batch), Err(remark)) => self.not_marked(cx, batch, &remark),
            (Task::Move(half), stored) => self.moved(cx, half, stored),
            (Task::GiveUp(half), stored) => self.given_up(cx, half, stored, false),
            (Task::GiveUpAway(half), stored) => self.given_up(cx, half, stored, true),
            (task @ (Task::Request(_) | Task::Check(_) | Task::Follow), _) => unreachable!("{task:?} puts no record"),
        }
    }

    fn fetched(&mut self, cx: &mut ShardContext<'_, '_>, token: u64) {
        match Task::of(token) {
            Task::Request(number) => {
                if let Some((to, request)) = self.parked.remove(&number) {
                    self.request(cx, to, request);
                }
            }
            Task::Check(half) => self.check_again(cx, half),
            Task::Follow => self.follow_queue(cx, true),
            task => unreachable!("{task:?} reads nothing"),
        }
    }

    fn due_us(&self) -> Option<u64> {
        if !self.asked.is_empty() {
            return Some(0);
        }
        let marks = (!self.marks.due().is_empty()).then_some(self.marks_at_us);
        let follow = self.follow.due_us(self.halves.next());
        let checks = self.checks.due_us(!self.halves.is_empty() || self.follow.is_behind(self.halves.next()));
        [marks, follow, checks].into_iter().flatten().min()
    }

    fn save(&self, progress: &mut Progress) {
        let low = self.halves.low();
        progress.transaction = TransactionProgress {
            half: Some(low),
            op: self.marks.peek_low(low),
            unmarked: self.marks.due().iter().copied().filter(|half| !self.halves.is_open(*half)).collect(),
        };
    }
}

impl Transaction {
    /// Takes a client's request: an end is carried out when its turn ends.
    pub fn request(&mut self, cx: &mut ShardContext<'_, '_>, to: ReplyTo, request: TransactionRequest) {
        match request {
            TransactionRequest::End(request) => self.asked.push(to, request),
            TransactionRequest::ResumeCheck(offset) => self.resume_check(cx, to, offset),
        }
    }

    /// A request needs bytes that are cold.
    fn park(&mut self, cx: &mut ShardContext<'_, '_>, to: ReplyTo, request: TransactionRequest, missing: Missing) {
        if self.parked.len() >= MAX_WAITING {
            return refuse(cx, &to, &busy());
        }
        self.next_parked += 1;
        self.parked.insert(self.next_parked, (to, request));
        cx.park(missing, Task::Request(self.next_parked).ticket());
    }

    /// Writes the marks of all halves that ended in this turn.
    fn write_marks(&mut self, cx: &mut ShardContext<'_, '_>) {
        while let Some((batch, body)) = self.marks.next_record() {
            let record = mark_fields(self.op_queue, &body, cx.now().wall_ms, cx.store_host);
            if let Err(error) = cx.put(cx.id, &record, Task::Mark(batch).waiter()) {
                return self.not_marked(cx, batch, &error.to_string());
            }
        }
    }

    /// Marks were not stored: rollbacks are refused, the marks of all others are tried again.
    fn not_marked(&mut self, cx: &mut ShardContext<'_, '_>, batch: u64, remark: &str) {
        self.marks_at_us = cx.now().mono_us + RETRY_US;
        for half in self.marks.failed(batch) {
            if self.halves.ending(half) == Some(End::Rollback) {
                self.not_ended(cx, half, remark);
            }
        }
    }

    /// It is over with a half: those who wait are answered.
    fn settle(&mut self, cx: &mut ShardContext<'_, '_>, half: u64, outcome: Outcome) {
        self.halves.ended(half, outcome);
        self.follow.changed();
        for to in self.waiting.remove(&half).unwrap_or_default() {
            answer(cx, &to);
        }
        self.ask_deferred(half);
    }

    /// An end was not stored: the half is open as before.
    fn not_ended(&mut self, cx: &mut ShardContext<'_, '_>, half: u64, remark: &str) {
        self.marks.withdraw(half);
        self.halves.reopen(half, 0);
        for to in self.waiting.remove(&half).unwrap_or_default() {
            cx.answers.refuse(&to, ResponseCode::ServiceNotAvailable, remark);
        }
    }

    /// Ends that came while the half was under way otherwise can be carried out.
    fn ask_deferred(&mut self, half: u64) {
        if self.deferred.is_empty() {
            return;
        }
        for (to, request) in self.deferred.remove(&half).unwrap_or_default() {
            self.asked.push(to, request);
        }
    }

    /// A half is over without an end of its producer's.
    fn drop_half(&mut self, cx: &mut ShardContext<'_, '_>, id: HalfId, why: &str) {
        tracing::warn!(
            shard = cx.id.0,
            queue_offset = id.queue_offset,
            offset = id.offset,
            why,
            "a half message is dropped"
        );
        self.marks.add(id.queue_offset);
        self.settle(cx, id.queue_offset, Outcome::Dropped);
    }

    /// The owner has looked for a producer to ask about a half.
    pub fn producer_found(&mut self, cx: &mut ShardContext<'_, '_>, half: u64, conn: Option<ConnectionId>) {
        self.check_with(cx, half, conn);
    }
}

/// Answers with SUCCESS.
fn answer(cx: &mut ShardContext<'_, '_>, to: &ReplyTo) {
    cx.answers.reply(to, &[], |out| Command::response(ResponseCode::Success, to.opaque, to.form).encode(out));
}
