//! Pulls: of what lies there, several at once, or long polls that wait for what comes.

use std::collections::VecDeque;
use std::sync::Arc;

use message::record::RecordView;
use remoting::{RequestCode, SerializeType};

use super::stamp;
use super::target::Flow;
use crate::engine::{Asked, Now, Outcome, Recorder, Request, Work};
use crate::result::Kind;
use crate::wire::answer::Answer;
use crate::wire::template::{Hole, TEXTS, Template, Values, fixed, hole};

/// The subscription is in the header.
const SUBSCRIPTION: i32 = 4;
/// The answer may be kept back.
const SUSPEND: i32 = 2;
const PULL_NOT_FOUND: i32 = 19;
const PULL_RETRY_IMMEDIATELY: i32 = 20;
const PULL_OFFSET_MOVED: i32 = 21;
/// A pull that was refused is not asked again before.
const PAUSE_NS: u64 = 100_000_000;

/// A queue and how far it goes.
#[derive(Clone, Copy, Debug)]
pub struct QueueEnd {
    /// Place of the topic.
    pub topic: u32,
    /// Queue.
    pub queue: u32,
    /// Offset behind its last message.
    pub end: u64,
}

/// What pulls ask for.
#[derive(Clone, Debug)]
pub struct PullOptions {
    /// Form of the headers.
    pub form: SerializeType,
    /// The topics.
    pub topics: Arc<[String]>,
    /// The consumer group.
    pub group: String,
    /// Messages of a pull at most.
    pub batch: u32,
    /// How long a pull may wait for messages, in ms; 0: not at all.
    pub wait_ms: u32,
}

fn template(options: &PullOptions) -> Template {
    let sys_flag = if options.wait_ms > 0 { SUSPEND | SUBSCRIPTION } else { SUBSCRIPTION };
    let fields = [
        fixed("consumerGroup", &options.group),
        hole("topic", Hole::Text(0)),
        hole("queueId", Hole::Queue),
        hole("queueOffset", Hole::Number),
        fixed("maxMsgNums", options.batch),
        fixed("sysFlag", sys_flag),
        fixed("commitOffset", 0),
        fixed("suspendTimeoutMillis", options.wait_ms),
        fixed("subscription", "*"),
        fixed("subVersion", 0),
        fixed("expressionType", "TAG"),
    ];
    Template::new(options.form, RequestCode::PullMessage, 0, &fields)
}

fn values<'a>(topics: &'a [String], opaque: i32, queue: &QueueEnd, offset: u64) -> Values<'a> {
    let mut texts: [&[u8]; TEXTS] = [&[]; TEXTS];
    texts[0] = topics[queue.topic as usize].as_bytes();
    Values { opaque, queue: queue.queue, number: offset as i64, texts, ..Values::default() }
}

/// How many messages an answer to a pull at `offset` holds: with the subscription `*` all up to the next offset.
fn pulled(answer: &Answer<'_>, offset: u64) -> u64 {
    answer.number("nextBeginOffset").map_or(0, |next| (next.max(0) as u64).saturating_sub(offset))
}

/// Pulls of filled queues, over and over.
pub struct Pulls {
    options: PullOptions,
    template: Template,
    queues: Vec<QueueEnd>,
    place: usize,
    offset: u64,
}

impl Pulls {
    /// Pulls of these queues, which hold at least one message each, beginning in the first one at `offset`.
    pub fn new(options: PullOptions, queues: Vec<QueueEnd>, offset: u64) -> Pulls {
        Pulls { template: template(&options), options, queues, place: 0, offset }
    }
}

impl Work for Pulls {
    fn ask(&mut self, opaque: i32, _: u64, _: Now, out: &mut Vec<u8>) -> Option<Request> {
        let queue = *self.queues.get(self.place)?;
        let offset = self.offset.min(queue.end.saturating_sub(1));
        self.template.write(out, &values(&self.options.topics, opaque, &queue, offset), &[]);
        self.offset += u64::from(self.options.batch);
        // The last pull of a queue would give less than was asked for.
        if self.offset + u64::from(self.options.batch) > queue.end {
            self.offset = 0;
            self.place = (self.place + 1) % self.queues.len();
        }
        Some(Request { kind: Kind::Pull, tag: offset, messages: 0, bytes: 0, answered: true, hold_ms: 0 })
    }

    fn answer(&mut self, asked: &Asked, code: i32, answer: &Answer<'_>, _: Now, _: &mut Recorder) -> Outcome {
        match code {
            0 => Outcome::Done { messages: pulled(answer, asked.request.tag), bytes: answer.body_len as u64 },
            _ => Outcome::Refused,
        }
    }
}

/// What a reader makes of the messages it gets.
#[derive(Clone, Debug)]
pub struct Stamps {
    /// Number of the run.
    pub run: u64,
    /// [`Kind::EndToEnd`], or [`Kind::Delay`].
    pub kind: Kind,
}

/// A consumer: one long poll in flight for each of its queues.
pub struct Reader {
    options: PullOptions,
    template: Template,
    queues: Vec<QueueEnd>,
    /// Queues without a pull in flight.
    idle: VecDeque<u32>,
    not_before_ns: u64,
    stamps: Option<Stamps>,
    flow: Arc<Flow>,
}

impl Reader {
    /// A consumer of queues; the `end` of each is where it begins.
    pub fn new(options: PullOptions, queues: Vec<QueueEnd>, stamps: Option<Stamps>, flow: Arc<Flow>) -> Reader {
        let idle = (0..queues.len() as u32).collect();
        Reader { template: template(&options), options, queues, idle, not_before_ns: 0, stamps, flow }
    }

    /// Reads the records of a body. `false`: they cannot be read.
    fn read(&self, stamps: &Stamps, mut body: &[u8], now: Now, seen: &mut Recorder) -> bool {
        while !body.is_empty() {
            let Ok(record) = RecordView::parse(body) else { return false };
            body = &body[record.size() as usize..];
            let Some(from_ns) = stamp::read(stamps.run, record.body()) else { continue };
            if from_ns > now.ns {
                seen.came_early(from_ns - now.ns);
            }
            seen.done(stamps.kind, now.ns.saturating_sub(from_ns), 1, record.body().len() as u64);
        }
        true
    }
}

impl Work for Reader {
    fn is_paced(&self) -> bool {
        false
    }

    fn keeps_body(&self) -> bool {
        self.stamps.is_some()
    }

    fn outlasts(&self) -> bool {
        true
    }

    fn is_settled(&self) -> bool {
        self.flow.missing() == 0
    }

    fn ask(&mut self, opaque: i32, _: u64, now: Now, out: &mut Vec<u8>) -> Option<Request> {
        if now.ns < self.not_before_ns {
            return None;
        }
        let place = self.idle.pop_front()?;
        let queue = &self.queues[place as usize];
        self.template.write(out, &values(&self.options.topics, opaque, queue, queue.end), &[]);
        let hold_ms = self.options.wait_ms;
        Some(Request { kind: Kind::Pull, tag: u64::from(place), messages: 0, bytes: 0, answered: true, hold_ms })
    }

    fn answer(&mut self, asked: &Asked, code: i32, answer: &Answer<'_>, now: Now, seen: &mut Recorder) -> Outcome {
        let place = asked.request.tag as usize;
        self.idle.push_back(place as u32);
        let offset = self.queues[place].end;
        let next = answer.number("nextBeginOffset").map(|next| next.max(0) as u64);
        match (code, next) {
            (0, Some(next)) => {
                self.queues[place].end = next;
                let messages = next.saturating_sub(offset);
                self.flow.received(messages);
                let is_read = self.stamps.as_ref().is_none_or(|stamps| self.read(stamps, answer.body, now, seen));
                if is_read { Outcome::Done { messages, bytes: answer.body_len as u64 } } else { Outcome::Refused }
            }
            (PULL_NOT_FOUND | PULL_RETRY_IMMEDIATELY | PULL_OFFSET_MOVED, Some(next)) => {
                self.queues[place].end = next;
                Outcome::Nothing
            }
            _ => {
                self.not_before_ns = now.ns + PAUSE_NS;
                Outcome::Refused
            }
        }
    }

    fn reconnected(&mut self) {
        self.idle = (0..self.queues.len() as u32).collect();
    }
}
