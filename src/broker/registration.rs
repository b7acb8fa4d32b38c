//! Registration with the name servers, on the control thread (tokio): at start, whenever the topics change, and each period.

use crate::snapshot::{Table, Topic};

/// What is told to the name servers.
#[derive(Clone, Debug)]
pub struct RegisteredTopics {
    /// All topics.
    pub topics: Table<Topic>,
    /// `dataVersion` of topics.json: state version, timestamp (ms) and counter.
    pub data_version: (i64, i64, i64),
}
