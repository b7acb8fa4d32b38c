//! Transactions: half messages, their ends, checks of their producers, and what survives of them.

use super::retry::messages;
use super::world::{Client, World, ask, bodies, pull, send};
use super::{LAYOUTS, number};
use message::ids::OffsetMessageId;
use remoting::{Command, RequestCode};
use simulator::Residency;
use std::path::Path;
use store::FlushMode;
use sys::disk::Disk;

const HALF: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
const OP: &str = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
const GIVEN_UP: &str = "TRANS_CHECK_MAX_TIME_TOPIC";
pub const COMMIT: i32 = 8;
pub const ROLLBACK: i32 = 12;

/// A half message as its producer knows it.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    table: i64,
    offset: i64,
}

pub fn half(queue_id: i32, more: &str, body: &str) -> Command {
    let properties = format!("TRAN_MSG\u{1}true\u{2}PGROUP\u{1}pg\u{2}UNIQ_KEY\u{1}id-{body}\u{2}{more}");
    // Born when the world begins.
    send("t", queue_id, &properties, body.as_bytes()).with_field("f", 4).with_field("g", 1_700_000_000_000_i64)
}

pub fn sent(answer: &Command) -> Sent {
    assert_eq!(answer.code, 0, "{answer:?}");
    let id = OffsetMessageId::parse(answer.ext.get("msgId").expect("msgId").as_bytes()).expect("an id");
    Sent { table: number(answer, "queueOffset"), offset: id.offset.to_i64() }
}

pub fn end(of: Sent, kind: i32) -> Command {
    Command::request(RequestCode::EndTransaction, 0)
        .with_field("producerGroup", "pg")
        .with_field("topic", "t")
        .with_field("tranStateTableOffset", of.table)
        .with_field("commitLogOffset", of.offset)
        .with_field("commitOrRollback", kind)
        .with_field("fromTransactionCheck", "false")
        .with_field("msgId", "id")
        .with_field("bname", "broker-a")
}

pub fn producer(world: &mut World, client: Client) {
    let body = r#"{"clientID":"c","consumerDataSet":[],"producerDataSet":[{"groupName":"pg"}]}"#;
    let beat = Command::request(RequestCode::HeartBeat, 0).with_body(body.as_bytes().to_vec());
    assert_eq!(world.call(client, beat).code, 0);
}

/// What the topic has, over all its queues.
pub fn delivered(world: &mut World, client: Client) -> Vec<String> {
    let mut all: Vec<String> =
        (0..4).flat_map(|queue_id| bodies(&world.call(client, pull("reader", "t", queue_id, 0, 0)))).collect();
    all.sort();
    all
}

fn queue_end(world: &mut World, client: Client, topic: &str, queue_id: i32) -> i64 {
    number(&world.call(client, ask(RequestCode::GetMaxOffset, topic, queue_id)), "offset")
}

/// The questions about half messages that a client got.
pub fn checks(world: &mut World, client: Client) -> Vec<(Sent, Command)> {
    let asked = world.answers(client).into_iter().filter(|command| command.code == 39);
    let read = |command: Command| {
        let at = Sent { table: number(&command, "tranStateTableOffset"), offset: number(&command, "commitLogOffset") };
        (at, command)
    };
    asked.map(read).collect()
}

#[test]
fn a_half_is_seen_after_its_commit_and_only_then() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(0);
        let mut halves = Vec::new();
        for queue_id in 0..4 {
            let answer = world.call(client, half(queue_id, "TAGS\u{1}T\u{2}", &format!("m{queue_id}")));
            assert_eq!(number(&answer, "queueId"), i64::from(queue_id), "the queue that it is for");
            assert_eq!(answer.ext.get("transactionId"), Some(format!("id-m{queue_id}").as_str()));
            halves.push(sent(&answer));
        }
        assert_eq!(delivered(&mut world, client), [""; 0]);
        let of_shards: Vec<i64> =
            (0..i32::from(shards)).map(|shard| queue_end(&mut world, client, HALF, shard)).collect();
        assert_eq!(of_shards, if shards == 1 { vec![4] } else { vec![2, 2] }, "each waits in the shard of its queue");
        for (at, kind) in [(0, COMMIT), (1, ROLLBACK), (2, COMMIT)] {
            assert_eq!(world.call(client, end(halves[at], kind)).code, 0);
        }
        let oneway = world.write(client, end(halves[3], COMMIT).oneway());
        world.settle();
        assert!(world.answers(client).iter().all(|answer| answer.opaque != oneway));
        assert_eq!(delivered(&mut world, client), ["m0", "m2", "m3"]);
        assert!(halves.iter().all(|half| half.offset > 0), "a half can always be named");
        let got = messages(&world.call(client, pull("reader", "t", 2, 0, 0)));
        assert_eq!((got[0].topic.as_str(), got[0].sys_flag), ("t", 8));
        let text = |name: &str| got[0].properties.get(name).map(String::as_str);
        assert_eq!(
            (text("TRAN_MSG"), text("__transactionId__"), text("PGROUP")),
            (Some("true"), Some("id-m2"), Some("pg"))
        );
        assert_eq!((text("REAL_TOPIC"), text("REAL_QID"), text("TAGS")), (None, None, Some("T")));
        let marks: i64 = (0..i32::from(shards)).map(|shard| queue_end(&mut world, client, OP, shard)).sum();
        assert_eq!(marks, 5, "one record for each turn in which something ended, and the one that opens the log");
        world.stop();
    }
}

#[test]
fn an_end_that_comes_again_changes_nothing() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(cores - 1);
        for queue_id in 0..2 {
            let (kept, gone) = (
                sent(&world.call(client, half(queue_id, "", &format!("kept{queue_id}")))),
                sent(&world.call(client, half(queue_id, "", "gone"))),
            );
            let twice: Vec<i32> = (0..2).map(|_| world.write(client, end(kept, COMMIT))).collect();
            let against = world.write(client, end(kept, ROLLBACK));
            world.settle();
            let answers = world.answers(client);
            let code = |opaque| answers.iter().find(|answer| answer.opaque == opaque).map(|answer| answer.code);
            assert_eq!((code(twice[0]), code(twice[1]), code(against)), (Some(0), Some(0), Some(1)));
            assert_eq!(world.call(client, end(gone, ROLLBACK)).code, 0);
            assert_eq!(world.call(client, end(gone, ROLLBACK)).code, 0);
            assert_eq!(world.call(client, end(gone, COMMIT)).code, 1, "it was rolled back");
            world.advance(1_500);
            assert_eq!(world.call(client, end(kept, COMMIT)).code, 0);
            assert_eq!(world.call(client, end(kept, ROLLBACK)).code, 1);
        }
        assert_eq!(delivered(&mut world, client), ["kept0", "kept1"]);
        world.stop();
    }
}

#[test]
fn an_end_that_is_about_no_open_half_is_refused() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(0);
        for queue_id in 0..2 {
            let of = sent(&world.call(client, half(queue_id, "", &format!("m{queue_id}"))));
            let plain = sent(&world.call(client, send("t", queue_id, "PGROUP\u{1}pg\u{2}", b"plain")));
            let wrong = [
                end(Sent { table: of.table + 1, ..of }, COMMIT),
                end(Sent { table: -1, ..of }, ROLLBACK),
                end(Sent { offset: of.offset + 1, ..of }, COMMIT),
                end(Sent { offset: -1, ..of }, COMMIT),
                end(Sent { offset: i64::MAX, ..of }, COMMIT),
                end(Sent { offset: 9 << 55, ..of }, COMMIT),
                end(plain, COMMIT),
                end(of, 4),
                end(of, COMMIT).with_field("producerGroup", "other"),
            ];
            for command in wrong {
                assert_eq!(world.call(client, command.clone()).code, 1, "{command:?}");
            }
            let unknown = world.write(client, end(of, 0));
            world.settle();
            assert!(world.answers(client).iter().all(|answer| answer.opaque != unknown), "no answer to UNKNOWN");
            let max = queue_end(&mut world, client, "t", queue_id);
            assert_eq!(world.call(client, end(of, COMMIT)).code, 0, "it was open all the time");
            assert_eq!(queue_end(&mut world, client, "t", queue_id), max + 1);
        }
        world.stop();
    }
}

#[test]
fn a_half_never_waits_for_its_delay_and_its_commit_does() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(0);
        let levels: Vec<i32> = (0..i32::from(shards)).map(|shard| shard * 18 + 2).collect();
        let waiting = |world: &mut World| -> i64 {
            levels.iter().map(|queue_id| queue_end(world, client, "SCHEDULE_TOPIC_XXXX", *queue_id)).sum()
        };
        for queue_id in 0..2 {
            let of = sent(&world.call(client, half(queue_id, "DELAY\u{1}3\u{2}", "later")));
            assert_eq!(waiting(&mut world), i64::from(queue_id));
            assert_eq!(world.call(client, end(of, COMMIT)).code, 0);
            assert_eq!((waiting(&mut world), delivered(&mut world, client).len()), (i64::from(queue_id) + 1, 0));
            assert_eq!(world.call(client, end(of, COMMIT)).code, 0);
            assert_eq!(waiting(&mut world), i64::from(queue_id) + 1);
        }
        for (more, code) in [("DELAY\u{1}x\u{2}", 13), ("TIMER_DELAY_SEC\u{1}99999999\u{2}", 13)] {
            assert_eq!(
                world.call(client, half(0, more, "bad")).code,
                code,
                "refused with the half, not with its commit"
            );
        }
        world.stop();
    }
}

#[test]
fn what_cannot_grow_or_is_rejected_is_refused_at_once() {
    let mut world = World::new(1, 1, FlushMode::Async);
    let client = world.connect(0);
    let largest = (1..32_767).rev().find(|len| {
        let filler = format!("BIG\u{1}{}\u{2}", "x".repeat(*len));
        world.call(client, half(0, &filler, "big")).code == 0
    });
    let len = largest.expect("a large one fits");
    assert!((32_000..32_600).contains(&len), "{len}");
    producer(&mut world, client);
    world.advance(40_000);
    let asked = checks(&mut world, client);
    assert_eq!(asked.len(), 1, "it is counted and asked about");
    assert_eq!(world.call(client, end(asked[0].0, COMMIT)).code, 0);
    let reject =
        Command::request(RequestCode::UpdateBrokerConfig, 0).with_body(b"rejectTransactionMessage=true".to_vec());
    assert_eq!(world.call(client, reject).code, 0);
    let refused = world.call(client, half(0, "", "m"));
    assert_eq!(refused.code, 16, "{refused:?}");
    world.stop();
}

#[test]
fn producers_are_asked_about_open_halves_until_they_answer() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let (gone, other) = (world.connect(0), world.connect(cores - 1));
        producer(&mut world, gone);
        let first: Vec<Sent> =
            (0..2).map(|queue_id| sent(&world.call(gone, half(queue_id, "", &format!("m{queue_id}"))))).collect();
        world.disconnect(gone);
        world.advance(70_000);
        let ends =
            |world: &mut World| -> i64 { (0..i32::from(shards)).map(|q| queue_end(world, other, HALF, q)).sum() };
        assert_eq!(ends(&mut world), 2, "without a producer nothing is written again");
        producer(&mut world, other);
        for times in 1..=2 {
            world.advance(31_000);
            let asked = checks(&mut world, other);
            assert_eq!((asked.len(), ends(&mut world)), (2, 2 + 2 * times));
            for (at, command) in &asked {
                assert_eq!((command.flag & 2, command.ext.get("topic")), (2, Some(HALF)));
                assert_eq!(command.ext.get("msgId"), command.ext.get("transactionId"));
                let id = OffsetMessageId::parse(command.ext.get("offsetMsgId").unwrap().as_bytes()).unwrap();
                assert_eq!(id.offset.to_i64(), at.offset);
                let shown = &messages(command)[0];
                assert_eq!((shown.topic.as_str(), shown.physical_offset), ("t", at.offset));
                assert_eq!(shown.properties["TRANSACTION_CHECK_TIMES"], times.to_string());
            }
            if times == 2 {
                let by_first = first[0].offset >> 55 == asked[0].0.offset >> 55;
                assert!(shards == 2 || by_first);
                // One answers the check, the other ends under the offsets of its first send.
                let of_m1 = asked.iter().find(|(_, command)| bodies(command) == ["m1"]).unwrap().0;
                assert_eq!(world.call(other, end(of_m1, COMMIT).with_field("fromTransactionCheck", "true")).code, 0);
                assert_eq!(world.call(other, end(first[0], COMMIT)).code, 0);
                assert_eq!(world.call(other, end(first[1], COMMIT)).code, 0, "ended before");
            }
        }
        world.advance(65_000);
        assert_eq!(checks(&mut world, other).len(), 0);
        assert_eq!(delivered(&mut world, other), ["m0", "m1"]);
        world.stop();
    }
}

#[test]
fn a_half_that_is_checked_too_often_is_given_up_and_can_be_resumed() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(0);
        let settings = b"transactionCheckMax=2\ntransactionCheckInterval=3000".to_vec();
        let change = Command::request(RequestCode::UpdateBrokerConfig, 0).with_body(settings);
        assert_eq!(world.call(client, change).code, 0);
        for queue_id in 0..2 {
            sent(&world.call(client, half(queue_id, "", &format!("m{queue_id}"))));
        }
        producer(&mut world, client);
        world.advance(60_000);
        assert_eq!(checks(&mut world, client).len(), 4, "two for each");
        let lost = messages(&world.call(client, pull("reader", GIVEN_UP, 0, 0, 0)));
        assert_eq!(lost.len(), 2);
        world.stop_restart(shards, cores, |world, client| {
            producer(world, client);
            world.advance(40_000);
            assert_eq!(checks(world, client).len(), 0, "they are over");
            for message in &lost {
                let at = message::PhysicalOffset(message.physical_offset as u64);
                let ids = message::ids::OffsetIdPrefix::new("127.0.0.1:10911".parse().unwrap());
                let id = ids.id(at);
                let resume =
                    |id: &str| Command::request(RequestCode::ResumeCheckHalfMessage, 0).with_field("msgId", id);
                assert_eq!(world.call(client, resume(id.as_str())).code, 0);
                assert_eq!(world.call(client, resume("7F00000100002A9F0000000000000007")).code, 1);
            }
            world.advance(40_000);
            let asked = checks(world, client);
            assert_eq!(asked.len(), 2);
            for (at, _) in asked {
                assert_eq!(world.call(client, end(at, COMMIT)).code, 0);
            }
            assert_eq!(delivered(world, client), ["m0", "m1"]);
        });
    }
}

#[test]
fn what_is_for_a_deleted_topic_is_dropped() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(0);
        producer(&mut world, client);
        let halves: Vec<Sent> = (0..4).map(|queue_id| sent(&world.call(client, half(queue_id, "", "m")))).collect();
        let delete = Command::request(RequestCode::DeleteTopicInBroker, 0).with_field("topic", "t");
        assert_eq!(world.call(client, delete).code, 0);
        assert_eq!(world.call(client, end(halves[0], COMMIT)).code, 17);
        assert_eq!(world.call(client, end(halves[1], ROLLBACK)).code, 0);
        world.advance(61_000);
        assert_eq!(checks(&mut world, client).len(), 0);
        assert_eq!(world.call(client, send("t", 0, "", b"new")).code, 0);
        assert_eq!(world.call(client, end(halves[2], COMMIT)).code, 1, "dropped at its check");
        assert_eq!(delivered(&mut world, client), ["new"]);
        world.stop();
    }
}

#[test]
fn a_full_disk_refuses_an_end_and_keeps_its_half() {
    let mut world = World::new(1, 1, FlushMode::Async);
    let client = world.connect(0);
    let halves: Vec<Sent> = (0..2).map(|n| sent(&world.call(client, half(0, "", &format!("m{n}"))))).collect();
    world.disk.set_capacity(0);
    let filler = vec![b'x'; 200_000];
    while world.call(client, send("t", 1, "", &filler)).code == 0 {}
    let refused = (world.call(client, end(halves[0], COMMIT)).code, world.call(client, end(halves[1], ROLLBACK)).code);
    assert!(matches!(refused, (0 | 14, 0 | 14)), "{refused:?}");
    world.disk.set_capacity(64 << 30);
    world.advance(3_000);
    assert_eq!(world.call(client, end(halves[0], COMMIT)).code, 0);
    assert_eq!(world.call(client, end(halves[1], ROLLBACK)).code, 0);
    assert_eq!(bodies(&world.call(client, pull("reader", "t", 0, 0, 0))), ["m0"]);
    world.stop();
}

impl World {
    /// Stops in order, and goes on with a broker on the same disk.
    fn stop_restart(self, shards: u16, cores: u16, then: impl FnOnce(&mut World, Client)) {
        let disk = self.disk.clone();
        self.stop();
        let mut world = World::open(disk, shards, cores, FlushMode::Async);
        let client = world.connect(0);
        then(&mut world, client);
        world.stop();
    }
}

#[test]
fn open_halves_survive_a_stop_and_are_read_when_they_are_cold() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let client = world.connect(0);
        let halves: Vec<Sent> = (0..8).map(|n| sent(&world.call(client, half(n % 4, "", &format!("m{n}"))))).collect();
        assert_eq!(world.call(client, end(halves[0], COMMIT)).code, 0);
        assert_eq!(world.call(client, end(halves[5], ROLLBACK)).code, 0);
        world.stop_restart(shards, cores, |world, client| {
            world.disk.set_residency(Residency::Nothing);
            assert_eq!(world.call(client, end(halves[1], COMMIT)).code, 0);
            assert_eq!(world.call(client, end(halves[2], ROLLBACK)).code, 0);
            producer(world, client);
            world.advance(37_000);
            let asked = checks(world, client);
            let mut about: Vec<String> = asked.iter().flat_map(|(_, command)| bodies(command)).collect();
            about.sort();
            assert_eq!(about, ["m3", "m4", "m6", "m7"]);
            for (at, _) in asked {
                assert_eq!(world.call(client, end(at, COMMIT)).code, 0);
            }
            for of in &halves {
                world.call(client, end(*of, COMMIT));
            }
            assert_eq!(delivered(world, client), ["m0", "m1", "m3", "m4", "m6", "m7"]);
        });
    }
}

/// Offsets of the broker's own group, for the half and the op queue of a shard.
fn told(world: &mut World, client: Client, shard: i32) -> [Option<i64>; 2] {
    [HALF, OP].map(|topic| {
        let query = ask(RequestCode::QueryConsumerOffset, topic, shard)
            .with_field("consumerGroup", "CID_RMQ_SYS_TRANS")
            .with_field("setZeroIfNotFound", "false");
        let answer = world.call(client, query);
        (answer.code == 0).then(|| number(&answer, "offset"))
    })
}

#[test]
fn java_is_told_how_far_the_queues_are_done_and_is_believed() {
    let mut world = World::new(1, 1, FlushMode::Async);
    let disk = world.disk.clone();
    let client = world.connect(0);
    let halves: Vec<Sent> = (0..6).map(|n| sent(&world.call(client, half(0, "", &format!("m{n}"))))).collect();
    for n in [0, 1, 3, 4] {
        assert_eq!(world.call(client, end(halves[n], if n == 1 { ROLLBACK } else { COMMIT })).code, 0);
    }
    world.advance(3_000);
    assert_eq!(told(&mut world, client, 0), [Some(2), Some(3)], "half 2 is open; marks of 3 and 4 are needed");
    world.stop();
    // As if a Java broker had run: our own progress is gone, its offsets are there.
    disk.remove_file(Path::new("/data/shards/progress-0.json")).unwrap();
    let mut world = World::open(disk.clone(), 1, 1, FlushMode::Async);
    let client = world.connect(0);
    producer(&mut world, client);
    world.advance(37_000);
    let asked = checks(&mut world, client);
    let mut about: Vec<String> = asked.iter().flat_map(|(_, command)| bodies(command)).collect();
    about.sort();
    assert_eq!(about, ["m2", "m5"]);
    for (at, _) in asked {
        assert_eq!(world.call(client, end(at, COMMIT)).code, 0);
    }
    world.advance(3_000);
    let ends = [HALF, OP].map(|topic| Some(queue_end(&mut world, client, topic, 0)));
    assert_eq!((told(&mut world, client, 0), ends[0]), (ends, Some(8)));
    assert_eq!(delivered(&mut world, client), ["m0", "m2", "m3", "m4", "m5"]);
    world.stop();
}
