//! What the owner and the next process are told: offsets of groups, positions in the revive queues, ordered queues.
//!
//! Invariants: the owner learns of an offset only when the log behind it is durable, so that no message is passed over whose
//! check point a power cut took.

use super::book::Queue;
use super::{PopCommit, PopProgress, Running};
use crate::owner::{OwnerRequest, PopToOwner};
use crate::services::ShardContext;

/// An offset is kept in the saved progress for this long after its last change: by then the owner has its file on the disk.
const KEEP_OFFSET_US: u64 = 60_000_000;

impl Running {
    /// Tells the owner what changed, when the log behind it is durable.
    pub(super) fn tell_owner(&mut self, cx: &mut ShardContext<'_, '_>) {
        let durable = cx.shard.durable_to();
        if !self.commits.is_empty() {
            if self.commits_end > durable {
                return;
            }
            self.send_commits(cx);
        }
        self.collect_commits();
        self.commits_end = cx.shard.end();
        if self.commits_end <= durable {
            self.send_commits(cx);
        }
    }

    pub(super) fn collect_commits(&mut self) {
        let dirty: Vec<u32> =
            self.book.pairs().filter(|(_, p)| p.queues.values().any(|q| q.dirty)).map(|(id, _)| id).collect();
        for id in dirty {
            let pair = self.book.pair_mut(id);
            let (topic, group) = (pair.topic.clone(), pair.group.clone());
            for (queue_id, queue) in pair.queues.iter_mut().filter(|(_, queue)| queue.dirty) {
                queue.dirty = false;
                let (topic, group, offset) = (topic.clone(), group.clone(), queue.next as i64);
                self.commits.push(PopCommit { topic, group, queue_id: *queue_id, offset });
            }
        }
        for queue in 0..self.book.revive_queues() {
            let position = self.book.position(queue);
            // A Java broker goes on behind the offset that it finds.
            if position > self.told_positions[queue as usize] && position > 0 {
                self.told_positions[queue as usize] = position;
                self.commits.push(PopCommit {
                    topic: self.topic.clone(),
                    group: message::names::REVIVE_GROUP.into(),
                    queue_id: self.first_queue + queue,
                    offset: position as i64 - 1,
                });
            }
        }
    }

    pub(super) fn send_commits(&mut self, cx: &mut ShardContext<'_, '_>) {
        if !self.commits.is_empty() {
            let commits = std::mem::take(&mut self.commits);
            cx.answers.lanes.owner(OwnerRequest::Pop(PopToOwner::Commit(commits)));
        }
    }

    pub(super) fn progress(&self) -> PopProgress {
        let mut progress = PopProgress::default();
        for queue in 0..self.book.revive_queues() {
            progress.revive.insert(queue, self.book.position(queue));
        }
        for (_, pair) in self.book.pairs() {
            let recent = |queue: &Queue| queue.changed_us + KEEP_OFFSET_US > self.next_look_us || queue.dirty;
            let key = || crate::snapshot::topic_at_group(&pair.topic, &pair.group);
            for (queue_id, queue) in &pair.queues {
                if recent(queue) {
                    progress.next.entry(key()).or_default().insert(*queue_id, queue.next);
                }
                if let Some(info) = &queue.order {
                    let text = String::from_utf8(info.to_json().to_vec()).expect("JSON is text");
                    progress.order.entry(key()).or_default().insert(*queue_id, text);
                }
            }
        }
        progress
    }
}
