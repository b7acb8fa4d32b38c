//! The service of delay levels: delivers what waits in this shard's queues of `SCHEDULE_TOPIC_XXXX`.
//!
//! Role: the glue between the queues of the levels ([`level`]) and the shard. Invariants: a level is delivered in the order of
//! its queue, each message once; progress counts what is stored. What cannot be delivered now is tried again a little later.

mod level;

use crate::services::deliver::{Delivery, deliver, log_drop};
use crate::services::progress::{Found, Progress};
use crate::services::{ServiceKind, ServiceTicket, ShardContext, ShardService, Stored};
use hashbrown::HashSet;
use level::{AHEAD, IN_FLIGHT, LevelQueue, Next};
use message::properties::PropertiesSource;
use message::record::RecordView;
use message::{QueueOffset, names};
use reactor::Now;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use store::{LookAhead, Missing, QueueEntry, ReadStep};

/// Deliveries of one turn, over all levels.
const TURN_RECORDS: usize = 256;
/// Bytes of records of one turn after which no other is started.
const TURN_BYTES: usize = 4 << 20;
/// How long after a refused delivery the next is tried.
const RETRY_US: u64 = 100_000;
/// Longest sleep while something waits: a clock that is set forward is noticed by then.
const SLEEP_US: u64 = 500_000;
/// Tries to read a message before it is given up.
const READ_TRIES: u32 = 10;

/// What it saves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScheduleProgress {
    /// By queue: everything below is delivered.
    pub delivered: BTreeMap<u32, u64>,
    /// Physical offsets of waiting records behind that which are delivered too.
    pub beyond: Vec<u64>,
}

/// The service of one shard.
#[derive(Debug, Default)]
pub struct Schedule {
    first_queue: u32,
    levels: Vec<Level>,
    /// Progress of queues that no level uses now.
    others: BTreeMap<u32, u64>,
    /// Waiting records that were delivered before the start, behind the progress of then; each is forgotten when it is passed.
    delivered: HashSet<u64>,
    due_us: Option<u64>,
    entries: Vec<QueueEntry>,
    ahead: LookAhead,
}

#[derive(Debug)]
struct Level {
    queue: LevelQueue,
    /// Waits for bytes.
    parked: bool,
    failed_reads: u32,
}

/// What a turn may still do.
struct Budget {
    records: usize,
    bytes: usize,
}

/// Why a level stops for now.
enum Pause {
    Until(i64),
    Retry,
    Told,
    Budget,
}

impl Schedule {
    /// Does what is due of a level.
    fn run_level(&mut self, cx: &mut ShardContext<'_, '_>, at: usize, budget: &mut Budget) -> Pause {
        let queue_id = self.first_queue + at as u32;
        let now_ms = cx.now().wall_ms;
        loop {
            if self.levels[at].parked {
                return Pause::Told;
            }
            match self.levels[at].queue.next(now_ms) {
                Next::Nothing => return Pause::Told,
                Next::Wait(due_ms) => return Pause::Until(due_ms),
                Next::Read(from) => {
                    self.entries.clear();
                    let from = QueueOffset(from);
                    let step = cx.shard.queue_entries(names::SCHEDULE_TOPIC, queue_id, from, AHEAD, &mut self.entries);
                    match step {
                        ReadStep::Ready(next) => self.levels[at].queue.read(&self.entries, next.0),
                        ReadStep::Missing(missing) => return self.park(cx, at, missing),
                        ReadStep::Failed(error) => {
                            tracing::error!(shard = cx.id.0, queue_id, %error, "a queue of delayed messages cannot be read");
                            return Pause::Retry;
                        }
                    }
                }
                Next::Deliver(_) if budget.records == 0 || budget.bytes == 0 => return Pause::Budget,
                Next::Deliver(entry) if !self.delivered.is_empty() && self.delivered.remove(&entry.offset.0) => {
                    self.levels[at].queue.passed()
                }
                Next::Deliver(entry) => {
                    if !self.ahead.reaches(entry.offset) {
                        cx.shard.look_ahead(self.levels[at].queue.due(now_ms), &mut self.ahead);
                    }
                    if let Some(pause) = self.deliver(cx, at, &entry, budget) {
                        return pause;
                    }
                }
            }
        }
    }

    /// Starts a delivery; tells why the level is to stop, if it is.
    fn deliver(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        at: usize,
        entry: &QueueEntry,
        budget: &mut Budget,
    ) -> Option<Pause> {
        let Self { levels, ahead, .. } = self;
        let level = &mut levels[at];
        if let Some(record) = ahead.record(entry.offset) {
            return deliver_record(cx, level, at, entry, &record, budget);
        }
        let bytes = match cx.record_at(entry.offset) {
            ReadStep::Ready(bytes) => bytes,
            ReadStep::Missing(missing) => return Some(self.park(cx, at, missing)),
            ReadStep::Failed(error) if level.failed_reads < READ_TRIES => {
                level.failed_reads += 1;
                tracing::error!(shard = cx.id.0, offset = entry.offset.0, %error, "a delayed message cannot be read");
                return Some(Pause::Retry);
            }
            ReadStep::Failed(_) => None,
        };
        match bytes.as_deref().and_then(|bytes| RecordView::parse(bytes).ok()) {
            Some(record) => deliver_record(cx, level, at, entry, &record, budget),
            None => pass(cx, level, entry, "its record is gone"),
        }
    }

    /// Which of the records known to be delivered wait in this queue, from `from` on. Deliveries are started in the queue's
    /// order, so that only those that were under way at the end lie between delivered ones.
    fn find_delivered(&mut self, cx: &mut ShardContext<'_, '_>, queue_id: u32, from: u64, known: &HashSet<u64>) {
        let (mut from, mut others) = (QueueOffset(from), 0);
        while others <= IN_FLIGHT && !known.is_empty() {
            self.entries.clear();
            let Self { entries, delivered, .. } = self;
            let read =
                cx.now_or_wait(|shard| shard.queue_entries(names::SCHEDULE_TOPIC, queue_id, from, AHEAD, entries));
            let next = match read {
                Ok(next) => next,
                Err(error) => {
                    tracing::error!(shard = cx.id.0, queue_id, %error, "delayed messages of the last moment may come twice");
                    return;
                }
            };
            if next <= from {
                return;
            }
            for entry in &self.entries {
                if known.contains(&entry.offset.0) {
                    delivered.insert(entry.offset.0);
                } else {
                    others += 1;
                }
            }
            from = next;
        }
    }

    fn park(&mut self, cx: &mut ShardContext<'_, '_>, at: usize, missing: Missing) -> Pause {
        self.levels[at].parked = true;
        cx.park(missing, ServiceTicket { kind: ServiceKind::Schedule, token: token(at, 0) });
        Pause::Told
    }

    fn wake_at(&mut self, at_us: u64) {
        self.due_us = Some(self.due_us.map_or(at_us, |due_us| due_us.min(at_us)));
    }
}

impl ShardService for Schedule {
    fn start(&mut self, cx: &mut ShardContext<'_, '_>, found: &Found) {
        let rules = cx.snapshot.delays.clone();
        self.first_queue = u32::from(cx.id.0) * rules.schedule_width;
        let own = found.progress.as_ref().map(|progress| &progress.schedule.delivered);
        self.others = own.cloned().unwrap_or_default();
        let beyond = found.progress.iter().flat_map(|progress| &progress.schedule.beyond);
        let known: HashSet<u64> = found.delivered.iter().chain(beyond).copied().collect();
        for (at, &delay_ms) in rules.level_ms.iter().enumerate() {
            let queue_id = self.first_queue + at as u32;
            let end = cx.shard.bounds(names::SCHEDULE_TOPIC, queue_id).map_or(0, |bounds| bounds.max.0);
            let own = self.others.remove(&queue_id).unwrap_or(0);
            // A Java broker may have gone on from there; a number beyond the queue is none.
            let java = found.java.delay.get(&(queue_id + 1)).copied().filter(|&java| java <= end).unwrap_or(0);
            let done = own.max(java).min(end);
            self.find_delivered(cx, queue_id, done, &known);
            let queue = LevelQueue::new(delay_ms, done);
            self.levels.push(Level { queue, parked: false, failed_reads: 0 });
        }
        self.wake_at(0);
    }

    fn visible(&mut self, _topic: &[u8], queue_id: u32, _max_offset: u64, _tag: i64) {
        let level = queue_id.checked_sub(self.first_queue).and_then(|at| self.levels.get_mut(at as usize));
        if let Some(level) = level {
            level.queue.grew();
            if matches!(level.queue.next(i64::MIN), Next::Read(_)) {
                self.wake_at(0);
            }
        }
    }

    fn run(&mut self, cx: &mut ShardContext<'_, '_>) {
        self.due_us = None;
        let now = cx.now();
        let mut budget = Budget { records: TURN_RECORDS, bytes: TURN_BYTES };
        for at in 0..self.levels.len() {
            match self.run_level(cx, at, &mut budget) {
                Pause::Until(due_ms) => self.wake_at(mono_us(now, due_ms)),
                Pause::Retry => self.wake_at(now.mono_us + RETRY_US),
                Pause::Budget => self.wake_at(now.mono_us),
                Pause::Told => {}
            }
        }
    }

    fn stored(&mut self, cx: &mut ShardContext<'_, '_>, token: u64, stored: Result<Stored, String>) {
        let (at, queue_offset) = ((token >> OFFSET_BITS) as usize, token & ((1 << OFFSET_BITS) - 1));
        let Some(level) = self.levels.get_mut(at) else { return };
        if let Err(reason) = &stored {
            tracing::warn!(shard = cx.id.0, reason, "a delayed message was not stored: it is delivered again");
        }
        level.queue.stored(queue_offset, stored.is_ok());
        let retry_us = if stored.is_ok() { 0 } else { RETRY_US };
        self.wake_at(cx.now().mono_us + retry_us);
    }

    fn fetched(&mut self, _cx: &mut ShardContext<'_, '_>, token: u64) {
        if let Some(level) = self.levels.get_mut((token >> OFFSET_BITS) as usize) {
            level.parked = false;
            self.wake_at(0);
        }
    }

    fn due_us(&self) -> Option<u64> {
        self.due_us
    }

    fn save(&self, progress: &mut Progress) {
        let of_levels = (self.first_queue..).zip(&self.levels).map(|(queue_id, level)| (queue_id, level.queue.done()));
        let delivered = of_levels.filter(|(_, done)| *done > 0).chain(self.others.clone()).collect();
        let mut beyond: Vec<u64> = self.delivered.iter().copied().collect();
        beyond.sort_unstable();
        progress.schedule = ScheduleProgress { delivered, beyond };
    }
}

/// Starts the delivery of a level's first message; tells why the level is to stop, if it is.
fn deliver_record(
    cx: &mut ShardContext<'_, '_>,
    level: &mut Level,
    at: usize,
    entry: &QueueEntry,
    record: &RecordView<'_>,
    budget: &mut Budget,
) -> Option<Pause> {
    level.failed_reads = 0;
    if record.topic() != names::SCHEDULE_TOPIC {
        return pass(cx, level, entry, "its record is gone");
    }
    let ticket = ServiceTicket { kind: ServiceKind::Schedule, token: token(at, entry.queue_offset.0) };
    match deliver(cx, record, PropertiesSource::Text(record.properties()), ticket) {
        Delivery::Put => {
            level.queue.started();
            budget.records -= 1;
            budget.bytes = budget.bytes.saturating_sub(entry.size as usize);
            None
        }
        Delivery::Dropped(reason) => pass(cx, level, entry, &reason),
        Delivery::Later(reason) => {
            tracing::debug!(shard = cx.id.0, reason, "a delayed message is delivered later");
            Some(Pause::Retry)
        }
    }
}

/// A level's first message can never be delivered.
fn pass(cx: &ShardContext<'_, '_>, level: &mut Level, entry: &QueueEntry, reason: &str) -> Option<Pause> {
    log_drop(cx, "delayed", entry.offset, reason);
    level.failed_reads = 0;
    level.queue.passed();
    None
}

/// Bits of a queue offset in a token; the level is above.
const OFFSET_BITS: u32 = 48;

fn token(level: usize, queue_offset: u64) -> u64 {
    (level as u64) << OFFSET_BITS | queue_offset
}

/// The monotonic time at which the wall clock, if nobody sets it, will show `wall_ms`; not far ahead, for it may be set.
pub(super) fn mono_us(now: Now, wall_ms: i64) -> u64 {
    let ahead_us = u64::try_from(wall_ms.saturating_sub(now.wall_ms)).unwrap_or(0).saturating_mul(1_000);
    now.mono_us + ahead_us.min(SLEEP_US)
}
