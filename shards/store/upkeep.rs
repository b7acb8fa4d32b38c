//! What a shard does beside its requests: queue batches, checkpoint passes, the checkpoint file, preparing segments, the
//! index's jobs, closing.
//!
//! A pass makes a statement of the form "everything below offset V has its entry in the queues' files": it notes V and
//! all bounds, waits until what was unwritten then is written and until the log is durable up to V, syncs the files that
//! changed, and then replaces the queue table. Invariants: one batch and one pass in flight; files of a deleted topic are
//! removed in the order of the batches; a pass that fails vouches for nothing and is tried again.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;

use message::PhysicalOffset;
use reactor::{BackgroundTask, Job, JobClass, JobOutput, Now, Step};
use sys::disk::{Disk, OpenMode};

use crate::checkpoint::{JavaFields, OwnArea};
use crate::commit_log::Prepared;
use crate::consume_queue::{Entry, FileCache, QueueSync, Slot, SyncItem, WriteBatch, WrittenBatch, write_now};
use crate::index::KeyLookup;
use crate::layout::ShardLayout;
use crate::limits;
use crate::queue_table::{QueueRow, QueueTableFile};
use crate::recovery::{QUEUE_TABLE_FILE, Recovered};
use crate::shard::{Pending, Shard, task_output};
use crate::step::ShardCommand;

/// Pause after something in the background failed.
const RETRY_AFTER_US: u64 = 1_000_000;
/// Bytes of entries in one batch.
const BATCH_BYTES: usize = 2 << 20;

/// What is on its way.
pub(crate) struct Upkeep {
    /// Time of the last tick.
    now: Now,
    /// The next segment is being made.
    pub(crate) preparing: bool,
    /// When space is asked for again after a failure; 0: the last try worked.
    space_retry_at_us: u64,
    /// Descriptors of the writing side; away while a batch is in flight.
    writers: Option<FileCache>,
    /// Memory for the next batch, at most a batch.
    batch_bytes: Vec<u8>,
    /// Queues of the batch in flight.
    batch: Vec<(Slot, u64)>,
    last_batch_us: u64,
    /// Topics whose folders are to be removed.
    removals: Vec<Arc<[u8]>>,
    pass: Pass,
    last_pass_us: u64,
    vouched: u64,
    vouched_ms: i64,
    fields: JavaFields,
    last_checkpoint_us: u64,
    /// The end of the log and the durable offset that the checkpoint file was last written for.
    checkpointed: (u64, u64, u64),
    retry_at_us: u64,
    /// A buffer for entries, kept from pull to pull.
    pub(crate) entries: Vec<Entry>,
    /// Which of the records that the last pull selected are damaged, by their place among them.
    pub(crate) left_out: Vec<usize>,
    /// Candidates of key queries that wait for records.
    candidates: VecDeque<(KeyLookup, Vec<PhysicalOffset>)>,
}

/// A pass over the queues.
enum Pass {
    Idle,
    /// Waits for what was unwritten at its beginning, and for the log.
    Writing {
        file: QueueTableFile,
        pending: VecDeque<(Slot, u64, u64)>,
    },
    /// Syncs in the background; then it vouches for this, with these queues durable up to these entries.
    Syncing {
        vouched: u64,
        vouched_ms: i64,
        queues: Vec<(Slot, u64, u64)>,
    },
}

impl Upkeep {
    pub(crate) fn new(found: &Recovered, fields: JavaFields, end: u64, now: Now) -> Self {
        Self {
            now,
            preparing: false,
            space_retry_at_us: 0,
            writers: Some(FileCache::new(limits::OPEN_QUEUE_WRITERS)),
            batch_bytes: Vec::new(),
            batch: Vec::new(),
            last_batch_us: now.mono_us,
            removals: Vec::new(),
            pass: Pass::Idle,
            last_pass_us: now.mono_us,
            vouched: found.vouched,
            vouched_ms: fields.queues_ms,
            fields,
            last_checkpoint_us: now.mono_us,
            checkpointed: (end, end, found.vouched),
            retry_at_us: 0,
            entries: Vec::new(),
            left_out: Vec::new(),
            candidates: VecDeque::new(),
        }
    }

    /// Candidates that an earlier run of the same query found.
    pub(crate) fn take_candidates(&mut self, lookup: &KeyLookup) -> Option<Vec<PhysicalOffset>> {
        let at = self.candidates.iter().position(|(of, _)| of == lookup)?;
        self.candidates.remove(at).map(|(_, candidates)| candidates)
    }

    /// Keeps candidates for the next run of a query.
    pub(crate) fn keep_candidates(&mut self, lookup: KeyLookup, candidates: Vec<PhysicalOffset>) {
        /// Queries that wait at the same time; beyond it the oldest asks the index again.
        const WAITING: usize = 64;
        if self.candidates.len() == WAITING {
            self.candidates.pop_front();
        }
        self.candidates.push_back((lookup, candidates));
    }

    /// The queue table vouches for everything below.
    pub(crate) fn vouched(&self) -> u64 {
        self.vouched
    }

    /// Removes a topic's folder with the next batch.
    pub(crate) fn remove_files_of(&mut self, topic: Arc<[u8]>) {
        self.removals.push(topic);
    }

    /// Java's fields of the checkpoint, as of now.
    pub(crate) fn java_fields(&self, shard: &Shard) -> JavaFields {
        let confirm = shard.visible_to().to_i64();
        JavaFields { log_ms: shard.flush.durable_ms(), queues_ms: self.vouched_ms, confirm, ..self.fields }
    }

    /// Our part of the checkpoint, as of now.
    pub(crate) fn own_area(&self, shard: &Shard) -> OwnArea {
        OwnArea { durable: shard.flush.durable(), vouched: self.vouched, index: shard.index.progress() }
    }
}

impl Shard {
    /// Called at the end of each turn: flush interval, queue batches, passes, the checkpoint file, jobs. Cheap when
    /// nothing is due.
    pub fn tick(&mut self, now: Now) {
        self.upkeep.now = now;
        self.residency.forget();
        self.start_syncs(now);
        self.prepare_segments();
        self.index_work(now);
        self.pass_step(now);
        self.start_batch(now);
        self.bound_unwritten(now);
        if now.mono_us.saturating_sub(self.upkeep.last_checkpoint_us) >= limits::CHECKPOINT_INTERVAL_US {
            self.upkeep.last_checkpoint_us = now.mono_us;
            if let Err(error) = self.write_checkpoint_if_changed() {
                tracing::warn!(shard = %self.id, %error, "the checkpoint could not be written");
            }
        }
    }

    /// When [`Shard::tick`] has something to do at the latest, in monotonic microseconds; `None` while nothing is
    /// pending: a turn that something else causes is early enough.
    pub fn next_tick_us(&self) -> Option<u64> {
        let upkeep = &self.upkeep;
        let flush = self.flush.next_us(self.log.written());
        let unwritten = (self.table.unwritten() > 0 && upkeep.writers.is_some())
            .then_some((upkeep.last_batch_us + limits::QUEUE_WRITE_AFTER_US).max(upkeep.retry_at_us));
        let may_pass = matches!(upkeep.pass, Pass::Idle) && self.read_only.is_none();
        let behind = may_pass && self.log.written() > upkeep.vouched;
        let pass = behind.then_some((upkeep.last_pass_us + limits::PASS_INTERVAL_US).max(upkeep.retry_at_us));
        let checkpoint = (self.checkpoint_state() != upkeep.checkpointed)
            .then_some(upkeep.last_checkpoint_us + limits::CHECKPOINT_INTERVAL_US);
        [flush, unwritten, pass, checkpoint, self.index.next_tick_us(PhysicalOffset(self.flush.durable()))]
            .into_iter()
            .flatten()
            .min()
    }

    /// Writes and syncs everything, then the checkpoint. Errors: the first that came; the store then counts as not
    /// closed, and the next start reads the log.
    pub fn close(&mut self) -> io::Result<()> {
        let now = self.upkeep.now;
        self.write_staged(now).map_err(|error| error.0)?;
        if let Some(reason) = &self.read_only {
            return Err(io::Error::other(reason.clone()));
        }
        let written = self.log.written();
        self.sync_log_now()?;
        self.flush.all_durable(written, self.last_store_ms);
        let mut removals = std::mem::take(&mut self.upkeep.removals);
        self.requeue_batch();
        write_now(&*self.disk, &mut self.table, &self.queue_files, &mut removals)?;
        self.index.close(&*self.disk, now, PhysicalOffset(written))?;
        self.vouch_now()
    }

    /// Makes what the queues have in their files durable and vouches for it, here and now. The log is durable.
    pub(crate) fn vouch_now(&mut self) -> io::Result<()> {
        let (items, queues) = self.take_sync_items();
        let mut syncs = QueueSync::new(&self.queue_files, items);
        while !syncs.advance(&*self.disk)? {}
        for (slot, _, to) in queues {
            self.table.get_mut(slot).synced = to;
        }
        let table = self.queue_table_now();
        replace_file(&*self.disk, &self.layout, &table.encode())?;
        self.upkeep.vouched = table.vouched;
        self.upkeep.vouched_ms = table.last_store_ms;
        self.upkeep.fields.index_ms = self.index.index_timestamp_ms().min(table.last_store_ms);
        self.write_checkpoint_file()?;
        let checkpoint = self.disk.open(&self.layout.checkpoint, OpenMode::ReadWrite)?;
        checkpoint.sync_data()?;
        self.disk.sync_dir(&self.layout.dir)
    }

    /// The batch in flight has come back.
    pub(crate) fn queue_batch_done(&mut self, now: Now, result: io::Result<JobOutput>) {
        self.upkeep.last_batch_us = now.mono_us;
        match task_output::<WrittenBatch>(result) {
            Ok(done) => {
                self.upkeep.batch.clear();
                self.upkeep.writers = Some(done.cache);
                self.upkeep.batch_bytes = done.bytes;
                for (slot, uid, to) in done.written {
                    if self.table.live(slot, uid).is_some() {
                        self.table.set_written(slot, to);
                    }
                }
            }
            Err(error) => {
                tracing::warn!(shard = %self.id, %error, "consume queues could not be written; it is tried again");
                self.requeue_batch();
                self.upkeep.writers = Some(FileCache::new(limits::OPEN_QUEUE_WRITERS));
                self.upkeep.retry_at_us = now.mono_us + RETRY_AFTER_US;
            }
        }
    }

    /// The syncs of a pass have come back.
    pub(crate) fn pass_done(&mut self, now: Now, result: io::Result<JobOutput>) {
        self.upkeep.last_pass_us = now.mono_us;
        let Pass::Syncing { vouched, vouched_ms, queues } = std::mem::replace(&mut self.upkeep.pass, Pass::Idle) else {
            return;
        };
        if let Err(error) = result {
            tracing::warn!(shard = %self.id, %error, "the queue table could not be written; it is tried again");
            self.upkeep.retry_at_us = now.mono_us + RETRY_AFTER_US;
            for (slot, uid, _) in queues {
                if let Some(queue) = self.table.live(slot, uid)
                    && !std::mem::replace(&mut queue.in_unsynced, true)
                {
                    self.table.unsynced.push((slot, uid));
                }
            }
            return;
        }
        self.upkeep.vouched = vouched;
        self.upkeep.vouched_ms = vouched_ms;
        for (slot, uid, to) in queues {
            if let Some(queue) = self.table.live(slot, uid) {
                queue.synced = queue.synced.max(to);
            }
        }
    }

    /// Writes the checkpoint file, without a sync.
    pub(crate) fn write_checkpoint_file(&mut self) -> io::Result<()> {
        let bytes = self.checkpoint_bytes();
        let file = self.disk.open(&self.layout.checkpoint, OpenMode::Create)?;
        file.write_at(&[IoSlice::new(&bytes)], 0)?;
        self.upkeep.checkpointed = self.checkpoint_state();
        Ok(())
    }

    fn write_checkpoint_if_changed(&mut self) -> io::Result<()> {
        if self.checkpoint_state() == self.upkeep.checkpointed {
            return Ok(());
        }
        self.upkeep.fields.index_ms = self.index.index_timestamp_ms().min(self.upkeep.vouched_ms);
        self.write_checkpoint_file()
    }

    fn checkpoint_state(&self) -> (u64, u64, u64) {
        (self.log.written(), self.flush.durable(), self.upkeep.vouched)
    }

    /// A segment or its space could not be made ahead: it is tried again after a while, and said once until it works. A
    /// turn must never end in the next try at once.
    pub(crate) fn not_prepared(&mut self, what: &str, error: &io::Error) {
        if self.upkeep.space_retry_at_us == 0 {
            tracing::warn!(shard = %self.id, %error, "{what}; it is tried again each second");
        }
        self.upkeep.space_retry_at_us = self.upkeep.now.mono_us + RETRY_AFTER_US;
    }

    /// What was asked for ahead is there.
    pub(crate) fn prepared(&mut self) {
        self.upkeep.space_retry_at_us = 0;
    }

    fn prepare_segments(&mut self) {
        if self.upkeep.now.mono_us < self.upkeep.space_retry_at_us {
            return;
        }
        let preparing = self.upkeep.preparing;
        match self.log.wants(preparing) {
            None => {}
            Some(Prepared::Segment(task)) => {
                self.upkeep.preparing = true;
                self.background(JobClass::Waited, Box::new(task), Pending::Prepare);
            }
            Some(Prepared::Space(task)) => self.background(JobClass::Waited, Box::new(task), Pending::Reserve),
        }
    }

    fn index_work(&mut self, now: Now) {
        let durable = PhysicalOffset(self.flush.durable());
        self.index.tick(now);
        if let Some(job) = self.index.take_job(now, durable) {
            let token = self.token(Pending::Index);
            self.commands.push(ShardCommand::Background { job, token });
        }
    }

    fn background(&mut self, class: JobClass, task: Box<dyn BackgroundTask>, pending: Pending) {
        let token = self.token(pending);
        self.commands.push(ShardCommand::Background { job: Job::Task { class, task }, token });
    }

    /// Starts a batch when enough is unwritten, or has been for long enough, or a pass waits for it.
    fn start_batch(&mut self, now: Now) {
        let upkeep = &mut self.upkeep;
        if upkeep.writers.is_none() || now.mono_us < upkeep.retry_at_us {
            return;
        }
        let unwritten = self.table.unwritten();
        let old = unwritten > 0 && now.mono_us.saturating_sub(upkeep.last_batch_us) >= limits::QUEUE_WRITE_AFTER_US;
        let waited_for = matches!(&upkeep.pass, Pass::Writing { pending, .. } if !pending.is_empty());
        let due =
            old || waited_for || unwritten >= enough_unwritten(self.table.dirty.len()) || !upkeep.removals.is_empty();
        if !due {
            return;
        }
        let cache = upkeep.writers.take().expect("the writers are here");
        let removals = std::mem::take(&mut upkeep.removals);
        let bytes = std::mem::take(&mut upkeep.batch_bytes);
        let batch = WriteBatch::collect(&mut self.table, &self.queue_files, cache, removals, bytes, BATCH_BYTES);
        self.upkeep.batch = batch.queues().collect();
        self.background(JobClass::Upkeep, Box::new(batch), Pending::QueueBatch);
    }

    /// Keeps the memory of unwritten entries bounded when the background does not come: writes them here.
    fn bound_unwritten(&mut self, now: Now) {
        if self.table.unwritten() < limits::UNWRITTEN_ENTRIES as u64 || now.mono_us < self.upkeep.retry_at_us {
            return;
        }
        // What is in the batch in flight is written twice, which changes nothing.
        if let Err(error) = write_now(&*self.disk, &mut self.table, &self.queue_files, &mut Vec::new()) {
            self.upkeep.retry_at_us = now.mono_us + RETRY_AFTER_US;
            self.set_read_only(&format!("consume queues cannot be written: {error}"));
        }
    }

    /// Puts the queues of a batch that is not known to be written back into the list.
    fn requeue_batch(&mut self) {
        for (slot, uid) in std::mem::take(&mut self.upkeep.batch) {
            if let Some(queue) = self.table.live(slot, uid)
                && !std::mem::replace(&mut queue.in_dirty, true)
            {
                self.table.dirty.push_back((slot, uid));
            }
        }
    }

    /// Begins a pass, or takes the present one further.
    fn pass_step(&mut self, now: Now) {
        match &mut self.upkeep.pass {
            Pass::Syncing { .. } => {}
            Pass::Idle => {
                let written = self.log.written();
                let volume = written - self.upkeep.vouched.min(written) >= self.pass_after_bytes();
                let aged = now.mono_us.saturating_sub(self.upkeep.last_pass_us) >= limits::PASS_INTERVAL_US;
                let behind = written > self.upkeep.vouched || !self.table.unsynced.is_empty();
                if behind && (volume || aged) && now.mono_us >= self.upkeep.retry_at_us && self.read_only.is_none() {
                    self.begin_pass();
                }
            }
            Pass::Writing { file, pending } => {
                while let Some(&(slot, uid, to)) = pending.front()
                    && self.table.live(slot, uid).is_none_or(|queue| queue.written >= to)
                {
                    pending.pop_front();
                }
                if pending.is_empty() && self.flush.durable() >= file.vouched {
                    self.sync_pass();
                }
            }
        }
    }

    /// After how much log a pass begins.
    fn pass_after_bytes(&self) -> u64 {
        let queues = self.table.dirty.len().max(self.table.unsynced.len()) as u64;
        limits::PASS_LOG_BYTES + queues * limits::PASS_LOG_BYTES_EACH
    }

    fn begin_pass(&mut self) {
        let file = self.queue_table_now();
        let dirty: Vec<_> = self.table.dirty.iter().copied().chain(self.upkeep.batch.iter().copied()).collect();
        let pending = dirty
            .into_iter()
            .filter_map(|(slot, uid)| self.table.live(slot, uid).map(|queue| (slot, uid, queue.dispatched())))
            .collect();
        self.flush.want();
        self.upkeep.pass = Pass::Writing { file, pending };
    }

    fn sync_pass(&mut self) {
        let Pass::Writing { file, .. } = std::mem::replace(&mut self.upkeep.pass, Pass::Idle) else { return };
        let (items, queues) = self.take_sync_items();
        let syncs = QueueSync::new(&self.queue_files, items);
        self.upkeep.pass = Pass::Syncing { vouched: file.vouched, vouched_ms: file.last_store_ms, queues };
        let task = SyncPass { syncs, layout: self.layout.clone(), table: file };
        self.background(JobClass::Upkeep, Box::new(task), Pending::Pass);
    }

    /// Queues with entries that are not durable, as a list of syncs and as what will be durable after them.
    fn take_sync_items(&mut self) -> (Vec<SyncItem>, Vec<(Slot, u64, u64)>) {
        let (mut items, mut queues) = (Vec::new(), Vec::new());
        for (slot, uid) in std::mem::take(&mut self.table.unsynced) {
            let Some(queue) = self.table.live(slot, uid) else { continue };
            queue.in_unsynced = false;
            let (id, from, to) = (queue.id, queue.synced, queue.written);
            if from < to {
                items.push(SyncItem { topic: Arc::clone(self.table.topic_of(slot)), id, from, to });
                queues.push((slot, uid, to));
            }
        }
        (items, queues)
    }

    /// What a pass that begins now would vouch for.
    fn queue_table_now(&self) -> QueueTableFile {
        let mut rows = Vec::with_capacity(self.table.len());
        for (topic, queues) in self.table.topics() {
            rows.extend(queues.iter().map(|&(id, slot)| {
                let queue = self.table.get(slot);
                QueueRow {
                    topic: Arc::clone(topic),
                    id,
                    first: queue.first,
                    min: queue.min,
                    max: queue.dispatched(),
                    last_end: queue.last_end,
                    last_store_ms: queue.last_store_ms,
                }
            }));
        }
        QueueTableFile { vouched: self.log.written(), last_store_ms: self.last_store_ms, rows }
    }

    /// Syncs every segment with bytes that are not durable, here and now.
    fn sync_log_now(&mut self) -> io::Result<()> {
        let (durable, written) = (self.flush.durable(), self.log.written());
        let mut base = self.log.base_of(durable);
        while base < written {
            // The written descriptor is the oldest: it sees every write-back error since its opening.
            match self.log.written_file(base) {
                Some(file) => file.sync_data()?,
                None => self.disk.open(&self.log.path_of(base), OpenMode::ReadWrite)?.sync_data()?,
            }
            base += self.log.segment_size();
        }
        Ok(())
    }
}

/// So many unwritten entries are worth a batch when so many queues wait.
fn enough_unwritten(queues: usize) -> u64 {
    let each = queues.saturating_mul(limits::QUEUE_BATCH_ENTRIES_EACH);
    each.clamp(limits::QUEUE_BATCH_ENTRIES, limits::QUEUE_BATCH_ENTRIES_MOST) as u64
}

/// Background: the syncs of a pass, then the queue table.
struct SyncPass {
    syncs: QueueSync,
    layout: ShardLayout,
    table: QueueTableFile,
}

/// What [`SyncPass`] is done with: nothing to tell.
struct PassWritten;

impl BackgroundTask for SyncPass {
    fn step(&mut self, disk: &dyn Disk) -> io::Result<Step> {
        if !self.syncs.advance(disk)? {
            return Ok(Step::More);
        }
        replace_file(disk, &self.layout, &self.table.encode())?;
        Ok(Step::Done(Box::new(PassWritten)))
    }
}

/// Replaces the queue table in one step.
fn replace_file(disk: &dyn Disk, layout: &ShardLayout, bytes: &[u8]) -> io::Result<()> {
    let path: PathBuf = layout.dir.join(QUEUE_TABLE_FILE);
    let temporary = layout.dir.join(format!("{QUEUE_TABLE_FILE}.tmp"));
    let file = disk.open(&temporary, OpenMode::Create)?;
    file.set_len(0)?;
    file.write_at(&[IoSlice::new(bytes)], 0)?;
    file.sync_data()?;
    disk.rename(&temporary, &path)?;
    disk.sync_dir(&layout.dir)
}
