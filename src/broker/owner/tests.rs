//! The owner against a world of plain maps: files, a journal, shards, cores that acknowledge.

use super::*;
use crate::gather::QueueState;
use message::{PhysicalOffset, QueueOffset};
use proptest::prelude::*;
use remoting::json::JsonRef;
use store::Bounds;
use store::manifest::SystemQueues;

struct World {
    owner: Owner,
    now: Now,
    coming: std::collections::VecDeque<OwnerEvent>,
    cores: u16,
    shards: u16,
    files: BTreeMap<OwnerFile, Vec<u8>>,
    journal: Vec<Vec<u8>>,
    tombstones: BTreeMap<String, Vec<PhysicalOffset>>,
    queues: BTreeMap<(String, u32), (u64, u64)>,
    replies: Vec<(ConnectionId, Command)>,
    pushes: Vec<(ConnectionId, Command)>,
    producers: Vec<(u64, Option<ConnectionId>)>,
    resumes: Vec<(Ticket, Result<(), Refusal>)>,
    lock_states: Vec<(Ticket, bool)>,
    puts: Vec<(Box<OwnedRecord>, Waiter)>,
    send_backs: Vec<(SendBack, Result<(), Refusal>)>,
    snapshots: Vec<Arc<Snapshot>>,
    announced: Vec<u64>,
    ready: bool,
    /// Writes wait here while it is `Some`.
    held: Option<Vec<u64>>,
    /// Acknowledgements of snapshots are withheld.
    slow_cores: bool,
    fail_writes: bool,
}

fn conn(slot: u32) -> ConnectionId {
    ConnectionId { core: CoreId(0), slot, generation: 0 }
}

fn origin(slot: u32) -> Origin {
    Origin { conn: conn(slot), peer: ([127, 0, 0, 1], 40_000 + slot as u16).into() }
}

fn options(name_servers: &[&str]) -> Arc<BrokerOptions> {
    let base = BrokerOptions::with_address(([127, 0, 0, 1], 10911).into());
    Arc::new(BrokerOptions { name_servers: name_servers.iter().map(|s| (*s).to_owned()).collect(), ..base })
}

impl World {
    fn new(shards: u16) -> Self {
        Self::start(shards, options(&[]), BTreeMap::new(), Vec::new(), true, BTreeMap::new())
    }

    fn start(
        shards: u16,
        options: Arc<BrokerOptions>,
        files: BTreeMap<OwnerFile, Vec<u8>>,
        journal: Vec<Vec<u8>>,
        was_clean: bool,
        queues: BTreeMap<(String, u32), (u64, u64)>,
    ) -> Self {
        let now = Now { mono_us: 1_000_000, wall_ms: 1_700_000_000_000 };
        let system = SystemQueues::default();
        let placement = match files.get(&OwnerFile::Placement) {
            Some(bytes) => Placement::parse(bytes, shards, system).expect("a placement that was written"),
            None => Placement::new(shards, system),
        };
        let boot = OwnerBoot {
            options,
            cores: 2,
            shards,
            was_clean,
            topics: files.get(&OwnerFile::Topics).cloned(),
            groups: files.get(&OwnerFile::Groups).cloned(),
            offsets: files.get(&OwnerFile::ConsumerOffsets).cloned(),
            light_offsets: None,
            filters: files.get(&OwnerFile::ConsumerFilters).cloned(),
            request_modes: files.get(&OwnerFile::RequestModes).cloned(),
            journal: journal.clone(),
            placement,
        };
        let mut world = Self {
            owner: Owner::open(boot, now).expect("files that were written"),
            now,
            coming: Default::default(),
            cores: 2,
            shards,
            files,
            journal,
            tombstones: BTreeMap::new(),
            queues,
            replies: Vec::new(),
            pushes: Vec::new(),
            producers: Vec::new(),
            resumes: Vec::new(),
            lock_states: Vec::new(),
            puts: Vec::new(),
            send_backs: Vec::new(),
            snapshots: Vec::new(),
            announced: Vec::new(),
            ready: false,
            held: None,
            slow_cores: false,
            fail_writes: false,
        };
        world.turn(0);
        assert!(world.ready, "a start comes to its end");
        world
    }

    /// Starts again from what is on disk.
    fn restart(self, clean: bool) -> Self {
        let options = self.owner.options.clone();
        Self::start(self.shards, options, self.files, self.journal, clean, self.queues)
    }

    /// An event and all that follows from it.
    fn event(&mut self, event: OwnerEvent) {
        self.coming.push_back(event);
        while let Some(event) = self.coming.pop_front() {
            self.step(event);
        }
    }

    fn step(&mut self, event: OwnerEvent) {
        let mut actions = Vec::new();
        self.owner.step(self.now, event, &mut actions);
        for action in actions {
            self.act(action);
        }
    }

    /// Ends a turn some ms later.
    fn turn(&mut self, ms: u64) {
        self.now = Now { mono_us: self.now.mono_us + ms * 1000, wall_ms: self.now.wall_ms + ms as i64 };
        for _ in 0..4 {
            self.event(OwnerEvent::TurnEnd);
        }
    }

    fn act(&mut self, action: OwnerAction) {
        match action {
            OwnerAction::Reply { origin, response } => self.replies.push((origin.conn, response)),
            OwnerAction::Push { conn, command } => self.pushes.push((conn, command)),
            OwnerAction::Producer { half, conn, .. } => self.producers.push((half, conn)),
            OwnerAction::Resume { ticket, outcome } => self.resumes.push((ticket, outcome)),
            OwnerAction::Answer { to, response } => self.replies.push((to.conn, response)),
            OwnerAction::Put { record, waiter, .. } => self.puts.push((record, waiter)),
            OwnerAction::LockState { ticket, locked } => self.lock_states.push((ticket, locked)),
            OwnerAction::SendBack { job, outcome } => self.send_backs.push((job.work, outcome)),
            OwnerAction::Publish(snapshot) => {
                let version = snapshot.version;
                assert_eq!(version, self.snapshots.last().map_or(0, |s| s.version) + 1);
                self.snapshots.push(snapshot);
                if !self.slow_cores {
                    self.seen(version);
                }
            }
            OwnerAction::Ask { gather, shard, ask } => {
                let answer = self.answer(shard, ask);
                self.coming.push_back(OwnerEvent::ShardAnswer { gather, shard, answer });
            }
            OwnerAction::Persist { token, file, contents } => {
                if self.fail_writes {
                    let result = Err(std::io::Error::other("no space"));
                    return self.coming.push_back(OwnerEvent::Persisted { token, result });
                }
                self.files.insert(file, contents.encode());
                self.done(token);
            }
            OwnerAction::PersistTombstone { token, topic, ends } => {
                self.tombstones.insert(topic.to_string(), ends);
                self.done(token);
            }
            OwnerAction::Journal(entries) => {
                self.journal.extend(entries);
                self.step(OwnerEvent::Journaled(Ok(())));
            }
            OwnerAction::TopicsChanged { version, .. } => self.announced.push(version),
            OwnerAction::PopOffsets { .. } => {}
            OwnerAction::Ready => self.ready = true,
            OwnerAction::MeasureSpace => {
                self.coming.push_back(OwnerEvent::Space { total: 4 << 30, available: 1 << 30 })
            }
        }
    }

    fn done(&mut self, token: u64) {
        match &mut self.held {
            Some(held) => held.push(token),
            None => self.coming.push_back(OwnerEvent::Persisted { token, result: Ok(()) }),
        }
    }

    fn release_writes(&mut self) {
        for token in self.held.take().unwrap_or_default() {
            self.event(OwnerEvent::Persisted { token, result: Ok(()) });
        }
    }

    fn acknowledge(&mut self, version: u64) {
        self.seen(version);
        self.turn(0);
    }

    fn seen(&mut self, version: u64) {
        let seen = |core| OwnerEvent::SnapshotSeen { core: CoreId(core), version };
        self.coming.extend((0..self.cores).map(seen));
    }

    fn answer(&mut self, shard: ShardId, ask: ShardAsk) -> ShardAnswer {
        let bounds = |world: &Self, topic: &str, q: u32| world.queues.get(&(topic.to_owned(), q)).copied();
        match ask {
            ShardAsk::Queues(queues) => ShardAnswer::Queues(
                queues
                    .iter()
                    .map(|ask| {
                        let topic = self.owner.topics.get(&ask.topic).expect("an existing topic");
                        assert_eq!(topic.shard_of(ask.queue_id), shard, "asked of the shard that holds it");
                        let (min, max) = bounds(self, &ask.topic, ask.queue_id)?;
                        let bounds = Bounds { min: QueueOffset(min), max: QueueOffset(max) };
                        Some(QueueState { bounds, last_store_time_ms: max as i64 * 10 })
                    })
                    .collect(),
            ),
            ShardAsk::AllQueues => {
                let all = self
                    .queues
                    .iter()
                    .filter(|((t, q), _)| self.owner.topics.get(t).is_some_and(|topic| topic.shard_of(*q) == shard));
                let item = |((t, q), (min, max)): (&(String, u32), &(u64, u64))| {
                    let ask = crate::gather::QueueAsk { topic: t.as_str().into(), queue_id: *q };
                    (ask, Bounds { min: QueueOffset(*min), max: QueueOffset(*max) })
                };
                ShardAnswer::AllQueues(all.map(item).collect())
            }
            ShardAsk::OffsetByTime { queues, timestamp_ms, .. } => ShardAnswer::Offsets(
                queues
                    .iter()
                    .map(|q| {
                        let (min, max) = bounds(self, &q.topic, q.queue_id).unwrap_or((0, 0));
                        QueueOffset((timestamp_ms as u64 / 10).clamp(min, max))
                    })
                    .collect(),
            ),
            ShardAsk::StoreTimes(asked) => ShardAnswer::StoreTimes(
                asked
                    .iter()
                    .map(|(q, offset)| {
                        let (min, max) = bounds(self, &q.topic, q.queue_id)?;
                        (min..max).contains(&offset.0).then_some((offset.0 as i64 + 1) * 10)
                    })
                    .collect(),
            ),
            ShardAsk::DeleteTopic(topic) => {
                assert!(self.tombstones.contains_key(&*topic), "the tombstone comes first");
                self.queues.retain(|(t, _), _| **t != *topic);
                ShardAnswer::Deleted
            }
            ShardAsk::End => {
                let latest = self.snapshots.last().expect("a snapshot");
                for topic in self.owner.deletions.keys() {
                    assert!(latest.topic(topic.as_bytes()).is_none(), "no core may write to it any more");
                }
                ShardAnswer::End(PhysicalOffset(shard.base().0 + 100))
            }
            ShardAsk::Status => {
                let status =
                    store::ShardStatus { max_offset: PhysicalOffset(shard.base().0 + 100), ..Default::default() };
                let status = store::ShardStatus { min_offset: shard.base(), ..status };
                ShardAnswer::Status(Box::new(status), Box::default())
            }
            other => panic!("not asked in these tests: {other:?}"),
        }
    }

    /// Sends a request and returns its answer after the turn.
    fn ask(&mut self, slot: u32, command: Command) -> Command {
        let opaque = command.opaque;
        self.event(OwnerEvent::Request(OwnerRequest::Request { origin: origin(slot), command }));
        self.turn(0);
        let at = self.replies.iter().position(|(c, r)| *c == conn(slot) && r.opaque == opaque).expect("an answer");
        let (_, response) = self.replies.remove(at);
        assert!(!self.replies.iter().any(|(_, r)| r.opaque == opaque), "one answer");
        response
    }

    fn code(&mut self, command: Command) -> i32 {
        self.ask(1, command).code
    }

    fn create(&mut self, topic: &str, queues: u32) -> i32 {
        self.code(create(topic, queues))
    }

    fn commit(&mut self, group: &str, topic: &str, queue: u32, offset: i64) -> i32 {
        self.code(
            request(RequestCode::UpdateConsumerOffset)
                .with_field("consumerGroup", group)
                .with_field("topic", topic)
                .with_field("queueId", queue)
                .with_field("commitOffset", offset),
        )
    }

    fn query(&mut self, group: &str, topic: &str, queue: u32) -> Option<i64> {
        let response = self.ask(
            1,
            request(RequestCode::QueryConsumerOffset)
                .with_field("consumerGroup", group)
                .with_field("topic", topic)
                .with_field("queueId", queue)
                .with_field("setZeroIfNotFound", false),
        );
        (response.code == 0).then(|| response.ext.i64("offset").expect("an offset"))
    }

    fn beat(&mut self, slot: u32, group: &str, topic: &str) -> Command {
        self.ask(slot, heartbeat(&format!("client-{slot}"), group, topic))
    }
}

fn request(code: RequestCode) -> Command {
    use std::sync::atomic::{AtomicI32, Ordering};
    static NEXT: AtomicI32 = AtomicI32::new(1);
    Command::request(code, NEXT.fetch_add(1, Ordering::Relaxed))
}

fn create(topic: &str, queues: u32) -> Command {
    request(RequestCode::UpdateAndCreateTopic)
        .with_field("topic", topic)
        .with_field("defaultTopic", "TBW102")
        .with_field("readQueueNums", queues)
        .with_field("writeQueueNums", queues)
        .with_field("perm", 6)
        .with_field("topicFilterType", "SINGLE_TAG")
        .with_field("order", false)
}

fn make_group(name: &str) -> Command {
    request(RequestCode::UpdateAndCreateSubscriptiongroup)
        .with_body(format!("{{\"groupName\":\"{name}\"}}").into_bytes())
}

fn heartbeat(id: &str, group: &str, topic: &str) -> Command {
    let body = format!(
        r#"{{"clientID":"{id}","consumerDataSet":[{{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY",
        "groupName":"{group}","messageModel":"CLUSTERING","subscriptionDataSet":[{{"topic":"{topic}","subString":"A || B","subVersion":5}}]}}],
        "producerDataSet":[{{"groupName":"P"}}]}}"#
    );
    request(RequestCode::HeartBeat).with_body(body.into_bytes())
}

fn json<'a>(command: &'a Command) -> JsonRef<'a> {
    JsonRef::parse(&command.body).expect("a JSON body")
}

#[test]
fn a_topic_is_durable_and_everywhere_before_its_answer() {
    let mut w = World::new(2);
    w.slow_cores = true;
    w.held = Some(Vec::new());
    w.event(OwnerEvent::Request(OwnerRequest::Request { origin: origin(1), command: create("T", 4) }));
    w.turn(0);
    let published = w.snapshots.len();
    assert!(w.replies.is_empty(), "the file is not written");
    assert!(w.snapshots.last().unwrap().topic(b"T").is_none(), "no core knows what is not on disk");
    w.release_writes();
    w.turn(0);
    assert!(w.snapshots.len() > published && w.snapshots.last().unwrap().topic(b"T").is_some());
    assert!(w.replies.is_empty(), "no core has acknowledged");
    let version = w.snapshots.last().unwrap().version;
    w.event(OwnerEvent::SnapshotSeen { core: CoreId(0), version });
    assert!(w.replies.is_empty(), "one core has not acknowledged");
    w.event(OwnerEvent::SnapshotSeen { core: CoreId(1), version });
    assert_eq!(w.replies.pop().map(|(_, r)| r.code), Some(0));
    assert!(w.files.contains_key(&OwnerFile::Placement), "two shards: the place of its queues is on disk, too");
}

#[test]
fn changes_during_a_write_share_the_next_one() {
    let mut w = World::new(1);
    w.held = Some(Vec::new());
    for i in 0..5 {
        w.event(OwnerEvent::Request(OwnerRequest::Request { origin: origin(1), command: create(&format!("t{i}"), 1) }));
        w.event(OwnerEvent::TurnEnd);
    }
    assert_eq!(w.held.as_ref().map(Vec::len), Some(1));
    let published = w.snapshots.len();
    w.release_writes();
    w.turn(0);
    assert_eq!(w.replies.len(), 5);
    assert_eq!(w.snapshots.len() - published, 2, "one for the first write, one for the four that waited");
}

#[test]
fn a_failed_write_takes_the_change_back() {
    let mut w = World::new(1);
    w.fail_writes = true;
    let response = w.ask(1, create("T", 1));
    assert_eq!(response.code, ResponseCode::SystemError.to_i32());
    w.fail_writes = false;
    assert_eq!(w.code(request(RequestCode::GetTopicConfig).with_field("topic", "T")), 17);
    assert!(w.snapshots.last().unwrap().topic(b"T").is_none());
    assert_eq!(w.create("T", 1), 0);
    assert!(w.snapshots.last().unwrap().topic(b"T").is_some());
}

#[test]
fn the_name_servers_are_waited_for_but_not_forever() {
    let mut w = World::start(1, options(&["127.0.0.1:1"]), BTreeMap::new(), Vec::new(), true, BTreeMap::new());
    assert_eq!(w.announced, [1], "what is there at the start");
    w.event(OwnerEvent::Request(OwnerRequest::Request { origin: origin(1), command: create("T", 1) }));
    w.turn(0);
    assert_eq!((w.announced.as_slice(), w.replies.len()), ([1, 2].as_slice(), 0));
    w.event(OwnerEvent::Registered { version: 1 });
    assert!(w.replies.is_empty());
    w.event(OwnerEvent::Registered { version: 2 });
    assert_eq!(w.replies.len(), 1);
    w.event(OwnerEvent::Request(OwnerRequest::Request { origin: origin(1), command: create("U", 1) }));
    w.turn(0);
    assert_eq!(w.replies.len(), 1);
    w.turn(2_000);
    assert_eq!(w.replies.len(), 2);
}

#[test]
fn an_unchanged_heartbeat_publishes_nothing_and_is_answered_at_once() {
    let mut w = World::new(1);
    w.create("T", 1);
    assert_eq!(w.beat(2, "g", "T").code, 0);
    let snapshot = w.snapshots.last().unwrap().clone();
    let consumers = snapshot.consumers.get(b"g").expect("the group is known everywhere");
    assert_eq!(consumers.subscription(b"T").unwrap().codes, [65, 66]);
    assert!(snapshot.topic(b"%RETRY%g").is_some() && snapshot.group(b"g").is_some());
    assert!(w.files[&OwnerFile::Groups].windows(3).any(|b| b == b"\"g\""));
    let told = w.pushes.len();
    assert_eq!(told, 1, "the member itself is told to look at the group");
    assert_eq!(w.beat(2, "g", "T").code, 0);
    assert_eq!((w.snapshots.last().unwrap().version, w.pushes.len()), (snapshot.version, told));
    w.beat(3, "g", "T");
    assert_eq!(w.pushes[told..].iter().map(|(c, _)| c.slot).collect::<Vec<_>>(), [2, 3]);
    w.event(OwnerEvent::Request(OwnerRequest::ConnectionClosed(conn(2))));
    assert_eq!(w.pushes.last().map(|(c, p)| (c.slot, p.code)), Some((3, 40)));
    let list = w.ask(3, request(RequestCode::GetConsumerListByGroup).with_field("consumerGroup", "g"));
    assert_eq!(list.body, br#"{"consumerIdList":["client-3"]}"#);
}

#[test]
fn groups_with_illegal_names_are_not_made() {
    let mut w = World::new(1);
    assert_eq!(w.beat(2, "bad group", "T").code, 0);
    assert!(w.snapshots.last().unwrap().group(b"bad group").is_none());
    assert!(w.owner.clients.group("bad group").is_none());
    let ticket = Ticket { core: CoreId(1), id: 9 };
    for (group, ok) in [("bad group", false), ("fine", true)] {
        w.event(OwnerEvent::Request(OwnerRequest::EnsureGroup { ticket, group: group.into() }));
        w.turn(0);
        let (_, outcome) = w.resumes.pop().expect("an end of the wait");
        assert_eq!(outcome.map_err(|r| r.code), if ok { Ok(()) } else { Err(26) });
    }
    assert!(w.snapshots.last().unwrap().group(b"fine").is_some());
}

#[test]
fn a_deleted_topic_leaves_nothing_behind() {
    let mut w = World::new(2);
    w.create("T", 2);
    w.code(make_group("g"));
    w.queues.insert(("T".into(), 0), (0, 20));
    assert_eq!(w.commit("g", "T", 0, 20), 0);
    assert_eq!(w.code(request(RequestCode::DeleteTopicInBroker).with_field("topic", "T")), 0);
    assert_eq!(w.query("g", "T", 0), None);
    assert!(w.queues.is_empty() && w.snapshots.last().unwrap().topic(b"T").is_none());
    assert_eq!(w.tombstones["T"].len(), 2);
    let mut w = w.restart(false);
    assert_eq!(w.query("g", "T", 0), None, "the journal does not bring it back");
    assert_eq!(w.create("T", 2), 0);
    for name in ["TBW102", "", "DefaultCluster", "rmq_sys_x"] {
        assert_eq!(w.code(request(RequestCode::DeleteTopicInBroker).with_field("topic", name)), 29, "{name}");
    }
    assert_eq!(w.code(request(RequestCode::DeleteTopicInBroker).with_field("topic", "absent")), 0);
}

#[test]
fn what_wants_a_topic_that_is_being_deleted_waits() {
    let mut w = World::new(1);
    w.create("T", 1);
    w.slow_cores = true;
    let delete = request(RequestCode::DeleteTopicInBroker).with_field("topic", "T");
    w.event(OwnerEvent::Request(OwnerRequest::Request { origin: origin(1), command: delete }));
    w.turn(0);
    let ticket = Ticket { core: CoreId(1), id: 3 };
    let send = OwnerRequest::EnsureTopic {
        ticket,
        peer: ([127, 0, 0, 1], 9).into(),
        topic: "T".into(),
        default_topic: "TBW102".into(),
        default_queues: 4,
        topic_sys_flag: 0,
    };
    w.event(OwnerEvent::Request(send));
    w.turn(0);
    assert!(w.resumes.is_empty() && w.replies.is_empty());
    w.slow_cores = false;
    w.acknowledge(w.snapshots.last().unwrap().version);
    w.turn(0);
    assert_eq!(w.replies.len(), 1);
    assert_eq!(w.resumes, [(ticket, Ok(()))]);
    assert_eq!(w.snapshots.last().unwrap().topic(b"T").map(|t| t.read_queues), Some(4), "made anew by the send");
}

#[test]
fn retry_topics_are_made_for_who_waits_and_a_write_that_fails_is_told() {
    let mut w = World::new(1);
    w.code(make_group("g"));
    let group = w.snapshots.last().unwrap().group(b"g").unwrap().clone();
    let work = SendBack {
        group,
        offset: PhysicalOffset(0),
        delay_level: 0,
        max_reconsume_times: 16,
        unit_mode: false,
        any_queue: 0,
        asked: false,
    };
    let reply = ReplyTo {
        conn: conn(1),
        opaque: 1,
        form: remoting::SerializeType::Json,
        oneway: false,
        bytes: 0,
        counted: true,
    };
    let ensure = |w: &mut World, topic: &str, fail: bool| {
        let job = SendBackJob { reply, shard: ShardId(0), work: work.clone() };
        let waiter = RetryWaiter::SendBack(Box::new(job));
        let ask = OwnerRequest::EnsureRetryTopic { waiter, topic: topic.into(), queues: 1, topic_sys_flag: 0 };
        w.fail_writes = fail;
        w.event(OwnerEvent::Request(ask));
        w.turn(0);
        w.send_backs.pop().expect("an end of the wait").1.map_err(|refusal| refusal.code)
    };
    assert_eq!(ensure(&mut w, "%DLQ%g", true), Err(1));
    assert!(w.snapshots.last().unwrap().topic(b"%DLQ%g").is_none());
    for _ in 0..2 {
        assert_eq!(ensure(&mut w, "%DLQ%g", false), Ok(()));
    }
    let made = w.snapshots.last().unwrap().topic(b"%DLQ%g").unwrap().clone();
    assert_eq!((made.read_queues, made.write_queues, made.perm), (1, 1, 6));
}

#[test]
fn a_group_is_locked_until_its_last_lock_is_over() {
    let mut w = World::new(1);
    let ticket = Ticket { core: CoreId(1), id: 4 };
    let locked = |w: &mut World, seconds: u64| {
        w.turn(seconds * 1000);
        w.event(OwnerEvent::Request(OwnerRequest::QueryLock { ticket, group: "g".into() }));
        w.lock_states.pop() == Some((ticket, true))
    };
    assert!(!locked(&mut w, 0));
    let body = br#"{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"b","queueId":0,"topic":"t"}],
        "onlyThisBroker":true,"unknown":1}"#;
    let lock = request(RequestCode::LockBatchMq).with_body(body.to_vec());
    assert_eq!(w.code(lock), 0);
    assert!(locked(&mut w, 59));
    assert!(!locked(&mut w, 1));
}

#[test]
fn a_group_can_be_forbidden_to_read_a_topic() {
    let mut w = World::new(1);
    w.code(make_group("g"));
    let ask = |w: &mut World, readable: Option<bool>| {
        let request = request(RequestCode::UpdateAndGetGroupForbidden)
            .with_field("group", "g")
            .with_field("topic", "T")
            .with_optional("readable", readable);
        let answer = w.ask(1, request);
        assert_eq!((answer.code, answer.remark.as_deref()), (0, Some("")));
        let body = JsonRef::parse(&answer.body).unwrap();
        assert_eq!((body.get("group").string(), body.get("topic").string()), ("g".into(), "T".into()));
        body.get("readable").as_bool()
    };
    assert_eq!(ask(&mut w, None), Some(true));
    assert_eq!(ask(&mut w, Some(false)), Some(false));
    let mut w = w.restart(true);
    assert_eq!(ask(&mut w, None), Some(false));
    assert!(!crate::snapshot::is_readable(&w.snapshots.last().unwrap().forbidden, "g", "T"));
    assert_eq!(ask(&mut w, Some(true)), Some(true));
    assert_eq!(ask(&mut w, Some(false)), Some(false));
    assert_eq!(w.code(request(RequestCode::DeleteSubscriptiongroup).with_field("groupName", "g")), 0);
    assert_eq!(ask(&mut w, None), Some(true), "a group that is made anew starts without it");
    let bad =
        request(RequestCode::UpdateAndGetGroupForbidden).with_field("group", "bad group").with_field("topic", "T");
    assert_eq!(w.code(bad), 29);
}

#[test]
fn topics_with_an_order_configuration_become_ordered() {
    let mut w = World::new(1);
    w.create("T", 2);
    let before = w.snapshots.len();
    for _ in 0..2 {
        w.event(OwnerEvent::OrderTopics(vec!["T".into(), "absent".into()]));
        w.turn(0);
    }
    assert_eq!(w.snapshots.len(), before + 1, "once");
    assert!(w.snapshots.last().unwrap().topic(b"T").unwrap().order);
    assert!(w.snapshots.last().unwrap().topic(b"absent").is_none());
    assert!(w.restart(true).snapshots.last().unwrap().topic(b"T").unwrap().order);
}

#[test]
fn sends_make_topics_as_the_default_topic_allows() {
    let mut w = World::new(1);
    w.create("plain", 1);
    let mut send = |topic: &str, default: &str| {
        w.event(OwnerEvent::Request(OwnerRequest::EnsureTopic {
            ticket: Ticket { core: CoreId(0), id: 1 },
            peer: ([127, 0, 0, 1], 9).into(),
            topic: topic.into(),
            default_topic: default.into(),
            default_queues: 4,
            topic_sys_flag: 0,
        }));
        w.turn(0);
        w.resumes.pop().expect("an end of the wait").1.map_err(|r| r.code)
    };
    assert_eq!(send("a", "plain"), Err(17));
    assert_eq!(send("a", "absent"), Err(17));
    assert_eq!(send("a", "TBW102"), Ok(()));
    assert_eq!(send("%RETRY%newgroup", "absent"), Ok(()));
    assert_eq!(w.snapshots.last().unwrap().topic(b"%RETRY%newgroup").map(|t| t.read_queues), Some(1));
}

#[test]
fn commits_are_refused_for_what_is_not_there() {
    let mut w = World::new(1);
    w.create("T", 2);
    assert_eq!(w.commit("g", "T", 0, 1), 26);
    w.code(make_group("g"));
    assert_eq!(w.commit("g", "no", 0, 1), 17);
    assert_eq!(w.commit("g", "T", 2, 1), 29);
    assert_eq!(w.commit("g", "T", 1, -1), 29);
    assert_eq!(w.commit("g", "T", 1, 5), 0);
    assert_eq!(w.query("g", "T", 1), Some(5));
    let w = w.restart(false);
    let mut w = w;
    assert_eq!(w.query("g", "T", 1), Some(0), "cut: the queue has nothing");
}

#[test]
fn an_unknown_offset_is_zero_for_a_young_queue() {
    let mut w = World::new(2);
    w.create("T", 2);
    w.queues.insert(("T".into(), 0), (0, 9));
    w.queues.insert(("T".into(), 1), (7, 9));
    let mut ask = |queue: i32, zero: Option<bool>| {
        let command = request(RequestCode::QueryConsumerOffset)
            .with_field("consumerGroup", "g")
            .with_field("topic", "T")
            .with_field("queueId", queue)
            .with_optional("setZeroIfNotFound", zero);
        let response = w.ask(1, command);
        (response.code, response.ext.get("offset").map(str::to_owned))
    };
    assert_eq!(ask(0, None), (0, Some("0".into())));
    assert_eq!(ask(0, Some(true)), (0, Some("0".into())));
    assert_eq!(ask(0, Some(false)), (22, None));
    assert_eq!(ask(1, None), (22, None));
}

#[test]
fn a_reset_waits_for_a_pull_even_without_members() {
    let mut w = World::new(2);
    w.create("T", 2);
    w.code(make_group("g"));
    w.queues.insert(("T".into(), 0), (0, 12));
    w.queues.insert(("T".into(), 1), (0, 3));
    w.commit("g", "T", 0, 1);
    let reset = request(RequestCode::InvokeBrokerToResetOffset)
        .with_field("topic", "T")
        .with_field("group", "g")
        .with_field("timestamp", -1)
        .with_field("isForce", true);
    let response = w.ask(1, reset);
    let want = r#"{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:12,{"brokerName":"broker-a","queueId":1,"topic":"T"}:3}}"#;
    assert_eq!((response.code, String::from_utf8_lossy(&response.body).as_ref()), (0, want));
    let snapshot = w.snapshots.last().unwrap().clone();
    let pending = snapshot.pending_reset(b"T", b"g", 0).expect("a pending reset");
    assert_eq!(pending.offset, 12);
    assert_eq!(w.commit("g", "T", 0, 5), 0);
    assert_eq!(w.query("g", "T", 0), Some(12));
    let taken = OwnerRequest::ResetTaken { group: "g".into(), topic: "T".into(), queue_id: 0, id: pending.id };
    w.event(OwnerEvent::Request(taken));
    w.turn(0);
    let snapshot = w.snapshots.last().unwrap();
    assert!(snapshot.pending_reset(b"T", b"g", 0).is_none() && snapshot.pending_reset(b"T", b"g", 1).is_some());
    assert_eq!(w.commit("g", "T", 0, 5), 0);
    assert_eq!(w.query("g", "T", 0), Some(5));
}

#[test]
fn resets_at_the_clients_use_the_form_of_the_callers_language() {
    let mut w = World::new(1);
    w.create("T", 1);
    w.code(request(RequestCode::UpdateBrokerConfig).with_body(b"useServerSideResetOffset=false\n".to_vec()));
    w.queues.insert(("T".into(), 0), (0, 12));
    w.beat(2, "g", "T");
    w.commit("g", "T", 0, 4);
    w.pushes.clear();
    for (language, body) in [
        (remoting::LanguageCode::Java, r#"{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:12}}"#),
        (
            remoting::LanguageCode::Cpp,
            r#"{"offsetTable":[{"brokerName":"broker-a","offset":12,"queueId":0,"topic":"T"}]}"#,
        ),
    ] {
        let mut reset = request(RequestCode::InvokeBrokerToResetOffset)
            .with_field("topic", "T")
            .with_field("group", "g")
            .with_field("timestamp", -1)
            .with_field("isForce", true);
        reset.language = language;
        assert_eq!(w.ask(1, reset).code, 0);
        let (to, push) = w.pushes.pop().expect("the member is told");
        assert_eq!((to.slot, push.code, String::from_utf8_lossy(&push.body).as_ref()), (2, 220, body));
    }
    w.event(OwnerEvent::Request(OwnerRequest::ConnectionClosed(conn(2))));
    let reset = request(RequestCode::InvokeBrokerToResetOffset)
        .with_field("topic", "T")
        .with_field("group", "g")
        .with_field("timestamp", -1)
        .with_field("isForce", true);
    assert_eq!(w.ask(1, reset).code, 206);
}

#[test]
fn statistics_read_bounds_and_times() {
    let mut w = World::new(2);
    w.create("T", 2);
    w.code(make_group("g"));
    w.queues.insert(("T".into(), 0), (2, 10));
    w.commit("g", "T", 0, 4);
    let stats = w.ask(1, request(RequestCode::GetTopicStatsInfo).with_field("topic", "T"));
    let table = json(&stats).get("offsetTable");
    let queue = |table: JsonRef<'_>, id: i64| {
        let found = table.entries().find(|(k, _)| k.get("queueId").as_i64() == Some(id)).map(|(_, v)| v);
        String::from_utf8_lossy(found.expect("a queue").text()).into_owned()
    };
    assert_eq!(queue(table, 0), r#"{"lastUpdateTimestamp":100,"maxOffset":10,"minOffset":2}"#);
    assert_eq!(queue(table, 1), r#"{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0}"#);
    let ask = request(RequestCode::GetConsumeStats).with_field("consumerGroup", "g");
    let stats = w.ask(1, ask);
    assert_eq!(
        queue(json(&stats).get("offsetTable"), 0),
        r#"{"brokerOffset":10,"consumerOffset":4,"lastTimestamp":40,"pullOffset":4}"#
    );
    let ask = request(RequestCode::QueryConsumeTimeSpan).with_field("topic", "T").with_field("group", "g");
    let spans = w.ask(1, ask);
    let span = json(&spans).get("consumeTimeSpanSet").items().next().expect("a queue");
    let read = |name: &str| span.get(name).as_i64();
    assert_eq!([read("minTimeStamp"), read("maxTimeStamp"), read("consumeTimeStamp")], [Some(30), Some(100), Some(40)]);
    let info = w.ask(1, request(RequestCode::GetBrokerRuntimeInfo));
    let table = json(&info).get("table");
    assert_eq!(table.get("commitLogMaxOffset").as_i64(), Some(200), "the sum over the shards");
    assert_eq!(table.get("commitLogDirCapacity").string(), "Total : 4.0 GiB, Free : 1.0 GiB.");
}

#[test]
fn settings_change_all_or_none() {
    let mut w = World::new(1);
    let set = |text: &str| request(RequestCode::UpdateBrokerConfig).with_body(text.as_bytes().to_vec());
    assert_eq!(w.code(set("maxMessageSize=100\nstorePathRootDir=/x\n")), 16);
    assert_eq!(w.code(set("maxMessageSize=many\n")), 16);
    assert_eq!(w.owner.settings.max_message_size, 4 << 20);
    assert_eq!(w.code(set("# a comment\nmaxMessageSize=100\nbrokerPermission=4\n")), 0);
    let snapshot = w.snapshots.last().unwrap();
    assert_eq!((snapshot.settings.max_message_size, snapshot.settings.broker_permission), (100, 4));
    assert_eq!(w.announced.len(), 2, "the name servers are told of the permission");
    let shown = w.ask(1, request(RequestCode::GetBrokerConfig));
    let text = String::from_utf8(shown.body).unwrap();
    assert!(text.lines().any(|l| l == "maxMessageSize=100") && text.lines().any(|l| l == "brokerName=broker-a"));
    assert_eq!(w.code(set("brokerName=broker-a\n")), 0, "the value that it has");
}

#[test]
fn requests_to_clients_come_back() {
    let mut w = World::new(1);
    w.create("T", 1);
    w.beat(2, "g", "T");
    w.pushes.clear();
    let ask = request(RequestCode::GetConsumerRunningInfo)
        .with_field("consumerGroup", "g")
        .with_field("clientId", "client-2")
        .with_field("jstackEnable", true);
    let opaque = ask.opaque;
    w.event(OwnerEvent::Request(OwnerRequest::Request { origin: origin(1), command: ask.clone() }));
    let (to, call) = w.pushes.pop().expect("the client is asked");
    assert_eq!((to.slot, call.code, call.ext.get("jstackEnable")), (2, 307, Some("true")));
    let command = Command::response(0, call.opaque, call.serialize_type).with_body(b"{}".to_vec());
    w.event(OwnerEvent::Request(OwnerRequest::ClientReply { conn: conn(1), command: command.clone() }));
    assert!(w.replies.is_empty(), "another connection cannot answer");
    w.event(OwnerEvent::Request(OwnerRequest::ClientReply { conn: conn(2), command }));
    let (_, answer) = w.replies.pop().expect("the answer is passed back");
    assert_eq!((answer.code, answer.opaque, answer.body.as_slice()), (0, opaque, b"{}".as_slice()));
    w.event(OwnerEvent::Request(OwnerRequest::Request { origin: origin(1), command: ask }));
    w.turn(11_000);
    assert_eq!(w.replies.pop().map(|(_, r)| r.code), Some(207));
    let status =
        request(RequestCode::InvokeBrokerToGetConsumerStatus).with_field("topic", "T").with_field("group", "g");
    w.pushes.clear();
    w.event(OwnerEvent::Request(OwnerRequest::Request { origin: origin(1), command: status }));
    let (_, call) = w.pushes.pop().expect("the client is asked");
    let table = br#"{"messageQueueTable":{{"brokerName":"b","queueId":0,"topic":"T"}:4}}"#;
    let command = Command::response(0, call.opaque, call.serialize_type).with_body(table.to_vec());
    w.event(OwnerEvent::Request(OwnerRequest::ClientReply { conn: conn(2), command }));
    let (_, answer) = w.replies.pop().expect("the table");
    let want = r#"{"consumerTable":{"client-2":{{"brokerName":"b","queueId":0,"topic":"T"}:4}}}"#;
    assert_eq!(String::from_utf8_lossy(&answer.body), want);
}

#[test]
fn oneway_requests_are_done_without_an_answer() {
    let mut w = World::new(1);
    w.create("T", 1);
    w.code(make_group("g"));
    let commit = request(RequestCode::UpdateConsumerOffset)
        .with_field("consumerGroup", "g")
        .with_field("topic", "T")
        .with_field("queueId", 0)
        .with_field("commitOffset", 7)
        .oneway();
    w.event(OwnerEvent::Request(OwnerRequest::Request { origin: origin(1), command: commit }));
    w.turn(0);
    assert!(w.replies.is_empty());
    assert_eq!(w.query("g", "T", 0), Some(7));
}

#[test]
fn every_code_without_fields_gets_one_answer() {
    let mut w = World::new(1);
    for code in RequestCode::ALL {
        for body in [b"".as_slice(), b"null", b"{}", b"[", b"\xFF\xFF"] {
            w.ask(1, Command { body: body.to_vec(), ..request(*code) });
        }
    }
    let unknown = w.ask(1, Command { code: 29_999, ..request(RequestCode::HeartBeat) });
    assert_eq!((unknown.code, unknown.remark.as_deref()), (3, Some(" request type 29999 not supported")));
}

#[derive(Clone, Debug)]
enum Op {
    Topic(u8, u32),
    Delete(u8),
    Group(u8),
    DropGroup(u8),
    Commit(u8, u8, u32, i64),
    Reset(u8, u8),
    Wait,
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0u8..3, 1u32..4).prop_map(|(t, q)| Op::Topic(t, q)),
        1 => (0u8..3).prop_map(Op::Delete),
        2 => (0u8..3).prop_map(Op::Group),
        1 => (0u8..3).prop_map(Op::DropGroup),
        6 => (0u8..3, 0u8..3, 0u32..3, 0i64..50).prop_map(|(g, t, q, o)| Op::Commit(g, t, q, o)),
        1 => (0u8..3, 0u8..3).prop_map(|(g, t)| Op::Reset(g, t)),
        1 => Just(Op::Wait),
        1 => Just(Op::Restart),
    ]
}

#[test]
fn any_live_producer_of_a_group_is_found_in_turn() {
    let mut w = World::new(1);
    let find = |w: &mut World, group: &str| {
        w.event(OwnerEvent::Request(OwnerRequest::FindProducer {
            shard: ShardId(0),
            half: 7,
            group: group.to_owned(),
        }));
        let (half, conn) = w.producers.pop().expect("an answer");
        assert_eq!(half, 7);
        conn.map(|conn| conn.slot)
    };
    assert_eq!(find(&mut w, "P"), None);
    for slot in [1, 2] {
        let beat = format!(r#"{{"clientID":"p{slot}","consumerDataSet":[],"producerDataSet":[{{"groupName":"P"}}]}}"#);
        let command = Command::request(RequestCode::HeartBeat, 0).with_body(beat.into_bytes());
        w.event(OwnerEvent::Request(OwnerRequest::Request { origin: origin(slot), command }));
    }
    let mut found: Vec<Option<u32>> = (0..4).map(|_| find(&mut w, "P")).collect();
    assert_ne!(found[0], found[1]);
    found.sort();
    assert_eq!((found, find(&mut w, "other")), (vec![Some(1), Some(1), Some(2), Some(2)], None));
    w.event(OwnerEvent::Request(OwnerRequest::ConnectionClosed(conn(1))));
    assert_eq!([find(&mut w, "P"), find(&mut w, "P")], [Some(2), Some(2)]);
}

#[test]
fn a_topic_of_the_brokers_own_is_made_once_and_stays_as_it_is() {
    let mut w = World::new(1);
    for queues in [1, 4] {
        let topic = "TRANS_CHECK_MAX_TIME_TOPIC";
        w.event(OwnerEvent::Request(OwnerRequest::EnsureSystemTopic { topic, queues }));
        w.turn(10);
        let known = w.snapshots.last().unwrap().topic(topic.as_bytes()).expect("it is published").clone();
        assert_eq!((known.read_queues, known.write_queues, known.perm), (1, 1, 6));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    /// Topics, groups and offsets are what a simple model says, also after restarts from the files and the journal.
    #[test]
    fn the_owner_is_a_map_that_survives_restarts(ops in proptest::collection::vec(op(), 0..40), shards in 1u16..3) {
        let mut w = World::new(shards);
        let mut topics = BTreeMap::<String, u32>::new();
        let mut groups = std::collections::BTreeSet::<String>::new();
        let mut offsets = BTreeMap::<(String, String, u32), i64>::new();
        // Queues that a topic ever had and offsets committed for them are bounded by what the queues hold: 100 messages each.
        for op in ops {
            match op {
                Op::Topic(t, q) => {
                    let name = format!("t{t}");
                    prop_assert_eq!(w.create(&name, q), 0);
                    for id in 0..q {
                        w.queues.entry((name.clone(), id)).or_insert((0, 100));
                    }
                    topics.insert(name, q);
                }
                Op::Delete(t) => {
                    let name = format!("t{t}");
                    let delete = request(RequestCode::DeleteTopicInBroker).with_field("topic", &name);
                    prop_assert_eq!(w.code(delete), 0);
                    topics.remove(&name);
                    offsets.retain(|(_, topic, _), _| *topic != name);
                }
                Op::Group(g) => {
                    prop_assert_eq!(w.code(make_group(&format!("g{g}"))), 0);
                    groups.insert(format!("g{g}"));
                }
                Op::DropGroup(g) => {
                    let name = format!("g{g}");
                    let drop = request(RequestCode::DeleteSubscriptiongroup)
                        .with_field("groupName", &name)
                        .with_field("cleanOffset", true);
                    prop_assert_eq!(w.code(drop), 0);
                    groups.remove(&name);
                    offsets.retain(|(group, _, _), _| *group != name);
                }
                Op::Commit(g, t, q, o) => {
                    let (group, topic) = (format!("g{g}"), format!("t{t}"));
                    let pending = w.snapshots.last().unwrap().pending_reset(topic.as_bytes(), group.as_bytes(), q).is_some();
                    let code = w.commit(&group, &topic, q, o);
                    let key = (group.clone(), topic.clone(), q);
                    let want = match topics.get(&topic) {
                        _ if !groups.contains(&group) => 26,
                        None => 17,
                        Some(queues) if q >= *queues && !offsets.contains_key(&key) => 29,
                        Some(_) => 0,
                    };
                    prop_assert_eq!(code, want);
                    if code == 0 && !pending {
                        offsets.insert(key, o);
                    }
                }
                Op::Reset(g, t) => {
                    let (group, topic) = (format!("g{g}"), format!("t{t}"));
                    let reset = request(RequestCode::InvokeBrokerToResetOffset)
                        .with_field("topic", &topic)
                        .with_field("group", &group)
                        .with_field("timestamp", -1);
                    let code = w.code(reset);
                    let known = topics.get(&topic).filter(|_| groups.contains(&group));
                    prop_assert_eq!(code == 0, known.is_some());
                    for q in 0..known.copied().unwrap_or(0) {
                        offsets.insert((group.clone(), topic.clone(), q), 100);
                    }
                }
                Op::Wait => w.turn(6_000),
                Op::Restart => w = w.restart(false),
            }
            for g in 0..3 {
                for t in 0..3 {
                    for q in 0..3 {
                        let (group, topic) = (format!("g{g}"), format!("t{t}"));
                        let got = w.query(&group, &topic, q);
                        prop_assert_eq!(got, offsets.get(&(group, topic, q)).copied());
                    }
                }
            }
            let snapshot = w.snapshots.last().unwrap();
            for t in 0..3 {
                let name = format!("t{t}");
                prop_assert_eq!(snapshot.topic(name.as_bytes()).map(|t| t.write_queues), topics.get(&name).copied());
                prop_assert_eq!(snapshot.group(format!("g{t}").as_bytes()).is_some(), groups.contains(&format!("g{t}")));
            }
        }
    }
}

#[test]
fn a_filter_is_checked_before_a_client_starts() {
    let mut w = World::new(1);
    let check = |kind: &str, text: &str| {
        let body = format!(
            r#"{{"clientId":"c","group":"g","subscriptionData":{{"topic":"t","subString":"{text}","expressionType":"{kind}"}}}}"#
        );
        request(RequestCode::CheckClientConfig).with_body(body.into_bytes())
    };
    assert_eq!(w.code(check("TAG", "A || B")), 0);
    assert_eq!(w.code(check("SQL92", "a = 1")), 1, "not allowed");
    let allow = request(RequestCode::UpdateBrokerConfig).with_body(b"enablePropertyFilter=true".to_vec());
    assert_eq!(w.code(allow), 0);
    assert_eq!(w.code(check("", "A")), 0);
    assert_eq!(w.code(check("SQL92", "a = 1")), 0);
    for (kind, text, cause) in [
        ("SQL92", "i > AND (", "found AND at character 5"),
        ("SQL92", "", "the expression is empty"),
        ("XPATH", "a", "the expression type XPATH is not known"),
    ] {
        let answer = w.ask(1, check(kind, text));
        assert_eq!(answer.code, 23);
        assert!(answer.remark.is_some_and(|remark| remark.ends_with(cause)));
    }
}
