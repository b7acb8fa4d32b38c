//! Which half messages of a shard are open, and what became of the last ones that are not: a pure machine.
//!
//! Role: pending → ended, given up, or written again under a new offset, by what is asked and by what is stored. Invariants: a
//! half is carried out at most once; what is under way for it (an end, its move) is finished before anything else happens to it;
//! an end under an old offset counts for the half as it lies now; everything below [`Halves::low`] is ended. Memory: about
//! 50 bytes for each open half, and a bounded table of old offsets and of outcomes. It reads no record, writes none, and
//! knows no client.

use super::ended::{EndedAhead, Outcomes};
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// A map by queue offset.
pub type ByOffset<T> = HashMap<u64, T, foldhash::fast::RandomState>;

/// Old offsets that are remembered; an end under one that is forgotten is answered by the next check instead.
const MAX_MOVED: usize = 1 << 18;

/// What a producer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Deliver it.
    Commit,
    /// Forget it.
    Rollback,
}

/// What became of a half message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Delivered, or rolled back.
    Ended(End),
    /// Checked too often, or too old: it lies in the topic for these now.
    GivenUp,
    /// Its topic or its record is gone.
    Dropped,
}

/// A half message by both of its offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HalfId {
    /// In the half queue.
    pub queue_offset: u64,
    /// In the commit log.
    pub offset: u64,
}

/// What to do with an end that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Carry it out; then say [`Halves::ended`] or [`Halves::reopen`].
    CarryOut,
    /// The same is under way: wait for it.
    Joined,
    /// It is being written again: ask again when that is over.
    Later,
    /// It ended before, and this was its outcome; `None` when that is long ago.
    Done(Option<Outcome>),
    /// The other end is under way.
    Contradicts,
    /// No half message has these offsets.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Pending,
    /// A check of it is being prepared; an end may still come first.
    Checking,
    /// It is being written elsewhere.
    Moving,
    Ending(End),
}

#[derive(Clone, Copy, Debug)]
struct Half {
    offset: u64,
    /// Not checked before this monotonic time, in microseconds.
    check_at_us: u64,
    /// Number of its producer group, 0 while it is not known.
    group: u32,
    state: State,
}

/// A half that may be checked now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// Which.
    pub id: HalfId,
    /// Number of its producer group, 0 while it is not known.
    pub group: u32,
}

/// The half messages of one shard, see the head of the file.
#[derive(Debug, Default)]
pub struct Halves {
    /// Queue offset of the next half to take from the queue.
    next: u64,
    open: BTreeMap<u64, Half>,
    /// Ended although the queue was not read up to them yet; all above `next`.
    ended_ahead: EndedAhead,
    outcomes: Outcomes,
    /// Halves by an old queue offset: the old physical offset, the queue offset after it.
    moved: ByOffset<(u64, u64)>,
    /// The old queue offset of each half that was moved.
    came_from: ByOffset<u64>,
}

impl Halves {
    /// None open; the first to take has this queue offset.
    pub fn starting_at(next: u64) -> Self {
        Self { next, ..Self::default() }
    }

    /// Queue offset of the next half to take from the queue.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Everything below is ended.
    pub fn low(&self) -> u64 {
        self.open.first_key_value().map_or(self.next, |(first, _)| self.next.min(*first))
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether one is open.
    pub fn is_open(&self, queue_offset: u64) -> bool {
        self.open.contains_key(&queue_offset)
    }

    /// All open ones.
    pub fn open(&self) -> impl Iterator<Item = HalfId> {
        self.open.iter().map(|(queue_offset, half)| HalfId { queue_offset: *queue_offset, offset: half.offset })
    }

    /// The queue was read up to this half; they are taken in their order.
    pub fn take(&mut self, id: HalfId) {
        self.advance(id.queue_offset);
        if id.queue_offset < self.next {
            return;
        }
        self.open.entry(id.queue_offset).or_insert(Half::new(id.offset));
        self.step_to(id.queue_offset + 1);
    }

    /// The queue was read up to here; what was not taken below is lost.
    pub fn advance(&mut self, next: u64) {
        if next > self.next {
            self.step_to(next);
        }
    }

    /// Goes on to `next`, and past what has ended from there on.
    fn step_to(&mut self, next: u64) {
        self.next = self.ended_ahead.forget_below(next);
    }

    /// Where the half lies now that had these offsets once.
    pub fn current(&self, id: HalfId) -> HalfId {
        let mut at = id;
        while let Some(&(offset, next)) = self.moved.get(&at.queue_offset)
            && offset == at.offset
        {
            let offset = match (self.open.get(&next), self.moved.get(&next)) {
                (Some(half), _) => half.offset,
                (None, Some((offset, _))) => *offset,
                (None, None) => return at,
            };
            at = HalfId { queue_offset: next, offset };
        }
        at
    }

    /// A producer ends a half of which a record with these offsets exists.
    pub fn ask(&mut self, id: HalfId, end: End) -> Asked {
        let ahead = id.queue_offset >= self.next && !self.ended_ahead.contains(id.queue_offset);
        if ahead {
            self.open.entry(id.queue_offset).or_insert(Half::new(id.offset));
        }
        let Some(half) = self.open.get_mut(&id.queue_offset) else {
            return Asked::Done(self.outcomes.get(id.queue_offset));
        };
        if half.offset != id.offset {
            return Asked::Unknown;
        }
        match half.state {
            State::Pending | State::Checking => {
                half.state = State::Ending(end);
                Asked::CarryOut
            }
            State::Moving => Asked::Later,
            State::Ending(other) if other == end => Asked::Joined,
            State::Ending(_) => Asked::Contradicts,
        }
    }

    /// What was under way failed: the half is pending again, and not checked before `check_at_us`.
    pub fn reopen(&mut self, queue_offset: u64, check_at_us: u64) {
        if let Some(half) = self.open.get_mut(&queue_offset) {
            half.state = State::Pending;
            half.check_at_us = check_at_us;
        }
    }

    /// A half ended before the start. Tells whether it was open.
    pub fn ended_before(&mut self, queue_offset: u64) -> bool {
        let was_open = self.open.remove(&queue_offset).is_some();
        if was_open {
            self.leave(queue_offset);
        }
        was_open
    }

    /// An offset is done with: the queue need not be read up to it.
    fn leave(&mut self, queue_offset: u64) {
        if queue_offset == self.next {
            self.step_to(queue_offset + 1);
        } else if queue_offset > self.next {
            self.ended_ahead.insert(queue_offset);
        }
    }

    /// It is over with a half.
    pub fn ended(&mut self, queue_offset: u64, outcome: Outcome) {
        if !self.ended_before(queue_offset) {
            return;
        }
        self.outcomes.remember(queue_offset, outcome);
        self.forget_path(queue_offset, |halves, old| halves.outcomes.remember(old, outcome));
    }

    /// The next half at or above `from` that may be checked, among the first `look` that are open there; and where to look on,
    /// `None` behind the last one.
    pub fn due(&self, from: u64, now_us: u64, look: usize) -> (Option<Due>, Option<u64>) {
        let mut seen = self.open.range(from..);
        for (queue_offset, half) in seen.by_ref().take(look) {
            if half.state == State::Pending && half.check_at_us <= now_us {
                let id = HalfId { queue_offset: *queue_offset, offset: half.offset };
                return (Some(Due { id, group: half.group }), Some(queue_offset + 1));
            }
        }
        (None, seen.next().map(|(queue_offset, _)| *queue_offset))
    }

    /// A check of a pending half begins.
    pub fn begin_check(&mut self, queue_offset: u64) {
        if let Some(half) = self.open.get_mut(&queue_offset) {
            half.state = State::Checking;
        }
    }

    /// Whether a check is still to go on; else an end came first.
    pub fn is_checking(&self, queue_offset: u64) -> bool {
        self.open.get(&queue_offset).is_some_and(|half| half.state == State::Checking)
    }

    /// The end of a half that is under way.
    pub fn ending(&self, queue_offset: u64) -> Option<End> {
        match self.open.get(&queue_offset)?.state {
            State::Ending(end) => Some(end),
            _ => None,
        }
    }

    /// The physical offset of an open half.
    pub fn offset_of(&self, queue_offset: u64) -> Option<u64> {
        self.open.get(&queue_offset).map(|half| half.offset)
    }

    /// The number of the group of an open half, 0 while it is not known.
    pub fn group_of(&self, queue_offset: u64) -> Option<u32> {
        self.open.get(&queue_offset).map(|half| half.group)
    }

    /// The group of an open half is known now.
    pub fn set_group(&mut self, queue_offset: u64, group: u32) {
        if let Some(half) = self.open.get_mut(&queue_offset) {
            half.group = group;
        }
    }

    /// A half is being written elsewhere; then say [`Halves::moved`], [`Halves::ended`] or [`Halves::reopen`].
    pub fn begin_move(&mut self, queue_offset: u64) {
        if let Some(half) = self.open.get_mut(&queue_offset) {
            half.state = State::Moving;
        }
    }

    /// A half lies under new offsets now.
    pub fn moved(&mut self, old: u64, new: HalfId, check_at_us: u64) {
        let Some(half) = self.open.remove(&old) else { return };
        self.leave(old);
        self.open.insert(new.queue_offset, Half { offset: new.offset, check_at_us, state: State::Pending, ..half });
        if self.moved.len() < MAX_MOVED {
            self.moved.insert(old, (half.offset, new.queue_offset));
            self.came_from.insert(new.queue_offset, old);
        } else {
            self.forget_path(old, |_, _| {});
        }
    }

    /// Forgets the old offsets of a half, and gives each of them.
    fn forget_path(&mut self, mut at: u64, mut each: impl FnMut(&mut Self, u64)) {
        while let Some(old) = self.came_from.remove(&at) {
            self.moved.remove(&old);
            each(self, old);
            at = old;
        }
    }
}

impl Half {
    fn new(offset: u64) -> Self {
        Self { offset, check_at_us: 0, group: 0, state: State::Pending }
    }
}
