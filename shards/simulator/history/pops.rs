//! Popped messages: each acknowledged send is popped, what was popped and not acknowledged comes again, not before its
//! time, and what was acknowledged in time never does.

use std::collections::{HashMap, HashSet};

use super::logs::violation;
use super::{Answer, History, Identity, MessageId, Place, Rule, Stored, Topic, Violation, record_at};

/// What became of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ack {
    /// The consumer did not acknowledge it.
    None,
    /// It did, and no answer came, or one that was no success.
    Unknown,
    /// It did, and was answered at this time, in ms.
    Done(u64),
}

/// A message that an answer to a pop held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// The topic that was popped from.
    pub topic: Topic,
    /// Where the record lies: in that topic, or in the group's retry topic for it.
    pub place: Place,
    /// Whose body it has.
    pub body: Identity,
    /// When the pop was asked for, in ms.
    pub asked_at: u64,
    /// When its answer was there, in ms.
    pub seen_at: u64,
    /// The end of its invisible time by the broker's clock, in ms; with the last change that was answered. `None` when
    /// the answer to a change never came.
    pub visible_at: Option<u64>,
    /// Whether its consumer asked to change its invisible time.
    pub changed: bool,
    /// How often it was tried before, as the record says.
    pub times: u32,
    /// What became of it.
    pub ack: Ack,
}

impl Delivery {
    /// Whether its message may come again for a reason that lies with the consumer.
    fn may_return(&self, tolerance_ms: u64) -> bool {
        match (self.ack, self.visible_at) {
            (Ack::Done(at), Some(until)) => at + tolerance_ms > until,
            _ => true,
        }
    }
}

/// Judges all deliveries.
pub(super) fn check(history: &History, stored: &Stored, found: &mut Vec<Violation>) {
    let mut by_id: HashMap<MessageId, Vec<&Delivery>> = HashMap::new();
    let mut at: HashMap<Place, Identity> = HashMap::new();
    for delivery in &history.deliveries {
        identity(history, delivery, stored, found);
        let before = *at.entry(delivery.place).or_insert(delivery.body);
        if before != delivery.body {
            let detail = format!("popped at {}: {:?}, before {before:?}", delivery.seen_at, delivery.body);
            found.push(violation(Rule::Reused, delivery.topic, delivery.body.id(), Some(delivery.place), detail));
        }
        if let Identity::Whole(id) = delivery.body {
            by_id.entry(id).or_default().push(delivery);
        }
    }
    let mut all: Vec<_> = by_id.iter_mut().collect();
    all.sort_by_key(|(id, _)| **id);
    for (id, deliveries) in all {
        deliveries.sort_by_key(|d| d.seen_at);
        comes_again(*id, deliveries, found);
        not_after_its_ack(history, *id, deliveries, found);
        not_early(history, *id, deliveries, found);
        copies(history, *id, deliveries, found);
    }
    for (sender, s) in history.senders.iter().enumerate().filter(|(_, s)| history.popped.contains(&s.topic)) {
        for (number, sent) in s.sent.iter().enumerate() {
            let id = MessageId { sender, number };
            if matches!(sent.answer, Answer::Stored(_)) && !by_id.contains_key(&id) {
                found.push(violation(Rule::Lost, s.topic, Some(id), None, "it was never popped".into()));
            }
        }
    }
}

fn identity(history: &History, delivery: &Delivery, stored: &Stored, found: &mut Vec<Violation>) {
    let Delivery { topic, place, body, .. } = *delivery;
    let sent = body.id().and_then(|id| history.sent(id));
    let rule = match body {
        Identity::Altered(_) => Rule::Altered,
        Identity::Unknown => Rule::Invented,
        Identity::Whole(_) if sent.is_none_or(|(sent_to, _)| sent_to != topic) => Rule::Invented,
        // Records of retries are read from no queue here.
        Identity::Whole(_) if place.topic != topic => return,
        Identity::Whole(_) => match record_at(stored, place) {
            Some(now) if now.body == body => return,
            Some(_) => Rule::Reused,
            None => Rule::Gone,
        },
    };
    let detail = format!("popped at {}: {body:?}", delivery.seen_at);
    found.push(violation(rule, topic, body.id(), Some(place), detail));
}

fn comes_again(id: MessageId, deliveries: &[&Delivery], found: &mut Vec<Violation>) {
    let Some(last) = deliveries.last().filter(|d| d.ack == Ack::None) else { return };
    let told = |d: &&Delivery| {
        format!(
            "attempt {} at {} until {:?} {:?}{}",
            d.times,
            d.seen_at,
            d.visible_at,
            d.ack,
            if d.changed { " changed" } else { "" }
        )
    };
    let all: Vec<String> = deliveries.iter().map(told).collect();
    let detail = format!("popped, not acknowledged and not seen again: {}", all.join("; "));
    found.push(violation(Rule::NotAgain, last.topic, Some(id), Some(last.place), detail));
}

/// The same record never comes again after the answer to an acknowledgement that was in time.
fn not_after_its_ack(history: &History, id: MessageId, deliveries: &[&Delivery], found: &mut Vec<Violation>) {
    for acked in deliveries.iter().filter(|d| !d.may_return(history.tolerance.invisible_ms)) {
        let Ack::Done(at) = acked.ack else { continue };
        let again = deliveries.iter().find(|d| d.place == acked.place && d.asked_at > at);
        if let Some(again) = again {
            let detail = format!("acknowledged at {at}, popped again at {}", again.seen_at);
            found.push(violation(Rule::AfterAck, acked.topic, Some(id), Some(again.place), detail));
        }
    }
}

/// The same record, or the only one that can have become of it, does not come before the end of its invisible time.
fn not_early(history: &History, id: MessageId, deliveries: &[&Delivery], found: &mut Vec<Violation>) {
    for (n, first) in deliveries.iter().enumerate() {
        let Some(until) = first.visible_at else { continue };
        let only = deliveries.iter().filter(|d| d.times == first.times).count() == 1;
        let next = deliveries[n + 1..]
            .iter()
            .find(|d| d.place == first.place || only && d.times == first.times + 1 && d.place.topic != d.topic);
        let Some(next) = next else { continue };
        if next.seen_at + history.tolerance.invisible_ms < until {
            let detail = format!("popped at {}, invisible until {until}, and again at {}", first.seen_at, next.seen_at);
            found.push(violation(Rule::Early, next.topic, Some(id), Some(next.place), detail));
        }
    }
}

/// Each copy beyond the first has a reason: a delivery that was not acknowledged in time, a pop whose answer never came,
/// or a broker that was killed before it could note that it had made the copy.
fn copies(history: &History, id: MessageId, deliveries: &[&Delivery], found: &mut Vec<Violation>) {
    let places: HashSet<Place> = deliveries.iter().map(|d| d.place).collect();
    let returns = deliveries.iter().filter(|d| d.may_return(history.tolerance.invisible_ms)).count();
    let attempts = history.sent(id).map_or(1, |(_, sent)| sent.attempts) as usize;
    let allowed = attempts + returns + (history.lost_pops + history.kills) as usize;
    if places.len() > allowed {
        let last = deliveries[deliveries.len() - 1];
        let detail = format!("{} records of it were popped, {allowed} have a reason", places.len());
        found.push(violation(Rule::Twice, last.topic, Some(id), Some(last.place), detail));
    }
}

#[cfg(test)]
mod tests {
    use super::super::sound::{self, POPPED, World};
    use super::*;

    fn after(damage: impl FnOnce(&mut World)) -> Vec<Rule> {
        sound::rules_after(damage)
    }

    /// A delivery that was acknowledged in time, without others of its message.
    fn acked(world: &mut World) -> &mut Delivery {
        world.history.deliveries.iter_mut().find(|d| d.times == 0 && matches!(d.ack, Ack::Done(_))).unwrap()
    }

    #[test]
    fn a_message_that_was_never_popped_is_found() {
        let rules = after(|w| {
            let body = acked(w).body;
            w.history.deliveries.retain(|d| d.body != body);
        });
        assert_eq!(rules, [Rule::Lost]);
    }

    #[test]
    fn a_message_that_does_not_come_again_is_found() {
        let rules = after(|w| w.history.deliveries.retain(|d| d.times == 0));
        assert!(!rules.is_empty() && rules.iter().all(|r| *r == Rule::NotAgain), "{rules:?}");
    }

    #[test]
    fn a_lost_ack_asks_for_nothing() {
        assert_eq!(after(|w| acked(w).ack = Ack::Unknown), []);
    }

    #[test]
    fn a_record_that_comes_after_its_ack_is_found() {
        let rules = after(|w| {
            let first = *acked(w);
            let Ack::Done(at) = first.ack else { unreachable!("it was chosen so") };
            let later = first.visible_at.unwrap() + 5_000;
            let again = Delivery { asked_at: at + 1, seen_at: later, ack: Ack::Done(later + 1), ..first };
            w.history.deliveries.push(Delivery { visible_at: Some(later + 10_000), ..again });
        });
        assert_eq!(rules, [Rule::AfterAck]);
    }

    #[test]
    fn a_record_that_comes_after_a_late_ack_is_none() {
        let rules = after(|w| {
            let first = *acked(w);
            let late = first.visible_at.unwrap() + 5_000;
            acked(w).ack = Ack::Done(late);
            let again = Delivery { asked_at: late, seen_at: late + 10, visible_at: Some(late + 90_000), ..first };
            w.history.deliveries.push(Delivery { ack: Ack::Done(late + 20), ..again });
        });
        assert_eq!(rules, []);
    }

    #[test]
    fn a_new_record_of_an_acknowledged_message_is_found() {
        let again = |kills| {
            after(|w| {
                w.history.kills = kills;
                let first = *acked(w);
                let seen_at = first.visible_at.unwrap() + 5_000;
                let place = Place { topic: "%RETRY%other", queue: 0, offset: 9_999 };
                let ack = Ack::Done(seen_at + 1);
                let again = Delivery { place, seen_at, asked_at: seen_at, times: 1, ack, ..first };
                w.history.deliveries.push(Delivery { visible_at: Some(seen_at + 10_000), ..again });
            })
        };
        assert_eq!(again(0), [Rule::Twice]);
        assert_eq!(again(1), [], "a broker that was killed may not have noted the copy");
    }

    #[test]
    fn a_message_that_comes_again_early_is_found() {
        let rules = after(|w| {
            let again = w.history.deliveries.iter_mut().find(|d| d.times == 1).unwrap();
            again.seen_at -= 5_000;
        });
        assert_eq!(rules, [Rule::Early]);
        let same_place = after(|w| {
            let first = *acked(w);
            let seen_at = first.seen_at + 100;
            acked(w).ack = Ack::Unknown;
            w.history.deliveries.push(Delivery { seen_at, ..first });
        });
        assert_eq!(same_place, [Rule::Early]);
    }

    #[test]
    fn altered_invented_moved_and_gone_records_are_found() {
        let changed = |body: fn(Identity) -> Identity| after(|w| acked(w).body = body(acked(w).body));
        assert_eq!(changed(|body| Identity::Altered(body.id().unwrap())), [Rule::Altered, Rule::Lost]);
        assert_eq!(changed(|_| Identity::Unknown), [Rule::Invented, Rule::Lost]);
        assert_eq!(after(|w| acked(w).place.offset = 1_000), [Rule::Gone]);
        let other_topic = after(|w| acked(w).topic = sound::LOG);
        assert_eq!(other_topic, [Rule::Invented]);
        let reused = after(|w| {
            let mut retries = w.history.deliveries.iter_mut().filter(|d| d.times == 1);
            let first = retries.next().unwrap().place;
            retries.next().unwrap().place = first;
        });
        assert_eq!(reused, [Rule::Reused]);
        let moved = after(|w| {
            let other = w.stored[&(POPPED, 0)].last().unwrap().place;
            acked(w).place = other;
        });
        assert!(!moved.is_empty() && moved.iter().all(|r| *r == Rule::Reused), "{moved:?}");
    }
}
