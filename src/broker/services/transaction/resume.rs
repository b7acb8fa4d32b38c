//! RESUME_CHECK_HALF_MESSAGE (323): a half message that was given up is checked again, as if it were new.
//!
//! Invariants: only what was given up comes back, so that no message is delivered twice; one that is still open needs nothing.

use super::records::resumed;
use super::{Transaction, TransactionRequest, answer, not_found, queue_of, refuse};
use crate::crossing::ReplyTo;
use crate::owner::Refusal;
use crate::services::{ShardContext, Waiter};
use message::properties::PropertiesSource;
use message::record::{RecordFields, RecordView};
use message::{PhysicalOffset, names};
use remoting::ResponseCode;
use store::ReadStep;

impl Transaction {
    /// Puts a given-up half back, with its count of checks at 0.
    pub(super) fn resume_check(&mut self, cx: &mut ShardContext<'_, '_>, to: ReplyTo, offset: PhysicalOffset) {
        let bytes = match cx.record_at(offset) {
            ReadStep::Ready(Some(bytes)) => bytes,
            ReadStep::Ready(None) => return refuse(cx, &to, &not_found()),
            ReadStep::Missing(missing) => return self.park(cx, to, TransactionRequest::ResumeCheck(offset), missing),
            ReadStep::Failed(error) => return cx.answers.refuse(&to, ResponseCode::SystemError, &error.to_string()),
        };
        let Ok(record) = RecordView::parse(&bytes) else { return refuse(cx, &to, &not_found()) };
        if record.topic() == names::HALF_TOPIC && self.halves.is_open(record.queue_offset().0) {
            return answer(cx, &to);
        }
        let Some((topic, real_queue, list)) = resumed(&record) else { return refuse(cx, &to, &not_found()) };
        let Some(topic) = cx.snapshot.topic(topic) else {
            return refuse(cx, &to, &Refusal::new(ResponseCode::TopicNotExist, "the topic of the transaction is gone"));
        };
        let shard = topic.shard_of(real_queue);
        let fields = RecordFields {
            topic: names::HALF_TOPIC,
            queue_id: queue_of(cx.snapshot, names::HALF_TOPIC, shard) as i32,
            prepared_transaction_offset: 0,
            properties: PropertiesSource::List(list.view()),
            ..record.fields()
        };
        if let Err(error) = cx.put(shard, &fields, Waiter::Code(to)) {
            refuse(cx, &to, &super::ends::not_appended(&error));
        }
    }
}
