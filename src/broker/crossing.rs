//! What cores say to each other, and the lanes that carry it.
//!
//! Role: the message type of the engine, the batches of a turn (at most one of requests and one of replies for each peer) and
//! the queue of everything else. Invariants: nobody waits to publish; what does not fit into a mailbox stays here, in order,
//! and grows by the next turn's entries; the bytes in it are bounded by the requests in flight of the connections
//! (`connections`). It decides nothing.

use crate::connections::{Connections, Reading};
use crate::gather::{ShardAnswer, ShardAsk};
use crate::owner::{OwnerRequest, Refusal, SendBackJob, Ticket};
use crate::registration::ControlMessage;
use crate::response;
use crate::services::pop::request::PopRun;
use crate::services::pop::watch::Watch;
use crate::services::{ServiceRequest, ServiceTicket, Stored, Waiter};
use crate::snapshot::Snapshot;
use crate::work::{PullWork, QueueQuestion, SendBack, SendBytes, SendNumbers};
use message::properties::PropertiesSource;
use message::record::RecordFields;
use reactor::{ConnectionId, Context, CoreId};
use remoting::{Command, ResponseCode, SerializeType};
use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use store::ShardId;
use sys::LogSlice;

/// The core of the metadata owner (and of the name server).
pub const OWNER_CORE: CoreId = CoreId(0);

/// Where an answer of the hot path goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// The connection.
    pub conn: ConnectionId,
    /// The request's number.
    pub opaque: i32,
    /// The header form of the answer.
    pub form: SerializeType,
    /// No answer is written; the request still settles.
    pub oneway: bool,
    /// Bytes that the request keeps in mailboxes, given back when it settles.
    pub bytes: u32,
    /// Whether it is counted as in flight at its connection. A held pull no longer is.
    pub counted: bool,
}

impl ReplyTo {
    fn settles(&self) -> Option<u32> {
        self.counted.then_some(self.bytes)
    }
}

/// Everything that a core receives from another thread.
#[derive(Debug)]
pub enum CoreMessage {
    /// A turn's requests for shards of the receiving core.
    Requests(Box<RequestBatch>),
    /// A turn's answers for connections of the receiving core.
    Replies(Box<ReplyBatch>),
    /// To the owner on core 0.
    Owner(Box<OwnerRequest>),
    /// The owner's answer to a decoded request; opaque and form are those of `response`.
    Reply {
        /// The connection that asked.
        conn: ConnectionId,
        /// The answer.
        response: Box<Command>,
    },
    /// The owner's answer to a request that was routed to it with its [`ReplyTo`].
    Answer {
        /// To where.
        to: ReplyTo,
        /// The answer.
        response: Box<Command>,
    },
    /// A metadata wait is over: run the parked frame again, or answer it with the refusal.
    Resume {
        /// Which wait.
        ticket: Ticket,
        /// `Ok`: the receiving core's snapshot has what was missing.
        outcome: Result<(), Refusal>,
    },
    /// A client sends a retry: run the parked frame again, knowing whether its group holds a queue lock.
    LockState {
        /// Which wait.
        ticket: Ticket,
        /// A member of the group holds a lock that has not expired.
        locked: bool,
    },
    /// The topic that the copy of a send-back needs was made (`Ok`: the receiving core's snapshot has it), or not.
    SendBack {
        /// The send-back.
        job: Box<SendBackJob>,
        /// Whether it can go on.
        outcome: Result<(), Refusal>,
    },
    /// New metadata; answered with [`CoreMessage::SnapshotSeen`].
    Snapshot(Arc<Snapshot>),
    /// A core works with this snapshot from now on. To the owner.
    SnapshotSeen {
        /// Which core.
        core: CoreId,
        /// Its version.
        version: u64,
    },
    /// A whole encoded request of the broker to a client (40, 220, 221, 307, ...).
    Push {
        /// The client's connection.
        conn: ConnectionId,
        /// The frame, length included.
        frame: Vec<u8>,
    },
    /// A connection of the sender is gone: drop what is held for it.
    ClosedElsewhere(ConnectionId),
    /// A question to one shard of the receiving core.
    ShardAsk {
        /// Where the answer goes.
        from: CoreId,
        /// Carried back in the answer. The owner's ids have the top bit clear, those of the hot path set ([`HOT_GATHER`]).
        gather: u64,
        /// The shard.
        shard: ShardId,
        /// The question.
        ask: ShardAsk,
    },
    /// The answer of one shard.
    ShardAnswer {
        /// As asked.
        gather: u64,
        /// The shard that answers.
        shard: ShardId,
        /// What it says.
        answer: ShardAnswer,
    },
    /// A record of the broker's own from one shard of a core to another shard of the same core.
    Record {
        /// The shard that is to store it.
        shard: ShardId,
        /// The record.
        record: Box<OwnedRecord>,
        /// Who is told.
        waiter: Waiter,
    },
    /// A record that a service of the receiving core put into another shard is durable there, or was refused.
    Stored {
        /// The service's shard.
        shard: ShardId,
        /// Which service waits, for what.
        ticket: ServiceTicket,
        /// Where it lies.
        stored: Result<Stored, String>,
    },
    /// The owner's answer to a shard that looks for a producer to ask about a half message.
    Producer {
        /// The shard.
        shard: ShardId,
        /// The queue offset of the half.
        half: u64,
        /// The producer's connection; `None`: the group has none.
        conn: Option<ConnectionId>,
    },
    /// A request that another shard of this core hands on.
    Forwarded(Box<Forwarded>),
    /// A pop that found nothing is to be held by the core of its connection.
    HoldPop {
        /// Who waits.
        to: ReplyTo,
        /// What it asked.
        run: Box<PopRun>,
    },
    /// A shard has something for pops that this core holds.
    PopWake(Watch),
    /// The owner says where a group is in the queues of a topic. To the shard that asked.
    PopOffsets {
        /// The shard.
        shard: ShardId,
        /// Carried back.
        ask: u32,
        /// Queue and offset, of those that have one.
        offsets: Vec<(u32, i64)>,
    },
    /// How many pops wait: the cores add up what they hold, one after the other, and the first one answers.
    PollingInfo(Box<PollingInfo>),
    /// From the control thread (core 0 only).
    Control(ControlMessage),
    /// For another service of the process (the name server); the broker ignores it.
    Host(Box<dyn Any + Send>),
}

/// A count of held pops (200055) on its way through the cores.
#[derive(Debug)]
pub struct PollingInfo {
    /// Who asks.
    pub to: ReplyTo,
    /// The topic.
    pub topic: String,
    /// The group.
    pub group: String,
    /// The queue, as the pops named it.
    pub queue_id: i32,
    /// Counted so far.
    pub count: u64,
    /// Cores that have counted.
    pub counted: u16,
}

/// Set in the gather ids of the hot path.
pub const HOT_GATHER: u64 = 1 << 63;

/// One turn's requests for the shards of one other core.
#[derive(Debug, Default)]
pub struct RequestBatch {
    /// Topic, properties, body, unique id and recall handle of the sends, one after the other.
    pub bytes: Vec<u8>,
    /// In arrival order.
    pub entries: Vec<Forwarded>,
    /// Records of the broker's own, in their order.
    pub records: Vec<ForwardedRecord>,
}

/// A record of the broker's own on its way to another core. Topic, properties and body lie in the batch from `start` on.
#[derive(Debug)]
pub struct ForwardedRecord {
    /// The shard that is to store it.
    pub shard: ShardId,
    /// Who is told.
    pub waiter: Waiter,
    start: u32,
    lens: [u32; 3],
    numbers: RecordFields<'static>,
}

/// A record of the broker's own with its bytes.
#[derive(Debug)]
pub struct OwnedRecord {
    bytes: Vec<u8>,
    lens: [u32; 3],
    numbers: RecordFields<'static>,
}

/// A request that hops: checked and routed on its connection's core, carried out on the shard's.
#[derive(Debug)]
pub struct Forwarded {
    /// Who waits.
    pub reply: ReplyTo,
    /// The shard of its queue.
    pub shard: ShardId,
    /// What to do.
    pub work: Work,
}

/// The work of one hop.
#[derive(Debug)]
pub enum Work {
    /// Append: 1..n records of one queue. The bytes lie in the batch from `start` on.
    Send {
        /// Where its bytes start in the batch.
        start: u32,
        /// Lengths of topic, properties, body, unique id and recall handle, which follow each other.
        lens: [u32; 5],
        /// Everything else.
        numbers: SendNumbers,
    },
    /// Read a queue.
    Pull(Box<PullWork>),
    /// A question about one queue (29 to 33).
    Ask(Box<QueueQuestion>),
    /// Send a message of the shard back (36).
    SendBack(Box<SendBack>),
    /// A request to a service of the shard.
    Service(Box<ServiceRequest>),
}

/// One turn's answers for the connections of one other core.
#[derive(Debug, Default)]
pub struct ReplyBatch {
    /// Encoded headers (and copied bodies), one after the other.
    pub bytes: Vec<u8>,
    /// Bodies that stay where they are.
    pub slices: Vec<LogSlice>,
    /// The answers.
    pub entries: Vec<ReplyEntry>,
}

/// One answer in a batch.
#[derive(Debug)]
pub struct ReplyEntry {
    /// The connection.
    pub conn: ConnectionId,
    /// Its bytes; empty when there is nothing to write (oneway, or the request is held now).
    pub bytes: Range<u32>,
    /// The slices that follow the bytes.
    pub slices: Range<u32>,
    /// `Some(bytes of the request)`: it ends a request in flight. An answer to a held pull does not: that one ended when it
    /// was held.
    pub settles: Option<u32>,
}

/// The outgoing side of one core. Posts to any core, its own included: own messages are worked in the same turn.
#[derive(Debug)]
pub struct Lanes {
    own: CoreId,
    peers: Vec<Peer>,
    loopback: VecDeque<CoreMessage>,
}

#[derive(Debug, Default)]
struct Peer {
    waiting: VecDeque<CoreMessage>,
    requests: Box<RequestBatch>,
    replies: Box<ReplyBatch>,
}

impl Lanes {
    /// Lanes of core `own` to `cores` cores.
    pub fn new(own: CoreId, cores: u16) -> Self {
        Self { own, peers: (0..cores).map(|_| Peer::default()).collect(), loopback: VecDeque::new() }
    }

    /// The core that these lanes start from.
    pub fn own(&self) -> CoreId {
        self.own
    }

    /// Number of cores.
    pub fn cores(&self) -> u16 {
        self.peers.len() as u16
    }

    /// Sends a message, in order with the others of this lane.
    pub fn post(&mut self, to: CoreId, message: CoreMessage) {
        if to == self.own {
            self.loopback.push_back(message);
        } else {
            self.peers[usize::from(to.0)].waiting.push_back(message);
        }
    }

    /// Sends a request to the owner.
    pub fn owner(&mut self, request: OwnerRequest) {
        self.post(OWNER_CORE, CoreMessage::Owner(Box::new(request)));
    }

    /// The next message that this core sent to itself.
    pub fn next_own(&mut self) -> Option<CoreMessage> {
        self.loopback.pop_front()
    }

    /// The batch of requests for another core.
    pub fn requests(&mut self, to: CoreId) -> &mut RequestBatch {
        assert!(to != self.own, "own requests do not cross");
        &mut self.peers[usize::from(to.0)].requests
    }

    /// The batch of replies for another core.
    pub fn replies(&mut self, to: CoreId) -> &mut ReplyBatch {
        assert!(to != self.own, "own replies do not cross");
        &mut self.peers[usize::from(to.0)].replies
    }

    /// Messages and bytes of requests that wait for a core which does not take them: the measure of overload.
    pub fn backlog(&self, to: CoreId) -> (usize, usize) {
        let peer = &self.peers[usize::from(to.0)];
        (peer.waiting.len() + peer.requests.entries.len(), peer.requests.bytes.len())
    }

    /// Whether this core has messages for itself.
    pub fn has_own(&self) -> bool {
        !self.loopback.is_empty()
    }

    /// Whether anything waits to be taken by another core.
    pub fn is_idle(&self) -> bool {
        self.loopback.is_empty()
            && self
                .peers
                .iter()
                .all(|peer| peer.waiting.is_empty() && peer.requests.is_empty() && peer.replies.entries.is_empty())
    }

    /// Publishes what the mailboxes take. Order on a lane: single messages, requests, replies. A snapshot is therefore seen
    /// before the requests that were routed with it.
    pub fn flush(&mut self, cx: &mut Context<CoreMessage>) {
        for (to, peer) in self.peers.iter_mut().enumerate() {
            let to = CoreId(to as u16);
            if to != self.own {
                peer.flush(cx, to);
            }
        }
    }
}

impl Peer {
    fn flush(&mut self, cx: &mut Context<CoreMessage>, to: CoreId) {
        while let Some(message) = self.waiting.pop_front() {
            if let Err(message) = cx.try_post(to, message) {
                self.waiting.push_front(message);
                return;
            }
        }
        if !self.requests.is_empty() {
            match cx.try_post(to, CoreMessage::Requests(std::mem::take(&mut self.requests))) {
                Ok(()) => {}
                Err(CoreMessage::Requests(batch)) => {
                    self.requests = batch;
                    return;
                }
                Err(_) => unreachable!("a mailbox gives back what it was given"),
            }
        }
        if !self.replies.entries.is_empty() {
            match cx.try_post(to, CoreMessage::Replies(std::mem::take(&mut self.replies))) {
                Ok(()) => {}
                Err(CoreMessage::Replies(batch)) => self.replies = batch,
                Err(_) => unreachable!("a mailbox gives back what it was given"),
            }
        }
    }
}

/// Where answers are written: the outgoing bytes of own connections, the batches of the others.
pub struct Answers<'a> {
    /// The driver.
    pub cx: &'a mut Context<CoreMessage>,
    /// To the other cores.
    pub lanes: &'a mut Lanes,
    /// Of this core.
    pub connections: &'a mut Connections,
}

impl Answers<'_> {
    /// Writes an answer: `write` appends its frame up to the slices, which are the rest of its body. Nothing is written for a
    /// oneway request or a connection that is gone.
    pub fn reply(&mut self, to: &ReplyTo, slices: &[LogSlice], write: impl FnOnce(&mut Vec<u8>)) {
        self.reply_with(to, slices.iter().cloned(), write);
    }

    /// As [`Answers::reply`], with slices that are handed over.
    pub fn reply_with(
        &mut self,
        to: &ReplyTo,
        slices: impl IntoIterator<Item = LogSlice>,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        if to.conn.core != self.lanes.own {
            let batch = self.lanes.replies(to.conn.core);
            if to.oneway {
                batch.add(to.conn, to.settles(), [], |_| {});
            } else {
                batch.add(to.conn, to.settles(), slices, write);
            }
            return;
        }
        if !to.oneway
            && let Some(out) = self.cx.output(to.conn)
        {
            write(out.bytes());
            slices.into_iter().for_each(|slice| out.slice(slice));
        }
        self.settle_own(to.conn, to.settles());
    }

    /// Ends a request without an answer (it is held now, or was oneway).
    pub fn settle(&mut self, to: &ReplyTo) {
        if to.conn.core != self.lanes.own {
            self.lanes.replies(to.conn.core).add(to.conn, to.settles(), [], |_| {});
        } else {
            self.settle_own(to.conn, to.settles());
        }
    }

    /// Answers with a code and a text.
    pub fn refuse(&mut self, to: &ReplyTo, code: ResponseCode, remark: &str) {
        self.reply(to, &[], |out| response::refusal(out, to, code.to_i32(), remark));
    }

    /// Hands out a batch that came from another core.
    pub fn deliver(&mut self, batch: &mut ReplyBatch) {
        let mut slices = batch.slices.drain(..);
        for entry in batch.entries.drain(..) {
            let own = slices.by_ref().take(entry.slices.len());
            match self.cx.output(entry.conn) {
                Some(out) => {
                    out.bytes().extend_from_slice(&batch.bytes[entry.bytes.start as usize..entry.bytes.end as usize]);
                    own.for_each(|slice| out.slice(slice));
                }
                None => own.for_each(drop),
            }
            self.settle_own(entry.conn, entry.settles);
        }
    }

    /// Sends the answer of a shard to the coordinator of its gather.
    pub fn shard_answer(&mut self, from: CoreId, gather: u64, shard: ShardId, answer: ShardAnswer) {
        self.lanes.post(from, CoreMessage::ShardAnswer { gather, shard, answer });
    }

    fn settle_own(&mut self, conn: ConnectionId, settles: Option<u32>) {
        if let Some(bytes) = settles
            && self.connections.settle(conn, bytes as usize) == Reading::Release
        {
            self.cx.release(conn);
        }
    }
}

/// The numbers of a record, without its bytes.
fn numbers_of(record: &RecordFields<'_>) -> RecordFields<'static> {
    RecordFields { topic: &[], body: &[], properties: PropertiesSource::Text(&[]), ..*record }
}

/// Appends topic, properties and body; gives their lengths.
fn write_parts(record: &RecordFields<'_>, out: &mut Vec<u8>) -> [u32; 3] {
    out.extend_from_slice(record.topic);
    record.properties.write(out);
    out.extend_from_slice(record.body);
    [record.topic.len(), record.properties.encoded_len(), record.body.len()].map(|len| len as u32)
}

fn fields<'a>(numbers: &RecordFields<'static>, mut rest: &'a [u8], lens: [u32; 3]) -> RecordFields<'a> {
    let [topic, properties, body] = lens.map(|len| {
        let (part, after) = rest.split_at(len as usize);
        rest = after;
        part
    });
    RecordFields { topic, body, properties: PropertiesSource::Text(properties), ..*numbers }
}

impl OwnedRecord {
    /// A copy of a record.
    pub fn new(record: &RecordFields<'_>) -> Self {
        let mut bytes = Vec::new();
        let lens = write_parts(record, &mut bytes);
        Self { bytes, lens, numbers: numbers_of(record) }
    }

    /// The record.
    pub fn fields(&self) -> RecordFields<'_> {
        fields(&self.numbers, &self.bytes, self.lens)
    }
}

impl ForwardedRecord {
    /// The record; `bytes` are those of its batch.
    pub fn fields<'a>(&self, bytes: &'a [u8]) -> RecordFields<'a> {
        fields(&self.numbers, &bytes[self.start as usize..], self.lens)
    }
}

impl RequestBatch {
    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.records.is_empty()
    }

    /// Adds a record of the broker's own; its bytes are copied.
    pub fn record(&mut self, shard: ShardId, record: &RecordFields<'_>, waiter: Waiter) {
        let start = self.bytes.len() as u32;
        let lens = write_parts(record, &mut self.bytes);
        self.records.push(ForwardedRecord { shard, waiter, start, lens, numbers: numbers_of(record) });
    }

    /// Adds a send; its bytes are copied.
    pub fn send(&mut self, reply: ReplyTo, shard: ShardId, numbers: SendNumbers, bytes: SendBytes<'_>) {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(bytes.topic);
        bytes.properties.write(&mut self.bytes);
        self.bytes.extend_from_slice(bytes.body);
        self.bytes.extend_from_slice(bytes.unique_id);
        self.bytes.extend_from_slice(bytes.recall_handle);
        let texts = [bytes.topic, bytes.body, bytes.unique_id, bytes.recall_handle].map(<[u8]>::len);
        let [topic, body, unique_id, recall_handle] = texts;
        let lens = [topic, bytes.properties.encoded_len(), body, unique_id, recall_handle];
        let work = Work::Send { start, lens: lens.map(|len| len as u32), numbers };
        self.entries.push(Forwarded { reply, shard, work });
    }
}

impl ReplyBatch {
    /// Adds an answer: `write` appends its bytes.
    pub fn add(
        &mut self,
        conn: ConnectionId,
        settles: Option<u32>,
        slices: impl IntoIterator<Item = LogSlice>,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let (bytes_from, slices_from) = (self.bytes.len() as u32, self.slices.len() as u32);
        write(&mut self.bytes);
        self.slices.extend(slices);
        let (bytes_to, slices_to) = (self.bytes.len() as u32, self.slices.len() as u32);
        self.entries.push(ReplyEntry { conn, bytes: bytes_from..bytes_to, slices: slices_from..slices_to, settles });
    }
}
