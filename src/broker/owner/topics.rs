//! The table of topics: what exists at start, how topics are made and changed, and the form of `topics.json`. Pure.
//!
//! Names are checked before they come here, except by [`TopicBook::check_admin`]. A topic's place among the shards is decided when its
//! queues are made and never changes.

use super::version::DataVersion;
use crate::config::{BrokerOptions, LiveSettings};
use crate::snapshot::{PERM_INHERIT, PERM_READ, PERM_WRITE, QueuePlaces, Table, Topic};
use message::names;
use remoting::Json;
use remoting::json::JsonRef;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::Placement;

/// Most queues of a topic, Java's own limit is none; ids must fit its tools and our tables.
pub const MAX_QUEUES: u32 = 65_536;

const READ_WRITE: u32 = PERM_READ | PERM_WRITE;

/// What a request wants a topic to be.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicWish {
    /// Its name.
    pub name: String,
    /// Read queues.
    pub read_queues: u32,
    /// Write queues.
    pub write_queues: u32,
    /// Permission bits.
    pub perm: u32,
    /// System flag.
    pub sys_flag: i32,
    /// Several tags a message.
    pub multi_tag: bool,
    /// Ordered.
    pub order: bool,
    /// Changes of attributes: `+key` → value, `-key` → "".
    pub attributes: BTreeMap<String, String>,
}

impl TopicWish {
    /// A plain topic of so many queues.
    pub fn plain(name: &str, queues: u32, perm: u32) -> Self {
        Self {
            name: name.to_owned(),
            read_queues: queues,
            write_queues: queues,
            perm,
            sys_flag: 0,
            multi_tag: false,
            order: false,
            attributes: BTreeMap::new(),
        }
    }
}

/// The topics with their version and their places.
#[derive(Clone, Debug)]
pub struct TopicBook {
    topics: Table<Topic>,
    version: DataVersion,
    placement: Arc<Placement>,
    placement_changed: bool,
    /// Names that clients can neither make nor delete, beside the fixed ones.
    system: Arc<[String]>,
}

impl TopicBook {
    /// The table of a file (`None`: a new store), completed by the system topics of these options. Errors: the file is no topics.json.
    pub fn open(
        file: Option<&[u8]>,
        placement: Placement,
        options: &BrokerOptions,
        now_ms: i64,
    ) -> Result<Self, String> {
        let system = [&options.broker_name, &options.cluster_name, &names::reply_topic(&options.cluster_name)];
        let mut book = Self {
            topics: Table::default(),
            version: DataVersion::default(),
            placement: Arc::new(placement),
            placement_changed: false,
            system: system.into_iter().cloned().collect(),
        };
        if let Some(bytes) = file {
            let json = JsonRef::parse(bytes).map_err(|e| e.to_string())?;
            book.version = DataVersion::from_json(json.get("dataVersion"));
            for (_, value) in json.get("topicConfigTable").entries() {
                let wish = wish_from_json(value).ok_or("a topic without a name")?;
                let attributes = wish.attributes.clone();
                book.put(wish, attributes);
            }
        }
        let before = book.topics.len();
        book.add_system_topics(options);
        if book.topics.len() != before || file.is_none() {
            book.version.next(now_ms);
        }
        Ok(book)
    }

    /// All topics.
    pub fn table(&self) -> &Table<Topic> {
        &self.topics
    }

    /// Queues that each shard owns of a system topic.
    pub fn system_width(&self, topic: &[u8]) -> u32 {
        std::str::from_utf8(topic).ok().and_then(|topic| self.placement.system_width(topic)).unwrap_or(1)
    }

    /// A topic.
    pub fn get(&self, name: &str) -> Option<&Arc<Topic>> {
        self.topics.get(name.as_bytes())
    }

    /// Version of the table.
    pub fn version(&self) -> DataVersion {
        self.version
    }

    /// Moves the version on although no topic changed (the broker's permission did).
    pub fn touch(&mut self, now_ms: i64) {
        self.version.next(now_ms);
    }

    /// Whether only the broker itself makes this topic.
    pub fn is_system(&self, name: &str) -> bool {
        names::is_system_topic(name.as_bytes()) || self.system.iter().any(|s| s == name)
    }

    /// Every system topic's name, as request 305 lists them.
    pub fn system_names(&self) -> Vec<String> {
        let mut all: Vec<String> =
            names::SYSTEM_TOPICS.iter().map(|n| String::from_utf8_lossy(n).into_owned()).collect();
        all.extend(self.topics.iter().map(|(n, _)| n.to_string()).filter(|n| self.is_system(n)));
        all.extend(self.system.iter().cloned());
        all.sort();
        all.dedup();
        all
    }

    /// The remark with which an admin's wish is refused (code 29).
    pub fn check_admin(&self, wish: &TopicWish) -> Result<(), String> {
        names::check_topic(wish.name.as_bytes()).map_err(|e| e.topic_remark(wish.name.as_bytes()))?;
        if self.is_system(&wish.name) {
            return Err(format!("The topic[{}] is conflict with system topic.", wish.name));
        }
        if wish.attributes.get("+message.type").is_some_and(|v| v == "MIXED") {
            return Err("MIXED message type is not supported.".into());
        }
        let most = wish.read_queues.max(wish.write_queues);
        if most > MAX_QUEUES {
            return Err(format!("The topic[{}] cannot have more than {MAX_QUEUES} queues.", wish.name));
        }
        if wish.perm & !0xF != 0 {
            return Err(format!("The topic[{}] cannot have the permission {}.", wish.name, wish.perm));
        }
        Ok(())
    }

    /// Makes or changes a topic as an admin wishes. `Ok(false)`: it is so already. Errors: attributes that cannot be.
    pub fn update(&mut self, wish: TopicWish, now_ms: i64) -> Result<bool, String> {
        let current = self.get(&wish.name);
        let attributes = alter_attributes(current.map(|t| &t.attributes), &wish.attributes)?;
        if let Some(topic) = current
            && wish.attributes.is_empty()
            && topic.same_as(&wish)
        {
            return Ok(false);
        }
        self.put(wish, attributes);
        self.version.next(now_ms);
        Ok(true)
    }

    /// Makes a topic that must exist, with these settings if it does not. Returns whether it was made.
    pub fn ensure(&mut self, wish: TopicWish, now_ms: i64) -> bool {
        match self.get(&wish.name) {
            Some(topic) if topic.order == wish.order => return false,
            Some(topic) => {
                let changed = Topic { order: wish.order, ..(**topic).clone() };
                self.topics.insert(changed.name.clone(), Arc::new(changed));
            }
            None => self.put(wish, BTreeMap::new()),
        }
        self.version.next(now_ms);
        true
    }

    /// Marks topics as ordered; names without a topic are passed over. Returns whether one was not.
    pub fn mark_ordered(&mut self, names: &[String], now_ms: i64) -> bool {
        let mut changed = false;
        for name in names {
            if let Some(topic) = self.get(name).filter(|topic| !topic.order) {
                let ordered = Topic { order: true, ..(**topic).clone() };
                self.topics.insert(ordered.name.clone(), Arc::new(ordered));
                changed = true;
            }
        }
        if changed {
            self.version.next(now_ms);
        }
        changed
    }

    /// A send names an unknown topic: makes it after the default topic's example. `false`: it cannot be.
    pub fn create_by_send(
        &mut self,
        name: &str,
        default_topic: &str,
        queues: i32,
        sys_flag: i32,
        settings: &LiveSettings,
        now_ms: i64,
    ) -> bool {
        let Some(example) = self.get(default_topic).cloned() else { return false };
        let forbidden = default_topic.as_bytes() == names::AUTO_CREATE_TOPIC && !settings.auto_create_topic;
        if example.perm & PERM_INHERIT == 0 || forbidden || self.is_system(name) {
            return false;
        }
        let queues = u32::try_from(queues).unwrap_or(0).min(example.write_queues).max(1);
        let wish = TopicWish {
            sys_flag,
            multi_tag: example.multi_tag,
            ..TopicWish::plain(name, queues, example.perm & !PERM_INHERIT)
        };
        self.put(wish, BTreeMap::new());
        self.version.next(now_ms);
        true
    }

    /// Removes a topic and its place.
    pub fn remove(&mut self, name: &str, now_ms: i64) -> Option<Arc<Topic>> {
        let topic = self.topics.remove(name.as_bytes())?;
        self.placement_changed |= Arc::make_mut(&mut self.placement).remove(name);
        self.version.next(now_ms);
        Some(topic)
    }

    /// Whether `shards/placement.json` is behind.
    pub fn placement_changed(&self) -> bool {
        self.placement_changed
    }

    /// The contents of `shards/placement.json` when they changed since the last call.
    pub fn take_placement(&mut self) -> Option<Vec<u8>> {
        std::mem::take(&mut self.placement_changed).then(|| self.placement.encode())
    }

    /// The contents of `topics.json`.
    pub fn encode(&self) -> Vec<u8> {
        let topics = self.topics.sorted().into_iter().map(|(n, t)| (n.to_string(), topic_json(t)));
        Json::bean([("dataVersion", self.version.to_json()), ("topicConfigTable", Json::map(topics))]).to_pretty()
    }

    fn put(&mut self, wish: TopicWish, attributes: BTreeMap<String, String>) {
        let present = self.get(&wish.name).map_or(0, |t| t.queues());
        let most = wish.read_queues.max(wish.write_queues);
        self.placement_changed |= Arc::make_mut(&mut self.placement).grow(&wish.name, present, most);
        let places = match (self.placement.system_width(&wish.name), self.placement.topic(&wish.name)) {
            _ if self.placement.shards() == 1 => QueuePlaces::First,
            (Some(width), _) => QueuePlaces::System { width, shards: self.placement.shards() },
            (None, Some(rules)) => QueuePlaces::Rules(rules.clone()),
            (None, None) => QueuePlaces::First,
        };
        let name: Arc<str> = wish.name.as_str().into();
        let topic = Topic {
            name: name.clone(),
            read_queues: wish.read_queues,
            write_queues: wish.write_queues,
            perm: wish.perm,
            sys_flag: wish.sys_flag,
            multi_tag: wish.multi_tag,
            order: wish.order,
            attributes,
            places,
        };
        self.topics.insert(name, Arc::new(topic));
    }

    fn add_system_topics(&mut self, options: &BrokerOptions) {
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let cluster = &options.cluster_name;
        let shards = u32::from(self.placement.shards());
        let schedule_queues = self.system_width(names::SCHEDULE_TOPIC);
        let mut wishes = vec![
            TopicWish::plain(&text(names::SELF_TEST_TOPIC), 1, READ_WRITE),
            TopicWish::plain(&text(names::BENCHMARK_TOPIC), 1024, READ_WRITE),
            TopicWish::plain(cluster, 16, READ_WRITE | PERM_INHERIT),
            TopicWish::plain(&options.broker_name, 1, READ_WRITE | PERM_INHERIT),
            TopicWish::plain(&text(names::OFFSET_MOVED_TOPIC), 1, READ_WRITE),
            TopicWish::plain(&text(names::SCHEDULE_TOPIC), schedule_queues * shards, READ_WRITE),
            TopicWish::plain(&names::reply_topic(cluster), 1, READ_WRITE),
            TopicWish::plain(&format!("rmq_sys_REVIVE_LOG_{cluster}"), options.revive_queues * shards, READ_WRITE),
            TopicWish::plain(&format!("rmq_sys_SYNC_BROKER_MEMBER_{}", options.broker_name), 1, PERM_INHERIT),
            TopicWish::plain(&text(names::HALF_TOPIC), shards, READ_WRITE),
            TopicWish::plain(&text(names::OP_HALF_TOPIC), shards, READ_WRITE),
        ];
        if options.live.auto_create_topic {
            let default = text(names::AUTO_CREATE_TOPIC);
            wishes.push(TopicWish::plain(&default, options.live.default_topic_queues, READ_WRITE | PERM_INHERIT));
        }
        if options.trace_topic_enable {
            wishes.push(TopicWish::plain(&options.trace_topic_name, 1, READ_WRITE));
        }
        if options.timer_wheel_enable {
            wishes.push(TopicWish::plain(&text(names::TIMER_TOPIC), shards, READ_WRITE));
        }
        for wish in wishes {
            let grown = self.get(&wish.name).is_none_or(|t| {
                self.placement.system_width(&wish.name).is_some() && t.write_queues < wish.write_queues
            });
            if grown {
                self.put(wish, BTreeMap::new());
            }
        }
    }
}

impl Topic {
    fn same_as(&self, wish: &TopicWish) -> bool {
        self.read_queues == wish.read_queues
            && self.write_queues == wish.write_queues
            && self.perm == wish.perm
            && self.sys_flag == wish.sys_flag
            && self.multi_tag == wish.multi_tag
            && self.order == wish.order
    }
}

/// A topic as Java's `TopicConfig`.
pub fn topic_json(topic: &Topic) -> Json {
    topic_json_with_perm(topic, topic.perm)
}

/// A topic as Java's `TopicConfig`, with another permission (the broker's own limits that of a registration).
pub fn topic_json_with_perm(topic: &Topic, perm: u32) -> Json {
    let filter = if topic.multi_tag { "MULTI_TAG" } else { "SINGLE_TAG" };
    Json::bean([
        ("attributes", Json::map(topic.attributes.clone())),
        ("order", topic.order.into()),
        ("perm", i64::from(perm).into()),
        ("readQueueNums", i64::from(topic.read_queues).into()),
        ("topicFilterType", filter.into()),
        ("topicName", (&*topic.name).into()),
        ("topicSysFlag", topic.sys_flag.into()),
        ("writeQueueNums", i64::from(topic.write_queues).into()),
    ])
}

/// A Java `TopicConfig` as a wish; `None` without a name. Missing members have Java's defaults (16 queues, perm 6).
pub fn wish_from_json(json: JsonRef<'_>) -> Option<TopicWish> {
    let queues = |name: &str| json.get(name).as_i64().map_or(16, |n| n.clamp(0, i64::from(u32::MAX)) as u32);
    Some(TopicWish {
        name: json.get("topicName").as_str()?.into_owned(),
        read_queues: queues("readQueueNums"),
        write_queues: queues("writeQueueNums"),
        perm: json.get("perm").as_i64().map_or(READ_WRITE, |n| n.clamp(0, i64::from(u32::MAX)) as u32),
        sys_flag: json.get("topicSysFlag").as_i32().unwrap_or(0),
        multi_tag: json.get("topicFilterType").as_str().is_some_and(|t| t == "MULTI_TAG"),
        order: json.get("order").as_bool().unwrap_or(false),
        attributes: json.get("attributes").entries().map(|(k, v)| (k.string(), v.string())).collect(),
    })
}

/// Reads the header's form of attribute changes: `+key=value,-key`.
pub fn parse_attributes(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut changes = BTreeMap::new();
    for item in text.split(',').filter(|item| !item.is_empty()) {
        let (key, value) = match item.split_once('=') {
            Some((key, _)) if !key.starts_with('+') => {
                return Err(format!("add/alter attribute format is wrong: {key}"));
            }
            Some((key, value)) => (key, value),
            None if !item.starts_with('-') => return Err(format!("delete attribute format is wrong: {item}")),
            None => (item, ""),
        };
        if changes.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(format!("key duplication: {key}"));
        }
    }
    Ok(changes)
}

/// Which attributes a topic may have.
enum Attribute {
    Words(&'static [&'static str]),
    Number,
}

fn attribute(key: &str) -> Option<(Attribute, bool)> {
    Some(match key {
        "queue.type" => (Attribute::Words(&["SimpleCQ"]), false),
        "cleanup.policy" => (Attribute::Words(&["DELETE"]), false),
        "message.type" => (Attribute::Words(&["UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"]), true),
        "reserve.time" => (Attribute::Number, true),
        _ => return None,
    })
}

/// Applies changes of attributes (`current` is `None` for a new topic) by Java's rules.
fn alter_attributes(
    current: Option<&BTreeMap<String, String>>,
    changes: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, String> {
    let mut result = current.cloned().unwrap_or_default();
    for (signed, value) in changes {
        let (sign, key) = signed.split_at_checked(1).ok_or("kv string format wrong.")?;
        if key.is_empty() || key.contains(['+', '-']) {
            return Err("kv string format wrong.".into());
        }
        if current.is_none() && sign != "+" {
            return Err(format!("only add attribute is supported while creating topic. key: {key}"));
        }
        let (kind, changeable) = attribute(key).ok_or_else(|| format!("unsupported key: {key}"))?;
        if current.is_some() && !changeable {
            return Err(format!("attempt to update an unchangeable attribute. key: {key}"));
        }
        match sign {
            "+" => {
                let fits = match kind {
                    Attribute::Words(words) => words.contains(&value.as_str()),
                    Attribute::Number => value.parse::<i64>().is_ok_and(|n| n >= -1),
                };
                if !fits {
                    return Err(format!("value is not in set: key: {key}, value: {value}"));
                }
                result.insert(key.to_owned(), value.clone());
            }
            "-" if result.remove(key).is_none() => return Err(format!("attempt to delete a nonexistent key: {key}")),
            "-" => {}
            _ => return Err(format!("wrong format key: {key}")),
        }
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::manifest::SystemQueues;

    fn book(shards: u16) -> TopicBook {
        let options = BrokerOptions::with_address(([127, 0, 0, 1], 10911).into());
        TopicBook::open(None, Placement::new(shards, SystemQueues::default()), &options, 5).unwrap()
    }

    #[test]
    fn a_new_store_has_the_system_topics_of_java() {
        let book = book(1);
        let mut names: Vec<_> = book.table().iter().map(|(n, _)| n.to_string()).collect();
        names.sort();
        assert_eq!(
            names,
            [
                "BenchmarkTest",
                "DefaultCluster",
                "DefaultCluster_REPLY_TOPIC",
                "OFFSET_MOVED_EVENT",
                "RMQ_SYS_TRANS_HALF_TOPIC",
                "RMQ_SYS_TRANS_OP_HALF_TOPIC",
                "SCHEDULE_TOPIC_XXXX",
                "SELF_TEST_TOPIC",
                "TBW102",
                "broker-a",
                "rmq_sys_REVIVE_LOG_DefaultCluster",
                "rmq_sys_SYNC_BROKER_MEMBER_broker-a",
                "rmq_sys_wheel_timer",
            ]
        );
        assert_eq!((book.get("TBW102").unwrap().perm, book.get("TBW102").unwrap().read_queues), (7, 8));
        for name in names {
            assert!(book.is_system(&name), "{name}");
            assert!(book.check_admin(&TopicWish::plain(&name, 1, 6)).is_err(), "{name}");
        }
        assert!(book.check_admin(&TopicWish::plain("bad name", 1, 6)).is_err());
        assert!(book.check_admin(&TopicWish::plain("good", 1, 6)).is_ok());
    }

    #[test]
    fn the_file_reads_back() {
        let mut book = book(2);
        let wish = TopicWish {
            attributes: BTreeMap::from([("+message.type".into(), "FIFO".into())]),
            ..TopicWish::plain("T", 5, 6)
        };
        assert_eq!(book.update(wish, 9), Ok(true));
        let placement = book.take_placement().expect("two shards need a place for each topic");
        assert_eq!(book.take_placement(), None);
        let file = book.encode();
        let options = BrokerOptions::with_address(([127, 0, 0, 1], 10911).into());
        let places = Placement::parse(&placement, 2, SystemQueues::default()).unwrap();
        let mut again = TopicBook::open(Some(&file), places, &options, 100).unwrap();
        assert_eq!(again.version(), book.version());
        assert_eq!(again.table().sorted(), book.table().sorted());
        assert_eq!(again.take_placement(), None);
    }

    #[test]
    fn queues_keep_their_shard_when_a_topic_grows_and_shrinks() {
        let mut book = book(2);
        book.update(TopicWish::plain("T", 4, 6), 1).unwrap();
        let before: Vec<_> = (0..4).map(|q| book.get("T").unwrap().shard_of(q)).collect();
        book.update(TopicWish::plain("T", 1, 6), 1).unwrap();
        book.update(TopicWish::plain("T", 64, 6), 1).unwrap();
        let topic = book.get("T").unwrap();
        assert_eq!((0..4).map(|q| topic.shard_of(q)).collect::<Vec<_>>(), before);
        assert_eq!((0..64).filter(|&q| topic.shard_of(q).0 == 1).count(), 32);
        assert_eq!(book.get("SCHEDULE_TOPIC_XXXX").unwrap().shard_of(18).0, 1);
    }

    #[test]
    fn topics_are_made_by_sending_as_their_default_topic_allows() {
        let mut book = book(1);
        let on = LiveSettings::default();
        let off = LiveSettings { auto_create_topic: false, ..LiveSettings::default() };
        book.update(TopicWish::plain("plain", 4, 6), 1).unwrap();
        assert!(!book.create_by_send("new", "plain", 4, 0, &on, 1));
        assert!(!book.create_by_send("new", "absent", 4, 0, &on, 1));
        assert!(!book.create_by_send("new", "TBW102", 4, 0, &off, 1));
        assert!(!book.create_by_send("rmq_sys_x", "TBW102", 4, 0, &on, 1));
        assert!(book.create_by_send("new", "TBW102", 4, 0, &on, 1));
        let topic = book.get("new").unwrap();
        assert_eq!((topic.read_queues, topic.write_queues, topic.perm), (4, 4, 6));
        assert!(book.create_by_send("many", "TBW102", 48, 0, &on, 1));
        assert_eq!(book.get("many").unwrap().write_queues, 8);
    }

    #[test]
    fn attributes_follow_javas_rules() {
        let mut book = book(1);
        let set = |text: &str| TopicWish { attributes: parse_attributes(text).unwrap(), ..TopicWish::plain("T", 1, 6) };
        assert!(book.update(set("+no.such.attribute=1"), 1).unwrap_err().contains("no.such.attribute"));
        assert!(book.get("T").is_none());
        assert_eq!(book.update(set("+message.type=DELAY"), 1), Ok(true));
        assert_eq!(book.get("T").unwrap().attributes["message.type"], "DELAY");
        assert!(book.update(set("+message.type=SOMETHING"), 1).is_err());
        assert!(book.update(set("+cleanup.policy=DELETE"), 1).is_err(), "unchangeable");
        assert_eq!(book.update(set(""), 1), Ok(false), "no change keeps the attributes");
        assert_eq!(book.get("T").unwrap().attributes.len(), 1);
        assert_eq!(book.update(set("-message.type"), 1), Ok(true));
        assert!(book.get("T").unwrap().attributes.is_empty());
        assert!(parse_attributes("message.type=FIFO").is_err());
        assert!(parse_attributes("message.type").is_err());
    }
}
