//! Send-backs (36), retries that clients send themselves, and dead letters.

use super::world::{World, ask, bodies, pull, send};
use super::{LAYOUTS, number};
use message::ids::OffsetMessageId;
use message::properties::pairs;
use message::record::{RecordView, peek_size};
use remoting::{Command, RequestCode};
use std::collections::BTreeMap;
use store::FlushMode;

const SCHEDULE: &str = "SCHEDULE_TOPIC_XXXX";

/// A stored message, as a client reads it.
pub struct Found {
    pub topic: String,
    pub body: String,
    pub reconsume_times: i32,
    pub sys_flag: i32,
    pub physical_offset: i64,
    pub properties: BTreeMap<String, String>,
}

/// All messages of an answer.
pub fn messages(answer: &Command) -> Vec<Found> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (mut rest, mut found) = (&answer.body[..], Vec::new());
    while !rest.is_empty() {
        let (record, after) = rest.split_at(peek_size(rest).expect("a record") as usize);
        let record = RecordView::parse_checked(record).expect("a whole record");
        found.push(Found {
            topic: text(record.topic()),
            body: text(record.body()),
            reconsume_times: record.reconsume_times(),
            sys_flag: record.sys_flag(),
            physical_offset: record.physical_offset().to_i64(),
            properties: pairs(record.properties()).map(|(key, value)| (text(key), text(value))).collect(),
        });
        rest = after;
    }
    found
}

/// The offset in the commit log of a message that was sent.
fn offset_of(sent: &Command) -> i64 {
    OffsetMessageId::parse(sent.ext.get("msgId").expect("msgId").as_bytes()).expect("an id").offset.to_i64()
}

fn send_back(group: &str, offset: i64, delay_level: i32) -> Command {
    Command::request(RequestCode::ConsumerSendMsgBack, 0)
        .with_field("group", group)
        .with_field("offset", offset)
        .with_field("delayLevel", delay_level)
        .with_field("originTopic", "t")
        .with_field("unitMode", false)
}

/// Messages of all queues of the schedule topic that wait for this level, whatever their shard.
fn waiting(world: &mut World, client: super::world::Client, level: i32, shards: u16) -> Vec<Found> {
    let queues = (0..i32::from(shards)).map(|shard| shard * 18 + level - 1);
    queues.flat_map(|queue_id| messages(&world.call(client, pull("reader", SCHEDULE, queue_id, 0, 0)))).collect()
}

#[test]
fn a_message_without_tries_left_is_a_dead_letter_at_once() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(cores - 1);
        for queue_id in 0..4 {
            let sent =
                world.call(client, send("t", queue_id, "TAGS\u{1}T\u{2}DELAY\u{1}0\u{2}KEYS\u{1}k\u{2}", b"bad"));
            let back = send_back("g", offset_of(&sent), [0, -1, 1, 5][queue_id as usize]);
            let back = if queue_id == 1 { back } else { back.with_field("maxReconsumeTimes", 0) };
            let answer = world.call(client, back);
            assert_eq!((answer.code, answer.remark.clone(), answer.ext.len()), (0, None, 0), "{answer:?}");
            let max = number(&world.call(client, ask(RequestCode::GetMaxOffset, "%DLQ%g", 0)), "offset");
            assert_eq!(max, i64::from(queue_id) + 1);
        }
        let dead = messages(&world.call(client, pull("reader", "%DLQ%g", 0, 0, 0)));
        assert_eq!(dead.len(), 4);
        for letter in dead {
            assert_eq!((letter.topic.as_str(), letter.body.as_str(), letter.reconsume_times), ("%DLQ%g", "bad", 1));
            let wanted = [("RETRY_TOPIC", "t"), ("DELAY", "0"), ("WAIT", "false"), ("TAGS", "T"), ("KEYS", "k")];
            for (name, value) in wanted {
                assert_eq!(letter.properties[name], value, "{name}");
            }
            assert_eq!(letter.properties["ORIGIN_MESSAGE_ID"].len(), 32);
        }
        let config = world.call(client, Command::request(RequestCode::GetTopicConfig, 0).with_field("topic", "%DLQ%g"));
        let config = String::from_utf8(config.body).unwrap();
        assert!(config.contains("\"perm\":6") && config.contains("\"writeQueueNums\":1"), "{config}");
        world.stop();
    }
}

#[test]
fn a_retry_waits_in_the_shard_of_its_queue_and_keeps_what_it_was() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(0);
        for (queue_id, level, waits_for) in [(0, 0, 3), (1, 1, 1), (2, 2, 2), (3, 99, 18)] {
            let mut message = send("t", queue_id, "TAGS\u{1}T\u{2}p\u{1}v\u{2}", b"again");
            message.ext.set("f", "257"); // Compressed with LZ4: passes through.
            let sent = world.call(client, message);
            let offset = offset_of(&sent);
            assert_eq!(world.call(client, send_back("g", offset, level)).code, 0);
            let copies = waiting(&mut world, client, waits_for, shards);
            assert_eq!(copies.len(), 1, "level {level}");
            let copy = &copies[0];
            assert_eq!((copy.topic.as_str(), copy.body.as_str()), (SCHEDULE, "again"));
            assert_eq!((copy.reconsume_times, copy.sys_flag), (1, 257));
            let id = sent.ext.get("msgId").unwrap();
            let wanted = [
                ("REAL_TOPIC", "%RETRY%g"),
                ("REAL_QID", "0"),
                ("RETRY_TOPIC", "t"),
                ("DELAY", if waits_for == 18 { "18" } else { ["", "1", "2", "3"][waits_for as usize] }),
                ("TAGS", "T"),
                ("p", "v"),
                ("ORIGIN_MESSAGE_ID", id),
            ];
            for (name, value) in wanted {
                assert_eq!(copy.properties[name], value, "{name}");
            }
            // Its second try names the same origin.
            if level == 0 {
                assert_eq!(world.call(client, send_back("g", copy.physical_offset, 0)).code, 0);
                let again = waiting(&mut world, client, 4, shards);
                assert_eq!((again.len(), again[0].reconsume_times), (1, 2));
                assert_eq!(again[0].properties["ORIGIN_MESSAGE_ID"], *id);
                assert_eq!(again[0].properties["RETRY_TOPIC"], "t");
            }
        }
        world.stop();
    }
}

#[test]
fn what_cannot_be_sent_back_is_refused_as_by_java() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(0);
        let offset = offset_of(&world.call(client, send("t", 0, "", b"x")));
        for (back, code) in [
            (send_back("g", i64::MAX, 0), 1),
            (send_back("g", -1, 0), 1),
            (send_back("g", offset + 1, 0), 1),
            (send_back("g", 1 << 40, 0), 1),
            (send_back(&"g".repeat(200), offset, 0), 26),
            (send_back("bad group", offset, 0), 26),
            (send_back("", offset, 0), 26),
            (send_back("g", offset, 0).with_field("delayLevel", "x"), 1),
            (send_back("g", offset, 0).with_field("maxReconsumeTimes", "x"), 1),
        ] {
            let answer = world.call(client, back.clone());
            assert_eq!(answer.code, code, "{back:?}: {answer:?}");
            assert!(answer.remark.is_some_and(|remark| !remark.is_empty()));
        }
        let group = br#"{"groupName":"none","retryQueueNums":0,"retryMaxTimes":16}"#;
        let make = Command::request(RequestCode::UpdateAndCreateSubscriptiongroup, 0).with_body(group.to_vec());
        assert_eq!(world.call(client, make).code, 0);
        assert_eq!(world.call(client, send_back("none", -1, 0)).code, 0, "a group without retries: no effect");
        let topics = world.call(client, Command::request(RequestCode::GetAllTopicConfig, 0));
        let topics = String::from_utf8(topics.body).unwrap();
        assert!(!topics.contains("%RETRY%none") && !topics.contains("%DLQ%"), "{topics}");
        world.stop();
    }
}

#[test]
fn a_cold_message_is_sent_back_too_and_the_answer_waits_for_the_sync() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Sync);
        let disk = world.disk.clone();
        let client = world.connect(0);
        let offsets: Vec<i64> = (0..4).map(|q| offset_of(&world.call(client, send("t", q, "", b"cold")))).collect();
        assert_eq!(world.call(client, send_back("g", offsets[0], -1)).code, 0);
        world.stop();
        let mut world = World::open(disk, shards, cores, FlushMode::Sync);
        world.disk.set_residency(simulator::Residency::Nothing);
        let client = world.connect(0);
        world.hold_syncs = true;
        let asked: Vec<i32> = offsets.iter().map(|offset| world.write(client, send_back("g", *offset, -1))).collect();
        world.settle();
        assert!(world.answers(client).is_empty(), "nothing is acknowledged before its sync");
        world.hold_syncs = false;
        world.settle();
        let mut answers: Vec<(i32, i32)> = world.answers(client).iter().map(|a| (a.opaque, a.code)).collect();
        answers.sort_unstable();
        assert_eq!(answers, asked.into_iter().map(|opaque| (opaque, 0)).collect::<Vec<_>>());
        world.disk.set_residency(simulator::Residency::All);
        assert_eq!(bodies(&world.call(client, pull("reader", "%DLQ%g", 0, 0, 0))), vec!["cold"; 5]);
        world.stop();
    }
}

#[test]
fn a_dead_letter_topic_that_was_deleted_is_made_anew() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let (client, admin) = (world.connect(cores - 1), world.connect(0));
        let offset = offset_of(&world.call(client, send("t", 0, "", b"x")));
        assert_eq!(world.call(client, send_back("g", offset, -1)).code, 0);
        let delete = Command::request(RequestCode::DeleteTopicInBroker, 0).with_field("topic", "%DLQ%g");
        let deleted = world.write(admin, delete);
        let backs: Vec<i32> = (0..8).map(|_| world.write(client, send_back("g", offset, -1))).collect();
        world.settle();
        assert_eq!(world.answers(admin).iter().map(|a| (a.opaque, a.code)).collect::<Vec<_>>(), [(deleted, 0)]);
        let answers = world.answers(client);
        assert_eq!(answers.len(), backs.len());
        // Sent back before the deletion, refused while it went on, or after it: never lost with a success.
        let refused = answers.iter().filter(|answer| answer.code == 17).count();
        assert!(answers.iter().all(|answer| answer.code == 0 || answer.code == 17), "{answers:?}");
        assert_eq!(world.call(client, send_back("g", offset, -1)).code, 0);
        let left = bodies(&world.call(client, pull("reader", "%DLQ%g", 0, 0, 0))).len();
        assert!(left >= 1 && left <= 9 - refused, "{left} letters, {refused} refused");
        world.stop();
    }
}

#[test]
fn retries_that_clients_send_follow_the_same_rules() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(cores - 1);
        let retry = |reconsume: i32, max: Option<i32>| {
            let message =
                send("%RETRY%g", 0, "RETRY_TOPIC\u{1}t\u{2}DELAY\u{1}3\u{2}", format!("r{reconsume}").as_bytes())
                    .with_field("j", reconsume);
            match max {
                Some(max) => message.with_field("l", max),
                None => message,
            }
        };
        // The group's limit is 16.
        for (message, dead) in [
            (retry(16, None), false),
            (retry(17, None), true),
            (retry(2, Some(2)), false),
            (retry(3, Some(2)), true),
            (Command { version: 120, ..retry(3, Some(2)) }, false),
        ] {
            let before = number(&world.call(client, ask(RequestCode::GetMaxOffset, "%DLQ%g", 0)), "offset");
            let sent = world.call(client, message.clone());
            assert_eq!((sent.code, number(&sent, "queueId")), (0, 0), "{sent:?}");
            let after = number(&world.call(client, ask(RequestCode::GetMaxOffset, "%DLQ%g", 0)), "offset");
            assert_eq!(after - before, i64::from(dead), "{message:?}");
        }
        let waits = waiting(&mut world, client, 3, shards);
        assert_eq!(waits.iter().map(|copy| copy.reconsume_times).collect::<Vec<_>>(), [16, 2, 3]);
        // While the group holds a queue lock, it consumes in order: what it gives up is dead.
        let body =
            r#"{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"broker-a","queueId":0,"topic":"t"}]}"#;
        let lock = Command::request(RequestCode::LockBatchMq, 0).with_body(body.into());
        assert_eq!(world.call(client, lock).code, 0);
        assert_eq!(world.call(client, retry(1, None)).code, 0);
        world.advance(60_000);
        let max = ask(RequestCode::GetMaxOffset, "%DLQ%g", 0);
        assert_eq!(number(&world.call(client, max.clone()), "offset"), 3);
        assert_eq!(world.call(client, retry(1, None)).code, 0);
        assert_eq!(number(&world.call(client, max), "offset"), 3, "the lock is over");
        let dead = messages(&world.call(client, pull("reader", "%DLQ%g", 0, 0, 0)));
        assert_eq!(dead.iter().map(|letter| letter.reconsume_times).collect::<Vec<_>>(), [17, 3, 1]);
        assert!(dead.iter().all(|letter| letter.properties["DELAY"] == "-1" && letter.topic == "%DLQ%g"));
        let unknown = send("%RETRY%bad group", 0, "", b"x");
        assert_eq!(world.call(client, unknown).code, 29);
        world.stop();
    }
}

#[test]
fn an_answered_send_back_survives_a_power_cut() {
    for (shards, cores) in LAYOUTS {
        for turns in [1, 2, 3, 4, 6, 9, 14, 40] {
            let mut world = World::new(shards, cores, FlushMode::Sync);
            let disk = world.disk.clone();
            let client = world.connect(0);
            let offsets: Vec<i64> =
                (0..4).map(|q| offset_of(&world.call(client, send("t", q, "", format!("m{q}").as_bytes())))).collect();
            for offset in &offsets {
                world.write(client, send_back("g", *offset, -1));
            }
            world.turns(turns);
            let answered = world.answers(client).iter().filter(|answer| answer.code == 0).count();
            drop(world);
            disk.power_cut(turns as u64);
            let mut world = World::open(disk, shards, cores, FlushMode::Sync);
            let client = world.connect(0);
            let mut left = bodies(&world.call(client, pull("reader", "%DLQ%g", 0, 0, 0)));
            left.sort_unstable();
            left.dedup();
            assert!(left.len() >= answered, "{left:?} of {answered} answered, after {turns} turns");
            assert!(turns < 40 || answered == 4, "enough turns for all");
            for offset in &offsets {
                assert_eq!(world.call(client, send_back("g", *offset, -1)).code, 0, "what was stored can be sent back");
            }
            world.stop();
        }
    }
}

#[test]
fn a_retry_comes_back_after_its_level() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(0);
        let offset = offset_of(&world.call(client, send("t", 1, "TAGS\u{1}T\u{2}", b"again")));
        assert_eq!(world.call(client, send_back("g", offset, 1)).code, 0);
        world.advance(900);
        assert_eq!(bodies(&world.call(client, pull("g", "%RETRY%g", 0, 0, 0))), Vec::<String>::new());
        world.advance(200);
        let back = messages(&world.call(client, pull("g", "%RETRY%g", 0, 0, 0)));
        assert_eq!(back.len(), 1);
        assert_eq!((back[0].body.as_str(), back[0].reconsume_times), ("again", 1));
        assert_eq!((back[0].properties["RETRY_TOPIC"].as_str(), back[0].properties["TAGS"].as_str()), ("t", "T"));
        world.stop();
    }
}
