//! The load generator: load on any broker that speaks RocketMQ remoting, and what came of it.
//!
//! The path of a run: what is wanted comes from the command line; the engine drives connections and counts; once a second
//! it takes a sample; at the end all of it is one [`result::RunResult`], the only thing that the outside gets; `report`
//! makes a text, JSON, `.hgrm` or a page of one or several results.
//!
//! Role: measure a broker from outside, this project's and Java's alike. Invariants: it costs less processor time than the
//! broker; it counts each answer once, and an error never as an operation; it bounds the bytes that it has a broker write.
//! It must not know: the broker's code, the store, which broker it talks to.

pub mod report;
pub mod result;
