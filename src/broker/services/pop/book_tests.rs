//! The machine of POP against a model: a log of what was written, and for each message who may have it.

use super::*;
use proptest::prelude::*;

/// What the world knows of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Held { start: u64, pop_time_ms: i64 },
    Acked,
    Revived,
}

/// A record of the revive queue.
#[derive(Clone, Debug)]
enum Written {
    Check { start: u64, pop_time_ms: i64, invisible_ms: i64, distances: Vec<u32> },
    Ack { name: (u64, i64), offsets: Vec<u64> },
}

struct Model {
    book: Book,
    pair: u32,
    log: Vec<Written>,
    fates: BTreeMap<u64, Fate>,
    now_ms: i64,
    position: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Pop { count: u32, gap: u32, invisible_ms: i64 },
    FailedPop(u32),
    Ack { which: usize, all: bool },
    AckTwice(usize),
    Forge(u64, i64, u64),
    Change { which: usize, invisible_ms: i64 },
    Pass(i64),
    SavePosition,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u32..32, 0u32..2, 0i64..50).prop_map(|(count, gap, invisible_ms)| Step::Pop { count, gap, invisible_ms }),
        1 => (1u32..32).prop_map(Step::FailedPop),
        4 => (any::<usize>(), any::<bool>()).prop_map(|(which, all)| Step::Ack { which, all }),
        1 => any::<usize>().prop_map(Step::AckTwice),
        1 => (0u64..40, 0i64..40, 0u64..80).prop_map(|(start, pop, offset)| Step::Forge(start, pop, offset)),
        2 => (any::<usize>(), 0i64..50).prop_map(|(which, invisible_ms)| Step::Change { which, invisible_ms }),
        3 => (0i64..40).prop_map(Step::Pass),
        1 => Just(Step::SavePosition),
        1 => Just(Step::Restart),
    ]
}

fn names() -> (Arc<str>, Arc<str>) {
    ("t".into(), "g".into())
}

impl Model {
    fn new() -> Self {
        let (book, pair) = Self::empty();
        Self { book, pair, log: Vec::new(), fates: BTreeMap::new(), now_ms: 1000, position: 0 }
    }

    fn empty() -> (Book, u32) {
        let mut book = Book::new(1);
        let (topic, group) = names();
        let pair = book.find_or_add(&topic, &group);
        book.set_next(pair, 0, 0, 1);
        (book, pair)
    }

    fn write(&mut self, written: Written) -> u64 {
        self.log.push(written);
        self.log.len() as u64 - 1
    }

    fn next(&self) -> u64 {
        self.book.pair(self.pair).queues[&0].next
    }

    fn pop(&mut self, count: u32, gap: u32, invisible_ms: i64, written: bool) {
        let start = self.next();
        let distances: Vec<u32> = (0..count).map(|at| at * (gap + 1)).collect();
        let new = NewCheck { start, pop_time_ms: self.now_ms, invisible_ms, distances: &distances, revive_queue: 0 };
        let slot = self.book.add(self.pair, 0, &new).expect("a start is popped once");
        self.book.set_next(self.pair, 0, start + u64::from(distances[count as usize - 1]) + 1, 1);
        if !written {
            self.book.not_written(slot);
            assert_eq!(self.next(), start);
            return;
        }
        for distance in &distances {
            let held = Fate::Held { start, pop_time_ms: self.now_ms };
            assert_eq!(self.fates.insert(start + u64::from(*distance), held), None, "given out twice");
        }
        let at = self.write(Written::Check { start, pop_time_ms: self.now_ms, invisible_ms, distances });
        self.book.written(slot, at + 1, at);
    }

    fn held(&self, which: usize) -> Option<(u64, u64, i64)> {
        let held: Vec<_> = self
            .fates
            .iter()
            .filter_map(|(offset, fate)| match fate {
                Fate::Held { start, pop_time_ms } => Some((*offset, *start, *pop_time_ms)),
                _ => None,
            })
            .collect();
        (!held.is_empty()).then(|| held[which % held.len()])
    }

    fn ack(&mut self, name: (u64, i64), offsets: &[u64]) -> Offsets {
        let Some((slot, new)) = self.book.ack(self.pair, 0, name, offsets.iter().copied()) else {
            return Offsets::new();
        };
        let at = self.write(Written::Ack { name, offsets: new.to_vec() });
        self.book.ack_written(slot, at);
        for offset in &new {
            let before = self.fates.insert(*offset, Fate::Acked);
            assert_eq!(before, Some(Fate::Held { start: name.0, pop_time_ms: name.1 }), "only the holder acknowledges");
        }
        new
    }

    fn change(&mut self, which: usize, invisible_ms: i64) {
        let Some((offset, start, pop_time_ms)) = self.held(which) else { return };
        let mut time = self.now_ms;
        let new = |pop_time_ms| NewCheck { start: offset, pop_time_ms, invisible_ms, distances: &[0], revive_queue: 0 };
        let slot = loop {
            match self.book.add(self.pair, 0, &new(time)) {
                Some(slot) => break slot,
                None => time += 1,
            }
        };
        let (old, _) = self.book.ack(self.pair, 0, (start, pop_time_ms), std::iter::once(offset)).expect("it is held");
        let at = self.write(Written::Check { start: offset, pop_time_ms: time, invisible_ms, distances: vec![0] });
        self.book.written(slot, at + 1, at);
        let ack = Written::Ack { name: (start, pop_time_ms), offsets: vec![offset] };
        let at = self.write(ack);
        self.book.ack_written(old, at);
        self.fates.insert(offset, Fate::Held { start: offset, pop_time_ms: time });
    }

    fn pass(&mut self, ms: i64) {
        self.now_ms += ms;
        while let Some((due_ms, slot)) = self.book.first_due().filter(|(due_ms, _)| *due_ms <= self.now_ms) {
            let check = self.book.check(slot).unwrap().clone();
            assert_eq!(due_ms, check.pop_time_ms + check.invisible_ms);
            for (at, offset) in check.held() {
                self.book.reviving(slot, at);
                let before = self.fates.insert(offset, Fate::Revived);
                let holder = Fate::Held { start: check.start, pop_time_ms: check.pop_time_ms };
                assert_eq!(before, Some(holder), "revived by its holder");
                assert!(self.ack((check.start, check.pop_time_ms), &[offset]).is_empty(), "an ack comes too late");
            }
            let there = self.book.revived(slot);
            let name = (check.start, check.pop_time_ms);
            let at = self.write(Written::Ack { name, offsets: there.to_vec() });
            self.book.ack_written(slot, at);
            assert!(self.book.check(slot).is_none(), "nothing of it is left");
        }
    }

    /// Reads the log from the saved position, as a start does; `next` came with the position.
    fn restart(&mut self) {
        let next = self.next();
        let (mut book, pair) = Self::empty();
        for (at, written) in self.log.iter().enumerate().skip(self.position as usize) {
            match written {
                Written::Check { start, pop_time_ms, invisible_ms, distances } => {
                    let (pop_time_ms, invisible_ms) = (*pop_time_ms, *invisible_ms);
                    let new = NewCheck { start: *start, pop_time_ms, invisible_ms, distances, revive_queue: 0 };
                    let slot = book.add(pair, 0, &new).expect("names are unique");
                    book.written(slot, at as u64 + 1, at as u64);
                }
                Written::Ack { name, offsets } => {
                    if let Some((slot, _)) = book.ack(pair, 0, *name, offsets.iter().copied()) {
                        book.ack_written(slot, at as u64);
                    }
                }
            }
        }
        book.seen(0, self.log.len() as u64);
        book.set_next(pair, 0, next, 1);
        (self.book, self.pair) = (book, pair);
    }

    /// What the book says is held is what the model says.
    fn check(&self) {
        let mut held = BTreeMap::new();
        for (_, slot) in self.book.due.iter() {
            let check = self.book.check(*slot).unwrap();
            for (_, offset) in check.held() {
                let holder = Fate::Held { start: check.start, pop_time_ms: check.pop_time_ms };
                assert_eq!(held.insert(offset, holder), None, "two holders");
            }
        }
        let model: BTreeMap<_, _> =
            self.fates.iter().filter(|(_, f)| matches!(f, Fate::Held { .. })).map(|(o, f)| (*o, *f)).collect();
        assert_eq!(held, model);
        assert!(self.book.position(0) <= self.log.len() as u64);
        assert_eq!(self.book.is_empty(), model.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 100_000, max_shrink_iters: 2_000, ..ProptestConfig::default() })]
    /// Nothing that is not acknowledged is lost, nothing acknowledged comes again, nothing has two holders; over restarts too.
    #[test]
    fn every_message_has_one_holder_until_it_is_acked_or_revived(steps in proptest::collection::vec(step(), 1..24)) {
        let mut model = Model::new();
        for step in steps {
            match step {
                Step::Pop { count, gap, invisible_ms } => model.pop(count, gap, invisible_ms, true),
                Step::FailedPop(count) => model.pop(count, 0, 1, false),
                Step::Ack { which, all } => {
                    if let Some((offset, start, pop_time_ms)) = model.held(which) {
                        let offsets: Vec<u64> = if all { (start..start + 64).collect() } else { vec![offset] };
                        prop_assert!(!model.ack((start, pop_time_ms), &offsets).is_empty());
                    }
                }
                Step::AckTwice(which) => {
                    if let Some((offset, start, pop_time_ms)) = model.held(which) {
                        prop_assert_eq!(model.ack((start, pop_time_ms), &[offset, offset]).len(), 1);
                        prop_assert!(model.ack((start, pop_time_ms), &[offset]).is_empty());
                    }
                }
                Step::Forge(start, pop, offset) => { model.ack((start, pop), &[offset]); }
                Step::Change { which, invisible_ms } => model.change(which, invisible_ms),
                Step::Pass(ms) => model.pass(ms),
                Step::SavePosition => model.position = model.book.position(0),
                Step::Restart => model.restart(),
            }
            model.check();
        }
        model.pass(10_000);
        model.check();
        prop_assert!(model.book.is_empty());
    }
}

#[test]
fn pairs_that_hold_nothing_are_forgotten() {
    let (mut book, pair) = Model::empty();
    let new = NewCheck { start: 0, pop_time_ms: 1, invisible_ms: 1, distances: &[0], revive_queue: 0 };
    let slot = book.add(pair, 0, &new).unwrap();
    book.written(slot, 1, 0);
    book.pair_mut(pair).queues.get_mut(&0).unwrap().dirty = false;
    book.forget_idle(u64::MAX);
    assert_eq!(book.find("t", "g"), Some(pair), "it holds a check point");
    book.forget(slot);
    book.pair_mut(pair).used_us = 5;
    book.forget_idle(5);
    assert_eq!(book.find("t", "g"), Some(pair), "it was used");
    book.forget_idle(6);
    assert_eq!((book.find("t", "g"), book.position(0)), (None, 1));
}
