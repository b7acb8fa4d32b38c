//! Pops and their acknowledgements, one for each message or one for all of a pop's queue.

use std::collections::VecDeque;
use std::io::Write as _;
use std::sync::Arc;

use remoting::{RequestCode, SerializeType};

use crate::engine::{Asked, Now, Outcome, Recorder, Request, Work};
use crate::result::Kind;
use crate::wire::answer::{Answer, integer};
use crate::wire::template::{Field, Hole, TEXTS, Template, Values, fixed, hole};

/// A pop gave nothing.
const NOTHING: [i32; 3] = [19, 209, 210];
/// Most messages of a pop.
pub const MAX_BATCH: u32 = 32;
/// Bits of a batch ack: messages farther from the first of their pop go one by one.
const MAX_BITS: u64 = 256;

/// What pops ask for.
#[derive(Clone, Debug)]
pub struct PopOptions {
    /// Topics; a connection pops one of them.
    pub topics: Arc<[String]>,
    /// The consumer group.
    pub group: String,
    /// Name of the broker, part of receipt handles.
    pub broker: String,
    /// Messages of a pop at most.
    pub batch: u32,
    /// How long popped messages stay invisible, ms.
    pub invisible_ms: u32,
    /// How long a pop may wait, ms.
    pub wait_ms: u32,
    /// One ack for all messages of a pop's queue, not one for each.
    pub batch_ack: bool,
}

/// The messages of one queue in a pop, which wait for their ack.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Popped {
    /// 0: the topic, 1 and 2: the group's retry topic by its old or new name.
    retry: u8,
    queue: u32,
    start: i64,
    pop_ms: i64,
    invisible_ms: i64,
    revive: i64,
    offsets: [i64; MAX_BATCH as usize],
    count: usize,
}

/// Pops of one connection.
pub struct Pops {
    options: PopOptions,
    topic: usize,
    /// -1: any queue.
    queue: i64,
    pop: Template,
    ack: Template,
    batch_ack: Template,
    popped: VecDeque<Popped>,
    /// Retry topics by [`Popped::retry`] - 1.
    retry_topics: [String; 2],
    text: Vec<u8>,
}

impl Pops {
    /// Pops of one of the topics, of a queue of it or of any (-1).
    pub fn new(options: PopOptions, topic: usize, queue: i64) -> Pops {
        // Codes of POP do not fit into the compact form.
        let new = |code, fields: &[Field]| Template::new(SerializeType::Json, code, 0, fields);
        let pop = [
            fixed("consumerGroup", &options.group),
            hole("topic", Hole::Text(0)),
            hole("queueId", Hole::Other),
            fixed("maxMsgNums", options.batch),
            fixed("invisibleTime", options.invisible_ms),
            fixed("pollTime", options.wait_ms),
            hole("bornTime", Hole::BornMs),
            fixed("initMode", 0),
            fixed("expType", "TAG"),
            fixed("exp", "*"),
            fixed("order", false),
        ];
        let ack = [
            fixed("consumerGroup", &options.group),
            hole("topic", Hole::Text(0)),
            hole("queueId", Hole::Queue),
            hole("extraInfo", Hole::Text(1)),
            hole("offset", Hole::Number),
        ];
        let name = &options.topics[topic];
        let retry_topics = ['_', '+'].map(|joint| format!("%RETRY%{}{joint}{name}", options.group));
        Pops {
            pop: new(RequestCode::PopMessage, &pop),
            ack: new(RequestCode::AckMessage, &ack),
            batch_ack: new(RequestCode::BatchAckMessage, &[]),
            options,
            topic,
            queue,
            popped: VecDeque::new(),
            retry_topics,
            text: Vec::new(),
        }
    }

    fn topic_of(&self, retry: u8) -> &str {
        match retry {
            1 | 2 => &self.retry_topics[usize::from(retry) - 1],
            _ => &self.options.topics[self.topic],
        }
    }

    /// Takes the lists of an answer; how many messages they name. `None`: they make no sense.
    fn take(&mut self, answer: &Answer<'_>) -> Option<u64> {
        let base = Popped {
            retry: 0,
            queue: 0,
            start: 0,
            pop_ms: answer.number("popTime")?,
            invisible_ms: answer.number("invisibleTime")?,
            revive: answer.number("reviveQid")?,
            offsets: [0; MAX_BATCH as usize],
            count: 0,
        };
        let (starts, lists) = (answer.text("startOffsetInfo")?, answer.text("msgOffsetInfo")?);
        let mut total = 0;
        for list in lists.split(|b| *b == b';').filter(|list| !list.is_empty()) {
            let (place, offsets) = last_word(list)?;
            let start = starts.split(|b| *b == b';').find_map(|item| {
                let (of, start) = last_word(item)?;
                (of == place).then(|| integer(start))?
            })?;
            let (retry, queue) = last_word(place)?;
            let mut popped = base.clone();
            popped.retry = u8::try_from(integer(retry)?).ok()?;
            popped.queue = u32::try_from(integer(queue)?).ok()?;
            popped.start = start;
            for offset in offsets.split(|b| *b == b',') {
                *popped.offsets.get_mut(popped.count)? = integer(offset)?;
                popped.count += 1;
            }
            total += popped.count as u64;
            self.popped.push_back(popped);
        }
        Some(total)
    }

    fn write_batch_ack(&mut self, popped: &Popped, opaque: i32, out: &mut Vec<u8>) {
        let mut bits = [0u8; (MAX_BITS / 8) as usize];
        let mut used = 0;
        for offset in &popped.offsets[..popped.count] {
            let bit = (offset - popped.start) as usize;
            bits[bit / 8] |= 1 << (bit % 8);
            used = used.max(bit / 8 + 1);
        }
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        let PopOptions { broker, group, .. } = &self.options;
        let (topic, Popped { queue, start, pop_ms, invisible_ms, revive, retry, .. }) =
            (&self.options.topics[self.topic], popped);
        let _ = write!(text, "{{\"brokerName\":\"{broker}\",\"acks\":[{{\"b\":\"");
        base64(&bits[..used], &mut text);
        let _ = write!(
            text,
            "\",\"c\":\"{group}\",\"it\":{invisible_ms},\"pt\":{pop_ms},\"q\":{queue},\"r\":\"{retry}\",\"rq\":{revive},\
             \"so\":{start},\"t\":\"{topic}\"}}]}}"
        );
        self.batch_ack.write(out, &Values { opaque, ..Values::default() }, &text);
        self.text = text;
    }

    fn write_ack(&mut self, popped: &Popped, offset: i64, opaque: i32, out: &mut Vec<u8>) {
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        let Popped { queue, start, pop_ms, invisible_ms, revive, retry, .. } = popped;
        let broker = &self.options.broker;
        let _ = write!(text, "{start} {pop_ms} {invisible_ms} {revive} {retry} {broker} {queue} {offset}");
        let mut texts: [&[u8]; TEXTS] = [&[]; TEXTS];
        texts[0] = self.topic_of(*retry).as_bytes();
        texts[1] = &text;
        self.ack.write(out, &Values { opaque, queue: *queue, number: offset, texts, ..Values::default() }, &[]);
        self.text = text;
    }
}

/// What is before and behind the last blank.
fn last_word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().rposition(|b| *b == b' ')?;
    Some((&text[..at], &text[at + 1..]))
}

/// Whether all of it fits the bits of one batch ack.
fn fits_bits(popped: &Popped) -> bool {
    popped.offsets[..popped.count].iter().all(|offset| (0..MAX_BITS as i64).contains(&(offset - popped.start)))
}

/// The standard alphabet, padded.
fn base64(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for three in bytes.chunks(3) {
        let word = three.iter().fold(0u32, |word, b| word << 8 | u32::from(*b)) << (8 * (3 - three.len()));
        for digit in 0..4 {
            let known = digit <= three.len();
            out.push(if known { DIGITS[(word >> (18 - 6 * digit)) as usize & 63] } else { b'=' });
        }
    }
}

impl Work for Pops {
    fn ask(&mut self, opaque: i32, _: u64, now: Now, out: &mut Vec<u8>) -> Option<Request> {
        let mut texts: [&[u8]; TEXTS] = [&[]; TEXTS];
        texts[0] = self.options.topics[self.topic].as_bytes();
        let values = Values { opaque, other: self.queue, born_ms: now.wall_ms, texts, ..Values::default() };
        self.pop.write(out, &values, &[]);
        let hold_ms = self.options.wait_ms;
        Some(Request { kind: Kind::Pop, tag: 0, messages: 0, bytes: 0, answered: true, hold_ms })
    }

    fn follow(&mut self, opaque: i32, now: Now, out: &mut Vec<u8>) -> Option<(Request, u64)> {
        let mut popped = self.popped.pop_front()?;
        let mut messages = popped.count as u32;
        if self.options.batch_ack && fits_bits(&popped) {
            self.write_batch_ack(&popped, opaque, out);
        } else {
            messages = 1;
            popped.count -= 1;
            let offset = popped.offsets[popped.count];
            self.write_ack(&popped, offset, opaque, out);
            if popped.count > 0 {
                self.popped.push_front(popped);
            }
        }
        let request = Request { kind: Kind::Ack, tag: 0, messages, bytes: 0, answered: true, hold_ms: 0 };
        Some((request, now.ns))
    }

    fn answer(&mut self, asked: &Asked, code: i32, answer: &Answer<'_>, _: Now, _: &mut Recorder) -> Outcome {
        if asked.request.kind == Kind::Ack {
            let messages = u64::from(asked.request.messages);
            return if code == 0 { Outcome::Done { messages, bytes: 0 } } else { Outcome::Refused };
        }
        if NOTHING.contains(&code) {
            return Outcome::Nothing;
        }
        match (code, self.take(answer)) {
            (0, Some(messages)) => Outcome::Done { messages, bytes: answer.body_len as u64 },
            _ => Outcome::Refused,
        }
    }

    fn reconnected(&mut self) {
        self.popped.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use remoting::Command;

    fn pops(batch_ack: bool) -> Pops {
        let (topics, group, broker) = (["t".to_owned()].into(), "g".to_owned(), "b".to_owned());
        let options = PopOptions { topics, group, broker, batch: 32, invisible_ms: 60_000, wait_ms: 0, batch_ack };
        Pops::new(options, 0, -1)
    }

    fn take(pops: &mut Pops, lists: &str) -> Option<u64> {
        let command = Command::response(remoting::ResponseCode::Success, 1, SerializeType::Json)
            .with_field("popTime", 1_000)
            .with_field("invisibleTime", 60_000)
            .with_field("reviveQid", 3)
            .with_field("startOffsetInfo", "0 2 100;1 0 5")
            .with_field("msgOffsetInfo", lists);
        let frame = command.to_frame();
        let header = remoting::frame::split(&frame).unwrap().header;
        pops.take(&Answer { form: SerializeType::Json, header, body: &[], body_len: 0 })
    }

    #[test]
    fn one_ack_for_each_queue_of_a_pop() {
        let mut pops = pops(true);
        assert_eq!(take(&mut pops, "0 2 100,101,108;1 0 5"), Some(4));
        let mut out = Vec::new();
        let (request, _) = pops.follow(7, Now::default(), &mut out).unwrap();
        assert_eq!(request.messages, 3);
        let command = Command::decode(&out).unwrap();
        assert_eq!((command.code, command.opaque), (200_151, 7));
        let body: serde_json::Value = serde_json::from_slice(&command.body).unwrap();
        let ack = &body["acks"][0];
        assert_eq!((&ack["b"], &ack["so"], &ack["q"]), (&"AwE=".into(), &100.into(), &2.into()));
        assert_eq!(
            (&ack["pt"], &ack["it"], &ack["rq"], &ack["r"]),
            (&1_000.into(), &60_000.into(), &3.into(), &"0".into())
        );
        assert!(
            pops.follow(8, Now::default(), &mut out).is_some() && pops.follow(9, Now::default(), &mut out).is_none()
        );
    }

    #[test]
    fn one_ack_for_each_message() {
        let mut pops = pops(false);
        assert_eq!(take(&mut pops, "0 2 100,101;1 0 5"), Some(3));
        let mut seen = Vec::new();
        let mut out = Vec::new();
        while pops.follow(1, Now::default(), &mut out).is_some() {
            let command = Command::decode(&out).unwrap();
            seen.push((command.ext.get("topic").unwrap().to_owned(), command.ext.get("extraInfo").unwrap().to_owned()));
            out.clear();
        }
        assert_eq!(
            seen,
            [
                ("t".to_owned(), "100 1000 60000 3 0 b 2 101".to_owned()),
                ("t".to_owned(), "100 1000 60000 3 0 b 2 100".to_owned()),
                ("%RETRY%g_t".to_owned(), "5 1000 60000 3 1 b 0 5".to_owned()),
            ]
        );
    }

    #[test]
    fn lists_that_make_no_sense_are_refused() {
        for bad in ["0 7 1", "x", "0 2 a", "9999 2 1", "0 2 100,"] {
            assert_eq!(take(&mut pops(true), bad), None, "{bad}");
        }
        let long = format!("0 2 {}", (0..33).map(|n| n.to_string()).collect::<Vec<_>>().join(","));
        assert_eq!(take(&mut pops(true), &long), None);
        let mut far = pops(true);
        assert_eq!(take(&mut far, "0 2 100,400"), Some(2));
        let mut out = Vec::new();
        assert_eq!(far.follow(1, Now::default(), &mut out).map(|f| f.0.messages), Some(1), "no bit for it");
    }
}
