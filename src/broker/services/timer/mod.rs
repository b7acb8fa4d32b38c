//! The service of arbitrary delays: delivers what waits in this shard's queue of `rmq_sys_wheel_timer`, each at its time.
//!
//! Role: the glue between the index of times ([`index`]), the book of what is done ([`done`]), recalls ([`recalls`]) and the
//! shard. Invariants: a message is never delivered before the time in its entry, and once; what is done counts only when it is
//! stored; a recall that was accepted wins. Messages come in the order of their times, except that one whose bytes must be
//! read from the disk does not hold up the others.

pub mod done;
pub mod index;
pub mod recalls;

use crate::gather::{RecallAsk, ShardAnswer};
use crate::processor::delay::{self, DelayTexts, Target};
use crate::services::deliver::{Delivery, deliver, log_drop};
use crate::services::progress::{Found, Progress};
use crate::services::schedule::mono_us;
use crate::services::{ServiceKind, ServiceTicket, ShardContext, ShardService, Stored, Waiter};
use done::DoneBook;
use hashbrown::{HashMap, HashSet};
use index::{Timed, TimerIndex};
use message::properties::{MAX_PROPERTIES_BYTES, PropertiesSource, PropertyList, find, name};
use message::record::{RecordFields, RecordView};
use message::{QueueOffset, names};
use reactor::CoreId;
use recalls::{RecallId, Recalls};
use remoting::ResponseCode;
use serde::{Deserialize, Serialize};
use store::{LookAhead, Missing, QueueEntry, ReadStep};

/// Entries read at once.
const READ_ENTRIES: usize = 1024;
/// Deliveries of one turn.
const TURN_RECORDS: usize = 256;
/// Bytes of records of one turn after which no other is started.
const TURN_BYTES: usize = 4 << 20;
/// Deliveries that wait to be stored.
const IN_FLIGHT: usize = 1024;
/// Messages whose bytes are being read from the disk.
const PARKED: usize = 64;
/// How long after a refused delivery the next is tried.
const RETRY_US: u64 = 100_000;
/// Tries to read a message before it is given up.
const READ_TRIES: u32 = 10;

/// What it saves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TimerProgress {
    /// What of the queue is done.
    pub done: DoneBook,
    /// Physical offsets of waiting records that are delivered, and not done in that book.
    pub beyond: Vec<u64>,
}

/// The service of one shard.
#[derive(Debug, Default)]
pub struct Timer {
    queue_id: u32,
    /// Next offset of the queue to read.
    next: u64,
    /// There may be entries from there on.
    more: bool,
    /// The entries from there on are being read from the disk.
    reading: bool,
    waiting: TimerIndex,
    done: DoneBook,
    recalls: Recalls,
    /// Put, not stored yet, by token.
    in_flight: HashMap<u64, Timed>,
    /// Recalls whose records are being stored, by token.
    recalling: HashMap<u64, Recalling>,
    next_recall: u64,
    /// Being read from the disk, by token.
    parked: HashMap<u64, Timed>,
    /// Waiting records that were delivered before the start, but are not done in the book.
    delivered: HashSet<u64>,
    /// Of the message that could not be read last.
    failed_reads: u32,
    due_us: Option<u64>,
    entries: Vec<QueueEntry>,
    /// Taken out because their time has come, in order; empty between turns.
    due: Vec<Timed>,
    ahead: LookAhead,
}

/// A recall that is answered when it is stored.
#[derive(Debug)]
struct Recalling {
    from: CoreId,
    gather: u64,
    /// In the table of recalls, when its tick is near.
    id: Option<RecallId>,
}

/// What a turn may still do.
struct Budget {
    records: usize,
    bytes: usize,
}

/// Token of a read of the queue itself; those of messages are their queue offsets.
const READ_TOKEN: u64 = u64::MAX;
/// Set in the tokens of recalls.
const RECALL_TOKEN: u64 = 1 << 62;
/// A recall of a message whose tick begins so soon is known before its record is read back.
const NEAR_MS: i64 = 5_000;
/// `TAGS` of the record of a recall.
const RECALL_TAG: &[u8] = b"_RECALL_TAG_";

/// What became of a message whose time has come.
#[derive(PartialEq)]
enum Fired {
    /// It is under way, or done.
    Gone,
    /// Again, a little later.
    Later,
}

impl Timer {
    /// Messages that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len() + self.parked.len() + self.in_flight.len()
    }

    /// Takes up new entries. Tells whether it is to be tried again later.
    fn read(&mut self, cx: &mut ShardContext<'_, '_>) -> bool {
        while self.more && !self.reading {
            self.entries.clear();
            let from = QueueOffset(self.next);
            let step = cx.shard.queue_entries(names::TIMER_TOPIC, self.queue_id, from, READ_ENTRIES, &mut self.entries);
            match step {
                ReadStep::Ready(next) => {
                    self.more = next.0 > self.next;
                    self.next = self.next.max(next.0);
                }
                ReadStep::Missing(missing) => {
                    self.reading = true;
                    self.park(cx, missing, READ_TOKEN);
                    return false;
                }
                ReadStep::Failed(error) => {
                    tracing::error!(shard = cx.id.0, %error, "the queue of timed messages cannot be read");
                    return true;
                }
            }
            for entry in std::mem::take(&mut self.entries) {
                // What we store has its time in the entry.
                if let Some(timed) = timed_by_tag(&entry) {
                    self.done.read(&timed);
                    self.waiting.push(timed);
                }
            }
            self.done.read_up_to(self.next);
        }
        false
    }

    /// A message's time has come.
    fn fire(&mut self, cx: &mut ShardContext<'_, '_>, timed: Timed, ahead: &LookAhead, budget: &mut Budget) -> Fired {
        if !self.delivered.is_empty() && self.delivered.remove(&timed.offset.0) {
            return self.finish(timed);
        }
        if let Some(record) = ahead.record(timed.offset) {
            return self.fire_record(cx, timed, &record, budget);
        }
        let bytes = match cx.record_at(timed.offset) {
            ReadStep::Ready(bytes) => bytes,
            ReadStep::Missing(missing) => {
                self.parked.insert(timed.queue_offset(), timed);
                self.park(cx, missing, timed.queue_offset());
                return Fired::Gone;
            }
            ReadStep::Failed(error) if self.failed_reads < READ_TRIES => {
                self.failed_reads += 1;
                tracing::error!(shard = cx.id.0, offset = timed.offset.0, %error, "a timed message cannot be read");
                return Fired::Later;
            }
            ReadStep::Failed(_) => None,
        };
        match bytes.as_deref().and_then(|bytes| RecordView::parse(bytes).ok()) {
            Some(record) => self.fire_record(cx, timed, &record, budget),
            None => self.gone(cx, timed),
        }
    }

    fn gone(&mut self, cx: &ShardContext<'_, '_>, timed: Timed) -> Fired {
        self.failed_reads = 0;
        log_drop(cx, "timed", timed.offset, "its record is gone");
        self.finish(timed)
    }

    fn fire_record(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        timed: Timed,
        record: &RecordView<'_>,
        budget: &mut Budget,
    ) -> Fired {
        self.failed_reads = 0;
        if record.topic() != names::TIMER_TOPIC {
            return self.gone(cx, timed);
        }
        if timed.cancels() {
            if let Some(key) = find(record.properties(), name::TIMER_DELETE_UNIQUE_KEY) {
                // It is done when nothing of its tick can come any more.
                self.recalls.add(key, timed.due_ms, Some(timed));
                return Fired::Gone;
            }
            return self.finish(timed);
        }
        if self.recalls.covers(record.properties()) {
            tracing::debug!(shard = cx.id.0, offset = timed.offset.0, "a timed message was recalled");
            return self.finish(timed);
        }
        self.put(cx, timed, record, budget)
    }

    fn put(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        timed: Timed,
        record: &RecordView<'_>,
        budget: &mut Budget,
    ) -> Fired {
        let precision_ms = cx.snapshot.delays.precision_ms;
        let (mut enqueued, mut dequeued) = (itoa::Buffer::new(), itoa::Buffer::new());
        let enqueued = enqueued.format(record.store_timestamp_ms().div_euclid(precision_ms) * precision_ms);
        let dequeued = dequeued.format(cx.now().wall_ms);
        let mut list = PropertyList::parse(record.properties());
        list.put(name::TIMER_ENQUEUE_MS, enqueued.as_bytes());
        list.put(name::TIMER_DEQUEUE_MS, dequeued.as_bytes());
        // A message is worth more than two times in its properties.
        let properties = if list.encoded_len() <= MAX_PROPERTIES_BYTES {
            PropertiesSource::List(list.view())
        } else {
            PropertiesSource::Text(record.properties())
        };
        let ticket = ServiceTicket { kind: ServiceKind::Timer, token: timed.queue_offset() };
        match deliver(cx, record, properties, ticket) {
            Delivery::Put => {
                self.in_flight.insert(timed.queue_offset(), timed);
                budget.records -= 1;
                budget.bytes = budget.bytes.saturating_sub(record.size() as usize);
                Fired::Gone
            }
            Delivery::Dropped(reason) => {
                log_drop(cx, "timed", timed.offset, &reason);
                self.finish(timed)
            }
            Delivery::Later(reason) => {
                tracing::debug!(shard = cx.id.0, reason, "a timed message is delivered later");
                Fired::Later
            }
        }
    }

    /// Fires everything that is due, as far as the budget goes; tells when to go on, in monotonic microseconds.
    fn fire_due(&mut self, cx: &mut ShardContext<'_, '_>) -> Option<u64> {
        let now = cx.now();
        let mut budget = Budget { records: TURN_RECORDS, bytes: TURN_BYTES };
        loop {
            if budget.records == 0 || budget.bytes == 0 {
                return Some(now.mono_us);
            }
            if self.in_flight.len() >= IN_FLIGHT || self.parked.len() >= PARKED {
                return None;
            }
            let most = budget.records.min(IN_FLIGHT - self.in_flight.len());
            let mut due = std::mem::take(&mut self.due);
            due.extend(std::iter::from_fn(|| self.waiting.pop_due(now.wall_ms)).take(most));
            let none_due = due.is_empty();
            let fired = self.fire_batch(cx, &mut due, &mut budget);
            due.drain(..).for_each(|timed| self.waiting.push(timed));
            self.due = due;
            if fired == Fired::Later {
                return Some(now.mono_us + RETRY_US);
            }
            if none_due {
                return self.waiting.first().map(|first| mono_us(now, first.due_ms));
            }
        }
    }

    /// Fires these, in order, as far as the budget goes; what is left in the list was not. Records that lie side by side are
    /// read at once.
    fn fire_batch(&mut self, cx: &mut ShardContext<'_, '_>, due: &mut Vec<Timed>, budget: &mut Budget) -> Fired {
        let mut ahead = std::mem::take(&mut self.ahead);
        let (mut at, mut fired) = (0, Fired::Gone);
        while let Some(&timed) = due.get(at)
            && budget.records > 0
            && budget.bytes > 0
            && self.parked.len() < PARKED
        {
            if !ahead.reaches(timed.offset) {
                cx.shard.look_ahead(due[at..].iter().map(|timed| timed.offset), &mut ahead);
            }
            self.done.start(&timed);
            fired = self.fire(cx, timed, &ahead, budget);
            if fired == Fired::Later {
                break;
            }
            at += 1;
        }
        due.drain(..at);
        self.ahead = ahead;
        fired
    }

    fn finish(&mut self, timed: Timed) -> Fired {
        self.done.done(&timed);
        Fired::Gone
    }

    /// A message is not to be delivered, if it waits here. `from` is told for its `gather`, when that is stored.
    pub fn recall(&mut self, cx: &mut ShardContext<'_, '_>, from: CoreId, gather: u64, ask: &RecallAsk) {
        if let Err(code) = self.store_recall(cx, from, gather, ask) {
            let id = cx.id;
            cx.answers.shard_answer(from, gather, id, ShardAnswer::Recalled(code));
        }
    }

    fn store_recall(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        from: CoreId,
        gather: u64,
        ask: &RecallAsk,
    ) -> Result<(), ResponseCode> {
        let now_ms = cx.now().wall_ms;
        if ask.time_ms <= now_ms {
            return Err(ResponseCode::IllegalOperation);
        }
        let key = recalls::key(ask.topic.as_bytes(), &ask.unique_id);
        let (time, born) = (ask.time_ms.to_string(), now_ms.to_string());
        let mut texts = DelayTexts::default();
        let mut list = PropertyList::default();
        for (name, value) in [
            (name::TAGS, RECALL_TAG),
            (name::TIMER_DELETE_UNIQUE_KEY, &key),
            (name::UNIQ_KEY, &ask.unique_id),
            (name::TIMER_DELIVER_MS, time.as_bytes()),
            (name::BORN_TIMESTAMP, born.as_bytes()),
            (name::PRODUCER_GROUP, ask.group.as_bytes()),
        ] {
            if !value.is_empty() {
                list.put(name, value);
            }
        }
        let target = Target { topic: ask.topic.as_bytes(), queue_id: 0, shard: cx.id };
        let waiting = delay::redirect(&mut list, target, &cx.snapshot.delays, now_ms, &mut texts);
        let waiting = waiting.ok().flatten().ok_or(ResponseCode::SystemError)?;
        let record = RecordFields {
            queue_id: waiting.queue_id as i32,
            flag: 0,
            sys_flag: 0,
            born_timestamp_ms: now_ms,
            born_host: ask.client,
            store_host: cx.store_host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            topic: waiting.topic,
            body: b"0",
            properties: PropertiesSource::List(list.view()),
        };
        let token = RECALL_TOKEN | self.next_recall;
        let ticket = ServiceTicket { kind: ServiceKind::Timer, token };
        cx.put(cx.id, &record, Waiter::Service(ticket)).map_err(|_| ResponseCode::SystemError)?;
        self.next_recall += 1;
        let tick_ms = waiting.timer_out_ms.unwrap_or(now_ms);
        let id = (tick_ms <= now_ms + NEAR_MS).then(|| self.recalls.add(&key, tick_ms, None));
        self.recalling.insert(token, Recalling { from, gather, id });
        Ok(())
    }

    /// The record of a recall is stored, or not.
    fn recalled(&mut self, cx: &mut ShardContext<'_, '_>, recalling: &Recalling, stored: bool) {
        if let (false, Some(id)) = (stored, recalling.id) {
            self.recalls.remove(id);
        }
        let code = if stored { ResponseCode::Success } else { ResponseCode::SystemError };
        let shard = cx.id;
        cx.answers.shard_answer(recalling.from, recalling.gather, shard, ShardAnswer::Recalled(code));
    }

    /// Forgets recalls when every message of their tick has had its time.
    fn expire_recalls(&mut self, cx: &ShardContext<'_, '_>) {
        if self.recalls.is_empty() {
            return;
        }
        let parked = self.parked.values().map(|timed| timed.due_ms).min();
        let first = self.waiting.first().map(|timed| timed.due_ms);
        let oldest_ms = parked.into_iter().chain(first).fold(cx.now().wall_ms, i64::min);
        for timed in self.recalls.expire(oldest_ms, cx.snapshot.delays.precision_ms) {
            self.done.done(&timed);
        }
    }

    fn park(&self, cx: &mut ShardContext<'_, '_>, missing: Missing, token: u64) {
        cx.park(missing, ServiceTicket { kind: ServiceKind::Timer, token });
    }

    fn wake_at(&mut self, at_us: u64) {
        self.due_us = Some(self.due_us.map_or(at_us, |due_us| due_us.min(at_us)));
    }

    /// Takes up an entry that was there at the start.
    fn resume(&mut self, cx: &mut ShardContext<'_, '_>, found: &Found, known: &HashSet<u64>, entry: &QueueEntry) {
        let precision_ms = cx.snapshot.delays.precision_ms;
        let by_tag = timed_by_tag(entry).map(|timed| {
            // One that lies exactly on a tick belongs to the tick before.
            let within_ms = timed.due_ms - i64::from(!timed.cancels());
            (timed, within_ms.div_euclid(precision_ms) * precision_ms)
        });
        let Some((timed, tick_ms)) = by_tag.or_else(|| timed_by_record(cx, entry)) else {
            return log_drop(cx, "timed", entry.offset, "its record has no time");
        };
        if self.done.is_done(&timed) || delivered_by_java(found, &timed, tick_ms) {
            return;
        }
        if known.contains(&entry.offset.0) {
            self.delivered.insert(entry.offset.0);
        }
        self.done.resume(&timed);
        self.waiting.push(timed);
    }
}

impl ShardService for Timer {
    fn start(&mut self, cx: &mut ShardContext<'_, '_>, found: &Found) {
        self.queue_id = u32::from(cx.id.0) * cx.snapshot.delays.timer_width;
        let own = found.progress.as_ref().map(|progress| progress.timer.clone()).unwrap_or_default();
        let known: HashSet<u64> = found.delivered.iter().chain(&own.beyond).copied().collect();
        self.done = own.done;
        self.next = self.done.low;
        loop {
            let (queue_id, from) = (self.queue_id, QueueOffset(self.next));
            self.entries.clear();
            let entries = &mut self.entries;
            let read =
                cx.now_or_wait(|shard| shard.queue_entries(names::TIMER_TOPIC, queue_id, from, READ_ENTRIES, entries));
            let next = match read {
                Ok(next) if next.0 > self.next => next.0,
                Ok(_) => break,
                Err(error) => panic!("the queue of timed messages of shard {} cannot be read: {error}", cx.id.0),
            };
            for entry in std::mem::take(&mut self.entries) {
                self.resume(cx, found, &known, &entry);
            }
            self.next = next;
        }
        self.done.read_up_to(self.next);
        self.done.resumed();
        tracing::info!(shard = cx.id.0, waiting = self.waiting.len(), "timed messages were taken up");
        self.wake_at(0);
    }

    fn visible(&mut self, _topic: &[u8], queue_id: u32, _max_offset: u64, _tag: i64) {
        if queue_id == self.queue_id {
            self.more = true;
            self.wake_at(0);
        }
    }

    fn run(&mut self, cx: &mut ShardContext<'_, '_>) {
        self.due_us = None;
        if self.read(cx) {
            self.wake_at(cx.now().mono_us + RETRY_US);
        }
        if let Some(at_us) = self.fire_due(cx) {
            self.wake_at(at_us);
        }
        self.expire_recalls(cx);
        if let Some(first_ms) = self.recalls.first_ms() {
            self.wake_at(mono_us(cx.now(), first_ms).max(cx.now().mono_us + RETRY_US));
        }
    }

    fn stored(&mut self, cx: &mut ShardContext<'_, '_>, token: u64, stored: Result<Stored, String>) {
        if let Some(recalling) = self.recalling.remove(&token) {
            return self.recalled(cx, &recalling, stored.is_ok());
        }
        let Some(timed) = self.in_flight.remove(&token) else { return };
        match stored {
            Ok(_) => {
                self.done.done(&timed);
                self.wake_at(cx.now().mono_us);
            }
            Err(reason) => {
                tracing::warn!(shard = cx.id.0, reason, "a timed message was not stored: it is delivered again");
                self.waiting.push(timed);
                self.wake_at(cx.now().mono_us + RETRY_US);
            }
        }
    }

    fn fetched(&mut self, _cx: &mut ShardContext<'_, '_>, token: u64) {
        if token == READ_TOKEN {
            self.reading = false;
        } else if let Some(timed) = self.parked.remove(&token) {
            self.waiting.push(timed);
        }
        self.wake_at(0);
    }

    fn due_us(&self) -> Option<u64> {
        self.due_us
    }

    fn save(&self, progress: &mut Progress) {
        let mut beyond: Vec<u64> = self.delivered.iter().copied().collect();
        beyond.sort_unstable();
        progress.timer = TimerProgress { done: self.done.saved(), beyond };
    }
}

/// What an entry with its time in it says; `None` for one that a Java broker wrote.
fn timed_by_tag(entry: &QueueEntry) -> Option<Timed> {
    if i32::try_from(entry.tag).is_ok() {
        return None;
    }
    Some(Timed::new(entry.tag.saturating_abs(), entry.queue_offset.0, entry.tag < 0, entry.offset))
}

/// What the record of an entry says, and its `TIMER_OUT_MS`. At the start only: it waits for the disk.
fn timed_by_record(cx: &mut ShardContext<'_, '_>, entry: &QueueEntry) -> Option<(Timed, i64)> {
    let offset = entry.offset;
    let bytes = cx.now_or_wait(|shard| shard.record_at(offset)).ok()??;
    let record = RecordView::parse(&bytes).ok()?;
    let tag = store::timer_due(record.properties(), record.store_timestamp_ms())?;
    let out_ms = std::str::from_utf8(find(record.properties(), name::TIMER_OUT_MS)?).ok()?.parse().ok()?;
    Some((timed_by_tag(&QueueEntry { tag, ..*entry })?, out_ms))
}

/// Whether a Java broker that ran on this store has delivered it: what its wheel had taken up, it delivers tick by tick.
fn delivered_by_java(found: &Found, timed: &Timed, tick_ms: i64) -> bool {
    let java = found.java.timer.as_ref();
    java.is_some_and(|java| timed.queue_offset() < java.queue_offset && tick_ms < java.read_ms)
}
