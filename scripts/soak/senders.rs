//! Those who only send: plain and batched, with delay levels and timers, to be retried, to be popped; and the sender of
//! ordered messages, which repeats a send whose answer never came, as real clients do.

use std::collections::HashMap;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use simulator::history::{Answer, MessageId, Sender, Sent, Topic, Visibility, body};

use super::world::{Outcome, Part, Phase, Random, World};
use crate::client::Connection;
use crate::clock::now_ms;

/// Delay in ms of the levels that are used, from level 1 on: the first of the default `messageDelayLevel`.
pub const LEVELS: [u64; 4] = [1_000, 5_000, 10_000, 30_000];

/// What is sent along with each message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: single messages.
    Plain,
    /// Nothing: batches of so many.
    Batch(usize),
    /// A delay level.
    Level,
    /// A delay or a delivery time.
    Timer,
}

/// A sender that has several requests under way.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Its number among the senders of the history.
    pub sender: usize,
    /// Where it sends.
    pub topic: Topic,
    /// Over so many queues, one after the other.
    pub queues: u32,
    /// What it sends.
    pub kind: Kind,
    /// Requests in flight.
    pub window: usize,
    /// Between two windows.
    pub pause: Duration,
}

/// Sends until the load phase is over.
pub fn send(world: &World, load: &Load) -> Outcome {
    let mut random = Random::new(world.seed, load.sender as u64);
    let mut sender = Sender { topic: load.topic, sent: Vec::new() };
    'connections: while world.phase() == Phase::Load {
        let Some(mut connection) = world.connect() else { break };
        while world.phase() == Phase::Load {
            let waiting = queue_window(&mut connection, load, &mut random, &mut sender);
            if !take_answers(world, &mut connection, load, waiting, &mut sender)? {
                continue 'connections;
            }
            sleep(load.pause);
        }
    }
    Ok(Part { senders: vec![(load.sender, sender)], ..Part::default() })
}

/// Queues the requests of a window; gives the first number and count of the messages of each.
fn queue_window(c: &mut Connection, load: &Load, random: &mut Random, s: &mut Sender) -> HashMap<i64, (usize, usize)> {
    let mut waiting = HashMap::new();
    let count = if let Kind::Batch(count) = load.kind { count } else { 1 };
    for _ in 0..load.window {
        let first = s.sent.len();
        let queue = (first / count) as u32 % load.queues;
        let (properties, due) = properties(load.kind, random);
        s.sent.extend(vec![Sent { visible: Visibility::From(due), ..Sent::once(queue) }; count]);
        let bodies: Vec<Vec<u8>> =
            (first..first + count).map(|number| body(MessageId { sender: load.sender, number })).collect();
        let opaque = match bodies.as_slice() {
            [one] => c.queue_message(load.topic, queue, &properties, 0, one),
            several => c.queue_send(load.topic, queue, several),
        };
        waiting.insert(i64::from(opaque), (first, count));
    }
    waiting
}

/// False when the connection broke.
fn take_answers(
    world: &World,
    c: &mut Connection,
    load: &Load,
    mut waiting: HashMap<i64, (usize, usize)>,
    s: &mut Sender,
) -> Result<bool> {
    if c.flush().is_err() {
        return Ok(false);
    }
    while !waiting.is_empty() {
        let Ok(answer) = c.receive() else { return Ok(false) };
        let (first, count) = waiting.remove(&answer.opaque).context("an answer to no request")?;
        if !world.accepted(&format!("send of message {}/{first}", load.sender), &answer) {
            continue;
        }
        let offset = answer.number("queueOffset")?;
        let names_the_place = matches!(load.kind, Kind::Plain | Kind::Batch(_));
        for (sent, offset) in s.sent[first..first + count].iter_mut().zip(offset..) {
            sent.answer = Answer::Stored(names_the_place.then_some(offset));
        }
    }
    Ok(true)
}

/// Properties of a message, and when it is due at the earliest.
fn properties(kind: Kind, random: &mut Random) -> (String, u64) {
    let now = now_ms();
    match kind {
        Kind::Plain | Kind::Batch(_) => ("TAGS\u{1}TagA\u{2}".into(), 0),
        Kind::Level => {
            let level = random.below(LEVELS.len() as u64) as usize;
            (format!("TAGS\u{1}TagA\u{2}DELAY\u{1}{}\u{2}", level + 1), now + LEVELS[level])
        }
        Kind::Timer => {
            let delay = 1_000 + random.below(29_000);
            match random.below(3) {
                0 => (format!("TIMER_DELAY_MS\u{1}{delay}\u{2}"), now + delay),
                1 => (format!("TIMER_DELIVER_MS\u{1}{}\u{2}", now + delay), now + delay),
                _ => (format!("TIMER_DELAY_SEC\u{1}{}\u{2}", delay / 1_000), now + delay / 1_000 * 1_000),
            }
        }
    }
}

/// Sends one message after the other and repeats each until it is answered.
pub fn send_in_order(world: &World, sender: usize, topic: Topic, queues: u32) -> Outcome {
    let mut s = Sender { topic, sent: Vec::new() };
    let mut connection = world.connect();
    while world.phase() == Phase::Load {
        let number = s.sent.len();
        let queue = number as u32 % queues;
        let bytes = body(MessageId { sender, number });
        s.sent.push(Sent { attempts: 0, ..Sent::once(queue) });
        while let Some(c) = &mut connection {
            s.sent[number].attempts += 1;
            c.queue_message(topic, queue, "TAGS\u{1}TagA\u{2}", 0, &bytes);
            let Ok(answer) = c.flush().and_then(|()| c.receive()) else {
                connection = world.connect();
                continue;
            };
            if world.accepted(&format!("send of message {sender}/{number}"), &answer) {
                s.sent[number].answer = Answer::Stored(Some(answer.number("queueOffset")?));
                break;
            }
            sleep(Duration::from_millis(100));
        }
        sleep(Duration::from_millis(5));
    }
    Ok(Part { senders: vec![(sender, s)], ..Part::default() })
}
