//! The route table: single rules, and random histories against a slow model of the same rules.

use std::collections::{BTreeMap, BTreeSet};

use namesrv::table::{
    DataVersion, Identity, Merge, PERM_WRITE, Refused, Registered, Registration, RouteTable, TopicMap, TopicQueues,
    merge,
};
use proptest::prelude::*;
use reactor::{ConnectionId, CoreId};

fn connection(slot: u32) -> ConnectionId {
    ConnectionId { core: CoreId(0), slot, generation: 1 }
}

fn who(name: &str, id: i64, address: &str) -> Identity {
    Identity { cluster: "c".into(), name: name.into(), id, address: address.into() }
}

fn queues(count: i32) -> TopicQueues {
    TopicQueues { read: count, write: count, perm: 6, sys_flag: 0 }
}

fn topics(names: &[&str], count: i32) -> TopicMap {
    names.iter().map(|name| ((*name).into(), queues(count))).collect()
}

fn registration(who: Identity, slot: u32, version: DataVersion, topic_count: usize, sequence: u64) -> Registration {
    Registration {
        who,
        ha_address: "ha".into(),
        zone: None,
        timeout_ms: 1_000,
        acting_master: None,
        version,
        topic_count,
        filter_servers: None,
        mappings: Vec::new(),
        sequence,
        connection: connection(slot),
    }
}

fn version(state_version: i64, counter: i64) -> DataVersion {
    DataVersion { state_version, timestamp_ms: 1, counter }
}

/// A table with a counter of arrivals.
#[derive(Default)]
struct Desk {
    table: RouteTable,
    arrivals: u64,
}

impl Desk {
    fn begin(&mut self, who: &Identity, slot: u32, version: DataVersion, topics: TopicMap) -> (Registration, Merge) {
        self.arrivals += 1;
        let new = registration(who.clone(), slot, version, topics.len(), self.arrivals);
        let merge = merge(self.table.merge_base(who, false), version, topics);
        (new, merge)
    }

    fn register(
        &mut self,
        who: &Identity,
        slot: u32,
        version: DataVersion,
        topics: TopicMap,
    ) -> Result<Registered, Refused> {
        let (new, merge) = self.begin(who, slot, version, topics);
        let told = self.table.register(0, new, merge);
        self.table.validate();
        told
    }

    fn addresses(&self, topic: &str) -> BTreeMap<String, BTreeMap<i64, String>> {
        let route = self.table.route(topic, false).unwrap_or_default();
        let view = |(view, _): &(namesrv::table::BrokerView<'_>, TopicQueues)| {
            (view.name.to_owned(), view.addresses.iter().map(|(id, address)| (*id, (*address).to_owned())).collect())
        };
        route.brokers.iter().map(view).collect()
    }

    fn queues(&self, topic: &str, broker: &str) -> Option<TopicQueues> {
        let route = self.table.route(topic, false)?;
        route.brokers.iter().find(|(view, _)| view.name == broker).map(|(_, queues)| *queues)
    }
}

#[test]
fn only_the_holder_of_a_registration_ends_it() {
    let mut desk = Desk::default();
    let b = who("b", 0, "a1");
    desk.register(&b, 1, version(0, 1), topics(&["t", "u"], 4)).unwrap();
    desk.register(&b, 2, version(0, 1), topics(&["t", "u"], 4)).unwrap();
    assert!(desk.table.connection_closed(connection(1)).is_empty(), "the old connection has lost it");
    assert_eq!(desk.addresses("t").len(), 1);
    desk.register(&b, 3, version(0, 1), topics(&["t", "u"], 4)).unwrap();
    assert!(!desk.table.unregister(&b, connection(2)), "late: connection 3 has registered since");
    assert!(!desk.table.unregister(&who("b", 0, "a2"), connection(3)), "another address");
    assert!(!desk.table.unregister(&who("b", 1, "a1"), connection(3)), "another id");
    assert!(!desk.table.unregister(&Identity { cluster: "d".into(), ..b.clone() }, connection(3)), "another cluster");
    assert!(desk.table.unregister(&b, connection(9)), "a tool that never registered it may");
    assert!(desk.addresses("t").is_empty());
    desk.table.validate();
}

#[test]
fn a_lower_state_version_from_another_address_is_without_effect() {
    let mut desk = Desk::default();
    desk.register(&who("b", 0, "a1"), 1, version(5, 1), topics(&["t", "u"], 4)).unwrap();
    let ignored = desk.register(&who("b", 0, "a2"), 2, version(4, 9), topics(&["t", "u"], 8));
    assert_eq!(ignored, Ok(Registered::default()));
    assert_eq!(desk.addresses("t")["b"][&0], "a1");
    assert_eq!(desk.queues("t", "b"), Some(queues(4)));
    desk.register(&who("b", 0, "a2"), 2, version(6, 1), topics(&["t", "u"], 8)).unwrap();
    assert_eq!(desk.addresses("t")["b"], BTreeMap::from([(0, "a2".to_owned())]));
    assert!(desk.table.connection_closed(connection(1)).is_empty());
}

#[test]
fn slaves_stand_beside_their_master_and_may_become_it() {
    let mut desk = Desk::default();
    desk.register(&who("b", 0, "m"), 1, version(0, 1), topics(&["t", "u"], 4)).unwrap();
    let told = desk.register(&who("b", 1, "s"), 2, version(0, 1), topics(&["x", "y"], 4)).unwrap();
    assert_eq!(told, Registered { ha_address: Some("ha".into()), master_address: Some("m".into()) });
    assert!(desk.table.route("x", false).is_none(), "topics are those of the master");
    assert!(desk.table.unregister(&who("b", 0, "m"), connection(1)));
    assert_eq!(desk.addresses("t")["b"], BTreeMap::from([(1, "s".to_owned())]));
    desk.register(&who("b", 0, "s"), 2, version(0, 2), topics(&["t", "u"], 2)).unwrap();
    assert_eq!(desk.addresses("t")["b"], BTreeMap::from([(0, "s".to_owned())]));
}

#[test]
fn an_acting_master_cannot_be_written() {
    let mut desk = Desk::default();
    for (id, address) in [(0, "m"), (2, "s")] {
        let (new, merge) = desk.begin(&who("b", id, address), id as u32, version(0, 1), topics(&["t", "u"], 4));
        desk.table.register(0, Registration { acting_master: Some(true), ..new }, merge).unwrap();
    }
    assert_eq!(desk.queues("t", "b").unwrap().perm, 6);
    desk.table.connection_closed(connection(0));
    assert_eq!(desk.queues("t", "b").unwrap().perm, 4);
    let shown = desk.table.route("t", true).unwrap();
    assert_eq!(shown.brokers[0].0.addresses, BTreeMap::from([(0, "s")]));
}

#[test]
fn a_name_belongs_to_one_cluster() {
    let mut desk = Desk::default();
    let here = who("b", 0, "a1");
    desk.register(&here, 1, version(0, 1), topics(&["t", "u"], 4)).unwrap();
    let there = |address: &str| Identity { cluster: "d".into(), address: address.into(), ..here.clone() };
    let refused = desk.register(&there("a2"), 2, version(0, 1), topics(&["t", "u"], 8));
    assert_eq!(refused, Err(Refused::NameOfAnotherCluster("c".into())));
    assert_eq!(desk.queues("t", "b"), Some(queues(4)));
    desk.register(&there("a1"), 2, version(0, 1), topics(&["u", "v"], 8)).unwrap();
    assert_eq!(desk.queues("t", "b"), None, "the broker itself moved, its old topics are gone");
    assert_eq!(desk.table.broker("b").unwrap().cluster, "d");
}

#[test]
fn topics_are_merged_by_version() {
    let mut desk = Desk::default();
    let b = who("b", 0, "a1");
    let one = desk.register(&b, 1, version(0, 1), topics(&["t"], 4));
    assert_eq!(one, Err(Refused::UnknownBrokerWithOneTopic));
    desk.register(&b, 1, version(0, 1), topics(&["t", "u"], 4)).unwrap();
    desk.register(&b, 1, version(0, 2), topics(&["t"], 7)).unwrap();
    assert_eq!((desk.queues("t", "b"), desk.queues("u", "b")), (Some(queues(7)), Some(queues(4))));
    desk.table.delete_topic("u", Some("other"));
    assert!(desk.queues("u", "b").is_some());
    desk.table.delete_topic("u", None);
    assert!(desk.queues("u", "b").is_none());
    desk.register(&b, 1, version(0, 2), topics(&["t", "u"], 9)).unwrap();
    assert_eq!((desk.queues("t", "b"), desk.queues("u", "b")), (Some(queues(7)), Some(queues(9))));
    let dropped = merge(desk.table.merge_base(&b, true), version(0, 3), topics(&["x", "y"], 1));
    desk.table.register(0, registration(b, 1, version(0, 3), 2, 99), dropped).unwrap();
    assert_eq!(desk.table.topics(None, |_| true).into_iter().collect::<BTreeSet<_>>(), BTreeSet::from(["x", "y"]));
}

#[test]
fn a_merge_that_was_overtaken_is_done_again() {
    let mut desk = Desk::default();
    let b = who("b", 0, "a1");
    desk.register(&b, 1, version(0, 1), topics(&["t", "u"], 4)).unwrap();
    let (large, merge) = desk.begin(&b, 1, version(0, 2), topics(&["v", "w"], 8));
    desk.table.register_topic("x", &[("b".into(), queues(1))]).unwrap();
    assert_eq!(desk.table.set_write_permission("b", false), 3);
    desk.table.register(0, large, merge).unwrap();
    assert_eq!(desk.queues("x", "b").unwrap().perm & PERM_WRITE, 0, "the change between is kept");
    assert_eq!(desk.queues("v", "b"), Some(queues(8)));
    let (slow, slow_merge) = desk.begin(&b, 1, version(0, 3), topics(&["t", "u"], 1));
    desk.register(&b, 2, version(0, 4), topics(&["t", "u"], 2)).unwrap();
    desk.table.register(0, slow, slow_merge).unwrap();
    assert_eq!(desk.queues("t", "b"), Some(queues(2)), "what arrived earlier never replaces what arrived later");
    assert!(desk.table.connection_closed(connection(1)).is_empty());
}

#[test]
fn the_silent_expire() {
    let mut desk = Desk::default();
    desk.register(&who("b", 0, "a1"), 1, version(0, 1), topics(&["t", "u"], 4)).unwrap();
    desk.register(&who("c", 0, "a2"), 1, version(0, 1), topics(&["t", "u"], 4)).unwrap();
    assert!(desk.table.seen(900_000, "c", "a2") && !desk.table.seen(0, "c", "a3") && !desk.table.seen(0, "d", "a1"));
    assert_eq!(desk.table.expire(1_000_000), (vec![], vec![]));
    let (names, connections) = desk.table.expire(1_000_001);
    assert_eq!((names, connections), (vec!["b".into()], vec![]), "the connection still holds c");
    let (names, connections) = desk.table.expire(1_900_001);
    assert_eq!((names, connections), (vec!["c".into()], vec![connection(1)]));
    assert!(desk.addresses("t").is_empty());
}

#[test]
fn a_connection_that_comes_and_goes_is_forgotten() {
    let mut desk = Desk::default();
    for round in 0..10_000 {
        let b = who(&format!("b{round}"), 0, "a");
        desk.register(&b, 1, version(0, 1), topics(&["t", "u"], 1)).unwrap();
        assert!(desk.table.unregister(&b, connection(1)));
    }
    let text = format!("{:?}", desk.table);
    assert!(text.len() < 2_000, "{} bytes of state", text.len());
}

#[derive(Clone, Debug)]
enum Event {
    Register { name: u8, id: i64, address: u8, slot: u32, state: i64, counter: i64, topics: BTreeSet<u8> },
    Unregister { name: u8, id: i64, address: u8, slot: u32 },
    Close { slot: u32 },
    Delete { topic: u8 },
}

fn event() -> impl Strategy<Value = Event> {
    let place = (0u8..2, 0i64..3, 0u8..3, 0u32..4);
    prop_oneof![
        4 => (place.clone(), 0i64..3, 0i64..3, prop::collection::btree_set(0u8..6, 2..5)).prop_map(
            |((name, id, address, slot), state, counter, topics)| Event::Register {
                name, id, address, slot, state, counter, topics
            }
        ),
        1 => place.prop_map(|(name, id, address, slot)| Event::Unregister { name, id, address, slot }),
        1 => (0u32..4).prop_map(|slot| Event::Close { slot }),
        1 => (0u8..6).prop_map(|topic| Event::Delete { topic }),
    ]
}

/// The same rules over plain tables, written for clarity.
#[derive(Default)]
struct Model {
    members: BTreeMap<(u8, i64), (u8, u32, i64, i64)>,
    topics: BTreeMap<u8, BTreeMap<u8, i64>>,
    past: BTreeSet<(u32, u8, i64)>,
}

impl Model {
    fn apply(&mut self, event: &Event) {
        match event {
            Event::Register { name, id, address, slot, state, counter, topics } => {
                let known = self.members.get(&(*name, *id)).copied();
                if known.is_some_and(|(old, _, old_state, _)| old != *address && old_state > *state) {
                    return;
                }
                self.past.insert((*slot, *name, *id));
                let changed = known.is_none_or(|(a, _, s, c)| a != *address || s != *state || c != *counter);
                self.members.retain(|(n, i), member| n != name || member.0 != *address || i == id);
                self.members.insert((*name, *id), (*address, *slot, *state, *counter));
                if *id == 0 {
                    let table = self.topics.entry(*name).or_default();
                    for topic in topics {
                        if changed || !table.contains_key(topic) {
                            table.insert(*topic, *counter);
                        }
                    }
                }
            }
            Event::Unregister { name, id, address, slot } => {
                let member = self.members.get(&(*name, *id)).copied();
                if let Some((known, holder, ..)) = member
                    && known == *address
                    && (holder == *slot || !self.past.contains(&(*slot, *name, *id)))
                {
                    self.members.remove(&(*name, *id));
                }
            }
            Event::Close { slot } => {
                self.members.retain(|_, member| member.1 != *slot);
                self.past.retain(|(past, ..)| past != slot);
            }
            Event::Delete { topic } => self.topics.values_mut().for_each(|topics| {
                topics.remove(topic);
            }),
        }
        let members = &self.members;
        self.topics.retain(|name, _| members.keys().any(|(n, _)| n == name));
    }

    fn addresses(&self, topic: u8) -> BTreeMap<String, BTreeMap<i64, String>> {
        let mut shown = BTreeMap::new();
        for (name, _) in self.topics.iter().filter(|(_, topics)| topics.contains_key(&topic)) {
            let of_name = self.members.iter().filter(|((n, _), _)| n == name);
            let addresses = of_name.map(|((_, id), member)| (*id, format!("a{}", member.0))).collect();
            shown.insert(format!("b{name}"), addresses);
        }
        shown
    }
}

proptest! {
    #[test]
    fn random_histories_agree_with_the_model(events in prop::collection::vec(event(), 1..60)) {
        let mut desk = Desk::default();
        let mut model = Model::default();
        for event in &events {
            match event {
                Event::Register { name, id, address, slot, state, counter, topics } => {
                    let who = who(&format!("b{name}"), *id, &format!("a{address}"));
                    let map = topics.iter().map(|topic| (format!("t{topic}").into(), queues(*counter as i32))).collect();
                    desk.register(&who, *slot, version(*state, *counter), map).unwrap();
                }
                Event::Unregister { name, id, address, slot } => {
                    desk.table.unregister(&who(&format!("b{name}"), *id, &format!("a{address}")), connection(*slot));
                }
                Event::Close { slot } => drop(desk.table.connection_closed(connection(*slot))),
                Event::Delete { topic } => desk.table.delete_topic(&format!("t{topic}"), None),
            }
            desk.table.validate();
            model.apply(event);
            for topic in 0..6u8 {
                prop_assert_eq!(desk.addresses(&format!("t{topic}")), model.addresses(topic), "t{} after {:?}", topic, event);
                for (name, topics) in &model.topics {
                    let shown = desk.queues(&format!("t{topic}"), &format!("b{name}"));
                    prop_assert_eq!(shown.map(|q| i64::from(q.read)), topics.get(&topic).copied());
                }
            }
        }
    }
}
