//! Questions about one queue (29 to 32) and about one record (33).

use crate::owner::Refusal;
use crate::snapshot::Snapshot;
use crate::work::{Question, QueueQuestion};
use message::PhysicalOffset;
use remoting::{Command, FieldError, RequestCode, ResponseCode};
use store::{Boundary, SHARD_SPAN, ShardId};

/// What to do with a question.
#[derive(Debug)]
pub enum Admission {
    /// Ask this shard.
    Ask(ShardId, QueueQuestion),
    /// The topic is not known: the answer for a queue that holds nothing.
    NoQueue(Question),
    /// Answer with this.
    Refuse(Refusal),
}

/// Reads a request of 29 to 32.
pub fn admit(code: RequestCode, command: &Command, snapshot: &Snapshot) -> Admission {
    match parse(code, command) {
        Ok(question) => route(question, snapshot),
        Err(error) => {
            Admission::Refuse(Refusal { code: ResponseCode::SystemError.to_i32(), remark: error.to_string() })
        }
    }
}

/// Reads a request of 33, in a store of `shards` shards.
pub fn admit_record(command: &Command, shards: u16) -> Admission {
    let offset = match command.ext.i64("offset") {
        Ok(offset) => offset,
        Err(error) => {
            return Admission::Refuse(Refusal { code: ResponseCode::SystemError.to_i32(), remark: error.to_string() });
        }
    };
    let shard = PhysicalOffset::from_i64(offset).map(|offset| (offset, offset.0 / SHARD_SPAN));
    match shard {
        Some((offset, shard)) if shard < u64::from(shards) => {
            let question = Question::Record(offset);
            Admission::Ask(ShardId(shard as u16), QueueQuestion { topic: Box::default(), queue_id: 0, question })
        }
        _ => Admission::Refuse(Refusal {
            code: ResponseCode::SystemError.to_i32(),
            remark: format!("can not find message by the offset, {offset}"),
        }),
    }
}

fn parse(code: RequestCode, command: &Command) -> Result<(String, i32, Question), FieldError> {
    let topic = command.ext.text("topic")?.to_owned();
    let queue_id = command.ext.i32("queueId")?;
    let question = match code {
        RequestCode::GetMaxOffset => Question::MaxOffset,
        RequestCode::GetMinOffset => Question::MinOffset,
        RequestCode::GetEarliestMsgStoretime => Question::EarliestStoreTime,
        _ => {
            let upper = command.ext.get("boundaryType").is_some_and(|name| name.eq_ignore_ascii_case("UPPER"));
            let boundary = if upper { Boundary::Upper } else { Boundary::Lower };
            Question::OffsetByTime { timestamp_ms: command.ext.i64("timestamp")?, boundary }
        }
    };
    Ok((topic, queue_id, question))
}

fn route((topic, queue_id, question): (String, i32, Question), snapshot: &Snapshot) -> Admission {
    let Ok(queue_id) = u32::try_from(queue_id) else {
        let remark = format!("queueId[{queue_id}] is illegal, topic:[{topic}]");
        return Admission::Refuse(Refusal { code: ResponseCode::InvalidParameter.to_i32(), remark });
    };
    match snapshot.topic_or_light(topic.as_bytes()) {
        Some(known) => {
            let topic = topic.into_bytes().into_boxed_slice();
            Admission::Ask(known.shard_of(queue_id), QueueQuestion { topic, queue_id, question })
        }
        None => Admission::NoQueue(question),
    }
}

/// The number that answers a question about a queue that holds nothing.
#[must_use]
pub fn of_nothing(question: Question) -> i64 {
    if question == Question::EarliestStoreTime { -1 } else { 0 }
}
