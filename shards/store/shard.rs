//! One shard: the public face of the store, and the state that its parts share.
//!
//! Role: owns log, queues, index, flush and checkpoint of one shard; one core owns it. The parts lie in files of their
//! own: `append` (staging and the write of a turn), `pull` and `lookup` (reads), `upkeep` (what a tick does). Invariants:
//! `durable <= written`; in sync mode nothing beyond `durable` is visible; after a failed write or sync no append is taken.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::Arc;

use foldhash::HashMap;
use message::PhysicalOffset;
use reactor::{Job, JobOutput, Now};
use sys::disk::{Disk, DiskFile};

use crate::append::{Staged, StagedKey, VisibleLater};
use crate::checkpoint::{Checkpoint, JavaFields};
use crate::cold_cache::ColdCache;
use crate::commit_log::{CommitLog, PreparedFiles, Reserved};
use crate::consume_queue::{EntryWindows, FileCache, QueueFiles, QueueTable, Slot};
use crate::error::{AppendError, OpenError, ReadError};
use crate::flush::{Flush, SyncPart};
use crate::home::StoreHome;
use crate::index::Index;
use crate::layout::{ShardId, ShardLayout};
use crate::limits;
use crate::options::{FlushMode, StoreOptions};
use crate::recovery;
use crate::residency::Residency;
use crate::step::{ColdSource, Completion, FetchId, Missing, ShardCommand};
use crate::tombstones::Tombstones;
use crate::types::{Bounds, RecoveryReport, ShardStatus, Visible};
use crate::upkeep::Upkeep;

/// A unit of storage, owned by one core.
pub struct Shard {
    pub(crate) id: ShardId,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) layout: ShardLayout,
    pub(crate) options: StoreOptions,
    pub(crate) tombstones: Arc<Tombstones>,
    pub(crate) log: CommitLog,
    pub(crate) table: QueueTable,
    pub(crate) queue_files: QueueFiles,
    /// Descriptors of the reading side.
    pub(crate) queue_readers: FileCache,
    pub(crate) queue_windows: EntryWindows,
    pub(crate) index: Index,
    pub(crate) flush: Flush,
    pub(crate) upkeep: Upkeep,
    pub(crate) cold: ColdCache,
    pub(crate) residency: Residency,
    /// Records of this turn, in order.
    pub(crate) staged: Vec<Staged>,
    /// Index items of this turn.
    pub(crate) staged_keys: Vec<StagedKey>,
    /// Written, and visible once durable (sync mode).
    pub(crate) visible_later: VecDeque<VisibleLater>,
    /// Became visible since the broker asked.
    pub(crate) visible_now: Vec<VisibleLater>,
    /// The log ended here when it was opened: what lies below was written by another process and is checked when read.
    pub(crate) opened_at: u64,
    /// Store time of the last record; never falls.
    pub(crate) last_store_ms: i64,
    /// Store time of the first record.
    pub(crate) earliest_ms: Option<i64>,
    /// Write-back was started for everything below.
    pub(crate) written_back: u64,
    /// Why no append is taken.
    pub(crate) read_only: Option<String>,
    pub(crate) damaged_records: u64,
    pub(crate) cold_reads: u64,
    pub(crate) commands: Vec<ShardCommand>,
    pub(crate) jobs: HashMap<u32, Pending>,
    next_token: u32,
}

/// What a token stands for.
pub(crate) enum Pending {
    Sync { part: SyncPart, file: Arc<dyn DiskFile> },
    Fetch { source: ColdSource, ranges: Vec<(u64, u64)> },
    Lookup { number: u64 },
    Prepare,
    Reserve,
    QueueBatch,
    Pass,
    Expire,
    Index,
}

impl Shard {
    /// Opens the shard and recovers it. Everything that recovery keeps is durable when it returns. Errors: see
    /// [`OpenError`]; a check that fails leaves the files as they were.
    pub fn open(
        disk: Arc<dyn Disk>,
        home: &StoreHome,
        id: ShardId,
        options: StoreOptions,
        now: Now,
    ) -> Result<(Self, RecoveryReport), OpenError> {
        let found = recovery::recover(&disk, home, id, &options, now)?;
        let layout = home.layout().shard(id);
        let in_flight = if options.flush == FlushMode::Sync { limits::SYNCS_IN_FLIGHT } else { 1 };
        let mut flush = Flush::new(options.flush, options.flush_interval_ms, in_flight, now.mono_us);
        let end = found.log.written();
        flush.all_durable(end, found.last_store_ms);
        let queue_files = QueueFiles { root: layout.consume_queue.clone(), file_size: options.queue_file_size_bytes };
        let java = found.checkpoint.java;
        let fields = JavaFields { log_ms: found.last_store_ms, ..java };
        let upkeep = Upkeep::new(&found, fields, end, now);
        let mut shard = Self {
            id,
            disk,
            tombstones: home.tombstones(),
            log: found.log,
            table: found.table,
            queue_files,
            queue_readers: FileCache::new(limits::OPEN_QUEUE_FILES),
            queue_windows: EntryWindows::default(),
            index: found.index,
            flush,
            upkeep,
            cold: ColdCache::new(limits::COLD_CACHE_BYTES),
            residency: Residency::default(),
            staged: Vec::new(),
            staged_keys: Vec::new(),
            visible_later: VecDeque::new(),
            visible_now: Vec::new(),
            opened_at: end,
            last_store_ms: found.last_store_ms,
            earliest_ms: found.earliest_ms,
            written_back: end,
            read_only: None,
            damaged_records: 0,
            cold_reads: 0,
            commands: Vec::new(),
            jobs: HashMap::default(),
            next_token: 1,
            layout,
            options,
        };
        shard.disk.create_dir_all(&shard.layout.dir).map_err(OpenError::io(shard.layout.dir.clone()))?;
        // What recovery made again, nothing vouches for yet.
        let vouched = found.report.trusted && found.report.rebuilt_queues == 0;
        let outcome = if vouched { shard.write_checkpoint_file() } else { shard.vouch_now() };
        outcome.map_err(OpenError::io(shard.layout.checkpoint.clone()))?;
        Ok((shard, found.report))
    }

    /// The shard's number.
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// Everything below is durable.
    pub fn durable_to(&self) -> PhysicalOffset {
        PhysicalOffset(self.flush.durable())
    }

    /// Everything below is visible to readers.
    pub fn visible_to(&self) -> PhysicalOffset {
        PhysicalOffset(match self.flush.mode() {
            FlushMode::Async => self.log.written(),
            FlushMode::Sync => self.flush.durable(),
        })
    }

    /// End of the log; staged records are not counted.
    pub fn end(&self) -> PhysicalOffset {
        PhysicalOffset(self.log.written())
    }

    /// Whether appends are taken.
    pub fn is_writable(&self) -> Result<(), AppendError> {
        match &self.read_only {
            None => Ok(()),
            Some(reason) => Err(AppendError::ReadOnly(reason.clone())),
        }
    }

    /// Turns the shard read-only for a reason of the caller. The first reason stays.
    pub fn set_read_only(&mut self, reason: &str) {
        if self.read_only.is_none() {
            tracing::error!(shard = %self.id, reason, "the shard takes no writes any more");
            self.read_only = Some(reason.to_owned());
        }
    }

    /// What the shard wants done since the last call.
    pub fn take_commands(&mut self) -> Vec<ShardCommand> {
        std::mem::take(&mut self.commands)
    }

    /// The result of a command. A token that is not known is an old one: nothing happens.
    pub fn completed(&mut self, now: Now, token: u32, result: io::Result<JobOutput>) -> Completion {
        let Some(pending) = self.jobs.remove(&token) else { return Completion::Nothing };
        match pending {
            Pending::Sync { part, file } => return self.sync_done(now, part, file, result),
            Pending::Fetch { source, ranges } => {
                self.fetched(source, &ranges, result);
                return Completion::Fetched(FetchId(token));
            }
            Pending::Lookup { number } => {
                self.index.lookup_done(number, result);
                return Completion::Fetched(FetchId(token));
            }
            Pending::Prepare => self.segment_prepared(result),
            Pending::Reserve => match task_output::<Reserved>(result) {
                Ok(reserved) => {
                    self.log.space_reserved(&reserved);
                    self.prepared();
                }
                Err(error) => {
                    self.log.reservation_failed();
                    self.not_prepared("no space could be reserved ahead", &error);
                }
            },
            Pending::QueueBatch => self.queue_batch_done(now, result),
            Pending::Pass => self.pass_done(now, result),
            Pending::Expire => self.expired(result),
            Pending::Index => self.index.job_done(now, result),
        }
        Completion::Nothing
    }

    /// Gives each message that became visible since the last call, in order.
    pub fn newly_visible(&mut self, f: &mut dyn FnMut(Visible<'_>)) {
        for event in self.visible_now.drain(..) {
            if self.table.live(event.slot, event.uid).is_some() {
                let queue_id = self.table.get(event.slot).id;
                let topic = self.table.topic_of(event.slot);
                f(Visible { topic, queue_id, max_offset: event.max_offset, tags_code: event.tags_code });
            }
        }
    }

    /// Brings missing bytes into memory; [`Completion::Fetched`] tells when the step is to run again.
    pub fn fetch(&mut self, missing: Missing) -> FetchId {
        self.cold_reads += 1;
        if let ColdSource::Index(number) = missing.source {
            let token = self.token(Pending::Lookup { number });
            match self.index.lookup_job(number) {
                Some(job) => self.commands.push(ShardCommand::Background { job, token }),
                // Another asker has started the same walk: a read of nothing brings this one back after it.
                None => self.commands.push(ShardCommand::Background { job: nothing_to_read(missing), token }),
            }
            return FetchId(token);
        }
        let ranges: Vec<_> = missing.ranges.iter().map(|range| range.file_range.clone()).collect();
        let keys = missing.ranges.iter().map(|range| (range.address, range.file_range.end - range.file_range.start));
        let token = self.token(Pending::Fetch { source: missing.source, ranges: keys.collect() });
        self.commands.push(ShardCommand::Background { job: Job::Read { file: missing.file, ranges }, token });
        FetchId(token)
    }

    /// Bounds of a queue as readers see them; `None` if it does not exist here.
    pub fn bounds(&self, topic: &[u8], queue_id: u32) -> Option<Bounds> {
        self.table.find(topic, queue_id).map(|slot| self.bounds_of(slot))
    }

    /// Queues of a topic: id, bounds, store time of the last message (ms since 1970, 0 when it never had one).
    pub fn topic_queues(&self, topic: &[u8]) -> Vec<(u32, Bounds, i64)> {
        let slots = self.table.topic_slots(topic).iter();
        slots.map(|&(id, slot)| (id, self.bounds_of(slot), self.table.get(slot).last_store_ms)).collect()
    }

    /// All queues: topic, id, bounds.
    pub fn all_queues(&self) -> impl Iterator<Item = (&[u8], u32, Bounds)> {
        let slots = self.table.slots();
        slots.map(|slot| (&**self.table.topic_of(slot), self.table.get(slot).id, self.bounds_of(slot)))
    }

    /// Drops the queues of a topic, at once in memory, later on the disk. The tombstone must be written first: it is what
    /// keeps the records from coming back.
    pub fn delete_topic(&mut self, topic: &[u8]) {
        for &(_, slot) in self.table.topic_slots(topic) {
            let uid = self.table.get(slot).uid;
            self.queue_readers.forget(uid);
            self.queue_windows.forget(uid);
            self.cold.forget(ColdSource::Queue(uid));
            // A record staged in this turn is written all the same, without an entry.
            self.staged.retain(|staged| staged.slot != slot);
        }
        if let Some(name) = self.table.remove_topic(topic) {
            self.upkeep.remove_files_of(name);
        }
    }

    /// Whether what lies at an offset of the log was written before its topic was deleted.
    pub fn is_deleted(&self, topic: &[u8], offset: PhysicalOffset) -> bool {
        self.tombstones.covers(topic, offset)
    }

    /// The shard's numbers.
    pub fn status(&self) -> ShardStatus {
        ShardStatus {
            min_offset: PhysicalOffset(self.log.start()),
            max_offset: self.end(),
            durable_to: self.durable_to(),
            vouched_to: PhysicalOffset(self.upkeep.vouched()),
            dirty_bytes: self.log.written() - self.flush.durable(),
            queues: self.table.len() as u32,
            unwritten_entries: self.table.unwritten(),
            earliest_store_timestamp_ms: self.earliest_ms.unwrap_or(-1),
            last_store_timestamp_ms: self.last_store_ms,
            read_only: self.read_only.clone(),
            damaged_records: self.damaged_records,
            cold_reads: self.cold_reads,
        }
    }

    pub(crate) fn bounds_of(&self, slot: Slot) -> Bounds {
        let queue = self.table.get(slot);
        Bounds { min: message::QueueOffset(queue.min), max: message::QueueOffset(queue.visible) }
    }

    /// Remembers what a new token stands for.
    pub(crate) fn token(&mut self, pending: Pending) -> u32 {
        loop {
            let token = self.next_token;
            self.next_token = self.next_token.wrapping_add(1);
            if let Entry::Vacant(vacant) = self.jobs.entry(token) {
                vacant.insert(pending);
                return token;
            }
        }
    }

    fn segment_prepared(&mut self, result: io::Result<JobOutput>) {
        self.upkeep.preparing = false;
        match task_output::<PreparedFiles>(result) {
            Ok(files) => {
                self.log.segment_prepared(*files);
                self.prepared();
            }
            Err(error) => self.not_prepared("the next commit log file could not be prepared", &error),
        }
    }

    fn fetched(&mut self, source: ColdSource, ranges: &[(u64, u64)], result: io::Result<JobOutput>) {
        let read = match result {
            Ok(JobOutput::Read(read)) if read.len() == ranges.len() => Ok(read),
            Ok(_) => Err(ReadError::Io("a read gave the result of another job".to_owned())),
            Err(error) => Err(ReadError::from(error)),
        };
        for (at, &(address, len)) in ranges.iter().enumerate() {
            match &read {
                Ok(read) if read[at].len() as u64 == len => self.cold.insert(source, address, read[at].clone()),
                Ok(read) => {
                    let error = format!("{} of {len} bytes at {address} of {source:?}", read[at].len());
                    self.cold.insert_error(source, address, ReadError::Io(error));
                }
                Err(error) => self.cold.insert_error(source, address, error.clone()),
            }
        }
    }

    /// The checkpoint as it would be written now.
    pub(crate) fn checkpoint_bytes(&self) -> Vec<u8> {
        Checkpoint::encode(self.upkeep.java_fields(self), self.upkeep.own_area(self))
    }

    /// Facts about the whole state, for tests.
    #[cfg(test)]
    pub(crate) fn validate(&self) {
        self.log.validate();
        self.table.validate();
        assert!(self.flush.durable() <= self.log.written());
        assert!(self.upkeep.vouched() <= self.log.written());
        if self.flush.mode() == FlushMode::Async {
            assert!(self.visible_later.is_empty());
        }
    }
}

fn nothing_to_read(missing: Missing) -> Job {
    Job::Read { file: missing.file, ranges: Vec::new() }
}

/// What a task was done with.
pub(crate) fn task_output<T: 'static>(result: io::Result<JobOutput>) -> io::Result<Box<T>> {
    match result? {
        JobOutput::Task(output) => output.downcast().map_err(|_| io::Error::other("the result of another task")),
        _ => Err(io::Error::other("the result of another job")),
    }
}
