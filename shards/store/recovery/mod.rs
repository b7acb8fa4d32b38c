//! Opening a shard: what is there, what can be trusted, and what the log says beyond it.
//!
//! Role: gives a log with a known end, queues that agree with it, an index that follows it. Order: every check that can
//! refuse the store comes before the first change. Then the queues as the queue table (or, in a store that Java left, the
//! files) tells; then the log is read from the first record that nothing vouches for and dispatched again; then what lies
//! behind its end is cut; then queues whose entries are lost are made again from the whole log. Invariants: recovery goes
//! by offsets; giving a record twice changes nothing; records of deleted topics are passed over.

mod java_rule;
mod queues;

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

use message::PhysicalOffset;
use message::record::RecordView;
use reactor::Now;
use sys::disk::{Disk, DiskFile, OpenMode};

use crate::checkpoint::{Checkpoint, QUEUES_TIME_AT};
use crate::commit_log::{self, CommitLog};
use crate::consume_queue::{QueueFiles, QueueTable, Slot, write_now};
use crate::dispatch::{self, Dispatched, Trust};
use crate::error::OpenError;
use crate::home::StoreHome;
use crate::index::{Index, IndexHistory, RecordKeys};
use crate::layout::{ShardId, ShardLayout, offset_file_name};
use crate::light_queues::LIGHT_QUEUE_ID;
use crate::limits;
use crate::options::{FlushMode, StoreOptions};
use crate::queue_table::QueueTableFile;
use crate::tombstones::Tombstones;
use crate::types::RecoveryReport;
use crate::walk::{Segments, Walk, Walked};

/// Name of the queue table file, beside the checkpoint.
pub(crate) const QUEUE_TABLE_FILE: &str = "queuetable";

/// A shard as it was found and put right.
pub(crate) struct Recovered {
    pub(crate) log: CommitLog,
    pub(crate) table: QueueTable,
    pub(crate) index: Index,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) vouched: u64,
    pub(crate) last_store_ms: i64,
    pub(crate) earliest_ms: Option<i64>,
    pub(crate) report: RecoveryReport,
}

/// What recovery works with.
struct Recovery<'a> {
    disk: &'a dyn Disk,
    layout: ShardLayout,
    options: &'a StoreOptions,
    files: QueueFiles,
    tombstones: Arc<Tombstones>,
    id: ShardId,
    clean: bool,
    /// Below, a bad record is damage, not a torn tail.
    durable: u64,
    log: CommitLog,
    table: QueueTable,
    index: Index,
    /// Queues to be made again, with the offset at which they go on if the log holds nothing of them.
    lost: Vec<(Slot, u64)>,
    report: RecoveryReport,
    last_store_ms: i64,
}

/// Opens and recovers a shard.
pub(crate) fn recover(
    disk: &Arc<dyn Disk>,
    home: &StoreHome,
    id: ShardId,
    options: &StoreOptions,
    now: Now,
) -> Result<Recovered, OpenError> {
    let layout = home.layout().shard(id);
    let clean = home.was_clean();
    let files = QueueFiles { root: layout.consume_queue.clone(), file_size: options.queue_file_size_bytes };
    let segments = commit_log::list_segments(&**disk, &layout.commit_log, options.segment_size_bytes)?;
    check_span(&segments.bases, id, &layout)?;
    let checkpoint = read_checkpoint(&**disk, &layout.checkpoint)?;
    let saved = read_queue_table(&**disk, &layout)?;
    let syncs = if options.flush == FlushMode::Sync { limits::SYNCS_IN_FLIGHT } else { 1 };
    let bases = &segments.bases;
    let log =
        CommitLog::new(Arc::clone(disk), &layout.commit_log, options.segment_size_bytes, syncs, id.base().0, bases);
    let in_log = |offset: u64| log.start() <= offset && offset <= log.capacity_end();
    let saved = saved.filter(|saved| checkpoint.agrees && in_log(saved.vouched));
    // What a table vouches for after an orderly end is looked at queue by queue: there is nothing that it does not know.
    let listed = !clean || saved.is_none();
    let found = if listed { queues::list(&**disk, &files, clean)? } else { queues::FoundQueues::new() };
    let look = |row| queues::look_at(&**disk, &files, clean, row, listed.then_some(&found));
    let looks = saved.iter().flat_map(|saved| &saved.rows).map(look).collect::<Result<Vec<_>, _>>()?;
    let history = match (clean, checkpoint.own) {
        (true, _) => IndexHistory::Clean,
        (false, Some(_)) if checkpoint.agrees => IndexHistory::Unclean,
        (false, _) => IndexHistory::UncleanJava { index_timestamp_ms: checkpoint.java.index_ms },
    };
    let progress = checkpoint.own.filter(|_| checkpoint.agrees).map(|own| own.index);
    let index = Index::open(&**disk, &layout, id, options, history, progress)?;
    // Checks are over: from here on the disk is changed.
    segments.remove_empty_last(&**disk)?;
    let mut recovery = Recovery {
        disk: &**disk,
        options,
        files,
        tombstones: home.tombstones(),
        id,
        clean,
        durable: if clean { u64::MAX } else { checkpoint.own.map_or(0, |own| own.durable) },
        log,
        table: QueueTable::new(),
        index,
        lost: Vec::new(),
        report: RecoveryReport { clean, trusted: saved.is_some(), ..RecoveryReport::default() },
        last_store_ms: checkpoint.java.log_ms.clamp(0, now.wall_ms.max(0)),
        layout,
    };
    let dir = recovery.layout.dir.clone();
    let outcome = recovery.run(&checkpoint, saved, &looks, &found);
    let vouched = outcome.map_err(OpenError::io(&dir))?;
    let earliest_ms = recovery.first_stored_ms(recovery.log.start()).map_err(OpenError::io(&dir))?;
    let Recovery { log, table, index, report, last_store_ms, .. } = recovery;
    Ok(Recovered { log, table, index, checkpoint, vouched, last_store_ms, earliest_ms, report })
}

impl Recovery<'_> {
    /// Everything after the checks. Gives the offset up to which the queue table vouches.
    fn run(
        &mut self,
        checkpoint: &Checkpoint,
        saved: Option<QueueTableFile>,
        looks: &[queues::Look],
        found: &queues::FoundQueues,
    ) -> io::Result<u64> {
        let trusted = saved.is_some();
        let start = match saved {
            Some(saved) => {
                self.last_store_ms = self.last_store_ms.max(saved.last_store_ms);
                let vouched = saved.vouched;
                self.restore_saved(saved, looks, found)?;
                vouched
            }
            None => {
                self.revoke()?;
                let last_end = self.restore_from_files(found)?;
                self.java_start(checkpoint, last_end)?
            }
        };
        // Where the whole log is read anyway, nothing in the queues' files is needed but where each queue goes on.
        let known_ends = if !trusted && start == self.log.start() { self.forget_files()? } else { Vec::new() };
        let walked = self.walk(start, trusted)?;
        self.finish_log(start, walked, trusted)?;
        if !trusted {
            self.cut_queues(walked.end, found)?;
        }
        for (topic, id, max) in known_ends {
            let slot = self.table.find_or_make(&topic, id);
            if self.table.get(slot).next == 0 {
                self.table.start_at(slot, max);
            }
        }
        // What was read beyond a table that still counts waits for the first pass, as it did in the last process.
        if !trusted || !self.lost.is_empty() {
            self.rebuild_lost()?;
            self.write_queues()?;
        }
        Ok(if trusted { start } else { self.log.start() })
    }

    /// Reads the log from `start` to its end and dispatches it.
    fn walk(&mut self, start: u64, trusted: bool) -> io::Result<Walked> {
        self.report.walked_from = PhysicalOffset(start);
        self.index.follow_from(PhysicalOffset(start));
        let trust = match (start == self.log.start(), trusted) {
            (true, _) => Trust::WholeLog,
            (false, true) => Trust::Table,
            (false, false) => Trust::Files,
        };
        let mut source = LogFiles::new(self.disk, &self.layout.commit_log, self.log.bases());
        let segment_size = self.log.segment_size();
        let max_record = max_record(self.options, segment_size);
        let mut walk = Walk::new(&mut source, self.log.base_of(start), segment_size, max_record, self.durable)?;
        let (table, index, lost, tombstones) = (&mut self.table, &mut self.index, &mut self.lost, &self.tombstones);
        let (disk, files, level_ms) = (self.disk, &self.files, &*self.options.delay_level_ms);
        let light = self.options.light_queues;
        walk.run(start, u64::MAX, &mut |record, at, damaged| {
            let mut note = |table: &mut QueueTable, dispatched| {
                if let Dispatched::Gap(slot) = dispatched
                    && !table.get(slot).lost
                {
                    table.get_mut(slot).lost = true;
                    lost.push((slot, 0));
                }
            };
            if !tombstones.covers(record.topic(), at) {
                let dispatched = dispatch::recovered(table, record, at, damaged, trust, level_ms);
                note(table, dispatched);
                if !damaged {
                    put_keys(index, record, at);
                }
            }
            if light {
                let wanted = |_: &QueueTable, queue: &[u8]| !tombstones.covers(queue, at);
                dispatch::recovered_light(table, record, at, damaged, trust, &wanted, &mut note);
            }
            keep_within_memory(disk, table, files)
        })
    }

    /// Sets the log's end, cuts what is behind it, and makes what was walked over durable.
    fn finish_log(&mut self, start: u64, walked: Walked, trusted: bool) -> io::Result<()> {
        let end = walked.end;
        self.report.end = PhysicalOffset(end);
        self.report.records = walked.records;
        self.report.damaged_records = walked.damaged;
        self.last_store_ms = self.last_store_ms.max(walked.last_store_ms);
        let blank = self.is_blank_behind(end)?;
        let untouched = blank && self.clean && trusted && end == start;
        if !untouched {
            self.report.removed_segments = self.log.cut(end)?;
            for base in self.log.bases().filter(|base| base + self.log.segment_size() > start) {
                self.disk.open(&self.log.path_of(base), OpenMode::ReadWrite)?.sync_data()?;
            }
        }
        self.log.set_end(end);
        self.index.cut_to(self.disk, PhysicalOffset(end))
    }

    /// Whether nothing was ever written right behind the end. Counts bytes that were.
    fn is_blank_behind(&mut self, end: u64) -> io::Result<bool> {
        let Some((file, position)) = self.log.locate(end)? else { return Ok(true) };
        let mut bytes = [0; 4096];
        let read = file.read_at(&mut bytes, position)?;
        self.report.cut_bytes = bytes[..read].iter().filter(|&&byte| byte != 0).count() as u64;
        Ok(self.report.cut_bytes == 0 && self.log.capacity_end() - end <= 2 * self.log.segment_size())
    }

    /// Makes queues again whose entries are lost, from the whole log.
    fn rebuild_lost(&mut self) -> io::Result<()> {
        if self.lost.is_empty() {
            return Ok(());
        }
        self.revoke()?;
        self.report.rebuilt_queues = self.lost.len() as u32;
        for &(slot, _) in &self.lost {
            let id = self.table.get(slot).id;
            self.disk.remove_dir_all(&self.files.queue_dir(self.table.topic_of(slot), id))?;
            self.table.reset(slot);
        }
        let mut source = LogFiles::new(self.disk, &self.layout.commit_log, self.log.bases());
        let (start, end, segment_size) = (self.log.start(), self.log.written(), self.log.segment_size());
        let max_record = max_record(self.options, segment_size);
        let mut walk = Walk::new(&mut source, start, segment_size, max_record, u64::MAX)?;
        let (table, tombstones, disk, files) = (&mut self.table, &self.tombstones, self.disk, &self.files);
        let (level_ms, light) = (&*self.options.delay_level_ms, self.options.light_queues);
        walk.run(start, end, &mut |record, at, damaged| {
            let slot = u32::try_from(record.queue_id()).ok().and_then(|id| table.find(record.topic(), id));
            if slot.is_some_and(|slot| table.get(slot).lost) && !tombstones.covers(record.topic(), at) {
                dispatch::recovered(table, record, at, damaged, Trust::WholeLog, level_ms);
            }
            if light {
                let wanted = |table: &QueueTable, queue: &[u8]| {
                    let slot = table.find(queue, LIGHT_QUEUE_ID);
                    slot.is_some_and(|slot| table.get(slot).lost) && !tombstones.covers(queue, at)
                };
                dispatch::recovered_light(table, record, at, damaged, Trust::WholeLog, &wanted, &mut |_, _| {});
            }
            keep_within_memory(disk, table, files)
        })?;
        for &(slot, go_on_at) in &self.lost {
            self.table.get_mut(slot).lost = false;
            if self.table.get(slot).next == 0 {
                self.table.start_at(slot, go_on_at);
            }
        }
        Ok(())
    }

    /// Takes back every statement about the queues' files, durably, before any of them is made again: a crash in between
    /// must not leave a statement about files that are no longer those that it was made for.
    fn revoke(&mut self) -> io::Result<()> {
        let table = self.layout.dir.join(QUEUE_TABLE_FILE);
        if self.disk.metadata(&table)?.is_some() {
            self.disk.remove_file(&table)?;
            self.disk.sync_dir(&self.layout.dir)?;
        }
        if self.disk.metadata(&self.layout.checkpoint)?.is_some() {
            let file = self.disk.open(&self.layout.checkpoint, OpenMode::ReadWrite)?;
            file.write_at(&[IoSlice::new(&[0; 8])], QUEUES_TIME_AT)?;
            file.sync_data()?;
        }
        Ok(())
    }

    fn write_queues(&mut self) -> io::Result<()> {
        write_now(self.disk, &mut self.table, &self.files, &mut Vec::new())
    }
}

/// Writes entries out while a long log is dispatched.
fn keep_within_memory(disk: &dyn Disk, table: &mut QueueTable, files: &QueueFiles) -> io::Result<()> {
    const UNWRITTEN_ENTRIES: u64 = 1 << 20;
    if table.unwritten() < UNWRITTEN_ENTRIES { Ok(()) } else { write_now(disk, table, files, &mut Vec::new()) }
}

/// Puts the keys of a record into the index.
fn put_keys(index: &mut Index, record: &RecordView<'_>, at: PhysicalOffset) {
    let store_ms = record.store_timestamp_ms();
    let keys = RecordKeys::scan(record.properties());
    keys.hashes(record.topic(), record.sys_flag(), &mut |hash| index.put(hash, at, store_ms));
}

/// The largest record that a walk believes in.
pub(crate) fn max_record(options: &StoreOptions, segment_size: u64) -> u32 {
    // A store may hold larger messages from a time when the limit was higher: take the segment's size as the bound
    // when that is small, and never less than RocketMQ's own default.
    let by_options = u64::from(options.max_message_size_bytes.max(4 << 20)) + u64::from(limits::RECORD_OVERHEAD_BYTES);
    by_options.max(16 << 20).min(segment_size) as u32
}

/// The log's files for a walk.
pub(crate) struct LogFiles<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    bases: Vec<u64>,
}

impl<'a> LogFiles<'a> {
    pub(crate) fn new(disk: &'a dyn Disk, dir: &'a Path, bases: impl Iterator<Item = u64>) -> Self {
        Self { disk, dir, bases: bases.collect() }
    }
}

impl Segments for LogFiles<'_> {
    fn segment(&mut self, base: u64) -> io::Result<Option<Arc<dyn DiskFile>>> {
        if self.bases.binary_search(&base).is_err() {
            return Ok(None);
        }
        self.disk.open(&self.dir.join(offset_file_name(base)), OpenMode::Read).map(Some)
    }
}

fn check_span(bases: &[u64], id: ShardId, layout: &ShardLayout) -> Result<(), OpenError> {
    match bases.iter().find(|&&base| ShardId::of(PhysicalOffset(base)) != Some(id)) {
        None => Ok(()),
        Some(&base) => Err(OpenError::Damaged {
            path: layout.commit_log.join(offset_file_name(base)),
            reason: format!("does not belong to shard {id}"),
        }),
    }
}

fn read_checkpoint(disk: &dyn Disk, path: &Path) -> Result<Checkpoint, OpenError> {
    let bytes = disk.read(path).map_err(OpenError::io(path))?;
    Ok(bytes.and_then(|bytes| Checkpoint::decode(&bytes)).unwrap_or_default())
}

fn read_queue_table(disk: &dyn Disk, layout: &ShardLayout) -> Result<Option<QueueTableFile>, OpenError> {
    let path = layout.dir.join(QUEUE_TABLE_FILE);
    let bytes = disk.read(&path).map_err(OpenError::io(&path))?;
    Ok(bytes.and_then(|bytes| QueueTableFile::decode(&bytes)))
}
