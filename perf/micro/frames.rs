//! The requests that the cases read, as frames in both header forms.

use remoting::{Command, RequestCode, SerializeType};

/// The topic of all cases.
pub const TOPIC: &str = "LoadTopic";
/// The consumer group of all cases.
pub const GROUP: &str = "LoadGroup";
/// Properties as a client sends them.
pub const PROPERTIES: &str = "UNIQ_KEY\u{1}7F00000100002A139A16KKKKKKKKKK00\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TagA";
/// Wall clock of all cases, ms since 1970.
pub const NOW_MS: i64 = 1_796_047_500_000;
/// Body of all messages.
pub const BODY: [u8; 128] = [b'x'; 128];

fn frame(code: RequestCode, form: SerializeType, fields: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut command = Command::request(code, 1_000_000_000).with_body(body.to_vec());
    command.ext = fields.iter().copied().collect();
    command.serialize_type = form;
    command.to_frame()
}

/// SEND_MESSAGE_V2.
pub fn send(form: SerializeType) -> Vec<u8> {
    let fields = [
        ("a", "LoadGroup"),
        ("b", TOPIC),
        ("c", "TBW102"),
        ("d", "8"),
        ("e", "3"),
        ("f", "0"),
        ("g", "1796047500000"),
        ("h", "0"),
        ("i", PROPERTIES),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
        ("n", "broker-a"),
    ];
    frame(RequestCode::SendMessageV2, form, &fields, &BODY)
}

/// PULL_MESSAGE of up to so many messages from the queue's beginning.
pub fn pull(form: SerializeType, count: u32) -> Vec<u8> {
    let fields = [
        ("consumerGroup", GROUP),
        ("topic", TOPIC),
        ("queueId", "3"),
        ("queueOffset", "0"),
        ("maxMsgNums", &count.to_string()),
        ("sysFlag", "6"),
        ("commitOffset", "0"),
        ("suspendTimeoutMillis", "15000"),
        ("subscription", "*"),
        ("subVersion", "0"),
        ("expressionType", "TAG"),
        ("bname", "broker-a"),
    ];
    frame(RequestCode::PullMessage, form, &fields, &[])
}

/// POP_MESSAGE of up to 32 messages.
pub fn pop() -> Vec<u8> {
    let fields = [
        ("consumerGroup", GROUP),
        ("topic", TOPIC),
        ("queueId", "3"),
        ("maxMsgNums", "32"),
        ("invisibleTime", "60000"),
        ("pollTime", "15000"),
        ("bornTime", "1796047500000"),
        ("initMode", "0"),
        ("expType", "TAG"),
        ("exp", "*"),
        ("order", "false"),
        ("bname", "broker-a"),
    ];
    frame(RequestCode::PopMessage, SerializeType::Json, &fields, &[])
}
