//! Messages that wait: delay levels and timers, through restarts, power cuts and clocks that jump.

use crate::LAYOUTS;
use crate::world::{Client, World, ask, bodies, pull, send};
use message::record::RecordView;
use remoting::{Command, RequestCode};
use store::FlushMode;

/// Properties text of these pairs.
fn properties(pairs: &[(&str, String)]) -> String {
    pairs.iter().map(|(name, value)| format!("{name}\u{1}{value}\u{2}")).collect()
}

fn level(level: i32) -> String {
    properties(&[("DELAY", level.to_string()), ("TAGS", "A".into())])
}

/// Everything in a queue.
fn all(world: &mut World, client: Client, topic: &str, queue_id: i32) -> Vec<Command> {
    let (mut from, mut found) = (0, Vec::new());
    loop {
        let pulled = world.call(client, pull("g", topic, queue_id, from, 0));
        if pulled.code != 0 {
            return found;
        }
        from = pulled.ext.i64("nextBeginOffset").unwrap();
        found.push(pulled);
    }
}

fn texts(world: &mut World, client: Client, topic: &str, queue_id: i32) -> Vec<String> {
    all(world, client, topic, queue_id).iter().flat_map(bodies).collect()
}

#[test]
fn a_level_delivers_to_the_chosen_queue_after_its_time_as_the_reference_does() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(0);
        for queue_id in 0..4 {
            let sent = world.call(client, send("t", queue_id, &level(2), format!("late{queue_id}").as_bytes()));
            assert_eq!((sent.code, sent.ext.i64("queueId").unwrap()), (0, i64::from(queue_id)), "{sent:?}");
            assert_eq!(sent.ext.get("recallHandle"), None);
        }
        world.advance(4_900);
        assert!((0..4).all(|queue_id| texts(&mut world, client, "t", queue_id).is_empty()));
        world.advance(700);
        for queue_id in 0..4 {
            let found = all(&mut world, client, "t", queue_id);
            assert_eq!(found.len(), 1, "{shards} shards, queue {queue_id}");
            let record = RecordView::parse_checked(&found[0].body).unwrap();
            let due_ms = 1_700_000_000_000 + 5_000;
            assert!((due_ms..due_ms + 100).contains(&record.store_timestamp_ms()), "{}", record.store_timestamp_ms());
            assert_eq!((record.topic(), record.body()), (&b"t"[..], format!("late{queue_id}").as_bytes()));
            assert_eq!((record.queue_id(), record.born_timestamp_ms()), (queue_id, 1_600_000_000_000));
            let text = String::from_utf8_lossy(record.properties()).into_owned();
            for expected in ["DELAY\u{1}2", "REAL_TOPIC\u{1}t", "TAGS\u{1}A", &format!("REAL_QID\u{1}{queue_id}")] {
                assert!(text.contains(expected), "{text:?}");
            }
            let waiting = world.call(client, ask(RequestCode::GetMaxOffset, "SCHEDULE_TOPIC_XXXX", 1));
            assert_eq!(waiting.code, 0);
        }
        world.stop();
    }
}

#[test]
fn a_level_keeps_its_order() {
    let mut world = World::new(2, 2, FlushMode::Async);
    let client = world.connect(0);
    for n in 0..700 {
        world.call(client, send("t", 1, &level(1), format!("m{n}").as_bytes()));
    }
    world.advance(3_000);
    assert_eq!(texts(&mut world, client, "t", 1), (0..700).map(|n| format!("m{n}")).collect::<Vec<_>>());
}

#[test]
fn each_delayed_message_comes_once_whenever_the_process_dies() {
    for (flush, power_cut) in [(FlushMode::Async, false), (FlushMode::Sync, true)] {
        for (shards, cores) in LAYOUTS {
            for die_at_ms in [200, 1_000, 1_050, 1_100, 1_250, 2_050, 3_000] {
                let mut world = World::new(shards, cores, flush);
                let client = world.connect(0);
                let mut sent = Vec::new();
                for n in 0..40 {
                    let body = format!("m{n}");
                    let levels = level(1 + n % 2);
                    assert_eq!(world.call(client, send("t", n % 4, &levels, body.as_bytes())).code, 0);
                    sent.push(body);
                    world.advance(10);
                }
                sent.sort();
                world.advance(die_at_ms);
                let mut world = world.restart(shards, cores, flush, power_cut.then_some(die_at_ms));
                world.advance(300);
                let mut world = world.restart(shards, cores, flush, power_cut.then_some(die_at_ms + 1));
                world.advance(8_000);
                let client = world.connect(0);
                let mut found: Vec<String> = (0..4).flat_map(|q| texts(&mut world, client, "t", q)).collect();
                found.sort();
                assert_eq!(found, sent, "{shards} shards, {cores} cores, {flush:?}, dead after {die_at_ms} ms");
            }
        }
    }
}

#[test]
fn a_clock_that_jumps_neither_doubles_nor_loses() {
    for jump_ms in [-3_600_000, 3_600_000] {
        let mut world = World::new(2, 1, FlushMode::Async);
        let client = world.connect(0);
        world.call(client, send("t", 0, &level(3), b"a"));
        world.advance(2_000);
        world.set_clock(jump_ms);
        world.call(client, send("t", 1, &level(2), b"b"));
        world.advance(12_000);
        world.set_clock(-jump_ms);
        world.advance(12_000);
        assert_eq!(
            (texts(&mut world, client, "t", 0), texts(&mut world, client, "t", 1)),
            (vec!["a".into()], vec!["b".into()])
        );
    }
}

#[test]
fn a_deleted_topic_stops_nothing() {
    let mut world = World::new(1, 1, FlushMode::Async);
    let client = world.connect(0);
    for topic in ["gone", "kept"] {
        world.call(client, send(topic, 0, &level(1), b"x"));
    }
    let delete = Command::request(RequestCode::DeleteTopicInBroker, 0).with_field("topic", "gone");
    assert_eq!(world.call(client, delete).code, 0);
    world.advance(2_000);
    assert_eq!(texts(&mut world, client, "kept", 0), ["x"]);
    assert_eq!(world.call(client, pull("g", "gone", 0, 0, 0)).code, 17);
}

fn after_ms(ms: i64) -> String {
    properties(&[("TIMER_DELAY_MS", ms.to_string()), ("TAGS", "A".into())])
}

fn at_ms(ms: i64) -> String {
    properties(&[("TIMER_DELIVER_MS", ms.to_string())])
}

/// Store times of everything in a queue.
fn times(world: &mut World, client: Client, topic: &str, queue_id: i32) -> Vec<i64> {
    let mut found = Vec::new();
    for pulled in all(world, client, topic, queue_id) {
        let mut rest = &pulled.body[..];
        while let Ok(record) = RecordView::parse(rest) {
            found.push(record.store_timestamp_ms());
            rest = &rest[record.size() as usize..];
        }
    }
    found
}

#[test]
fn a_timed_message_comes_at_its_time_as_the_reference_delivers_it() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(0);
        let start = world.now().wall_ms;
        for queue_id in 0..4 {
            let sent = world.call(client, send("t", queue_id, &after_ms(3_456), b"timed"));
            assert_eq!((sent.code, sent.ext.i64("queueId").unwrap()), (0, i64::from(queue_id)), "{sent:?}");
            assert!(sent.ext.get("recallHandle").is_some_and(|handle| handle.len() > 40), "{sent:?}");
        }
        assert_eq!(world.call(client, send("t", 0, &at_ms(start - 5), b"past")).code, 0);
        world.advance(3_400);
        assert_eq!(texts(&mut world, client, "t", 0), ["past"]);
        world.advance(200);
        for queue_id in 0..4 {
            let found = all(&mut world, client, "t", queue_id);
            let body = &found[found.len() - 1].body;
            let size = if queue_id == 0 { message::record::peek_size(body).unwrap() as usize } else { 0 };
            let record = RecordView::parse_checked(&body[size..]).unwrap();
            let late = record.store_timestamp_ms() - start - 3_456;
            assert!((0..=50).contains(&late), "{late} ms late");
            let text = String::from_utf8_lossy(record.properties()).into_owned();
            for expected in [
                format!("TIMER_OUT_MS\u{1}{}", start + 3_000),
                format!("TIMER_ENQUEUE_MS\u{1}{start}"),
                format!("TIMER_DEQUEUE_MS\u{1}{}", record.store_timestamp_ms()),
                "TIMER_DELAY_MS\u{1}3456".into(),
                "REAL_TOPIC\u{1}t".into(),
                format!("REAL_QID\u{1}{queue_id}"),
            ] {
                assert!(text.contains(&expected), "{expected:?} in {text:?}");
            }
        }
        world.stop();
    }
}

#[test]
fn each_timed_message_comes_once_in_the_order_of_time_whenever_the_process_dies() {
    for (flush, power_cut) in [(FlushMode::Async, false), (FlushMode::Sync, true)] {
        for (shards, cores) in LAYOUTS {
            for die_at_ms in [200, 1_000, 1_050, 1_250, 2_050, 3_000, 4_100] {
                let mut world = World::new(shards, cores, flush);
                let client = world.connect(0);
                let mut sent = Vec::new();
                for n in 0..60 {
                    let body = format!("m{n}");
                    let delay_ms = 500 + i64::from(n * 37 % 60) * 100;
                    assert_eq!(world.call(client, send("t", n % 4, &after_ms(delay_ms), body.as_bytes())).code, 0);
                    sent.push(body);
                    world.advance(5);
                }
                sent.sort();
                world.advance(die_at_ms);
                let mut world = world.restart(shards, cores, flush, power_cut.then_some(die_at_ms));
                world.advance(300);
                let mut world = world.restart(shards, cores, flush, power_cut.then_some(die_at_ms + 1));
                world.advance(9_000);
                let client = world.connect(0);
                let mut found: Vec<String> = (0..4).flat_map(|q| texts(&mut world, client, "t", q)).collect();
                found.sort();
                assert_eq!(found, sent, "{shards} shards, {cores} cores, {flush:?}, dead after {die_at_ms} ms");
                let mut world = world.restart(shards, cores, flush, None);
                world.advance(2_000);
                let client = world.connect(0);
                assert_eq!((0..4).map(|q| texts(&mut world, client, "t", q).len()).sum::<usize>(), 60);
            }
        }
    }
}

#[test]
fn a_jump_of_the_clock_neither_doubles_nor_loses_timed_messages() {
    for jump_ms in [-3_600_000, 3_600_000] {
        let mut world = World::new(1, 1, FlushMode::Async);
        let client = world.connect(0);
        world.call(client, send("t", 0, &after_ms(5_000), b"a"));
        world.call(client, send("t", 0, &after_ms(1_000), b"first"));
        world.advance(2_000);
        world.set_clock(jump_ms);
        for n in 0..40 {
            world.call(client, send("t", 1, &after_ms(1_000 + n * 10), b"b"));
        }
        world.advance(1_500);
        let mut world = world.restart(1, 1, FlushMode::Async, None);
        let client = world.connect(0);
        world.advance(3_000);
        // "a" has its time by the clock: passed long ago, or in an hour.
        let expected = if jump_ms > 0 { vec!["first", "a"] } else { vec!["first"] };
        assert_eq!(texts(&mut world, client, "t", 0), expected);
        assert_eq!(texts(&mut world, client, "t", 1).len(), 40);
        world.set_clock(-jump_ms);
        world.advance(6_000);
        assert_eq!(texts(&mut world, client, "t", 0), ["first", "a"]);
        assert_eq!(texts(&mut world, client, "t", 1).len(), 40);
    }
}

#[test]
fn a_thousand_due_a_second_come_in_time() {
    let mut world = World::new(2, 2, FlushMode::Async);
    let client = world.connect(0);
    let start = world.now().wall_ms;
    for n in 0..3_000i64 {
        world.call(client, send("t", (n % 4) as i32, &at_ms(start + 2_000 + n), b"x"));
    }
    world.advance(6_000);
    let mut found: Vec<i64> = (0..4).flat_map(|q| times(&mut world, client, "t", q)).collect();
    found.sort_unstable();
    assert_eq!(found.len(), 3_000);
    for (n, stored_ms) in (0..).zip(found) {
        let late = stored_ms - (start + 2_000 + n);
        // This clock goes in steps of 50 ms.
        assert!((0..=50).contains(&late), "message {n}: {late} ms late");
    }
}

#[test]
fn cold_timed_and_delayed_messages_are_read_from_the_disk() {
    let mut world = World::new(1, 1, FlushMode::Async);
    let client = world.connect(0);
    for n in 0..200 {
        let wait = if n % 2 == 0 { after_ms(5_000) } else { level(2) };
        world.call(client, send("t", 0, &wait, format!("m{n}").as_bytes()));
    }
    let mut world = world.restart(1, 1, FlushMode::Async, None);
    world.disk.set_residency(simulator::Residency::Nothing);
    world.advance(9_000);
    let client = world.connect(0);
    let mut found = all(&mut world, client, "t", 0).len();
    for _ in 0..100 {
        world.advance(50);
        found = found.max(all(&mut world, client, "t", 0).len());
    }
    world.disk.set_residency(simulator::Residency::All);
    assert_eq!(texts(&mut world, client, "t", 0).len(), 200, "{found} answers");
}

fn recall(topic: &str, handle: &str) -> Command {
    Command::request(RequestCode::RecallMessage, 0)
        .with_field("producerGroup", "producers")
        .with_field("topic", topic)
        .with_field("recallHandle", handle)
}

#[test]
fn a_recalled_message_never_comes_and_the_one_beside_it_does() {
    for flush in [FlushMode::Async, FlushMode::Sync] {
        for (shards, cores) in LAYOUTS {
            for (recall_after_ms, restart) in [(0, false), (2_500, false), (4_900, false), (0, true), (4_900, true)] {
                let mut world = World::new(shards, cores, flush);
                let client = world.connect(0);
                let start = world.now().wall_ms;
                let mut handles = Vec::new();
                for n in 0..8 {
                    // At the ends and in the middle of a tick.
                    let due_ms = start + [5_001, 5_999, 6_000, 5_500][n as usize % 4];
                    let sent = world.call(client, send("t", n % 4, &at_ms(due_ms), format!("m{n}").as_bytes()));
                    handles.push((
                        sent.ext.get("recallHandle").unwrap().to_owned(),
                        sent.ext.get("transactionId").unwrap().to_owned(),
                    ));
                }
                world.advance(recall_after_ms);
                for (handle, id) in &handles[..4] {
                    let answer = world.call(client, recall("t", handle));
                    assert_eq!((answer.code, answer.ext.get("msgId")), (0, Some(id.as_str())), "{answer:?}");
                }
                if restart {
                    world = world.restart(shards, cores, flush, (flush == FlushMode::Sync).then_some(3));
                }
                world.advance(3_000);
                if restart {
                    world = world.restart(shards, cores, flush, None);
                }
                world.advance(9_000);
                let client = world.connect(0);
                let mut found: Vec<String> = (0..4).flat_map(|q| texts(&mut world, client, "t", q)).collect();
                found.sort();
                assert_eq!(
                    found,
                    ["m4", "m5", "m6", "m7"],
                    "{shards} shards, recalled after {recall_after_ms} ms, {restart}"
                );
                for (handle, _) in &handles {
                    assert_eq!(world.call(client, recall("t", handle)).code, 604, "its time is over");
                }
            }
        }
    }
}

#[test]
fn bad_recalls_are_refused_as_by_the_reference() {
    let mut world = World::new(2, 2, FlushMode::Async);
    let client = world.connect(0);
    world.call(client, send("other", 0, "", b"x"));
    let sent = world.call(client, send("t", 0, &after_ms(60_000), b"x"));
    let handle = sent.ext.get("recallHandle").unwrap().to_owned();
    for (topic, handle, code) in [
        ("t", "", 604),
        ("t", "garbage", 604),
        ("t", "djEg", 604),
        ("other", &handle, 604),
        ("unknown", &handle, 17),
        // "v1 t broker-b 1700000061000 x" and "v1 t broker-a x x"
        ("t", "djEgdCBicm9rZXItYiAxNzAwMDAwMDYxMDAwIHg=", 604),
        ("t", "djEgdCBicm9rZXItYSB4IHg=", 604),
        ("t", &handle, 0),
        ("t", &handle, 0),
    ] {
        let answer = world.call(client, recall(topic, handle));
        assert_eq!(answer.code, code, "{topic} {handle}: {answer:?}");
    }
    world.advance(63_000);
    assert!((0..4).all(|q| texts(&mut world, client, "t", q).is_empty()));
}

#[test]
fn how_far_the_levels_are_is_told_to_java_and_a_number_beyond_the_queue_is_none() {
    let mut world = World::new(1, 1, FlushMode::Async);
    let client = world.connect(0);
    for _ in 0..3 {
        world.call(client, send("t", 0, &level(1), b"x"));
    }
    world.call(client, send("t", 0, &after_ms(60_000), b"timed"));
    world.advance(14_000);
    let told = world.call(client, Command::request(RequestCode::GetAllDelayOffset, 0));
    assert!(String::from_utf8_lossy(&told.body).contains(r#""offsetTable":{1:3}"#), "{told:?}");
    let file =
        sys::disk::Disk::read(&*world.disk, std::path::Path::new("/data/config/delayOffset.json")).unwrap().unwrap();
    assert!(String::from_utf8_lossy(&file).contains("1:3"), "{}", String::from_utf8_lossy(&file));
    let (disk, now) = (world.disk.clone(), world.now());
    world.stop();
    let wrong = br#"{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1},"offsetTable":{"1":25477423}}"#;
    let config = store::ConfigDir::new(disk.clone(), "/data/config".into());
    config.write("delayOffset.json", wrong).unwrap();
    let mut world = World::open_at(disk, 1, 1, FlushMode::Async, now);
    let client = world.connect(0);
    world.call(client, send("t", 0, &level(1), b"y"));
    world.advance(2_000);
    assert_eq!(texts(&mut world, client, "t", 0), ["x", "x", "x", "y"]);
}
