//! What waits for the disk: acknowledgements for a sync, reads for cold bytes.
//!
//! Role: pure queues, one set for each shard. Invariants: acknowledgements leave in the order of their appends, each once; one
//! that waits for a sync leaves as stored only when `durable_to` has passed its turn's end; a parked read leaves when its fetch
//! is there. Bounded by the requests in flight of the connections.

use crate::crossing::ReplyTo;
use crate::gather::ShardAsk;
use crate::services::{ServiceTicket, Waiter};
use crate::work::{PullWork, QueueQuestion, SendBack};
use hashbrown::HashMap;
use message::{PhysicalOffset, QueueOffset};
use reactor::{CoreId, Now};
use smallvec::SmallVec;
use std::collections::VecDeque;
use store::FetchId;

/// An append that is to be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledge {
    /// Who waits.
    pub to: Waiter,
    /// The queue that the sender is told: that of the message, though it may wait in another.
    pub queue_id: u32,
    /// Queue offset of the first record.
    pub queue_offset: QueueOffset,
    /// Physical offset of each record.
    pub offsets: SmallVec<[PhysicalOffset; 1]>,
    /// The unique id for `transactionId`; empty for none.
    pub unique_id: SmallVec<[u8; 36]>,
    /// Of a timed message: what it can be recalled by.
    pub recall_handle: Option<Box<[u8]>>,
    /// The sender waits for the sync too.
    pub wait: bool,
}

/// The acknowledgements of one shard.
#[derive(Debug, Default)]
pub struct AckGroups {
    staged: Vec<Acknowledge>,
    groups: VecDeque<Group>,
    /// Records of other shards' services: these wait for the sync whatever the mode is, and however long.
    relayed: VecDeque<(PhysicalOffset, Acknowledge)>,
}

/// The acknowledgements of one turn that wait for its sync.
#[derive(Debug)]
struct Group {
    end: PhysicalOffset,
    deadline_us: u64,
    acks: Vec<Acknowledge>,
}

impl AckGroups {
    /// An append was staged in this turn.
    pub fn stage(&mut self, ack: Acknowledge) {
        self.staged.push(ack);
    }

    /// Whether this turn staged no append.
    pub fn nothing_staged(&self) -> bool {
        self.staged.is_empty()
    }

    /// Whether nothing waits at all.
    pub fn is_empty(&self) -> bool {
        self.staged.is_empty() && self.groups.is_empty() && self.relayed.is_empty()
    }

    /// The turn's write succeeded up to `end`: gives what may be answered now to `answer`, and keeps the rest (`sync`, and the
    /// sender waits) until `end` is durable or `deadline_us` has passed.
    pub fn written(&mut self, sync: bool, end: PhysicalOffset, deadline_us: u64, mut answer: impl FnMut(&Acknowledge)) {
        let mut acks = std::mem::take(&mut self.staged);
        let relayed = acks.extract_if(.., |ack| matches!(ack.to, Waiter::Relay { .. }));
        self.relayed.extend(relayed.map(|ack| (end, ack)));
        if !sync {
            acks.drain(..).for_each(|ack| answer(&ack));
            self.staged = acks;
            return;
        }
        acks.retain(|ack| {
            if !ack.wait {
                answer(ack);
            }
            ack.wait
        });
        if !acks.is_empty() {
            self.groups.push_back(Group { end, deadline_us, acks });
        }
    }

    /// The turn's write failed: gives everything that it staged to `refuse`.
    pub fn write_failed(&mut self, mut refuse: impl FnMut(&Acknowledge)) {
        self.staged.drain(..).for_each(|ack| refuse(&ack));
    }

    /// Everything below `to` is durable: gives what that covers to `answer`.
    pub fn durable(&mut self, to: PhysicalOffset, mut answer: impl FnMut(&Acknowledge)) {
        while let Some(group) = self.groups.pop_front_if(|group| group.end <= to) {
            group.acks.iter().for_each(&mut answer);
        }
        while let Some((_, ack)) = self.relayed.pop_front_if(|(end, _)| *end <= to) {
            answer(&ack);
        }
    }

    /// No sync will succeed any more: gives everything that waits for one to `refuse`.
    pub fn sync_failed(&mut self, mut refuse: impl FnMut(&Acknowledge)) {
        self.groups.drain(..).for_each(|group| group.acks.iter().for_each(&mut refuse));
        self.relayed.drain(..).for_each(|(_, ack)| refuse(&ack));
    }

    /// The first record that a service of this shard put and was not told about yet.
    pub fn first_of_services(&self) -> Option<PhysicalOffset> {
        let waiting = self.groups.iter().flat_map(|group| &group.acks).chain(&self.staged);
        let of_services = waiting.filter(|ack| matches!(ack.to, Waiter::Service(_)));
        of_services.filter_map(|ack| ack.offsets.first().copied()).min()
    }

    /// When the first of them has waited too long, in monotonic microseconds.
    pub fn next_deadline_us(&self) -> Option<u64> {
        self.groups.front().map(|group| group.deadline_us)
    }

    /// Gives what waited too long for its sync to `expired`.
    pub fn expire(&mut self, now: Now, mut expired: impl FnMut(&Acknowledge)) {
        while let Some(group) = self.groups.pop_front_if(|group| group.deadline_us <= now.mono_us) {
            group.acks.iter().for_each(&mut expired);
        }
    }
}

/// A read that runs again when its bytes are there.
#[derive(Debug)]
pub enum Pending {
    /// A pull.
    Pull(ReplyTo, PullWork),
    /// A question about one queue.
    Question(ReplyTo, QueueQuestion),
    /// The message of a send-back.
    SendBack(ReplyTo, SendBack),
    /// A read of a service.
    Service(ServiceTicket),
    /// A question of a gather.
    Ask {
        /// Where the answer goes.
        from: CoreId,
        /// Carried back.
        gather: u64,
        /// The question.
        ask: ShardAsk,
    },
}

/// The parked reads of one shard.
#[derive(Debug, Default)]
pub struct Parked {
    waiting: HashMap<FetchId, SmallVec<[Pending; 1]>, foldhash::fast::RandomState>,
}

impl Parked {
    /// Parks a read until a fetch is there. Several reads may wait for one fetch.
    pub fn park(&mut self, id: FetchId, pending: Pending) {
        self.waiting.entry(id).or_default().push(pending);
    }

    /// What waited for a fetch.
    pub fn take(&mut self, id: FetchId) -> SmallVec<[Pending; 1]> {
        self.waiting.remove(&id).unwrap_or_default()
    }

    /// How many fetches are waited for.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::ConnectionId;
    use remoting::SerializeType;

    const NONE: [i32; 0] = [];

    fn ack(opaque: i32, wait: bool) -> Acknowledge {
        let conn = ConnectionId { core: CoreId(0), slot: 0, generation: 0 };
        Acknowledge {
            to: Waiter::Send(ReplyTo {
                conn,
                opaque,
                form: SerializeType::Json,
                oneway: false,
                bytes: 0,
                counted: true,
            }),
            queue_id: 0,
            queue_offset: QueueOffset(0),
            offsets: SmallVec::new(),
            unique_id: SmallVec::new(),
            recall_handle: None,
            wait,
        }
    }

    fn at(mono_us: u64) -> Now {
        Now { mono_us, wall_ms: 0 }
    }

    /// Runs `step` and gives the opaques that it let go.
    fn left(groups: &mut AckGroups, step: impl FnOnce(&mut AckGroups, &mut dyn FnMut(&Acknowledge))) -> Vec<i32> {
        let mut out = Vec::new();
        step(groups, &mut |ack| match ack.to {
            Waiter::Send(to) => out.push(to.opaque),
            ref other => panic!("{other:?}"),
        });
        out
    }

    #[test]
    fn without_sync_the_write_answers_all_in_order() {
        let mut groups = AckGroups::default();
        (1..=3).for_each(|opaque| groups.stage(ack(opaque, opaque != 2)));
        assert_eq!(left(&mut groups, |g, f| g.written(false, PhysicalOffset(10), 5, f)), [1, 2, 3]);
        assert!(groups.is_empty());
    }

    #[test]
    fn with_sync_only_who_does_not_wait_is_answered_before_it_is_durable() {
        let mut groups = AckGroups::default();
        (1..=3).for_each(|opaque| groups.stage(ack(opaque, opaque != 2)));
        assert_eq!(left(&mut groups, |g, f| g.written(true, PhysicalOffset(10), 100, f)), [2]);
        groups.stage(ack(4, true));
        assert_eq!(left(&mut groups, |g, f| g.written(true, PhysicalOffset(20), 200, f)), NONE);
        assert_eq!(left(&mut groups, |g, f| g.durable(PhysicalOffset(9), f)), NONE);
        assert_eq!(left(&mut groups, |g, f| g.durable(PhysicalOffset(10), f)), [1, 3]);
        assert_eq!(left(&mut groups, |g, f| g.expire(at(199), f)), NONE);
        assert_eq!(left(&mut groups, |g, f| g.expire(at(200), f)), [4]);
        assert_eq!(left(&mut groups, |g, f| g.durable(PhysicalOffset(20), f)), NONE, "once");
    }

    #[test]
    fn the_first_record_of_a_service_is_known_until_it_is_told() {
        let ticket = crate::services::ServiceTicket { kind: crate::services::ServiceKind::Timer, token: 0 };
        let of_service = |at| Acknowledge {
            to: Waiter::Service(ticket),
            offsets: SmallVec::from_slice(&[PhysicalOffset(at)]),
            ..ack(0, true)
        };
        let mut groups = AckGroups::default();
        groups.stage(ack(1, true));
        assert_eq!(groups.first_of_services(), None);
        groups.stage(of_service(7));
        assert_eq!(groups.first_of_services(), Some(PhysicalOffset(7)));
        groups.written(true, PhysicalOffset(10), 100, |_| panic!("it waits"));
        groups.stage(of_service(12));
        assert_eq!(groups.first_of_services(), Some(PhysicalOffset(7)));
        groups.durable(PhysicalOffset(10), |_| {});
        assert_eq!(groups.first_of_services(), Some(PhysicalOffset(12)));
    }

    #[test]
    fn failures_let_go_of_what_they_concern() {
        let mut groups = AckGroups::default();
        groups.stage(ack(1, true));
        groups.written(true, PhysicalOffset(10), 100, |_| panic!("it waits"));
        groups.stage(ack(2, true));
        assert_eq!(left(&mut groups, |g, f| g.write_failed(f)), [2]);
        assert_eq!(left(&mut groups, |g, f| g.sync_failed(f)), [1]);
        assert!(groups.is_empty());
    }

    #[test]
    fn reads_leave_with_their_fetch() {
        let mut parked = Parked::default();
        for gather in [1, 2] {
            parked.park(FetchId(7), Pending::Ask { from: CoreId(0), gather, ask: ShardAsk::End });
        }
        parked.park(FetchId(8), Pending::Ask { from: CoreId(0), gather: 3, ask: ShardAsk::End });
        assert_eq!(parked.take(FetchId(7)).len(), 2);
        assert!(parked.take(FetchId(7)).is_empty() && parked.len() == 1);
    }
}
