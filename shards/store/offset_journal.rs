//! The journal of consumer offsets: an answered commit survives `kill -9` although the JSON file is written seconds later.
//!
//! Owner of `shards/offsets.<generation>.journal` (FORMAT.md §5). The owner of the offsets appends once a turn, before it
//! answers; [`OffsetJournal::rotate`] starts a new file before the JSON is written, [`OffsetJournal::drop_through`] forgets
//! what the written JSON covers. Invariants: an entry is whole or ignored (CRC); a file's replay stops at its first bad
//! entry; replaying an entry that a JSON file already covers is harmless, because later entries follow. The generation
//! that the newest JSON covers is kept too: with it, the JSON's backup is as good. It does not know what entries mean.

use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;

use sys::disk::{Disk, DiskFile, OpenMode};

use crate::layout::StoreLayout;

/// The largest entry, in bytes. A turn's commits are far smaller; a longer length field on disk is damage.
pub const MAX_ENTRY_BYTES: usize = 16 << 20;

/// Length and CRC before each entry, in bytes.
const ENTRY_HEADER_BYTES: usize = 8;
const PREFIX: &str = "offsets.";
const SUFFIX: &str = ".journal";

/// The open journal. One owner; appends go through it alone.
pub struct OffsetJournal {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// Generations on disk that are not the open one, oldest first.
    closed: Vec<u64>,
    generation: u64,
    /// Made by the first append: a broker without commits makes no file.
    file: Option<Arc<dyn DiskFile>>,
    /// Where the next entry goes. Moves only after a whole write.
    end: u64,
    scratch: Vec<u8>,
}

impl OffsetJournal {
    /// Opens the journal of a store and gives every whole entry on disk to `replay`, oldest first. Errors: the disk's.
    pub fn open(disk: Arc<dyn Disk>, layout: &StoreLayout, replay: &mut dyn FnMut(&[u8])) -> io::Result<OffsetJournal> {
        let dir = layout.shards_dir();
        let mut closed: Vec<u64> = disk.list(&dir)?.iter().filter_map(|item| parse_name(&item.name)).collect();
        closed.sort_unstable();
        for &generation in &closed {
            if let Some(bytes) = disk.read(&dir.join(file_name(generation)))? {
                let used = entries(&bytes, replay);
                if used < bytes.len() {
                    tracing::warn!(generation, ignored = bytes.len() - used, "the offset journal ends in a torn entry");
                }
            }
        }
        let generation = closed.last().map_or(1, |last| last + 1);
        Ok(Self { disk, dir, closed, generation, file: None, end: 0, scratch: Vec::new() })
    }

    /// Appends an entry in one write. When it returns, the entry survives the death of the process. After an error the
    /// entry may or may not be replayed; the next append takes its place.
    pub fn append(&mut self, entry: &[u8]) -> io::Result<()> {
        assert!(entry.len() <= MAX_ENTRY_BYTES, "an entry of {} bytes", entry.len());
        if self.file.is_none() {
            self.disk.create_dir_all(&self.dir)?;
            self.file = Some(self.disk.open(&self.dir.join(file_name(self.generation)), OpenMode::Create)?);
            self.disk.sync_dir(&self.dir)?;
        }
        let file = self.file.as_ref().expect("was just opened");
        self.scratch.clear();
        self.scratch.extend_from_slice(&(entry.len() as u32).to_be_bytes());
        self.scratch.extend_from_slice(&crc32fast::hash(entry).to_be_bytes());
        self.scratch.extend_from_slice(entry);
        file.write_at(&[IoSlice::new(&self.scratch)], self.end)?;
        self.end += self.scratch.len() as u64;
        Ok(())
    }

    /// Starts a new generation and returns the one that ended: a JSON file made from the state of now covers it.
    pub fn rotate(&mut self) -> u64 {
        let ended = self.generation;
        if self.file.take().is_some() {
            self.closed.push(ended);
        }
        self.generation += 1;
        self.end = 0;
        ended
    }

    /// The JSON file that covers `generation` is durable: older generations are removed. `generation` itself stays until
    /// the next JSON file, for the case that the JSON must be read from its backup.
    pub fn drop_through(&mut self, generation: u64) -> io::Result<()> {
        let kept = self.closed.iter().rev().copied().find(|&g| g <= generation).unwrap_or(0);
        let mut result = Ok(());
        let (disk, dir) = (&self.disk, &self.dir);
        self.closed.retain(|&g| {
            if g >= kept {
                return true;
            }
            match disk.remove_file(&dir.join(file_name(g))) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    result = Err(error);
                    true
                }
                _ => false,
            }
        });
        result
    }

    /// Makes what was appended durable against a power cut. At an orderly end.
    pub fn sync(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| file.sync_data())
    }

    /// Bytes in the open generation: a reason to write the JSON file early.
    #[must_use]
    pub fn pending_bytes(&self) -> u64 {
        self.end
    }
}

/// Gives the whole entries at the start of `bytes` to `visit`; returns how many bytes they fill.
pub fn entries(bytes: &[u8], visit: &mut dyn FnMut(&[u8])) -> usize {
    let mut at = 0;
    while let Some((header, rest)) = bytes[at..].split_first_chunk::<ENTRY_HEADER_BYTES>() {
        let len = u32::from_be_bytes(header[..4].try_into().expect("4 bytes")) as usize;
        let crc = u32::from_be_bytes(header[4..].try_into().expect("4 bytes"));
        // A hole reads as an empty entry with CRC 0, which is the CRC of nothing: real entries are never empty.
        if len == 0 || len > MAX_ENTRY_BYTES || rest.len() < len || crc32fast::hash(&rest[..len]) != crc {
            break;
        }
        visit(&rest[..len]);
        at += ENTRY_HEADER_BYTES + len;
    }
    at
}

fn file_name(generation: u64) -> String {
    format!("{PREFIX}{generation}{SUFFIX}")
}

fn parse_name(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()
}
