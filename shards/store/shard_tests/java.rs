//! A store that a Java broker 5.4.0 wrote (segments of 64 KiB, queue files of 100 entries), opened in place.
//!
//! `java_store/` holds the used beginning of each file; the sizes are restored here. `expected.txt` holds what was sent:
//! topic, queue, queue offset, tag, key, body.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::{Path, PathBuf};

use message::QueueOffset;
use simulator::SimulatedDisk;
use sys::disk::{Disk, OpenMode};

use super::rig::{ROOT, Rig};
use crate::options::FlushMode;
use crate::types::{IndexKind, PullLimits};

const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/shard_tests/java_store");

struct Sent {
    topic: String,
    queue: u32,
    offset: u64,
    tag: String,
    key: String,
    body: String,
}

fn expected() -> Vec<Sent> {
    let text = std::fs::read_to_string(Path::new(FILES).join("expected.txt")).unwrap();
    text.lines()
        .map(|line| {
            let parts: Vec<_> = line.split('\t').map(str::to_owned).collect();
            let [topic, queue, offset, tag, key, body] = parts.try_into().expect("six parts");
            Sent { topic, queue: queue.parse().unwrap(), offset: offset.parse().unwrap(), tag, key, body }
        })
        .collect()
}

/// Copies the files onto a simulated disk, at their full sizes.
fn copy_store(disk: &SimulatedDisk) {
    let mut folders = vec![PathBuf::from(FILES)];
    while let Some(folder) = folders.pop() {
        for item in std::fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let path = item.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let relative = path.strip_prefix(FILES).unwrap();
            let size = match relative.components().next().unwrap().as_os_str().to_str().unwrap() {
                "commitlog" => 65536,
                "consumequeue" => 2000,
                "checkpoint" => 4096,
                _ => continue,
            };
            let target = Path::new(ROOT).join(relative);
            disk.create_dir_all(target.parent().unwrap()).unwrap();
            let file = disk.open(&target, OpenMode::CreateNew).unwrap();
            file.write_at(&[IoSlice::new(&std::fs::read(&path).unwrap())], 0).unwrap();
            file.set_len(size).unwrap();
            file.sync_data().unwrap();
        }
    }
}

fn java_rig(clean: bool) -> Rig {
    let mut rig = Rig::unopened(FlushMode::Async, 1);
    rig.options.queue_file_size_bytes = 2000;
    // Store times of the copied records lie before now.
    rig.now.wall_ms = 4_000_000_000_000;
    copy_store(&rig.disk);
    if !clean {
        rig.disk.open(&Path::new(ROOT).join("abort"), OpenMode::CreateNew).unwrap();
    }
    rig
}

#[test]
fn a_java_store_is_served_and_appended_to() {
    for (clean, without) in [(true, None), (false, None), (false, Some("checkpoint")), (true, Some("consumequeue"))] {
        let mut rig = java_rig(clean);
        if let Some(name) = without {
            rig.disk.remove_dir_all(&Path::new(ROOT).join(name)).ok();
            rig.disk.remove_file(&Path::new(ROOT).join(name)).ok();
        }
        let report = rig.open();
        assert!(!report.trusted && report.cut_bytes == 0, "{report:?}");
        let sent = expected();
        for message in &sent {
            let body = message.body.clone().into_bytes();
            rig.model.entry((message.topic.clone(), message.queue)).or_default().insert(message.offset, body);
        }
        rig.check_model(false);
        let mut tagged: BTreeMap<(&str, u32), u32> = BTreeMap::new();
        for message in sent.iter().filter(|message| message.tag == "TagA") {
            *tagged.entry((&message.topic, message.queue)).or_default() += 1;
        }
        let tag = message::hash::tag_hash(Some(b"TagA"));
        for ((topic, queue), count) in tagged {
            let limits = PullLimits::count(32);
            let (mut from, mut found) = (0, 0);
            while from < rig.shard().bounds(topic.as_bytes(), queue).unwrap().max.0 {
                let pulled = rig.read(|shard| {
                    shard.pull(topic.as_bytes(), queue, QueueOffset(from), limits, &mut |code| code == tag)
                });
                found += pulled.count;
                from = pulled.next_begin.0;
            }
            assert_eq!(found, count, "TagA in {topic}/{queue}");
        }
        // The copy has no index: it is made again in the background.
        for _ in 0..20 {
            rig.pass_ms(1000);
            rig.turn();
        }
        for key in ["key-0", "key-7", "key-19"] {
            let count = sent.iter().filter(|message| message.topic == "events" && message.key == key).count();
            let found =
                rig.read(|shard| shard.query_by_key(b"events", key.as_bytes(), 64, 0, i64::MAX, IndexKind::Key));
            assert_eq!(found.records.len(), count, "{key}");
        }
        rig.send("events", 0, &[b"next"]);
        rig.check_model(false);
        rig.close();
        assert_eq!(rig.verify(), sent.len() as u64 + 1);
        let report = rig.open();
        assert!(report.trusted && report.records == 0);
        rig.check_model(false);
    }
}
