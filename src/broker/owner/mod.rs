//! The metadata owner, on core 0: topics, groups, connected clients, consumer offsets and the live settings. A pure step machine:
//! events in, actions out; it reads no clock, does no I/O and holds no connection.
//!
//! Invariants:
//! - A change of topics or groups is on disk before a snapshot shows it and acknowledged by every core before it is answered.
//!   Changes that arrive while a file is being written share the next write.
//! - A commit of an offset is in the journal before it is answered.
//! - A snapshot goes out only when something in it changed.

use crate::gather::{ShardAnswer, ShardAsk};
use crate::snapshot::Snapshot;
use reactor::{ConnectionId, CoreId};
use remoting::{Command, LanguageCode, SerializeType};
use std::net::SocketAddr;
use std::sync::Arc;
use store::ShardId;

/// Where a request came from and what its response must repeat. Travels with the request.
#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    /// The connection.
    pub conn: ConnectionId,
    /// The client's address.
    pub peer: SocketAddr,
    /// The request's opaque.
    pub opaque: i32,
    /// Header form of the request; the response uses it too.
    pub form: SerializeType,
    /// Whether no response may be sent.
    pub oneway: bool,
    /// The client's version ordinal.
    pub version: i32,
    /// The client's language.
    pub language: LanguageCode,
}

/// What the cores ask of the owner.
#[derive(Clone, Debug)]
pub enum OwnerRequest {
    /// A request that the owner answers, decoded.
    Request {
        /// From where.
        origin: Origin,
        /// The request.
        command: Command,
    },
    /// A send met an unknown topic: make it after the default topic's example. Answered by `Resume`.
    EnsureTopic {
        /// The connection that is held for it.
        conn: ConnectionId,
        /// The producer's address, for the log.
        peer: SocketAddr,
        /// The unknown topic; its name was checked. `%RETRY%group` is made with the group's retry queues.
        topic: String,
        /// The request's `defaultTopic`.
        default_topic: String,
        /// The request's `defaultTopicQueueNums`.
        default_queues: i32,
        /// Topic system flag of the new topic (1 in unit mode).
        topic_sys_flag: i32,
    },
    /// A pull met an unknown group: make it if groups are made by themselves. Answered by `Resume` (refused with 26).
    EnsureGroup {
        /// The connection that is held for it.
        conn: ConnectionId,
        /// The unknown group.
        group: String,
    },
    /// The commit flag of a pull. No answer.
    CommitOffset {
        /// The group.
        group: String,
        /// The topic.
        topic: String,
        /// The queue.
        queue_id: u32,
        /// Where the group has got to.
        offset: i64,
        /// The client, for the log.
        peer: SocketAddr,
    },
    /// A pull was answered 21 with a pending reset. No answer.
    ResetTaken {
        /// The group.
        group: String,
        /// The topic.
        topic: String,
        /// The queue.
        queue_id: u32,
        /// The reset's id in the snapshot.
        id: u64,
    },
    /// A connection is gone: its clients leave their groups.
    ConnectionClosed(ConnectionId),
    /// A client's answer to something that the owner sent it (221, 307, 309); matched by connection and opaque.
    ClientReply {
        /// The client's connection.
        conn: ConnectionId,
        /// Of the owner's request.
        opaque: i32,
        /// The whole frame.
        frame: Vec<u8>,
    },
}

/// Everything that can happen to the owner.
#[derive(Debug)]
pub enum OwnerEvent {
    /// A core asks.
    Request(OwnerRequest),
    /// A core holds this snapshot (and thereby all before).
    SnapshotSeen {
        /// Which core.
        core: CoreId,
        /// Which snapshot.
        version: u64,
    },
    /// A shard answers an `Ask`.
    ShardAnswer {
        /// The id in the `Ask`.
        gather: u64,
        /// Which shard.
        shard: ShardId,
        /// Its answer.
        answer: ShardAnswer,
    },
    /// A `Persist` is done: on disk, or not.
    Persisted {
        /// The token in the `Persist`.
        token: u64,
        /// An error says that the old file is still the one in force.
        result: std::io::Result<()>,
    },
    /// The bytes of the last [`OwnerAction::Journal`] were written, or not.
    Journaled(std::io::Result<()>),
    /// The control thread has told the name servers this version of the topics (or given up on the silent ones).
    Registered {
        /// The version in `OwnerAction::TopicsChanged`.
        version: u64,
    },
    /// Once each turn of core 0, after all other events of the turn: timers, and the one journal write of the turn.
    TurnEnd,
}

/// Why a request of the hot path cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Response code.
    pub code: i32,
    /// Remark.
    pub remark: String,
}

/// A file that the owner has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OwnerFile {
    /// `config/topics.json`.
    Topics,
    /// `config/subscriptionGroup.json`.
    Groups,
    /// `config/consumerOffset.json`.
    ConsumerOffsets,
    /// `shards/placement.json`.
    Placement,
    /// The settings file given with `-c`.
    Settings,
}

/// What the owner wants done, in this order.
#[derive(Debug)]
pub enum OwnerAction {
    /// Send this response; its opaque is set. Not given for oneway requests.
    Reply {
        /// To where.
        origin: Origin,
        /// The response.
        response: Command,
    },
    /// Run the parked request again: what it needed is in the core's snapshot, or is refused.
    Resume {
        /// The connection that is held.
        conn: ConnectionId,
        /// Whether it can go on.
        outcome: Result<(), Refusal>,
    },
    /// Give this snapshot to every core, core 0 included; each answers `SnapshotSeen`.
    Publish(Arc<Snapshot>),
    /// Ask a shard on its core; answer with `ShardAnswer`.
    Ask {
        /// Id for the answer.
        gather: u64,
        /// Which shard.
        shard: ShardId,
        /// What.
        ask: ShardAsk,
    },
    /// Send a request of the broker to a client; no one waits for it to arrive.
    Push {
        /// To which connection.
        conn: ConnectionId,
        /// The request, complete.
        command: Command,
    },
    /// Write a file through the background, then say `Persisted`. Files of one kind are written in the order asked.
    Persist {
        /// Token for the answer.
        token: u64,
        /// Which file.
        file: OwnerFile,
        /// Its new contents.
        bytes: Vec<u8>,
    },
    /// Put a topic's tombstone (its end offset in each shard) on disk through the background, then say `Persisted`.
    PersistTombstone {
        /// Token for the answer.
        token: u64,
        /// The topic.
        topic: Arc<str>,
        /// End of each shard's log.
        ends: Vec<(ShardId, message::PhysicalOffset)>,
    },
    /// Append these bytes to the offset journal with one write now, then say `Journaled`.
    Journal(Vec<u8>),
    /// `consumerOffset.json` holds everything up to this journal generation: older ones can go.
    JournalDone {
        /// Last generation that is not needed.
        through: u64,
    },
    /// The topics changed: the control thread registers with the name servers and says `Registered`.
    TopicsChanged {
        /// Grows with each change.
        version: u64,
        /// The topics and their data version, as registered.
        topics: crate::registration::RegisteredTopics,
    },
}
