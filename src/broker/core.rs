//! The broker on one core: the joint of its parts, called by the server's `reactor::Service`.
//!
//! Role: takes frames and messages in, hands each to the part that carries it out, and ends the turn in the right order. Owner
//! of the core's one timer and of what a stop means. Invariants: a frame that cannot be trusted closes its connection and has no
//! other effect; while the core stops no request is admitted; the lanes are published once a turn, after everything else. The
//! checks stand in `processor`, the shards in `shard_host`, metadata in `owner`: this file decides nothing about them.

mod admit;
mod reply;
mod retry;
mod pop;

use crate::config::BrokerOptions;
use crate::connections::{Connections, Reading};
use crate::crossing::{Answers, CoreMessage, Forwarded, HOT_GATHER, Lanes, OWNER_CORE, ReplyTo, RequestBatch, Work};
use crate::filter::Compiled;
use crate::gather::{Gathered, Gathers, RecallAsk, ShardAnswer};
use crate::owner::{OwnerHost, OwnerRequest, Refusal, Ticket};
use crate::pop_holds::PopHolds;
use crate::processor::pop::revive_queues;
use crate::processor::{query, recall};
use crate::response::{self, SendIdentity};
use crate::router::{TokenKind, split, token};
use crate::services::progress::ProgressFiles;
use crate::shard_host::ShardHost;
use crate::snapshot::Snapshot;
use crate::stats::CoreCounters;
use crate::work::SendBytes;
use message::ids::{OffsetIdPrefix, UniqueIdMaker};
use message::properties::PropertiesSource;
use reactor::{CloseReason, ConnectionId, Context, CoreId, Drain, JobOutput, ListenerId, Token};
use remoting::scan::ScannedHeader;
use remoting::{Command, ResponseCode};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use store::{FlushMode, Shard, ShardId};

/// The weight of a request to the owner in the in-flight bytes of its connection: at most 256 of them at once.
const OWNER_REQUEST_BYTES: usize = 128 << 10;
/// Bytes or messages that wait for a core which does not take them before the senders are not read any more.
const BACKLOG_BYTES: usize = 64 << 20;
const BACKLOG_MESSAGES: usize = 16_384;
/// How long a query by key waits for the shards.
const GATHER_TIMEOUT_MS: u64 = 3_000;
/// Period of the owner's clock (expiry of clients, flush of offsets), and of what else is looked at while something waits.
const TICK_US: u64 = 200_000;
/// After this a full mailbox is tried again.
const RETRY_US: u64 = 200;
/// Messages to itself that a core works in one turn.
const OWN_MESSAGES_A_TURN: usize = 100_000;
/// A core that stops waits this long for requests that others have sent before they knew.
const LINGER_US: u64 = 100_000;
/// And at most this long for what is in flight.
const DRAIN_US: u64 = 5_000_000;

/// What a core is made of.
pub struct CoreParts {
    /// Which core.
    pub core: CoreId,
    /// How many there are.
    pub cores: u16,
    /// Shards of the whole store.
    pub shards: u16,
    /// The settings that are fixed at start.
    pub options: Arc<BrokerOptions>,
    /// Metadata to begin with.
    pub snapshot: Arc<Snapshot>,
    /// The shards of this core.
    pub hosted: Vec<(ShardId, Shard)>,
    /// Where the services of the shards save.
    pub progress: ProgressFiles,
    /// When an append is answered.
    pub flush: FlushMode,
    /// Java's `syncFlushTimeout`.
    pub sync_flush_timeout_ms: u64,
    /// The metadata owner: on core 0, and only there.
    pub owner: Option<Box<OwnerHost>>,
    /// Distance of the local time from UTC, for the unique ids of messages that come without one.
    pub utc_offset_ms: i64,
}

/// The broker on one core.
pub struct BrokerCore {
    core: CoreId,
    cores: u16,
    shards: u16,
    options: Arc<BrokerOptions>,
    texts: Rc<Texts>,
    snapshot: Arc<Snapshot>,
    connections: Connections,
    lanes: Lanes,
    host: ShardHost,
    owner: Option<Box<OwnerHost>>,
    queries: Gathers<HotQuestion>,
    counters: CoreCounters,
    unique_ids: UniqueIdMaker,
    any_queue: u32,
    /// Filters that came with requests lately.
    compiled: Compiled,
    pops: PopHolds,
    /// Grows with each POP.
    pop_turn: u32,
    /// Revive queues of each shard, by the snapshot.
    revive_queues: u32,
    /// Connections that are held because a lane is full.
    congested: Vec<ConnectionId>,
    timer_due_us: Option<u64>,
    stopping_since_us: Option<u64>,
    closed: bool,
}

/// Texts that are stamped on each message. Counted without atomics: the path of a message touches nothing that another core
/// writes.
struct Texts {
    region: Box<[u8]>,
    cluster: Box<[u8]>,
}

/// A question of a client to several shards.
#[derive(Debug)]
enum HotQuestion {
    /// Messages by key.
    Key {
        /// Who asks.
        to: ReplyTo,
        /// Most messages.
        max: u32,
    },
    /// The recall of a message.
    Recall {
        /// Who asks.
        to: ReplyTo,
        /// Which message.
        ask: Arc<RecallAsk>,
    },
}

impl BrokerCore {
    /// Puts a core together. Its snapshot counts as seen.
    pub fn new(parts: CoreParts) -> Self {
        assert!(parts.owner.is_some() == (parts.core == OWNER_CORE), "the owner lives on core 0");
        let options = parts.options;
        let identity = SendIdentity {
            id_prefix: OffsetIdPrefix::new(options.address),
            region: options.region_id.as_bytes().into(),
            broker: options.broker_name.as_str().into(),
            trace_on: parts.snapshot.settings.trace_on,
        };
        let salt = u32::from(parts.core.0) << 16 | std::process::id() >> 16;
        Self {
            core: parts.core,
            cores: parts.cores,
            shards: parts.shards,
            connections: Connections::new(parts.core),
            lanes: Lanes::new(parts.core, parts.cores),
            host: ShardHost::new(
                parts.hosted,
                parts.progress,
                parts.snapshot.clone(),
                options.clone(),
                identity,
                parts.flush,
                parts.sync_flush_timeout_ms,
            ),
            owner: parts.owner,
            queries: Gathers::default(),
            counters: CoreCounters::default(),
            unique_ids: UniqueIdMaker::new(options.ip(), std::process::id(), salt, parts.utc_offset_ms),
            any_queue: 0,
            compiled: Compiled::default(),
            pops: PopHolds::default(),
            pop_turn: 0,
            revive_queues: revive_queues(&parts.snapshot, &options),
            congested: Vec::new(),
            timer_due_us: None,
            stopping_since_us: None,
            closed: false,
            snapshot: parts.snapshot,
            texts: Rc::new(Texts {
                region: options.region_id.as_bytes().into(),
                cluster: options.cluster_name.as_bytes().into(),
            }),
            options,
        }
    }

    /// What this core counted.
    pub fn counters(&self) -> &CoreCounters {
        &self.counters
    }

    /// The metadata that this core works with.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// A connection was accepted.
    pub fn connected(&mut self, conn: ConnectionId, listener: ListenerId, peer: SocketAddr) {
        self.counters.connections += 1;
        self.connections.open(conn, listener, peer);
    }

    /// A connection is gone.
    pub fn closed(&mut self, conn: ConnectionId, _why: CloseReason) {
        self.connections.close(conn);
        self.host.connection_closed(conn);
        self.pops.connection_closed(conn);
        for core in (0..self.cores).map(CoreId).filter(|core| *core != self.core) {
            self.lanes.post(core, CoreMessage::ClosedElsewhere(conn));
        }
        self.lanes.owner(OwnerRequest::ConnectionClosed(conn));
    }

    /// A whole frame came.
    pub fn frame(&mut self, cx: &mut Context<CoreMessage>, conn: ConnectionId, frame: &[u8]) {
        self.run_frame(cx, conn, frame, false);
    }

    /// A message came from another core or thread.
    pub fn message(&mut self, cx: &mut Context<CoreMessage>, message: CoreMessage) {
        match message {
            CoreMessage::Requests(batch) => self.serve(cx, *batch),
            CoreMessage::Replies(mut batch) => self.answers(cx).deliver(&mut batch),
            CoreMessage::Owner(request) => self.with_owner(cx, |owner, cx, lanes| owner.message(cx, lanes, *request)),
            CoreMessage::Reply { conn, response } => self.owner_reply(cx, conn, &response),
            CoreMessage::Answer { to, response } => self.answers(cx).reply(&to, &[], |out| response.encode(out)),
            CoreMessage::Resume { ticket, outcome } => self.resume(cx, ticket, outcome),
            CoreMessage::LockState { ticket, locked } => self.lock_state(cx, ticket, locked),
            CoreMessage::SendBack { job, outcome } => {
                let (host, mut answers) = self.parts(cx);
                host.send_back_again(&mut answers, *job, outcome);
            }
            CoreMessage::Snapshot(snapshot) => self.install(cx, snapshot),
            CoreMessage::SnapshotSeen { core, version } => {
                self.with_owner(cx, |owner, cx, lanes| owner.snapshot_seen(cx, lanes, core, version));
            }
            CoreMessage::Push { conn, frame } => {
                if let Some(out) = cx.output(conn) {
                    out.bytes().extend_from_slice(&frame);
                }
            }
            CoreMessage::ClosedElsewhere(conn) => self.host.connection_closed(conn),
            CoreMessage::ShardAsk { from, gather, shard, ask } => {
                let (host, mut answers) = self.parts(cx);
                host.shard_ask(&mut answers, from, gather, shard, ask);
            }
            CoreMessage::ShardAnswer { gather, shard, answer } if gather & HOT_GATHER != 0 => {
                self.query_answer(cx, gather & !HOT_GATHER, shard, answer);
            }
            CoreMessage::ShardAnswer { gather, shard, answer } => {
                self.with_owner(cx, |owner, cx, lanes| owner.shard_answer(cx, lanes, gather, shard, answer));
            }
            CoreMessage::Record { shard, record, waiter } => {
                let (host, mut answers) = self.parts(cx);
                host.put(&mut answers, shard, &record.fields(), waiter);
            }
            CoreMessage::Stored { shard, ticket, stored } => {
                let (host, mut answers) = self.parts(cx);
                host.stored_elsewhere(&mut answers, shard, ticket, stored);
            }
            CoreMessage::Producer { shard, half, conn } => {
                let (host, mut answers) = self.parts(cx);
                host.producer_found(&mut answers, shard, half, conn);
            }
            CoreMessage::Forwarded(forwarded) => {
                let Forwarded { reply, shard, work } = *forwarded;
                let (host, mut answers) = self.parts(cx);
                if let Work::Service(request) = work {
                    host.service(&mut answers, reply, shard, *request);
                }
            }
            CoreMessage::HoldPop { to, run } => self.hold_pop(cx, to, run),
            CoreMessage::PopWake(watch) => self.pop_wake(cx, &watch),
            CoreMessage::PopOffsets { shard, ask, offsets } => {
                let (host, mut answers) = self.parts(cx);
                host.pop_offsets(&mut answers, shard, ask, &offsets);
            }
            CoreMessage::PollingInfo(info) => self.count_polling(cx, info),
            CoreMessage::Control(control) => self.with_owner(cx, |owner, cx, lanes| owner.control(cx, lanes, control)),
            CoreMessage::Host(_) => {}
        }
    }

    /// A sync or a background job ended.
    pub fn completed(&mut self, cx: &mut Context<CoreMessage>, token: Token, result: io::Result<JobOutput>) {
        match split(token) {
            (TokenKind::Shard, value) => {
                let (host, mut answers) = self.parts(cx);
                host.completed(&mut answers, value, result);
            }
            (TokenKind::Owner, value) => {
                self.with_owner(cx, |owner, cx, lanes| owner.completed(cx, lanes, value, result));
            }
            (TokenKind::Progress, value) => {
                let (host, mut answers) = self.parts(cx);
                host.progress_written(&mut answers, value, result.map(|_| ()));
            }
            (TokenKind::Core | TokenKind::NameServer, _) => {}
        }
    }

    /// A timer fired. The work is done at the end of the turn.
    pub fn timer(&mut self, cx: &mut Context<CoreMessage>, token: Token) {
        if split(token).0 == TokenKind::Core && self.timer_due_us.is_some_and(|due_us| due_us <= cx.now().mono_us) {
            self.timer_due_us = None;
        }
    }

    /// Every input of the turn was given: writes, answers, wakes, asks, publishes.
    pub fn turn_end(&mut self, cx: &mut Context<CoreMessage>) {
        let mut rounds = 0;
        loop {
            self.work_own_messages(cx);
            let (host, mut answers) = self.parts(cx);
            host.turn_end(&mut answers);
            if let Some(owner) = &mut self.owner {
                owner.turn_end(cx, &mut self.lanes);
            }
            rounds += 1;
            if !self.lanes.has_own() || rounds == 8 {
                break;
            }
        }
        self.expire(cx);
        self.lanes.flush(cx);
        self.let_go_of_congested(cx);
        self.arm_timer(cx);
    }

    /// Asked each turn while the engine stops: refuses what comes, waits for what is in flight, then closes the shards.
    pub fn stopping(&mut self, cx: &mut Context<CoreMessage>) -> Drain {
        let now_us = cx.now().mono_us;
        let since_us = *self.stopping_since_us.get_or_insert(now_us);
        self.flush_pops(cx);
        let (host, mut answers) = self.parts(cx);
        let answered = host.stopping(&mut answers);
        let persisted = match &mut self.owner {
            Some(owner) => owner.stopping(cx, &mut self.lanes),
            None => true,
        };
        let idle = answered && persisted && self.lanes.is_idle() && self.connections.in_flight() == 0;
        let waited_us = now_us - since_us;
        if waited_us < LINGER_US || (!idle && waited_us < DRAIN_US) {
            return Drain::Busy;
        }
        if !self.closed {
            self.closed = true;
            if let Err(error) = self.host.close() {
                tracing::error!(core = self.core.0, %error, "a shard was not closed cleanly");
            }
        }
        Drain::Done
    }

    /// Whether every shard of this core was closed cleanly (after `stopping` said `Done`).
    pub fn closed_cleanly(&self) -> bool {
        self.closed && self.host.closed_cleanly()
    }

    fn answers<'a>(&'a mut self, cx: &'a mut Context<CoreMessage>) -> Answers<'a> {
        Answers { cx, lanes: &mut self.lanes, connections: &mut self.connections }
    }

    fn parts<'a>(&'a mut self, cx: &'a mut Context<CoreMessage>) -> (&'a mut ShardHost, Answers<'a>) {
        (&mut self.host, Answers { cx, lanes: &mut self.lanes, connections: &mut self.connections })
    }

    fn with_owner(
        &mut self,
        cx: &mut Context<CoreMessage>,
        f: impl FnOnce(&mut OwnerHost, &mut Context<CoreMessage>, &mut Lanes),
    ) {
        let owner = self.owner.as_mut().expect("what is for the owner goes to core 0");
        f(owner, cx, &mut self.lanes);
    }

    /// Carries out what other cores checked and routed here.
    fn serve(&mut self, cx: &mut Context<CoreMessage>, batch: RequestBatch) {
        let bytes = batch.bytes;
        let deleting = self.snapshot.deleting.clone();
        let (host, mut answers) = self.parts(cx);
        for entry in batch.entries {
            match entry.work {
                Work::Send { start, lens, numbers } => {
                    let mut rest = &bytes[start as usize..];
                    let [topic, properties, body, unique_id, recall_handle] = lens.map(|len| {
                        let (part, after) = rest.split_at(len as usize);
                        rest = after;
                        part
                    });
                    if deleting.iter().any(|name| name.as_bytes() == topic) {
                        let code = ResponseCode::TopicNotExist.to_i32();
                        let refused =
                            |out: &mut Vec<u8>| response::refusal(out, &entry.reply, code, "topic is being deleted");
                        answers.reply(&entry.reply, &[], refused);
                        continue;
                    }
                    let properties = PropertiesSource::Text(properties);
                    let parts = SendBytes { topic, properties, body, unique_id, recall_handle };
                    host.send(&mut answers, entry.reply, entry.shard, &numbers, parts);
                }
                Work::Pull(work) => host.pull(&mut answers, entry.reply, *work),
                Work::Ask(question) => host.ask(&mut answers, entry.reply, entry.shard, *question),
                Work::SendBack(work) => host.send_back(&mut answers, entry.reply, entry.shard, *work),
                Work::Service(request) => host.service(&mut answers, entry.reply, entry.shard, *request),
            }
        }
        for record in batch.records {
            host.put(&mut answers, record.shard, &record.fields(&bytes), record.waiter);
        }
    }

    fn owner_reply(&mut self, cx: &mut Context<CoreMessage>, conn: ConnectionId, response: &Command) {
        let to = ReplyTo {
            conn,
            opaque: response.opaque,
            form: response.serialize_type,
            oneway: false,
            bytes: OWNER_REQUEST_BYTES as u32,
            counted: true,
        };
        self.answers(cx).reply(&to, &[], |out| response.encode(out));
    }

    fn install(&mut self, cx: &mut Context<CoreMessage>, snapshot: Arc<Snapshot>) {
        if snapshot.version > self.snapshot.version {
            let (host, mut answers) = self.parts(cx);
            host.install(&mut answers, snapshot.clone());
            self.revive_queues = revive_queues(&snapshot, &self.options);
            self.snapshot = snapshot;
        }
        let version = self.snapshot.version;
        self.lanes.post(OWNER_CORE, CoreMessage::SnapshotSeen { core: self.core, version });
    }

    fn resume(&mut self, cx: &mut Context<CoreMessage>, ticket: Ticket, outcome: Result<(), Refusal>) {
        let Some((conn, waiting)) = self.connections.resume(ticket) else { return };
        match outcome {
            Ok(()) => self.run_frame(cx, conn, &waiting.frame, true),
            Err(refusal) => {
                let header = remoting::scan::scan(&waiting.frame).expect("it was scanned before it waited");
                self.refuse(cx, &reply_to(conn, &header), refusal.code, &refusal.remark);
            }
        }
        cx.release(conn);
    }

    fn work_own_messages(&mut self, cx: &mut Context<CoreMessage>) {
        for _ in 0..OWN_MESSAGES_A_TURN {
            let Some(message) = self.lanes.next_own() else { return };
            self.message(cx, message);
        }
    }

    fn query_answer(&mut self, cx: &mut Context<CoreMessage>, id: u64, shard: ShardId, answer: ShardAnswer) {
        if let Some((question, gathered)) = self.queries.answer(id, shard, answer) {
            self.answer_question(cx, question, gathered);
        }
    }

    fn expire(&mut self, cx: &mut Context<CoreMessage>) {
        let (host, mut answers) = self.parts(cx);
        host.check_timeouts(&mut answers);
        self.expire_pops(cx);
        if self.queries.is_empty() {
            return;
        }
        for (question, gathered) in self.queries.expire(cx.now()) {
            self.answer_question(cx, question, gathered);
        }
    }

    fn answer_question(&mut self, cx: &mut Context<CoreMessage>, question: HotQuestion, gathered: Gathered) {
        let texts = Rc::clone(&self.texts);
        let mut answers = self.answers(cx);
        match question {
            HotQuestion::Key { to, max } => response::found(&mut answers, &to, &query::join(gathered, max)),
            HotQuestion::Recall { to, ask } => match recall::join(&gathered) {
                Ok(()) => response::recalled(&mut answers, &to, &ask, &texts.region),
                Err(refusal) => answers.reply(&to, &[], |out| {
                    response::refusal(out, &to, refusal.code, &refusal.remark);
                }),
            },
        }
    }

    /// Stops reading a connection whose requests go into a lane that is not emptied.
    fn check_backlog(&mut self, cx: &mut Context<CoreMessage>, conn: ConnectionId, to: CoreId) {
        if self.is_congested(to) {
            self.counters.congested += 1;
            cx.hold(conn);
            self.congested.push(conn);
        }
    }

    fn is_congested(&self, to: CoreId) -> bool {
        let (messages, bytes) = self.lanes.backlog(to);
        messages >= BACKLOG_MESSAGES || bytes >= BACKLOG_BYTES
    }

    fn let_go_of_congested(&mut self, cx: &mut Context<CoreMessage>) {
        if self.congested.is_empty() || (0..self.cores).any(|core| self.is_congested(CoreId(core))) {
            return;
        }
        for conn in self.congested.drain(..) {
            cx.release(conn);
        }
    }

    fn arm_timer(&mut self, cx: &mut Context<CoreMessage>) {
        let now_us = cx.now().mono_us;
        let periodic = self.owner.is_some() || !self.queries.is_empty() || self.stopping_since_us.is_some();
        let due_us = [
            periodic.then_some(now_us + TICK_US),
            (!self.lanes.is_idle()).then_some(now_us + RETRY_US),
            self.host.next_tick_us(),
            self.pops.next_us(),
        ];
        let Some(due_us) = due_us.into_iter().flatten().min() else { return };
        if self.timer_due_us.is_none_or(|armed_us| due_us < armed_us) {
            self.timer_due_us = Some(due_us);
            cx.timer_at(due_us, token(TokenKind::Core, 0));
        }
    }

    fn refuse(&mut self, cx: &mut Context<CoreMessage>, to: &ReplyTo, code: i32, remark: &str) {
        self.counters.refused += 1;
        self.answers(cx).reply(to, &[], |out| response::refusal(out, to, code, remark));
    }

    /// Counts a request as in flight, and stops reading its connection at the limit.
    fn begin(&mut self, cx: &mut Context<CoreMessage>, to: &mut ReplyTo, bytes: usize) {
        to.counted = true;
        to.bytes = u32::try_from(bytes).expect("a frame is below 4 GiB");
        if self.connections.begin(to.conn, bytes) == Reading::Hold {
            cx.hold(to.conn);
        }
    }
}

/// Where the answer to a scanned request goes; not counted yet.
fn reply_to(conn: ConnectionId, header: &ScannedHeader) -> ReplyTo {
    ReplyTo {
        conn,
        opaque: header.opaque,
        form: header.serialize_type,
        oneway: header.is_oneway(),
        bytes: 0,
        counted: false,
    }
}

/// The refusal of everything that comes while the broker stops.
fn shutting_down() -> (i32, &'static str) {
    (ResponseCode::ServiceNotAvailable.to_i32(), "the broker is shutting down")
}
