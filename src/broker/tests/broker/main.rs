//! The broker as a whole, without sockets: requests in, answers out, on one core and across two.

mod delay;
mod filters;
mod lmq;
mod offsets;
mod reply;
mod retry;
mod transactions;
mod transactions_cut;
mod pop;
mod world;

use message::batch::{BatchEntry, encode_entry};
use remoting::{Command, RequestCode, SerializeType};
use store::FlushMode;
use world::{World, ask, bodies, compact, pull, send};

const LAYOUTS: [(u16, u16); 3] = [(1, 1), (2, 1), (2, 2)];

fn number(answer: &Command, field: &'static str) -> i64 {
    answer.ext.i64(field).unwrap_or_else(|error| panic!("{error} in {answer:?}"))
}

#[test]
fn what_is_sent_is_pulled() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(0);
        for n in 0..8 {
            let sent = world.call(client, send("t", n % 4, "TAGS\u{1}A\u{2}", format!("m{n}").as_bytes()));
            assert_eq!((sent.code, number(&sent, "queueOffset")), (0, i64::from(n / 4)), "{sent:?}");
            assert_eq!((number(&sent, "queueId"), sent.ext.get("msgId").unwrap().len()), (i64::from(n % 4), 32));
        }
        for queue_id in 0..4 {
            let pulled = world.call(client, pull("g", "t", queue_id, 0, 0));
            assert_eq!(bodies(&pulled), [format!("m{queue_id}"), format!("m{}", queue_id + 4)], "{pulled:?}");
            assert_eq!((number(&pulled, "nextBeginOffset"), number(&pulled, "maxOffset")), (2, 2));
            let max = world.call(client, ask(RequestCode::GetMaxOffset, "t", queue_id));
            assert_eq!(number(&max, "offset"), 2);
        }
        if cores == 2 {
            assert!(world.crossed(1) > 0, "queues of the other core were asked");
        }
        world.stop();
    }
}

#[test]
fn both_shards_hold_about_half_of_a_wide_topic() {
    let mut world = World::new(2, 2, FlushMode::Async);
    let client = world.connect(0);
    let create = ask(RequestCode::UpdateAndCreateTopic, "wide", 0)
        .with_field("defaultTopic", "TBW102")
        .with_field("readQueueNums", 64)
        .with_field("writeQueueNums", 64)
        .with_field("perm", 6)
        .with_field("topicFilterType", "SINGLE_TAG")
        .with_field("order", false);
    assert_eq!(world.call(client, create).code, 0);
    let before = world.crossed(1);
    let mut of_shard = [0; 2];
    for n in 0..640 {
        let sent = world.call(client, send("wide", n % 64, "", b"x"));
        let id = message::ids::OffsetMessageId::parse(sent.ext.get("msgId").unwrap().as_bytes()).unwrap();
        of_shard[(id.offset.0 / store::SHARD_SPAN) as usize] += 1;
    }
    assert!(of_shard.iter().all(|count| (256..=384).contains(count)), "{of_shard:?} of 640");
    assert!(world.crossed(1) - before >= 256, "requests crossed to the other core");
    world.stop();
}

#[test]
fn an_answer_has_the_form_of_its_request() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(0);
        for queue_id in 0..2 {
            for (form, request) in [
                (SerializeType::Compact, compact(send("t", queue_id, "", b"x"))),
                (SerializeType::Json, send("t", queue_id, "", b"x")),
                (SerializeType::Compact, compact(pull("g", "t", queue_id, 0, 0))),
                (SerializeType::Compact, compact(pull("g", "t", queue_id, 99, 0))),
                (SerializeType::Compact, compact(ask(RequestCode::GetMinOffset, "t", queue_id))),
                (SerializeType::Compact, compact(Command::request(29_999, 0))),
            ] {
                assert_eq!(world.call(client, request).serialize_type, form);
            }
        }
    }
}

#[test]
fn a_held_pull_is_woken_by_the_append() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let (reader, writer) = (world.connect(0), world.connect(cores - 1));
        for queue_id in 0..2 {
            world.call(writer, send("t", queue_id, "", b"first"));
            let opaque = world.write(reader, pull("g", "t", queue_id, 1, 15_000));
            world.settle();
            assert_eq!(world.call(reader, ask(RequestCode::GetMaxOffset, "t", 0)).code, 0, "others pass");
            assert_eq!(world.call(writer, send("t", queue_id, "", b"second")).code, 0);
            let answers = world.answers(reader);
            assert_eq!(answers.len(), 1);
            assert_eq!((answers[0].opaque, answers[0].code, bodies(&answers[0])), (opaque, 0, vec!["second".into()]));
        }
        let opaque = world.write(reader, pull("g", "t", 0, 2, 2_000));
        world.advance(1_900);
        assert_eq!(world.answers(reader), []);
        world.advance(400);
        let answers = world.answers(reader);
        assert_eq!((answers[0].opaque, answers[0].code, number(&answers[0], "nextBeginOffset")), (opaque, 19, 2));
        world.write(reader, pull("g", "t", 0, 2, 15_000));
        world.settle();
        world.disconnect(reader);
        assert_eq!(world.call(writer, send("t", 0, "", b"third")).code, 0, "the hold went with its connection");
        world.stop();
    }
}

#[test]
fn with_sync_flush_an_answer_waits_for_the_sync() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Sync);
        let client = world.connect(0);
        assert_eq!(world.call(client, send("t", 0, "", b"makes the topic")).code, 0);
        assert_eq!(world.call(client, send("t", 1, "", b"makes the queue")).code, 0);
        world.hold_syncs = true;
        for queue_id in 0..2 {
            let waits = world.write(client, send("t", queue_id, "", b"waits"));
            let quick = world.write(client, send("t", queue_id, "WAIT\u{1}false\u{2}", b"does not"));
            world.settle();
            let answers = world.answers(client);
            assert_eq!(answers.iter().map(|answer| (answer.opaque, answer.code)).collect::<Vec<_>>(), [(quick, 0)]);
            let max = world.call(client, ask(RequestCode::GetMaxOffset, "t", queue_id));
            assert_eq!(number(&max, "offset"), 1, "nothing is visible before its sync");
            world.hold_syncs = false;
            world.settle();
            world.hold_syncs = true;
            let answers = world.answers(client);
            assert_eq!(answers.iter().map(|answer| (answer.opaque, answer.code)).collect::<Vec<_>>(), [(waits, 0)]);
            let max = world.call(client, ask(RequestCode::GetMaxOffset, "t", queue_id));
            assert_eq!(number(&max, "offset"), 3);
        }
        let late = world.write(client, send("t", 0, "", b"late"));
        world.advance(5_500);
        let answers = world.answers(client);
        assert_eq!(answers.iter().map(|answer| (answer.opaque, answer.code)).collect::<Vec<_>>(), [(late, 10)]);
        assert!(answers[0].ext.get("msgId").is_some(), "an answer that counts as sent has its fields");
        world.hold_syncs = false;
        world.stop();
    }
}

#[test]
fn a_batch_is_whole_or_nothing() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(0);
        let mut body = Vec::new();
        for text in ["a", "b", "c"] {
            encode_entry(&mut body, &BatchEntry { flag: 0, body: text.as_bytes(), properties: b"TAGS\x01T" }).unwrap();
        }
        let batch = |queue_id: i32, body: &[u8]| {
            let mut command = send("t", queue_id, "", body).with_field("m", true);
            command.code = RequestCode::SendBatchMessage.to_i32();
            command
        };
        let mut delayed = body.clone();
        encode_entry(&mut delayed, &BatchEntry { flag: 0, body: b"d", properties: b"DELAY\x013\x02" }).unwrap();
        for queue_id in 0..2 {
            for broken in [&body[..body.len() - 1], &[&body[..], &[0, 0]].concat(), b"", &delayed] {
                assert_eq!(world.call(client, batch(queue_id, broken)).code, 13);
            }
            let sent = world.call(client, batch(queue_id, &body));
            assert_eq!((sent.code, number(&sent, "queueOffset")), (0, 0), "{sent:?}");
            assert_eq!(sent.ext.get("msgId").unwrap().split(',').count(), 3);
            assert_eq!(number(&world.call(client, send("t", queue_id, "", b"d")), "queueOffset"), 3);
            assert_eq!(bodies(&world.call(client, pull("g", "t", queue_id, 0, 0))), ["a", "b", "c", "d"]);
        }
    }
}

#[test]
fn messages_are_found_by_key_and_id_in_every_shard() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(0);
        let mut ids = Vec::new();
        for n in 0..8 {
            let sent = world.call(client, send("t", n % 4, "KEYS\u{1}k\u{2}", format!("m{n}").as_bytes()));
            ids.push(sent.ext.get("msgId").unwrap().to_owned());
        }
        let query = |key: &str, max: i32| {
            Command::request(RequestCode::QueryMessage, 0)
                .with_field("topic", "t")
                .with_field("key", key)
                .with_field("maxNum", max)
                .with_field("beginTimestamp", 0)
                .with_field("endTimestamp", i64::MAX)
        };
        let mut found = bodies(&world.call(client, query("k", 64)));
        found.sort();
        assert_eq!(found, (0..8).map(|n| format!("m{n}")).collect::<Vec<_>>());
        assert_eq!(bodies(&world.call(client, query("k", 3))).len(), 3);
        assert_eq!(world.call(client, query("other", 64)).code, 22);
        assert_eq!(world.call(client, Command::request(RequestCode::QueryMessage, 0).with_field("topic", "t")).code, 1);
        for (n, id) in ids.iter().enumerate() {
            let id = message::ids::OffsetMessageId::parse(id.as_bytes()).unwrap();
            let view = |offset: i64| Command::request(RequestCode::ViewMessageById, 0).with_field("offset", offset);
            let answer = world.call(client, view(id.offset.to_i64()));
            assert_eq!((answer.code, bodies(&answer)), (0, vec![format!("m{n}")]));
            for bad in [id.offset.to_i64() + 1, -1, i64::MAX, id.offset.to_i64() + (1 << 55) * 7] {
                assert_eq!(world.call(client, view(bad)).code, 1, "{bad}");
            }
        }
    }
}

#[test]
fn frames_that_make_no_sense_close_their_connection_and_no_other() {
    let mut world = World::new(1, 1, FlushMode::Async);
    let good = world.connect(0);
    for frame in [
        &[0, 0, 0, 12, 0, 0, 0, 8, b'{', b'{', b'{', b'n', b'o', b't', b'!', b'!'][..],
        &[0, 0, 0, 4, 0, 0, 0, 9],
        &[0, 0, 0, 6, 7, 0, 0, 2, b'{', b'}'],
    ] {
        let bad = world.connect(0);
        world.write_bytes(bad, frame.to_vec());
        world.settle();
        assert!(world.is_closed(bad), "{frame:?}");
    }
    assert_eq!(world.call(good, send("t", 0, "", b"x")).code, 0);
    let unknown = world.call(good, Command::request(29_999, 0));
    assert_eq!((unknown.code, unknown.remark.as_deref()), (3, Some(" request type 29999 not supported")));
    world.write(good, Command::request(29_999, 0).oneway());
    world.write(good, send("t", 0, "", b"quiet").oneway());
    world.settle();
    assert_eq!(world.answers(good), []);
    assert_eq!(bodies(&world.call(good, pull("g", "t", 0, 0, 0))), ["x", "quiet"]);
}

#[test]
fn requests_of_one_connection_for_one_queue_keep_their_order_also_while_the_topic_is_made() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(cores - 1);
        let mut asked = Vec::new();
        for n in 0..200 {
            asked.push(world.write(client, send("new", n % 2, "", format!("{n}").as_bytes())));
        }
        world.settle();
        let mut answers = world.answers(client);
        answers.sort_by_key(|answer| answer.opaque);
        assert_eq!(answers.iter().map(|answer| answer.opaque).collect::<Vec<_>>(), asked);
        for (n, answer) in answers.iter().enumerate() {
            assert_eq!((answer.code, number(answer, "queueOffset")), (0, n as i64 / 2), "{answer:?}");
        }
        let absent = send("other", 0, "", b"x").with_field("c", "no-such-topic");
        assert_eq!(world.call(client, absent).code, 17);
        assert_eq!(
            world.call(client, send("new", 0, "", b"goes on")).code,
            0,
            "the connection is let go after a refusal"
        );
    }
}

#[test]
fn an_orderly_stop_keeps_everything() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let disk = world.disk.clone();
        let client = world.connect(0);
        for n in 0..40 {
            world.call(client, send("t", n % 4, "", format!("m{n}").as_bytes()));
        }
        world.stop();
        let mut world = World::open(disk, shards, cores, FlushMode::Async);
        let client = world.connect(0);
        for queue_id in 0..4 {
            let found = bodies(&world.call(client, pull("g", "t", queue_id, 0, 0)));
            assert_eq!(found, (0..10).map(|n| format!("m{}", n * 4 + queue_id)).collect::<Vec<_>>());
        }
        world.stop();
    }
}

#[test]
fn cold_reads_park_and_come_back() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let disk = world.disk.clone();
        let client = world.connect(0);
        for n in 0..40 {
            world.call(client, send("t", n % 4, "KEYS\u{1}k\u{2}", format!("m{n}").as_bytes()));
        }
        world.stop();
        let mut world = World::open(disk, shards, cores, FlushMode::Async);
        world.disk.set_residency(simulator::Residency::Nothing);
        let client = world.connect(0);
        let mut asked = Vec::new();
        for queue_id in 0..4 {
            asked.push(world.write(client, pull("g", "t", queue_id, 0, 0)));
        }
        world.settle();
        let mut answers = world.answers(client);
        answers.sort_by_key(|answer| answer.opaque);
        for (queue_id, answer) in answers.iter().enumerate() {
            let mut found = bodies(answer);
            assert_eq!(answer.code, 0, "{answer:?}");
            let wanted: Vec<String> = (0..found.len()).map(|n| format!("m{}", n * 4 + queue_id)).collect();
            assert!(!found.is_empty());
            assert_eq!(std::mem::take(&mut found), wanted);
        }
        assert_eq!(answers.len(), asked.len());
    }
}

#[test]
fn a_held_pull_follows_the_heartbeats_of_its_group() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let (reader, writer) = (world.connect(cores - 1), world.connect(0));
        let beat = |tag: &str, version: i64| {
            let code = message::hash::java_hash(tag.as_bytes());
            let body = format!(
                r#"{{"clientID":"c","consumerDataSet":[{{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"g","messageModel":"CLUSTERING","subscriptionDataSet":[{{"classFilterMode":false,"codeSet":[{code}],"expressionType":"TAG","subString":"{tag}","subVersion":{version},"tagsSet":["{tag}"],"topic":"t"}}],"unitMode":false}}],"heartbeatFingerprint":0,"producerDataSet":[],"withoutSub":false}}"#
            );
            Command::request(RequestCode::HeartBeat, 0).with_body(body.into_bytes())
        };
        for queue_id in 0..2 {
            let version = i64::from(queue_id) * 2;
            world.call(writer, send("t", queue_id, "TAGS\u{1}A\u{2}", b"A-0"));
            assert_eq!(world.call(reader, beat("A", version)).code, 0);
            let mut held = pull("g", "t", queue_id, 1, 15_000).with_field("sysFlag", 2);
            held.ext.remove("subscription");
            let opaque = world.write(reader, held);
            world.settle();
            assert_eq!(world.call(reader, beat("B", version + 1)).code, 0);
            world.call(writer, send("t", queue_id, "TAGS\u{1}A\u{2}", b"A-1"));
            // Its client would look at what it gets with the subscription of then, so it is only told to ask again.
            let answers = world.answers(reader);
            let answer = answers.iter().find(|answer| answer.opaque == opaque).expect("a message wakes it");
            assert_eq!((answer.code, answer.ext.get("nextBeginOffset")), (20, Some("1")));
            world.call(writer, send("t", queue_id, "TAGS\u{1}B\u{2}", b"B-1"));
            let mut again = pull("g", "t", queue_id, 1, 15_000).with_field("sysFlag", 2);
            again.ext.remove("subscription");
            let answer = world.call(reader, again);
            assert_eq!((answer.code, bodies(&answer)), (0, vec!["B-1".to_owned()]));
        }
    }
}
