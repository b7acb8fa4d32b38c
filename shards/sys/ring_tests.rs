//! The ring against real sockets and files.

use super::*;
use crate::disk::{Disk, OpenMode};
use crate::event_fd::EventFd;
use crate::real_disk::RealDisk;
use crate::{LogSlice, MappedRun};
use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

const SIZES: RingSizes = RingSizes { entries: 8, buffers: 4, buffer_bytes: 4096 };

fn ring() -> Ring {
    Ring::new(SIZES).unwrap()
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// The next event that is not the end of a cancellation.
fn wait(ring: &mut Ring) -> Event {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match ring.next_event() {
            Some(Event::Cancelled) => continue,
            Some(event) => return event,
            None => {}
        }
        assert!(Instant::now() < deadline, "nothing completed");
        ring.enter(Some(Duration::from_secs(10))).unwrap();
        ring.reap(64);
    }
}

fn received(ring: &mut Ring) -> (Vec<u8>, bool) {
    match wait(ring) {
        Event::Received { connection: 7, result: Ok(Some(lent)), armed } => {
            let bytes = ring.bytes(&lent).to_vec();
            ring.recycle(lent);
            (bytes, armed)
        }
        other => panic!("not bytes: {other:?}"),
    }
}

#[test]
fn one_receive_takes_everything_until_the_end() {
    let (mut client, server) = pair();
    let mut ring = ring();
    ring.receive(7, server.as_raw_fd()).unwrap();
    for n in 0..20u8 {
        client.write_all(&[n; 100]).unwrap();
        assert_eq!(received(&mut ring), (vec![n; 100], true), "the four buffers go round");
    }
    drop(client);
    assert!(matches!(wait(&mut ring), Event::Received { result: Ok(None), armed: false, .. }));
}

#[test]
fn without_buffers_receiving_ends_and_can_be_asked_again() {
    let (mut client, server) = pair();
    let mut ring = ring();
    client.write_all(&[1; 6 * 4096]).unwrap();
    ring.receive(7, server.as_raw_fd()).unwrap();
    let mut lent = Vec::new();
    let mut total = 0;
    loop {
        match wait(&mut ring) {
            Event::Received { result: Ok(Some(buffer)), .. } => {
                total += ring.bytes(&buffer).len();
                lent.push(buffer);
            }
            Event::Received { result: Err(error), armed: false, .. } => {
                assert_eq!(error.raw_os_error(), Some(libc::ENOBUFS));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(lent.len(), 4);
    lent.into_iter().for_each(|buffer| ring.recycle(buffer));
    ring.receive(7, server.as_raw_fd()).unwrap();
    while total < 6 * 4096 {
        total += received(&mut ring).0.len();
    }
    ring.cancel_receive(7).unwrap();
    let Event::Received { result: Err(error), armed: false, .. } = wait(&mut ring) else { panic!("cancelled") };
    assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
}

#[test]
fn a_send_gathers_bytes_and_slices_and_waits_for_the_reader() {
    let (mut client, server) = pair();
    let dir = tempfile::tempdir().unwrap();
    let file = RealDisk.open(&dir.path().join("log"), OpenMode::Create).unwrap();
    let content: Vec<u8> = (0..8_000_000u32).map(|n| (n >> 5) as u8).collect();
    file.write_at(&[IoSlice::new(&content)], 0).unwrap();
    let map = file.map(content.len() as u64).unwrap();
    let mut gather = Gather::default();
    gather.bytes().extend_from_slice(b"head");
    gather.slice(LogSlice::Mapped { map: map.clone(), offset: 1_000, len: 7_000_000 });
    gather.bytes().extend_from_slice(b"middle");
    gather.slice(LogSlice::Heap(vec![9; 100_000].into()));
    let runs = [(5_000, 700), (6_000, 1), (100, 64), (7_999_000, 1_000)];
    let runs = runs.map(|(offset, len)| MappedRun { offset, len });
    gather.slice(LogSlice::of_runs(map.clone(), &runs));
    gather.slice(LogSlice::of_runs(map, &[MappedRun { offset: 0, len: 1 }]));
    let expected = gather.to_vec().unwrap();
    let at = expected.len() - 1_766;
    assert!(expected[at..at + 701] == [&content[5_000..5_700], &content[6_000..6_001]].concat());
    assert!(expected[at + 701..at + 765] == content[100..164]);
    let mut ring = ring();
    ring.send(3, server.as_raw_fd(), gather, 0).unwrap();
    ring.enter(None).unwrap();
    assert_eq!((ring.reap(8), ring.sends()), (0, 1), "more than the socket takes");
    let reading = std::thread::spawn(move || {
        let mut all = vec![0; expected.len()];
        client.read_exact(&mut all).unwrap();
        assert!(all == expected);
    });
    let Event::Sent { connection: 3, gather, from: 0, result } = wait(&mut ring) else { panic!("sent") };
    assert_eq!(result.unwrap(), gather.len());
    assert_eq!(ring.sends(), 0);
    reading.join().unwrap();
}

#[test]
fn a_shortened_file_under_a_send_is_an_error_and_no_signal() {
    let (mut client, server) = pair();
    let dir = tempfile::tempdir().unwrap();
    let file = RealDisk.open(&dir.path().join("log"), OpenMode::Create).unwrap();
    file.write_at(&[IoSlice::new(&[5; 64 << 10])], 0).unwrap();
    let map = file.clone().map(64 << 10).unwrap();
    file.set_len(8 << 10).unwrap();
    let mut gather = Gather::default();
    gather.slice(LogSlice::Mapped { map, offset: 4 << 10, len: 32 << 10 });
    let mut ring = ring();
    let mut from = 0;
    let error = loop {
        ring.send(3, server.as_raw_fd(), gather, from).unwrap();
        let Event::Sent { gather: back, result, .. } = wait(&mut ring) else { panic!("sent") };
        match result {
            // What was there may have been taken first; the next try then meets the hole.
            Ok(taken) => from += taken,
            Err(error) => break error,
        }
        assert!(from <= 4 << 10, "bytes beyond the end of the file were sent");
        gather = back;
    };
    assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    drop((server, ring));
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    assert!(got.iter().all(|byte| *byte == 5) && got.len() == from);
}

#[test]
fn a_gone_peer_is_an_error_of_the_send() {
    let (client, server) = pair();
    drop(client);
    let mut ring = ring();
    for _ in 0..100 {
        let mut gather = Gather::default();
        gather.bytes().resize(100_000, 1);
        ring.send(3, server.as_raw_fd(), gather, 0).unwrap();
        let Event::Sent { result, .. } = wait(&mut ring) else { panic!("sent") };
        if let Err(error) = result {
            assert!(matches!(error.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET)), "{error}");
            return;
        }
    }
    panic!("a hundred sends to nobody");
}

#[test]
fn one_accept_takes_many_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut ring = ring();
    ring.accept(2, listener.as_raw_fd()).unwrap();
    let clients: Vec<_> = (0..20).map(|_| TcpStream::connect(listener.local_addr().unwrap()).unwrap()).collect();
    for _ in &clients {
        let Event::Accepted { listener: 2, result, armed: true } = wait(&mut ring) else { panic!("accepted") };
        // SAFETY: F_GETFD only reads a flag of an open descriptor.
        let flags = unsafe { libc::fcntl(result.unwrap().as_raw_fd(), libc::F_GETFD) };
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    }
    ring.cancel_accept(2).unwrap();
    assert!(matches!(wait(&mut ring), Event::Accepted { result: Err(_), armed: false, .. }));
}

#[test]
fn syncs_and_write_backs_complete_and_more_than_the_queue_takes_is_no_problem() {
    let dir = tempfile::tempdir().unwrap();
    let file = RealDisk.open(&dir.path().join("f"), OpenMode::Create).unwrap();
    file.write_at(&[IoSlice::new(&[1; 65536])], 0).unwrap();
    let mut ring = ring();
    for token in 0..100 {
        ring.sync(file.clone(), token).unwrap();
        ring.write_back(file.clone(), 0, 4096).unwrap();
    }
    let (mut synced, mut written) = (Vec::new(), 0);
    while synced.len() + written < 200 {
        match wait(&mut ring) {
            Event::Synced { token, result } => {
                result.unwrap();
                synced.push(token);
            }
            Event::WroteBack(result) => {
                result.unwrap();
                written += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    synced.sort_unstable();
    assert_eq!(synced, (0..100).collect::<Vec<_>>());
    assert_eq!(Arc::strong_count(&file), 1, "nothing holds the file any more");
}

#[test]
fn a_failed_sync_is_reported() {
    let file = RealDisk.open(std::path::Path::new("/dev/zero"), OpenMode::Read).unwrap();
    let mut ring = ring();
    ring.sync(file, 5).unwrap();
    assert!(matches!(wait(&mut ring), Event::Synced { token: 5, result: Err(_) }));
}

#[test]
fn every_notification_wakes() {
    let event = Arc::new(EventFd::new().unwrap());
    let mut ring = ring();
    ring.watch(event.raw_fd()).unwrap();
    for _ in 0..50 {
        let other = event.clone();
        let notifier = std::thread::spawn(move || other.notify());
        assert!(matches!(wait(&mut ring), Event::Woken { armed: true }));
        notifier.join().unwrap();
    }
}

#[test]
fn a_wait_ends_at_its_time() {
    let mut ring = ring();
    let start = Instant::now();
    ring.enter(Some(Duration::from_millis(30))).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(29));
    assert!(ring.next_event().is_none());
}

#[test]
fn a_ring_may_be_dropped_with_operations_under_way() {
    let (client, server) = pair();
    let mut ring = ring();
    let mut gather = Gather::default();
    gather.bytes().resize(16 << 20, 1);
    ring.send(1, server.as_raw_fd(), gather, 0).unwrap();
    ring.receive(2, client.as_raw_fd()).unwrap();
    ring.enter(None).unwrap();
    assert_eq!(ring.sends(), 1);
    drop(ring);
    drop((client, server));
}
