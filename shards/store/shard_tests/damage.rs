//! Files that were lost, cut, filled with garbage or damaged while nobody looked.

use std::path::Path;

use message::QueueOffset;
use sys::disk::{Disk, OpenMode};

use super::rig::{ROOT, Rig, SEGMENT};
use crate::OpenError;
use crate::options::FlushMode;
use crate::types::{GetStatus, IndexKind, PullLimits};

/// A rig with messages in two topics of two queues, several queue files and segments.
fn filled() -> Rig {
    let mut rig = Rig::new(FlushMode::Async, 11);
    for at in 0..130u32 {
        for topic in ["one", "two"] {
            for queue in 0..2 {
                rig.send(topic, queue, &[body(topic, queue, at).as_bytes()]);
            }
        }
        rig.pass_ms(300);
    }
    rig
}

fn body(topic: &str, queue: u32, at: u32) -> String {
    format!("{topic}-{queue}-{at}-{}", "x".repeat(300))
}

fn remove(rig: &Rig, path: &str) {
    rig.disk.remove_file(&Path::new(ROOT).join(path)).unwrap();
}

/// The end of a life, clean or not.
fn end(rig: &mut Rig, clean: bool) {
    if clean { rig.close() } else { rig.kill() }
}

#[test]
fn a_lost_queue_file_is_made_again() {
    for clean in [true, false] {
        for which in [0, 1, 2] {
            let mut rig = filled();
            end(&mut rig, clean);
            let files = rig.names("consumequeue/one/1");
            assert_eq!(files.len(), 3);
            remove(&rig, &format!("consumequeue/one/1/{}", files[which]));
            let report = rig.open();
            rig.check_model(false);
            // Of an unclean end the last file may not be vouched for at all.
            assert!(report.rebuilt_queues == 1 || !clean && which == 2, "{report:?}");
            rig.send("one", 1, &[b"next"]);
            rig.check_model(false);
            end(&mut rig, clean);
            rig.open();
            rig.check_model(false);
        }
    }
}

#[test]
fn lost_folders_and_tables() {
    for clean in [true, false] {
        for lost in ["checkpoint", "queuetable", "both", "index", "consumequeue", "all"] {
            let mut rig = filled();
            end(&mut rig, clean);
            let files: &[&str] = match lost {
                "checkpoint" => &["checkpoint"],
                "queuetable" => &["queuetable"],
                "both" | "all" => &["checkpoint", "queuetable"],
                _ => &[],
            };
            for file in files {
                let path = Path::new(ROOT).join(file);
                if rig.disk.metadata(&path).unwrap().is_some() {
                    rig.disk.remove_file(&path).unwrap();
                }
            }
            if matches!(lost, "index" | "all") {
                rig.disk.remove_dir_all(&Path::new(ROOT).join("index")).unwrap();
            }
            if matches!(lost, "consumequeue" | "all") {
                rig.disk.remove_dir_all(&Path::new(ROOT).join("consumequeue")).unwrap();
            }
            rig.open();
            rig.check_model(false);
            rig.send("two", 0, &[b"next"]);
            rig.check_model(false);
            for _ in 0..20 {
                rig.pass_ms(5_000);
                rig.turn();
            }
            let found = rig.read(|shard| shard.query_by_key(b"one", b"k1", 40, 0, i64::MAX, IndexKind::Key));
            assert_eq!(found.records.len(), 40, "keys are found again without {lost}");
            end(&mut rig, clean);
            rig.open();
            rig.check_model(false);
        }
    }
}

#[test]
fn garbage_behind_the_end_is_cut_once() {
    for clean in [true, false] {
        let mut rig = filled();
        let end_offset = rig.shard().end().0;
        end(&mut rig, clean);
        let base = end_offset / SEGMENT * SEGMENT;
        let mut garbage = 700u32.to_be_bytes().to_vec();
        garbage.extend_from_slice(&message::record::MAGIC_V1.to_be_bytes());
        garbage.extend((1..=250u8).cycle().take(2000));
        rig.patch(&format!("commitlog/{base:020}"), end_offset - base, &garbage);
        assert_eq!(rig.open().end.0, end_offset);
        rig.check_model(false);
        rig.send("one", 0, &[b"after"]);
        rig.close();
        assert_eq!(rig.open().cut_bytes, 0);
        rig.check_model(false);
    }
}

#[test]
fn a_damaged_record_is_left_out_and_all_others_stay() {
    // In the body, in the head, over two records; after a kill and after an orderly end.
    for (clean, skip, len) in
        [(false, 0, 10), (false, -88, 10), (false, -60, 10), (false, -200, 300), (true, 0, 10), (true, -88, 10)]
    {
        let mut rig = filled();
        rig.pass_ms(2000);
        rig.turn();
        rig.turn();
        let pattern = b"one-1-60-";
        end(&mut rig, clean);
        let files = rig.names("commitlog").into_iter().map(|name| format!("commitlog/{name}"));
        let place = files.filter_map(|path| {
            let bytes = rig.file(&path);
            bytes.windows(pattern.len()).position(|window| window == pattern).map(|at| (path, at))
        });
        let (path, at) = place.last().expect("the body is there");
        rig.patch(&path, (at as i64 + skip) as u64, &vec![0; len]);
        rig.open();
        let found = rig.drain("one", 1);
        let bodies: Vec<_> = found.iter().map(|(_, body)| String::from_utf8(body.clone()).unwrap()).collect();
        assert!(!bodies.contains(&body("one", 1, 60)), "a damaged message was handed out");
        for at in (0..60u32).chain(63..130) {
            let expected = (u64::from(at), body("one", 1, at).into_bytes());
            assert!(found.contains(&expected), "message {at} of the queue, clean {clean}, skip {skip}");
        }
        assert_eq!(rig.send("one", 1, &[b"after"]).queue_offset, QueueOffset(130));
        assert_eq!(rig.drain("one", 1).last().unwrap().1, b"after");
        rig.kill();
        rig.open();
        assert_eq!(rig.drain("one", 1).len(), found.len() + 1);
    }
}

#[test]
fn damage_right_after_the_write_cuts_like_java() {
    let mut rig = Rig::new(FlushMode::Async, 2);
    for at in 0..40 {
        rig.send("t", 0, &[format!("body-{at}").as_bytes()]);
    }
    rig.kill();
    let log = rig.file("commitlog/00000000000000000000");
    let at = log.windows(7).position(|window| window == b"body-30").unwrap();
    rig.patch("commitlog/00000000000000000000", at as u64, &[0; 7]);
    rig.open();
    assert_eq!(rig.drain("t", 0).len(), 30);
    assert_eq!(rig.send("t", 0, &[b"after"]).queue_offset, QueueOffset(30));
}

#[test]
fn wrong_sizes_are_refused_and_nothing_is_touched() {
    let mut rig = filled();
    rig.close();
    for (path, len) in [
        ("commitlog/00000000000000000000", 1000),
        ("commitlog/00000000000000065536", SEGMENT + 1),
        ("consumequeue/one/0/00000000000000000000", 20),
        ("consumequeue/one/0/00000000000000002000", 1020),
    ] {
        let file = rig.disk.open(&Path::new(ROOT).join(path), OpenMode::ReadWrite).unwrap();
        let before = file.len().unwrap();
        file.set_len(len).unwrap();
        let (operations, paths) = (rig.disk.operations(), rig.disk.paths());
        let error = rig.try_open().unwrap_err();
        assert!(matches!(&error, OpenError::WrongSize { found, .. } if *found == len), "{error}");
        // The lock and the mark of a running broker apart.
        let added: Vec<_> = rig.disk.paths().into_iter().filter(|path| !paths.contains(path)).collect();
        assert!(added.iter().all(|path| path.ends_with("abort") || path.ends_with("lock")), "{added:?}");
        assert!(rig.disk.operations() - operations < 16);
        file.set_len(before).unwrap();
        rig.kill();
    }
}

#[test]
fn an_empty_last_file_is_removed() {
    let mut rig = filled();
    rig.close();
    let last = rig.names("commitlog").into_iter().filter(|name| name.len() == 20).max().unwrap();
    let next = format!("commitlog/{:020}", last.parse::<u64>().unwrap() + SEGMENT);
    let queue = "consumequeue/one/0/00000000000000003000";
    for path in [&next[..], queue] {
        rig.disk.open(&Path::new(ROOT).join(path), OpenMode::CreateNew).unwrap();
    }
    rig.open();
    rig.check_model(false);
    assert!(!rig.names("commitlog").iter().any(|name| next.ends_with(name.as_str())));
    rig.send("one", 0, &[b"next"]);
    rig.check_model(false);
}

#[test]
fn a_missing_segment_is_refused() {
    let mut rig = filled();
    rig.close();
    remove(&rig, "commitlog/00000000000000065536");
    assert!(matches!(rig.try_open(), Err(OpenError::MissingSegment(_))));
}

#[test]
fn a_mark_of_an_unclean_end_beside_a_clean_store_costs_nothing() {
    let mut rig = filled();
    rig.close();
    rig.disk.open(&Path::new(ROOT).join("abort"), OpenMode::Create).unwrap();
    let report = rig.open();
    assert!(!report.clean && report.records == 0);
    rig.check_model(false);
}

#[test]
fn the_oldest_file_goes_and_queues_follow() {
    let mut rig = filled();
    rig.pass_ms(40_000);
    for _ in 0..4 {
        rig.pass_ms(1000);
        rig.turn();
    }
    rig.hold = true;
    assert!(rig.shard().expire_oldest());
    // Before the background has come: a pull passes over what is gone.
    let pulled = rig.read(|shard| shard.pull(b"one", 0, QueueOffset(0), PullLimits::count(32), &mut |_| true));
    assert_eq!((pulled.status, pulled.count), (GetStatus::Found, 32));
    let first = pulled.next_begin.0 - 32;
    assert!(first > 10, "the first ones are gone");
    rig.hold = false;
    rig.run_commands();
    assert_eq!(rig.shard().bounds(b"one", 0).unwrap().min.0, first);
    let pulled = rig.read(|shard| shard.pull(b"one", 0, QueueOffset(0), PullLimits::count(32), &mut |_| true));
    assert_eq!((pulled.status, pulled.next_begin.0), (GetStatus::OffsetTooSmall, first));
    while rig.shard().expire_oldest() {}
    rig.run_commands();
    rig.adopt();
    for clean in [true, false] {
        end(&mut rig, clean);
        rig.open();
        rig.check_model(false);
    }
}
