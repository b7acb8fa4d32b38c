//! Metadata for tests.

use crate::config::LiveSettings;
use crate::services::pop::request::{PopFound, PopHeader, PopRun, RunKind};
use crate::snapshot::{Group, QueuePlaces, Snapshot, Table, Topic};
use crate::work::MessageFilter;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::ShardId;

/// A topic of four queues that everybody may use.
pub fn topic(name: &str) -> Topic {
    Topic {
        name: name.into(),
        read_queues: 4,
        write_queues: 4,
        perm: 6,
        sys_flag: 0,
        multi_tag: false,
        order: false,
        attributes: BTreeMap::new(),
        places: QueuePlaces::First,
    }
}

/// A group with Java's defaults.
pub fn group(name: &str) -> Group {
    Group {
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
        retry_policy: "".into(),
        subscription_data_set: None,
        attributes: BTreeMap::new(),
    }
}

/// A snapshot of these.
pub fn snapshot(topics: impl IntoIterator<Item = Topic>, groups: impl IntoIterator<Item = Group>) -> Snapshot {
    let mut snapshot = Snapshot {
        version: 1,
        topics: Table::default(),
        groups: Table::default(),
        consumers: Table::default(),
        resets: Table::default(),
        forbidden: Arc::default(),
        settings: Arc::new(LiveSettings::default()),
        delays: Arc::default(),
        deleting: Arc::default(),
        light_queues: false,
    };
    for topic in topics {
        snapshot.topics.insert(topic.name.clone(), Arc::new(topic));
    }
    for group in groups {
        snapshot.groups.insert(group.name.clone(), Arc::new(group));
    }
    snapshot
}

/// A POP of any queue that has visited nothing.
pub fn pop_run(topic_name: &str, group_name: &str) -> PopRun {
    PopRun {
        kind: RunKind::Pop,
        header: PopHeader { queue_id: -1, max_messages: 32, ..PopHeader::default() },
        topic: Arc::new(topic(topic_name)),
        group: Arc::new(group(group_name)),
        retries: SmallVec::new(),
        filter: MessageFilter::All,
        pop_time_ms: 0,
        revive_queue: 0,
        turn: 0,
        retry_first: false,
        shards: SmallVec::from_slice(&[ShardId(0)]),
        visited: 0,
        place: (0, 0),
        looks: 0,
        found: PopFound::default(),
    }
}
