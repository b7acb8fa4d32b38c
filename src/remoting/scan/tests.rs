//! Tests of `scan`.

use super::names::{END_NAMES, POP_NAMES, PULL_NAMES, SEND_NAMES};
use super::*;
use crate::command::{Command, ExtFields};
use std::ops::Range;

fn json_frame(header: &str, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let start = frame::begin(&mut out);
    out.extend_from_slice(header.as_bytes());
    frame::finish(&mut out, start, SerializeType::Json, body.len());
    out.extend_from_slice(body);
    out
}

fn send_fields() -> ExtFields {
    [
        ("a", "LoadGroup"),
        ("b", "LoadTopic"),
        ("c", "TBW102"),
        ("d", "8"),
        ("e", "3"),
        ("f", "0"),
        ("g", "1796047500000"),
        ("h", "-1"),
        ("i", "UNIQ_KEY\u{1}7F00\u{2}TAGS\u{1}主😀\u{2}"),
        ("j", "2"),
        ("k", "false"),
        ("m", "TRUE"),
        ("n", "broker-a"),
    ]
    .into_iter()
    .collect()
}

fn check_send(frame: &[u8], form: SerializeType) {
    let scanned = scan(frame).unwrap();
    assert_eq!((scanned.code, scanned.opaque, scanned.version, scanned.serialize_type), (310, 77, 493, form));
    let Fields::Send(send) = scanned.fields else { panic!("{scanned:?}") };
    assert_eq!(send.producer_group.bytes(frame), b"LoadGroup");
    assert_eq!(send.topic.bytes(frame), b"LoadTopic");
    assert_eq!(send.default_topic.bytes(frame), b"TBW102");
    assert_eq!(&*send.properties.text(frame), "UNIQ_KEY\u{1}7F00\u{2}TAGS\u{1}主😀\u{2}".as_bytes());
    let (text, mut memory) = (send.properties.text(frame), Vec::new());
    let mut list = PropertyList::default();
    send.properties.in_frame(frame).read_properties(&mut list, &mut memory);
    assert!(list.iter().eq(PropertyList::parse(&text).iter()) && list.len() == 2);
    assert_eq!((send.default_topic_queue_nums, send.queue_id, send.sys_flag, send.flag), (8, 3, 0, -1));
    assert_eq!((send.born_timestamp_ms, send.reconsume_times, send.max_reconsume_times), (1_796_047_500_000, 2, None));
    assert_eq!((send.unit_mode, send.batch), (false, true));
    assert_eq!(scanned.body(frame), b"body");
}

#[test]
fn a_send_in_both_forms() {
    for form in [SerializeType::Json, SerializeType::Compact] {
        let mut command = Command::request(310, 77).with_body(b"body".to_vec());
        command.ext = send_fields();
        command.serialize_type = form;
        check_send(&command.to_frame(), form);
    }
    let escaped = r#"{"flag":0,"extFields":{"i":"UNIQ_KEY\u00017F00\u0002TAGS\u0001\u4e3b\uD83D\ude00\u0002","e":3,"d":"8","a":"LoadGroup","c":"TBW102","b":"LoadTopic","f":"0","g":"1796047500000","h":"-1","j":2,"m":true,"k":null},"opaque":77,"version":493,"language":0,"code":310}"#;
    check_send(&json_frame(escaped, b"body"), SerializeType::Json);
    let twice = escaped.replace("\"code\":310", "\"code\":11,\"code\":310");
    check_send(&json_frame(&twice, b"body"), SerializeType::Json);
}

#[test]
fn what_is_missing_or_wrong_names_its_field() {
    let frame = |code: i32, change: &[(&str, Option<&str>)]| {
        let mut command = Command::request(code, 1);
        command.ext = send_fields();
        for (name, value) in change {
            command.ext.remove(name);
            if let Some(value) = value {
                command.ext.set(*name, *value);
            }
        }
        scan(&command.to_frame()).unwrap().fields
    };
    let invalid = |field, problem| Fields::Invalid(FieldError { field, problem });
    assert_eq!(frame(310, &[("b", None)]), invalid("topic", Problem::Missing));
    assert_eq!(frame(310, &[("e", None)]), invalid("queueId", Problem::Missing));
    assert_eq!(frame(310, &[("e", Some("x"))]), invalid("queueId", Problem::NotANumber));
    assert_eq!(frame(310, &[("e", Some("2147483648"))]), invalid("queueId", Problem::OutOfRange));
    assert_eq!(frame(310, &[("g", Some("99999999999999999999"))]), invalid("bornTimestamp", Problem::OutOfRange));
    assert_eq!(frame(310, &[("l", Some("1.5"))]), invalid("maxReconsumeTimes", Problem::NotANumber));
    assert_eq!(frame(11, &[]), invalid("consumerGroup", Problem::Missing));
    assert!(matches!(frame(310, &[("j", None), ("k", None), ("m", None), ("a", None), ("i", None)]), Fields::Send(_)));
    let Fields::Send(send) = frame(310, &[("e", Some("-2147483648")), ("d", None)]) else { panic!() };
    assert_eq!((send.queue_id, send.default_topic_queue_nums), (i32::MIN, 4));
}

#[test]
fn pulls_and_others() {
    let mut command = Command::request(11, 5);
    command.ext = [
        ("consumerGroup", "g"),
        ("topic", "t"),
        ("queueId", "1"),
        ("queueOffset", "9223372036854775807"),
        ("maxMsgNums", "32"),
        ("sysFlag", "6"),
        ("commitOffset", "0"),
        ("suspendTimeoutMillis", "15000"),
        ("subscription", "A || B"),
        ("subVersion", "7"),
        ("expressionType", "TAG"),
    ]
    .into_iter()
    .collect();
    for form in [SerializeType::Json, SerializeType::Compact] {
        command.serialize_type = form;
        let frame = command.to_frame();
        let Fields::Pull(pull) = scan(&frame).unwrap().fields else { panic!() };
        assert_eq!((pull.group.bytes(&frame), pull.topic.bytes(&frame)), (&b"g"[..], &b"t"[..]));
        assert_eq!(
            (pull.subscription.bytes(&frame), pull.expression_type.bytes(&frame)),
            (&b"A || B"[..], &b"TAG"[..])
        );
        assert_eq!(
            (pull.queue_offset, pull.suspend_timeout_ms, pull.sub_version, pull.max_msg_nums),
            (i64::MAX, 15_000, 7, 32)
        );
    }
    command.code = 34;
    assert_eq!(scan(&command.to_frame()).unwrap().fields, Fields::Other);
    command.code = 11;
    command.flag = FLAG_RESPONSE;
    assert_eq!(scan(&command.to_frame()).unwrap().fields, Fields::Other);
}

#[test]
fn pops() {
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
        ("exp", "A \"||\" B"),
        ("order", "TRUE"),
        ("attemptId", "x"),
        ("bname", "broker-a"),
    ]
    .into_iter()
    .collect();
    // The other form has no room for so large a code.
    let frame = command.to_frame();
    let Fields::Pop(pop) = scan(&frame).unwrap().fields else { panic!() };
    assert_eq!((pop.group.bytes(&frame), pop.topic.bytes(&frame)), (&b"g"[..], &b"t"[..]));
    assert_eq!((&*pop.expression.text(&frame), pop.expression_type.bytes(&frame)), (&b"A \"||\" B"[..], &b"TAG"[..]));
    assert_eq!((pop.queue_id, pop.max_msg_nums, pop.init_mode, pop.order), (-1, 32, 1, true));
    assert_eq!((pop.invisible_ms, pop.poll_ms, pop.born_ms), (60_000, 15_000, 1_700_000_000_000));
    assert_eq!(pop.attempt.bytes(&frame), b"x");
    for (field, required) in [("initMode", true), ("pollTime", true), ("bornTime", false), ("exp", false)] {
        let mut command = command.clone();
        command.ext.remove(field);
        let missing = Fields::Invalid(FieldError { field, problem: Problem::Missing });
        assert_eq!(scan(&command.to_frame()).unwrap().fields == missing, required, "{field}");
    }
}

#[test]
fn ends_of_transactions() {
    let mut command = Command::request(37, 5);
    command.ext = [
        ("producerGroup", "pg"),
        ("topic", "t"),
        ("tranStateTableOffset", "-1"),
        ("commitLogOffset", "72057594037927936"),
        ("commitOrRollback", "8"),
        ("fromTransactionCheck", "True"),
        ("msgId", "7F00"),
        ("transactionId", "7F00"),
        ("bname", "broker-a"),
    ]
    .into_iter()
    .collect();
    for form in [SerializeType::Json, SerializeType::Compact] {
        command.serialize_type = form;
        let frame = command.to_frame();
        let Fields::End(end) = scan(&frame).unwrap().fields else { panic!() };
        assert_eq!(end.producer_group.bytes(&frame), b"pg");
        assert_eq!((end.table_offset, end.log_offset, end.end, end.from_check), (-1, 1 << 56, 8, true));
    }
    for (field, required) in [("tranStateTableOffset", true), ("commitOrRollback", true), ("producerGroup", false)] {
        let mut command = command.clone();
        command.ext.remove(field);
        let missing = Fields::Invalid(FieldError { field, problem: Problem::Missing });
        assert_eq!(scan(&command.to_frame()).unwrap().fields == missing, required, "{field}");
    }
}

#[test]
fn headers_that_make_no_sense() {
    for bad in [
        "",
        "[]",
        "{\"code\":310,\"extFields\":{\"a\":\"x}}",
        "{\"code\":310",
        "{\"code\":310}x",
        "{\"code\":1e99}",
        r#"{"code":310,"extFields":{"e":"0","\":"0","g":"1"}}"#,
        r#"{"code":310,"extFields":{"e":"0",""":"0","g":"1"}}"#,
    ] {
        assert!(matches!(scan(&json_frame(bad, b"")), Err(FrameError::Json(_))), "{bad}");
    }
}

#[test]
fn compact_headers_that_end_early_or_lie() {
    let mut command = Command::request(310, 77);
    command.ext = send_fields();
    command.ext.set("l", "");
    command.ext.set("longer", "x");
    command.ext.set("z", "");
    command.serialize_type = SerializeType::Compact;
    let frame = command.to_frame();
    let header = frame::split(&frame).unwrap().header;
    const BLOCK_LENGTH: Range<usize> = 17..21;
    for len in 0..=header.len() {
        // As it is, and with a block of fields that ends where the header does.
        let mut cut = header[..len].to_vec();
        crate::fuzz::compact_header(&cut);
        if let Some(place) = cut.get_mut(BLOCK_LENGTH) {
            place.copy_from_slice(&((len - BLOCK_LENGTH.end) as u32).to_be_bytes());
            crate::fuzz::compact_header(&cut);
        }
    }
    for at in 0..header.len() {
        for byte in [0, 1, 2, 0x7F, 0x80, 0xFF] {
            let mut changed = header.to_vec();
            changed[at] = byte;
            crate::fuzz::compact_header(&changed);
        }
    }
}

#[test]
fn every_name_has_its_slot() {
    for (slot, name) in SEND_NAMES.iter().enumerate() {
        assert_eq!(Names::SendLong.slot(name.as_bytes()), Some(slot));
    }
    for (slot, name) in PULL_NAMES.iter().enumerate() {
        assert_eq!(Names::Pull.slot(name.as_bytes()), Some(slot));
    }
    for (slot, name) in POP_NAMES.iter().enumerate() {
        assert_eq!(Names::Pop.slot(name.as_bytes()), Some(slot));
    }
    for (slot, name) in END_NAMES.iter().enumerate() {
        assert_eq!(Names::End.slot(name.as_bytes()), Some(slot));
    }
    for none in ["", "t", "topiC", "bxxxx", "queueIx", "defaultTopiX"] {
        assert_eq!((Names::SendLong.slot(none.as_bytes()), Names::Pull.slot(none.as_bytes())), (None, None));
        assert_eq!((Names::Pop.slot(none.as_bytes()), Names::End.slot(none.as_bytes())), (None, None));
    }
}

#[test]
fn headers_of_real_clients_take_the_quick_way() {
    for (name, bytes) in crate::golden_tests::frames() {
        let parts = frame::split(&bytes).unwrap();
        let real = name.starts_with("java.") || name.starts_with("go.") || name.ends_with(".response");
        let preflight = bytes.windows(7).any(|part| part == b"\"OTHER\"");
        let reference_remark = parts.serialize_type == SerializeType::Json && real && !preflight;
        if reference_remark {
            let mut scanned = scan(&bytes).unwrap();
            let quick = plain::scan(&bytes[..PREFIX_BYTES + parts.header.len()], &mut scanned, &mut Slots::default());
            assert!(quick.is_some(), "{name}: {}", String::from_utf8_lossy(parts.header));
        }
    }
}
