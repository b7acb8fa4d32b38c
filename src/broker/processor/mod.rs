//! The checks of each request, on its connection's core, before it reaches a shard.
//!
//! Role: one file a request: header and snapshot in, decision out. Invariants: pure (no lane, no shard, no clock); checks stand
//! in the order of the Java broker, so that the same mistake gets the same code. They write nothing.

pub mod delay;
pub mod end_transaction;
pub mod half;
pub mod pop;
pub mod pop_batch;
pub mod pull;
pub mod query;
pub mod queue;
pub mod recall;
pub mod reply;
pub mod send;
pub mod send_back;
