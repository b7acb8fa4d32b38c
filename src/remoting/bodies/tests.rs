//! Tests of the bodies: odd input, odd shapes, the compressed registration.

use super::*;
use crate::json::Json;

#[test]
fn missing_and_null_members_take_java_defaults() {
    let topic =
        TopicConfig::decode(br#"{"topicName":"t","perm":null,"unknown":{"a":[1]},"readQueueNums":"3"}"#).unwrap();
    assert_eq!((topic.perm, topic.read_queue_nums, topic.write_queue_nums), (6, 3, 16));
    let group = SubscriptionGroupConfig::decode(b"{}").unwrap();
    assert_eq!(
        String::from_utf8(SubscriptionGroupConfig { group_name: "G".into(), ..group }.encode()).unwrap(),
        r#"{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"G","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}"#
    );
}

#[test]
fn what_is_wrong_is_named() {
    assert!(
        TopicConfig::decode(b"").is_err()
            && TopicConfig::decode(b"null").is_err()
            && TopicConfig::decode(b"[]").is_err()
    );
    let error = TopicTable::decode(br#"{"topicConfigTable":{"t":{"perm":"x"}}}"#).unwrap_err();
    assert_eq!(error.to_string(), r#"in "topicConfigTable": in "perm": a 32-bit number expected"#);
    assert!(TopicConfig::decode(br#"{"perm":4294967296}"#).is_err());
    assert!(HeartbeatData::decode(br#"{"consumerDataSet":{}}"#).is_err());
}

#[test]
fn queues_as_keys() {
    let queue = MessageQueue { topic: "T".into(), broker_name: "b".into(), queue_id: 1 };
    let table = ResetOffsetTable { offset_table: [(queue, 7)].into() };
    assert_eq!(table.encode(), br#"{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:7}}"#);
    assert_eq!(ResetOffsetTable::decode(&table.encode()), Ok(table.clone()));
    let wrapped = br#"{"offsetTable":{"{\"brokerName\":\"b\",\"queueId\":1,\"topic\":\"T\"}":7}}"#;
    assert_eq!(ResetOffsetTable::decode(wrapped), Ok(table.clone()));
    assert_eq!(table.encode_for_cpp(), br#"{"offsetTable":[{"brokerName":"b","offset":7,"queueId":1,"topic":"T"}]}"#);
}

#[test]
fn broker_ids_are_quoted_on_demand() {
    let broker = BrokerData {
        broker_addrs: [(0, "ip:1".into()), (1, "ip:2".into())].into(),
        broker_name: "b".into(),
        ..BrokerData::default()
    };
    let route = TopicRouteData { broker_datas: vec![broker], ..TopicRouteData::default() };
    let text = |standard| String::from_utf8(route.encode_for(standard)).unwrap();
    assert!(text(true).contains(r#""brokerAddrs":{"0":"ip:1","1":"ip:2"}"#));
    assert!(text(false).contains(r#""brokerAddrs":{0:"ip:1",1:"ip:2"}"#));
    for form in [true, false] {
        assert_eq!(TopicRouteData::decode(text(form).as_bytes()).as_ref(), Ok(&route));
    }
}

fn registration() -> RegisterBrokerBody {
    let mut topic = TopicConfig::new("T", 4);
    topic.attributes.insert("message.type".into(), "FIFO".into());
    let version = DataVersion { counter: 1, state_version: 2, timestamp_ms: 3 };
    let mut wrapper = TopicConfigWrapper::new(version, [("T".to_owned(), topic)].into());
    wrapper.topic_queue_mapping_info_map = Some(Json::Object(vec![("T".into(), Json::bean([("topic", "T".into())]))]));
    RegisterBrokerBody { filter_server_list: vec!["f".into()], topic_config_serialize_wrapper: wrapper }
}

#[test]
fn compressed_registrations() {
    let body = registration();
    let compressed = body.encode_compressed();
    let read = RegisterBrokerBody::decode_compressed(&compressed, 493).unwrap();
    let (ours, theirs) = (&body.topic_config_serialize_wrapper, &read.topic_config_serialize_wrapper);
    assert_eq!(ours.data_version, theirs.data_version);
    assert_eq!(ours.topic_config_table, theirs.topic_config_table);
    assert_eq!(ours.topic_queue_mapping_info_map, theirs.topic_queue_mapping_info_map);
    assert_eq!(read.filter_server_list, ["f"]);
    let old = RegisterBrokerBody::decode_compressed(&compressed, 400).unwrap();
    assert_eq!(old.topic_config_serialize_wrapper.topic_queue_mapping_info_map, None);
    for cut in [0, 1, 10, compressed.len() - 1] {
        assert!(RegisterBrokerBody::decode_compressed(&compressed[..cut], 493).is_err(), "{cut}");
    }
}

#[test]
fn a_bomb_is_refused() {
    use std::io::Write;
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    let zeros = vec![0u8; 1 << 20];
    for _ in 0..65 {
        encoder.write_all(&zeros).unwrap();
    }
    let bomb = encoder.finish().unwrap();
    assert!(bomb.len() < 1 << 20);
    assert_eq!(
        RegisterBrokerBody::decode_compressed(&bomb, 493),
        Err(BodyError::TooLarge(registration::MAX_INFLATED_BYTES))
    );
}
