//! The services of the shards of one core: when they run, what they are told, when they are saved.
//!
//! Invariants: services run before the turn's write, so that what is due leaves with it; they are told of what is stored after
//! the write and before the turn ends; their progress is written only when the log behind it is durable, at most once a second
//! for each shard, and once more at the very end.

use super::{Hosted, ShardHost, append_refusal};
use crate::crossing::{Answers, ReplyTo};
use crate::gather::RecallAsk;
use crate::owner::OwnerRequest;
use crate::response;
use crate::router::{TokenKind, token};
use crate::services::context::stage;
use crate::services::progress::{Found, Progress, ProgressFiles};
use crate::services::{ServiceRequest, ServiceTicket, Services, ShardContext, Stored, Waiter};
use message::PhysicalOffset;
use message::record::RecordFields;
use reactor::{BackgroundTask, ConnectionId, CoreId, Job, JobClass, Now, Step};
use remoting::ResponseCode;
use std::io;
use store::ShardId;
use sys::disk::Disk;

/// How often the progress of a shard's services is looked at, in microseconds.
const SAVE_EVERY_US: u64 = 1_000_000;
/// Rounds of "write, tell, write what that brought" in one turn.
const ROUNDS: usize = 4;

/// How far the progress of a shard's services is saved.
#[derive(Debug, Default)]
pub(super) struct Saving {
    /// The services have taken up what the store holds. Before that they know nothing, and must not say so in the file.
    started: bool,
    /// What the file holds, but for the end of the log.
    written: Progress,
    /// Waits for the log to be durable up to its end.
    captured: Option<Progress>,
    /// Is being written.
    in_flight: Option<Progress>,
    /// When it is looked at again, in monotonic microseconds.
    next_us: u64,
}

impl ShardHost {
    /// Stores a record that a service of another shard put.
    pub fn put(&mut self, answers: &mut Answers<'_>, shard: ShardId, record: &RecordFields<'_>, waiter: Waiter) {
        let now = answers.cx.now();
        if self.snapshot.deleting.iter().any(|name| name.as_bytes() == record.topic) {
            let hosted = self.hosted(shard);
            hosted.traffic.put_refused += 1;
            let code = ResponseCode::TopicNotExist;
            return response::not_stored(answers, &waiter, code, "topic is being deleted", &mut hosted.stored);
        }
        let hosted = self.hosted(shard);
        if let Err(error) = stage(&mut hosted.shard, &mut hosted.acks, now, record, waiter) {
            hosted.traffic.put_refused += 1;
            let (code, remark) = append_refusal(&error);
            response::not_stored(answers, &waiter, code, &remark, &mut hosted.stored);
        }
    }

    /// What a service of this core put into another shard is durable there, or was refused.
    pub fn stored_elsewhere(
        &mut self,
        answers: &mut Answers<'_>,
        shard: ShardId,
        ticket: ServiceTicket,
        stored: Result<Stored, String>,
    ) {
        let Some(at) = self.position(shard) else { return };
        self.with_services(answers, at, |services, cx| services.stored(cx, ticket, stored));
    }

    /// The owner has looked for a producer to ask about a half message.
    pub fn producer_found(&mut self, answers: &mut Answers<'_>, shard: ShardId, half: u64, conn: Option<ConnectionId>) {
        let Some(at) = self.position(shard) else { return };
        self.with_services(answers, at, |services, cx| services.transaction.producer_found(cx, half, conn));
    }

    /// Carries out a client's request to a service.
    pub fn service(&mut self, answers: &mut Answers<'_>, to: ReplyTo, shard: ShardId, request: ServiceRequest) {
        let Some(at) = self.position(shard) else { return answers.settle(&to) };
        self.with_services(answers, at, |services, cx| services.request(cx, to, request));
    }

    /// The owner says where a group is in the queues of a topic.
    pub fn pop_offsets(&mut self, answers: &mut Answers<'_>, shard: ShardId, ask: u32, offsets: &[(u32, i64)]) {
        let Some(at) = self.position(shard) else { return };
        self.with_services(answers, at, |services, cx| services.pop.offsets(cx, ask, offsets));
    }

    /// Recalls a timed message.
    pub(super) fn recall(&mut self, answers: &mut Answers<'_>, at: usize, from: CoreId, gather: u64, ask: &RecallAsk) {
        self.with_services(answers, at, |services, cx| services.timer.recall(cx, from, gather, ask));
    }

    /// Bytes that a service waits for are there.
    pub(super) fn service_fetched(&mut self, answers: &mut Answers<'_>, at: usize, ticket: ServiceTicket) {
        self.with_services(answers, at, |services, cx| services.fetched(cx, ticket));
    }

    /// The first metadata is there: the services take up what the store holds.
    ///
    /// # Panics
    /// The progress of a shard cannot be read or written: to go on would lose or double messages.
    pub(super) fn start_services(&mut self, answers: &mut Answers<'_>) {
        for at in 0..self.hosted.len() {
            let id = self.hosted[at].id;
            let found: Found = self.progress.find(&self.hosted[at].shard).unwrap_or_else(|error| {
                panic!("what waits in shard {} cannot be taken up: {error}", id.0);
            });
            self.with_services(answers, at, |services, cx| services.start(cx, &found));
            // From now on the log behind this point tells what was delivered.
            let hosted = &mut self.hosted[at];
            let progress = hosted.services.save(hosted.progress_end());
            if let Err(error) = self.progress.write(id, &progress) {
                panic!("the progress of shard {} cannot be saved: {error}", id.0);
            }
            answers.lanes.owner(OwnerRequest::DelayOffsets(progress.schedule.delivered.clone()));
            hosted.saving.written = progress;
            hosted.saving.started = true;
        }
    }

    /// Runs the services that are due, writes, tells what is stored, as long as that brings more.
    pub(super) fn run_services_and_write(&mut self, answers: &mut Answers<'_>, at: usize) {
        let now = answers.cx.now();
        if crate::services::is_due(self.hosted[at].services.due_us(), now) {
            self.with_services(answers, at, Services::run);
        }
        for _ in 0..ROUNDS {
            self.write(answers, at);
            if self.hosted[at].stored.is_empty() {
                return;
            }
            let mut told = std::mem::take(&mut self.hosted[at].stored);
            for (ticket, stored) in told.drain(..) {
                self.with_services(answers, at, |services, cx| services.stored(cx, ticket, stored));
            }
            // The list is kept for its memory.
            told.append(&mut self.hosted[at].stored);
            self.hosted[at].stored = told;
        }
        self.write(answers, at);
    }

    pub(super) fn with_services(
        &mut self,
        answers: &mut Answers<'_>,
        at: usize,
        f: impl FnOnce(&mut Services, &mut ShardContext<'_, '_>),
    ) {
        let Self { hosted, snapshot, store_host, identity, options, .. } = self;
        let Hosted { id, shard, acks, parked, services, .. } = &mut hosted[at];
        let (id, store_host) = (*id, *store_host);
        let mut cx = ShardContext { answers, shard, id, snapshot, store_host, identity, options, acks, parked };
        f(services, &mut cx);
    }

    /// The progress of a shard was written, or not (then it is tried again).
    pub fn progress_written(&mut self, answers: &mut Answers<'_>, shard: u64, result: io::Result<()>) {
        let Some(hosted) = self.hosted.iter_mut().find(|hosted| u64::from(hosted.id.0) == shard) else { return };
        let Some(progress) = hosted.saving.in_flight.take() else { return };
        match result {
            Ok(()) => {
                if progress.schedule != hosted.saving.written.schedule {
                    answers.lanes.owner(OwnerRequest::DelayOffsets(progress.schedule.delivered.clone()));
                }
                hosted.saving.written = progress;
            }
            Err(error) => {
                tracing::error!(shard, %error, "the progress of delayed and transaction messages was not saved")
            }
        }
    }

    /// Saves the progress of every shard now; blocking, for the very end, after the shards were closed.
    pub(super) fn save_progress(&mut self) -> io::Result<()> {
        for hosted in self.hosted.iter_mut().filter(|hosted| hosted.saving.started) {
            let progress = hosted.services.save(hosted.progress_end());
            self.progress.write(hosted.id, &progress)?;
            self.progress.write_order(hosted.services.pop.order_table())?;
        }
        Ok(())
    }
}

impl Hosted {
    /// The end of the log that progress belongs to: what is made from waiting records and not told as stored lies behind it.
    fn progress_end(&self) -> PhysicalOffset {
        let end = self.shard.end();
        self.acks.first_of_services().map_or(end, |first| first.min(end))
    }

    /// Captures changed progress, and has it written once the log is durable up to it.
    pub(super) fn save_progress(&mut self, answers: &mut Answers<'_>, files: &ProgressFiles, now: Now) {
        let saving = &mut self.saving;
        if saving.in_flight.is_none()
            && let Some(progress) = saving.captured.take_if(|progress| progress.log_end <= self.shard.durable_to().0)
        {
            let task = Box::new(Write(files.clone(), self.id, progress.clone()));
            saving.in_flight = Some(progress);
            let token = token(TokenKind::Progress, u64::from(self.id.0));
            answers.cx.background(Job::Task { class: JobClass::Waited, task }, token);
        }
        if !saving.started
            || now.mono_us < saving.next_us
            || saving.captured.is_some()
            || saving.in_flight.is_some()
            || !self.stored.is_empty()
        {
            return;
        }
        saving.next_us = now.mono_us + SAVE_EVERY_US;
        let progress = self.services.save(self.progress_end());
        let saving = &mut self.saving;
        let same = Progress { log_end: saving.written.log_end, ..progress.clone() } == saving.written;
        if !same {
            saving.captured = Some(progress);
        }
    }
}

/// The job that writes progress.
struct Write(ProgressFiles, ShardId, Progress);

impl BackgroundTask for Write {
    fn step(&mut self, _: &dyn Disk) -> io::Result<Step> {
        self.0.write(self.1, &self.2)?;
        Ok(Step::Done(Box::new(())))
    }
}
