//! Ordered consumption: one holder of a queue's lock at a time, nothing left out, nothing before a committed offset.

use std::collections::BTreeMap;

use super::logs::violation;
use super::{History, Place, Queue, Rule, Stored, Violation};

/// A client held the lock of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// Which client.
    pub client: u32,
    /// The queue.
    pub queue: Queue,
    /// When it asked for the lock that it got, in ms.
    pub asked_at: u64,
    /// When it had the answer, in ms.
    pub from: u64,
    /// When it asked for the lock to be taken away, or lost its broker, in ms.
    pub until: u64,
    /// The start of the broker that gave it: locks do not outlive one.
    pub start: u32,
}

/// What the holder of a queue's lock did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It was given the message at this offset.
    Consumed(u64),
    /// It committed this offset, the one behind its last message, and was answered.
    Committed(u64),
}

/// Judges locks and steps.
pub(super) fn check(history: &History, stored: &Stored, found: &mut Vec<Violation>) {
    let mut holds: BTreeMap<(Queue, u32), Vec<Hold>> = BTreeMap::new();
    for hold in &history.holds {
        holds.entry((hold.queue, hold.start)).or_default().push(*hold);
    }
    for ((queue, _), holds) in &mut holds {
        one_at_a_time(*queue, holds, found);
    }
    for (queue, steps) in &history.steps {
        let end = stored.get(queue).map_or(0, |messages| messages.len() as u64);
        in_order(*queue, steps, end, found);
    }
}

fn one_at_a_time(queue: Queue, holds: &mut [Hold], found: &mut Vec<Violation>) {
    holds.sort_by_key(|hold| hold.from);
    // The client that has held it longest so far; locks of one client may overlap, it asks for them again and again.
    let mut before: Option<Hold> = None;
    for hold in holds {
        if let Some(first) = before.filter(|first| first.client != hold.client && first.until > hold.from) {
            let detail = format!(
                "queue {}: client {} had it from {} to {}, client {} got it at {}",
                queue.1, first.client, first.from, first.until, hold.client, hold.from
            );
            found.push(violation(Rule::TwoHolders, queue.0, None, None, detail));
        }
        if before.is_none_or(|first| first.until <= hold.until) {
            before = Some(*hold);
        }
    }
}

fn in_order(queue: Queue, steps: &[Step], end: u64, found: &mut Vec<Violation>) {
    let (mut next, mut committed) = (0, 0);
    for step in steps {
        match *step {
            Step::Committed(offset) => committed = offset,
            Step::Consumed(offset) => {
                let place = Some(Place { topic: queue.0, queue: queue.1, offset });
                if offset > next {
                    let detail = format!("offset {next} should have come");
                    found.push(violation(Rule::Skipped, queue.0, None, place, detail));
                }
                if offset < committed {
                    let detail = format!("offset {committed} was committed and answered");
                    found.push(violation(Rule::CommitLost, queue.0, None, place, detail));
                }
                next = offset + 1;
            }
        }
    }
    if next < end {
        let detail = format!("queue {}: what lies from offset {next} to {end} was never consumed", queue.1);
        found.push(violation(Rule::Skipped, queue.0, None, None, detail));
    }
}

#[cfg(test)]
mod tests {
    use super::super::sound::{self, LOG, World};
    use super::*;

    fn after(damage: impl FnOnce(&mut World)) -> Vec<Rule> {
        sound::rules_after(damage)
    }

    #[test]
    fn two_holders_are_found() {
        let overlap = |world: &mut World| {
            let first = world.history.holds[0];
            let second = world.history.holds.iter_mut().find(|h| h.client != first.client).unwrap();
            second.from = first.until - 1;
        };
        assert_eq!(after(overlap), [Rule::TwoHolders]);
        let of_another_start = after(|w| {
            overlap(w);
            w.history.holds[0].start = 9;
        });
        assert_eq!(of_another_start, []);
    }

    #[test]
    fn a_long_holder_hides_no_other() {
        let rules = after(|w| {
            let first = w.history.holds[0];
            w.history.holds[0].until = first.until + 1_000_000;
            w.history.holds.push(Hold { from: first.from + 1, until: first.from + 2, ..first });
        });
        assert!(rules.contains(&Rule::TwoHolders), "{rules:?}");
    }

    #[test]
    fn left_out_messages_are_found() {
        let rules = after(|w| {
            w.history.steps.get_mut(&(LOG, 0)).unwrap().remove(1);
        });
        assert_eq!(rules, [Rule::Skipped]);
    }

    #[test]
    fn messages_that_nobody_consumed_are_found() {
        let rules = after(|w| {
            w.history.steps.get_mut(&(LOG, 0)).unwrap().pop();
        });
        assert_eq!(rules, [Rule::Skipped]);
    }

    #[test]
    fn repeated_messages_are_none_unless_they_were_committed() {
        let again = |committed: bool| {
            after(|w| {
                let steps = w.history.steps.get_mut(&(LOG, 0)).unwrap();
                let end = steps.len() as u64;
                if committed {
                    steps.push(Step::Committed(end));
                }
                steps.extend([Step::Consumed(end - 2), Step::Consumed(end - 1)]);
            })
        };
        assert_eq!(again(false), []);
        assert_eq!(again(true), [Rule::CommitLost, Rule::CommitLost]);
    }
}
