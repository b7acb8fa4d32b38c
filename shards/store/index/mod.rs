//! The key index of a shard: items in memory during the turn, Java's index files behind it.
//!
//! Owner of `index/` of a shard. In the turn an item is pushed to a run, nothing else. A full or old run is sealed; once
//! the log is durable up to its end, a background task merges it into the newest file. What is in no run and no file
//! (files deleted, damaged or dropped; runs given up because merges failed) is read again from the log in the background.
//! Invariants: files and runs follow each other in the order of the log; a file's header counts only durable items;
//! queries see runs and files, and a record that stands in both once. Index loss costs work, never messages. It does not
//! look at the records that it finds: the caller checks topic, key, time and visibility of each.

mod file;
pub(crate) mod fuzz;
mod keys;
mod lookup;
mod merge;
mod rebuild;
mod run;
mod scan;

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use hashbrown::HashMap;
use message::PhysicalOffset;
use reactor::{BackgroundTask, Job, JobClass, JobOutput, Now, Step};
use sys::disk::{Disk, OpenMode};

use self::file::{FileName, Geometry, HEADER_BYTES, Header, IndexFile, read_full};
use self::lookup::Walk;
use self::merge::{Failure, Merge, Merged};
use self::rebuild::{LogView, Rebuild};
use self::run::Run;
use crate::error::{OpenError, ReadError};
use crate::layout::{SHARD_SPAN, ShardId, ShardLayout};
use crate::options::StoreOptions;
use crate::step::{ColdSource, Missing, ReadStep};

pub use self::keys::{RecordKeys, key_hash, tag_hash};
pub use self::lookup::{KeyLookup, MAX_UNSURE};

/// Items after which a run is sealed: a merge passes through the whole slot table (20 MB), so it is worth 20 bytes an item.
const RUN_ITEMS: usize = 1 << 20;
/// Age of a run's first item at which it is sealed.
const RUN_AGE_US: u64 = 60_000_000;
/// Sealed runs that wait for a merge: 20 MiB each. More are given up and read from the log later.
const WAITING_RUNS: usize = 2;
/// Pause after a failed merge or rebuild.
const RETRY_AFTER_US: u64 = 5_000_000;
/// Lookups that wait for a walk in the background. More are refused.
const WAITING_LOOKUPS: usize = 1024;
/// Lookups whose background walk is done and whose asker has not come back yet.
const FINISHED_LOOKUPS: usize = 256;

/// How the store was used before it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexHistory {
    /// Closed in order.
    Clean,
    /// RingMQ was ended without closing it: headers can be trusted, slots may be those of a merge cut short.
    Unclean,
    /// A Java broker was ended without closing it: only files that ended by its checkpoint's index time can be trusted.
    UncleanJava {
        /// The checkpoint's third field, ms since 1970.
        index_timestamp_ms: i64,
    },
}

/// How far the files reach, for the shard's checkpoint: saves reading the log again when its newest records have no keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexProgress {
    /// Every keyed record that starts below is in the files.
    pub to: PhysicalOffset,
    /// Number that is the newest file's name; 0 without files.
    pub newest_file: u64,
    /// Items in the newest file.
    pub items: u32,
    /// Number of files.
    pub files: u32,
}

/// The index of one shard. One owner.
pub struct Index {
    enabled: bool,
    geometry: Geometry,
    log: Arc<LogView>,
    layout: ShardLayout,
    /// Oldest first.
    files: Vec<Arc<IndexFile>>,
    /// Every keyed record that starts below is in the files.
    indexed_to: PhysicalOffset,
    /// Sealed runs, oldest first; with how many items of the first are in the files already.
    sealed: VecDeque<Arc<Run>>,
    merged_items: usize,
    active: Run,
    /// When the first item of `active` came, in monotonic microseconds; 0 while it is empty.
    active_since_us: u64,
    /// Items of records below are in the files already: recovery gives them again.
    skip_below: PhysicalOffset,
    /// No file ever had a larger name: progress that names a file can mean only that one.
    largest_name: FileName,
    /// A merge was cut short: the newest file's slots are put right before the next one.
    repair: bool,
    /// Removed files whose unlinking is still to be done.
    unlink: Vec<FileName>,
    in_flight: Option<InFlight>,
    retry_at_us: u64,
    lookups: Lookups,
    last: (i64, PhysicalOffset),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum InFlight {
    Merge,
    Rebuild,
    Unlink,
}

/// Walks in the background.
#[derive(Default)]
struct Lookups {
    next: u64,
    waiting: HashMap<u64, Parked>,
    /// Results, with up to where each is complete.
    done: VecDeque<(KeyLookup, PhysicalOffset, Result<Vec<PhysicalOffset>, ReadError>)>,
}

struct Parked {
    query: KeyLookup,
    /// Where the runs ended that the walk was begun with.
    complete_to: PhysicalOffset,
    /// Until the job is asked for.
    walk: Option<Walk>,
}

impl Lookups {
    /// The result of this query, if there is one to which the runs of now have all that came since.
    fn take(&mut self, query: KeyLookup, indexed_to: PhysicalOffset) -> Option<Result<Vec<PhysicalOffset>, ReadError>> {
        self.done.retain(|(of, complete_to, _)| *of != query || *complete_to >= indexed_to);
        let at = self.done.iter().position(|(of, _, _)| *of == query)?;
        self.done.remove(at).map(|(_, _, offsets)| offsets)
    }
}

impl Index {
    /// Opens the files of a shard's index. Damaged ones, and those that the history does not vouch for, are removed: their
    /// keys are read from the log again. Errors: the disk's, and a file of another length than the settings say (then
    /// nothing was removed).
    pub fn open(
        disk: &dyn Disk,
        layout: &ShardLayout,
        shard: ShardId,
        options: &StoreOptions,
        history: IndexHistory,
        progress: Option<IndexProgress>,
    ) -> Result<Index, OpenError> {
        let geometry = Geometry { slots: options.max_hash_slots.max(1), items: options.max_index_items.max(2) };
        let (base, dir) = (shard.base(), layout.commit_log.clone());
        let log = Arc::new(LogView { dir, segment_bytes: options.segment_size_bytes, base });
        let mut index = Self {
            enabled: options.message_index_enable,
            geometry,
            log,
            layout: layout.clone(),
            files: Vec::new(),
            indexed_to: base,
            sealed: VecDeque::new(),
            merged_items: 0,
            active: Run::new(base),
            active_since_us: 0,
            skip_below: base,
            largest_name: FileName::default(),
            repair: history != IndexHistory::Clean,
            unlink: Vec::new(),
            in_flight: None,
            retry_at_us: 0,
            lookups: Lookups::default(),
            last: (0, base),
        };
        if index.enabled {
            index.load(disk, history, progress)?;
        }
        Ok(index)
    }

    /// Before recovery gives its first record: every record that starts at `offset` or later will be put. What lies below
    /// and is in no file is read from the log in the background.
    pub fn follow_from(&mut self, offset: PhysicalOffset) {
        assert!(self.active.is_empty() && self.sealed.is_empty(), "follow_from comes before any put");
        self.active = Run::new(offset.max(self.indexed_to));
        self.skip_below = self.indexed_to;
    }

    /// After recovery: the log ends at `end`. Files with items behind it are removed and made again.
    pub fn cut_to(&mut self, disk: &dyn Disk, end: PhysicalOffset) -> io::Result<()> {
        let sound =
            self.files.iter().take_while(|file| file.header.is_sound(self.geometry, self.log.base, end)).count();
        if sound < self.files.len() {
            self.drop_files(sound);
            self.remove_unlinked(disk)?;
            // Recovery left out what those files held: all of it is read again.
            self.active = Run::new(end);
        }
        if self.indexed_to > end {
            (self.indexed_to, self.skip_below) = (end, end);
            self.active = Run::new(end);
        }
        Ok(())
    }

    /// Adds an item of the record that starts at `offset`: after it was written, in the order of the log.
    #[inline]
    pub fn put(&mut self, key_hash: u32, offset: PhysicalOffset, store_timestamp_ms: i64) {
        if self.enabled && offset >= self.skip_below {
            self.active.push(key_hash, offset, store_timestamp_ms);
        }
    }

    /// Once a turn: seals a run that is long or old enough, and gives up the oldest of too many. Whether it is durable counts
    /// only for its merge: under a load without a pause the newest item never is.
    pub fn tick(&mut self, now: Now) {
        if self.active.is_empty() {
            return;
        }
        if self.active_since_us == 0 {
            self.active_since_us = now.mono_us.max(1);
        }
        let old = now.mono_us.saturating_sub(self.active_since_us) >= RUN_AGE_US;
        if self.active.len() >= RUN_ITEMS || old {
            self.seal();
        }
    }

    /// The next job of the index, if one is to be done and none is in flight. Its result goes to [`Index::job_done`].
    pub fn take_job(&mut self, now: Now, durable_to: PhysicalOffset) -> Option<Job> {
        if self.in_flight.is_some() || now.mono_us < self.retry_at_us || !self.enabled {
            return None;
        }
        let (kind, task): (InFlight, Box<dyn BackgroundTask>) = if !self.unlink.is_empty() {
            let names = std::mem::take(&mut self.unlink);
            (InFlight::Unlink, Box::new(Unlink { dir: self.layout.index.clone(), names }))
        } else {
            let next = self.runs_from();
            if next > self.indexed_to {
                (InFlight::Rebuild, Box::new(Rebuild::new(self.log.clone(), self.indexed_to, next, RUN_ITEMS)))
            } else {
                (InFlight::Merge, Box::new(self.merge(now.wall_ms, durable_to)?))
            }
        };
        self.in_flight = Some(kind);
        Some(Job::Task { class: JobClass::Upkeep, task })
    }

    /// The result of the job that [`Index::take_job`] gave.
    pub fn job_done(&mut self, now: Now, result: io::Result<JobOutput>) {
        let kind = self.in_flight.take();
        let outcome = match result {
            Ok(JobOutput::Task(output)) => self.take_output(output),
            Ok(_) => Err(io::Error::other("the index got the result of another job")),
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            tracing::warn!(dir = %self.layout.index.display(), %error, "a job of the index failed; it is tried again");
            self.repair |= kind == Some(InFlight::Merge);
            self.retry_at_us = now.mono_us.saturating_add(RETRY_AFTER_US);
        }
    }

    /// When a tick and the job after it have something to do, in monotonic microseconds; `None` while nothing waits, or only
    /// for more of the log to become durable than up to `durable_to`.
    #[must_use]
    pub fn next_tick_us(&self, durable_to: PhysicalOffset) -> Option<u64> {
        if !self.enabled || self.in_flight.is_some() {
            return None;
        }
        let seal = (!self.active.is_empty()).then(|| match self.active_since_us {
            0 => 0,
            since => since + RUN_AGE_US,
        });
        let ready = self.runs_from() > self.indexed_to || self.sealed.front().is_some_and(|run| run.to() <= durable_to);
        let job = (ready || !self.unlink.is_empty()).then_some(self.retry_at_us);
        seal.into_iter().chain(job).min()
    }

    /// Whether a job is in flight. [`Index::close`] writes nothing while one is.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether a job would be taken now if it were asked for, or is in flight: there is something to merge or read again.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.enabled && (!self.sealed.is_empty() || self.runs_from() > self.indexed_to || self.in_flight.is_some())
    }

    /// Starts of records that may have the key, newest first, each once: see [`KeyLookup::limit`]. The caller checks topic,
    /// key, store time and visibility of each. `Missing` carries [`ColdSource::Index`] and no range: its number goes to
    /// [`Index::lookup_job`].
    pub fn lookup(&mut self, query: KeyLookup) -> ReadStep<Vec<PhysicalOffset>> {
        let mut found = Vec::new();
        for run in std::iter::once(&self.active).chain(self.sealed.iter().rev().map(|run| &**run)) {
            run.find(query.hash, query.begin_ms, query.end_ms, query.limit, &mut found);
        }
        if let Some(done) = self.lookups.take(query, self.indexed_to) {
            match done {
                Ok(offsets) => found.extend(offsets),
                Err(error) => return ReadStep::Failed(error),
            }
        } else if found.len() < query.limit && !self.files.is_empty() {
            let below = self.runs_from();
            match Walk::new(self.geometry, &self.files, query, below, found).run_resident() {
                Ok(Ok(offsets)) => found = offsets,
                Ok(Err(walk)) => return self.park(query, walk),
                Err(error) => return ReadStep::Failed(error.into()),
            }
        }
        // A run that is being merged, or was merged since, gives the same records again.
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.dedup();
        found.truncate(query.limit.saturating_add(MAX_UNSURE));
        ReadStep::Ready(found)
    }

    /// The job of a lookup that is [`ReadStep::Missing`]; `None` if it was given already.
    pub fn lookup_job(&mut self, number: u64) -> Option<Job> {
        let walk = self.lookups.waiting.get_mut(&number)?.walk.take()?;
        Some(Job::Task { class: JobClass::Waited, task: Box::new(walk) })
    }

    /// The result of a lookup's job: the same [`Index::lookup`] finds it, once.
    pub fn lookup_done(&mut self, number: u64, result: io::Result<JobOutput>) {
        let Some(parked) = self.lookups.waiting.remove(&number) else { return };
        let offsets = match result {
            Ok(JobOutput::Task(output)) => match output.downcast::<Vec<PhysicalOffset>>() {
                Ok(offsets) => Ok(*offsets),
                Err(_) => Err(ReadError::Io("the index got the result of another job".to_owned())),
            },
            Ok(_) => Err(ReadError::Io("the index got the result of another job".to_owned())),
            Err(error) => Err(error.into()),
        };
        if self.lookups.done.len() == FINISHED_LOOKUPS {
            self.lookups.done.pop_front();
        }
        self.lookups.done.push_back((parked.query, parked.complete_to, offsets));
    }

    /// The log now begins at `log_min`: files that name only older records are removed, the newest one never.
    pub fn expire(&mut self, log_min: PhysicalOffset) {
        let gone = self.files.iter().take_while(|file| file.header.end < log_min).count();
        let gone = gone.min(self.files.len().saturating_sub(1));
        self.unlink.extend(self.files.drain(..gone).map(|file| file.name));
    }

    /// Every keyed record that starts below is in the files.
    #[must_use]
    pub fn indexed_to(&self) -> PhysicalOffset {
        self.indexed_to
    }

    /// How far the files reach, for the checkpoint.
    #[must_use]
    pub fn progress(&self) -> IndexProgress {
        let newest = self.files.last();
        IndexProgress {
            to: self.indexed_to,
            newest_file: newest.map_or(0, |file| file.name.0),
            items: newest.map_or(0, |file| file.header.count),
            files: self.files.len() as u32,
        }
    }

    /// Store time of the newest record in the files, ms since 1970; 0 without files: the checkpoint's third field.
    #[must_use]
    pub fn index_timestamp_ms(&self) -> i64 {
        self.files.last().map_or(0, |file| file.header.end_ms)
    }

    /// Store time (ms since 1970) and start of the newest indexed record, runs counted.
    #[must_use]
    pub fn last(&self) -> (i64, PhysicalOffset) {
        let runs = std::iter::once(&self.active).chain(self.sealed.iter().rev().map(|run| &**run));
        let newest = runs.filter_map(Run::last).next().map(|item| (item.store_timestamp_ms, item.offset));
        newest.unwrap_or(self.last)
    }

    /// Merges what is left, inline. Nothing is done while a job is in flight, or while older records are still to be read
    /// again: the next start does that. Call it when the log is durable.
    pub fn close(&mut self, disk: &dyn Disk, now: Now, durable_to: PhysicalOffset) -> io::Result<()> {
        if self.in_flight.is_some() || !self.enabled {
            return Ok(());
        }
        if !self.active.is_empty() {
            self.seal();
        }
        while let Some(mut merge) = self.merge(now.wall_ms, durable_to) {
            let output = loop {
                if let Step::Done(output) = merge.step(disk)? {
                    break output;
                }
            };
            self.take_output(output)?;
        }
        self.remove_unlinked(disk)
    }
}

impl Index {
    fn load(
        &mut self,
        disk: &dyn Disk,
        history: IndexHistory,
        progress: Option<IndexProgress>,
    ) -> Result<(), OpenError> {
        let dir = self.layout.index.clone();
        let mut names: Vec<(FileName, u64)> = disk
            .list(&dir)
            .map_err(OpenError::io(&dir))?
            .iter()
            .filter_map(|item| Some((FileName::parse(&item.name)?, item.len)))
            .collect();
        names.sort_unstable();
        let expected = self.geometry.file_bytes();
        // A file that was being made when the process or the power went may have any length; but not all of several.
        let is_right = |&(_, len): &(FileName, u64)| len == expected;
        let forgiving = history != IndexHistory::Clean && (names.len() == 1 || names.iter().any(is_right));
        let wrong = names.iter().find(|&&(_, len)| len != expected && len != 0);
        if let Some(&(name, found)) = wrong.filter(|_| !forgiving) {
            let setting = "maxHashSlotNum, maxIndexNum; without the index folder it is made again";
            return Err(OpenError::WrongSize { path: name.path(&dir), found, expected, setting });
        }
        self.largest_name = names.last().map_or(FileName::default(), |&(name, _)| name);
        let mut sound = true;
        for (name, len) in names {
            // Without items it is one that was being made: it says nothing about the others.
            let file = if len == expected { self.load_file(disk, name, history)? } else { Loaded::Empty };
            match file {
                Loaded::Sound(file) if sound => self.files.push(Arc::new(file)),
                Loaded::Empty => self.unlink.push(name),
                Loaded::Sound(_) | Loaded::Doubtful => {
                    self.unlink.push(name);
                    sound = false;
                }
            }
        }
        self.settle_progress(history, progress);
        (self.active, self.skip_below) = (Run::new(self.indexed_to), self.indexed_to);
        self.remove_unlinked(disk).map_err(OpenError::io(&dir))
    }

    /// Opens a file and judges its header by itself, by the file before, and by the history.
    fn load_file(&self, disk: &dyn Disk, name: FileName, history: IndexHistory) -> Result<Loaded, OpenError> {
        let path = name.path(&self.layout.index);
        let file = disk.open(&path, OpenMode::Read).map_err(OpenError::io(&path))?;
        let mut bytes = [0; HEADER_BYTES];
        read_full(&*file, &mut bytes, 0).map_err(OpenError::io(&path))?;
        let header = Header::decode(&bytes);
        if header.count == 1 {
            return Ok(Loaded::Empty);
        }
        let in_order = self.files.last().is_none_or(|before| before.header.end <= header.begin);
        let span_end = self.log.base.plus(SHARD_SPAN);
        let vouched = match history {
            IndexHistory::UncleanJava { index_timestamp_ms } => header.end_ms <= index_timestamp_ms,
            _ => true,
        };
        let sound = in_order && vouched && header.is_sound(self.geometry, self.log.base, span_end);
        Ok(if sound { Loaded::Sound(IndexFile { name, file, header }) } else { Loaded::Doubtful })
    }

    /// Decides how far the loaded files reach.
    fn settle_progress(&mut self, history: IndexHistory, progress: Option<IndexProgress>) {
        let Some(progress) = progress else {
            self.reach_from_files();
            return;
        };
        let here = IndexProgress { to: progress.to, ..self.progress() };
        let same_newest = (here.newest_file, here.items) == (progress.newest_file, progress.items);
        if history == IndexHistory::Clean && here != progress {
            // Somebody took files away since the store was closed.
            self.drop_files(0);
        } else if same_newest && progress.to >= self.log.base {
            self.reach_from_files();
            self.indexed_to = self.indexed_to.max(progress.to);
        } else {
            self.reach_from_files();
        }
    }

    /// Only what the headers say: the last record may have keys that are not in its file any more.
    fn reach_from_files(&mut self) {
        self.indexed_to = self.files.last().map_or(self.log.base, |file| file.header.end);
        self.last = self.files.last().map_or((0, self.log.base), |file| (file.header.end_ms, file.header.end));
    }

    /// Gives up all files from the one at `keep` on.
    fn drop_files(&mut self, keep: usize) {
        self.unlink.extend(self.files.drain(keep..).map(|file| file.name));
        self.merged_items = 0;
        self.reach_from_files();
        self.skip_below = self.skip_below.min(self.indexed_to);
    }

    fn remove_unlinked(&mut self, disk: &dyn Disk) -> io::Result<()> {
        if self.unlink.is_empty() {
            return Ok(());
        }
        let names = std::mem::take(&mut self.unlink);
        let mut task = Unlink { dir: self.layout.index.clone(), names };
        while !matches!(task.step(disk)?, Step::Done(_)) {}
        Ok(())
    }

    fn seal(&mut self) {
        let next = self.active.next();
        self.sealed.push_back(Arc::new(std::mem::replace(&mut self.active, next)));
        self.active_since_us = 0;
        if self.sealed.len() > WAITING_RUNS {
            // Merges fail or do not keep up: the oldest run that no merge is at work on is read from the log later.
            let at = usize::from(self.in_flight == Some(InFlight::Merge));
            let given_up = self.sealed.remove(at);
            self.reuse(given_up);
            self.merged_items = if at == 0 { 0 } else { self.merged_items };
        }
    }

    /// First byte of the log that the runs cover.
    fn runs_from(&self) -> PhysicalOffset {
        self.sealed.front().map_or(self.active.from(), |run| run.from())
    }

    /// Keeps the memory of a run that is not needed any more, unless a job still holds it.
    fn reuse(&mut self, run: Option<Arc<Run>>) {
        if let Some(run) = run.and_then(Arc::into_inner) {
            self.active.reuse(run);
        }
    }

    /// The merge of the oldest sealed run, if it is next and durable.
    fn merge(&self, wall_ms: i64, durable_to: PhysicalOffset) -> Option<Merge> {
        let run = self.sealed.front().filter(|run| run.from() <= self.indexed_to && run.to() <= durable_to)?;
        let (dir, run) = (self.layout.index.clone(), (run.clone(), self.merged_items));
        let name_after = self.largest_name.max(FileName(FileName::of_time(wall_ms).0.saturating_sub(1)));
        Some(Merge::new(self.geometry, dir, name_after, run, self.files.last().cloned(), self.repair))
    }

    fn take_output(&mut self, output: Box<dyn std::any::Any + Send>) -> io::Result<()> {
        let output = match output.downcast::<Merged>() {
            Ok(merged) => return self.take_merged(*merged),
            Err(output) => output,
        };
        if let Ok(run) = output.downcast::<Run>() {
            // An empty one, too: it says how far the log was read.
            self.sealed.push_front(Arc::new(*run));
            self.merged_items = 0;
        }
        Ok(())
    }

    fn take_merged(&mut self, merged: Merged) -> io::Result<()> {
        self.largest_name = self.largest_name.max(merged.name);
        for file in merged.files {
            if self.files.last().is_some_and(|newest| newest.name == file.name) {
                self.files.pop();
            }
            self.last = (file.header.end_ms, file.header.end);
            self.files.push(Arc::new(file));
        }
        (self.merged_items, self.repair) = (merged.items, merged.repair);
        let Some(failed) = merged.failed else {
            let run = self.sealed.pop_front().expect("a run in a merge stays the first");
            (self.indexed_to, self.merged_items) = (run.to(), 0);
            self.reuse(Some(run));
            return Ok(());
        };
        match failed {
            Failure::Write(error) => Err(error),
            Failure::Sync(error, name) => {
                if let Some(at) = self.files.iter().position(|file| file.name == name) {
                    self.drop_files(at);
                }
                Err(error)
            }
        }
    }

    fn park(&mut self, query: KeyLookup, walk: Walk) -> ReadStep<Vec<PhysicalOffset>> {
        if self.lookups.waiting.len() >= WAITING_LOOKUPS {
            return ReadStep::Failed(ReadError::Io("too many index queries wait for the disk".to_owned()));
        }
        let number = self.lookups.next;
        self.lookups.next += 1;
        let file = self.files.last().expect("a walk has files").file.clone();
        let parked = Parked { query, complete_to: self.active.to(), walk: Some(walk) };
        self.lookups.waiting.insert(number, parked);
        ReadStep::Missing(Missing { file, source: ColdSource::Index(number), ranges: Vec::new() })
    }
}

/// What a file on the disk turned out to be.
enum Loaded {
    /// To be used.
    Sound(IndexFile),
    /// Without any item.
    Empty,
    /// Not to be relied on, nor what comes behind it.
    Doubtful,
}

/// Removes files.
struct Unlink {
    dir: PathBuf,
    names: Vec<FileName>,
}

impl BackgroundTask for Unlink {
    fn step(&mut self, disk: &dyn Disk) -> io::Result<Step> {
        let Some(name) = self.names.pop() else {
            disk.sync_dir(&self.dir)?;
            return Ok(Step::Done(Box::new(())));
        };
        match disk.remove_file(&name.path(&self.dir)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(Step::More),
        }
    }
}
