//! Bodies of the answers, in the forms that Java's library writes.
//!
//! Role: values of the table to JSON. Invariants: names in alphabetical order; no white space (the Go client cuts address
//! lists by hand). It decides nothing.

use std::collections::BTreeMap;

use remoting::json::{Json, JsonRef, Key};

use crate::kv::Namespace;
use crate::table::{BrokerView, DataVersion, Route};

/// The body of a route. `standard`: number keys are quoted, for clients that read only standard JSON.
pub(crate) fn route(route: &Route<'_>, order: Option<&str>, standard: bool) -> Vec<u8> {
    let queues = route.brokers.iter().map(|(view, queues)| {
        Json::bean([
            ("brokerName", view.name.into()),
            ("perm", queues.perm.into()),
            ("readQueueNums", queues.read.into()),
            ("topicSysFlag", queues.sys_flag.into()),
            ("writeQueueNums", queues.write.into()),
        ])
    });
    let filter_servers = route
        .filter_servers
        .iter()
        .map(|(address, servers)| ((*address).to_owned(), Json::list(servers.iter().map(String::as_str))));
    let mappings = route.mappings.iter().filter_map(|(owner, mapping)| {
        let mapping = JsonRef::parse(mapping.as_bytes()).ok()?;
        Some((
            (*owner).to_owned(),
            if standard { quoted_keys(Json::from_ref(mapping)) } else { Json::from_ref(mapping) },
        ))
    });
    Json::bean([
        ("brokerDatas", Json::list(route.brokers.iter().map(|(view, _)| broker(view, standard)))),
        ("filterServerTable", Json::map(filter_servers)),
        ("orderTopicConf", order.map_or(Json::Null, Json::from)),
        ("queueDatas", Json::list(queues)),
        ("topicQueueMappingByBroker", if route.mappings.is_empty() { Json::Null } else { Json::map(mappings) }),
    ])
    .to_vec()
}

/// The body of the cluster info: number keys without quotes, also for new clients.
pub(crate) fn cluster<'a>(brokers: impl Iterator<Item = BrokerView<'a>>) -> Vec<u8> {
    let mut table = Vec::new();
    let mut clusters = BTreeMap::<&str, Vec<&str>>::new();
    for view in brokers {
        table.push((view.name.to_owned(), broker(&view, false)));
        clusters.entry(view.cluster).or_default().push(view.name);
    }
    let clusters = clusters.into_iter().map(|(cluster, names)| (cluster.to_owned(), Json::list(names)));
    Json::bean([("brokerAddrTable", Json::map(table)), ("clusterAddrTable", Json::map(clusters))]).to_vec()
}

/// The body of a member group.
pub(crate) fn member_group(cluster: &str, name: &str, view: Option<&BrokerView<'_>>) -> Vec<u8> {
    let addresses = view.map_or(Json::Object(Vec::new()), |view| addresses(view, false));
    let group = Json::bean([("brokerAddrs", addresses), ("brokerName", name.into()), ("cluster", cluster.into())]);
    Json::bean([("brokerMemberGroup", group)]).to_vec()
}

/// The body of a list of topics.
pub(crate) fn topic_list<'a>(topics: impl IntoIterator<Item = &'a str>, broker_address: Option<&str>) -> Vec<u8> {
    let address = broker_address.map_or(Json::Null, Json::from);
    Json::bean([("brokerAddr", address), ("topicList", Json::list(topics))]).to_vec()
}

/// The body of a namespace of key values.
pub(crate) fn kv_table(entries: &Namespace) -> Vec<u8> {
    Json::bean([("table", texts(entries))]).to_vec()
}

/// The content of `kvConfig.json`.
pub(crate) fn kv_file(table: &BTreeMap<String, Namespace>) -> Vec<u8> {
    let table = Json::map(table.iter().map(|(namespace, entries)| (namespace.clone(), texts(entries))));
    Json::bean([("configTable", table)]).to_vec()
}

/// A version of topics.
pub(crate) fn data_version(version: DataVersion) -> Vec<u8> {
    Json::bean([
        ("counter", version.counter.into()),
        ("stateVersion", version.state_version.into()),
        ("timestamp", version.timestamp_ms.into()),
    ])
    .to_vec()
}

fn broker(view: &BrokerView<'_>, standard: bool) -> Json {
    Json::bean([
        ("brokerAddrs", addresses(view, standard)),
        ("brokerName", view.name.into()),
        ("cluster", view.cluster.into()),
        ("enableActingMaster", view.acting_master.into()),
        ("zoneName", view.zone.map_or(Json::Null, Json::from)),
    ])
}

fn addresses(view: &BrokerView<'_>, standard: bool) -> Json {
    let key = |id: i64| if standard { Key::from(id.to_string()) } else { Key::Int(id) };
    Json::Object(view.addresses.iter().map(|(id, address)| (key(*id), (*address).into())).collect())
}

fn texts(entries: &Namespace) -> Json {
    Json::map(entries.iter().map(|(key, value)| (key.clone(), value.as_str())))
}

fn quoted_keys(json: Json) -> Json {
    match json {
        Json::Object(members) => {
            Json::Object(members.into_iter().map(|(key, value)| (quoted(key), quoted_keys(value))).collect())
        }
        Json::List(items) => Json::List(items.into_iter().map(quoted_keys).collect()),
        other => other,
    }
}

fn quoted(key: Key) -> Key {
    match key {
        Key::Int(number) => Key::from(number.to_string()),
        other => other,
    }
}
