//! The connection's side of POP: admission, and what waits for messages.
//!
//! Invariants: a pop that waits is in the holds of its connection's core, and every shard that may have something for it was told
//! to say so, after it was held; it leaves the holds to run again, or to be answered.

use super::BrokerCore;
use crate::crossing::{CoreMessage, Forwarded, PollingInfo, ReplyTo, Work};
use crate::owner::{OwnerRequest, Refusal};
use crate::pop_holds::HeldPop;
use crate::processor::pop::{self, Admission, Checks};
use crate::processor::pop_batch;
use crate::response;
use crate::router::core_of;
use crate::services::ServiceRequest;
use crate::services::pop::request::{AckRun, PopHeader, PopRequest, PopRun, RunKind, WatchAsk, shards_of};
use crate::services::pop::watch::Watch;
use reactor::{Context, CoreId};
use remoting::scan;
use remoting::{Command, RequestCode, ResponseCode};
use smallvec::SmallVec;
use std::net::SocketAddr;
use store::ShardId;

/// Longest hold, ms: well below the idle time-out of a connection.
const MAX_HOLD_MS: u64 = 60_000;
/// After this many looks in vain a held pop is woken by what comes, and looks at what is there only now and then.
const LOOKS: u32 = 4;
/// How often that is, µs.
const LOOK_EVERY_US: u64 = 200_000;
/// Bytes of a pop's request that count for its connection.
const POP_BYTES: usize = 512;

impl BrokerCore {
    /// 200050.
    pub(super) fn pop(
        &mut self,
        cx: &mut Context<CoreMessage>,
        to: ReplyTo,
        peer: SocketAddr,
        frame: &[u8],
        fields: &scan::PopHeader,
        asked: bool,
    ) {
        let header = pop::pop_header(frame, fields, cx.now().wall_ms);
        let (topic, group) = (fields.topic.text(frame), fields.group.text(frame));
        let names = (&*String::from_utf8_lossy(&topic), &*String::from_utf8_lossy(&group));
        self.admit_pop(cx, to, peer, RunKind::Pop, names, header, frame, asked);
    }

    /// 200052, 200054 and 200055.
    pub(super) fn pop_look(
        &mut self,
        cx: &mut Context<CoreMessage>,
        to: ReplyTo,
        peer: SocketAddr,
        code: RequestCode,
        frame: &[u8],
        asked: bool,
    ) {
        let Some(command) = self.decode(cx, to.conn, frame) else { return };
        let kind = match code {
            RequestCode::PeekMessage => RunKind::Peek,
            RequestCode::Notification => RunKind::Notify,
            _ => return self.polling_info(cx, to, peer, &command, frame, asked),
        };
        let header = match pop::look_header(kind, &command, cx.now().wall_ms) {
            Ok(header) => header,
            Err(refusal) => return self.refuse(cx, &to, refusal.code, &refusal.remark),
        };
        let text = |name: &str| command.ext.get(name).unwrap_or_default();
        let names = (text("topic"), text("consumerGroup"));
        self.admit_pop(cx, to, peer, kind, names, header, frame, asked);
    }

    #[expect(clippy::too_many_arguments, reason = "a frame with everything that is known of it")]
    fn admit_pop(
        &mut self,
        cx: &mut Context<CoreMessage>,
        mut to: ReplyTo,
        peer: SocketAddr,
        kind: RunKind,
        names: (&str, &str),
        header: PopHeader,
        frame: &[u8],
        asked: bool,
    ) {
        let turn = self.next_pop_turn();
        let (options, snapshot) = (&self.options, &self.snapshot);
        let revive_queues = self.revive_queues;
        let checks = Checks { snapshot, options, peer, now_ms: cx.now().wall_ms, asked, turn, revive_queues };
        match pop::admit(kind, names, header, &checks, &mut self.compiled, false) {
            Admission::Run(run) => {
                self.begin(cx, &mut to, POP_BYTES);
                self.walk(cx, to, run);
            }
            Admission::NeedGroup => self.need_pop_group(cx, &to, names.1, frame),
            Admission::Refuse(refusal) => self.refuse(cx, &to, refusal.code, &refusal.remark),
        }
    }

    fn need_pop_group(&mut self, cx: &mut Context<CoreMessage>, to: &ReplyTo, group: &str, frame: &[u8]) {
        let ticket = self.connections.wait(to.conn, frame);
        cx.hold(to.conn);
        let group = group.to_owned();
        self.lanes.owner(OwnerRequest::EnsureGroup { ticket, group });
    }

    /// 200051 and 200053.
    pub(super) fn pop_ack(
        &mut self,
        cx: &mut Context<CoreMessage>,
        to: ReplyTo,
        peer: SocketAddr,
        code: RequestCode,
        frame: &[u8],
    ) {
        let Some(command) = self.decode(cx, to.conn, frame) else { return };
        let request = match code {
            RequestCode::AckMessage => {
                pop::ack(&command, &self.snapshot, peer).map(|(shard, ask)| (shard, PopRequest::Ack(Box::new(ask))))
            }
            _ => pop::change(&command, &self.snapshot, peer)
                .map(|(shard, ask)| (shard, PopRequest::Change(Box::new(ask)))),
        };
        match request {
            Ok((shard, request)) => self.ask_service(cx, to, shard, ServiceRequest::Pop(request), frame.len()),
            Err(Refusal { code, remark }) => self.refuse(cx, &to, code, &remark),
        }
    }

    /// 200151.
    pub(super) fn pop_batch_ack(&mut self, cx: &mut Context<CoreMessage>, to: ReplyTo, body: &[u8]) {
        let items = match pop_batch::items(body, &self.snapshot) {
            Ok(items) => items,
            Err(Refusal { code, remark }) => return self.refuse(cx, &to, code, &remark),
        };
        let Some(first) = items.first() else { return response::success(&mut self.answers(cx), &to) };
        let (shard, run) = (first.shard, Box::new(AckRun { items, done: 0 }));
        self.ask_service(cx, to, shard, ServiceRequest::Pop(PopRequest::Acks(run)), body.len());
    }

    fn next_pop_turn(&mut self) -> u32 {
        self.pop_turn = self.pop_turn.wrapping_add(1);
        self.pop_turn
    }

    /// Sends a pop to the first of its shards.
    fn walk(&mut self, cx: &mut Context<CoreMessage>, to: ReplyTo, run: Box<PopRun>) {
        match run.shard() {
            Some(shard) => self.hand_to_service(cx, to, shard, ServiceRequest::Pop(PopRequest::Run(run))),
            None => response::pop(&mut self.answers(cx), &to, &run, ResponseCode::PollingTimeout),
        }
    }

    fn hand_to_service(&mut self, cx: &mut Context<CoreMessage>, to: ReplyTo, shard: ShardId, request: ServiceRequest) {
        let core = core_of(shard, self.cores);
        if core == self.core {
            let (host, mut answers) = self.parts(cx);
            host.service(&mut answers, to, shard, request);
        } else {
            let work = Work::Service(Box::new(request));
            self.lanes.requests(core).entries.push(Forwarded { reply: to, shard, work });
            self.check_backlog(cx, to.conn, core);
        }
    }

    /// A pop found nothing: it is held, and its shards are told to say when they have something.
    pub(super) fn hold_pop(&mut self, cx: &mut Context<CoreMessage>, to: ReplyTo, mut run: Box<PopRun>) {
        let now = cx.now();
        let left_ms = run.header.born_ms.saturating_add(run.header.poll_ms).saturating_sub(now.wall_ms);
        let left_ms = u64::try_from(left_ms).unwrap_or(0).min(MAX_HOLD_MS);
        let stopping = self.stopping_since_us.is_some() || self.connections.get(to.conn).is_none();
        if left_ms == 0 || stopping {
            return response::pop(&mut self.answers(cx), &to, &run, ResponseCode::PollingTimeout);
        }
        let (topic, group) = (run.topic.clone(), run.group.clone());
        if !self.pops.has_room(&topic.name, &group.name, run.header.queue_id) {
            return response::pop(&mut self.answers(cx), &to, &run, ResponseCode::PollingFull);
        }
        run.looks += 1;
        let look = run.looks <= LOOKS;
        let deadline_us = now.mono_us + left_ms * 1000;
        let look_us = if look { deadline_us } else { now.mono_us + LOOK_EVERY_US };
        self.answers(cx).settle(&to);
        let held = HeldPop { to: ReplyTo { counted: false, ..to }, run };
        let (ask, shards) = self.watch_of(&held.run, look);
        self.pops.hold(held, look_us, deadline_us);
        self.ask_to_watch(cx, to, &ask, &shards);
    }

    /// What the shards of a held pop are asked.
    fn watch_of(&self, run: &PopRun, look: bool) -> (WatchAsk, SmallVec<[ShardId; 8]>) {
        let ask = WatchAsk {
            core: self.core,
            topic: run.topic.clone(),
            group: run.group.clone(),
            queue_id: run.header.queue_id,
            order: run.header.order,
            look,
        };
        // What comes back does so in any shard of the topic, whichever queue was asked for.
        (ask, shards_of(&run.topic, &run.retries, -1, 0))
    }

    /// In the lane of the requests: a shard sees it after what was asked before.
    fn ask_to_watch(&mut self, cx: &mut Context<CoreMessage>, to: ReplyTo, ask: &WatchAsk, shards: &[ShardId]) {
        let to = ReplyTo { counted: false, oneway: true, ..to };
        for shard in shards {
            let request = ServiceRequest::Pop(PopRequest::Watch(Box::new(ask.clone())));
            self.hand_to_service(cx, to, *shard, request);
        }
    }

    /// A shard has something for held pops: the oldest of each group that it is for runs; the next one waits for what is left.
    pub(super) fn pop_wake(&mut self, cx: &mut Context<CoreMessage>, watch: &Watch) {
        for held in self.pops.wake(&watch.topic, watch.group.as_deref()) {
            let (topic, group) = (held.run.topic.name.clone(), held.run.group.name.clone());
            self.pop_again(cx, held, false);
            if let Some(next) = self.pops.first(&topic, &group) {
                let (to, (ask, shards)) = (next.to, self.watch_of(&next.run, true));
                self.ask_to_watch(cx, to, &ask, &shards);
            }
        }
    }

    /// Runs a pop that was held, checked anew.
    fn pop_again(&mut self, cx: &mut Context<CoreMessage>, held: HeldPop, last: bool) {
        let HeldPop { to, run } = held;
        let Some(peer) = self.connections.get(to.conn).map(|conn| conn.peer) else { return };
        let turn = self.next_pop_turn();
        let (options, snapshot) = (&self.options, &self.snapshot);
        let revive_queues = self.revive_queues;
        let checks = Checks { snapshot, options, peer, now_ms: cx.now().wall_ms, asked: true, turn, revive_queues };
        let PopRun { kind, looks, topic, group, header, .. } = *run;
        match pop::admit(kind, (&topic.name, &group.name), header, &checks, &mut self.compiled, last) {
            Admission::Run(mut run) => {
                run.looks = looks;
                self.walk(cx, to, run);
            }
            Admission::NeedGroup => {
                let code = ResponseCode::SubscriptionGroupNotExist.to_i32();
                self.refuse(cx, &to, code, "the subscription group does not exist any more");
            }
            Admission::Refuse(refusal) => self.refuse(cx, &to, refusal.code, &refusal.remark),
        }
    }

    /// Held pops whose time is up, or that look again by themselves.
    pub(super) fn expire_pops(&mut self, cx: &mut Context<CoreMessage>) {
        if self.pops.is_empty() {
            return;
        }
        for (held, over) in self.pops.expire(cx.now()) {
            self.pop_again(cx, held, over);
        }
    }

    /// The core stops: what is held is answered.
    pub(super) fn flush_pops(&mut self, cx: &mut Context<CoreMessage>) {
        for held in self.pops.take_all() {
            response::pop(&mut self.answers(cx), &held.to, &held.run, ResponseCode::PollingTimeout);
        }
    }

    /// 200055: the cores count what they hold, one after the other.
    fn polling_info(
        &mut self,
        cx: &mut Context<CoreMessage>,
        mut to: ReplyTo,
        peer: SocketAddr,
        command: &Command,
        frame: &[u8],
        asked: bool,
    ) {
        let (options, snapshot) = (&self.options, &self.snapshot);
        let revive_queues = self.revive_queues;
        let checks = Checks { snapshot, options, peer, now_ms: cx.now().wall_ms, asked, turn: 0, revive_queues };
        match pop::polling_info(command, &checks) {
            Ok(Some((topic, group, queue_id))) => {
                self.begin(cx, &mut to, 0);
                let info = PollingInfo { to, topic, group, queue_id, count: 0, counted: 0 };
                self.count_polling(cx, Box::new(info));
            }
            Ok(None) => {
                let group = command.ext.get("consumerGroup").unwrap_or_default();
                self.need_pop_group(cx, &to, group, frame);
            }
            Err(refusal) => self.refuse(cx, &to, refusal.code, &refusal.remark),
        }
    }

    pub(super) fn count_polling(&mut self, cx: &mut Context<CoreMessage>, mut info: Box<PollingInfo>) {
        if info.counted == self.cores {
            let PollingInfo { to, count, .. } = *info;
            return response::polling_info(&mut self.answers(cx), &to, count);
        }
        info.count += self.pops.count(&info.topic, &info.group, info.queue_id) as u64;
        info.counted += 1;
        let next = CoreId((self.core.0 + 1) % self.cores);
        self.lanes.post(next, CoreMessage::PollingInfo(info));
    }
}
