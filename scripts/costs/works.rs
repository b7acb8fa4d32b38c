//! The kinds of load whose cost is measured.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::load::{Answer, KEY, LINKS, Template, Work, digits};
use crate::client::requests::{PREPARED, pop_fields};
use crate::client::{frame, send_fields};
use crate::clock::now_ms;
use crate::server::BROKER;

/// Queues of the topic; connection n works on queue n.
pub const QUEUES: u32 = LINKS as u32;
/// Bytes of a body.
const SIZE: usize = 128;
/// Sends in flight on each connection.
pub const WINDOW: usize = 64;
/// Messages of a pull or a pop.
pub const BATCH: u64 = 32;
/// Pulls in flight on each connection, or pops with as many acknowledgements.
const READS: usize = 16;
/// The group that pops.
pub const POP_GROUP: &str = "costs-pop-group";
/// So long is a popped message invisible, in ms: its end lies within what is measured.
pub const INVISIBLE: u64 = 5_000;
const SEND: i32 = 310;
const PULL: i32 = 11;
const END_TRANSACTION: i32 = 37;
const POP: i32 = 200_050;
const BATCH_ACK: i32 = 200_151;
const ONEWAY: i32 = 2;
/// A pop gave nothing.
const NOTHING: [u64; 3] = [19, 209, 210];

/// Sends of 128 bytes with some properties, 64 in flight on each connection.
pub struct Sends {
    templates: Vec<Template>,
    next: u64,
    done: u64,
    limit: u64,
}

impl Sends {
    /// Sends with more properties on top of the key and a tag, each a name, 1, a value and 2.
    pub fn new(topic: &str, properties: &str) -> Sends {
        let properties = format!("UNIQ_KEY\u{1}7F00000100002A139A16{KEY}00\u{2}TAGS\u{1}TagA\u{2}{properties}");
        let template = |queue| Template::new(SEND, 0, send_fields(topic, queue, &properties, 0, false), &[b'x'; SIZE]);
        Sends { templates: (0..QUEUES).map(template).collect(), next: 0, done: 0, limit: u64::MAX }
    }

    /// The same, but only so many; a whole number of windows on all connections.
    pub fn up_to(self, limit: u64) -> Sends {
        Sends { limit, ..self }
    }
}

impl Work for Sends {
    fn ask(&mut self, link: usize, out: &mut Vec<u8>, last: bool) -> usize {
        let window = if last || self.is_exhausted() { 0 } else { WINDOW };
        for _ in 0..window {
            self.templates[link].push(out, self.next);
            self.next += 1;
        }
        window
    }

    fn take(&mut self, _: usize, answer: Answer) -> Result<()> {
        success(&answer)?;
        self.done += 1;
        Ok(())
    }

    fn done(&self) -> u64 {
        self.done
    }

    fn is_exhausted(&self) -> bool {
        self.next >= self.limit
    }
}

/// Half messages, each committed with a request that gets no answer, as clients do.
pub struct Transactions {
    halves: Vec<Template>,
    next: u64,
    to_end: Vec<Vec<u8>>,
    topic: String,
    done: u64,
}

/// The group that may commit.
pub const PRODUCER_GROUP: &str = "costs-producer-group";

impl Transactions {
    /// Transactions of a topic.
    pub fn new(topic: &str) -> Transactions {
        let properties = format!(
            "TRAN_MSG\u{1}true\u{2}PGROUP\u{1}{PRODUCER_GROUP}\u{2}UNIQ_KEY\u{1}7F00000100002A139A16{KEY}00\u{2}TAGS\u{1}TagA\u{2}"
        );
        let half =
            |queue| Template::new(SEND, 0, send_fields(topic, queue, &properties, PREPARED, false), &[b'x'; SIZE]);
        let halves = (0..QUEUES).map(half).collect();
        Transactions { halves, next: 0, to_end: vec![Vec::new(); LINKS], topic: topic.into(), done: 0 }
    }
}

impl Work for Transactions {
    fn ask(&mut self, link: usize, out: &mut Vec<u8>, last: bool) -> usize {
        out.append(&mut self.to_end[link]);
        let window = if last { 0 } else { WINDOW };
        for _ in 0..window {
            self.halves[link].push(out, self.next);
            self.next += 1;
        }
        window
    }

    fn take(&mut self, link: usize, answer: Answer) -> Result<()> {
        success(&answer)?;
        let id = String::from_utf8_lossy(answer.text("msgId")?).into_owned();
        ensure!(id.len() >= 32, "msgId is {id:?}");
        let key = String::from_utf8_lossy(answer.text("transactionId")?).into_owned();
        let fields = json!({
            "producerGroup": PRODUCER_GROUP, "topic": self.topic, "commitOrRollback": "8",
            "tranStateTableOffset": answer.number("queueOffset")?.to_string(),
            "commitLogOffset": u64::from_str_radix(&id[16..32], 16)?.to_string(),
            "fromTransactionCheck": "false", "msgId": key, "transactionId": key,
        });
        self.to_end[link].extend(frame(END_TRANSACTION, 0, ONEWAY, fields, &[]));
        self.done += 1;
        Ok(())
    }

    fn done(&self) -> u64 {
        self.done
    }
}

/// Pulls of 32 messages, each message once.
pub struct Pulls {
    templates: Vec<Vec<Vec<u8>>>,
    next: Vec<usize>,
    messages: u64,
    done: u64,
}

impl Pulls {
    /// Pulls of a topic of which each queue holds so many messages.
    pub fn new(topic: &str, filled: u64) -> Pulls {
        let pull = |queue: u32, offset: u64| {
            let fields = json!({
                "consumerGroup": "costs-reader", "topic": topic, "queueId": queue.to_string(), "subVersion": "0",
                "queueOffset": offset.to_string(), "maxMsgNums": BATCH.to_string(), "sysFlag": "4",
                "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*", "expressionType": "TAG",
            });
            frame(PULL, 0, 0, fields, &[])
        };
        let templates =
            (0..QUEUES).map(|queue| (0..filled / BATCH).map(|n| pull(queue, n * BATCH)).collect()).collect();
        Pulls { templates, next: vec![0; LINKS], messages: 0, done: 0 }
    }
}

impl Work for Pulls {
    fn ask(&mut self, link: usize, out: &mut Vec<u8>, last: bool) -> usize {
        let left = self.templates[link].len() - self.next[link];
        let window = if last { 0 } else { left.min(READS) };
        for pull in &self.templates[link][self.next[link]..][..window] {
            out.extend_from_slice(pull);
        }
        self.next[link] += window;
        window
    }

    fn take(&mut self, _: usize, answer: Answer) -> Result<()> {
        success(&answer)?;
        // All records are of one size, which is what each begins with.
        let size = answer.body.first_chunk().map_or(0, |size| u32::from_be_bytes(*size) as usize);
        ensure!(size > SIZE, "a pull gave {} bytes", answer.body.len());
        self.messages += (answer.body.len() / size) as u64;
        self.done += 1;
        Ok(())
    }

    fn done(&self) -> u64 {
        self.done
    }

    fn is_exhausted(&self) -> bool {
        self.next.iter().zip(&self.templates).any(|(next, pulls)| *next == pulls.len())
    }
}

impl Pulls {
    /// Messages of a pull, on average.
    pub fn messages_per_pull(&self) -> f64 {
        self.messages as f64 / self.done as f64
    }
}

/// Pops of 32 messages, each followed by one batch ack of all of them.
pub struct Pops {
    topic: String,
    pops: Vec<Value>,
    to_ack: Vec<Vec<u8>>,
    acks: Vec<usize>,
    filled: u64,
    messages: u64,
    pending: u64,
    done: u64,
    empty: u64,
}

impl Pops {
    /// Pops of a topic with so many messages in all.
    pub fn new(topic: &str, filled: u64) -> Pops {
        let pop = |queue: u32| {
            let mut fields = pop_fields(POP_GROUP, topic, INVISIBLE, 0);
            fields["queueId"] = queue.to_string().into();
            fields
        };
        Pops {
            topic: topic.into(),
            pops: (0..QUEUES).map(pop).collect(),
            to_ack: vec![Vec::new(); LINKS],
            acks: vec![0; LINKS],
            filled,
            messages: 0,
            pending: 0,
            done: 0,
            empty: 0,
        }
    }

    /// The batch ack of everything that an answer holds.
    fn ack(&mut self, link: usize, answer: &Answer) -> Result<()> {
        let list = answer.text("msgOffsetInfo")?;
        ensure!(list.starts_with(b"0 ") && !list.contains(&b';'), "a pop of one queue gave {:?}", text(list));
        let start = answer.text("startOffsetInfo")?.rsplit(|b| *b == b' ').next().map_or(0, digits);
        let offsets = list.rsplit(|b| *b == b' ').next().unwrap_or_default().split(|b| *b == b',').map(digits);
        let mut bits = Vec::new();
        for offset in offsets {
            let bit = offset.saturating_sub(start) as usize;
            ensure!(bit < 1 << 16, "offset {offset} of a pop that starts at {start}");
            bits.resize(bits.len().max(bit / 8 + 1), 0);
            bits[bit / 8] |= 1 << (bit % 8);
            self.messages += 1;
        }
        let bits = crate::client::requests::base64(&bits);
        let (revive, time) = (answer.number("reviveQid")?, answer.number("popTime")?);
        let body = format!(
            "{{\"brokerName\":\"{BROKER}\",\"acks\":[{{\"b\":\"{bits}\",\"c\":\"{POP_GROUP}\",\"it\":{INVISIBLE},\"pt\":{time},\
             \"q\":{link},\"r\":\"0\",\"rq\":{revive},\"so\":{start},\"t\":\"{}\"}}]}}",
            self.topic
        );
        self.to_ack[link].extend(frame(BATCH_ACK, 0, 0, json!({}), body.as_bytes()));
        self.acks[link] += 1;
        self.pending += 1;
        Ok(())
    }
}

impl Work for Pops {
    fn ask(&mut self, link: usize, out: &mut Vec<u8>, last: bool) -> usize {
        out.append(&mut self.to_ack[link]);
        let acks = std::mem::take(&mut self.acks[link]);
        let window = if last || self.is_exhausted() { 0 } else { READS };
        if window > 0 {
            self.pops[link]["bornTime"] = now_ms().to_string().into();
            let pop = frame(POP, 0, 0, self.pops[link].clone(), &[]);
            (0..window).for_each(|_| out.extend_from_slice(&pop));
        }
        acks + window
    }

    fn take(&mut self, link: usize, answer: Answer) -> Result<()> {
        if !answer.body.is_empty() {
            success(&answer)?;
            return self.ack(link, &answer);
        }
        // Only an ack is a success without a body.
        if answer.code()? == 0 {
            self.done += 1;
            self.pending -= 1;
        } else {
            // Java answers so while another pop has the queue.
            ensure!(NOTHING.contains(&answer.code()?), "a pop was refused: {}", text(answer.header));
            self.empty += 1;
        }
        Ok(())
    }

    fn done(&self) -> u64 {
        self.done
    }

    /// Before a queue is empty, so that every pop gives 32.
    fn is_exhausted(&self) -> bool {
        self.messages + 64 * BATCH * LINKS as u64 > self.filled
    }
}

impl Pops {
    /// Pops that gave nothing.
    pub fn empty(&self) -> u64 {
        self.empty
    }

    /// Messages of a pop that gave any, on average.
    pub fn messages_per_pop(&self) -> f64 {
        self.messages as f64 / (self.done + self.pending) as f64
    }
}

fn success(answer: &Answer) -> Result<()> {
    ensure!(answer.code()? == 0, "a request was refused: {}", text(answer.header));
    Ok(())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
