//! The name server: which brokers there are, and which topics they have.
//!
//! Role: routes, liveness of brokers, key values and its own settings, as one step machine. [`NameServer`] takes requests,
//! closed connections, finished jobs and the time, and gives back actions (answers, jobs for another thread, connections
//! to hold or close). Invariants: one owner, no lock; what may be large (registrations over 64 KiB, all compressed ones)
//! is decoded and merged on another thread and put in place by swapping a pointer; what a request changes in a file is
//! answered after the file was written.
//! It knows no broker, no socket and no disk.

mod answers;

pub mod fuzz;
pub mod config;
pub mod kv;
pub mod name_server;
pub mod properties;
pub mod registration;
pub mod table;

pub use config::NamesrvConfig;
pub use name_server::{NameServer, NsAction, NsDone, NsFile, NsJob, NsOrigin};
