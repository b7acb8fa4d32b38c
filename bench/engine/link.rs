//! One connection: what goes out, what comes in, what waits for an answer.
//!
//! Invariant: at most one send and one receive of a connection are with the kernel; what is written meanwhile waits for
//! the next send.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use sys::Gather;

use super::slots::Slots;
use super::{Now, Work};
use crate::wire::input::Input;

/// No new request is written while so many bytes wait.
const OUT_LIMIT: usize = 4 << 20;

pub struct Link {
    pub stream: TcpStream,
    pub work: Box<dyn Work>,
    pub slots: Slots,
    pub input: Input,
    /// Operations that may be under way.
    pub window: usize,
    /// Counts the connections that this one was before, so that their late completions are known.
    pub epoch: u16,
    pub is_sending: bool,
    pub is_receiving: bool,
    /// Stands in the list of links that may ask.
    pub is_listed: bool,
    /// Is down; when it is tried again, by the run's clock.
    pub retry_at_ns: Option<u64>,
    /// Since when.
    pub down_since_ns: u64,
    out: Gather,
    spare: Vec<u8>,
}

/// A connection as the engine wants it. Errors: it cannot be made within `patience`.
pub fn connect(address: SocketAddr, patience: Duration) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Link {
    pub fn new(stream: TcpStream, work: Box<dyn Work>, window: usize) -> Link {
        Link {
            stream,
            work,
            // Follow-ups need a place beside what is asked.
            slots: Slots::new(window * 2),
            input: Input::default(),
            window,
            epoch: 0,
            is_sending: false,
            is_receiving: false,
            is_listed: false,
            retry_at_ns: None,
            down_since_ns: 0,
            out: Gather::default(),
            spare: Vec::new(),
        }
    }

    pub fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Its number in the ring.
    pub fn id(&self, index: usize) -> u32 {
        u32::from(self.epoch) << 16 | index as u32
    }

    pub fn is_up(&self) -> bool {
        self.retry_at_ns.is_none()
    }

    /// Whether an operation may begin.
    pub fn has_room(&self) -> bool {
        self.is_up() && self.slots.waiting() < self.window && self.out.len() < OUT_LIMIT
    }

    /// Writes what follows from answers. `false`: there is no room for all of it now.
    pub fn follow(&mut self, now: Now) -> bool {
        while self.is_up() && self.out.len() < OUT_LIMIT {
            let Some(opaque) = self.slots.next_opaque() else { return false };
            let Some((request, began_ns)) = self.work.follow(opaque, now, self.out.bytes()) else { return true };
            if request.answered {
                self.slots.fill(request, began_ns, now.ns);
            }
        }
        false
    }

    /// Begins an operation; `None` when its work has none now.
    pub fn ask(&mut self, began_ns: u64, now: Now) -> Option<super::Request> {
        let opaque = self.slots.next_opaque()?;
        let request = self.work.ask(opaque, began_ns, now, self.out.bytes())?;
        if request.answered {
            self.slots.fill(request, began_ns, now.ns);
        }
        Some(request)
    }

    pub fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    /// What is to be sent now; the next requests go to another buffer.
    pub fn take_output(&mut self) -> Gather {
        std::mem::replace(&mut self.out, Gather::with_buffer(std::mem::take(&mut self.spare)))
    }

    /// A send's buffer is used again.
    pub fn give_back(&mut self, gather: Gather) {
        let buffer = gather.into_buffer();
        if buffer.capacity() > self.spare.capacity() {
            self.spare = buffer;
        }
    }

    /// It is a new connection. The caller has taken what waited.
    pub fn replace(&mut self, stream: TcpStream) -> TcpStream {
        self.epoch = self.epoch.wrapping_add(1);
        self.input = Input::default();
        self.is_sending = false;
        self.is_receiving = false;
        self.retry_at_ns = None;
        self.work.reconnected();
        std::mem::replace(&mut self.stream, stream)
    }

    /// Forgets what was not sent.
    pub fn drop_output(&mut self) {
        let out = std::mem::take(&mut self.out);
        self.give_back(out);
    }
}
