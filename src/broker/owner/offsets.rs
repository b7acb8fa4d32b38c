//! Where each group has got to in each queue, and the resets that pulls have not met yet. Pure tables.
//!
//! A commit is two things: a change of the table and an entry for the journal, in the same call, so that none is answered that a
//! restart would not know. The journal's entries are idempotent: replaying what a file already covers changes nothing in the end.

use super::version::DataVersion;
use crate::snapshot::{PendingReset, Resets, Table, topic_at_group};
use message::names;
use remoting::Json;
use remoting::json::JsonRef;
use remoting::json::Key;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A journal entry takes no more changes beyond this size, in bytes.
const ENTRY_BYTES: usize = 1 << 20;

/// Offsets of one topic and group by queue id.
pub type QueueOffsets = BTreeMap<u32, i64>;

/// The table of consumer offsets with what the journal still has to get.
#[derive(Debug, Default)]
pub struct Offsets {
    /// By `topic@group`, as in Java's file.
    table: BTreeMap<String, QueueOffsets>,
    resets: Table<Resets>,
    next_reset: u64,
    /// Entries since the last [`Offsets::take_journal`].
    journal: Vec<Vec<u8>>,
    /// Something changed since the file was last encoded.
    dirty: bool,
}

impl Offsets {
    /// A table as read from the file.
    pub fn new(table: BTreeMap<String, QueueOffsets>) -> Self {
        Self { table, ..Self::default() }
    }

    /// The whole table, by `topic@group`.
    pub fn table(&self) -> &BTreeMap<String, QueueOffsets> {
        &self.table
    }

    /// Pending resets for the snapshot.
    pub fn resets(&self) -> &Table<Resets> {
        &self.resets
    }

    /// Where a group is to go on in a queue: a pending reset, else the committed offset.
    pub fn query(&self, group: &str, topic: &str, queue_id: u32) -> Option<i64> {
        let key = topic_at_group(topic, group);
        let pending = self.resets.get(key.as_bytes()).and_then(|r| r.get(&queue_id)).map(|r| r.offset);
        pending.or_else(|| self.table.get(&key)?.get(&queue_id).copied())
    }

    /// Whether a queue has a committed offset of this group.
    pub fn has(&self, group: &str, topic: &str, queue_id: u32) -> bool {
        self.table.get(&topic_at_group(topic, group)).is_some_and(|q| q.contains_key(&queue_id))
    }

    /// Commits an offset. Ignored (`false`) while a reset of the queue is pending: the client has not heard of it.
    pub fn commit(&mut self, group: &str, topic: &str, queue_id: u32, offset: i64) -> bool {
        let key = topic_at_group(topic, group);
        if self.resets.get(key.as_bytes()).is_some_and(|r| r.contains_key(&queue_id)) {
            return false;
        }
        self.set(key, queue_id, offset);
        true
    }

    /// Sets an offset and keeps it until a pull has met it.
    pub fn reset(&mut self, group: &str, topic: &str, queue_id: u32, offset: i64) {
        let key = topic_at_group(topic, group);
        self.next_reset += 1;
        let mut pending = self.resets.get(key.as_bytes()).map(|r| (**r).clone()).unwrap_or_default();
        pending.insert(queue_id, PendingReset { id: self.next_reset, offset });
        self.resets.insert(key.as_str().into(), Arc::new(pending));
        self.set(key, queue_id, offset);
    }

    /// A pull was answered with a reset. Returns whether it was still pending.
    pub fn reset_taken(&mut self, group: &str, topic: &str, queue_id: u32, id: u64) -> bool {
        let key = topic_at_group(topic, group);
        let Some(pending) = self.resets.get(key.as_bytes()) else { return false };
        if pending.get(&queue_id).is_none_or(|r| r.id != id) {
            return false;
        }
        let mut left = (**pending).clone();
        left.remove(&queue_id);
        if left.is_empty() {
            self.resets.remove(key.as_bytes());
        } else {
            self.resets.insert(key.as_str().into(), Arc::new(left));
        }
        true
    }

    /// Copies a group's offsets of one topic to another group, replacing what that had.
    pub fn clone_group(&mut self, from: &str, to: &str, topic: &str) {
        let Some(offsets) = self.table.get(&topic_at_group(topic, from)).cloned() else { return };
        let key = topic_at_group(topic, to);
        for (queue_id, offset) in offsets {
            self.set(key.clone(), queue_id, offset);
        }
    }

    /// Forgets a topic in all groups. Returns whether a reset went with it.
    pub fn drop_topic(&mut self, topic: &str) -> bool {
        self.note(DROP_TOPIC, topic, 0, 0);
        self.drop_where(|t, _| t == topic)
    }

    /// Forgets a group in all topics. Returns whether a reset went with it.
    pub fn drop_group(&mut self, group: &str) -> bool {
        self.note(DROP_GROUP, group, 0, 0);
        self.drop_where(|_, g| g == group)
    }

    /// Topics that a group has offsets of, sorted.
    pub fn topics_of(&self, group: &str) -> Vec<&str> {
        self.table.keys().filter_map(|k| k.split_once('@')).filter(|(_, g)| *g == group).map(|(t, _)| t).collect()
    }

    /// Groups that have offsets of a topic, sorted.
    pub fn groups_of(&self, topic: &str) -> Vec<&str> {
        self.table.keys().filter_map(|k| k.split_once('@')).filter(|(t, _)| *t == topic).map(|(_, g)| g).collect()
    }

    /// After an unclean start a queue may end before an offset that was stored for it: cuts those to the queue's end.
    /// Returns how many were cut.
    pub fn cut(&mut self, topic: &str, queue_id: u32, end: i64) -> usize {
        let too_far: Vec<String> = self
            .table
            .iter()
            .filter(|(k, q)| k.split_once('@').is_some_and(|(t, _)| t == topic) && q.get(&queue_id) > Some(&end))
            .map(|(k, _)| k.clone())
            .collect();
        let count = too_far.len();
        for key in too_far {
            self.set(key, queue_id, end);
        }
        count
    }

    /// The journal's next entries, none when nothing changed. Each is below [`ENTRY_BYTES`] and a little.
    pub fn take_journal(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.journal)
    }

    /// The contents of `consumerOffset.json`.
    pub fn encode(&self, version: DataVersion) -> Vec<u8> {
        self.to_json(version).to_pretty()
    }

    /// The contents of `lmqConsumerOffset.json`: what groups named like light queues have stands in a table of its own, without
    /// queue ids (theirs are all 0).
    pub fn encode_light(&self, version: DataVersion) -> Vec<u8> {
        let of_light = |key: &str| key.split_once('@').is_some_and(|(_, group)| names::is_lmq(group.as_bytes()));
        let (light, plain): (BTreeMap<_, _>, BTreeMap<_, _>) = self.table.iter().partition(|(key, _)| of_light(key));
        let light = light.into_iter().filter_map(|(key, queues)| Some((key.clone(), Json::Int(*queues.get(&0)?))));
        let (topics, table) = (topics_json(plain.keys().map(|key| &***key)), table_json(plain.into_iter()));
        let light = Json::map(light);
        let fields = [
            ("dataVersion", version.to_json()),
            ("groupTopicMap", topics),
            ("lmqOffsetTable", light),
            ("offsetTable", table),
        ];
        Json::bean(fields).to_pretty()
    }

    /// The table as Java's tools and slaves know it.
    pub fn to_json(&self, version: DataVersion) -> Json {
        let table = table_json(self.table.iter());
        let topics = topics_json(self.table.keys().map(String::as_str));
        Json::bean([("dataVersion", version.to_json()), ("groupTopicMap", topics), ("offsetTable", table)])
    }

    /// Reads `consumerOffset.json` or `lmqConsumerOffset.json`. Errors: it is no JSON.
    pub fn decode(bytes: &[u8]) -> Result<(Self, DataVersion), String> {
        let json = JsonRef::parse(bytes).map_err(|e| e.to_string())?;
        let mut table = BTreeMap::new();
        for (key, queues) in json.get("offsetTable").entries() {
            let queues: QueueOffsets =
                queues.entries().filter_map(|(q, o)| Some((u32::try_from(q.as_i64()?).ok()?, o.as_i64()?))).collect();
            table.insert(key.string(), queues);
        }
        for (key, offset) in json.get("lmqOffsetTable").entries() {
            table.extend(offset.as_i64().map(|offset| (key.string(), QueueOffsets::from([(0, offset)]))));
        }
        Ok((Self::new(table), DataVersion::from_json(json.get("dataVersion"))))
    }

    /// Whether the file is behind the table; says no until the next change.
    pub fn take_dirty(&mut self) -> bool {
        std::mem::take(&mut self.dirty)
    }

    /// The file could not be written: it is still behind.
    pub fn set_dirty(&mut self) {
        self.dirty = true;
    }

    /// Applies one entry of the journal at start. A damaged rest of an entry is ignored.
    pub fn replay(&mut self, mut entry: &[u8]) {
        while let Some((change, rest)) = Change::decode(entry) {
            entry = rest;
            match change.kind {
                SET => {
                    self.table.entry(change.name.to_owned()).or_default().insert(change.queue_id, change.offset);
                }
                DROP_TOPIC => self.table.retain(|k, _| k.split_once('@').is_none_or(|(t, _)| t != change.name)),
                DROP_GROUP => self.table.retain(|k, _| k.split_once('@').is_none_or(|(_, g)| g != change.name)),
                _ => return,
            }
            self.dirty = true;
        }
    }

    fn set(&mut self, key: String, queue_id: u32, offset: i64) {
        self.note(SET, &key, queue_id, offset);
        self.table.entry(key).or_default().insert(queue_id, offset);
    }

    fn note(&mut self, kind: u8, name: &str, queue_id: u32, offset: i64) {
        self.dirty = true;
        if self.journal.last().is_none_or(|entry| entry.len() > ENTRY_BYTES) {
            self.journal.push(Vec::new());
        }
        let entry = self.journal.last_mut().expect("one was pushed if there was none");
        entry.push(kind);
        entry.extend_from_slice(&(name.len() as u16).to_be_bytes());
        entry.extend_from_slice(name.as_bytes());
        entry.extend_from_slice(&queue_id.to_be_bytes());
        entry.extend_from_slice(&offset.to_be_bytes());
    }

    fn drop_where(&mut self, matches: impl Fn(&str, &str) -> bool) -> bool {
        let gone = |k: &str| k.split_once('@').is_some_and(|(t, g)| matches(t, g));
        self.table.retain(|k, _| !gone(k));
        let resets: Vec<Arc<str>> = self.resets.iter().map(|(k, _)| k.clone()).filter(|k| gone(k)).collect();
        for key in &resets {
            self.resets.remove(key.as_bytes());
        }
        !resets.is_empty()
    }
}

fn table_json<'a>(table: impl Iterator<Item = (&'a String, &'a QueueOffsets)>) -> Json {
    let table = table.map(|(key, queues)| {
        let queues = queues.iter().map(|(q, o)| (Key::Int(i64::from(*q)), Json::Int(*o)));
        (Key::from(key.clone()), Json::Object(queues.collect()))
    });
    Json::Object(table.collect())
}

/// The topics of each group.
fn topics_json<'a>(keys: impl Iterator<Item = &'a str>) -> Json {
    let mut topics = BTreeMap::<&str, Vec<&str>>::new();
    for (topic, group) in keys.filter_map(|key| key.split_once('@')) {
        topics.entry(group).or_default().push(topic);
    }
    Json::map(topics.into_iter().map(|(group, topics)| (group.to_owned(), Json::list(topics))))
}

const SET: u8 = 1;
const DROP_TOPIC: u8 = 2;
const DROP_GROUP: u8 = 3;

/// One change in the journal: kind (1), name length (2), name (`topic@group`, topic or group), queue id (4), offset (8), big endian.
struct Change<'a> {
    kind: u8,
    name: &'a str,
    queue_id: u32,
    offset: i64,
}

impl<'a> Change<'a> {
    fn decode(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (kind, rest) = bytes.split_first()?;
        let (len, rest) = rest.split_first_chunk::<2>()?;
        let (name, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
        let (queue_id, rest) = rest.split_first_chunk::<4>()?;
        let (offset, rest) = rest.split_first_chunk::<8>()?;
        let name = std::str::from_utf8(name).ok()?;
        let (queue_id, offset) = (u32::from_be_bytes(*queue_id), i64::from_be_bytes(*offset));
        Some((Self { kind: *kind, name, queue_id, offset }, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_reset_holds_until_a_pull_met_it() {
        let mut o = Offsets::default();
        assert!(o.commit("g", "t", 0, 7));
        o.reset("g", "t", 0, 3);
        let id = o.resets().get(b"t@g").unwrap()[&0].id;
        assert!(!o.commit("g", "t", 0, 9), "the client has not heard of the reset");
        assert_eq!(o.query("g", "t", 0), Some(3));
        assert!(!o.reset_taken("g", "t", 0, id + 1));
        assert!(o.reset_taken("g", "t", 0, id));
        assert!(!o.reset_taken("g", "t", 0, id));
        assert!(o.resets().is_empty());
        assert!(o.commit("g", "t", 0, 9));
        assert_eq!(o.query("g", "t", 0), Some(9));
        assert_eq!(o.query("g", "t", 1), None);
    }

    #[test]
    fn offsets_past_the_recovered_end_are_cut() {
        let mut o = Offsets::default();
        for (group, offset) in [("a", 5), ("b", 11), ("c", 10)] {
            o.commit(group, "t", 2, offset);
        }
        assert_eq!(o.cut("t", 2, 10), 1);
        assert_eq!([o.query("a", "t", 2), o.query("b", "t", 2), o.query("c", "t", 2)], [Some(5), Some(10), Some(10)]);
    }

    #[test]
    fn the_file_has_javas_form_and_reads_back() {
        let mut o = Offsets::default();
        o.commit("g", "t", 1, 4);
        o.commit("g", "t", 0, 3);
        let version = DataVersion { counter: 2, state_version: 0, timestamp_ms: 9 };
        let text = String::from_utf8(o.encode(version)).unwrap();
        let want = "{\n\t\"dataVersion\":{\n\t\t\"counter\":2,\n\t\t\"stateVersion\":0,\n\t\t\"timestamp\":9\n\t},\n\t\"groupTopicMap\":{\n\t\t\"g\":[\n\t\t\t\"t\"\n\t\t]\n\t},\n\t\"offsetTable\":{\n\t\t\"t@g\":{\n\t\t\t0:3,\n\t\t\t1:4\n\t\t}\n\t}\n}";
        assert_eq!(text, want);
        let (again, read) = Offsets::decode(text.as_bytes()).unwrap();
        assert_eq!((again.table(), read), (o.table(), version));
        assert!(Offsets::decode(b"{").is_err());
    }

    #[derive(Clone, Debug)]
    enum Op {
        Commit(u8, u8, u32, i64),
        Reset(u8, u8, u32, i64),
        Clone(u8, u8, u8),
        DropTopic(u8),
        DropGroup(u8),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0u8..3, 0u8..3, 0u32..3, 0i64..100).prop_map(|(g, t, q, o)| Op::Commit(g, t, q, o)),
            (0u8..3, 0u8..3, 0u32..3, 0i64..100).prop_map(|(g, t, q, o)| Op::Reset(g, t, q, o)),
            (0u8..3, 0u8..3, 0u8..3).prop_map(|(a, b, t)| Op::Clone(a, b, t)),
            (0u8..3).prop_map(Op::DropTopic),
            (0u8..3).prop_map(Op::DropGroup),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        /// Whatever happened: the file written at any moment with the journal from any moment before it gives the table.
        #[test]
        fn file_and_journal_give_the_table(ops in proptest::collection::vec(op(), 0..60), file_at in 0usize..60, from in 0usize..60) {
            let mut live = Offsets::default();
            let mut file = None;
            let mut entries = Vec::new();
            for (i, op) in ops.iter().enumerate() {
                if i == file_at {
                    file = Some((live.table().clone(), entries.len()));
                }
                match *op {
                    Op::Commit(g, t, q, o) => { live.commit(&format!("g{g}"), &format!("t{t}"), q, o); }
                    Op::Reset(g, t, q, o) => live.reset(&format!("g{g}"), &format!("t{t}"), q, o),
                    Op::Clone(a, b, t) => live.clone_group(&format!("g{a}"), &format!("g{b}"), &format!("t{t}")),
                    Op::DropTopic(t) => { live.drop_topic(&format!("t{t}")); }
                    Op::DropGroup(g) => { live.drop_group(&format!("g{g}")); }
                }
                entries.extend(live.take_journal());
            }
            let (table, covered) = file.unwrap_or_default();
            let mut again = Offsets::new(table);
            for entry in &entries[from.min(covered)..] {
                again.replay(entry);
            }
            prop_assert_eq!(again.table(), live.table());
        }

        #[test]
        fn any_bytes_replay_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            Offsets::default().replay(&bytes);
        }
    }
}
