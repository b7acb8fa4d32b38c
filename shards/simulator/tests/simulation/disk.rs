//! The simulated disk behaves as the real one does for a living process, and forgets as it should; and a test that uses it
//! can fail: a writer that acknowledges before its sync is caught.

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use simulator::{Fault, Residency, SimulatedDisk};
use sys::disk::{Disk, DiskFile, OpenMode};

fn write(file: &dyn DiskFile, bytes: &[u8], at: u64) -> io::Result<()> {
    file.write_at(&[IoSlice::new(bytes)], at)
}

fn folder(disk: &SimulatedDisk) -> &'static Path {
    let dir = Path::new("/d");
    disk.create_dir_all(dir).unwrap();
    dir
}

#[test]
fn agrees_with_the_real_disk_for_a_living_process() {
    let (simulated, real) = (SimulatedDisk::new(1), sys::real_disk::RealDisk);
    let real_dir = tempfile::tempdir().unwrap();
    let dirs = [(&simulated as &dyn Disk, folder(&simulated)), (&real as &dyn Disk, real_dir.path())];
    let files = dirs.map(|(disk, dir)| disk.open(&dir.join("f"), OpenMode::CreateNew).unwrap());
    let mut random = StdRng::seed_from_u64(7);
    for _ in 0..2_000 {
        let (at, len) = (random.random_range(0..40_000_u64), random.random_range(0..9_000_usize));
        let bytes = vec![random.random::<u8>(); len];
        match random.random_range(0..10) {
            0 => files.iter().for_each(|file| file.set_len(at).unwrap()),
            1 if len > 0 => files.iter().for_each(|file| file.allocate(at, len as u64).unwrap()),
            2..6 => files.iter().for_each(|file| write(&**file, &bytes, at).unwrap()),
            6 => files.iter().for_each(|file| file.sync_data().unwrap()),
            _ => {
                let read = |file: &Arc<dyn DiskFile>| {
                    let mut bytes = vec![0; len];
                    let count = file.read_at(&mut bytes, at).unwrap();
                    bytes.truncate(count);
                    bytes
                };
                assert!(read(&files[0]) == read(&files[1]), "{len} bytes at {at}");
            }
        }
        assert_eq!(files[0].len().unwrap(), files[1].len().unwrap());
    }
    for (disk, dir) in dirs {
        disk.rename(&dir.join("f"), &dir.join("g")).unwrap();
        assert!(disk.read(&dir.join("f")).unwrap().is_none());
        assert_eq!(disk.list(dir).unwrap().len(), 1);
        assert_eq!(disk.open(&dir.join("g"), OpenMode::CreateNew).err().unwrap().kind(), io::ErrorKind::AlreadyExists);
        disk.remove_file(&dir.join("g")).unwrap();
        assert_eq!(disk.remove_file(&dir.join("g")).err().unwrap().kind(), io::ErrorKind::NotFound);
        let lock = disk.lock(&dir.join("l")).unwrap();
        assert_eq!(disk.lock(&dir.join("l")).err().unwrap().kind(), io::ErrorKind::WouldBlock);
        drop(lock);
        disk.lock(&dir.join("l")).unwrap();
    }
}

#[test]
fn what_was_synced_survives_and_the_rest_may() {
    let (mut kept, mut lost, mut torn) = (0, 0, 0);
    for seed in 0..200 {
        let disk = SimulatedDisk::new(seed);
        let path = folder(&disk).join("f");
        let file = disk.open(&path, OpenMode::Create).unwrap();
        write(&*file, &[1; 4096], 0).unwrap();
        file.sync_data().unwrap();
        disk.sync_dir(Path::new("/d")).unwrap();
        write(&*file, &[2; 2048], 1024).unwrap();
        disk.power_cut(seed);
        assert!(file.len().is_err(), "a descriptor of an earlier life");
        let bytes = disk.read(&path).unwrap().expect("its name was synced");
        assert_eq!(bytes.len(), 4096);
        assert!(bytes.chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0])), "sectors are whole");
        assert!(bytes[..1024].iter().chain(&bytes[3072..]).all(|byte| *byte == 1));
        match bytes[1024..3072].iter().filter(|byte| **byte == 2).count() {
            0 => lost += 1,
            2048 => kept += 1,
            _ => torn += 1,
        }
    }
    assert!(kept > 20 && lost > 20 && torn > 20, "{kept} {lost} {torn}");
}

#[test]
fn names_survive_only_when_their_folder_was_synced() {
    let mut seen = [0; 3];
    for seed in 0..100 {
        let disk = SimulatedDisk::new(seed);
        let dir = folder(&disk);
        for name in ["a", "b"] {
            write(&*disk.open(&dir.join(name), OpenMode::Create).unwrap(), name.as_bytes(), 0).unwrap();
        }
        disk.sync_dir(dir).unwrap();
        disk.rename(&dir.join("a"), &dir.join("b")).unwrap();
        disk.open(&dir.join("c"), OpenMode::Create).unwrap();
        disk.power_cut(seed);
        let names: Vec<String> = disk.list(dir).unwrap().into_iter().map(|item| item.name).collect();
        seen[0] += usize::from(names.contains(&"a".to_owned()));
        seen[1] += usize::from(names.contains(&"c".to_owned()));
        seen[2] += usize::from(names == ["b"]);
        assert!(names.contains(&"b".to_owned()), "a rename replaces in one step");
    }
    assert!(seen.iter().all(|count| (10..90).contains(count)), "{seen:?}");
}

#[test]
fn a_sync_that_failed_loses_its_data_and_is_reported_once_to_each_descriptor() {
    let gone = |seed: &u64| {
        let disk = SimulatedDisk::new(*seed);
        let path = folder(&disk).join("f");
        let open = |mode| disk.open(&path, mode).unwrap();
        let (first, second) = (open(OpenMode::Create), open(OpenMode::ReadWrite));
        disk.sync_dir(Path::new("/d")).unwrap();
        write(&*first, b"lost", 0).unwrap();
        disk.set_fault(Some(Fault::Sync(0)));
        assert!(first.sync_data().is_err());
        assert!(first.sync_data().is_ok());
        assert!(second.sync_data().is_err());
        assert!(open(OpenMode::ReadWrite).sync_data().is_ok(), "opened after the failure");
        let mut bytes = [0; 4];
        assert_eq!(first.read_at(&mut bytes, 0).unwrap(), 4);
        assert_eq!(&bytes, b"lost", "the page cache still has it");
        disk.power_cut(1);
        disk.read(&path).unwrap().unwrap() == [0; 4]
    };
    // Now and then the system has written it back before.
    assert!((0..50).filter(gone).count() > 35);
}

#[test]
fn operations_fail_by_number_space_ends_and_reads_can_be_cold() {
    let disk = SimulatedDisk::new(5);
    let file = disk.open(&folder(&disk).join("f"), OpenMode::Create).unwrap();
    disk.set_fault(Some(Fault::Operation(disk.operations() + 2)));
    write(&*file, &[1; 10], 0).unwrap();
    assert!(write(&*file, &[2; 10], 0).is_err());
    assert!(write(&*file, &[1; 10], 0).is_ok());
    disk.set_capacity(8192);
    assert!(file.allocate(0, 8192).is_ok());
    assert_eq!(write(&*file, &[1; 10], 8192).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(disk.space(Path::new("/d")).unwrap().available, 0);
    disk.set_residency(Residency::Nothing);
    assert_eq!(file.read_at_resident(&mut [0; 4], 0).unwrap(), None);
    disk.set_residency(Residency::All);
    assert_eq!(file.read_at_resident(&mut [0; 4], 0).unwrap(), Some(4));
}

/// Writes numbered records and says which are acknowledged; `sync_first` is what a writer must do.
fn acknowledged_and_found(seed: u64, sync_first: bool) -> (u64, u64) {
    let disk = SimulatedDisk::new(seed);
    let path = folder(&disk).join("log");
    let file = disk.open(&path, OpenMode::Create).unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    let (mut acknowledged, mut random) = (0, StdRng::seed_from_u64(seed));
    let cut_after = random.random_range(1..40);
    for number in 1..=cut_after {
        write(&*file, &[number as u8; 600], (number - 1) * 600).unwrap();
        if sync_first || number % 4 == 0 {
            file.sync_data().unwrap();
        }
        acknowledged = number;
    }
    disk.power_cut(seed);
    let bytes = disk.read(&path).unwrap().unwrap();
    let whole = |&(at, record): &(usize, &[u8])| record.len() == 600 && record.iter().all(|b| *b as usize == at + 1);
    (acknowledged, bytes.chunks(600).enumerate().take_while(whole).count() as u64)
}

#[test]
fn a_writer_that_acknowledges_before_its_sync_is_caught() {
    let lost = |sync_first| {
        (0..100)
            .filter(|&seed| matches!(acknowledged_and_found(seed, sync_first), (told, found) if found < told))
            .count()
    };
    assert_eq!(lost(true), 0);
    assert!(lost(false) > 20, "the mutant survived too often");
}
