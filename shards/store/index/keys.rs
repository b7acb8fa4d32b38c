//! Which hashes of a record go into the index.
//!
//! Invariants: the same hashes in the same order as a Java broker 5.4.0: unique key, each word of KEYS, then the whole TAGS
//! text. Only POP's check points and acknowledgements, two records for each pop, have none: nobody asks for them by key. Pure.

use message::hash::IndexKeyPrefix;
use message::properties::{PropertiesSource, name};
use message::{names, sys_flag};

/// The properties of a record that the store looks at, found in one pass. Empty: not there.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordKeys<'a> {
    unique: &'a [u8],
    keys: &'a [u8],
    tags: &'a [u8],
}

impl<'a> RecordKeys<'a> {
    /// Looks through a properties text.
    #[must_use]
    pub fn scan(properties: &'a [u8]) -> Self {
        Self::of(&PropertiesSource::Text(properties))
    }

    /// Looks through the properties of a record that is to be written.
    #[must_use]
    pub fn of(properties: &PropertiesSource<'a>) -> Self {
        let mut found = Self::default();
        properties.each(|key, value| match key {
            name::UNIQ_KEY => found.unique = value,
            name::KEYS => found.keys = value,
            name::TAGS => found.tags = value,
            _ => {}
        });
        found
    }

    /// The tag value of the record's consume-queue entry.
    #[must_use]
    pub fn tags_code(&self) -> i64 {
        message::hash::tag_hash((!self.tags.is_empty()).then_some(self.tags))
    }

    /// Gives the hash of each index item to `visit`. Records that roll a transaction back, and those of POP's revive topic, have
    /// none.
    pub fn hashes(&self, topic: &[u8], record_sys_flag: i32, visit: &mut dyn FnMut(u32)) {
        if record_sys_flag & sys_flag::TRANSACTION_MASK == sys_flag::TRANSACTION_ROLLBACK {
            return;
        }
        if topic.first() == Some(&b'r') && topic.starts_with(names::REVIVE_TOPIC_PREFIX) {
            return;
        }
        let prefix = IndexKeyPrefix::new(topic);
        if !self.unique.is_empty() {
            visit(prefix.key(self.unique));
        }
        for word in self.keys.split(|&byte| byte == b' ').filter(|word| !word.is_empty()) {
            visit(prefix.key(word));
        }
        if !self.tags.is_empty() {
            visit(prefix.for_tags().key(self.tags));
        }
    }
}

/// The hash under which messages of a topic with this key are indexed.
#[must_use]
pub fn key_hash(topic: &[u8], key: &[u8]) -> u32 {
    IndexKeyPrefix::new(topic).key(key)
}

/// The hash under which messages of a topic with this TAGS text are indexed.
#[must_use]
pub fn tag_hash(topic: &[u8], tags: &[u8]) -> u32 {
    IndexKeyPrefix::new(topic).for_tags().key(tags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_the_revive_topic_have_no_items() {
        let count = |topic: &[u8], flag: i32| {
            let mut count = 0;
            let keys = RecordKeys::scan(b"UNIQ_KEY\x01u\x02KEYS\x01a b\x02TAGS\x01ck\x02");
            keys.hashes(topic, flag, &mut |_| count += 1);
            count
        };
        assert_eq!((count(b"t", 0), count(b"rmq_sys_wheel_timer", 0)), (4, 4));
        assert_eq!(count(b"t", sys_flag::TRANSACTION_ROLLBACK), 0);
        assert_eq!(count(b"rmq_sys_REVIVE_LOG_DefaultCluster", 0), 0);
    }
}
