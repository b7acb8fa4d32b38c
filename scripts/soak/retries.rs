//! A consumer that fails: it sends messages back with small delays, some until they are among the dead letters.

use std::collections::{BTreeMap, HashMap};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use simulator::history::{MessageId, Queue, SendBack, Topic};

use super::readers::pull;
use super::senders::LEVELS;
use super::world::{Outcome, Part, Phase, World};
use crate::client::{Connection, Record};
use crate::clock::now_ms;

/// Attempts after the first before a message is dead.
const MAX_TIMES: u32 = 2;
/// Between two heartbeats, in ms.
const HEARTBEAT: u64 = 5_000;

/// A group whose consumer fails.
#[derive(Debug, Clone, Copy)]
pub struct Retries {
    /// The group.
    pub group: &'static str,
    /// What it consumes, with the number of queues.
    pub source: (Topic, u32),
    /// `%RETRY%group`, of one queue.
    pub retries: Topic,
    /// `%DLQ%group`.
    pub dead_letters: Topic,
}

/// A record that must be sent back until a send-back is answered.
struct Failed {
    id: MessageId,
    topic: Topic,
    record: Record,
}

impl Retries {
    /// Consumes until the run is over.
    pub fn consume(&self, world: &World) -> Outcome {
        let mut part = Part::default();
        let mut next: BTreeMap<Queue, u64> = (0..self.source.1).map(|q| ((self.source.0, q), 0)).collect();
        next.insert((self.retries, 0), 0);
        let mut failed: Vec<Failed> = Vec::new();
        'connections: while let Some(mut c) = world.connect() {
            let mut heartbeat_at = 0;
            while world.phase() != Phase::Over {
                if now_ms() >= heartbeat_at {
                    let topics = [self.source.0, self.retries];
                    let beat = c.heartbeat("soak-retries", None, Some((self.group, &topics)));
                    if beat.is_err() {
                        sleep(Duration::from_millis(50));
                        continue 'connections;
                    }
                    heartbeat_at = now_ms() + HEARTBEAT;
                }
                if !self.send_back(world, &mut c, &mut failed, &mut part.history.send_backs)? {
                    continue 'connections;
                }
                for (queue, offset) in &mut next {
                    let Some(pulled) = pull(world, &mut c, *queue, *offset)? else { continue 'connections };
                    *offset = pulled.next;
                    for record in pulled.records {
                        part.history.glimpses.push(record.seen(queue.0));
                        world.arrived();
                        failed.extend(fails(queue.0, record));
                    }
                }
                sleep(Duration::from_millis(20));
            }
        }
        Ok(part)
    }

    /// Sends back all that failed and keeps what was not answered. False when the connection broke.
    fn send_back(
        &self,
        world: &World,
        c: &mut Connection,
        failed: &mut Vec<Failed>,
        done: &mut Vec<SendBack>,
    ) -> Result<bool> {
        if failed.is_empty() {
            return Ok(true);
        }
        let mut waiting = HashMap::new();
        for f in failed.drain(..) {
            let times = f.record.times;
            // The first attempt waits one or five seconds, those behind it one.
            let level = if times == 0 { 1 + f.id.number as u32 % 2 } else { 1 };
            let (to, not_before) = match times >= MAX_TIMES {
                true => (self.dead_letters, 0),
                false => (self.retries, now_ms() + LEVELS[level as usize - 1]),
            };
            let opaque = c.queue_send_back(self.group, f.topic, &f.record, level, MAX_TIMES);
            done.push(SendBack { id: f.id, to, times: times + 1, not_before, acknowledged: false });
            waiting.insert(i64::from(opaque), (done.len() - 1, f));
        }
        let (mut works, mut refused) = (c.flush().is_ok(), false);
        while works && !waiting.is_empty() {
            let Ok(answer) = c.receive() else {
                works = false;
                break;
            };
            let (at, f) = waiting.remove(&answer.opaque).context("an answer to no request")?;
            let name = format!("send-back of message {}/{}, {}", f.id.sender, f.id.number, f.record.times);
            if world.accepted(&name, &answer) {
                done[at].acknowledged = true;
                world.arrived();
            } else {
                refused = true;
                failed.push(f);
            }
        }
        failed.extend(waiting.into_values().map(|(_, f)| f));
        if refused {
            sleep(Duration::from_millis(500));
        }
        Ok(works)
    }
}

/// Of four messages two always fail, one fails once, and one never does.
fn fails(topic: Topic, record: Record) -> Option<Failed> {
    let id = record.identity().id()?;
    let fails = match id.number / 2 % 4 {
        0 | 1 => true,
        2 => record.times == 0,
        _ => false,
    };
    fails.then_some(Failed { id, topic, record })
}
