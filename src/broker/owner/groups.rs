//! The table of consumer groups and the form of `subscriptionGroup.json`. Pure.

use super::version::DataVersion;
use crate::snapshot::{FORBIDDEN_READ, Forbidden, Group, Table, is_readable};
use message::names;
use remoting::Json;
use remoting::json::JsonRef;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Groups that exist at every broker; the second says whether Java lets them broadcast explicitly (all may by default).
const SYSTEM_GROUPS: [&str; 8] = [
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
];

/// The groups with their version.
#[derive(Clone, Debug)]
pub struct GroupBook {
    groups: Table<Group>,
    forbidden: Arc<Forbidden>,
    version: DataVersion,
}

impl GroupBook {
    /// The table of a file (`None`: a new store), completed by the system groups. Errors: the file is no subscriptionGroup.json.
    pub fn open(file: Option<&[u8]>, now_ms: i64) -> Result<Self, String> {
        let mut book = Self { groups: Table::default(), forbidden: Arc::default(), version: DataVersion::default() };
        if let Some(bytes) = file {
            let json = JsonRef::parse(bytes).map_err(|e| e.to_string())?;
            book.version = DataVersion::from_json(json.get("dataVersion"));
            let of_group = |topics: JsonRef<'_>| {
                let bits = |bits: JsonRef<'_>| bits.as_i32().filter(|bits| *bits > 0);
                topics.entries().filter_map(|(topic, value)| Some((topic.string(), bits(value)?))).collect()
            };
            let forbidden = json.get("forbiddenTable").entries();
            book.forbidden = Arc::new(forbidden.map(|(group, topics)| (group.string(), of_group(topics))).collect());
            for (_, value) in json.get("subscriptionGroupTable").entries() {
                let group = group_from_json(value).ok_or("a group without a name")?;
                book.groups.insert(group.name.clone(), Arc::new(group));
            }
        }
        let before = book.groups.len();
        for name in SYSTEM_GROUPS {
            if book.get(name).is_none() {
                book.groups.insert(name.into(), Arc::new(Group::named(name)));
            }
        }
        if book.groups.len() != before {
            book.version.next(now_ms);
        }
        Ok(book)
    }

    /// All groups.
    pub fn table(&self) -> &Table<Group> {
        &self.groups
    }

    /// A group.
    pub fn get(&self, name: &str) -> Option<&Arc<Group>> {
        self.groups.get(name.as_bytes())
    }

    /// Version of the table.
    pub fn version(&self) -> DataVersion {
        self.version
    }

    /// What groups may not do with topics.
    pub fn forbidden(&self) -> &Arc<Forbidden> {
        &self.forbidden
    }

    /// The same as `forbiddenTable`.
    pub fn forbidden_json(&self) -> Json {
        let numbers =
            |topics: &BTreeMap<String, i32>| Json::map(topics.iter().map(|(t, bits)| (t.clone(), Json::from(*bits))));
        Json::map(self.forbidden.iter().map(|(group, topics)| (group.clone(), numbers(topics))))
    }

    /// Allows a group to read a topic, or forbids it. Returns whether that is a change.
    pub fn set_readable(&mut self, group: &str, topic: &str, readable: bool, now_ms: i64) -> bool {
        if is_readable(&self.forbidden, group, topic) == readable {
            return false;
        }
        let forbidden = Arc::make_mut(&mut self.forbidden);
        let topics = forbidden.entry(group.to_owned()).or_default();
        let bits = topics.entry(topic.to_owned()).or_default();
        *bits = if readable { *bits & !FORBIDDEN_READ } else { *bits | FORBIDDEN_READ };
        topics.retain(|_, bits| *bits != 0);
        if topics.is_empty() {
            forbidden.remove(group);
        }
        self.version.next(now_ms);
        true
    }

    /// Makes or replaces a group. `Ok(false)`: it is so already. Errors: the remark of a refused name or attribute.
    pub fn update(&mut self, mut group: Group, now_ms: i64) -> Result<bool, String> {
        names::check_group(group.name.as_bytes()).map_err(|e| e.group_remark(group.name.as_bytes()))?;
        let current = self.get(&group.name).map(|g| &g.attributes);
        group.attributes = alter(current, &group.attributes)?;
        if self.get(&group.name).is_some_and(|g| **g == group) {
            return Ok(false);
        }
        self.groups.insert(group.name.clone(), Arc::new(group));
        self.version.next(now_ms);
        Ok(true)
    }

    /// Makes a group with default settings if its name may be. `None`: the name is refused; else whether it was made.
    pub fn ensure(&mut self, name: &str, now_ms: i64) -> Option<bool> {
        if self.get(name).is_some() {
            return Some(false);
        }
        names::check_group(name.as_bytes()).ok()?;
        self.groups.insert(name.into(), Arc::new(Group::named(name)));
        self.version.next(now_ms);
        Some(true)
    }

    /// Removes a group.
    pub fn remove(&mut self, name: &str, now_ms: i64) -> bool {
        let removed = self.groups.remove(name.as_bytes()).is_some();
        if removed && self.forbidden.contains_key(name) {
            Arc::make_mut(&mut self.forbidden).remove(name);
        }
        if removed {
            self.version.next(now_ms);
        }
        removed
    }

    /// The contents of `subscriptionGroup.json`.
    pub fn encode(&self) -> Vec<u8> {
        Json::bean([
            ("dataVersion", self.version.to_json()),
            ("forbiddenTable", self.forbidden_json()),
            ("subscriptionGroupTable", self.table_json(&self.groups.sorted())),
        ])
        .to_pretty()
    }

    /// `subscriptionGroupTable` of these groups.
    pub fn table_json(&self, groups: &[(&Arc<str>, &Arc<Group>)]) -> Json {
        Json::map(groups.iter().map(|(n, g)| (n.to_string(), group_json(g))))
    }
}

/// Attributes of groups: Java 5.4 knows one, the priority factor of POP; it is kept as it is.
fn alter(
    current: Option<&BTreeMap<String, String>>,
    changes: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, String> {
    let mut result = current.cloned().unwrap_or_default();
    for (signed, value) in changes {
        let (sign, key) = signed.split_at_checked(1).ok_or("kv string format wrong.")?;
        if key != "priority.factor" {
            return Err(format!("unsupported key: {key}"));
        }
        match sign {
            "+" => {
                result.insert(key.to_owned(), value.clone());
            }
            "-" => {
                result.remove(key);
            }
            _ => return Err(format!("wrong format key: {key}")),
        }
    }
    Ok(result)
}

impl Group {
    /// A group with Java's default settings.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.into(),
            consume_enable: true,
            consume_from_min_enable: true,
            consume_broadcast_enable: true,
            consume_message_orderly: false,
            retry_queues: 1,
            retry_max_times: 16,
            broker_id: 0,
            which_broker_when_consume_slowly: 1,
            notify_consumer_ids_changed: true,
            sys_flag: 0,
            consume_timeout_minutes: 15,
            retry_policy: r#"{"type":"CUSTOMIZED"}"#.into(),
            subscription_data_set: None,
            attributes: BTreeMap::new(),
        }
    }
}

/// A group as Java's `SubscriptionGroupConfig`.
pub fn group_json(group: &Group) -> Json {
    let raw = |text: &str| JsonRef::parse(text.as_bytes()).map_or(Json::Null, Json::from_ref);
    Json::bean([
        ("attributes", Json::map(group.attributes.clone())),
        ("brokerId", group.broker_id.into()),
        ("consumeBroadcastEnable", group.consume_broadcast_enable.into()),
        ("consumeEnable", group.consume_enable.into()),
        ("consumeFromMinEnable", group.consume_from_min_enable.into()),
        ("consumeMessageOrderly", group.consume_message_orderly.into()),
        ("consumeTimeoutMinute", group.consume_timeout_minutes.into()),
        ("groupName", (&*group.name).into()),
        ("groupRetryPolicy", raw(&group.retry_policy)),
        ("groupSysFlag", group.sys_flag.into()),
        ("notifyConsumerIdsChangedEnable", group.notify_consumer_ids_changed.into()),
        ("retryMaxTimes", group.retry_max_times.into()),
        ("retryQueueNums", i64::from(group.retry_queues).into()),
        ("subscriptionDataSet", group.subscription_data_set.as_deref().map_or(Json::Null, raw)),
        ("whichBrokerWhenConsumeSlowly", group.which_broker_when_consume_slowly.into()),
    ])
}

/// A Java `SubscriptionGroupConfig`; `None` without a name. Missing members have Java's defaults.
pub fn group_from_json(json: JsonRef<'_>) -> Option<Group> {
    let base = Group::named(&json.get("groupName").as_str()?);
    let flag = |name: &str, default: bool| json.get(name).as_bool().unwrap_or(default);
    let number = |name: &str, default: i64| json.get(name).as_i64().unwrap_or(default);
    let small = |name: &str, default: i32| json.get(name).as_i32().unwrap_or(default);
    let raw = |name: &str| {
        let value = json.get(name);
        (!value.is_null()).then(|| Arc::<str>::from(String::from_utf8_lossy(&Json::from_ref(value).to_vec())))
    };
    Some(Group {
        consume_enable: flag("consumeEnable", base.consume_enable),
        consume_from_min_enable: flag("consumeFromMinEnable", base.consume_from_min_enable),
        consume_broadcast_enable: flag("consumeBroadcastEnable", base.consume_broadcast_enable),
        consume_message_orderly: flag("consumeMessageOrderly", base.consume_message_orderly),
        retry_queues: number("retryQueueNums", 1).clamp(0, 1024) as u32,
        retry_max_times: small("retryMaxTimes", base.retry_max_times),
        broker_id: number("brokerId", base.broker_id),
        which_broker_when_consume_slowly: number("whichBrokerWhenConsumeSlowly", base.which_broker_when_consume_slowly),
        notify_consumer_ids_changed: flag("notifyConsumerIdsChangedEnable", base.notify_consumer_ids_changed),
        sys_flag: small("groupSysFlag", base.sys_flag),
        consume_timeout_minutes: small("consumeTimeoutMinute", base.consume_timeout_minutes),
        retry_policy: raw("groupRetryPolicy").unwrap_or_else(|| base.retry_policy.clone()),
        subscription_data_set: raw("subscriptionDataSet"),
        attributes: json.get("attributes").entries().map(|(k, v)| (k.string(), v.string())).collect(),
        ..base
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_reads_back_with_all_that_java_keeps() {
        let text = br#"{"dataVersion":{"counter":3,"stateVersion":1,"timestamp":9},"forbiddenTable":{"G":{"T":5,"U":0}},
            "subscriptionGroupTable":{"G":{"groupName":"G","retryMaxTimes":5,"retryQueueNums":2,"consumeMessageOrderly":true,
            "groupRetryPolicy":{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":5}}}}}"#;
        let book = GroupBook::open(Some(text), 100).unwrap();
        let g = book.get("G").unwrap();
        assert_eq!(
            (g.retry_max_times, g.retry_queues, g.consume_message_orderly, g.consume_enable),
            (5, 2, true, true)
        );
        assert_eq!(book.version(), DataVersion { counter: 4, state_version: 1, timestamp_ms: 100 });
        let again = GroupBook::open(Some(&book.encode()), 200).unwrap();
        assert_eq!(again.table().sorted(), book.table().sorted());
        assert_eq!(again.version(), book.version());
        assert_eq!(again.forbidden(), book.forbidden());
        assert!(String::from_utf8(book.encode()).unwrap().contains("EXPONENTIAL"));
        assert!(!is_readable(again.forbidden(), "G", "T") && is_readable(again.forbidden(), "G", "U"));
    }

    #[test]
    fn a_group_can_be_kept_from_a_topic() {
        let mut book = GroupBook::open(None, 1).unwrap();
        assert!(!book.set_readable("g", "t", true, 1), "it may read");
        assert!(book.set_readable("g", "t", false, 1) && book.set_readable("g", "u", false, 1));
        assert!(!book.set_readable("g", "t", false, 1));
        assert!(!is_readable(book.forbidden(), "g", "t") && is_readable(book.forbidden(), "h", "t"));
        assert!(book.set_readable("g", "t", true, 1));
        assert!(
            is_readable(book.forbidden(), "g", "t") && !is_readable(book.forbidden(), "g", "u"),
            "each topic alone"
        );
        assert!(book.set_readable("g", "u", true, 1));
        assert!(book.forbidden().is_empty());
    }

    #[test]
    fn names_and_defaults() {
        let mut book = GroupBook::open(None, 1).unwrap();
        assert!(book.get("TOOLS_CONSUMER").is_some());
        assert_eq!(book.ensure("bad group", 1), None);
        assert_eq!(book.ensure(&"g".repeat(121), 1), None);
        assert_eq!(book.ensure("g", 1), Some(true));
        assert_eq!(book.ensure("g", 1), Some(false));
        let refused = book.update(Group::named("bad group!"), 1).unwrap_err();
        assert!(refused.contains("illegal characters"), "{refused}");
        assert_eq!(book.update(Group { retry_max_times: 5, ..Group::named("g") }, 1), Ok(true));
        assert_eq!(book.update(Group { retry_max_times: 5, ..Group::named("g") }, 1), Ok(false));
        assert!(book.remove("g", 1));
        assert!(!book.remove("g", 1));
    }
}
