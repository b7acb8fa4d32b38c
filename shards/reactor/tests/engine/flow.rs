//! Frames in, frames out, and what happens when one side is too fast.

use crate::service::*;
use reactor::{CloseReason, Limits};
use std::io::{Read, Write};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

#[test]
fn frames_in_any_pieces_come_back_whole_and_in_order() {
    let running = run(1, Limits { receive_buffer_bytes: 512, receive_buffers: 8, ..Limits::default() });
    let mut stream = running.connect();
    let frames: Vec<Vec<u8>> = (0..500usize).map(|n| frame(100, &vec![n as u8; n * 7 % 3000 + 3])).collect();
    let bytes = frames.concat();
    let mut reader = stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        let mut rest = &bytes[..];
        let mut size = 1;
        while !rest.is_empty() {
            let (piece, later) = rest.split_at(rest.len().min(size));
            stream.write_all(piece).unwrap();
            rest = later;
            size = size * 7 % 2003 + 1;
        }
        stream
    });
    for expected in &frames {
        assert_eq!(&read_frame(&mut reader).unwrap(), expected);
    }
    drop(writer.join().unwrap());
    assert!(running.engine.stop());
}

#[test]
fn a_byte_at_a_time() {
    let running = run(1, Limits::default());
    let mut stream = running.connect();
    let sent = frame(100, b"slow");
    for byte in &sent {
        stream.write_all(&[*byte]).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(read_frame(&mut stream).unwrap(), sent);
    assert!(running.engine.stop());
}

#[test]
fn the_largest_frame_passes_and_a_larger_one_does_not() {
    let limits = Limits { max_frame_bytes: 1 << 20, assembly_bytes: 4 << 20, ..Limits::default() };
    let running = run(1, limits);
    let mut stream = running.connect();
    let largest = frame(100, &vec![5; (1 << 20) - 5]);
    let mut reader = stream.try_clone().unwrap();
    let reading = std::thread::spawn(move || read_frame(&mut reader).unwrap());
    stream.write_all(&largest).unwrap();
    assert_eq!(reading.join().unwrap(), largest);
    stream.write_all(&(1u32 << 20).to_be_bytes()).unwrap();
    assert!(is_closed(&mut stream));
    until("told", || running.closed_for(CloseReason::FrameTooLong) == 1);
    assert!(running.engine.stop());
}

#[test]
fn ten_thousand_pipelined_requests_are_all_answered_in_order() {
    let running = run(1, Limits::default());
    let mut stream = running.connect();
    let bytes: Vec<u8> = (0..10_000u32).flat_map(|n| frame(100, &n.to_be_bytes())).collect();
    stream.write_all(&bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back).unwrap();
    assert!(back == bytes);
    assert_eq!(running.seen.frames.load(SeqCst), 10_000);
    assert!(running.engine.stop());
}

#[test]
fn a_held_connection_gets_no_frames_keeps_little_and_goes_on() {
    let limits = Limits { connection_input_bytes: 64 << 10, ..Limits::default() };
    let running = run(1, limits);
    let mut stream = running.connect();
    assert_eq!(ask(&mut stream, &frame(HOLD, b"123")), frame(HOLD, b"123"));
    // More than what the server keeps and what both sockets take: the writer must be stopped.
    let total = 64 << 20;
    let block = frame(100, &vec![1; 64 * 1024 - 5]);
    let mut writer = stream.try_clone().unwrap();
    let of_writer = block.clone();
    let writing = std::thread::spawn(move || {
        let mut written = 0;
        while written < total {
            writer.write_all(&of_writer).unwrap();
            written += of_writer.len();
        }
    });
    until("receiving paused", || running.counters().input_paused > 0);
    std::thread::sleep(Duration::from_millis(300));
    let received = running.counters().received_bytes;
    assert!(received < 12 << 20, "{received} bytes were taken in for a held connection");
    assert_eq!(running.seen.frames.load(SeqCst), 1, "no frame while held");
    assert!(!writing.is_finished());
    running.release();
    for _ in 0..total / block.len() {
        assert!(read_frame(&mut stream).unwrap() == block);
    }
    writing.join().unwrap();
    assert!(running.engine.stop());
}

#[test]
fn a_reader_that_does_not_read_costs_bounded_memory_and_disturbs_nobody() {
    let limits = Limits { connection_output_bytes: 1 << 20, ..Limits::default() };
    let running = run(1, limits);
    let mut bad = running.connect();
    let mut good = running.connect();
    // 2,000 requests for 256 KiB each: 500 MiB of answers.
    let request = frame(BLOW_UP, &(256u32 << 10).to_be_bytes());
    bad.write_all(&request.repeat(2000)).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    for n in 0..100u32 {
        let sent = frame(100, &n.to_be_bytes());
        let asked = Instant::now();
        assert_eq!(ask(&mut good, &sent), sent);
        assert!(asked.elapsed() < Duration::from_secs(2));
    }
    let peak = running.seen.peak_pending.load(SeqCst);
    assert!(peak <= (1 << 20) + (300 << 10), "{peak} bytes were queued for a reader that does not read");
    let mut answers = 0;
    for _ in 0..2000 {
        answers += read_frame(&mut bad).unwrap().len();
    }
    assert_eq!(answers, 2000 * ((256 << 10) + 4), "a late reader gets everything");
    assert!(running.engine.stop());
}

#[test]
fn one_flood_does_not_starve_the_others() {
    let running = run(1, Limits::default());
    let flood = running.connect();
    let mut reader = flood.try_clone().unwrap();
    let mut writer = flood.try_clone().unwrap();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let of_writer = stop.clone();
    let writing = std::thread::spawn(move || {
        let block = frame(100, &[1; 20]).repeat(2000);
        while !of_writer.load(SeqCst) {
            writer.write_all(&block).unwrap();
        }
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let reading = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()).unwrap());
    let mut good = running.connect();
    for n in 0..200u32 {
        let sent = frame(100, &n.to_be_bytes());
        let asked = Instant::now();
        assert_eq!(ask(&mut good, &sent), sent);
        assert!(asked.elapsed() < Duration::from_secs(1), "waited {:?}", asked.elapsed());
    }
    stop.store(true, SeqCst);
    writing.join().unwrap();
    assert!(reading.join().unwrap() > 1 << 20);
    let counters = running.counters();
    assert!(counters.input_paused > 0, "{counters:?}");
    assert!(running.engine.stop());
}

#[test]
fn unfinished_frames_of_all_connections_have_one_budget() {
    let limits = Limits { max_frame_bytes: 1 << 20, assembly_bytes: 3 << 20, ..Limits::default() };
    let running = run(1, limits);
    let mut streams: Vec<_> = (0..8).map(|_| running.connect()).collect();
    for stream in &mut streams {
        // All of a large frame but its end. The server may close it meanwhile.
        let _ = stream.write_all(&frame(100, &vec![1; 1_000_000])[..990_000]);
    }
    until("some are closed", || running.closed_for(CloseReason::InputBudget) >= 3);
    let mut another = running.connect();
    assert_eq!(ask(&mut another, &frame(100, b"abc")), frame(100, b"abc"));
    drop(streams);
    assert!(running.engine.stop());
}

#[test]
fn a_damaged_file_under_an_answer_ends_that_connection_only() {
    let running = run(1, Limits::default());
    let content: Vec<u8> = (0..1_000_000u32).map(|n| (n >> 7) as u8).collect();
    let (_dir, file) = file_with(&content);
    let map = file.clone().map(content.len() as u64).unwrap();
    assert!(running.seen.map.set(map).is_ok());
    let (mut stream, mut other) = (running.connect(), running.connect());
    let mut asked = frame(FROM_FILE, b"abc").repeat(3);
    asked.extend(frame(100, b"abc"));
    stream.write_all(&asked).unwrap();
    for _ in 0..3 {
        assert!(read_frame(&mut stream).unwrap()[4..] == content);
    }
    assert_eq!(read_frame(&mut stream).unwrap(), frame(100, b"abc"), "answers keep their order");
    file.set_len(500_000).unwrap();
    stream.write_all(&asked).unwrap();
    assert!(is_closed(&mut stream));
    until("told", || running.closed_for(CloseReason::StoreFault) == 1);
    assert_eq!(ask(&mut other, &frame(100, b"abc")), frame(100, b"abc"));
    assert!(running.engine.stop());
}
