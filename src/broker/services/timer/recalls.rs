//! Timed messages that are not to be delivered: those whose recall has come, until their time is over.
//!
//! Role: a small table. A recall is taken up when its tick begins, before any message of the tick, so that only those of the
//! last moment are here, however many wait. Invariant: one is kept until every message of its tick has been looked at.

use super::index::Timed;
use hashbrown::HashMap;
use message::properties::{find_each, name};
use std::collections::BTreeMap;

/// Added to a tick, in ms: a message may become visible a little after its time.
const SLACK_MS: i64 = 5_000;

/// See the head of the file.
#[derive(Debug, Default)]
pub struct Recalls {
    /// How many recalls name a message, by `topic+unique id`.
    keys: HashMap<Box<[u8]>, u32>,
    /// By tick and arrival.
    by_time: BTreeMap<RecallId, Recall>,
    arrivals: u64,
}

/// A recall's tick, in ms since 1970, and when it came among the others.
pub type RecallId = (i64, u64);

#[derive(Debug)]
struct Recall {
    key: Box<[u8]>,
    timed: Option<Timed>,
}

impl Recalls {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_time.is_empty()
    }

    /// When the first may be forgotten, ms since 1970.
    pub fn first_ms(&self) -> Option<i64> {
        self.by_time.keys().next().map(|(tick_ms, _)| tick_ms.saturating_add(SLACK_MS))
    }

    /// The message named by `key` is not to be delivered; it is due in the tick that begins at `tick_ms`. `timed`: the entry
    /// that says so, done when the tick is over. Gives a number to take it back by.
    pub fn add(&mut self, key: &[u8], tick_ms: i64, timed: Option<Timed>) -> RecallId {
        self.arrivals += 1;
        let id = (tick_ms, self.arrivals);
        *self.keys.entry(key.into()).or_default() += 1;
        self.by_time.insert(id, Recall { key: key.into(), timed });
        id
    }

    /// A recall came to nothing.
    pub fn remove(&mut self, id: RecallId) -> Option<Timed> {
        let Recall { key, timed } = self.by_time.remove(&id)?;
        if let Some(count) = self.keys.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.keys.remove(&key);
            }
        }
        timed
    }

    /// Whether the message with these properties is recalled.
    pub fn covers(&self, properties: &[u8]) -> bool {
        if self.keys.is_empty() {
            return false;
        }
        let parts = find_each(properties, [name::REAL_TOPIC, name::UNIQ_KEY]);
        let [Some(topic), Some(id)] = parts else { return false };
        self.keys.contains_key(&key(topic, id)[..])
    }

    /// No message due before `oldest_ms` will be looked at any more: gives the entries of recalls that are over.
    pub fn expire(&mut self, oldest_ms: i64, precision_ms: i64) -> Vec<Timed> {
        let mut over = Vec::new();
        while let Some((&id, _)) = self.by_time.first_key_value()
            && id.0.saturating_add(precision_ms).saturating_add(SLACK_MS) < oldest_ms
        {
            over.extend(self.remove(id));
        }
        over
    }
}

/// What names a message in a recall: `topic+unique id`.
pub fn key(topic: &[u8], unique_id: &[u8]) -> Vec<u8> {
    [topic, unique_id].join(&b'+')
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::PhysicalOffset;

    #[test]
    fn a_recall_holds_until_its_tick_is_over() {
        let mut recalls = Recalls::default();
        let entry = Timed::new(10_000, 3, true, PhysicalOffset(9));
        recalls.add(b"t+1", 10_000, Some(entry));
        let again = recalls.add(b"t+1", 10_000, None);
        let message = b"REAL_TOPIC\x01t\x02UNIQ_KEY\x011\x02";
        assert!(recalls.covers(message));
        assert!(!recalls.covers(b"REAL_TOPIC\x01t\x02UNIQ_KEY\x012\x02") && !recalls.covers(b"UNIQ_KEY\x011\x02"));
        assert_eq!(recalls.remove(again), None);
        assert!(recalls.covers(message), "the other one stands");
        assert_eq!(recalls.expire(16_000, 1_000), []);
        assert_eq!(recalls.expire(16_001, 1_000), [entry]);
        assert!(recalls.is_empty() && !recalls.covers(message));
    }
}
