//! What a service is, and the small values that it and its driver exchange.

use crate::background::JobOutput;
use crate::context::Context;
use std::io;
use std::net::SocketAddr;

/// A core of the engine, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreId(pub u16);

/// A listener, as its owner numbered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u16);

/// A connection. Slots are used again; the generation tells the users of one apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    /// The core that owns it and alone writes to it.
    pub core: CoreId,
    /// Its place in the core's table.
    pub slot: u32,
    /// How often the place was used before.
    pub generation: u32,
}

/// The time, read a few times a turn: after its input was taken in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Microseconds of the monotonic clock.
    pub mono_us: u64,
    /// Milliseconds since 1970; may step back.
    pub wall_ms: i64,
}

/// Chosen by the service to recognise an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Whether a service still has something to finish before the engine stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// Ask again next turn.
    Busy,
    /// Nothing is left to do.
    Done,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// The peer closed it, or shut its writing side and got its answers.
    PeerClosed,
    /// The service asked for it.
    ByService,
    /// A length over [`crate::Limits::max_frame_bytes`].
    FrameTooLong,
    /// A length that no frame can have (under 4, negative).
    BadLength,
    /// A TLS greeting on a plain port.
    Tls,
    /// Neither read nor written for [`crate::Limits::idle_ms`].
    Idle,
    /// Took nothing of its output for [`crate::Limits::stuck_reader_ms`].
    StuckReader,
    /// Unfinished frames of all connections of the core are over [`crate::Limits::assembly_bytes`].
    InputBudget,
    /// The core has [`crate::Limits::connections`] already.
    TooManyConnections,
    /// Receiving failed (reset, timed out).
    ReceiveFailed,
    /// Sending failed (reset, timed out).
    SendFailed,
    /// Bytes of the store on their way to it could not be read (a device error, or a shortened file).
    StoreFault,
}

impl CloseReason {
    /// All reasons, in the order of [`CloseReason::index`].
    pub const ALL: [CloseReason; 12] = [
        CloseReason::PeerClosed,
        CloseReason::ByService,
        CloseReason::FrameTooLong,
        CloseReason::BadLength,
        CloseReason::Tls,
        CloseReason::Idle,
        CloseReason::StuckReader,
        CloseReason::InputBudget,
        CloseReason::TooManyConnections,
        CloseReason::ReceiveFailed,
        CloseReason::SendFailed,
        CloseReason::StoreFault,
    ];

    /// Its place in [`CloseReason::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// A short name for counters and logs.
    pub fn name(self) -> &'static str {
        match self {
            CloseReason::PeerClosed => "peer_closed",
            CloseReason::ByService => "by_service",
            CloseReason::FrameTooLong => "frame_too_long",
            CloseReason::BadLength => "bad_length",
            CloseReason::Tls => "tls_on_plain_port",
            CloseReason::Idle => "idle",
            CloseReason::StuckReader => "stuck_reader",
            CloseReason::InputBudget => "input_budget",
            CloseReason::TooManyConnections => "too_many_connections",
            CloseReason::ReceiveFailed => "receive_failed",
            CloseReason::SendFailed => "send_failed",
            CloseReason::StoreFault => "store_fault",
        }
    }
}

/// What runs on a core. Every method is called on the core's own thread; none may block.
pub trait Service: Sized {
    /// What cores, and other threads, send each other. Moved several times: box what is large.
    type Message: Send + 'static;

    /// A connection was accepted on this core.
    fn connected(
        &mut self,
        cx: &mut Context<Self::Message>,
        conn: ConnectionId,
        listener: ListenerId,
        peer: SocketAddr,
    );

    /// A whole frame arrived, its length prefix of 4 bytes included.
    fn frame(&mut self, cx: &mut Context<Self::Message>, conn: ConnectionId, frame: &[u8]);

    /// The connection is gone: once for each `connected`, also after the service closed it itself. Not called for those
    /// that are open when the engine stops.
    fn closed(&mut self, cx: &mut Context<Self::Message>, conn: ConnectionId, why: CloseReason);

    /// A message of another core (or of this one to itself), or, with `None`, of another thread. Messages of one sender
    /// arrive once and in order.
    fn message(&mut self, cx: &mut Context<Self::Message>, from: Option<CoreId>, message: Self::Message);

    /// A sync or a background job ended: once for each that was asked, in no order.
    fn completed(&mut self, cx: &mut Context<Self::Message>, token: Token, result: io::Result<JobOutput>);

    /// A timer is due. Timers of one time fire in the order of their setting.
    fn timer(&mut self, cx: &mut Context<Self::Message>, token: Token);

    /// Every input of this turn was given: write, answer, publish.
    fn turn_end(&mut self, cx: &mut Context<Self::Message>);

    /// Asked at the end of each turn, after `turn_end`, once the engine is to stop; new connections are no longer
    /// accepted. What it queues here still leaves.
    fn stopping(&mut self, cx: &mut Context<Self::Message>) -> Drain;
}
