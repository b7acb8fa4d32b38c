//! Records read ahead in runs are those that are read one by one.

use message::PhysicalOffset;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use simulator::Residency;

use super::rig::Rig;
use crate::LookAhead;
use crate::options::FlushMode;

/// Whether the run has the record, which then must be the one that is there.
fn holds(rig: &mut Rig, ahead: &LookAhead, offset: PhysicalOffset) -> bool {
    let alone = rig.read(|shard| shard.record_at(offset)).expect("a record");
    let found = ahead.record(offset);
    assert!(found.is_none_or(|found| found.bytes() == &alone[..]), "another record at {offset:?}");
    found.is_some()
}

#[test]
fn a_run_has_what_lies_close_together() {
    let mut rig = Rig::new(FlushMode::Async, 1);
    let offsets: Vec<_> = (0..20u8).map(|at| rig.send("t", 0, &[&[at; 300]]).offsets[0]).collect();
    let mut ahead = LookAhead::default();
    rig.shard().look_ahead(offsets.iter().copied(), &mut ahead);
    assert!(offsets.iter().all(|offset| holds(&mut rig, &ahead, *offset)));
    assert!(ahead.record(PhysicalOffset(offsets[3].0 + 1)).is_none(), "no record starts there");
    rig.shard().look_ahead(offsets[5..].iter().step_by(3).copied(), &mut ahead);
    assert!(offsets[5..18].iter().all(|offset| holds(&mut rig, &ahead, *offset)) && !ahead.reaches(offsets[4]));
    // Backwards, and alone: read one by one.
    for some in [[offsets[4], offsets[3]].as_slice(), &offsets[..1], &[]] {
        rig.shard().look_ahead(some.iter().copied(), &mut ahead);
        assert!(!offsets.iter().any(|offset| ahead.reaches(*offset)), "{some:?}");
    }
    let end = rig.shard().end();
    rig.shard().look_ahead([offsets[19], end], &mut ahead);
    assert!(ahead.record(end).is_none());
    rig.shard().look_ahead([end, PhysicalOffset(u64::MAX)], &mut ahead);
    assert!(!ahead.reaches(end));
}

#[test]
fn nothing_is_read_from_the_disk_or_before_it_is_visible() {
    let mut rig = Rig::new(FlushMode::Sync, 2);
    let offsets: Vec<_> = (0..4).map(|_| rig.send("t", 0, &[&[1; 100]]).offsets[0]).collect();
    rig.hold = true;
    let later = rig.send("t", 0, &[&[1; 100]]).offsets[0];
    let mut ahead = LookAhead::default();
    rig.shard().look_ahead(offsets.iter().copied().chain([later]), &mut ahead);
    assert!(ahead.reaches(offsets[3]) && !ahead.reaches(later), "not durable yet");
    rig.disk.set_residency(Residency::Nothing);
    rig.shard().look_ahead(offsets.iter().copied(), &mut ahead);
    assert!(!ahead.reaches(offsets[0]));
}

#[test]
fn a_damaged_record_is_not_there() {
    let mut rig = Rig::new(FlushMode::Async, 3);
    let offsets: Vec<_> = (0..3).map(|_| rig.send("t", 0, &[&[1; 100]]).offsets[0]).collect();
    rig.patch("commitlog/00000000000000000000", offsets[1].0 + 120, &[0xFF]);
    let mut ahead = LookAhead::default();
    rig.shard().look_ahead(offsets.iter().copied(), &mut ahead);
    let there: Vec<bool> = offsets.iter().map(|offset| ahead.record(*offset).is_some()).collect();
    assert_eq!(there, [true, false, true]);
}

#[test]
fn any_list_of_records_is_read_as_one_by_one() {
    for seed in 0..20 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut rig = Rig::new(FlushMode::Async, seed);
        let offsets: Vec<_> =
            (0..120).map(|_| rig.send("t", 0, &[&vec![7; random.random_range(0..4000usize)]]).offsets[0]).collect();
        let mut ahead = LookAhead::default();
        for _ in 0..50 {
            let mut some: Vec<_> =
                (0..random.random_range(1..40)).map(|_| offsets[random.random_range(0..120usize)]).collect();
            if random.random_bool(0.8) {
                some.sort_unstable();
            }
            rig.shard().look_ahead(some.iter().copied(), &mut ahead);
            some.iter().for_each(|offset| {
                holds(&mut rig, &ahead, *offset);
            });
        }
    }
}
