//! The broker on one core, without sockets: whole turns of requests, from their frames to the bytes of the answers.
//!
//! Drives [`BrokerCore`] through the driver's half of [`Context`], as the engine does; jobs and syncs are carried out at once.
//! The counts of a turn hold this driver, too, which does little.

use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use broker::config::BrokerOptions;
use broker::connections::BROKER_LISTENER;
use broker::core::CoreParts;
use broker::owner::OwnerHost;
use broker::processor::send::{Admission, SendHeader, admit};
use broker::registration::{self, ControlReceiver};
use broker::services::progress::ProgressFiles;
use broker::snapshot::Snapshot;
use broker::{BrokerCore, CoreMessage};
use reactor::background::run;
use reactor::{Command as Ask, ConnectionId, Context, CoreId, JobOutput, Limits, Now, Token};
use remoting::scan::HeaderText;
use remoting::{ResponseCode, SerializeType};
use store::{FlushMode, Shard, ShardId, StoreHome};
use sys::Gather;
use sys::disk::Disk;
use sys::real_disk::RealDisk;
use tempfile::TempDir;

use crate::frames::{self, BODY, NOW_MS, PROPERTIES, TOPIC};
use crate::shard::{START, options};
use crate::{Case, Operation};

/// Requests of a turn, one connection's.
const REQUESTS: usize = 64;
/// Calls of one instance: 4 MB of records.
const CALLS: u32 = 100;
const CORE: CoreId = CoreId(0);
/// Time between two turns.
const TURN_US: u64 = 50;

pub fn cases() -> Vec<Case> {
    use SerializeType::{Compact, Json};
    vec![
        Case::pure("broker: admit a send", admitted),
        Case { name: "broker: turn of 64 sends, JSON header", calls: CALLS, make: || turns(frames::send(Json)) },
        Case { name: "broker: turn of 64 sends, ROCKETMQ header", calls: CALLS, make: || turns(frames::send(Compact)) },
        Case { name: "broker: turn of 64 pulls of 1", calls: CALLS, make: || turns(frames::pull(Json, 1)) },
        Case { name: "broker: turn of 64 pulls of 32", calls: CALLS, make: || turns(frames::pull(Json, 32)) },
    ]
}

fn admitted() -> Operation {
    let mut core = Core::new();
    core.call(&frames::send(SerializeType::Json));
    let snapshot = core.broker.snapshot().clone();
    drop(core);
    let header = SendHeader {
        topic: TOPIC.as_bytes(),
        default_topic: b"TBW102",
        default_topic_queues: 8,
        queue_id: 3,
        born_timestamp_ms: NOW_MS,
        properties: HeaderText::plain(PROPERTIES.as_bytes()),
        ..SendHeader::default()
    };
    let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let peer = SocketAddr::new(ip, 40_000);
    Box::new(move || {
        let admission = admit(black_box(&header), BODY.len(), &snapshot, peer, ip, 0, false);
        assert!(matches!(black_box(admission), Admission::Append(_)));
    })
}

/// Turns of one request again and again, on a queue that holds some messages.
fn turns(frame: Vec<u8>) -> Operation {
    let mut core = Core::new();
    for _ in 0..REQUESTS {
        core.call(&frames::send(SerializeType::Json));
    }
    // The first one may have to wait for the owner of the metadata; then the same work comes in each turn.
    core.call(&frame);
    let mut answers = Vec::new();
    core.turn(&frame, REQUESTS, &mut |sent| answers.extend(sent.to_vec().expect("bytes in memory")));
    assert_eq!(successes(&answers), REQUESTS);
    Box::new(move || {
        let mut bytes = 0;
        core.turn(black_box(&frame), REQUESTS, &mut |sent| bytes += sent.len());
        assert!(bytes > REQUESTS, "answers");
    })
}

/// Answers in these bytes, all of which must say success.
fn successes(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while let Some(len) = remoting::frame::frame_len(bytes).expect("a frame") {
        let answer = remoting::Command::decode(&bytes[..len]).expect("an answer");
        assert_eq!(answer.code, ResponseCode::Success.to_i32(), "{answer:?}");
        (bytes, count) = (&bytes[len..], count + 1);
    }
    count
}

/// One core, its store, and one connection.
struct Core {
    broker: BrokerCore,
    cx: Context<CoreMessage>,
    conn: ConnectionId,
    now: Now,
    timers: BTreeMap<u64, Token>,
    done: Vec<(Token, io::Result<JobOutput>)>,
    inbox: VecDeque<CoreMessage>,
    /// Kept for its capacity.
    commands: Vec<Ask>,
    _home: StoreHome,
    _control: ControlReceiver,
    _folder: TempDir,
}

impl Core {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let home = StoreHome::open(disk.clone(), folder.path(), &options(), Some(1), 1).expect("a store");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 10_911));
        let settings = Arc::new(BrokerOptions::with_address(address));
        let (sender, control) = registration::channel();
        let owner = OwnerHost::open(settings.clone(), disk.clone(), &home, 1, sender, START).expect("the metadata");
        let (shard, _) = Shard::open(disk, &home, ShardId(0), options(), START).expect("a shard");
        let mut broker = BrokerCore::new(CoreParts {
            core: CORE,
            cores: 1,
            shards: 1,
            options: settings,
            snapshot: Arc::new(Snapshot::empty()),
            hosted: vec![(ShardId(0), shard)],
            progress: ProgressFiles::new(&home),
            flush: FlushMode::Async,
            sync_flush_timeout_ms: 5_000,
            owner: Some(Box::new(owner)),
            utc_offset_ms: 0,
        });
        let mut cx = Context::new(CORE, 1, &Limits::default());
        let conn = cx.open();
        broker.connected(conn, BROKER_LISTENER, SocketAddr::from((Ipv4Addr::LOCALHOST, 40_000)));
        let mut core = Self {
            broker,
            cx,
            conn,
            now: START,
            timers: BTreeMap::new(),
            done: Vec::new(),
            inbox: VecDeque::new(),
            commands: Vec::new(),
            _home: home,
            _control: control,
            _folder: folder,
        };
        core.settle();
        core
    }

    /// Gives one request and runs until nothing moves any more.
    fn call(&mut self, frame: &[u8]) {
        self.turn(frame, 1, &mut |_| {});
        self.settle();
    }

    fn settle(&mut self) {
        for _ in 0..1_000 {
            self.turn(&[], 0, &mut |_| {});
            if self.done.is_empty() && self.inbox.is_empty() && !self.cx.is_held(self.conn) {
                return;
            }
        }
        panic!("the core never comes to rest");
    }

    /// One turn with so many requests; what the connection is sent goes to `sent`.
    fn turn(&mut self, frame: &[u8], requests: usize, sent: &mut dyn FnMut(&Gather)) {
        self.now.mono_us += TURN_US;
        self.cx.set_now(self.now);
        for (token, result) in std::mem::take(&mut self.done) {
            self.broker.completed(&mut self.cx, token, result);
        }
        while let Some(message) = self.inbox.pop_front() {
            self.broker.message(&mut self.cx, message);
        }
        while let Some(due) = self.timers.first_entry().filter(|due| *due.key() <= self.now.mono_us) {
            self.broker.timer(&mut self.cx, due.remove());
        }
        for _ in 0..requests {
            assert!(!self.cx.is_held(self.conn), "the broker keeps up");
            self.broker.frame(&mut self.cx, self.conn, frame);
        }
        self.broker.turn_end(&mut self.cx);
        self.carry_out();
        self.inbox.extend(self.cx.outbox(CORE).drain(..));
        while let Some(slot) = self.cx.pop_touched() {
            let gather = self.cx.outgoing(slot).take();
            sent(&gather);
            self.cx.outgoing(slot).landed();
            self.cx.recycle(gather.into_buffer());
        }
    }

    fn carry_out(&mut self) {
        let mut commands = std::mem::take(&mut self.commands);
        self.cx.swap_commands(&mut commands);
        for command in commands.drain(..) {
            match command {
                Ask::Sync { file, token } => {
                    self.done.push((token, file.sync_data().map(|()| JobOutput::Synced)));
                }
                Ask::Background { job, token } => self.done.push((token, run(job, &RealDisk))),
                Ask::Timer { at_us, token } => {
                    self.timers.insert(at_us, token);
                }
                Ask::Release(_) | Ask::WriteBack { .. } => {}
                Ask::Close(_) | Ask::CloseAfterFlush(_) => panic!("the broker closes the connection"),
            }
        }
        self.commands = commands;
    }
}
