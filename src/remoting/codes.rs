//! Every number with a name: request codes, response codes, languages, versions.
//!
//! Role: closed lists, so that what serves requests can match on them and the compiler finds what was forgotten. Unknown
//! numbers stay representable where they travel (`i32`), never here.

macro_rules! codes {
    ($(#[$doc:meta])* $type:ident { $($value:literal $name:ident $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(i32)]
        pub enum $type {
            $(#[doc = concat!("`", $text, "` (", $value, ")")] $name = $value,)*
        }

        impl $type {
            /// All of them, by number.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The code of a number; `None` for a number without a meaning.
            #[must_use]
            pub const fn from_i32(code: i32) -> Option<Self> {
                match code {
                    $($value => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// The number on the wire.
            #[must_use]
            pub const fn to_i32(self) -> i32 {
                self as i32
            }

            /// Java's name of the constant.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl From<$type> for i32 {
            fn from(code: $type) -> i32 {
                code.to_i32()
            }
        }
    };
}

codes! {
    /// What a request asks for: every code of RocketMQ 5.4.0, served here or not.
    RequestCode {
        10 SendMessage "SEND_MESSAGE",
        11 PullMessage "PULL_MESSAGE",
        12 QueryMessage "QUERY_MESSAGE",
        13 QueryBrokerOffset "QUERY_BROKER_OFFSET",
        14 QueryConsumerOffset "QUERY_CONSUMER_OFFSET",
        15 UpdateConsumerOffset "UPDATE_CONSUMER_OFFSET",
        17 UpdateAndCreateTopic "UPDATE_AND_CREATE_TOPIC",
        18 UpdateAndCreateTopicList "UPDATE_AND_CREATE_TOPIC_LIST",
        21 GetAllTopicConfig "GET_ALL_TOPIC_CONFIG",
        22 GetTopicConfigList "GET_TOPIC_CONFIG_LIST",
        23 GetTopicNameList "GET_TOPIC_NAME_LIST",
        25 UpdateBrokerConfig "UPDATE_BROKER_CONFIG",
        26 GetBrokerConfig "GET_BROKER_CONFIG",
        27 TriggerDeleteFiles "TRIGGER_DELETE_FILES",
        28 GetBrokerRuntimeInfo "GET_BROKER_RUNTIME_INFO",
        29 SearchOffsetByTimestamp "SEARCH_OFFSET_BY_TIMESTAMP",
        30 GetMaxOffset "GET_MAX_OFFSET",
        31 GetMinOffset "GET_MIN_OFFSET",
        32 GetEarliestMsgStoretime "GET_EARLIEST_MSG_STORETIME",
        33 ViewMessageById "VIEW_MESSAGE_BY_ID",
        34 HeartBeat "HEART_BEAT",
        35 UnregisterClient "UNREGISTER_CLIENT",
        36 ConsumerSendMsgBack "CONSUMER_SEND_MSG_BACK",
        37 EndTransaction "END_TRANSACTION",
        38 GetConsumerListByGroup "GET_CONSUMER_LIST_BY_GROUP",
        39 CheckTransactionState "CHECK_TRANSACTION_STATE",
        40 NotifyConsumerIdsChanged "NOTIFY_CONSUMER_IDS_CHANGED",
        41 LockBatchMq "LOCK_BATCH_MQ",
        42 UnlockBatchMq "UNLOCK_BATCH_MQ",
        43 GetAllConsumerOffset "GET_ALL_CONSUMER_OFFSET",
        45 GetAllDelayOffset "GET_ALL_DELAY_OFFSET",
        46 CheckClientConfig "CHECK_CLIENT_CONFIG",
        47 GetClientConfig "GET_CLIENT_CONFIG",
        60 GetTimerCheckPoint "GET_TIMER_CHECK_POINT",
        61 GetTimerMetrics "GET_TIMER_METRICS",
        100 PutKvConfig "PUT_KV_CONFIG",
        101 GetKvConfig "GET_KV_CONFIG",
        102 DeleteKvConfig "DELETE_KV_CONFIG",
        103 RegisterBroker "REGISTER_BROKER",
        104 UnregisterBroker "UNREGISTER_BROKER",
        105 GetRouteinfoByTopic "GET_ROUTEINFO_BY_TOPIC",
        106 GetBrokerClusterInfo "GET_BROKER_CLUSTER_INFO",
        200 UpdateAndCreateSubscriptiongroup "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP",
        201 GetAllSubscriptiongroupConfig "GET_ALL_SUBSCRIPTIONGROUP_CONFIG",
        202 GetTopicStatsInfo "GET_TOPIC_STATS_INFO",
        203 GetConsumerConnectionList "GET_CONSUMER_CONNECTION_LIST",
        204 GetProducerConnectionList "GET_PRODUCER_CONNECTION_LIST",
        205 WipeWritePermOfBroker "WIPE_WRITE_PERM_OF_BROKER",
        206 GetAllTopicListFromNameserver "GET_ALL_TOPIC_LIST_FROM_NAMESERVER",
        207 DeleteSubscriptiongroup "DELETE_SUBSCRIPTIONGROUP",
        208 GetConsumeStats "GET_CONSUME_STATS",
        209 SuspendConsumer "SUSPEND_CONSUMER",
        210 ResumeConsumer "RESUME_CONSUMER",
        211 ResetConsumerOffsetInConsumer "RESET_CONSUMER_OFFSET_IN_CONSUMER",
        212 ResetConsumerOffsetInBroker "RESET_CONSUMER_OFFSET_IN_BROKER",
        213 AdjustConsumerThreadPool "ADJUST_CONSUMER_THREAD_POOL",
        214 WhoConsumeTheMessage "WHO_CONSUME_THE_MESSAGE",
        215 DeleteTopicInBroker "DELETE_TOPIC_IN_BROKER",
        216 DeleteTopicInNamesrv "DELETE_TOPIC_IN_NAMESRV",
        217 RegisterTopicInNamesrv "REGISTER_TOPIC_IN_NAMESRV",
        219 GetKvlistByNamespace "GET_KVLIST_BY_NAMESPACE",
        220 ResetConsumerClientOffset "RESET_CONSUMER_CLIENT_OFFSET",
        221 GetConsumerStatusFromClient "GET_CONSUMER_STATUS_FROM_CLIENT",
        222 InvokeBrokerToResetOffset "INVOKE_BROKER_TO_RESET_OFFSET",
        223 InvokeBrokerToGetConsumerStatus "INVOKE_BROKER_TO_GET_CONSUMER_STATUS",
        224 GetTopicsByCluster "GET_TOPICS_BY_CLUSTER",
        225 UpdateAndCreateSubscriptiongroupList "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST",
        300 QueryTopicConsumeByWho "QUERY_TOPIC_CONSUME_BY_WHO",
        301 RegisterFilterServer "REGISTER_FILTER_SERVER",
        302 RegisterMessageFilterClass "REGISTER_MESSAGE_FILTER_CLASS",
        303 QueryConsumeTimeSpan "QUERY_CONSUME_TIME_SPAN",
        304 GetSystemTopicListFromNs "GET_SYSTEM_TOPIC_LIST_FROM_NS",
        305 GetSystemTopicListFromBroker "GET_SYSTEM_TOPIC_LIST_FROM_BROKER",
        306 CleanExpiredConsumequeue "CLEAN_EXPIRED_CONSUMEQUEUE",
        307 GetConsumerRunningInfo "GET_CONSUMER_RUNNING_INFO",
        308 QueryCorrectionOffset "QUERY_CORRECTION_OFFSET",
        309 ConsumeMessageDirectly "CONSUME_MESSAGE_DIRECTLY",
        310 SendMessageV2 "SEND_MESSAGE_V2",
        311 GetUnitTopicList "GET_UNIT_TOPIC_LIST",
        312 GetHasUnitSubTopicList "GET_HAS_UNIT_SUB_TOPIC_LIST",
        313 GetHasUnitSubUnunitTopicList "GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST",
        314 CloneGroupOffset "CLONE_GROUP_OFFSET",
        315 ViewBrokerStatsData "VIEW_BROKER_STATS_DATA",
        316 CleanUnusedTopic "CLEAN_UNUSED_TOPIC",
        317 GetBrokerConsumeStats "GET_BROKER_CONSUME_STATS",
        318 UpdateNamesrvConfig "UPDATE_NAMESRV_CONFIG",
        319 GetNamesrvConfig "GET_NAMESRV_CONFIG",
        320 SendBatchMessage "SEND_BATCH_MESSAGE",
        321 QueryConsumeQueue "QUERY_CONSUME_QUEUE",
        322 QueryDataVersion "QUERY_DATA_VERSION",
        323 ResumeCheckHalfMessage "RESUME_CHECK_HALF_MESSAGE",
        324 SendReplyMessage "SEND_REPLY_MESSAGE",
        325 SendReplyMessageV2 "SEND_REPLY_MESSAGE_V2",
        326 PushReplyMessageToClient "PUSH_REPLY_MESSAGE_TO_CLIENT",
        327 AddWritePermOfBroker "ADD_WRITE_PERM_OF_BROKER",
        328 GetAllProducerInfo "GET_ALL_PRODUCER_INFO",
        329 DeleteExpiredCommitlog "DELETE_EXPIRED_COMMITLOG",
        343 QueryTopicsByConsumer "QUERY_TOPICS_BY_CONSUMER",
        345 QuerySubscriptionByConsumer "QUERY_SUBSCRIPTION_BY_CONSUMER",
        351 GetTopicConfig "GET_TOPIC_CONFIG",
        352 GetSubscriptiongroupConfig "GET_SUBSCRIPTIONGROUP_CONFIG",
        353 UpdateAndGetGroupForbidden "UPDATE_AND_GET_GROUP_FORBIDDEN",
        354 CheckRocksdbCqWriteProgress "CHECK_ROCKSDB_CQ_WRITE_PROGRESS",
        355 ExportRocksdbConfigToJson "EXPORT_ROCKSDB_CONFIG_TO_JSON",
        361 LitePullMessage "LITE_PULL_MESSAGE",
        370 RecallMessage "RECALL_MESSAGE",
        400 QueryAssignment "QUERY_ASSIGNMENT",
        401 SetMessageRequestMode "SET_MESSAGE_REQUEST_MODE",
        402 GetAllMessageRequestMode "GET_ALL_MESSAGE_REQUEST_MODE",
        513 UpdateAndCreateStaticTopic "UPDATE_AND_CREATE_STATIC_TOPIC",
        901 GetBrokerMemberGroup "GET_BROKER_MEMBER_GROUP",
        902 AddBroker "ADD_BROKER",
        903 RemoveBroker "REMOVE_BROKER",
        904 BrokerHeartbeat "BROKER_HEARTBEAT",
        905 NotifyMinBrokerIdChange "NOTIFY_MIN_BROKER_ID_CHANGE",
        906 ExchangeBrokerHaInfo "EXCHANGE_BROKER_HA_INFO",
        907 GetBrokerHaStatus "GET_BROKER_HA_STATUS",
        908 ResetMasterFlushOffset "RESET_MASTER_FLUSH_OFFSET",
        1001 ControllerAlterSyncStateSet "CONTROLLER_ALTER_SYNC_STATE_SET",
        1002 ControllerElectMaster "CONTROLLER_ELECT_MASTER",
        1003 ControllerRegisterBroker "CONTROLLER_REGISTER_BROKER",
        1004 ControllerGetReplicaInfo "CONTROLLER_GET_REPLICA_INFO",
        1005 ControllerGetMetadataInfo "CONTROLLER_GET_METADATA_INFO",
        1006 ControllerGetSyncStateData "CONTROLLER_GET_SYNC_STATE_DATA",
        1007 GetBrokerEpochCache "GET_BROKER_EPOCH_CACHE",
        1008 NotifyBrokerRoleChanged "NOTIFY_BROKER_ROLE_CHANGED",
        1009 UpdateControllerConfig "UPDATE_CONTROLLER_CONFIG",
        1010 GetControllerConfig "GET_CONTROLLER_CONFIG",
        1011 CleanBrokerData "CLEAN_BROKER_DATA",
        1012 ControllerGetNextBrokerId "CONTROLLER_GET_NEXT_BROKER_ID",
        1013 ControllerApplyBrokerId "CONTROLLER_APPLY_BROKER_ID",
        1014 BrokerCloseChannelRequest "BROKER_CLOSE_CHANNEL_REQUEST",
        1015 CheckNotActiveBrokerRequest "CHECK_NOT_ACTIVE_BROKER_REQUEST",
        1016 GetBrokerLiveInfoRequest "GET_BROKER_LIVE_INFO_REQUEST",
        1017 GetSyncStateDataRequest "GET_SYNC_STATE_DATA_REQUEST",
        1018 RaftBrokerHeartBeatEventRequest "RAFT_BROKER_HEART_BEAT_EVENT_REQUEST",
        2001 UpdateColdDataFlowCtrConfig "UPDATE_COLD_DATA_FLOW_CTR_CONFIG",
        2002 RemoveColdDataFlowCtrConfig "REMOVE_COLD_DATA_FLOW_CTR_CONFIG",
        2003 GetColdDataFlowCtrInfo "GET_COLD_DATA_FLOW_CTR_INFO",
        2004 SetCommitlogReadMode "SET_COMMITLOG_READ_MODE",
        3001 AuthCreateUser "AUTH_CREATE_USER",
        3002 AuthUpdateUser "AUTH_UPDATE_USER",
        3003 AuthDeleteUser "AUTH_DELETE_USER",
        3004 AuthGetUser "AUTH_GET_USER",
        3005 AuthListUser "AUTH_LIST_USER",
        3006 AuthCreateAcl "AUTH_CREATE_ACL",
        3007 AuthUpdateAcl "AUTH_UPDATE_ACL",
        3008 AuthDeleteAcl "AUTH_DELETE_ACL",
        3009 AuthGetAcl "AUTH_GET_ACL",
        3010 AuthListAcl "AUTH_LIST_ACL",
        5001 SwitchTimerEngine "SWITCH_TIMER_ENGINE",
        200050 PopMessage "POP_MESSAGE",
        200051 AckMessage "ACK_MESSAGE",
        200052 PeekMessage "PEEK_MESSAGE",
        200053 ChangeMessageInvisibletime "CHANGE_MESSAGE_INVISIBLETIME",
        200054 Notification "NOTIFICATION",
        200055 PollingInfo "POLLING_INFO",
        200056 PopRollback "POP_ROLLBACK",
        200151 BatchAckMessage "BATCH_ACK_MESSAGE",
    }
}

codes! {
    /// What an answer says.
    ResponseCode {
        0 Success "SUCCESS",
        1 SystemError "SYSTEM_ERROR",
        2 SystemBusy "SYSTEM_BUSY",
        3 RequestCodeNotSupported "REQUEST_CODE_NOT_SUPPORTED",
        4 TransactionFailed "TRANSACTION_FAILED",
        10 FlushDiskTimeout "FLUSH_DISK_TIMEOUT",
        11 SlaveNotAvailable "SLAVE_NOT_AVAILABLE",
        12 FlushSlaveTimeout "FLUSH_SLAVE_TIMEOUT",
        13 MessageIllegal "MESSAGE_ILLEGAL",
        14 ServiceNotAvailable "SERVICE_NOT_AVAILABLE",
        15 VersionNotSupported "VERSION_NOT_SUPPORTED",
        16 NoPermission "NO_PERMISSION",
        17 TopicNotExist "TOPIC_NOT_EXIST",
        18 TopicExistAlready "TOPIC_EXIST_ALREADY",
        19 PullNotFound "PULL_NOT_FOUND",
        20 PullRetryImmediately "PULL_RETRY_IMMEDIATELY",
        21 PullOffsetMoved "PULL_OFFSET_MOVED",
        22 QueryNotFound "QUERY_NOT_FOUND",
        23 SubscriptionParseFailed "SUBSCRIPTION_PARSE_FAILED",
        24 SubscriptionNotExist "SUBSCRIPTION_NOT_EXIST",
        25 SubscriptionNotLatest "SUBSCRIPTION_NOT_LATEST",
        26 SubscriptionGroupNotExist "SUBSCRIPTION_GROUP_NOT_EXIST",
        27 FilterDataNotExist "FILTER_DATA_NOT_EXIST",
        28 FilterDataNotLatest "FILTER_DATA_NOT_LATEST",
        29 InvalidParameter "INVALID_PARAMETER",
        200 TransactionShouldCommit "TRANSACTION_SHOULD_COMMIT",
        201 TransactionShouldRollback "TRANSACTION_SHOULD_ROLLBACK",
        202 TransactionStateUnknow "TRANSACTION_STATE_UNKNOW",
        203 TransactionStateGroupWrong "TRANSACTION_STATE_GROUP_WRONG",
        204 NoBuyerId "NO_BUYER_ID",
        205 NotInCurrentUnit "NOT_IN_CURRENT_UNIT",
        206 ConsumerNotOnline "CONSUMER_NOT_ONLINE",
        207 ConsumeMsgTimeout "CONSUME_MSG_TIMEOUT",
        208 NoMessage "NO_MESSAGE",
        209 PollingFull "POLLING_FULL",
        210 PollingTimeout "POLLING_TIMEOUT",
        211 BrokerNotExist "BROKER_NOT_EXIST",
        212 BrokerDispatchNotComplete "BROKER_DISPATCH_NOT_COMPLETE",
        213 BroadcastConsumption "BROADCAST_CONSUMPTION",
        215 FlowControl "FLOW_CONTROL",
        501 NotLeaderForQueue "NOT_LEADER_FOR_QUEUE",
        604 IllegalOperation "ILLEGAL_OPERATION",
        1500 GoAway "GO_AWAY",
        2000 ControllerFencedMasterEpoch "CONTROLLER_FENCED_MASTER_EPOCH",
        2001 ControllerFencedSyncStateSetEpoch "CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH",
        2002 ControllerInvalidMaster "CONTROLLER_INVALID_MASTER",
        2003 ControllerInvalidReplicas "CONTROLLER_INVALID_REPLICAS",
        2004 ControllerMasterNotAvailable "CONTROLLER_MASTER_NOT_AVAILABLE",
        2005 ControllerInvalidRequest "CONTROLLER_INVALID_REQUEST",
        2006 ControllerBrokerNotAlive "CONTROLLER_BROKER_NOT_ALIVE",
        2007 ControllerNotLeader "CONTROLLER_NOT_LEADER",
        2008 ControllerBrokerMetadataNotExist "CONTROLLER_BROKER_METADATA_NOT_EXIST",
        2009 ControllerInvalidCleanBrokerMetadata "CONTROLLER_INVALID_CLEAN_BROKER_METADATA",
        2010 ControllerBrokerNeedToBeRegistered "CONTROLLER_BROKER_NEED_TO_BE_REGISTERED",
        2011 ControllerMasterStillExist "CONTROLLER_MASTER_STILL_EXIST",
        2012 ControllerElectMasterFailed "CONTROLLER_ELECT_MASTER_FAILED",
        2013 ControllerAlterSyncStateSetFailed "CONTROLLER_ALTER_SYNC_STATE_SET_FAILED",
        2014 ControllerBrokerIdInvalid "CONTROLLER_BROKER_ID_INVALID",
        2015 ControllerJraftInternalError "CONTROLLER_JRAFT_INTERNAL_ERROR",
        2016 ControllerBrokerLiveInfoNotExists "CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS",
        3001 UserNotExist "USER_NOT_EXIST",
        3002 PolicyNotExist "POLICY_NOT_EXIST",
    }
}

codes! {
    /// The language of the peer. An unknown one counts as [`LanguageCode::Other`].
    LanguageCode {
        0 Java "JAVA",
        1 Cpp "CPP",
        2 Dotnet "DOTNET",
        3 Python "PYTHON",
        4 Delphi "DELPHI",
        5 Erlang "ERLANG",
        6 Ruby "RUBY",
        7 Other "OTHER",
        8 Http "HTTP",
        9 Go "GO",
        10 Php "PHP",
        11 Oms "OMS",
        12 Rust "RUST",
        13 NodeJs "NODE_JS",
    }
}

impl LanguageCode {
    /// The language of a name as the JSON header has it; any other text is [`LanguageCode::Other`].
    #[must_use]
    pub fn from_name(name: &[u8]) -> Self {
        Self::ALL.iter().copied().find(|language| language.name().as_bytes() == name).unwrap_or(Self::Other)
    }

    /// The language of a number; an unknown one is [`LanguageCode::Other`].
    #[must_use]
    pub const fn from_number(number: i32) -> Self {
        match Self::from_i32(number) {
            Some(language) => language,
            None => Self::Other,
        }
    }
}

/// Numbers of versions that rules are keyed on; the ordinal in Java's list of versions.
pub mod version {
    /// From here on brokers register with the full body.
    pub const V3_0_11: i32 = 37;
    /// From here on `maxReconsumeTimes` of send headers counts.
    pub const V3_4_9: i32 = 121;
    /// Last version that leaves `_UNIQUE_KEY_QUERY` out of signatures.
    pub const V4_9_3: i32 = 399;
    /// From here on routes are standard JSON.
    pub const V4_9_4: i32 = 401;
    /// From here on compressed registrations have a topic mapping tail.
    pub const V5_0_0: i32 = 413;
    /// Clients newer than this are told GO_AWAY.
    pub const V5_3_1: i32 = 475;
    /// What our own frames say.
    pub const CURRENT: i32 = 493;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names() {
        assert_eq!(RequestCode::from_i32(310), Some(RequestCode::SendMessageV2));
        assert_eq!(RequestCode::from_i32(9), None);
        assert_eq!(RequestCode::PopMessage.to_i32(), 200_050);
        for code in RequestCode::ALL {
            assert_eq!(RequestCode::from_i32(code.to_i32()), Some(*code));
        }
        assert_eq!(ResponseCode::from_i32(16), Some(ResponseCode::NoPermission));
        assert_eq!(LanguageCode::from_name(b"GO"), LanguageCode::Go);
        assert_eq!(LanguageCode::from_name(b"COBOL"), LanguageCode::Other);
        assert_eq!(LanguageCode::from_number(-1), LanguageCode::Other);
    }
}
