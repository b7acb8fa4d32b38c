//! What the clients of a soak share: the broker, the phase of the run, random choices under a seed, and what they hand in.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use simulator::history::{History, Sender, Topic};

use crate::client::{Connection, Frame};
use crate::clock::now_ms;

/// Refusals that are kept to be shown.
const KEPT_REFUSALS: usize = 20;

/// What is going on. The order is the order of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Senders send, the broker is killed.
    Load = 0,
    /// Nothing new is sent; what is due comes.
    Drain = 1,
    /// Everybody ends.
    Over = 2,
}

/// Shared by all clients of a run.
#[derive(Debug)]
pub struct World {
    /// Where the broker listens, before and after each kill.
    pub broker: SocketAddr,
    /// The broker's name.
    pub name: &'static str,
    /// Every choice follows from it.
    pub seed: u64,
    phase: AtomicU8,
    starts: AtomicU32,
    last_arrival: AtomicU64,
    refusals: Mutex<Vec<String>>,
    refused: AtomicU64,
}

impl World {
    /// Before the load begins.
    pub fn new(broker: SocketAddr, name: &'static str, seed: u64) -> World {
        World {
            broker,
            name,
            seed,
            phase: AtomicU8::new(Phase::Load as u8),
            starts: AtomicU32::new(0),
            last_arrival: AtomicU64::new(now_ms()),
            refusals: Mutex::new(Vec::new()),
            refused: AtomicU64::new(0),
        }
    }

    /// The phase that the run is in.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Load,
            1 => Phase::Drain,
            _ => Phase::Over,
        }
    }

    /// Goes to the next phase.
    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// A broker was killed: what comes next is another start.
    pub fn killed(&self) {
        self.starts.fetch_add(1, Ordering::SeqCst);
    }

    /// The number of the broker's start; also how often it was killed.
    pub fn start(&self) -> u32 {
        self.starts.load(Ordering::SeqCst)
    }

    /// Connects, trying again while the broker is away. `None` when the run is over.
    pub fn connect(&self) -> Option<Connection> {
        loop {
            if self.phase() == Phase::Over {
                return None;
            }
            match Connection::open(self.broker) {
                Ok(connection) => return Some(connection),
                Err(_) => sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Something came that others may still follow: the run is not at its end.
    pub fn arrived(&self) {
        self.last_arrival.store(now_ms(), Ordering::Relaxed);
    }

    /// How long nothing has come, in ms.
    pub fn quiet_for(&self) -> u64 {
        now_ms().saturating_sub(self.last_arrival.load(Ordering::Relaxed))
    }

    /// Whether an answer is a success; one that is not is kept as a refusal.
    pub fn accepted(&self, what: &str, answer: &Frame) -> bool {
        if answer.code != 0 {
            self.refuse(format!("{what} at {}: code {}: {}", now_ms(), answer.code, answer.remark));
        }
        answer.code == 0
    }

    /// Something that no broker should do to a correct client.
    pub fn refuse(&self, what: String) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let mut kept = self.refusals.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if kept.len() < KEPT_REFUSALS {
            kept.push(what);
        }
    }

    /// How many refusals there were, and the first of them.
    pub fn refusals(&self) -> (u64, Vec<String>) {
        let kept = self.refusals.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        (self.refused.load(Ordering::Relaxed), kept.clone())
    }
}

/// What one client adds to the history.
#[derive(Debug, Default)]
pub struct Part {
    /// Senders by their number.
    pub senders: Vec<(usize, Sender)>,
    /// All else.
    pub history: History,
}

/// What a client's thread ends with: an error is a mistake of the test or an answer that cannot be read, never a kill.
pub type Outcome = Result<Part>;

impl Part {
    /// Adds what another client did.
    pub fn add(&mut self, other: Part) {
        let (mine, theirs) = (&mut self.history, other.history);
        self.senders.extend(other.senders);
        mine.glimpses.extend(theirs.glimpses);
        mine.send_backs.extend(theirs.send_backs);
        mine.deliveries.extend(theirs.deliveries);
        mine.holds.extend(theirs.holds);
        mine.lost_pops += theirs.lost_pops;
    }

    /// The history with its senders in place.
    pub fn into_history(mut self, unused: Topic) -> History {
        let count = self.senders.iter().map(|(n, _)| n + 1).max().unwrap_or(0);
        self.history.senders = vec![Sender { topic: unused, sent: Vec::new() }; count];
        for (number, sender) in self.senders {
            self.history.senders[number] = sender;
        }
        self.history
    }
}

/// xorshift64*: the choices of one client.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The choices of the client with this number.
    pub fn new(seed: u64, client: u64) -> Random {
        let mut random = Random { state: (seed ^ client << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 };
        // The first numbers of close states are close.
        for _ in 0..4 {
            random.next();
        }
        random
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
