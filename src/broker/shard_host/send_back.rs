//! Send-backs (36) at the shard that holds the message: read it, decide, and put the copy on its way.
//!
//! Role: message in, copy out; the copy may belong to another shard. Invariants: the client is answered once, with success only
//! when the copy is stored; a message that is not in memory parks; a topic that is missing is asked for once. What becomes of a
//! message is decided in `processor::send_back`.

use super::{ShardHost, append_refusal};
use crate::crossing::{Answers, ReplyTo};
use crate::owner::{OwnerRequest, Refusal, RetryWaiter, SendBackJob};
use crate::parked::Pending;
use crate::processor::delay::{self, DelayTexts, Target};
use crate::processor::send::check_length;
use crate::processor::send_back::{CopyTexts, Fate, no_message, no_topic, properties};
use crate::response;
use crate::services::Waiter;
use crate::snapshot::Topic;
use crate::work::SendBack;
use message::properties::PropertiesSource;
use message::record::{RecordFields, RecordView};
use remoting::ResponseCode;
use std::sync::Arc;
use store::{ReadStep, ShardId};

impl ShardHost {
    /// Sends a message of a shard back.
    pub fn send_back(&mut self, answers: &mut Answers<'_>, to: ReplyTo, shard: ShardId, work: SendBack) {
        let Some(at) = self.position(shard) else {
            return answers.refuse(&to, ResponseCode::SystemError, "no such shard");
        };
        self.run_send_back(answers, at, to, work);
    }

    /// The owner made the topic that a send-back needs, or could not.
    pub fn send_back_again(&mut self, answers: &mut Answers<'_>, job: SendBackJob, outcome: Result<(), Refusal>) {
        let SendBackJob { reply, shard, work } = job;
        match outcome {
            Ok(()) => self.send_back(answers, reply, shard, SendBack { asked: true, ..work }),
            Err(refusal) => refuse(answers, &reply, &refusal),
        }
    }

    pub(super) fn run_send_back(&mut self, answers: &mut Answers<'_>, at: usize, to: ReplyTo, work: SendBack) {
        let hosted = &mut self.hosted[at];
        let record = match hosted.shard.record_at(work.offset) {
            ReadStep::Ready(Some(record)) => record,
            ReadStep::Ready(None) => return refuse(answers, &to, &no_message(work.offset.to_i64())),
            ReadStep::Missing(missing) => return hosted.park(missing, Pending::SendBack(to, work)),
            ReadStep::Failed(error) => return answers.refuse(&to, ResponseCode::SystemError, &error.to_string()),
        };
        let Ok(record) = RecordView::parse(&record) else {
            return refuse(answers, &to, &no_message(work.offset.to_i64()));
        };
        let fate = Fate::of(&work, record.reconsume_times());
        let name = fate.topic(&work.group);
        match self.snapshot.topic(name.as_bytes()).cloned() {
            Some(topic) => self.put_copy(answers, at, &to, &work, &record, fate, &topic),
            None if work.asked => refuse(answers, &to, &no_topic(&name)),
            None => {
                let (queues, topic_sys_flag) = (fate.queues(&work.group), fate.topic_sys_flag(work.unit_mode));
                let job = SendBackJob { reply: to, shard: self.hosted[at].id, work };
                let waiter = RetryWaiter::SendBack(Box::new(job));
                answers.lanes.owner(OwnerRequest::EnsureRetryTopic { waiter, topic: name, queues, topic_sys_flag });
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a send-back with everything that is known of it by now")]
    fn put_copy(
        &mut self,
        answers: &mut Answers<'_>,
        at: usize,
        to: &ReplyTo,
        work: &SendBack,
        record: &RecordView<'_>,
        fate: Fate,
        topic: &Arc<Topic>,
    ) {
        let (texts, mut delay_texts) = (CopyTexts::new(record, fate), DelayTexts::default());
        let mut list = properties(record, &texts);
        let queue_id = fate.queue_id(work, topic.write_queues);
        let shard = topic.shard_of(queue_id);
        let target = Target { topic: topic.name.as_bytes(), queue_id, shard };
        let rules = &self.snapshot.delays;
        let waiting = delay::redirect(&mut list, target, rules, answers.cx.now().wall_ms, &mut delay_texts);
        let waiting = match waiting.and_then(|waiting| check_length(&list).map(|()| waiting)) {
            Ok(waiting) => waiting,
            Err(refusal) => return refuse(answers, to, &refusal),
        };
        let (topic, queue_id) = match &waiting {
            Some(waiting) => (waiting.topic, waiting.queue_id),
            None => (target.topic, target.queue_id),
        };
        let copy = RecordFields {
            topic,
            queue_id: queue_id as i32,
            store_host: self.store_host,
            reconsume_times: record.reconsume_times().saturating_add(1),
            prepared_transaction_offset: 0,
            properties: PropertiesSource::List(list.view()),
            ..record.fields()
        };
        let mut put = Ok(());
        self.with_services(answers, at, |_, cx| put = cx.put(shard, &copy, Waiter::Code(*to)));
        if let Err(error) = put {
            self.hosted[at].traffic.put_refused += 1;
            let (code, remark) = append_refusal(&error);
            answers.refuse(to, code, &remark);
        }
    }
}

fn refuse(answers: &mut Answers<'_>, to: &ReplyTo, refusal: &Refusal) {
    answers.reply(to, &[], |out| response::refusal(out, to, refusal.code, &refusal.remark));
}
