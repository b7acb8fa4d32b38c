//! POP on the whole broker: one core and two, restarts and power cuts.

use crate::world::{Client, World, ask, bodies, pull, send};
use crate::{LAYOUTS, number};
use message::properties::{PropertiesSource, find};
use message::record::{RecordFields, RecordView};
use reactor::Now;
use remoting::{Command, RequestCode};
use simulator::SimulatedDisk;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use store::{FlushMode, Shard, ShardId, StoreHome, StoreOptions};

/// A popped message with its handle.
#[derive(Clone, Debug)]
struct Popped {
    body: String,
    reconsume: i32,
    topic: String,
    queue_id: u32,
    handle: String,
}

fn pop(world: &World, group: &str, topic: &str, queue_id: i32, max: i32, invisible_ms: i64, poll_ms: i64) -> Command {
    Command::request(RequestCode::PopMessage, 0)
        .with_field("consumerGroup", group)
        .with_field("topic", topic)
        .with_field("queueId", queue_id)
        .with_field("maxMsgNums", max)
        .with_field("invisibleTime", invisible_ms)
        .with_field("pollTime", poll_ms)
        .with_field("bornTime", world.now().wall_ms)
        .with_field("initMode", 0)
        .with_field("expType", "TAG")
        .with_field("exp", "*")
        .with_field("order", false)
}

/// The messages of an answer, with the handles that a client makes.
fn popped(answer: &Command, topic: &str, group: &str) -> Vec<Popped> {
    let mut starts = BTreeMap::new();
    for part in answer.ext.get("startOffsetInfo").unwrap_or_default().split(';').filter(|part| !part.is_empty()) {
        let (queue, start) = part.rsplit_once(' ').unwrap();
        assert!(starts.insert(queue.to_owned(), start.to_owned()).is_none(), "a queue comes once: {answer:?}");
    }
    let mut offsets = Vec::new();
    for part in answer.ext.get("msgOffsetInfo").unwrap_or_default().split(';').filter(|part| !part.is_empty()) {
        offsets.extend(part.rsplit_once(' ').unwrap().1.split(',').map(|offset| offset.parse::<u64>().unwrap()));
    }
    let (mut rest, mut out) = (&answer.body[..], Vec::new());
    while !rest.is_empty() {
        let size = message::record::peek_size(rest).unwrap() as usize;
        let view = RecordView::parse_checked(&rest[..size]).unwrap();
        rest = &rest[size..];
        let field = |name| answer.ext.get(name).unwrap();
        let (queue_id, offset) = (view.queue_id() as u32, view.queue_offset().0);
        let handle = match find(view.properties(), b"POP_CK") {
            Some(handle) => String::from_utf8(handle.to_vec()).unwrap(),
            None => format!(
                "{} {} {} {} 0 broker-a {queue_id} {offset}",
                starts[&format!("0 {queue_id}")],
                field("popTime"),
                field("invisibleTime"),
                field("reviveQid"),
            ),
        };
        let real =
            if handle.split(' ').nth(4) == Some("1") { format!("%RETRY%{group}_{topic}") } else { topic.to_owned() };
        assert_eq!(view.topic(), topic.as_bytes(), "as it was asked for");
        out.push(Popped {
            body: String::from_utf8_lossy(view.body()).into_owned(),
            reconsume: view.reconsume_times(),
            topic: real,
            queue_id,
            handle,
        });
    }
    let mut listed: Vec<u64> = out.iter().map(|m| m.handle.split(' ').nth(7).unwrap().parse().unwrap()).collect();
    listed.sort_unstable();
    offsets.sort_unstable();
    assert_eq!(listed, offsets, "the listed offsets are those of the records");
    out
}

fn by_handle(code: RequestCode, group: &str, of: &Popped) -> Command {
    Command::request(code, 0)
        .with_field("consumerGroup", group)
        .with_field("topic", &of.topic)
        .with_field("queueId", of.queue_id)
        .with_field("offset", of.handle.split(' ').nth(7).unwrap())
        .with_field("extraInfo", &of.handle)
}

fn ack(group: &str, of: &Popped) -> Command {
    by_handle(RequestCode::AckMessage, group, of)
}

fn take(world: &mut World, client: Client, group: &str, topic: &str, invisible_ms: i64) -> Vec<Popped> {
    let request = pop(world, group, topic, -1, 32, invisible_ms, 0);
    let answer = world.call(client, request);
    assert!(matches!(answer.code, 0 | 210), "{answer:?}");
    popped(&answer, topic, group)
}

fn texts(messages: &[Popped]) -> Vec<String> {
    let mut texts: Vec<String> = messages.iter().map(|m| m.body.clone()).collect();
    texts.sort();
    texts
}

fn numbered(range: std::ops::Range<i32>) -> Vec<String> {
    let mut all: Vec<String> = range.map(|n| format!("m{n}")).collect();
    all.sort();
    all
}

fn fill(world: &mut World, client: Client, topic: &str, range: std::ops::Range<i32>) {
    for n in range {
        assert_eq!(world.call(client, send(topic, n % 4, "TAGS\u{1}A\u{2}", format!("m{n}").as_bytes())).code, 0);
    }
}

#[test]
fn popped_messages_are_invisible_until_they_are_acked_or_their_time_is_over() {
    for (shards, cores) in LAYOUTS {
        for flush in [FlushMode::Async, FlushMode::Sync] {
            let mut world = World::new(shards, cores, flush);
            let client = world.connect(cores - 1);
            fill(&mut world, client, "t", 0..10);
            let first = take(&mut world, client, "g", "t", 3_000);
            assert_eq!(texts(&first), numbered(0..10));
            assert!(take(&mut world, client, "g", "t", 3_000).is_empty(), "invisible");
            assert_eq!(take(&mut world, client, "other", "t", 60_000).len(), 10, "another group");
            for message in first.iter().filter(|m| *m.body < *"m5") {
                assert_eq!(world.call(client, ack("g", message)).code, 0);
                assert_eq!(world.call(client, ack("g", message)).code, 0, "twice does no harm");
            }
            world.advance(2_500);
            assert!(take(&mut world, client, "g", "t", 3_000).is_empty(), "still invisible");
            world.advance(1_000);
            let again = take(&mut world, client, "g", "t", 3_000);
            assert_eq!(texts(&again), numbered(5..10));
            assert!(again.iter().all(|m| m.reconsume == 1 && m.topic == "%RETRY%g_t"), "{again:?}");
            for message in &first {
                assert_eq!(world.call(client, ack("g", message)).code, 0, "too late does no harm");
            }
            again.iter().for_each(|m| assert_eq!(world.call(client, ack("g", m)).code, 0));
            world.advance(10_000);
            assert!(take(&mut world, client, "g", "t", 3_000).is_empty());
            world.stop();
        }
    }
}

#[test]
fn a_pop_takes_no_more_than_it_was_asked_for() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(0);
        fill(&mut world, client, "t", 0..40);
        let mut seen = Vec::new();
        for _ in 0..14 {
            let request = pop(&world, "g", "t", -1, 3, 60_000, 0);
            let answer = world.call(client, request);
            let got = popped(&answer, "t", "g");
            assert!(got.len() <= 3);
            seen.extend(got);
        }
        assert_eq!(texts(&seen), numbered(0..40));
        let request = pop(&world, "h", "t", 2, 4, 60_000, 0);
        let of_queue = world.call(client, request);
        assert_eq!(bodies(&of_queue), ["m2", "m6", "m10", "m14"]);
        assert_eq!((number(&of_queue, "restNum"), of_queue.ext.get("msgOffsetInfo")), (6, Some("0 2 0,1,2,3")));
        world.stop();
    }
}

#[test]
fn batches_and_changes() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(0);
        fill(&mut world, client, "t", 0..8);
        let messages = take(&mut world, client, "g", "t", 2_000);
        let mut acks = Vec::new();
        for message in messages.iter().filter(|m| m.body != "m5" && m.body != "m6") {
            let part: Vec<&str> = message.handle.split(' ').collect();
            let distance = part[7].parse::<u64>().unwrap() - part[0].parse::<u64>().unwrap();
            let bits = ["AQ==", "Ag=="][distance as usize];
            acks.push(format!(
                r#"{{"b":"{bits}","c":"g","it":{},"pt":{},"q":{},"r":"0","rq":{},"so":{},"t":"t"}}"#,
                part[2], part[1], part[6], part[3], part[0]
            ));
        }
        let body = format!(r#"{{"acks":[{}],"brokerName":"broker-a"}}"#, acks.join(","));
        let batch = Command::request(RequestCode::BatchAckMessage, 0).with_body(body.into_bytes());
        assert_eq!(world.call(client, batch).code, 0);
        let later = messages.iter().find(|m| m.body == "m6").unwrap();
        let change = by_handle(RequestCode::ChangeMessageInvisibletime, "g", later).with_field("invisibleTime", 9_000);
        let changed = world.call(client, change);
        assert_eq!((changed.code, number(&changed, "invisibleTime")), (0, 9_000), "{changed:?}");
        world.advance(3_000);
        assert_eq!(texts(&take(&mut world, client, "g", "t", 60_000)), ["m5"]);
        world.advance(5_000);
        assert!(take(&mut world, client, "g", "t", 60_000).is_empty(), "its time was changed");
        let mut part: Vec<String> = later.handle.split(' ').map(str::to_owned).collect();
        part[0] = part[7].clone();
        for (at, field) in [(1, "popTime"), (2, "invisibleTime"), (3, "reviveQid")] {
            part[at] = changed.ext.get(field).unwrap().to_owned();
        }
        let renewed = Popped { handle: part.join(" "), ..later.clone() };
        assert_eq!(world.call(client, ack("g", &renewed)).code, 0);
        world.advance(10_000);
        assert!(take(&mut world, client, "g", "t", 60_000).is_empty());
        world.stop();
    }
}

#[test]
fn a_pop_waits_for_a_message() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let (reader, writer) = (world.connect(0), world.connect(cores - 1));
        fill(&mut world, writer, "t", 0..1);
        let all = take(&mut world, reader, "g", "t", 2_000);
        for queue_id in 0..4 {
            let request = pop(&world, "g", "t", -1, 32, 60_000, 1_500);
            let opaque = world.write(reader, request);
            world.settle();
            assert_eq!(world.answers(reader), []);
            assert_eq!(world.call(writer, send("t", queue_id, "", b"wakes")).code, 0);
            let answers = world.answers(reader);
            assert_eq!((answers[0].opaque, bodies(&answers[0])), (opaque, vec!["wakes".to_owned()]));
        }
        // What comes back wakes, too.
        let request = pop(&world, "g", "t", 3, 32, 60_000, 20_000);
        let opaque = world.write(reader, request);
        world.advance(3_000);
        let answers = world.answers(reader);
        assert_eq!((answers.len(), answers[0].opaque, popped(&answers[0], "t", "g").len()), (1, opaque, all.len()));
        let request = pop(&world, "g", "t", -1, 32, 60_000, 1_000);
        world.write(reader, request);
        world.advance(900);
        assert_eq!(world.answers(reader), []);
        world.advance(300);
        assert_eq!(world.answers(reader)[0].code, 210);
        world.stop();
    }
}

#[test]
fn many_that_wait_get_a_message_each() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let (reader, writer) = (world.connect(0), world.connect(0));
        fill(&mut world, writer, "t", 0..1);
        take(&mut world, reader, "g", "t", 60_000);
        for _ in 0..5 {
            let request = pop(&world, "g", "t", -1, 1, 60_000, 30_000);
            world.write(reader, request);
        }
        world.settle();
        let info = Command::request(RequestCode::PollingInfo, 0)
            .with_field("consumerGroup", "g")
            .with_field("topic", "t")
            .with_field("queueId", -1);
        assert_eq!(number(&world.call(writer, info), "pollingNum"), 5);
        for n in 0..5 {
            world.write(writer, send("t", n % 2, "", b"x"));
        }
        world.settle();
        assert_eq!(world.answers(reader).iter().map(|answer| bodies(answer).len()).collect::<Vec<_>>(), [1; 5]);
        let notify = Command::request(RequestCode::Notification, 0)
            .with_field("consumerGroup", "g")
            .with_field("topic", "t")
            .with_field("queueId", -1)
            .with_field("pollTime", 5_000)
            .with_field("bornTime", world.now().wall_ms);
        world.write(reader, notify.clone());
        world.settle();
        assert_eq!(world.answers(reader), []);
        world.call(writer, send("t", 3, "", b"y"));
        let answers = world.answers(reader);
        assert_eq!((answers[0].code, answers[0].ext.get("hasMsg")), (0, Some("true")));
        let now = world.call(reader, notify);
        assert_eq!(now.ext.get("hasMsg"), Some("true"), "it is still there");
        let peek = Command::request(RequestCode::PeekMessage, 0)
            .with_field("consumerGroup", "g")
            .with_field("topic", "t")
            .with_field("queueId", -1)
            .with_field("maxMsgNums", 8);
        for _ in 0..2 {
            assert_eq!(bodies(&world.call(reader, peek.clone())), ["y"]);
        }
        assert_eq!(texts(&take(&mut world, reader, "g", "t", 60_000)), ["y"]);
        assert_eq!(world.call(reader, peek).code, 19);
        world.stop();
    }
}

#[test]
fn nothing_is_lost_or_doubled_over_restarts() {
    for (shards, cores) in LAYOUTS {
        for power_cut in [None, Some(1), Some(2), Some(3)] {
            let flush = if power_cut.is_some() { FlushMode::Sync } else { FlushMode::Async };
            let mut world = World::new(shards, cores, flush);
            let mut client = world.connect(0);
            fill(&mut world, client, "t", 0..20);
            let first = take(&mut world, client, "g", "t", 5_000);
            first.iter().filter(|m| *m.body < *"m15").for_each(|m| assert_eq!(world.call(client, ack("g", m)).code, 0));
            let left: Vec<Popped> = first.into_iter().filter(|m| *m.body >= *"m15").collect();
            world.advance(1_500);
            world = world.restart(shards, cores, flush, power_cut);
            client = world.connect(0);
            assert!(take(&mut world, client, "g", "t", 5_000).is_empty(), "invisible over the restart");
            assert_eq!(world.call(client, ack("g", &left[0])).code, 0);
            world.advance(3_000);
            assert!(take(&mut world, client, "g", "t", 5_000).is_empty());
            world.advance(1_000);
            // It comes back once, even if the process dies before anything else is written.
            world = world.restart(shards, cores, flush, power_cut.map(|seed| seed + 10));
            client = world.connect(0);
            world.advance(300);
            let again = take(&mut world, client, "g", "t", 60_000);
            assert_eq!(texts(&again), texts(&left[1..]));
            again.iter().for_each(|m| assert_eq!(world.call(client, ack("g", m)).code, 0));
            world = world.restart(shards, cores, flush, power_cut.map(|seed| seed + 20));
            client = world.connect(0);
            fill(&mut world, client, "t", 20..24);
            assert_eq!(texts(&take(&mut world, client, "g", "t", 1_000)), numbered(20..24));
            world.stop();
        }
    }
}

#[test]
fn an_ordered_queue_is_one_attempts_at_a_time() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let mut client = world.connect(0);
        for n in 0..6 {
            world.call(client, send("t", 0, "", format!("m{n}").as_bytes()));
        }
        let ordered = |world: &World, attempt: &str| {
            pop(world, "g", "t", 0, 2, 3_000, 0).with_field("order", true).with_field("attemptId", attempt)
        };
        let request = ordered(&world, "a");
        let first = world.call(client, request);
        assert_eq!((bodies(&first), number(&first, "reviveQid")), (vec!["m0".into(), "m1".into()], 999));
        assert_eq!(first.ext.get("orderCountInfo"), Some("0 0 0"));
        let request = ordered(&world, "b");
        assert_eq!(world.call(client, request).code, 210, "another attempt");
        let request = ordered(&world, "a");
        assert_eq!(bodies(&world.call(client, request)), ["m0", "m1"], "the same attempt");
        world = world.restart(shards, cores, FlushMode::Async, None);
        client = world.connect(0);
        let request = ordered(&world, "b");
        assert_eq!(world.call(client, request).code, 210, "over the restart");
        world.advance(3_100);
        let request = ordered(&world, "c");
        let second = world.call(client, request);
        assert_eq!(bodies(&second), ["m0", "m1"], "its time is over");
        assert_eq!(second.ext.get("orderCountInfo"), Some("0 qo0%0 1;0 qo0%1 1;0 0 1"));
        let messages = popped(&second, "t", "g");
        let request = ordered(&world, "d").with_field("pollTime", 2_000);
        let opaque = world.write(client, request);
        world.settle();
        assert_eq!(world.answers(client), []);
        let other = world.connect(0);
        assert_eq!(world.call(other, ack("g", &messages[0])).code, 0);
        assert_eq!(world.answers(client), []);
        assert_eq!(world.call(other, ack("g", &messages[1])).code, 0);
        let answers = world.answers(client);
        assert_eq!(
            (answers[0].opaque, bodies(&answers[0])),
            (opaque, vec!["m2".into(), "m3".into()]),
            "woken by the ack"
        );
        let message = popped(&answers[0], "t", "g")[0].clone();
        let change = by_handle(RequestCode::ChangeMessageInvisibletime, "g", &message).with_field("invisibleTime", 500);
        assert_eq!(world.call(client, change).code, 0);
        assert_eq!(world.call(client, ack("g", &popped(&answers[0], "t", "g")[1])).code, 0);
        world.advance(600);
        let request = ordered(&world, "e");
        assert_eq!(bodies(&world.call(client, request)), ["m2", "m3"], "from the first that is not acked");
        world.stop();
    }
}

#[test]
fn forged_handles_have_no_effect() {
    let mut world = World::new(2, 2, FlushMode::Async);
    let client = world.connect(0);
    fill(&mut world, client, "t", 0..4);
    let message = take(&mut world, client, "g", "t", 1_000).remove(0);
    let with = |field: &'static str, value: &str| ack("g", &message).with_field(field, value);
    for (request, code) in [
        (with("topic", "unknown"), 17),
        (with("queueId", "4"), 13),
        (with("queueId", "-1"), 13),
        (with("offset", "-1"), 208),
        (with("offset", "99"), 208),
        (with("extraInfo", "nonsense"), 1),
        (with("extraInfo", "0 1 2 3 0 another-broker 0 0"), 0),
        (with("extraInfo", "0 1 2 3 0 broker-a 0 0"), 0),
        (with("extraInfo", "0 1 2 999 0 broker-a 0 0"), 0),
        (with("consumerGroup", "nobody"), 0),
    ] {
        let answer = world.call(client, request.clone());
        assert_eq!(answer.code, code, "{request:?}: {answer:?}");
    }
    world.advance(1_500);
    assert_eq!(take(&mut world, client, "g", "t", 1_000).len(), 4, "none of that acknowledged anything");
    world.stop();
}

#[test]
fn too_many_tries_end_as_a_dead_letter() {
    let mut world = World::new(1, 1, FlushMode::Async);
    let client = world.connect(0);
    fill(&mut world, client, "t", 0..1);
    let body = br#"{"groupName":"g","retryMaxTimes":2,"consumeEnable":true}"#;
    let group = Command::request(RequestCode::UpdateAndCreateSubscriptiongroup, 0).with_body(body.to_vec());
    assert_eq!(world.call(client, group).code, 0);
    let mut reconsumes = Vec::new();
    for _ in 0..6 {
        reconsumes.extend(take(&mut world, client, "g", "t", 500).iter().map(|m| m.reconsume));
        world.advance(1_500);
    }
    assert_eq!(reconsumes, [0, 1, 2]);
    assert_eq!(bodies(&world.call(client, pull("tools", "%DLQ%g", 0, 0, 0))), ["m0"]);
    world.stop();
}

#[test]
fn tools_see_how_far_a_group_has_got() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(0);
        fill(&mut world, client, "t", 0..8);
        take(&mut world, client, "g", "t", 60_000);
        world.advance(2_500);
        for queue_id in 0..4 {
            let query = ask(RequestCode::QueryConsumerOffset, "t", queue_id).with_field("consumerGroup", "g");
            assert_eq!(number(&world.call(client, query), "offset"), 2);
        }
        world.stop();
    }
}

#[test]
fn a_topic_that_is_made_anew_starts_anew() {
    let mut world = World::new(2, 2, FlushMode::Async);
    let client = world.connect(0);
    fill(&mut world, client, "t", 0..8);
    assert_eq!(take(&mut world, client, "g", "t", 1_000).len(), 8);
    let delete = Command::request(RequestCode::DeleteTopicInBroker, 0).with_field("topic", "t");
    assert_eq!(world.call(client, delete).code, 0);
    world.advance(3_000);
    fill(&mut world, client, "t", 8..12);
    // The second time they come back.
    for _ in 0..2 {
        world = world.restart(2, 2, FlushMode::Async, None);
        let client = world.connect(0);
        assert_eq!(texts(&take(&mut world, client, "g", "t", 1_000)), numbered(8..12), "old check points are gone");
        world.advance(1_500);
    }
    world.stop();
}

#[test]
fn a_clock_that_jumps_neither_loses_nor_doubles_a_message() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(0);
        fill(&mut world, client, "t", 0..8);
        assert_eq!(take(&mut world, client, "g", "t", 30_000).len(), 8);
        world.set_clock(-3_600_000);
        world.advance(2_000);
        assert!(take(&mut world, client, "g", "t", 30_000).is_empty(), "set back: still invisible");
        world.set_clock(3_600_000 + 60_000);
        world.advance(2_000);
        let again = take(&mut world, client, "g", "t", 30_000);
        assert_eq!(texts(&again), numbered(0..8), "set forward: its time is over");
        again.iter().for_each(|m| assert_eq!(world.call(client, ack("g", m)).code, 0));
        world.set_clock(3_600_000);
        world.advance(2_000);
        assert!(take(&mut world, client, "g", "t", 30_000).is_empty());
        world.stop();
    }
}

#[test]
fn an_expression_chooses_what_is_popped() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(0);
        for n in 0..12 {
            let properties = format!("n\u{1}{n}\u{2}");
            assert_eq!(world.call(client, send("t", n % 4, &properties, format!("m{n}").as_bytes())).code, 0);
        }
        let request = pop(&world, "g", "t", -1, 32, 1_000, 0).with_field("expType", "SQL92").with_field("exp", "n > 7");
        let answer = world.call(client, request.clone());
        assert_eq!(texts(&popped(&answer, "t", "g")), numbered(8..12));
        assert_eq!(world.call(client, request).code, 210, "the others are passed over");
        world.advance(1_500);
        assert_eq!(texts(&take(&mut world, client, "g", "t", 1_000)), numbered(8..12), "and do not come back");
        world.stop();
    }
}

#[test]
fn a_store_without_room_loses_nothing() {
    let mut world = World::new(1, 1, FlushMode::Async);
    let client = world.connect(0);
    fill(&mut world, client, "t", 0..4);
    assert_eq!(world.call(client, send("full", 0, "", b"x")).code, 0);
    let first = take(&mut world, client, "g", "t", 2_000);
    world.disk.set_capacity(1);
    let mut refused = 0;
    for n in 0..20_000 {
        let code = world.call(client, send("full", n % 4, "", &[b'x'; 16_000])).code;
        if code != 0 {
            refused = code;
            break;
        }
    }
    assert_eq!(refused, 14, "the log is full");
    assert!(matches!(world.call(client, ack("g", &first[0])).code, 0 | 14));
    world.advance(3_000);
    world.disk.set_capacity(1 << 40);
    world.advance(5_000);
    let again = take(&mut world, client, "g", "t", 60_000);
    assert!((3..=4).contains(&again.len()), "what was not acknowledged came back: {again:?}");
}

#[test]
fn a_topic_may_be_deleted_while_its_pops_are_written() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Sync);
        let (client, admin) = (world.connect(0), world.connect(0));
        fill(&mut world, client, "t", 0..8);
        let first = take(&mut world, client, "g", "t", 1_000);
        fill(&mut world, client, "t", 8..12);
        world.hold_syncs = true;
        let request = pop(&world, "g", "t", -1, 32, 1_000, 0);
        world.write(client, request);
        first[..4].iter().for_each(|message| {
            world.write(client, ack("g", message));
        });
        world.advance(1_200);
        let delete = Command::request(RequestCode::DeleteTopicInBroker, 0).with_field("topic", "t");
        world.write(admin, delete);
        world.advance(200);
        world.hold_syncs = false;
        world.advance(2_000);
        assert_eq!(world.answers(client).len(), 5, "everybody is answered");
        assert_eq!(world.answers(admin)[0].code, 0);
        fill(&mut world, client, "t", 20..24);
        assert_eq!(texts(&take(&mut world, client, "g", "t", 1_000)), numbered(20..24));
        world.advance(1_500);
        let again = take(&mut world, client, "g", "t", 1_000);
        assert!(numbered(20..24).iter().all(|text| texts(&again).contains(text)), "{again:?}");
        world.stop();
    }
}

/// Another process puts records into the revive topic of a store with one shard.
fn java_writes(disk: &Arc<SimulatedDisk>, now: Now, records: &[(&str, &str)]) {
    let store = StoreOptions { segment_size_bytes: 1 << 22, queue_file_size_bytes: 20_000, ..StoreOptions::default() };
    let disk: Arc<dyn sys::disk::Disk> = disk.clone();
    let home = StoreHome::open(disk.clone(), Path::new("/data"), &store, Some(1), 1).expect("store");
    let (mut shard, _) = Shard::open(disk, &home, ShardId(0), store, now).expect("shard");
    for (tag, body) in records {
        let properties = format!("TAGS\u{1}{tag}\u{2}");
        let host = "127.0.0.1:10911".parse().unwrap();
        let record = RecordFields {
            queue_id: 3,
            flag: 0,
            sys_flag: 0,
            born_timestamp_ms: now.wall_ms,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            topic: b"rmq_sys_REVIVE_LOG_DefaultCluster",
            body: body.as_bytes(),
            properties: PropertiesSource::Text(properties.as_bytes()),
        };
        shard.append(now, &[record]).expect("appended");
    }
    shard.write_staged(now).expect("written");
    shard.close().expect("closed");
    drop(shard);
    home.close_clean().expect("closed in order");
}

#[test]
fn check_points_of_a_java_broker_are_honoured() {
    // Its store has one shard.
    let (shards, cores) = (1, 1);
    let mut world = World::new(shards, cores, FlushMode::Async);
    let mut client = world.connect(0);
    fill(&mut world, client, "t", 0..8);
    assert_eq!(take(&mut world, client, "g", "t", 1_000).len(), 8, "they come back as others do");
    let now_ms = world.now().wall_ms;
    let of = |pop_ms: i64| format!(r#""bn":"broker-a","c":"java","pt":{pop_ms},"q":0,"so":0,"t":"t""#);
    let check = |pop_ms: i64| format!(r#"{{"bm":0,"d":[0,1],"it":3000,"n":2,"ro":0,{}}}"#, of(pop_ms));
    let group = Command::request(RequestCode::UpdateAndCreateSubscriptiongroup, 0);
    let group = group.with_body(br#"{"groupName":"java","retryMaxTimes":16,"consumeEnable":true}"#.to_vec());
    assert_eq!(world.call(client, group).code, 0);
    let here = world.call(client, ask(RequestCode::GetMaxOffset, "t", 0));
    assert_eq!(number(&here, "offset"), 2);
    world.advance(1_500);
    // As a Java broker's timer delivers them: two messages of queue 0, of which one is acknowledged.
    let acknowledged = format!(r#"{{"ao":0,{}}}"#, of(now_ms));
    let (disk, now) = (world.disk.clone(), world.now());
    world.stop();
    java_writes(&disk, now, &[("ck", &check(now_ms)), ("ack", &acknowledged)]);
    world = World::open_at(disk, shards, cores, FlushMode::Async, now);
    client = world.connect(0);
    let first = take(&mut world, client, "java", "t", 60_000);
    let popped_now = texts(&first);
    assert!(!popped_now.contains(&"m0".to_owned()) && !popped_now.contains(&"m4".to_owned()), "{popped_now:?}");
    world.advance(2_000);
    assert_eq!(texts(&take(&mut world, client, "java", "t", 60_000)), ["m4"], "the one that was not acknowledged");
    world.stop();
}
