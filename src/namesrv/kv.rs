//! Key values by namespace, as `kvConfig.json` keeps them.
//!
//! Role: the table, its limits and the check of order configurations. Invariants: an order configuration that is kept can
//! be parsed by every client; a namespace without keys does not exist. It reads and writes no file.

use std::collections::BTreeMap;

/// The namespace whose values are order configurations: `broker:queues;broker:queues`.
pub const ORDER_NAMESPACE: &str = "ORDER_TOPIC_CONFIG";
/// Most entries over all namespaces: the table is written as a whole at each change.
pub const MAX_ENTRIES: usize = 100_000;
/// Longest namespace or key, in bytes.
pub const MAX_KEY_BYTES: usize = 1_024;
/// Longest value, in bytes.
pub const MAX_VALUE_BYTES: usize = 65_536;

/// The entries of one namespace.
pub type Namespace = BTreeMap<String, String>;

/// The table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvConfig {
    table: BTreeMap<String, Namespace>,
}

/// Why an entry is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// Java's clients and the Go client cut this text at `;` and `:` and take the second part as a number.
    #[error("an order configuration is broker:queues;broker:queues")]
    OrderConfiguration,
    /// See the limits of this module.
    #[error("namespace or key is empty or longer than {MAX_KEY_BYTES} bytes")]
    Key,
    /// See the limits of this module.
    #[error("value is longer than {MAX_VALUE_BYTES} bytes")]
    Value,
    /// See the limits of this module.
    #[error("more than {MAX_ENTRIES} entries")]
    Full,
}

impl KvConfig {
    /// The table of a file's content.
    #[must_use]
    pub fn from_table(table: BTreeMap<String, Namespace>) -> Self {
        Self { table }
    }

    /// All namespaces.
    #[must_use]
    pub fn table(&self) -> &BTreeMap<String, Namespace> {
        &self.table
    }

    /// One value.
    #[must_use]
    pub fn get(&self, namespace: &str, key: &str) -> Option<&str> {
        self.table.get(namespace)?.get(key).map(String::as_str)
    }

    /// All entries of a namespace.
    #[must_use]
    pub fn namespace(&self, namespace: &str) -> Option<&Namespace> {
        self.table.get(namespace)
    }

    /// Sets a value.
    ///
    /// # Errors
    /// See [`KvError`]; nothing is changed then.
    pub fn put(&mut self, namespace: &str, key: &str, value: &str) -> Result<(), KvError> {
        if [namespace, key].iter().any(|part| part.is_empty() || part.len() > MAX_KEY_BYTES) {
            return Err(KvError::Key);
        }
        if value.len() > MAX_VALUE_BYTES {
            return Err(KvError::Value);
        }
        if namespace == ORDER_NAMESPACE && !is_order_configuration(value) {
            return Err(KvError::OrderConfiguration);
        }
        let entries: usize = self.table.values().map(BTreeMap::len).sum();
        if entries >= MAX_ENTRIES && self.get(namespace, key).is_none() {
            return Err(KvError::Full);
        }
        self.table.entry(namespace.to_owned()).or_default().insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    /// Takes a value out. Says whether there was one.
    pub fn delete(&mut self, namespace: &str, key: &str) -> bool {
        let Some(entries) = self.table.get_mut(namespace) else { return false };
        let found = entries.remove(key).is_some();
        if entries.is_empty() {
            self.table.remove(namespace);
        }
        found
    }
}

/// Whether all clients can parse the text: `name:number` parts between single semicolons.
fn is_order_configuration(value: &str) -> bool {
    value.split(';').all(|part| {
        part.split_once(':').is_some_and(|(broker, queues)| {
            !broker.trim().is_empty()
                && queues.bytes().all(|byte| byte.is_ascii_digit())
                && queues.parse::<i32>().is_ok()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_and_go() {
        let mut kv = KvConfig::default();
        assert_eq!(kv.get("n", "k"), None);
        kv.put("n", "k;1:xé", "v=2 \"quoted\"\n中").unwrap();
        kv.put("n", "k2", "").unwrap();
        assert_eq!(kv.get("n", "k;1:xé"), Some("v=2 \"quoted\"\n中"));
        assert!(kv.delete("n", "k;1:xé") && !kv.delete("n", "k;1:xé") && !kv.delete("m", "k"));
        assert_eq!(kv.namespace("n").unwrap().len(), 1);
        assert!(kv.delete("n", "k2"));
        assert_eq!(kv, KvConfig::default());
    }

    #[test]
    fn order_configurations_can_be_parsed_by_clients() {
        for good in ["b:4", "b:0", "broker-a:4;broker-b:16"] {
            assert!(is_order_configuration(good), "{good}");
        }
        for bad in
            ["", "b", "b:", ":4", "b:x", "b:-1", "b:+1", "b:4;", "b:4;;c:1", "b:4;c", "b: 4", "b:4:5", "b:9999999999"]
        {
            assert!(!is_order_configuration(bad), "{bad}");
        }
        let mut kv = KvConfig::default();
        assert_eq!(kv.put(ORDER_NAMESPACE, "t", "b"), Err(KvError::OrderConfiguration));
        assert_eq!(kv.put("other", "t", "b"), Ok(()));
    }

    #[test]
    fn limits_are_kept() {
        let mut kv = KvConfig::default();
        assert_eq!(kv.put("", "k", "v"), Err(KvError::Key));
        assert_eq!(kv.put("n", &"k".repeat(MAX_KEY_BYTES + 1), "v"), Err(KvError::Key));
        assert_eq!(kv.put("n", "k", &"v".repeat(MAX_VALUE_BYTES + 1)), Err(KvError::Value));
        assert_eq!(kv, KvConfig::default());
    }
}
