//! The judge of every crash test and soak: what clients asked and were answered, against what consumers were given and
//! what the queues hold at the end. Pure: it reads no clock and no file; times are milliseconds of the clients' clock.
//!
//! Role: a [`History`] is filled by the clients of a test, each for itself, and judged once with [`History::check`].
//! A test message names its sender and number in its body and the rest of the body follows from them ([`body`]), so that
//! a body tells by itself whether it was ever sent, whole, and by whom. A sender sends its messages in the order of their
//! numbers and repeats one only after an answer that never came, before it sends the next to the same queue.
//!
//! Invariants: a verdict depends on nothing but the history; whatever no answer was received for may have happened once
//! or not at all. Must not know: frames, sockets, and how a broker works inside.

mod body;
mod logs;
mod order;
mod pops;
mod retries;
#[cfg(test)]
mod sound;

use std::collections::BTreeMap;
use std::fmt;

pub use body::{Identity, MessageId, body, identify};
pub use order::{Hold, Step};
pub use pops::{Ack, Delivery};
pub use retries::SendBack;

/// The name of a topic of a test; tests have a fixed few.
pub type Topic = &'static str;

/// A queue of a topic.
pub type Queue = (Topic, u32);

/// Where a message lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The topic that it can be read from.
    pub topic: Topic,
    /// Queue id within the topic.
    pub queue: u32,
    /// Offset in the queue.
    pub offset: u64,
}

/// What a topic is used for: it says which promises hold for its queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Sent to, ordered by queue; the answer of a send names the place.
    Log,
    /// Sent to with a delay: the answer names no place, and the order is that of the due times.
    Delayed,
    /// Half messages are sent to it; it shows those that were committed, in any order.
    Transactions,
    /// `%RETRY%group`: messages sent back, and their attempts.
    Retries,
    /// `%DLQ%group`: messages whose attempts are used up.
    DeadLetters,
}

/// What a client knows of a message that it sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// No answer came, or one that was no success.
    Unknown,
    /// Acknowledged; for a topic in the role of a log with the offset in its queue.
    Stored(Option<u64>),
}

/// When a message may be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// From this time on: 0, the due time, or when its commit was asked for. Seen it must be, once it was acknowledged.
    From(u64),
    /// Never: its transaction was rolled back, or not decided.
    Never,
}

/// A message that left a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// The queue that it was sent to.
    pub queue: u32,
    /// How often it was sent: more than once only while no answer came. So often may it be there.
    pub attempts: u32,
    /// The answer to the last attempt.
    pub answer: Answer,
    /// When it may be seen.
    pub visible: Visibility,
    /// Whether the broker asks its sender how its transaction ended.
    pub check: Check,
}

/// Whether a broker asks for the end of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// It need not, and has not.
    NotNeeded,
    /// Its sender left it open and was not asked so far.
    Awaited,
    /// Its sender was asked.
    Came,
}

impl Sent {
    /// A message that was sent once, that is visible at once, and for which no answer has come yet.
    pub fn once(queue: u32) -> Sent {
        Sent { queue, attempts: 1, answer: Answer::Unknown, visible: Visibility::From(0), check: Check::NotNeeded }
    }
}

/// What one sender did.
#[derive(Debug, Clone, Default)]
pub struct Sender {
    /// Where it sent to.
    pub topic: Topic,
    /// Its messages by number.
    pub sent: Vec<Sent>,
}

/// A record that a consumer was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Where it lay.
    pub place: Place,
    /// Whose body it has.
    pub body: Identity,
    /// The broker's time of storing it, in ms.
    pub stored_at: u64,
    /// When the consumer had it, in ms.
    pub seen_at: u64,
    /// How often it was tried before, as the record says.
    pub times: u32,
}

/// The contents of each queue, in the order in which they were read.
pub type Stored = BTreeMap<Queue, Vec<Seen>>;

/// How exact times are taken.
#[derive(Debug, Clone, Copy)]
pub struct Tolerance {
    /// So much may the due time of a delayed message be rounded down, in ms.
    pub due_ms: u64,
    /// A popped message may come back so much before the end of its invisible time, in ms.
    pub invisible_ms: u64,
    /// A broker may read its clock so long before it takes a request up, in ms.
    pub clock_ms: u64,
}

impl Default for Tolerance {
    /// What is promised: no delayed message early, invisible times kept within a second.
    fn default() -> Tolerance {
        Tolerance { due_ms: 0, invisible_ms: 1_000, clock_ms: 20 }
    }
}

/// All that happened in a test.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Topics that are read at the end, each in its role.
    pub topics: Vec<(Topic, Role)>,
    /// By the number that their messages carry.
    pub senders: Vec<Sender>,
    /// What consumers were given while it went on.
    pub glimpses: Vec<Seen>,
    /// Messages sent back for another attempt or to the dead letters.
    pub send_backs: Vec<SendBack>,
    /// Messages popped; the topics that were popped from are in the role of a log.
    pub deliveries: Vec<Delivery>,
    /// Topics that everything is popped from.
    pub popped: Vec<Topic>,
    /// Answers to pops that never came: each may have made messages invisible once more.
    pub lost_pops: u32,
    /// How often the broker was killed.
    pub kills: u32,
    /// Queue locks as their holders saw them.
    pub holds: Vec<Hold>,
    /// What those who held the lock of a queue consumed and committed, in order.
    pub steps: BTreeMap<Queue, Vec<Step>>,
    /// How exact times are taken.
    pub tolerance: Tolerance,
}

/// The kinds of broken promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// Acknowledged and not where it must be.
    Lost,
    /// A consumer was given it, and it is there no more.
    Gone,
    /// Left open by its sender, which was never asked how the transaction ended.
    Unasked,
    /// Popped, not acknowledged, and not seen again.
    NotAgain,
    /// An offset does not follow the one before it (the first must be 0).
    Gap,
    /// A consumer that goes on behind what it had, so that messages are left out.
    Skipped,
    /// No message that was ever sent.
    Invented,
    /// A message with other bytes.
    Altered,
    /// An offset that belonged to another message before.
    Reused,
    /// A message in a queue or topic that it does not belong to.
    WrongQueue,
    /// Visible although rolled back or not decided.
    Undecided,
    /// Seen before its time.
    Early,
    /// There more often than it may be.
    Twice,
    /// Given again after its acknowledgement was answered.
    AfterAck,
    /// Behind a later message of its sender in the same queue.
    OutOfOrder,
    /// Two clients held the lock of one queue at a time.
    TwoHolders,
    /// A consumer was sent back before the offset that it had committed.
    CommitLost,
}

/// Columns of the table that a run ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// Something is missing.
    Lost,
    /// Something is there that must not be.
    Invented,
    /// Something came before its time.
    Early,
    /// Something came too often.
    Doubled,
    /// Something came in another order than promised.
    OutOfOrder,
}

impl Rule {
    /// Where it is counted.
    pub fn column(self) -> Column {
        match self {
            Rule::Lost | Rule::Gone | Rule::Unasked | Rule::NotAgain | Rule::Gap | Rule::Skipped => Column::Lost,
            Rule::Invented | Rule::Altered | Rule::Reused | Rule::WrongQueue | Rule::Undecided => Column::Invented,
            Rule::Early => Column::Early,
            Rule::Twice | Rule::AfterAck => Column::Doubled,
            Rule::OutOfOrder | Rule::TwoHolders | Rule::CommitLost => Column::OutOfOrder,
        }
    }
}

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which promise.
    pub rule: Rule,
    /// The topic that it is counted for.
    pub topic: Topic,
    /// The message, when it is known.
    pub id: Option<MessageId>,
    /// Where, when it is somewhere.
    pub place: Option<Place>,
    /// Offsets, times and places in words.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in {}", self.rule, self.topic)?;
        if let Some(id) = self.id {
            write!(f, ", message {}/{}", id.sender, id.number)?;
        }
        if let Some(place) = self.place {
            write!(f, ", at {} queue {} offset {}", place.topic, place.queue, place.offset)?;
        }
        write!(f, ": {}", self.detail)
    }
}

/// What was counted for a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Sends, commits or send-backs into it that were acknowledged.
    pub acknowledged: usize,
    /// Records that it holds at the end.
    pub seen: usize,
}

impl History {
    /// How many sends were acknowledged, of all senders.
    pub fn acknowledged(&self) -> usize {
        self.senders.iter().flat_map(|s| &s.sent).filter(|s| matches!(s.answer, Answer::Stored(_))).count()
    }

    /// The counts of a topic, for a table.
    pub fn count(&self, topic: Topic, stored: &Stored) -> Count {
        let must_be_seen = |s: &&Sent| matches!(s.answer, Answer::Stored(_)) && s.visible != Visibility::Never;
        let of_topic = self.senders.iter().filter(|s| s.topic == topic);
        let sent = of_topic.flat_map(|s| &s.sent).filter(must_be_seen).count();
        let sent_back = self.send_backs.iter().filter(|b| b.to == topic && b.acknowledged).count();
        let seen = stored.iter().filter(|((t, _), _)| *t == topic).map(|(_, m)| m.len()).sum();
        Count { acknowledged: sent + sent_back, seen }
    }

    /// How late the messages of a topic were stored for their readers, in ms, sorted.
    pub fn lateness(&self, topic: Topic, stored: &Stored) -> Vec<u64> {
        let of_topic = stored.iter().filter(|((t, _), _)| *t == topic).flat_map(|(_, messages)| messages);
        let late = |seen: &Seen| match self.sent(seen.body.id()?)?.1.visible {
            Visibility::From(due) => Some(seen.stored_at.saturating_sub(due)),
            Visibility::Never => None,
        };
        let mut all: Vec<u64> = of_topic.filter_map(late).collect();
        all.sort_unstable();
        all
    }

    /// All broken promises; none for a broker that kept them. `stored` is a reading of all queues from their begin to their
    /// end after everything due has come.
    pub fn check(&self, stored: &Stored) -> Vec<Violation> {
        let mut found = Vec::new();
        logs::check(self, stored, &mut found);
        retries::check(self, stored, &mut found);
        pops::check(self, stored, &mut found);
        order::check(self, stored, &mut found);
        found
    }

    fn sent(&self, id: MessageId) -> Option<(Topic, &Sent)> {
        let sender = self.senders.get(id.sender)?;
        Some((sender.topic, sender.sent.get(id.number)?))
    }

    fn role(&self, topic: Topic) -> Option<Role> {
        self.topics.iter().find(|(t, _)| *t == topic).map(|(_, role)| *role)
    }
}

/// The record at a place of a reading, which has an entry for each offset unless offsets are missing.
fn record_at(stored: &Stored, place: Place) -> Option<&Seen> {
    let messages = stored.get(&(place.topic, place.queue))?;
    let guess = usize::try_from(place.offset).ok().and_then(|at| messages.get(at));
    guess.filter(|m| m.place == place).or_else(|| messages.iter().find(|m| m.place == place))
}
