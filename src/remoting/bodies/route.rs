//! Routes and clusters, as name servers tell them.

use super::Body;
use super::bean::bean;
use crate::json::Json;
use std::collections::{BTreeMap, BTreeSet};

bean! {
    /// The queues of a topic on a broker.
    QueueData {
        /// Broker.
        broker_name: String = "brokerName",
        /// 4 readable, 2 writable, 1 inherited, 8 priority.
        perm: i32 = "perm",
        /// Queues that are read.
        read_queue_nums: i32 = "readQueueNums",
        /// System flag of the topic.
        topic_sys_flag: i32 = "topicSysFlag",
        /// Queues that are written.
        write_queue_nums: i32 = "writeQueueNums",
    }
}

bean! {
    /// A broker and its addresses.
    BrokerData {
        /// Address by broker id; 0 is the master.
        broker_addrs: BTreeMap<i64, String> = "brokerAddrs",
        /// Name.
        broker_name: String = "brokerName",
        /// Cluster.
        cluster: String = "cluster",
        /// Whether a slave may act as master.
        enable_acting_master: bool = "enableActingMaster",
        /// Zone.
        zone_name: Option<String> = "zoneName",
    }
}

bean! {
    /// Where a topic lies (105). `to_json` writes broker ids without quotes: see [`TopicRouteData::encode_for`].
    TopicRouteData {
        /// The brokers.
        broker_datas: Vec<BrokerData> = "brokerDatas",
        /// Filter servers by broker address (removed from RocketMQ; always written).
        filter_server_table: BTreeMap<String, Vec<String>> = "filterServerTable",
        /// Order configuration of the topic.
        order_topic_conf: Option<String> = "orderTopicConf",
        /// The queues.
        queue_datas: Vec<QueueData> = "queueDatas",
        /// Static-topic mappings, kept as they are.
        topic_queue_mapping_by_broker: Option<Json> = "topicQueueMappingByBroker",
    }
}

impl TopicRouteData {
    /// The text for a client: `standard` JSON with quoted broker ids, or the old form without quotes.
    #[must_use]
    pub fn encode_for(&self, standard: bool) -> Vec<u8> {
        let json = self.to_json();
        if standard { json.with_quoted_keys().to_vec() } else { json.to_vec() }
    }
}

bean! {
    /// All brokers by name, and names by cluster (106).
    ClusterInfo {
        /// Brokers by name.
        broker_addr_table: BTreeMap<String, BrokerData> = "brokerAddrTable",
        /// Names by cluster.
        cluster_addr_table: BTreeMap<String, BTreeSet<String>> = "clusterAddrTable",
    }
}

bean! {
    /// A broker's group: all addresses under one name.
    BrokerMemberGroup {
        /// Address by broker id.
        broker_addrs: BTreeMap<i64, String> = "brokerAddrs",
        /// Name.
        broker_name: String = "brokerName",
        /// Cluster.
        cluster: String = "cluster",
    }
}

bean! {
    /// The answer to 901.
    BrokerMemberGroupBody {
        /// The group; absent when the broker is unknown.
        broker_member_group: Option<BrokerMemberGroup> = "brokerMemberGroup",
    }
}
