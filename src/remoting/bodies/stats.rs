//! Statistics of topics, groups and queues, as tools ask for them.

use super::bean::bean;
use super::heartbeat::SubscriptionData;
use super::offsets::MessageQueue;
use std::collections::BTreeMap;

bean! {
    /// Range of a queue.
    TopicOffset {
        /// Store time of the last message, ms since 1970; 0 for none.
        last_update_timestamp_ms: i64 = "lastUpdateTimestamp",
        /// Largest offset.
        max_offset: i64 = "maxOffset",
        /// Smallest offset.
        min_offset: i64 = "minOffset",
    }
}

bean! {
    /// Ranges of a topic's queues (202).
    TopicStatsTable {
        /// Range by queue.
        offset_table: BTreeMap<MessageQueue, TopicOffset> = "offsetTable",
        /// Messages stored per second.
        topic_put_tps: f64 = "topicPutTps",
    }
}

bean! {
    /// Progress of a group in a queue.
    OffsetWrapper {
        /// Largest offset of the queue.
        broker_offset: i64 = "brokerOffset",
        /// Committed offset of the group.
        consumer_offset: i64 = "consumerOffset",
        /// Store time of the last message consumed, ms since 1970; 0 for none.
        last_timestamp_ms: i64 = "lastTimestamp",
        /// Offset pulled to.
        pull_offset: i64 = "pullOffset",
    }
}

bean! {
    /// Progress of a group (208).
    ConsumeStats {
        /// Messages consumed per second.
        consume_tps: f64 = "consumeTps",
        /// Progress by queue.
        offset_table: BTreeMap<MessageQueue, OffsetWrapper> = "offsetTable",
    }
}

bean! {
    /// Times of a group in a queue, ms since 1970; -1 for none.
    ConsumeTimeSpan {
        /// Store time at the committed offset.
        consume_timestamp_ms: i64 = "consumeTimeStamp",
        /// Java's text of it, `yyyy-MM-dd#HH:mm:ss:SSS` in local time.
        consume_timestamp_text: Option<String> = "consumeTimeStampStr",
        /// How far behind it is, in ms.
        delay_time_ms: i64 = "delayTime",
        /// Store time of the newest message.
        max_timestamp_ms: i64 = "maxTimeStamp",
        /// Java's text of it.
        max_timestamp_text: Option<String> = "maxTimeStampStr",
        /// The queue.
        message_queue: MessageQueue = "messageQueue",
        /// Store time of the oldest message.
        min_timestamp_ms: i64 = "minTimeStamp",
        /// Java's text of it.
        min_timestamp_text: Option<String> = "minTimeStampStr",
    }
}

bean! {
    /// Times of a group in all queues of a topic (303).
    ConsumeTimeSpans {
        /// One for each queue.
        consume_time_span_set: Vec<ConsumeTimeSpan> = "consumeTimeSpanSet",
    }
}

bean! {
    /// An entry of a consume queue as 321 shows it.
    ConsumeQueueEntry {
        /// Bit map of SQL filters.
        bit_map: Option<String> = "bitMap",
        /// Whether the group's filter lets it pass.
        eval: bool = "eval",
        /// Extension data.
        extend_data_json: Option<String> = "extendDataJson",
        /// Why it could not be judged.
        msg: Option<String> = "msg",
        /// Commit-log offset.
        physic_offset: i64 = "physicOffset",
        /// Size of the record, in bytes.
        physic_size: i32 = "physicSize",
        /// Tag value.
        tags_code: i64 = "tagsCode",
    }
}

bean! {
    /// Entries of a consume queue (321).
    ConsumeQueueData {
        /// The group's filter, as text; Java writes the text `null` for none.
        filter_data: Option<String> = "filterData",
        /// Largest index.
        max_queue_index: i64 = "maxQueueIndex",
        /// Smallest index.
        min_queue_index: i64 = "minQueueIndex",
        /// The entries.
        queue_data: Option<Vec<ConsumeQueueEntry>> = "queueData",
        /// The group's subscription.
        subscription_data: Option<SubscriptionData> = "subscriptionData",
    }
}
