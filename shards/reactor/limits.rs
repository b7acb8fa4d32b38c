//! Every limit of the engine: its reason, its default, and what happens when it is reached.
//!
//! One value of [`Limits`] is given at the start and never changes.

/// The limits of an engine. Numbers are per core unless they say otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest frame, length prefix included. RocketMQ's clients and brokers agree on 16 MiB. Beyond: the connection is
    /// closed ([`crate::CloseReason::FrameTooLong`]).
    pub max_frame_bytes: usize,
    /// Open connections. Bounds the table. Beyond: a new one is closed at once
    /// ([`crate::CloseReason::TooManyConnections`], counted only).
    pub connections: usize,
    /// Output that waits for one connection. Beyond: its frames are not parsed until the peer reads.
    pub connection_output_bytes: usize,
    /// Bytes kept for a connection whose frames may not be given to the service (held, or over its output). Beyond:
    /// nothing more is received from it, which fills its socket and stops the peer.
    pub connection_input_bytes: usize,
    /// Frames of one connection given to the service in one turn, so that a flood does not grow the turn of the others.
    /// Beyond: the rest waits for the next turn.
    pub frames_per_turn: usize,
    /// Bytes of unfinished and waiting frames of all connections together. Beyond: the connection that needs more is
    /// closed ([`crate::CloseReason::InputBudget`]).
    pub assembly_bytes: usize,
    /// Receive buffers that all connections share; a power of two. When all are in use, receiving pauses until the
    /// turn's end gives them back.
    pub receive_buffers: u16,
    /// Size of one of them: at least the frames of a usual turn of one connection.
    pub receive_buffer_bytes: usize,
    /// Completions handled in one turn. The rest waits for the next turn, so that a turn stays short.
    pub completions_per_turn: usize,
    /// Slots of the mailbox between two cores; a power of two. Full: `try_post` gives the message back.
    pub mailbox_slots: usize,
    /// Submission entries of the ring; a power of two. When full, what is there is submitted early.
    pub ring_entries: u32,
    /// Background jobs of the core that have not ended. Beyond: a job fails at once (`ResourceBusy`).
    pub background_jobs: usize,
    /// Timers that are set. Beyond is a defect of the service, and an assertion.
    pub timers: usize,
    /// A connection on which nothing was read or written this long is closed ([`crate::CloseReason::Idle`]); Java's
    /// broker does the same.
    pub idle_ms: u64,
    /// A peer that takes none of its output this long is closed ([`crate::CloseReason::StuckReader`]).
    pub stuck_reader_ms: u64,
    /// After the peer shut its writing side: the connection is closed once it was quiet this long, so that what it asked
    /// is answered. Also how long a connection that we close after a last answer waits for the peer to close first.
    pub linger_ms: u64,
    /// How long a connection that is to be closed may take to send what is queued. Then: closed.
    pub close_flush_ms: u64,
    /// After a failed accept (no descriptor left): the next try. The backlog keeps those who wait.
    pub accept_retry_ms: u64,
    /// How long a core waits for what is not drained at a stop, beside the time that its service itself takes to close. Then: it
    /// ends without.
    pub stop_ms: u64,
    /// How long a core looks for work before it sleeps, when its last wait was no longer: a sleep and a wake-up cost more.
    /// A client that waits for each answer comes back within it.
    pub spin_us: u64,
    /// Send buffers kept for use by any connection, and the largest one kept. Beyond: freed.
    pub spare_buffers: usize,
    /// Largest send buffer that is kept.
    pub spare_buffer_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_frame_bytes: 16 << 20,
            connections: 65_536,
            connection_output_bytes: 4 << 20,
            connection_input_bytes: 256 << 10,
            frames_per_turn: 1024,
            assembly_bytes: 256 << 20,
            receive_buffers: 256,
            receive_buffer_bytes: 16 << 10,
            completions_per_turn: 256,
            mailbox_slots: 256,
            ring_entries: 1024,
            background_jobs: 4096,
            timers: 1 << 20,
            idle_ms: 120_000,
            stuck_reader_ms: 60_000,
            linger_ms: 200,
            close_flush_ms: 5_000,
            accept_retry_ms: 100,
            stop_ms: 10_000,
            spin_us: 30,
            spare_buffers: 64,
            spare_buffer_bytes: 256 << 10,
        }
    }
}

impl Limits {
    /// Asserts what the engine relies on.
    pub fn validate(&self) {
        assert!(self.max_frame_bytes >= 8);
        assert!(self.max_frame_bytes <= i32::MAX as usize);
        assert!(self.connections > 0);
        assert!(self.frames_per_turn > 0);
        assert!(self.completions_per_turn > 0);
        assert!(self.receive_buffers.is_power_of_two());
        assert!(self.receive_buffers <= 1 << 15, "the kernel's largest ring of buffers");
        assert!(self.receive_buffer_bytes >= 64);
        assert!(self.receive_buffer_bytes <= 1 << 24);
        assert!(self.mailbox_slots.is_power_of_two());
        assert!(self.ring_entries.is_power_of_two());
        assert!(self.ring_entries <= 1 << 14, "completions are four times as many, at most 2^16");
        assert!(self.assembly_bytes >= self.max_frame_bytes, "one frame of the largest size must fit");
    }
}
