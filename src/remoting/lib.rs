//! RocketMQ's remoting protocol: frames, headers in both serializations, bodies.
//!
//! Role: pure codecs between bytes and values, for servers and clients alike. Invariants: no I/O, no clock, no global
//! state; no function panics on any input bytes; allocation is bounded by the input. The hot path (`scan`, `reply`) does
//! not allocate. It knows no topic table, no store and no connection.

pub mod bodies;
pub mod codes;
pub mod command;
pub mod frame;
pub mod json;
pub mod reply;
pub mod scan;

pub mod fuzz;

mod compact;
mod cursor;
mod ext_fields;

pub use codes::{LanguageCode, RequestCode, ResponseCode};
pub use command::{Command, ExtFields, FieldError, Problem};
pub use frame::{FrameError, SerializeType};
pub use json::Json;

#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod golden_tests;
