//! The name server's settings: each key once, with its type, bounds and whether it may change while running.
//!
//! Role: text to typed values and back, all or nothing. Java's keys. Invariants: nothing that names a path, a thread or
//! a port changes from the wire (CVE-2023-37582); a refused change changes nothing. It reads no file.

use std::fmt;

use crate::properties::{self, Property};

/// Settings in effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamesrvConfig {
    /// `kvConfigPath`: where the key values are kept; empty: in the data folder.
    pub kv_config_path: String,
    /// `configStorePath`: where changed settings are kept; empty: in the data folder.
    pub config_store_path: String,
    /// `rocketmqHome`: only shown.
    pub rocketmq_home: String,
    /// `configBlackList`: more keys that may not change, separated by semicolons.
    pub config_black_list: String,
    /// `productEnvName`: a name that tools show.
    pub product_env_name: String,
    /// `orderMessageEnable`: routes carry the order configuration.
    pub order_message_enable: bool,
    /// `returnOrderTopicConfigToBroker`: registrations are answered with the order configurations.
    pub return_order_config: bool,
    /// `scanNotActiveBrokerInterval`, ms.
    pub scan_interval_ms: u64,
    /// `supportActingMaster`: routes show a slave in the place of a lost master.
    pub support_acting_master: bool,
    /// `enableAllTopicList`: the list of all topics is given out.
    pub all_topic_list: bool,
    /// `enableTopicList`: the other lists of topics are given out.
    pub topic_list: bool,
    /// `deleteTopicWithBrokerRegistration`: topics that a registration leaves out are dropped.
    pub delete_unregistered_topics: bool,
    /// `needWaitForService`: no routes for a while after the start.
    pub need_wait: bool,
    /// `waitSecondsForService`: that while, in seconds.
    pub wait_s: u64,
    /// `listenPort`, where the server listens.
    pub listen_port: u64,
    /// `bindAddress`, where the server listens; empty: loopback.
    pub bind_address: String,
}

impl Default for NamesrvConfig {
    fn default() -> Self {
        Self {
            kv_config_path: String::new(),
            config_store_path: String::new(),
            rocketmq_home: String::new(),
            config_black_list: "configBlackList;configStorePath;kvConfigPath".into(),
            product_env_name: "center".into(),
            order_message_enable: false,
            return_order_config: true,
            scan_interval_ms: 5_000,
            support_acting_master: false,
            all_topic_list: true,
            topic_list: true,
            delete_unregistered_topics: false,
            need_wait: false,
            wait_s: 45,
            listen_port: 9_876,
            bind_address: String::new(),
        }
    }
}

/// How a key reads and writes its field.
enum Field {
    Flag(fn(&mut NamesrvConfig) -> &mut bool),
    Number(fn(&mut NamesrvConfig) -> &mut u64, u64, u64),
    Text(fn(&mut NamesrvConfig) -> &mut String),
    /// A key of Java's name server without meaning here: any value is taken and shown is the default.
    NoEffect(&'static str),
    /// A feature that this name server does not have: only its default is taken.
    Only(&'static str),
}

/// One setting.
pub struct Key {
    /// Java's key.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Whether request 318 may change it.
    pub live: bool,
    field: Field,
}

macro_rules! key {
    ($name:literal, $live:literal, $field:expr, $about:literal) => {
        Key { name: $name, about: $about, live: $live, field: $field }
    };
}

/// Every key, by name.
pub const KEYS: &[Key] = &[
    key!("bindAddress", false, Field::Text(|c| &mut c.bind_address), "Address to listen on; loopback unless given."),
    key!(
        "clientRequestThreadPoolNums",
        false,
        Field::NoEffect("8"),
        "Workers for routes. No meaning here: one core serves all."
    ),
    key!("clusterTest", false, Field::Only("false"), "Ask another name server for unknown topics."),
    key!(
        "configBlackList",
        false,
        Field::Text(|c| &mut c.config_black_list),
        "More keys, separated by semicolons, that requests may not change."
    ),
    key!(
        "configStorePath",
        false,
        Field::Text(|c| &mut c.config_store_path),
        "File for settings that were changed while running; in the data folder unless given."
    ),
    key!("defaultThreadPoolNums", false, Field::NoEffect("16"), "Other workers. No meaning here: one core serves all."),
    key!(
        "deleteTopicWithBrokerRegistration",
        true,
        Field::Flag(|c| &mut c.delete_unregistered_topics),
        "Drop the topics that a broker's registration no longer lists."
    ),
    key!("enableAllTopicList", true, Field::Flag(|c| &mut c.all_topic_list), "Give out the list of all topics."),
    key!("enableControllerInNamesrv", false, Field::Only("false"), "Run a controller inside the name server."),
    key!("enableTopicList", true, Field::Flag(|c| &mut c.topic_list), "Give out the other lists of topics."),
    key!(
        "kvConfigPath",
        false,
        Field::Text(|c| &mut c.kv_config_path),
        "File of the key values; in the data folder unless given."
    ),
    key!("listenPort", false, Field::Number(|c| &mut c.listen_port, 1, 65_535), "Port to listen on."),
    key!(
        "needWaitForService",
        true,
        Field::Flag(|c| &mut c.need_wait),
        "Give out no routes for waitSecondsForService after the start."
    ),
    key!("notifyMinBrokerIdChanged", false, Field::Only("false"), "Tell brokers when the lowest id of a name changes."),
    key!(
        "orderMessageEnable",
        true,
        Field::Flag(|c| &mut c.order_message_enable),
        "Routes carry the order configuration of their topic."
    ),
    key!("productEnvName", true, Field::Text(|c| &mut c.product_env_name), "A name that tools show."),
    key!(
        "returnOrderTopicConfigToBroker",
        true,
        Field::Flag(|c| &mut c.return_order_config),
        "Answer registrations with the order configurations."
    ),
    key!("rocketmqHome", false, Field::Text(|c| &mut c.rocketmq_home), "Home folder of the Java program; only shown."),
    key!(
        "scanNotActiveBrokerInterval",
        true,
        Field::Number(|c| &mut c.scan_interval_ms, 100, 600_000),
        "Period of looking for silent brokers, ms."
    ),
    key!(
        "supportActingMaster",
        true,
        Field::Flag(|c| &mut c.support_acting_master),
        "Routes show the lowest slave as master while the master is gone."
    ),
    key!("waitSecondsForService", true, Field::Number(|c| &mut c.wait_s, 0, 3_600), "See needWaitForService, s."),
];

/// Keys that no request may change or learn to change, whatever `configBlackList` says: answered with NO_PERMISSION.
const BLACK_LIST: [&str; 4] = ["configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"];

/// Why a setting is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingError {
    /// No such key.
    Unknown(String),
    /// On the black list, or fixed at start.
    Fixed(String),
    /// Not of the key's type or out of its bounds.
    Value {
        /// The key.
        key: &'static str,
        /// What was given.
        value: String,
        /// What would be right.
        wants: String,
    },
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(key) => write!(f, "unknown setting {key}"),
            Self::Fixed(key) => write!(f, "Can not update config in black list. The setting {key} is fixed at start."),
            Self::Value { key, value, wants } => write!(f, "{key} cannot be {value:?}: {wants}"),
        }
    }
}

impl std::error::Error for SettingError {}

impl NamesrvConfig {
    /// Sets one key at start.
    ///
    /// # Errors
    /// Unknown keys and wrong values; nothing is changed then.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        let key = KEYS.iter().find(|known| known.name == key).ok_or_else(|| SettingError::Unknown(key.to_owned()))?;
        let value = value.trim();
        let wrong = |wants: String| Err(SettingError::Value { key: key.name, value: value.to_owned(), wants });
        match key.field {
            Field::Flag(field) => match value.to_ascii_lowercase().as_str() {
                "true" => *field(self) = true,
                "false" => *field(self) = false,
                _ => return wrong("true or false".into()),
            },
            Field::Number(field, min, max) => match value.parse::<u64>() {
                Ok(number) if (min..=max).contains(&number) => *field(self) = number,
                _ => return wrong(format!("a number from {min} to {max}")),
            },
            Field::Text(field) => match value.chars().find(|c| c.is_control()) {
                None if value.len() <= 4_096 => value.clone_into(field(self)),
                _ => return wrong("a text of at most 4096 bytes without control characters".into()),
            },
            Field::NoEffect(_) => {}
            Field::Only(default) if value.eq_ignore_ascii_case(default) => {}
            Field::Only(default) => return wrong(format!("only {default} is supported")),
        }
        Ok(())
    }

    /// The change that request 318 asks for: all keys or none.
    ///
    /// # Errors
    /// The first key that is on the black list, else the first that is unknown, fixed or wrong.
    pub fn changed(&self, wanted: &[Property]) -> Result<Self, SettingError> {
        let listed =
            |key: &str| BLACK_LIST.contains(&key) || self.config_black_list.split(';').any(|k| k.trim() == key);
        if let Some(property) = wanted.iter().find(|property| listed(&property.key)) {
            return Err(SettingError::Fixed(property.key.clone()));
        }
        let mut changed = self.clone();
        for Property { key, value, .. } in wanted {
            if KEYS.iter().any(|known| known.name == key && !known.live) {
                return Err(SettingError::Fixed(key.clone()));
            }
            changed.set(key, value)?;
        }
        Ok(changed)
    }

    /// All settings as request 319 shows them.
    #[must_use]
    pub fn text(&self) -> String {
        self.text_of(|_| true)
    }

    /// The settings that may change while running and differ from `start`: what is kept for the next start. Never empty,
    /// so that its file is whole also when everything is as at start.
    #[must_use]
    pub fn changes_since(&self, start: &Self) -> String {
        let changes = self.text_of(|key| key.live && self.value(key) != start.value(key));
        format!("# Settings that were changed while the name server ran.\n{changes}")
    }

    fn text_of(&self, wanted: impl Fn(&Key) -> bool) -> String {
        let mut text = String::new();
        for key in KEYS.iter().filter(|key| wanted(key)) {
            properties::write(key.name, &self.value(key), &mut text);
        }
        text
    }

    fn value(&self, key: &Key) -> String {
        let mut copy = self.clone();
        match key.field {
            Field::Flag(field) => field(&mut copy).to_string(),
            Field::Number(field, ..) => field(&mut copy).to_string(),
            Field::Text(field) => field(&mut copy).clone(),
            Field::NoEffect(value) | Field::Only(value) => value.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(text: &str) -> Vec<Property> {
        properties::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn keys_are_sorted_and_their_defaults_are_legal() {
        assert!(KEYS.is_sorted_by(|a, b| a.name < b.name));
        let mut config = NamesrvConfig::default();
        for property in wanted(&NamesrvConfig::default().text()) {
            config.set(&property.key, &property.value).unwrap();
        }
        assert_eq!(config, NamesrvConfig::default());
        assert!(BLACK_LIST.iter().all(|key| KEYS.iter().any(|known| known.name == *key && !known.live)));
    }

    #[test]
    fn a_change_is_all_or_nothing() {
        let start = NamesrvConfig::default();
        let changed = start.changed(&wanted("orderMessageEnable=TRUE\nproductEnvName=x y\n")).unwrap();
        assert!(changed.order_message_enable);
        assert!(changed.changes_since(&start).ends_with(".\norderMessageEnable=true\nproductEnvName=x y\n"));
        assert_eq!(start.changed(&wanted(&changed.changes_since(&start))), Ok(changed));
        assert!(wanted(&start.changes_since(&start)).is_empty());
        for (text, fixed) in [
            ("productEnvName=a\nkvConfigPath=/x\n", true),
            ("configStorePath=/x", true),
            ("rocketmqHome=/x", true),
            ("configBlackList=", true),
            ("listenPort=1", true),
            ("enableControllerInNamesrv=true", true),
            ("productEnvName=a\nnone=1\n", false),
            ("scanNotActiveBrokerInterval=5s", false),
            ("scanNotActiveBrokerInterval=1", false),
            ("orderMessageEnable=yes", false),
        ] {
            let error = start.changed(&wanted(text)).unwrap_err();
            assert_eq!(matches!(error, SettingError::Fixed(_)), fixed, "{text}: {error}");
        }
        let mut listed = NamesrvConfig::default();
        listed.set("configBlackList", "productEnvName; x").unwrap();
        assert!(matches!(listed.changed(&wanted("productEnvName=a")), Err(SettingError::Fixed(_))));
    }
}
