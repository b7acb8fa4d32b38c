//! Fuzz entry points of this crate's decoders: `fn(&[u8])` that panic when an invariant breaks.
//!
//! Role: the same functions run under `cargo fuzz` and under `message::fuzz_driver`. Test support only.

use crate::bodies::{self, Body, RegisterBrokerBody};
use crate::command::{Command, ExtFields, FieldError};
use crate::frame::{self, SerializeType};
use crate::json::{Json, JsonRef};
use crate::scan::{EndHeader, Fields, PopHeader, PullHeader, SendHeader, Span, scan};
use message::properties::PropertyList;

/// A whole frame as it comes from the network: splitting, scanning and decoding agree on whether it can be trusted.
pub fn frame(data: &[u8]) {
    let parts = frame::split(data);
    if let Ok(parts) = &parts {
        assert_eq!(frame::PREFIX_BYTES + parts.header.len() + parts.body.len(), data.len());
        assert_eq!(frame::frame_len(data), Ok(Some(data.len())));
    }
    assert!(parts.is_ok() || scan(data).is_err());
    agree(data);
}

/// The header of a JSON frame.
pub fn json_header(data: &[u8]) {
    agree(&framed(SerializeType::Json, data));
}

/// The header of a compact frame.
pub fn compact_header(data: &[u8]) {
    agree(&framed(SerializeType::Compact, data));
}

/// A JSON text: what is read can be written, compact and pretty, and reads the same again.
pub fn json(data: &[u8]) {
    let Ok(value) = JsonRef::parse(data) else { return };
    let tree = Json::from_ref(value);
    for text in [tree.to_vec(), tree.to_pretty()] {
        let again = JsonRef::parse(&text).expect("what was written is JSON");
        assert_eq!(Json::from_ref(again), tree);
    }
    for (key, member) in value.entries() {
        let _ = (key.as_str(), member.as_str(), member.as_i64(), member.as_f64(), member.as_bool());
    }
}

/// Every typed body: what is read writes and reads the same again.
pub fn json_bodies(data: &[u8]) {
    fn check<T: Body + PartialEq + std::fmt::Debug>(value: JsonRef<'_>) {
        if let Ok(body) = T::from_json(value) {
            assert_eq!(T::decode(&body.encode()).as_ref(), Ok(&body));
        }
    }
    let Ok(value) = JsonRef::parse(data) else { return };
    check::<bodies::TopicConfigWrapper>(value);
    check::<bodies::TopicConfig>(value);
    check::<bodies::TopicTable>(value);
    check::<bodies::TopicConfigList>(value);
    check::<bodies::DataVersion>(value);
    check::<bodies::SubscriptionGroupConfig>(value);
    check::<bodies::GroupTable>(value);
    check::<bodies::SubscriptionGroupConfigList>(value);
    check::<bodies::HeartbeatData>(value);
    check::<bodies::TopicRouteData>(value);
    check::<bodies::ClusterInfo>(value);
    check::<bodies::BrokerMemberGroupBody>(value);
    check::<bodies::RegisterBrokerBody>(value);
    check::<bodies::KvTable>(value);
    check::<bodies::TopicList>(value);
    check::<bodies::GroupList>(value);
    check::<bodies::ConsumerList>(value);
    check::<bodies::ConsumerConnection>(value);
    check::<bodies::ProducerConnection>(value);
    check::<bodies::ProducerTable>(value);
    check::<bodies::QuerySubscription>(value);
    check::<bodies::CheckClientConfig>(value);
    check::<bodies::TopicStatsTable>(value);
    check::<bodies::ConsumeStats>(value);
    check::<bodies::ConsumeTimeSpans>(value);
    check::<bodies::ConsumeQueueData>(value);
    check::<bodies::ResetOffsetTable>(value);
    check::<bodies::MessageQueueStatus>(value);
    check::<bodies::ConsumerStatus>(value);
    check::<bodies::LockBatchRequest>(value);
    check::<bodies::LockBatchResponse>(value);
    check::<bodies::ConsumerOffsetTable>(value);
    check::<bodies::DelayOffsetTable>(value);
}

/// A compressed registration, and the text inside one.
pub fn registration(data: &[u8]) {
    let _ = RegisterBrokerBody::decode_compressed(data, 493);
    for version in [400, 493] {
        let Ok(body) = RegisterBrokerBody::decode_parts(data, version) else { continue };
        let (again, parts) = (body.encode_parts(), RegisterBrokerBody::decode_parts);
        let again = parts(&again, 493).expect("what was written is read");
        let topics = |body: &RegisterBrokerBody| body.topic_config_serialize_wrapper.topic_config_table.clone();
        assert_eq!(topics(&again), topics(&body));
        assert_eq!(again.filter_server_list, body.filter_server_list);
    }
}

fn framed(form: SerializeType, header: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(header.len() + frame::PREFIX_BYTES + 4);
    let start = frame::begin(&mut out);
    out.extend_from_slice(header);
    frame::finish(&mut out, start, form, 4);
    out.extend_from_slice(b"body");
    out
}

/// The scanner and the full decoder see the same in a frame, and a decoded command encodes and decodes to itself.
fn agree(data: &[u8]) {
    let (command, scanned) = match (Command::decode(data), scan(data)) {
        (Ok(command), Ok(scanned)) => (command, scanned),
        (Err(decoded), Err(scanned)) => return assert_eq!(decoded, scanned),
        (decoded, scanned) => panic!("decoded {decoded:?}, scanned {scanned:?}"),
    };
    assert_eq!(
        (command.code, command.opaque, command.flag, command.version, command.language, command.serialize_type),
        (scanned.code, scanned.opaque, scanned.flag, scanned.version, scanned.language, scanned.serialize_type)
    );
    assert_eq!(command.body, scanned.body(data));
    let hot = !command.is_response() && matches!(command.code, 10 | 11 | 37 | 310 | 320 | 361 | 200_050);
    let ext = &command.ext;
    match scanned.fields {
        Fields::Send(send) if command.code == 10 => assert_eq!(check_send(data, ext, send, SEND_LONG), Ok(())),
        Fields::Send(send) => assert_eq!(check_send(data, ext, send, SEND_SHORT), Ok(())),
        Fields::Pull(pull) => assert_eq!(check_pull(data, ext, pull), Ok(())),
        Fields::Pop(pop) => assert_eq!(check_pop(data, ext, pop), Ok(())),
        Fields::End(end) => assert_eq!(check_end(data, ext, end), Ok(())),
        Fields::Invalid(error) => check_invalid(&command, error),
        Fields::Other => assert!(!hot),
    }
    let again = Command::decode(&command.to_frame()).expect("an encoded command decodes");
    assert_eq!(
        (again.code, again.opaque, again.flag, &again.body),
        (command.code, command.opaque, command.flag, &command.body)
    );
    assert!(
        command
            .ext
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .all(|(name, value)| again.ext.get(name) == Some(value))
    );
}

type SendNames = [&'static str; 13];
const SEND_SHORT: SendNames = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m"];
const SEND_LONG: SendNames = [
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
];

fn check_send(data: &[u8], ext: &ExtFields, send: SendHeader, names: SendNames) -> Result<(), FieldError> {
    same_text(data, ext, names[0], send.producer_group);
    same_text(data, ext, names[1], send.topic);
    same_text(data, ext, names[2], send.default_topic);
    same_text(data, ext, names[8], send.properties);
    same_properties(data, send.properties);
    assert!(send.topic.is_present());
    assert_eq!(ext.optional_i32(names[3])?.unwrap_or(4), send.default_topic_queue_nums);
    assert_eq!(ext.i32(names[4])?, send.queue_id);
    assert_eq!(ext.i32(names[5])?, send.sys_flag);
    assert_eq!(ext.i64(names[6])?, send.born_timestamp_ms);
    assert_eq!(ext.i32(names[7])?, send.flag);
    assert_eq!(ext.optional_i32(names[9])?.unwrap_or(0), send.reconsume_times);
    assert_eq!(ext.boolean(names[10]).unwrap_or(false), send.unit_mode);
    assert_eq!(ext.optional_i32(names[11])?, send.max_reconsume_times);
    assert_eq!(ext.boolean(names[12]).unwrap_or(false), send.batch);
    Ok(())
}

fn check_pull(data: &[u8], ext: &ExtFields, pull: PullHeader) -> Result<(), FieldError> {
    same_text(data, ext, "consumerGroup", pull.group);
    same_text(data, ext, "topic", pull.topic);
    same_text(data, ext, "subscription", pull.subscription);
    same_text(data, ext, "expressionType", pull.expression_type);
    assert!(pull.topic.is_present() && pull.group.is_present());
    assert_eq!(ext.i32("queueId")?, pull.queue_id);
    assert_eq!(ext.i64("queueOffset")?, pull.queue_offset);
    assert_eq!(ext.i32("maxMsgNums")?, pull.max_msg_nums);
    assert_eq!(ext.i32("sysFlag")?, pull.sys_flag);
    assert_eq!(ext.optional_i64("commitOffset")?.unwrap_or(0), pull.commit_offset);
    assert_eq!(ext.optional_i64("suspendTimeoutMillis")?.unwrap_or(0), pull.suspend_timeout_ms);
    assert_eq!(ext.optional_i64("subVersion")?.unwrap_or(0), pull.sub_version);
    Ok(())
}

fn check_pop(data: &[u8], ext: &ExtFields, pop: PopHeader) -> Result<(), FieldError> {
    same_text(data, ext, "consumerGroup", pop.group);
    same_text(data, ext, "topic", pop.topic);
    same_text(data, ext, "exp", pop.expression);
    same_text(data, ext, "expType", pop.expression_type);
    same_text(data, ext, "attemptId", pop.attempt);
    assert!(pop.topic.is_present() && pop.group.is_present());
    assert_eq!(ext.i32("queueId")?, pop.queue_id);
    assert_eq!(ext.optional_i64("bornTime")?.unwrap_or(0), pop.born_ms);
    assert_eq!(ext.i32("maxMsgNums")?, pop.max_msg_nums);
    assert_eq!(ext.i64("invisibleTime")?, pop.invisible_ms);
    assert_eq!(ext.i64("pollTime")?, pop.poll_ms);
    assert_eq!(ext.i32("initMode")?, pop.init_mode);
    assert_eq!(ext.boolean("order").unwrap_or(false), pop.order);
    Ok(())
}

fn check_end(data: &[u8], ext: &ExtFields, end: EndHeader) -> Result<(), FieldError> {
    same_text(data, ext, "producerGroup", end.producer_group);
    assert_eq!(ext.i64("tranStateTableOffset")?, end.table_offset);
    assert_eq!(ext.i64("commitLogOffset")?, end.log_offset);
    assert_eq!(ext.i32("commitOrRollback")?, end.end);
    assert_eq!(ext.boolean("fromTransactionCheck").unwrap_or(false), end.from_check);
    Ok(())
}

/// The field that the scanner refused does not serve by the decoder's reading either, for the same reason.
fn check_invalid(command: &Command, error: FieldError) {
    let short = matches!(command.code, 310 | 320);
    let place = SEND_LONG.iter().position(|name| *name == error.field);
    let name = match place {
        Some(place) if short => SEND_SHORT[place],
        _ => error.field,
    };
    const WIDE: [&str; 10] = [
        "bornTimestamp",
        "queueOffset",
        "commitOffset",
        "suspendTimeoutMillis",
        "subVersion",
        "bornTime",
        "invisibleTime",
        "pollTime",
        "tranStateTableOffset",
        "commitLogOffset",
    ];
    let wide = WIDE.contains(&error.field);
    let text = matches!(error.field, "topic" | "consumerGroup");
    let problem = match (text, wide) {
        (true, _) => command.ext.text(name).map(drop),
        (_, true) => command.ext.i64(name).map(drop),
        _ => command.ext.i32(name).map(drop),
    };
    assert_eq!(problem.unwrap_err().problem, error.problem, "{error}");
}

/// Properties read where they stand are those of the text without escapes.
fn same_properties(data: &[u8], span: Span) {
    let (text, mut memory, mut list) = (span.text(data), Vec::new(), PropertyList::default());
    span.in_frame(data).read_properties(&mut list, &mut memory);
    assert!(list.iter().eq(PropertyList::parse(&text).iter()), "{:?}", span.bytes(data));
}

fn same_text(data: &[u8], ext: &ExtFields, name: &str, span: Span) {
    let scanned = span.is_present().then(|| String::from_utf8_lossy(&span.text(data)).into_owned());
    assert_eq!(ext.get(name), scanned.as_deref(), "{name}");
}
