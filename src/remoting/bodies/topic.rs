//! Topics: their configuration, versions of tables, the tables themselves.

use super::Body;
use super::bean::{bean, names};
use crate::json::{Json, JsonRef};
use std::collections::BTreeMap;

names! {
    /// How many tags a message of a topic may have.
    TopicFilterType {
        /// One.
        SingleTag "SINGLE_TAG",
        /// Several.
        MultiTag "MULTI_TAG",
    }
}

bean! {
    /// The configuration of a topic.
    TopicConfig {
        /// Free settings, such as `message.type`.
        attributes: BTreeMap<String, String> = "attributes",
        /// Whether it is an order topic.
        order: bool = "order",
        /// 4 readable, 2 writable, 1 inherited, 8 priority.
        perm: i32 = "perm" or 6,
        /// Queues that are read.
        read_queue_nums: i32 = "readQueueNums" or 16,
        /// How many tags a message may have.
        topic_filter_type: TopicFilterType = "topicFilterType",
        /// Name.
        topic_name: String = "topicName",
        /// 1 unit, 2 unit subscription.
        topic_sys_flag: i32 = "topicSysFlag",
        /// Queues that are written.
        write_queue_nums: i32 = "writeQueueNums" or 16,
    }
}

impl TopicConfig {
    /// A topic with this many queues for reading and writing.
    #[must_use]
    pub fn new(topic_name: impl Into<String>, queues: i32) -> Self {
        Self { topic_name: topic_name.into(), read_queue_nums: queues, write_queue_nums: queues, ..Self::default() }
    }

    /// The line of a compressed registration: blank separated.
    #[must_use]
    pub fn to_line(&self) -> String {
        format!(
            "{} {} {} {} {} {}",
            self.topic_name,
            self.read_queue_nums,
            self.write_queue_nums,
            self.perm,
            self.topic_filter_type.name(),
            String::from_utf8_lossy(&self.attributes.encode())
        )
    }

    /// Reads such a line; `None` when it is none. Attributes that do not parse are left out, as in Java.
    #[must_use]
    pub fn from_line(line: &str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let topic_name = words.next()?.to_owned();
        let mut number = || words.next()?.parse().ok();
        let (read_queue_nums, write_queue_nums, perm) = (number()?, number()?, number()?);
        let topic_filter_type = TopicFilterType::from_name(words.next()?)?;
        let attributes = words.next().and_then(|json| BTreeMap::decode(json.as_bytes()).ok()).unwrap_or_default();
        Some(Self {
            attributes,
            perm,
            read_queue_nums,
            topic_filter_type,
            topic_name,
            write_queue_nums,
            ..Self::default()
        })
    }
}

bean! {
    /// The version of a table: equal when all three numbers are.
    DataVersion {
        /// Counts changes.
        counter: i64 = "counter",
        /// Counts changes of role.
        state_version: i64 = "stateVersion",
        /// Time of the last change, ms since 1970.
        timestamp_ms: i64 = "timestamp",
    }
}

impl Eq for DataVersion {}

impl DataVersion {
    /// The version after one more change at `now_ms`.
    pub fn advance(&mut self, now_ms: i64) {
        self.timestamp_ms = now_ms;
        self.counter = self.counter.wrapping_add(1);
    }
}

bean! {
    /// All topics of a broker as it tells them to name servers and slaves (21, 103).
    TopicConfigWrapper {
        /// Version of the topics.
        data_version: DataVersion = "dataVersion",
        /// Version of the static-topic mappings.
        mapping_data_version: Option<DataVersion> = "mappingDataVersion",
        /// The topics by name.
        topic_config_table: BTreeMap<String, TopicConfig> = "topicConfigTable",
        /// Static-topic mappings in detail, kept as they are.
        topic_queue_mapping_detail_map: Option<Json> = "topicQueueMappingDetailMap",
        /// Static-topic mappings in short, kept as they are.
        topic_queue_mapping_info_map: Option<Json> = "topicQueueMappingInfoMap",
    }
}

impl TopicConfigWrapper {
    /// What a broker without static topics says.
    #[must_use]
    pub fn new(data_version: DataVersion, topics: BTreeMap<String, TopicConfig>) -> Self {
        Self {
            mapping_data_version: Some(DataVersion { counter: 0, ..data_version.clone() }),
            data_version,
            topic_config_table: topics,
            topic_queue_mapping_detail_map: Some(Json::Object(Vec::new())),
            topic_queue_mapping_info_map: Some(Json::Object(Vec::new())),
        }
    }
}

bean! {
    /// The file `topics.json`.
    TopicTable {
        /// Version of the topics.
        data_version: DataVersion = "dataVersion",
        /// The topics by name.
        topic_config_table: BTreeMap<String, TopicConfig> = "topicConfigTable",
    }
}

bean! {
    /// Topics to create or update (18).
    TopicConfigList {
        /// The topics.
        topic_config_list: Vec<TopicConfig> = "topicConfigList",
    }
}

/// The version of a body that is a [`DataVersion`] alone; `None` when it is none (322).
#[must_use]
pub fn data_version(body: &[u8]) -> Option<DataVersion> {
    JsonRef::parse(body).ok().and_then(|value| DataVersion::from_json(value).ok())
}
