//! A small blocking client of the remoting protocol. It is written from the protocol's description and shares no code with
//! the product, so that a mistake in the product's codecs cannot hide itself.
//!
//! Here: the connection, its frames, and the requests that every test needs. [`requests`] has those of transactions,
//! retries, locks and POP, [`records`] reads what pulls and pops give.

pub mod records;
pub mod requests;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use simulator::history::{Queue, Seen, Stored, Topic};

pub use records::Record;

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
    /// What the broker asked on this connection, since it was last taken.
    asked: Vec<Frame>,
}

/// One response, or a request of the broker.
#[derive(Debug)]
pub struct Frame {
    /// Of a response 0 for success, of a request what is asked.
    pub code: i64,
    /// What the request carried.
    pub opaque: i64,
    /// Why it is no success.
    pub remark: String,
    /// What is behind the header.
    pub body: Vec<u8>,
    fields: BTreeMap<String, String>,
    is_response: bool,
}

impl Frame {
    /// This answer when it is a success.
    pub fn ok(self) -> Result<Frame> {
        ensure!(self.code == 0, "response code {}: {}", self.code, self.remark);
        Ok(self)
    }

    /// A field as text.
    pub fn text(&self, field: &str) -> Option<&str> {
        self.fields.get(field).map(String::as_str)
    }

    /// A field that holds a number.
    pub fn number(&self, field: &str) -> Result<u64> {
        let text = self.text(field).with_context(|| format!("the answer has no {field}: {self:?}"))?;
        text.parse().with_context(|| format!("{field} is {text:?}"))
    }

    /// The shard that stored a sent message, from its offset id.
    pub fn shard(&self) -> Result<u64> {
        Ok(self.physical_offset()? >> SHARD_BITS)
    }

    /// The physical offset of a sent message, from its offset id.
    pub fn physical_offset(&self) -> Result<u64> {
        let id = self.text("msgId").context("the answer has no msgId")?;
        let offset = id.split(',').next().and_then(|id| id.get(16..32)).context("msgId is too short")?;
        Ok(u64::from_str_radix(offset, 16)?)
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
        Ok(Connection { stream, out: Vec::new(), next_opaque: 0, asked: Vec::new() })
    }

    /// Sends a request and waits for its answer.
    pub fn request(&mut self, code: i32, fields: Value, body: &[u8]) -> Result<Frame> {
        let opaque = self.queue_request(code, fields, body);
        self.flush()?;
        let answer = self.receive().with_context(|| format!("waiting for the answer to request {code}"))?;
        ensure!(answer.opaque == i64::from(opaque), "an answer to another request: {answer:?}");
        Ok(answer)
    }

    /// Queues a request; gives the opaque of its answer. [`Connection::flush`] sends what is queued.
    pub fn queue_request(&mut self, code: i32, fields: Value, body: &[u8]) -> i32 {
        self.queue_frame(code, 0, fields, body)
    }

    /// Queues a request that gets no answer.
    pub fn queue_oneway(&mut self, code: i32, fields: Value, body: &[u8]) {
        const ONEWAY: i32 = 2;
        self.queue_frame(code, ONEWAY, fields, body);
    }

    fn queue_frame(&mut self, code: i32, flag: i32, fields: Value, body: &[u8]) -> i32 {
        let opaque = self.next_opaque;
        self.next_opaque += 1;
        self.out.extend(frame(code, opaque, flag, fields, body));
        opaque
    }

    /// Queues the send of one message, or of several as one batch; gives the opaque of its answer.
    pub fn queue_send(&mut self, topic: &str, queue: u32, bodies: &[Vec<u8>]) -> i32 {
        match bodies {
            [one] => self.queue_message(topic, queue, "TAGS\u{1}TagA\u{2}", 0, one),
            several => self.queue_request(SEND_BATCH, send_fields(topic, queue, "", 0, true), &records::batch(several)),
        }
    }

    /// Queues the send of one message with properties (each a name, 1, a value and 2) and flags of its system.
    pub fn queue_message(&mut self, topic: &str, queue: u32, properties: &str, flags: u32, body: &[u8]) -> i32 {
        self.queue_request(SEND, send_fields(topic, queue, properties, flags, false), body)
    }

    /// Writes all queued requests.
    pub fn flush(&mut self) -> Result<()> {
        self.stream.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Waits for the next answer. What the broker asks meanwhile is kept for [`Connection::take_asked`].
    pub fn receive(&mut self) -> Result<Frame> {
        loop {
            let frame = self.receive_frame()?;
            if frame.is_response {
                return Ok(frame);
            }
            self.asked.push(frame);
        }
    }

    /// The requests of the broker that came before the last answer.
    pub fn take_asked(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.asked)
    }

    fn receive_frame(&mut self) -> Result<Frame> {
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
        Ok(Frame {
            code: header["code"].as_i64().context("an answer without code")?,
            opaque: header["opaque"].as_i64().context("an answer without opaque")?,
            remark: header["remark"].as_str().unwrap_or_default().into(),
            fields: fields.map(|(k, v)| (k.clone(), v.as_str().map_or(v.to_string(), String::from))).collect(),
            is_response: header["flag"].as_i64().context("an answer without flag")? & 1 == 1,
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
    pub fn read_on(&mut self, topic: Topic, queues: u32, stored: &mut Stored) -> Result<()> {
        for queue in 0..queues {
            let end = self.max_offset(topic, queue)?;
            let messages = stored.entry((topic, queue)).or_default();
            let mut next = messages.len() as u64;
            while next < end {
                let (found, next_begin) = self.pull((topic, queue), next)?;
                ensure!(next_begin > next, "a pull of {topic} queue {queue} at {next} does not get on");
                messages.extend(found);
                next = next_begin;
            }
        }
        Ok(())
    }

    fn pull(&mut self, queue: Queue, offset: u64) -> Result<(Vec<Seen>, u64)> {
        let answer = self.pull_answer(queue, offset)?.ok();
        let answer = answer.with_context(|| format!("pulling {} queue {} at {offset}", queue.0, queue.1))?;
        let records = records::read(&answer.body)?;
        Ok((records.iter().map(|r| r.seen(queue.0)).collect(), answer.number("nextBeginOffset")?))
    }

    /// The answer to a pull of at most 32 messages that does not wait for any.
    pub fn pull_answer(&mut self, queue: Queue, offset: u64) -> Result<Frame> {
        let fields = json!({
            "consumerGroup": "xtask-reader", "topic": queue.0, "queueId": queue.1.to_string(), "subVersion": "0",
            "queueOffset": offset.to_string(), "maxMsgNums": "32", "sysFlag": FLAG_SUBSCRIPTION.to_string(),
            "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "expressionType": "TAG",
        });
        self.request(PULL, fields, &[])
    }
}

/// The bytes of a request.
pub fn frame(code: i32, opaque: i32, flag: i32, fields: Value, body: &[u8]) -> Vec<u8> {
    let header = json!({
        "code": code, "language": "OTHER", "version": 453, "opaque": opaque, "flag": flag,
        "serializeTypeCurrentRPC": "JSON", "extFields": fields,
    });
    let header = header.to_string().into_bytes();
    let mut out = Vec::with_capacity(8 + header.len() + body.len());
    out.extend(((4 + header.len() + body.len()) as u32).to_be_bytes());
    out.extend((header.len() as u32).to_be_bytes());
    out.extend(header);
    out.extend(body);
    out
}

/// The header fields of a send.
pub fn send_fields(topic: &str, queue: u32, properties: &str, flags: u32, batch: bool) -> Value {
    json!({
        "a": "xtask", "b": topic, "c": "TBW102", "d": "4", "e": queue.to_string(), "f": flags.to_string(),
        "g": crate::clock::now_ms().to_string(), "h": "0", "i": properties, "j": "0", "k": "false", "m": batch.to_string(),
    })
}
