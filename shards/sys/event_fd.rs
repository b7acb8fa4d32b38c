//! A descriptor that wakes a ring from any thread.
//!
//! Never read: the ring watches it with a multishot poll, which reports each notification, and 2^64 of them do not happen.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// An event descriptor (close-on-exec, never blocking).
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A new one. Errors: no descriptor is left.
    pub fn new() -> io::Result<EventFd> {
        Ok(EventFd(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Wakes whoever watches it.
    pub fn notify(&self) {
        // Fails only when the counter is full, which is a notification too.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// The number for [`crate::ring::Ring::watch`].
    pub fn raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
