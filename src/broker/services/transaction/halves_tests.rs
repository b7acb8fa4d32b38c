//! The machine of half messages against a list of what became of each.

use super::halves::{Asked, End, HalfId, Halves, Outcome};
use proptest::prelude::*;

/// A half message as the model has it.
#[derive(Clone, Debug)]
struct Logical {
    /// Where it lay, and lies now.
    ids: Vec<HalfId>,
    state: Model,
    carried_out: u32,
    /// Old ids count only since the start.
    ids_known_from: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Model {
    Pending,
    Checking,
    Moving,
    Ending(End),
    Over(Option<Outcome>),
}

#[derive(Clone, Debug)]
enum Op {
    Arrive,
    Take(u8),
    Ask { half: u8, id: u8, end: End },
    Finish { half: u8, well: bool },
    Check(u8),
    Move(u8),
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let end = prop_oneof![Just(End::Commit), Just(End::Rollback)];
    prop_oneof![
        4 => Just(Op::Arrive),
        2 => (0u8..4).prop_map(Op::Take),
        6 => (any::<u8>(), any::<u8>(), end).prop_map(|(half, id, end)| Op::Ask { half, id, end }),
        6 => (any::<u8>(), any::<bool>()).prop_map(|(half, well)| Op::Finish { half, well }),
        3 => (any::<u8>()).prop_map(Op::Check),
        3 => (any::<u8>()).prop_map(Op::Move),
        1 => Just(Op::Restart),
    ]
}

/// Machine and model side by side.
struct Pair {
    halves: Halves,
    model: Vec<Logical>,
    /// The half queue: physical offset of each entry.
    queue: Vec<u64>,
}

impl Pair {
    fn append(&mut self) -> HalfId {
        let id = HalfId { queue_offset: self.queue.len() as u64, offset: self.queue.len() as u64 * 400 + 400 };
        self.queue.push(id.offset);
        id
    }

    fn take(&mut self, count: usize) {
        for _ in 0..count {
            let at = self.halves.next();
            let Some(offset) = self.queue.get(at as usize) else { return };
            self.halves.take(HalfId { queue_offset: at, offset: *offset });
        }
    }

    fn pick(&self, half: u8) -> Option<usize> {
        (!self.model.is_empty()).then(|| usize::from(half) % self.model.len())
    }

    fn ask(&mut self, at: usize, id: u8, end: End) {
        let logical = &mut self.model[at];
        let known = &logical.ids[logical.ids_known_from..];
        let id = known[usize::from(id) % known.len()];
        let current = self.halves.current(id);
        let is_over = matches!(logical.state, Model::Over(_));
        assert!(is_over || current == *logical.ids.last().unwrap(), "old offsets lead to where it lies now");
        let expected = match logical.state {
            Model::Pending | Model::Checking => {
                logical.state = Model::Ending(end);
                Asked::CarryOut
            }
            Model::Moving => Asked::Later,
            Model::Ending(other) if other == end => Asked::Joined,
            Model::Ending(_) => Asked::Contradicts,
            Model::Over(outcome) => Asked::Done(outcome),
        };
        assert_eq!(self.halves.ask(current, end), expected, "{logical:?}");
        let wrong = HalfId { offset: current.offset + 1, ..current };
        if !is_over {
            assert_eq!(self.halves.ask(wrong, end), Asked::Unknown);
        }
    }

    fn finish(&mut self, at: usize, well: bool) {
        let new = matches!((self.model[at].state, well), (Model::Moving, true)).then(|| self.append());
        let logical = &mut self.model[at];
        let queue_offset = logical.ids.last().unwrap().queue_offset;
        match (logical.state, well) {
            (Model::Ending(end), true) => {
                self.halves.ended(queue_offset, Outcome::Ended(end));
                logical.state = Model::Over(Some(Outcome::Ended(end)));
                logical.carried_out += 1;
            }
            (Model::Moving, true) => {
                let new = new.unwrap();
                self.halves.moved(queue_offset, new, 0);
                logical.ids.push(new);
                logical.state = Model::Pending;
            }
            (Model::Ending(_) | Model::Moving | Model::Checking, _) => {
                self.halves.reopen(queue_offset, 0);
                logical.state = Model::Pending;
            }
            (Model::Pending | Model::Over(_), _) => {}
        }
    }

    /// A start from the saved offset and the marks in the log.
    fn restart(&mut self) {
        let low = self.halves.low();
        let ended = |queue_offset: u64| {
            !self.model.iter().any(|logical| {
                !matches!(logical.state, Model::Over(_)) && logical.ids.last().unwrap().queue_offset == queue_offset
            })
        };
        assert!((0..low).all(ended), "everything below the saved offset is over");
        let marks: Vec<u64> = (low..self.queue.len() as u64).filter(|at| ended(*at)).collect();
        self.halves = Halves::starting_at(low);
        self.take(self.queue.len());
        marks.into_iter().for_each(|half| {
            self.halves.ended_before(half);
        });
        for logical in &mut self.model {
            logical.ids_known_from = logical.ids.len() - 1;
            logical.state = match logical.state {
                Model::Over(_) => Model::Over(None),
                _ => Model::Pending,
            };
        }
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Arrive => {
                let id = self.append();
                let new = Logical { ids: vec![id], state: Model::Pending, carried_out: 0, ids_known_from: 0 };
                self.model.push(new);
            }
            Op::Take(count) => self.take(count.into()),
            Op::Restart => self.restart(),
            Op::Ask { half, id, end } => {
                if let Some(at) = self.pick(half) {
                    self.ask(at, id, end);
                }
            }
            Op::Finish { half, well } => {
                if let Some(at) = self.pick(half) {
                    self.finish(at, well);
                }
            }
            Op::Check(half) => {
                let (due, _) = self.halves.due(u64::from(half) % 8, 1, 8);
                if let Some(due) = due {
                    let mut all = self.model.iter_mut();
                    let logical = all.find(|logical| logical.ids.last() == Some(&due.id)).expect("one that lies there");
                    assert_eq!(logical.state, Model::Pending);
                    logical.state = Model::Checking;
                    self.halves.begin_check(due.id.queue_offset);
                }
            }
            Op::Move(half) => {
                if let Some(at) = self.pick(half)
                    && self.model[at].state == Model::Checking
                {
                    self.model[at].state = Model::Moving;
                    self.halves.begin_move(self.model[at].ids.last().unwrap().queue_offset);
                }
            }
        }
    }

    fn check(&mut self) {
        for logical in &self.model {
            assert!(logical.carried_out <= 1, "carried out once: {logical:?}");
            let queue_offset = logical.ids.last().unwrap().queue_offset;
            let over = matches!(logical.state, Model::Over(_));
            assert!(over || queue_offset >= self.halves.low(), "{logical:?} is below what is saved");
            assert!(!(over && self.halves.is_open(queue_offset)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100_000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn each_half_is_carried_out_once_whatever_is_asked(ops in prop::collection::vec(op(), 0..40)) {
        let mut pair = Pair { halves: Halves::default(), model: Vec::new(), queue: Vec::new() };
        for op in &ops {
            pair.step(op);
            pair.check();
        }
        pair.take(pair.queue.len());
        let mut open: Vec<HalfId> = pair
            .model
            .iter()
            .filter(|logical| !matches!(logical.state, Model::Over(_)))
            .map(|logical| *logical.ids.last().unwrap())
            .collect();
        open.sort_by_key(|id| id.queue_offset);
        prop_assert_eq!(pair.halves.open().collect::<Vec<_>>(), open.clone());
        prop_assert_eq!(pair.halves.len(), open.len());
        prop_assert_eq!(pair.halves.low(), open.first().map_or(pair.queue.len() as u64, |id| id.queue_offset));
    }
}

#[test]
fn a_pass_looks_at_each_half_once_and_in_slices() {
    let mut halves = Halves::default();
    (0..10).for_each(|at| halves.take(HalfId { queue_offset: at, offset: at }));
    halves.reopen(3, 100);
    halves.begin_check(4);
    assert_eq!(halves.ask(HalfId { queue_offset: 5, offset: 5 }, End::Commit), Asked::CarryOut);
    let (mut from, mut seen) = (Some(0), Vec::new());
    while let Some(at) = from {
        let (due, next) = halves.due(at, 99, 2);
        seen.extend(due.map(|due| due.id.queue_offset));
        assert!(next.is_none_or(|next| next > at));
        from = next;
    }
    assert_eq!(seen, [0, 1, 2, 6, 7, 8, 9]);
    assert_eq!(halves.due(3, 100, 1).0.map(|due| due.id.queue_offset), Some(3));
}

#[test]
fn outcomes_and_old_offsets_are_bounded() {
    let mut halves = Halves::default();
    for at in 0..70_000 {
        halves.take(HalfId { queue_offset: at, offset: at });
        halves.ended(at, Outcome::GivenUp);
    }
    let asked = |halves: &mut Halves, at| halves.ask(HalfId { queue_offset: at, offset: at }, End::Commit);
    assert_eq!(asked(&mut halves, 69_999), Asked::Done(Some(Outcome::GivenUp)));
    assert_eq!(asked(&mut halves, 0), Asked::Done(None));
    assert!(halves.is_empty() && halves.low() == 70_000);
}
