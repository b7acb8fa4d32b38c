//! The connections of one core, as the broker sees them.
//!
//! Role: what is in flight for each connection, and which one waits for metadata. Invariants: a request is counted from the
//! moment it leaves the turn unanswered until its one settling reply; a connection over its limit is held (no further frame of
//! it is parsed) and let go at half the limit; a connection that waits for metadata is held and keeps exactly one frame.
//! It sends nothing.

use crate::owner::Ticket;
use reactor::{ConnectionId, CoreId, ListenerId};
use std::net::SocketAddr;

/// Listener of the broker's port.
pub const BROKER_LISTENER: ListenerId = ListenerId(1);
/// Listener of the VIP port (the broker's port - 2), which serves no pulls.
pub const VIP_LISTENER: ListenerId = ListenerId(2);

/// Requests of one connection that may be unanswered (held pulls aside). Beyond, the connection is not read: a client that
/// pipelines without reading costs at most this many small records in memory.
pub const MAX_IN_FLIGHT: u32 = 4096;
/// Bytes of one connection's requests that may lie in mailboxes. Beyond, the connection is not read.
pub const MAX_IN_FLIGHT_BYTES: usize = 32 << 20;
/// Held pulls of one connection. Beyond, a pull that would be held is answered PULL_NOT_FOUND at once.
pub const MAX_HELD_PULLS: u32 = 8192;

/// One connection.
#[derive(Debug)]
pub struct Connection {
    generation: u32,
    /// The port that it came in by.
    pub listener: ListenerId,
    /// The peer's address.
    pub peer: SocketAddr,
    in_flight: u32,
    in_flight_bytes: usize,
    stopped: bool,
    waiting: Option<Waiting>,
}

/// A frame that waits for metadata.
#[derive(Debug)]
pub struct Waiting {
    /// The whole frame.
    pub frame: Vec<u8>,
}

/// What to do with the reading of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// As before.
    Unchanged,
    /// Stop giving its frames.
    Hold,
    /// Give its frames again.
    Release,
}

/// All connections of a core, by slot.
#[derive(Debug)]
pub struct Connections {
    core: CoreId,
    slots: Vec<Option<Connection>>,
    open: usize,
}

impl Connections {
    /// None yet.
    pub fn new(core: CoreId) -> Self {
        Self { core, slots: Vec::new(), open: 0 }
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        self.open
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// A new connection.
    pub fn open(&mut self, id: ConnectionId, listener: ListenerId, peer: SocketAddr) {
        assert!(id.core == self.core, "a connection belongs to its core");
        let slot = id.slot as usize;
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, || None);
        }
        assert!(self.slots[slot].is_none(), "a slot is closed before it is used again");
        self.open += 1;
        self.slots[slot] = Some(Connection {
            generation: id.generation,
            listener,
            peer,
            in_flight: 0,
            in_flight_bytes: 0,
            stopped: false,
            waiting: None,
        });
    }

    /// The connection is gone; whatever comes for it later is dropped.
    pub fn close(&mut self, id: ConnectionId) {
        if self.get(id).is_some() {
            self.slots[id.slot as usize] = None;
            self.open -= 1;
        }
    }

    /// The connection, unless it is gone.
    pub fn get(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        debug_assert!(id.core == self.core, "asked on the connection's core");
        self.slots.get_mut(id.slot as usize)?.as_mut().filter(|conn| conn.generation == id.generation)
    }

    /// Counts a request that is not answered within this call. `bytes`: what it keeps in mailboxes.
    pub fn begin(&mut self, id: ConnectionId, bytes: usize) -> Reading {
        let Some(conn) = self.get(id) else { return Reading::Unchanged };
        conn.in_flight += 1;
        conn.in_flight_bytes += bytes;
        if !conn.stopped && (conn.in_flight >= MAX_IN_FLIGHT || conn.in_flight_bytes >= MAX_IN_FLIGHT_BYTES) {
            conn.stopped = true;
            return Reading::Hold;
        }
        Reading::Unchanged
    }

    /// A counted request is answered; `bytes` as given to [`Connections::begin`].
    pub fn settle(&mut self, id: ConnectionId, bytes: usize) -> Reading {
        let Some(conn) = self.get(id) else { return Reading::Unchanged };
        assert!(conn.in_flight > 0 && conn.in_flight_bytes >= bytes, "a request settles once");
        conn.in_flight -= 1;
        conn.in_flight_bytes -= bytes;
        if conn.stopped && conn.in_flight <= MAX_IN_FLIGHT / 2 && conn.in_flight_bytes <= MAX_IN_FLIGHT_BYTES / 2 {
            conn.stopped = false;
            return Reading::Release;
        }
        Reading::Unchanged
    }

    /// Requests in flight of all connections.
    pub fn in_flight(&self) -> u64 {
        self.slots.iter().flatten().map(|conn| u64::from(conn.in_flight)).sum()
    }

    /// Keeps a frame until the owner answers. The caller holds the connection.
    pub fn wait(&mut self, id: ConnectionId, frame: &[u8]) -> Ticket {
        let conn = self.get(id).expect("frames come from open connections");
        assert!(conn.waiting.is_none(), "a connection waits for one thing");
        conn.waiting = Some(Waiting { frame: frame.to_vec() });
        Ticket { core: id.core, id: u64::from(id.generation) << 32 | u64::from(id.slot) }
    }

    /// The frame of an answered wait; `None` when its connection is gone. The caller releases the connection.
    pub fn resume(&mut self, ticket: Ticket) -> Option<(ConnectionId, Waiting)> {
        let id = ConnectionId { core: self.core, slot: ticket.id as u32, generation: (ticket.id >> 32) as u32 };
        let waiting = self.get(id)?.waiting.take()?;
        Some((id, waiting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(slot: u32, generation: u32) -> ConnectionId {
        ConnectionId { core: CoreId(1), slot, generation }
    }

    fn with_one() -> Connections {
        let mut all = Connections::new(CoreId(1));
        all.open(id(3, 7), BROKER_LISTENER, "127.0.0.1:1".parse().unwrap());
        all
    }

    #[test]
    fn a_connection_is_held_at_its_limit_and_let_go_at_half() {
        for (bytes, held_at) in [(0, MAX_IN_FLIGHT), (1 << 20, 32)] {
            let mut all = with_one();
            for count in 1..=held_at {
                let expected = if count == held_at { Reading::Hold } else { Reading::Unchanged };
                assert_eq!(all.begin(id(3, 7), bytes), expected, "request {count} of {bytes} bytes");
            }
            for left in (0..held_at).rev() {
                let expected = if left == held_at / 2 { Reading::Release } else { Reading::Unchanged };
                assert_eq!(all.settle(id(3, 7), bytes), expected, "{left} of {bytes} bytes left");
            }
        }
    }

    #[test]
    fn what_comes_for_a_closed_connection_is_dropped() {
        let mut all = with_one();
        all.begin(id(3, 7), 5);
        let ticket = all.wait(id(3, 7), b"frame");
        assert!(all.resume(Ticket { core: CoreId(1), id: ticket.id + (1 << 32) }).is_none(), "another generation");
        all.close(id(3, 7));
        assert_eq!(all.settle(id(3, 7), 5), Reading::Unchanged);
        assert!(all.resume(ticket).is_none());
        all.open(id(3, 8), VIP_LISTENER, "127.0.0.1:2".parse().unwrap());
        assert_eq!(all.settle(id(3, 7), 5), Reading::Unchanged, "of the connection before");
        let ticket = all.wait(id(3, 8), b"other");
        let (conn, waiting) = all.resume(ticket).expect("it waits");
        assert_eq!((conn, waiting.frame.as_slice()), (id(3, 8), &b"other"[..]));
        assert!(all.resume(ticket).is_none(), "once");
        assert_eq!(all.len(), 1);
    }
}
