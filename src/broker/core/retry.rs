//! Messages that consumers could not use, at their connection's core: send-backs (36), and retries that a client sends itself.
//!
//! Invariants: what a send-back or a retry needs of the owner (group, topic, the state of the group's queue locks) is asked for
//! one after the other while the connection is held, so that order is kept. The rules stand in `processor::send_back`.

use super::BrokerCore;
use crate::crossing::{CoreMessage, Forwarded, ReplyTo, Work};
use crate::owner::{OwnerRequest, RetryWaiter, Ticket};
use crate::processor::send::{Place, SendHeader};
use crate::processor::send_back::{self, Admission, DLQ_QUEUES, RetrySend, SendBackHeader};
use crate::router::core_of;
use crate::work::SendBack;
use message::names;
use reactor::{ConnectionId, Context};
use remoting::ResponseCode;
use remoting::scan::{Fields, scan};
use std::borrow::Cow;
use std::net::SocketAddr;
use store::ShardId;

/// What becomes of a retry that a client sends.
pub(super) enum Retry {
    /// It is stored like any message.
    Append,
    /// It is a dead letter: for this topic and queue.
    DeadLetter(String, Place),
    /// The owner was asked; the frame runs again.
    Waits,
}

impl BrokerCore {
    /// 36.
    pub(super) fn send_back(&mut self, cx: &mut Context<CoreMessage>, to: ReplyTo, frame: &[u8], asked: bool) {
        let Some(command) = self.decode(cx, to.conn, frame) else { return };
        let header = match SendBackHeader::parse(&command) {
            Ok(header) => header,
            Err(refusal) => return self.refuse(cx, &to, refusal.code, &refusal.remark),
        };
        self.any_queue = self.any_queue.wrapping_add(1);
        let (ip, any_queue) = (self.options.ip(), self.any_queue);
        match send_back::admit(&header, &self.snapshot, ip, self.shards, any_queue, asked) {
            Admission::Read(shard, work) => self.read_to_send_back(cx, to, shard, work),
            Admission::NeedGroup => {
                let ticket = self.hold_frame(cx, to.conn, frame);
                self.lanes.owner(OwnerRequest::EnsureGroup { ticket, group: header.group.to_owned() });
            }
            Admission::Nothing => self.refuse(cx, &to, ResponseCode::Success.to_i32(), ""),
            Admission::Refuse(refusal) => self.refuse(cx, &to, refusal.code, &refusal.remark),
        }
    }

    fn read_to_send_back(&mut self, cx: &mut Context<CoreMessage>, mut to: ReplyTo, shard: ShardId, work: SendBack) {
        let core = core_of(shard, self.cores);
        self.begin(cx, &mut to, 0);
        if core == self.core {
            let (host, mut answers) = self.parts(cx);
            host.send_back(&mut answers, to, shard, work);
        } else {
            let work = Work::SendBack(Box::new(work));
            self.lanes.requests(core).entries.push(Forwarded { reply: to, shard, work });
            self.check_backlog(cx, to.conn, core);
        }
    }

    /// Decides about a send to a retry topic that was admitted. `locked` says whether the group holds a queue lock, once the
    /// owner was asked: an ordered consumer sends a message only when it has given it up.
    pub(super) fn retry_send(
        &mut self,
        cx: &mut Context<CoreMessage>,
        conn: ConnectionId,
        frame: &[u8],
        request: &SendHeader<'_>,
        retry: RetrySend,
        locked: Option<bool>,
    ) -> Retry {
        let group = names::group_of_retry_or_dlq(request.topic).unwrap_or_default();
        // Behind a plus sign stands the topic, in POP's retry topics.
        let group = group.split(|byte| *byte == b'+').next().unwrap_or_default();
        let name = || String::from_utf8_lossy(group).into_owned();
        let Some(settings) = self.snapshot.group_or_light(group).map(Cow::into_owned) else {
            let ticket = self.hold_frame(cx, conn, frame);
            self.lanes.owner(OwnerRequest::EnsureGroup { ticket, group: name() });
            return Retry::Waits;
        };
        if !retry.is_over(&settings) {
            match locked {
                Some(true) => {}
                Some(false) => return Retry::Append,
                None => {
                    let ticket = self.hold_frame(cx, conn, frame);
                    self.lanes.owner(OwnerRequest::QueryLock { ticket, group: name() });
                    return Retry::Waits;
                }
            }
        }
        let topic = names::dlq_topic(&settings.name);
        if let Some(known) = self.snapshot.topic(topic.as_bytes()) {
            let shard = known.shard_of(0);
            return Retry::DeadLetter(
                topic,
                Place { queue_id: 0, shard, multi_tag: known.multi_tag, dead_letter: true },
            );
        }
        let waiter = RetryWaiter::Frame(self.hold_frame(cx, conn, frame));
        self.lanes.owner(OwnerRequest::EnsureRetryTopic { waiter, topic, queues: DLQ_QUEUES, topic_sys_flag: 0 });
        Retry::Waits
    }

    /// The owner says whether the group of a retry holds a queue lock.
    pub(super) fn lock_state(&mut self, cx: &mut Context<CoreMessage>, ticket: Ticket, locked: bool) {
        let Some((conn, waiting)) = self.connections.resume(ticket) else { return };
        let header = scan(&waiting.frame).expect("it was scanned before it waited");
        let peer: Option<SocketAddr> = self.connections.get(conn).map(|connection| connection.peer);
        if let (Fields::Send(fields), Some(peer)) = (header.fields, peer) {
            let to = super::reply_to(conn, &header);
            self.send(cx, to, peer, &waiting.frame, &header, &fields, true, Some(locked));
        }
        cx.release(conn);
    }

    /// Keeps a frame until the owner answers, and holds its connection.
    pub(super) fn hold_frame(&mut self, cx: &mut Context<CoreMessage>, conn: ConnectionId, frame: &[u8]) -> Ticket {
        let ticket = self.connections.wait(conn, frame);
        cx.hold(conn);
        ticket
    }
}
