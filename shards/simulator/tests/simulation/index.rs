//! The key index against a model: merges, restarts, power cuts and failures at any operation, cold reads, Java's own files.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::{Path, PathBuf};

use message::record::{self, RecordFields};
use message::{PhysicalOffset, QueueOffset};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reactor::{BackgroundTask, Job, JobOutput, Now, Step};
use simulator::{Fault, Residency, SimulatedDisk};
use store::index::{Index, IndexHistory, IndexProgress, KeyLookup, RecordKeys, key_hash, tag_hash};
use store::{ColdSource, OpenError, ReadStep, ShardId, StoreLayout, StoreOptions};
use sys::disk::{Disk, OpenMode};

const SEGMENT_BYTES: u64 = 64 << 10;
const KEYS: u32 = 23;
const SHARD: ShardId = ShardId(1);

/// A shard's log with an index, and what the index must know.
struct World {
    disk: SimulatedDisk,
    random: StdRng,
    options: StoreOptions,
    layout: StoreLayout,
    index: Index,
    end: PhysicalOffset,
    now: Now,
    /// Key → starts of its records, oldest first.
    model: BTreeMap<u32, Vec<PhysicalOffset>>,
    times: BTreeMap<PhysicalOffset, i64>,
    checkpoint: Option<IndexProgress>,
}

fn key(number: u32) -> String {
    format!("k{number}")
}

fn open_index(
    disk: &dyn Disk,
    layout: &StoreLayout,
    options: &StoreOptions,
    history: IndexHistory,
    progress: Option<IndexProgress>,
) -> Result<Index, OpenError> {
    Index::open(disk, &layout.shard(SHARD), SHARD, options, history, progress)
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let options = StoreOptions {
            segment_size_bytes: SEGMENT_BYTES,
            max_hash_slots: random.random_range(1..300),
            max_index_items: random.random_range(3..400),
            ..StoreOptions::default()
        };
        let (disk, layout) = (SimulatedDisk::new(seed), StoreLayout::new(Path::new("/d")));
        disk.create_dir_all(&layout.shard(SHARD).commit_log).unwrap();
        let mut index = open_index(&disk, &layout, &options, IndexHistory::Clean, None).unwrap();
        let end = SHARD.base();
        index.follow_from(end);
        let now = Now { mono_us: 1, wall_ms: 1_700_000_000_000 };
        let (model, times) = (BTreeMap::new(), BTreeMap::new());
        Self { disk, random, options, layout, index, end, now, model, times, checkpoint: None }
    }

    fn segment_start(&self) -> PhysicalOffset {
        PhysicalOffset(self.end.0 / SEGMENT_BYTES * SEGMENT_BYTES)
    }

    fn write(&self, bytes: &[u8]) {
        let start = self.segment_start();
        let dir = self.layout.shard(SHARD).commit_log;
        let file = self.disk.open(&dir.join(format!("{:020}", start.0)), OpenMode::Create).unwrap();
        file.write_at(&[IoSlice::new(bytes)], self.end.since(start)).unwrap();
        file.sync_data().unwrap();
        self.disk.sync_dir(&dir).unwrap();
    }

    /// Appends a record with some keys; the log is always durable here.
    fn append(&mut self) {
        let count = self.random.random_range(0..4);
        let numbers: Vec<u32> = (0..count).map(|_| self.random.random_range(0..KEYS)).collect();
        let words: Vec<String> = numbers.iter().map(|&number| key(number)).collect();
        let properties = format!("KEYS\u{1}{}\u{2}", words.join(" "));
        let mut bytes = Vec::new();
        let host = "127.0.0.1:1".parse().unwrap();
        let body = vec![7; self.random.random_range(0..300)];
        let fields = RecordFields {
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp_ms: 0,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: &body,
            topic: b"t",
            properties: message::properties::PropertiesSource::Text(properties.as_bytes()),
        };
        record::encode(&mut bytes, &fields).unwrap();
        let room = SEGMENT_BYTES - self.end.since(self.segment_start());
        if bytes.len() as u64 + 8 > room {
            self.write(&record::blank_record(room as u32));
            self.end = self.end.plus(room);
        }
        self.now.wall_ms += self.random.random_range(0..700);
        record::patch(&mut bytes, QueueOffset(0), self.end, self.now.wall_ms);
        self.write(&bytes);
        let (at, time) = (self.end, self.now.wall_ms);
        let index = &mut self.index;
        let mut put = |hash| index.put(hash, at, time);
        RecordKeys::scan(properties.as_bytes()).hashes(b"t", 0, &mut put);
        for number in numbers {
            let known = self.model.entry(number).or_default();
            if known.last() != Some(&at) {
                known.push(at);
            }
        }
        self.times.insert(at, time);
        self.end = self.end.plus(bytes.len() as u64);
    }

    /// Time passes, so that whatever there is gets sealed; then up to `jobs` jobs run. A failed one is tried later.
    fn run_jobs(&mut self, jobs: usize) {
        for _ in 0..jobs {
            self.now.mono_us += 61_000_000;
            self.index.tick(self.now);
            self.now.mono_us += 61_000_000;
            self.index.tick(self.now);
            let Some(Job::Task { mut task, .. }) = self.index.take_job(self.now, self.end) else { return };
            let result = run(&mut *task, &self.disk);
            self.index.job_done(self.now, result);
            if self.random.random_bool(0.5) {
                self.checkpoint = Some(self.index.progress());
            }
        }
    }

    fn settle(&mut self) {
        for _ in 0..200 {
            self.run_jobs(1);
            if !self.index.is_behind() {
                return;
            }
        }
        panic!("the index does not catch up: {:?}", self.index.progress());
    }

    fn reopen(&mut self, history: IndexHistory, progress: Option<IndexProgress>) -> Result<(), OpenError> {
        self.index = open_index(&self.disk, &self.layout, &self.options, history, progress)?;
        // Recovery walks through some last part of the log and gives it again.
        let starts: Vec<PhysicalOffset> = self.times.keys().copied().collect();
        let from = match starts.len() {
            0 => self.end,
            count => starts[self.random.random_range(0..count)],
        };
        self.index.follow_from(from);
        for (&at, &time) in self.times.range(from..) {
            for (&number, offsets) in &self.model {
                if offsets.binary_search(&at).is_ok() {
                    self.index.put(key_hash(b"t", key(number).as_bytes()), at, time);
                }
            }
        }
        self.index.cut_to(&self.disk, self.end).unwrap();
        Ok(())
    }

    fn close_and_reopen(&mut self) {
        while self.index.is_busy() {
            self.run_jobs(1);
        }
        self.index.close(&self.disk, self.now, self.end).unwrap();
        let progress = self.index.progress();
        self.reopen(IndexHistory::Clean, Some(progress)).unwrap();
    }

    fn crash(&mut self, seed: u64) -> Result<(), OpenError> {
        self.disk.power_cut(seed);
        let checkpoint = self.checkpoint.filter(|_| self.random.random_bool(0.7));
        self.reopen(IndexHistory::Unclean, checkpoint)
    }

    fn lookup(&mut self, query: KeyLookup) -> Vec<PhysicalOffset> {
        for _ in 0..3 {
            match self.index.lookup(query) {
                ReadStep::Ready(found) => return found,
                ReadStep::Missing(missing) => {
                    let ColdSource::Index(number) = missing.source else { panic!("of the index") };
                    let Some(Job::Task { mut task, .. }) = self.index.lookup_job(number) else { panic!("a job") };
                    let result = run(&mut *task, &self.disk);
                    self.index.lookup_done(number, result);
                }
                ReadStep::Failed(error) => panic!("{error}"),
            }
        }
        panic!("the lookup never ends");
    }

    /// Whether every key gives its records, and no record twice. A candidate too many is allowed (equal seconds).
    fn is_right(&mut self) -> bool {
        (0..KEYS).all(|number| {
            let hash = key_hash(b"t", key(number).as_bytes());
            let mut expected = self.model.get(&number).cloned().unwrap_or_default();
            expected.reverse();
            let all = KeyLookup { hash, begin_ms: 0, end_ms: i64::MAX, limit: 100_000 };
            if self.lookup(all) != expected {
                return false;
            }
            // One record's own millisecond, and the newest few.
            let newest = self.lookup(KeyLookup { limit: 3, ..all });
            let one = expected.get(self.random.random_range(0..expected.len().max(1))).copied();
            let window = one.map(|at| self.times[&at]);
            let narrow = window.map(|ms| self.lookup(KeyLookup { begin_ms: ms, end_ms: ms + 1, ..all }));
            let near = |at: &PhysicalOffset| window.is_some_and(|ms| (self.times[at] - ms).abs() <= 1000);
            newest == expected[..expected.len().min(3)]
                && narrow.is_none_or(|found| found.contains(&one.expect("has a window")) && found.iter().all(near))
        })
    }
}

fn run(task: &mut dyn BackgroundTask, disk: &dyn Disk) -> std::io::Result<JobOutput> {
    loop {
        if let Step::Done(output) = task.step(disk)? {
            return Ok(JobOutput::Task(output));
        }
    }
}

#[test]
fn finds_every_record_through_merges_rolls_and_restarts() {
    for seed in 0..40 {
        let mut world = World::new(seed);
        world.disk.set_residency([Residency::All, Residency::Nothing, Residency::Some][seed as usize % 3]);
        for round in 0..12 {
            (0..world.random.random_range(0..40)).for_each(|_| world.append());
            let jobs = world.random.random_range(0..3);
            world.run_jobs(jobs);
            if round % 4 == 3 {
                world.close_and_reopen();
                world.settle();
            }
            assert!(world.is_right(), "seed {seed}, round {round}");
        }
    }
}

/// Runs with a power cut at some operation of the index; whether all was found afterwards.
fn survives_cuts(seed: u64, honest: bool) -> bool {
    let mut world = World::new(seed);
    for round in 0..6_u64 {
        (0..world.random.random_range(1..40)).for_each(|_| world.append());
        world.disk.set_honest(honest);
        let jobs = world.random.random_range(1..4);
        world.now.mono_us += 122_000_000;
        world.index.tick(world.now);
        // The job in which it happens is cut between two of its steps, or in the middle of one.
        if world.random.random_bool(0.5) {
            let at = world.disk.operations() + world.random.random_range(1..30);
            world.disk.set_fault(Some(Fault::Operation(at)));
            world.run_jobs(jobs);
        } else {
            world.run_jobs(jobs - 1);
            world.now.mono_us += 122_000_000;
            world.index.tick(world.now);
            if let Some(Job::Task { mut task, .. }) = world.index.take_job(world.now, world.end) {
                let steps = world.random.random_range(0..12);
                (0..steps).take_while(|_| matches!(task.step(&world.disk), Ok(Step::More))).count();
            }
        }
        world.disk.set_honest(true);
        if world.crash(seed * 31 + round).is_err() {
            return false;
        }
        if world.random.random_bool(0.7) {
            world.settle();
            if !world.is_right() {
                return false;
            }
        }
    }
    world.settle();
    world.is_right()
}

#[test]
fn a_power_cut_at_any_point_costs_no_key() {
    let wrong: Vec<u64> = (0..250).filter(|&seed| !survives_cuts(seed, true)).collect();
    assert!(wrong.is_empty(), "seeds {wrong:?}");
}

#[test]
fn without_working_syncs_keys_are_lost_so_the_test_above_can_fail() {
    let wrong = (0..60).filter(|&seed| !survives_cuts(seed, false)).count();
    assert!(wrong > 5, "only {wrong} of 60");
}

#[test]
fn failed_operations_and_syncs_cost_work_and_no_key() {
    for seed in 0..120 {
        let mut world = World::new(seed);
        for round in 0..8 {
            (0..world.random.random_range(1..40)).for_each(|_| world.append());
            let at = world.disk.operations() + world.random.random_range(1..25);
            world.disk.set_fault(Some(if round % 2 == 0 { Fault::Sync(at) } else { Fault::Operation(at) }));
            world.run_jobs(3);
            world.disk.set_fault(None);
            if round % 3 == 2 {
                world.crash(seed).unwrap();
            }
        }
        world.settle();
        assert!(world.is_right(), "seed {seed}");
    }
}

#[test]
fn index_files_that_were_deleted_or_lost_are_made_again() {
    let mut world = World::new(5);
    (0..300).for_each(|_| world.append());
    world.settle();
    let dir = world.layout.shard(SHARD).index;
    for history in [IndexHistory::Clean, IndexHistory::Unclean] {
        world.index.close(&world.disk, world.now, world.end).unwrap();
        let progress = world.index.progress();
        let names = world.disk.list(&dir).unwrap();
        assert!(!names.is_empty());
        names.iter().for_each(|item| world.disk.remove_file(&dir.join(&item.name)).unwrap());
        world.reopen(history, Some(progress)).unwrap();
        assert!(history == IndexHistory::Unclean || world.index.is_behind());
        world.settle();
        assert!(world.is_right());
    }
}

#[test]
fn unkeyed_records_at_the_end_are_not_read_again_after_an_orderly_end() {
    let mut world = World::new(6);
    (0..50).for_each(|_| world.append());
    world.settle();
    world.index.close(&world.disk, world.now, world.end).unwrap();
    let progress = IndexProgress { to: world.end, ..world.index.progress() };
    world.index = open_index(&world.disk, &world.layout, &world.options, IndexHistory::Clean, Some(progress)).unwrap();
    world.index.follow_from(world.end);
    world.index.cut_to(&world.disk, world.end).unwrap();
    assert!(!world.index.is_behind());
    assert!(world.is_right());
}

#[test]
fn a_log_that_became_shorter_takes_its_items_along() {
    let mut world = World::new(7);
    (0..200).for_each(|_| world.append());
    world.settle();
    let cut = *world.times.keys().nth(120).unwrap();
    world.model.values_mut().for_each(|offsets| offsets.retain(|&at| at < cut));
    world.times.retain(|&at, _| at < cut);
    world.end = cut;
    world.crash(1).unwrap();
    world.settle();
    assert!(world.is_right());
    (0..50).for_each(|_| world.append());
    world.settle();
    assert!(world.is_right());
}

#[test]
fn old_files_go_with_the_log_and_the_newest_stays() {
    let mut world = World::new(8);
    world.options.max_index_items = 50;
    world.reopen(IndexHistory::Clean, None).unwrap();
    (0..300).for_each(|_| world.append());
    world.settle();
    let dir = world.layout.shard(SHARD).index;
    let before = world.disk.list(&dir).unwrap().len();
    let middle = *world.times.keys().nth(150).unwrap();
    world.index.expire(middle);
    world.run_jobs(2);
    let after = world.disk.list(&dir).unwrap().len();
    assert!(before > 4 && after < before && after > 1, "{before} {after}");
    world.index.expire(world.end);
    world.run_jobs(2);
    assert_eq!(world.disk.list(&dir).unwrap().len(), 1);
    world.close_and_reopen();
}

#[test]
fn a_file_of_another_length_is_an_error_and_nothing_is_removed() {
    let mut world = World::new(9);
    (0..300).for_each(|_| world.append());
    world.settle();
    let names = world.disk.list(&world.layout.shard(SHARD).index).unwrap().len();
    let options = StoreOptions { max_index_items: 999, ..world.options.clone() };
    let opened = Index::open(&world.disk, &world.layout.shard(SHARD), SHARD, &options, IndexHistory::Clean, None);
    assert!(opened.err().unwrap().to_string().contains("maxIndexNum"));
    assert_eq!(world.disk.list(&world.layout.shard(SHARD).index).unwrap().len(), names);
}

/// What a Java broker 5.4.0 wrote with 100 slots and 400 items: a log, and the two index files of it.
fn golden() -> (PathBuf, Vec<(String, Vec<u8>)>) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../store/index/golden");
    let read = |name: &str| (name.to_owned(), std::fs::read(dir.join(name)).unwrap());
    let files = ["20261130141241498", "20261130141246165"].map(read);
    (dir.join("commitlog"), files.into())
}

fn golden_options() -> StoreOptions {
    StoreOptions { segment_size_bytes: 1 << 20, max_hash_slots: 100, max_index_items: 400, ..StoreOptions::default() }
}

fn put_file(disk: &dyn Disk, path: &Path, bytes: &[u8]) {
    disk.create_dir_all(path.parent().unwrap()).unwrap();
    disk.open(path, OpenMode::Create).unwrap().write_at(&[IoSlice::new(bytes)], 0).unwrap();
}

#[test]
fn makes_the_same_bytes_as_java_from_the_same_log() {
    let (log, files) = golden();
    let log = std::fs::read(log).unwrap();
    let (disk, layout) = (SimulatedDisk::new(1), StoreLayout::new(Path::new("/d")));
    let shard = layout.shard(ShardId(0));
    put_file(&disk, &shard.commit_log.join("00000000000000000000"), &log);
    let end = PhysicalOffset(log.len() as u64);
    let mut index = Index::open(&disk, &shard, ShardId(0), &golden_options(), IndexHistory::Clean, None).unwrap();
    index.follow_from(end);
    index.cut_to(&disk, end).unwrap();
    let now = Now { mono_us: 1, wall_ms: 1_796_047_961_498 };
    while let Some(Job::Task { mut task, .. }) = index.take_job(now, end) {
        let result = run(&mut *task, &disk);
        index.job_done(now, result);
    }
    let made = disk.list(&shard.index).unwrap();
    assert_eq!(made.len(), 2);
    for (item, (_, bytes)) in made.iter().zip(&files) {
        let ours = disk.read(&shard.index.join(&item.name)).unwrap().unwrap();
        assert!(
            ours == *bytes,
            "{} differs from Java's at {:?}",
            item.name,
            ours.iter().zip(bytes).position(|(a, b)| a != b)
        );
    }
}

#[test]
fn finds_what_java_indexed() {
    let (_, files) = golden();
    let (disk, layout) = (SimulatedDisk::new(1), StoreLayout::new(Path::new("/d")));
    let shard = layout.shard(ShardId(0));
    files.iter().for_each(|(name, bytes)| put_file(&disk, &shard.index.join(name), bytes));
    let mut index = Index::open(&disk, &shard, ShardId(0), &golden_options(), IndexHistory::Clean, None).unwrap();
    let mut count = |hash| match index.lookup(KeyLookup { hash, begin_ms: 0, end_ms: i64::MAX, limit: 1000 }) {
        ReadStep::Ready(found) => found.len(),
        _ => panic!("is in memory"),
    };
    // The 130 messages: every third to golden-b, key `hot` in each, `k<i mod 17>`, every fifth tagged `Tag<i mod 4>`.
    assert_eq!(count(key_hash(b"golden-a", b"hot")), 86);
    assert_eq!(count(key_hash(b"golden-b", b"hot")), 44);
    let with = |topic_b: bool, of: fn(u32) -> bool| (0..130).filter(|i| (i % 3 == 0) == topic_b && of(*i)).count();
    assert_eq!(count(key_hash(b"golden-a", b"k5")), with(false, |i| i % 17 == 5));
    assert_eq!(count(tag_hash(b"golden-b", b"Tag1")), with(true, |i| i % 5 == 0 && i % 4 == 1));
    assert_eq!(count(key_hash(b"golden-a", b"7F00000100002A139A55000000000001")), 1);
    assert_eq!(count(key_hash(b"golden-c", b"hot")), 0);
}

#[test]
fn an_unclean_java_index_is_trusted_up_to_its_checkpoint() {
    let (_, files) = golden();
    for (index_timestamp_ms, kept) in [(0, 0), (1_796_047_966_164, 1), (1_796_047_966_196, 2)] {
        let (disk, layout) = (SimulatedDisk::new(1), StoreLayout::new(Path::new("/d")));
        let shard = layout.shard(ShardId(0));
        files.iter().for_each(|(name, bytes)| put_file(&disk, &shard.index.join(name), bytes));
        let history = IndexHistory::UncleanJava { index_timestamp_ms };
        let index = Index::open(&disk, &shard, ShardId(0), &golden_options(), history, None).unwrap();
        assert_eq!(index.progress().files, kept);
        assert_eq!(disk.list(&shard.index).unwrap().len(), kept as usize);
    }
}

#[test]
fn one_millisecond_of_a_busy_second_is_found_among_many_of_the_same_key() {
    let (disk, layout) = (SimulatedDisk::new(1), StoreLayout::new(Path::new("/d")));
    let options = StoreOptions { max_hash_slots: 10, max_index_items: 1000, ..StoreOptions::default() };
    let mut index = open_index(&disk, &layout, &options, IndexHistory::Clean, None).unwrap();
    let mut now = Now { mono_us: 1, wall_ms: 1_700_000_000_000 };
    let hash = key_hash(b"t", b"hot");
    let at = |ms: u64| SHARD.base().plus(ms * 100);
    (0..400).for_each(|ms| index.put(hash, at(ms), now.wall_ms + ms as i64));
    let first_ms = now.wall_ms;
    let look = |index: &mut Index, ms: u64| {
        let begin_ms = first_ms + ms as i64;
        match index.lookup(KeyLookup { hash, begin_ms, end_ms: begin_ms + 1, limit: 4 }) {
            ReadStep::Ready(found) => found,
            _ => panic!("is in memory"),
        }
    };
    assert_eq!(look(&mut index, 7), [at(8), at(7)], "a run knows milliseconds");
    assert_eq!(index.next_tick_us(at(0)), Some(0));
    index.tick(now);
    assert_eq!(index.next_tick_us(at(400)), Some(60_000_001));
    now.mono_us += 60_000_000;
    index.tick(now);
    assert_eq!(index.next_tick_us(at(400)), Some(0));
    assert_eq!(index.next_tick_us(at(399)), None, "nothing to do before the log is durable: the core may sleep");
    let Some(Job::Task { mut task, .. }) = index.take_job(now, at(400)) else { panic!("a merge") };
    assert_eq!(index.next_tick_us(at(400)), None);
    let result = run(&mut *task, &disk);
    index.job_done(now, result);
    assert_eq!(index.next_tick_us(at(400)), None);
    assert!(look(&mut index, 7).contains(&at(7)), "a file knows seconds: all of them are candidates");
}

/// A load without a pause: the newest record is never durable, and yet the items in memory stay bounded.
#[test]
fn a_run_is_sealed_before_its_last_record_is_durable() {
    const RUN_ITEMS: u64 = 1 << 20;
    let (disk, layout) = (SimulatedDisk::new(31), StoreLayout::new(Path::new("/d")));
    let mut index = open_index(&disk, &layout, &StoreOptions::default(), IndexHistory::Clean, None).unwrap();
    let now = Now { mono_us: 1, wall_ms: 1_700_000_000_000 };
    let at = |number: u64| SHARD.base().plus(number * 100);
    for number in 0..RUN_ITEMS + 10 {
        index.put(number as u32, at(number), now.wall_ms);
        if number % 1000 == 0 {
            index.tick(now);
        }
    }
    index.tick(now);
    index.put(1, at(RUN_ITEMS + 10), now.wall_ms);
    assert!(index.take_job(now, at(10)).is_none(), "merged only when it is durable");
    assert!(index.take_job(now, at(RUN_ITEMS + 10)).is_some(), "the items put since lie in another run");
}
