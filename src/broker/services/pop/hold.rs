//! Who holds what a pop gave out: a check point, or the state of an ordered queue.

use super::Running;
use super::book::NewCheck;
use super::handle::retry_kind;
use super::order::OrderInfo;
use super::records::{CheckName, MAX_MESSAGES};
use super::request::PopRun;
use super::serve::Batch;
use super::waiting::{Then, Token};
use crate::services::ShardContext;
use crate::snapshot::Topic;
use smallvec::SmallVec;

impl Running {
    /// `Ok(false)`: not now. Errors: the shard takes no record.
    #[expect(clippy::too_many_arguments, reason = "one batch of one queue for one walk")]
    pub(super) fn hold(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        run: &PopRun,
        topic: &Topic,
        queue_id: u32,
        pair: u32,
        start: u64,
        batch: &Batch,
        waiting: &mut Option<u32>,
    ) -> Result<bool, String> {
        let distances: SmallVec<[u32; MAX_MESSAGES]> = batch.offsets.iter().map(|o| (o - start) as u32).collect();
        let revive_queue = run.revive_queue % self.book.revive_queues();
        let (pop_time_ms, invisible_ms) = (run.pop_time_ms, run.header.invisible_ms);
        let new = NewCheck { start, pop_time_ms, invisible_ms, distances: &distances, revive_queue };
        let Some(slot) = self.book.add(pair, queue_id, &new) else { return Ok(false) };
        let of = CheckName { topic: &topic.name, group: &run.group.name, queue_id, start, pop_time_ms };
        self.draft.check(&of, &self.options.broker_name, invisible_ms, &distances, cx.now().wall_ms);
        let at = *waiting.get_or_insert_with(|| self.wait(Then::Nothing));
        match self.put(cx, revive_queue, Token::Check { waiting: at, slot }) {
            Ok(()) => {
                self.waiting[at as usize].left += 1;
                Ok(true)
            }
            Err(error) => {
                self.book.not_written(slot);
                self.drop_unused(waiting);
                Err(error.to_string())
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one batch of one queue for one walk")]
    pub(super) fn hold_ordered(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        run: &mut PopRun,
        topic: &Topic,
        queue_id: u32,
        pair: u32,
        batch: &Batch,
        waiting: &mut Option<u32>,
    ) -> Result<bool, String> {
        let before = self.book.pair(pair).queues.get(&queue_id).and_then(|queue| queue.order.as_deref().cloned());
        let attempt = run.header.attempt.as_deref();
        let info = OrderInfo::pop(before, attempt, run.pop_time_ms, run.header.invisible_ms, &batch.offsets);
        self.draft.order(&topic.name, &run.group.name, queue_id, batch.offsets[0], &info);
        let at = *waiting.get_or_insert_with(|| self.wait(Then::Nothing));
        if let Err(error) = self.put(cx, 0, Token::Order { waiting: at }) {
            self.drop_unused(waiting);
            return Err(error.to_string());
        }
        self.waiting[at as usize].left += 1;
        info.write_counts(&mut run.found.counts, retry_kind(&topic.name), queue_id);
        self.book.set_next(pair, queue_id, batch.offsets[0], cx.now().mono_us);
        self.set_order(pair, queue_id, Some(info));
        Ok(true)
    }

    /// A waiting that nothing was put for goes again.
    pub(super) fn drop_unused(&mut self, waiting: &mut Option<u32>) {
        if let Some(at) = *waiting
            && self.waiting[at as usize].left == 0
        {
            self.waiting.remove(at as usize);
            *waiting = None;
        }
    }

    pub(super) fn is_blocked(&self, pair: u32, queue_id: u32, attempt: Option<&str>, now_ms: i64) -> bool {
        let queue = self.book.pair(pair).queues.get(&queue_id);
        queue.and_then(|queue| queue.order.as_ref()).is_some_and(|info| info.blocks(attempt, now_ms))
    }

    /// Sets the state of an ordered queue, and when it gives messages to anybody again.
    pub(super) fn set_order(&mut self, pair: u32, queue_id: u32, info: Option<OrderInfo>) {
        let queue = self.book.pair_mut(pair).queues.entry(queue_id).or_default();
        if let Some(before) = queue.order.as_ref().and_then(|before| before.free_at_ms()) {
            self.order_due.remove(&(before, pair, queue_id));
        }
        // Of a queue whose messages are all acknowledged nothing is left to say.
        queue.order = info.filter(|info| info.free_at_ms().is_some()).map(Box::new);
        if let Some(free_ms) = queue.order.as_ref().and_then(|info| info.free_at_ms()) {
            self.order_due.insert((free_ms, pair, queue_id));
        }
    }
}
