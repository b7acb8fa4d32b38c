//! Sends: single (310) or batches (320), answered or oneway, plain or delayed.

use std::sync::Arc;

use remoting::{RequestCode, SerializeType};

use super::stamp::{STAMP_BYTES, stamp};
use super::target::{Budget, Draws, Flow, Messages, Purse};
use crate::engine::{Asked, Now, Outcome, Recorder, Request, Work};
use crate::result::Kind;
use crate::wire::answer::Answer;
use crate::wire::template::{Field, Hole, Part, TEXTS, Template, Values, extend_body, fixed, hex, hole};

/// Flag of a request without an answer.
const ONEWAY: i32 = 2;
/// Bytes of the header's properties, and of names, at most.
const HEADER_BYTES: u64 = 400;
/// Templates that take turns when the order of fields varies.
const VARIANTS: usize = 64;

/// When a message becomes visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// At once.
    None,
    /// After a level of the broker's (1-18), which lasts so many milliseconds.
    Level {
        /// Its number.
        level: u32,
        /// How long it is by default.
        ms: u32,
    },
    /// At a time that the message names, so many milliseconds after its send.
    Timer {
        /// How much later.
        ms: u32,
    },
}

/// How messages are sent.
#[derive(Clone, Debug)]
pub struct SendOptions {
    /// Form of the headers.
    pub form: SerializeType,
    /// Messages of one request; 1: single sends.
    pub batch: u32,
    /// Whether the broker shall answer.
    pub oneway: bool,
    /// When messages become visible.
    pub delay: Delay,
    /// Puts the time into bodies, with this number of the run.
    pub stamp: Option<u64>,
    /// Varies names, lengths and the order of fields.
    pub vary: bool,
    /// Whether messages have a key of their own beside the unique one.
    pub keys: bool,
    /// Producer groups.
    pub groups: Arc<[String]>,
    /// Kind of the latency.
    pub kind: Kind,
    /// Where readers see how much is on its way.
    pub flow: Option<Arc<Flow>>,
}

/// Sends of one connection.
pub struct Sends {
    options: SendOptions,
    templates: Vec<Template>,
    draws: Draws,
    purse: Purse,
    batch_body: Vec<u8>,
    /// Ends after so many messages.
    left: u64,
    is_paced: bool,
}

const TOPIC: usize = 0;
const TAG: usize = 1;
const GROUP: usize = 2;

/// The header fields of a send, by RocketMQ's short names.
pub fn send_fields(properties: Vec<Part>, sys_flag: i32, batch: bool) -> Vec<Field> {
    vec![
        hole("a", Hole::Text(GROUP)),
        hole("b", Hole::Text(TOPIC)),
        fixed("c", "TBW102"),
        fixed("d", 4),
        hole("e", Hole::Queue),
        fixed("f", sys_flag),
        hole("g", Hole::BornMs),
        fixed("h", 0),
        ("i", properties),
        fixed("j", 0),
        fixed("k", false),
        fixed("m", batch),
    ]
}

/// A property.
fn property(name: &str, value: Part, into: &mut Vec<Part>) {
    into.extend([Part::Fixed(format!("{name}\u{1}")), value, Part::Fixed("\u{2}".into())]);
}

/// The properties that clients set, and more; `key`: what the message's own key begins with. The unique key is a host, a process and a number, as theirs.
pub fn properties(tags: bool, key: Option<&str>, more: Vec<(&str, Part)>) -> Vec<Part> {
    let mut parts = vec![
        Part::Fixed("UNIQ_KEY\u{1}7F0000010000A13B".into()),
        Part::Hole(Hole::Unique),
        Part::Fixed("\u{2}".into()),
    ];
    property("WAIT", Part::Fixed("true".into()), &mut parts);
    if tags {
        property("TAGS", Part::Hole(Hole::Text(TAG)), &mut parts);
    }
    if let Some(key) = key {
        parts.push(Part::Fixed(format!("KEYS\u{1}{key}")));
        parts.extend([Part::Hole(Hole::Unique), Part::Fixed("\u{2}".into())]);
    }
    more.into_iter().for_each(|(name, value)| property(name, value, &mut parts));
    parts
}

impl Sends {
    /// The sends of connection `number`: of what `messages` says, paid from `budget`.
    pub fn new(options: SendOptions, messages: Messages, number: u32, budget: &Arc<Budget>) -> Sends {
        let mut draws = Draws::new(messages, number);
        let tags = !draws.messages.tags.is_empty();
        let more = match options.delay {
            Delay::None => Vec::new(),
            Delay::Level { level, .. } => vec![("DELAY", Part::Fixed(level.to_string()))],
            Delay::Timer { .. } => vec![("TIMER_DELIVER_MS", Part::Hole(Hole::Other))],
        };
        let is_batch = options.batch > 1;
        let code = if is_batch { RequestCode::SendBatchMessage } else { RequestCode::SendMessageV2 };
        let flag = if options.oneway { ONEWAY } else { 0 };
        let count = if options.vary { VARIANTS } else { 1 };
        let mut template = |n: usize| {
            let key = "key-of-a-length-of-its-own"[..1 + n % 25].to_owned();
            let key = (options.keys || n > 0).then_some(key.as_str());
            let parts = if is_batch { Vec::new() } else { properties(tags, key, more.clone()) };
            let mut fields = send_fields(parts, 0, is_batch);
            fix_single(&mut fields, &draws, &options.groups);
            if n > 0 {
                shuffle(&mut fields, &mut draws);
            }
            Template::new(options.form, code, flag, &fields)
        };
        let templates = (0..count).map(&mut template).collect();
        let purse = Purse::new(budget);
        Sends { options, templates, draws, purse, batch_body: Vec::new(), left: u64::MAX, is_paced: true }
    }

    /// The same, but only so many messages, as fast as it goes.
    #[must_use]
    pub fn up_to(mut self, messages: u64) -> Sends {
        self.left = messages;
        self.is_paced = false;
        self
    }

    /// The body of a batch: each message with its length, no flags, no checksum and its own properties.
    fn fill_batch(&mut self, first: u64, first_size: u32, from_ns: u64) -> u64 {
        let (mut number, mut size, mut bytes) = (first, first_size, 0);
        let mut body = std::mem::take(&mut self.batch_body);
        body.clear();
        for n in 0..self.options.batch {
            if n > 0 {
                let draw = self.draws.draw_member();
                (number, size) = (draw.number, draw.size);
            }
            let properties = b"UNIQ_KEY\x017F0000010000A13B";
            let properties_len = properties.len() + 17;
            body.extend_from_slice(&(22 + size + properties_len as u32).to_be_bytes());
            body.extend_from_slice(&[0; 12]);
            body.extend_from_slice(&size.to_be_bytes());
            let at = body.len();
            body.extend_from_slice(self.draws.messages.bodies.get(number, size));
            self.put_stamp(&mut body[at..], from_ns);
            body.extend_from_slice(&(properties_len as u16).to_be_bytes());
            body.extend_from_slice(properties);
            body.extend_from_slice(&hex(number));
            body.push(2);
            bytes += u64::from(size);
        }
        self.batch_body = body;
        bytes
    }

    fn put_stamp(&self, body: &mut [u8], from_ns: u64) {
        if let Some(run) = self.options.stamp {
            let delay_ms = match self.options.delay {
                Delay::None => 0,
                Delay::Level { ms, .. } | Delay::Timer { ms } => ms,
            };
            let due_ns = from_ns + u64::from(delay_ms) * 1_000_000;
            body[..STAMP_BYTES as usize].copy_from_slice(&stamp(run, due_ns));
        }
    }
}

/// Names of which there is but one need no hole.
fn fix_single(fields: &mut [Field], draws: &Draws, groups: &[String]) {
    let names = [&draws.messages.topics[..], &draws.messages.tags, groups];
    for part in fields.iter_mut().flat_map(|(_, parts)| parts) {
        if let Part::Hole(Hole::Text(place)) = part
            && let Some([only]) = names.get(*place)
        {
            *part = Part::Fixed(only.clone());
        }
    }
}

fn shuffle(fields: &mut [Field], draws: &mut Draws) {
    for n in (1..fields.len()).rev() {
        fields.swap(n, draws.below(n as u32 + 1) as usize);
    }
}

impl Work for Sends {
    fn is_paced(&self) -> bool {
        self.is_paced
    }

    fn is_exhausted(&self) -> bool {
        self.left < u64::from(self.options.batch.max(1))
    }

    fn ask(&mut self, opaque: i32, began_ns: u64, now: Now, out: &mut Vec<u8>) -> Option<Request> {
        let messages = self.options.batch.max(1);
        if self.is_exhausted() {
            return None;
        }
        let most = u64::from(messages) * (u64::from(self.draws.messages.sizes.max()) + HEADER_BYTES);
        let copies = if self.options.delay == Delay::None { 1 } else { 3 };
        if !self.purse.pay(u64::from(messages), most, copies) {
            return None;
        }
        self.left -= u64::from(messages);
        let draw = self.draws.draw();
        // A timer's message names its time, which counts from now; a level counts from the send as it was meant.
        let from_ns = if matches!(self.options.delay, Delay::Timer { .. }) { now.ns } else { began_ns };
        let bytes = match messages {
            1 => u64::from(draw.size),
            _ => self.fill_batch(draw.number, draw.size, from_ns),
        };
        let variant = if self.templates.len() > 1 { self.draws.below(self.templates.len() as u32) as usize } else { 0 };
        let groups = &self.options.groups;
        let group = &groups[if groups.len() > 1 { draw.number as usize % groups.len() } else { 0 }];
        let mut texts: [&[u8]; TEXTS] = [&[]; TEXTS];
        texts[TOPIC] = self.draws.topic(&draw).as_bytes();
        texts[TAG] = self.draws.tag(&draw).as_bytes();
        texts[GROUP] = group.as_bytes();
        let other = match self.options.delay {
            Delay::Timer { ms } => now.wall_ms + i64::from(ms),
            _ => 0,
        };
        let (queue, unique, born_ms) = (draw.queue, draw.number, now.wall_ms);
        let values = Values { opaque, queue, unique, number: 0, other, born_ms, texts };
        let start = out.len();
        self.templates[variant].write(out, &values, &[]);
        let at = out.len();
        if messages == 1 {
            out.extend_from_slice(self.draws.messages.bodies.get(draw.number, draw.size));
            self.put_stamp(&mut out[at..], from_ns);
        } else {
            out.extend_from_slice(&self.batch_body);
        }
        extend_body(out, start);
        if let Some(flow) = &self.options.flow {
            flow.asked(u64::from(messages));
        }
        let answered = !self.options.oneway;
        Some(Request { kind: self.options.kind, tag: 0, messages, bytes: bytes as u32, answered, hold_ms: 0 })
    }

    fn answer(&mut self, asked: &Asked, code: i32, _: &Answer<'_>, _: Now, _: &mut Recorder) -> Outcome {
        match code {
            0 => Outcome::Done { messages: u64::from(asked.request.messages), bytes: u64::from(asked.request.bytes) },
            _ => {
                if let Some(flow) = &self.options.flow {
                    flow.failed(u64::from(asked.request.messages));
                }
                Outcome::Refused
            }
        }
    }
}
