//! The judge of every crash test: compares what was sent and acknowledged with what a store gives back. Pure.
//!
//! A test message names its sender and number in its body, and the rest of the body follows from them, so that a stored
//! body tells whether it was ever sent, whole, and to which queue. Senders never send a message twice. Judged are: no
//! acknowledged message lost or moved, none invented, altered or doubled, offsets of a queue without gaps from 0 on, and
//! the order of each sender in each queue.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// A message of a test: the number of its sender (one connection) and its number there, both from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId {
    /// Index into the senders of the history.
    pub sender: usize,
    /// Index into the messages of that sender.
    pub number: usize,
}

/// Where a message is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Queue id within the topic of the test.
    pub queue: u32,
    /// Offset in the queue.
    pub offset: u64,
}

/// Bodies in the order in which they were read from a queue, each with the offset that it was found at.
pub type Messages = Vec<(u64, Vec<u8>)>;

/// The contents of each queue.
pub type Stored = BTreeMap<u32, Messages>;

/// What one connection did.
#[derive(Debug, Default, Clone)]
pub struct Sender {
    /// The queue of each message that left, in order, acknowledged or not.
    pub sent: Vec<u32>,
    /// Number and place of each acknowledged message.
    pub acknowledged: Vec<(usize, Place)>,
}

/// All that happened to one topic.
#[derive(Debug, Default, Clone)]
pub struct History {
    senders: Vec<Sender>,
}

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// An acknowledged message is not at its place.
    Lost(MessageId, Place),
    /// An offset does not follow the one before it (the first must be 0).
    Gap(Place, u64),
    /// The bytes at a place are no message that was sent.
    Invented(Place),
    /// A message is whole but lies in a queue that it was not sent to.
    WrongQueue(MessageId, Place),
    /// A message lies at two places.
    Twice(MessageId, Place, Place),
    /// A message lies behind a later one of the same sender and queue.
    OutOfOrder(MessageId, Place),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Lost(id, place) => write!(f, "acknowledged {id:?} is not at {place:?}"),
            Violation::Gap(place, expected) => write!(f, "{place:?} follows where offset {expected} should"),
            Violation::Invented(place) => write!(f, "what lies at {place:?} was never sent"),
            Violation::WrongQueue(id, place) => write!(f, "{id:?} lies in another queue, at {place:?}"),
            Violation::Twice(id, first, second) => write!(f, "{id:?} lies at {first:?} and at {second:?}"),
            Violation::OutOfOrder(id, place) => write!(f, "{id:?} at {place:?} lies behind a later one of its sender"),
        }
    }
}

impl History {
    /// Adds a connection; the index that its messages must carry is [`History::next_sender`] before.
    pub fn add(&mut self, sender: Sender) {
        self.senders.push(sender);
    }

    /// The index of the next sender to be added.
    pub fn next_sender(&self) -> usize {
        self.senders.len()
    }

    /// How many messages were acknowledged.
    pub fn acknowledged(&self) -> usize {
        self.senders.iter().map(|s| s.acknowledged.len()).sum()
    }

    /// All broken promises; none for a store that kept them.
    pub fn check(&self, stored: &Stored) -> Vec<Violation> {
        let mut violations = Vec::new();
        let mut found: HashMap<MessageId, Place> = HashMap::new();
        for (&queue, messages) in stored {
            self.check_queue(queue, messages, &mut found, &mut violations);
        }
        for (sender, s) in self.senders.iter().enumerate() {
            for &(number, place) in &s.acknowledged {
                let id = MessageId { sender, number };
                if found.get(&id) != Some(&place) {
                    violations.push(Violation::Lost(id, place));
                }
            }
        }
        violations
    }

    fn check_queue(
        &self,
        queue: u32,
        messages: &[(u64, Vec<u8>)],
        found: &mut HashMap<MessageId, Place>,
        violations: &mut Vec<Violation>,
    ) {
        let mut last: HashMap<usize, usize> = HashMap::new();
        for (expected, (offset, body)) in (0..).zip(messages) {
            let place = Place { queue, offset: *offset };
            if *offset != expected {
                violations.push(Violation::Gap(place, expected));
            }
            let Some(id) = identify(body).filter(|id| self.queue_of(*id).is_some()) else {
                violations.push(Violation::Invented(place));
                continue;
            };
            if self.queue_of(id) != Some(queue) {
                violations.push(Violation::WrongQueue(id, place));
            }
            if let Some(first) = found.insert(id, place) {
                violations.push(Violation::Twice(id, first, place));
            }
            if last.insert(id.sender, id.number).is_some_and(|before| before > id.number) {
                violations.push(Violation::OutOfOrder(id, place));
            }
        }
    }

    fn queue_of(&self, id: MessageId) -> Option<u32> {
        self.senders.get(id.sender)?.sent.get(id.number).copied()
    }
}

/// The body of a message: its name, then 0 to 511 bytes that follow from it.
pub fn body(id: MessageId) -> Vec<u8> {
    let mut body = format!("{}/{}/", id.sender, id.number).into_bytes();
    let mut state = (id.sender as u64) << 32 ^ id.number as u64 ^ 0x9e37_79b9_7f4a_7c15;
    let mut random = || {
        // xorshift64*: any sequence will do that differs from message to message.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    for _ in 0..random() >> 58 {
        body.extend(random().to_le_bytes());
    }
    body
}

/// Whose body this is; nobody's unless every byte is as it was sent.
fn identify(bytes: &[u8]) -> Option<MessageId> {
    let mut words = bytes.split(|b| *b == b'/');
    let mut number = || std::str::from_utf8(words.next()?).ok()?.parse().ok();
    let id = MessageId { sender: number()?, number: number()? };
    (body(id) == bytes).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two senders, three queues, every second message acknowledged; and a store that holds all of it.
    fn sound() -> (History, Stored) {
        let (mut history, mut stored) = (History::default(), Stored::new());
        for sender in 0..2 {
            let mut s = Sender::default();
            for number in 0..30 {
                let queue = (number % 3) as u32;
                let messages = stored.entry(queue).or_default();
                let place = Place { queue, offset: messages.len() as u64 };
                messages.push((place.offset, body(MessageId { sender, number })));
                s.sent.push(queue);
                if number % 2 == 0 {
                    s.acknowledged.push((number, place));
                }
            }
            history.add(s);
        }
        (history, stored)
    }

    /// What the judge says after something went wrong with queue 1.
    fn after(damage: impl FnOnce(&mut Messages)) -> Vec<Violation> {
        let (history, mut stored) = sound();
        damage(stored.get_mut(&1).unwrap());
        history.check(&stored)
    }

    #[test]
    fn a_sound_store_passes() {
        let (history, stored) = sound();
        assert_eq!(history.check(&stored), []);
        assert_eq!(history.acknowledged(), 30);
    }

    #[test]
    fn unacknowledged_messages_at_the_end_may_be_missing() {
        // Messages 28 of both senders lie in queue 1; 29 lies in queue 2 and is not acknowledged.
        let (history, mut stored) = sound();
        stored.get_mut(&2).unwrap().pop();
        assert_eq!(history.check(&stored), []);
    }

    #[test]
    fn a_lost_acknowledged_message_is_found() {
        let id = MessageId { sender: 1, number: 28 };
        assert_eq!(after(|q| drop(q.pop())), [Violation::Lost(id, Place { queue: 1, offset: 19 })]);
    }

    #[test]
    fn a_gap_is_found() {
        let found = after(|q| q[19].0 = 20);
        assert!(found.contains(&Violation::Gap(Place { queue: 1, offset: 20 }, 19)), "{found:?}");
    }

    #[test]
    fn a_changed_byte_is_found() {
        let found = after(|q| *q[3].1.last_mut().unwrap() ^= 1);
        assert_eq!(found[0], Violation::Invented(Place { queue: 1, offset: 3 }));
    }

    #[test]
    fn a_message_that_was_never_sent_is_found() {
        let found = after(|q| q.push((20, body(MessageId { sender: 1, number: 30 }))));
        assert_eq!(found, [Violation::Invented(Place { queue: 1, offset: 20 })]);
    }

    #[test]
    fn a_doubled_message_is_found() {
        let found = after(|q| q.push((20, q[19].1.clone())));
        assert!(found.iter().any(|v| matches!(v, Violation::Twice(..))), "{found:?}");
    }

    #[test]
    fn a_message_in_another_queue_is_found() {
        let id = MessageId { sender: 0, number: 29 };
        let found = after(|q| q.push((20, body(id))));
        assert!(found.contains(&Violation::WrongQueue(id, Place { queue: 1, offset: 20 })), "{found:?}");
    }

    #[test]
    fn swapped_messages_are_found() {
        let found = after(|q| {
            let (a, b) = (q[0].1.clone(), q[1].1.clone());
            q[0].1 = b;
            q[1].1 = a;
        });
        assert!(found.iter().any(|v| matches!(v, Violation::OutOfOrder(..))), "{found:?}");
        assert!(found.iter().any(|v| matches!(v, Violation::Lost(..))), "{found:?}");
    }
}
