//! The load generator: load on any broker that speaks RocketMQ remoting, and what came of it.
//!
//! The path of a run: what is wanted comes from the command line (`cli`); `run` finds the broker, makes topics and groups
//! (`setup`), fills and loads; `workloads` gives each connection its `work`; a `load` starts threads, each with an `engine`
//! of its own (io_uring, frames from templates, answers read in place: `wire`), looks at the broker's process once a second
//! and adds up; at the end all of it is one [`result::RunResult`], the only thing that the outside gets; `report` makes a
//! text, JSON, `.hgrm` or a page of one or several results.
//!
//! Role: measure a broker from outside, this project's and Java's alike. Invariants: it costs less processor time than the
//! broker; it counts each answer once, and an error never as an operation; it bounds the bytes that it has a broker write.
//! It must not know: the broker's code, the store, which broker it talks to.

pub mod cli;
pub mod draw;
pub mod engine;
pub mod pace;
pub mod report;
pub mod result;
pub mod run;
pub mod wire;
pub mod work;

mod admin;
mod load;
mod proc;
mod setup;
mod signals;
mod workloads;

pub use cli::main;
