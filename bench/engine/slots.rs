//! The requests of a connection that wait for an answer, found by their opaque.
//!
//! Invariant: an opaque names one use of a slot: a late or doubled answer finds nothing. Memory is fixed at the start.

use super::{Asked, Request};

/// Most slots of a connection.
pub const MAX_SLOTS: usize = 1 << 16;
const GENERATIONS: u32 = 1 << 15;

struct Slot {
    generation: u32,
    /// When it was written, for the timeout; the run's clock.
    asked_ns: u64,
    asked: Option<Asked>,
}

pub struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Slots {
    pub fn new(count: usize) -> Slots {
        let count = count.clamp(1, MAX_SLOTS);
        Slots {
            slots: (0..count).map(|_| Slot { generation: 0, asked_ns: 0, asked: None }).collect(),
            free: (0..count as u32).rev().collect(),
        }
    }

    /// The opaque of the next request; `None` when all slots wait.
    pub fn next_opaque(&self) -> Option<i32> {
        let index = *self.free.last()?;
        Some((self.slots[index as usize].generation << 16 | index) as i32)
    }

    /// The request that took [`Slots::next_opaque`] was written.
    pub fn fill(&mut self, request: Request, began_ns: u64, now_ns: u64) {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.asked = Some(Asked { request, began_ns });
            slot.asked_ns = now_ns;
        }
    }

    /// The request of an answer; `None` when nobody waits for it.
    pub fn take(&mut self, opaque: i32) -> Option<Asked> {
        let index = opaque as u32 & 0xFFFF;
        let slot = self.slots.get_mut(index as usize)?;
        if slot.generation != opaque as u32 >> 16 {
            return None;
        }
        let asked = slot.asked.take()?;
        slot.generation = (slot.generation + 1) % GENERATIONS;
        self.free.push(index);
        Some(asked)
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes out what waits for longer than `patience_ns` and its own hold. Calls `lost` for each.
    pub fn take_overdue(&mut self, now_ns: u64, patience_ns: u64, mut lost: impl FnMut(Asked)) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let Some(asked) = slot.asked else { continue };
            let limit = patience_ns + u64::from(asked.request.hold_ms) * 1_000_000;
            if now_ns.saturating_sub(slot.asked_ns) > limit {
                slot.asked = None;
                slot.generation = (slot.generation + 1) % GENERATIONS;
                self.free.push(index as u32);
                lost(asked);
            }
        }
    }

    /// Takes out everything.
    pub fn take_all(&mut self, lost: impl FnMut(Asked)) {
        for slot in &mut self.slots {
            slot.asked_ns = 0;
            if let Some(asked) = &mut slot.asked {
                asked.request.hold_ms = 0;
            }
        }
        self.take_overdue(u64::MAX, 0, lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Kind;

    fn request(tag: u64, hold_ms: u32) -> Request {
        Request { kind: Kind::Send, tag, messages: 1, bytes: 1, answered: true, hold_ms }
    }

    #[test]
    fn an_answer_is_taken_once() {
        let mut slots = Slots::new(2);
        let first = slots.next_opaque().unwrap();
        slots.fill(request(1, 0), 5, 5);
        let second = slots.next_opaque().unwrap();
        slots.fill(request(2, 0), 6, 6);
        assert_eq!((slots.next_opaque(), slots.waiting()), (None, 2));
        assert_eq!(slots.take(second).map(|a| (a.request.tag, a.began_ns)), Some((2, 6)));
        assert!(slots.take(second).is_none() && slots.take(-1).is_none() && slots.take(7).is_none());
        assert_ne!(slots.next_opaque(), Some(second), "the slot's next use has another number");
        assert_eq!(slots.take(first).map(|a| a.request.tag), Some(1));
        assert_eq!(slots.waiting(), 0);
    }

    #[test]
    fn overdue_requests_are_told_once() {
        let mut slots = Slots::new(3);
        for (tag, hold) in [(1, 0), (2, 1_000), (3, 0)] {
            slots.next_opaque().unwrap();
            slots.fill(request(tag, hold), 0, tag * 1_000_000);
        }
        let mut lost = Vec::new();
        slots.take_overdue(2_500_000, 1_000_000, |a| lost.push(a.request.tag));
        assert_eq!((lost, slots.waiting()), (vec![1], 2));
        let mut rest = Vec::new();
        slots.take_all(|a| rest.push(a.request.tag));
        rest.sort_unstable();
        assert_eq!((rest, slots.waiting()), (vec![2, 3], 0));
    }

    #[test]
    fn opaques_stay_positive_for_ever() {
        let mut slots = Slots::new(1);
        for _ in 0..GENERATIONS * 2 + 1 {
            let opaque = slots.next_opaque().unwrap();
            assert!(opaque >= 0);
            slots.fill(request(0, 0), 0, 0);
            assert!(slots.take(opaque).is_some());
        }
    }
}
