//! The requests of ordered consumption, retries, transactions and POP, and the receipt handles of popped messages.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use simulator::history::Queue;

use super::{Connection, Frame, Record, records};

const HEART_BEAT: i32 = 34;
const CONSUMER_SEND_MSG_BACK: i32 = 36;
const END_TRANSACTION: i32 = 37;
/// What a broker asks the producer of an open transaction.
pub const CHECK_TRANSACTION_STATE: i64 = 39;
const LOCK_BATCH_MQ: i32 = 41;
const UNLOCK_BATCH_MQ: i32 = 42;
const POP_MESSAGE: i32 = 200_050;
const ACK_MESSAGE: i32 = 200_051;
const CHANGE_INVISIBLE_TIME: i32 = 200_053;
const BATCH_ACK_MESSAGE: i32 = 200_151;
/// The flag of a half message.
pub const PREPARED: u32 = 4;

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Not known yet: the broker shall ask later.
    Open = 0,
    /// Its message becomes visible.
    Commit = 8,
    /// Its message never becomes visible.
    Rollback = 12,
}

/// What names an open transaction to the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// The producer group that may end it.
    pub group: &'static str,
    /// The topic of its message.
    pub topic: &'static str,
    /// Offset of its half message in the queue of half messages.
    pub half_offset: u64,
    /// The same in the log.
    pub physical: u64,
    /// The unique key of its message.
    pub key: String,
}

/// A receipt handle: eight words that a client gives back as it got them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    words: Vec<String>,
}

impl Handle {
    /// Reads a handle. Errors: it has not eight words, or one that should be a number is none.
    pub fn parse(text: &str) -> Result<Handle> {
        let handle = Handle { words: text.split(' ').map(String::from).collect() };
        ensure!(handle.words.len() >= 8, "{text:?} is no receipt handle");
        for n in [0, 1, 2, 3, 6, 7] {
            handle.number(n).with_context(|| format!("{text:?} is no receipt handle"))?;
        }
        Ok(handle)
    }

    fn number(&self, word: usize) -> Result<u64> {
        Ok(self.words[word].parse()?)
    }

    /// The end of the invisible time by the broker's clock, in ms.
    pub fn visible_at(&self) -> u64 {
        self.number(1).unwrap_or(0) + self.number(2).unwrap_or(0)
    }

    /// Queue and offset of the record.
    pub fn place(&self) -> (u32, u64) {
        (self.number(6).unwrap_or(0) as u32, self.number(7).unwrap_or(0))
    }

    /// Whether the record lies in the group's retry topic.
    pub fn is_retry(&self) -> bool {
        self.words[4] != "0"
    }

    /// The topic that the record lies in.
    pub fn topic(&self, topic: &str, group: &str) -> String {
        match self.words[4].as_str() {
            "0" => topic.into(),
            "1" => format!("%RETRY%{group}_{topic}"),
            _ => format!("%RETRY%{group}+{topic}"),
        }
    }

    /// This handle after its invisible time was changed: the answer says the new times and queue of the revival.
    pub fn changed(&self, answer: &Frame) -> Result<Handle> {
        let mut words = self.words.clone();
        words[0] = words[7].clone();
        for (word, field) in [(1, "popTime"), (2, "invisibleTime"), (3, "reviveQid")] {
            words[word] = answer.number(field)?.to_string();
        }
        Ok(Handle { words })
    }
}

/// The records of an answer to a pop with their handles.
pub fn popped(answer: &Frame, broker: &str) -> Result<Vec<(Record, Handle)>> {
    let mut starts = HashMap::new();
    for item in answer.text("startOffsetInfo").unwrap_or_default().split(';').filter(|item| !item.is_empty()) {
        let (queue, start) = item.rsplit_once(' ').with_context(|| format!("startOffsetInfo has {item:?}"))?;
        starts.insert(queue.to_string(), start.to_string());
    }
    let mut found = Vec::new();
    for record in records::read(&answer.body)? {
        let handle = match record.property("POP_CK") {
            Some(handle) => handle.to_string(),
            None => {
                let Record { queue, offset, .. } = record;
                let start = starts.get(&format!("0 {queue}")).context("a popped queue without its start")?;
                let [time, invisible, revive] =
                    ["popTime", "invisibleTime", "reviveQid"].map(|field| answer.number(field));
                format!("{start} {} {} {} 0 {broker} {queue} {offset}", time?, invisible?, revive?)
            }
        };
        found.push((record, Handle::parse(&handle)?));
    }
    Ok(found)
}

impl Connection {
    /// Tells the broker that this client is a member of a producer group, or of a consumer group of some topics.
    pub fn heartbeat(&mut self, client: &str, producer: Option<&str>, consumer: Option<(&str, &[&str])>) -> Result<()> {
        let subscription = |topic: &&str| {
            json!({
                "classFilterMode": false, "codeSet": [], "expressionType": "TAG", "subString": "*",
                "subVersion": 1, "tagsSet": [], "topic": topic,
            })
        };
        let consumers: Vec<Value> = consumer
            .iter()
            .map(|(group, topics)| {
                json!({
                    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "consumeType": "CONSUME_PASSIVELY",
                    "groupName": group, "messageModel": "CLUSTERING", "unitMode": false,
                    "subscriptionDataSet": topics.iter().map(subscription).collect::<Vec<_>>(),
                })
            })
            .collect();
        let producers: Vec<Value> = producer.iter().map(|group| json!({"groupName": group})).collect();
        let body = json!({
            "clientID": client, "consumerDataSet": consumers, "producerDataSet": producers,
            "heartbeatFingerprint": 0, "withoutSub": false,
        });
        self.request(HEART_BEAT, json!({}), body.to_string().as_bytes())?.ok().context("a heartbeat")?;
        Ok(())
    }

    /// Asks for the locks of queues; gives those that were got.
    pub fn lock(&mut self, client: &str, group: &str, broker: &str, queues: &[Queue]) -> Result<Vec<Queue>> {
        let answer = self.request(LOCK_BATCH_MQ, json!({}), &lock_body(client, group, broker, queues))?.ok()?;
        let answer: Value = serde_json::from_slice(&answer.body).context("reading the locks that were got")?;
        let got = answer["lockOKMQSet"].as_array().context("an answer without lockOKMQSet")?;
        let is_got = |q: &Queue| got.iter().any(|g| g["topic"] == q.0 && g["queueId"] == q.1);
        Ok(queues.iter().copied().filter(is_got).collect())
    }

    /// Gives locks back.
    pub fn unlock(&mut self, client: &str, group: &str, broker: &str, queues: &[Queue]) -> Result<()> {
        self.request(UNLOCK_BATCH_MQ, json!({}), &lock_body(client, group, broker, queues))?.ok()?;
        Ok(())
    }

    /// Queues the sending back of a record; gives the opaque of its answer.
    pub fn queue_send_back(&mut self, group: &str, topic: &str, record: &Record, level: u32, max_times: u32) -> i32 {
        let origin = record.property("ORIGIN_MESSAGE_ID").or_else(|| record.property("UNIQ_KEY")).unwrap_or_default();
        let fields = json!({
            "offset": record.physical.to_string(), "group": group, "delayLevel": level.to_string(),
            "originMsgId": origin, "originTopic": topic, "unitMode": "false",
            "maxReconsumeTimes": max_times.to_string(),
        });
        self.queue_request(CONSUMER_SEND_MSG_BACK, fields, &[])
    }

    /// Queues the end of a transaction; gives the opaque of its answer. One left open gets none.
    pub fn queue_end(&mut self, t: &Transaction, ending: Ending, from_check: bool) -> i32 {
        let fields = json!({
            "producerGroup": t.group, "topic": t.topic, "tranStateTableOffset": t.half_offset.to_string(),
            "commitLogOffset": t.physical.to_string(), "commitOrRollback": (ending as i32).to_string(),
            "fromTransactionCheck": from_check.to_string(), "msgId": t.key, "transactionId": t.key,
        });
        if ending == Ending::Open {
            self.queue_oneway(END_TRANSACTION, fields, &[]);
            return -1;
        }
        self.queue_request(END_TRANSACTION, fields, &[])
    }

    /// Pops at most 32 messages of any queue; waits up to `poll_ms` for them.
    pub fn pop(&mut self, group: &str, topic: &str, invisible_ms: u64, poll_ms: u64) -> Result<Frame> {
        self.request(POP_MESSAGE, pop_fields(group, topic, invisible_ms, poll_ms), &[])
    }

    /// Queues the acknowledgement of one popped message.
    pub fn queue_ack(&mut self, group: &str, topic: &str, handle: &Handle) -> i32 {
        self.queue_request(ACK_MESSAGE, handle_fields(group, topic, handle), &[])
    }

    /// Queues the acknowledgement of several popped messages.
    pub fn queue_batch_ack(&mut self, group: &str, topic: &str, broker: &str, handles: &[Handle]) -> i32 {
        self.queue_request(BATCH_ACK_MESSAGE, json!({}), &batch_ack_body(group, topic, broker, handles))
    }

    /// Changes the invisible time of a popped message, counted from now.
    pub fn change_invisible(&mut self, group: &str, topic: &str, handle: &Handle, ms: u64) -> Result<Frame> {
        let mut fields = handle_fields(group, topic, handle);
        fields["invisibleTime"] = ms.to_string().into();
        self.request(CHANGE_INVISIBLE_TIME, fields, &[])
    }
}

/// The header fields of a pop of at most 32 messages of any queue.
pub fn pop_fields(group: &str, topic: &str, invisible_ms: u64, poll_ms: u64) -> Value {
    json!({
        "consumerGroup": group, "topic": topic, "queueId": "-1", "maxMsgNums": "32", "initMode": "0",
        "invisibleTime": invisible_ms.to_string(), "pollTime": poll_ms.to_string(),
        "bornTime": crate::clock::now_ms().to_string(), "expType": "TAG", "exp": "*", "order": "false",
    })
}

fn handle_fields(group: &str, topic: &str, handle: &Handle) -> Value {
    let (queue, offset) = handle.place();
    json!({
        "consumerGroup": group, "topic": handle.topic(topic, group), "queueId": queue.to_string(),
        "offset": offset.to_string(), "extraInfo": handle.words.join(" "),
    })
}

fn lock_body(client: &str, group: &str, broker: &str, queues: &[Queue]) -> Vec<u8> {
    let queues: Vec<Value> =
        queues.iter().map(|(topic, queue)| json!({"topic": topic, "brokerName": broker, "queueId": queue})).collect();
    let body = json!({"clientId": client, "consumerGroup": group, "mqSet": queues, "onlyThisBroker": false});
    body.to_string().into_bytes()
}

/// The body of a batch ack: one item for each check point, with a bit for each acknowledged offset behind its start.
pub fn batch_ack_body(group: &str, topic: &str, broker: &str, handles: &[Handle]) -> Vec<u8> {
    let mut items: BTreeMap<Vec<&str>, Vec<u64>> = BTreeMap::new();
    for handle in handles {
        let check_point = handle.words[..7].iter().map(String::as_str).collect();
        let start = handle.number(0).unwrap_or(0);
        items.entry(check_point).or_default().push(handle.place().1.saturating_sub(start));
    }
    let acks: Vec<Value> = items
        .into_iter()
        .map(|(words, bits)| {
            let number = |word: usize| words[word].parse::<u64>().unwrap_or(0);
            json!({
                "c": group, "t": topic, "r": words[4], "so": number(0), "q": number(6), "rq": number(3),
                "pt": number(1), "it": number(2), "b": base64(&bit_set(&bits)),
            })
        })
        .collect();
    json!({"brokerName": broker, "acks": acks}).to_string().into_bytes()
}

/// Bits by their numbers, the first of a byte in its lowest bit. A check point has at most 32 of them.
fn bit_set(bits: &[u64]) -> Vec<u8> {
    let mut bytes = vec![0; bits.iter().max().map_or(0, |max| *max as usize / 8 + 1)];
    for bit in bits {
        bytes[*bit as usize / 8] |= 1 << (bit % 8);
    }
    bytes
}

/// The standard alphabet, padded.
pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let word = three.iter().fold(0_u32, |w, b| w << 8 | u32::from(*b)) << (8 * (3 - three.len()));
        for digit in 0..4 {
            let known = digit <= three.len();
            text.push(if known { char::from(DIGITS[(word >> (18 - 6 * digit)) as usize & 63]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_name_the_place_of_their_record() {
        let handle = Handle::parse("100 1700000000000 60000 3 0 broker-a 2 107").unwrap();
        assert_eq!(handle.visible_at(), 1_700_000_060_000);
        assert_eq!((handle.place(), handle.is_retry()), ((2, 107), false));
        assert_eq!(handle.topic("t", "g"), "t");
        let retry = |kind: &str| Handle::parse(&format!("0 1 2 3 {kind} broker-a 0 0")).unwrap().topic("t", "g");
        assert_eq!((retry("1"), retry("2")), ("%RETRY%g_t".into(), "%RETRY%g+t".into()));
        for bad in ["", "1 2 3", "a b c d e f g h"] {
            assert!(Handle::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_batch_ack_has_an_item_for_each_check_point() {
        let handles =
            ["100 5 6 7 0 b 2 101", "100 5 6 7 0 b 2 108", "0 5 6 7 1 b 0 0"].map(|h| Handle::parse(h).unwrap());
        let body: Value = serde_json::from_slice(&batch_ack_body("g", "t", "b", &handles)).unwrap();
        let acks = body["acks"].as_array().unwrap();
        assert_eq!(acks.len(), 2);
        // Bits 1 and 8.
        assert_eq!((&acks[1]["so"], &acks[1]["b"]), (&json!(100), &json!("AgE=")));
        assert_eq!((&acks[0]["r"], &acks[0]["b"]), (&json!("1"), &json!("AQ==")));
    }

    #[test]
    fn base64_is_padded() {
        for (bytes, text) in
            [(&b""[..], ""), (b"f", "Zg=="), (b"fo", "Zm8="), (b"foo", "Zm9v"), (b"foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(bytes), text);
        }
    }
}
