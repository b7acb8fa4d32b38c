//! A bounded mailbox between two threads: one writes, one reads, neither waits.
//!
//! The writer fills slots and shows them with [`Producer::publish`], once for a batch; the reader takes them and gives the
//! slots back with [`Consumer::release`], once for a batch.
//!
//! Memory order: `tail` and `head` count up without end (wrapping); slot `n & mask` belongs to the reader while
//! `head <= n < tail` and to the writer otherwise. The writer stores `tail` with Release after it filled the slots and the
//! reader loads it with Acquire, so a slot that is seen as published is seen filled. The reader stores `head` with Release
//! after it moved the values out and the writer loads it with Acquire, so a slot that is seen as free is no longer read.
//! Waking a sleeping reader is not done here; see the reactor's `wake`.

#[cfg(loom)]
use loom::{
    cell::UnsafeCell,
    sync::Arc,
    sync::atomic::{AtomicUsize, Ordering},
};
use std::mem::MaybeUninit;
#[cfg(not(loom))]
use std::{
    sync::Arc,
    sync::atomic::{AtomicUsize, Ordering},
};

#[cfg(not(loom))]
struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// On a cache line (pair) of its own, so that the two sides do not disturb each other.
#[repr(align(128))]
struct Line<T>(T);

struct Shared<T> {
    tail: Line<AtomicUsize>,
    head: Line<AtomicUsize>,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: a value is written by one side and moved out by the other, in slots that belong to one side at a time (see the
// module's text), so sharing the slots moves `T` between threads and nothing else.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above; the values inside are `Send`.
unsafe impl<T: Send> Send for Shared<T> {}

/// The writing side.
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    /// Next slot to fill; from the published tail up to here the slots are filled and not shown.
    tail: usize,
    published: usize,
    /// The reader's `head` as last seen.
    head: usize,
}

/// The reading side.
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    /// Next slot to take.
    head: usize,
    released: usize,
    /// The writer's `tail` as last seen.
    tail: usize,
}

/// A mailbox of `capacity` slots, a power of two.
pub fn mailbox<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    assert!(capacity.is_power_of_two());
    let slots = (0..capacity).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
    let shared = Arc::new(Shared { tail: Line(AtomicUsize::new(0)), head: Line(AtomicUsize::new(0)), slots });
    (
        Producer { shared: shared.clone(), tail: 0, published: 0, head: 0 },
        Consumer { shared, head: 0, released: 0, tail: 0 },
    )
}

impl<T: Send> Producer<T> {
    /// Free slots.
    pub fn room(&mut self) -> usize {
        self.head = self.shared.head.0.load(Ordering::Acquire);
        self.shared.slots.len() - self.tail.wrapping_sub(self.head)
    }

    /// Fills a slot, without showing it yet. Errors: no slot is free.
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.tail.wrapping_sub(self.head) == self.shared.slots.len() && self.room() == 0 {
            return Err(value);
        }
        let slot = &self.shared.slots[self.tail & (self.shared.slots.len() - 1)];
        // SAFETY: the slot lies at `tail`, less than the capacity beyond a `head` that the reader stored: it is ours, and
        // holds no value (the reader moved it out before it stored `head`).
        slot.with_mut(|slot| unsafe { (*slot).write(value) });
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Shows the filled slots to the reader. `false`: there were none.
    pub fn publish(&mut self) -> bool {
        if self.published == self.tail {
            return false;
        }
        self.published = self.tail;
        self.shared.tail.0.store(self.tail, Ordering::Release);
        true
    }

    /// Whether the reader has given every slot back.
    pub fn is_drained(&mut self) -> bool {
        self.room() == self.shared.slots.len()
    }
}

impl<T: Send> Consumer<T> {
    /// Whether nothing is there to take.
    pub fn is_empty(&mut self) -> bool {
        if self.head == self.tail {
            self.tail = self.shared.tail.0.load(Ordering::Acquire);
        }
        self.head == self.tail
    }

    /// Takes the oldest value.
    pub fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let slot = &self.shared.slots[self.head & (self.shared.slots.len() - 1)];
        // SAFETY: `head` is below a `tail` that the writer stored: the slot is filled and ours, and `head` moves on, so the
        // value is moved out once.
        let value = slot.with_mut(|slot| unsafe { (*slot).assume_init_read() });
        self.head = self.head.wrapping_add(1);
        Some(value)
    }

    /// Gives the taken slots back to the writer.
    pub fn release(&mut self) {
        if self.released != self.head {
            self.released = self.head;
            self.shared.head.0.store(self.head, Ordering::Release);
        }
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        // What was filled and not shown would be lost without being dropped.
        self.shared.tail.0.store(self.tail, Ordering::Release);
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        self.shared.head.0.store(self.head, Ordering::Release);
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let tail = self.tail.0.load(Ordering::Acquire);
        let mut head = self.head.0.load(Ordering::Acquire);
        while head != tail {
            let slot = &self.slots[head & (self.slots.len() - 1)];
            // SAFETY: both sides are gone; the slots between `head` and `tail` are filled and were not moved out.
            slot.with_mut(|slot| unsafe { (*slot).assume_init_drop() });
            head = head.wrapping_add(1);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bounded_in_order_and_only_after_publish() {
        let (mut tx, mut rx) = mailbox(4);
        assert!(!tx.publish());
        for n in 0..4 {
            tx.push(n).unwrap();
        }
        assert_eq!(tx.push(9), Err(9));
        assert!(rx.is_empty());
        assert!(tx.publish());
        assert_eq!([rx.pop(), rx.pop()], [Some(0), Some(1)]);
        assert_eq!(tx.push(9), Err(9), "slots come back with release");
        rx.release();
        assert_eq!(tx.room(), 2);
        tx.push(4).unwrap();
        tx.publish();
        assert_eq!(std::iter::from_fn(|| rx.pop()).collect::<Vec<_>>(), [2, 3, 4]);
        assert!(!tx.is_drained());
        rx.release();
        assert!(tx.is_drained());
    }

    #[test]
    fn what_was_not_taken_is_dropped_once() {
        let value = std::sync::Arc::new(());
        let (mut tx, mut rx) = mailbox(8);
        for _ in 0..5 {
            tx.push(value.clone()).unwrap();
        }
        tx.publish();
        tx.push(value.clone()).unwrap();
        drop(rx.pop());
        assert_eq!(std::sync::Arc::strong_count(&value), 6);
        drop(tx);
        drop(rx);
        assert_eq!(std::sync::Arc::strong_count(&value), 1);
    }

    #[test]
    fn two_threads_lose_and_double_nothing() {
        let (mut tx, mut rx) = mailbox::<Box<u64>>(16);
        let count = 200_000u64;
        let writer = std::thread::spawn(move || {
            let mut n = 0;
            while n < count {
                while n < count && tx.push(Box::new(n)).is_ok() {
                    n += 1;
                    if n % 5 == 0 {
                        tx.publish();
                    }
                }
                tx.publish();
                std::thread::yield_now();
            }
        });
        let mut next = 0;
        while next < count {
            while let Some(value) = rx.pop() {
                assert_eq!(*value, next);
                next += 1;
            }
            rx.release();
            std::thread::yield_now();
        }
        writer.join().unwrap();
        assert!(rx.is_empty());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    #[test]
    fn every_interleaving_of_a_small_mailbox() {
        loom::model(|| {
            let (mut tx, mut rx) = mailbox::<Box<u32>>(2);
            let writer = loom::thread::spawn(move || {
                let mut sent = 0;
                for n in 0..3 {
                    if tx.push(Box::new(n)).is_err() {
                        break;
                    }
                    sent += 1;
                    tx.publish();
                }
                sent
            });
            let mut taken = 0;
            for _ in 0..2 {
                while let Some(value) = rx.pop() {
                    assert_eq!(*value, taken);
                    taken += 1;
                }
                rx.release();
            }
            let sent = writer.join().unwrap();
            while let Some(value) = rx.pop() {
                assert_eq!(*value, taken);
                taken += 1;
            }
            assert_eq!(taken, sent);
        });
    }
}
