//! A shard with everything around it: runs its commands at once, keeps a model of what was acknowledged.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use message::QueueOffset;
use message::properties::PropertiesSource;
use message::record::{RecordFields, RecordView};
use reactor::{JobOutput, Now};
use simulator::SimulatedDisk;
use sys::disk::Disk;

use crate::options::{FlushMode, StoreOptions};
use crate::step::{Completion, FetchId, ReadStep, ShardCommand};
use crate::types::{Appended, GetStatus, PullLimits, RecoveryReport};
use crate::verify::verify_shard;
use crate::{AppendError, ConfigDir, OpenError, Shard, ShardId, StoreHome, StoreLayout, Tombstones};

pub(super) const ROOT: &str = "/data";
pub(super) const SEGMENT: u64 = 64 << 10;

/// Acknowledged messages: topic and queue, offset, body.
pub(super) type Model = BTreeMap<(String, u32), BTreeMap<u64, Vec<u8>>>;

/// Staged or written, not yet acknowledged: end of the record, queue, offset, body.
type Waiting = (u64, (String, u32), u64, Vec<u8>);

pub(super) struct Rig {
    pub(super) disk: SimulatedDisk,
    pub(super) options: StoreOptions,
    home: Option<StoreHome>,
    shard: Option<Shard>,
    pub(super) now: Now,
    pub(super) model: Model,
    waiting: Vec<Waiting>,
    /// Commands are kept instead of run.
    pub(super) hold: bool,
    pub(super) held: Vec<ShardCommand>,
}

pub(super) fn small_options(flush: FlushMode) -> StoreOptions {
    StoreOptions {
        segment_size_bytes: SEGMENT,
        queue_file_size_bytes: 20 * 50,
        flush,
        max_hash_slots: 64,
        max_index_items: 400,
        max_message_size_bytes: 16 << 10,
        ..StoreOptions::default()
    }
}

impl Rig {
    pub(super) fn new(flush: FlushMode, seed: u64) -> Self {
        let mut rig = Self::unopened(flush, seed);
        rig.open();
        rig
    }

    pub(super) fn unopened(flush: FlushMode, seed: u64) -> Self {
        Self {
            disk: SimulatedDisk::new(seed),
            options: small_options(flush),
            home: None,
            shard: None,
            now: Now { mono_us: 1_000_000, wall_ms: 1_700_000_000_000 },
            model: Model::new(),
            waiting: Vec::new(),
            hold: false,
            held: Vec::new(),
        }
    }

    pub(super) fn try_open(&mut self) -> Result<RecoveryReport, OpenError> {
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let home = StoreHome::open(Arc::clone(&disk), Path::new(ROOT), &self.options, Some(1), 1)?;
        let (shard, report) = Shard::open(disk, &home, ShardId(0), self.options.clone(), self.now)?;
        self.home = Some(home);
        self.shard = Some(shard);
        Ok(report)
    }

    pub(super) fn open(&mut self) -> RecoveryReport {
        let report = self.try_open().expect("the store opens");
        self.shard().validate();
        report
    }

    pub(super) fn shard(&mut self) -> &mut Shard {
        self.shard.as_mut().expect("the store is open")
    }

    pub(super) fn close(&mut self) {
        self.shard().close().expect("the store closes");
        self.shard = None;
        self.home.take().expect("the store is open").close_clean().expect("the mark goes away");
        self.settle_waiting(u64::MAX);
    }

    /// The process dies; the disk keeps what was written.
    pub(super) fn kill(&mut self) {
        self.forget();
        self.disk.kill();
    }

    /// The power goes.
    pub(super) fn power_cut(&mut self, seed: u64) {
        self.forget();
        self.disk.power_cut(seed);
    }

    fn forget(&mut self) {
        self.shard = None;
        self.home = None;
        self.held.clear();
        self.waiting.clear();
    }

    pub(super) fn pass_ms(&mut self, ms: u64) {
        self.now.mono_us += ms * 1000;
        self.now.wall_ms += ms as i64;
    }

    /// Stages messages of one queue.
    pub(super) fn stage(
        &mut self,
        topic: &str,
        queue: u32,
        bodies: &[&[u8]],
        text: &str,
    ) -> Result<Appended, AppendError> {
        let fields: Vec<_> = bodies.iter().map(|body| fields(topic, queue, body, text)).collect();
        let now = self.now;
        let appended = self.shard().append(now, &fields)?;
        for (at, body) in bodies.iter().enumerate() {
            let offset = appended.queue_offset.0 + at as u64;
            self.waiting.push((appended.end.0, (topic.to_owned(), queue), offset, body.to_vec()));
        }
        Ok(appended)
    }

    /// Stages, writes, ticks and runs all commands.
    pub(super) fn send(&mut self, topic: &str, queue: u32, bodies: &[&[u8]]) -> Appended {
        let appended = self.stage(topic, queue, bodies, "KEYS\u{1}k1 k2\u{2}TAGS\u{1}TagA\u{2}").expect("an append");
        self.turn();
        appended
    }

    /// The end of a turn.
    pub(super) fn turn(&mut self) {
        let now = self.now;
        self.shard().write_staged(now).expect("a write");
        self.shard().tick(now);
        self.run_commands();
        if self.options.flush == FlushMode::Async {
            self.settle_waiting(u64::MAX);
        }
    }

    /// A turn without anything to write; how many background jobs it asked for.
    pub(super) fn turn_counting_jobs(&mut self) -> usize {
        let now = self.now;
        self.shard().tick(now);
        let commands = self.shard().take_commands();
        let jobs = commands.iter().filter(|command| matches!(command, ShardCommand::Background { .. })).count();
        self.held.extend(commands);
        self.run_commands();
        jobs
    }

    /// What is durable (or written, without sync) counts as acknowledged.
    fn settle_waiting(&mut self, to: u64) {
        for (end, queue, offset, body) in std::mem::take(&mut self.waiting) {
            if end <= to {
                self.model.entry(queue).or_default().insert(offset, body);
            } else {
                self.waiting.push((end, queue, offset, body));
            }
        }
    }

    pub(super) fn run_commands(&mut self) -> Vec<FetchId> {
        let mut fetched = Vec::new();
        loop {
            let mut commands = std::mem::take(&mut self.held);
            commands.extend(self.shard().take_commands());
            if self.hold {
                self.held = commands;
                return fetched;
            }
            if commands.is_empty() {
                return fetched;
            }
            for command in commands {
                fetched.extend(self.run_command(command));
            }
        }
    }

    pub(super) fn run_command(&mut self, command: ShardCommand) -> Option<FetchId> {
        let (token, result) = match command {
            ShardCommand::Sync { file, token } => (token, file.sync_data().map(|()| JobOutput::Synced)),
            ShardCommand::WriteBack { file, offset, len } => {
                file.start_write_back(offset, len).expect("write-back starts");
                return None;
            }
            ShardCommand::Background { job, token } => (token, reactor::background::run(job, &self.disk)),
        };
        let now = self.now;
        match self.shard().completed(now, token, result) {
            Completion::Nothing => None,
            Completion::Durable => {
                let durable = self.shard().durable_to().0;
                self.settle_waiting(durable);
                None
            }
            Completion::Fetched(id) => Some(id),
        }
    }

    /// Runs a read step until it is done.
    pub(super) fn read<T>(&mut self, mut step: impl FnMut(&mut Shard) -> ReadStep<T>) -> T {
        for _ in 0..1000 {
            match step(self.shard()) {
                ReadStep::Ready(value) => return value,
                ReadStep::Missing(missing) => {
                    let id = self.shard().fetch(missing);
                    assert!(self.run_commands().contains(&id), "a fetch comes back");
                }
                ReadStep::Failed(error) => panic!("a read failed: {error}"),
            }
        }
        panic!("a read makes no progress");
    }

    /// All messages of a queue, by pulls: offset and body.
    pub(super) fn drain(&mut self, topic: &str, queue: u32) -> Vec<(u64, Vec<u8>)> {
        let mut from = self.shard().bounds(topic.as_bytes(), queue).map_or(0, |bounds| bounds.min.0);
        let mut messages = Vec::new();
        loop {
            let pulled = self.read(|shard| {
                let limits = PullLimits::count(32);
                shard.pull(topic.as_bytes(), queue, QueueOffset(from), limits, &mut |_| true)
            });
            if matches!(pulled.status, GetStatus::OffsetOverflowOne | GetStatus::NoMatchedLogicQueue)
                || pulled.status == GetStatus::NoMessageInQueue
            {
                return messages;
            }
            assert!(pulled.next_begin.0 > from, "a pull moves on: {pulled:?}");
            let mut bytes = Vec::new();
            pulled.slices.iter().for_each(|slice| slice.copy_into(&mut bytes).expect("the bytes are there"));
            assert_eq!(bytes.len(), pulled.bytes as usize);
            let before = messages.len();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let record = RecordView::parse_checked(rest).expect("a good record");
                assert_eq!((record.topic(), record.queue_id()), (topic.as_bytes(), queue as i32));
                messages.push((record.queue_offset().0, record.body().to_vec()));
                rest = &rest[record.size() as usize..];
            }
            assert_eq!(messages.len() - before, pulled.count as usize);
            from = pulled.next_begin.0;
        }
    }

    /// Every acknowledged message is there, offsets are dense, nothing was invented. `extra`: messages that were not
    /// acknowledged may follow.
    pub(super) fn check_model(&mut self, extra: bool) {
        for ((topic, queue), messages) in self.model.clone() {
            let found = self.drain(&topic, queue);
            let first = found.first().map_or(0, |(offset, _)| *offset);
            for (at, (offset, _)) in found.iter().enumerate() {
                assert_eq!(*offset, first + at as u64, "offsets of {topic}/{queue} are dense");
            }
            if !extra {
                assert_eq!(found.len(), messages.len(), "messages of {topic}/{queue}");
            }
            let found: BTreeMap<_, _> = found.into_iter().collect();
            for (offset, body) in &messages {
                assert_eq!(found.get(offset), Some(body), "message {offset} of {topic}/{queue}");
            }
        }
        self.shard().validate();
    }

    /// What is visible now is what counts from here on.
    pub(super) fn adopt(&mut self) {
        let queues: Vec<_> =
            self.shard().all_queues().map(|(topic, id, _)| (String::from_utf8(topic.to_vec()).unwrap(), id)).collect();
        self.model.clear();
        for (topic, id) in queues {
            let messages = self.drain(&topic, id).into_iter().collect();
            self.model.insert((topic, id), messages);
        }
    }

    /// The closed store is in order, by its offline judge: gives the records in the log.
    pub(super) fn verify(&self) -> u64 {
        let layout = StoreLayout::new(Path::new(ROOT));
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let tombstones = Tombstones::load(ConfigDir::new(Arc::clone(&disk), layout.shards_dir())).unwrap();
        let shard = layout.shard(ShardId(0));
        let report = verify_shard(&*disk, &shard, ShardId(0), &self.options, &tombstones).expect("the files are there");
        assert_eq!((&report.faults[..], report.missing_entries, report.damaged), (&[][..], 0, 0), "{report:?}");
        report.records
    }

    /// Bytes of a file.
    pub(super) fn file(&self, path: &str) -> Vec<u8> {
        self.disk.read(&Path::new(ROOT).join(path)).unwrap().expect("the file is there")
    }

    /// Overwrites bytes of a file.
    pub(super) fn patch(&self, path: &str, at: u64, bytes: &[u8]) {
        let file = self.disk.open(&Path::new(ROOT).join(path), sys::disk::OpenMode::ReadWrite).unwrap();
        file.write_at(&[std::io::IoSlice::new(bytes)], at).unwrap();
    }

    pub(super) fn names(&self, dir: &str) -> Vec<String> {
        let mut names: Vec<_> =
            self.disk.list(&Path::new(ROOT).join(dir)).unwrap().into_iter().map(|item| item.name).collect();
        names.sort();
        names
    }
}

pub(super) fn fields<'a>(topic: &'a str, queue: u32, body: &'a [u8], text: &'a str) -> RecordFields<'a> {
    let host: SocketAddr = "127.0.0.1:10911".parse().unwrap();
    RecordFields {
        queue_id: queue as i32,
        flag: 0,
        sys_flag: 0,
        born_timestamp_ms: 1,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        topic: topic.as_bytes(),
        body,
        properties: PropertiesSource::Text(text.as_bytes()),
    }
}

impl Rig {
    /// Deletes a topic as the broker does: the tombstone first.
    pub(super) fn delete(&mut self, topic: &str) {
        let end = self.shard().end();
        let tombstones = self.home.as_ref().expect("the store is open").tombstones();
        tombstones.add(topic, &[end]).expect("the tombstone is written");
        self.shard().delete_topic(topic.as_bytes());
        self.model.retain(|(of, _), _| of != topic);
        self.turn();
    }
}

impl Rig {
    /// Counts as acknowledged what is visible by the flush mode.
    pub(super) fn settle(&mut self) {
        let visible = self.shard().visible_to().0;
        self.settle_waiting(visible);
    }
}
