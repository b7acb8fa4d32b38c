//! SEND_REPLY_MESSAGE (324, and 325 with the short names): a reply on its way to the client that asked (326).
//!
//! Role: the header of a reply in both forms, the request that carries it to the client, and the record that keeps it. Whether
//! its topic may be sent to is `processor::send`'s to say. It knows no connection.

use super::send::SendHeader;
use crate::owner::Refusal;
use message::properties::{PropertiesSource, PropertyList, find, name};
use message::record::RecordFields;
use message::sys_flag;
use remoting::{Command, ExtFields, RequestCode};
use std::net::SocketAddr;

/// When the broker passed a reply on, in ms since 1970.
const PUSH_REPLY_TIME: &[u8] = b"PUSH_REPLY_TIME";
/// The fields of a send's header: the long name, the short one, and whether the client is told too.
const NAMES: [(&str, &str, bool); 12] = [
    ("producerGroup", "a", true),
    ("topic", "b", true),
    ("defaultTopic", "c", true),
    ("defaultTopicQueueNums", "d", true),
    ("queueId", "e", true),
    ("sysFlag", "f", true),
    ("bornTimestamp", "g", true),
    ("flag", "h", true),
    ("properties", "i", false),
    ("reconsumeTimes", "j", true),
    ("unitMode", "k", false),
    ("batch", "m", false),
];

/// A reply.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The fields that came, by their long names.
    fields: ExtFields,
    /// The body.
    pub body: Vec<u8>,
    /// Its queue; negative: the broker chooses.
    pub queue_id: i32,
    sys_flag: i32,
    born_timestamp_ms: i64,
    flag: i32,
    default_topic_queues: i32,
    reconsume_times: i32,
    /// The properties text as the reference stores it: with the broker's region and whether clients trace.
    properties: Vec<u8>,
}

impl Reply {
    /// Reads a request.
    ///
    /// # Errors
    /// There is no topic or queue, or a field is no number.
    pub fn parse(command: Command, region: &str, trace_on: bool) -> Result<Self, Refusal> {
        let short = command.code == RequestCode::SendReplyMessageV2.to_i32();
        let came = NAMES.iter().filter_map(|&(long, short_name, _)| {
            Some((long, command.ext.get(if short { short_name } else { long })?.to_owned()))
        });
        let fields: ExtFields = came.collect();
        fields.text("topic")?;
        let trace: &[u8] = if trace_on { b"true" } else { b"false" };
        let sent = fields.get("properties").unwrap_or_default().as_bytes();
        let properties = with(sent, &[(name::MSG_REGION, region.as_bytes()), (name::TRACE_ON, trace)]);
        Ok(Self {
            queue_id: fields.i32("queueId")?,
            sys_flag: fields.optional_i32("sysFlag")?.unwrap_or(0),
            born_timestamp_ms: fields.optional_i64("bornTimestamp")?.unwrap_or(0),
            flag: fields.optional_i32("flag")?.unwrap_or(0),
            default_topic_queues: fields.optional_i32("defaultTopicQueueNums")?.unwrap_or(4),
            reconsume_times: fields.optional_i32("reconsumeTimes")?.unwrap_or(0),
            properties,
            body: command.body,
            fields,
        })
    }

    /// The topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        self.fields.get("topic").unwrap_or_default()
    }

    /// Its header as that of a send.
    #[must_use]
    pub fn as_send(&self) -> SendHeader<'_> {
        SendHeader {
            topic: self.topic().as_bytes(),
            default_topic: self.fields.get("defaultTopic").unwrap_or_default().as_bytes(),
            default_topic_queues: self.default_topic_queues,
            queue_id: self.queue_id,
            unit_mode: self.fields.boolean("unitMode").unwrap_or(false),
            ..SendHeader::default()
        }
    }

    /// The client that waits for it.
    #[must_use]
    pub fn requester(&self) -> Option<String> {
        find(&self.properties, name::REPLY_TO_CLIENT).map(|id| String::from_utf8_lossy(id).into_owned())
    }

    /// Bytes that it keeps in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.body.len() + self.properties.len()
    }

    /// The request that carries it to the client. `peer` is who replied, `store_host` the broker.
    #[must_use]
    pub fn push(&self, peer: SocketAddr, store_host: SocketAddr, now_ms: i64) -> Command {
        let properties = with(&self.properties, &[(PUSH_REPLY_TIME, now_ms.to_string().as_bytes())]);
        let mut push = Command::request(RequestCode::PushReplyMessageToClient, 0)
            .with_field("bornHost", peer)
            .with_field("storeHost", store_host)
            .with_field("storeTimestamp", now_ms)
            .with_field("unitMode", self.fields.boolean("unitMode").unwrap_or(false))
            .with_field("properties", String::from_utf8_lossy(&properties))
            .with_body(self.body.clone());
        for (long, _, _) in NAMES.iter().filter(|(_, _, told)| *told) {
            if let Some(value) = self.fields.get(long) {
                push.ext.set(*long, value);
            }
        }
        push
    }

    /// The record that keeps it in this queue. (The reference forgets that the body is compressed; such a record could not be
    /// read.)
    #[must_use]
    pub fn record(&self, queue_id: u32, peer: SocketAddr, store_host: SocketAddr) -> RecordFields<'_> {
        RecordFields {
            queue_id: queue_id as i32,
            flag: self.flag,
            sys_flag: self.sys_flag & (sys_flag::COMPRESSED | sys_flag::COMPRESSION_TYPE_MASK),
            born_timestamp_ms: self.born_timestamp_ms,
            born_host: peer,
            store_host,
            reconsume_times: self.reconsume_times,
            prepared_transaction_offset: 0,
            topic: self.topic().as_bytes(),
            body: &self.body,
            properties: PropertiesSource::Text(&self.properties),
        }
    }
}

/// A properties text with more properties, as Java's map writes it.
fn with(text: &[u8], more: &[(&'static [u8], &[u8])]) -> Vec<u8> {
    let mut list = PropertyList::parse(text);
    for (name, value) in more {
        list.put(name, value);
    }
    let mut out = Vec::with_capacity(list.encoded_len());
    list.write(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(code: RequestCode) -> Command {
        let short = code == RequestCode::SendReplyMessageV2;
        let mut command = Command::request(code, 7).with_body(b"answer".to_vec());
        let values = ["group", "c_REPLY_TOPIC", "TBW102", "4", "0", "257", "17", "3", "", "2", "false", "false"];
        for ((long, short_name, _), value) in NAMES.iter().zip(values) {
            command.ext.set(if short { *short_name } else { *long }, value);
        }
        let properties = "CORRELATION_ID\x01id\x02REPLY_TO_CLIENT\x01client\x02";
        command.with_field(if short { "i" } else { "properties" }, properties)
    }

    #[test]
    fn both_forms_reach_the_client_with_long_names() {
        let (peer, host) = ("10.0.0.9:1234".parse().unwrap(), "127.0.0.1:10911".parse().unwrap());
        for code in [RequestCode::SendReplyMessage, RequestCode::SendReplyMessageV2] {
            let reply = Reply::parse(request(code), "DefaultRegion", true).unwrap();
            assert_eq!((reply.topic(), reply.requester().as_deref()), ("c_REPLY_TOPIC", Some("client")));
            let push = reply.push(peer, host, 1_700_000_000_000);
            assert_eq!((push.code, push.body.as_slice()), (326, &b"answer"[..]));
            for (field, value) in [
                ("bornHost", "10.0.0.9:1234"),
                ("storeHost", "127.0.0.1:10911"),
                ("storeTimestamp", "1700000000000"),
                ("producerGroup", "group"),
                ("topic", "c_REPLY_TOPIC"),
                ("defaultTopic", "TBW102"),
                ("defaultTopicQueueNums", "4"),
                ("queueId", "0"),
                ("sysFlag", "257"),
                ("bornTimestamp", "17"),
                ("flag", "3"),
                ("reconsumeTimes", "2"),
                ("unitMode", "false"),
            ] {
                assert_eq!(push.ext.get(field), Some(value), "{field}");
            }
            let told = push.ext.get("properties").unwrap().as_bytes();
            for (key, value) in [
                (&b"PUSH_REPLY_TIME"[..], &b"1700000000000"[..]),
                (b"CORRELATION_ID", b"id"),
                (b"MSG_REGION", b"DefaultRegion"),
                (b"TRACE_ON", b"true"),
            ] {
                assert_eq!(find(told, key), Some(value));
            }
            let record = reply.record(0, peer, host);
            assert_eq!((record.sys_flag, record.flag, record.reconsume_times), (257, 3, 2));
            assert_eq!(
                record.properties.find(b"PUSH_REPLY_TIME"),
                None,
                "the stored reply does not say when it was pushed"
            );
            assert_eq!(record.properties.find(b"MSG_REGION"), Some(&b"DefaultRegion"[..]));
        }
    }

    #[test]
    fn a_header_that_does_not_serve_is_refused() {
        for field in ["topic", "queueId"] {
            let mut command = request(RequestCode::SendReplyMessage);
            command.ext.remove(field);
            assert_eq!(Reply::parse(command, "r", true).unwrap_err().code, 1, "{field}");
        }
        let bad = request(RequestCode::SendReplyMessage).with_field("sysFlag", "x");
        assert_eq!(Reply::parse(bad, "r", true).unwrap_err().code, 1);
        let mut bare = request(RequestCode::SendReplyMessage);
        for field in ["properties", "sysFlag", "flag", "bornTimestamp", "unitMode"] {
            bare.ext.remove(field);
        }
        assert_eq!(Reply::parse(bare, "r", true).unwrap().requester(), None);
    }
}
