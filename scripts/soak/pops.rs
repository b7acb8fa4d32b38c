//! Consumers that pop: they acknowledge most messages, one by one or in batches, leave some to come again, change the
//! invisible time of some, and now and then go away before their acknowledgements are answered.

use std::collections::HashMap;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use simulator::history::{Ack, Delivery, Place, Topic};

use super::world::{Outcome, Part, Phase, Random, World};
use crate::client::requests::{Handle, popped};
use crate::client::{Connection, Record};
use crate::clock::now_ms;

/// So long does a pop wait for messages, in ms.
const POLL: u64 = 1_000;
/// Nothing was found, or the broker will not wait now.
const NOTHING: [i64; 3] = [19, 209, 210];
/// From this attempt on a message is acknowledged, so that a run ends.
const LAST_TIMES: u32 = 3;

/// A consumer of a group that pops a topic.
#[derive(Debug, Clone, Copy)]
pub struct Popper {
    /// Its number, from 0.
    pub client: u64,
    /// The group.
    pub group: &'static str,
    /// What it pops.
    pub topic: Topic,
    /// Where what was not acknowledged comes again.
    pub retries: Topic,
    /// Whether it leaves messages unacknowledged whose invisible time it changed.
    pub leaves_changed: bool,
}

/// A message in the hands of the consumer.
struct InHand {
    delivery: Delivery,
    handle: Handle,
}

impl Popper {
    /// Pops until the run is over.
    pub fn consume(&self, world: &World) -> Outcome {
        let mut part = Part::default();
        let mut random = Random::new(world.seed, 200 + self.client);
        while let Some(mut c) = world.connect() {
            while world.phase() != Phase::Over {
                let asked_at = now_ms();
                let Ok(answer) = c.pop(self.group, self.topic, 4_000 + 2_000 * random.below(3), POLL) else {
                    part.history.lost_pops += 1;
                    break;
                };
                if NOTHING.contains(&answer.code) || !world.accepted("pop", &answer) {
                    sleep(Duration::from_millis(10));
                    continue;
                }
                let messages = popped(&answer, world.name).context("reading the answer to a pop")?;
                let in_hand = messages.into_iter().map(|(r, h)| self.take(r, h, asked_at)).collect();
                world.arrived();
                let (deliveries, goes_on) = self.work(world, &mut c, in_hand, &mut random)?;
                part.history.deliveries.extend(deliveries);
                if !goes_on {
                    break;
                }
            }
        }
        Ok(part)
    }

    fn take(&self, record: Record, handle: Handle, asked_at: u64) -> InHand {
        let (queue, offset) = handle.place();
        let topic = if handle.is_retry() { self.retries } else { self.topic };
        let delivery = Delivery {
            topic: self.topic,
            place: Place { topic, queue, offset },
            body: record.identity(),
            asked_at,
            seen_at: now_ms(),
            visible_at: Some(handle.visible_at()),
            changed: false,
            times: record.times,
            ack: Ack::None,
        };
        InHand { delivery, handle }
    }

    /// What becomes of the messages of one pop; false when the connection is of no more use.
    fn work(
        &self,
        world: &World,
        c: &mut Connection,
        mut all: Vec<InHand>,
        random: &mut Random,
    ) -> Result<(Vec<Delivery>, bool)> {
        let mut to_ack = Vec::new();
        let mut works = true;
        for (n, m) in all.iter_mut().enumerate() {
            let last = world.phase() != Phase::Load || m.delivery.times >= LAST_TIMES;
            match if last { 0 } else { random.below(10) } {
                0..=6 => to_ack.push(n),
                // Left to come again.
                7 | 8 => {}
                _ => {
                    works = works && self.change(world, c, m, 3_000 + random.below(3_000))?;
                    if random.below(2) == 0 || !self.leaves_changed {
                        to_ack.push(n);
                    }
                }
            }
        }
        let way = if world.phase() == Phase::Load { random.below(40) } else { random.below(2) };
        let goes_on = works && self.ack(world, c, &mut all, &to_ack, way)?;
        Ok((all.into_iter().map(|m| m.delivery).collect(), goes_on))
    }

    /// False when the connection broke.
    fn change(&self, world: &World, c: &mut Connection, m: &mut InHand, ms: u64) -> Result<bool> {
        (m.delivery.visible_at, m.delivery.changed) = (None, true);
        let Ok(answer) = c.change_invisible(self.group, self.topic, &m.handle, ms) else { return Ok(false) };
        if world.accepted("change of an invisible time", &answer) {
            m.handle = m.handle.changed(&answer)?;
            m.delivery.visible_at = Some(m.handle.visible_at());
        }
        Ok(true)
    }

    /// Acknowledges some of the messages in hand: one by one, as a batch, or without waiting for the answer. False when
    /// the connection is of no more use.
    fn ack(&self, world: &World, c: &mut Connection, all: &mut [InHand], to_ack: &[usize], way: u64) -> Result<bool> {
        if to_ack.is_empty() {
            return Ok(true);
        }
        let mut waiting: HashMap<i64, Vec<usize>> = HashMap::new();
        to_ack.iter().for_each(|n| all[*n].delivery.ack = Ack::Unknown);
        if way.is_multiple_of(2) {
            for n in to_ack {
                waiting.insert(i64::from(c.queue_ack(self.group, self.topic, &all[*n].handle)), vec![*n]);
            }
        } else {
            let handles: Vec<Handle> = to_ack.iter().map(|n| all[*n].handle.clone()).collect();
            let opaque = c.queue_batch_ack(self.group, self.topic, world.name, &handles);
            waiting.insert(i64::from(opaque), to_ack.to_vec());
        }
        const GOES_AWAY: u64 = 39;
        if c.flush().is_err() || way == GOES_AWAY {
            return Ok(false);
        }
        while !waiting.is_empty() {
            let Ok(answer) = c.receive() else { return Ok(false) };
            let done = waiting.remove(&answer.opaque).context("an answer to no request")?;
            if !world.accepted("ack", &answer) {
                continue;
            }
            for n in done {
                all[n].delivery.ack = Ack::Done(now_ms());
            }
        }
        Ok(true)
    }
}
