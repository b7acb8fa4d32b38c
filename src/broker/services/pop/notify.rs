//! Who waits is told: of messages that are there already, and of ordered queues that are free again.

use super::Running;
use super::request::WatchAsk;
use super::watch::{Watch, Watches};
use crate::services::ShardContext;
use std::sync::Arc;

impl Running {
    /// Ordered queues whose messages are visible again: who waits is told.
    pub(super) fn free_ordered(&mut self, cx: &ShardContext<'_, '_>, watches: &mut Watches) {
        while let Some(&(due_ms, pair, queue_id)) = self.order_due.first() {
            if due_ms > cx.now().wall_ms {
                return;
            }
            self.order_due.remove(&(due_ms, pair, queue_id));
            watches.arrived(self.book.pair(pair).topic.as_bytes());
        }
    }

    /// A pop is held: tells its core of the next message that it may get; at once if there is one already.
    pub(super) fn watch(&mut self, cx: &mut ShardContext<'_, '_>, watches: &mut Watches, ask: &WatchAsk) {
        let watch = |group: Option<Arc<str>>| Watch { core: ask.core, topic: ask.topic.name.clone(), group };
        let of_group = || watch(Some(ask.group.name.clone()));
        let retries = ask.retry_topics();
        let may_pop = ask.look && self.book.has_room() && cx.shard.is_writable().is_ok();
        let has_some = || {
            let own = (0..ask.topic.read_queues)
                .filter(|queue_id| ask.queue_id < 0 || i64::from(*queue_id) == i64::from(ask.queue_id))
                .any(|queue_id| self.has_some(cx, &ask.topic.name, &ask.group.name, queue_id, ask.order));
            own || !ask.order
                && retries.iter().any(|retry| {
                    let queues = cx.snapshot.topic(retry.as_bytes()).map_or(0, |retry| retry.read_queues);
                    (0..queues).any(|queue_id| self.has_some(cx, retry, &ask.group.name, queue_id, false))
                })
        };
        if may_pop && has_some() {
            return watches.tell(of_group());
        }
        watches.set(&ask.topic.name, watch(None));
        retries.iter().for_each(|retry| watches.set(retry, of_group()));
    }

    /// Whether a queue of this shard has messages that a group may pop now.
    fn has_some(&self, cx: &ShardContext<'_, '_>, topic: &str, group: &str, queue_id: u32, order: bool) -> bool {
        let Some(bounds) = cx.shard.bounds(topic.as_bytes(), queue_id) else { return false };
        let here = cx.snapshot.topic(topic.as_bytes()).is_some_and(|topic| topic.shard_of(queue_id) == cx.id);
        let Some(pair) = self.book.find(topic, group) else { return here && bounds.max > bounds.min };
        let next = self.book.pair(pair).queues.get(&queue_id).map_or(bounds.min.0, |queue| queue.next);
        here && bounds.max.0 > next && !(order && self.is_blocked(pair, queue_id, None, cx.now().wall_ms))
    }
}
