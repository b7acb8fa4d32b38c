//! Locks of queues for ordered consumption (41, 42): which client of a group may consume a queue.
//!
//! A lock lives [`LOCK_LIVE_MS`] from the last time that its client asked for it. Pure: times are passed in. Nothing is kept on
//! disk: after a restart clients ask again.

use super::answer::{Asker, Outcome};
use super::{Owner, Refusal, Turn};
use hashbrown::HashMap;
use reactor::Now;
use remoting::bodies::{Body, LockBatchRequest, LockBatchResponse, MessageQueue};
use remoting::{Command, ResponseCode};

/// Java's `rocketmq.broker.rebalance.lockMaxLiveTime`.
const LOCK_LIVE_MS: u64 = 60_000;
/// Locks that are kept; one more is not granted until others have expired.
const MAX_LOCKS: usize = 1 << 20;

/// All locks, by group.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    groups: HashMap<String, HashMap<MessageQueue, Lock>>,
    count: usize,
}

#[derive(Debug)]
struct Lock {
    client: String,
    until_us: u64,
}

impl Locks {
    /// Gives the queue to the client if it is free, expired or the client's own; tells whether the client has it now.
    fn lock(&mut self, now: Now, group: &str, queue: &MessageQueue, client: &str) -> bool {
        let until_us = now.mono_us + LOCK_LIVE_MS * 1000;
        if let Some(lock) = self.groups.get_mut(group).and_then(|queues| queues.get_mut(queue)) {
            if lock.client != client {
                if lock.until_us > now.mono_us {
                    return false;
                }
                client.clone_into(&mut lock.client);
            }
            lock.until_us = until_us;
            return true;
        }
        if self.count >= MAX_LOCKS {
            self.forget_expired(now);
            if self.count >= MAX_LOCKS {
                return false;
            }
        }
        let queues = self.groups.entry_ref(group).or_default();
        queues.insert(queue.clone(), Lock { client: client.to_owned(), until_us });
        self.count += 1;
        true
    }

    /// Takes the queue back, if the client has it.
    fn unlock(&mut self, group: &str, queue: &MessageQueue, client: &str) {
        let Some(queues) = self.groups.get_mut(group) else { return };
        if queues.get(queue).is_some_and(|lock| lock.client == client) {
            queues.remove(queue);
            self.count -= 1;
        }
        if queues.is_empty() {
            self.groups.remove(group);
        }
    }

    /// Whether a client of the group has a lock that has not expired.
    pub fn is_held(&self, now: Now, group: &str) -> bool {
        self.groups.get(group).is_some_and(|queues| queues.values().any(|lock| lock.until_us > now.mono_us))
    }

    fn forget_expired(&mut self, now: Now) {
        for queues in self.groups.values_mut() {
            queues.retain(|_, lock| lock.until_us > now.mono_us);
        }
        self.groups.retain(|_, queues| !queues.is_empty());
        self.count = self.groups.values().map(HashMap::len).sum();
    }
}

impl Owner {
    /// 41.
    pub(super) fn lock_queues(
        &mut self,
        turn: &Turn<'_>,
        asker: &Asker,
        command: &Command,
    ) -> Result<Outcome, Refusal> {
        let request = parse(command)?;
        let locked = request
            .mq_set
            .into_iter()
            .filter(|queue| self.locks.lock(turn.now, &request.consumer_group, queue, &request.client_id))
            .collect();
        let answer = LockBatchResponse { lock_ok_mq_set: locked };
        Ok(Outcome::Now(asker.ok().with_body(answer.encode())))
    }

    /// 42.
    pub(super) fn unlock_queues(&mut self, asker: &Asker, command: &Command) -> Result<Outcome, Refusal> {
        let request = parse(command)?;
        for queue in &request.mq_set {
            self.locks.unlock(&request.consumer_group, queue, &request.client_id);
        }
        Ok(Outcome::Now(asker.ok()))
    }
}

fn parse(command: &Command) -> Result<LockBatchRequest, Refusal> {
    let bad = |why: &str| Refusal::new(ResponseCode::SystemError, format!("the body is not as expected: {why}"));
    let request = LockBatchRequest::decode(&command.body).map_err(|error| bad(&error.to_string()))?;
    if request.consumer_group.is_empty() || request.client_id.is_empty() {
        return Err(bad("consumerGroup or clientId is missing"));
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(queue_id: i32) -> MessageQueue {
        MessageQueue { broker_name: "b".into(), queue_id, topic: "t".into() }
    }

    fn at(seconds: u64) -> Now {
        Now { mono_us: seconds * 1_000_000, wall_ms: 0 }
    }

    #[test]
    fn a_lock_is_its_clients_until_it_is_given_back_or_expires() {
        let mut locks = Locks::default();
        assert!(locks.lock(at(0), "g", &queue(0), "a"));
        assert!(!locks.lock(at(30), "g", &queue(0), "b"));
        assert!(locks.lock(at(30), "g", &queue(1), "b"), "another queue");
        assert!(locks.lock(at(30), "other", &queue(0), "b"), "another group");
        assert!(locks.lock(at(50), "g", &queue(0), "a"), "renewed");
        assert!(!locks.lock(at(109), "g", &queue(0), "b"));
        assert!(locks.lock(at(110), "g", &queue(0), "b"), "expired");
        locks.unlock("g", &queue(0), "a");
        assert!(!locks.lock(at(110), "g", &queue(0), "a"), "only its client gives it back");
        locks.unlock("g", &queue(0), "b");
        assert!(locks.lock(at(110), "g", &queue(0), "a"));
        assert_eq!(locks.count, 3);
        assert!(locks.is_held(at(169), "g") && !locks.is_held(at(170), "g") && !locks.is_held(at(0), "none"));
        locks.forget_expired(at(169));
        assert_eq!((locks.count, locks.groups.len()), (1, 1));
    }
}
