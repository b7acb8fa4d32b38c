//! Heartbeats of clients (34).

use super::bean::{bean, names};
use std::collections::BTreeSet;

names! {
    /// How a consumer gets its messages.
    ConsumeType {
        /// It is pushed to (pulls by itself).
        Passively "CONSUME_PASSIVELY",
        /// It pulls.
        Actively "CONSUME_ACTIVELY",
        /// It pops.
        Pop "CONSUME_POP",
    }
}

names! {
    /// Who of a group gets a message.
    MessageModel {
        /// One member.
        Clustering "CLUSTERING",
        /// Every member.
        Broadcasting "BROADCASTING",
    }
}

names! {
    /// Where a new group starts.
    ConsumeFromWhere {
        /// At the end.
        LastOffset "CONSUME_FROM_LAST_OFFSET",
        /// Deprecated form of the same.
        LastOffsetAndFromMin "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        /// Deprecated: at the smallest offset.
        MinOffset "CONSUME_FROM_MIN_OFFSET",
        /// Deprecated: at the largest offset.
        MaxOffset "CONSUME_FROM_MAX_OFFSET",
        /// At the beginning.
        FirstOffset "CONSUME_FROM_FIRST_OFFSET",
        /// At a time.
        Timestamp "CONSUME_FROM_TIMESTAMP",
    }
}

bean! {
    /// What a group wants of a topic.
    SubscriptionData {
        /// Class filter (removed from RocketMQ).
        class_filter_mode: bool = "classFilterMode",
        /// Java hashes of the tags.
        code_set: BTreeSet<i32> = "codeSet",
        /// `TAG` or `SQL92`.
        expression_type: String = "expressionType" or "TAG".to_owned(),
        /// Source of a class filter.
        filter_class_source: Option<String> = "filterClassSource",
        /// The expression.
        sub_string: String = "subString",
        /// Version: when the client made it, ms since 1970.
        sub_version: i64 = "subVersion",
        /// The tags.
        tags_set: BTreeSet<String> = "tagsSet",
        /// Topic.
        topic: String = "topic",
    }
}

bean! {
    /// A consumer group of a client.
    ConsumerData {
        /// Where it starts.
        consume_from_where: ConsumeFromWhere = "consumeFromWhere",
        /// How it gets messages.
        consume_type: ConsumeType = "consumeType",
        /// Name.
        group_name: String = "groupName",
        /// Who gets a message.
        message_model: MessageModel = "messageModel",
        /// Its subscriptions.
        subscription_data_set: Vec<SubscriptionData> = "subscriptionDataSet",
        /// Unit mode.
        unit_mode: bool = "unitMode",
    }
}

bean! {
    /// A producer group of a client.
    ProducerData {
        /// Name.
        group_name: String = "groupName",
    }
}

bean! {
    /// A client's sign of life.
    HeartbeatData {
        /// Id of the client.
        client_id: String = "clientID",
        /// Its consumer groups.
        consumer_data_set: Vec<ConsumerData> = "consumerDataSet",
        /// Not 0: identifies these groups and subscriptions.
        heartbeat_fingerprint: i32 = "heartbeatFingerprint",
        /// Its producer groups.
        producer_data_set: Vec<ProducerData> = "producerDataSet",
        /// Subscriptions are left out: they are as before.
        without_sub: bool = "withoutSub",
    }
}
