//! What a RocketMQ message is, as bytes: records of the commit log, properties, ids, hashes, batches, names.
//!
//! Role: the pure codecs shared by the store, the broker, the name server and the clients. Owner of every layout that
//! both the disk and the wire use. Invariants: no I/O, no clock, no global state; no function panics on any input bytes;
//! nothing on the path of a message allocates. It knows no request and no file.

pub mod batch;
pub mod hash;
pub mod ids;
pub mod names;
pub mod offset;
pub mod properties;
mod property_reader;
pub mod record;
pub mod sys_flag;
pub mod words;

pub mod fuzz;
pub mod fuzz_driver;

pub use offset::{PhysicalOffset, QueueOffset};

#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod golden_tests;
