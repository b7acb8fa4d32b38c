//! A small history in which every promise was kept, for the tests that break one promise each.

use super::*;

pub(super) const LOG: Topic = "log";
pub(super) const DELAYED: Topic = "delayed";
pub(super) const TRANSACTIONS: Topic = "transactions";
pub(super) const RETRIES: Topic = "%RETRY%group";
pub(super) const DEAD_LETTERS: Topic = "%DLQ%group";
pub(super) const POPPED: Topic = "popped";
const QUEUES: u32 = 3;
const START: u64 = 1_700_000_000_000;
const DELAY: u64 = 5_000;
const INVISIBLE: u64 = 10_000;

/// A history and what its queues hold.
pub(super) struct World {
    pub(super) history: History,
    pub(super) stored: Stored,
}

/// The rules that a sound world breaks after some damage, in the order in which they are told.
pub(super) fn rules_after(damage: impl FnOnce(&mut World)) -> Vec<Rule> {
    let mut world = World::sound();
    damage(&mut world);
    world.history.check(&world.stored).iter().map(|v| v.rule).collect()
}

/// Puts a record at the end of a queue that is not empty.
pub(super) fn append(queue: &mut Vec<Seen>, body: Identity) {
    let last = *queue.last().unwrap();
    append_seen(queue, Seen { body, ..last });
}

/// The same with the times of a record.
pub(super) fn append_seen(queue: &mut Vec<Seen>, seen: Seen) {
    let offset = queue.last().unwrap().place.offset + 1;
    queue.push(Seen { place: Place { offset, ..seen.place }, ..seen });
}

impl World {
    pub(super) fn sound() -> World {
        let roles = [
            (LOG, Role::Log),
            (POPPED, Role::Log),
            (DELAYED, Role::Delayed),
            (TRANSACTIONS, Role::Transactions),
            (RETRIES, Role::Retries),
            (DEAD_LETTERS, Role::DeadLetters),
        ];
        let history = History { topics: roles.to_vec(), popped: vec![POPPED], ..History::default() };
        let mut world = World { history, stored: Stored::new() };
        for topic in [LOG, LOG, DELAYED, TRANSACTIONS, POPPED] {
            world.send(topic);
        }
        world.consume_in_order();
        world.send_back();
        world.pop();
        world
    }

    /// What the history knows of a message.
    pub(super) fn sent(&mut self, body: Identity) -> &mut Sent {
        let id = body.id().unwrap();
        &mut self.history.senders[id.sender].sent[id.number]
    }

    /// Makes a message an acknowledged one.
    pub(super) fn acknowledge(&mut self, body: Identity) {
        let sent = self.sent(body);
        if sent.answer == Answer::Unknown {
            sent.answer = Answer::Stored(None);
        }
    }

    /// A message whose transaction was rolled back.
    pub(super) fn rolled_back(&self) -> MessageId {
        let sender = self.history.senders.iter().position(|s| s.topic == TRANSACTIONS).unwrap();
        let sent = &self.history.senders[sender].sent;
        let number = sent.iter().position(|s| s.visible == Visibility::Never && s.queue == 1).unwrap();
        MessageId { sender, number }
    }

    /// A sender of 30 messages over all queues; every fifth was not acknowledged, every third transaction rolled back.
    fn send(&mut self, topic: Topic) {
        let sender = self.history.senders.len();
        let mut sent = Vec::new();
        for number in 0..30 {
            let at = START + 10 * number as u64;
            let mut one = Sent::once(number as u32 % QUEUES);
            let mut seen_at = at;
            match topic {
                DELAYED => {
                    one.visible = Visibility::From(at + DELAY);
                    seen_at = at + DELAY;
                }
                TRANSACTIONS if number / 3 % 3 == 0 => one.visible = Visibility::Never,
                TRANSACTIONS => one.visible = Visibility::From(at),
                _ => {}
            }
            let queue = self.stored.entry((topic, one.queue)).or_default();
            let place = Place { topic, queue: one.queue, offset: queue.len() as u64 };
            if number % 5 != 4 {
                one.answer = Answer::Stored((topic == LOG || topic == POPPED).then_some(place.offset));
            }
            if one.visible != Visibility::Never {
                let body = Identity::Whole(MessageId { sender, number });
                queue.push(Seen { place, body, stored_at: seen_at, seen_at: START + 600_000, times: 0 });
            }
            sent.push(one);
        }
        self.history.senders.push(Sender { topic, sent });
    }

    /// Two clients consume queue 0 of the log in turn.
    fn consume_in_order(&mut self) {
        let queue = (LOG, 0);
        for (client, from) in [(0, START), (1, START + 1_000), (0, START + 2_000)] {
            let hold = Hold { client, queue, asked_at: from, from: from + 1, until: from + 900, start: 0 };
            self.history.holds.push(hold);
        }
        let steps = self.history.steps.entry(queue).or_default();
        steps.extend((0..self.stored[&queue].len() as u64).map(Step::Consumed));
    }

    /// The messages of queue 0 of the log are sent back twice; those at even offsets then are dead.
    fn send_back(&mut self) {
        let (mut retries, mut dead) = (Vec::new(), Vec::new());
        for seen in self.stored[&(LOG, 0)].clone().into_iter().skip(1) {
            let id = seen.body.id().unwrap();
            for times in 1..=3 {
                let is_last = times == 3;
                let to = if is_last { DEAD_LETTERS } else { RETRIES };
                if is_last && seen.place.offset % 2 == 1 {
                    continue;
                }
                let not_before = START + 1_000 * u64::from(times);
                self.history.send_backs.push(SendBack { id, to, times, not_before, acknowledged: true });
                let queue = if is_last { &mut dead } else { &mut retries };
                let place = Place { topic: to, queue: 0, offset: queue.len() as u64 };
                queue.push(Seen { place, times, stored_at: not_before, ..seen });
            }
        }
        self.stored.insert((RETRIES, 0), retries);
        self.stored.insert((DEAD_LETTERS, 0), dead);
    }

    /// Every message is popped; those at odd offsets are not acknowledged and come again.
    fn pop(&mut self) {
        let retry = "%RETRY%group_popped";
        let popped: Vec<Seen> =
            self.stored.iter().filter(|(q, _)| q.0 == POPPED).flat_map(|(_, m)| m.clone()).collect();
        for (n, seen) in popped.into_iter().enumerate() {
            let asked_at = START + 1_000 + n as u64;
            let first = Delivery {
                topic: POPPED,
                place: seen.place,
                body: seen.body,
                asked_at,
                seen_at: asked_at + 5,
                visible_at: Some(asked_at + INVISIBLE),
                changed: false,
                times: 0,
                ack: Ack::Done(asked_at + 50),
            };
            if seen.place.offset % 2 == 0 {
                self.history.deliveries.push(first);
                continue;
            }
            let again_at = asked_at + INVISIBLE;
            let place = Place { topic: retry, queue: 0, offset: n as u64 };
            let times = Delivery { place, asked_at: again_at, seen_at: again_at + 5, times: 1, ..first };
            let again = Delivery { visible_at: Some(again_at + INVISIBLE), ack: Ack::Done(again_at + 50), ..times };
            self.history.deliveries.extend([Delivery { ack: Ack::None, ..first }, again]);
        }
    }
}
