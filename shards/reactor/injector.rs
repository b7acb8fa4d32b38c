//! What other threads hand to a core: messages, accepted sockets, results of background jobs, the stop.
//!
//! A locked list and a flag; the core looks at the flag once a turn and takes the whole list. The list is not bounded by
//! itself: results are bounded by the jobs that the core asked for, sockets by the limit on connections, and messages of
//! the control thread are few.

use crate::background::JobOutput;
use crate::engine::ListenerSpec;
use crate::service::{ListenerId, Token};
use crate::wake::Wake;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) enum Injected<M> {
    Message(M),
    Accepted(OwnedFd, ListenerId),
    Listen(Vec<(ListenerSpec, TcpListener)>),
    Completed(Token, io::Result<JobOutput>),
    Stop,
}

pub(crate) struct Injector<M> {
    list: Mutex<Vec<Injected<M>>>,
    filled: AtomicBool,
    pub(crate) wake: Wake,
}

impl<M> Injector<M> {
    pub(crate) fn new() -> io::Result<Injector<M>> {
        Ok(Injector { list: Mutex::new(Vec::new()), filled: AtomicBool::new(false), wake: Wake::new()? })
    }

    pub(crate) fn push(&self, item: Injected<M>) {
        self.list().push(item);
        self.filled.store(true, Ordering::Release);
        self.wake.after_publish();
    }

    /// Takes all; `into` must be empty and lends its capacity.
    pub(crate) fn take(&self, into: &mut Vec<Injected<M>>) {
        assert!(into.is_empty());
        // The flag goes first: what is added after the exchange sets it again.
        if self.filled.swap(false, Ordering::Acquire) {
            std::mem::swap(&mut *self.list(), into);
        }
    }

    pub(crate) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire)
    }

    fn list(&self) -> MutexGuard<'_, Vec<Injected<M>>> {
        // Nothing that is done under the lock leaves the list half changed.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
