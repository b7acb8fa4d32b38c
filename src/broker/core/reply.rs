//! Replies to requests (324, 325) at their connection's core: checked like a send, then the owner's, who knows the clients.

use super::BrokerCore;
use crate::crossing::{CoreMessage, OWNER_CORE, ReplyTo};
use crate::owner::{OwnerRequest, ReplyMessage};
use crate::processor::reply::Reply;
use crate::processor::send::{self, Admission};
use reactor::Context;
use std::net::SocketAddr;

impl BrokerCore {
    /// 324 and 325.
    pub(super) fn reply_message(
        &mut self,
        cx: &mut Context<CoreMessage>,
        mut to: ReplyTo,
        peer: SocketAddr,
        frame: &[u8],
        asked: bool,
    ) {
        let Some(command) = self.decode(cx, to.conn, frame) else { return };
        let reply = match Reply::parse(command, &self.options.region_id, self.snapshot.settings.trace_on) {
            Ok(reply) => reply,
            Err(refusal) => return self.refuse(cx, &to, refusal.code, &refusal.remark),
        };
        let (header, ip) = (reply.as_send(), self.options.ip());
        match send::admit(&header, reply.body.len(), &self.snapshot, peer, ip, self.any_queue, asked) {
            Admission::Append(place) => {
                self.any_queue = self.any_queue.wrapping_add(1);
                self.begin(cx, &mut to, reply.bytes());
                let message = ReplyMessage { to, peer, queue_id: place.queue_id, shard: place.shard, reply };
                self.lanes.owner(OwnerRequest::Reply(Box::new(message)));
                self.check_backlog(cx, to.conn, OWNER_CORE);
            }
            Admission::NeedTopic => {
                let ticket = self.hold_frame(cx, to.conn, frame);
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                self.lanes.owner(OwnerRequest::EnsureTopic {
                    ticket,
                    peer,
                    topic: text(header.topic),
                    default_topic: text(header.default_topic),
                    default_queues: header.default_topic_queues,
                    topic_sys_flag: send::topic_sys_flag(&header),
                });
            }
            Admission::Refuse(refusal) => self.refuse(cx, &to, refusal.code, &refusal.remark),
        }
    }
}
