//! Carries out what the owner asks for, on core 0: files through the background, the journal at once, everything for other cores
//! through the lanes.
//!
//! It decides nothing. The journal's writes are the only inline writes of the owner, one append a turn and a new file before each
//! `consumerOffset.json`; they are not synced: they survive the death of the process.

use super::settings::merge_properties;
use super::{Contents, Owner, OwnerAction, OwnerBoot, OwnerEvent, OwnerFile, OwnerRequest};
use crate::config::BrokerOptions;
use crate::crossing::{CoreMessage, Lanes};
use crate::gather::ShardAnswer;
use crate::registration::{ControlMessage, ControlSender};
use crate::router::{TokenKind, core_of, token};
use reactor::{BackgroundTask, Context, CoreId, Job, JobClass, JobOutput, Now, Step};
use remoting::json::JsonRef;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use store::{ConfigDir, OffsetJournal, ShardId, StoreHome, Tombstones};
use sys::disk::{Disk, Space};

/// The owner's metadata cannot be read at start.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// A file cannot be read, or neither it nor its backup is whole.
    #[error("the metadata file {file}: {error}")]
    File {
        /// Which.
        file: &'static str,
        /// Why.
        error: io::Error,
    },
    /// A file's contents make no sense.
    #[error("the metadata in {0}")]
    Contents(String),
}

/// Where a Java broker with light queues keeps all offsets.
const LIGHT_OFFSETS: &str = "lmqConsumerOffset.json";

/// Token of the measuring of the disk; the owner's own tokens start at 1.
const SPACE_TOKEN: u64 = 0;

/// The owner and what carries out its actions.
pub struct OwnerHost {
    owner: Owner,
    cores: u16,
    disk: Arc<dyn Disk>,
    config: ConfigDir,
    shards_config: ConfigDir,
    tombstones: Arc<Tombstones>,
    root: PathBuf,
    settings_file: Option<PathBuf>,
    journal: OffsetJournal,
    /// Journal generation that began with a write of consumerOffset.json, by token.
    covers: BTreeMap<u64, u64>,
    control: ControlSender,
}

impl OwnerHost {
    /// Reads the metadata of a store. Errors: see [`BootError`]; nothing is changed then.
    pub fn open(
        options: Arc<BrokerOptions>,
        disk: Arc<dyn Disk>,
        home: &StoreHome,
        cores: u16,
        control: ControlSender,
        now: Now,
    ) -> Result<Self, BootError> {
        let config = home.config();
        let is_json = |bytes: &[u8]| JsonRef::parse(bytes).is_ok_and(|json| json.is_object());
        let read = |file: &'static str| config.read(file, &is_json).map_err(|error| BootError::File { file, error });
        let (offsets, light_offsets) = (read("consumerOffset.json")?, read(LIGHT_OFFSETS)?);
        let (plain, light) = (offsets.as_deref(), light_offsets.as_deref());
        let found = if options.light_queues && light.is_some() { [light, plain] } else { [plain, light] };
        let mut entries = Vec::new();
        let journal =
            OffsetJournal::open(disk.clone(), home.layout(), found, &mut |entry| entries.push(entry.to_vec()))
                .map_err(|error| BootError::File { file: "offsets.*.journal", error })?;
        let placement = home.placement().map_err(|error| BootError::File { file: "placement.json", error })?;
        let boot = OwnerBoot {
            options: options.clone(),
            cores,
            shards: home.shards(),
            was_clean: home.was_clean(),
            topics: read("topics.json")?,
            groups: read("subscriptionGroup.json")?,
            offsets,
            light_offsets,
            filters: read("consumerFilter.json")?,
            request_modes: read("messageRequestMode.json")?,
            journal: entries,
            placement,
        };
        Ok(Self {
            owner: Owner::open(boot, now).map_err(BootError::Contents)?,
            cores,
            disk,
            config,
            shards_config: home.shards_config(),
            tombstones: home.tombstones(),
            root: home.layout().root().to_owned(),
            settings_file: options.config_file.clone(),
            journal,
            covers: BTreeMap::new(),
            control,
        })
    }

    /// A core asks.
    pub fn message(&mut self, cx: &mut Context<CoreMessage>, lanes: &mut Lanes, request: OwnerRequest) {
        self.step(cx, lanes, OwnerEvent::Request(request));
    }

    /// The control thread says something.
    pub fn control(&mut self, cx: &mut Context<CoreMessage>, lanes: &mut Lanes, message: ControlMessage) {
        let event = match message {
            ControlMessage::Registered { version } => OwnerEvent::Registered { version },
            ControlMessage::OrderTopics(topics) => OwnerEvent::OrderTopics(topics),
        };
        self.step(cx, lanes, event);
    }

    /// A core holds a snapshot.
    pub fn snapshot_seen(&mut self, cx: &mut Context<CoreMessage>, lanes: &mut Lanes, core: CoreId, version: u64) {
        self.step(cx, lanes, OwnerEvent::SnapshotSeen { core, version });
    }

    /// A shard answers.
    pub fn shard_answer(
        &mut self,
        cx: &mut Context<CoreMessage>,
        lanes: &mut Lanes,
        gather: u64,
        shard: ShardId,
        answer: ShardAnswer,
    ) {
        self.step(cx, lanes, OwnerEvent::ShardAnswer { gather, shard, answer });
    }

    /// A background job of the owner ended.
    pub fn completed(
        &mut self,
        cx: &mut Context<CoreMessage>,
        lanes: &mut Lanes,
        value: u64,
        result: io::Result<JobOutput>,
    ) {
        if value == SPACE_TOKEN {
            if let Ok(JobOutput::Task(output)) = result
                && let Ok(space) = output.downcast::<Space>()
            {
                let (total, available) = (space.total, space.available);
                self.step(cx, lanes, OwnerEvent::Space { total, available });
            }
            return;
        }
        if let Some(generation) = self.covers.remove(&value)
            && result.is_ok()
            && let Err(error) = self.journal.written(generation)
        {
            tracing::warn!(%error, "an old offset journal could not be removed");
        }
        self.step(cx, lanes, OwnerEvent::Persisted { token: value, result: result.map(|_| ()) });
    }

    /// Every input of the turn was given.
    pub fn turn_end(&mut self, cx: &mut Context<CoreMessage>, lanes: &mut Lanes) {
        self.step(cx, lanes, OwnerEvent::TurnEnd);
    }

    /// Asked each turn while the broker stops: whether everything is on disk.
    pub fn stopping(&mut self, cx: &mut Context<CoreMessage>, lanes: &mut Lanes) -> bool {
        self.step(cx, lanes, OwnerEvent::Stop);
        self.owner.is_settled()
    }

    fn step(&mut self, cx: &mut Context<CoreMessage>, lanes: &mut Lanes, event: OwnerEvent) {
        let mut actions = Vec::new();
        self.owner.step(cx.now(), event, &mut actions);
        for action in actions {
            self.act(cx, lanes, action);
        }
    }

    fn act(&mut self, cx: &mut Context<CoreMessage>, lanes: &mut Lanes, action: OwnerAction) {
        match action {
            OwnerAction::Reply { origin, response } => {
                let (conn, response) = (origin.conn, Box::new(response));
                lanes.post(conn.core, CoreMessage::Reply { conn, response });
            }
            OwnerAction::Resume { ticket, outcome } => lanes.post(ticket.core, CoreMessage::Resume { ticket, outcome }),
            OwnerAction::Answer { to, response } => {
                lanes.post(to.conn.core, CoreMessage::Answer { to, response: Box::new(response) });
            }
            OwnerAction::Put { shard, record, waiter } => {
                lanes.post(core_of(shard, self.cores), CoreMessage::Record { shard, record, waiter });
            }
            OwnerAction::LockState { ticket, locked } => {
                lanes.post(ticket.core, CoreMessage::LockState { ticket, locked });
            }
            OwnerAction::SendBack { job, outcome } => {
                lanes.post(core_of(job.shard, self.cores), CoreMessage::SendBack { job, outcome });
            }
            OwnerAction::PopOffsets { shard, ask, offsets } => {
                lanes.post(core_of(shard, self.cores), CoreMessage::PopOffsets { shard, ask, offsets });
            }
            OwnerAction::Publish(snapshot) => {
                for core in (0..self.cores).map(CoreId) {
                    lanes.post(core, CoreMessage::Snapshot(snapshot.clone()));
                }
            }
            OwnerAction::Ask { gather, shard, ask } => {
                let from = lanes.own();
                lanes.post(core_of(shard, self.cores), CoreMessage::ShardAsk { from, gather, shard, ask });
            }
            OwnerAction::Producer { shard, half, conn } => {
                lanes.post(core_of(shard, self.cores), CoreMessage::Producer { shard, half, conn });
            }
            OwnerAction::Push { conn, command } => {
                lanes.post(conn.core, CoreMessage::Push { conn, frame: command.to_frame() });
            }
            OwnerAction::Persist { token, file, contents } => self.persist(cx, lanes, token, file, contents),
            OwnerAction::PersistTombstone { token, topic, ends } => {
                let tombstones = self.tombstones.clone();
                run(cx, token, move |_| tombstones.add(&topic, &ends));
            }
            OwnerAction::Journal(entries) => {
                let result = entries.iter().try_for_each(|entry| self.journal.append(entry));
                self.step(cx, lanes, OwnerEvent::Journaled(result));
            }
            OwnerAction::MeasureSpace => {
                let root = self.root.clone();
                run(cx, SPACE_TOKEN, move |disk| disk.space(&root));
            }
            OwnerAction::Ready => self.control.ready(),
            OwnerAction::TopicsChanged { version, topics } => self.control.topics(version, topics),
        }
    }

    fn persist(
        &mut self,
        cx: &mut Context<CoreMessage>,
        lanes: &mut Lanes,
        token: u64,
        file: OwnerFile,
        contents: Contents,
    ) {
        let (dir, name) = match file {
            OwnerFile::Topics => (self.config.clone(), "topics.json"),
            OwnerFile::Groups => (self.config.clone(), "subscriptionGroup.json"),
            OwnerFile::ConsumerOffsets => {
                match self.journal.rotate(contents.offset_files()) {
                    Ok(generation) => self.covers.insert(token, generation),
                    Err(error) => return self.step(cx, lanes, OwnerEvent::Persisted { token, result: Err(error) }),
                };
                (self.config.clone(), "consumerOffset.json")
            }
            OwnerFile::ConsumerFilters => (self.config.clone(), "consumerFilter.json"),
            OwnerFile::RequestModes => (self.config.clone(), "messageRequestMode.json"),
            OwnerFile::DelayOffsets => (self.config.clone(), "delayOffset.json"),
            OwnerFile::Placement => (self.shards_config.clone(), "placement.json"),
            OwnerFile::Settings => {
                let path = self.settings_file.clone();
                let disk = self.disk.clone();
                return run(cx, token, move |_| change_settings_file(disk, path, contents));
            }
        };
        run(cx, token, move |_| {
            if let Contents::Offsets { light: Some(light), .. } = &contents {
                dir.write(LIGHT_OFFSETS, light)?;
            }
            dir.write(name, &contents.encode())
        });
    }
}

/// Replaces changed keys in the settings file.
fn change_settings_file(disk: Arc<dyn Disk>, path: Option<PathBuf>, contents: Contents) -> io::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let old = disk.read(&path)?.unwrap_or_default();
    let (old, changes) = (String::from_utf8_lossy(&old), contents.encode());
    let merged = merge_properties(&old, &String::from_utf8_lossy(&changes));
    let name = path.file_name().and_then(|n| n.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
    let dir = path.parent().map(PathBuf::from).unwrap_or_default();
    ConfigDir::new(disk.clone(), dir).write(name, merged.as_bytes())
}

/// Runs one step of work in the background.
fn run<T, F>(cx: &mut Context<CoreMessage>, value: u64, work: F)
where
    T: Send + 'static,
    F: FnOnce(&dyn Disk) -> io::Result<T> + Send + 'static,
{
    let task = Box::new(Once(Some(work)));
    cx.background(Job::Task { class: JobClass::Waited, task }, token(TokenKind::Owner, value));
}

/// A task of one step.
struct Once<F>(Option<F>);

impl<T, F> BackgroundTask for Once<F>
where
    T: Send + 'static,
    F: FnOnce(&dyn Disk) -> io::Result<T> + Send,
{
    fn step(&mut self, disk: &dyn Disk) -> io::Result<Step> {
        let work = self.0.take().expect("a task of one step is run once");
        work(disk).map(|output| Step::Done(Box::new(output)))
    }
}
