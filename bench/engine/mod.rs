//! One thread of load: a ring, connections, and the loop that drives them.
//!
//! Role: when a request leaves and what its answer counts for; what is asked is [`Work`]'s business. A turn: take what is
//! due, one send for each connection that has something, one enter, then everything that has arrived. Invariants: nothing
//! is allocated for a request; each request ends once: answered, refused, timed out or lost with its connection; no wait is
//! longer than [`NAP`], so that a stop, a tick and a stalled broker are seen. It knows no workload.

mod drive;
mod link;
mod recorder;
mod slots;

pub use drive::{Driver, Plan, RunError, Times};
pub use recorder::{Failures, Recorder, Tick};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::result::Kind;
use crate::wire::answer::Answer;

/// No longer than this without a look at the clock.
pub const NAP: Duration = Duration::from_millis(20);

/// What a connection is asked to do next, and what its answer counts for.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// What its latency is of.
    pub kind: Kind,
    /// For the work itself; comes back with the answer.
    pub tag: u64,
    /// Messages that it sends.
    pub messages: u32,
    /// Bytes of their bodies.
    pub bytes: u32,
    /// Whether an answer will come.
    pub answered: bool,
    /// The broker may keep the answer back (a long poll) for so many milliseconds.
    pub hold_ms: u32,
}

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// As [`Work::ask`] gave it.
    pub request: Request,
    /// When it began (was meant to begin, in an open loop), by the run's clock.
    pub began_ns: u64,
}

/// What an answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// An operation ended well.
    Done {
        /// Messages in it.
        messages: u64,
        /// Bytes of their bodies.
        bytes: u64,
    },
    /// Neither an operation nor a failure: a long poll without messages, a step of something longer.
    Nothing,
    /// A failure, by its code.
    Refused,
}

/// What one connection does. It belongs to the thread of its connection.
pub trait Work: Send {
    /// Whether its operations begin at the times of the open loop (when the run has one).
    fn is_paced(&self) -> bool {
        true
    }

    /// Whether it looks at the bodies of answers.
    fn keeps_body(&self) -> bool {
        false
    }

    /// Sends nothing by itself any more at the end, but goes on until this is true (or patience ends).
    fn is_settled(&self) -> bool {
        true
    }

    /// Whether it asks on while the run ends, so that what is on its way arrives.
    fn outlasts(&self) -> bool {
        false
    }

    /// Whether it will never ask for anything again.
    fn is_exhausted(&self) -> bool {
        false
    }

    /// Appends the frame of the next operation's first request; `None` when there is none now. `began_ns` is what its
    /// latency counts from.
    fn ask(&mut self, opaque: i32, began_ns: u64, now: Now, out: &mut Vec<u8>) -> Option<Request>;

    /// Appends a request that follows from an answer (an ack, the end of a transaction) with the time that it began.
    fn follow(&mut self, opaque: i32, now: Now, out: &mut Vec<u8>) -> Option<(Request, u64)> {
        let _ = (opaque, now, out);
        None
    }

    /// Takes an answer. Latencies of other kinds than the request's go to `seen` directly.
    fn answer(&mut self, asked: &Asked, code: i32, answer: &Answer<'_>, now: Now, seen: &mut Recorder) -> Outcome;

    /// The connection is a new one: what was asked before will not be answered.
    fn reconnected(&mut self) {}
}

/// The time, by both clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    /// Nanoseconds of the run's clock.
    pub ns: u64,
    /// Milliseconds since 1970.
    pub wall_ms: i64,
}

/// The clock of a run, the same for all its threads.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: Instant,
    wall_base_ns: u128,
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Clock {
        let wall = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Clock { base: Instant::now(), wall_base_ns: wall.as_nanos() }
    }

    /// The time. The wall clock goes on from its value at the start.
    #[must_use]
    pub fn now(&self) -> Now {
        let ns = self.base.elapsed().as_nanos() as u64;
        Now { ns, wall_ms: ((self.wall_base_ns + u128::from(ns)) / 1_000_000) as i64 }
    }
}

/// Set when a run shall end before its time.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ends the run.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it shall end.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
