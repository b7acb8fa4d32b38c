//! Bodies of requests and answers, and the config files, as typed values.
//!
//! Role: [`Body`] turns a value into JSON and back. Reading is lenient: unknown members are ignored, missing or `null` ones
//! take Java's default, numbers may be quoted. Writing gives Java's names in alphabetical order, without `null`s: compact on
//! the wire ([`Body::encode`]), pretty in files ([`Body::encode_pretty`]). Tables are sorted, so that equal values are equal
//! bytes. It decides nothing about what the values mean.

mod bean;

pub mod clients;
pub mod group;
pub mod heartbeat;
pub mod offsets;
pub mod registration;
pub mod route;
pub mod stats;
pub mod topic;

pub use bean::{Body, BodyError, MapKey};
pub use clients::{
    CheckClientConfig, Connection, ConsumerConnection, ConsumerList, GroupList, KvTable, ProducerConnection,
    ProducerInfo, ProducerTable, QuerySubscription, TopicList,
};
pub use group::{GroupTable, SubscriptionGroupConfig, SubscriptionGroupConfigList};
pub use heartbeat::{
    ConsumeFromWhere, ConsumeType, ConsumerData, HeartbeatData, MessageModel, ProducerData, SubscriptionData,
};
pub use offsets::{
    ConsumerOffsetTable, ConsumerStatus, DelayOffsetTable, LockBatchRequest, LockBatchResponse, MessageQueue,
    MessageQueueStatus, ResetOffsetTable,
};
pub use registration::RegisterBrokerBody;
pub use route::{BrokerData, BrokerMemberGroup, BrokerMemberGroupBody, ClusterInfo, QueueData, TopicRouteData};
pub use stats::{
    ConsumeQueueData, ConsumeQueueEntry, ConsumeStats, ConsumeTimeSpan, ConsumeTimeSpans, OffsetWrapper, TopicOffset,
    TopicStatsTable,
};
pub use topic::{DataVersion, TopicConfig, TopicConfigList, TopicConfigWrapper, TopicFilterType, TopicTable};

#[cfg(test)]
mod tests;
