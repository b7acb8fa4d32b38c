//! POP in one shard: pops, acknowledgements, and what comes back.
//!
//! Role: the joint of the pure parts with their shard. [`book`] says who holds what, [`records`] how it is written, [`order`] what
//! an ordered queue allows; `serve` pops, `acks` acknowledges and changes, `revive` brings back what was not acknowledged in time,
//! `recover` reads what an earlier process left. Owner of the shard's queues of the revive topic. Invariants: a pop is answered
//! when its check points are written, an acknowledgement when its record is; what comes back is written before its check point
//! ends, and carries `check point's physical offset + index`, so that after a crash it comes back once; the owner learns of an
//! offset when the log behind it is durable. It knows no connection beyond where an answer goes.

pub mod book;
pub mod handle;
pub mod numbers;
pub mod order;
pub mod records;
pub mod request;
pub mod watch;

mod acks;
mod commits;
mod hold;
mod notify;
mod recover;
mod revive;
mod serve;
mod waiting;

use crate::config::BrokerOptions;
use crate::crossing::ReplyTo;
use crate::services::progress::{Found, Progress};
use crate::services::{ShardContext, ShardService, Stored};
use book::Book;
use hashbrown::HashSet;
use message::{PhysicalOffset, QueueOffset};
use records::Draft;
use remoting::ResponseCode;
use request::{PopRequest, PopRun};
use serde::{Deserialize, Serialize};
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use waiting::{Token, Waiting};
use watch::Watches;

/// How often offsets are told to the owner, idle pairs forgotten, and a refused write tried again, µs.
const LOOK_EVERY_US: u64 = 1_000_000;
/// A pair that nobody pops is forgotten after this.
const IDLE_US: u64 = 120_000_000;

/// What it saves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PopProgress {
    /// From where each revive queue of the shard (from 0) is to be read.
    pub revive: BTreeMap<u32, u64>,
    /// Offsets that changed lately: by `topic@group`, then queue.
    pub next: BTreeMap<String, BTreeMap<u32, u64>>,
    /// Ordered queues: as Java's `consumerOrderInfo.json`, by `topic@group`, then queue; each as JSON text.
    pub order: BTreeMap<String, BTreeMap<u32, String>>,
}

/// The service of one shard.
#[derive(Debug, Default)]
pub struct Pop {
    /// Set at the start.
    running: Option<Running>,
    watches: Watches,
}

/// A service that has started.
#[derive(Debug)]
struct Running {
    options: Arc<BrokerOptions>,
    /// The revive topic.
    topic: Arc<str>,
    /// Queue 0 of this shard in it.
    first_queue: u32,
    /// Shards of the store.
    shards: u32,
    book: Book,
    waiting: Slab<Waiting>,
    /// Walks that wait for bytes, or for the owner.
    parked: Slab<(ReplyTo, Box<PopRun>)>,
    /// What the owner was asked, by number.
    asked: BTreeMap<u32, Asked>,
    next_ask: u32,
    /// Offsets that the owner is told when the log is durable up to here.
    commits: Vec<PopCommit>,
    commits_end: PhysicalOffset,
    told_positions: Vec<u64>,
    /// Ordered queues, by the time when they give messages to anybody again, ms since 1970.
    order_due: BTreeSet<(i64, u32, u32)>,
    /// Messages that were brought back before a crash, as they name themselves.
    delivered: HashSet<u64>,
    /// Own records of each revive queue that did not become visible yet, oldest first.
    own: Vec<VecDeque<u64>>,
    /// Revive queues in which somebody else wrote: from this offset on they are to be read.
    foreign: BTreeMap<u32, u64>,
    /// What somebody else wrote is not in memory.
    foreign_parked: bool,
    /// What came back, and no record says so yet: one was refused.
    unmarked: Vec<(u32, book::Offsets)>,
    draft: Draft,
    offsets: Vec<QueueOffset>,
    /// A due check point waits for bytes.
    due_parked: bool,
    /// Not before this: a write was refused, or a topic is being made.
    hold_revive_until_us: u64,
    next_look_us: u64,
    due_us: Option<u64>,
}

/// Walks that wait for where a group is in the queues of a topic.
#[derive(Debug)]
struct Asked {
    topic: Arc<str>,
    group: Arc<str>,
    /// Places among the parked.
    walks: Vec<u32>,
}

/// An offset for the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PopCommit {
    /// The topic.
    pub topic: Arc<str>,
    /// The group.
    pub group: Arc<str>,
    /// The queue.
    pub queue_id: u32,
    /// Where the group goes on.
    pub offset: i64,
}

impl Pop {
    /// Carries out a client's request.
    pub fn request(&mut self, cx: &mut ShardContext<'_, '_>, to: ReplyTo, request: PopRequest) {
        let Self { running: Some(running), watches } = self else {
            return cx.answers.refuse(&to, ResponseCode::SystemBusy, "the POP service has not started yet");
        };
        match request {
            PopRequest::Run(run) => running.run(cx, watches, to, run),
            PopRequest::Ack(ask) => running.ack(cx, watches, to, &ask),
            PopRequest::Acks(run) => running.acks(cx, watches, to, run),
            PopRequest::Change(ask) => running.change(cx, to, &ask),
            PopRequest::Watch(ask) => running.watch(cx, watches, &ask),
        }
        running.plan(cx);
    }

    /// The owner's offsets of a topic and group are there.
    pub fn offsets(&mut self, cx: &mut ShardContext<'_, '_>, ask: u32, offsets: &[(u32, i64)]) {
        if let Self { running: Some(running), watches } = self {
            running.offsets_known(cx, watches, ask, offsets);
        }
    }

    /// A topic is deleted.
    pub fn topic_deleted(&mut self, topic: &str) {
        if let Some(running) = &mut self.running {
            running.forget_topic(topic);
        }
    }

    /// Who waits for messages.
    pub fn watches(&mut self) -> &mut Watches {
        &mut self.watches
    }

    /// The core stops: the owner is told of all offsets now.
    pub fn stopping(&mut self, cx: &mut ShardContext<'_, '_>) {
        if let Some(running) = &mut self.running {
            running.collect_commits();
            running.send_commits(cx);
        }
    }

    /// The ordered queues, for a Java broker: by `topic@group`, then queue.
    pub fn order_table(&self) -> Vec<(String, u32, remoting::Json)> {
        let pairs = self.running.iter().flat_map(|running| running.book.pairs());
        pairs
            .flat_map(|(_, pair)| {
                let key = crate::snapshot::topic_at_group(&pair.topic, &pair.group);
                let ordered = pair.queues.iter().filter_map(|(id, queue)| Some((*id, queue.order.as_ref()?.to_json())));
                ordered.map(move |(id, json)| (key.clone(), id, json))
            })
            .collect()
    }
}

impl ShardService for Pop {
    fn start(&mut self, cx: &mut ShardContext<'_, '_>, found: &Found) {
        self.running = recover::start(cx, found);
    }

    fn visible(&mut self, topic: &[u8], queue_id: u32, max_offset: u64, _tag: i64) {
        if let Some(running) = &mut self.running
            && topic == running.topic.as_bytes()
        {
            running.record_visible(queue_id, max_offset - 1);
        }
    }

    fn run(&mut self, cx: &mut ShardContext<'_, '_>) {
        let Self { running: Some(running), watches } = self else { return };
        running.read_foreign(cx);
        running.free_ordered(cx, watches);
        running.revive_due(cx);
        let now_us = cx.now().mono_us;
        if running.next_look_us <= now_us {
            running.next_look_us = now_us + LOOK_EVERY_US;
            running.tell_owner(cx);
            running.mark_again(cx);
            running.book.forget_idle(now_us.saturating_sub(IDLE_US));
        }
        running.plan(cx);
    }

    fn stored(&mut self, cx: &mut ShardContext<'_, '_>, token: u64, stored: Result<Stored, String>) {
        let Self { running: Some(running), watches } = self else { return };
        if let Some(token) = Token::unpack(token) {
            running.stored(cx, watches, token, stored);
            running.plan(cx);
        }
    }

    fn fetched(&mut self, cx: &mut ShardContext<'_, '_>, token: u64) {
        let Self { running: Some(running), watches } = self else { return };
        match Token::unpack(token) {
            Some(Token::Walk(slot)) => running.unpark(cx, watches, slot),
            Some(Token::Due) => running.due_parked = false,
            Some(Token::Foreign) => running.foreign_parked = false,
            _ => {}
        }
        running.plan(cx);
    }

    fn due_us(&self) -> Option<u64> {
        self.running.as_ref().and_then(|running| running.due_us)
    }

    fn save(&self, progress: &mut Progress) {
        if let Some(running) = &self.running {
            progress.pop = running.progress();
        }
    }
}

impl Running {
    /// An own record is written: it will become visible, and is known already then.
    fn note_own(&mut self, revive_queue: u32, at: u64) {
        if let Some(own) = self.own.get_mut(revive_queue as usize) {
            own.push_back(at);
        }
    }

    /// A record of the revive topic became visible.
    fn record_visible(&mut self, queue_id: u32, at: u64) {
        let Some(queue) = queue_id.checked_sub(self.first_queue).filter(|queue| *queue < self.book.revive_queues())
        else {
            return;
        };
        let own = &mut self.own[queue as usize];
        while own.front().is_some_and(|first| *first < at) {
            own.pop_front();
        }
        if own.front() == Some(&at) {
            own.pop_front();
        } else {
            // Not ours: a check point or an acknowledgement that a Java broker's timer delivers.
            let from = self.foreign.entry(queue).or_insert(at);
            *from = at.min(*from);
            self.due_us = Some(0);
        }
    }

    /// When it wants to run: for the next due check point, and for its look around while anything is outstanding.
    fn plan(&mut self, cx: &ShardContext<'_, '_>) {
        let now = cx.now();
        if !self.foreign.is_empty() && !self.foreign_parked {
            self.due_us = Some(now.mono_us);
            return;
        }
        let us_of = |due_ms: i64| {
            let wait_ms = u64::try_from(due_ms.saturating_sub(now.wall_ms)).unwrap_or(0);
            // A clock that was set forward is noticed at the next look.
            now.mono_us + wait_ms.saturating_mul(1000).min(LOOK_EVERY_US)
        };
        let revive = self.book.first_due().map(|(due_ms, _)| us_of(due_ms).max(self.hold_revive_until_us));
        let ordered = self.order_due.first().map(|(due_ms, ..)| us_of(*due_ms));
        let has_work = !self.commits.is_empty() || self.book.pairs().next().is_some();
        let look = has_work.then_some(self.next_look_us);
        self.due_us = [revive.filter(|_| !self.due_parked), ordered, look].into_iter().flatten().min();
    }
}

/// The name of the revive topic of a cluster.
pub fn revive_topic(cluster: &str) -> String {
    format!("{}{cluster}", String::from_utf8_lossy(message::names::REVIVE_TOPIC_PREFIX))
}
