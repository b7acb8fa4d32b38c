//! The hot path's writing of answers: whole frames appended to a buffer, without allocation.
//!
//! Role: send, pull and error answers in the form of their request, byte for byte as the 5.4.0 reference writes them in
//! JSON. The body of a pull may come from elsewhere (gathered slices): `body_len` says how long it is. Everything else is
//! written through [`crate::Command`].

use crate::codes::{ResponseCode, version};
use crate::command::FLAG_RESPONSE;
use crate::cursor::{write_escaped, write_text};
use crate::frame::{self, SerializeType};
use message::ids::OffsetIdPrefix;
use message::{PhysicalOffset, QueueOffset};

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

/// More than the answer to a single message mostly has; a longer one makes the buffer grow a second time.
const SEND_REPLY_BYTES: usize = 512;

/// Appends the answer to a stored message.
pub fn send(out: &mut Vec<u8>, form: SerializeType, opaque: i32, reply: &SendReply<'_>) {
    out.reserve(SEND_REPLY_BYTES);
    let mut frame = Writer::begin(out, form, reply.code.to_i32(), opaque, "");
    frame.number(name!("queueId"), reply.queue_id.into());
    if let Some(id) = reply.transaction_id {
        frame.text(name!("transactionId"), id);
    }
    frame.ids(name!("msgId"), reply.id_prefix, reply.offsets);
    frame.plain(name!("TRACE_ON"), if reply.trace_on { b"true" } else { b"false" });
    frame.text(name!("MSG_REGION"), reply.region);
    if let Some(handle) = reply.recall_handle {
        frame.text(name!("recallHandle"), handle);
    }
    frame.number(name!("queueOffset"), reply.queue_offset.to_i64());
    frame.finish(opaque, None, 0);
}

/// Appends the header of a pull's answer. Exactly `body_len` bytes of records must follow it on the connection.
pub fn pull(out: &mut Vec<u8>, form: SerializeType, opaque: i32, reply: &PullReply<'_>, body_len: usize) {
    let mut frame = Writer::begin(out, form, reply.code.to_i32(), opaque, reply.remark);
    frame.number(name!("suggestWhichBrokerId"), reply.suggest_which_broker_id);
    frame.number(name!("groupSysFlag"), reply.group_sys_flag.into());
    frame.number(name!("nextBeginOffset"), reply.next_begin_offset);
    frame.number(name!("maxOffset"), reply.max_offset);
    frame.number(name!("minOffset"), reply.min_offset);
    frame.number(name!("topicSysFlag"), reply.topic_sys_flag.into());
    frame.finish(opaque, Some(reply.remark), body_len);
}

/// Appends the header of a POP's answer. Exactly `body_len` bytes of records must follow it on the connection.
pub fn pop(out: &mut Vec<u8>, form: SerializeType, opaque: i32, reply: &PopReply<'_>, body_len: usize) {
    let mut frame = Writer::begin(out, form, reply.code.to_i32(), opaque, reply.remark);
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
    frame.finish(opaque, Some(reply.remark), body_len);
}

/// Appends an answer without fields and body: an error, or a bare success (then `remark` is mostly empty, and left out).
pub fn error(out: &mut Vec<u8>, form: SerializeType, opaque: i32, code: ResponseCode, remark: &str) {
    let frame = Writer::begin_without_fields(out, form, code.to_i32(), opaque, remark);
    frame.finish(opaque, (!remark.is_empty()).then_some(remark), 0);
}

/// The name of a field in both forms.
struct Name {
    plain: &'static str,
    /// The end of the value before, the name, the start of the value.
    json: &'static str,
}

macro_rules! name {
    ($name:literal) => {
        &Name { plain: $name, json: concat!("\",\"", $name, "\":\"") }
    };
}
use name;

/// Writes one frame, field by field.
struct Writer<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    form: SerializeType,
    fields: Block,
}

/// State of the block of fields.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    /// There is none.
    None,
    /// JSON: none written yet.
    First,
    /// JSON: some written.
    Open,
    /// Compact: where its length stands.
    LengthAt(usize),
}

impl<'a> Writer<'a> {
    fn begin(out: &'a mut Vec<u8>, form: SerializeType, code: i32, opaque: i32, remark: &str) -> Self {
        let mut writer = Self::begin_without_fields(out, form, code, opaque, remark);
        match form {
            SerializeType::Json => {
                writer.out.extend_from_slice(b",\"extFields\":{");
                writer.fields = Block::First;
            }
            SerializeType::Compact => writer.fields = Block::LengthAt(writer.out.len() - 4),
        }
        writer
    }

    fn begin_without_fields(out: &'a mut Vec<u8>, form: SerializeType, code: i32, opaque: i32, remark: &str) -> Self {
        let start = frame::begin(out);
        match form {
            SerializeType::Json => {
                out.extend_from_slice(b"{\"code\":");
                put_number(out, code.into());
            }
            SerializeType::Compact => {
                out.extend_from_slice(&(code as i16).to_be_bytes());
                out.push(0); // JAVA, as in JSON
                out.extend_from_slice(&(version::CURRENT as i16).to_be_bytes());
                out.extend_from_slice(&opaque.to_be_bytes());
                out.extend_from_slice(&FLAG_RESPONSE.to_be_bytes());
                out.extend_from_slice(&(remark.len() as u32).to_be_bytes());
                out.extend_from_slice(remark.as_bytes());
                out.extend_from_slice(&[0; 4]);
            }
        }
        Self { out, start, form, fields: Block::None }
    }

    /// What stands before a value; gives where a compact value's length stands.
    #[inline(always)]
    fn name(&mut self, name: &Name) -> usize {
        match self.form {
            SerializeType::Json => {
                // The piece begins with the end of the value before it, which the first field has not.
                let piece = if self.fields == Block::First { &name.json[2..] } else { name.json };
                self.fields = Block::Open;
                self.out.extend_from_slice(piece.as_bytes());
                0
            }
            SerializeType::Compact => {
                self.out.extend_from_slice(&(name.plain.len() as u16).to_be_bytes());
                self.out.extend_from_slice(name.plain.as_bytes());
                self.out.extend_from_slice(&[0; 4]);
                self.out.len() - 4
            }
        }
    }

    #[inline]
    fn value_ends(&mut self, length_at: usize) {
        if self.form == SerializeType::Compact {
            let length = (self.out.len() - length_at - 4) as u32;
            self.out[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
        }
    }

    /// A value that needs no escapes.
    #[inline(always)]
    fn plain(&mut self, name: &Name, value: &[u8]) {
        let length_at = self.name(name);
        self.out.extend_from_slice(value);
        self.value_ends(length_at);
    }

    #[inline(always)]
    fn number(&mut self, name: &Name, value: i64) {
        self.plain(name, itoa::Buffer::new().format(value).as_bytes());
    }

    #[inline(always)]
    fn text(&mut self, name: &Name, value: &[u8]) {
        let length_at = self.name(name);
        match self.form {
            SerializeType::Json => write_escaped(self.out, value),
            SerializeType::Compact => self.out.extend_from_slice(value),
        }
        self.value_ends(length_at);
    }

    /// Offset message ids, separated by commas.
    fn ids(&mut self, name: &Name, prefix: &OffsetIdPrefix, offsets: &[PhysicalOffset]) {
        let length_at = self.name(name);
        for (at, offset) in offsets.iter().enumerate() {
            if at > 0 {
                self.out.push(b',');
            }
            prefix.write(*offset, self.out);
        }
        self.value_ends(length_at);
    }

    fn finish(self, opaque: i32, remark: Option<&str>, body_len: usize) {
        let out = self.out;
        match self.fields {
            Block::First => out.push(b'}'),
            Block::Open => out.extend_from_slice(b"\"}"),
            Block::LengthAt(at) => {
                let length = (out.len() - at - 4) as u32;
                out[at..at + 4].copy_from_slice(&length.to_be_bytes());
            }
            Block::None => {}
        }
        if self.form == SerializeType::Json {
            out.extend_from_slice(b",\"flag\":1,\"language\":\"JAVA\",\"opaque\":");
            put_number(out, opaque.into());
            if let Some(remark) = remark {
                out.extend_from_slice(b",\"remark\":");
                write_text(out, remark.as_bytes());
            }
            out.extend_from_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":493}");
        }
        frame::finish(out, self.start, self.form, body_len);
    }
}

const _: () = assert!(version::CURRENT == 493 && FLAG_RESPONSE == 1, "written out above");

fn put_number(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Command;

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
