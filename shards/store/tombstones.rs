//! Deleted topics: up to which offset of each shard a topic's records are gone.
//!
//! Owner of `shards/tombstones.json` (FORMAT.md §4). Invariants: a tombstone is durable before the deletion is answered;
//! recovery, dispatch and the rebuild of an index ignore a topic's records below it, so that a topic made anew under the
//! name starts empty. Shared by all shards of the process; looked at only where old records are read again. It does not
//! remove any file of a topic.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use message::PhysicalOffset;
use serde::{Deserialize, Serialize};

use crate::config_file::ConfigDir;
use crate::layout::{SHARD_SPAN, ShardId};

/// Name of the file under `shards/`.
pub(crate) const TOMBSTONES_FILE: &str = "tombstones.json";

/// The tombstones of a store.
pub struct Tombstones {
    dir: ConfigDir,
    topics: Mutex<Table>,
}

/// Topic → shard → end of the shard's log when the topic was deleted.
type Table = BTreeMap<String, BTreeMap<u16, u64>>;

/// The file's form.
#[derive(Serialize, Deserialize)]
struct File {
    topics: Table,
}

impl Tombstones {
    /// Reads the file in `dir` (the store's `shards/`). Errors: the disk's, and `InvalidData` for a damaged file: deleted
    /// messages would come back.
    pub fn load(dir: ConfigDir) -> io::Result<Self> {
        let bytes = dir.read(TOMBSTONES_FILE, &|bytes| parse(bytes).is_some())?;
        let topics = bytes.and_then(|bytes| parse(&bytes)).unwrap_or_default();
        Ok(Self { dir, topics: Mutex::new(topics) })
    }

    /// Whether the record of `topic` that starts at `offset` belongs to a deletion of the topic.
    #[must_use]
    pub fn covers(&self, topic: &[u8], offset: PhysicalOffset) -> bool {
        let topics = self.table();
        if topics.is_empty() {
            return false;
        }
        let Ok(topic) = std::str::from_utf8(topic) else { return false };
        let (shard, ends) = ((offset.0 / SHARD_SPAN) as u16, topics.get(topic));
        ends.and_then(|ends| ends.get(&shard)).is_some_and(|&end| offset.0 < end)
    }

    /// Where the topic was deleted up to in this shard's log; `None` when it never was.
    #[must_use]
    pub fn end(&self, topic: &str, shard: ShardId) -> Option<PhysicalOffset> {
        self.table().get(topic).and_then(|ends| ends.get(&shard.0)).copied().map(PhysicalOffset)
    }

    /// The deleted topics.
    #[must_use]
    pub fn topics(&self) -> Vec<String> {
        self.table().keys().cloned().collect()
    }

    /// Records that a topic is deleted up to the end of each shard's log. `ends` holds one offset for each shard. Durable
    /// when it returns; after an error nothing is changed.
    pub fn add(&self, topic: &str, ends: &[PhysicalOffset]) -> io::Result<()> {
        let mut topics = self.table();
        let mut next = topics.clone();
        let entry = next.entry(topic.to_owned()).or_default();
        for end in ends {
            // An end lies in the span of its shard: a log is never so long that it reaches the next one's start.
            let known = entry.entry((end.0 / SHARD_SPAN) as u16).or_default();
            *known = (*known).max(end.0);
        }
        self.dir.write(TOMBSTONES_FILE, &encode(&next))?;
        *topics = next;
        Ok(())
    }

    /// Drops what no record can meet any more: `min_offsets` holds the first offset of each shard's log. Writes the file
    /// only when something went.
    pub fn forget_below(&self, min_offsets: &[PhysicalOffset]) -> io::Result<()> {
        let mut topics = self.table();
        let mut next = topics.clone();
        for ends in next.values_mut() {
            ends.retain(|&shard, &mut end| min_offsets.get(usize::from(shard)).is_none_or(|min| end > min.0));
        }
        next.retain(|_, ends| !ends.is_empty());
        if next != *topics {
            self.dir.write(TOMBSTONES_FILE, &encode(&next))?;
            *topics = next;
        }
        Ok(())
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // A panic elsewhere cannot leave the table half changed: it is replaced whole.
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the content of the file; `None` when it is damaged.
pub(crate) fn parse(bytes: &[u8]) -> Option<Table> {
    let file: File = serde_json::from_slice(bytes).ok()?;
    let in_span = |(&shard, &end): (&u16, &u64)| end / SHARD_SPAN == u64::from(shard);
    file.topics.values().all(|ends| ends.iter().all(in_span)).then_some(file.topics)
}

fn encode(topics: &Table) -> Vec<u8> {
    serde_json::to_vec(&File { topics: topics.clone() }).expect("tombstones are always JSON")
}
