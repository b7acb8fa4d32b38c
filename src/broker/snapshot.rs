//! What every core knows about the broker: topics with the place of their queues, groups, the subscriptions of connected consumers,
//! pending server-side offset resets and the settings that may change while running.
//!
//! A snapshot is immutable and shared by `Arc`; only the metadata owner on core 0 makes new ones. Its tables are copied on write in
//! buckets, so that publishing one more topic costs the same with ten topics and with eighty thousand. A snapshot never holds a topic
//! or group whose file is not on disk yet.

use crate::config::{DelayRules, LiveSettings};
use crate::filter::Expression;
use hashbrown::HashTable;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use store::ShardId;
use store::light_queues;
use store::placement::TopicPlacement;

/// Number of buckets of a table: what one change copies is 1/256 of the table.
const BUCKETS: usize = 256;

/// The state of the broker that every core holds, see the head of the file.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Grows by one with each snapshot; 1 is the one made at start.
    pub version: u64,
    /// By topic name.
    pub topics: Table<Topic>,
    /// By group name.
    pub groups: Table<Group>,
    /// What the connected consumers of a group subscribe to, by group name.
    pub consumers: Table<GroupConsumers>,
    /// Pending server-side resets by `topic@group`.
    pub resets: Table<Resets>,
    /// What groups may not do with topics; nearly always empty.
    pub forbidden: Arc<Forbidden>,
    /// Settings that may change while running.
    pub settings: Arc<LiveSettings>,
    /// What delayed and timed messages follow.
    pub delays: Arc<DelayRules>,
    /// Topics that are being deleted: a send that another core let through before it knew is refused by the queue's core.
    pub deleting: Arc<[Arc<str>]>,
    /// There are light queues: topics and groups of their names need not be made.
    pub light_queues: bool,
}

/// A topic as the cores need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Its name.
    pub name: Arc<str>,
    /// Queues that consumers read: ids below this number.
    pub read_queues: u32,
    /// Queues that producers write: ids below this number.
    pub write_queues: u32,
    /// Bits: 8 priority, 4 read, 2 write, 1 inherit.
    pub perm: u32,
    /// Bits: 1 unit, 2 unit subscription. Free for clients.
    pub sys_flag: i32,
    /// Whether messages carry several tags (`MULTI_TAG`).
    pub multi_tag: bool,
    /// Whether the topic was declared ordered.
    pub order: bool,
    /// Attributes without their sign, for example `message.type` = `FIFO`.
    pub attributes: BTreeMap<String, String>,
    /// Where its queues live.
    pub places: QueuePlaces,
}

/// Where the queues of a topic live.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum QueuePlaces {
    /// All in shard 0.
    #[default]
    First,
    /// By the rules that were written down when they were made.
    Rules(TopicPlacement),
    /// System topic: each shard owns `width` consecutive queues.
    System {
        /// Queues of each shard.
        width: u32,
        /// Shards of the store.
        shards: u16,
    },
}

/// Permission bit: consumers may read.
pub const PERM_READ: u32 = 4;
/// Permission bit: producers may write.
pub const PERM_WRITE: u32 = 2;
/// Permission bit: new topics may be made after this one's example.
pub const PERM_INHERIT: u32 = 1;

impl Topic {
    /// What a light queue has for a topic: one queue that everybody may use. `None`: no light queue has this name.
    pub fn light(name: &[u8]) -> Option<Self> {
        Some(Self {
            name: light_name(name)?.into(),
            read_queues: 1,
            write_queues: 1,
            perm: PERM_READ | PERM_WRITE,
            sys_flag: 0,
            multi_tag: false,
            order: false,
            attributes: BTreeMap::new(),
            places: QueuePlaces::First,
        })
    }

    /// Whether consumers may read.
    pub fn readable(&self) -> bool {
        self.perm & PERM_READ != 0
    }

    /// Whether producers may write.
    pub fn writable(&self) -> bool {
        self.perm & PERM_WRITE != 0
    }

    /// One more than the largest queue id that is valid for any request.
    pub fn queues(&self) -> u32 {
        self.read_queues.max(self.write_queues)
    }

    /// Every shard that holds a queue of the topic, or held one that it does not have any more.
    pub fn shards(&self) -> std::collections::BTreeSet<ShardId> {
        let queues = match &self.places {
            QueuePlaces::Rules(rules) => self.queues().max(rules.covered()),
            QueuePlaces::First | QueuePlaces::System { .. } => self.queues(),
        };
        (0..queues.max(1)).map(|queue_id| self.shard_of(queue_id)).collect()
    }

    /// The shard that holds a queue.
    pub fn shard_of(&self, queue_id: u32) -> ShardId {
        match &self.places {
            QueuePlaces::First => ShardId(0),
            QueuePlaces::Rules(rules) => rules.shard_of(queue_id),
            QueuePlaces::System { width, shards } => {
                let shard = queue_id / width.max(&1);
                ShardId(if shard < u32::from(*shards) { shard as u16 } else { 0 })
            }
        }
    }
}

/// A consumer group's settings, the fields of Java's `SubscriptionGroupConfig`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: Arc<str>,
    /// Whether its members may pull.
    pub consume_enable: bool,
    /// Whether a new group may start from the smallest offset.
    pub consume_from_min_enable: bool,
    /// Whether its members may broadcast.
    pub consume_broadcast_enable: bool,
    /// Whether the group consumes in order.
    pub consume_message_orderly: bool,
    /// Queues of its retry topic.
    pub retry_queues: u32,
    /// Tries before a message goes to the dead letter topic.
    pub retry_max_times: i32,
    /// Broker id that is suggested to readers.
    pub broker_id: i64,
    /// Broker id that is suggested to readers far behind.
    pub which_broker_when_consume_slowly: i64,
    /// Whether members are told of changes of membership.
    pub notify_consumer_ids_changed: bool,
    /// Free bits, told to clients.
    pub sys_flag: i32,
    /// Minutes after which a message counts as stuck at a client.
    pub consume_timeout_minutes: i32,
    /// Java's `groupRetryPolicy`, kept as the JSON text it came in.
    pub retry_policy: Arc<str>,
    /// Java's `subscriptionDataSet` (what the group may subscribe to), kept as JSON text; absent for nearly every group.
    pub subscription_data_set: Option<Arc<str>>,
    /// Attributes without their sign.
    pub attributes: BTreeMap<String, String>,
}

/// How a group divides messages among its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageModel {
    /// Each member gets all.
    Broadcasting,
    /// Members share.
    Clustering,
}

/// What the connected members of one group subscribe to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConsumers {
    /// How messages are divided.
    pub model: MessageModel,
    /// By topic; a topic is here as long as any member names it.
    pub subscriptions: BTreeMap<Arc<str>, Arc<Subscription>>,
}

impl GroupConsumers {
    /// The subscription to a topic, `None` when no member names it.
    pub fn subscription(&self, topic: &[u8]) -> Option<&Arc<Subscription>> {
        self.subscriptions.get(std::str::from_utf8(topic).ok()?)
    }
}

/// A compiled SQL92 expression of a group for a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertyFilter {
    /// The expression.
    pub expression: Arc<Expression>,
    /// The client's version of it.
    pub version: i64,
}

/// One subscription of a heartbeat, Java's `SubscriptionData`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// The topic.
    pub topic: Arc<str>,
    /// The text as the client wrote it: `*`, `A || B`, or an SQL92 expression.
    pub expression: Arc<str>,
    /// `TAG` or `SQL92`.
    pub expression_type: Arc<str>,
    /// The client's version of it, usually a time in ms.
    pub version: i64,
    /// Java hashes of the tags, sorted.
    pub codes: Vec<i32>,
    /// The tags, sorted.
    pub tags: Vec<Arc<str>>,
    /// Old filter server mode: messages are not filtered here.
    pub class_filter_mode: bool,
    /// What the group has registered for an SQL92 expression; `None` for tags, and when it could not be compiled.
    pub filter: Option<PropertyFilter>,
}

/// Resets of one topic and group that pulls have not met yet, by queue id. See [`PendingReset`].
pub type Resets = BTreeMap<u32, PendingReset>;

/// A server-side reset of one queue for one group. The core that executes the queue's pulls answers the first pull with
/// PULL_OFFSET_MOVED and `offset`, remembers `id` until a snapshot without it arrives, and tells the owner (`OwnerRequest::ResetTaken`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingReset {
    /// Unique for the life of the process.
    pub id: u64,
    /// Where the group is to go on.
    pub offset: i64,
}

/// What groups may not do: by group and topic, bits as in permissions.
pub type Forbidden = BTreeMap<String, BTreeMap<String, i32>>;

/// Bit of [`Forbidden`]: the group may not read the topic.
pub const FORBIDDEN_READ: i32 = PERM_READ as i32;

/// Whether a group may read a topic, as far as nobody forbade it.
pub fn is_readable(forbidden: &Forbidden, group: &str, topic: &str) -> bool {
    let bits = forbidden.get(group).and_then(|topics| topics.get(topic));
    bits.is_none_or(|bits| bits & FORBIDDEN_READ == 0)
}

/// The key of `Snapshot::resets` and of Java's offset tables.
pub fn topic_at_group(topic: &str, group: &str) -> String {
    format!("{topic}@{group}")
}

impl Snapshot {
    /// What a core knows before the owner's first snapshot: nothing. Version 0.
    pub fn empty() -> Self {
        Self {
            version: 0,
            topics: Table::default(),
            groups: Table::default(),
            consumers: Table::default(),
            resets: Table::default(),
            forbidden: Arc::default(),
            settings: Arc::new(LiveSettings::default()),
            delays: Arc::default(),
            deleting: Arc::default(),
            light_queues: false,
        }
    }

    /// The topic of this name.
    pub fn topic(&self, name: &[u8]) -> Option<&Arc<Topic>> {
        self.topics.get(name)
    }

    /// The group of this name.
    pub fn group(&self, name: &[u8]) -> Option<&Arc<Group>> {
        self.groups.get(name)
    }

    /// The topic of this name; a light queue has one without being made.
    pub fn topic_or_light(&self, name: &[u8]) -> Option<Cow<'_, Arc<Topic>>> {
        let light = || self.light_topic(name).map(|topic| Cow::Owned(Arc::new(topic)));
        self.topic(name).map(Cow::Borrowed).or_else(light)
    }

    /// The group of this name; one named like a light queue has Java's defaults without being made.
    pub fn group_or_light(&self, name: &[u8]) -> Option<Cow<'_, Arc<Group>>> {
        let light = || {
            let name = light_name(name).filter(|_| self.light_queues)?;
            Some(Cow::Owned(Arc::new(Group::named(name))))
        };
        self.group(name).map(Cow::Borrowed).or_else(light)
    }

    /// What a light queue has for a topic.
    pub fn light_topic(&self, name: &[u8]) -> Option<Topic> {
        if self.light_queues { Topic::light(name) } else { None }
    }

    /// The pending reset of a queue for a group. Costs nothing while no reset is pending.
    pub fn pending_reset(&self, topic: &[u8], group: &[u8], queue_id: u32) -> Option<PendingReset> {
        if self.resets.is_empty() {
            return None;
        }
        let mut key = Vec::with_capacity(topic.len() + 1 + group.len());
        key.extend_from_slice(topic);
        key.push(b'@');
        key.extend_from_slice(group);
        self.resets.get(&key)?.get(&queue_id).copied()
    }
}

/// A name as light queues (and their readers' groups) have it.
pub fn light_name(name: &[u8]) -> Option<&str> {
    light_queues::check_name(name).ok()?;
    std::str::from_utf8(name).ok()
}

type Bucket<V> = Arc<HashTable<(Arc<str>, Arc<V>)>>;

/// A map from names to shared values, copied on write by bucket. A clone costs 256 reference counts.
#[derive(Clone)]
pub struct Table<V> {
    hasher: foldhash::fast::FixedState,
    buckets: Box<[Bucket<V>]>,
    len: usize,
}

impl<V: std::fmt::Debug> std::fmt::Debug for Table<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        let empty: Bucket<V> = Arc::new(HashTable::new());
        Self { hasher: foldhash::fast::FixedState::default(), buckets: vec![empty; BUCKETS].into(), len: 0 }
    }
}

impl<V> Table<V> {
    /// Number of names.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no name.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of a name.
    pub fn get(&self, name: &[u8]) -> Option<&Arc<V>> {
        let hash = self.hash(name);
        self.buckets[bucket_of(hash)].find(hash, |(n, _)| n.as_bytes() == name).map(|(_, v)| v)
    }

    /// Sets the value of a name; returns the one before.
    pub fn insert(&mut self, name: Arc<str>, value: Arc<V>) -> Option<Arc<V>> {
        let hash = self.hash(name.as_bytes());
        let hasher = self.hasher.clone();
        let bucket = Arc::make_mut(&mut self.buckets[bucket_of(hash)]);
        if let Some((_, old)) = bucket.find_mut(hash, |(n, _)| **n == *name) {
            return Some(std::mem::replace(old, value));
        }
        bucket.insert_unique(hash, (name, value), |(n, _)| hash_of(&hasher, n.as_bytes()));
        self.len += 1;
        None
    }

    /// Removes a name; returns its value.
    pub fn remove(&mut self, name: &[u8]) -> Option<Arc<V>> {
        let hash = self.hash(name);
        let bucket = &mut self.buckets[bucket_of(hash)];
        bucket.find(hash, |(n, _)| n.as_bytes() == name)?;
        let entry = Arc::make_mut(bucket).find_entry(hash, |(n, _)| n.as_bytes() == name);
        let ((_, value), _) = entry.ok().expect("found a line above").remove();
        self.len -= 1;
        Some(value)
    }

    /// All names and values, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<V>)> {
        self.buckets.iter().flat_map(|b| b.iter().map(|(n, v)| (n, v)))
    }

    /// All names and values in the order of the names.
    pub fn sorted(&self) -> Vec<(&Arc<str>, &Arc<V>)> {
        let mut all: Vec<_> = self.iter().collect();
        all.sort_by(|a, b| a.0.cmp(b.0));
        all
    }

    fn hash(&self, name: &[u8]) -> u64 {
        hash_of(&self.hasher, name)
    }
}

fn hash_of(hasher: &foldhash::fast::FixedState, name: &[u8]) -> u64 {
    let mut h = hasher.build_hasher();
    h.write(name);
    h.finish()
}

/// The bucket of a hash: bits that the table within the bucket does not use first.
fn bucket_of(hash: u64) -> usize {
    (hash >> 32) as usize % BUCKETS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_table_is_a_map_and_old_copies_stay(ops in proptest::collection::vec((0u8..40, any::<Option<u16>>()), 0..200)) {
            let mut table = Table::<u16>::default();
            let mut model = BTreeMap::<String, u16>::new();
            let mut old: Option<(Table<u16>, BTreeMap<String, u16>)> = None;
            for (i, (key, value)) in ops.into_iter().enumerate() {
                let name = format!("topic-{key}");
                match value {
                    Some(v) => prop_assert_eq!(
                        table.insert(name.as_str().into(), Arc::new(v)).map(|v| *v), model.insert(name, v)),
                    None => prop_assert_eq!(table.remove(name.as_bytes()).map(|v| *v), model.remove(&name)),
                }
                prop_assert_eq!(table.len(), model.len());
                if i % 7 == 0 {
                    old = Some((table.clone(), model.clone()));
                }
            }
            for (table, model) in old.into_iter().chain([(table, model)]) {
                let got: Vec<_> = table.sorted().into_iter().map(|(n, v)| (n.to_string(), **v)).collect();
                prop_assert_eq!(got, model.clone().into_iter().collect::<Vec<_>>());
                for (n, v) in &model {
                    prop_assert_eq!(table.get(n.as_bytes()).map(|v| **v), Some(*v));
                }
            }
        }
    }
}
