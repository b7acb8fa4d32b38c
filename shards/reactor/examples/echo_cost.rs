//! What a request costs in the engine alone: echoes frames on one core, driven by one loading thread on another.
//!
//! `cargo run --release -p reactor --example echo_cost [connections] [window] [bytes] [seconds]` prints requests a second
//! and the processor time of the serving thread for each.

use reactor::*;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use sys::real_disk::RealDisk;

struct Echo;

impl Service for Echo {
    type Message = ();
    fn connected(&mut self, _: &mut Context<()>, _: ConnectionId, _: ListenerId, _: SocketAddr) {}
    fn closed(&mut self, _: &mut Context<()>, _: ConnectionId, _: CloseReason) {}
    fn message(&mut self, _: &mut Context<()>, _: Option<CoreId>, (): ()) {}
    fn completed(&mut self, _: &mut Context<()>, _: Token, _: io::Result<JobOutput>) {}
    fn timer(&mut self, _: &mut Context<()>, _: Token) {}
    fn turn_end(&mut self, _: &mut Context<()>) {}

    fn frame(&mut self, cx: &mut Context<()>, conn: ConnectionId, frame: &[u8]) {
        if let Some(out) = cx.output(conn) {
            out.bytes().extend_from_slice(frame);
        }
    }

    fn stopping(&mut self, _: &mut Context<()>) -> Drain {
        Drain::Done
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<usize>());
    let mut next = |default| args.next().unwrap_or(Ok(default));
    let (connections, window, bytes, seconds) = (next(8)?, next(64)?, next(250)?, next(5)?);
    let limits = Limits::default();
    let background = Arc::new(InlineBackground::new(Arc::new(RealDisk)));
    let options = EngineOptions { cores: vec![0], pin: true, limits };
    let engine = start::<Echo, _>(options, background, |_, _| Ok(Echo))?;
    let socket = sys::socket::listen("127.0.0.1:0".parse()?)?;
    let addr = socket.local_addr()?;
    engine.listen(vec![(ListenerSpec { id: ListenerId(0), addr, spread: true }, socket)]);
    sys::affinity::pin_current_thread(1);

    let mut frame = (bytes as u32 - 4).to_be_bytes().to_vec();
    frame.resize(bytes, 7);
    let batch = frame.repeat(window);
    let mut back = vec![0; batch.len()];
    let mut streams = (0..connections).map(|_| TcpStream::connect(addr)).collect::<io::Result<Vec<_>>>()?;
    for stream in &mut streams {
        stream.set_nodelay(true)?;
        stream.write_all(&batch)?;
    }
    let (mut requests, mut from) = (0u64, (Instant::now(), serving_ns()?));
    let warm = Instant::now() + Duration::from_secs(1);
    let mut measuring = false;
    let end = warm + Duration::from_secs(seconds as u64);
    while Instant::now() < end {
        if !measuring && Instant::now() >= warm {
            measuring = true;
            requests = 0;
            from = (Instant::now(), serving_ns()?);
        }
        for stream in &mut streams {
            stream.read_exact(&mut back)?;
            stream.write_all(&batch)?;
            requests += window as u64;
        }
    }
    let (took, cpu_ns) = (from.0.elapsed(), serving_ns()? - from.1);
    println!(
        "{connections} x {window}, {bytes} B: {:.0} requests/s, {:.0} ns of the core's processor time each",
        requests as f64 / took.as_secs_f64(),
        cpu_ns as f64 / requests as f64
    );
    engine.stop();
    Ok(())
}

/// Processor time of the serving thread so far.
fn serving_ns() -> io::Result<u64> {
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        if std::fs::read_to_string(task.join("comm"))?.trim() == "core-0" {
            let stat = std::fs::read_to_string(task.join("schedstat"))?;
            return stat.split(' ').next().and_then(|ns| ns.parse().ok()).ok_or(io::ErrorKind::InvalidData.into());
        }
    }
    Err(io::ErrorKind::NotFound.into())
}
