//! How connections end: by time, by failure, with the engine.
//!
//! Invariant: a connection ends once; its slot is freed when its operations have ended and the service was told.

use super::{Connections, State, entry};
use crate::connection::Input;
use crate::context::Context;
use crate::service::CloseReason;
use std::sync::atomic::Ordering;
use sys::socket;

/// How often lingering connections are looked at.
const LINGER_STEP_US: u64 = 10_000;

impl Connections {
    /// Ends connections by time: idle, stuck, lingering.
    pub(crate) fn sweep<M>(&mut self, cx: &mut Context<M>) {
        let now_us = cx.now().mono_us;
        if !self.ending.is_empty() && now_us >= self.next_ending_us {
            self.next_ending_us = now_us + LINGER_STEP_US;
            for slot in std::mem::take(&mut self.ending) {
                if !self.end_by_time(cx, slot, now_us) {
                    self.ending.push(slot);
                }
            }
        }
        if self.open > 0 && now_us >= self.next_sweep_us {
            self.next_sweep_us = now_us + self.sweep_step_us();
            for slot in 0..self.table.len() {
                self.end_if_silent(cx, slot as u32, now_us);
            }
        }
    }

    /// When [`Connections::sweep`] wants to be called next.
    pub(crate) fn next_us(&self) -> Option<u64> {
        let ending = (!self.ending.is_empty()).then_some(self.next_ending_us);
        let sweep = (self.open > 0).then_some(self.next_sweep_us);
        ending.into_iter().chain(sweep).min()
    }

    /// Ends all connections, without telling the service: the engine stops.
    pub(crate) fn abort_all<M>(&mut self, cx: &mut Context<M>) {
        for slot in 0..self.table.len() as u32 {
            if let Some(connection) = self.table[slot as usize].as_mut() {
                socket::abort(&connection.stream);
                connection.state = State::Closing;
                connection.told = true;
                cx.set_closing(connection.id);
                self.free_if_ended(cx, slot);
            }
        }
        self.closed.clear();
    }

    /// Whether a connection that ends by time needs no more looking after.
    pub(super) fn end_by_time<M>(&mut self, cx: &mut Context<M>, slot: u32, now_us: u64) -> bool {
        let Some(connection) = self.table[slot as usize].as_ref() else { return true };
        let linger_us = self.limits.linger_ms * 1000;
        let flush_us = self.limits.close_flush_ms * 1000;
        let passed = |since_us: u64, span_us: u64| now_us.saturating_sub(since_us) >= span_us;
        let (over, why) = match connection.state {
            State::HalfClosed { since_us } => {
                let owed = cx.pending(connection.id) > 0 || cx.is_held(connection.id) || self.has_frame(connection);
                // What was asked shortly before may be on its way through another core or a sync.
                let quiet = passed(connection.active_us, linger_us);
                ((!owed && quiet) || passed(since_us, flush_us), CloseReason::PeerClosed)
            }
            State::Flushing { since_us } => (passed(since_us, flush_us), CloseReason::ByService),
            State::Lingering { since_us } => (passed(since_us, linger_us), CloseReason::ByService),
            State::Open | State::Closing => return true,
        };
        if over {
            self.close(cx, slot, why);
        }
        over
    }

    fn end_if_silent<M>(&mut self, cx: &mut Context<M>, slot: u32, now_us: u64) {
        let Some(connection) = self.table[slot as usize].as_mut() else { return };
        if connection.state == State::Closing {
            return;
        }
        let before = connection.input.memory();
        connection.input.trim();
        self.assembly_bytes -= before - connection.input.memory();
        if connection.sending {
            // The kernel reports a send only at its end: a reader that is slow but alive acknowledges meanwhile.
            let acknowledged = socket::acknowledged_bytes(&connection.stream).unwrap_or(0);
            if acknowledged != connection.acknowledged {
                connection.acknowledged = acknowledged;
                connection.active_us = now_us;
            }
        }
        let silent_us = now_us.saturating_sub(connection.active_us);
        if connection.sending && silent_us >= self.limits.stuck_reader_ms * 1000 {
            self.close(cx, slot, CloseReason::StuckReader);
        } else if !connection.sending && silent_us >= self.limits.idle_ms * 1000 {
            self.close(cx, slot, CloseReason::Idle);
        }
    }

    fn sweep_step_us(&self) -> u64 {
        (self.limits.idle_ms.min(self.limits.stuck_reader_ms) * 1000 / 16).clamp(10_000, 5_000_000)
    }

    /// Ends a connection; the service is told later in the turn, or in the next one.
    pub(super) fn close<M>(&mut self, cx: &mut Context<M>, slot: u32, why: CloseReason) {
        let connection = entry(&mut self.table, slot);
        if connection.state == State::Closing {
            return;
        }
        connection.state = State::Closing;
        cx.counters_mut().closed[why.index()] += 1;
        cx.set_closing(connection.id);
        let memory = connection.input.memory();
        connection.input = Input::default();
        self.assembly_bytes -= memory;
        socket::abort(&connection.stream);
        self.closed.push((connection.id, why));
    }

    pub(super) fn free_if_ended<M>(&mut self, cx: &mut Context<M>, slot: u32) {
        let Some(connection) = self.table[slot as usize].as_ref() else { return };
        if connection.state == State::Closing && connection.told && !connection.receiving && !connection.sending {
            cx.remove(connection.id);
            self.table[slot as usize] = None;
            self.open -= 1;
            self.load.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
