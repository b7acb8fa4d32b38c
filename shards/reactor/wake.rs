//! Waking a core that sleeps, and only then.
//!
//! The sleeper stores `sleeping`, passes a fence, and looks into its mailboxes once more before it sleeps; the poster
//! publishes, passes a fence, and then looks at `sleeping`. The two sequentially consistent fences have an order: if the
//! sleeper's comes first, the poster sees `sleeping` and notifies; if the poster's comes first, the sleeper sees what was
//! published and does not sleep. So a message is never left with a sleeping core.
//! The notification is remembered by the descriptor, so it also reaches a core that has not called the kernel yet.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use sys::event_fd::EventFd;

/// The doorbell of one core.
#[derive(Debug)]
pub(crate) struct Wake {
    sleeping: AtomicBool,
    event: EventFd,
}

impl Wake {
    pub(crate) fn new() -> io::Result<Wake> {
        Ok(Wake { sleeping: AtomicBool::new(false), event: EventFd::new()? })
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.event.raw_fd()
    }

    /// Called by a poster after it published. Whether the core had to be woken.
    pub(crate) fn after_publish(&self) -> bool {
        fence(Ordering::SeqCst);
        // The swap lets one of several posters notify.
        let sleeps = self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed);
        if sleeps {
            self.event.notify();
        }
        sleeps
    }

    /// Called by the core before it looks into its mailboxes for the last time and sleeps.
    pub(crate) fn before_sleep(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Called by the core when it is awake again, or stays awake.
    pub(crate) fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }
}
