//! Subscription groups: their configuration and the file that keeps them.

use super::bean::bean;
use super::topic::DataVersion;
use crate::json::{Json, Key};
use std::collections::BTreeMap;

bean! {
    /// The configuration of a subscription group.
    SubscriptionGroupConfig {
        /// Free settings.
        attributes: BTreeMap<String, String> = "attributes",
        /// Broker to read from.
        broker_id: i64 = "brokerId",
        /// Whether broadcasting is allowed.
        consume_broadcast_enable: bool = "consumeBroadcastEnable" or true,
        /// Whether consuming is allowed.
        consume_enable: bool = "consumeEnable" or true,
        /// Whether it starts at the smallest offset.
        consume_from_min_enable: bool = "consumeFromMinEnable" or true,
        /// Whether POP keeps the order.
        consume_message_orderly: bool = "consumeMessageOrderly",
        /// Consumption of a message times out after this many minutes.
        consume_timeout_minute: i32 = "consumeTimeoutMinute" or 15,
        /// Name.
        group_name: String = "groupName",
        /// Policy of redelivery, kept as it is.
        group_retry_policy: Json = "groupRetryPolicy" or customized(),
        /// System flag.
        group_sys_flag: i32 = "groupSysFlag",
        /// Whether members are told of each other's coming and going.
        notify_consumer_ids_changed_enable: bool = "notifyConsumerIdsChangedEnable" or true,
        /// Redeliveries before the dead-letter queue.
        retry_max_times: i32 = "retryMaxTimes" or 16,
        /// Queues of the retry topic.
        retry_queue_nums: i32 = "retryQueueNums" or 1,
        /// Subscriptions set by an administrator, kept as they are.
        subscription_data_set: Option<Json> = "subscriptionDataSet",
        /// Broker to read from when far behind.
        which_broker_when_consume_slowly: i64 = "whichBrokerWhenConsumeSlowly" or 1,
    }
}

impl SubscriptionGroupConfig {
    /// A group with default settings.
    #[must_use]
    pub fn new(group_name: impl Into<String>) -> Self {
        Self { group_name: group_name.into(), ..Self::default() }
    }
}

bean! {
    /// The file `subscriptionGroup.json`, also the answer to 201.
    GroupTable {
        /// Version of the groups.
        data_version: DataVersion = "dataVersion",
        /// Forbidden reads: group, topic, bits.
        forbidden_table: BTreeMap<String, BTreeMap<String, i32>> = "forbiddenTable",
        /// The groups by name.
        subscription_group_table: BTreeMap<String, SubscriptionGroupConfig> = "subscriptionGroupTable",
    }
}

bean! {
    /// Groups to create or update (225).
    SubscriptionGroupConfigList {
        /// The groups.
        group_config_list: Vec<SubscriptionGroupConfig> = "groupConfigList",
    }
}

fn customized() -> Json {
    Json::Object(vec![(Key::from("type"), Json::from("CUSTOMIZED"))])
}
