//! Messages sent back: each attempt that was acknowledged arrives, those that were used up among the dead letters, none
//! before its delay, and none more often than it was sent back.

use std::collections::HashMap;

use super::logs::violation;
use super::{History, Identity, MessageId, Place, Role, Rule, Stored, Topic, Violation};

/// A consumer sent a message back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendBack {
    /// The message.
    pub id: MessageId,
    /// The topic that it must come to: the group's retries, or its dead letters.
    pub to: Topic,
    /// How often it was tried, as the new record must say. Not looked at among the dead letters.
    pub times: u32,
    /// When it may come at the earliest, in ms.
    pub not_before: u64,
    /// Whether the answer was a success; otherwise it is not known.
    pub acknowledged: bool,
}

/// All send-backs that ask for the same record.
#[derive(Debug, Clone, Copy)]
struct Attempts {
    acknowledged: u32,
    all: u32,
    not_before: u64,
    copies: u32,
}

/// Judges the retry and dead letter topics.
pub(super) fn check(history: &History, stored: &Stored, found: &mut Vec<Violation>) {
    let mut attempts: HashMap<(MessageId, Topic, u32), Attempts> = HashMap::new();
    for back in &history.send_backs {
        let key = (back.id, back.to, times(history, back.to, back.times));
        let none = Attempts { acknowledged: 0, all: 0, not_before: u64::MAX, copies: 0 };
        let entry = attempts.entry(key).or_insert(none);
        entry.all += 1;
        entry.acknowledged += u32::from(back.acknowledged);
        entry.not_before = entry.not_before.min(back.not_before);
    }
    let retried =
        stored.iter().filter(|((topic, _), _)| matches!(history.role(topic), Some(Role::Retries | Role::DeadLetters)));
    for seen in retried.flat_map(|(_, messages)| messages) {
        let Identity::Whole(id) = seen.body else { continue };
        let topic = seen.place.topic;
        let mut tell = |rule, detail| found.push(violation(rule, topic, Some(id), Some(seen.place), detail));
        let Some(entry) = attempts.get_mut(&(id, topic, times(history, topic, seen.times))) else {
            tell(Rule::Invented, format!("it was not sent back for attempt {}", seen.times));
            continue;
        };
        entry.copies += 1;
        if entry.copies > entry.all {
            tell(Rule::Twice, format!("it was sent back {} times for attempt {}", entry.all, seen.times));
        }
        if seen.stored_at < entry.not_before.saturating_sub(history.tolerance.clock_ms) {
            tell(Rule::Early, format!("due at {}, stored at {}", entry.not_before, seen.stored_at));
        }
    }
    let mut lost: Vec<_> = attempts.iter().filter(|(_, entry)| entry.copies < entry.acknowledged).collect();
    lost.sort_by_key(|(key, _)| **key);
    for ((id, topic, times), entry) in lost {
        let detail = format!("{} of {} copies came for attempt {times}", entry.copies, entry.acknowledged);
        found.push(violation(Rule::Lost, topic, Some(*id), None::<Place>, detail));
    }
}

/// Dead letters are told by their message alone.
fn times(history: &History, topic: Topic, times: u32) -> u32 {
    if history.role(topic) == Some(Role::DeadLetters) { 0 } else { times }
}

#[cfg(test)]
mod tests {
    use super::super::Seen;
    use super::super::sound::{self, DEAD_LETTERS, RETRIES, World};
    use super::*;

    fn after(damage: impl FnOnce(&mut World)) -> Vec<Rule> {
        sound::rules_after(damage)
    }

    #[test]
    fn a_lost_attempt_or_dead_letter_is_found() {
        for topic in [RETRIES, DEAD_LETTERS] {
            let rules = after(|w| {
                w.stored.get_mut(&(topic, 0)).unwrap().pop();
            });
            assert_eq!(rules, [Rule::Lost], "{topic}");
        }
    }

    #[test]
    fn an_attempt_with_a_wrong_count_is_found() {
        let rules = after(|w| w.stored.get_mut(&(RETRIES, 0)).unwrap()[0].times = 7);
        assert_eq!(rules, [Rule::Invented, Rule::Lost]);
    }

    #[test]
    fn a_message_that_was_not_sent_back_is_found() {
        for topic in [RETRIES, DEAD_LETTERS] {
            let rules = after(|w| {
                let other = w.stored[&(sound::LOG, 0)][0].body;
                sound::append(w.stored.get_mut(&(topic, 0)).unwrap(), other);
            });
            assert_eq!(rules, [Rule::Invented], "{topic}");
        }
    }

    #[test]
    fn a_doubled_attempt_is_found_unless_its_answer_never_came() {
        for topic in [RETRIES, DEAD_LETTERS] {
            let twice = |w: &mut World| {
                let last = *w.stored[&(topic, 0)].last().unwrap();
                sound::append_seen(w.stored.get_mut(&(topic, 0)).unwrap(), last);
                last
            };
            let known = after(|w| {
                twice(w);
            });
            assert_eq!(known, [Rule::Twice], "{topic}");
            let unknown = after(|w| {
                let Seen { body, times, .. } = twice(w);
                let id = body.id().unwrap();
                let same = |b: &&SendBack| b.id == id && b.to == topic && b.times == times;
                let back = *w.history.send_backs.iter().find(same).unwrap();
                w.history.send_backs.push(SendBack { acknowledged: false, ..back });
            });
            assert_eq!(unknown, [], "{topic}");
        }
    }

    #[test]
    fn an_early_attempt_is_found() {
        let rules = after(|w| w.stored.get_mut(&(RETRIES, 0)).unwrap()[0].stored_at -= 500);
        assert_eq!(rules, [Rule::Early]);
    }
}
