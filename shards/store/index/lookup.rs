//! Walks through the chains of index files, newest to oldest.
//!
//! On the core a walk touches only what is in the page cache and only so many items; anything else is done by a
//! background task over the same files. Invariants: a walk always ends (numbers of a chain fall); whatever the file holds,
//! it is an answer or an error, never a panic. A hit is a hash and a time: the caller checks the record itself.

use std::io;
use std::sync::Arc;

use message::PhysicalOffset;
use reactor::{BackgroundTask, Step};
use sys::disk::{Disk, DiskFile};

use super::file::{Geometry, ITEM_BYTES, IndexFile, Item, SLOT_BYTES};

/// Items and slots that a walk on the core may read, each about a third of a microsecond.
const CORE_STEPS: u32 = 512;
/// Items that one step of a background walk reads.
const TASK_STEPS: u32 = 8_192;
/// Items that a query reads at most. A chain that long is one key in each of a million messages.
const QUERY_STEPS: u32 = 4 << 20;

/// Most candidates of a query whose second is partly outside of the window.
pub const MAX_UNSURE: usize = 512;

/// What a query asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyLookup {
    /// From [`key_hash`](super::key_hash) or [`tag_hash`](super::tag_hash).
    pub hash: u32,
    /// First store time wanted, ms since 1970.
    pub begin_ms: i64,
    /// Last store time wanted, ms since 1970.
    pub end_ms: i64,
    /// Most candidates wanted. Records that only perhaps lie in the window (a file knows whole seconds) do not count, but
    /// there are never more of them than [`MAX_UNSURE`].
    pub limit: usize,
}

/// How bytes may be reached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// From the page cache only.
    Resident,
    /// From the device, if need be.
    Any,
}

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// All is read, or enough is found.
    Complete,
    /// Bytes are not in the page cache, or too many items would be read here.
    Unfinished,
}

/// A walk over some files, which can stop at any item and go on later.
pub(crate) struct Walk {
    geometry: Geometry,
    /// Still to be read, the next one last.
    files: Vec<Arc<IndexFile>>,
    query: KeyLookup,
    /// Records behind this one are in runs, with all their keys; this one perhaps.
    below: PhysicalOffset,
    /// The next item in the last of `files`; `None`: its slot is read first.
    at: Option<u32>,
    /// What was found, newest first.
    found: Vec<PhysicalOffset>,
    /// How many of those only perhaps lie in the window.
    unsure: usize,
    steps_left: u32,
}

impl Walk {
    /// A walk over `files` (oldest first). `found` holds what runs in memory gave: all behind `below`.
    pub fn new(
        geometry: Geometry,
        files: &[Arc<IndexFile>],
        query: KeyLookup,
        below: PhysicalOffset,
        found: Vec<PhysicalOffset>,
    ) -> Self {
        let files = files.iter().filter(|file| query.meets(file)).cloned().collect();
        Self { geometry, files, query, below, at: None, found, unsure: 0, steps_left: QUERY_STEPS }
    }

    /// Walks over what is in memory: the result, or the walk itself for the background.
    pub fn run_resident(mut self) -> io::Result<Result<Vec<PhysicalOffset>, Self>> {
        Ok(match self.advance(Access::Resident, CORE_STEPS)? {
            Ended::Complete => Ok(self.found),
            Ended::Unfinished => Err(self),
        })
    }

    fn advance(&mut self, access: Access, steps: u32) -> io::Result<Ended> {
        let mut steps = steps;
        while let Some(file) = self.files.last().cloned() {
            if self.found.len() - self.unsure >= self.query.limit || self.steps_left == 0 {
                break;
            }
            let next = match self.at {
                None => {
                    let slot = self.geometry.slot_of(self.query.hash);
                    read::<SLOT_BYTES>(&*file.file, self.geometry.slot_at(slot), access)?.map(u32::from_be_bytes)
                }
                Some(number) => read::<ITEM_BYTES>(&*file.file, self.geometry.item_at(number), access)?
                    .map(|bytes| self.take(&file, number, &Item::decode(&bytes))),
            };
            let Some(next) = next else { return Ok(Ended::Unfinished) };
            // A slot above the count is that of a merge in flight: its items were all written before.
            if next == 0 || next >= self.geometry.items {
                self.files.pop();
                self.at = None;
            } else {
                self.at = Some(next);
            }
            self.steps_left -= 1;
            steps -= 1;
            if steps == 0 {
                return Ok(if self.files.is_empty() { Ended::Complete } else { Ended::Unfinished });
            }
        }
        Ok(Ended::Complete)
    }

    /// Takes an item if it matches; the number of the next one, 0 at the end of the chain.
    fn take(&mut self, file: &IndexFile, number: u32, item: &Item) -> u32 {
        // A Java broker counts the first item's seconds from the end of the file before.
        let seconds = if number == 1 { 0 } else { i64::from(item.seconds) };
        let first_ms = file.header.begin_ms.saturating_add(seconds * 1000);
        // Whole seconds are all that the file knows: the record may be up to 999 ms younger.
        let last_ms = first_ms.saturating_add(999);
        let in_window = last_ms >= self.query.begin_ms && first_ms <= self.query.end_ms;
        let is_new = item.offset <= self.below && self.found.last() != Some(&item.offset);
        if item.hash == self.query.hash && in_window && is_new {
            let sure = first_ms >= self.query.begin_ms && last_ms <= self.query.end_ms;
            if sure || self.unsure < MAX_UNSURE {
                self.found.push(item.offset);
                self.unsure += usize::from(!sure);
            }
        }
        if last_ms < self.query.begin_ms || item.previous >= number { 0 } else { item.previous }
    }
}

impl KeyLookup {
    /// Whether a file may hold records of the window. The header's times are exact.
    fn meets(&self, file: &IndexFile) -> bool {
        file.header.begin_ms <= self.end_ms && file.header.end_ms >= self.begin_ms
    }
}

/// The task of a walk that needs the device. Its output is a `Vec<PhysicalOffset>`.
impl BackgroundTask for Walk {
    fn step(&mut self, _disk: &dyn Disk) -> io::Result<Step> {
        Ok(match self.advance(Access::Any, TASK_STEPS)? {
            Ended::Complete => Step::Done(Box::new(std::mem::take(&mut self.found))),
            Ended::Unfinished => Step::More,
        })
    }
}

/// Some bytes of the file; `None` if the device would have to be waited for. Bytes behind the end read as zeros.
fn read<const N: usize>(file: &dyn DiskFile, at: u64, access: Access) -> io::Result<Option<[u8; N]>> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        let (buf, at) = (&mut bytes[filled..], at + filled as u64);
        let count = match access {
            Access::Any => file.read_at(buf, at)?,
            Access::Resident => match file.read_at_resident(buf, at)? {
                Some(count) => count,
                None => return Ok(None),
            },
        };
        if count == 0 {
            break;
        }
        filled += count;
    }
    Ok(Some(bytes))
}
