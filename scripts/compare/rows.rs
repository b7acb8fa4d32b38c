//! The rows of the comparison: which load, on which broker, and how much better RingMQ has to be.

use super::sides::{LOAD_CPU, QUEUES, TOPIC};

/// `flushDiskType` of both brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    Async,
    Sync,
}

impl Flush {
    /// The value of the setting.
    pub fn setting(self) -> &'static str {
        match self {
            Self::Async => "ASYNC_FLUSH",
            Self::Sync => "SYNC_FLUSH",
        }
    }
}

/// What a load generator is to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    pub kind: Kind,
    /// Bytes of a body.
    pub size: u32,
    pub connections: u32,
    /// Requests in flight on each connection.
    pub window: u32,
    /// Messages of a pull at most.
    pub batch: u32,
    /// The topic, or what the names of several begin with.
    pub topic: &'static str,
    /// How many topics.
    pub topics: u32,
    /// Queues of each.
    pub queues: u32,
    /// Processors of the load.
    pub cpus: &'static str,
    pub pace: Pace,
    /// Topics, queues, groups, tags and keys differ in length and place from request to request.
    pub varied: bool,
}

impl Work {
    /// Bytes that a broker may be made to write by one run of it.
    pub fn most_bytes(&self) -> u64 {
        if self.size >= 1_024 { 8 << 30 } else { 5 << 30 }
    }
}

/// Kinds of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Send,
    /// Pulls of messages of 128 bytes that lie in memory.
    Pull,
    /// Sends, timed until a consumer has the message.
    EndToEnd,
    /// Pulls of everything from the first message on, without sending any.
    Backlog,
}

/// What decides when a request begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// An answer.
    Closed,
    /// The clock: so many in a second.
    Rate(f64),
    /// The clock: half of what the Java broker does in the first row.
    HalfOfJava,
}

/// What has to hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Floor {
    /// Java's CPU time of a request over RingMQ's, at least.
    Cpu(f64),
    /// RingMQ's rate over Java's, at least.
    Rate(f64),
    /// RingMQ's percentile over Java's, at most.
    Latency(Figure, f64),
    /// RingMQ's percentile in nanoseconds, at most.
    Within(Figure, f64),
    /// RingMQ's median latency over that of a write and fdatasync on this disk, in nanoseconds, at most.
    OverDisk(f64),
}

/// A figure of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// Processor time of the broker for a request, nanoseconds.
    Cpu,
    /// Requests per second.
    Rate,
    P50,
    P99,
    P999,
    Max,
}

impl Figure {
    /// All, in the order of tables.
    pub const ALL: [Figure; 6] = [Self::Cpu, Self::Rate, Self::P50, Self::P99, Self::P999, Self::Max];

    /// The name in tables and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU ns per request",
            Self::Rate => "requests per second",
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::P999 => "p99.9",
            Self::Max => "max",
        }
    }
}

/// A row.
#[derive(Debug, Clone)]
pub struct Row {
    /// What `--only` also selects by.
    pub group: &'static str,
    pub name: String,
    pub flush: Flush,
    pub work: Work,
    pub floors: Vec<Floor>,
    /// Runs for `--open-secs` instead of `--secs`.
    pub long: bool,
}

/// The load of the first row: the one that others are compared with.
pub fn first() -> Work {
    Work {
        kind: Kind::Send,
        size: 128,
        connections: 8,
        window: 64,
        batch: 1,
        topic: TOPIC,
        topics: 1,
        queues: QUEUES,
        cpus: LOAD_CPU,
        pace: Pace::Closed,
        varied: false,
    }
}

/// Connections and requests in flight on each.
const SHAPES: [(u32, u32); 4] = [(8, 64), (64, 32), (512, 4), (1, 1)];
const SIZES: [(u32, &str); 3] = [(128, "128 B"), (1_024, "1 KiB"), (16_384, "16 KiB")];

/// All rows that have both sides, in the order in which they are measured.
pub fn both_sides() -> Vec<Row> {
    let mut rows = Vec::new();
    for flush in [Flush::Async, Flush::Sync] {
        sends(flush, &mut rows);
        if flush == Flush::Async {
            pulls(&mut rows);
            paced(&mut rows);
        }
    }
    rows
}

fn sends(flush: Flush, rows: &mut Vec<Row>) {
    let (group, prefix) = if flush == Flush::Sync { ("sync", "SYNC_FLUSH send") } else { ("async", "send") };
    for (size, size_name) in SIZES {
        for (connections, window) in SHAPES {
            let work = Work { size, connections, window, ..first() };
            let name = format!("{prefix} {size_name}, {connections} x {window}");
            rows.push(Row { group, name, flush, work, floors: send_floors(flush, size, connections), long: false });
        }
    }
}

fn send_floors(flush: Flush, size: u32, connections: u32) -> Vec<Floor> {
    /// How much longer than a write and fdatasync of the disk a send may take.
    const OVER_DISK_NS: f64 = 80_000.0;
    match (flush, size, connections) {
        (Flush::Async, 128, 8 | 64) => vec![Floor::Cpu(25.0)],
        (Flush::Async, 1_024, 8) => vec![Floor::Cpu(18.0)],
        (Flush::Async, 128, 512) => vec![Floor::Cpu(8.0)],
        (Flush::Async, 128, 1) => vec![Floor::Latency(Figure::P50, 0.5), Floor::Latency(Figure::P99, 1.0)],
        (Flush::Sync, 128, 8) => vec![Floor::Rate(10.0), Floor::Latency(Figure::P99, 0.2)],
        (Flush::Sync, 128, 1) => vec![Floor::OverDisk(OVER_DISK_NS)],
        _ => Vec::new(),
    }
}

fn pulls(rows: &mut Vec<Row>) {
    for (batch, floor) in [(32, 4.0), (1, 6.0)] {
        let work = Work { kind: Kind::Pull, batch, ..first() };
        let name = format!("pull {batch} x 128 B, 8 x 64");
        rows.push(Row { group: "pull", name, flush: Flush::Async, work, floors: vec![Floor::Cpu(floor)], long: false });
    }
}

fn paced(rows: &mut Vec<Row>) {
    const END_TO_END_NS: f64 = 150_000.0;
    let idle = Work { kind: Kind::EndToEnd, connections: 1, window: 8, pace: Pace::Rate(200.0), ..first() };
    rows.push(Row {
        group: "end to end",
        name: "end to end 128 B, idle system, 200/s".into(),
        flush: Flush::Async,
        work: idle,
        floors: vec![Floor::Within(Figure::P50, END_TO_END_NS)],
        long: false,
    });
    rows.push(Row {
        group: "open loop",
        name: "open loop 128 B, 8 connections, half of Java's maximum".into(),
        flush: Flush::Async,
        work: Work { pace: Pace::HalfOfJava, ..first() },
        floors: vec![Floor::Latency(Figure::P999, 0.2), Floor::Latency(Figure::Max, 1.0 / 3.0)],
        long: true,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_is_whole_and_every_name_is_its_own() {
        let rows = both_sides();
        assert_eq!(rows.iter().filter(|r| r.group == "async").count(), 12);
        assert_eq!(rows.iter().filter(|r| r.group == "sync").count(), 12);
        let mut names: Vec<&str> = rows.iter().map(|r| r.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), rows.len());
    }

    #[test]
    fn demanded_rows_have_their_floors() {
        let rows = both_sides();
        let floors = |name: &str| rows.iter().find(|r| r.name == name).map(|r| r.floors.clone()).unwrap();
        assert_eq!(floors("send 128 B, 8 x 64"), [Floor::Cpu(25.0)]);
        assert_eq!(floors("send 128 B, 64 x 32"), [Floor::Cpu(25.0)]);
        assert_eq!(floors("send 1 KiB, 8 x 64"), [Floor::Cpu(18.0)]);
        assert_eq!(floors("send 128 B, 512 x 4"), [Floor::Cpu(8.0)]);
        assert_eq!(floors("send 128 B, 1 x 1").len(), 2);
        assert_eq!(floors("SYNC_FLUSH send 128 B, 8 x 64").len(), 2);
        assert_eq!(floors("pull 1 x 128 B, 8 x 64"), [Floor::Cpu(6.0)]);
    }
}
