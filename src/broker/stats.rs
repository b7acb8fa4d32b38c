//! What a shard's traffic adds up to.
//!
//! Role: plain counters, one set for each shard, kept on its core and handed out by value with `ShardAnswer::Status`. Since the
//! start of the process; never reset. They decide nothing.

/// Counters of one shard's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages stored.
    pub put_messages: u64,
    /// Bytes of their bodies.
    pub put_bytes: u64,
    /// Sends refused by the store (illegal, no space, read-only).
    pub put_refused: u64,
    /// Writes of a turn that failed.
    pub failed_writes: u64,
    /// Messages handed out by pulls.
    pub get_messages: u64,
    /// Bytes of their records.
    pub get_bytes: u64,
    /// Pulls that found messages.
    pub get_found: u64,
    /// Pulls that found none.
    pub get_missed: u64,
    /// Reads that parked for cold bytes.
    pub cold_reads: u64,
    /// Reads that failed.
    pub failed_reads: u64,
}

impl Traffic {
    /// Messages were stored.
    pub fn put(&mut self, messages: u64, body_bytes: u64) {
        self.put_messages += messages;
        self.put_bytes += body_bytes;
    }

    /// A pull was answered.
    pub fn got(&mut self, messages: u64, bytes: u64) {
        self.get_messages += messages;
        self.get_bytes += bytes;
        if messages > 0 {
            self.get_found += 1;
        } else {
            self.get_missed += 1;
        }
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            put_messages: self.put_messages + other.put_messages,
            put_bytes: self.put_bytes + other.put_bytes,
            put_refused: self.put_refused + other.put_refused,
            failed_writes: self.failed_writes + other.failed_writes,
            get_messages: self.get_messages + other.get_messages,
            get_bytes: self.get_bytes + other.get_bytes,
            get_found: self.get_found + other.get_found,
            get_missed: self.get_missed + other.get_missed,
            cold_reads: self.cold_reads + other.cold_reads,
            failed_reads: self.failed_reads + other.failed_reads,
        }
    }
}

/// Counters of one core's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreCounters {
    /// Connections accepted.
    pub connections: u64,
    /// Frames understood.
    pub requests: u64,
    /// Frames that could not be trusted; each closed its connection.
    pub malformed: u64,
    /// Requests with a code that is not served.
    pub not_served: u64,
    /// Requests refused before they reached a shard or the owner, those with a code that is not served included.
    pub refused: u64,
    /// Times that a connection was not read because a lane was full.
    pub congested: u64,
}
