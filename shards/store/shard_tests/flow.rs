//! Appends, pulls, searches, restarts: nothing goes wrong here.

use message::{PhysicalOffset, QueueOffset};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use simulator::Residency;

use super::rig::{Rig, SEGMENT, fields};
use crate::options::FlushMode;
use crate::types::{Boundary, Bounds, GetStatus, IndexKind, PullLimits};
use crate::{AppendError, ReadStep, ReadTogether};

#[test]
fn appends_come_back_through_restarts() {
    for seed in 0..12 {
        let mut random = StdRng::seed_from_u64(seed);
        let mode = if seed % 2 == 0 { FlushMode::Async } else { FlushMode::Sync };
        let mut rig = Rig::new(mode, seed);
        for round in 0..4 {
            for turn in 0..60 {
                for _ in 0..random.random_range(1..5) {
                    let topic = ["alpha", "beta", "gamma"][random.random_range(0..3usize)];
                    let queue = random.random_range(0..4);
                    let body = vec![random.random::<u8>(); random.random_range(0..900usize)];
                    let bodies = vec![&body[..]; random.random_range(1..4usize)];
                    rig.stage(topic, queue, &bodies, "TAGS\u{1}t\u{2}").expect("an append");
                }
                rig.turn();
                rig.pass_ms(random.random_range(0..400));
                if turn % 20 == 0 {
                    rig.disk.set_residency([Residency::All, Residency::Nothing, Residency::Some][turn / 20]);
                    rig.check_model(false);
                }
            }
            rig.check_model(false);
            if round % 2 == 0 {
                rig.close();
                assert!(rig.verify() > 0);
                let report = rig.open();
                assert!(report.clean && report.trusted, "{report:?}");
                assert_eq!((report.records, report.rebuilt_queues, report.cut_bytes), (0, 0, 0));
            } else {
                rig.kill();
                let report = rig.open();
                assert!(!report.clean && report.rebuilt_queues == 0, "{report:?}");
            }
            rig.check_model(false);
        }
    }
}

#[test]
fn segments_roll_with_a_blank_record() {
    let mut rig = Rig::new(FlushMode::Async, 1);
    let body = vec![7; 1000];
    for _ in 0..200 {
        rig.send("t", 0, &[&body]);
    }
    let names = rig.names("commitlog");
    assert!(names.len() >= 3, "{names:?}");
    for name in &names[..names.len() - 2] {
        let bytes = rig.file(&format!("commitlog/{name}"));
        assert_eq!(bytes.len() as u64, SEGMENT);
        let blank = (0..bytes.len() - 8).find(|&at| bytes[at + 4..at + 8] == 0xCBD4_3194_u32.to_be_bytes());
        let at = blank.expect("a blank record");
        assert_eq!(u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()) as usize, bytes.len() - at);
    }
    rig.check_model(false);
    let largest = vec![1; SEGMENT as usize];
    let error = rig.stage("t", 0, &[&largest], "").unwrap_err();
    assert!(matches!(error, AppendError::Illegal(_)), "{error}");
    let batch = vec![&body[..]; 70];
    assert!(matches!(rig.stage("t", 0, &batch, ""), Err(AppendError::Illegal(_))), "a batch stays in one segment");
}

#[test]
fn pull_statuses_are_those_of_java() {
    let mut rig = Rig::new(FlushMode::Async, 1);
    for at in 0..10u8 {
        rig.send("t", 0, &[&[at]]);
    }
    let mut ask = |queue: u32, from: u64| {
        let pulled = rig.read(|shard| shard.pull(b"t", queue, QueueOffset(from), PullLimits::count(32), &mut |_| true));
        (pulled.status, pulled.next_begin.0, pulled.count)
    };
    assert_eq!(ask(0, 0), (GetStatus::Found, 10, 10));
    assert_eq!(ask(0, 9), (GetStatus::Found, 10, 1));
    assert_eq!(ask(0, 10), (GetStatus::OffsetOverflowOne, 10, 0));
    assert_eq!(ask(0, 11), (GetStatus::OffsetOverflowBadly, 10, 0));
    assert_eq!(ask(0, u64::MAX), (GetStatus::OffsetOverflowBadly, 10, 0));
    assert_eq!(ask(1, 5), (GetStatus::NoMatchedLogicQueue, 0, 0));
    let none = rig.read(|shard| shard.pull(b"t", 0, QueueOffset(3), PullLimits::count(32), &mut |tag| tag == 12));
    assert_eq!((none.status, none.next_begin.0), (GetStatus::NoMatchedMessage, 10));
}

#[test]
fn pulls_keep_their_limits() {
    let mut rig = Rig::new(FlushMode::Async, 1);
    let body = vec![3; 10_000];
    for _ in 0..100 {
        rig.send("t", 0, &[b"small"]);
    }
    for _ in 0..40 {
        rig.send("big", 0, &[&body]);
    }
    for (asked, expected) in
        [(1, 1), (2, 2), (31, 31), (32, 32), (100, 32), (0, 1), (-1, 1), (i32::MIN, 1), (i32::MAX, 32)]
    {
        for from in [0, 50] {
            let pulled =
                rig.read(|shard| shard.pull(b"t", 0, QueueOffset(from), PullLimits::count(asked), &mut |_| true));
            assert_eq!(
                (pulled.count, pulled.next_begin.0),
                (expected, from + u64::from(expected)),
                "{asked} at {from}"
            );
        }
    }
    let pulled = rig.read(|shard| shard.pull(b"big", 0, QueueOffset(0), PullLimits::count(32), &mut |_| true));
    assert!(pulled.bytes <= 256 << 10 && pulled.count == 25, "{}", pulled.count);
    rig.shard().options.in_memory_window_bytes = 0;
    let pulled = rig.read(|shard| shard.pull(b"big", 0, QueueOffset(0), PullLimits::count(32), &mut |_| true));
    assert_eq!(pulled.count, 6, "64 KiB of old records");
    let pulled = rig.read(|shard| shard.pull(b"t", 0, QueueOffset(0), PullLimits::count(32), &mut |_| true));
    assert_eq!(pulled.count, 8, "eight old records");
}

#[test]
fn a_scan_is_bounded() {
    let mut rig = Rig::new(FlushMode::Async, 1);
    for _ in 0..200 {
        rig.send("t", 0, &[b"x"; 10].map(|body| &body[..]));
    }
    let none = rig.read(|shard| shard.pull(b"t", 0, QueueOffset(5), PullLimits::count(32), &mut |_| false));
    assert_eq!((none.status, none.next_begin.0), (GetStatus::NoMatchedMessage, 805));
}

#[test]
fn searches_by_time() {
    let mut rig = Rig::new(FlushMode::Async, 1);
    rig.send("t", 0, &[b"0"]);
    rig.pass_ms(60);
    rig.send("t", 0, &[b"1", b"2", b"3"]);
    rig.pass_ms(60);
    rig.send("t", 0, &[b"4"]);
    let t = 1_700_000_000_000;
    for residency in [Residency::All, Residency::Nothing] {
        rig.disk.set_residency(residency);
        for (when, lower, upper) in [
            (t - 30, 0, 0),
            (t, 0, 0),
            (t + 30, 1, 0),
            (t + 60, 1, 3),
            (t + 90, 4, 3),
            (t + 120, 4, 4),
            (t + 150, 5, 4),
        ] {
            let mut ask = |boundary| rig.read(|shard| shard.offset_by_time(b"t", 0, when, boundary)).0;
            assert_eq!((ask(Boundary::Lower), ask(Boundary::Upper)), (lower, upper), "at {}", when - t);
        }
        assert_eq!(rig.read(|shard| shard.store_time_at(b"t", 0, QueueOffset(2))), Some(t + 60));
        assert_eq!(rig.read(|shard| shard.store_time_at(b"t", 0, QueueOffset(5))), None);
    }
}

#[test]
fn records_by_offset_and_key() {
    let mut rig = Rig::new(FlushMode::Async, 1);
    let big = vec![9; 9000];
    rig.send("t", 0, &[b"first"]);
    let second = rig.stage("t", 1, &[&big], "UNIQ_KEY\u{1}u1\u{2}KEYS\u{1}red blue\u{2}TAGS\u{1}T\u{2}").unwrap();
    rig.turn();
    for residency in [Residency::All, Residency::Nothing] {
        rig.disk.set_residency(residency);
        let at = second.first();
        let found = rig.read(|shard| shard.record_at(at)).expect("the record");
        assert!(found.windows(9000).any(|window| window == big));
        for bad in [at.0 + 1, at.0 + 300, second.end.0, 1 << 50, u64::MAX] {
            assert_eq!(rig.read(|shard| shard.record_at(PhysicalOffset(bad))), None, "{bad}");
        }
        let t = 1_700_000_000_000;
        for (key, kind, count) in [
            (&b"red"[..], IndexKind::Key, 1),
            (b"blue", IndexKind::Key, 1),
            (b"u1", IndexKind::Key, 1),
            (b"T", IndexKind::Tag, 1),
            (b"T", IndexKind::Key, 0),
            (b"green", IndexKind::Key, 0),
        ] {
            let found = rig.read(|shard| shard.query_by_key(b"t", key, 32, t, t, kind));
            assert_eq!(found.records.len(), count, "{}", String::from_utf8_lossy(key));
        }
        let late = rig.read(|shard| shard.query_by_key(b"t", b"red", 32, t + 1, t + 9, IndexKind::Key));
        assert!(late.records.is_empty());
    }
}

#[test]
fn records_read_together_are_those_read_alone() {
    for seed in 0..8 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut rig = Rig::new(FlushMode::Async, seed);
        let mut known = vec![PhysicalOffset(u64::MAX), PhysicalOffset(1 << 50), PhysicalOffset(3)];
        for _ in 0..150 {
            let longest = [10, 300, 6_000][random.random_range(0..3usize)];
            let body = vec![random.random::<u8>(); random.random_range(0..longest)];
            let appended = rig.send("t", 0, &[&body, b"second"]);
            known.extend(&appended.offsets);
            known.push(PhysicalOffset(appended.end.0 - 1));
        }
        let staged = rig.stage("t", 0, &[b"not written yet"], "").expect("an append");
        known.push(staged.first());
        let mut together = ReadTogether::default();
        let mut found = 0;
        for _ in 0..50 {
            let count = random.random_range(0..40usize);
            let from = random.random_range(0..known.len() - count);
            let mut offsets = known[from..from + count].to_vec();
            if random.random() {
                offsets = offsets.iter().map(|_| known[random.random_range(0..known.len())]).collect();
            }
            rig.disk
                .set_residency([Residency::All, Residency::Nothing, Residency::Some][random.random_range(0..3usize)]);
            rig.shard().read_together(&offsets, &mut together);
            rig.disk.set_residency(Residency::All);
            for (at, &offset) in offsets.iter().enumerate() {
                if let Some(record) = together.get(at) {
                    let ReadStep::Ready(alone) = rig.shard().record_at(offset) else { panic!("{offset:?} is missing") };
                    assert_eq!(alone.as_deref(), Some(record), "{offset:?}");
                    found += 1;
                }
            }
            assert_eq!(together.get(offsets.len()), None);
        }
        assert!(found > 100, "{found}");
    }
}

#[test]
fn what_is_in_memory_is_read_together() {
    let mut rig = Rig::new(FlushMode::Async, 1);
    let offsets: Vec<PhysicalOffset> = (0..300).map(|_| rig.send("t", 0, &[&[1; 500]]).first()).collect();
    let mut together = ReadTogether::default();
    rig.shard().read_together(&offsets, &mut together);
    assert!((0..offsets.len()).all(|at| together.get(at).is_some()));
}

#[test]
fn nothing_is_visible_before_its_sync() {
    let mut rig = Rig::new(FlushMode::Sync, 1);
    rig.hold = true;
    for at in 0..5u8 {
        rig.send("t", 0, &[&[at]]);
    }
    assert_eq!(rig.shard().bounds(b"t", 0), Some(Bounds { min: QueueOffset(0), max: QueueOffset(0) }));
    let at = PhysicalOffset(0);
    assert!(matches!(rig.shard().record_at(at), ReadStep::Ready(None)));
    let mut seen = 0;
    rig.shard().newly_visible(&mut |_| seen += 1);
    assert_eq!(seen, 0);
    rig.hold = false;
    rig.run_commands();
    rig.shard().newly_visible(&mut |visible| {
        seen += 1;
        assert_eq!((visible.topic, visible.max_offset.0), (&b"t"[..], seen));
    });
    assert_eq!(seen, 5);
    rig.check_model(false);
}

#[test]
fn store_time_never_falls() {
    let mut rig = Rig::new(FlushMode::Async, 1);
    let first = rig.send("t", 0, &[b"a"]).store_timestamp_ms;
    rig.now.wall_ms -= 5_000;
    assert_eq!(rig.send("t", 0, &[b"b"]).store_timestamp_ms, first);
    rig.kill();
    rig.open();
    assert_eq!(rig.send("t", 0, &[b"c"]).store_timestamp_ms, first, "also after a restart");
}

#[test]
fn a_deleted_topic_stays_deleted() {
    for clean in [true, false] {
        let mut rig = Rig::new(FlushMode::Async, 1);
        for _ in 0..60 {
            rig.send("gone", 0, &[b"old"]);
            rig.send("kept", 0, &[b"stays"]);
            rig.pass_ms(600);
        }
        rig.delete("gone");
        assert_eq!(rig.shard().bounds(b"gone", 0), None);
        for at in 0..3u8 {
            rig.pass_ms(1100);
            rig.send("gone", 0, &[&[at]]);
        }
        for _ in 0..3 {
            if clean {
                rig.close()
            } else {
                rig.kill()
            }
            rig.open();
            assert_eq!(rig.shard().bounds(b"gone", 0).unwrap().max, QueueOffset(3));
            rig.check_model(false);
        }
        rig.delete("gone");
        if clean {
            rig.close()
        } else {
            rig.kill()
        }
        rig.open();
        assert_eq!(rig.shard().bounds(b"gone", 0), None);
        rig.check_model(false);
    }
}

#[test]
fn half_and_rollback_records_get_no_entry() {
    let mut rig = Rig::new(FlushMode::Async, 1);
    let now = rig.now;
    for kind in [message::sys_flag::TRANSACTION_PREPARED, message::sys_flag::TRANSACTION_ROLLBACK] {
        let half = message::record::RecordFields { sys_flag: kind, ..fields("t", 0, b"half", "") };
        let appended = rig.shard().append(now, &[half]).unwrap();
        assert_eq!(appended.queue_offset, QueueOffset(0));
    }
    rig.turn();
    assert_eq!(rig.shard().bounds(b"t", 0), None);
    rig.kill();
    assert_eq!(rig.open().records, 2);
    assert_eq!(rig.shard().bounds(b"t", 0), None);
}
