//! Consumer offsets across the end of the process, and with a Java broker on the store in between.

use super::number;
use super::world::{Client, World, ask, pull, send};
use remoting::RequestCode;
use simulator::{Fault, SimulatedDisk};
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use store::FlushMode;
use sys::disk::{Disk, OpenMode};

const FILES: [&str; 2] = ["/data/config/consumerOffset.json", "/data/config/lmqConsumerOffset.json"];

/// A broker whose group has read three messages and committed 1, which is in the file.
fn world(light: bool) -> (World, Client) {
    let now = World::new(1, 1, FlushMode::Async).now();
    let mut world = World::open_light(Arc::new(SimulatedDisk::new(5)), FlushMode::Async, now, light);
    let client = world.connect(0);
    (0..3).for_each(|_| assert_eq!(world.call(client, send("t", 0, "", b"x")).code, 0));
    assert_eq!(world.call(client, pull("g", "t", 0, 0, 0)).code, 0);
    commit(&mut world, client, 1);
    world.advance(6_000);
    (world, client)
}

fn commit(world: &mut World, client: Client, offset: i64) {
    let request = ask(RequestCode::UpdateConsumerOffset, "t", 0).with_field("consumerGroup", "g");
    assert_eq!(world.call(client, request.with_field("commitOffset", offset)).code, 0);
}

fn offset(world: &mut World) -> i64 {
    let client = world.connect(0);
    number(
        &world.call(client, ask(RequestCode::QueryConsumerOffset, "t", 0).with_field("consumerGroup", "g")),
        "offset",
    )
}

fn end(world: World, in_order: bool) -> (Arc<SimulatedDisk>, reactor::Now) {
    let (disk, now) = (world.disk.clone(), world.now());
    if in_order {
        world.stop()
    } else {
        drop(world)
    }
    disk.kill();
    (disk, now)
}

fn text(disk: &SimulatedDisk, file: &str) -> String {
    String::from_utf8(disk.read(Path::new(file)).unwrap().unwrap_or_default()).unwrap()
}

#[test]
fn what_a_java_broker_committed_in_between_stands() {
    for (light, in_order, counts) in
        [(false, false, false), (false, true, false), (false, true, true), (true, false, true), (true, true, false)]
    {
        let (mut world, client) = world(light);
        commit(&mut world, client, 2);
        let (disk, now) = end(world, in_order);
        // Without Java, the journal's stand.
        let mut world = World::open_light(disk, FlushMode::Async, now, light);
        assert_eq!(offset(&mut world), 2);
        let (disk, now) = end(world, in_order);
        let file = FILES[usize::from(light)];
        let ours = text(&disk, file);
        let mut java = ours.replace("0:1", "0:3").replace("0:2", "0:3");
        assert_ne!(java, ours);
        if counts {
            java = java.replace("\"counter\":", "\"counter\":9");
        }
        let handle = disk.open(Path::new(file), OpenMode::ReadWrite).unwrap();
        handle.set_len(0).unwrap();
        handle.write_at(&[IoSlice::new(java.as_bytes())], 0).unwrap();
        let mut world = World::open_light(disk, FlushMode::Async, now, light);
        assert_eq!(offset(&mut world), 3, "{light} {in_order} {counts}");
        // And what is committed on top of it.
        let client = world.connect(0);
        commit(&mut world, client, 2);
        let (disk, now) = end(world, false);
        let mut world = World::open_light(disk, FlushMode::Async, now, light);
        assert_eq!(offset(&mut world), 2);
        world.stop();
    }
}

#[test]
fn a_commit_outlives_a_process_that_dies_around_the_writing_of_the_file() {
    let mut between = 0;
    for light in [false, true] {
        for operation in 1..30 {
            let (mut world, client) = world(light);
            let before = (text(&world.disk, FILES[0]), world.disk.paths().len());
            commit(&mut world, client, 2);
            world.disk.set_fault(Some(Fault::Operation(world.disk.operations() + operation)));
            world.advance(6_000);
            world.disk.set_fault(None);
            between += i32::from(text(&world.disk, FILES[0]) == before.0 && world.disk.paths().len() > before.1);
            // The generation that has begun gets a commit, too.
            if operation % 2 == 0 {
                commit(&mut world, client, 3);
            }
            let (disk, now) = end(world, false);
            let mut world = World::open_light(disk, FlushMode::Async, now, light);
            assert_eq!(offset(&mut world), 2 + i64::from(operation % 2 == 0), "operation {operation}");
            world.stop();
        }
    }
    assert!(between > 2, "{between} ends between the new generation and the file");
}
