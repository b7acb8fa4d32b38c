//! Runs the fuzz functions over the golden files and mutations of them; `FUZZ_EXECUTIONS` says how many.

use crate::frame::{self, SerializeType};
use crate::fuzz;
use crate::golden_tests::{config_files, frames};
use crate::{Command, bodies, bodies::Body};
use message::fuzz_driver::{Driver, executions};

/// Words that mean something in headers and bodies.
const TOKENS: [&[u8]; 28] = [
    b"\"code\":310,",
    b"\"code\":11,",
    b"\"code\":10,",
    b"\"code\":200050,",
    b"\"bornTime\":",
    b"\"initMode\":",
    b"\"exp\":",
    b"\"extFields\":{",
    b"\"extFields\":null,",
    b"null",
    b"true",
    b"\\u0001",
    b"\\ud83d\\ude00",
    b"\"a\":",
    b"\"e\":",
    b"\"i\":",
    b"\"topic\":",
    b"\"queueId\":",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"'",
    b"\"",
    b"-1",
    b"9223372036854775808",
];

fn run(name: &str, seeds: impl IntoIterator<Item = Vec<u8>>, target: fn(&[u8])) {
    Driver::new(0xF00D, seeds).with_tokens(&TOKENS).run(name, executions(), target);
}

/// A pop with every field, which no golden frame is.
fn pop() -> Command {
    let mut command = Command::request(200_050, 5);
    command.ext = [
        ("consumerGroup", "g"),
        ("topic", "t"),
        ("queueId", "-1"),
        ("maxMsgNums", "32"),
        ("invisibleTime", "60000"),
        ("pollTime", "15000"),
        ("bornTime", "1700000000000"),
        ("initMode", "1"),
        ("expType", "TAG"),
        ("exp", "A || B"),
        ("order", "true"),
        ("attemptId", "x"),
    ]
    .into_iter()
    .collect();
    command
}

/// The end of a transaction with every field, which no golden frame is.
fn end() -> Command {
    let mut command = Command::request(37, 5);
    command.ext = [
        ("producerGroup", "pg"),
        ("tranStateTableOffset", "3"),
        ("commitLogOffset", "379"),
        ("commitOrRollback", "8"),
        ("fromTransactionCheck", "true"),
        ("msgId", "7F00"),
    ]
    .into_iter()
    .collect();
    command
}

/// Headers of the golden frames, all also in the other form.
fn headers(form: SerializeType) -> Vec<Vec<u8>> {
    let in_form = |mut command: Command| {
        command.serialize_type = form;
        frame::split(&command.to_frame()).unwrap().header.to_vec()
    };
    let golden = frames().into_iter().map(|(_, bytes)| Command::decode(&bytes).unwrap());
    golden.chain([pop(), end()]).map(in_form).collect()
}

fn json_texts() -> Vec<Vec<u8>> {
    let bodies = frames().into_iter().map(|(_, bytes)| Command::decode(&bytes).unwrap().body);
    // Long texts only cost time: a mutation breaks them as it breaks short ones.
    let texts = bodies.chain(config_files().into_iter().map(|(_, text)| text));
    texts.filter(|text| text.first() == Some(&b'{') && text.len() <= 1000).collect()
}

#[test]
fn frame() {
    run("frame", frames().into_iter().map(|(_, bytes)| bytes), fuzz::frame);
}

#[test]
fn json_header() {
    run("json_header", headers(SerializeType::Json), fuzz::json_header);
}

#[test]
fn compact_header() {
    run("compact_header", headers(SerializeType::Compact), fuzz::compact_header);
}

#[test]
fn json() {
    run("json", json_texts(), fuzz::json);
}

#[test]
fn json_bodies() {
    run("json_bodies", json_texts(), fuzz::json_bodies);
}

#[test]
fn registration() {
    let requests =
        frames().into_iter().filter(|(name, _)| name.starts_with("broker.103.") && name.ends_with("request"));
    let seeds: Vec<_> = requests
        .flat_map(|(_, bytes)| {
            let text = Command::decode(&bytes).unwrap().body;
            let mut body = bodies::RegisterBrokerBody::decode(&text).unwrap();
            let topics = &mut body.topic_config_serialize_wrapper.topic_config_table;
            *topics = std::mem::take(topics).into_iter().take(3).collect();
            [body.encode_parts(), body.encode_compressed()]
        })
        .collect();
    assert!(!seeds.is_empty());
    run("registration", seeds, fuzz::registration);
}
