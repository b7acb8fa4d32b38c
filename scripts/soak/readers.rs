//! Those who pull: one reads every queue on as it grows, and two share the queues of ordered messages by their locks.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use simulator::history::{Hold, Queue, Seen, Step, Topic};

use super::world::{Outcome, Part, Phase, Random, World};
use crate::client::{Connection, Record, records};
use crate::clock::now_ms;

/// When nothing was there.
const IDLE: Duration = Duration::from_millis(20);
/// The queue is empty, or its messages are gone.
const NOTHING: [i64; 3] = [19, 20, 21];

/// What a pull gave: records, and where to go on.
pub struct Pulled {
    /// In the order of the queue.
    pub records: Vec<Record>,
    /// The offset of the next pull.
    pub next: u64,
}

/// Pulls at an offset. `None` when the connection broke.
pub fn pull(world: &World, c: &mut Connection, queue: Queue, offset: u64) -> Result<Option<Pulled>> {
    let nothing = Pulled { records: Vec::new(), next: offset };
    let Ok(answer) = c.pull_answer(queue, offset) else { return Ok(None) };
    if NOTHING.contains(&answer.code) {
        return Ok(Some(nothing));
    }
    if !world.accepted(&format!("pull of {} queue {} at {offset}", queue.0, queue.1), &answer) {
        sleep(IDLE);
        return Ok(Some(nothing));
    }
    let records = records::read(&answer.body).with_context(|| format!("pulling {queue:?} at {offset}"))?;
    Ok(Some(Pulled { records, next: answer.number("nextBeginOffset")? }))
}

/// Reads queues on until the run is over, and notes everything that it was given.
pub fn watch(world: &World, topics: &[(Topic, u32)], keeps_waiting: &[Topic]) -> Outcome {
    let mut part = Part::default();
    let mut next: BTreeMap<Queue, u64> =
        topics.iter().flat_map(|(topic, queues)| (0..*queues).map(|q| ((*topic, q), 0))).collect();
    'connections: while let Some(mut c) = world.connect() {
        while world.phase() != Phase::Over {
            let mut idle = true;
            for (queue, offset) in &mut next {
                let Some(pulled) = pull(world, &mut c, *queue, *offset)? else { continue 'connections };
                *offset = pulled.next;
                if !pulled.records.is_empty() {
                    idle = false;
                    part.history.glimpses.extend(pulled.records.iter().map(|r| r.seen(queue.0)));
                    if keeps_waiting.contains(&queue.0) {
                        world.arrived();
                    }
                }
            }
            if idle {
                sleep(IDLE);
            }
        }
    }
    Ok(part)
}

/// What all consumers of the ordered topic did, in the order of each queue.
pub type Steps = Mutex<BTreeMap<Queue, Vec<Step>>>;

/// A consumer that takes part in ordered consumption.
pub struct Ordered<'a> {
    /// Its number, from 0.
    pub client: u32,
    /// The group.
    pub group: &'static str,
    /// The queues that it asks the locks of.
    pub queues: &'a [Queue],
    /// Where it notes what it consumed.
    pub steps: &'a Steps,
}

impl Ordered<'_> {
    /// Locks what it can get, consumes for a while, gives the locks back, and again, until the run is over.
    pub fn consume(&self, world: &World) -> Outcome {
        let mut part = Part::default();
        let mut random = Random::new(world.seed, 100 + u64::from(self.client));
        while let Some(mut c) = world.connect() {
            let start = world.start();
            // An error here is the kill; another would show as an ordered topic that nobody consumes.
            while world.phase() != Phase::Over {
                let asked_at = now_ms();
                let name = format!("soak-{}", self.client);
                let Ok(got) = c.lock(&name, self.group, world.name, self.queues) else { break };
                let from = now_ms();
                let term = Duration::from_millis(500 + random.below(1_500));
                let kept = self.consume_locked(world, &mut c, &got, term, &mut part.history.glimpses)?;
                let until = now_ms();
                let hold = |queue: &Queue| Hold { client: self.client, queue: *queue, asked_at, from, until, start };
                part.history.holds.extend(got.iter().map(hold));
                if !kept || c.unlock(&name, self.group, world.name, self.queues).is_err() {
                    break;
                }
                sleep(Duration::from_millis(random.below(300)));
            }
            sleep(IDLE);
        }
        Ok(part)
    }

    /// False when the connection broke.
    fn consume_locked(
        &self,
        world: &World,
        c: &mut Connection,
        queues: &[Queue],
        term: Duration,
        glimpses: &mut Vec<Seen>,
    ) -> Result<bool> {
        let mut next = Vec::new();
        for queue in queues {
            let Ok(offset) = c.committed_offset(self.group, queue.0, queue.1) else { return Ok(false) };
            next.push((*queue, offset.unwrap_or(0)));
        }
        let end = now_ms() + term.as_millis() as u64;
        while now_ms() < end && world.phase() != Phase::Over {
            for (queue, offset) in &mut next {
                let Some(pulled) = pull(world, c, *queue, *offset)? else { return Ok(false) };
                if pulled.records.is_empty() {
                    continue;
                }
                let seen: Vec<Seen> = pulled.records.iter().map(|r| r.seen(queue.0)).collect();
                self.note(*queue, seen.iter().map(|s| Step::Consumed(s.place.offset)));
                glimpses.extend(seen);
                if c.commit_offset(self.group, queue.0, queue.1, pulled.next).is_err() {
                    return Ok(false);
                }
                self.note(*queue, [Step::Committed(pulled.next)]);
                *offset = pulled.next;
            }
            sleep(IDLE);
        }
        Ok(true)
    }

    fn note(&self, queue: Queue, steps: impl IntoIterator<Item = Step>) {
        let mut all = self.steps.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.entry(queue).or_default().extend(steps);
    }
}
