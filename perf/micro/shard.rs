//! A shard of the store on the real disk: appends, pulls, the index.
//!
//! What the kernel does for a write is in the times, not in the counts of instructions. No sync is due in the time that the
//! cases let pass, so nothing waits for the device.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use message::properties::PropertiesSource;
use message::record::RecordFields;
use message::{PhysicalOffset, QueueOffset};
use reactor::Now;
use store::index::RecordKeys;
use store::{Index, IndexHistory, PullLimits, ReadStep, Shard, ShardId, StoreHome, StoreLayout, StoreOptions};
use sys::disk::Disk;
use sys::real_disk::RealDisk;
use tempfile::TempDir;

use crate::frames::{NOW_MS, PROPERTIES, TOPIC};
use crate::messages::record;
use crate::{Case, Operation};

/// Records of a turn or of a long batch.
const MANY: usize = 64;
/// Times between two turns.
const TURN_US: u64 = 50;
/// Calls of one instance that writes: 8 MB in all.
const WRITING_CALLS: u32 = 100;
/// The time of the first turn.
pub const START: Now = Now { mono_us: 1_000_000, wall_ms: NOW_MS };

pub fn cases() -> Vec<Case> {
    vec![
        Case { name: "store: append 64 records in a turn", calls: WRITING_CALLS, make: || appended(false) },
        Case { name: "store: append a batch of 64 records", calls: WRITING_CALLS, make: || appended(true) },
        Case::pure("store: pull 32 records that are in memory", pulled),
        Case::pure("store: put a record's keys into the index", keys_put),
    ]
}

/// The options of a store that stays small.
pub fn options() -> StoreOptions {
    StoreOptions { segment_size_bytes: 64 << 20, ..StoreOptions::default() }
}

/// A store with one shard in a folder of its own.
struct Rig {
    shard: Shard,
    now: Now,
    _home: StoreHome,
    _folder: TempDir,
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let home = StoreHome::open(disk.clone(), folder.path(), &options(), Some(1), 1).expect("a store");
        let (shard, _) = Shard::open(disk, &home, ShardId(0), options(), START).expect("a shard");
        Self { shard, now: START, _home: home, _folder: folder }
    }

    /// The end of a turn, as the broker has it.
    fn turn(&mut self) {
        self.shard.write_staged(self.now).expect("a write");
        self.shard.tick(self.now);
        self.shard.newly_visible(&mut |visible| {
            black_box(visible);
        });
        // Nobody carries out what is for later, such as making the next file ready.
        drop(self.shard.take_commands());
        self.now.mono_us += TURN_US;
    }
}

fn appended(as_batch: bool) -> Operation {
    let mut rig = Rig::new();
    Box::new(move || {
        let records: [RecordFields<'_>; MANY] = std::array::from_fn(|_| record(text()));
        let size = if as_batch { MANY } else { 1 };
        for records in black_box(&records).chunks(size) {
            black_box(rig.shard.append(rig.now, records).expect("an append"));
        }
        rig.turn();
    })
}

fn text() -> PropertiesSource<'static> {
    PropertiesSource::Text(PROPERTIES.as_bytes())
}

fn pulled() -> Operation {
    let mut rig = Rig::new();
    for _ in 0..MANY {
        rig.shard.append(rig.now, &[record(text())]).expect("an append");
    }
    rig.turn();
    Box::new(move || {
        let topic = black_box(TOPIC.as_bytes());
        let step = rig.shard.pull(topic, 3, QueueOffset(7), PullLimits::count(32), &mut |tag| black_box(tag) != 0);
        let ReadStep::Ready(pulled) = step else { panic!("the records are in memory") };
        assert_eq!(pulled.count, 32);
        black_box(&pulled);
    })
}

fn keys_put() -> Operation {
    // Nothing of it reaches the disk: items stay in memory until a tick.
    let layout = StoreLayout::new(Path::new("/nowhere")).shard(ShardId(0));
    let index = Index::open(&RealDisk, &layout, ShardId(0), &options(), IndexHistory::Clean, None);
    let (mut index, mut at) = (index.expect("an empty index"), 0);
    let source = text();
    Box::new(move || {
        let offset = PhysicalOffset(at);
        let keys = RecordKeys::of(black_box(&source));
        keys.hashes(black_box(TOPIC.as_bytes()), 0, &mut |hash| index.put(hash, offset, NOW_MS));
        at += 300;
    })
}
