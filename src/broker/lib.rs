//! The broker: what producers, consumers and tools ask, carried out on the shards of a thread-per-core engine.
//!
//! Role: connection → request → router → shard → response, and the metadata (topics, groups, clients, offsets) with its one
//! owner on core 0. Owner of the request list and of every response code. Invariants: a request for one queue hops at most
//! once each way; requests of one connection for one queue enter the shard in arrival order; a core never waits for another;
//! an answer that acknowledges follows the write (and, when asked, the sync) that covers it. It knows no socket and no file:
//! those reach it through `reactor::Context` and `store::Shard`. The modules stand in the order that a request meets them.

pub mod core;
pub mod connections;
pub mod request;
pub mod processor;
pub mod filter;
pub mod router;
pub mod crossing;
pub mod work;
pub mod shard_host;
pub mod long_polling;
pub mod pop_holds;
pub mod parked;
pub mod response;
pub mod shard_ask;
pub mod services;
pub mod stats;

pub mod snapshot;
pub mod gather;
pub mod owner;
pub mod registration;
pub mod config;

#[cfg(test)]
mod fixtures;

pub use crate::core::BrokerCore;
pub use crate::crossing::CoreMessage;
