//! Pulls by properties: the same records as a model chooses, whatever is in memory.

use message::QueueOffset;
use message::record::RecordView;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use simulator::Residency;

use super::rig::Rig;
use crate::options::FlushMode;
use crate::types::{GetStatus, PullLimits, Pulled};

/// Queue offsets of the records of a pull.
fn offsets(pulled: &Pulled) -> Vec<u64> {
    let mut bytes = Vec::new();
    pulled.slices.iter().for_each(|slice| slice.copy_into(&mut bytes).expect("the bytes are there"));
    assert_eq!(bytes.len(), pulled.bytes as usize);
    let mut found = Vec::new();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let record = RecordView::parse_checked(rest).expect("a good record");
        found.push(record.queue_offset().0);
        rest = &rest[record.size() as usize..];
    }
    assert_eq!(found.len(), pulled.count as usize);
    found
}

fn pull(rig: &mut Rig, from: u64, count: i32, wanted: &str) -> Pulled {
    let limits = PullLimits::count(count);
    rig.read(|shard| {
        let mut accepts = |properties: &[u8]| properties == wanted.as_bytes();
        shard.pull_by_properties(b"t", 0, QueueOffset(from), limits, &mut accepts)
    })
}

/// All offsets that pulls give, one after the other; each moves on.
fn drain(rig: &mut Rig, count: i32, wanted: &str) -> Vec<u64> {
    let mut from = 0;
    let mut all = Vec::new();
    loop {
        let pulled = pull(rig, from, count, wanted);
        if pulled.status == GetStatus::OffsetOverflowOne {
            return all;
        }
        assert!(pulled.next_begin.0 > from, "a pull moves on: {pulled:?}");
        assert_eq!(pulled.status == GetStatus::Found, pulled.count > 0);
        let found = offsets(&pulled);
        assert!(found.iter().all(|&offset| offset >= from && offset < pulled.next_begin.0));
        assert!(found.len() <= count as usize);
        all.extend(found);
        from = pulled.next_begin.0;
    }
}

#[test]
fn chooses_what_the_model_chooses() {
    for seed in 0..6 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut rig = Rig::new(FlushMode::Async, seed);
        let mut model = [Vec::new(), Vec::new(), Vec::new()];
        let mut next = 0;
        for round in 0..3 {
            for _ in 0..80 {
                let kind = [0, 0, 0, 0, 1, 2][random.random_range(0..6usize)];
                let body = vec![random.random::<u8>(); random.random_range(0..3000usize)];
                rig.stage("t", 0, &[&body], &format!("k\u{1}{kind}\u{2}")).expect("an append");
                rig.stage("other", 0, &[&body], "k\u{1}1\u{2}").expect("an append");
                model[kind].push(next);
                next += 1;
                if random.random_range(0..3) == 0 {
                    rig.turn();
                    rig.pass_ms(random.random_range(0..400));
                }
            }
            rig.turn();
            for residency in [Residency::All, Residency::Nothing, Residency::Some] {
                rig.disk.set_residency(residency);
                for (kind, expected) in model.iter().enumerate() {
                    let count = [1, 7, 32][random.random_range(0..3usize)];
                    assert_eq!(&drain(&mut rig, count, &format!("k\u{1}{kind}\u{2}")), expected, "{residency:?}");
                }
                assert_eq!(drain(&mut rig, 32, "k\u{1}3\u{2}"), Vec::<u64>::new());
            }
            rig.disk.set_residency(Residency::All);
            match round {
                0 => rig.close(),
                _ => rig.kill(),
            }
            rig.open();
        }
    }
}

#[test]
fn statuses_and_limits_are_those_of_every_pull() {
    let mut rig = Rig::new(FlushMode::Async, 1);
    let text = "k\u{1}v\u{2}";
    assert_eq!(pull(&mut rig, 5, 32, text).status, GetStatus::NoMatchedLogicQueue);
    for _ in 0..100 {
        rig.stage("t", 0, &[b"x"; 10].map(|body| &body[..]), text).unwrap();
        rig.turn();
    }
    for (from, count, status, next, found) in [
        (1000, 32, GetStatus::OffsetOverflowOne, 1000, 0),
        (1001, 32, GetStatus::OffsetOverflowBadly, 1000, 0),
        (5, 1, GetStatus::Found, 6, 1),
        (5, -1, GetStatus::Found, 6, 1),
        (5, 100, GetStatus::Found, 37, 32),
        (990, 32, GetStatus::Found, 1000, 10),
    ] {
        let pulled = pull(&mut rig, from, count, text);
        assert_eq!((pulled.status, pulled.next_begin.0, pulled.count), (status, next, found), "{from}, {count}");
    }
    let none = pull(&mut rig, 5, 32, "k");
    assert_eq!((none.status, none.next_begin.0), (GetStatus::NoMatchedMessage, 805), "a scan is bounded");
    rig.shard().options.in_memory_window_bytes = 0;
    assert_eq!(pull(&mut rig, 0, 32, text).count, 8, "eight old records");
}

#[test]
fn bytes_that_are_looked_at_are_bounded() {
    let mut rig = Rig::new(FlushMode::Async, 1);
    let body = vec![7; 15_000];
    for _ in 0..300 {
        rig.stage("t", 0, &[&body], "k\u{1}v\u{2}").unwrap();
        rig.turn();
    }
    for residency in [Residency::All, Residency::Nothing] {
        rig.disk.set_residency(residency);
        let none = pull(&mut rig, 0, 32, "other");
        assert_eq!(none.status, GetStatus::NoMatchedMessage);
        let looked = none.next_begin.0 * 15_000;
        assert!(looked > 0 && looked <= 2 << 20, "{looked} bytes");
        assert!(residency != Residency::All || looked > 1 << 20, "as much as is allowed: {looked} bytes");
        let found = pull(&mut rig, 0, 32, "k\u{1}v\u{2}");
        assert!(found.bytes <= 256 << 10 && found.count > 0);
    }
}

#[test]
fn a_damaged_record_is_passed_over() {
    for residency in [Residency::All, Residency::Nothing] {
        let mut rig = Rig::new(FlushMode::Async, 1);
        let text = "k\u{1}v\u{2}";
        let mut places = Vec::new();
        for at in 0..5u8 {
            places.push(rig.stage("t", 0, &[&[at; 50]], text).unwrap().first().0);
            rig.turn();
        }
        rig.close();
        // The total size of one, and the body of another: the first is seen when looking, the second when it is handed out.
        rig.patch("commitlog/00000000000000000000", places[1], &[0, 0, 0, 9]);
        rig.patch("commitlog/00000000000000000000", places[3] + 90, &[0xFF; 8]);
        rig.open();
        rig.disk.set_residency(residency);
        let before = rig.shard().damaged_records;
        assert_eq!(drain(&mut rig, 32, text), [0, 2, 4]);
        assert!(rig.shard().damaged_records >= before + 2);
    }
}
