//! A service that echoes frames, and does other things when the first byte of a frame's body says so; and the test's own
//! side of a connection.

use reactor::*;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use sys::disk::{Disk, OpenMode};
use sys::real_disk::RealDisk;

/// First bytes of a body with a meaning.
pub const HOLD: u8 = 1; // hold the connection; the control message RELEASE ends it
pub const BLOW_UP: u8 = 2; // answer with as many bytes as the next 4 say
pub const CLOSE: u8 = 3;
pub const ECHO_AND_CLOSE: u8 = 4;
pub const ECHO_LATER: u8 = 5; // echo by a timer, as many ms later as the next 4 say
pub const OTHER_CORE: u8 = 6; // echo through the next core
pub const FROM_FILE: u8 = 7; // answer with the whole mapped file as a frame

/// What the tests see of the services of an engine.
#[derive(Default)]
pub struct Seen {
    pub connected: AtomicU64,
    pub closed: Mutex<Vec<CloseReason>>,
    pub frames: AtomicU64,
    pub held: AtomicU64,
    pub per_core: [AtomicU64; 8],
    pub counters: Mutex<Vec<Counters>>,
    pub busy: AtomicBool,
    pub peak_pending: AtomicU64,
    pub map: OnceLock<Arc<dyn sys::disk::Mapping>>,
}

pub enum Message {
    Release,
    Echo(ConnectionId, Vec<u8>),
    EchoBack(ConnectionId, Vec<u8>),
}

pub struct EchoService {
    seen: Arc<Seen>,
    held: Vec<ConnectionId>,
    later: Vec<(ConnectionId, Vec<u8>)>,
    unsent: Vec<(CoreId, Message)>,
}

pub fn echo(cx: &mut Context<Message>, conn: ConnectionId, frame: &[u8]) {
    if let Some(out) = cx.output(conn) {
        out.bytes().extend_from_slice(frame);
    }
}

impl EchoService {
    fn post(&mut self, cx: &mut Context<Message>, to: CoreId, message: Message) {
        // Behind those that wait already.
        if self.unsent.iter().any(|(core, _)| *core == to) {
            return self.unsent.push((to, message));
        }
        if let Err(message) = cx.try_post(to, message) {
            self.unsent.push((to, message));
        }
    }
}

impl Service for EchoService {
    type Message = Message;

    fn connected(&mut self, cx: &mut Context<Message>, _: ConnectionId, _: ListenerId, _: SocketAddr) {
        self.seen.connected.fetch_add(1, SeqCst);
        self.seen.per_core[cx.core().0 as usize].fetch_add(1, SeqCst);
    }

    fn frame(&mut self, cx: &mut Context<Message>, conn: ConnectionId, frame: &[u8]) {
        self.seen.frames.fetch_add(1, SeqCst);
        let number = || u32::from_be_bytes(frame[5..9].try_into().unwrap());
        match frame[4] {
            HOLD => {
                cx.hold(conn);
                self.held.push(conn);
                self.seen.held.fetch_add(1, SeqCst);
                echo(cx, conn, frame);
            }
            BLOW_UP => {
                let len = number();
                if let Some(out) = cx.output(conn) {
                    out.bytes().extend_from_slice(&len.to_be_bytes());
                    let end = out.bytes().len() + len as usize;
                    out.bytes().resize(end, 9);
                    self.seen.peak_pending.fetch_max(out.pending() as u64, SeqCst);
                }
            }
            CLOSE => cx.close(conn),
            ECHO_AND_CLOSE => {
                echo(cx, conn, frame);
                cx.close_after_flush(conn);
            }
            ECHO_LATER => {
                let at = cx.now().mono_us + u64::from(number()) * 1000;
                cx.timer_at(at, Token(self.later.len() as u64));
                self.later.push((conn, frame.to_vec()));
            }
            FROM_FILE => {
                let map = self.seen.map.get().unwrap().clone();
                let len = map.len() as u32;
                if let Some(out) = cx.output(conn) {
                    out.bytes().extend_from_slice(&len.to_be_bytes());
                    out.slice(sys::LogSlice::Mapped { map, offset: 0, len });
                }
            }
            OTHER_CORE => {
                let next = CoreId((cx.core().0 + 1) % cx.cores());
                self.post(cx, next, Message::Echo(conn, frame.to_vec()));
            }
            _ => echo(cx, conn, frame),
        }
    }

    fn closed(&mut self, _: &mut Context<Message>, _: ConnectionId, why: CloseReason) {
        self.seen.closed.lock().unwrap().push(why);
    }

    fn message(&mut self, cx: &mut Context<Message>, _: Option<CoreId>, message: Message) {
        match message {
            Message::Release => self.held.drain(..).for_each(|conn| cx.release(conn)),
            Message::Echo(conn, frame) => self.post(cx, conn.core, Message::EchoBack(conn, frame)),
            Message::EchoBack(conn, frame) => echo(cx, conn, &frame),
        }
    }

    fn completed(&mut self, _: &mut Context<Message>, _: Token, _: io::Result<JobOutput>) {
        unreachable!("nothing was asked")
    }

    fn timer(&mut self, cx: &mut Context<Message>, token: Token) {
        let (conn, frame) = self.later[token.0 as usize].clone();
        echo(cx, conn, &frame);
    }

    fn turn_end(&mut self, cx: &mut Context<Message>) {
        for (to, message) in std::mem::take(&mut self.unsent) {
            self.post(cx, to, message);
        }
        let mut counters = self.seen.counters.lock().unwrap();
        let core = cx.core().0 as usize;
        if counters.len() <= core {
            counters.resize(core + 1, Counters::default());
        }
        counters[core] = cx.counters().clone();
    }

    fn stopping(&mut self, _: &mut Context<Message>) -> Drain {
        if self.seen.busy.load(SeqCst) { Drain::Busy } else { Drain::Done }
    }
}

/// An engine with the echo service, and where it listens.
pub struct Running {
    pub engine: Engine<Message>,
    pub seen: Arc<Seen>,
    pub addr: SocketAddr,
}

pub fn options(cores: usize, limits: Limits) -> EngineOptions {
    EngineOptions { cores: vec![0; cores], pin: false, limits }
}

pub fn listener() -> (TcpListener, SocketAddr) {
    let socket = sys::socket::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = socket.local_addr().unwrap();
    (socket, addr)
}

pub fn run(cores: usize, limits: Limits) -> Running {
    run_with(cores, limits, Arc::new(InlineBackground::new(Arc::new(RealDisk))))
}

pub fn run_with(cores: usize, limits: Limits, background: Arc<dyn Background>) -> Running {
    let seen = Arc::new(Seen::default());
    let of_services = seen.clone();
    let engine = start::<EchoService, _>(options(cores, limits), background, move |_, _| {
        Ok(EchoService { seen: of_services.clone(), held: Vec::new(), later: Vec::new(), unsent: Vec::new() })
    })
    .unwrap();
    let (socket, addr) = listener();
    engine.listen(vec![(ListenerSpec { id: ListenerId(0), addr, spread: true }, socket)]);
    Running { engine, seen, addr }
}

impl Running {
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    pub fn closed_for(&self, why: CloseReason) -> usize {
        self.seen.closed.lock().unwrap().iter().filter(|reason| **reason == why).count()
    }

    pub fn release(&self) {
        self.engine.handles().iter().for_each(|handle| handle.post(Message::Release));
    }

    pub fn counters(&self) -> Counters {
        self.seen.counters.lock().unwrap().first().cloned().unwrap_or_default()
    }
}

pub fn frame(kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut frame = (rest.len() as u32 + 1).to_be_bytes().to_vec();
    frame.push(kind);
    frame.extend_from_slice(rest);
    frame
}

pub fn read_frame(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix)?;
    let mut frame = prefix.to_vec();
    frame.resize(4 + u32::from_be_bytes(prefix) as usize, 0);
    stream.read_exact(&mut frame[4..])?;
    Ok(frame)
}

pub fn ask(stream: &mut TcpStream, frame: &[u8]) -> Vec<u8> {
    stream.write_all(frame).unwrap();
    read_frame(stream).unwrap()
}

/// Whether the server has closed the connection within some seconds; unread bytes are passed over.
pub fn is_closed(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}

pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Runs the named test again in a process of its own, for what concerns a whole process. `false`: this is that process.
pub fn ran_alone(name: &str) -> bool {
    const ALONE: &str = "RINGMQ_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return false;
    }
    let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
    assert!(alone.args([name, "--exact"]).env(ALONE, "1").status().unwrap().success());
    true
}

/// Processor time of all threads of this process.
pub fn process_cpu() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("schedstat")).ok());
    Duration::from_nanos(stats.map(|stat| stat.split(' ').next().unwrap().parse::<u64>().unwrap()).sum())
}

/// A file of the real disk in a folder that goes with the guard.
pub fn file_with(bytes: &[u8]) -> (tempfile::TempDir, Arc<dyn sys::disk::DiskFile>) {
    let dir = tempfile::tempdir().unwrap();
    let file = RealDisk.open(&dir.path().join("file"), OpenMode::Create).unwrap();
    file.write_at(&[io::IoSlice::new(bytes)], 0).unwrap();
    (dir, file)
}
