//! The engine of one core: a turn loop over one ring, and what a service on it sees.
//!
//! Role: connections in and frames out of them, mailboxes between cores, timers, the clock, completions of syncs and
//! background jobs, and every limit with its named answer. A [`Service`] is called for each input of a turn, then once at
//! the turn's end, and answers through the buffers of its [`Context`]; nothing it calls can block.
//! Invariants: a service runs on one thread and shares nothing; what it queued in a turn leaves in that turn, as one
//! send for a connection and one publication for a peer.
//! It knows nothing of RocketMQ: a frame is a length and bytes.

pub mod service;

pub mod context;
pub mod limits;
pub mod outgoing;

mod core;
pub mod engine;
mod spin;

mod listeners;

pub mod connection;
mod connections;

mod injector;
mod mail;
mod waited_tasks;
mod wake;

pub mod background;
mod glommio_background;
mod timers;

pub use background::{
    Background, BackgroundRequest, BackgroundTask, InlineBackground, Job, JobClass, JobOutput, Reply, Step,
};
pub use context::{Command, Context, Counters};
pub use engine::{CoreHandle, Engine, EngineOptions, ListenerSpec, StartError, start};
pub use glommio_background::GlommioBackground;
pub use limits::Limits;
pub use outgoing::Outgoing;
pub use service::{CloseReason, ConnectionId, CoreId, Drain, ListenerId, Now, Service, Token};
pub use sys::{ProbeError, probe};
