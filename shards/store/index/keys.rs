//! Which hashes of a record go into the index.
//!
//! Invariants: the same hashes in the same order as a Java broker 5.4.0: unique key, each word of KEYS, then the whole TAGS
//! text. Pure.

use message::hash::IndexKeyPrefix;
use message::properties::{name, pairs};
use message::sys_flag;

/// Gives the hash of each index item of a record to `visit`. Records that roll a transaction back have none.
pub fn record_keys(topic: &[u8], properties: &[u8], record_sys_flag: i32, visit: &mut dyn FnMut(u32)) {
    if record_sys_flag & sys_flag::TRANSACTION_MASK == sys_flag::TRANSACTION_ROLLBACK {
        return;
    }
    let (mut unique, mut keys, mut tags): (&[u8], &[u8], &[u8]) = (b"", b"", b"");
    for (key, value) in pairs(properties) {
        match key {
            name::UNIQ_KEY => unique = value,
            name::KEYS => keys = value,
            name::TAGS => tags = value,
            _ => {}
        }
    }
    let prefix = IndexKeyPrefix::new(topic);
    if !unique.is_empty() {
        visit(prefix.key(unique));
    }
    for word in keys.split(|&byte| byte == b' ').filter(|word| !word.is_empty()) {
        visit(prefix.key(word));
    }
    if !tags.is_empty() {
        visit(IndexKeyPrefix::for_tags(topic).key(tags));
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
    IndexKeyPrefix::for_tags(topic).key(tags)
}
