//! What lives beside a shard and writes by itself: delayed messages, timers, transactions, POP.
//!
//! Role: one machine for each kind of waiting message ([`ShardService`]), run by `shard_host` in the turn of its shard, with
//! what it may do ([`ShardContext`]) and what of it outlives the process ([`progress`]). Invariants: what waits is a record of a
//! system queue of the same shard, so a crash loses nothing that was acknowledged; a record made from a waiting one carries that
//! one's physical offset in its `preparedTransactionOffset`, so that after a crash the log itself says what was delivered;
//! progress counts a delivery only when its record is written (in another shard: durable). A service reads no clock, opens
//! no file and knows no connection.

pub mod context;
pub mod deliver;
pub mod pop;
pub mod progress;
pub mod schedule;
pub mod timer;
pub mod transaction;

pub use context::{ServiceTicket, ShardContext, Stored, Waiter};

use crate::crossing::ReplyTo;
use message::PhysicalOffset;
use message::names;
use progress::{Found, Progress};
use reactor::Now;

/// The services of a shard, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ServiceKind {
    /// Delay levels.
    Schedule,
    /// Arbitrary delays.
    Timer,
    /// Half messages.
    Transaction,
    /// POP check points.
    Pop,
}

impl ServiceKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Schedule, Self::Timer, Self::Transaction, Self::Pop];

    /// Whose system topic this is; `None` for all others. The test of the first byte is all that an ordinary topic costs.
    pub fn of_topic(topic: &[u8]) -> Option<Self> {
        match topic.first() {
            Some(b'S') if topic == names::SCHEDULE_TOPIC => Some(Self::Schedule),
            Some(b'R') if topic == names::HALF_TOPIC || topic == names::OP_HALF_TOPIC => Some(Self::Transaction),
            Some(b'r') if topic == names::TIMER_TOPIC => Some(Self::Timer),
            Some(b'r') if topic.starts_with(names::REVIVE_TOPIC_PREFIX) => Some(Self::Pop),
            _ => None,
        }
    }
}

/// A machine beside a shard. Each call runs in a turn of the shard's core; what it appends is written at the end of the turn.
pub trait ShardService {
    /// Before anything else, when the first metadata is there and nobody is served: takes up what the store holds. It may wait
    /// for the disk ([`ShardContext::now_or_wait`]).
    fn start(&mut self, cx: &mut ShardContext<'_, '_>, found: &Found);

    /// A message of one of its system topics became visible; `tag` is the value in its queue entry.
    fn visible(&mut self, topic: &[u8], queue_id: u32, max_offset: u64, tag: i64);

    /// Its time has come ([`ShardService::due_us`]), or something became visible, or a request came: does what is due.
    fn run(&mut self, cx: &mut ShardContext<'_, '_>);

    /// What it put with this token is stored (see [`Waiter`]), or never will be.
    fn stored(&mut self, cx: &mut ShardContext<'_, '_>, token: u64, stored: Result<Stored, String>);

    /// Bytes that it parked for are there: run the read again.
    fn fetched(&mut self, cx: &mut ShardContext<'_, '_>, token: u64);

    /// When `run` is to be called, in monotonic microseconds: now or earlier for the next turn, `None` for never.
    fn due_us(&self) -> Option<u64>;

    /// Writes what outlives the process. Only what was stored counts.
    fn save(&self, progress: &mut Progress);
}

/// A request of a client that a service of a shard carries out.
#[derive(Debug)]
pub enum ServiceRequest {
    /// 37, 323.
    Transaction(transaction::TransactionRequest),
    /// POP.
    Pop(pop::request::PopRequest),
}

/// The services of one shard.
#[derive(Debug, Default)]
pub struct Services {
    /// Delay levels.
    pub schedule: schedule::Schedule,
    /// Arbitrary delays.
    pub timer: timer::Timer,
    /// Half messages.
    pub transaction: transaction::Transaction,
    /// POP.
    pub pop: pop::Pop,
}

impl Services {
    fn get(&mut self, kind: ServiceKind) -> &mut dyn ShardService {
        match kind {
            ServiceKind::Schedule => &mut self.schedule,
            ServiceKind::Timer => &mut self.timer,
            ServiceKind::Transaction => &mut self.transaction,
            ServiceKind::Pop => &mut self.pop,
        }
    }

    fn all(&self) -> [&dyn ShardService; 4] {
        [&self.schedule, &self.timer, &self.transaction, &self.pop]
    }

    /// The first metadata is there.
    pub fn start(&mut self, cx: &mut ShardContext<'_, '_>, found: &Found) {
        ServiceKind::ALL.into_iter().for_each(|kind| self.get(kind).start(cx, found));
    }

    /// A message became visible.
    pub fn visible(&mut self, topic: &[u8], queue_id: u32, max_offset: u64, tag: i64) {
        if let Some(kind) = ServiceKind::of_topic(topic) {
            self.get(kind).visible(topic, queue_id, max_offset, tag);
        }
    }

    /// Runs whoever is due.
    pub fn run(&mut self, cx: &mut ShardContext<'_, '_>) {
        for kind in ServiceKind::ALL {
            let service = self.get(kind);
            if is_due(service.due_us(), cx.now()) {
                service.run(cx);
            }
        }
    }

    /// Something that a service put is stored, or will never be.
    pub fn stored(&mut self, cx: &mut ShardContext<'_, '_>, ticket: ServiceTicket, stored: Result<Stored, String>) {
        self.get(ticket.kind).stored(cx, ticket.token, stored);
    }

    /// Bytes are there.
    pub fn fetched(&mut self, cx: &mut ShardContext<'_, '_>, ticket: ServiceTicket) {
        self.get(ticket.kind).fetched(cx, ticket.token);
    }

    /// Carries out a client's request.
    pub fn request(&mut self, cx: &mut ShardContext<'_, '_>, to: ReplyTo, request: ServiceRequest) {
        match request {
            ServiceRequest::Transaction(request) => self.transaction.request(cx, to, request),
            ServiceRequest::Pop(request) => self.pop.request(cx, to, request),
        }
    }

    /// When the first of them wants to run.
    pub fn due_us(&self) -> Option<u64> {
        self.all().into_iter().filter_map(ShardService::due_us).min()
    }

    /// What outlives the process, with the end of the log that it belongs to.
    pub fn save(&self, log_end: PhysicalOffset) -> Progress {
        let mut progress = Progress { log_end: log_end.0, ..Progress::default() };
        self.all().into_iter().for_each(|service| service.save(&mut progress));
        progress
    }
}

/// Whether it is time for what is due at `due_us`.
pub(crate) fn is_due(due_us: Option<u64>, now: Now) -> bool {
    due_us.is_some_and(|due_us| due_us <= now.mono_us)
}
