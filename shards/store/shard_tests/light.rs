//! Light queues: entries of one record in several queues, their offsets in its properties, and what a crash leaves of them.

use std::path::Path;

use message::properties::{PropertiesSource, PropertyList, SendStamp, find, name};
use message::record::{RecordFields, RecordView};
use proptest::prelude::*;
use simulator::Fault;
use sys::disk::Disk;

use super::rig::{ROOT, Rig, fields};
use crate::AppendError;
use crate::limits::LIGHT_QUEUES;
use crate::options::FlushMode;
use crate::step::ReadStep;
use crate::types::{Appended, PullLimits};

fn rig(flush: FlushMode, seed: u64) -> Rig {
    let mut rig = Rig::unopened(flush, seed);
    rig.options.light_queues = true;
    rig.open();
    rig
}

/// A properties text that names light queues.
fn naming(queues: &str) -> String {
    format!("TAGS\u{1}A\u{2}INNER_MULTI_DISPATCH\u{1}{queues}\u{2}")
}

fn stage(rig: &mut Rig, topic: &str, body: &[u8], text: &str) -> Result<Appended, AppendError> {
    let now = rig.now;
    rig.shard().append(now, &[fields(topic, 0, body, text)])
}

fn send(rig: &mut Rig, topic: &str, body: &str, queues: &str) {
    stage(rig, topic, body.as_bytes(), &naming(queues)).expect("an append");
    rig.turn();
}

/// Everything in a light queue: body, and the offsets in the properties.
fn read(rig: &mut Rig, queue: &str) -> Vec<(String, String)> {
    let bounds = rig.shard().bounds(queue.as_bytes(), 0).unwrap_or_default();
    let (mut found, mut from) = (Vec::new(), bounds.min.0);
    while from < bounds.max.0 {
        let next = message::QueueOffset(from);
        let step = rig.shard().pull(queue.as_bytes(), 0, next, PullLimits::count(32), &mut |_| true);
        let ReadStep::Ready(pulled) = step else { panic!("{step:?}") };
        assert!(pulled.next_begin.0 > from, "{pulled:?}");
        let mut bytes = Vec::new();
        pulled.slices.iter().for_each(|slice| slice.copy_into(&mut bytes).unwrap());
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let record = RecordView::parse_checked(rest).unwrap();
            let offsets = find(record.properties(), name::INNER_MULTI_QUEUE_OFFSET).unwrap_or_default();
            found.push((text(record.body()), text(offsets)));
            rest = &rest[record.size() as usize..];
        }
        from = pulled.next_begin.0;
    }
    found
}

fn remove(rig: &Rig, path: &str) {
    rig.disk.remove_file(&Path::new(ROOT).join(path)).unwrap();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|&(body, offsets)| (body.to_owned(), offsets.to_owned())).collect()
}

#[test]
fn a_record_lies_in_each_queue_that_it_names() {
    let mut rig = rig(FlushMode::Async, 1);
    send(&mut rig, "t", "one", "%LMQ%a,%LMQ%b");
    send(&mut rig, "t", "two", "%LMQ%b,,");
    send(&mut rig, "t", "twice", "%LMQ%a,%LMQ%a");
    send(&mut rig, "%LMQ%a", "itself", "%LMQ%a,%LMQ%b");
    send(&mut rig, "t", "blank", " ");
    let check = |rig: &mut Rig| {
        let itself = ("itself", "3,2");
        assert_eq!(read(rig, "%LMQ%a"), pairs(&[("one", "0,0"), ("twice", "1,1"), itself, itself]));
        assert_eq!(read(rig, "%LMQ%b"), pairs(&[("one", "0,0"), ("two", "1"), itself]));
        assert_eq!(read(rig, "t").len(), 4);
    };
    check(&mut rig);
    rig.close();
    rig.verify();
    rig.open();
    check(&mut rig);
}

#[test]
fn a_record_is_the_one_that_a_java_broker_stores() {
    const ONE: &str = include_str!("light_record.hex");
    let golden: Vec<u8> =
        (0..ONE.trim().len() / 2).map(|at| u8::from_str_radix(&ONE[at * 2..at * 2 + 2], 16).unwrap()).collect();
    let java = RecordView::parse_checked(&golden).unwrap();
    let mut rig = rig(FlushMode::Async, 1);
    let stamp = SendStamp { region: b"DefaultRegion", trace_on: true, cluster: b"DefaultCluster" };
    let mut list = PropertyList::parse(b"WAIT\x01true\x02TAGS\x01TagA\x02KEYS\x01k\x02UNIQ_KEY\x017F0000010000000000000000000000AA\x02INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02");
    list.stamp(&stamp, None);
    // The record before it in Java's log, of the same length.
    let plain = fields("par", 0, &[0; 143], "");
    assert_eq!(plain.encoded_len() as u64, java.physical_offset().0);
    rig.now.wall_ms = java.store_timestamp_ms();
    let now = rig.now;
    rig.shard().append(now, &[plain]).unwrap();
    let fields = RecordFields { properties: PropertiesSource::List(list.view()), ..java.fields() };
    let appended = rig.shard().append(now, &[fields]).unwrap();
    rig.turn();
    let (from, to) = (appended.first().0 as usize, appended.end.0 as usize);
    assert_eq!(rig.file("commitlog/00000000000000000000")[from..to], golden[..]);
}

#[test]
fn names_that_cannot_be_queues_are_refused_and_nothing_is_stored() {
    let mut rig = rig(FlushMode::Async, 1);
    let long = format!("%LMQ%{}", "y".repeat(300));
    for bad in ["other", "%LMQ%a,other", "%LMQ%a/1", "%LMQ%../../x", ",,,", ",%LMQ%a", "%LMQ%a\0", &long, "%lmq%a"] {
        let error = stage(&mut rig, "t", b"x", &naming(bad)).unwrap_err();
        assert!(matches!(error, AppendError::Illegal(_)), "{bad:?}: {error}");
    }
    let many = vec!["%LMQ%a"; 4_600].join(",");
    assert!(matches!(stage(&mut rig, "t", b"x", &naming(&many)), Err(AppendError::Illegal(_))), "offsets need room");
    rig.turn();
    assert_eq!(rig.shard().all_queues().count(), 0);
    assert_eq!(rig.shard().end().0, 0);
    // Two dots alone would be a folder; behind the prefix they are letters.
    send(&mut rig, "t", "x", "%LMQ%..");
    assert_eq!(read(&mut rig, "%LMQ%..").len(), 1);
}

#[test]
fn topics_of_waiting_and_retried_messages_have_none() {
    let mut rig = rig(FlushMode::Async, 1);
    for topic in [
        "%RETRY%g",
        "rmq_sys_wheel_timer",
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    ] {
        send(&mut rig, topic, "x", "%LMQ%a");
    }
    let half = RecordFields { sys_flag: 4, ..fields("t", 0, b"x", "INNER_MULTI_DISPATCH\u{1}%LMQ%a\u{2}") };
    let (now, batch) = (rig.now, naming("%LMQ%a"));
    rig.shard().append(now, &[half]).unwrap();
    rig.shard().append(now, &[fields("t", 0, b"a", &batch), fields("t", 0, b"b", &batch)]).unwrap();
    rig.turn();
    assert_eq!(read(&mut rig, "%LMQ%a"), []);
    send(&mut rig, "%DLQ%g", "x", "%LMQ%a");
    assert_eq!(read(&mut rig, "%LMQ%a"), pairs(&[("x", "0")]));
}

#[test]
fn a_message_that_waited_is_stored_whatever_it_names() {
    let mut rig = rig(FlushMode::Async, 1);
    let (now, forged) = (rig.now, format!("{}INNER_MULTI_QUEUE_OFFSET\u{1}7\u{2}", naming("a/b")));
    let waited = RecordFields { prepared_transaction_offset: 5, ..fields("t", 0, b"x", &forged) };
    rig.shard().append(now, &[waited]).unwrap();
    let good = naming("%LMQ%a");
    rig.shard().append(now, &[RecordFields { properties: PropertiesSource::Text(good.as_bytes()), ..waited }]).unwrap();
    rig.turn();
    assert_eq!(read(&mut rig, "t"), pairs(&[("x", ""), ("x", "0")]));
    assert_eq!(read(&mut rig, "%LMQ%a").len(), 1);
}

#[test]
fn there_are_so_many_light_queues_and_no_more() {
    let mut rig = rig(FlushMode::Async, 1);
    for n in 0..LIGHT_QUEUES as u32 / 1_000 {
        let queues: Vec<String> = (0..1_000).map(|at| format!("%LMQ%{}", n * 1_000 + at)).collect();
        stage(&mut rig, "t", b"x", &naming(&queues.join(","))).unwrap();
        rig.turn();
    }
    let end = rig.shard().end();
    for (topic, queues) in [("t", "%LMQ%more"), ("t", "%LMQ%1,%LMQ%more"), ("%LMQ%more", "%LMQ%1")] {
        assert_eq!(stage(&mut rig, topic, b"x", &naming(queues)).unwrap_err(), AppendError::TooManyLightQueues);
    }
    rig.turn();
    assert_eq!(rig.shard().end(), end, "nothing is stored");
    send(&mut rig, "t", "known", "%LMQ%1,%LMQ%2");
    let now = rig.now;
    let more = naming("%LMQ%more");
    let waited = RecordFields { prepared_transaction_offset: 5, ..fields("t", 0, b"late", &more) };
    rig.shard().append(now, &[waited]).expect("it was acknowledged before");
    rig.turn();
    assert_eq!(read(&mut rig, "%LMQ%1"), pairs(&[("x", &offsets(1_000)), ("known", "1,1")]));
}

fn offsets(count: usize) -> String {
    vec!["0"; count].join(",")
}

#[test]
fn a_failed_write_gives_the_offsets_back() {
    let mut rig = rig(FlushMode::Async, 1);
    send(&mut rig, "t", "one", "%LMQ%a,%LMQ%b");
    stage(&mut rig, "t", b"two", &naming("%LMQ%b,%LMQ%c")).unwrap();
    stage(&mut rig, "t", b"three", &naming("%LMQ%b")).unwrap();
    rig.disk.set_fault(Some(Fault::Operation(rig.disk.operations() + 1)));
    let now = rig.now;
    assert!(rig.shard().write_staged(now).is_err());
    rig.shard().validate();
    assert_eq!(read(&mut rig, "%LMQ%b"), pairs(&[("one", "0,0")]));
    for queue in ["%LMQ%a", "%LMQ%b", "%LMQ%c", "t"] {
        let slot = rig.shard().table.find(queue.as_bytes(), 0).unwrap();
        let queue = rig.shard().table.get(slot);
        assert_eq!(queue.next, queue.dispatched());
    }
}

#[test]
fn entries_come_back_whatever_is_lost_of_them() {
    for lost in ["nothing", "consumequeue", "consumequeue/%LMQ%a", "queuetable", "queuetable and checkpoint"] {
        for clean in [false, true] {
            let mut rig = rig(FlushMode::Async, 1);
            for n in 0..120 {
                send(&mut rig, if n % 3 == 0 { "t" } else { "u" }, &n.to_string(), ["%LMQ%a", "%LMQ%a,%LMQ%b"][n % 2]);
                rig.pass_ms(700);
            }
            rig.delete("u");
            let (a, b) = (read(&mut rig, "%LMQ%a"), read(&mut rig, "%LMQ%b"));
            assert_eq!((a.len(), b.len()), (120, 60), "they do not go with the topic of their messages");
            if clean {
                rig.close()
            } else {
                rig.kill()
            }
            match lost {
                "nothing" => {}
                "queuetable and checkpoint" => {
                    remove(&rig, "queuetable");
                    remove(&rig, "checkpoint");
                }
                "queuetable" => remove(&rig, lost),
                folder => rig.disk.remove_dir_all(&Path::new(ROOT).join(folder)).unwrap(),
            }
            rig.open();
            assert_eq!((read(&mut rig, "%LMQ%a"), read(&mut rig, "%LMQ%b")), (a, b), "{lost}, clean: {clean}");
            assert_eq!(read(&mut rig, "u"), []);
            send(&mut rig, "t", "next", "%LMQ%b,%LMQ%a");
            assert_eq!(read(&mut rig, "%LMQ%a")[120].1, "60,120");
            rig.close();
            rig.verify();
        }
    }
}

#[test]
fn offsets_that_a_client_made_up_do_no_harm() {
    let mut rig = Rig::new(FlushMode::Async, 1);
    let forged = |offset: &str| format!("{}INNER_MULTI_QUEUE_OFFSET\u{1}{offset}\u{2}", naming("%LMQ%a"));
    for offset in ["3", "9223372036854775807", "-1", "x", "4,5", "70000", "6"] {
        stage(&mut rig, "t", b"x", &forged(offset)).unwrap();
    }
    rig.turn();
    assert_eq!(rig.shard().all_queues().count(), 1, "there are no light queues");
    rig.kill();
    rig.options.light_queues = true;
    rig.open();
    send(&mut rig, "t", "real", "%LMQ%a");
    stage(&mut rig, "t", b"also", &forged("1")).unwrap();
    rig.turn();
    let found = read(&mut rig, "%LMQ%a");
    let [.., (real, first), (also, second)] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&**real, &**also), ("real", "also"));
    assert_eq!(first.parse::<u64>().unwrap() + 1, second.parse::<u64>().unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    /// Whatever was acknowledged before a crash is in its queues afterwards, at the offsets that its record names.
    #[test]
    fn crashes_lose_no_entry(
        turns in proptest::collection::vec((proptest::collection::vec((0u8..2, 0u8..8), 1..4), 0u64..1_500, any::<bool>()), 1..60),
        power in any::<bool>(),
        seed in 0u64..1_000,
    ) {
        let mut rig = rig(if power { FlushMode::Sync } else { FlushMode::Async }, seed);
        let mut sent = 0;
        let mut want = vec![Vec::new(); 3];
        for (records, ms, crash) in turns {
            for (topic, queues) in records {
                let named: Vec<usize> = (0..3).filter(|at| queues & (1 << at) != 0).collect();
                let list: Vec<String> = named.iter().map(|at| format!("%LMQ%{at}")).collect();
                let list = if list.is_empty() { " ".to_owned() } else { list.join(",") };
                stage(&mut rig, ["t", "u"][usize::from(topic)], sent.to_string().as_bytes(), &naming(&list)).unwrap();
                named.into_iter().for_each(|at| want[at].push(sent.to_string()));
                sent += 1;
            }
            rig.turn();
            rig.pass_ms(ms);
            if crash {
                if power { rig.power_cut(seed) } else { rig.kill() }
                rig.open();
            }
        }
        for (at, want) in want.into_iter().enumerate() {
            let found: Vec<String> = read(&mut rig, &format!("%LMQ%{at}")).into_iter().map(|(body, _)| body).collect();
            prop_assert_eq!(found, want);
        }
        rig.close();
        rig.verify();
    }
}
