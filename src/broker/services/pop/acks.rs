//! Acknowledgements, one by one and in batches, and changes of invisible times.

use super::Running;
use super::book::{NewCheck, Offsets};
use super::handle::Handle;
use super::order::OrderAck;
use super::records::CheckName;
use super::request::{AckAsk, AckItem, AckRun, Bits, ChangeAsk, PopRequest};
use super::waiting::{Then, Token};
use super::watch::Watches;
use crate::crossing::ReplyTo;
use crate::response;
use crate::services::{ServiceRequest, ShardContext};
use remoting::ResponseCode;

impl Running {
    /// 200051. What is acknowledged already, expired, or was never given out: success, and nothing happens.
    pub(super) fn ack(&mut self, cx: &mut ShardContext<'_, '_>, watches: &mut Watches, to: ReplyTo, ask: &AckAsk) {
        let bounds = cx.shard.bounds(ask.topic.as_bytes(), ask.queue_id).unwrap_or_default();
        let (min, max) = (bounds.min.to_i64(), bounds.max.to_i64());
        if ask.offset < min || ask.offset > max {
            let AckAsk { topic, queue_id, offset, .. } = ask;
            let remark = format!("offset is illegal, key:{topic}@{queue_id}, commit:{offset}, store:{min}~{max}");
            return cx.answers.refuse(&to, ResponseCode::NoMessage, &remark);
        }
        let handle = match Handle::parse(&ask.handle) {
            Ok(handle) => handle,
            Err(why) => return cx.answers.refuse(&to, ResponseCode::SystemError, &why),
        };
        if handle.broker != self.options.broker_name {
            return response::success(cx.answers, &to);
        }
        let item = AckItem {
            shard: cx.id,
            topic: ask.topic.clone(),
            group: ask.group.clone(),
            queue_id: ask.queue_id,
            start: handle.start,
            pop_time_ms: handle.pop_time_ms,
            ordered: handle.is_ordered(),
            bits: Bits::new(),
        };
        let mut waiting = None;
        match self.ack_item(cx, watches, &item, &[ask.offset as u64], &mut waiting) {
            Ok(()) => self.answer_when_written(cx, waiting, to),
            Err(why) => cx.answers.refuse(&to, ResponseCode::ServiceNotAvailable, &why),
        }
    }

    fn answer_when_written(&mut self, cx: &mut ShardContext<'_, '_>, waiting: Option<u32>, to: ReplyTo) {
        match waiting {
            Some(waiting) => self.waiting[waiting as usize].then = Then::Answer(to),
            None => response::success(cx.answers, &to),
        }
    }

    /// 200151: the part of this shard.
    pub(super) fn acks(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        watches: &mut Watches,
        to: ReplyTo,
        mut run: Box<AckRun>,
    ) {
        let mut waiting = None;
        while let Some(item) = run.items.get(run.done).filter(|item| item.shard == cx.id) {
            let bounds = cx.shard.bounds(item.topic.as_bytes(), item.queue_id);
            if let Some(bounds) = bounds {
                let (min, max) = (bounds.min.to_i64(), bounds.max.to_i64());
                let offsets: Offsets =
                    item.offsets().filter(|offset| (min..=max).contains(offset)).map(|offset| offset as u64).collect();
                if let Err(why) = self.ack_item(cx, watches, item, &offsets, &mut waiting) {
                    // What was written for this batch before is acknowledged; the client asks again.
                    if let Some(waiting) = waiting {
                        let of = &mut self.waiting[waiting as usize];
                        (of.failed, of.then) = (Some(why), Then::Answer(to));
                    } else {
                        cx.answers.refuse(&to, ResponseCode::ServiceNotAvailable, &why);
                    }
                    return;
                }
            }
            run.done += 1;
        }
        match waiting {
            Some(waiting) => self.waiting[waiting as usize].then = Then::Acks(to, run),
            None => self.next_acks(cx, watches, to, run),
        }
    }

    /// On to the next shard of a batch, or to its answer.
    pub(super) fn next_acks(&mut self, cx: &mut ShardContext<'_, '_>, _: &mut Watches, to: ReplyTo, run: Box<AckRun>) {
        match run.items.get(run.done).map(|item| item.shard) {
            Some(shard) => cx.forward(shard, to, ServiceRequest::Pop(PopRequest::Acks(run))),
            None => response::success(cx.answers, &to),
        }
    }

    /// Errors: the shard takes no record.
    fn ack_item(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        watches: &mut Watches,
        item: &AckItem,
        offsets: &[u64],
        waiting: &mut Option<u32>,
    ) -> Result<(), String> {
        let Some(pair) = self.book.find(&item.topic, &item.group) else { return Ok(()) };
        if item.ordered {
            return offsets.iter().try_for_each(|offset| self.ack_ordered(cx, watches, item, pair, *offset, waiting));
        }
        let Ok(start) = u64::try_from(item.start) else { return Ok(()) };
        let name = (start, item.pop_time_ms);
        let Some((slot, new)) = self.book.ack(pair, item.queue_id, name, offsets.iter().copied()) else {
            return Ok(());
        };
        let of = CheckName {
            topic: &item.topic,
            group: &item.group,
            queue_id: item.queue_id,
            start,
            pop_time_ms: item.pop_time_ms,
        };
        self.draft.ack(&of, &self.options.broker_name, &new, cx.now().wall_ms);
        let revive_queue = self.book.check(slot).map_or(0, |check| check.revive_queue);
        let put = self.put_waiting(cx, revive_queue, waiting, |waiting| Token::Ack { waiting, slot });
        if put.is_err() {
            self.book.not_acked(slot, &new);
        }
        put
    }

    fn ack_ordered(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        watches: &mut Watches,
        item: &AckItem,
        pair: u32,
        offset: u64,
        waiting: &mut Option<u32>,
    ) -> Result<(), String> {
        let queue_id = item.queue_id;
        let Some(queue) = self.book.pair(pair).queues.get(&queue_id).filter(|queue| offset >= queue.next) else {
            return Ok(());
        };
        let Some(mut info) = queue.order.as_deref().cloned() else { return Ok(()) };
        let OrderAck::Next(next) = info.ack(offset, item.pop_time_ms) else { return Ok(()) };
        self.draft.order(&item.topic, &item.group, queue_id, next, &info);
        self.put_waiting(cx, 0, waiting, |waiting| Token::Order { waiting })?;
        let blocks = info.blocks(None, cx.now().wall_ms);
        self.book.set_next(pair, queue_id, next, cx.now().mono_us);
        self.set_order(pair, queue_id, Some(info));
        if !blocks {
            watches.arrived(item.topic.as_bytes());
        }
        Ok(())
    }

    /// 200053.
    pub(super) fn change(&mut self, cx: &mut ShardContext<'_, '_>, to: ReplyTo, ask: &ChangeAsk) {
        let AckAsk { topic, group, queue_id, offset, handle } = &ask.of;
        let bounds = cx.shard.bounds(topic.as_bytes(), *queue_id).unwrap_or_default();
        if *offset < bounds.min.to_i64() || *offset >= bounds.max.to_i64() {
            return cx.answers.refuse(&to, ResponseCode::NoMessage, "");
        }
        let handle = match Handle::parse(handle) {
            Ok(handle) => handle,
            Err(why) => return cx.answers.refuse(&to, ResponseCode::SystemError, &why),
        };
        let pair = self.book.find(topic, group).filter(|_| handle.broker == self.options.broker_name);
        if handle.is_ordered() {
            return self.change_ordered(cx, to, ask, &handle, pair);
        }
        let mut waiting = None;
        match self.renew(cx, ask, &handle, pair, &mut waiting) {
            Ok(pop_time_ms) => {
                let (invisible_ms, revive_queue) = (ask.invisible_ms, handle.revive_queue);
                match waiting {
                    Some(waiting) => {
                        let then = Then::Changed { to, pop_time_ms, invisible_ms, revive_queue };
                        self.waiting[waiting as usize].then = then;
                    }
                    None => response::invisible_changed(cx.answers, &to, pop_time_ms, invisible_ms, revive_queue),
                }
            }
            Err(why) => cx.answers.refuse(&to, ResponseCode::ServiceNotAvailable, &why),
        }
    }

    /// The message gets a check point of its own, and is acknowledged in the old one. A message that nobody holds any more
    /// stays as it is: a client that comes too late must not bring an acknowledged message back. Gives the time of the new
    /// handle.
    fn renew(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        ask: &ChangeAsk,
        handle: &Handle<'_>,
        pair: Option<u32>,
        waiting: &mut Option<u32>,
    ) -> Result<i64, String> {
        let now_ms = cx.now().wall_ms;
        let AckAsk { topic, group, queue_id, offset, .. } = &ask.of;
        let (queue_id, offset) = (*queue_id, *offset as u64);
        let (Some(pair), Ok(start)) = (pair, u64::try_from(handle.start)) else { return Ok(now_ms) };
        let old = (start, handle.pop_time_ms);
        let Some((slot, acked)) = self.book.ack(pair, queue_id, old, std::iter::once(offset)) else {
            return Ok(now_ms);
        };
        let revive_queue = self.book.check(slot).map_or(0, |check| check.revive_queue);
        let mut pop_time_ms = now_ms;
        let new = loop {
            let invisible_ms = ask.invisible_ms;
            let new = NewCheck { start: offset, pop_time_ms, invisible_ms, distances: &[0], revive_queue };
            match self.book.add(pair, queue_id, &new) {
                Some(new) => break new,
                // Popped or changed in this very millisecond: two check points must not have one name.
                None => pop_time_ms += 1,
            }
        };
        let of = CheckName { topic, group, queue_id, start: offset, pop_time_ms };
        self.draft.check(&of, &self.options.broker_name, ask.invisible_ms, &[0], now_ms);
        if let Err(why) = self.put_waiting(cx, revive_queue, waiting, |waiting| Token::Check { waiting, slot: new }) {
            self.book.withdraw(new);
            self.book.not_acked(slot, &acked);
            return Err(why);
        }
        let of = CheckName { start, pop_time_ms: handle.pop_time_ms, ..of };
        self.draft.ack(&of, &self.options.broker_name, &acked, now_ms);
        if self.put_waiting(cx, revive_queue, waiting, |waiting| Token::Ack { waiting, slot }).is_err() {
            // The new check point counts; the old one is marked at the next look.
            self.unmarked.push((slot, acked));
        }
        Ok(pop_time_ms)
    }

    fn change_ordered(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        to: ReplyTo,
        ask: &ChangeAsk,
        handle: &Handle<'_>,
        pair: Option<u32>,
    ) {
        let AckAsk { topic, group, queue_id, offset, .. } = &ask.of;
        let (queue_id, offset) = (*queue_id, *offset as u64);
        let visible_ms = cx.now().wall_ms.saturating_add(ask.invisible_ms);
        let queue = pair.and_then(|pair| self.book.pair(pair).queues.get(&queue_id));
        if queue.is_some_and(|queue| offset < queue.next) {
            return response::invisible_changed(cx.answers, &to, 0, 0, 0);
        }
        let (pop_time_ms, revive_queue) = (handle.pop_time_ms, handle.revive_queue);
        let invisible_ms = visible_ms.saturating_sub(pop_time_ms);
        let info = queue.and_then(|queue| Some((queue.next, queue.order.as_deref()?.clone())));
        let (Some(pair), Some((next, mut info))) = (pair, info) else {
            return response::invisible_changed(cx.answers, &to, pop_time_ms, invisible_ms, revive_queue);
        };
        if !info.change(offset, pop_time_ms, visible_ms) {
            return response::invisible_changed(cx.answers, &to, pop_time_ms, invisible_ms, revive_queue);
        }
        self.draft.order(topic, group, queue_id, next, &info);
        let mut waiting = None;
        match self.put_waiting(cx, 0, &mut waiting, |waiting| Token::Order { waiting }) {
            Ok(()) => {
                self.set_order(pair, queue_id, Some(info));
                if let Some(waiting) = waiting {
                    let then = Then::Changed { to, pop_time_ms, invisible_ms, revive_queue };
                    self.waiting[waiting as usize].then = then;
                }
            }
            Err(why) => cx.answers.refuse(&to, ResponseCode::ServiceNotAvailable, &why),
        }
    }

    /// Appends the draft; whoever waits is told when it is written. Errors: the shard takes no record.
    pub(super) fn put_waiting(
        &mut self,
        cx: &mut ShardContext<'_, '_>,
        revive_queue: u32,
        waiting: &mut Option<u32>,
        token: impl FnOnce(u32) -> Token,
    ) -> Result<(), String> {
        let at = *waiting.get_or_insert_with(|| self.wait(Then::Nothing));
        match self.put(cx, revive_queue, token(at)) {
            Ok(()) => {
                self.waiting[at as usize].left += 1;
                Ok(())
            }
            Err(error) => {
                self.drop_unused(waiting);
                Err(error.to_string())
            }
        }
    }
}
