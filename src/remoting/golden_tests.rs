//! Frames and config files of the 5.4.0 reference and of real clients (`golden/`) against our codecs.

use crate::bodies::{self, Body};
use crate::command::Command;
use crate::frame::SerializeType;
use crate::json::{Json, JsonRef};
use crate::scan::{Fields, scan};
use message::fuzz_driver::from_hex;
use message::record::RecordView;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

fn files(folder: &Path, extension: &str) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), std::fs::read(&path).unwrap()))
        .collect();
    files.sort();
    files
}

/// All golden frames: `client.code.number.request` or `.response`, and the frame.
pub(crate) fn frames() -> Vec<(String, Vec<u8>)> {
    files(&folder().join("frames"), "hex").into_iter().map(|(name, text)| (name, from_hex(&text).unwrap())).collect()
}

/// The golden config files, pretty JSON.
pub(crate) fn config_files() -> Vec<(String, Vec<u8>)> {
    files(&folder().join("config"), "json")
}

#[test]
fn what_java_wrote_is_written_again_byte_for_byte() {
    let mut checked = 0;
    for (name, bytes) in frames() {
        let command = Command::decode(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let by_java =
            command.language == crate::LanguageCode::Java && !name.starts_with("raw.") || command.is_response();
        if by_java && command.serialize_type == SerializeType::Json {
            assert_eq!(String::from_utf8_lossy(&command.to_frame()), String::from_utf8_lossy(&bytes), "{name}");
            checked += 1;
        }
    }
    assert!(checked > 150, "{checked}");
}

#[test]
fn the_scanner_takes_every_golden_frame() {
    for (name, bytes) in frames() {
        crate::fuzz::frame(&bytes);
        let scanned = scan(&bytes).unwrap();
        let kind = match (name.contains(".response"), scanned.code) {
            (false, 10 | 310 | 320) => matches!(scanned.fields, Fields::Send(_)),
            (false, 11 | 361) => matches!(scanned.fields, Fields::Pull(_)),
            _ => scanned.fields == Fields::Other,
        };
        assert!(kind, "{name}: {scanned:?}");
    }
}

/// The same members in one order, so that tables of any order compare.
fn sorted(value: Json) -> Json {
    match value {
        Json::List(items) => {
            let mut items: Vec<_> = items.into_iter().map(sorted).collect();
            items.sort_by_cached_key(Json::to_vec);
            Json::List(items)
        }
        Json::Object(members) => {
            let mut members: Vec<_> = members.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            members.sort_by_cached_key(|(key, _)| format!("{key:?}"));
            Json::Object(members)
        }
        other => other,
    }
}

/// Reads a golden body as `T`, writes it, and compares: nothing is lost, added, renamed or quoted otherwise.
fn same<T: Body>(name: &str, text: &[u8]) {
    let body = T::decode(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    let ours = sorted(body.to_json()).to_vec();
    let theirs = sorted(Json::from_ref(JsonRef::parse(text).unwrap())).to_vec();
    assert_eq!(String::from_utf8_lossy(&ours), String::from_utf8_lossy(&theirs), "{name}");
}

#[test]
fn bodies_of_the_reference_keep_their_shape() {
    let mut checked = std::collections::BTreeSet::new();
    for (name, bytes) in frames() {
        let body = Command::decode(&bytes).unwrap().body;
        let parts: Vec<&str> = name.split('.').collect();
        if !body.starts_with(b"{") {
            continue;
        }
        let check: fn(&str, &[u8]) = match (parts[1], parts[3]) {
            ("103", "request") => same::<bodies::RegisterBrokerBody>,
            ("105", "response") => same_route,
            ("106", "response") => same::<bodies::ClusterInfo>,
            ("206" | "304" | "305" | "343", "response") => same::<bodies::TopicList>,
            ("200", "request") | ("352", "response") => same::<bodies::SubscriptionGroupConfig>,
            ("202", "response") => same::<bodies::TopicStatsTable>,
            ("203", "response") => same::<bodies::ConsumerConnection>,
            ("204", "response") => same::<bodies::ProducerConnection>,
            ("208", "response") => same::<bodies::ConsumeStats>,
            ("21", "response") => same::<bodies::TopicConfigWrapper>,
            ("220", "request") | ("222", "response") => same::<bodies::ResetOffsetTable>,
            ("223", "response") => same::<bodies::ConsumerStatus>,
            ("28", "response") => same::<bodies::KvTable>,
            ("300", "response") => same::<bodies::GroupList>,
            ("303", "response") => same::<bodies::ConsumeTimeSpans>,
            ("321", "response") => same::<bodies::ConsumeQueueData>,
            ("322", "request" | "response") => same::<bodies::DataVersion>,
            ("328", "response") => same::<bodies::ProducerTable>,
            ("34", "request") if parts[0] == "java" => same::<bodies::HeartbeatData>,
            ("345", "response") => same::<bodies::QuerySubscription>,
            ("351", "response") => same::<bodies::TopicConfig>,
            ("38", "response") => same::<bodies::ConsumerList>,
            ("41", "response") => same::<bodies::LockBatchResponse>,
            ("43", "response") => same::<bodies::ConsumerOffsetTable>,
            ("901", "response") => same::<bodies::BrokerMemberGroupBody>,
            _ => continue,
        };
        check(&name, &body);
        checked.insert(parts[1].to_owned());
    }
    assert!(checked.len() >= 24, "{checked:?}");
}

/// A route has quoted broker ids when the client asked for standard JSON.
fn same_route(name: &str, text: &[u8]) {
    let route = bodies::TopicRouteData::decode(text).unwrap();
    let quoted = text.windows(16).any(|part| part == b"\"brokerAddrs\":{\"");
    assert_eq!(String::from_utf8_lossy(&route.encode_for(quoted)), String::from_utf8_lossy(text), "{name}");
}

#[test]
fn heartbeats_of_the_go_client() {
    let (_, bytes) = frames().into_iter().find(|(name, _)| name == "go.34.2.request").unwrap();
    let heartbeat = bodies::HeartbeatData::decode(&Command::decode(&bytes).unwrap().body).unwrap();
    assert!(!heartbeat.client_id.is_empty());
    assert!(heartbeat.producer_data_set.len() + heartbeat.consumer_data_set.len() > 0, "{heartbeat:?}");
}

#[test]
fn config_files_of_the_reference() {
    for (name, text) in config_files() {
        let tree = Json::from_ref(JsonRef::parse(&text).unwrap());
        assert_eq!(String::from_utf8_lossy(&tree.to_pretty()), String::from_utf8_lossy(&text), "{name}");
        match name.as_str() {
            "topics" => same::<bodies::TopicTable>(&name, &text),
            "subscriptionGroup" => same::<bodies::GroupTable>(&name, &text),
            "consumerOffset" => same::<bodies::ConsumerOffsetTable>(&name, &text),
            "delayOffset" => same::<bodies::DelayOffsetTable>(&name, &text),
            other => panic!("{other} has no type"),
        }
    }
    let delay = &config_files()[1].1;
    assert_eq!(bodies::DelayOffsetTable::decode(delay).unwrap().encode_pretty(), *delay);
}

#[test]
fn pulled_bodies_are_records() {
    let mut records = 0;
    for (_, bytes) in frames().iter().filter(|(name, _)| name.contains(".11.") && name.ends_with("response")) {
        let body = Command::decode(bytes).unwrap().body;
        let mut rest = &body[..];
        while !rest.is_empty() {
            let record = RecordView::parse_checked(rest).unwrap();
            rest = &rest[record.size() as usize..];
            records += 1;
        }
    }
    assert!(records > 0);
}
