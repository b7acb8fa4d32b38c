//! What one core asks of the kernel: disk, ring, sockets, wake-ups, clock, processors, random seeds.
//!
//! Role: the only crate with `unsafe` code and the one swap point for time, disk and network. Everything above it is
//! written against [`disk::Disk`], plain values of time and completions, so that a simulated machine can stand in.
//! Invariants: a buffer given to the kernel belongs to the operation until it completes; nothing is written through a
//! mapping; no read of a mapping by our own code (the kernel reads it, where a fault is an error code).
//! It knows nothing of frames, records, queues or requests.

pub mod disk;
pub mod gather;
pub mod log_slice;
pub mod probe;
pub mod real_disk;
mod receive_buffers;
pub mod ring;
mod send_op;

pub mod affinity;
pub mod clock;
pub mod event_fd;
pub mod random;
pub mod socket;
pub mod spsc;

pub use gather::Gather;
pub use log_slice::{LogSlice, MappedRun};
pub use probe::{ProbeError, probe};
pub use receive_buffers::Lent;
