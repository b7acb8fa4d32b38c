//! Replies to requests (324, 325): passed on to the client that asked (326), kept in the topic of replies, then answered.
//!
//! Invariants: a reply is answered once, after the client took it or did not; success means that the client has it. A reply
//! that nobody took is kept all the same, as the reference does. What waits for clients is bounded in number and bytes.

use super::calls::AfterCall;
use super::{Owner, OwnerAction, Turn};
use crate::crossing::{OwnedRecord, ReplyTo};
use crate::processor::reply::Reply;
use crate::response;
use crate::services::Waiter;
use remoting::{Command, ResponseCode};
use std::net::SocketAddr;
use store::ShardId;

/// Bytes of replies that may wait for clients at once; one more is answered SYSTEM_BUSY.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// How long a client may take, µs.
const PUSH_TIMEOUT_US: u64 = 10_000_000;

/// A reply, checked and with its place in the topic of replies.
#[derive(Clone, Debug)]
pub struct ReplyMessage {
    /// Who replied.
    pub to: ReplyTo,
    /// Its address.
    pub peer: SocketAddr,
    /// The queue that keeps it.
    pub queue_id: u32,
    /// The shard of that queue.
    pub shard: ShardId,
    /// The reply.
    pub reply: Reply,
}

impl Owner {
    /// 324 and 325: pushes the reply to the client that asked.
    pub(super) fn push_reply(&mut self, turn: &mut Turn<'_>, message: Box<ReplyMessage>) {
        let Some(client_id) = message.reply.requester() else {
            return self.reply_pushed(turn, &message, Err("reply message properties[REPLY_TO_CLIENT] is null".into()));
        };
        let Some(conn) = self.clients.producer_connection(&client_id) else {
            let why = format!("push reply message fail, channel of <{client_id}> not found.");
            return self.reply_pushed(turn, &message, Err(why));
        };
        if !self.calls.has_room() || self.reply_bytes + message.reply.bytes() > MAX_WAITING_BYTES {
            let busy = Command::response(ResponseCode::SystemBusy, message.to.opaque, message.to.form)
                .with_remark("too many replies wait for their clients");
            return turn.out.push(OwnerAction::Answer { to: message.to, response: busy });
        }
        self.reply_bytes += message.reply.bytes();
        let push = message.reply.push(message.peer, self.options.address, turn.now.wall_ms);
        self.call(turn, conn, PUSH_TIMEOUT_US, push, AfterCall::Reply { message, client_id });
    }

    /// The client has answered (`taken`: with success), or is gone, or took too long.
    pub(super) fn reply_ended(&mut self, turn: &mut Turn<'_>, message: &ReplyMessage, client_id: &str, taken: bool) {
        self.reply_bytes -= message.reply.bytes();
        let outcome = if taken { Ok(()) } else { Err(format!("push reply message to {client_id}fail.")) };
        self.reply_pushed(turn, message, outcome);
    }

    fn reply_pushed(&self, turn: &mut Turn<'_>, message: &ReplyMessage, outcome: Result<(), String>) {
        let ReplyMessage { to, peer, queue_id, shard, reply } = message;
        let keeps = self.options.store_replies;
        let answer = match outcome {
            Ok(()) if keeps => None,
            Ok(()) => Some(response::pushed(to, *queue_id)),
            Err(why) => Some(Command::response(ResponseCode::SystemError, to.opaque, to.form).with_remark(why)),
        };
        if keeps {
            let waiter = match answer {
                None => Waiter::Pushed { to: *to, queue_id: *queue_id },
                Some(_) => Waiter::Nobody,
            };
            let record = Box::new(OwnedRecord::new(&reply.record(*queue_id, *peer, self.options.address)));
            turn.out.push(OwnerAction::Put { shard: *shard, record, waiter });
        }
        if let Some(response) = answer {
            let response = response
                .with_field("MSG_REGION", &self.options.region_id)
                .with_field("TRACE_ON", self.settings.trace_on);
            turn.out.push(OwnerAction::Answer { to: *to, response });
        }
    }
}
