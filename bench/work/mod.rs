//! What connections do: sends, pulls, pops, transactions. Each file is one [`Work`](crate::engine::Work).
//!
//! Role: frames out and answers in, for one connection. Invariant: what a work remembers is bounded by its window. It knows
//! neither sockets nor the time of a run.

pub mod pop;
pub mod pull;
pub mod send;
pub mod stamp;
pub mod target;
pub mod transaction;
