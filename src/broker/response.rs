//! The answers of the hot path: outcomes to codes, remarks and fields.
//!
//! Role: the one place where what a shard said becomes an answer in the form of its request. Invariants: an answer of a stored
//! send always has fields (Java clients read them unchecked); a pull that reached the store always has its four offsets.

use crate::crossing::{Answers, CoreMessage, ReplyTo};
use crate::gather::RecallAsk;
use crate::owner::Refusal;
use crate::parked::Acknowledge;
use crate::processor::query::Found;
use crate::services::pop::handle::ORDER_REVIVE_QUEUE;
use crate::services::pop::request::{PopRun, RunKind};
use crate::services::{ServiceTicket, Stored, Waiter};
use crate::work::{PullWork, Question};
use bytes::Bytes;
use message::ids::OffsetIdPrefix;
use remoting::command::REMARK_NOT_SET;
use remoting::reply::{self, PopReply, PullReply, SendReply};
use remoting::{Command, ResponseCode};
use store::{Bounds, GetStatus, Pulled, Slices};

/// What every answer to a send says of the broker.
#[derive(Clone, Debug)]
pub struct SendIdentity {
    /// First half of the message ids.
    pub id_prefix: OffsetIdPrefix,
    /// `regionId`.
    pub region: Box<[u8]>,
    /// `brokerName`.
    pub broker: Box<str>,
    /// `traceOn`.
    pub trace_on: bool,
}

/// Answers a send that is stored.
fn sent(answers: &mut Answers<'_>, to: &ReplyTo, ack: &Acknowledge, identity: &SendIdentity, code: ResponseCode) {
    let reply = SendReply {
        code,
        id_prefix: &identity.id_prefix,
        offsets: &ack.offsets,
        queue_id: ack.queue_id as i32,
        queue_offset: ack.queue_offset,
        recall_handle: ack.recall_handle.as_deref(),
        transaction_id: (!ack.unique_id.is_empty()).then_some(&ack.unique_id[..]),
        region: &identity.region,
        trace_on: identity.trace_on,
    };
    answers.reply(to, &[], |out| reply::send(out, to.form, to.opaque, &reply));
}

/// Tells who waits for an append that it is stored: `code` is SUCCESS, or FLUSH_DISK_TIMEOUT when its sync took too long (which
/// only clients are told: it is written, and a service goes on). What a service of this shard waits for goes to `own`.
pub fn stored(
    answers: &mut Answers<'_>,
    ack: &Acknowledge,
    identity: &SendIdentity,
    code: ResponseCode,
    own: &mut Vec<(ServiceTicket, Result<Stored, String>)>,
) {
    let stored = || Stored { offset: ack.offsets[0], queue_offset: ack.queue_offset };
    match &ack.to {
        Waiter::Send(to) => sent(answers, to, ack, identity, code),
        Waiter::Code(to) => answers.reply(to, &[], |out| Command::response(code, to.opaque, to.form).encode(out)),
        Waiter::Pushed { to, .. } => sent(answers, to, ack, identity, ResponseCode::Success),
        Waiter::Nobody => {}
        Waiter::Service(ticket) => own.push((*ticket, Ok(stored()))),
        Waiter::Relay { core, shard, ticket } => {
            let (shard, ticket, stored) = (*shard, *ticket, Ok(stored()));
            answers.lanes.post(*core, CoreMessage::Stored { shard, ticket, stored });
        }
    }
}

/// Tells who waits for an append that it was not stored.
pub fn not_stored(
    answers: &mut Answers<'_>,
    waiter: &Waiter,
    code: ResponseCode,
    remark: &str,
    own: &mut Vec<(ServiceTicket, Result<Stored, String>)>,
) {
    match waiter {
        Waiter::Send(to) | Waiter::Code(to) => answers.refuse(to, code, remark),
        Waiter::Pushed { to, queue_id } => answers.reply(to, &[], |out| pushed(to, *queue_id).encode(out)),
        Waiter::Nobody => {}
        Waiter::Service(ticket) => own.push((*ticket, Err(remark.to_owned()))),
        Waiter::Relay { core, shard, ticket } => {
            let (shard, ticket, stored) = (*shard, *ticket, Err(remark.to_owned()));
            answers.lanes.post(*core, CoreMessage::Stored { shard, ticket, stored });
        }
    }
}

/// The answer to a reply that reached its client and is not stored: the numbers are there because clients read them.
pub fn pushed(to: &ReplyTo, queue_id: u32) -> Command {
    Command::response(ResponseCode::Success, to.opaque, to.form)
        .with_field("msgId", 0)
        .with_field("queueId", queue_id)
        .with_field("queueOffset", 0)
}

/// The code for what a pull from `offset` found.
#[must_use]
pub fn pull_code(status: GetStatus, offset: i64) -> ResponseCode {
    match status {
        GetStatus::Found => ResponseCode::Success,
        GetStatus::NoMatchedMessage | GetStatus::MessageWasRemoving => ResponseCode::PullRetryImmediately,
        GetStatus::NoMatchedLogicQueue | GetStatus::NoMessageInQueue if offset != 0 => ResponseCode::PullOffsetMoved,
        GetStatus::NoMatchedLogicQueue | GetStatus::NoMessageInQueue => ResponseCode::PullNotFound,
        GetStatus::OffsetFoundNull | GetStatus::OffsetOverflowOne => ResponseCode::PullNotFound,
        GetStatus::OffsetOverflowBadly | GetStatus::OffsetTooSmall => ResponseCode::PullOffsetMoved,
    }
}

/// Answers a pull with what the queue gave.
pub fn pull(answers: &mut Answers<'_>, to: &ReplyTo, work: &PullWork, code: ResponseCode, pulled: Pulled) {
    let bounds = Bounds { min: pulled.min, max: pulled.max };
    let header = pull_header(work, code, pulled.status.name(), pulled.next_begin.to_i64(), bounds);
    // Nothing but records found is a body: a step that ends otherwise hands out no slices.
    let (slices, body_len) = match code {
        ResponseCode::Success => (pulled.slices, pulled.bytes as usize),
        _ => (Slices::new(), 0),
    };
    answers.reply_with(to, slices, |out| reply::pull(out, to.form, to.opaque, &header, body_len));
}

/// Answers a pull with a server-side reset: go on at `offset`.
pub fn pull_reset(answers: &mut Answers<'_>, to: &ReplyTo, work: &PullWork, offset: i64, bounds: Bounds) {
    let header = pull_header(work, ResponseCode::PullOffsetMoved, "OFFSET_RESET", offset, bounds);
    answers.reply(to, &[], |out| reply::pull(out, to.form, to.opaque, &header, 0));
}

fn pull_header<'a>(
    work: &PullWork,
    code: ResponseCode,
    remark: &'a str,
    next_begin_offset: i64,
    bounds: Bounds,
) -> PullReply<'a> {
    PullReply {
        code,
        remark,
        // Only a broker with slaves sends readers elsewhere.
        suggest_which_broker_id: 0,
        next_begin_offset,
        min_offset: bounds.min.to_i64(),
        max_offset: bounds.max.to_i64(),
        topic_sys_flag: work.topic.sys_flag,
        group_sys_flag: work.group.sys_flag,
    }
}

/// Refuses a pull; `forbidden` is Java's `forbiddenType`, 0 for none.
pub fn pull_refusal(answers: &mut Answers<'_>, to: &ReplyTo, refusal: &Refusal, forbidden: i32) {
    if forbidden == 0 {
        return answers.reply(to, &[], |out| self::refusal(out, to, refusal.code, &refusal.remark));
    }
    let response = Command::response(refusal.code, to.opaque, to.form)
        .with_remark(refusal.remark.as_str())
        .with_field("forbiddenType", forbidden);
    answers.reply(to, &[], |out| response.encode(out));
}

/// Writes an answer that is a code and a text.
pub fn refusal(out: &mut Vec<u8>, to: &ReplyTo, code: i32, remark: &str) {
    let code = ResponseCode::from_i32(code).unwrap_or(ResponseCode::SystemError);
    reply::error(out, to.form, to.opaque, code, remark);
}

/// Answers a question about a queue with its number.
pub fn of_question(answers: &mut Answers<'_>, to: &ReplyTo, question: Question, value: i64) {
    let name = if question == Question::EarliestStoreTime { "timestamp" } else { "offset" };
    let response = Command::response(ResponseCode::Success, to.opaque, to.form).with_field(name, value);
    answers.reply(to, &[], |out| response.encode(out));
}

/// Answers with a body and no fields.
pub fn body(answers: &mut Answers<'_>, to: &ReplyTo, body: &Bytes) {
    let response = Command::response(ResponseCode::Success, to.opaque, to.form).with_body(body.to_vec());
    answers.reply(to, &[], |out| response.encode(out));
}

/// Answers with a bare success.
pub fn success(answers: &mut Answers<'_>, to: &ReplyTo) {
    answers.reply(to, &[], |out| reply::error(out, to.form, to.opaque, ResponseCode::Success, ""));
}

/// Answers a change of an invisible time: the numbers of the new handle.
pub fn invisible_changed(
    answers: &mut Answers<'_>,
    to: &ReplyTo,
    pop_time_ms: i64,
    invisible_ms: i64,
    revive_queue: i32,
) {
    let response = Command::response(ResponseCode::Success, to.opaque, to.form)
        .with_remark(REMARK_NOT_SET)
        .with_field("popTime", pop_time_ms)
        .with_field("invisibleTime", invisible_ms)
        .with_field("reviveQid", revive_queue);
    answers.reply(to, &[], |out| response.encode(out));
}

/// Answers a pop, peek or notification with what was found; `otherwise` is the code of a pop that found nothing.
pub fn pop(answers: &mut Answers<'_>, to: &ReplyTo, run: &PopRun, otherwise: ResponseCode) {
    let found = &run.found;
    if run.kind == RunKind::Notify {
        let full = otherwise == ResponseCode::PollingFull;
        let response = Command::response(ResponseCode::Success, to.opaque, to.form)
            .with_remark(REMARK_NOT_SET)
            .with_field("hasMsg", found.has_message)
            .with_optional("pollingFull", full.then_some(true));
        return answers.reply(to, &[], |out| response.encode(out));
    }
    let peek = run.kind == RunKind::Peek;
    let (code, remark) = match (found.count, peek) {
        (1.., _) => (ResponseCode::Success, GetStatus::Found.name()),
        (0, true) => (ResponseCode::PullNotFound, GetStatus::NoMessageInQueue.name()),
        (0, false) => (otherwise, GetStatus::NoMessageInQueue.name()),
    };
    let ordered = run.header.order;
    let header = PopReply {
        code,
        remark,
        pop_time_ms: if peek { 0 } else { run.pop_time_ms },
        invisible_ms: if peek { 0 } else { run.header.invisible_ms },
        revive_queue: if ordered { ORDER_REVIVE_QUEUE } else { run.revive_queue as i32 },
        rest: found.rest,
        starts: (!peek).then_some(&found.starts),
        offsets: (!peek).then_some(&found.offsets),
        counts: ordered.then_some(&found.counts),
    };
    answers.reply(to, &found.slices, |out| reply::pop(out, to.form, to.opaque, &header, found.bytes as usize));
}

/// Answers how many pops wait.
pub fn polling_info(answers: &mut Answers<'_>, to: &ReplyTo, count: u64) {
    let response = Command::response(ResponseCode::Success, to.opaque, to.form)
        .with_remark(REMARK_NOT_SET)
        .with_field("pollingNum", count);
    answers.reply(to, &[], |out| response.encode(out));
}

/// Answers a recall that is stored.
pub fn recalled(answers: &mut Answers<'_>, to: &ReplyTo, ask: &RecallAsk, region: &[u8]) {
    let response = Command::response(ResponseCode::Success, to.opaque, to.form)
        .with_field("MSG_REGION", String::from_utf8_lossy(region).into_owned())
        .with_field("msgId", String::from_utf8_lossy(&ask.unique_id).into_owned());
    answers.reply(to, &[], |out| response.encode(out));
}

/// Answers a query by key.
pub fn found(answers: &mut Answers<'_>, to: &ReplyTo, found: &Found) {
    let code = if found.records.is_empty() { ResponseCode::QueryNotFound } else { ResponseCode::Success };
    let mut response = Command::response(code, to.opaque, to.form)
        .with_field("indexLastUpdateTimestamp", found.last_index_timestamp_ms)
        .with_field("indexLastUpdatePhyoffset", found.last_index_offset)
        .with_body(found.records.concat());
    if found.records.is_empty() {
        response = response.with_remark("can not find message, maybe time range not correct");
    } else if found.partial {
        response = response.with_remark("a part of the store did not answer in time");
    }
    answers.reply(to, &[], |out| response.encode(out));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_codes_are_those_of_java() {
        use GetStatus as S;
        use ResponseCode as C;
        for (status, at_zero, elsewhere) in [
            (S::Found, C::Success, C::Success),
            (S::NoMatchedMessage, C::PullRetryImmediately, C::PullRetryImmediately),
            (S::MessageWasRemoving, C::PullRetryImmediately, C::PullRetryImmediately),
            (S::NoMatchedLogicQueue, C::PullNotFound, C::PullOffsetMoved),
            (S::NoMessageInQueue, C::PullNotFound, C::PullOffsetMoved),
            (S::OffsetFoundNull, C::PullNotFound, C::PullNotFound),
            (S::OffsetOverflowOne, C::PullNotFound, C::PullNotFound),
            (S::OffsetOverflowBadly, C::PullOffsetMoved, C::PullOffsetMoved),
            (S::OffsetTooSmall, C::PullOffsetMoved, C::PullOffsetMoved),
        ] {
            assert_eq!((pull_code(status, 0), pull_code(status, 7)), (at_zero, elsewhere), "{status:?}");
        }
    }
}
