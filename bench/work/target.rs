//! Where messages go and what they are made of: topics, queues, tags, sizes, and the bytes that may still be written.
//!
//! Owner of the bound on written bytes: every send is paid for before it is written, with what a broker may store for it at
//! most, so that the bound holds whatever the broker does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::draw::{Bodies, Keys, Random, Sizes};

/// Bytes that a record, its index entries and what a broker adds to its properties take at most beside topic, properties
/// and body: record 91 (IPv6: 115), added properties 120, consume queue 20, three index entries of 20, an end mark.
const RECORD_BYTES: u64 = 320;
/// Taken from the common budget at once.
const CHUNK_BYTES: u64 = 4 << 20;

/// Bytes that the broker may be made to write.
#[derive(Debug)]
pub struct Budget {
    left: AtomicU64,
    total: u64,
    is_over: AtomicBool,
}

impl Budget {
    /// So many bytes.
    #[must_use]
    pub fn new(total: u64) -> Arc<Budget> {
        Arc::new(Budget { left: AtomicU64::new(total), total, is_over: AtomicBool::new(false) })
    }

    /// Takes up to a chunk; at least `need` unless it is over.
    fn take(&self, need: u64) -> u64 {
        let mut taken = 0;
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            // A part of what is left, so that little lies unused in other purses when it is over.
            taken = left.min((left / 64).min(CHUNK_BYTES).max(need));
            if taken < need {
                taken = 0
            }
            Some(left - taken)
        });
        if taken == 0 {
            self.is_over.store(true, Ordering::Relaxed);
        }
        taken
    }

    /// Whether a send had to be left out.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// What was given out.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.total - self.left.load(Ordering::Relaxed)
    }
}

/// One connection's share of the budget.
#[derive(Clone, Debug)]
pub struct Purse {
    budget: Arc<Budget>,
    own: u64,
}

impl Purse {
    /// An empty purse.
    #[must_use]
    pub fn new(budget: &Arc<Budget>) -> Purse {
        Purse { budget: budget.clone(), own: 0 }
    }

    /// Pays for messages with so many bytes of bodies, topics and properties, each stored `copies` times. `false`: the
    /// budget is over.
    pub fn pay(&mut self, messages: u64, bytes: u64, copies: u64) -> bool {
        let price = (messages * RECORD_BYTES + bytes) * copies;
        if self.own < price {
            self.own += self.budget.take(price - self.own);
            if self.own < price {
                return false;
            }
        }
        self.own -= price;
        true
    }
}

/// What producers have asked for and readers have got, for all threads of a run.
#[derive(Debug, Default)]
pub struct Flow {
    asked: AtomicU64,
    failed: AtomicU64,
    received: AtomicU64,
    /// Groups that get each message.
    groups: u64,
}

impl Flow {
    /// Nothing yet; each message goes to so many groups.
    #[must_use]
    pub fn new(groups: u64) -> Arc<Flow> {
        Arc::new(Flow { groups, ..Flow::default() })
    }

    /// Messages were sent.
    pub fn asked(&self, messages: u64) {
        self.asked.fetch_add(messages, Ordering::Relaxed);
    }

    /// Messages were refused.
    pub fn failed(&self, messages: u64) {
        self.failed.fetch_add(messages, Ordering::Relaxed);
    }

    /// Messages arrived.
    pub fn received(&self, messages: u64) {
        self.received.fetch_add(messages, Ordering::Relaxed);
    }

    /// What was sent and has not arrived.
    #[must_use]
    pub fn missing(&self) -> u64 {
        let sent = self.asked.load(Ordering::Relaxed).saturating_sub(self.failed.load(Ordering::Relaxed));
        (sent * self.groups).saturating_sub(self.received.load(Ordering::Relaxed))
    }
}

/// What messages are made of.
#[derive(Clone, Debug)]
pub struct Messages {
    /// The topics.
    pub topics: Arc<[String]>,
    /// Which of them.
    pub topic_keys: Keys,
    /// Queues of each.
    pub queues: u32,
    /// The tags; may be empty.
    pub tags: Arc<[String]>,
    /// Which of them.
    pub tag_keys: Keys,
    /// Sizes of bodies.
    pub sizes: Sizes,
    /// Their bytes.
    pub bodies: Bodies,
}

/// One connection's draws of messages.
#[derive(Clone, Debug)]
pub struct Draws {
    /// What is drawn from.
    pub messages: Messages,
    random: Random,
    /// Goes round; starts at another queue on each connection.
    turn: u32,
    number: u64,
}

/// What was drawn.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// Place in [`Messages::topics`].
    pub topic: u32,
    /// Queue.
    pub queue: u32,
    /// Place in [`Messages::tags`].
    pub tag: u32,
    /// Bytes of the body.
    pub size: u32,
    /// Number of the message, another one for every message of every connection.
    pub number: u64,
}

impl Draws {
    /// The draws of connection `number`.
    #[must_use]
    pub fn new(messages: Messages, number: u32) -> Draws {
        Draws { messages, random: Random::new(u64::from(number)), turn: number, number: u64::from(number) << 40 }
    }

    /// The next message.
    pub fn draw(&mut self) -> Draw {
        self.turn = self.turn.wrapping_add(1);
        self.draw_member()
    }

    /// One more message of the same request: the queue stays.
    pub fn draw_member(&mut self) -> Draw {
        let Messages { topic_keys, tag_keys, queues, sizes, .. } = &self.messages;
        self.number += 1;
        Draw {
            topic: topic_keys.draw(&mut self.random),
            queue: self.turn % queues,
            tag: tag_keys.draw(&mut self.random),
            size: sizes.draw(&mut self.random),
            number: self.number,
        }
    }

    /// A number below a bound.
    pub fn below(&mut self, bound: u32) -> u32 {
        self.random.below(bound)
    }

    /// The name of a drawn topic.
    #[must_use]
    pub fn topic(&self, draw: &Draw) -> &str {
        &self.messages.topics[draw.topic as usize]
    }

    /// The drawn tag; empty without tags.
    #[must_use]
    pub fn tag(&self, draw: &Draw) -> &str {
        self.messages.tags.get(draw.tag as usize).map_or("", String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::Distribution;

    #[test]
    fn the_budget_is_never_overdrawn() {
        let total = 10 << 20;
        let budget = Budget::new(total);
        let (mut one, mut other) = (Purse::new(&budget), Purse::new(&budget));
        let mut paid = 0;
        while one.pay(1, 128, 1) | other.pay(32, 32 * 128, 2) {
            paid += 1;
            assert!(paid < 1_000_000);
        }
        assert!(budget.is_over() && budget.spent() <= total);
        let tiny = Budget::new(RECORD_BYTES + 10);
        let mut purse = Purse::new(&tiny);
        assert!(purse.pay(1, 10, 1) && !purse.pay(1, 0, 1));
    }

    #[test]
    fn queues_go_round_and_numbers_differ() {
        let mut random = Random::new(1);
        let messages = Messages {
            topics: ["t".to_owned()].into(),
            topic_keys: Keys::new(1, Distribution::Uniform),
            queues: 4,
            tags: [].into(),
            tag_keys: Keys::new(0, Distribution::Uniform),
            sizes: Sizes::Fixed(7),
            bodies: Bodies::new(7, false, &mut random),
        };
        let mut first = Draws::new(messages.clone(), 0);
        let mut second = Draws::new(messages, 1);
        let draws: Vec<Draw> = (0..8).map(|_| first.draw()).collect();
        assert_eq!(draws.iter().map(|d| d.queue).collect::<Vec<_>>(), [1, 2, 3, 0, 1, 2, 3, 0]);
        assert_ne!(second.draw().number, draws[0].number);
        let batch: Vec<Draw> = std::iter::once(first.draw()).chain((0..7).map(|_| first.draw_member())).collect();
        assert!(batch.iter().all(|d| d.queue == 1) && first.draw().queue == 2, "a batch goes to one queue");
        assert!(batch.windows(2).all(|pair| pair[0].number + 1 == pair[1].number));
        assert_eq!((first.topic(&draws[0]), first.tag(&draws[0])), ("t", ""));
    }
}
