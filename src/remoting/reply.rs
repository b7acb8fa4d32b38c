//! The hot path's writing of answers: whole frames appended to a buffer, without allocation.
//!
//! Role: send, pull and error answers in the form of their request, byte for byte as the 5.4.0 reference writes them in
//! JSON. The body of a pull may come from elsewhere (gathered slices): `body_len` says how long it is. Everything else is
//! written through [`crate::Command`].

use crate::codes::ResponseCode;
use crate::frame::SerializeType;
use message::ids::OffsetIdPrefix;
use message::{PhysicalOffset, QueueOffset};
use writer::{Start, name};

mod writer;

/// The answer to a stored message or batch.
#[derive(Clone, Copy, Debug)]
pub struct SendReply<'a> {
    /// SUCCESS, FLUSH_DISK_TIMEOUT or another of the codes that mean "stored".
    pub code: ResponseCode,
    /// Prefix of the broker's offset message ids.
    pub id_prefix: &'a OffsetIdPrefix,
    /// Where the records lie: one, or all of a batch in their order.
    pub offsets: &'a [PhysicalOffset],
    /// Queue that took it.
    pub queue_id: i32,
    /// Offset of the first message.
    pub queue_offset: QueueOffset,
    /// Unique id of a single message; `None` for a batch.
    pub transaction_id: Option<&'a [u8]>,
    /// `regionId` of the broker.
    pub region: &'a [u8],
    /// `traceOn` of the broker.
    pub trace_on: bool,
    /// What a timed message can be recalled by.
    pub recall_handle: Option<&'a [u8]>,
}

/// The answer to a pull that reached the store.
#[derive(Clone, Copy, Debug)]
pub struct PullReply<'a> {
    /// SUCCESS, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY or PULL_OFFSET_MOVED.
    pub code: ResponseCode,
    /// The store's status by Java's name, such as `FOUND`.
    pub remark: &'a str,
    /// Broker to pull from next.
    pub suggest_which_broker_id: i64,
    /// Offset to pull at next.
    pub next_begin_offset: i64,
    /// Smallest offset of the queue.
    pub min_offset: i64,
    /// Largest offset of the queue.
    pub max_offset: i64,
    /// System flag of the topic.
    pub topic_sys_flag: i32,
    /// System flag of the group.
    pub group_sys_flag: i32,
}

/// The answer to a POP.
#[derive(Clone, Copy, Debug)]
pub struct PopReply<'a> {
    /// SUCCESS, POLLING_TIMEOUT, POLLING_FULL or PULL_NOT_FOUND.
    pub code: ResponseCode,
    /// The store's status by Java's name.
    pub remark: &'a str,
    /// When it was popped, ms since 1970.
    pub pop_time_ms: i64,
    /// How long the messages are invisible, ms.
    pub invisible_ms: i64,
    /// Revive queue of their check points.
    pub revive_queue: i32,
    /// Messages that are left.
    pub rest: i64,
    /// First offset of each queue.
    pub starts: Option<&'a str>,
    /// Offsets of the messages of each queue.
    pub offsets: Option<&'a str>,
    /// How often the messages of ordered queues were given out before.
    pub counts: Option<&'a str>,
}

/// What the header of an answer to a send takes in JSON but for its texts and ids, and a little more.
const SEND_ROOM: usize = 272;
/// What one offset message id takes.
const ID_ROOM: usize = message::ids::MAX_ID_LENGTH + 1;
/// What the header of an answer to a pull or POP takes but for its texts, and mostly more; also an error's.
const ROOM: usize = 320;

/// Appends the answer to a stored message.
pub fn send(out: &mut Vec<u8>, form: SerializeType, opaque: i32, reply: &SendReply<'_>) {
    match form {
        SerializeType::Json => send_as::<true>(out, opaque, reply),
        SerializeType::Compact => send_as::<false>(out, opaque, reply),
    }
}

fn send_as<const JSON: bool>(out: &mut Vec<u8>, opaque: i32, reply: &SendReply<'_>) {
    let start = Start { code: reply.code.to_i32(), opaque, remark: None, has_fields: true };
    let texts = [reply.transaction_id, Some(reply.region), reply.recall_handle];
    let texts_len: usize = texts.into_iter().flatten().map(<[u8]>::len).sum();
    let room = SEND_ROOM + texts_len + reply.offsets.len() * ID_ROOM;
    writer::frame::<JSON>(out, &start, room, 0, |frame| {
        frame.number(name!("queueId"), reply.queue_id.into());
        if let Some(id) = reply.transaction_id {
            frame.text(name!("transactionId"), id);
        }
        frame.ids(name!("msgId"), reply.id_prefix, reply.offsets);
        if reply.trace_on {
            frame.plain(name!("TRACE_ON"), b"true");
        } else {
            frame.plain(name!("TRACE_ON"), b"false");
        }
        frame.text(name!("MSG_REGION"), reply.region);
        if let Some(handle) = reply.recall_handle {
            frame.text(name!("recallHandle"), handle);
        }
        frame.number(name!("queueOffset"), reply.queue_offset.to_i64());
    });
}

/// Appends the header of a pull's answer. Exactly `body_len` bytes of records must follow it on the connection.
pub fn pull(out: &mut Vec<u8>, form: SerializeType, opaque: i32, reply: &PullReply<'_>, body_len: usize) {
    match form {
        SerializeType::Json => pull_as::<true>(out, opaque, reply, body_len),
        SerializeType::Compact => pull_as::<false>(out, opaque, reply, body_len),
    }
}

fn pull_as<const JSON: bool>(out: &mut Vec<u8>, opaque: i32, reply: &PullReply<'_>, body_len: usize) {
    let start = Start { code: reply.code.to_i32(), opaque, remark: Some(reply.remark), has_fields: true };
    writer::frame::<JSON>(out, &start, ROOM, body_len, |frame| {
        frame.number(name!("suggestWhichBrokerId"), reply.suggest_which_broker_id);
        frame.number(name!("groupSysFlag"), reply.group_sys_flag.into());
        frame.number(name!("nextBeginOffset"), reply.next_begin_offset);
        frame.number(name!("maxOffset"), reply.max_offset);
        frame.number(name!("minOffset"), reply.min_offset);
        frame.number(name!("topicSysFlag"), reply.topic_sys_flag.into());
    });
}

/// Appends the header of a POP's answer. Exactly `body_len` bytes of records must follow it on the connection.
pub fn pop(out: &mut Vec<u8>, form: SerializeType, opaque: i32, reply: &PopReply<'_>, body_len: usize) {
    match form {
        SerializeType::Json => pop_as::<true>(out, opaque, reply, body_len),
        SerializeType::Compact => pop_as::<false>(out, opaque, reply, body_len),
    }
}

fn pop_as<const JSON: bool>(out: &mut Vec<u8>, opaque: i32, reply: &PopReply<'_>, body_len: usize) {
    let start = Start { code: reply.code.to_i32(), opaque, remark: Some(reply.remark), has_fields: true };
    let texts = [reply.starts, reply.offsets, reply.counts];
    let room = ROOM + texts.into_iter().flatten().map(str::len).sum::<usize>();
    writer::frame::<JSON>(out, &start, room, body_len, |frame| {
        frame.number(name!("popTime"), reply.pop_time_ms);
        frame.number(name!("invisibleTime"), reply.invisible_ms);
        frame.number(name!("reviveQid"), reply.revive_queue.into());
        frame.number(name!("restNum"), reply.rest);
        // Digits and separators: nothing to escape.
        if let Some(starts) = reply.starts {
            frame.plain(name!("startOffsetInfo"), starts.as_bytes());
        }
        if let Some(offsets) = reply.offsets {
            frame.plain(name!("msgOffsetInfo"), offsets.as_bytes());
        }
        if let Some(counts) = reply.counts {
            frame.plain(name!("orderCountInfo"), counts.as_bytes());
        }
    });
}

/// Appends an answer without fields and body: an error, or a bare success (then `remark` is mostly empty, and left out).
pub fn error(out: &mut Vec<u8>, form: SerializeType, opaque: i32, code: ResponseCode, remark: &str) {
    let remark = (!remark.is_empty()).then_some(remark);
    let start = Start { code: code.to_i32(), opaque, remark, has_fields: false };
    match form {
        SerializeType::Json => writer::frame::<true>(out, &start, ROOM, 0, |_| {}),
        SerializeType::Compact => writer::frame::<false>(out, &start, ROOM, 0, |_| {}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, frame};
    use proptest::prelude::*;

    fn header(frame: &[u8]) -> &str {
        std::str::from_utf8(&frame[8..8 + u32::from_be_bytes([0, frame[5], frame[6], frame[7]]) as usize]).unwrap()
    }

    fn prefix() -> OffsetIdPrefix {
        OffsetIdPrefix::new("127.0.0.1:21011".parse().unwrap())
    }

    fn send_reply<'a>(prefix: &'a OffsetIdPrefix, offsets: &'a [PhysicalOffset]) -> SendReply<'a> {
        SendReply {
            code: ResponseCode::Success,
            id_prefix: prefix,
            offsets,
            queue_id: 0,
            queue_offset: QueueOffset(1),
            transaction_id: (offsets.len() == 1).then_some(b"7F00000100002A139A16000000000001"),
            region: b"DefaultRegion",
            trace_on: true,
            recall_handle: None,
        }
    }

    #[test]
    fn sends_as_the_reference_answers_them() {
        let (prefix, mut out) = (prefix(), Vec::new());
        send(&mut out, SerializeType::Json, 724_009, &send_reply(&prefix, &[PhysicalOffset(0x10A)]));
        assert_eq!(
            header(&out),
            r#"{"code":0,"extFields":{"queueId":"0","transactionId":"7F00000100002A139A16000000000001","msgId":"7F00000100005213000000000000010A","TRACE_ON":"true","MSG_REGION":"DefaultRegion","queueOffset":"1"},"flag":1,"language":"JAVA","opaque":724009,"serializeTypeCurrentRPC":"JSON","version":493}"#
        );
        out.clear();
        send(&mut out, SerializeType::Json, 1, &send_reply(&prefix, &[PhysicalOffset(0x2D8), PhysicalOffset(0x347)]));
        out.clear();
        let timed = SendReply { recall_handle: Some(b"djEgdA=="), ..send_reply(&prefix, &[PhysicalOffset(1)]) };
        send(&mut out, SerializeType::Json, 1, &timed);
        let end = r#""MSG_REGION":"DefaultRegion","recallHandle":"djEgdA==","queueOffset":"1"}"#;
        assert!(header(&out).contains(end), "{}", header(&out));
        out.clear();
        send(&mut out, SerializeType::Json, 1, &send_reply(&prefix, &[PhysicalOffset(0x2D8), PhysicalOffset(0x347)]));
        assert!(header(&out).contains(
            r#"{"queueId":"0","msgId":"7F0000010000521300000000000002D8,7F000001000052130000000000000347","TRACE_ON""#
        ));
    }

    #[test]
    fn pulls_and_errors_as_the_reference_answers_them() {
        let reply = PullReply {
            code: ResponseCode::PullNotFound,
            remark: "OFFSET_OVERFLOW_ONE",
            suggest_which_broker_id: 0,
            next_begin_offset: 3,
            min_offset: 0,
            max_offset: 3,
            topic_sys_flag: 0,
            group_sys_flag: 0,
        };
        let mut out = Vec::new();
        pull(&mut out, SerializeType::Json, 724_015, &reply, 1000);
        assert_eq!(
            header(&out),
            r#"{"code":19,"extFields":{"suggestWhichBrokerId":"0","groupSysFlag":"0","nextBeginOffset":"3","maxOffset":"3","minOffset":"0","topicSysFlag":"0"},"flag":1,"language":"JAVA","opaque":724015,"remark":"OFFSET_OVERFLOW_ONE","serializeTypeCurrentRPC":"JSON","version":493}"#
        );
        assert_eq!(u32::from_be_bytes(out[..4].try_into().unwrap()) as usize, out.len() - 4 + 1000);
        out.clear();
        error(&mut out, SerializeType::Json, 5, ResponseCode::SystemError, "no \"x\"");
        assert_eq!(
            header(&out),
            r#"{"code":1,"flag":1,"language":"JAVA","opaque":5,"remark":"no \"x\"","serializeTypeCurrentRPC":"JSON","version":493}"#
        );
    }

    #[test]
    fn both_forms_say_the_same() {
        let prefix = prefix();
        let offsets = [PhysicalOffset(7), PhysicalOffset(u64::MAX)];
        for count in [1, 2] {
            let reply = SendReply {
                recall_handle: (count == 1).then_some(b"djE="),
                transaction_id: Some("odd\u{1}\"主".as_bytes()),
                ..send_reply(&prefix, &offsets[..count])
            };
            let decoded = [SerializeType::Json, SerializeType::Compact].map(|form| {
                let mut out = b"before".to_vec();
                send(&mut out, form, -3, &reply);
                pull_and_error(&mut out, form)
            });
            assert_eq!(decoded[0], decoded[1]);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// The general encoder, which the golden frames are checked against, writes the same bytes.
        #[test]
        fn the_bytes_are_those_of_the_general_encoder(
            (form, code, opaque) in (prop::sample::select(&FORMS[..]), prop::sample::select(&CODES[..]), number()),
            offsets in prop::collection::vec(any::<u64>(), 1..4),
            (queue_id, queue_offset, trace_on) in (number(), number(), any::<bool>()),
            (id, region, handle) in (text(), text(), text()),
            (host, remark) in (prop::sample::select(&["127.0.0.1:10911", "[2001:db8::7]:1"][..]), text()),
            numbers in prop::collection::vec(number(), 4),
        ) {
            let (prefix, offsets) = (OffsetIdPrefix::new(host.parse().unwrap()), offsets.into_iter().map(PhysicalOffset));
            let offsets: Vec<_> = offsets.collect();
            let ids: Vec<_> = offsets.iter().map(|offset| prefix.id(*offset).to_string()).collect();
            let (id, handle) = (Some(id).filter(|id| !id.is_empty()), Some(handle).filter(|handle| !handle.is_empty()));
            let reply = SendReply {
                code,
                id_prefix: &prefix,
                offsets: &offsets,
                queue_id: queue_id as i32,
                queue_offset: QueueOffset(queue_offset as u64),
                transaction_id: id.as_ref().map(String::as_bytes),
                region: region.as_bytes(),
                trace_on,
                recall_handle: handle.as_ref().map(String::as_bytes),
            };
            let mut out = b"before".to_vec();
            send(&mut out, form, opaque as i32, &reply);
            let sent = Command::response(code, opaque as i32, form)
                .with_field("queueId", queue_id as i32)
                .with_optional("transactionId", id)
                .with_field("msgId", ids.join(","))
                .with_field("TRACE_ON", trace_on)
                .with_field("MSG_REGION", region)
                .with_optional("recallHandle", handle)
                .with_field("queueOffset", QueueOffset(queue_offset as u64).to_i64());
            let mut expected = b"before".to_vec();
            sent.encode(&mut expected);
            prop_assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(&expected));

            let reply = PullReply {
                code,
                remark: &remark,
                suggest_which_broker_id: numbers[0],
                next_begin_offset: numbers[1],
                min_offset: numbers[2],
                max_offset: numbers[3],
                topic_sys_flag: queue_id as i32,
                group_sys_flag: opaque as i32,
            };
            pull(&mut out, form, opaque as i32, &reply, 0);
            let pulled = Command::response(code, opaque as i32, form)
                .with_remark(remark.as_str())
                .with_field("suggestWhichBrokerId", numbers[0])
                .with_field("groupSysFlag", opaque as i32)
                .with_field("nextBeginOffset", numbers[1])
                .with_field("maxOffset", numbers[3])
                .with_field("minOffset", numbers[2])
                .with_field("topicSysFlag", queue_id as i32);
            pulled.encode(&mut expected);
            prop_assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(&expected));
        }
    }

    const FORMS: [SerializeType; 2] = [SerializeType::Json, SerializeType::Compact];
    const CODES: [ResponseCode; 3] =
        [ResponseCode::Success, ResponseCode::FlushDiskTimeout, ResponseCode::MessageIllegal];

    /// A number of any length.
    fn number() -> impl Strategy<Value = i64> {
        (any::<i64>(), 0u32..64).prop_map(|(value, shift)| value >> shift)
    }

    /// A text of any length up to 70, mostly without escapes.
    fn text() -> impl Strategy<Value = String> {
        ("[ -!#-~主]{0,70}", any::<String>(), 0..3).prop_map(|(plain, odd, kind)| if kind > 0 { plain } else { odd })
    }

    /// Adds a pull and an error to what is there, and decodes all three, without their form.
    fn pull_and_error(out: &mut Vec<u8>, form: SerializeType) -> Vec<Command> {
        let reply = PullReply {
            code: ResponseCode::Success,
            remark: "FOUND",
            suggest_which_broker_id: 1,
            next_begin_offset: i64::MAX,
            min_offset: -1,
            max_offset: 5,
            topic_sys_flag: 1,
            group_sys_flag: 2,
        };
        pull(out, form, 9, &reply, 4);
        out.extend_from_slice(b"body");
        error(out, form, 10, ResponseCode::MessageIllegal, "remark");
        let (mut rest, mut commands) = (&out[6..], Vec::new());
        while let Some(len) = frame::frame_len(rest).unwrap() {
            let mut command = Command::decode(&rest[..len]).unwrap();
            assert_eq!(command.serialize_type, form);
            command.serialize_type = SerializeType::Json;
            if command.ext.is_empty() {
                command.ext = Default::default();
            }
            commands.push(command);
            rest = &rest[len..];
        }
        assert_eq!(commands.len(), 3);
        assert_eq!(commands[1].body, b"body");
        commands
    }
}
