//! The shards of one core and all that waits on them.
//!
//! Role: carries out the work of one queue (append, pull, question) whether it came from a connection of this core or over a
//! lane, and ends each turn: one write for each shard, then the answers, then the wake-ups. Owner of the order "write, answer,
//! wake". Invariants: a send is acknowledged only after the write (and under SYNC_FLUSH the sync) that covers it, in order; a
//! failed write or sync acknowledges nothing; a read that misses bytes parks and runs again; every request ends in exactly one
//! settling answer. It checks no metadata: that was done on the connection's core.

mod send_back;
mod services;

use crate::config::BrokerOptions;
use crate::crossing::{Answers, CoreMessage, ReplyTo};
use crate::gather::{ShardAnswer, ShardAsk};
use crate::long_polling::{LongPolls, MAX_HOLD_MS};
use crate::owner::OwnerRequest;
use crate::parked::{AckGroups, Acknowledge, Parked, Pending};
use crate::processor::{pull, send};
use crate::response::{self, SendIdentity};
use crate::services::context::stage;
use crate::services::progress::ProgressFiles;
use crate::services::{ServiceKind, ServiceTicket, Services, Stored, Waiter, transaction};
use crate::snapshot::Snapshot;
use crate::stats::Traffic;
use crate::work::{HeldPull, PullWork, Question, QueueQuestion, SendBytes, SendNumbers};
use message::batch::Batch;
use message::properties::{PropertiesSource, pairs};
use message::record::RecordFields;
use message::{PhysicalOffset, QueueOffset};
use reactor::{CoreId, JobOutput, Now};
use remoting::ResponseCode;
use services::Saving;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use store::{
    AppendError, Bounds, Completion, FlushMode, GetStatus, Missing, PullLimits, Pulled, ReadStep, Shard, ShardCommand,
    ShardId,
};

/// Resets that a core remembers as taken.
const MAX_RESETS_TAKEN: usize = 1 << 16;

/// The shards of one core.
pub struct ShardHost {
    hosted: Vec<Hosted>,
    progress: ProgressFiles,
    polls: LongPolls,
    woken: Vec<HeldPull>,
    /// Ids grow: of many, the oldest are in no snapshot any more.
    resets_taken: BTreeSet<u64>,
    /// What held pulls are checked against when they are woken.
    snapshot: Arc<Snapshot>,
    store_host: SocketAddr,
    options: Arc<BrokerOptions>,
    identity: SendIdentity,
    sync: bool,
    sync_timeout_ms: u64,
    closed: bool,
}

struct Hosted {
    id: ShardId,
    shard: Shard,
    acks: AckGroups,
    parked: Parked,
    traffic: Traffic,
    services: Services,
    /// What its services put and is stored (or refused), until they are told in the same turn.
    stored: Vec<(ServiceTicket, Result<Stored, String>)>,
    saving: Saving,
}

impl ShardHost {
    /// Hosts these shards. `store_host` goes into records, `identity` into answers; `sync_timeout_ms` is Java's
    /// `syncFlushTimeout`.
    pub fn new(
        shards: Vec<(ShardId, Shard)>,
        progress: ProgressFiles,
        snapshot: Arc<Snapshot>,
        options: Arc<BrokerOptions>,
        identity: SendIdentity,
        flush: FlushMode,
        sync_timeout_ms: u64,
    ) -> Self {
        let hosted = shards
            .into_iter()
            .map(|(id, shard)| Hosted {
                id,
                shard,
                acks: AckGroups::default(),
                parked: Parked::default(),
                traffic: Traffic::default(),
                services: Services::default(),
                stored: Vec::new(),
                saving: Saving::default(),
            })
            .collect();
        let sync = flush == FlushMode::Sync;
        Self {
            hosted,
            progress,
            polls: LongPolls::default(),
            woken: Vec::new(),
            resets_taken: BTreeSet::new(),
            snapshot,
            store_host: options.address,
            options,
            identity,
            sync,
            sync_timeout_ms,
            closed: false,
        }
    }

    /// Pulls that are held on this core.
    pub fn held_pulls(&self) -> usize {
        self.polls.len()
    }

    /// The shards of this core.
    pub fn shards(&self) -> impl Iterator<Item = (ShardId, &Shard)> {
        self.hosted.iter().map(|hosted| (hosted.id, &hosted.shard))
    }

    /// Stages 1..n records of one queue; the answer follows the write of the turn.
    pub fn send(
        &mut self,
        answers: &mut Answers<'_>,
        to: ReplyTo,
        shard: ShardId,
        numbers: &SendNumbers,
        bytes: SendBytes<'_>,
    ) {
        let now = answers.cx.now();
        let (store_host, light) = (self.store_host, self.snapshot.light_queues);
        let hosted = self.hosted(shard);
        hosted.open_log(now, store_host, bytes.topic);
        let fields = RecordFields {
            queue_id: numbers.queue_id as i32,
            flag: numbers.flag,
            sys_flag: numbers.sys_flag,
            born_timestamp_ms: numbers.born_timestamp_ms,
            born_host: numbers.born_host,
            store_host,
            reconsume_times: numbers.reconsume_times,
            prepared_transaction_offset: 0,
            topic: bytes.topic,
            body: bytes.body,
            properties: bytes.properties,
        };
        let appended = if numbers.batch {
            match Batch::parse(bytes.body) {
                Ok(batch) => {
                    let refused =
                        batch.iter().find_map(|entry| send::check_batch(pairs(entry.properties), light).err());
                    if let Some(refusal) = refused {
                        hosted.traffic.put_refused += 1;
                        return answers.reply(&to, &[], |out| {
                            response::refusal(out, &to, refusal.code, &refusal.remark);
                        });
                    }
                    let records: Vec<RecordFields<'_>> = batch
                        .iter()
                        .map(|entry| RecordFields {
                            flag: entry.flag,
                            body: entry.body,
                            properties: PropertiesSource::Text(entry.properties),
                            ..fields
                        })
                        .collect();
                    hosted.shard.append(now, &records)
                }
                Err(error) => {
                    hosted.traffic.put_refused += 1;
                    return answers.refuse(&to, ResponseCode::MessageIllegal, &error.to_string());
                }
            }
        } else {
            hosted.shard.append(now, std::slice::from_ref(&fields))
        };
        match appended {
            Ok(appended) => {
                hosted.traffic.put(appended.offsets.len() as u64, bytes.body.len() as u64);
                hosted.acks.stage(Acknowledge {
                    to: Waiter::Send(to),
                    queue_id: numbers.answered_queue_id,
                    queue_offset: appended.queue_offset,
                    offsets: appended.offsets,
                    unique_id: SmallVec::from_slice(bytes.unique_id),
                    recall_handle: (!bytes.recall_handle.is_empty()).then(|| bytes.recall_handle.into()),
                    wait: numbers.wait,
                });
            }
            Err(error) => {
                hosted.traffic.put_refused += 1;
                let (code, remark) = append_refusal(&error);
                answers.refuse(&to, code, &remark);
            }
        }
    }

    /// Reads a queue: answers, holds or parks.
    pub fn pull(&mut self, answers: &mut Answers<'_>, to: ReplyTo, work: PullWork) {
        let shard = work.topic.shard_of(work.queue_id);
        let Some(at) = self.position(shard) else { return answers.settle(&to) };
        self.run_pull(answers, at, to, work);
    }

    /// Answers a question about a queue, or parks it.
    pub fn ask(&mut self, answers: &mut Answers<'_>, to: ReplyTo, shard: ShardId, question: QueueQuestion) {
        let Some(at) = self.position(shard) else {
            return answers.refuse(&to, ResponseCode::SystemError, "no such shard");
        };
        self.run_question(answers, at, to, question);
    }

    /// A question of a gather.
    pub fn shard_ask(&mut self, answers: &mut Answers<'_>, from: CoreId, gather: u64, shard: ShardId, ask: ShardAsk) {
        let Some(at) = self.position(shard) else {
            return answers.shard_answer(from, gather, shard, ShardAnswer::Failed("no such shard".into()));
        };
        if let ShardAsk::DeleteTopic(topic) = &ask {
            self.polls.flush_topic(topic, &mut self.woken);
        }
        self.run_ask(answers, at, from, gather, ask);
    }

    /// A sync, a background job or a fetch of a shard ended. `value` is the token's value, as packed by [`token_value`].
    pub fn completed(&mut self, answers: &mut Answers<'_>, value: u64, result: io::Result<JobOutput>) {
        let Some(at) = self.position(ShardId((value >> 32) as u16)) else { return };
        let now = answers.cx.now();
        match self.hosted[at].shard.completed(now, value as u32, result) {
            Completion::Nothing => {}
            Completion::Durable => self.release_durable(answers, at),
            Completion::Fetched(id) => {
                for pending in self.hosted[at].parked.take(id) {
                    self.run_again(answers, at, pending);
                }
            }
        }
    }

    /// A connection is gone.
    pub fn connection_closed(&mut self, conn: reactor::ConnectionId) {
        self.polls.connection_closed(conn);
    }

    /// Ends the turn: writes, answers, wakes, and hands the shards' commands to the driver.
    pub fn turn_end(&mut self, answers: &mut Answers<'_>) {
        let now = answers.cx.now();
        for at in 0..self.hosted.len() {
            self.run_services_and_write(answers, at);
            let Self { hosted, polls, woken, snapshot, .. } = self;
            let Hosted { shard, services, .. } = &mut hosted[at];
            shard.newly_visible(&mut |visible| {
                services.visible(visible.topic, visible.queue_id, visible.max_offset.0, visible.tags_code);
                if !services.pop.watches().is_empty() {
                    services.pop.watches().arrived(visible.topic);
                }
                let changed = |work: &PullWork| pull::subscription_changed(work, snapshot);
                polls.wake(visible.topic, visible.queue_id, visible.max_offset.0, visible.tags_code, changed, woken);
            });
            for watch in services.pop.watches().take_told() {
                answers.lanes.post(watch.core, CoreMessage::PopWake(watch));
            }
        }
        self.polls.expire(now, &mut self.woken);
        for held in std::mem::take(&mut self.woken) {
            self.pull_again(answers, held);
        }
        for hosted in &mut self.hosted {
            hosted.shard.tick(now);
            hosted.save_progress(answers, &self.progress, now);
            hosted.submit(answers);
        }
    }

    /// Time passed without a request: what waits for a sync too long is told so.
    pub fn check_timeouts(&mut self, answers: &mut Answers<'_>) {
        let now = answers.cx.now();
        let Self { hosted, identity, .. } = self;
        for hosted in hosted {
            let own = &mut hosted.stored;
            hosted
                .acks
                .expire(now, |ack| response::stored(answers, ack, identity, ResponseCode::FlushDiskTimeout, own));
        }
    }

    /// The core stops: held pulls are answered. Tells whether everything that waits for a sync is answered.
    pub fn stopping(&mut self, answers: &mut Answers<'_>) -> bool {
        for at in 0..self.hosted.len() {
            self.with_services(answers, at, |services, cx| services.pop.stopping(cx));
        }
        let mut held = Vec::new();
        self.polls.flush_all(&mut held);
        for pull in held {
            self.pull_again(answers, pull);
        }
        self.hosted.iter().all(|hosted| hosted.acks.is_empty())
    }

    /// Writes and syncs what is left, and closes the shards. Blocking; for the very end.
    ///
    /// # Errors
    /// The first shard that could not.
    pub fn close(&mut self) -> io::Result<()> {
        let results: Vec<io::Result<()>> = self.hosted.iter_mut().map(|hosted| hosted.shard.close()).collect();
        results.into_iter().collect::<io::Result<()>>()?;
        self.save_progress()?;
        self.closed = true;
        Ok(())
    }

    /// Whether every shard was closed without an error.
    pub fn closed_cleanly(&self) -> bool {
        self.closed
    }

    /// When `turn_end` wants to be called at the latest, in monotonic microseconds; `None` while nothing waits.
    pub fn next_tick_us(&self) -> Option<u64> {
        let shards = self
            .hosted
            .iter()
            .flat_map(|hosted| [hosted.shard.next_tick_us(), hosted.acks.next_deadline_us(), hosted.next_us()]);
        shards.chain([self.polls.next_deadline_us()]).flatten().min()
    }

    fn position(&self, shard: ShardId) -> Option<usize> {
        self.hosted.iter().position(|hosted| hosted.id == shard)
    }

    fn hosted(&mut self, shard: ShardId) -> &mut Hosted {
        let at = self.position(shard).expect("the router sends to the core of the shard");
        &mut self.hosted[at]
    }

    fn write(&mut self, answers: &mut Answers<'_>, at: usize) {
        let Self { hosted, identity, sync, sync_timeout_ms, .. } = self;
        let hosted = &mut hosted[at];
        let now = answers.cx.now();
        let result = hosted.shard.write_staged(now);
        if hosted.acks.nothing_staged() {
            return;
        }
        match result {
            Ok(()) => {
                let deadline_us = now.mono_us + *sync_timeout_ms * 1000;
                let end = hosted.shard.end();
                let own = &mut hosted.stored;
                hosted.acks.written(*sync, end, deadline_us, |ack| {
                    response::stored(answers, ack, identity, ResponseCode::Success, own);
                });
            }
            Err(error) => {
                hosted.traffic.failed_writes += 1;
                tracing::error!(shard = hosted.id.0, %error, "the write of a turn failed");
                let remark = format!("the broker could not store the message: {error}");
                let own = &mut hosted.stored;
                hosted.acks.write_failed(|ack| {
                    response::not_stored(answers, &ack.to, ResponseCode::ServiceNotAvailable, &remark, own);
                });
            }
        }
    }

    fn release_durable(&mut self, answers: &mut Answers<'_>, at: usize) {
        let Self { hosted, identity, .. } = self;
        let hosted = &mut hosted[at];
        let durable = hosted.shard.durable_to();
        let own = &mut hosted.stored;
        hosted.acks.durable(durable, |ack| response::stored(answers, ack, identity, ResponseCode::Success, own));
        if let Err(error @ AppendError::ReadOnly(_)) = hosted.shard.is_writable() {
            let (code, remark) = append_refusal(&error);
            let own = &mut hosted.stored;
            hosted.acks.sync_failed(|ack| response::not_stored(answers, &ack.to, code, &remark, own));
        }
    }

    /// The metadata changed.
    pub fn install(&mut self, answers: &mut Answers<'_>, snapshot: Arc<Snapshot>) {
        self.identity.trace_on = snapshot.settings.trace_on;
        let first = self.snapshot.version == 0;
        self.snapshot = snapshot;
        if first {
            self.start_services(answers);
        }
    }

    fn run_again(&mut self, answers: &mut Answers<'_>, at: usize, pending: Pending) {
        match pending {
            Pending::Pull(to, work) => self.run_pull(answers, at, to, work),
            Pending::Question(to, question) => self.run_question(answers, at, to, question),
            Pending::SendBack(to, work) => self.run_send_back(answers, at, to, work),
            Pending::Service(ticket) => self.service_fetched(answers, at, ticket),
            Pending::Ask { from, gather, ask } => self.run_ask(answers, at, from, gather, ask),
        }
    }

    fn run_pull(&mut self, answers: &mut Answers<'_>, at: usize, to: ReplyTo, work: PullWork) {
        let hosted = &mut self.hosted[at];
        if let Some(reset) = work.reset
            && self.resets_taken.insert(reset.id)
        {
            if self.resets_taken.len() > MAX_RESETS_TAKEN {
                self.resets_taken.pop_first();
            }
            let bounds = hosted.shard.bounds(work.topic.name.as_bytes(), work.queue_id).unwrap_or_default();
            answers.lanes.owner(OwnerRequest::ResetTaken {
                topic: work.topic.name.to_string(),
                group: work.group.name.to_string(),
                queue_id: work.queue_id,
                id: reset.id,
            });
            return response::pull_reset(answers, &to, &work, reset.offset, bounds);
        }
        let now_us = answers.cx.now().mono_us;
        match hosted.pull_step(&work) {
            ReadStep::Ready(mut pulled) => {
                let code = response::pull_code(pulled.status, work.offset);
                if let Some(deadline_us) = hold_until(&work, code, &pulled, now_us) {
                    return self.hold(answers, to, work, deadline_us, pulled);
                }
                let code = seen_from_asked(&work, code, &mut pulled);
                hosted.traffic.got(u64::from(pulled.count), u64::from(pulled.bytes));
                response::pull(answers, &to, &work, code, pulled);
            }
            ReadStep::Missing(missing) => {
                hosted.traffic.cold_reads += 1;
                hosted.park(missing, Pending::Pull(to, work));
            }
            ReadStep::Failed(error) => {
                hosted.traffic.failed_reads += 1;
                answers.refuse(&to, ResponseCode::SystemError, &error.to_string());
            }
        }
    }

    /// Runs a pull that was held: it is checked again if the metadata changed, and is held a second time only by `hold_until`.
    fn pull_again(&mut self, answers: &mut Answers<'_>, held: HeldPull) {
        let HeldPull { reply, mut work } = held;
        work.suspend_ms = None;
        if let Err((refusal, forbidden)) = pull::check_again(&work, &self.snapshot) {
            return response::pull_refusal(answers, &reply, &refusal, forbidden);
        }
        if pull::subscription_changed(&work, &self.snapshot) {
            return self.ask_again(answers, &reply, &work);
        }
        self.pull(answers, reply, work);
    }

    /// Sends a client back to the same offset, to ask with the subscription that it has now.
    fn ask_again(&self, answers: &mut Answers<'_>, to: &ReplyTo, work: &PullWork) {
        let hosted = self.hosted.iter().find(|hosted| hosted.id == work.topic.shard_of(work.queue_id));
        let bounds = hosted.and_then(|hosted| hosted.shard.bounds(work.topic.name.as_bytes(), work.queue_id));
        let Bounds { min, max } = bounds.unwrap_or_default();
        let next_begin = QueueOffset(work.asked_offset.max(0) as u64);
        let status = GetStatus::NoMatchedMessage;
        let slices = SmallVec::new();
        let last_offset = PhysicalOffset(0);
        let nothing = Pulled { status, next_begin, min, max, slices, bytes: 0, count: 0, behind_bytes: 0, last_offset };
        response::pull(answers, to, work, ResponseCode::PullRetryImmediately, nothing);
    }

    /// Holds a pull that found nothing; one that asks the messages goes on behind those that it has asked.
    fn hold(&mut self, answers: &mut Answers<'_>, to: ReplyTo, mut work: PullWork, deadline_us: u64, pulled: Pulled) {
        if work.filter.expression().is_some() {
            work.hold_until_us = Some(deadline_us);
            work.offset = work.offset.max(pulled.next_begin.to_i64());
        }
        let held = HeldPull { reply: ReplyTo { counted: false, ..to }, work };
        match self.polls.hold(held, deadline_us) {
            None => answers.settle(&to),
            Some(held) => {
                let mut pulled = pulled;
                let code = seen_from_asked(&held.work, ResponseCode::PullNotFound, &mut pulled);
                response::pull(answers, &to, &held.work, code, pulled);
            }
        }
    }

    fn run_question(&mut self, answers: &mut Answers<'_>, at: usize, to: ReplyTo, question: QueueQuestion) {
        let hosted = &mut self.hosted[at];
        let (topic, queue_id) = (&question.topic[..], question.queue_id);
        let bounds = hosted.shard.bounds(topic, queue_id).unwrap_or_default();
        let step = match question.question {
            Question::MaxOffset => ReadStep::Ready(bounds.max.to_i64()),
            Question::MinOffset => ReadStep::Ready(bounds.min.to_i64()),
            Question::EarliestStoreTime => {
                hosted.shard.store_time_at(topic, queue_id, bounds.min).map(|time| time.unwrap_or(-1))
            }
            Question::OffsetByTime { timestamp_ms, boundary } => {
                hosted.shard.offset_by_time(topic, queue_id, timestamp_ms, boundary).map(QueueOffset::to_i64)
            }
            Question::Record(offset) => return self.run_record(answers, at, to, question, offset),
        };
        match step {
            ReadStep::Ready(value) => response::of_question(answers, &to, question.question, value),
            ReadStep::Missing(missing) => hosted.park(missing, Pending::Question(to, question)),
            ReadStep::Failed(error) => answers.refuse(&to, ResponseCode::SystemError, &error.to_string()),
        }
    }

    fn run_record(
        &mut self,
        answers: &mut Answers<'_>,
        at: usize,
        to: ReplyTo,
        question: QueueQuestion,
        offset: PhysicalOffset,
    ) {
        match self.hosted[at].shard.record_at(offset) {
            ReadStep::Ready(Some(record)) => response::body(answers, &to, &record),
            ReadStep::Ready(None) => answers.refuse(&to, ResponseCode::SystemError, &no_record(offset.to_i64())),
            ReadStep::Missing(missing) => self.hosted[at].park(missing, Pending::Question(to, question)),
            ReadStep::Failed(error) => answers.refuse(&to, ResponseCode::SystemError, &error.to_string()),
        }
    }

    fn run_ask(&mut self, answers: &mut Answers<'_>, at: usize, from: CoreId, gather: u64, ask: ShardAsk) {
        if let ShardAsk::Recall(ask) = ask {
            return self.recall(answers, at, from, gather, &ask);
        }
        let hosted = &mut self.hosted[at];
        if let ShardAsk::DeleteTopic(topic) = &ask {
            hosted.services.pop.topic_deleted(topic);
        }
        let answer = match crate::shard_ask::run(&mut hosted.shard, &hosted.traffic, &ask) {
            ReadStep::Ready(answer) => answer,
            ReadStep::Missing(missing) => return hosted.park(missing, Pending::Ask { from, gather, ask }),
            ReadStep::Failed(error) => ShardAnswer::Failed(error.to_string()),
        };
        answers.shard_answer(from, gather, hosted.id, answer);
    }
}

impl Hosted {
    /// Lets no message that waits lie at offset 0, see [`transaction::opening_mark`].
    fn open_log(&mut self, now: Now, store_host: SocketAddr, topic: &[u8]) {
        if self.shard.end().0 == 0 && self.acks.nothing_staged() && ServiceKind::of_topic(topic).is_some() {
            let (mark, waiter) = transaction::opening_mark(now.wall_ms, store_host);
            if let Err(error) = stage(&mut self.shard, &mut self.acks, now, &mark, waiter) {
                tracing::debug!(%error, "the message that follows will be refused as well");
            }
        }
    }

    fn pull_step(&mut self, work: &PullWork) -> ReadStep<Pulled> {
        let topic = work.topic.name.as_bytes();
        let Some(from) = QueueOffset::from_i64(work.offset) else {
            return ReadStep::Ready(below_all(self.shard.bounds(topic, work.queue_id)));
        };
        let limits = PullLimits { max_count: work.max_count, max_bytes: work.max_bytes };
        match work.filter.expression() {
            None => {
                self.shard.pull(topic, work.queue_id, from, limits, &mut |tags_code| work.filter.matches(tags_code))
            }
            Some(expression) => {
                let mut accepts = |properties: &[u8]| expression.matches(properties);
                self.shard.pull_by_properties(topic, work.queue_id, from, limits, &mut accepts)
            }
        }
    }

    /// When its services or their progress want a turn, in monotonic microseconds.
    fn next_us(&self) -> Option<u64> {
        self.services.due_us()
    }

    fn park(&mut self, missing: Missing, pending: Pending) {
        let id = self.shard.fetch(missing);
        self.parked.park(id, pending);
    }

    fn submit(&mut self, answers: &mut Answers<'_>) {
        for command in self.shard.take_commands() {
            match command {
                ShardCommand::Sync { file, token } => answers.cx.sync(file, self.token(token)),
                ShardCommand::WriteBack { file, offset, len } => answers.cx.write_back(file, offset, len),
                ShardCommand::Background { job, token } => answers.cx.background(job, self.token(token)),
            }
        }
    }

    fn token(&self, token: u32) -> reactor::Token {
        crate::router::token(crate::router::TokenKind::Shard, u64::from(self.id.0) << 32 | u64::from(token))
    }
}

/// Until when a pull that found nothing is held, in monotonic µs: as long as it asked for, or, when it was held before and woken
/// in vain, for the rest of that time.
fn hold_until(work: &PullWork, code: ResponseCode, pulled: &Pulled, now_us: u64) -> Option<u64> {
    let nothing_there = code == ResponseCode::PullNotFound;
    if nothing_there && let Some(suspend_ms) = work.suspend_ms {
        return Some(now_us + suspend_ms.min(MAX_HOLD_MS) * 1000);
    }
    let none_fits = pulled.status == GetStatus::NoMatchedMessage && pulled.next_begin == pulled.max;
    work.hold_until_us.filter(|&until_us| until_us > now_us && (nothing_there || none_fits))
}

/// A client that was held while messages passed that are not for it hears of them as if they had been looked at only now.
fn seen_from_asked(work: &PullWork, code: ResponseCode, pulled: &mut Pulled) -> ResponseCode {
    if code == ResponseCode::PullNotFound && work.offset > work.asked_offset {
        pulled.status = GetStatus::NoMatchedMessage;
        return ResponseCode::PullRetryImmediately;
    }
    code
}

/// What a pull below 0 finds: Java's answers for a queue that is not there, never had a message, or starts later.
fn below_all(bounds: Option<Bounds>) -> Pulled {
    let status = match bounds {
        None => GetStatus::NoMatchedLogicQueue,
        Some(bounds) if bounds.max == QueueOffset(0) => GetStatus::NoMessageInQueue,
        Some(_) => GetStatus::OffsetTooSmall,
    };
    let Bounds { min, max } = bounds.unwrap_or_default();
    Pulled {
        status,
        next_begin: min,
        min,
        max,
        slices: SmallVec::new(),
        bytes: 0,
        count: 0,
        behind_bytes: 0,
        last_offset: PhysicalOffset(0),
    }
}

/// The code and text for an append that the store does not take.
pub(crate) fn append_refusal(error: &AppendError) -> (ResponseCode, String) {
    let code = match error {
        AppendError::Illegal(_) => ResponseCode::MessageIllegal,
        AppendError::NoSpace | AppendError::ReadOnly(_) => ResponseCode::ServiceNotAvailable,
        AppendError::SegmentNotMade(_) => ResponseCode::SystemError,
        AppendError::TooManyLightQueues => {
            let remark = format!("[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]{error}");
            return (ResponseCode::SystemError, remark);
        }
    };
    (code, error.to_string())
}

fn no_record(offset: i64) -> String {
    format!("can not find message by the offset, {offset}")
}
