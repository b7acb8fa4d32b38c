//! A producer of transactions: it commits, rolls back, or leaves open and answers when the broker asks.

use std::collections::HashMap;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use simulator::history::{Answer, Check, MessageId, Sender, Sent, Topic, Visibility, body};

use super::world::{Outcome, Part, Phase, Random, World};
use crate::client::requests::{CHECK_TRANSACTION_STATE, Ending, PREPARED, Transaction};
use crate::client::{Connection, Frame, records};
use crate::clock::now_ms;

/// Half messages under way at a time, and the pause between two such windows.
const WINDOW: usize = 8;
const PAUSE: Duration = Duration::from_millis(100);

/// The producer and what it knows of its transactions.
pub struct Producer<'a> {
    world: &'a World,
    number: usize,
    group: &'static str,
    queues: u32,
    sender: Sender,
    endings: Vec<Plan>,
    random: Random,
}

/// How a transaction ends, decided before it begins.
#[derive(Debug, Clone, Copy)]
struct Plan {
    ending: Ending,
    /// Not said at once, but so many questions later.
    left_open: u32,
}

impl<'a> Producer<'a> {
    /// A producer with its number among the senders.
    pub fn new(world: &'a World, number: usize, group: &'static str, topic: Topic, queues: u32) -> Producer<'a> {
        let sender = Sender { topic, sent: Vec::new() };
        let random = Random::new(world.seed, number as u64);
        Producer { world, number, group, queues, sender, endings: Vec::new(), random }
    }

    /// Sends until the load is over, and answers until the run is.
    pub fn run(mut self) -> Outcome {
        while let Some(mut c) = self.world.connect() {
            while self.world.phase() != Phase::Over {
                if !self.round(&mut c)? {
                    break;
                }
                sleep(PAUSE);
            }
        }
        Ok(Part { senders: vec![(self.number, self.sender)], ..Part::default() })
    }

    /// False when the connection broke.
    fn round(&mut self, c: &mut Connection) -> Result<bool> {
        if c.heartbeat("soak-producer", Some(self.group), None).is_err() {
            return Ok(false);
        }
        if self.world.phase() == Phase::Load && !self.begin(c)? {
            return Ok(false);
        }
        let asked = c.take_asked();
        self.answer_checks(c, asked)
    }

    /// Sends half messages and ends those that are not left open.
    fn begin(&mut self, c: &mut Connection) -> Result<bool> {
        let mut waiting = HashMap::new();
        for _ in 0..WINDOW {
            let id = MessageId { sender: self.number, number: self.sender.sent.len() };
            let queue = id.number as u32 % self.queues;
            let plan = self.plan();
            self.endings.push(plan);
            self.sender.sent.push(Sent { visible: Visibility::Never, ..Sent::once(queue) });
            let key = key(id);
            let properties = format!("TRAN_MSG\u{1}true\u{2}PGROUP\u{1}{}\u{2}UNIQ_KEY\u{1}{key}\u{2}", self.group);
            let opaque = c.queue_message(self.sender.topic, queue, &properties, PREPARED, &body(id));
            waiting.insert(i64::from(opaque), id);
        }
        if c.flush().is_err() {
            return Ok(false);
        }
        let mut to_end = Vec::new();
        while !waiting.is_empty() {
            let Ok(answer) = c.receive() else { return Ok(false) };
            let id = waiting.remove(&answer.opaque).context("an answer to no request")?;
            if self.world.accepted("half message", &answer) {
                self.sender.sent[id.number].answer = Answer::Stored(None);
                to_end.push((id, self.transaction(id, answer.number("queueOffset")?, answer.physical_offset()?)));
            }
        }
        let mut ends = Vec::new();
        for (id, transaction) in to_end {
            let plan = self.endings[id.number];
            if plan.left_open > 0 {
                self.sender.sent[id.number].check = Check::Awaited;
                c.queue_end(&transaction, Ending::Open, false);
            } else {
                ends.push((id, transaction));
            }
        }
        self.end(c, &ends, false)
    }

    fn plan(&mut self) -> Plan {
        let ending = if self.random.below(10) < 7 { Ending::Commit } else { Ending::Rollback };
        let left_open = if self.random.below(10) == 0 { 1 + (self.random.below(4) / 3) as u32 } else { 0 };
        Plan { ending, left_open }
    }

    fn transaction(&self, id: MessageId, half_offset: u64, physical: u64) -> Transaction {
        Transaction { group: self.group, topic: self.sender.topic, half_offset, physical, key: key(id) }
    }

    /// Commits and rolls back as planned. False when the connection broke.
    fn end(&mut self, c: &mut Connection, ends: &[(MessageId, Transaction)], from_check: bool) -> Result<bool> {
        let mut waiting = HashMap::new();
        for (id, transaction) in ends {
            let ending = self.endings[id.number].ending;
            let sent = &mut self.sender.sent[id.number];
            if ending == Ending::Commit && sent.visible == Visibility::Never {
                sent.visible = Visibility::From(now_ms());
            }
            waiting.insert(i64::from(c.queue_end(transaction, ending, from_check)), *id);
        }
        if c.flush().is_err() {
            return Ok(false);
        }
        while !waiting.is_empty() {
            let Ok(answer) = c.receive() else { return Ok(false) };
            let id = waiting.remove(&answer.opaque).context("an answer to no request")?;
            self.world.accepted(&format!("end of transaction {}/{}", id.sender, id.number), &answer);
        }
        Ok(true)
    }

    /// Answers what the broker asked. False when the connection broke.
    fn answer_checks(&mut self, c: &mut Connection, asked: Vec<Frame>) -> Result<bool> {
        let mut ends = Vec::new();
        for check in asked.iter().filter(|frame| frame.code == CHECK_TRANSACTION_STATE) {
            self.world.arrived();
            let record = records::read(&check.body).context("reading a check")?.into_iter().next();
            let id = record.and_then(|r| r.identity().id()).filter(|id| id.sender == self.number);
            let Some(id) = id.filter(|id| id.number < self.endings.len()) else {
                self.world.refuse(format!("a check of a message that was never sent: {check:?}"));
                continue;
            };
            let (half_offset, physical) = (check.number("tranStateTableOffset")?, check.number("commitLogOffset")?);
            let transaction = self.transaction(id, half_offset, physical);
            let (sent, plan) = (&mut self.sender.sent[id.number], &mut self.endings[id.number]);
            sent.check = Check::Came;
            plan.left_open = plan.left_open.saturating_sub(1);
            if sent.answer == Answer::Unknown {
                // Its caller was told that the send failed.
                plan.ending = Ending::Rollback;
            }
            if plan.left_open > 0 {
                c.queue_end(&transaction, Ending::Open, true);
            } else {
                ends.push((id, transaction));
            }
        }
        self.end(c, &ends, true)
    }
}

fn key(id: MessageId) -> String {
    format!("SOAK{}X{}", id.sender, id.number)
}
