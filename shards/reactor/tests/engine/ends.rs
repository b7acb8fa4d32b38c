//! How connections end, and how an engine does.

use crate::service::*;
use reactor::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use sys::real_disk::RealDisk;

#[test]
fn what_cannot_be_a_frame_closes_the_connection_with_its_reason() {
    let running = run(1, Limits::default());
    let cases: [(&[u8], CloseReason); 6] = [
        (&[0, 0, 0, 0], CloseReason::BadLength),
        (&[0, 0, 0, 1], CloseReason::BadLength),
        (&[0, 0, 0, 3, 1, 2, 3], CloseReason::BadLength),
        (&[0xff, 0xff, 0xff, 0xff], CloseReason::BadLength),
        (&[0x7f, 0xff, 0xff, 0xff], CloseReason::FrameTooLong),
        (&[0x16, 3, 1, 0, 200, 1], CloseReason::Tls),
    ];
    for (bytes, why) in cases {
        let before = running.closed_for(why);
        let mut stream = running.connect();
        stream.write_all(bytes).unwrap();
        assert!(is_closed(&mut stream), "{why:?}");
        until("told", || running.closed_for(why) == before + 1);
    }
    assert!(running.engine.stop());
}

#[test]
fn the_service_closes_at_once_or_after_its_answer() {
    let running = run(1, Limits::default());
    let mut stream = running.connect();
    stream.write_all(&frame(CLOSE, b"abc")).unwrap();
    assert!(is_closed(&mut stream));
    let mut stream = running.connect();
    // What follows is not read any more, and must not destroy the answer.
    let last = frame(ECHO_AND_CLOSE, &[7; 100_000]);
    let mut reader = stream.try_clone().unwrap();
    let reading = std::thread::spawn(move || (read_frame(&mut reader).unwrap(), is_closed(&mut reader)));
    stream.write_all(&last).unwrap();
    let _ = stream.write_all(&frame(100, &[8; 50_000]));
    let (answer, closed) = reading.join().unwrap();
    assert!(answer == last && closed);
    until("told", || running.closed_for(CloseReason::ByService) == 2);
    assert_eq!(running.seen.connected.load(SeqCst), 2);
    assert!(running.engine.stop());
}

#[test]
fn a_peer_that_shut_its_writing_side_gets_its_answers_first() {
    let running = run(1, Limits::default());
    let mut stream = running.connect();
    let mut asked = Vec::new();
    for n in 0..1000u32 {
        asked.extend(frame(100, &n.to_be_bytes()));
    }
    let late = frame(ECHO_LATER, &100u32.to_be_bytes());
    asked.extend(&late);
    stream.write_all(&asked).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answers = Vec::new();
    stream.read_to_end(&mut answers).unwrap();
    assert!(answers == asked, "{} of {} bytes were answered", answers.len(), asked.len());
    until("told", || running.closed_for(CloseReason::PeerClosed) == 1);
    assert!(running.engine.stop());
}

#[test]
fn a_quiet_peer_that_closes_is_let_go_at_once() {
    let limits = Limits { linger_ms: 600, ..Limits::default() };
    let running = run(1, limits);
    let mut stream = running.connect();
    ask(&mut stream, &frame(100, b"abc"));
    std::thread::sleep(Duration::from_millis(800));
    let left = Instant::now();
    drop(stream);
    until("told", || running.closed_for(CloseReason::PeerClosed) == 1);
    assert!(left.elapsed() < Duration::from_millis(500), "took {:?}", left.elapsed());
    assert!(running.engine.stop());
}

#[test]
fn idle_connections_are_closed_and_busy_ones_are_not() {
    let running = run(1, Limits { idle_ms: 300, ..Limits::default() });
    let mut idle = running.connect();
    let mut busy = running.connect();
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(900) {
        ask(&mut busy, &frame(100, b"abc"));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(running.closed_for(CloseReason::Idle), 1);
    assert!(is_closed(&mut idle));
    ask(&mut busy, &frame(100, b"abc"));
    assert!(running.engine.stop());
}

#[test]
fn a_stuck_reader_is_closed_and_a_slow_one_is_not() {
    let running = run(1, Limits { stuck_reader_ms: 600, ..Limits::default() });
    let answer_bytes = 30u32 << 20;
    let request = frame(BLOW_UP, &answer_bytes.to_be_bytes());
    let mut stuck = running.connect();
    stuck.write_all(&request).unwrap();
    let mut slow = running.connect();
    slow.write_all(&request).unwrap();
    let mut taken = 0;
    let mut bytes = vec![0; 1 << 20];
    // 30 MiB in about 2 seconds: longer than a stuck reader may take.
    while taken < answer_bytes as usize + 4 {
        taken += slow.read(&mut bytes).unwrap();
        std::thread::sleep(Duration::from_millis(if taken < 24 << 20 { 40 } else { 1 }));
    }
    until("the stuck one is closed", || running.closed_for(CloseReason::StuckReader) == 1);
    assert_eq!(ask(&mut slow, &frame(100, b"abc")), frame(100, b"abc"));
    assert!(running.engine.stop());
}

#[test]
fn churn_leaves_no_descriptor() {
    let running = run(2, Limits { linger_ms: 20, ..Limits::default() });
    let before = open_descriptors();
    for round in 0..500u32 {
        let mut stream = running.connect();
        match round % 4 {
            0 => drop(ask(&mut stream, &frame(100, b"abc"))),
            1 => stream.write_all(&[0, 0, 0]).unwrap(),
            2 => stream.write_all(&frame(CLOSE, b"abc")).unwrap(),
            _ => {}
        }
    }
    until("all are closed", || running.seen.closed.lock().unwrap().len() == 500);
    until("all descriptors are closed", || open_descriptors() <= before + 20);
    assert!(running.engine.stop());
}

#[test]
fn a_stop_waits_for_the_service_and_not_for_ever() {
    let running = run(2, Limits::default());
    running.seen.busy.store(true, SeqCst);
    let seen = running.seen.clone();
    let mut stream = running.connect();
    ask(&mut stream, &frame(100, b"abc"));
    let stopping = std::thread::spawn(move || running.engine.stop());
    std::thread::sleep(Duration::from_millis(200));
    assert!(!stopping.is_finished());
    assert_eq!(ask(&mut stream, &frame(100, b"abc")), frame(100, b"abc"), "served until drained");
    seen.busy.store(false, SeqCst);
    assert!(stopping.join().unwrap(), "drained");
    assert!(is_closed(&mut stream));

    // A peer that does not read is not waited for longer than for any that is to be closed.
    let running = run(1, Limits { close_flush_ms: 200, ..Limits::default() });
    let mut stuck = running.connect();
    stuck.write_all(&frame(BLOW_UP, &(30u32 << 20).to_be_bytes())).unwrap();
    until("it is being sent", || running.counters().sends > 0);
    let asked = Instant::now();
    assert!(running.engine.stop());
    assert!((200..5_000).contains(&asked.elapsed().as_millis()), "took {:?}", asked.elapsed());

    let running = run(1, Limits { stop_ms: 200, ..Limits::default() });
    running.seen.busy.store(true, SeqCst);
    assert!(!running.engine.stop(), "not drained");
}

#[test]
fn a_service_that_cannot_be_built_fails_the_start() {
    let background = Arc::new(InlineBackground::new(Arc::new(RealDisk)));
    let result = start::<EchoService, _>(options(2, Limits::default()), background, |core, _| {
        Err::<EchoService, Box<dyn Error + Send + Sync>>(format!("no shard {}", core.0).into())
    });
    let text = result.err().unwrap().to_string();
    assert!(text.contains("no shard"), "{text}");
}

/// The limit on descriptors is the whole process's: this runs in a process of its own.
#[test]
fn no_descriptor_left_is_survived() {
    if ran_alone("ends::no_descriptor_left_is_survived") {
        return;
    }
    let running = run(1, Limits { accept_retry_ms: 20, ..Limits::default() });
    let mut good = running.connect();
    ask(&mut good, &frame(100, b"abc"));
    // Room for one more descriptor: a client takes it, and the server has none to accept with. (The kernel looks at the
    // limit when accepting begins, so it is lowered before.)
    let limit = getrlimit(Resource::Nofile);
    let (socket, addr) = listener();
    let next_free = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(next_free + 1), maximum: limit.maximum }).unwrap();
    running.engine.listen(vec![(ListenerSpec { id: ListenerId(1), addr, spread: true }, socket)]);
    let mut waiting = TcpStream::connect(addr).unwrap();
    until("accepting fails", || {
        good.write_all(&frame(100, b"abc")).unwrap();
        assert_eq!(read_frame(&mut good).unwrap(), frame(100, b"abc"), "those connected are served");
        running.counters().accept_failures > 1
    });
    setrlimit(Resource::Nofile, limit).unwrap();
    assert_eq!(ask(&mut waiting, &frame(100, b"abc")), frame(100, b"abc"), "the one that waited is served");
    assert!(running.engine.stop());
}
