//! A `ringmq` of this build under test, and a small client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command as Process, Output, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use remoting::Command;

/// How long anything may take on a machine that does much else.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A started program; killed when dropped.
pub struct Ringmq {
    child: Child,
    /// What it said before it was ready.
    pub banner: String,
}

/// A port for a broker whose VIP port is free too.
pub fn broker_port() -> u16 {
    loop {
        let port = free_port();
        if port > 1_024 && TcpListener::bind(("127.0.0.1", port - 2)).is_ok() {
            return port;
        }
    }
}

/// A port that nobody listens on.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The address of a port on this host.
pub fn at(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// The program with these arguments, not started.
pub fn program(arguments: &[&str]) -> Process {
    let mut process = Process::new(env!("CARGO_BIN_EXE_ringmq"));
    process.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    process
}

/// Runs a program that is expected to end by itself.
pub fn ends(arguments: &[&str]) -> Output {
    let mut child = program(arguments).spawn().unwrap();
    let end = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            let _ = child.kill();
            panic!("ringmq {arguments:?} goes on");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

impl Ringmq {
    /// Starts it and waits until it says that it is ready.
    pub fn start(arguments: &[&str]) -> Self {
        let mut child = program(arguments).spawn().unwrap();
        let mut banner = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        while !banner.contains("ready in") {
            if out.read_line(&mut banner).unwrap() == 0 {
                let mut errors = String::new();
                child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
                panic!("ringmq {arguments:?} ended: {banner}{errors}");
            }
        }
        Self { child, banner }
    }

    /// Stops it in the middle of whatever it does; it keeps its connections. Only the drop ends it.
    pub fn freeze(&self) {
        let kill = Process::new("kill").args(["-STOP", &self.child.id().to_string()]).status().unwrap();
        assert!(kill.success());
    }

    /// Asks it to stop and waits for its end; gives its exit code and what it wrote to stderr.
    pub fn stop(mut self) -> (Option<i32>, String) {
        let kill = Process::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(kill.success());
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < end, "it does not stop");
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (status.code(), errors)
    }
}

impl Drop for Ringmq {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One connection.
pub struct Client(TcpStream);

impl Client {
    /// Connects to a port of this host.
    pub fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    /// Asks and waits for the answer.
    pub fn call(&mut self, code: i32, fields: &[(&str, &str)], body: &[u8]) -> Command {
        static OPAQUE: AtomicI32 = AtomicI32::new(1);
        let mut request = Command::request(code, OPAQUE.fetch_add(1, Ordering::Relaxed)).with_body(body.to_vec());
        fields.iter().for_each(|(name, value)| request.ext.set(*name, *value));
        self.0.write_all(&request.to_frame()).unwrap();
        loop {
            let mut frame = vec![0; 4];
            self.0.read_exact(&mut frame).unwrap();
            let length = u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize;
            frame.resize(4 + length, 0);
            self.0.read_exact(&mut frame[4..]).unwrap();
            let answer = Command::decode(&frame).unwrap();
            if answer.is_response() && answer.opaque == request.opaque {
                return answer;
            }
        }
    }
}

/// The text of a path.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
