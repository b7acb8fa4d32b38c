//! Who is connected and who consumes what; simple lists and tables.

use super::Body;
use super::bean::bean;
use super::heartbeat::{ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData};
use std::collections::BTreeMap;

bean! {
    /// A client's connection.
    Connection {
        /// Its address, `ip:port`.
        client_addr: String = "clientAddr",
        /// Its id.
        client_id: String = "clientId",
        /// Its language, by name.
        language: String = "language",
        /// Its version.
        version: i32 = "version",
    }
}

bean! {
    /// The members of a consumer group (203).
    ConsumerConnection {
        /// Their connections.
        connection_set: Vec<Connection> = "connectionSet",
        /// Where a new group starts.
        consume_from_where: ConsumeFromWhere = "consumeFromWhere",
        /// How they get messages.
        consume_type: ConsumeType = "consumeType",
        /// Who of them gets a message.
        message_model: MessageModel = "messageModel",
        /// Subscriptions by topic.
        subscription_table: BTreeMap<String, SubscriptionData> = "subscriptionTable",
    }
}

bean! {
    /// The members of a producer group (204).
    ProducerConnection {
        /// Their connections.
        connection_set: Vec<Connection> = "connectionSet",
    }
}

bean! {
    /// A producer as 328 lists it.
    ProducerInfo {
        /// Its id.
        client_id: String = "clientId",
        /// Its language, by name.
        language: String = "language",
        /// Its last heartbeat, ms since 1970.
        last_update_timestamp_ms: i64 = "lastUpdateTimestamp",
        /// Its address, `/ip:port`.
        remote_ip: String = "remoteIP",
        /// Its version.
        version: i32 = "version",
    }
}

bean! {
    /// All producers by group (328).
    ProducerTable {
        /// Producers by group.
        data: BTreeMap<String, Vec<ProducerInfo>> = "data",
    }
}

bean! {
    /// The client ids of a consumer group (38).
    ConsumerList {
        /// The ids.
        consumer_id_list: Vec<String> = "consumerIdList",
    }
}

bean! {
    /// Topics (206, 224, 304, 305, 343).
    TopicList {
        /// Address of the broker that was asked, or of one.
        broker_addr: Option<String> = "brokerAddr",
        /// Their names.
        topic_list: Vec<String> = "topicList",
    }
}

bean! {
    /// Groups (300).
    GroupList {
        /// Their names.
        group_list: Vec<String> = "groupList",
    }
}

bean! {
    /// Names and texts (28, 219, the order configuration in the answer to 103).
    KvTable {
        /// Text by name.
        table: BTreeMap<String, String> = "table",
    }
}

bean! {
    /// What a group wants of a topic (345).
    QuerySubscription {
        /// Group.
        group: String = "group",
        /// The subscription; absent when there is none.
        subscription_data: Option<SubscriptionData> = "subscriptionData",
        /// Topic.
        topic: String = "topic",
    }
}

bean! {
    /// A subscription to be checked (46).
    CheckClientConfig {
        /// Client.
        client_id: String = "clientId",
        /// Group.
        group: String = "group",
        /// Namespace.
        namespace: Option<String> = "namespace",
        /// The subscription.
        subscription_data: Option<SubscriptionData> = "subscriptionData",
    }
}

impl KvTable {
    /// The table of a text, when there is one.
    #[must_use]
    pub fn from_body(body: &[u8]) -> Option<Self> {
        Self::decode(body).ok()
    }
}
