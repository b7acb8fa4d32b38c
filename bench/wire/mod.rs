//! Frames of the load: requests from templates, answers scanned in place.
//!
//! Role: bytes only. Invariants: a request costs no allocation; no bytes of a broker make it panic. It knows no connection.

pub mod answer;
pub mod input;
pub mod template;
#[cfg(test)]
mod fuzz;
