//! Parts of the world under a seed, so that the real code can be run through its failures.
//!
//! Role: the judge of histories ([`history`]); a disk that keeps "written" and "durable" apart ([`disk`]); later a network
//! and a clock. Invariants: the same seed and the same calls give the same result; nothing here sleeps, reads a clock or
//! takes randomness from outside. Only tests use it.

pub mod disk;
pub mod history;

pub use disk::{Fault, Residency, SimulatedDisk};
