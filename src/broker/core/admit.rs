//! A frame's way to whoever carries it out: scan, check, route.
//!
//! Role: the connection's side of every request. Invariants: an unknown code is answered 3 at once; a oneway request is never
//! answered; a request that needs metadata which is not here waits alone, with its connection held, so that order is kept.

use super::retry::Retry;
use super::{BrokerCore, GATHER_TIMEOUT_MS, HotQuestion, OWNER_REQUEST_BYTES, reply_to, shutting_down};
use crate::crossing::{CoreMessage, Forwarded, HOT_GATHER, OWNER_CORE, ReplyTo, Work};
use crate::gather::ShardAsk;
use crate::owner::{Origin, OwnerRequest, Refusal};
use crate::processor::send_back::RetrySend;
use crate::processor::{delay, end_transaction, half, pull, query, queue, recall, send};
use crate::request::{Target, target};
use crate::response;
use crate::router::core_of;
use crate::services::ServiceRequest;
use crate::services::transaction::queue_of;
use crate::work::{QueueQuestion, SendBytes, SendNumbers};
use message::properties::{PropertiesSource, PropertyList, SendStamp, name};
use message::{names, sys_flag};
use reactor::{ConnectionId, Context};
use remoting::scan::{self, Fields, ScannedHeader, scan};
use remoting::{Command, RequestCode, ResponseCode};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use store::ShardId;

/// Topic and queue that take a message which waits, and the handle to recall it by; empty for none.
type Parked = (&'static [u8], u32, String);

/// Memory for the numbers that are put into the properties of a message that waits.
#[derive(Default)]
struct ParkTexts {
    delay: delay::DelayTexts,
    half: itoa::Buffer,
}

impl BrokerCore {
    /// Carries a frame out, or hands it on. `asked`: the owner was asked for the metadata that this frame needs.
    pub(super) fn run_frame(&mut self, cx: &mut Context<CoreMessage>, conn: ConnectionId, frame: &[u8], asked: bool) {
        let Some(connection) = self.connections.get(conn) else { return };
        let (peer, listener) = (connection.peer, connection.listener);
        let header = match scan(frame) {
            Ok(header) => header,
            Err(error) => {
                tracing::debug!(%peer, %error, "closing a connection over a frame");
                self.counters.malformed += 1;
                return cx.close(conn);
            }
        };
        self.counters.requests += 1;
        if header.is_response() {
            return self.client_reply(cx, conn, frame);
        }
        let to = reply_to(conn, &header);
        if self.stopping_since_us.is_some() {
            let (code, remark) = shutting_down();
            return self.refuse(cx, &to, code, remark);
        }
        let Some(code) = RequestCode::from_i32(header.code) else { return self.not_served(cx, &to, header.code) };
        match (target(code, listener), header.fields) {
            (Target::NotServed, _) => self.not_served(cx, &to, header.code),
            (_, Fields::Invalid(error)) => {
                self.refuse(cx, &to, ResponseCode::SystemError.to_i32(), &error.to_string());
            }
            (Target::Send, Fields::Send(fields)) => self.send(cx, to, peer, frame, &header, &fields, asked, None),
            (Target::Pull, Fields::Pull(fields)) => self.pull(cx, to, peer, frame, &header, &fields, asked),
            (Target::Pop, Fields::Pop(fields)) => self.pop(cx, to, peer, frame, &fields, asked),
            (Target::Send | Target::Pull, _) => {
                unreachable!("the scanner gives the fields of the hot codes")
            }
            (Target::Queue, _) => self.queue_question(cx, to, code, frame),
            (Target::Record, _) => self.record(cx, to, frame),
            (Target::Transaction, Fields::End(fields)) => {
                let admission = end_transaction::admit_end(&fields, frame, self.shards);
                self.transaction(cx, to, admission, frame.len());
            }
            (Target::Transaction, _) => self.resume_check(cx, to, frame),
            (Target::QueryByKey, _) => self.query_by_key(cx, to, frame),
            (Target::Recall, _) => self.recall(cx, to, peer, frame),
            (Target::SendBack, _) => self.send_back(cx, to, frame, asked),
            (Target::Reply, _) => self.reply_message(cx, to, peer, frame, asked),
            (Target::Pop, _) => self.pop_look(cx, to, peer, code, frame, asked),
            (Target::PopAck, _) if code == RequestCode::BatchAckMessage => {
                self.pop_batch_ack(cx, to, header.body(frame))
            }
            (Target::PopAck, _) => self.pop_ack(cx, to, peer, code, frame),
            (Target::Owner, _) => self.hand_to_owner(cx, to, peer, frame),
        }
    }

    fn not_served(&mut self, cx: &mut Context<CoreMessage>, to: &ReplyTo, code: i32) {
        self.counters.not_served += 1;
        let remark = format!(" request type {code} not supported");
        self.refuse(cx, to, ResponseCode::RequestCodeNotSupported.to_i32(), &remark);
    }

    fn client_reply(&mut self, cx: &mut Context<CoreMessage>, conn: ConnectionId, frame: &[u8]) {
        match Command::decode(frame) {
            Ok(command) => self.lanes.owner(OwnerRequest::ClientReply { conn, command }),
            Err(_) => cx.close(conn),
        }
    }

    /// The request as a whole; the connection is closed when it makes no sense after all.
    pub(super) fn decode(
        &mut self,
        cx: &mut Context<CoreMessage>,
        conn: ConnectionId,
        frame: &[u8],
    ) -> Option<Command> {
        let decoded = Command::decode(frame);
        if decoded.is_err() {
            self.counters.malformed += 1;
            cx.close(conn);
        }
        decoded.ok()
    }

    fn hand_to_owner(&mut self, cx: &mut Context<CoreMessage>, mut to: ReplyTo, peer: SocketAddr, frame: &[u8]) {
        let Some(command) = self.decode(cx, to.conn, frame) else { return };
        if !to.oneway {
            self.begin(cx, &mut to, OWNER_REQUEST_BYTES);
        }
        self.lanes.owner(OwnerRequest::Request { origin: Origin { conn: to.conn, peer }, command });
        self.check_backlog(cx, to.conn, OWNER_CORE);
    }

    #[expect(clippy::too_many_arguments, reason = "a frame with everything that is known of it")]
    pub(super) fn send(
        &mut self,
        cx: &mut Context<CoreMessage>,
        to: ReplyTo,
        peer: SocketAddr,
        frame: &[u8],
        header: &ScannedHeader,
        fields: &scan::SendHeader,
        asked: bool,
        locked: Option<bool>,
    ) {
        let (topic, default_topic) = (fields.topic.text(frame), fields.default_topic.text(frame));
        let request = send::SendHeader {
            topic: &topic,
            default_topic: &default_topic,
            default_topic_queues: fields.default_topic_queue_nums,
            queue_id: fields.queue_id,
            sys_flag: fields.sys_flag,
            born_timestamp_ms: fields.born_timestamp_ms,
            flag: fields.flag,
            properties: fields.properties.in_frame(frame),
            reconsume_times: fields.reconsume_times,
            unit_mode: fields.unit_mode,
            batch: fields.batch || header.code == RequestCode::SendBatchMessage.to_i32(),
        };
        let body = header.body(frame);
        let ip = self.options.ip();
        match send::admit(&request, body.len(), &self.snapshot, peer, ip, self.any_queue, asked) {
            send::Admission::Append(place) => {
                if request.queue_id < 0 {
                    self.any_queue = self.any_queue.wrapping_add(1);
                }
                let appended = if names::is_retry_topic(request.topic) {
                    let retry = RetrySend {
                        reconsume_times: request.reconsume_times,
                        max_reconsume_times: fields.max_reconsume_times,
                        version: header.version,
                    };
                    match self.retry_send(cx, to.conn, frame, &request, retry, locked) {
                        Retry::Append => self.append(cx, to, peer, &request, body, place),
                        Retry::DeadLetter(topic, place) => {
                            let request = send::SendHeader { topic: topic.as_bytes(), ..request };
                            self.append(cx, to, peer, &request, body, place)
                        }
                        Retry::Waits => Ok(()),
                    }
                } else {
                    self.append(cx, to, peer, &request, body, place)
                };
                if let Err(refusal) = appended {
                    self.refuse(cx, &to, refusal.code, &refusal.remark);
                }
            }
            send::Admission::NeedTopic => {
                let ticket = self.connections.wait(to.conn, frame);
                cx.hold(to.conn);
                self.lanes.owner(OwnerRequest::EnsureTopic {
                    ticket,
                    peer,
                    topic: String::from_utf8_lossy(&topic).into_owned(),
                    default_topic: String::from_utf8_lossy(&default_topic).into_owned(),
                    default_queues: request.default_topic_queues,
                    topic_sys_flag: send::topic_sys_flag(&request),
                });
            }
            send::Admission::Refuse(refusal) => self.refuse(cx, &to, refusal.code, &refusal.remark),
        }
    }

    fn append(
        &mut self,
        cx: &mut Context<CoreMessage>,
        mut to: ReplyTo,
        peer: SocketAddr,
        request: &send::SendHeader<'_>,
        body: &[u8],
        place: send::Place,
    ) -> Result<(), Refusal> {
        let made;
        let mut plain_text = Vec::new();
        let mut park_texts = ParkTexts::default();
        let texts = Rc::clone(&self.texts);
        let mut list = PropertyList::default();
        request.properties.read_properties(&mut list, &mut plain_text);
        let asks = send::check_properties(request, self.snapshot.light_queues, &list)?;
        if place.dead_letter {
            list.put(name::DELAY, b"-1");
        }
        let (mut topic, mut queue_id, mut recall_handle) = (request.topic, place.queue_id, String::new());
        let (properties, unique_id, wait) = if request.batch {
            // Members are stored with their own properties only.
            (PropertiesSource::Text(&[]), list.get(name::UNIQ_KEY).unwrap_or_default(), list.get(name::WAIT))
        } else {
            let sent_id = list.get(name::UNIQ_KEY);
            let unique_id = match sent_id {
                Some(id) => id,
                None => {
                    made = self.unique_ids.next_id(cx.now().wall_ms);
                    made.as_bytes()
                }
            };
            let stamp =
                SendStamp { region: &texts.region, trace_on: self.snapshot.settings.trace_on, cluster: &texts.cluster };
            list.stamp(&stamp, sent_id.is_none().then_some(unique_id));
            if self.snapshot.light_queues {
                send::check_light(list.get(name::INNER_MULTI_DISPATCH))?;
            }
            if asks.half || asks.delay {
                let target = delay::Target { topic, queue_id, shard: place.shard };
                let parked =
                    self.park(&mut list, asks, request, target, unique_id, cx.now().wall_ms, &mut park_texts)?;
                (topic, queue_id, recall_handle) = parked.unwrap_or((topic, queue_id, recall_handle));
            }
            send::check_length(&list)?;
            (PropertiesSource::List(list.view()), unique_id, list.get(name::WAIT))
        };
        let multi_tags = if place.multi_tag { sys_flag::MULTI_TAGS } else { 0 };
        let numbers = SendNumbers {
            queue_id,
            answered_queue_id: place.queue_id,
            flag: request.flag,
            sys_flag: sys_flag::with_transaction(request.sys_flag, 0) | multi_tags,
            born_timestamp_ms: request.born_timestamp_ms,
            born_host: peer,
            reconsume_times: request.reconsume_times,
            batch: request.batch,
            wait: send::waits(wait),
        };
        let bytes = SendBytes { topic, properties, body, unique_id, recall_handle: recall_handle.as_bytes() };
        let shard = place.shard;
        let core = core_of(shard, self.cores);
        if core == self.core {
            self.begin(cx, &mut to, 0);
            let (host, mut answers) = self.parts(cx);
            host.send(&mut answers, to, shard, &numbers, bytes);
        } else {
            self.begin(cx, &mut to, bytes.len());
            self.lanes.requests(core).send(to, shard, numbers, bytes);
            self.check_backlog(cx, to.conn, core);
        }
        Ok(())
    }

    /// Where a message is stored that is not for its queue yet; its properties say for which. `None`: it does not wait.
    #[expect(clippy::too_many_arguments, reason = "everything that decides where a message waits")]
    fn park<'a>(
        &self,
        list: &mut PropertyList<'a>,
        asks: send::Asks,
        request: &send::SendHeader<'a>,
        target: delay::Target<'a>,
        unique_id: &'a [u8],
        now_ms: i64,
        texts: &'a mut ParkTexts,
    ) -> Result<Option<Parked>, Refusal> {
        if self.snapshot.topic(target.topic).is_none() {
            let remark = "the message is illegal: a light queue takes no delayed or half messages";
            return Err(Refusal { code: ResponseCode::MessageIllegal.to_i32(), remark: remark.into() });
        }
        if asks.half {
            half::check(&request.properties.text(), asks, target, &self.snapshot, self.options.ip(), now_ms)?;
            half::park(list, target, unique_id, &mut texts.half)?;
            let queue_id = queue_of(&self.snapshot, names::HALF_TOPIC, target.shard);
            return Ok(Some((names::HALF_TOPIC, queue_id, String::new())));
        }
        let waiting = delay::redirect(list, target, &self.snapshot.delays, now_ms, &mut texts.delay)?;
        Ok(waiting.map(|waiting| {
            let handle = recall::handle_of(&waiting, target.topic, &self.options.broker_name, unique_id);
            (waiting.topic, waiting.queue_id, handle)
        }))
    }

    #[expect(clippy::too_many_arguments, reason = "a frame with everything that is known of it")]
    fn pull(
        &mut self,
        cx: &mut Context<CoreMessage>,
        mut to: ReplyTo,
        peer: SocketAddr,
        frame: &[u8],
        header: &ScannedHeader,
        fields: &scan::PullHeader,
        asked: bool,
    ) {
        let (group, topic) = (fields.group.text(frame), fields.topic.text(frame));
        let (subscription, expression_type) = (fields.subscription.text(frame), fields.expression_type.text(frame));
        let request = pull::PullHeader {
            group: &group,
            topic: &topic,
            queue_id: fields.queue_id,
            queue_offset: fields.queue_offset,
            max_msg_nums: fields.max_msg_nums,
            sys_flag: fields.sys_flag,
            commit_offset: fields.commit_offset,
            suspend_timeout_ms: fields.suspend_timeout_ms,
            subscription: fields.subscription.is_present().then_some(&*subscription),
            sub_version: fields.sub_version,
            expression_type: fields.expression_type.is_present().then_some(&*expression_type),
            lite: header.code == RequestCode::LitePullMessage.to_i32(),
        };
        match pull::admit(&request, &self.snapshot, peer, self.options.ip(), asked, &mut self.compiled) {
            pull::Admission::Read(work) => {
                if pull::commits(&request) {
                    self.lanes.owner(OwnerRequest::CommitOffset {
                        group: work.group.name.to_string(),
                        topic: work.topic.name.to_string(),
                        queue_id: work.queue_id,
                        offset: request.commit_offset,
                        peer,
                    });
                }
                let shard = work.topic.shard_of(work.queue_id);
                let core = core_of(shard, self.cores);
                self.begin(cx, &mut to, 0);
                if core == self.core {
                    let (host, mut answers) = self.parts(cx);
                    host.pull(&mut answers, to, work);
                } else {
                    let work = Work::Pull(Box::new(work));
                    self.lanes.requests(core).entries.push(Forwarded { reply: to, shard, work });
                    self.check_backlog(cx, to.conn, core);
                }
            }
            pull::Admission::NeedGroup => {
                let ticket = self.connections.wait(to.conn, frame);
                cx.hold(to.conn);
                let group = String::from_utf8_lossy(&group).into_owned();
                self.lanes.owner(OwnerRequest::EnsureGroup { ticket, group });
            }
            pull::Admission::Refuse(refusal, forbidden) => {
                self.counters.refused += 1;
                response::pull_refusal(&mut self.answers(cx), &to, &refusal, forbidden);
            }
        }
    }

    fn queue_question(&mut self, cx: &mut Context<CoreMessage>, to: ReplyTo, code: RequestCode, frame: &[u8]) {
        let Some(command) = self.decode(cx, to.conn, frame) else { return };
        let admission = queue::admit(code, &command, &self.snapshot);
        self.ask(cx, to, admission);
    }

    fn record(&mut self, cx: &mut Context<CoreMessage>, to: ReplyTo, frame: &[u8]) {
        let Some(command) = self.decode(cx, to.conn, frame) else { return };
        let admission = queue::admit_record(&command, self.shards);
        self.ask(cx, to, admission);
    }

    fn ask(&mut self, cx: &mut Context<CoreMessage>, to: ReplyTo, admission: queue::Admission) {
        match admission {
            queue::Admission::Ask(shard, question) => self.ask_shard(cx, to, shard, question),
            queue::Admission::NoQueue(question) => {
                response::of_question(&mut self.answers(cx), &to, question, queue::of_nothing(question));
            }
            queue::Admission::Refuse(refusal) => self.refuse(cx, &to, refusal.code, &refusal.remark),
        }
    }

    fn ask_shard(&mut self, cx: &mut Context<CoreMessage>, mut to: ReplyTo, shard: ShardId, question: QueueQuestion) {
        let core = core_of(shard, self.cores);
        self.begin(cx, &mut to, 0);
        if core == self.core {
            let (host, mut answers) = self.parts(cx);
            host.ask(&mut answers, to, shard, question);
        } else {
            let work = Work::Ask(Box::new(question));
            self.lanes.requests(core).entries.push(Forwarded { reply: to, shard, work });
            self.check_backlog(cx, to.conn, core);
        }
    }

    fn resume_check(&mut self, cx: &mut Context<CoreMessage>, to: ReplyTo, frame: &[u8]) {
        let Some(command) = self.decode(cx, to.conn, frame) else { return };
        let admission = end_transaction::admit_resume(&command, self.shards);
        self.transaction(cx, to, admission, frame.len());
    }

    fn transaction(
        &mut self,
        cx: &mut Context<CoreMessage>,
        to: ReplyTo,
        admission: end_transaction::Admission,
        bytes: usize,
    ) {
        match admission {
            end_transaction::Admission::Ask(shard, request) => {
                self.ask_service(cx, to, shard, ServiceRequest::Transaction(request), bytes);
            }
            end_transaction::Admission::Nothing => {}
            end_transaction::Admission::Refuse(refusal) => self.refuse(cx, &to, refusal.code, &refusal.remark),
        }
    }

    /// Hands a request to a service of a shard; `bytes` is what it keeps in memory on its way.
    pub(super) fn ask_service(
        &mut self,
        cx: &mut Context<CoreMessage>,
        mut to: ReplyTo,
        shard: ShardId,
        request: ServiceRequest,
        bytes: usize,
    ) {
        let core = core_of(shard, self.cores);
        if core == self.core {
            self.begin(cx, &mut to, 0);
            let (host, mut answers) = self.parts(cx);
            host.service(&mut answers, to, shard, request);
        } else {
            self.begin(cx, &mut to, bytes);
            let work = Work::Service(Box::new(request));
            self.lanes.requests(core).entries.push(Forwarded { reply: to, shard, work });
            self.check_backlog(cx, to.conn, core);
        }
    }

    fn query_by_key(&mut self, cx: &mut Context<CoreMessage>, mut to: ReplyTo, frame: &[u8]) {
        let Some(command) = self.decode(cx, to.conn, frame) else { return };
        let (ask, max) = match query::parse(&command, self.snapshot.settings.query_max) {
            Ok(parsed) => parsed,
            Err(refusal) => return self.refuse(cx, &to, refusal.code, &refusal.remark),
        };
        self.begin(cx, &mut to, 0);
        let shards = (0..self.shards).map(ShardId);
        match self.queries.start(cx.now(), shards.clone(), GATHER_TIMEOUT_MS, HotQuestion::Key { to, max }) {
            Ok(id) => shards.for_each(|shard| self.ask_for_gather(id | HOT_GATHER, shard, ask.clone())),
            Err(_) => {
                let remark = "too many queries by key are under way";
                self.refuse(cx, &to, ResponseCode::SystemBusy.to_i32(), remark);
            }
        }
    }

    fn recall(&mut self, cx: &mut Context<CoreMessage>, mut to: ReplyTo, peer: SocketAddr, frame: &[u8]) {
        let Some(command) = self.decode(cx, to.conn, frame) else { return };
        let broker = &self.options.broker_name;
        let (topic, ask) = match recall::admit(&command, &self.snapshot, broker, peer, cx.now().wall_ms) {
            Ok(admitted) => admitted,
            Err(refusal) => return self.refuse(cx, &to, refusal.code, &refusal.remark),
        };
        self.begin(cx, &mut to, 0);
        // The handle does not say in which of them it waits.
        let (shards, ask) = (topic.shards(), Arc::new(ask));
        let question = HotQuestion::Recall { to, ask: ask.clone() };
        match self.queries.start(cx.now(), shards.iter().copied(), GATHER_TIMEOUT_MS, question) {
            Ok(id) => {
                let send = |shard| self.ask_for_gather(id | HOT_GATHER, shard, ShardAsk::Recall(ask.clone()));
                shards.into_iter().for_each(send);
            }
            Err(_) => {
                let remark = "too many recalls are under way";
                self.refuse(cx, &to, ResponseCode::SystemBusy.to_i32(), remark);
            }
        }
    }

    fn ask_for_gather(&mut self, gather: u64, shard: ShardId, ask: ShardAsk) {
        let message = CoreMessage::ShardAsk { from: self.core, gather, shard, ask };
        self.lanes.post(core_of(shard, self.cores), message);
    }
}
