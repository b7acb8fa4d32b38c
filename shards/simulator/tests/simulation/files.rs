//! The store's small files, and the home of the store, under power cuts and failures at every operation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use message::PhysicalOffset;
use simulator::{Fault, SimulatedDisk};
use store::{ConfigDir, OffsetJournal, OpenError, ShardId, StoreHome, StoreLayout, StoreOptions, Tombstones};
use sys::disk::{Disk, OpenMode};

const NAME: &str = "topics.json";

fn is_version(bytes: &[u8]) -> bool {
    version(bytes).is_some()
}

fn version(bytes: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(bytes).ok()?.strip_prefix("v")?.strip_suffix('.')?;
    text.trim_end_matches('x').parse().ok()
}

fn text(version: u32) -> Vec<u8> {
    format!("v{version}{}.", "x".repeat(2_000)).into_bytes()
}

#[test]
fn a_config_file_is_always_the_last_version_written_or_the_next() {
    for seed in 0..300 {
        let disk = SimulatedDisk::new(seed);
        let dir = ConfigDir::new(Arc::new(disk.clone()), PathBuf::from("/d/config"));
        let written = 1 + seed as u32 % 5;
        for version in 1..=written {
            dir.write(NAME, &text(version)).unwrap();
        }
        // The next write stops at some operation; then the power goes.
        disk.set_fault(Some(Fault::Operation(disk.operations() + 1 + seed % 9)));
        let whole = dir.write(NAME, &text(written + 1)).is_ok();
        disk.power_cut(seed);
        let found = version(&dir.read(NAME, &is_version).unwrap().expect("it was written before")).unwrap();
        let expected = if whole { written + 1..=written + 1 } else { written..=written + 1 };
        assert!(expected.contains(&found), "seed {seed}: version {found} after {written}, whole: {whole}");
        // And it goes on from there, whatever was left behind.
        dir.write(NAME, &text(77)).unwrap();
        assert_eq!(version(&dir.read(NAME, &is_version).unwrap().unwrap()), Some(77));
    }
}

#[test]
fn a_damaged_config_file_is_replaced_by_its_backup_and_never_becomes_it() {
    for damage in [&b""[..], &text(3)[..900]] {
        let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(1));
        let dir = ConfigDir::new(disk.clone(), PathBuf::from("/d/config"));
        assert_eq!(dir.read(NAME, &is_version).unwrap(), None);
        (1..=3).for_each(|version| dir.write(NAME, &text(version)).unwrap());
        let main = disk.open(&dir.dir().join(NAME), OpenMode::ReadWrite).unwrap();
        main.set_len(damage.len() as u64).unwrap();
        assert_eq!(version(&dir.read(NAME, &is_version).unwrap().unwrap()), Some(2));
        dir.write(NAME, &text(4)).unwrap();
        assert_eq!(disk.read(&dir.dir().join("topics.json.bak")).unwrap().unwrap(), text(2));
        // With both gone bad it is an error, not an empty table.
        for name in [NAME, "topics.json.bak"] {
            disk.open(&dir.dir().join(name), OpenMode::ReadWrite).unwrap().set_len(5).unwrap();
        }
        assert!(dir.read(NAME, &is_version).is_err());
    }
}

fn replayed(disk: &SimulatedDisk) -> (OffsetJournal, Vec<u32>) {
    let mut found = Vec::new();
    let layout = StoreLayout::new(Path::new("/d"));
    let journal = OffsetJournal::open(Arc::new(disk.clone()), &layout, [None; 2], &mut |entry| {
        found.push(u32::from_be_bytes(entry.try_into().expect("entries of 4 bytes")));
    });
    (journal.unwrap(), found)
}

#[test]
fn journal_entries_survive_the_process_and_end_at_a_torn_one() {
    let disk = SimulatedDisk::new(1);
    let (mut journal, found) = replayed(&disk);
    assert!(found.is_empty());
    (0..10_u32).for_each(|number| journal.append(&number.to_be_bytes()).unwrap());
    disk.kill();
    let (mut journal, found) = replayed(&disk);
    assert_eq!(found, (0..10).collect::<Vec<u32>>());
    (10..20_u32).for_each(|number| journal.append(&number.to_be_bytes()).unwrap());
    // Cut the second file at every byte, from its first entry of 13 bytes on: whole entries before the cut stay, and the first file is not touched by it.
    let path = Path::new("/d/shards/offsets.2.journal");
    let whole = disk.read(path).unwrap().unwrap();
    for len in (0..whole.len()).rev() {
        disk.open(path, OpenMode::ReadWrite).unwrap().set_len(len as u64).unwrap();
        assert_eq!(
            replayed(&disk).1,
            (0..10 + (len as u32).saturating_sub(13) / 12).collect::<Vec<u32>>(),
            "cut at {len}"
        );
    }
}

#[test]
fn a_journal_write_that_failed_is_replaced_by_the_next() {
    let disk = SimulatedDisk::new(2);
    let (mut journal, _) = replayed(&disk);
    journal.append(&1_u32.to_be_bytes()).unwrap();
    disk.set_fault(Some(Fault::Operation(disk.operations() + 1)));
    assert!(journal.append(&2_u32.to_be_bytes()).is_err());
    journal.append(&3_u32.to_be_bytes()).unwrap();
    assert_eq!(replayed(&disk).1, [1, 3]);
}

#[test]
fn generations_go_when_two_json_files_cover_them() {
    let disk = SimulatedDisk::new(3);
    let (mut journal, _) = replayed(&disk);
    for number in 0..5_u32 {
        journal.append(&number.to_be_bytes()).unwrap();
        let generation = journal.rotate([Some(&[number as u8]), None]).unwrap();
        journal.written(generation).unwrap();
    }
    journal.append(&9_u32.to_be_bytes()).unwrap();
    // The JSON's backup was written before 4 came.
    assert_eq!(replayed(&disk).1, [4, 9]);
}

#[test]
fn tombstones_are_durable_when_added_and_forgotten_when_the_log_moved_on() {
    let disk = SimulatedDisk::new(4);
    let load = || Tombstones::load(ConfigDir::new(Arc::new(disk.clone()), PathBuf::from("/d/shards"))).unwrap();
    let in_shard_1 = |at| ShardId(1).base().plus(at);
    let tombstones = load();
    tombstones.add("gone", &[PhysicalOffset(1000), in_shard_1(50)]).unwrap();
    disk.power_cut(9);
    let tombstones = load();
    assert!(tombstones.covers(b"gone", PhysicalOffset(999)) && !tombstones.covers(b"gone", PhysicalOffset(1000)));
    assert!(tombstones.covers(b"gone", in_shard_1(49)) && !tombstones.covers(b"gone", in_shard_1(50)));
    assert!(!tombstones.covers(b"other", PhysicalOffset(0)) && !tombstones.covers(b"gone", ShardId(2).base()));
    tombstones.forget_below(&[PhysicalOffset(1000), in_shard_1(0)]).unwrap();
    assert_eq!(load().end("gone", ShardId(0)), None);
    assert_eq!(load().end("gone", ShardId(1)), Some(in_shard_1(50)));
}

fn options() -> StoreOptions {
    StoreOptions { segment_size_bytes: 4096, ..StoreOptions::default() }
}

fn open(disk: &SimulatedDisk, shards: Option<u16>) -> Result<StoreHome, OpenError> {
    StoreHome::open(Arc::new(disk.clone()), Path::new("/d"), &options(), shards, 2)
}

fn put(disk: &SimulatedDisk, path: &str, bytes: &[u8]) {
    let path = Path::new(path);
    disk.create_dir_all(path.parent().unwrap()).unwrap();
    let file = disk.open(path, OpenMode::Create).unwrap();
    file.write_at(&[std::io::IoSlice::new(bytes)], 0).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir(path.parent().unwrap()).unwrap();
}

#[test]
fn a_new_store_gets_the_default_and_keeps_it() {
    let disk = SimulatedDisk::new(1);
    let home = open(&disk, None).unwrap();
    assert!(home.shards() == 2 && home.was_clean() && !home.created_from_java());
    assert!(matches!(open(&disk, None), Err(OpenError::Locked(_))));
    home.close_clean().unwrap();
    let home = open(&disk, None).unwrap();
    assert!(home.was_clean());
    drop(home);
    let home = open(&disk, Some(2)).unwrap();
    assert!(!home.was_clean(), "dropped, not closed");
    drop(home);
    assert!(matches!(open(&disk, Some(1)), Err(OpenError::FewerShards { has: 2, asked: 1, .. })));
    let guard = Path::new("/d/commitlog/several-shards-not-for-java");
    assert!(disk.metadata(guard).unwrap().is_some_and(|meta| meta.len > 0));
    assert!(matches!(open(&disk, Some(65)), Err(OpenError::Unsupported { .. })));
    assert_eq!(disk.read(Path::new("/d/lock")).unwrap().unwrap(), b"lock");
}

#[test]
fn a_store_of_which_a_part_is_gone_is_refused() {
    let disk = SimulatedDisk::new(1);
    open(&disk, Some(2)).unwrap().close_clean().unwrap();
    let shards = Path::new("/d/shards");
    disk.remove_dir_all(&shards.join("1/commitlog")).unwrap();
    assert!(matches!(open(&disk, None), Err(OpenError::Damaged { .. })), "a shard is missing");
    disk.create_dir_all(&shards.join("1/commitlog")).unwrap();
    disk.remove_file(&shards.join("manifest.json")).unwrap();
    let _ = disk.remove_file(&shards.join("manifest.json.bak"));
    assert!(matches!(open(&disk, None), Err(OpenError::Damaged { .. })), "the manifest is missing");
    assert!(disk.metadata(Path::new("/d/abort")).unwrap().is_none(), "nothing was touched");
}

#[test]
fn a_java_store_keeps_one_shard_until_told_and_its_queues_stay() {
    let disk = SimulatedDisk::new(1);
    put(&disk, "/d/commitlog/00000000000000000000", &[0; 4096]);
    put(&disk, "/d/consumequeue/seen/3/00000000000000000000", b"x");
    let table = br#"{"topicConfigTable":{"known":{"readQueueNums":8,"writeQueueNums":4}}}"#;
    put(&disk, "/d/config/topics.json", table);
    let home = open(&disk, None).unwrap();
    assert!(home.shards() == 1 && home.created_from_java());
    home.close_clean().unwrap();
    assert!(!disk.paths().contains(&PathBuf::from("/d/commitlog/several-shards-not-for-java")));
    let home = open(&disk, Some(3)).unwrap();
    assert!(home.shards() == 3 && home.created_from_java());
    let mut placement = home.placement().unwrap();
    placement.grow("seen", 4, 10);
    placement.grow("known", 8, 14);
    for (topic, old) in [("seen", 4), ("known", 8)] {
        assert!((0..old).all(|queue| placement.shard_of(topic, queue) == ShardId(0)), "{topic}");
        let new: std::collections::BTreeSet<ShardId> = (old..old + 6).map(|q| placement.shard_of(topic, q)).collect();
        assert_eq!(new.len(), 3, "{topic}");
    }
}

#[test]
fn what_is_refused_is_left_as_it_was() {
    let kinds: [(&str, &[u8], &str); 6] = [
        ("/d/shards/manifest.json", br#"{"formatVersion":9}"#, "format version 9"),
        ("/d/rocksdbstore/000012.sst", b"data", "RocksDB"),
        ("/d/consumequeue/CURRENT", b"MANIFEST-000001", "RocksDB"),
        ("/d/batchconsumequeue/t/0/00000000000000000000", b"x", "BatchCQ"),
        ("/d/commitlog/00000000000000000000", b"short", "4096"),
        ("/d/shards/manifest.json", b"{", "manifest"),
    ];
    for (path, content, named) in kinds {
        let disk = SimulatedDisk::new(1);
        put(&disk, "/d/lock", b"lock");
        put(&disk, path, content);
        let snapshot = |disk: &SimulatedDisk| -> BTreeMap<PathBuf, Option<Vec<u8>>> {
            disk.paths().into_iter().map(|path| (path.clone(), disk.read(&path).ok().flatten())).collect()
        };
        let before = snapshot(&disk);
        let error = open(&disk, None).err().expect(path).to_string();
        assert!(error.contains(named), "{path}: {error}");
        assert_eq!(snapshot(&disk), before, "{path}");
    }
    // An empty database folder, as 5.4.0 leaves it, and an empty last segment are no reason.
    let disk = SimulatedDisk::new(1);
    put(&disk, "/d/rocksdbstore/000004.log", b"");
    put(&disk, "/d/rocksdbstore/CURRENT", b"MANIFEST-000005\n");
    put(&disk, "/d/commitlog/00000000000000004096", b"");
    open(&disk, None).unwrap();
}

#[test]
fn raising_the_shards_survives_a_cut_at_every_operation() {
    for stop_at in 1..40 {
        let disk = SimulatedDisk::new(stop_at);
        put(&disk, "/d/commitlog/00000000000000000000", &[0; 4096]);
        put(&disk, "/d/consumequeue/t/5/00000000000000000000", b"x");
        open(&disk, None).unwrap().close_clean().unwrap();
        disk.set_fault(Some(Fault::Operation(disk.operations() + stop_at)));
        let raised = open(&disk, Some(2)).is_ok();
        disk.power_cut(stop_at);
        let home = open(&disk, None).unwrap();
        assert!(home.shards() == 2 || !raised, "stopped at {stop_at}");
        let shards = home.shards();
        drop(home);
        let home = open(&disk, Some(2)).unwrap();
        let placement = home.placement().unwrap();
        assert!((0..6).all(|queue| placement.shard_of("t", queue) == ShardId(0)), "stopped at {stop_at}: {shards}");
    }
}
