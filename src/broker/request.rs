//! The closed list of request codes and who carries each out.
//!
//! Role: the one place that says what this broker serves. The match has no wildcard arm: a code that is added to
//! [`RequestCode`] makes the compiler name this file. It decodes nothing.

use crate::connections::VIP_LISTENER;
use reactor::ListenerId;
use remoting::RequestCode;

/// Who carries a request out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// 10, 310, 320: checked on the connection's core, appended on the queue's.
    Send,
    /// 11, 361: checked on the connection's core, read on the queue's.
    Pull,
    /// 29 to 32: one question to the queue's shard.
    Queue,
    /// 33: one question to the shard of a physical offset.
    Record,
    /// 36: checked on the connection's core, read by the shard of the message, stored by that of the retry queue.
    SendBack,
    /// 324, 325: checked like a send, passed on by the owner, stored by the shard of its queue.
    Reply,
    /// 12: a gather over all shards.
    QueryByKey,
    /// 37, 323: checked on the connection's core, carried out by the transactions of a half message's shard.
    Transaction,
    /// 200050, 200052, 200054, 200055: checked on the connection's core, which also holds them; carried out shard by shard.
    Pop,
    /// 200051, 200053, 200151: to the shards of their queues.
    PopAck,
    /// 370: a gather over the shards of the topic.
    Recall,
    /// Metadata, clients and consumer offsets: the owner on core 0.
    Owner,
    /// Nobody: answered with code 3.
    NotServed,
}

/// Who carries out a request that came in by `listener`.
#[must_use]
pub fn target(code: RequestCode, listener: ListenerId) -> Target {
    let target = on_main_port(code);
    // Java registers no pull, pop or notification processor at its fast port.
    if matches!(target, Target::Pull | Target::Pop) && listener == VIP_LISTENER { Target::NotServed } else { target }
}

macro_rules! requests {
    ($($target:ident { $($code:ident,)* })*) => {
        const fn on_main_port(code: RequestCode) -> Target {
            match code {
                $($(RequestCode::$code)|* => Target::$target,)*
            }
        }
    };
}

requests! {
    Send {
        SendMessage, SendMessageV2, SendBatchMessage,
    }
    Pull {
        PullMessage, LitePullMessage,
    }
    Queue {
        SearchOffsetByTimestamp, GetMaxOffset, GetMinOffset, GetEarliestMsgStoretime,
    }
    Record {
        ViewMessageById,
    }
    SendBack {
        ConsumerSendMsgBack,
    }
    Reply {
        SendReplyMessage, SendReplyMessageV2,
    }
    QueryByKey {
        QueryMessage,
    }
    Transaction {
        EndTransaction, ResumeCheckHalfMessage,
    }
    Pop {
        PopMessage, PeekMessage, Notification, PollingInfo,
    }
    PopAck {
        AckMessage, ChangeMessageInvisibletime, BatchAckMessage,
    }
    Recall {
        RecallMessage,
    }
    Owner {
        QueryAssignment, SetMessageRequestMode, GetAllMessageRequestMode, PopRollback,
        QueryConsumerOffset, UpdateConsumerOffset,
        HeartBeat, UnregisterClient, GetConsumerListByGroup, CheckClientConfig, LockBatchMq, UnlockBatchMq,
        UpdateAndCreateTopic, UpdateAndCreateTopicList, DeleteTopicInBroker,
        GetAllTopicConfig, GetTopicConfig, GetTopicStatsInfo,
        GetSystemTopicListFromBroker, QueryTopicConsumeByWho, QueryTopicsByConsumer,
        UpdateAndCreateSubscriptiongroup, UpdateAndCreateSubscriptiongroupList,
        GetAllSubscriptiongroupConfig, GetSubscriptiongroupConfig, DeleteSubscriptiongroup,
        QuerySubscriptionByConsumer, UpdateAndGetGroupForbidden,
        GetConsumerConnectionList, GetProducerConnectionList, GetAllProducerInfo,
        GetConsumeStats, QueryConsumeTimeSpan, CloneGroupOffset, GetAllConsumerOffset, GetAllDelayOffset,
        InvokeBrokerToResetOffset, InvokeBrokerToGetConsumerStatus,
        GetConsumerRunningInfo, ConsumeMessageDirectly,
        UpdateBrokerConfig, GetBrokerConfig, GetBrokerRuntimeInfo,
    }
    // Of later issues, of other servers, or of nobody.
    NotServed {
        QueryBrokerOffset, GetTopicConfigList, GetTopicNameList, TriggerDeleteFiles,
        CheckTransactionState, NotifyConsumerIdsChanged,
        GetClientConfig, GetTimerCheckPoint, GetTimerMetrics, PutKvConfig, GetKvConfig,
        DeleteKvConfig, RegisterBroker, UnregisterBroker, GetRouteinfoByTopic, GetBrokerClusterInfo,
        WipeWritePermOfBroker, GetAllTopicListFromNameserver, SuspendConsumer, ResumeConsumer,
        ResetConsumerOffsetInConsumer, ResetConsumerOffsetInBroker, AdjustConsumerThreadPool, WhoConsumeTheMessage,
        DeleteTopicInNamesrv, RegisterTopicInNamesrv, GetKvlistByNamespace, ResetConsumerClientOffset,
        GetConsumerStatusFromClient, GetTopicsByCluster, RegisterFilterServer, RegisterMessageFilterClass,
        GetSystemTopicListFromNs, CleanExpiredConsumequeue, QueryCorrectionOffset, GetUnitTopicList,
        GetHasUnitSubTopicList, GetHasUnitSubUnunitTopicList, ViewBrokerStatsData, CleanUnusedTopic,
        GetBrokerConsumeStats, UpdateNamesrvConfig, GetNamesrvConfig, QueryConsumeQueue, QueryDataVersion,
        PushReplyMessageToClient,
        AddWritePermOfBroker, DeleteExpiredCommitlog, CheckRocksdbCqWriteProgress, ExportRocksdbConfigToJson,
        UpdateAndCreateStaticTopic, GetBrokerMemberGroup, AddBroker, RemoveBroker, BrokerHeartbeat,
        NotifyMinBrokerIdChange, ExchangeBrokerHaInfo, GetBrokerHaStatus, ResetMasterFlushOffset,
        ControllerAlterSyncStateSet, ControllerElectMaster, ControllerRegisterBroker, ControllerGetReplicaInfo,
        ControllerGetMetadataInfo, ControllerGetSyncStateData, GetBrokerEpochCache, NotifyBrokerRoleChanged,
        UpdateControllerConfig, GetControllerConfig, CleanBrokerData, ControllerGetNextBrokerId,
        ControllerApplyBrokerId, BrokerCloseChannelRequest, CheckNotActiveBrokerRequest, GetBrokerLiveInfoRequest,
        GetSyncStateDataRequest, RaftBrokerHeartBeatEventRequest, UpdateColdDataFlowCtrConfig,
        RemoveColdDataFlowCtrConfig, GetColdDataFlowCtrInfo, SetCommitlogReadMode, AuthCreateUser, AuthUpdateUser,
        AuthDeleteUser, AuthGetUser, AuthListUser, AuthCreateAcl, AuthUpdateAcl, AuthDeleteAcl, AuthGetAcl,
        AuthListAcl, SwitchTimerEngine,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::BROKER_LISTENER;

    #[test]
    fn the_vip_port_serves_all_but_pulls() {
        for &code in RequestCode::ALL {
            let (main, vip) = (target(code, BROKER_LISTENER), target(code, VIP_LISTENER));
            assert_eq!(
                vip,
                if matches!(main, Target::Pull | Target::Pop) { Target::NotServed } else { main },
                "{code}"
            );
        }
        assert_eq!(target(RequestCode::LitePullMessage, VIP_LISTENER), Target::NotServed);
        assert_eq!(target(RequestCode::SendMessage, VIP_LISTENER), Target::Send);
    }
}
