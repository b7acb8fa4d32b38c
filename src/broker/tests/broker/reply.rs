//! Requests and replies: 324, 325 and the push to the client that asked (326).

use super::retry::messages;
use super::world::{Client, World, pull};
use super::{LAYOUTS, number};
use remoting::{Command, RequestCode, ResponseCode};
use store::FlushMode;

const TOPIC: &str = "DefaultCluster_REPLY_TOPIC";

fn producer(world: &mut World, client: Client, id: &str, groups: &[&str]) {
    let groups: Vec<String> = groups.iter().map(|group| format!(r#"{{"groupName":"{group}"}}"#)).collect();
    let body = format!(
        r#"{{"clientID":"{id}","consumerDataSet":[],"producerDataSet":[{}],"heartbeatFingerprint":0,"withoutSub":false}}"#,
        groups.join(",")
    );
    assert_eq!(world.call(client, Command::request(RequestCode::HeartBeat, 0).with_body(body.into_bytes())).code, 0);
}

fn reply(to: &str, body: &[u8]) -> Command {
    Command::request(RequestCode::SendReplyMessageV2, 0)
        .with_field("a", "repliers")
        .with_field("b", TOPIC)
        .with_field("c", "TBW102")
        .with_field("d", 4)
        .with_field("e", 0)
        .with_field("f", 0)
        .with_field("g", 17)
        .with_field("h", 0)
        .with_field("i", format!("CORRELATION_ID\u{1}id\u{2}REPLY_TO_CLIENT\u{1}{to}\u{2}MSG_TYPE\u{1}reply\u{2}"))
        .with_body(body.to_vec())
}

/// The one request that the broker has sent to a client.
fn pushed(world: &mut World, client: Client) -> Command {
    let mut all = world.answers(client);
    assert_eq!(all.len(), 1, "{all:?}");
    all.pop().unwrap()
}

fn stored(world: &mut World, client: Client) -> Vec<String> {
    messages(&world.call(client, pull("reader", TOPIC, 0, 0, 0))).into_iter().map(|found| found.body).collect()
}

#[test]
fn a_reply_reaches_who_asked_and_nobody_else() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let (asker, other, replier) = (world.connect(cores - 1), world.connect(0), world.connect(0));
        producer(&mut world, asker, "asker", &["p", "q"]);
        producer(&mut world, other, "other", &["p"]);
        for (n, accepted) in [true, false, true].into_iter().enumerate() {
            let body = format!("answer {n}");
            let opaque = world.write(replier, reply("asker", body.as_bytes()));
            world.settle();
            assert!(world.answers(replier).is_empty(), "the answer waits for the client");
            let push = pushed(&mut world, asker);
            assert_eq!((push.code, push.body.as_slice(), push.is_oneway()), (326, body.as_bytes(), false));
            assert_eq!((push.ext.get("topic"), push.ext.get("storeHost")), (Some(TOPIC), Some("127.0.0.1:10911")));
            let code = if accepted { ResponseCode::Success } else { ResponseCode::SystemError };
            world.write_bytes(asker, Command::response(code, push.opaque, push.serialize_type).to_frame());
            world.settle();
            let answer = pushed(&mut world, replier);
            assert_eq!((answer.opaque, answer.code), (opaque, if accepted { 0 } else { 1 }), "{answer:?}");
            if accepted {
                assert_eq!((number(&answer, "queueOffset"), number(&answer, "queueId")), (n as i64, 0));
                assert_eq!(answer.ext.get("msgId").map(str::len), Some(32));
            } else {
                assert_eq!(answer.remark.as_deref(), Some("push reply message to askerfail."));
            }
        }
        assert!(world.answers(other).is_empty());
        assert_eq!(
            stored(&mut world, other),
            ["answer 0", "answer 1", "answer 2"],
            "stored whether it was taken or not"
        );
        world.stop();
    }
}

#[test]
fn a_client_that_is_gone_or_silent_is_told_to_the_replier() {
    for (shards, cores) in LAYOUTS {
        let mut world = World::new(shards, cores, FlushMode::Async);
        let (asker, replier) = (world.connect(0), world.connect(cores - 1));
        let not_found = "push reply message fail, channel of <asker> not found.";
        let refused = |world: &mut World, why: &str| {
            let answer = pushed(world, replier);
            assert_eq!((answer.code, answer.remark.as_deref()), (1, Some(why)));
        };
        world.write(replier, reply("asker", b"nobody"));
        world.settle();
        refused(&mut world, not_found);
        world.write(replier, reply("asker", b"no name").with_field("i", "a\u{1}b\u{2}"));
        world.settle();
        refused(&mut world, "reply message properties[REPLY_TO_CLIENT] is null");
        producer(&mut world, asker, "asker", &["p"]);
        world.write(replier, reply("asker", b"silent"));
        world.settle();
        assert_eq!(pushed(&mut world, asker).code, 326);
        world.advance(9_000);
        assert!(world.answers(replier).is_empty());
        world.advance(1_500);
        refused(&mut world, "push reply message to askerfail.");
        world.write(replier, reply("asker", b"closes"));
        world.settle();
        world.disconnect(asker);
        refused(&mut world, "push reply message to askerfail.");
        world.write(replier, reply("asker", b"gone"));
        world.settle();
        refused(&mut world, not_found);
        assert_eq!(stored(&mut world, replier), ["nobody", "no name", "silent", "closes", "gone"]);
        // A oneway reply is passed on and not answered.
        let again = world.connect(0);
        producer(&mut world, again, "asker", &["p"]);
        world.write(replier, reply("asker", b"oneway").oneway());
        world.settle();
        let push = pushed(&mut world, again);
        world.write_bytes(again, Command::response(ResponseCode::Success, push.opaque, push.serialize_type).to_frame());
        world.settle();
        assert!(world.answers(replier).is_empty());
        world.stop();
    }
}

#[test]
fn a_reply_that_may_not_be_sent_is_refused_like_a_send() {
    let mut world = World::new(2, 2, FlushMode::Async);
    let client = world.connect(1);
    for (command, code) in [
        (reply("x", b""), 13),
        (reply("x", b"b").with_field("e", 1), 29),
        (reply("x", b"b").with_field("b", "bad topic"), 29),
        (reply("x", b"b").with_field("b", "SCHEDULE_TOPIC_XXXX"), 16),
        (reply("x", b"b").with_field("b", "other").with_field("c", "absent"), 17),
        (reply("x", b"b").with_field("e", "x"), 1),
        (reply("x", b"b").with_field("b", "made-by-reply"), 1),
    ] {
        assert_eq!(world.call(client, command.clone()).code, code, "{command:?}");
    }
    assert_eq!(
        world.call(client, Command::request(RequestCode::GetTopicConfig, 0).with_field("topic", "made-by-reply")).code,
        0
    );
    world.stop();
}
