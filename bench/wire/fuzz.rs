//! Runs the scanner of answers over mutations of answers; `FUZZ_EXECUTIONS` says how many.

use message::fuzz_driver::{Driver, executions};
use remoting::{Command, ResponseCode, SerializeType};

use super::answer::{Answer, Head};
use super::input::Input;

const TOKENS: [&[u8]; 12] = [
    b"},\"flag\":",
    b"\"opaque\":",
    b"\"code\":",
    b"\\\"",
    b"\"remark\":\"x\",",
    b"{",
    b"}",
    b"[",
    b"null",
    b"-1",
    b"99999999999",
    b",\"version\":1}",
];

fn seeds(form: SerializeType) -> Vec<Command> {
    let base = Command::response(ResponseCode::Success, 123_456, form);
    vec![
        base.clone(),
        base.clone().with_field("msgId", "0A").with_field("queueOffset", 12).with_field("queueId", 0),
        base.clone().with_remark("FOUND").with_field("nextBeginOffset", 32),
        Command::response(ResponseCode::SystemError, -1, form).with_remark("a \"quoted\" \u{1} remark"),
        Command::request(40, 9).with_field("consumerGroup", "g"),
    ]
}

fn check_json(header: &[u8]) {
    let answer = Answer { form: SerializeType::Json, header, body: &[], body_len: 0 };
    let wanted = answer.decode();
    let head = wanted.as_ref().map(|c| Head { code: c.code, opaque: c.opaque, is_response: c.is_response() });
    if wanted.is_some() {
        assert_eq!(answer.head(), head);
    } else {
        // What the codec refuses (broken inside the fields) may be read; it must not be wrong silently: a code or opaque
        // that nobody asked for is refused by its table.
        let _ = answer.head();
    }
    for field in ["msgId", "queueOffset", "nextBeginOffset"] {
        let _ = (answer.text(field), answer.number(field));
    }
}

fn check_compact(header: &[u8]) {
    let answer = Answer { form: SerializeType::Compact, header, body: &[], body_len: 0 };
    let head = answer.head();
    if let Some(wanted) = answer.decode() {
        let wanted = Head { code: wanted.code, opaque: wanted.opaque, is_response: wanted.is_response() };
        assert_eq!(head, Some(wanted));
    }
    let _ = (answer.text("msgId"), answer.number("queueOffset"));
}

fn header_of(command: Command) -> Vec<u8> {
    remoting::frame::split(&command.to_frame()).unwrap().header.to_vec()
}

#[test]
fn json_answers() {
    let seeds: Vec<Vec<u8>> = seeds(SerializeType::Json).into_iter().map(header_of).collect();
    Driver::new(0xB0A7, seeds).with_tokens(&TOKENS).run("json answer", executions(), check_json);
}

#[test]
fn compact_answers() {
    let seeds: Vec<Vec<u8>> = seeds(SerializeType::Compact).into_iter().map(header_of).collect();
    Driver::new(0xB0A8, seeds).run("compact answer", executions(), check_compact);
}

/// The first byte says in what pieces the rest arrives.
fn check_stream(bytes: &[u8]) {
    let Some((piece, stream)) = bytes.split_first() else { return };
    let mut whole = Vec::new();
    let in_one = Input::default().feed(stream, true, |a| whole.push((a.header.to_vec(), a.body.to_vec(), a.body_len)));
    for keeps in [true, false] {
        let (mut input, mut parts, mut result) = (Input::default(), Vec::new(), Ok(()));
        for chunk in stream.chunks(usize::from(*piece % 50) + 1) {
            result = input.feed(chunk, keeps, |a| parts.push((a.header.to_vec(), a.body.to_vec(), a.body_len)));
            if result.is_err() {
                break;
            }
        }
        assert_eq!(in_one.is_err(), result.is_err());
        assert_eq!(whole.len(), parts.len());
        for (wanted, got) in whole.iter().zip(&parts) {
            assert_eq!((&wanted.0, wanted.2), (&got.0, got.2));
            assert!(!keeps || wanted.1 == got.1);
        }
    }
}

#[test]
fn streams_in_any_pieces() {
    let all = [SerializeType::Json, SerializeType::Compact].into_iter().flat_map(seeds);
    let stream: Vec<u8> = all.flat_map(|c| c.with_body(vec![7; 40]).to_frame()).collect();
    let seeds = [3u8, 20, 49].map(|piece| [&[piece][..], &stream].concat());
    Driver::new(0xB0A9, seeds).run("stream", executions() / 4, check_stream);
}
