//! Light queues: one message in the queue that it was sent to and in those that it names.

use super::number;
use super::retry::messages;
use super::transactions::{COMMIT, end, half, producer, sent};
use super::world::{Client, World, ask, bodies, pull, send};
use message::batch::{BatchEntry, encode_entry};
use message::properties::find;
use message::record::RecordView;
use remoting::{Command, RequestCode};
use simulator::SimulatedDisk;
use std::path::Path;
use std::sync::Arc;
use store::FlushMode;
use sys::disk::Disk;

fn light(flush: FlushMode) -> World {
    let now = World::new(1, 1, flush).now();
    World::open_light(Arc::new(SimulatedDisk::new(7)), flush, now, true)
}

/// The process dies or the power fails; a new broker starts, with light queues or not.
fn again(world: World, flush: FlushMode, power_cut: Option<u64>, light: bool) -> World {
    let (disk, now) = (world.disk.clone(), world.now());
    drop(world);
    match power_cut {
        Some(seed) => disk.power_cut(seed),
        None => disk.kill(),
    }
    World::open_light(disk, flush, now, light)
}

fn naming(queues: &str) -> String {
    format!("TAGS\u{1}A\u{2}INNER_MULTI_DISPATCH\u{1}{queues}\u{2}")
}

fn put(world: &mut World, client: Client, body: &str, queues: &str) {
    let answer = world.call(client, send("t", 1, &naming(queues), body.as_bytes()));
    assert_eq!(answer.code, 0, "{answer:?}");
}

fn read(world: &mut World, client: Client, topic: &str) -> Vec<String> {
    let pulled = world.call(client, pull("g", topic, 0, 0, 0));
    assert!(matches!(pulled.code, 0 | 19), "{pulled:?}");
    bodies(&pulled)
}

fn offset_of(world: &mut World, client: Client, group: &str, topic: &str) -> Command {
    world.call(client, ask(RequestCode::QueryConsumerOffset, topic, 0).with_field("consumerGroup", group))
}

fn commit(world: &mut World, client: Client, group: &str, topic: &str, offset: i64) -> i32 {
    let request = ask(RequestCode::UpdateConsumerOffset, topic, 0).with_field("consumerGroup", group);
    world.call(client, request.with_field("commitOffset", offset)).code
}

#[test]
fn one_message_is_in_every_queue_that_it_names() {
    for flush in [FlushMode::Async, FlushMode::Sync] {
        let mut world = light(flush);
        let client = world.connect(0);
        put(&mut world, client, "one", "%LMQ%a,%LMQ%b");
        put(&mut world, client, "two", "%LMQ%b");
        for group in ["g", "%LMQ%g"] {
            let pulled = world.call(client, pull(group, "%LMQ%b", 0, 0, 0));
            assert_eq!((bodies(&pulled), number(&pulled, "nextBeginOffset")), (vec!["one".into(), "two".into()], 2));
            assert_eq!((number(&pulled, "minOffset"), number(&pulled, "maxOffset")), (0, 2));
        }
        let pulled = world.call(client, pull("g", "%LMQ%a", 0, 0, 0));
        let record = RecordView::parse_checked(&pulled.body).unwrap();
        assert_eq!((record.topic(), record.queue_id(), record.queue_offset().0), (&b"t"[..], 1, 0));
        assert_eq!(find(record.properties(), b"INNER_MULTI_QUEUE_OFFSET"), Some(&b"0,0"[..]));
        for (topic, max, time) in
            [("%LMQ%a", 1, 1_700_000_000_000), ("%LMQ%b", 2, 1_700_000_000_000), ("%LMQ%none", 0, -1)]
        {
            assert_eq!(number(&world.call(client, ask(RequestCode::GetMaxOffset, topic, 0)), "offset"), max);
            assert_eq!(number(&world.call(client, ask(RequestCode::GetMinOffset, topic, 0)), "offset"), 0);
            let earliest = world.call(client, ask(RequestCode::GetEarliestMsgStoretime, topic, 0));
            assert_eq!(number(&earliest, "timestamp").min(1_700_000_000_000), time);
            let by_time = ask(RequestCode::SearchOffsetByTimestamp, topic, 0).with_field("timestamp", i64::MAX);
            assert_eq!(number(&world.call(client, by_time), "offset"), max);
        }
        let none = world.call(client, pull("g", "%LMQ%none", 0, 0, 0));
        assert_eq!((none.code, number(&none, "nextBeginOffset")), (19, 0));
        assert_eq!(world.call(client, pull("g", "%LMQ%a", 1, 0, 0)).code, 29);
        world.stop();
    }
}

#[test]
fn what_is_sent_to_a_light_queue_itself_lies_in_order_with_the_rest() {
    let mut world = light(FlushMode::Async);
    let client = world.connect(0);
    put(&mut world, client, "named", "%LMQ%a");
    let direct = world.call(client, send("%LMQ%a", 0, &naming("%LMQ%b"), b"sent"));
    assert_eq!((direct.code, number(&direct, "queueOffset")), (0, 1));
    put(&mut world, client, "last", "%LMQ%a");
    assert_eq!(read(&mut world, client, "%LMQ%a"), ["named", "sent", "last"]);
    assert_eq!(read(&mut world, client, "%LMQ%b"), ["sent"]);
    assert_eq!(world.call(client, send("%LMQ%a", 1, "", b"x")).code, 29);
    assert_eq!(world.call(client, send("%LMQ%a b", 0, "", b"x")).code, 29);
    for waits in ["DELAY\u{1}1\u{2}", "TRAN_MSG\u{1}true\u{2}PGROUP\u{1}p\u{2}"] {
        assert_eq!(world.call(client, send("%LMQ%a", 0, waits, b"x")).code, 13);
    }
    assert_eq!(
        world.call(client, Command::request(RequestCode::DeleteTopicInBroker, 0).with_field("topic", "%LMQ%a")).code,
        29
    );
    world.stop();
}

#[test]
fn a_held_pull_of_a_light_queue_is_woken() {
    for flush in [FlushMode::Async, FlushMode::Sync] {
        let mut world = light(flush);
        let (reader, writer) = (world.connect(0), world.connect(0));
        let first = world.write(reader, pull("g", "%LMQ%new", 0, 0, 15_000));
        world.settle();
        assert_eq!(world.answers(reader), []);
        put(&mut world, writer, "other", "%LMQ%other");
        assert_eq!(world.answers(reader), []);
        // The metadata changes while it is held: it is checked again.
        world.call(writer, send("another", 0, "", b"x"));
        put(&mut world, writer, "here", "%LMQ%other,%LMQ%new");
        let answers = world.answers(reader);
        assert_eq!(answers.len(), 1);
        assert_eq!((answers[0].opaque, bodies(&answers[0])), (first, vec!["here".to_owned()]));
        world.stop();
    }
}

#[test]
fn queues_and_offsets_outlive_the_process() {
    for (flush, power_cut) in [(FlushMode::Async, None), (FlushMode::Sync, Some(3)), (FlushMode::Sync, Some(4))] {
        let mut world = light(flush);
        let client = world.connect(0);
        for n in 0..20 {
            put(&mut world, client, &n.to_string(), ["%LMQ%a", "%LMQ%a,%LMQ%b"][n % 2]);
        }
        assert_eq!(commit(&mut world, client, "g", "%LMQ%a", 3), 26, "the group is not made yet");
        assert_eq!(read(&mut world, client, "%LMQ%a").len(), 20);
        assert_eq!(offset_of(&mut world, client, "g", "%LMQ%none").code, 22);
        for (group, offset) in [("g", 3), ("%LMQ%g", 4)] {
            assert_eq!(number(&offset_of(&mut world, client, group, "%LMQ%a"), "offset"), 0);
            assert_eq!(commit(&mut world, client, group, "%LMQ%a", offset), 0);
            assert_eq!(number(&offset_of(&mut world, client, group, "%LMQ%a"), "offset"), offset);
        }
        if power_cut.is_some() {
            world.advance(6_000);
        }
        let mut world = again(world, flush, power_cut, true);
        let client = world.connect(0);
        assert_eq!(number(&offset_of(&mut world, client, "g", "%LMQ%a"), "offset"), 3);
        assert_eq!(number(&offset_of(&mut world, client, "%LMQ%g", "%LMQ%a"), "offset"), 4);
        put(&mut world, client, "next", "%LMQ%b,%LMQ%a");
        let all: Vec<String> = (0..20).map(|n| n.to_string()).chain(["next".into()]).collect();
        assert_eq!(read(&mut world, client, "%LMQ%a"), all);
        let half: Vec<String> = (0..10).map(|n| (2 * n + 1).to_string()).chain(["next".into()]).collect();
        assert_eq!(read(&mut world, client, "%LMQ%b"), half);
        world.stop();
    }
}

#[test]
fn offsets_go_to_java_and_come_back_from_it() {
    let file = Path::new("/data/config/lmqConsumerOffset.json");
    let mut world = light(FlushMode::Async);
    let client = world.connect(0);
    put(&mut world, client, "x", "%LMQ%a");
    read(&mut world, client, "%LMQ%a");
    for (group, offset) in [("g", 1), ("%LMQ%g", 1)] {
        assert_eq!(commit(&mut world, client, group, "%LMQ%a", offset), 0);
    }
    assert_eq!(commit(&mut world, client, "%LMQ%g", "%LMQ%q", 2), 0);
    let (disk, now) = (world.disk.clone(), world.now());
    world.stop();
    let text = String::from_utf8(disk.read(file).unwrap().unwrap()).unwrap();
    let light_part = "\"groupTopicMap\":{\n\t\t\"g\":[\n\t\t\t\"%LMQ%a\"\n\t\t]\n\t},\n\t\"lmqOffsetTable\":{\n\t\t\"%LMQ%a@%LMQ%g\":1,\n\t\t\"%LMQ%q@%LMQ%g\":2\n\t},\n\t\"offsetTable\":{\n\t\t\"%LMQ%a@g\":{\n\t\t\t0:1\n\t\t}\n\t}\n}";
    assert!(text.ends_with(light_part), "{text}");
    // A Java broker with light queues ran in between: it knows only its own file.
    let java = text.replace("\"%LMQ%a@%LMQ%g\":1", "\"%LMQ%a@%LMQ%g\":7,\"%LMQ%z@%LMQ%g\":9").replace("0:1", "0:5");
    let handle = disk.open(file, sys::disk::OpenMode::ReadWrite).unwrap();
    handle.set_len(0).unwrap();
    handle.write_at(&[std::io::IoSlice::new(java.as_bytes())], 0).unwrap();
    handle.sync_data().unwrap();
    let mut world = World::open_light(disk.clone(), FlushMode::Async, now, true);
    let client = world.connect(0);
    for (group, topic, offset) in [("g", "%LMQ%a", 5), ("%LMQ%g", "%LMQ%a", 7), ("%LMQ%g", "%LMQ%z", 9)] {
        assert_eq!(number(&offset_of(&mut world, client, group, topic), "offset"), offset);
    }
    assert_eq!(commit(&mut world, client, "g", "%LMQ%a", 6), 0);
    world.stop();
    // Without light queues for a while: the file does not fall behind.
    let mut world = World::open_light(disk.clone(), FlushMode::Async, now, false);
    let client = world.connect(0);
    assert_eq!(number(&offset_of(&mut world, client, "%LMQ%g", "%LMQ%a"), "offset"), 7);
    world.call(client, send("plain", 0, "", b"x"));
    assert_eq!(commit(&mut world, client, "g", "plain", 1), 0);
    world.stop();
    let mut world = World::open_light(disk, FlushMode::Async, now, true);
    let client = world.connect(0);
    assert_eq!(number(&offset_of(&mut world, client, "g", "plain"), "offset"), 1);
    assert_eq!(number(&offset_of(&mut world, client, "g", "%LMQ%a"), "offset"), 6);
    world.stop();
}

#[test]
fn delayed_and_half_messages_come_to_their_light_queues_when_they_come_to_their_own() {
    let mut world = light(FlushMode::Async);
    let client = world.connect(0);
    producer(&mut world, client);
    let named = "INNER_MULTI_DISPATCH\u{1}%LMQ%a\u{2}";
    assert_eq!(world.call(client, send("t", 0, &format!("{named}DELAY\u{1}1\u{2}"), b"late")).code, 0);
    let transaction = sent(&world.call(client, half(0, named, "half")));
    assert_eq!(read(&mut world, client, "%LMQ%a"), Vec::<String>::new());
    assert_eq!(world.call(client, end(transaction, COMMIT)).code, 0);
    assert_eq!(read(&mut world, client, "%LMQ%a"), ["half"]);
    world.advance(1_500);
    let pulled = world.call(client, pull("g", "%LMQ%a", 0, 0, 0));
    assert_eq!(bodies(&pulled), ["half", "late"]);
    let mut world = again(world, FlushMode::Async, None, true);
    let client = world.connect(0);
    assert_eq!(read(&mut world, client, "%LMQ%a"), ["half", "late"]);
    assert_eq!(messages(&world.call(client, pull("g", "t", 0, 0, 0))).len(), 2);
    world.stop();
}

#[test]
fn names_that_cannot_be_queues_are_refused_also_when_the_message_is_to_wait() {
    let mut world = light(FlushMode::Async);
    let client = world.connect(0);
    let long = format!("%LMQ%{}", "y".repeat(300));
    for bad in ["%LMQ%lmq/1", "%LMQ%../../rmq", "%LMQ%/tmp/rmq", &long, ",,,", "other", "%LMQ%a,other"] {
        for waits in ["", "DELAY\u{1}1\u{2}"] {
            let answer = world.call(client, send("t", 0, &format!("{}{waits}", naming(bad)), b"x"));
            assert_eq!(answer.code, 13, "{bad}: {answer:?}");
        }
    }
    let mut body = Vec::new();
    let properties = naming("%LMQ%a");
    encode_entry(&mut body, &BatchEntry { flag: 0, body: b"x", properties: properties.as_bytes() }).unwrap();
    let mut batch = send("t", 0, "", &body).with_field("m", true);
    batch.code = RequestCode::SendBatchMessage.to_i32();
    assert_eq!(world.call(client, batch.clone()).code, 13);
    assert_eq!(number(&world.call(client, send("t", 0, "", b"first")), "queueOffset"), 0, "nothing was stored");
    world.advance(2_000);
    assert_eq!(read(&mut world, client, "t"), ["first"]);
    world.stop();
    // Without light queues the name means nothing.
    let mut world = World::new(1, 1, FlushMode::Async);
    let client = world.connect(0);
    assert_eq!(world.call(client, batch).code, 0);
    for odd in ["%LMQ%lmq/1", "%LMQ%a", ",,,", "other"] {
        assert_eq!(world.call(client, send("t", 0, &naming(odd), b"x")).code, 0);
    }
    assert_eq!(world.call(client, pull("g", "%LMQ%a", 0, 0, 0)).code, 17);
    world.stop();
}
