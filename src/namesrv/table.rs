//! The route table: which broker has which topics, at which addresses, and since when it was last heard of.
//!
//! Role: the name server's state as a pure value: the clock is an argument, connections are only ids. Each broker name
//! has one map of topics, so that a registration of many topics is built elsewhere and put in place by swapping a
//! pointer; a route asks the map of each broker (there are few brokers and many topics).
//! Invariants: a broker has at least one member; an address has one id within its broker name; a broker name belongs to
//! one cluster; a connection is remembered for exactly what it registered. It writes no bytes and answers nobody.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use reactor::ConnectionId;

/// The id of a master.
pub const MASTER_ID: i64 = 0;
/// Permission bit: messages may be read.
pub const PERM_READ: i32 = 4;
/// Permission bit: messages may be written.
pub const PERM_WRITE: i32 = 2;
/// Time without a sign of life after which a broker that names no time of its own is taken out.
pub const DEFAULT_TIMEOUT_MS: i64 = 120_000;
/// Most broker names: far above any cluster, low enough that a flood of invented brokers stays small.
pub const MAX_BROKERS: usize = 4_096;
/// Most topics of one broker.
pub const MAX_TOPICS_OF_A_BROKER: usize = 1_000_000;
/// Most ids (master and slaves) of one broker.
pub const MAX_MEMBERS_OF_A_BROKER: usize = 64;

/// Topics of a broker by name.
pub type TopicMap = HashMap<Box<str>, TopicQueues, foldhash::fast::RandomState>;

/// Version of a broker's topics; equal only when all three numbers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataVersion {
    /// Epoch of the master that wrote it.
    pub state_version: i64,
    /// When it was written, in ms since 1970.
    pub timestamp_ms: i64,
    /// Changes since the broker's start.
    pub counter: i64,
}

/// What a route says of a topic on one broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicQueues {
    /// Queues that consumers read.
    pub read: i32,
    /// Queues that producers write.
    pub write: i32,
    /// Permission bits.
    pub perm: i32,
    /// 1: unit topic, 2: topic with unit subscriptions.
    pub sys_flag: i32,
}

/// Who registers, unregisters or asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Cluster of the broker.
    pub cluster: String,
    /// Name that a master shares with its slaves.
    pub name: String,
    /// 0 for a master, above it for a slave.
    pub id: i64,
    /// `host:port` for clients.
    pub address: String,
}

/// A registration but for its topics.
#[derive(Clone, Debug)]
pub struct Registration {
    /// The broker.
    pub who: Identity,
    /// `host:port` for replication.
    pub ha_address: String,
    /// Zone, if it told one.
    pub zone: Option<String>,
    /// Time without a sign of life after which it is taken out.
    pub timeout_ms: i64,
    /// Whether a slave may act for its lost master; `None` from a broker that does not know of that.
    pub acting_master: Option<bool>,
    /// Version of its topics.
    pub version: DataVersion,
    /// Topics in the body.
    pub topic_count: usize,
    /// Filter servers; `None` keeps those of before.
    pub filter_servers: Option<Vec<String>>,
    /// Static topics: topic, broker name, mapping as JSON text.
    pub mappings: Vec<(String, String, String)>,
    /// Place in the order of arrival: what arrived earlier never replaces what arrived later.
    pub sequence: u64,
    /// Its connection.
    pub connection: ConnectionId,
}

/// The topics of a registration, merged with those that the table had when the merge began.
#[derive(Clone, Debug)]
pub struct Merge {
    /// What the merge started from.
    pub base: MergeBase,
    /// The topics of the registration alone.
    pub fresh: Arc<TopicMap>,
    /// The topics of the broker afterwards.
    pub merged: Arc<TopicMap>,
}

/// What a merge depends on. It is taken from the table, and compared with the table again before the result is used.
#[derive(Clone, Debug, Default)]
pub struct MergeBase {
    topics: Arc<TopicMap>,
    /// Version that the table knows of this member; `None` when all topics are to be taken.
    known: Option<DataVersion>,
    /// Whether topics that the registration does not list are dropped.
    replace: bool,
}

/// Why a registration or a topic is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Java's rule: a single topic is registered only for a broker that is known.
    #[error("register broker failed")]
    UnknownBrokerWithOneTopic,
    /// Clients tell brokers apart by name alone.
    #[error("register broker failed: the broker name is taken by a broker of cluster {0}")]
    NameOfAnotherCluster(String),
    /// A limit of this name server.
    #[error("register broker failed: more than {limit} {what}")]
    TooMany {
        /// The limit.
        limit: usize,
        /// What there are too many of.
        what: &'static str,
    },
}

/// What a broker is told after its registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    /// For a slave: replication address of its master.
    pub ha_address: Option<String>,
    /// For a slave: address of its master.
    pub master_address: Option<String>,
}

/// One broker of a route or of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerView<'a> {
    /// Name.
    pub name: &'a str,
    /// Cluster.
    pub cluster: &'a str,
    /// Zone.
    pub zone: Option<&'a str>,
    /// Whether a slave may act for its lost master.
    pub acting_master: bool,
    /// Addresses by id.
    pub addresses: BTreeMap<i64, &'a str>,
}

/// Where a topic is: its brokers, each with its queues and filter servers.
#[derive(Debug, Default)]
pub struct Route<'a> {
    /// Brokers and queues, by broker name.
    pub brokers: Vec<(BrokerView<'a>, TopicQueues)>,
    /// Filter servers by broker address.
    pub filter_servers: Vec<(&'a str, &'a [String])>,
    /// Mappings of a static topic, as JSON text by broker name.
    pub mappings: Vec<(&'a str, &'a str)>,
}

#[derive(Debug)]
struct Member {
    address: Box<str>,
    ha_address: Box<str>,
    seen_us: u64,
    timeout_ms: i64,
    version: DataVersion,
    connection: ConnectionId,
    sequence: u64,
    filter_servers: Vec<String>,
}

#[derive(Debug)]
struct Broker {
    cluster: Box<str>,
    zone: Option<Box<str>>,
    acting_master: bool,
    members: BTreeMap<i64, Member>,
    topics: Arc<TopicMap>,
    mappings: HashMap<Box<str>, BTreeMap<Box<str>, Box<str>>>,
}

/// The table. See the head of the file.
#[derive(Debug, Default)]
pub struct RouteTable {
    brokers: BTreeMap<Box<str>, Broker>,
    /// What each open connection registered, also when another connection has taken it over since.
    connections: HashMap<ConnectionId, Vec<(Box<str>, i64)>>,
}

/// Merges the topics of a registration into a broker's: all of them when its version is new, else only those that the
/// table lost. Pure: runs on any thread.
#[must_use]
pub fn merge(base: MergeBase, version: DataVersion, fresh: TopicMap) -> Merge {
    let fresh = Arc::new(fresh);
    let all = base.known != Some(version);
    let merged = if base.topics.is_empty() || base.replace {
        fresh.clone()
    } else if !all && fresh.keys().all(|topic| base.topics.contains_key(topic)) {
        base.topics.clone()
    } else {
        let mut merged = TopicMap::clone(&base.topics);
        for (topic, queues) in fresh.iter() {
            if all || !merged.contains_key(topic) {
                merged.insert(topic.clone(), *queues);
            }
        }
        Arc::new(merged)
    };
    Merge { base, fresh, merged }
}

impl RouteTable {
    /// What the topics of a registration are to be merged with.
    #[must_use]
    pub fn merge_base(&self, who: &Identity, replace: bool) -> MergeBase {
        let Some(broker) = self.brokers.get(who.name.as_str()).filter(|broker| *broker.cluster == *who.cluster) else {
            return MergeBase { replace, ..MergeBase::default() };
        };
        let member = broker.members.get(&who.id).filter(|member| *member.address == *who.address);
        MergeBase { topics: broker.topics.clone(), known: member.map(|member| member.version), replace }
    }

    /// Takes a registration. An older one than the table's, or one with a lower state version from another address, is
    /// without effect and counts as taken, as in Java.
    ///
    /// # Errors
    /// See [`Refused`]; the table is unchanged then.
    pub fn register(&mut self, now_us: u64, new: Registration, merge: Merge) -> Result<Registered, Refused> {
        self.check(&new)?;
        let who = &new.who;
        if let Some(member) = self.brokers.get(who.name.as_str()).and_then(|broker| broker.members.get(&who.id)) {
            let conflict = *member.address != *who.address && member.version.state_version > new.version.state_version;
            if conflict || member.sequence > new.sequence {
                return Ok(Registered::default());
            }
        }
        let merge = self.still_valid(&new, merge);
        if merge.merged.len() > MAX_TOPICS_OF_A_BROKER {
            return Err(Refused::TooMany { limit: MAX_TOPICS_OF_A_BROKER, what: "topics" });
        }
        let moved = self.brokers.get(who.name.as_str()).is_some_and(|broker| *broker.cluster != *who.cluster);
        if moved {
            self.brokers.remove(who.name.as_str());
        }
        let broker = self.brokers.entry(who.name.as_str().into()).or_insert_with(|| Broker::new(&who.cluster));
        broker.take(now_us, &new, merge);
        let told = broker.told(who.id);
        self.remember(new.connection, &who.name, who.id);
        Ok(told)
    }

    /// Takes a broker's member out. Only the one that is meant: name, id, cluster and address must be those of the
    /// table, and a connection that another one has replaced cannot unregister its successor. Says whether it did.
    pub fn unregister(&mut self, who: &Identity, connection: ConnectionId) -> bool {
        let Some(broker) = self.brokers.get(who.name.as_str()).filter(|broker| *broker.cluster == *who.cluster) else {
            return false;
        };
        let Some(member) = broker.members.get(&who.id).filter(|member| *member.address == *who.address) else {
            return false;
        };
        let replaced = member.connection != connection
            && self
                .connections
                .get(&connection)
                .is_some_and(|owned| owned.iter().any(|(name, id)| **name == *who.name && *id == who.id));
        if replaced {
            return false;
        }
        self.remove(&who.name, who.id);
        true
    }

    /// Takes out what a closed connection registered, unless it was registered anew on another one.
    pub fn connection_closed(&mut self, connection: ConnectionId) -> Vec<Box<str>> {
        let mut gone = Vec::new();
        for (name, id) in self.connections.remove(&connection).unwrap_or_default() {
            let member = self.brokers.get(&name).and_then(|broker| broker.members.get(&id));
            if member.is_some_and(|member| member.connection == connection) {
                self.remove(&name, id);
                gone.push(name);
            }
        }
        gone
    }

    /// Takes out the members that were silent for longer than they asked for. Gives their names and the connections
    /// that now hold no member and may be closed.
    pub fn expire(&mut self, now_us: u64) -> (Vec<Box<str>>, Vec<ConnectionId>) {
        let mut silent = Vec::new();
        for (name, broker) in &self.brokers {
            for (id, member) in &broker.members {
                let allowed_us = u64::try_from(member.timeout_ms).unwrap_or(0).saturating_mul(1000);
                if now_us.saturating_sub(member.seen_us) > allowed_us {
                    silent.push((name.clone(), *id, member.connection));
                }
            }
        }
        for (name, id, _) in &silent {
            self.remove(name, *id);
        }
        let mut connections: Vec<ConnectionId> = silent.iter().map(|(_, _, connection)| *connection).collect();
        connections.retain(|&connection| !self.holds_any(connection));
        (silent.into_iter().map(|(name, _, _)| name).collect(), connections)
    }

    /// A sign of life. Says whether the member is known.
    pub fn seen(&mut self, now_us: u64, name: &str, address: &str) -> bool {
        let Some(broker) = self.brokers.get_mut(name) else { return false };
        let Some(member) = broker.members.values_mut().find(|member| *member.address == *address) else { return false };
        member.seen_us = now_us;
        true
    }

    /// Version of the topics of a known member.
    #[must_use]
    pub fn version_of(&self, cluster: &str, name: &str, address: &str) -> Option<DataVersion> {
        let broker = self.brokers.get(name).filter(|broker| *broker.cluster == *cluster)?;
        broker.members.values().find(|member| *member.address == *address).map(|member| member.version)
    }

    /// Sets the queues of one topic on known brokers. Without effect when one of them is unknown.
    ///
    /// # Errors
    /// Too many topics on one of the brokers.
    pub fn register_topic(&mut self, topic: &str, queues: &[(String, TopicQueues)]) -> Result<bool, Refused> {
        for (name, _) in queues {
            let Some(broker) = self.brokers.get(name.as_str()) else { return Ok(false) };
            if broker.topics.len() >= MAX_TOPICS_OF_A_BROKER && !broker.topics.contains_key(topic) {
                return Err(Refused::TooMany { limit: MAX_TOPICS_OF_A_BROKER, what: "topics" });
            }
        }
        for (name, queues) in queues {
            if let Some(broker) = self.brokers.get_mut(name.as_str()) {
                Arc::make_mut(&mut broker.topics).insert(topic.into(), *queues);
            }
        }
        Ok(!queues.is_empty())
    }

    /// Takes a topic out, of all brokers or of those of one cluster.
    pub fn delete_topic(&mut self, topic: &str, cluster: Option<&str>) {
        for broker in self.brokers.values_mut() {
            let meant = cluster.is_none_or(|cluster| *broker.cluster == *cluster);
            if meant && broker.topics.contains_key(topic) {
                Arc::make_mut(&mut broker.topics).remove(topic);
                broker.mappings.remove(topic);
            }
        }
    }

    /// Changes the write permission of all topics of a broker. Gives their number.
    pub fn set_write_permission(&mut self, name: &str, writable: bool) -> usize {
        let Some(broker) = self.brokers.get_mut(name) else { return 0 };
        let topics = Arc::make_mut(&mut broker.topics);
        for queues in topics.values_mut() {
            queues.perm = if writable { queues.perm | PERM_READ | PERM_WRITE } else { queues.perm & !PERM_WRITE };
        }
        topics.len()
    }

    /// The route of a topic; `None` when no broker has it. With `acting_master` the lowest slave of a broker that lost
    /// its master is shown in the master's place.
    #[must_use]
    pub fn route(&self, topic: &str, acting_master: bool) -> Option<Route<'_>> {
        let mut route = Route::default();
        for (name, broker) in &self.brokers {
            let Some(queues) = broker.topics.get(topic) else { continue };
            let mut queues = *queues;
            let mut view = broker.view(name);
            if broker.acting_master && !broker.members.contains_key(&MASTER_ID) {
                queues.perm &= !PERM_WRITE;
                if acting_master && let Some((_, address)) = view.addresses.pop_first() {
                    view.addresses.insert(MASTER_ID, address);
                }
            }
            for member in broker.members.values().filter(|member| !member.filter_servers.is_empty()) {
                route.filter_servers.push((&member.address, &member.filter_servers));
            }
            for (owner, mapping) in broker.mappings.get(topic).into_iter().flatten() {
                route.mappings.push((owner, mapping));
            }
            route.brokers.push((view, queues));
        }
        (!route.brokers.is_empty()).then_some(route)
    }

    /// All brokers, by name.
    pub fn brokers(&self) -> impl Iterator<Item = BrokerView<'_>> {
        self.brokers.iter().map(|(name, broker)| broker.view(name))
    }

    /// Cluster and addresses of one broker name.
    #[must_use]
    pub fn broker(&self, name: &str) -> Option<BrokerView<'_>> {
        self.brokers.get_key_value(name).map(|(name, broker)| broker.view(name))
    }

    /// Names of the topics whose queues satisfy `wanted`, of all clusters or of one, each once, in no order.
    #[must_use]
    pub fn topics(&self, cluster: Option<&str>, wanted: impl Fn(&TopicQueues) -> bool) -> HashSet<&str> {
        let mut topics = HashSet::new();
        for broker in self.brokers.values().filter(|broker| cluster.is_none_or(|cluster| *broker.cluster == *cluster)) {
            topics.extend(broker.topics.iter().filter(|(_, queues)| wanted(queues)).map(|(topic, _)| &**topic));
        }
        topics
    }

    /// Asserts the invariants of the head of this file: for tests.
    ///
    /// # Panics
    /// One of them does not hold.
    pub fn validate(&self) {
        for (name, broker) in &self.brokers {
            assert!(!broker.members.is_empty(), "{name} has no member");
            let addresses: HashSet<&str> = broker.members.values().map(|member| &*member.address).collect();
            assert_eq!(addresses.len(), broker.members.len(), "an address of {name} has two ids");
            for (id, member) in &broker.members {
                let owned = self.connections.get(&member.connection);
                let known = owned.is_some_and(|owned| owned.iter().any(|(n, i)| n == name && i == id));
                assert!(known, "the connection of {name} {id} does not know it");
            }
        }
    }

    fn check(&self, new: &Registration) -> Result<(), Refused> {
        let who = &new.who;
        let broker = self.brokers.get(who.name.as_str());
        if let Some(broker) = broker.filter(|broker| *broker.cluster != *who.cluster) {
            // The same broker under a new cluster name may come back before its old registration is gone.
            if broker.members.values().any(|member| *member.address != *who.address) {
                return Err(Refused::NameOfAnotherCluster(broker.cluster.to_string()));
            }
        }
        let known =
            broker.is_some_and(|broker| broker.members.contains_key(&who.id) && *broker.cluster == *who.cluster);
        if !known && new.topic_count == 1 {
            return Err(Refused::UnknownBrokerWithOneTopic);
        }
        if broker.is_none() && self.brokers.len() >= MAX_BROKERS {
            return Err(Refused::TooMany { limit: MAX_BROKERS, what: "brokers" });
        }
        if broker.is_some_and(|broker| !known && broker.members.len() >= MAX_MEMBERS_OF_A_BROKER) {
            return Err(Refused::TooMany { limit: MAX_MEMBERS_OF_A_BROKER, what: "members of a broker" });
        }
        Ok(())
    }

    /// Remembers what a connection registered. What no longer exists is forgotten first, so that a connection that
    /// registers and unregisters names without end costs no more than the brokers that there are.
    fn remember(&mut self, connection: ConnectionId, name: &str, id: i64) {
        let owned = self.connections.entry(connection).or_default();
        if owned.iter().any(|(known, known_id)| **known == *name && *known_id == id) {
            return;
        }
        if owned.len() >= 16 {
            let brokers = &self.brokers;
            owned.retain(|(name, id)| brokers.get(name).is_some_and(|broker| broker.members.contains_key(id)));
        }
        owned.push((name.into(), id));
    }

    /// The merge itself, or a new one when the table has changed since it began.
    fn still_valid(&self, new: &Registration, merge: Merge) -> Merge {
        let base = self.merge_base(&new.who, merge.base.replace);
        let same =
            Arc::ptr_eq(&base.topics, &merge.base.topics) || (base.topics.is_empty() && merge.base.topics.is_empty());
        if same && base.known == merge.base.known {
            return merge;
        }
        self::merge(base, new.version, Arc::unwrap_or_clone(merge.fresh))
    }

    fn remove(&mut self, name: &str, id: i64) {
        let Some(broker) = self.brokers.get_mut(name) else { return };
        broker.members.remove(&id);
        if broker.members.is_empty() {
            self.brokers.remove(name);
        }
    }

    fn holds_any(&self, connection: ConnectionId) -> bool {
        let owned = self.connections.get(&connection).into_iter().flatten();
        owned.into_iter().any(|(name, id)| {
            let member = self.brokers.get(name).and_then(|broker| broker.members.get(id));
            member.is_some_and(|member| member.connection == connection)
        })
    }
}

impl Broker {
    fn new(cluster: &str) -> Self {
        Self {
            cluster: cluster.into(),
            zone: None,
            acting_master: false,
            members: BTreeMap::new(),
            topics: Arc::default(),
            mappings: HashMap::new(),
        }
    }

    fn view<'a>(&'a self, name: &'a str) -> BrokerView<'a> {
        BrokerView {
            name,
            cluster: &self.cluster,
            zone: self.zone.as_deref(),
            acting_master: self.acting_master,
            addresses: self.members.iter().map(|(id, member)| (*id, &*member.address)).collect(),
        }
    }

    fn take(&mut self, now_us: u64, new: &Registration, merge: Merge) {
        let who = &new.who;
        self.zone = new.zone.as_deref().map(Into::into);
        self.acting_master = new.acting_master.unwrap_or(false);
        // A slave that became master keeps its address: one address, one id.
        self.members.retain(|id, member| *member.address != *who.address || *id == who.id);
        let previous = self.members.remove(&who.id);
        let lowest = self.members.keys().next().is_none_or(|lowest| who.id < *lowest);
        if who.id == MASTER_ID || (new.acting_master.is_some() && lowest) {
            self.topics = merge.merged;
            for (topic, owner, mapping) in &new.mappings {
                let mappings = self.mappings.entry(topic.as_str().into()).or_default();
                mappings.insert(owner.as_str().into(), mapping.as_str().into());
            }
        }
        let filter_servers = new.filter_servers.clone();
        let member = Member {
            address: who.address.as_str().into(),
            ha_address: new.ha_address.as_str().into(),
            seen_us: now_us,
            timeout_ms: new.timeout_ms,
            version: new.version,
            connection: new.connection,
            sequence: new.sequence,
            filter_servers: filter_servers.or(previous.map(|member| member.filter_servers)).unwrap_or_default(),
        };
        self.members.insert(who.id, member);
    }

    fn told(&self, id: i64) -> Registered {
        match self.members.get(&MASTER_ID) {
            Some(master) if id != MASTER_ID => Registered {
                ha_address: Some(master.ha_address.to_string()),
                master_address: Some(master.address.to_string()),
            },
            _ => Registered::default(),
        }
    }
}
