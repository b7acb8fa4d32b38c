//! The offset journal together with the JSON file that it lies over: whoever wrote that last, no acknowledged commit is lost.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use simulator::{Fault, SimulatedDisk};
use store::{ConfigDir, OffsetJournal, StoreLayout};
use sys::disk::{Disk, OpenMode};

const NAME: &str = "offsets.json";

type Table = BTreeMap<u8, u32>;

fn config(disk: &SimulatedDisk) -> ConfigDir {
    ConfigDir::new(Arc::new(disk.clone()), PathBuf::from("/d/config"))
}

/// Like Java's file, it says who wrote it by nothing but its contents.
fn json(table: &Table) -> Vec<u8> {
    let lines: Vec<String> = table.iter().map(|(key, value)| format!("{key}:{value}")).collect();
    format!("{{{}}}", lines.join(",")).into_bytes()
}

fn parse(bytes: &[u8]) -> Option<Table> {
    let inner = std::str::from_utf8(bytes).ok()?.strip_prefix('{')?.strip_suffix('}')?;
    let pair = |line: &str| line.split_once(':').map(|(k, v)| (k.parse().expect("key"), v.parse().expect("value")));
    Some(inner.split(',').filter_map(pair).collect())
}

fn read_json(disk: &SimulatedDisk) -> Option<Vec<u8>> {
    config(disk).read(NAME, &|bytes| parse(bytes).is_some()).unwrap()
}

fn entry(key: u8, value: u32) -> Vec<u8> {
    [&[1, key][..], &value.to_be_bytes()].concat()
}

/// A broker as far as its offsets go.
struct Broker {
    disk: SimulatedDisk,
    journal: OffsetJournal,
    table: Table,
}

impl Broker {
    fn start(disk: &SimulatedDisk) -> Self {
        let found = read_json(disk);
        let mut table = found.as_deref().and_then(parse).unwrap_or_default();
        let layout = StoreLayout::new(Path::new("/d"));
        let replay = &mut |entry: &[u8]| {
            let [1, key, value @ ..] = entry else { panic!("no entry of the broker: {entry:?}") };
            table.insert(*key, u32::from_be_bytes(value.try_into().unwrap()));
        };
        let journal = OffsetJournal::open(Arc::new(disk.clone()), &layout, [found.as_deref(), None], replay).unwrap();
        Self { disk: disk.clone(), journal, table }
    }

    fn commit(&mut self, key: u8, value: u32) -> bool {
        self.table.insert(key, value);
        self.journal.append(&entry(key, value)).is_ok()
    }

    fn write(&mut self) -> bool {
        let json = json(&self.table);
        let Ok(generation) = self.journal.rotate([Some(&json), None]) else { return false };
        if config(&self.disk).write(NAME, &json).is_err() {
            return false;
        }
        let _ = self.journal.written(generation);
        true
    }

    fn kill(self) -> SimulatedDisk {
        self.disk.kill();
        self.disk
    }
}

fn journals(disk: &SimulatedDisk) -> usize {
    disk.paths().iter().filter(|path| path.extension().is_some_and(|e| e == "journal")).count()
}

/// As a broker wrote it whose journal named nothing.
fn old_journal(disk: &SimulatedDisk, generation: u64, entries: &[Vec<u8>]) {
    disk.create_dir_all(Path::new("/d/shards")).unwrap();
    let path = PathBuf::from(format!("/d/shards/offsets.{generation}.journal"));
    let frames = entries.iter().flat_map(|e| [(e.len() as u32).to_be_bytes().to_vec(), crc(e), e.clone()].concat());
    let bytes: Vec<u8> = frames.collect();
    disk.open(&path, OpenMode::Create).unwrap().write_at(&[IoSlice::new(&bytes)], 0).unwrap();
}

fn crc(bytes: &[u8]) -> Vec<u8> {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        (0..8).for_each(|_| crc = (crc >> 1) ^ (0xEDB8_8320 * (crc & 1)));
    }
    (!crc).to_be_bytes().to_vec()
}

#[test]
fn what_another_broker_wrote_stands_and_what_we_wrote_is_brought_up_to_date() {
    for stop in [false, true] {
        let disk = SimulatedDisk::new(1);
        let mut broker = Broker::start(&disk);
        (0..3).for_each(|key| assert!(broker.commit(key, 1)));
        assert!(broker.write() && broker.commit(0, 2));
        assert!(!stop || broker.write());
        let disk = broker.kill();
        let broker = Broker::start(&disk);
        assert_eq!(broker.table, Table::from([(0, 2), (1, 1), (2, 1)]));
        let disk = broker.kill();
        let java = Table::from([(0, 7), (1, 5)]);
        config(&disk).write(NAME, &json(&java)).unwrap();
        let mut broker = Broker::start(&disk);
        assert_eq!(broker.table, java);
        // From here on its file is the one that the journal lies over.
        assert!(broker.commit(1, 6));
        let mut broker = Broker::start(&broker.kill());
        assert_eq!(broker.table, Table::from([(0, 7), (1, 6)]));
        assert!(broker.write());
        assert_eq!(journals(&disk), 3, "the one over Java's file and those after it");
    }
}

#[test]
fn a_first_file_of_another_broker_stands_too() {
    let disk = SimulatedDisk::new(1);
    assert!(Broker::start(&disk).commit(0, 1));
    assert_eq!(Broker::start(&disk).table, Table::from([(0, 1)]), "there was no file yet");
    config(&disk).write(NAME, &json(&Table::from([(0, 2)]))).unwrap();
    assert_eq!(Broker::start(&disk).table, Table::from([(0, 2)]));
}

#[test]
fn journals_that_name_nothing_lie_over_any_file_until_one_is_written() {
    for written in [false, true] {
        let disk = SimulatedDisk::new(1);
        config(&disk).write(NAME, &json(&Table::from([(0, 1), (1, 1)]))).unwrap();
        old_journal(&disk, 4, &[entry(0, 1), entry(1, 1)]);
        old_journal(&disk, 5, &[entry(0, 2), entry(2, 1)]);
        let mut broker = Broker::start(&disk);
        let mut all = Table::from([(0, 2), (1, 1), (2, 1)]);
        assert_eq!(broker.table, all);
        // Also when the process dies at any moment until the first file of this version is there.
        if written {
            disk.set_fault(Some(Fault::Operation(disk.operations() + 6)));
            assert!(!broker.write(), "the generation is there, the file is not");
        }
        assert!(broker.commit(1, 3));
        all.insert(1, 3);
        let broker = Broker::start(&broker.kill());
        assert_eq!(broker.table, all);
        let disk = broker.kill();
        config(&disk).write(NAME, &json(&Table::from([(0, 9)]))).unwrap();
        assert_eq!(Broker::start(&disk).table, Table::from([(0, 9)]));
    }
}

/// One life after another, with failures at any operation: a start finds at least what was acknowledged, and exactly what
/// another broker wrote.
#[test]
fn every_start_finds_what_was_acknowledged_last() {
    let (mut over_backup, mut over_java) = (0, 0);
    for seed in 0..2_000 {
        let mut random = StdRng::seed_from_u64(seed);
        let disk = SimulatedDisk::new(seed);
        let mut acknowledged = Table::new();
        if seed % 4 == 0 {
            config(&disk).write(NAME, &json(&Table::from([(0, 0)]))).unwrap();
            old_journal(&disk, 2, &[entry(1, 0), entry(2, 0)]);
            acknowledged = Table::from([(0, 0), (1, 0), (2, 0)]);
        }
        let mut broker = Broker::start(&disk);
        let mut java_last = false;
        // While no journal names anything, another broker's file cannot be told from ours.
        let mut named = seed % 4 != 0;
        for value in 1..60_u32 {
            match random.random_range(0..10) {
                0..=4 => {
                    let key = random.random_range(0..6);
                    if broker.commit(key, value) {
                        acknowledged.insert(key, value);
                        named = true;
                    }
                }
                5 | 6 => java_last &= !broker.write(),
                7 => disk.set_fault(Some(Fault::Operation(disk.operations() + random.random_range(1..12)))),
                8 => {
                    disk.set_fault(None);
                    broker.kill();
                    let main = Path::new("/d/config").join(NAME);
                    let there = |path: &Path| disk.metadata(path).unwrap().is_some();
                    let both = there(&main) && there(&main.with_extension("json.bak"));
                    if both && !java_last && random.random_bool(0.5) {
                        disk.open(&main, OpenMode::ReadWrite).unwrap().set_len(0).unwrap();
                        over_backup += 1;
                    }
                    broker = Broker::start(&disk);
                }
                _ if named => {
                    disk.set_fault(None);
                    broker.kill();
                    let mut table = read_json(&disk).as_deref().and_then(parse).unwrap_or_default();
                    table.insert(random.random_range(0..6), value);
                    config(&disk).write(NAME, &json(&table)).unwrap();
                    java_last = true;
                    broker = Broker::start(&disk);
                    assert_eq!(broker.table, table, "seed {seed}, step {value}");
                    acknowledged = table;
                    over_java += 1;
                }
                _ => {}
            }
            for (key, value) in &acknowledged {
                assert!(
                    broker.table.get(key) >= Some(value),
                    "seed {seed}: {key} of {acknowledged:?} in {:?}",
                    broker.table
                );
            }
        }
    }
    assert!(over_backup > 1_000 && over_java > 1_000, "{over_backup}, {over_java}");
}
