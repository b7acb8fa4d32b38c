//! What of the services outlives the process.
//!
//! Owner of `shards/progress-<shard>.json`, and the reader of what a Java broker left. Invariants: a file names the end of the
//! log that it belongs to and is written only when the log is durable up to there; records behind that end are walked through
//! at start, and those that were made from a waiting record tell that it was delivered ([`Found::delivered`]). So a crash of the
//! process, or a power cut, neither loses nor doubles a delivery within a shard.

use crate::owner::delay_offsets;
use crate::owner::version::DataVersion;
use crate::services::{pop, schedule, timer, transaction};
use hashbrown::HashSet;
use message::{PhysicalOffset, sys_flag};
use remoting::Json;
use remoting::json::{JsonRef, Key};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use store::{ConfigDir, Shard, ShardId, StoreHome};

/// What the services of one shard save.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Progress {
    /// End of the shard's log when this was true.
    pub log_end: u64,
    /// Delay levels.
    pub schedule: schedule::ScheduleProgress,
    /// Timers.
    pub timer: timer::TimerProgress,
    /// Half messages.
    pub transaction: transaction::TransactionProgress,
    /// POP.
    pub pop: pop::PopProgress,
}

/// What a service starts from.
#[derive(Debug, Default)]
pub struct Found {
    /// Its own progress; `None` in a store that RingMQ has not served messages of this kind from yet.
    pub progress: Option<Progress>,
    /// What Java's files say.
    pub java: JavaProgress,
    /// Physical offsets of waiting records from which others were made behind `progress`'s end of the log.
    pub delivered: HashSet<u64>,
}

/// What a Java broker (or a RingMQ broker, for it) left in `config/`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JavaProgress {
    /// `delayOffset.json`: level (1..) to the next offset of its queue.
    pub delay: BTreeMap<u32, u64>,
    /// `consumerOffset.json`: queue to next offset, by `topic@group`, of the groups that are the broker's own.
    pub system_offsets: BTreeMap<String, BTreeMap<u32, u64>>,
    /// `consumerOrderInfo.json`: ordered POP queues.
    pub order_info: Option<Vec<u8>>,
    /// `timercheck`.
    pub timer: Option<JavaTimer>,
}

/// How far a Java broker's timers had got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JavaTimer {
    /// Ticks before this time are delivered, ms since 1970.
    pub read_ms: i64,
    /// Entries of the queue below this offset were taken up.
    pub queue_offset: u64,
}

/// The files of all shards' services.
#[derive(Clone)]
pub struct ProgressFiles {
    own: ConfigDir,
    java: ConfigDir,
    /// A Java broker may open the store again: it has one shard.
    for_java: bool,
}

impl ProgressFiles {
    /// The files of a store.
    pub fn new(home: &StoreHome) -> Self {
        Self { own: home.shards_config(), java: home.config(), for_java: home.shards() == 1 }
    }

    /// What a shard's services start from; walks through the log behind the saved end.
    ///
    /// # Errors
    /// The disk's. A damaged file of our own counts as missing: the log and Java's files still say nearly everything.
    pub fn find(&self, shard: &Shard) -> io::Result<Found> {
        let name = file_name(shard.id());
        let bytes = match self.own.read(&name, &|bytes| serde_json::from_slice::<Progress>(bytes).is_ok()) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!(file = name, %error, "deliveries of the last moment may come twice");
                None
            }
            other => other?,
        };
        let progress: Option<Progress> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let mut delivered = HashSet::new();
        if let Some(progress) = &progress {
            shard.walk(PhysicalOffset(progress.log_end), &mut |record| {
                // Only a commit can name the very first record of the store by 0.
                let commit = sys_flag::transaction(record.sys_flag()) == sys_flag::TRANSACTION_COMMIT;
                match record.prepared_transaction_offset() {
                    0 if commit => delivered.extend([0]),
                    mark => delivered.extend(source_of(mark)),
                }
            })?;
        }
        Ok(Found { progress, java: self.java_progress()?, delivered })
    }

    /// Writes a shard's progress; durable when it returns. Errors: the disk's.
    pub fn write(&self, shard: ShardId, progress: &Progress) -> io::Result<()> {
        let bytes = serde_json::to_vec(progress).expect("progress is always JSON");
        self.own.write(&file_name(shard), &bytes)
    }

    /// Writes what a Java broker reads of ordered POP queues, of a store that it may open.
    ///
    /// # Errors
    /// The disk's.
    pub fn write_order(&self, table: Vec<(String, u32, Json)>) -> io::Result<()> {
        const NAME: &str = "consumerOrderInfo.json";
        if !self.for_java || (table.is_empty() && self.read_java(NAME)?.is_none()) {
            return Ok(());
        }
        let mut by_key: BTreeMap<String, Vec<(Key, Json)>> = BTreeMap::new();
        for (key, queue_id, info) in table {
            by_key.entry(key).or_default().push((Key::Int(queue_id.into()), info));
        }
        let table = by_key.into_iter().map(|(key, queues)| (Key::from(key), Json::Object(queues))).collect();
        self.java.write(NAME, &Json::bean([("table", Json::Object(table))]).to_pretty())
    }

    fn java_progress(&self) -> io::Result<JavaProgress> {
        let mut found = JavaProgress::default();
        if let Some(bytes) = self.read_java("delayOffset.json")? {
            let json = JsonRef::parse(&bytes).map_err(|error| io::Error::other(error.to_string()))?;
            found.delay = numbers(&json.get("offsetTable"));
        }
        if let Some(bytes) = self.read_java("consumerOffset.json")? {
            let json = JsonRef::parse(&bytes).map_err(|error| io::Error::other(error.to_string()))?;
            for (key, table) in json.get("offsetTable").entries() {
                let key = key.string();
                if let Some((_, group)) = key.split_once('@')
                    && message::names::is_system_group(group.as_bytes())
                {
                    found.system_offsets.insert(key, numbers(&table));
                }
            }
        }
        found.order_info = self.read_java("consumerOrderInfo.json")?;
        let timer = self.java.read("timercheck", &|bytes| bytes.len() >= 24);
        if let Ok(Some(bytes)) = timer {
            let number = |at: usize| i64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
            let queue_offset = u64::try_from(number(16)).unwrap_or(0);
            found.timer = Some(JavaTimer { read_ms: number(0), queue_offset });
        }
        Ok(found)
    }

    fn read_java(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match self.java.read(name, &|bytes| JsonRef::parse(bytes).is_ok()) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
            other => other,
        }
    }
}

/// Leaves a store that was closed in order to a Java broker, or to tools: writes `delayOffset.json` and, where there is one
/// shard, `timercheck`, from what the shards have saved. Java takes the timers up again from the first that is not delivered;
/// what its wheel held before is forgotten, or it would deliver that twice. `now_ms` is the wall clock.
///
/// # Errors
/// The disk's.
pub fn hand_back(home: &StoreHome, precision_ms: i64, now_ms: i64) -> io::Result<()> {
    let (own, java) = (home.shards_config(), home.config());
    let mut delivered = BTreeMap::new();
    for shard in (0..home.shards()).map(ShardId) {
        let valid = |bytes: &[u8]| serde_json::from_slice::<Progress>(bytes).is_ok();
        let Some(bytes) = own.read(&file_name(shard), &valid)? else { continue };
        let Ok(progress) = serde_json::from_slice::<Progress>(&bytes) else { continue };
        delivered.extend(progress.schedule.delivered);
        if home.shards() == 1 {
            let low = progress.timer.done.low.cast_signed();
            let read_ms = now_ms.div_euclid(precision_ms) * precision_ms;
            // Read time, position in the timers' log, queue offset, queue offset of the master; then the version.
            let numbers = [read_ms, 0, low, low, 0, now_ms, 1];
            let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
            bytes.resize(TIMER_CHECK_BYTES, 0);
            home.forget_java_timers()?;
            java.write("timercheck", &bytes)?;
        }
    }
    let mut version = DataVersion::default();
    version.next(now_ms);
    java.write("delayOffset.json", &delay_offsets::to_json(&delivered, version).to_pretty())
}

/// Size of Java's `timercheck`: a page.
const TIMER_CHECK_BYTES: usize = 4096;

/// What the record made from a waiting one has in its field "prepared transaction offset": that one's physical offset. The
/// very first record of a store lies at 0, which means none there: -1 stands for it.
#[must_use]
pub fn source_mark(waiting: PhysicalOffset) -> i64 {
    if waiting.0 == 0 { -1 } else { waiting.to_i64() }
}

/// The waiting record that a record was made from.
fn source_of(mark: i64) -> Option<u64> {
    match mark {
        -1 => Some(0),
        mark => u64::try_from(mark).ok().filter(|&offset| offset > 0),
    }
}

fn file_name(shard: ShardId) -> String {
    format!("progress-{}.json", shard.0)
}

fn numbers(table: &JsonRef<'_>) -> BTreeMap<u32, u64> {
    let pairs = table
        .entries()
        .filter_map(|(key, value)| Some((key.as_i64()?.try_into().ok()?, value.as_i64()?.try_into().ok()?)));
    pairs.collect()
}
