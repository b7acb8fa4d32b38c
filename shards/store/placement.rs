//! Which shard holds a queue.
//!
//! Owner of `shards/placement.json` (FORMAT.md §3). Invariants: the shard of a queue id never changes once it was written
//! down, also when shards are added; a topic without an entry lies in shard 0, as everything of a Java store does; system
//! topics are placed by the width of their queues and need no entry. Pure but for [`Placement::load`] and
//! [`Placement::store`]. It does not know which queues exist.

use std::collections::BTreeMap;
use std::io;

use message::names;
use serde::{Deserialize, Serialize};

use crate::config_file::ConfigDir;
use crate::layout::{MAX_SHARDS, ShardId};
use crate::manifest::SystemQueues;

/// Name of the file under `shards/`.
pub(crate) const PLACEMENT_FILE: &str = "placement.json";

/// Where queues from some id on lie: queue `q` in shard `(base + q) mod shards`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementRule {
    /// First queue id that the rule is for; it reaches to the next rule.
    pub from_queue_id: u32,
    /// Shards over which its queues are spread: 1 to 64.
    pub shards: u16,
    /// A number of the topic, so that topics with one queue do not all lie in shard 0. 0 to 63.
    pub base: u16,
}

/// The place of a topic's queues.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicPlacement {
    /// Queues 0 to `covered` - 1 are placed for good; later ones get a rule when they are made.
    covered: u32,
    /// By `from_queue_id`, ascending, the first with 0.
    rules: Vec<PlacementRule>,
}

/// The places of all topics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    shards: u16,
    system: SystemQueues,
    topics: BTreeMap<String, TopicPlacement>,
}

/// The file's form.
#[derive(Serialize, Deserialize)]
struct File {
    topics: BTreeMap<String, TopicPlacement>,
}

impl TopicPlacement {
    /// The shard of a queue.
    #[must_use]
    pub fn shard_of(&self, queue_id: u32) -> ShardId {
        let rule = self.rules.iter().rev().find(|rule| rule.from_queue_id <= queue_id);
        rule.map_or(ShardId(0), |rule| {
            ShardId(((u64::from(rule.base) + u64::from(queue_id)) % u64::from(rule.shards)) as u16)
        })
    }

    /// Queues that the topic ever had: ids below have a place.
    #[must_use]
    pub fn covered(&self) -> u32 {
        self.covered
    }

    /// The rules, by first queue id.
    #[must_use]
    pub fn rules(&self) -> &[PlacementRule] {
        &self.rules
    }

    /// Places the queues up to `queues` - 1 that have no place yet, over `shards` shards. Returns whether anything
    /// changed.
    fn grow(&mut self, queues: u32, shards: u16, base: u16) -> bool {
        if queues <= self.covered {
            return false;
        }
        let next = PlacementRule { from_queue_id: self.covered, shards, base };
        let same = self.rules.last().is_some_and(|last| (last.shards, last.base) == (shards, base));
        if !same {
            self.rules.push(next);
        }
        self.covered = queues;
        true
    }

    fn is_sound(&self) -> bool {
        let first = self.rules.first().is_some_and(|rule| rule.from_queue_id == 0);
        let rising = self.rules.windows(2).all(|pair| pair[0].from_queue_id < pair[1].from_queue_id);
        first
            && rising
            && self.rules.iter().all(|rule| (1..=MAX_SHARDS).contains(&rule.shards) && rule.base < MAX_SHARDS)
    }
}

impl Placement {
    /// The placement of a store that has no file of it: everything in shard 0.
    #[must_use]
    pub fn new(shards: u16, system: SystemQueues) -> Self {
        Self { shards, system, topics: BTreeMap::new() }
    }

    /// Reads the file in `dir` (the store's `shards/`). Errors: the disk's, and `InvalidData` for a damaged file: a
    /// guessed place would hide messages.
    pub fn load(dir: &ConfigDir, shards: u16, system: SystemQueues) -> io::Result<Self> {
        let bytes = dir.read(PLACEMENT_FILE, &|bytes| Self::parse(bytes, shards, system).is_some())?;
        Ok(bytes.and_then(|bytes| Self::parse(&bytes, shards, system)).unwrap_or_else(|| Self::new(shards, system)))
    }

    /// Reads the content of the file; `None` when it is damaged.
    #[must_use]
    pub fn parse(bytes: &[u8], shards: u16, system: SystemQueues) -> Option<Self> {
        let file: File = serde_json::from_slice(bytes).ok()?;
        let sound = file.topics.values().all(TopicPlacement::is_sound);
        sound.then_some(Self { shards, system, topics: file.topics })
    }

    /// The bytes of the file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(&File { topics: self.topics.clone() }).expect("a placement is always JSON")
    }

    /// Writes the file; durable when it returns. Before the first append to a queue that [`Placement::grow`] placed.
    pub fn store(&self, dir: &ConfigDir) -> io::Result<()> {
        dir.write(PLACEMENT_FILE, &self.encode())
    }

    /// Shards of the store.
    #[must_use]
    pub fn shards(&self) -> u16 {
        self.shards
    }

    /// The shard of a queue.
    #[must_use]
    pub fn shard_of(&self, topic: &str, queue_id: u32) -> ShardId {
        if self.shards == 1 {
            return ShardId(0);
        }
        if let Some(width) = self.system_width(topic) {
            let shard = u16::try_from(queue_id / width).unwrap_or(0);
            return ShardId(if shard < self.shards { shard } else { 0 });
        }
        self.topics.get(topic).map_or(ShardId(0), |placement| placement.shard_of(queue_id))
    }

    /// The entry of a topic, for a snapshot; `None`: all its queues lie in shard 0.
    #[must_use]
    pub fn topic(&self, topic: &str) -> Option<&TopicPlacement> {
        self.topics.get(topic)
    }

    /// Queues of a system topic that belong to each shard; `None` for ordinary topics.
    #[must_use]
    pub fn system_width(&self, topic: &str) -> Option<u32> {
        match topic.as_bytes() {
            names::HALF_TOPIC => Some(self.system.half),
            names::OP_HALF_TOPIC => Some(self.system.op),
            names::TIMER_TOPIC => Some(self.system.timer),
            names::SCHEDULE_TOPIC => Some(self.system.schedule),
            name if name.starts_with(names::REVIVE_TOPIC_PREFIX) => Some(self.system.revive),
            _ => None,
        }
    }

    /// Places the queues of a topic up to `queues` - 1 (the larger of its read and write queues) that have no place yet.
    /// `present` is how many queues the topic already had: those without an entry stay in shard 0. Returns whether
    /// the file must be written.
    pub fn grow(&mut self, topic: &str, present: u32, queues: u32) -> bool {
        if self.shards == 1 || self.system_width(topic).is_some() {
            return false;
        }
        let base = base_of(topic);
        match self.topics.get_mut(topic) {
            Some(placement) => placement.grow(queues, self.shards, base),
            None if queues == 0 => false,
            None => {
                let mut placement = TopicPlacement::default();
                placement.grow(present, 1, 0);
                placement.grow(queues, self.shards, base);
                self.topics.insert(topic.to_owned(), placement);
                true
            }
        }
    }

    /// Forgets a deleted topic. Returns whether the file must be written.
    pub fn remove(&mut self, topic: &str) -> bool {
        self.topics.remove(topic).is_some()
    }

    /// Before shards are added: the queues that a topic without an entry has now stay where they are, in shard 0.
    pub(crate) fn pin(&mut self, topic: &str, present: u32) {
        if present > 0 && self.system_width(topic).is_none() {
            let placement = self.topics.entry(topic.to_owned()).or_default();
            if placement.rules.is_empty() {
                placement.grow(present, 1, 0);
            }
        }
    }
}

/// A number of the topic below 64 that never changes (FNV-1a over the name, folded).
fn base_of(topic: &str) -> u16 {
    let hash = topic.bytes().fold(0x811C_9DC5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    ((hash ^ (hash >> 16)) % u32::from(MAX_SHARDS)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(shards: u16) -> Placement {
        Placement::new(shards, SystemQueues::default())
    }

    fn shards_of(placement: &Placement, topic: &str, queues: u32) -> Vec<u16> {
        (0..queues).map(|queue| placement.shard_of(topic, queue).0).collect()
    }

    #[test]
    fn queues_alternate_and_single_queues_spread() {
        let mut placement = placed(2);
        let mut singles = [0, 0];
        for number in 0..100 {
            let topic = format!("topic-{number}");
            assert!(placement.grow(&topic, 0, 1));
            singles[placement.shard_of(&topic, 0).index()] += 1;
        }
        assert!(singles[0] > 30 && singles[1] > 30, "{singles:?}");
        placement.grow("wide", 0, 64);
        assert_eq!(shards_of(&placement, "wide", 64).iter().filter(|&&shard| shard == 1).count(), 32);
    }

    #[test]
    fn adding_shards_moves_nothing() {
        let mut one = placed(1);
        assert!(!one.grow("old", 0, 4), "one shard needs no file");
        one.pin("old", 4);
        let mut two = Placement { shards: 2, ..one };
        assert!(two.grow("old", 4, 8));
        assert_eq!(shards_of(&two, "old", 4), [0; 4]);
        let before = shards_of(&two, "old", 8);
        assert!(before[4..].contains(&1) && before[4..].contains(&0));
        let mut three = Placement { shards: 3, ..two };
        assert!(!three.grow("old", 8, 8));
        assert!(three.grow("old", 8, 14));
        assert_eq!(shards_of(&three, "old", 8), before);
        assert!(shards_of(&three, "old", 14)[8..].contains(&2));
    }

    #[test]
    fn queues_made_before_the_file_existed_stay() {
        let mut two = placed(2);
        assert!(two.grow("java", 4, 6));
        assert_eq!(shards_of(&two, "java", 4), [0; 4]);
        assert_eq!(two.shard_of("unknown", 7), ShardId(0));
    }

    #[test]
    fn system_queues_name_their_shard() {
        let mut two = placed(2);
        assert!(!two.grow("SCHEDULE_TOPIC_XXXX", 0, 36));
        assert_eq!(two.shard_of("SCHEDULE_TOPIC_XXXX", 17), ShardId(0));
        assert_eq!(two.shard_of("SCHEDULE_TOPIC_XXXX", 18), ShardId(1));
        assert_eq!(two.shard_of("RMQ_SYS_TRANS_HALF_TOPIC", 1), ShardId(1));
        assert_eq!(two.shard_of("rmq_sys_REVIVE_LOG_c", 8), ShardId(1));
        assert_eq!(two.shard_of("rmq_sys_REVIVE_LOG_c", u32::MAX), ShardId(0), "no such shard");
    }

    #[test]
    fn reads_what_it_wrote_and_refuses_nonsense() {
        let mut two = placed(2);
        two.grow("a", 2, 5);
        let system = SystemQueues::default();
        assert_eq!(Placement::parse(&two.encode(), 2, system), Some(two));
        for bad in [
            "",
            "{}",
            r#"{"topics":{"a":{"covered":1,"rules":[]}}}"#,
            r#"{"topics":{"a":{"covered":1,"rules":[{"fromQueueId":0,"shards":0,"base":0}]}}}"#,
            r#"{"topics":{"a":{"covered":1,"rules":[{"fromQueueId":1,"shards":1,"base":0}]}}}"#,
        ] {
            assert_eq!(Placement::parse(bad.as_bytes(), 2, system), None, "{bad}");
        }
    }
}
