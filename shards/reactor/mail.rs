//! The mailboxes of one core: to every other core, from every other core, and to itself.
//!
//! Invariant: a message that the context took has a slot, because its room was told at the start of the turn and only this
//! core fills the mailbox.

use crate::context::Context;
use crate::injector::Injector;
use crate::service::{CoreId, Now, Service};
use std::collections::VecDeque;
use std::sync::Arc;
use sys::spsc::{Consumer, Producer, mailbox};

/// One core's ends of the mailboxes.
pub(crate) struct Mail<M> {
    core: CoreId,
    /// By core; `None` for this one.
    outgoing: Vec<Option<Producer<M>>>,
    incoming: Vec<Option<Consumer<M>>>,
    /// Messages of this core to itself.
    own: VecDeque<M>,
    /// Taken out and about to be given; empty between turns.
    taken: Vec<(CoreId, M)>,
    slots: usize,
    peers: Vec<Arc<Injector<M>>>,
}

impl<M: Send> Mail<M> {
    /// The mailboxes between all cores, one [`Mail`] for each.
    pub(crate) fn between(peers: &[Arc<Injector<M>>], slots: usize) -> Vec<Mail<M>> {
        let cores = peers.len();
        let mut mails: Vec<Mail<M>> = (0..cores)
            .map(|core| Mail {
                core: CoreId(core as u16),
                outgoing: (0..cores).map(|_| None).collect(),
                incoming: (0..cores).map(|_| None).collect(),
                own: VecDeque::new(),
                taken: Vec::new(),
                slots,
                peers: peers.to_vec(),
            })
            .collect();
        for from in 0..cores {
            for to in (0..cores).filter(|to| *to != from) {
                let (producer, consumer) = mailbox(slots);
                mails[from].outgoing[to] = Some(producer);
                mails[to].incoming[from] = Some(consumer);
            }
        }
        mails
    }

    /// Tells the context how much each mailbox can take in this turn.
    pub(crate) fn set_rooms(&mut self, cx: &mut Context<M>) {
        for (to, outgoing) in self.outgoing.iter_mut().enumerate() {
            let room = outgoing.as_mut().map_or(self.slots - self.own.len(), Producer::room);
            cx.set_room(CoreId(to as u16), room);
        }
    }

    /// Gives the messages that have arrived, at a time (`clock`) that is read when they are all taken out.
    pub(crate) fn give<S: Service<Message = M>>(
        &mut self,
        service: &mut S,
        cx: &mut Context<M>,
        clock: impl FnOnce() -> Now,
    ) {
        // Those that the service posts to itself meanwhile are in the context, so this ends.
        while let Some(message) = self.own.pop_front() {
            service.message(cx, Some(self.core), message);
        }
        for (from, incoming) in self.incoming.iter_mut().enumerate() {
            let Some(incoming) = incoming else { continue };
            let from = CoreId(from as u16);
            self.taken.extend(std::iter::from_fn(|| incoming.pop()).take(self.slots).map(|message| (from, message)));
            incoming.release();
        }
        if !self.taken.is_empty() {
            cx.set_now(clock());
        }
        for (from, message) in self.taken.drain(..) {
            service.message(cx, Some(from), message);
        }
    }

    /// Shows the turn's messages to their cores and wakes those that sleep.
    pub(crate) fn publish(&mut self, cx: &mut Context<M>) {
        for to in 0..self.outgoing.len() {
            let outbox = cx.outbox(CoreId(to as u16));
            let Some(outgoing) = self.outgoing[to].as_mut() else {
                self.own.append(outbox);
                continue;
            };
            let count = outbox.len();
            for message in outbox.drain(..) {
                assert!(outgoing.push(message).is_ok(), "its room was told");
            }
            if outgoing.publish() {
                cx.counters_mut().posted += count as u64;
                cx.counters_mut().wakeups += u64::from(self.peers[to].wake.after_publish());
            }
        }
    }

    /// Whether messages are there to be given.
    pub(crate) fn has_arrived(&mut self) -> bool {
        !self.own.is_empty() || self.incoming.iter_mut().flatten().any(|incoming| !incoming.is_empty())
    }

    /// Whether every message of this core was taken.
    pub(crate) fn is_drained(&mut self) -> bool {
        self.own.is_empty() && self.outgoing.iter_mut().flatten().all(Producer::is_drained)
    }
}
