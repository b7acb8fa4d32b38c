//! Pulls with SQL92 filters through a whole broker.

use crate::world::{World, bodies, pull, send};
use crate::{LAYOUTS, number};
use remoting::{Command, RequestCode};
use store::FlushMode;

fn allow(world: &mut World, shards_of: crate::world::Client) {
    let settings =
        Command::request(RequestCode::UpdateBrokerConfig, 0).with_body(b"enablePropertyFilter=true\n".to_vec());
    assert_eq!(world.call(shards_of, settings).code, 0);
}

/// A pull that brings an expression along.
fn sql(queue_id: i32, offset: i64, suspend_ms: i64, expression: &str) -> Command {
    let mut pull = pull("g", "t", queue_id, offset, suspend_ms).with_field("expressionType", "SQL92");
    pull.ext.remove("subscription");
    pull.with_field("subscription", expression)
}

/// A heartbeat of group `g` that subscribes to `t`.
fn beat(expression: &str, version: i64) -> Command {
    let body = format!(
        r#"{{"clientID":"c","consumerDataSet":[{{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"g","messageModel":"CLUSTERING","subscriptionDataSet":[{{"classFilterMode":false,"codeSet":[],"expressionType":"SQL92","subString":"{expression}","subVersion":{version},"tagsSet":[],"topic":"t"}}],"unitMode":false}}],"heartbeatFingerprint":0,"producerDataSet":[],"withoutSub":false}}"#
    );
    Command::request(RequestCode::HeartBeat, 0).with_body(body.into_bytes())
}

/// A pull by the subscription of the group.
fn subscribed(queue_id: i32, offset: i64, suspend_ms: i64, version: i64) -> Command {
    let mut pull =
        pull("g", "t", queue_id, offset, suspend_ms).with_field("sysFlag", if suspend_ms > 0 { 2 } else { 0 });
    pull.ext.remove("subscription");
    pull.ext.remove("subVersion");
    pull.with_field("subVersion", version)
}

fn k(value: i32) -> String {
    format!("k\u{1}{value}\u{2}TAGS\u{1}T\u{2}")
}

#[test]
fn only_what_the_expression_accepts_is_given() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(0);
        for n in 0..40 {
            world.call(client, send("t", n % 4, &k(n / 4), format!("m{n}").as_bytes()));
        }
        assert_eq!(world.call(client, sql(0, 0, 0, "k = 1")).code, 1, "not allowed");
        allow(&mut world, client);
        for residency in [simulator::Residency::All, simulator::Residency::Nothing] {
            world.disk.set_residency(residency);
            for queue_id in 0..4 {
                let mut found = Vec::new();
                let mut from = 0;
                while from < 10 {
                    let answer = world.call(client, sql(queue_id, from, 0, "k > 3 AND k <> 6 AND TAGS = 'T'"));
                    assert!([0, 20].contains(&answer.code), "{answer:?}");
                    found.extend(bodies(&answer));
                    assert!(number(&answer, "nextBeginOffset") > from);
                    from = number(&answer, "nextBeginOffset");
                }
                let expected = [4, 5, 7, 8, 9].map(|n| format!("m{}", n * 4 + queue_id));
                assert_eq!(found, expected);
            }
            world.disk.set_residency(simulator::Residency::All);
        }
        let none = world.call(client, sql(0, 2, 0, "k = 77"));
        assert_eq!(
            (none.code, none.remark.as_deref(), number(&none, "nextBeginOffset")),
            (20, Some("NO_MATCHED_MESSAGE"), 10)
        );
        let broken = world.call(client, sql(0, 0, 0, "k = "));
        assert_eq!(broken.code, 23);
        assert!(broken.remark.is_some_and(|remark| remark.contains("found the end at character 5")));
        assert_eq!(world.call(client, sql(0, 0, 0, "")).code, 23);
        world.stop();
    }
}

#[test]
fn a_held_pull_waits_for_a_message_that_it_accepts() {
    for (shards, cores) in LAYOUTS {
        for residency in [simulator::Residency::All, simulator::Residency::Nothing] {
            let mut world = World::new(shards, cores, FlushMode::Async);
            let (reader, writer) = (world.connect(0), world.connect(cores - 1));
            allow(&mut world, writer);
            for queue_id in 0..2 {
                world.call(writer, send("t", queue_id, &k(0), b"first"));
                let opaque = world.write(reader, sql(queue_id, 1, 15_000, "k = 1"));
                world.settle();
                world.disk.set_residency(residency);
                for n in 0..3 {
                    world.call(writer, send("t", queue_id, &k(2), format!("other {n}").as_bytes()));
                    world.advance(100);
                }
                assert_eq!(world.answers(reader), [], "woken in vain");
                world.call(writer, send("t", queue_id, &k(1), b"second"));
                let answers = world.answers(reader);
                assert_eq!(answers.len(), 1);
                assert_eq!(
                    (answers[0].opaque, answers[0].code, bodies(&answers[0])),
                    (opaque, 0, vec!["second".into()])
                );
                assert_eq!(number(&answers[0], "nextBeginOffset"), 5);
                world.disk.set_residency(simulator::Residency::All);
            }
        }
    }
}

#[test]
fn a_held_pull_ends_in_its_time_though_messages_pass() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let (reader, writer) = (world.connect(0), world.connect(cores - 1));
        allow(&mut world, writer);
        world.call(writer, send("t", 0, &k(0), b"first"));
        let passed = world.write(reader, sql(0, 1, 2_000, "k = 1"));
        world.settle();
        world.advance(1_500);
        world.call(writer, send("t", 0, &k(2), b"other"));
        world.advance(400);
        assert_eq!(world.answers(reader), []);
        world.advance(400);
        let answers = world.answers(reader);
        assert_eq!((answers.len(), answers[0].opaque, answers[0].code), (1, passed, 20));
        assert_eq!(answers[0].remark.as_deref(), Some("NO_MATCHED_MESSAGE"));
        assert_eq!(number(&answers[0], "nextBeginOffset"), 2);
        let nothing = world.write(reader, sql(0, 2, 2_000, "k = 1"));
        world.advance(2_300);
        let answers = world.answers(reader);
        assert_eq!((answers[0].opaque, answers[0].code, number(&answers[0], "nextBeginOffset")), (nothing, 19, 2));
        let last = world.write(reader, sql(0, 2, 15_000, "k = 1"));
        world.settle();
        world.call(writer, send("t", 0, &k(2), b"other"));
        let gone = Command::request(RequestCode::DeleteTopicInBroker, 0).with_field("topic", "t");
        assert_eq!(world.call(writer, gone).code, 0);
        world.advance(100);
        assert!(world.answers(reader).iter().any(|answer| answer.opaque == last), "not held again without its topic");
        world.stop();
    }
}

#[test]
fn heartbeats_register_and_change_filters() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let (reader, writer) = (world.connect(cores - 1), world.connect(0));
        for n in 0..4 {
            world.call(writer, send("t", 0, &k(n), format!("m{n}").as_bytes()));
        }
        assert_eq!(world.call(reader, beat("k >= 2", 5)).code, 0);
        assert_eq!(world.call(reader, subscribed(0, 0, 0, 5)).code, 1, "not allowed");
        allow(&mut world, writer);
        let answer = world.call(reader, subscribed(0, 0, 0, 5));
        assert_eq!((answer.code, bodies(&answer)), (0, vec!["m2".to_owned(), "m3".to_owned()]));
        assert_eq!(world.call(reader, subscribed(0, 0, 0, 6)).code, 25, "the subscription is older");
        let held = world.write(reader, subscribed(0, 4, 15_000, 5));
        world.settle();
        world.call(writer, send("t", 0, &k(1), b"m4"));
        assert_eq!(world.call(reader, beat("k = 1", 6)).code, 0);
        world.call(writer, send("t", 0, &k(9), b"m5"));
        let answers = world.answers(reader);
        let answer = answers.iter().find(|answer| answer.opaque == held).expect("a message wakes it");
        assert_eq!((answer.code, number(answer, "nextBeginOffset")), (20, 4), "back to where it asked");
        let answer = world.call(reader, subscribed(0, 4, 0, 6));
        assert_eq!((answer.code, bodies(&answer)), (0, vec!["m4".to_owned()]));
        assert_eq!(world.call(reader, beat("k =", 7)).code, 0);
        assert_eq!(world.call(reader, subscribed(0, 0, 0, 7)).code, 27);
        world.stop();
    }
}

#[test]
fn filters_outlive_the_broker() {
    let mut world = World::new(2, 2, FlushMode::Async);
    let disk = world.disk.clone();
    let client = world.connect(0);
    world.call(client, send("t", 0, &k(1), b"m"));
    world.call(client, beat("k = 1", 5));
    world.stop();
    let file = || {
        let disk: &dyn sys::disk::Disk = &*disk;
        let bytes = disk.read(std::path::Path::new("/data/config/consumerFilter.json")).unwrap();
        String::from_utf8(bytes.expect("the file is written")).unwrap()
    };
    assert!(file().contains("\"expression\":\"k = 1\"") && file().contains("\"clientVersion\":5"), "{}", file());
    let mut world = World::open(disk.clone(), 2, 2, FlushMode::Async);
    let client = world.connect(1);
    allow(&mut world, client);
    world.call(client, beat("k = 1", 5));
    let answer = world.call(client, subscribed(0, 0, 0, 5));
    assert_eq!((answer.code, bodies(&answer)), (0, vec!["m".to_owned()]));
    world.call(client, beat("k = 2", 6));
    world.advance(10_500);
    assert!(file().contains("\"expression\":\"k = 2\""), "written while running: {}", file());
    world.stop();
}
