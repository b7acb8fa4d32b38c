//! Transactions over a killed process and a power cut, at each turn.

use super::LAYOUTS;
use super::transactions::{COMMIT, ROLLBACK, Sent, checks, delivered, end, half, producer, sent};
use super::world::{World, bodies};
use store::FlushMode;

/// Half messages that are stored, and then ends of which some turns are still worked before everything is gone.
struct Crash {
    shards: u16,
    cores: u16,
    flush: FlushMode,
    turns: usize,
    /// Nothing of these turns is synced, so that a power cut may tear their write.
    unsynced: bool,
}

impl Crash {
    /// Runs up to the crash; gives the halves and which ends were answered with success.
    fn before(&self, world: &mut World) -> (Vec<Sent>, Vec<bool>) {
        let client = world.connect(0);
        // So long that a write may be torn between two records.
        let more = format!("LONG\u{1}{}\u{2}", "x".repeat(700));
        let halves: Vec<Sent> =
            (0..8).map(|n| sent(&world.call(client, half(n % 4, &more, &format!("m{n}"))))).collect();
        producer(world, client);
        world.advance(1_200);
        world.hold_syncs = self.unsynced;
        let asked: Vec<i32> = (0..6).map(|n| world.write(client, end(halves[n], kind_of(n)))).collect();
        world.turns(self.turns);
        let answers = world.answers(client);
        let answered = |opaque: &i32| answers.iter().any(|answer| answer.opaque == *opaque && answer.code == 0);
        (halves, asked.iter().map(answered).collect())
    }

    /// Everything that was answered holds; the rest can still be ended, by the first offsets or by a check; nothing comes twice.
    fn after(&self, world: &mut World, halves: &[Sent], answered: &[bool], late: bool) {
        let client = world.connect(0);
        let before = delivered(world, client);
        for (n, _) in answered.iter().enumerate().filter(|(_, answered)| **answered) {
            let there = before.contains(&format!("m{n}"));
            assert_eq!(there, kind_of(n) == COMMIT, "m{n} after {} turns: {before:?}", self.turns);
        }
        producer(world, client);
        if late {
            world.advance(37_000);
            for (at, command) in checks(world, client) {
                let n: usize = bodies(&command)[0][1..].parse().unwrap();
                assert!(!answered.get(n).unwrap_or(&false), "m{n} was ended before");
                assert_eq!(world.call(client, end(at, kind_of(n)).with_field("fromTransactionCheck", "true")).code, 0);
            }
        }
        for (n, of) in halves.iter().enumerate() {
            assert_eq!(world.call(client, end(*of, kind_of(n))).code, 0, "m{n}");
        }
        let wanted: Vec<String> = (0..8).filter(|n| kind_of(*n) == COMMIT).map(|n| format!("m{n}")).collect();
        assert_eq!(delivered(world, client), wanted, "after {} turns", self.turns);
        world.advance(65_000);
        assert_eq!(checks(world, client).len(), 0);
        assert_eq!(delivered(world, client), wanted);
    }
}

fn kind_of(n: usize) -> i32 {
    if n % 3 == 1 { ROLLBACK } else { COMMIT }
}

#[test]
fn a_killed_process_neither_loses_nor_doubles_a_transaction() {
    for (shards, cores) in LAYOUTS {
        for flush in [FlushMode::Async, FlushMode::Sync] {
            for turns in 0..8 {
                let crash = Crash { shards, cores, flush, turns, unsynced: false };
                let mut world = World::new(shards, cores, flush);
                let disk = world.disk.clone();
                let (halves, answered) = crash.before(&mut world);
                disk.kill();
                drop(world);
                let mut world = World::open(disk, crash.shards, crash.cores, crash.flush);
                crash.after(&mut world, &halves, &answered, turns % 2 == 0);
                world.stop();
            }
        }
    }
}

#[test]
fn a_power_cut_neither_loses_nor_doubles_what_was_answered() {
    for (shards, cores) in LAYOUTS {
        for turns in 0..10 {
            for seed in 0..12 {
                let crash = Crash { shards, cores, flush: FlushMode::Sync, turns, unsynced: seed % 2 == 0 };
                let mut world = World::new(shards, cores, FlushMode::Sync);
                let disk = world.disk.clone();
                let (halves, answered) = crash.before(&mut world);
                disk.power_cut(seed);
                drop(world);
                let mut world = World::open(disk, shards, cores, FlushMode::Sync);
                crash.after(&mut world, &halves, &answered, seed % 3 == 0);
                world.stop();
            }
        }
    }
}

#[test]
fn a_power_cut_without_syncs_doubles_nothing_and_brings_nothing_back() {
    for (shards, cores) in LAYOUTS {
        for seed in 0..150 {
            let crash = Crash { shards, cores, flush: FlushMode::Async, turns: 1 + seed as usize % 5, unsynced: true };
            let mut world = World::new(shards, cores, FlushMode::Async);
            let disk = world.disk.clone();
            let (halves, _) = crash.before(&mut world);
            disk.power_cut(seed);
            drop(world);
            let mut world = World::open(disk, shards, cores, FlushMode::Async);
            let client = world.connect(0);
            producer(&mut world, client);
            for (n, of) in halves.iter().enumerate() {
                let code = world.call(client, end(*of, kind_of(n))).code;
                assert!(matches!(code, 0 | 1 | 17), "its half may be lost, or its topic: {code}");
            }
            let mut found = delivered(&mut world, client);
            assert!(found.iter().all(|body| kind_of(body[1..].parse().unwrap()) == COMMIT), "{found:?}");
            let count = found.len();
            found.dedup();
            assert_eq!(found.len(), count, "{found:?}");
            world.stop();
        }
    }
}

#[test]
fn a_check_that_is_cut_off_neither_loses_nor_doubles_its_half() {
    for (shards, cores) in LAYOUTS {
        for turns in 0..8 {
            let mut world = World::new(shards, cores, FlushMode::Async);
            let disk = world.disk.clone();
            let client = world.connect(0);
            producer(&mut world, client);
            let halves: Vec<Sent> = (0..4).map(|n| sent(&world.call(client, half(n, "", &format!("m{n}"))))).collect();
            world.advance(29_900);
            world.skip(200);
            world.turns(turns);
            disk.kill();
            drop(world);
            let mut world = World::open(disk, shards, cores, FlushMode::Async);
            let client = world.connect(0);
            producer(&mut world, client);
            world.advance(37_000);
            let asked = checks(&mut world, client);
            let mut about: Vec<String> = asked.iter().flat_map(|(_, command)| bodies(command)).collect();
            about.sort();
            assert_eq!(about, ["m0", "m1", "m2", "m3"], "cut off after {turns} turns");
            for (at, _) in &asked {
                assert_eq!(world.call(client, end(*at, COMMIT)).code, 0);
            }
            halves.iter().for_each(|of| {
                world.call(client, end(*of, COMMIT));
            });
            world.advance(65_000);
            assert_eq!(checks(&mut world, client).len(), 0);
            assert_eq!(delivered(&mut world, client), ["m0", "m1", "m2", "m3"]);
            world.stop();
        }
    }
}
