//! Records and frames of transactions against those of the 5.4.0 reference (`golden/`, written by `golden/capture.py`).

use super::marks;
use super::records::{CheckRequest, CheckRules, Half, Verdict, resumed};
use message::ids::OffsetIdPrefix;
use message::properties::{PropertiesSource, PropertyList, SendStamp, name};
use message::record::{RecordFields, RecordView, encode, patch};
use message::{names, sys_flag};
use remoting::Command;
use std::path::PathBuf;

fn golden(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("services/transaction/golden").join(name);
    let text: String = std::fs::read_to_string(path).unwrap().split_whitespace().collect();
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// The record of these fields, with what only the append knows taken from another.
fn stored_as(fields: &RecordFields<'_>, like: &RecordView<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out, fields).unwrap();
    patch(&mut out, like.queue_offset(), like.physical_offset(), like.store_timestamp_ms());
    out
}

#[test]
fn a_half_is_stored_as_the_reference_stores_it() {
    let (sent, stored) = (golden("half.sent.hex"), golden("half.stored.hex"));
    let record = RecordView::parse_checked(&stored).unwrap();
    let mut queue_text = itoa::Buffer::new();
    let mut list = PropertyList::parse(&sent);
    list.stamp(&SendStamp { region: b"DefaultRegion", trace_on: true, cluster: b"DefaultCluster" }, None);
    let target = crate::processor::delay::Target { topic: b"TxGolden", queue_id: 2, shard: store::ShardId(0) };
    let unique_id = list.get(name::UNIQ_KEY).unwrap();
    crate::processor::half::park(&mut list, target, unique_id, &mut queue_text).unwrap();
    let fields = RecordFields { properties: PropertiesSource::List(list.view()), ..record.fields() };
    assert_eq!(stored_as(&fields, &record), stored);
    assert_eq!(
        (record.topic(), record.queue_id(), sys_flag::transaction(record.sys_flag())),
        (names::HALF_TOPIC, 0, 0)
    );
}

#[test]
fn a_half_is_written_again_and_asked_about_as_by_the_reference() {
    let (first, again, frame) = (golden("half.stored.hex"), golden("again.stored.hex"), golden("check.hex"));
    let written = RecordView::parse_checked(&again).unwrap();
    let mut half = Half::parse(&first).unwrap();
    let rules = CheckRules { timeout_ms: 6_000, max_checks: 15, reserved_hours: 72 };
    let now_ms = written.store_timestamp_ms();
    assert_eq!(half.verdict(now_ms, rules), Verdict::Check(1));
    half.list.put(name::TRANSACTION_CHECK_TIMES, b"1");
    let fields = half.fields(names::HALF_TOPIC, 0, half.record.sys_flag());
    assert_eq!(stored_as(&fields, &written), again, "the half lies at offset 0, so its name is Java's 0");
    let expected = Command::decode(&frame).unwrap();
    let request = CheckRequest::new(&half).unwrap();
    let ids = OffsetIdPrefix::new("127.0.0.1:34511".parse().unwrap());
    let at = (written.queue_offset(), written.physical_offset());
    let command = request.command(expected.opaque, at, &ids, "broker-a");
    assert_eq!(command.body, expected.body);
    assert_eq!((command.code, command.flag), (expected.code, expected.flag));
    assert_eq!(command.ext.iter().collect::<Vec<_>>(), expected.ext.iter().collect::<Vec<_>>());
}

#[test]
fn a_commit_is_stored_as_the_reference_stores_it() {
    let (again, commit) = (golden("again.stored.hex"), golden("commit.stored.hex"));
    let delivered = RecordView::parse_checked(&commit).unwrap();
    let mut half = Half::parse(&again).unwrap();
    assert_eq!((half.target(), half.group()), (Some((&b"TxGolden"[..], 2)), Some(&b"golden-pg"[..])));
    half.deliver();
    let flags = sys_flag::with_transaction(half.record.sys_flag(), sys_flag::TRANSACTION_COMMIT);
    assert_eq!(stored_as(&half.fields(b"TxGolden", 2, flags), &delivered), commit);
}

#[test]
fn a_mark_is_stored_as_the_reference_stores_it() {
    let stored = golden("mark.stored.hex");
    let record = RecordView::parse_checked(&stored).unwrap();
    let mut marks = marks::Marks::starting_at(0);
    marks.add(1);
    let (_, body) = marks.next_record().unwrap();
    let fields = RecordFields { body: &body, properties: PropertiesSource::Text(marks::PROPERTIES), ..record.fields() };
    assert_eq!((stored_as(&fields, &record), record.topic()), (stored.clone(), names::OP_HALF_TOPIC));
}

/// A half message with these properties, born and stored at these times.
fn half_record(properties: &str, born_ms: i64, store_ms: i64) -> Vec<u8> {
    let host = "127.0.0.1:1".parse().unwrap();
    let text = format!("REAL_TOPIC\x01t\x02REAL_QID\x015\x02{}", properties.replace('=', "\x01").replace(';', "\x02"));
    let mut out = Vec::new();
    let fields = RecordFields {
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp_ms: born_ms,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        topic: names::HALF_TOPIC,
        body: b"x",
        properties: PropertiesSource::Text(text.as_bytes()),
    };
    encode(&mut out, &fields).unwrap();
    patch(&mut out, message::QueueOffset(0), message::PhysicalOffset(0), store_ms);
    out
}

#[test]
fn a_half_is_checked_when_it_is_old_enough_and_not_too_often() {
    let rules = CheckRules { timeout_ms: 6_000, max_checks: 15, reserved_hours: 72 };
    let now = 1_700_000_000_000;
    for (properties, born, stored, expected) in [
        ("", now - 6_000, now, Verdict::After(1)),
        ("", now - 6_001, now, Verdict::Check(1)),
        ("", now - 1_000, now, Verdict::After(5_001)),
        ("", now + 60_000, now - 1_000, Verdict::After(5_001)),
        ("", now + 60_000, now - 6_001, Verdict::Check(1)),
        ("", now + 60_000, now + 60_000, Verdict::After(6_001)),
        ("CHECK_IMMUNITY_TIME_IN_SECONDS=18;", now - 6_001, now, Verdict::After(12_000)),
        ("CHECK_IMMUNITY_TIME_IN_SECONDS=1;", now - 2_000, now, Verdict::After(4_001)),
        ("CHECK_IMMUNITY_TIME_IN_SECONDS=x;", now - 6_001, now, Verdict::Check(1)),
        (
            "CHECK_IMMUNITY_TIME_IN_SECONDS=18446744073709551615;",
            now - 9_000,
            now,
            Verdict::After(u64::MAX - 9_000 + 1),
        ),
        ("TRANSACTION_CHECK_TIMES=14;", now - 6_001, now, Verdict::Check(15)),
        ("TRANSACTION_CHECK_TIMES=15;", now - 6_001, now, Verdict::GiveUp),
        ("TRANSACTION_CHECK_TIMES=x;", now - 6_001, now, Verdict::Check(1)),
        ("", now - 72 * 3_600_000, now, Verdict::Check(1)),
        ("", now - 72 * 3_600_000 - 1, now, Verdict::GiveUp),
        ("", i64::MIN, now, Verdict::GiveUp),
        ("", i64::MAX, i64::MAX, Verdict::After(6_001)),
    ] {
        let bytes = half_record(properties, born, stored);
        assert_eq!(Half::parse(&bytes).unwrap().verdict(now, rules), expected, "{properties} {born} {stored}");
    }
}

#[test]
fn an_end_after_the_senders_own_time_waits_for_the_check() {
    let late = |properties: &str, age_ms: i64| {
        let bytes = half_record(properties, 1_000_000 - age_ms, 1_000_000);
        Half::parse(&bytes).unwrap().is_late(1_000_000, 6_000)
    };
    assert!(!late("", 900_000));
    assert!(!late("CHECK_IMMUNITY_TIME_IN_SECONDS=18;", 18_000) && late("CHECK_IMMUNITY_TIME_IN_SECONDS=18;", 18_001));
    assert!(!late("CHECK_IMMUNITY_TIME_IN_SECONDS=1;", 6_000) && late("CHECK_IMMUNITY_TIME_IN_SECONDS=1;", 6_001));
}

#[test]
fn only_what_was_given_up_is_resumed() {
    let bytes = half_record("TRANSACTION_CHECK_TIMES=15;", 1, 1);
    let half = Half::parse(&bytes).unwrap();
    assert!(resumed(&half.record).is_none());
    let given_up = stored_as(&half.fields(names::TRANS_CHECK_MAX_TIME_TOPIC, 0, 0), &half.record);
    assert!(Half::parse(&given_up).is_none());
    let record = RecordView::parse(&given_up).unwrap();
    let (topic, queue_id, list) = resumed(&record).unwrap();
    assert_eq!((topic, queue_id, list.get(name::TRANSACTION_CHECK_TIMES)), (&b"t"[..], 5, Some(&b"0"[..])));
}
