//! The connected clients: members of consumer groups with their subscriptions, and producers. Pure tables with times passed in.
//!
//! A member is one (connection, group): a group that a connection's heartbeats no longer name expires on its own. A topic is subscribed
//! as long as any member names it; of several expressions for it the one with the highest version counts, so that a client whose clock
//! was set back stays subscribed.

use super::Origin;
use crate::snapshot::{GroupConsumers, MessageModel, Subscription};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use reactor::ConnectionId;
use remoting::LanguageCode;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// How a consumer gets messages, as it says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsumeType {
    /// It pulls when it likes.
    Actively,
    /// Its library pulls for it.
    Passively,
    /// By POP.
    Pop,
}

impl ConsumeType {
    /// Java's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Actively => "CONSUME_ACTIVELY",
            Self::Passively => "CONSUME_PASSIVELY",
            Self::Pop => "CONSUME_POP",
        }
    }
}

/// One consumer of a heartbeat.
#[derive(Clone, Debug, PartialEq)]
pub struct ConsumerBeat {
    /// How it consumes.
    pub consume_type: ConsumeType,
    /// How the group divides messages.
    pub model: MessageModel,
    /// Java's name of where a new group starts, kept as text.
    pub from_where: Arc<str>,
    /// What it subscribes to; `None` when the heartbeat says that it left the list out.
    pub subscriptions: Option<Vec<Subscription>>,
    /// Fingerprint of the list, 0 when the client sends none.
    pub fingerprint: i32,
}

/// A client as the tools show it.
#[derive(Clone, Debug, PartialEq)]
pub struct Client {
    /// Its connection.
    pub conn: ConnectionId,
    /// `ip@instance` as it says itself.
    pub id: Arc<str>,
    /// Its address.
    pub peer: SocketAddr,
    /// Its language.
    pub language: LanguageCode,
    /// Its version ordinal.
    pub version: i32,
    /// Its last heartbeat, monotonic µs.
    pub seen_us: u64,
    /// Its last heartbeat, ms since 1970.
    pub seen_ms: i64,
}

impl Client {
    /// The sender of a heartbeat.
    pub fn of(origin: &Origin, language: LanguageCode, version: i32, id: &str, now: reactor::Now) -> Self {
        Self {
            conn: origin.conn,
            id: id.into(),
            peer: origin.peer,
            language,
            version,
            seen_us: now.mono_us,
            seen_ms: now.wall_ms,
        }
    }
}

/// What a change of the tables calls for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// What the cores know of the group differs: a snapshot is due.
    pub publish: bool,
    /// Members or topics came or went: the members are to be told.
    pub notify: bool,
    /// The heartbeat's list is not the one that the broker holds: the client should send the whole list.
    pub send_list: bool,
}

#[derive(Debug)]
struct Member {
    client: Client,
    topics: Vec<Arc<str>>,
    fingerprint: i32,
}

/// A consumer group with members.
#[derive(Debug)]
pub struct ConsumerGroup {
    /// As the last heartbeat said.
    pub consume_type: ConsumeType,
    /// As the last heartbeat said.
    pub model: MessageModel,
    /// As the last heartbeat said.
    pub from_where: Arc<str>,
    /// By topic.
    pub subscriptions: BTreeMap<Arc<str>, Arc<Subscription>>,
    members: HashMap<ConnectionId, Member, FixedState>,
}

impl ConsumerGroup {
    /// The members, ordered by client id.
    pub fn clients(&self) -> Vec<&Client> {
        sorted(self.members.values().map(|m| &m.client))
    }

    /// What the cores are to know.
    pub fn for_snapshot(&self) -> GroupConsumers {
        GroupConsumers { model: self.model, subscriptions: self.subscriptions.clone() }
    }

    /// Takes a member's list; returns whether expressions and whether topics changed.
    fn subscribe(&mut self, conn: ConnectionId, list: Vec<Subscription>) -> (bool, bool) {
        let mut changed = false;
        let mut topics_changed = false;
        let topics: Vec<Arc<str>> = list.iter().map(|s| s.topic.clone()).collect();
        for s in list {
            let known = self.subscriptions.get(&s.topic);
            topics_changed |= known.is_none();
            if known.is_none_or(|old| s.version > old.version) {
                changed = true;
                self.subscriptions.insert(s.topic.clone(), Arc::new(s));
            }
        }
        if let Some(member) = self.members.get_mut(&conn) {
            member.topics = topics;
        }
        let dropped = self.drop_unnamed_topics();
        (changed || dropped, topics_changed || dropped)
    }

    fn drop_unnamed_topics(&mut self) -> bool {
        let before = self.subscriptions.len();
        let members = &self.members;
        self.subscriptions.retain(|topic, _| members.values().any(|m| m.topics.contains(topic)));
        self.subscriptions.len() != before
    }
}

/// The groups that a connection is in: as consumer, as producer.
type GroupsOf = (Vec<Arc<str>>, Vec<Arc<str>>);

/// All clients.
#[derive(Debug, Default)]
pub struct Clients {
    groups: BTreeMap<Arc<str>, ConsumerGroup>,
    producers: BTreeMap<Arc<str>, HashMap<ConnectionId, Client, FixedState>>,
    /// The connection of a producer by its client id: the one that was heard of last, if several say the same.
    producer_ids: HashMap<Arc<str>, ConnectionId, FixedState>,
    /// Grows with each producer that was chosen to be asked.
    turn_of_producers: usize,
    /// What to leave when a connection is gone.
    of_connection: HashMap<ConnectionId, GroupsOf, FixedState>,
}

impl Clients {
    /// A group with at least one member.
    pub fn group(&self, name: &str) -> Option<&ConsumerGroup> {
        self.groups.get(name)
    }

    /// All groups with members, by name.
    pub fn groups(&self) -> impl Iterator<Item = (&Arc<str>, &ConsumerGroup)> {
        self.groups.iter()
    }

    /// The member of a group with this client id.
    pub fn member(&self, group: &str, client_id: &str) -> Option<&Client> {
        self.groups.get(group)?.members.values().map(|m| &m.client).find(|c| &*c.id == client_id)
    }

    /// The producers of a group, ordered by client id; `None` for a group without any.
    pub fn producers(&self, group: &str) -> Option<Vec<&Client>> {
        self.producers.get(group).map(|p| sorted(p.values()))
    }

    /// The connection of the producer with this client id.
    pub fn producer_connection(&self, client_id: &str) -> Option<ConnectionId> {
        self.producer_ids.get(client_id).copied()
    }

    /// One producer of a group, another one each time.
    pub fn any_producer(&mut self, group: &str) -> Option<ConnectionId> {
        let all = sorted(self.producers.get(group)?.values());
        self.turn_of_producers = self.turn_of_producers.wrapping_add(1);
        let at = self.turn_of_producers % all.len().max(1);
        all.get(at).map(|client| client.conn)
    }

    /// All producer groups, by name.
    pub fn producer_groups(&self) -> impl Iterator<Item = (&Arc<str>, Vec<&Client>)> {
        self.producers.iter().map(|(name, p)| (name, sorted(p.values())))
    }

    /// A heartbeat names this client as consumer of a group.
    pub fn consumer(&mut self, group: &Arc<str>, client: Client, beat: ConsumerBeat) -> Change {
        let conn = client.conn;
        let new_group = !self.groups.contains_key(group);
        let entry = self.groups.entry(group.clone()).or_insert_with(|| ConsumerGroup {
            consume_type: beat.consume_type,
            model: beat.model,
            from_where: beat.from_where.clone(),
            subscriptions: BTreeMap::new(),
            members: HashMap::default(),
        });
        let model_changed = entry.model != beat.model;
        entry.consume_type = beat.consume_type;
        entry.model = beat.model;
        entry.from_where = beat.from_where;
        let known = entry.members.get_mut(&conn);
        let new_member = known.is_none();
        let old_fingerprint = match known {
            Some(member) => {
                member.client = client;
                member.fingerprint
            }
            None => {
                entry.members.insert(conn, Member { client, topics: Vec::new(), fingerprint: 0 });
                note(&mut self.of_connection.entry(conn).or_default().0, group);
                0
            }
        };
        let mut change = Change { publish: new_group || model_changed, notify: new_member, send_list: false };
        match beat.subscriptions {
            Some(list) => {
                let (changed, topics_changed) = entry.subscribe(conn, list);
                change.publish |= changed;
                change.notify |= topics_changed;
                change.send_list = !new_member && old_fingerprint != beat.fingerprint;
                if let Some(member) = entry.members.get_mut(&conn) {
                    member.fingerprint = beat.fingerprint;
                }
            }
            None => change.send_list = old_fingerprint != beat.fingerprint,
        }
        change
    }

    /// A heartbeat names this client as producer of a group.
    pub fn producer(&mut self, group: &Arc<str>, client: Client) {
        note(&mut self.of_connection.entry(client.conn).or_default().1, group);
        if self.producer_ids.get(&client.id) != Some(&client.conn) {
            self.producer_ids.insert(client.id.clone(), client.conn);
        }
        self.producers.entry(group.clone()).or_default().insert(client.conn, client);
    }

    /// A consumer leaves one group; its connection lives on. `None` when it was not in it.
    pub fn remove_consumer(&mut self, group: &str, conn: ConnectionId) -> Option<Change> {
        let entry = self.groups.get_mut(group)?;
        entry.members.remove(&conn)?;
        if let Some((consumer, _)) = self.of_connection.get_mut(&conn) {
            consumer.retain(|g| **g != *group);
        }
        let publish = if entry.members.is_empty() {
            self.groups.remove(group);
            true
        } else {
            entry.drop_unnamed_topics()
        };
        self.forget_if_empty(conn);
        Some(Change { publish, notify: true, send_list: false })
    }

    /// A producer leaves one group.
    pub fn remove_producer(&mut self, group: &str, conn: ConnectionId) {
        let mut id = None;
        if let Some(clients) = self.producers.get_mut(group) {
            id = clients.remove(&conn).map(|client| client.id);
            if clients.is_empty() {
                self.producers.remove(group);
            }
        }
        if let Some((_, producer)) = self.of_connection.get_mut(&conn) {
            producer.retain(|g| **g != *group);
            if let Some(id) = id.filter(|id| producer.is_empty() && self.producer_ids.get(id) == Some(&conn)) {
                self.producer_ids.remove(&id);
            }
        }
        self.forget_if_empty(conn);
    }

    /// A connection is gone. Returns the consumer groups that it left.
    pub fn close(&mut self, conn: ConnectionId) -> Vec<(Arc<str>, Change)> {
        let Some((consumer, producer)) = self.of_connection.get(&conn).cloned() else { return Vec::new() };
        for group in &producer {
            self.remove_producer(group, conn);
        }
        consumer
            .into_iter()
            .filter_map(|group| {
                let change = self.remove_consumer(&group, conn)?;
                Some((group, change))
            })
            .collect()
    }

    /// Drops members and producers whose last heartbeat is older than `expiry_us`. Returns the consumer groups that changed.
    pub fn expire(&mut self, now_us: u64, expiry_us: u64) -> Vec<(Arc<str>, Change)> {
        let old = |c: &Client| now_us.saturating_sub(c.seen_us) > expiry_us;
        let dead: Vec<(Arc<str>, ConnectionId)> = self
            .groups
            .iter()
            .flat_map(|(g, e)| e.members.values().filter(|m| old(&m.client)).map(|m| (g.clone(), m.client.conn)))
            .collect();
        let silent: Vec<(Arc<str>, ConnectionId)> = self
            .producers
            .iter()
            .flat_map(|(g, p)| p.values().filter(|c| old(c)).map(|c| (g.clone(), c.conn)))
            .collect();
        for (group, conn) in silent {
            self.remove_producer(&group, conn);
        }
        dead.into_iter()
            .filter_map(|(group, conn)| {
                let change = self.remove_consumer(&group, conn)?;
                Some((group, change))
            })
            .collect()
    }

    fn forget_if_empty(&mut self, conn: ConnectionId) {
        if self.of_connection.get(&conn).is_some_and(|(c, p)| c.is_empty() && p.is_empty()) {
            self.of_connection.remove(&conn);
        }
    }
}

fn note(groups: &mut Vec<Arc<str>>, group: &Arc<str>) {
    if !groups.contains(group) {
        groups.push(group.clone());
    }
}

fn sorted<'a>(clients: impl Iterator<Item = &'a Client>) -> Vec<&'a Client> {
    let mut all: Vec<_> = clients.collect();
    all.sort_by(|a, b| (&a.id, a.conn.slot).cmp(&(&b.id, b.conn.slot)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::CoreId;

    const MS: u64 = 1000;

    fn client(slot: u32, id: &str, at_ms: u64) -> Client {
        Client {
            conn: ConnectionId { core: CoreId(0), slot, generation: 1 },
            id: id.into(),
            peer: ([127, 0, 0, 1], 1000 + slot as u16).into(),
            language: LanguageCode::Java,
            version: 493,
            seen_us: at_ms * MS,
            seen_ms: at_ms as i64,
        }
    }

    fn sub(topic: &str, expression: &str, version: i64) -> Subscription {
        Subscription {
            topic: topic.into(),
            expression: expression.into(),
            expression_type: "TAG".into(),
            version,
            codes: vec![],
            tags: vec![],
            class_filter_mode: false,
            filter: None,
        }
    }

    fn beat(subscriptions: Option<Vec<Subscription>>, fingerprint: i32) -> ConsumerBeat {
        ConsumerBeat {
            consume_type: ConsumeType::Passively,
            model: MessageModel::Clustering,
            from_where: "CONSUME_FROM_LAST_OFFSET".into(),
            subscriptions,
            fingerprint,
        }
    }

    #[test]
    fn an_unchanged_heartbeat_changes_nothing() {
        let (mut clients, g) = (Clients::default(), Arc::<str>::from("g"));
        let first = clients.consumer(&g, client(1, "a", 0), beat(Some(vec![sub("t", "*", 7)]), 0));
        assert_eq!(first, Change { publish: true, notify: true, send_list: false });
        let second = clients.consumer(&g, client(1, "a", 30), beat(Some(vec![sub("t", "*", 7)]), 0));
        assert_eq!(second, Change::default());
        let newer = clients.consumer(&g, client(1, "a", 60), beat(Some(vec![sub("t", "A", 8)]), 0));
        assert_eq!(newer, Change { publish: true, ..Change::default() }, "a new expression is no change of membership");
        let older = clients.consumer(&g, client(1, "a", 60), beat(Some(vec![sub("t", "B", 6)]), 0));
        assert_eq!(older, Change::default());
        assert_eq!(&*clients.group("g").unwrap().subscriptions["t"].expression, "A");
    }

    #[test]
    fn topics_stay_while_any_member_names_them() {
        let (mut clients, g) = (Clients::default(), Arc::<str>::from("g"));
        clients.consumer(&g, client(1, "a", 0), beat(Some(vec![sub("t1", "*", 1)]), 0));
        let joined = clients.consumer(&g, client(2, "b", 0), beat(Some(vec![sub("t2", "*", 1)]), 0));
        assert!(joined.publish && joined.notify);
        assert_eq!(clients.group("g").unwrap().subscriptions.len(), 2);
        assert_eq!(
            clients.remove_consumer("g", client(1, "a", 0).conn),
            Some(Change { publish: true, notify: true, send_list: false })
        );
        let left = clients.group("g").unwrap();
        assert_eq!(left.subscriptions.keys().map(|t| &**t).collect::<Vec<_>>(), ["t2"]);
        assert_eq!(left.clients().len(), 1);
        assert_eq!(clients.remove_consumer("g", client(1, "a", 0).conn), None);
        assert_eq!(clients.close(client(2, "b", 0).conn).len(), 1);
        assert!(clients.group("g").is_none());
        assert!(clients.of_connection.is_empty());
    }

    #[test]
    fn fingerprints_ask_for_the_list_when_it_is_not_the_one_held() {
        let (mut clients, g) = (Clients::default(), Arc::<str>::from("g"));
        let list = || Some(vec![sub("t", "*", 1)]);
        assert!(clients.consumer(&g, client(1, "a", 0), beat(None, 101)).send_list, "nothing is known after a restart");
        assert!(clients.consumer(&g, client(1, "a", 0), beat(list(), 101)).send_list);
        assert!(!clients.consumer(&g, client(1, "a", 0), beat(None, 101)).send_list);
        assert!(clients.consumer(&g, client(1, "a", 0), beat(None, 102)).send_list);
        assert_eq!(clients.group("g").unwrap().subscriptions.len(), 1, "the old list stays");
    }

    #[test]
    fn a_silent_group_expires_though_its_connection_lives() {
        let (mut clients, ga, gb) = (Clients::default(), Arc::<str>::from("ga"), Arc::<str>::from("gb"));
        for g in [&ga, &gb] {
            clients.consumer(g, client(1, "a", 0), beat(Some(vec![sub("t", "*", 1)]), 0));
        }
        clients.producer(&ga, client(1, "a", 0));
        clients.consumer(&ga, client(1, "a", 100), beat(Some(vec![sub("t", "*", 1)]), 0));
        assert!(clients.expire(120 * MS, 120 * MS).is_empty());
        let gone = clients.expire(121 * MS, 120 * MS);
        assert_eq!(gone.iter().map(|(g, c)| (&**g, c.publish)).collect::<Vec<_>>(), [("gb", true)]);
        assert!(clients.group("ga").is_some() && clients.group("gb").is_none());
        assert!(clients.producers("ga").is_none());
    }
}
