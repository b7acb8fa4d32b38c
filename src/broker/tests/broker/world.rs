//! A whole broker on one thread: its cores, a simulated disk, and clients that are vectors of bytes.
//!
//! Drives `BrokerCore` through the driver's half of `Context`, as the engine does, until nothing moves any more.

use broker::config::BrokerOptions;
use broker::connections::BROKER_LISTENER;
use broker::core::{BrokerCore, CoreParts};
use broker::owner::OwnerHost;
use broker::router::core_of;
use broker::services::progress::ProgressFiles;
use broker::snapshot::Snapshot;
use broker::{CoreMessage, registration};
use reactor::Command as Ask;
use reactor::Limits;
use reactor::background::run;
use reactor::{CloseReason, ConnectionId, Context, CoreId, Drain, JobOutput, Now, Token};
use remoting::{Command, RequestCode, SerializeType};
use simulator::SimulatedDisk;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;
use store::{FlushMode, Shard, ShardId, StoreHome, StoreOptions};
use sys::disk::Disk;

/// Time of the first turn.
const START: Now = Now { mono_us: 1_000_000, wall_ms: 1_700_000_000_000 };

pub struct World {
    pub disk: Arc<SimulatedDisk>,
    cores: Vec<CoreOf>,
    home: Option<StoreHome>,
    now: Now,
    next_opaque: i32,
    /// While true, syncs stay under way.
    pub hold_syncs: bool,
    _control: registration::ControlReceiver,
}

struct CoreOf {
    broker: BrokerCore,
    cx: Context<CoreMessage>,
    inbox: VecDeque<(CoreId, CoreMessage)>,
    done: Vec<(Token, io::Result<JobOutput>)>,
    timers: BTreeMap<u64, Token>,
    syncs: Vec<(Arc<dyn sys::disk::DiskFile>, Token)>,
    /// Frames that came while their connection was held.
    waiting: Vec<(ConnectionId, Vec<u8>)>,
    received: BTreeMap<u32, Vec<u8>>,
    closed: Vec<ConnectionId>,
    /// Messages that came from other cores.
    crossed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client(pub ConnectionId);

impl World {
    /// A new broker with `shards` shards on `cores` cores.
    pub fn new(shards: u16, cores: u16, flush: FlushMode) -> Self {
        Self::open(Arc::new(SimulatedDisk::new(7)), shards, cores, flush)
    }

    /// The broker of a disk.
    pub fn open(disk: Arc<SimulatedDisk>, shards: u16, cores: u16, flush: FlushMode) -> Self {
        Self::open_at(disk, shards, cores, flush, START)
    }

    /// The broker of a disk, started at this time.
    pub fn open_at(disk: Arc<SimulatedDisk>, shards: u16, cores: u16, flush: FlushMode, now: Now) -> Self {
        Self::start(disk, (shards, cores), flush, now, false)
    }

    /// The broker of a disk, with light queues or not.
    pub fn open_light(disk: Arc<SimulatedDisk>, flush: FlushMode, now: Now, light_queues: bool) -> Self {
        Self::start(disk, (1, 1), flush, now, light_queues)
    }

    fn start(
        disk: Arc<SimulatedDisk>,
        (shards, cores): (u16, u16),
        flush: FlushMode,
        now: Now,
        light_queues: bool,
    ) -> Self {
        let store = StoreOptions {
            segment_size_bytes: 1 << 22,
            queue_file_size_bytes: 20_000,
            flush,
            light_queues,
            ..StoreOptions::default()
        };
        let shared: Arc<dyn Disk> = disk.clone();
        let home = StoreHome::open(shared.clone(), Path::new("/data"), &store, Some(shards), 1).expect("store");
        let mut options = BrokerOptions::with_address("127.0.0.1:10911".parse().unwrap());
        options.live.recall = true;
        options.light_queues = light_queues;
        let options = Arc::new(options);
        let (sender, control) = registration::channel();
        let mut owner =
            Some(Box::new(OwnerHost::open(options.clone(), shared.clone(), &home, cores, sender, now).expect("owner")));
        let cores = (0..cores)
            .map(|core| {
                let hosted = (0..shards)
                    .map(ShardId)
                    .filter(|shard| core_of(*shard, cores) == CoreId(core))
                    .map(|id| (id, Shard::open(shared.clone(), &home, id, store.clone(), now).expect("shard").0))
                    .collect();
                let broker = BrokerCore::new(CoreParts {
                    core: CoreId(core),
                    cores,
                    shards,
                    options: options.clone(),
                    snapshot: Arc::new(Snapshot::empty()),
                    hosted,
                    progress: ProgressFiles::new(&home),
                    flush,
                    sync_flush_timeout_ms: 5_000,
                    owner: owner.take(),
                    utc_offset_ms: 0,
                });
                CoreOf {
                    broker,
                    cx: Context::new(CoreId(core), cores, &Limits::default()),
                    inbox: VecDeque::new(),
                    done: Vec::new(),
                    timers: BTreeMap::new(),
                    syncs: Vec::new(),
                    waiting: Vec::new(),
                    received: BTreeMap::new(),
                    closed: Vec::new(),
                    crossed: 0,
                }
            })
            .collect();
        let home = Some(home);
        let mut world = Self { disk, cores, home, now, next_opaque: 1, hold_syncs: false, _control: control };
        world.settle();
        world
    }

    /// A client on a core.
    pub fn connect(&mut self, core: u16) -> Client {
        let node = &mut self.cores[usize::from(core)];
        let conn = node.cx.open();
        node.broker.connected(conn, BROKER_LISTENER, format!("127.0.0.1:{}", 40_000 + conn.slot).parse().unwrap());
        Client(conn)
    }

    /// The client goes away.
    pub fn disconnect(&mut self, client: Client) {
        let node = &mut self.cores[usize::from(client.0.core.0)];
        node.cx.remove(client.0);
        node.broker.closed(client.0, CloseReason::PeerClosed);
        self.settle();
    }

    /// Writes a request; gives its opaque. Nothing runs yet.
    pub fn write(&mut self, client: Client, mut command: Command) -> i32 {
        command.opaque = self.next_opaque;
        self.next_opaque += 1;
        self.write_bytes(client, command.to_frame());
        command.opaque
    }

    /// Writes a frame as it is.
    pub fn write_bytes(&mut self, client: Client, frame: Vec<u8>) {
        self.cores[usize::from(client.0.core.0)].waiting.push((client.0, frame));
    }

    /// Sends a request and gives its answer.
    pub fn call(&mut self, client: Client, command: Command) -> Command {
        let opaque = self.write(client, command);
        self.settle();
        let answers = self.answers(client);
        let found = answers.iter().position(|answer| answer.opaque == opaque);
        let at = found.unwrap_or_else(|| panic!("no answer to {opaque} among {answers:?}"));
        answers.into_iter().nth(at).unwrap()
    }

    /// Everything that a client has received since the last time.
    pub fn answers(&mut self, client: Client) -> Vec<Command> {
        let node = &mut self.cores[usize::from(client.0.core.0)];
        let bytes = node.received.remove(&client.0.slot).unwrap_or_default();
        let (mut rest, mut answers) = (&bytes[..], Vec::new());
        while let Some(len) = remoting::frame::frame_len(rest).expect("frames") {
            answers.push(Command::decode(&rest[..len]).expect("an answer"));
            rest = &rest[len..];
        }
        assert!(rest.is_empty(), "half a frame");
        answers
    }

    /// Whether the broker closed the connection.
    pub fn is_closed(&self, client: Client) -> bool {
        self.cores[usize::from(client.0.core.0)].closed.contains(&client.0)
    }

    /// Messages that came to a core from others.
    pub fn crossed(&self, core: u16) -> u64 {
        self.cores[usize::from(core)].crossed
    }

    /// Lets time pass.
    pub fn advance(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(50) {
            let step = ms.min(50);
            self.now = Now { mono_us: self.now.mono_us + step * 1000, wall_ms: self.now.wall_ms + step as i64 };
            self.settle();
        }
    }

    /// Lets time pass, and nothing happen.
    pub fn skip(&mut self, ms: u64) {
        self.now = Now { mono_us: self.now.mono_us + ms * 1000, wall_ms: self.now.wall_ms + ms as i64 };
    }

    /// Runs so many turns of each core.
    pub fn turns(&mut self, count: usize) {
        (0..count).for_each(|_| {
            self.turn();
        });
    }

    /// The time.
    pub fn now(&self) -> Now {
        self.now
    }

    /// Somebody sets the wall clock, forward or back.
    pub fn set_clock(&mut self, by_ms: i64) {
        self.now.wall_ms += by_ms;
        self.settle();
    }

    /// The process dies, or the power fails, and the broker is started again at once; clients have to connect anew.
    pub fn restart(self, shards: u16, cores: u16, flush: FlushMode, power_cut: Option<u64>) -> Self {
        let (disk, now) = (self.disk.clone(), self.now);
        drop(self);
        match power_cut {
            Some(seed) => disk.power_cut(seed),
            None => disk.kill(),
        }
        Self::open_at(disk, shards, cores, flush, now)
    }

    /// Runs turns until nothing moves.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            if !self.turn() {
                return;
            }
        }
        panic!("the cores never come to rest");
    }

    /// Stops in order.
    pub fn stop(mut self) {
        let mut clean = vec![false; self.cores.len()];
        for _ in 0..1_000 {
            self.advance(50);
            for (node, clean) in self.cores.iter_mut().zip(&mut clean) {
                if !*clean {
                    *clean = matches!(node.broker.stopping(&mut node.cx), Drain::Done);
                }
            }
            if clean.iter().all(|clean| *clean) {
                assert!(self.cores.iter().all(|node| node.broker.closed_cleanly()));
                return self.home.take().unwrap().close_clean().unwrap();
            }
        }
        panic!("the cores do not stop");
    }

    /// One turn of each core; tells whether anything happened.
    fn turn(&mut self) -> bool {
        let mut moved = false;
        for at in 0..self.cores.len() {
            let now = self.now;
            let node = &mut self.cores[at];
            node.cx.set_now(now);
            moved |= node.inputs(now);
            node.broker.turn_end(&mut node.cx);
            moved |= node.commands(&*self.disk);
            if !self.hold_syncs {
                moved |= !node.syncs.is_empty();
                for (file, token) in node.syncs.drain(..) {
                    node.done.push((token, file.sync_data().map(|()| JobOutput::Synced)));
                }
            }
            node.outputs();
            for to in 0..self.cores.len() {
                let from = CoreId(at as u16);
                let messages: Vec<CoreMessage> = self.cores[at].cx.outbox(CoreId(to as u16)).drain(..).collect();
                moved |= !messages.is_empty();
                self.cores[to].crossed += messages.len() as u64;
                self.cores[to].inbox.extend(messages.into_iter().map(|message| (from, message)));
            }
        }
        moved
    }
}

impl CoreOf {
    fn inputs(&mut self, now: Now) -> bool {
        let mut moved = !self.done.is_empty() || !self.inbox.is_empty();
        for (token, result) in std::mem::take(&mut self.done) {
            self.broker.completed(&mut self.cx, token, result);
        }
        while let Some((_, message)) = self.inbox.pop_front() {
            self.broker.message(&mut self.cx, message);
        }
        while let Some(entry) = self.timers.first_entry().filter(|entry| *entry.key() <= now.mono_us) {
            let token = entry.remove();
            self.broker.timer(&mut self.cx, token);
        }
        for (conn, frame) in std::mem::take(&mut self.waiting) {
            if self.cx.connection(conn.slot) != Some(conn) {
                continue;
            }
            if self.cx.is_held(conn) {
                self.waiting.push((conn, frame));
            } else {
                self.broker.frame(&mut self.cx, conn, &frame);
                moved = true;
            }
        }
        moved
    }

    fn commands(&mut self, disk: &dyn Disk) -> bool {
        let mut commands = Vec::new();
        self.cx.swap_commands(&mut commands);
        let mut moved = false;
        for command in commands {
            match command {
                Ask::Release(_) => moved = true,
                Ask::Close(conn) | Ask::CloseAfterFlush(conn) => {
                    self.closed.push(conn);
                    self.cx.remove(conn);
                    self.broker.closed(conn, CloseReason::ByService);
                    moved = true;
                }
                Ask::Sync { file, token } => self.syncs.push((file, token)),
                Ask::WriteBack { .. } => {}
                Ask::Background { job, token } => {
                    self.done.push((token, run(job, disk)));
                    moved = true;
                }
                Ask::Timer { at_us, token } => {
                    self.timers.insert(at_us, token);
                }
            }
        }
        moved
    }

    fn outputs(&mut self) {
        while let Some(slot) = self.cx.pop_touched() {
            let outgoing = self.cx.outgoing(slot);
            let bytes = outgoing.take().to_vec().expect("resident bytes");
            outgoing.landed();
            self.received.entry(slot).or_default().extend(bytes);
        }
    }
}

/// A send with the short names.
pub fn send(topic: &str, queue_id: i32, properties: &str, body: &[u8]) -> Command {
    Command::request(RequestCode::SendMessageV2, 0)
        .with_field("a", "producers")
        .with_field("b", topic)
        .with_field("c", "TBW102")
        .with_field("d", 4)
        .with_field("e", queue_id)
        .with_field("f", 0)
        .with_field("g", 1_600_000_000_000_i64)
        .with_field("h", 0)
        .with_field("i", properties)
        .with_body(body.to_vec())
}

/// A pull of everything that brings its own subscription; `suspend_ms` 0: it is not to be held.
pub fn pull(group: &str, topic: &str, queue_id: i32, offset: i64, suspend_ms: i64) -> Command {
    Command::request(RequestCode::PullMessage, 0)
        .with_field("consumerGroup", group)
        .with_field("topic", topic)
        .with_field("queueId", queue_id)
        .with_field("queueOffset", offset)
        .with_field("maxMsgNums", 32)
        .with_field("sysFlag", if suspend_ms > 0 { 6 } else { 4 })
        .with_field("commitOffset", 0)
        .with_field("suspendTimeoutMillis", suspend_ms)
        .with_field("subscription", "*")
        .with_field("subVersion", 0)
}

/// A request about a queue.
pub fn ask(code: RequestCode, topic: &str, queue_id: i32) -> Command {
    Command::request(code, 0).with_field("topic", topic).with_field("queueId", queue_id)
}

/// The bodies of the records of an answer.
pub fn bodies(answer: &Command) -> Vec<String> {
    let (mut rest, mut found) = (&answer.body[..], Vec::new());
    while !rest.is_empty() {
        let size = message::record::peek_size(rest).expect("a record") as usize;
        let record = message::record::RecordView::parse_checked(&rest[..size]).expect("a whole record");
        found.push(String::from_utf8_lossy(record.body()).into_owned());
        rest = &rest[size..];
    }
    found
}

/// Nothing but the compact form of a request.
pub fn compact(mut command: Command) -> Command {
    command.serialize_type = SerializeType::Compact;
    command
}
