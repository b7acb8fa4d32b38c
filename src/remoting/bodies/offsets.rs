//! Queues, consumer offsets and locks.

use super::bean::{MapKey, bean};
use super::topic::DataVersion;
use super::{Body, BodyError};
use crate::json::{Json, JsonRef, Key};
use std::collections::{BTreeMap, BTreeSet};

/// A queue of a topic on a broker; also a key of tables, written as an object without quotes around it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageQueue {
    /// Topic.
    pub topic: String,
    /// Broker.
    pub broker_name: String,
    /// Queue; -1 stands for any.
    pub queue_id: i32,
}

impl Body for MessageQueue {
    fn to_json(&self) -> Json {
        Json::bean([
            ("brokerName", self.broker_name.as_str().into()),
            ("queueId", self.queue_id.into()),
            ("topic", self.topic.as_str().into()),
        ])
    }

    fn from_json(value: JsonRef<'_>) -> Result<Self, BodyError> {
        if !value.is_object() {
            return Err(BodyError::Expected("a message queue"));
        }
        let queue_id = value.get("queueId");
        Ok(Self {
            topic: value.get("topic").string(),
            broker_name: value.get("brokerName").string(),
            queue_id: if queue_id.is_null() { 0 } else { super::bean::member("queueId", queue_id)? },
        })
    }
}

impl MapKey for MessageQueue {
    fn to_key(&self) -> Key {
        Key::Object(Box::new(self.to_json()))
    }

    /// Also reads the object wrapped in a text, as older writers have it.
    fn from_key(key: JsonRef<'_>) -> Option<Self> {
        if key.is_object() {
            return Self::from_json(key).ok();
        }
        Self::decode(key.as_str()?.as_bytes()).ok()
    }
}

bean! {
    /// Offsets that a reset gave (220, 222).
    ResetOffsetTable {
        /// Offset by queue.
        offset_table: BTreeMap<MessageQueue, i64> = "offsetTable",
    }
}

impl ResetOffsetTable {
    /// The form for C++ clients: a list in place of the table.
    #[must_use]
    pub fn encode_for_cpp(&self) -> Vec<u8> {
        let items = self.offset_table.iter().map(|(queue, offset)| {
            Json::bean([
                ("brokerName", queue.broker_name.as_str().into()),
                ("offset", (*offset).into()),
                ("queueId", queue.queue_id.into()),
                ("topic", queue.topic.as_str().into()),
            ])
        });
        Json::bean([("offsetTable", Json::List(items.collect()))]).to_vec()
    }
}

bean! {
    /// A client's own offsets (the answer to 221).
    MessageQueueStatus {
        /// Offset by queue.
        message_queue_table: BTreeMap<MessageQueue, i64> = "messageQueueTable",
    }
}

bean! {
    /// Offsets of all clients of a group (the answer to 223).
    ConsumerStatus {
        /// Offset by queue, by client id.
        consumer_table: BTreeMap<String, BTreeMap<MessageQueue, i64>> = "consumerTable",
        /// The table of [`MessageQueueStatus`], which shares its Java class; empty here.
        message_queue_table: BTreeMap<MessageQueue, i64> = "messageQueueTable",
    }
}

bean! {
    /// Queues to lock or unlock (41, 42).
    LockBatchRequest {
        /// Client.
        client_id: String = "clientId",
        /// Group.
        consumer_group: String = "consumerGroup",
        /// Queues.
        mq_set: BTreeSet<MessageQueue> = "mqSet",
        /// Whether other brokers are to be left out.
        only_this_broker: bool = "onlyThisBroker",
    }
}

bean! {
    /// Queues that were locked (41).
    LockBatchResponse {
        /// Queues.
        lock_ok_mq_set: BTreeSet<MessageQueue> = "lockOKMQSet",
    }
}

bean! {
    /// The file `consumerOffset.json`, also the answer to 43.
    ConsumerOffsetTable {
        /// Version of the offsets.
        data_version: DataVersion = "dataVersion",
        /// Topics by group (5.4.0; absent in older files).
        group_topic_map: Option<BTreeMap<String, BTreeSet<String>>> = "groupTopicMap",
        /// Offset by queue id, by `topic@group`.
        offset_table: BTreeMap<String, BTreeMap<i32, i64>> = "offsetTable",
    }
}

bean! {
    /// The file `delayOffset.json`, also the answer to 45.
    DelayOffsetTable {
        /// Version of the offsets.
        data_version: DataVersion = "dataVersion",
        /// Offset by level.
        offset_table: BTreeMap<i32, i64> = "offsetTable",
    }
}
