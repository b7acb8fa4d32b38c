//! The connections of one core: what arrives, what leaves, and how each ends.
//!
//! Invariants: a connection has at most one receive and one send under way; its slot is free again only when both have
//! ended and the service was told. A connection whose frames may not be given keeps at most its input budget (and what
//! was already under way), then receiving is cancelled. Bytes that arrive for a closing connection are dropped.
//! It does not know what a frame means, nor where connections come from.

mod endings;

use crate::connection::Input;
use crate::context::Context;
use crate::limits::Limits;
use crate::service::{CloseReason, ConnectionId, ListenerId, Service};
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use sys::ring::Ring;
use sys::{Gather, Lent, socket};

/// How far the end of a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// The peer shut its writing side: what it asked is answered first.
    HalfClosed {
        since_us: u64,
    },
    /// Closed by the service once its output was sent.
    Flushing {
        since_us: u64,
    },
    /// Everything was sent; the peer may close first, so that unread input does not destroy what it has not read.
    Lingering {
        since_us: u64,
    },
    /// Waits for the end of its operations.
    Closing,
}

struct Connection {
    id: ConnectionId,
    stream: TcpStream,
    state: State,
    input: Input,
    receiving: bool,
    /// Receiving was cancelled because of the input budget.
    paused: bool,
    sending: bool,
    /// Is in `ready`.
    ready: bool,
    /// The service has been told of the end.
    told: bool,
    /// Last time that bytes came or went.
    active_us: u64,
    /// Frames given in the turn `given_in`.
    given: usize,
    given_in: u64,
    /// What the peer had acknowledged when it was looked at last.
    acknowledged: u64,
}

/// All connections of a core, and the ring that they use.
pub(crate) struct Connections {
    pub(crate) ring: Ring,
    limits: Limits,
    table: Vec<Option<Connection>>,
    open: usize,
    /// May have frames to give that were kept.
    ready: Vec<u32>,
    /// In a state that ends by itself after a time.
    ending: Vec<u32>,
    next_ending_us: u64,
    next_sweep_us: u64,
    /// Closed, and the service not yet told.
    closed: Vec<(ConnectionId, CloseReason)>,
    assembly_bytes: usize,
    /// Connections of this core, for whoever distributes new ones.
    load: Arc<AtomicUsize>,
}

impl Connections {
    pub(crate) fn new(ring: Ring, limits: Limits, load: Arc<AtomicUsize>) -> Connections {
        Connections {
            ring,
            limits,
            table: Vec::new(),
            open: 0,
            ready: Vec::new(),
            ending: Vec::new(),
            next_ending_us: 0,
            next_sweep_us: 0,
            closed: Vec::new(),
            assembly_bytes: 0,
            load,
        }
    }

    /// Takes over an accepted socket, which its distributor has counted in the load already.
    pub(crate) fn adopt<S: Service>(
        &mut self,
        service: &mut S,
        cx: &mut Context<S::Message>,
        socket: OwnedFd,
        listener: ListenerId,
    ) {
        let Ok((stream, peer)) = socket::accepted(socket) else {
            // Gone before it was looked at.
            self.load.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        if self.open >= self.limits.connections {
            self.load.fetch_sub(1, Ordering::Relaxed);
            cx.counters_mut().closed[CloseReason::TooManyConnections.index()] += 1;
            return;
        }
        cx.counters_mut().accepted += 1;
        let id = cx.open();
        let place = id.slot as usize;
        if self.table.len() <= place {
            self.table.resize_with(place + 1, || None);
        }
        assert!(self.table[place].is_none());
        self.table[place] = Some(Connection {
            id,
            stream,
            state: State::Open,
            input: Input::default(),
            receiving: false,
            paused: false,
            sending: false,
            ready: false,
            told: false,
            active_us: cx.now().mono_us,
            given: 0,
            given_in: 0,
            acknowledged: 0,
        });
        self.open += 1;
        service.connected(cx, id, listener, peer);
        self.arm(cx, id.slot);
    }

    /// A receive brought something, or ended.
    pub(crate) fn received<S: Service>(
        &mut self,
        service: &mut S,
        cx: &mut Context<S::Message>,
        slot: u32,
        result: io::Result<Option<Lent>>,
        armed: bool,
    ) {
        let now_us = cx.now().mono_us;
        let connection = entry(&mut self.table, slot);
        connection.receiving = armed;
        match result {
            Ok(Some(lent)) => {
                connection.active_us = now_us;
                self.take_bytes(service, cx, slot, lent);
                if !armed {
                    self.rearm(cx, slot);
                }
            }
            Ok(None) => self.stream_ended(cx, slot),
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOBUFS) => {
                    cx.counters_mut().buffers_exhausted += 1;
                    self.rearm(cx, slot);
                }
                Some(libc::ECANCELED | libc::EINTR | libc::EAGAIN) => self.rearm(cx, slot),
                _ => self.close(cx, slot, CloseReason::ReceiveFailed),
            },
        }
        self.free_if_ended(cx, slot);
    }

    /// A send ended.
    pub(crate) fn sent<M>(
        &mut self,
        cx: &mut Context<M>,
        slot: u32,
        gather: Gather,
        from: usize,
        result: io::Result<usize>,
    ) {
        let connection = entry(&mut self.table, slot);
        connection.sending = false;
        connection.active_us = cx.now().mono_us;
        match result {
            Ok(taken) if taken > 0 && from + taken < gather.len() && connection.state != State::Closing => {
                // Cut at the largest number of parts, or at a failure that the next try reports.
                cx.counters_mut().sent_bytes += taken as u64;
                self.send(cx, slot, gather, from + taken);
            }
            Ok(taken) if from + taken == gather.len() => {
                cx.counters_mut().sent_bytes += taken as u64;
                cx.outgoing(slot).landed();
                cx.recycle(gather.into_buffer());
                self.output_drained(cx, slot);
            }
            Ok(_) => self.send_failed(cx, slot, CloseReason::SendFailed),
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                self.send_failed(cx, slot, CloseReason::StoreFault);
            }
            Err(_) => self.send_failed(cx, slot, CloseReason::SendFailed),
        }
        self.free_if_ended(cx, slot);
    }

    /// Gives frames that were kept, of connections that may have them now.
    pub(crate) fn give_ready<S: Service>(&mut self, service: &mut S, cx: &mut Context<S::Message>) {
        for slot in std::mem::take(&mut self.ready) {
            let Some(connection) = self.table[slot as usize].as_mut() else { continue };
            connection.ready = false;
            self.give_frames(service, cx, slot, &[]);
            self.rearm(cx, slot);
        }
    }

    /// Tells the service of connections that ended.
    pub(crate) fn tell_closed<S: Service>(&mut self, service: &mut S, cx: &mut Context<S::Message>) {
        while let Some((id, why)) = self.closed.pop() {
            service.closed(cx, id, why);
            entry(&mut self.table, id.slot).told = true;
            self.free_if_ended(cx, id.slot);
        }
    }

    /// The last hold of a connection is gone.
    pub(crate) fn released<M>(&mut self, cx: &Context<M>, conn: ConnectionId) {
        if cx.connection(conn.slot) == Some(conn) {
            self.make_ready(conn.slot);
        }
    }

    /// The service closes a connection.
    pub(crate) fn close_by_service<M>(&mut self, cx: &mut Context<M>, conn: ConnectionId, flush: bool) {
        if cx.connection(conn.slot) != Some(conn) {
            return;
        }
        if !flush {
            return self.close(cx, conn.slot, CloseReason::ByService);
        }
        let since_us = cx.now().mono_us;
        let connection = entry(&mut self.table, conn.slot);
        match connection.state {
            State::Open => self.ending.push(conn.slot),
            State::HalfClosed { .. } => {}
            State::Flushing { .. } | State::Lingering { .. } | State::Closing => return,
        }
        connection.state = State::Flushing { since_us };
        let memory = connection.input.memory();
        connection.input = Input::default();
        self.assembly_bytes -= memory;
        self.rearm(cx, conn.slot);
        if cx.pending(conn) == 0 {
            self.output_drained(cx, conn.slot);
        }
    }

    /// Hands the turn's output to the kernel: one send for a connection.
    pub(crate) fn send_outputs<M>(&mut self, cx: &mut Context<M>) {
        while let Some(slot) = cx.pop_touched() {
            let Some(connection) = self.table[slot as usize].as_mut() else { continue };
            if !cx.outgoing(slot).has_queued() {
                cx.recycle_of(slot);
            } else if !connection.sending && connection.state != State::Closing {
                let gather = cx.outgoing(slot).take();
                self.send(cx, slot, gather, 0);
            }
        }
    }

    /// Whether the next turn has something to do here already.
    pub(crate) fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.closed.is_empty()
    }

    /// Connections whose operations have not all ended.
    pub(crate) fn open(&self) -> usize {
        self.open
    }

    fn take_bytes<S: Service>(&mut self, service: &mut S, cx: &mut Context<S::Message>, slot: u32, lent: Lent) {
        // The bytes lie in a buffer of the ring while the service sees them, and the ring is a field beside the table.
        let state = entry(&mut self.table, slot).state;
        if matches!(state, State::Open | State::HalfClosed { .. }) {
            let Connections { ring, limits, table, .. } = self;
            let bytes = ring.bytes(&lent);
            cx.counters_mut().received_bytes += bytes.len() as u64;
            let connection = entry(table, slot);
            let outcome = give(service, cx, limits, connection, bytes);
            self.ring.recycle(lent);
            self.after_giving(cx, slot, outcome);
        } else {
            self.ring.recycle(lent);
        }
    }

    fn give_frames<S: Service>(&mut self, service: &mut S, cx: &mut Context<S::Message>, slot: u32, bytes: &[u8]) {
        let connection = entry(&mut self.table, slot);
        let outcome = give(service, cx, &self.limits, connection, bytes);
        self.after_giving(cx, slot, outcome);
    }

    fn after_giving<M>(&mut self, cx: &mut Context<M>, slot: u32, outcome: Given) {
        self.assembly_bytes = self.assembly_bytes + outcome.memory_after - outcome.memory_before;
        if let Some(why) = outcome.refused {
            return self.close(cx, slot, why);
        }
        if outcome.memory_after > outcome.memory_before && self.assembly_bytes > self.limits.assembly_bytes {
            return self.close(cx, slot, CloseReason::InputBudget);
        }
        if outcome.more_next_turn {
            self.make_ready(slot);
        }
        let over_budget = self.is_over_budget(cx, slot);
        let connection = entry(&mut self.table, slot);
        if over_budget && connection.receiving && !connection.paused {
            connection.paused = true;
            cx.counters_mut().input_paused += 1;
            if self.ring.cancel_receive(slot).is_err() {
                self.close(cx, slot, CloseReason::ReceiveFailed);
            }
        }
    }

    /// Whether more is kept than may be, of frames that could be given but for a hold, slow reading or the turn's share.
    fn is_over_budget<M>(&self, cx: &Context<M>, slot: u32) -> bool {
        let connection = self.table[slot as usize].as_ref().expect("the connection is open");
        connection.input.len() > self.limits.connection_input_bytes
            && (is_blocked(cx, &self.limits, connection.id) || self.has_frame(connection))
    }

    /// Receives again if nothing speaks against it.
    fn rearm<M>(&mut self, cx: &mut Context<M>, slot: u32) {
        if self.table[slot as usize].is_none() {
            return;
        }
        let over_budget = self.is_over_budget(cx, slot);
        let connection = entry(&mut self.table, slot);
        connection.paused &= over_budget;
        let wants = matches!(connection.state, State::Open | State::Flushing { .. } | State::Lingering { .. });
        if wants && !connection.receiving && !over_budget {
            self.arm(cx, slot);
        }
    }

    fn arm<M>(&mut self, cx: &mut Context<M>, slot: u32) {
        let connection = entry(&mut self.table, slot);
        match self.ring.receive(slot, connection.stream.as_raw_fd()) {
            Ok(()) => connection.receiving = true,
            Err(_) => self.close(cx, slot, CloseReason::ReceiveFailed),
        }
    }

    fn stream_ended<M>(&mut self, cx: &mut Context<M>, slot: u32) {
        let since_us = cx.now().mono_us;
        let connection = entry(&mut self.table, slot);
        match connection.state {
            State::Open => {
                connection.state = State::HalfClosed { since_us };
                if !self.end_by_time(cx, slot, since_us) {
                    self.ending.push(slot);
                }
            }
            State::Lingering { .. } => self.close(cx, slot, CloseReason::ByService),
            State::HalfClosed { .. } | State::Flushing { .. } | State::Closing => {}
        }
    }

    fn send<M>(&mut self, cx: &mut Context<M>, slot: u32, gather: Gather, from: usize) {
        let connection = entry(&mut self.table, slot);
        cx.counters_mut().sends += 1;
        match self.ring.send(slot, connection.stream.as_raw_fd(), gather, from) {
            Ok(()) => connection.sending = true,
            Err(_) => self.send_failed(cx, slot, CloseReason::SendFailed),
        }
    }

    fn send_failed<M>(&mut self, cx: &mut Context<M>, slot: u32, why: CloseReason) {
        cx.outgoing(slot).landed();
        self.close(cx, slot, why);
    }

    /// Everything that was given to the kernel left.
    fn output_drained<M>(&mut self, cx: &mut Context<M>, slot: u32) {
        if cx.outgoing(slot).has_queued() {
            cx.touch(slot);
        }
        let since_us = cx.now().mono_us;
        let connection = entry(&mut self.table, slot);
        match connection.state {
            State::Flushing { .. } if cx.pending(connection.id) == 0 => {
                socket::end_sending(&connection.stream);
                connection.state = State::Lingering { since_us };
            }
            State::Open | State::HalfClosed { .. } if !connection.input.is_empty() || connection.paused => {
                self.make_ready(slot);
            }
            _ => {}
        }
    }

    fn make_ready(&mut self, slot: u32) {
        let connection = entry(&mut self.table, slot);
        if !connection.ready {
            connection.ready = true;
            self.ready.push(slot);
        }
    }

    /// Whether a whole frame waits to be given.
    fn has_frame(&self, connection: &Connection) -> bool {
        connection.input.has_frame(self.limits.max_frame_bytes)
    }
}

/// What came of giving frames.
struct Given {
    /// The stream cannot be trusted any more.
    refused: Option<CloseReason>,
    /// Frames are left that may be given next turn.
    more_next_turn: bool,
    memory_before: usize,
    memory_after: usize,
}

/// Gives whole frames to the service as long as it may have them; keeps the rest.
fn give<S: Service>(
    service: &mut S,
    cx: &mut Context<S::Message>,
    limits: &Limits,
    connection: &mut Connection,
    mut data: &[u8],
) -> Given {
    let memory_before = connection.input.memory();
    let turn = cx.counters().turns;
    if connection.given_in != turn {
        connection.given_in = turn;
        connection.given = 0;
    }
    let (mut refused, mut more_next_turn) = (None, false);
    loop {
        if is_blocked(cx, limits, connection.id) {
            break;
        }
        if connection.given == limits.frames_per_turn {
            more_next_turn = true;
            break;
        }
        match connection.input.next(&mut data, limits.max_frame_bytes) {
            Ok(Some(frame)) => {
                connection.given += 1;
                cx.counters_mut().frames += 1;
                service.frame(cx, connection.id, frame);
            }
            Ok(None) => break,
            Err(why) => {
                refused = Some(why);
                break;
            }
        }
    }
    if refused.is_none() {
        connection.input.keep(data);
    }
    Given { refused, more_next_turn, memory_before, memory_after: connection.input.memory() }
}

/// Whether frames of the connection may not be given now.
fn is_blocked<M>(cx: &Context<M>, limits: &Limits, conn: ConnectionId) -> bool {
    cx.is_held(conn) || cx.pending(conn) > limits.connection_output_bytes
}

fn entry(table: &mut [Option<Connection>], slot: u32) -> &mut Connection {
    table[slot as usize].as_mut().expect("a connection stays until its operations have ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_is_small() {
        assert!(size_of::<Option<Connection>>() <= 256, "{}", size_of::<Option<Connection>>());
    }
}
