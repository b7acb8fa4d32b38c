//! The `ringmq` program: command line, configuration, start and stop, and the joint of broker and name server on a core.
//!
//! Role: everything that is decided once, at start. Owner of every setting's declaration (`settings_table`). Invariants: a
//! refused start is one clear line and changes nothing on the disk; what the configuration promises and this version does
//! not have is named. It knows no request.

pub mod cli;
pub mod settings;
pub mod settings_table;
pub mod host;
pub mod config;
pub mod boot;
pub mod service;
pub mod control;
