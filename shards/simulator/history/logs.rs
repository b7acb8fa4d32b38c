//! What the queues hold against what was sent: nothing lost, nothing invented, offsets, order, times, transactions.

use std::collections::HashMap;

use super::{
    Answer, Check, History, Identity, MessageId, Place, Role, Rule, Seen, Sent, Stored, Topic, Violation, Visibility,
};
use super::{Queue, record_at};

/// Where each message lies in the topic that it was sent to.
type Places = HashMap<MessageId, Vec<Place>>;

/// Judges all queues of a reading, the senders, and what was seen before.
pub(super) fn check(history: &History, stored: &Stored, found: &mut Vec<Violation>) {
    let mut places = Places::new();
    for (&queue, messages) in stored {
        offsets(queue, messages, found);
        for seen in messages {
            identity(history, seen, found);
        }
        let Some(role @ (Role::Log | Role::Delayed | Role::Transactions)) = history.role(queue.0) else { continue };
        contents(history, messages, &mut places, found);
        if role == Role::Log {
            order(messages, found);
        }
    }
    for seen in &history.glimpses {
        identity(history, seen, found);
        glimpse(seen, stored, found);
    }
    for (sender, s) in history.senders.iter().enumerate() {
        for (number, sent) in s.sent.iter().enumerate() {
            fate(MessageId { sender, number }, s.topic, sent, &places, found);
        }
    }
}

fn offsets(queue: Queue, messages: &[Seen], found: &mut Vec<Violation>) {
    let mut expected = 0;
    for seen in messages {
        if seen.place.offset != expected {
            let detail = format!("it stands where offset {expected} should");
            found.push(violation(Rule::Gap, queue.0, None, Some(seen.place), detail));
        }
        expected = seen.place.offset + 1;
    }
}

/// Whole, ever sent, to this queue, and allowed to be seen by now. Applies to everything that any consumer was given.
fn identity(history: &History, seen: &Seen, found: &mut Vec<Violation>) {
    let place = seen.place;
    let mut tell = |rule, detail: String| {
        found.push(violation(rule, place.topic, seen.body.id(), Some(place), detail));
    };
    let sent = seen.body.id().and_then(|id| history.sent(id));
    let (Some((topic, sent)), Some(role)) = (sent, history.role(place.topic)) else {
        return tell(Rule::Invented, "no message like this was sent".into());
    };
    if let Identity::Altered(_) = seen.body {
        return tell(Rule::Altered, "its body is not the one that was sent".into());
    }
    if matches!(role, Role::Retries | Role::DeadLetters) {
        return;
    }
    if topic != place.topic || sent.queue != place.queue {
        tell(Rule::WrongQueue, format!("it was sent to {topic} queue {}", sent.queue));
    }
    match sent.visible {
        Visibility::Never => tell(Rule::Undecided, "its transaction was not committed".into()),
        Visibility::From(from) => {
            let rounding = if role == Role::Delayed { history.tolerance.due_ms } else { 0 };
            let from_at_least = from.saturating_sub(rounding + history.tolerance.clock_ms);
            if seen.seen_at.min(seen.stored_at) < from_at_least {
                tell(Rule::Early, format!("due at {from}, stored at {}, seen at {}", seen.stored_at, seen.seen_at));
            }
        }
    }
}

/// Notes where each message is; one that was sent n times may be there n times.
fn contents(history: &History, messages: &[Seen], places: &mut Places, found: &mut Vec<Violation>) {
    for seen in messages {
        let Identity::Whole(id) = seen.body else { continue };
        let Some((topic, sent)) = history.sent(id) else { continue };
        if topic != seen.place.topic {
            continue;
        }
        let all = places.entry(id).or_default();
        all.push(seen.place);
        if all.len() > sent.attempts as usize {
            let detail = format!("it was sent {} times and lies at {all:?}", sent.attempts);
            found.push(violation(Rule::Twice, topic, Some(id), Some(seen.place), detail));
        }
    }
}

fn order(messages: &[Seen], found: &mut Vec<Violation>) {
    let mut last: HashMap<usize, usize> = HashMap::new();
    for seen in messages {
        let Identity::Whole(id) = seen.body else { continue };
        let before = last.insert(id.sender, id.number).filter(|before| *before > id.number);
        if let Some(before) = before {
            let detail = format!("it stands behind message {before} of its sender");
            found.push(violation(Rule::OutOfOrder, seen.place.topic, Some(id), Some(seen.place), detail));
        }
    }
}

/// What a consumer was given is still there at the end, at the same place.
fn glimpse(seen: &Seen, stored: &Stored, found: &mut Vec<Violation>) {
    let (rule, detail) = match record_at(stored, seen.place) {
        Some(now) if now.body == seen.body => return,
        Some(now) => (Rule::Reused, format!("at {} this was {:?}, now it is {:?}", seen.seen_at, seen.body, now.body)),
        None => (Rule::Gone, format!("it was seen at {} and is no longer there", seen.seen_at)),
    };
    found.push(violation(rule, seen.place.topic, seen.body.id(), Some(seen.place), detail));
}

/// What was acknowledged is there, and where it was said to be.
fn fate(id: MessageId, topic: Topic, sent: &Sent, places: &Places, found: &mut Vec<Violation>) {
    let Answer::Stored(offset) = sent.answer else { return };
    if sent.check == Check::Awaited {
        let detail = "it was acknowledged and left open, and no check came".into();
        found.push(violation(Rule::Unasked, topic, Some(id), None, detail));
    }
    if sent.visible == Visibility::Never {
        return;
    }
    let is_at = places.get(&id).map(Vec::as_slice).unwrap_or_default();
    let should = offset.map(|offset| Place { topic, queue: sent.queue, offset });
    if should.map_or(is_at.is_empty(), |place| !is_at.contains(&place)) {
        let detail = format!("it was acknowledged; it is at {is_at:?}; visible {:?}", sent.visible);
        found.push(violation(Rule::Lost, topic, Some(id), should, detail));
    }
}

/// One violation; shared by all parts of the judge.
pub(super) fn violation(
    rule: Rule,
    topic: Topic,
    id: Option<MessageId>,
    place: Option<Place>,
    detail: String,
) -> Violation {
    Violation { rule, topic, id, place, detail }
}

#[cfg(test)]
mod tests {
    use super::super::sound::{self, DELAYED, LOG, TRANSACTIONS, World};
    use super::*;

    /// The rules that are broken after something went wrong.
    fn after(damage: impl FnOnce(&mut World)) -> Vec<Rule> {
        sound::rules_after(damage)
    }

    fn queue(world: &mut World, topic: Topic) -> &mut Vec<Seen> {
        world.stored.get_mut(&(topic, 1)).unwrap()
    }

    #[test]
    fn a_sound_history_passes() {
        let world = World::sound();
        assert_eq!(world.history.check(&world.stored), []);
        assert!(world.history.acknowledged() > 50);
        let count = world.history.count(LOG, &world.stored);
        assert!(count.acknowledged > 0 && count.seen > count.acknowledged, "{count:?}");
    }

    #[test]
    fn unacknowledged_messages_at_the_end_may_be_missing() {
        let rules = after(|w| {
            let last = queue(w, LOG).pop().unwrap();
            w.sent(last.body).answer = Answer::Unknown;
        });
        assert_eq!(rules, []);
    }

    #[test]
    fn a_lost_acknowledged_message_is_found() {
        for topic in [LOG, DELAYED, TRANSACTIONS] {
            let rules = after(|w| {
                let last = queue(w, topic).pop().unwrap();
                w.acknowledge(last.body);
            });
            assert_eq!(rules, [Rule::Lost], "{topic}");
        }
    }

    #[test]
    fn a_moved_message_is_found() {
        let rules = after(|w| {
            let first = queue(w, LOG)[0].body;
            w.sent(first).answer = Answer::Stored(Some(7));
        });
        assert_eq!(rules, [Rule::Lost]);
    }

    #[test]
    fn a_gap_is_found() {
        let rules = after(|w| {
            let last = queue(w, DELAYED).last_mut().unwrap();
            last.place.offset += 1;
        });
        assert_eq!(rules, [Rule::Gap]);
    }

    #[test]
    fn a_first_offset_that_is_not_0_is_found() {
        let rules = after(|w| queue(w, DELAYED).iter_mut().for_each(|seen| seen.place.offset += 1));
        assert_eq!(rules, [Rule::Gap]);
    }

    #[test]
    fn a_changed_body_is_found() {
        let rules = after(|w| {
            let seen = &mut queue(w, LOG)[3];
            seen.body = Identity::Altered(seen.body.id().unwrap());
        });
        assert!(rules.contains(&Rule::Altered), "{rules:?}");
    }

    #[test]
    fn messages_that_were_never_sent_are_found() {
        for body in [Identity::Unknown, Identity::Whole(MessageId { sender: 0, number: 9_999 })] {
            let rules = after(|w| sound::append(queue(w, LOG), body));
            assert_eq!(rules, [Rule::Invented]);
        }
    }

    #[test]
    fn a_message_of_another_queue_or_topic_is_found() {
        for topic in [LOG, DELAYED] {
            let rules = after(|w| {
                let other = w.stored[&(topic, 0)][0].body;
                w.sent(other).attempts = 2;
                sound::append(queue(w, LOG), other);
            });
            assert!(rules.contains(&Rule::WrongQueue), "{topic}: {rules:?}");
        }
    }

    #[test]
    fn a_second_copy_is_found() {
        for topic in [LOG, DELAYED, TRANSACTIONS] {
            let rules = after(|w| {
                let last = queue(w, topic).last().unwrap().body;
                sound::append(queue(w, topic), last);
            });
            assert_eq!(rules, [Rule::Twice], "{topic}");
        }
    }

    #[test]
    fn a_second_copy_after_an_unknown_result_is_none() {
        let rules = after(|w| {
            let last = queue(w, LOG).last().unwrap().body;
            w.sent(last).attempts = 2;
            sound::append(queue(w, LOG), last);
        });
        assert_eq!(rules, []);
    }

    #[test]
    fn swapped_messages_are_found() {
        let rules = after(|w| {
            let q = queue(w, LOG);
            (q[0].body, q[2].body) = (q[2].body, q[0].body);
        });
        assert!(rules.contains(&Rule::OutOfOrder), "{rules:?}");
    }

    #[test]
    fn an_early_message_is_found() {
        for topic in [DELAYED, TRANSACTIONS] {
            let by_its_record = after(|w| queue(w, topic)[0].stored_at -= 100);
            assert_eq!(by_its_record, [Rule::Early], "{topic}");
            let by_a_consumer = after(|w| {
                let mut seen = queue(w, topic)[0];
                seen.seen_at = seen.stored_at - 100;
                w.history.glimpses.push(seen);
            });
            assert_eq!(by_a_consumer, [Rule::Early], "{topic}");
        }
    }

    #[test]
    fn due_times_rounded_down_are_told_from_early_ones() {
        let rounded = |by| {
            after(|w| {
                w.history.tolerance.due_ms = 1_000;
                queue(w, DELAYED)[0].stored_at -= by;
            })
        };
        assert_eq!(rounded(900), []);
        assert_eq!(rounded(1_100), [Rule::Early]);
    }

    #[test]
    fn a_reused_offset_is_found() {
        let rules = after(|w| {
            let (first, second) = (queue(w, LOG)[0], queue(w, LOG)[1]);
            w.history.glimpses.push(Seen { body: second.body, ..first });
        });
        assert_eq!(rules, [Rule::Reused]);
    }

    #[test]
    fn a_message_that_was_seen_and_is_gone_is_found() {
        let rules = after(|w| {
            let last = queue(w, LOG).pop().unwrap();
            w.sent(last.body).answer = Answer::Unknown;
            w.history.glimpses.push(last);
        });
        assert_eq!(rules, [Rule::Gone]);
    }

    #[test]
    fn a_visible_rolled_back_or_undecided_message_is_found() {
        let rules = after(|w| {
            let id = w.rolled_back();
            sound::append(queue(w, TRANSACTIONS), Identity::Whole(id));
        });
        assert_eq!(rules, [Rule::Undecided]);
    }

    #[test]
    fn a_transaction_that_nobody_asked_about_is_found() {
        let rules = after(|w| {
            let id = w.rolled_back();
            w.sent(Identity::Whole(id)).check = Check::Awaited;
        });
        assert_eq!(rules, [Rule::Unasked]);
    }
}
