//! The judge of the crash tests is judged: with a planted fault, acknowledged messages are lost and it says so.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::rig::Rig;
use crate::options::FlushMode;

/// What is wrong with the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// Nothing.
    None,
    /// Syncs return and make nothing durable: what was acknowledged before its sync looks the same.
    LyingSync,
    /// The shard acknowledges what is written, and is judged as if it had promised durability.
    AcknowledgesBeforeSync,
}

/// Some traffic, a power cut, and whether every acknowledged message is there with its body, at its offset.
fn keeps_its_word(seed: u64, mutant: Mutant) -> bool {
    let mut random = StdRng::seed_from_u64(seed);
    let early = mutant == Mutant::AcknowledgesBeforeSync;
    let mut rig = Rig::new(if early { FlushMode::Async } else { FlushMode::Sync }, seed);
    for turn in 0..40 {
        rig.disk.set_honest(mutant != Mutant::LyingSync || turn < 20);
        let body = vec![random.random::<u8>(); random.random_range(1..900)];
        rig.send("t", random.random_range(0..2), &[&body]);
        rig.pass_ms(random.random_range(0..50));
    }
    rig.disk.set_honest(true);
    rig.power_cut(seed);
    rig.open();
    let model = rig.model.clone();
    model.iter().all(|((topic, queue), messages)| {
        let found = rig.drain(topic, *queue);
        messages.iter().all(|(offset, body)| found.iter().any(|(at, bytes)| (at, bytes) == (offset, body)))
    })
}

#[test]
fn a_planted_fault_is_seen_and_none_is_seen_without() {
    let broken = |mutant| (0..40).filter(|&seed| !keeps_its_word(seed, mutant)).count();
    assert_eq!(broken(Mutant::None), 0);
    for mutant in [Mutant::LyingSync, Mutant::AcknowledgesBeforeSync] {
        assert!(broken(mutant) > 10, "{mutant:?} survives");
    }
}
