//! The background merge of a run into Java's index files.
//!
//! For each file that the run reaches: items are put into groups of neighbouring slots, linked to the slots' present items,
//! written in one sequence and synced; then the slots are written and synced; the header last. So a crash leaves at worst
//! slots that name items above the header's count, each linked to what the slot held before: the repair pass follows the
//! links back before anything overwrites those items. Nothing is written through a mapping; the descriptor is the merge's
//! own, opened before its writes. A failed sync is never retried: the caller drops the file.

use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;

use reactor::{BackgroundTask, Step};
use sys::disk::{Disk, DiskFile, OpenMode};

use super::file::{FileName, Geometry, Header, ITEM_BYTES, IndexFile, Item, SLOT_BYTES, read_full};
use super::run::Run;

/// Slots of a group: 256 KiB, which the second-level cache holds while its items are linked.
const GROUP_SLOTS: u32 = 1 << 16;
/// Groups of one step: 1 MiB.
const GROUPS_A_STEP: u32 = 4;
/// Items written in one step: 2.5 MiB.
const ITEMS_A_STEP: usize = 1 << 17;
/// A group with fewer items than this is read and written slot by slot.
const FEW_ITEMS: usize = 64;
/// Unit in which changed slots are written.
const BLOCK_BYTES: usize = 4096;

/// What a merge did; also when it failed.
pub(crate) struct Merged {
    /// Files with a new header, in order; the first may be the newest one there was.
    pub files: Vec<IndexFile>,
    /// The largest name that was given, also to a file that is gone again.
    pub name: FileName,
    /// Items of the run that are in files now.
    pub items: usize,
    /// Whether slots of the newest file may still name items above its count.
    pub repair: bool,
    /// Why it stopped early.
    pub failed: Option<Failure>,
}

/// Why a merge stopped.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The file is as it was but for what lies above its count: try again after a repair.
    Write(io::Error),
    /// The state of the named file's bytes is unknown: drop it.
    Sync(io::Error, FileName),
}

/// The task. Its output is a [`Merged`].
pub(crate) struct Merge {
    geometry: Geometry,
    dir: PathBuf,
    /// New files get larger names.
    name_after: FileName,
    run: Arc<Run>,
    /// Items of the run before this are in files.
    done: usize,
    newest: Option<Arc<IndexFile>>,
    repair: bool,
    part: Option<Part>,
    files: Vec<IndexFile>,
}

/// The work on one file.
struct Part {
    name: FileName,
    created: bool,
    reader: Arc<dyn DiskFile>,
    writer: Arc<dyn DiskFile>,
    /// As it is on disk.
    old: Header,
    /// As it will be.
    new: Header,
    /// Number of the run's items that go into this file.
    count: usize,
    phase: Phase,
    /// Items ordered by group of slots, within a group in the order of the log, and where each group begins.
    grouped: Vec<Placed>,
    groups: Vec<u32>,
    /// Where the next item of each group goes while they are ordered.
    next: Vec<u32>,
    /// The link of each item.
    previous: Vec<u32>,
}

/// An item and its slot, side by side, so that a group is read in one sequence.
#[derive(Clone, Copy, Default)]
struct Placed {
    slot: u32,
    /// Counted from the first item of the part.
    at: u32,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Repair { group: u32 },
    Count { from: usize },
    Place { from: usize },
    Link { group: u32 },
    Items { from: usize },
    SyncItems,
    Slots { group: u32 },
    SyncSlots,
    Header,
}

impl Merge {
    /// The merge of `run`, of which the first `done` items are in files already, behind `newest`.
    pub fn new(
        geometry: Geometry,
        dir: PathBuf,
        name_after: FileName,
        (run, done): (Arc<Run>, usize),
        newest: Option<Arc<IndexFile>>,
        repair: bool,
    ) -> Self {
        Self { geometry, dir, name_after, run, done, newest, repair, part: None, files: Vec::new() }
    }

    /// One step; `true` when all is merged.
    fn advance(&mut self, disk: &dyn Disk) -> Result<bool, Failure> {
        let Some(part) = &mut self.part else {
            if self.done == self.run.len() {
                return Ok(true);
            }
            self.part = Some(self.open_part(disk).map_err(Failure::Write)?);
            return Ok(false);
        };
        let (geometry, run, first) = (self.geometry, &*self.run, self.done);
        let written = |result: io::Result<()>| result.map_err(Failure::Write);
        let name = part.name;
        let synced = move |result: io::Result<()>| result.map_err(|error| Failure::Sync(error, name));
        part.phase = match part.phase {
            Phase::Repair { group } => match part.repair(geometry, group).map_err(Failure::Write)? {
                Some(group) => Phase::Repair { group },
                None => {
                    synced(part.writer.sync_data())?;
                    self.repair = false;
                    Phase::Count { from: 0 }
                }
            },
            Phase::Count { from } => match part.count_groups(geometry, run, first, from) {
                Some(from) => Phase::Count { from },
                None => Phase::Place { from: 0 },
            },
            Phase::Place { from } => match part.place(geometry, run, first, from) {
                Some(from) => Phase::Place { from },
                None => Phase::Link { group: 0 },
            },
            Phase::Link { group } => match part.link(geometry, group).map_err(Failure::Write)? {
                Some(group) => Phase::Link { group },
                None => Phase::Items { from: 0 },
            },
            Phase::Items { from } if from < part.count => {
                written(part.write_items(geometry, run, first, from))?;
                Phase::Items { from: from + ITEMS_A_STEP }
            }
            Phase::Items { .. } => Phase::SyncItems,
            Phase::SyncItems => {
                synced(part.writer.sync_data())?;
                Phase::Slots { group: 0 }
            }
            Phase::Slots { group } => match part.write_slots(geometry, group).map_err(Failure::Write)? {
                Some(group) => Phase::Slots { group },
                None => Phase::SyncSlots,
            },
            Phase::SyncSlots => {
                synced(part.writer.sync_data())?;
                Phase::Header
            }
            Phase::Header => {
                // A header that is half out is as unknown as after a failed sync.
                synced(part.writer.write_at(&[IoSlice::new(&part.new.encode())], 0))?;
                synced(part.writer.sync_data())?;
                let part = self.part.take().expect("is being worked on");
                self.finish(part);
                return Ok(false);
            }
        };
        Ok(false)
    }

    /// The newest file if it has room, else a new one.
    fn open_part(&mut self, disk: &dyn Disk) -> io::Result<Part> {
        let left = self.run.len() - self.done;
        let newest = self.newest.as_ref().filter(|file| file.header.count < self.geometry.items);
        let (name, created, reader, old) = match newest {
            Some(file) => (file.name, false, file.file.clone(), file.header),
            None => {
                let (name, file) = self.create(disk)?;
                (name, true, file, Header::EMPTY)
            }
        };
        let writer = disk.open(&name.path(&self.dir), OpenMode::ReadWrite)?;
        let count = left.min((self.geometry.items - old.count) as usize);
        let phase = if self.repair && !created { Phase::Repair { group: 0 } } else { Phase::Count { from: 0 } };
        let (grouped, previous) = (vec![Placed::default(); count], vec![0; count]);
        let (groups, next) = (vec![0; group_count(self.geometry) as usize + 1], Vec::new());
        Ok(Part { name, created, reader, writer, old, new: old, count, phase, grouped, groups, next, previous })
    }

    /// Makes an empty, sparse file of full length.
    fn create(&mut self, disk: &dyn Disk) -> io::Result<(FileName, Arc<dyn DiskFile>)> {
        disk.create_dir_all(&self.dir)?;
        let mut name = FileName(self.name_after.0 + 1);
        // What an attempt that failed left behind stays until the next start.
        while disk.metadata(&name.path(&self.dir))?.is_some() {
            name.0 += 1;
        }
        self.name_after = name;
        let file = disk.open(&name.path(&self.dir), OpenMode::CreateNew)?;
        match file.set_len(self.geometry.file_bytes()).and_then(|()| disk.sync_dir(&self.dir)) {
            Ok(()) => Ok((name, file)),
            Err(error) => {
                let _ = disk.remove_file(&name.path(&self.dir));
                Err(error)
            }
        }
    }

    fn finish(&mut self, part: Part) {
        self.done += part.count;
        let file = IndexFile { name: part.name, file: part.reader, header: part.new };
        self.newest = Some(Arc::new(file.clone()));
        self.files.push(file);
    }

    fn output(&mut self, failed: Option<Failure>) -> Merged {
        let repair = self.repair || failed.is_some();
        Merged { files: std::mem::take(&mut self.files), name: self.name_after, items: self.done, repair, failed }
    }
}

impl BackgroundTask for Merge {
    fn step(&mut self, disk: &dyn Disk) -> io::Result<Step> {
        match self.advance(disk) {
            Ok(false) => Ok(Step::More),
            Ok(true) => {
                // The index uses the run's memory again when nobody else holds it.
                self.run = Arc::new(Run::new(self.run.to()));
                Ok(Step::Done(Box::new(self.output(None))))
            }
            Err(failure) => {
                // A new file in which nothing counts, and one that cannot be trusted any more, go at once; the caller
                // removes the latter again if this fails.
                let is_lost = matches!(failure, Failure::Sync(..));
                if let Some(part) = self.part.take().filter(|part| part.created || is_lost) {
                    let _ = disk.remove_file(&part.name.path(&self.dir)).and_then(|()| disk.sync_dir(&self.dir));
                }
                Ok(Step::Done(Box::new(self.output(Some(failure)))))
            }
        }
    }
}

impl Part {
    /// Puts slots that name items above the count back to what they held before. Returns the next group.
    fn repair(&mut self, geometry: Geometry, group: u32) -> io::Result<Option<u32>> {
        let end = group.saturating_add(GROUPS_A_STEP).min(group_count(geometry));
        for group in group..end {
            let mut slots = Slots::read(&*self.writer, geometry, group)?;
            for slot in 0..slots.len() {
                let found = slots.get(slot);
                let mut sound = found;
                while sound >= self.old.count {
                    sound = if sound < geometry.items { self.link_of(geometry, sound)? } else { 0 };
                }
                if sound != found {
                    slots.set(slot, sound);
                }
            }
            slots.write(&*self.writer, geometry)?;
        }
        Ok((end < group_count(geometry)).then_some(end))
    }

    /// The item before `number` in its chain; 0 when the link is not one.
    fn link_of(&self, geometry: Geometry, number: u32) -> io::Result<u32> {
        let mut bytes = [0; ITEM_BYTES];
        read_full(&*self.writer, &mut bytes, geometry.item_at(number))?;
        let previous = Item::decode(&bytes).previous;
        Ok(if previous < number { previous } else { 0 })
    }

    /// Counts how many items each group has; at the end, where each begins. Returns where to go on.
    fn count_groups(&mut self, geometry: Geometry, run: &Run, first: usize, from: usize) -> Option<usize> {
        let end = self.count.min(from + ITEMS_A_STEP);
        for at in from..end {
            self.groups[(geometry.slot_of(run.hash(first + at)) / GROUP_SLOTS) as usize + 1] += 1;
        }
        if end < self.count {
            return Some(end);
        }
        for group in 1..self.groups.len() {
            self.groups[group] += self.groups[group - 1];
        }
        self.next = self.groups.clone();
        None
    }

    /// Orders some items by group. Returns where to go on.
    fn place(&mut self, geometry: Geometry, run: &Run, first: usize, from: usize) -> Option<usize> {
        let end = self.count.min(from + ITEMS_A_STEP);
        for at in from..end {
            let slot = geometry.slot_of(run.hash(first + at));
            let place = &mut self.next[(slot / GROUP_SLOTS) as usize];
            self.grouped[*place as usize] = Placed { slot, at: at as u32 };
            *place += 1;
        }
        (end < self.count).then_some(end)
    }

    fn items_of(&self, group: u32) -> std::ops::Range<usize> {
        self.groups[group as usize] as usize..self.groups[group as usize + 1] as usize
    }

    /// Finds the link of each item of some groups, and counts the slots that were empty. Returns the next group.
    fn link(&mut self, geometry: Geometry, group: u32) -> io::Result<Option<u32>> {
        let end = group.saturating_add(GROUPS_A_STEP).min(group_count(geometry));
        for group in group..end {
            let items = &self.grouped[self.items_of(group)];
            let mut slots = match items.len() {
                0 => continue,
                count if count < FEW_ITEMS => None,
                _ => Some(Slots::read(&*self.writer, geometry, group)?),
            };
            for (place, &Placed { slot, at }) in items.iter().enumerate() {
                let number = self.old.count + at;
                let previous = match &mut slots {
                    Some(slots) => slots.replace(slot % GROUP_SLOTS, number),
                    None => match items[..place].iter().rfind(|other| other.slot == slot) {
                        Some(other) => self.old.count + other.at,
                        None => read_slot(&*self.writer, geometry, slot)?,
                    },
                };
                // A slot above the count has been repaired before; if the file lies, the chain ends here.
                let previous = if previous < number { previous } else { 0 };
                self.new.used_slots = self.new.used_slots.saturating_add(u32::from(previous == 0));
                self.previous[at as usize] = previous;
            }
        }
        Ok((end < group_count(geometry)).then_some(end))
    }

    /// Writes some items behind the count.
    fn write_items(&mut self, geometry: Geometry, run: &Run, first: usize, from: usize) -> io::Result<()> {
        let end = self.count.min(from + ITEMS_A_STEP);
        let mut bytes = Vec::with_capacity((end - from) * ITEM_BYTES);
        for at in from..end {
            let item = run.item(first + at);
            let seconds = self.new.seconds(item.store_timestamp_ms);
            let previous = self.previous[at];
            bytes.extend_from_slice(&Item { hash: item.hash, offset: item.offset, seconds, previous }.encode());
            self.new.add(item.offset, item.store_timestamp_ms);
        }
        self.writer.write_at(&[IoSlice::new(&bytes)], geometry.item_at(self.old.count + from as u32))
    }

    /// Lets the slots of some groups name their newest items. Returns the next group.
    fn write_slots(&mut self, geometry: Geometry, group: u32) -> io::Result<Option<u32>> {
        let end = group.saturating_add(GROUPS_A_STEP).min(group_count(geometry));
        for group in group..end {
            let items = &self.grouped[self.items_of(group)];
            if items.len() >= FEW_ITEMS {
                let mut slots = Slots::read(&*self.writer, geometry, group)?;
                items.iter().for_each(|item| slots.set(item.slot % GROUP_SLOTS, self.old.count + item.at));
                slots.write(&*self.writer, geometry)?;
                continue;
            }
            for (place, &Placed { slot, at }) in items.iter().enumerate() {
                if !items[place + 1..].iter().any(|later| later.slot == slot) {
                    let number = (self.old.count + at).to_be_bytes();
                    self.writer.write_at(&[IoSlice::new(&number)], geometry.slot_at(slot))?;
                }
            }
        }
        Ok((end < group_count(geometry)).then_some(end))
    }
}

fn group_count(geometry: Geometry) -> u32 {
    geometry.slots.div_ceil(GROUP_SLOTS)
}

fn read_slot(file: &dyn DiskFile, geometry: Geometry, slot: u32) -> io::Result<u32> {
    let mut bytes = [0; SLOT_BYTES];
    read_full(file, &mut bytes, geometry.slot_at(slot))?;
    Ok(u32::from_be_bytes(bytes))
}

/// The slots of a group in memory.
struct Slots {
    first: u32,
    bytes: Vec<u8>,
    /// A bit for each block of [`BLOCK_BYTES`] that was changed: a group has 64.
    changed: u64,
}

const _: () = assert!(GROUP_SLOTS as usize * SLOT_BYTES / BLOCK_BYTES == 64);

impl Slots {
    fn read(file: &dyn DiskFile, geometry: Geometry, group: u32) -> io::Result<Self> {
        let first = group * GROUP_SLOTS;
        let mut bytes = vec![0; (geometry.slots - first).min(GROUP_SLOTS) as usize * SLOT_BYTES];
        read_full(file, &mut bytes, geometry.slot_at(first))?;
        Ok(Self { first, bytes, changed: 0 })
    }

    fn len(&self) -> u32 {
        (self.bytes.len() / SLOT_BYTES) as u32
    }

    fn get(&self, slot: u32) -> u32 {
        let at = slot as usize * SLOT_BYTES;
        u32::from_be_bytes(self.bytes[at..at + SLOT_BYTES].try_into().expect("4 bytes"))
    }

    fn set(&mut self, slot: u32, number: u32) {
        let at = slot as usize * SLOT_BYTES;
        self.bytes[at..at + SLOT_BYTES].copy_from_slice(&number.to_be_bytes());
        self.changed |= 1 << (at / BLOCK_BYTES);
    }

    fn replace(&mut self, slot: u32, number: u32) -> u32 {
        let old = self.get(slot);
        self.set(slot, number);
        old
    }

    /// Writes the changed blocks, neighbours in one piece.
    fn write(&self, file: &dyn DiskFile, geometry: Geometry) -> io::Result<()> {
        let mut block = 0;
        while block < 64 && self.changed >> block != 0 {
            block += (self.changed >> block).trailing_zeros();
            let blocks = (self.changed >> block).trailing_ones();
            let start = block as usize * BLOCK_BYTES;
            let end = self.bytes.len().min(start + blocks as usize * BLOCK_BYTES);
            let at = geometry.slot_at(self.first) + start as u64;
            file.write_at(&[IoSlice::new(&self.bytes[start..end])], at)?;
            block += blocks;
        }
        Ok(())
    }
}
