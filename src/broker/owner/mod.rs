//! The metadata owner, on core 0: topics, groups, connected clients with their filters, consumer offsets and the live settings. A
//! pure step machine: events in, actions out; it reads no clock, does no I/O and holds no connection.
//!
//! Invariants:
//! - A change of topics or groups is on disk before a snapshot shows it and acknowledged by every core before it is answered.
//!   Changes that arrive while a file is being written share the next write.
//! - A commit of an offset is in the journal before it is answered.
//! - A snapshot goes out only when something in it changed.

pub mod clients;
pub mod filters;
pub mod groups;
pub mod host;
pub mod offsets;
pub mod topics;
pub mod version;

mod answer;
mod bloom;
mod calls;
mod assignment;
pub mod delay_offsets;
mod delete_topic;
mod flow;
mod group_requests;
mod heartbeat;
mod light;
mod locks;
mod offset_requests;
mod queues;
mod replies;
mod reset_offset;
mod runtime_info;
mod settings;
mod stalls;
mod statistics;
mod topic_requests;

pub use assignment::PopToOwner;
pub use host::{BootError, OwnerHost};
pub use replies::ReplyMessage;

use crate::config::{BrokerOptions, DelayRules, LiveSettings};
use crate::crossing::{OwnedRecord, ReplyTo};
use crate::gather::{Gathered, Gathers, ShardAnswer, ShardAsk};
use crate::services::Waiter;
use crate::snapshot::{GroupConsumers, Snapshot, Table};
use crate::work::SendBack;
use answer::{Asker, Outcome};
use clients::Clients;
use filters::FilterBook;
use flow::Flow;
use groups::GroupBook;
use offsets::Offsets;
use reactor::{ConnectionId, CoreId, Now};
use remoting::{Command, RequestCode, ResponseCode};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use store::offset_journal::JsonFiles;
use store::{Placement, ShardId};
use topics::TopicBook;
use version::DataVersion;

/// Where a request came from. Travels with the request; its opaque, header form, language and version are in the command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Origin {
    /// The connection.
    pub conn: ConnectionId,
    /// The client's address.
    pub peer: SocketAddr,
}

/// Names a request that waits on some core for the owner; the core chooses `id` and finds the parked request by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The core where the request waits.
    pub core: CoreId,
    /// Chosen by that core.
    pub id: u64,
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
        /// What waits.
        ticket: Ticket,
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
    /// A send-back, or a retry that a client sends itself, needs the group's retry or dead-letter topic: make it. Answered to
    /// the waiter.
    EnsureRetryTopic {
        /// What waits.
        waiter: RetryWaiter,
        /// The topic.
        topic: String,
        /// Its queues, if it is made.
        queues: u32,
        /// Its system flag, if it is made.
        topic_sys_flag: i32,
    },
    /// A reply to a request (324, 325).
    Reply(Box<ReplyMessage>),
    /// A client sends a retry itself: whether its group holds a queue lock. Answered by `LockState`.
    QueryLock {
        /// What waits.
        ticket: Ticket,
        /// The group.
        group: String,
    },
    /// A pull met an unknown group: make it if groups are made by themselves. Answered by `Resume` (refused with 26).
    EnsureGroup {
        /// What waits.
        ticket: Ticket,
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
    /// A shard has saved how far its delay levels are delivered, by queue. No answer.
    DelayOffsets(BTreeMap<u32, u64>),
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
    /// A shard looks for any live producer of a group, to ask it about a half message. Answered by `Producer`.
    FindProducer {
        /// The shard.
        shard: ShardId,
        /// Carried back: the queue offset of the half.
        half: u64,
        /// The producer group.
        group: String,
    },
    /// The broker itself needs a topic that is not made at start. It is there with a later snapshot.
    EnsureSystemTopic {
        /// The topic.
        topic: &'static str,
        /// Its queues.
        queues: u32,
    },
    /// POP asks.
    Pop(PopToOwner),
    /// A connection is gone: its clients leave their groups.
    ConnectionClosed(ConnectionId),
    /// A client's answer to something that the owner sent it (221, 307, 309); matched by connection and opaque.
    ClientReply {
        /// The client's connection.
        conn: ConnectionId,
        /// The answer, decoded.
        command: Command,
    },
}

/// What waits for a retry or dead-letter topic.
#[derive(Clone, Debug)]
pub enum RetryWaiter {
    /// A send: answered by `Resume`.
    Frame(Ticket),
    /// A send-back: answered to the core of its shard.
    SendBack(Box<SendBackJob>),
}

/// A send-back that waits for a topic.
#[derive(Clone, Debug)]
pub struct SendBackJob {
    /// The client.
    pub reply: ReplyTo,
    /// The shard of the message.
    pub shard: ShardId,
    /// What is asked.
    pub work: SendBack,
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
    /// A name server has order configurations of these topics.
    OrderTopics(Vec<String>),
    /// Bytes of the data folder's disk.
    Space {
        /// All of them.
        total: u64,
        /// Those that are free for us.
        available: u64,
    },
    /// Write `consumerOffset.json` and `consumerFilter.json` now if they are behind: the broker is to stop.
    Stop,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OwnerFile {
    /// `config/topics.json`.
    Topics,
    /// `config/subscriptionGroup.json`.
    Groups,
    /// `config/consumerOffset.json`.
    ConsumerOffsets,
    /// `config/consumerFilter.json`.
    ConsumerFilters,
    /// `config/delayOffset.json`.
    DelayOffsets,
    /// `shards/placement.json`.
    Placement,
    /// `config/messageRequestMode.json`.
    RequestModes,
    /// The live settings that were changed while running, as Java properties.
    Settings,
}

/// What a file is to hold; encoded where it is written, off the cores.
#[derive(Debug)]
pub enum Contents {
    /// `topics.json`.
    Topics(topics::TopicBook),
    /// `subscriptionGroup.json`.
    Groups(groups::GroupBook),
    /// `consumerOffset.json`, and the same for a Java broker with light queues, which is to be written first.
    Offsets {
        /// `consumerOffset.json`.
        plain: Vec<u8>,
        /// `lmqConsumerOffset.json`.
        light: Option<Vec<u8>>,
    },
    /// The bytes themselves.
    Bytes(Vec<u8>),
}

impl Contents {
    /// The bytes of the file.
    pub fn encode(self) -> Vec<u8> {
        match self {
            Self::Topics(book) => book.encode(),
            Self::Groups(book) => book.encode(),
            Self::Offsets { plain: bytes, .. } | Self::Bytes(bytes) => bytes,
        }
    }

    /// The files of consumer offsets among it.
    fn offset_files(&self) -> JsonFiles<'_> {
        match self {
            Self::Offsets { plain, light } => [Some(plain), light.as_deref()],
            _ => [None; 2],
        }
    }
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
        /// Which.
        ticket: Ticket,
        /// Whether it can go on.
        outcome: Result<(), Refusal>,
    },
    /// Send the answer of a request that was routed to the owner with its [`ReplyTo`].
    Answer {
        /// To where.
        to: ReplyTo,
        /// The answer.
        response: Command,
    },
    /// Store a record.
    Put {
        /// The shard of its queue.
        shard: ShardId,
        /// The record.
        record: Box<OwnedRecord>,
        /// Who is told.
        waiter: Waiter,
    },
    /// Run the parked retry of a client again.
    LockState {
        /// Which.
        ticket: Ticket,
        /// Whether its group holds a queue lock.
        locked: bool,
    },
    /// Go on with a send-back, or refuse it.
    SendBack {
        /// Which.
        job: Box<SendBackJob>,
        /// Whether it can go on.
        outcome: Result<(), Refusal>,
    },
    /// Tell a shard where a group is in the queues of a topic.
    PopOffsets {
        /// The shard.
        shard: ShardId,
        /// Carried back.
        ask: u32,
        /// Queue and offset, of those that have one.
        offsets: Vec<(u32, i64)>,
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
    /// Tell a shard which producer to ask about a half message; `None`: the group has none.
    Producer {
        /// The shard.
        shard: ShardId,
        /// As asked.
        half: u64,
        /// The producer's connection.
        conn: Option<ConnectionId>,
    },
    /// Send a request of the broker to a client; no one waits for it to arrive.
    Push {
        /// To which connection.
        conn: ConnectionId,
        /// The request, complete.
        command: Command,
    },
    /// Write a file through the background, then say `Persisted`. A file is never asked for again before that.
    /// For `ConsumerOffsets` the journal starts a new generation first, which names the contents; once the file is written,
    /// older ones go.
    Persist {
        /// Token for the answer.
        token: u64,
        /// Which file.
        file: OwnerFile,
        /// Its new contents.
        contents: Contents,
    },
    /// Put a topic's tombstone on disk through the background, then say `Persisted`.
    PersistTombstone {
        /// Token for the answer.
        token: u64,
        /// The topic.
        topic: Arc<str>,
        /// End of each shard's log.
        ends: Vec<message::PhysicalOffset>,
    },
    /// Append these entries to the offset journal now, then say `Journaled`.
    Journal(Vec<Vec<u8>>),
    /// Every core works with snapshot 1: connections may come.
    Ready,
    /// Measure the space of the data folder's disk in the background, then say `Space`.
    MeasureSpace,
    /// The topics changed: the control thread registers with the name servers and says `Registered`.
    TopicsChanged {
        /// Grows with each change.
        version: u64,
        /// The topics and their data version, as registered.
        topics: crate::registration::RegisteredTopics,
    },
}

/// What the owner starts from.
#[derive(Debug)]
pub struct OwnerBoot {
    /// The broker's settings.
    pub options: Arc<BrokerOptions>,
    /// Cores that acknowledge snapshots.
    pub cores: u16,
    /// Shards of the store.
    pub shards: u16,
    /// Whether the store was closed in order; if not, stored consumer offsets are cut to the queues' recovered ends.
    pub was_clean: bool,
    /// `topics.json`, `None` for a new store.
    pub topics: Option<Vec<u8>>,
    /// `subscriptionGroup.json`.
    pub groups: Option<Vec<u8>>,
    /// `consumerOffset.json`.
    pub offsets: Option<Vec<u8>>,
    /// `lmqConsumerOffset.json`: with light queues it is read in place of the other, as a Java broker does.
    pub light_offsets: Option<Vec<u8>>,
    /// `consumerFilter.json`.
    pub filters: Option<Vec<u8>>,
    /// `messageRequestMode.json`.
    pub request_modes: Option<Vec<u8>>,
    /// The entries of the offset journal that are newer than the file of offsets in force, oldest first.
    pub journal: Vec<Vec<u8>>,
    /// `shards/placement.json`.
    pub placement: Placement,
}

/// The metadata owner, see the head of the file.
pub struct Owner {
    options: Arc<BrokerOptions>,
    settings: Arc<LiveSettings>,
    delays: Arc<DelayRules>,
    /// How often settings were changed since the start.
    settings_changes: i64,
    shards: u16,
    topics: TopicBook,
    groups: GroupBook,
    clients: Clients,
    /// What the snapshot says of `clients`.
    consumers: Table<GroupConsumers>,
    filters: FilterBook,
    filters_written_us: u64,
    filters_writing: Option<u64>,
    offsets: Offsets,
    offsets_version: DataVersion,
    offsets_written_us: u64,
    offsets_writing: Option<u64>,
    delay_offsets: delay_offsets::DelayOffsets,
    /// `lmqConsumerOffset.json` is written, too: there are light queues, or there is the file and it must not fall behind.
    light_offsets: bool,
    flow: Flow,
    gathers: Gathers<Then>,
    deletions: BTreeMap<String, delete_topic::Deletion>,
    calls: calls::Calls,
    locks: locks::Locks,
    /// Bytes of the replies that wait for clients.
    reply_bytes: usize,
    modes: assignment::RequestModes,
    rates: runtime_info::Rates,
    stalls: stalls::Stalls,
    clients_checked_us: u64,
    next_token: u64,
    was_clean: bool,
    boot: Boot,
}

/// How far the start has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Boot {
    /// Nothing was asked yet.
    New,
    /// The shards are asked for the ends of their queues.
    Cutting,
    /// Snapshot 1 is on its way.
    Publishing,
    /// Requests are served.
    Done,
}

/// What a gather goes on with.
#[derive(Debug)]
enum Then {
    CutOffsets,
    QueryOffset(offset_requests::Query),
    TopicStats(statistics::TopicStats),
    ConsumeStats(statistics::ConsumeStats),
    TimeSpan(statistics::TimeSpan),
    Reset(reset_offset::Reset),
    Delete(String),
    Forgotten(String),
    Status(Option<Asker>),
    Directly(calls::Directly),
}

/// The time of a step and what it asks for.
pub(crate) struct Turn<'a> {
    now: Now,
    out: &'a mut Vec<OwnerAction>,
}

impl Owner {
    /// An owner from what the store holds. Errors: a file cannot be read; its name is in the text.
    pub fn open(boot: OwnerBoot, now: Now) -> Result<Self, String> {
        let named = |file: &str| {
            let file = file.to_owned();
            move |error: String| format!("{file}: {error}")
        };
        let topics = TopicBook::open(boot.topics.as_deref(), boot.placement, &boot.options, now.wall_ms)
            .map_err(named("topics.json"))?;
        let groups = GroupBook::open(boot.groups.as_deref(), now.wall_ms).map_err(named("subscriptionGroup.json"))?;
        let light = boot.light_offsets.as_ref().filter(|_| boot.options.light_queues);
        let (mut offsets, offsets_version) = match (light, &boot.offsets) {
            (Some(bytes), _) => Offsets::decode(bytes).map_err(named("lmqConsumerOffset.json"))?,
            (None, Some(bytes)) => Offsets::decode(bytes).map_err(named("consumerOffset.json"))?,
            (None, None) => Default::default(),
        };
        let filters = match &boot.filters {
            Some(bytes) => FilterBook::decode(bytes, now.wall_ms).map_err(named("consumerFilter.json"))?,
            None => FilterBook::default(),
        };
        for entry in &boot.journal {
            offsets.replay(entry);
        }
        let behind = |file: &Option<Vec<u8>>, version| DataVersion::of_file(file.as_deref()) != Some(version);
        let dirty = (behind(&boot.topics, topics.version()), behind(&boot.groups, groups.version()));
        let [schedule, timer] =
            [message::names::SCHEDULE_TOPIC, message::names::TIMER_TOPIC].map(|topic| topics.system_width(topic));
        Ok(Self {
            settings: Arc::new(boot.options.live.clone()),
            delays: Arc::new(DelayRules::new(&boot.options, schedule, timer)),
            settings_changes: 0,
            shards: boot.shards,
            flow: Flow::new(boot.cores, &topics, &groups, dirty),
            topics,
            groups,
            clients: Clients::default(),
            consumers: Table::default(),
            filters,
            filters_written_us: now.mono_us,
            filters_writing: None,
            offsets,
            offsets_version,
            offsets_written_us: now.mono_us,
            offsets_writing: None,
            delay_offsets: delay_offsets::DelayOffsets::default(),
            light_offsets: boot.options.light_queues || boot.light_offsets.is_some(),
            gathers: Gathers::default(),
            deletions: BTreeMap::new(),
            calls: calls::Calls::default(),
            locks: locks::Locks::default(),
            reply_bytes: 0,
            modes: assignment::RequestModes::open(boot.request_modes.as_deref())
                .map_err(named("messageRequestMode.json"))?,
            rates: runtime_info::Rates::new(now),
            stalls: stalls::Stalls::default(),
            clients_checked_us: now.mono_us,
            next_token: 0,
            was_clean: boot.was_clean,
            boot: Boot::New,
            options: boot.options,
        })
    }

    /// One step: what happened in, what is to be done out, in order.
    pub fn step(&mut self, now: Now, event: OwnerEvent, out: &mut Vec<OwnerAction>) {
        let turn = &mut Turn { now, out };
        match event {
            OwnerEvent::Request(request) => self.request(turn, request),
            OwnerEvent::SnapshotSeen { core, version } => self.snapshot_seen(turn, core, version),
            OwnerEvent::ShardAnswer { gather, shard, answer } => {
                if let Some((then, gathered)) = self.gathers.answer(gather, shard, answer) {
                    self.gathered(turn, then, gathered);
                }
            }
            OwnerEvent::Persisted { token, result } => self.persisted(turn, token, result),
            OwnerEvent::Journaled(result) => self.journaled(turn, result),
            OwnerEvent::Registered { version } => self.registered(turn, version),
            OwnerEvent::OrderTopics(topics) => {
                if self.topics.mark_ordered(&topics, turn.now.wall_ms) {
                    self.flow.topics_changed(None);
                }
            }
            OwnerEvent::Space { total, available } => self.rates.set_space(total, available),
            OwnerEvent::Stop => {
                if self.offsets_writing.is_none() {
                    self.write_offsets_now(turn);
                }
                self.write_filters_now(turn);
            }
            OwnerEvent::TurnEnd => self.turn_end(turn),
        }
    }

    fn request(&mut self, turn: &mut Turn<'_>, request: OwnerRequest) {
        match request {
            OwnerRequest::Request { origin, command } => self.command(turn, origin, &command),
            OwnerRequest::EnsureTopic { .. } => self.ensure_topic(turn, request),
            OwnerRequest::EnsureRetryTopic { .. } => self.ensure_named_retry_topic(turn, request),
            OwnerRequest::Reply(message) => self.push_reply(turn, message),
            OwnerRequest::QueryLock { ticket, group } => {
                let locked = self.locks.is_held(turn.now, &group);
                turn.out.push(OwnerAction::LockState { ticket, locked });
            }
            OwnerRequest::EnsureGroup { ticket, group } => self.ensure_group(turn, ticket, &group),
            OwnerRequest::CommitOffset { group, topic, queue_id, offset, peer } => {
                self.commit_of_pull(&group, &topic, queue_id, offset, peer);
            }
            OwnerRequest::DelayOffsets(delivered) => self.delay_offsets.saved(turn.now.wall_ms, &delivered),
            OwnerRequest::ResetTaken { group, topic, queue_id, id } => {
                if self.offsets.reset_taken(&group, &topic, queue_id, id) {
                    self.flow.publish();
                }
            }
            OwnerRequest::FindProducer { shard, half, group } => {
                let conn = self.clients.any_producer(&group);
                turn.out.push(OwnerAction::Producer { shard, half, conn });
            }
            OwnerRequest::EnsureSystemTopic { topic, queues } => self.ensure_system_topic(turn, topic, queues),
            OwnerRequest::Pop(ask) => self.pop_asks(turn, ask),
            OwnerRequest::ConnectionClosed(conn) => self.connection_closed(turn, conn),
            OwnerRequest::ClientReply { conn, command } => self.client_reply(turn, conn, command),
        }
    }

    fn command(&mut self, turn: &mut Turn<'_>, origin: Origin, command: &Command) {
        let asker = Asker::of(origin, command);
        match self.serve(turn, &asker, command) {
            Ok(Outcome::Now(response)) => asker.answer(response, turn.out),
            Ok(Outcome::Later) => {}
            Err(refusal) => asker.answer(asker.refuse(&refusal), turn.out),
        }
    }

    /// The closed list of what the owner serves; everything else is answered 3.
    fn serve(&mut self, turn: &mut Turn<'_>, asker: &Asker, command: &Command) -> Result<Outcome, Refusal> {
        use RequestCode as C;
        let Some(code) = RequestCode::from_i32(command.code) else { return Ok(Outcome::Now(asker.unsupported())) };
        match code {
            C::QueryAssignment => self.query_assignment(asker, command),
            C::SetMessageRequestMode => self.set_request_mode(turn, asker, command),
            C::GetAllMessageRequestMode => Ok(self.all_request_modes(asker)),
            // There is no second engine whose state could be taken back.
            C::PopRollback => Ok(Outcome::Now(asker.ok())),
            C::QueryConsumerOffset => self.query_offset(turn, asker, command),
            C::UpdateConsumerOffset => self.update_offset(asker, command),
            C::UpdateAndCreateTopic => self.update_topic(turn, asker, command),
            C::UpdateAndCreateTopicList => self.update_topics(turn, asker, command),
            C::DeleteTopicInBroker => self.delete_topic(turn, asker, command),
            C::GetAllTopicConfig => self.all_topics(asker, command),
            C::GetTopicConfig => self.topic_config(asker, command),
            C::GetSystemTopicListFromBroker => Ok(self.system_topics(asker)),
            C::UpdateBrokerConfig => self.update_settings(turn, asker, command),
            C::GetBrokerConfig => Ok(self.show_settings(asker)),
            C::GetBrokerRuntimeInfo => Ok(self.runtime_info(turn, asker)),
            C::HeartBeat => self.heartbeat(turn, asker, command),
            C::LockBatchMq => self.lock_queues(turn, asker, command),
            C::UnlockBatchMq => self.unlock_queues(asker, command),
            C::UnregisterClient => self.unregister(turn, asker, command),
            C::GetConsumerListByGroup => self.consumer_list(asker, command),
            C::CheckClientConfig => self.check_client(asker, command),
            C::UpdateAndCreateSubscriptiongroup => self.update_group(turn, asker, command),
            C::UpdateAndCreateSubscriptiongroupList => self.update_groups(turn, asker, command),
            C::GetAllSubscriptiongroupConfig => self.all_groups(asker, command),
            C::DeleteSubscriptiongroup => self.delete_group(turn, asker, command),
            C::GetSubscriptiongroupConfig => self.group_config(asker, command),
            C::UpdateAndGetGroupForbidden => self.group_forbidden(turn, asker, command),
            C::GetConsumerConnectionList => self.consumer_connections(asker, command),
            C::GetProducerConnectionList => self.producer_connections(asker, command),
            C::GetAllProducerInfo => Ok(self.all_producers(asker)),
            C::QueryTopicConsumeByWho => self.consumers_of_topic(asker, command),
            C::QueryTopicsByConsumer => self.topics_of_group(asker, command),
            C::QuerySubscriptionByConsumer => self.subscription_of_group(asker, command),
            C::GetTopicStatsInfo => self.topic_stats(turn, asker, command),
            C::GetConsumeStats => self.consume_stats(turn, asker, command),
            C::QueryConsumeTimeSpan => self.time_span(turn, asker, command),
            C::InvokeBrokerToResetOffset => self.reset_offset(turn, asker, command),
            C::GetAllDelayOffset => Ok(self.all_delay_offsets(asker)),
            C::GetAllConsumerOffset => Ok(self.all_offsets(asker)),
            C::CloneGroupOffset => self.clone_offsets(asker, command),
            C::InvokeBrokerToGetConsumerStatus => self.consumer_status(turn, asker, command),
            C::GetConsumerRunningInfo => self.running_info(turn, asker, command),
            C::ConsumeMessageDirectly => self.consume_directly(turn, asker, command),
            _ => Ok(Outcome::Now(asker.unsupported())),
        }
    }

    fn gathered(&mut self, turn: &mut Turn<'_>, then: Then, gathered: Gathered) {
        match then {
            Then::CutOffsets => self.cut_offsets(gathered),
            Then::QueryOffset(query) => query.finish(gathered, turn),
            Then::TopicStats(stats) => stats.finish(&self.options.broker_name, gathered, turn),
            Then::ConsumeStats(stats) => self.consume_stats_step(turn, stats, gathered),
            Then::TimeSpan(span) => self.time_span_step(turn, span, gathered),
            Then::Reset(reset) => self.reset_with(turn, reset, gathered),
            Then::Delete(topic) => self.delete_with_ends(turn, topic, gathered),
            Then::Forgotten(topic) => self.topic_forgotten(turn, &topic, gathered),
            Then::Status(asker) => self.status_gathered(turn, asker, gathered),
            Then::Directly(call) => self.directly_with(turn, call, gathered),
        }
    }

    /// Asks shards and goes on with what they say; at once when there is none to ask.
    fn gather(&mut self, turn: &mut Turn<'_>, asks: Vec<(ShardId, ShardAsk)>, then: Then) -> Result<(), Refusal> {
        if asks.is_empty() {
            self.gathered(turn, then, Gathered { answers: Vec::new() });
            return Ok(());
        }
        let shards: Vec<ShardId> = asks.iter().map(|(shard, _)| *shard).collect();
        let busy = |_| Refusal::new(ResponseCode::SystemBusy, "too many requests over all shards are open");
        let gather = self.gathers.start(turn.now, shards, GATHER_TIMEOUT_MS, then).map_err(busy)?;
        turn.out.extend(asks.into_iter().map(|(shard, ask)| OwnerAction::Ask { gather, shard, ask }));
        Ok(())
    }

    /// The same question to every shard.
    fn gather_all(&mut self, turn: &mut Turn<'_>, ask: &ShardAsk, then: Then) -> Result<(), Refusal> {
        let asks = (0..self.shards).map(|s| (ShardId(s), ask.clone())).collect();
        self.gather(turn, asks, then)
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }
}

/// How long a question to several shards may take, ms.
const GATHER_TIMEOUT_MS: u64 = 5_000;

#[cfg(test)]
mod tests;
