//! A small blocking client of the remoting protocol. It is written from the protocol's description and shares no code with
//! the product, so that a mistake in the product's codecs cannot hide itself.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::history::{Messages, Stored};

const TIMEOUT: Duration = Duration::from_secs(20);
const MAX_FRAME: usize = 64 << 20;
/// Sends and their batches, pulls and the queries that the tests use.
const SEND: i32 = 310;
const SEND_BATCH: i32 = 320;
const PULL: i32 = 11;
const QUERY_CONSUMER_OFFSET: i32 = 14;
const UPDATE_CONSUMER_OFFSET: i32 = 15;
const UPDATE_AND_CREATE_TOPIC: i32 = 17;
const GET_BROKER_RUNTIME_INFO: i32 = 28;
const MAX_OFFSET: i32 = 30;
const UPDATE_AND_CREATE_GROUP: i32 = 200;
/// The shard is in the bits of a physical offset from here on.
const SHARD_BITS: u32 = 55;
/// The pull's subscription is in its header.
const FLAG_SUBSCRIPTION: i32 = 4;

/// One connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    out: Vec<u8>,
    next_opaque: i32,
}

/// One response.
#[derive(Debug)]
pub struct Answer {
    /// 0 is success.
    pub code: i64,
    /// What the request carried.
    pub opaque: i64,
    remark: String,
    fields: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Answer {
    /// This answer when it is a success.
    pub fn ok(self) -> Result<Answer> {
        ensure!(self.code == 0, "response code {}: {}", self.code, self.remark);
        Ok(self)
    }

    /// A field that holds a number.
    pub fn number(&self, field: &str) -> Result<u64> {
        let text = self.fields.get(field).with_context(|| format!("the answer has no {field}: {self:?}"))?;
        text.parse().with_context(|| format!("{field} is {text:?}"))
    }

    /// The shard that stored a sent message, from its offset id.
    pub fn shard(&self) -> Result<u64> {
        let id = self.fields.get("msgId").context("the answer has no msgId")?;
        let offset = id.split(',').next().and_then(|id| id.get(16..32)).context("msgId is too short")?;
        Ok(u64::from_str_radix(offset, 16)? >> SHARD_BITS)
    }
}

impl Connection {
    /// Connects.
    pub fn open(address: SocketAddr) -> Result<Connection> {
        let stream =
            TcpStream::connect_timeout(&address, TIMEOUT).with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Connection { stream, out: Vec::new(), next_opaque: 0 })
    }

    /// Sends a request and waits for its answer.
    pub fn request(&mut self, code: i32, fields: Value, body: &[u8]) -> Result<Answer> {
        let opaque = self.queue_request(code, fields, body);
        self.flush()?;
        let answer = self.receive().with_context(|| format!("waiting for the answer to request {code}"))?;
        ensure!(answer.opaque == i64::from(opaque), "an answer to another request: {answer:?}");
        Ok(answer)
    }

    fn queue_request(&mut self, code: i32, fields: Value, body: &[u8]) -> i32 {
        let opaque = self.next_opaque;
        self.next_opaque += 1;
        let header = json!({
            "code": code, "language": "OTHER", "version": 453, "opaque": opaque, "flag": 0,
            "serializeTypeCurrentRPC": "JSON", "extFields": fields,
        });
        let header = header.to_string().into_bytes();
        self.out.extend(((4 + header.len() + body.len()) as u32).to_be_bytes());
        self.out.extend((header.len() as u32).to_be_bytes());
        self.out.extend(header);
        self.out.extend(body);
        opaque
    }

    /// Queues the send of one message, or of several as one batch; gives the opaque of its answer. [`Connection::flush`]
    /// sends what is queued.
    pub fn queue_send(&mut self, topic: &str, queue: u32, bodies: &[Vec<u8>]) -> i32 {
        let (code, body) = match bodies {
            [one] => (SEND, one.clone()),
            several => (SEND_BATCH, batch(several)),
        };
        let fields = json!({
            "a": "xtask", "b": topic, "c": "TBW102", "d": "4", "e": queue.to_string(), "f": "0", "g": "1700000000000",
            "h": "0", "i": "TAGS\u{1}TagA\u{2}", "j": "0", "k": "false", "m": (code == SEND_BATCH).to_string(),
        });
        self.queue_request(code, fields, &body)
    }

    /// Writes all queued requests.
    pub fn flush(&mut self) -> Result<()> {
        self.stream.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Waits for the next answer.
    pub fn receive(&mut self) -> Result<Answer> {
        let mut word = [0; 4];
        self.stream.read_exact(&mut word)?;
        let length = u32::from_be_bytes(word) as usize;
        ensure!((4..MAX_FRAME).contains(&length), "a frame of {length} bytes");
        let mut frame = vec![0; length];
        self.stream.read_exact(&mut frame)?;
        let header_length = u32::from_be_bytes([0, frame[1], frame[2], frame[3]]) as usize;
        ensure!(frame[0] == 0, "an answer in another form than the request");
        let header = frame.get(4..4 + header_length).context("a header beyond its frame")?;
        let header: Value = serde_json::from_slice(header).context("reading a header")?;
        let fields = header["extFields"].as_object().into_iter().flatten();
        Ok(Answer {
            code: header["code"].as_i64().context("an answer without code")?,
            opaque: header["opaque"].as_i64().context("an answer without opaque")?,
            remark: header["remark"].as_str().unwrap_or_default().into(),
            fields: fields.map(|(k, v)| (k.clone(), v.as_str().map_or(v.to_string(), String::from))).collect(),
            body: frame.split_off(4 + header_length),
        })
    }

    /// Creates a topic with so many queues.
    pub fn create_topic(&mut self, topic: &str, queues: u32) -> Result<()> {
        let n = queues.to_string();
        let fields = json!({
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": n, "writeQueueNums": n, "perm": "6",
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        });
        self.request(UPDATE_AND_CREATE_TOPIC, fields, &[])?.ok().context("creating a topic")?;
        Ok(())
    }

    /// Creates a consumer group with the default settings.
    pub fn create_group(&mut self, group: &str) -> Result<()> {
        let body = json!({"groupName": group}).to_string();
        self.request(UPDATE_AND_CREATE_GROUP, json!({}), body.as_bytes())?.ok().context("creating a group")?;
        Ok(())
    }

    /// The offset behind the last message of a queue.
    pub fn max_offset(&mut self, topic: &str, queue: u32) -> Result<u64> {
        let fields = json!({"topic": topic, "queueId": queue.to_string()});
        self.request(MAX_OFFSET, fields, &[])?.ok()?.number("offset")
    }

    /// Asks for the broker's state: any broker that is up answers.
    pub fn runtime_info(&mut self) -> Result<()> {
        self.request(GET_BROKER_RUNTIME_INFO, json!({}), &[])?;
        Ok(())
    }

    /// Commits the offset of a group.
    pub fn commit_offset(&mut self, group: &str, topic: &str, queue: u32, offset: u64) -> Result<()> {
        let fields = json!({
            "consumerGroup": group, "topic": topic, "queueId": queue.to_string(), "commitOffset": offset.to_string(),
        });
        self.request(UPDATE_CONSUMER_OFFSET, fields, &[])?.ok()?;
        Ok(())
    }

    /// The committed offset of a group; `None` when it has none.
    pub fn committed_offset(&mut self, group: &str, topic: &str, queue: u32) -> Result<Option<u64>> {
        let fields = json!({
            "consumerGroup": group, "topic": topic, "queueId": queue.to_string(), "setZeroIfNotFound": "false",
        });
        let answer = self.request(QUERY_CONSUMER_OFFSET, fields, &[])?;
        const NOT_FOUND: i64 = 22;
        if answer.code == NOT_FOUND { Ok(None) } else { answer.ok()?.number("offset").map(Some) }
    }

    /// Reads every queue from where `stored` ends to its end and adds what is there.
    pub fn read_on(&mut self, topic: &str, queues: u32, stored: &mut Stored) -> Result<()> {
        for queue in 0..queues {
            let end = self.max_offset(topic, queue)?;
            let messages = stored.entry(queue).or_default();
            let mut next = messages.len() as u64;
            while next < end {
                let (found, next_begin) = self.pull(topic, queue, next)?;
                ensure!(next_begin > next, "a pull of queue {queue} at {next} does not get on");
                messages.extend(found);
                next = next_begin;
            }
        }
        Ok(())
    }

    fn pull(&mut self, topic: &str, queue: u32, offset: u64) -> Result<(Messages, u64)> {
        let fields = json!({
            "consumerGroup": "xtask-reader", "topic": topic, "queueId": queue.to_string(), "subVersion": "0",
            "queueOffset": offset.to_string(), "maxMsgNums": "32", "sysFlag": FLAG_SUBSCRIPTION.to_string(),
            "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "expressionType": "TAG",
        });
        let answer =
            self.request(PULL, fields, &[])?.ok().with_context(|| format!("pulling queue {queue} at {offset}"))?;
        Ok((records(&answer.body)?, answer.number("nextBeginOffset")?))
    }
}

/// The body of a batch: each message with its length, no flags, no checksum and one property.
fn batch(bodies: &[Vec<u8>]) -> Vec<u8> {
    let properties = b"TAGS\x01TagA\x02";
    let mut out = Vec::new();
    for body in bodies {
        out.extend((22 + body.len() as u32 + properties.len() as u32).to_be_bytes());
        out.extend([0; 12]);
        out.extend((body.len() as u32).to_be_bytes());
        out.extend(body);
        out.extend((properties.len() as u16).to_be_bytes());
        out.extend(properties);
    }
    out
}

/// Queue offset and body of each stored record of a pull's answer.
fn records(mut bytes: &[u8]) -> Result<Messages> {
    const IPV6_BORN_HOST: u32 = 1 << 4;
    const IPV6_STORE_HOST: u32 = 1 << 5;
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let word = |at: usize| -> Result<u32> {
            Ok(u32::from_be_bytes(bytes.get(at..at + 4).context("a cut record")?.try_into()?))
        };
        let size = word(0)? as usize;
        if ![0xDAA3_20A7, 0xDAA3_20AB].contains(&word(4)?) {
            bail!("a record without its magic number");
        }
        let flags = word(36)?;
        let host = |flag: u32| if flags & flag == 0 { 8 } else { 20 };
        let body_at = 48 + host(IPV6_BORN_HOST) + 8 + host(IPV6_STORE_HOST) + 12;
        let body = bytes.get(body_at + 4..body_at + 4 + word(body_at)? as usize).context("a cut body")?;
        found.push((u64::from(word(20)?) << 32 | u64::from(word(24)?), body.to_vec()));
        bytes = bytes.get(size..).context("a cut record")?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record as the format describes it, up to its body; hosts of 4 or 16 bytes.
    fn record(queue_offset: u64, flags: u32, body: &[u8]) -> Vec<u8> {
        let mut record = vec![0; 4];
        record.extend(0xDAA3_20A7_u32.to_be_bytes());
        record.extend([0; 12]);
        record.extend(queue_offset.to_be_bytes());
        record.extend([0; 8]);
        record.extend(flags.to_be_bytes());
        record.extend([0; 8]);
        record.extend(vec![0; if flags & 16 == 0 { 8 } else { 20 }]);
        record.extend([0; 8]);
        record.extend(vec![0; if flags & 32 == 0 { 8 } else { 20 }]);
        record.extend([0; 12]);
        record.extend((body.len() as u32).to_be_bytes());
        record.extend(body);
        record.extend(b"\x05topic\x00\x00");
        let size = record.len() as u32;
        record[..4].copy_from_slice(&size.to_be_bytes());
        record
    }

    #[test]
    fn records_of_a_pull_are_read() {
        let bytes = [record(7, 0, b"one"), record(1 << 40, 16 | 32, b"two")].concat();
        assert_eq!(records(&bytes).unwrap(), [(7, b"one".to_vec()), (1 << 40, b"two".to_vec())]);
        assert!(records(&bytes[..bytes.len() - 1]).is_err(), "a cut record");
        assert!(records(&[0; 100]).is_err(), "no record");
    }

    #[test]
    fn a_batch_gives_each_message_its_length() {
        let bytes = batch(&[b"ab".to_vec(), b"c".to_vec()]);
        let first = u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize;
        assert_eq!(first, 4 + 4 + 4 + 4 + 4 + 2 + 2 + 10);
        assert_eq!(bytes.len(), first + first - 1);
        assert_eq!(&bytes[20..22], b"ab");
    }
}
