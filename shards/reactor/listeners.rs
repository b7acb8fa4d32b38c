//! Accepting, and who gets a new connection.
//!
//! All listeners are on core 0: one exclusive socket for a port. A connection goes to the core with the fewest, or stays,
//! as its listener says. The load of a core counts a connection from the moment it was assigned.

use crate::connections::Connections;
use crate::context::Context;
use crate::engine::ListenerSpec;
use crate::injector::{Injected, Injector};
use crate::limits::Limits;
use crate::service::{CoreId, Service};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use sys::ring::Ring;

struct Listener {
    spec: ListenerSpec,
    socket: TcpListener,
    accepting: bool,
    /// When accepting is tried again, after it failed.
    retry_us: Option<u64>,
}

/// The listeners of a core (all are core 0's), and the load of every core.
pub(crate) struct Listeners<M> {
    list: Vec<Listener>,
    closing: bool,
    loads: Vec<Arc<AtomicUsize>>,
    cores: Vec<Arc<Injector<M>>>,
    retry_ms: u64,
}

impl<M> Listeners<M> {
    pub(crate) fn new(loads: &[Arc<AtomicUsize>], cores: &[Arc<Injector<M>>], limits: &Limits) -> Listeners<M> {
        Listeners {
            list: Vec::new(),
            closing: false,
            loads: loads.to_vec(),
            cores: cores.to_vec(),
            retry_ms: limits.accept_retry_ms,
        }
    }

    pub(crate) fn load(&self, core: CoreId) -> Arc<AtomicUsize> {
        self.loads[core.0 as usize].clone()
    }

    /// Accepts on these sockets from now on.
    pub(crate) fn listen(&mut self, cx: &mut Context<M>, ring: &mut Ring, list: Vec<(ListenerSpec, TcpListener)>) {
        for (spec, socket) in list {
            // The ring waits for connections itself; on a socket in non-blocking mode it would not.
            let blocking = socket.set_nonblocking(false);
            self.list.push(Listener { spec, socket, accepting: false, retry_us: None });
            let index = self.list.len() - 1;
            match blocking {
                Ok(()) => self.arm(cx, ring, index),
                Err(_) => self.list[index].retry_us = Some(cx.now().mono_us + self.retry_ms * 1000),
            }
        }
    }

    /// A connection was accepted, or could not be.
    pub(crate) fn accepted<S: Service<Message = M>>(
        &mut self,
        service: &mut S,
        cx: &mut Context<M>,
        connections: &mut Connections,
        index: u32,
        result: io::Result<OwnedFd>,
        armed: bool,
    ) {
        let listener = &mut self.list[index as usize];
        listener.accepting = armed;
        let spec = listener.spec;
        let failed = result.is_err();
        match result {
            Ok(socket) => {
                let target = if spec.spread { self.least_loaded() } else { 0 };
                self.loads[target].fetch_add(1, Ordering::Relaxed);
                if target == cx.core().0 as usize {
                    connections.adopt(service, cx, socket, spec.id);
                } else {
                    self.cores[target].push(Injected::Accepted(socket, spec.id));
                }
            }
            Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => {}
            Err(error) => {
                cx.counters_mut().accept_failures += 1;
                tracing::warn!(listener = %spec.addr, %error, "a connection could not be accepted");
            }
        }
        if armed || self.closing {
            return;
        }
        if failed {
            // Most likely no descriptor is left: those who wait stay in the backlog, those connected are served.
            self.list[index as usize].retry_us = Some(cx.now().mono_us + self.retry_ms * 1000);
        } else {
            self.arm(cx, &mut connections.ring, index as usize);
        }
    }

    /// Tries again where accepting failed.
    pub(crate) fn retry(&mut self, cx: &mut Context<M>, ring: &mut Ring) {
        let now_us = cx.now().mono_us;
        for index in 0..self.list.len() {
            let listener = &mut self.list[index];
            if listener.retry_us.is_some_and(|at_us| at_us <= now_us) {
                listener.retry_us = None;
                self.arm(cx, ring, index);
            }
        }
    }

    /// When [`Listeners::retry`] wants to be called next.
    pub(crate) fn next_us(&self) -> Option<u64> {
        self.list.iter().filter_map(|listener| listener.retry_us).min()
    }

    /// Accepts no more.
    pub(crate) fn close(&mut self, ring: &mut Ring) {
        self.closing = true;
        for (index, listener) in self.list.iter_mut().enumerate() {
            listener.retry_us = None;
            if listener.accepting {
                // The stop goes on without it too: the listener closes with the ring.
                let _ = ring.cancel_accept(index as u32);
            }
        }
    }

    fn arm(&mut self, cx: &Context<M>, ring: &mut Ring, index: usize) {
        let listener = &mut self.list[index];
        match ring.accept(index as u32, listener.socket.as_raw_fd()) {
            Ok(()) => listener.accepting = true,
            Err(_) => listener.retry_us = Some(cx.now().mono_us + self.retry_ms * 1000),
        }
    }

    fn least_loaded(&self) -> usize {
        let loads = self.loads.iter().map(|load| load.load(Ordering::Relaxed));
        loads.enumerate().min_by_key(|(_, load)| *load).map_or(0, |(core, _)| core)
    }
}
