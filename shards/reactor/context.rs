//! What a service may ask for: a plain struct of buffers.
//!
//! The service's half only fills buffers, so that a turn needs no system call of its own and the simulator can stand in
//! for the engine. The driver's half builds a context, sets the time, opens and removes connections, and after the turn
//! drains commands, outboxes and outputs.
//! Invariants: `touched` names a connection at most once between two drains; a connection that is closing has no output
//! for the service any more; an outbox never holds more than its room.

use crate::background::Job;
use crate::limits::Limits;
use crate::outgoing::Outgoing;
use crate::service::{CloseReason, ConnectionId, CoreId, Now, Token};
use std::collections::VecDeque;
use std::sync::Arc;
use sys::disk::DiskFile;

/// What the service asked of its driver in a turn.
pub enum Command {
    /// Give frames of the connection again: its last hold is gone.
    Release(ConnectionId),
    /// Close at once; what is queued is dropped.
    Close(ConnectionId),
    /// Close after what is queued was sent.
    CloseAfterFlush(ConnectionId),
    /// Sync the file's data, then complete the token.
    Sync {
        /// The file; kept open until then.
        file: Arc<dyn DiskFile>,
        /// Completed with [`crate::JobOutput::Synced`] or the error.
        token: Token,
    },
    /// Start write-back of a range; nobody waits for it.
    WriteBack {
        /// The file.
        file: Arc<dyn DiskFile>,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Run a job in the background, then complete the token.
    Background {
        /// What to do.
        job: Job,
        /// Completed with the job's output or its error.
        token: Token,
    },
    /// Call the service's timer.
    Timer {
        /// When, in microseconds of the monotonic clock.
        at_us: u64,
        /// With which token.
        token: Token,
    },
}

/// What a core counted since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Turns of the loop.
    pub turns: u64,
    /// Times that the core slept.
    pub sleeps: u64,
    /// Connections accepted on this core.
    pub accepted: u64,
    /// Accepts that failed (usually: no descriptor left).
    pub accept_failures: u64,
    /// Connections that ended, by [`CloseReason::index`].
    pub closed: [u64; CloseReason::ALL.len()],
    /// Frames given to the service.
    pub frames: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes that the kernel took for sending.
    pub sent_bytes: u64,
    /// Sends.
    pub sends: u64,
    /// Times that receiving was paused for a connection over its input budget.
    pub input_paused: u64,
    /// Times that receiving stopped because all buffers were in use.
    pub buffers_exhausted: u64,
    /// Messages given to other cores.
    pub posted: u64,
    /// Wake-ups of other cores.
    pub wakeups: u64,
    /// Write-backs that failed. Their bytes are still covered by the next sync.
    pub write_back_failures: u64,
    /// Background jobs refused because too many were under way.
    pub background_refused: u64,
}

struct Slot {
    generation: u32,
    open: bool,
    closing: bool,
    touched: bool,
    holds: u32,
    outgoing: Outgoing,
}

/// Messages for one core, until the driver publishes them.
struct Outbox<M> {
    queue: VecDeque<M>,
    room: usize,
}

/// The buffers between a service and its driver.
pub struct Context<M> {
    now: Now,
    core: CoreId,
    slots: Vec<Slot>,
    free: Vec<u32>,
    touched: Vec<u32>,
    commands: Vec<Command>,
    outboxes: Vec<Outbox<M>>,
    refused: bool,
    spare: Vec<Vec<u8>>,
    spare_buffers: usize,
    spare_buffer_bytes: usize,
    counters: Counters,
}

/// The service's half.
impl<M> Context<M> {
    /// The time of this turn.
    pub fn now(&self) -> Now {
        self.now
    }

    /// The core that this is.
    pub fn core(&self) -> CoreId {
        self.core
    }

    /// How many cores there are.
    pub fn cores(&self) -> u16 {
        self.outboxes.len() as u16
    }

    /// What this core counted so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The output queue of a connection of this core; `None` when it is gone or closing.
    pub fn output(&mut self, conn: ConnectionId) -> Option<&mut Outgoing> {
        let slot = open_slot(&mut self.slots, self.core, conn)?;
        if slot.closing {
            return None;
        }
        if !slot.touched {
            slot.touched = true;
            self.touched.push(conn.slot);
            slot.outgoing.lend_buffer(&mut self.spare);
        }
        Some(&mut slot.outgoing)
    }

    /// Stops the giving of frames of this connection, from the next one on. Counted: each needs its `release`.
    pub fn hold(&mut self, conn: ConnectionId) {
        if let Some(slot) = open_slot(&mut self.slots, self.core, conn) {
            slot.holds += 1;
        }
    }

    /// Takes one hold back. With the last one, frames are given again, in a later turn at the latest.
    pub fn release(&mut self, conn: ConnectionId) {
        if let Some(slot) = open_slot(&mut self.slots, self.core, conn) {
            assert!(slot.holds > 0, "a release without a hold");
            slot.holds -= 1;
            if slot.holds == 0 {
                self.commands.push(Command::Release(conn));
            }
        }
    }

    /// Closes the connection at once: no more frames, what is queued is dropped. `closed` is called later.
    pub fn close(&mut self, conn: ConnectionId) {
        if self.mark_closing(conn) {
            self.commands.push(Command::Close(conn));
        }
    }

    /// Closes the connection after what is queued was sent: no more frames, no more output.
    pub fn close_after_flush(&mut self, conn: ConnectionId) {
        if self.mark_closing(conn) {
            self.commands.push(Command::CloseAfterFlush(conn));
        }
    }

    /// Puts a message into the mailbox of a core (this one included: it arrives next turn). Published, and the peer
    /// woken if it sleeps, at the end of the turn. Errors: the mailbox is full; keep the message, add to it, try again
    /// next turn. Nobody waits.
    pub fn try_post(&mut self, to: CoreId, message: M) -> Result<(), M> {
        let outbox = &mut self.outboxes[to.0 as usize];
        if outbox.queue.len() >= outbox.room {
            self.refused = true;
            return Err(message);
        }
        outbox.queue.push_back(message);
        Ok(())
    }

    /// Syncs the data of a file (fdatasync); `completed` tells the result, once. A failed one must never be repeated on
    /// the same pages.
    pub fn sync(&mut self, file: Arc<dyn DiskFile>, token: Token) {
        self.commands.push(Command::Sync { file, token });
    }

    /// Starts write-back of a range; a failure is only counted, the next sync reports it.
    pub fn write_back(&mut self, file: Arc<dyn DiskFile>, offset: u64, len: u64) {
        self.commands.push(Command::WriteBack { file, offset, len });
    }

    /// Runs a job on the background executor; `completed` tells the result, once.
    pub fn background(&mut self, job: Job, token: Token) {
        self.commands.push(Command::Background { job, token });
    }

    /// Calls `timer` once at the time given, or in the next turn if it has passed. There is no cancelling: the service
    /// ignores tokens that it no longer wants.
    pub fn timer_at(&mut self, mono_us: u64, token: Token) {
        self.commands.push(Command::Timer { at_us: mono_us, token });
    }

    fn mark_closing(&mut self, conn: ConnectionId) -> bool {
        match open_slot(&mut self.slots, self.core, conn) {
            Some(slot) if !slot.closing => {
                slot.closing = true;
                true
            }
            _ => false,
        }
    }
}

/// The driver's half: used by the engine and by the simulator, never by a service.
impl<M> Context<M> {
    /// A context of one of `cores` cores, without connections.
    pub fn new(core: CoreId, cores: u16, limits: &Limits) -> Context<M> {
        assert!(core.0 < cores);
        let outbox = || Outbox { queue: VecDeque::new(), room: limits.mailbox_slots };
        Context {
            now: Now::default(),
            core,
            slots: Vec::new(),
            free: Vec::new(),
            touched: Vec::new(),
            commands: Vec::new(),
            outboxes: (0..cores).map(|_| outbox()).collect(),
            refused: false,
            spare: Vec::new(),
            spare_buffers: limits.spare_buffers,
            spare_buffer_bytes: limits.spare_buffer_bytes,
            counters: Counters::default(),
        }
    }

    /// Sets the time of the turn.
    pub fn set_now(&mut self, now: Now) {
        self.now = now;
    }

    /// The counters, to count in.
    pub fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// A new connection.
    pub fn open(&mut self) -> ConnectionId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                open: false,
                closing: false,
                touched: false,
                holds: 0,
                outgoing: Outgoing::default(),
            });
            self.slots.len() as u32 - 1
        });
        let entry = &mut self.slots[slot as usize];
        assert!(!entry.open);
        entry.open = true;
        ConnectionId { core: self.core, slot, generation: entry.generation }
    }

    /// Forgets a connection and its output. Its slot may be used again.
    pub fn remove(&mut self, conn: ConnectionId) {
        let slot = open_slot(&mut self.slots, self.core, conn).expect("only an open connection is removed");
        slot.open = false;
        slot.closing = false;
        slot.holds = 0;
        slot.generation = slot.generation.wrapping_add(1);
        slot.outgoing = Outgoing::default();
        if slot.touched {
            slot.touched = false;
            self.touched.retain(|touched| *touched != conn.slot);
        }
        self.free.push(conn.slot);
    }

    /// No output for the service, and no frames, from now on: the driver is closing the connection by itself.
    pub fn set_closing(&mut self, conn: ConnectionId) {
        self.mark_closing(conn);
    }

    /// Whether frames of the connection may not be given now.
    pub fn is_held(&self, conn: ConnectionId) -> bool {
        let slot = &self.slots[conn.slot as usize];
        slot.holds > 0 || slot.closing
    }

    /// Output that waits for the connection, in bytes.
    pub fn pending(&self, conn: ConnectionId) -> usize {
        self.slots[conn.slot as usize].outgoing.pending()
    }

    /// The connection in a slot, if it is open.
    pub fn connection(&self, slot: u32) -> Option<ConnectionId> {
        let entry = self.slots.get(slot as usize).filter(|entry| entry.open)?;
        Some(ConnectionId { core: self.core, slot, generation: entry.generation })
    }

    /// The output queue of a slot, whatever its state.
    pub fn outgoing(&mut self, slot: u32) -> &mut Outgoing {
        &mut self.slots[slot as usize].outgoing
    }

    /// Takes one connection that the service wrote to since it was taken last.
    pub fn pop_touched(&mut self) -> Option<u32> {
        let slot = self.touched.pop()?;
        self.slots[slot as usize].touched = false;
        Some(slot)
    }

    /// Puts a connection among those whose output is to be sent.
    pub fn touch(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        if !entry.touched {
            entry.touched = true;
            self.touched.push(slot);
        }
    }

    /// Whether a message was refused since the last call: the service waits for room.
    pub fn take_refused(&mut self) -> bool {
        std::mem::take(&mut self.refused)
    }

    /// Takes a send buffer back, for use by any connection.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < self.spare_buffers && (1..=self.spare_buffer_bytes).contains(&buffer.capacity()) {
            debug_assert!(buffer.is_empty());
            self.spare.push(buffer);
        }
    }

    /// Takes the empty buffer of an idle connection back.
    pub fn recycle_of(&mut self, slot: u32) {
        if let Some(buffer) = self.slots[slot as usize].outgoing.return_buffer() {
            self.recycle(buffer);
        }
    }

    /// Exchanges the commands of the turn for an empty list (whose capacity is used again).
    pub fn swap_commands(&mut self, list: &mut Vec<Command>) {
        assert!(list.is_empty());
        std::mem::swap(&mut self.commands, list);
    }

    /// Whether commands or output wait for the driver.
    pub fn has_requests(&self) -> bool {
        !self.commands.is_empty() || !self.touched.is_empty()
    }

    /// Says how many messages the mailbox of a core can take until the next call.
    pub fn set_room(&mut self, to: CoreId, room: usize) {
        self.outboxes[to.0 as usize].room = room;
    }

    /// Messages for a core, oldest first.
    pub fn outbox(&mut self, to: CoreId) -> &mut VecDeque<M> {
        &mut self.outboxes[to.0 as usize].queue
    }
}

fn open_slot(slots: &mut [Slot], core: CoreId, conn: ConnectionId) -> Option<&mut Slot> {
    if conn.core != core {
        return None;
    }
    slots.get_mut(conn.slot as usize).filter(|slot| slot.open && slot.generation == conn.generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> Context<u32> {
        Context::new(CoreId(0), 2, &Limits { mailbox_slots: 2, ..Limits::default() })
    }

    fn commands(cx: &mut Context<u32>) -> Vec<Command> {
        let mut list = Vec::new();
        cx.swap_commands(&mut list);
        list
    }

    #[test]
    fn a_stale_connection_has_no_output() {
        let mut cx = context();
        let first = cx.open();
        cx.output(first).unwrap().bytes().push(1);
        cx.remove(first);
        assert!(cx.output(first).is_none());
        let second = cx.open();
        assert_eq!((second.slot, second.generation), (first.slot, first.generation + 1));
        assert!(cx.output(first).is_none());
        cx.hold(first);
        assert!(!cx.is_held(second), "a stale hold holds nobody");
        assert_eq!(cx.output(second).unwrap().pending(), 0, "nothing of the former user");
        assert_eq!(cx.pop_touched(), Some(second.slot));
        assert_eq!(cx.pop_touched(), None);
        assert!(cx.output(ConnectionId { core: CoreId(1), ..second }).is_none());
    }

    #[test]
    fn holds_are_counted_and_the_last_release_is_a_command() {
        let mut cx = context();
        let conn = cx.open();
        cx.hold(conn);
        cx.hold(conn);
        cx.release(conn);
        assert!(cx.is_held(conn));
        assert!(commands(&mut cx).is_empty());
        cx.release(conn);
        assert!(!cx.is_held(conn));
        assert!(matches!(commands(&mut cx)[..], [Command::Release(released)] if released == conn));
    }

    #[test]
    fn closing_is_asked_once_and_ends_the_output() {
        let mut cx = context();
        let conn = cx.open();
        cx.close_after_flush(conn);
        cx.close(conn);
        assert!(cx.output(conn).is_none());
        assert!(cx.is_held(conn));
        assert!(matches!(commands(&mut cx)[..], [Command::CloseAfterFlush(_)]));
    }

    #[test]
    fn a_full_mailbox_gives_the_message_back() {
        let mut cx = context();
        assert_eq!(cx.try_post(CoreId(1), 1), Ok(()));
        assert_eq!(cx.try_post(CoreId(1), 2), Ok(()));
        assert_eq!(cx.try_post(CoreId(1), 3), Err(3));
        assert_eq!(cx.try_post(CoreId(0), 4), Ok(()), "each core has its own");
        assert_eq!(cx.outbox(CoreId(1)).drain(..).collect::<Vec<_>>(), [1, 2]);
    }
}
