//! The journal of consumer offsets: an answered commit survives `kill -9` although the JSON file is written seconds later.
//!
//! Owner of `shards/offsets.<generation>.journal` (FORMAT.md §5). The owner of the offsets appends once a turn, before it
//! answers; [`OffsetJournal::rotate`] starts a new file before the JSON is written, [`OffsetJournal::written`] forgets what
//! the JSON files on disk cover. Invariants: an entry is whole or ignored (CRC); a file's replay stops at its first bad
//! entry; replaying an entry that a JSON file already covers is harmless, because later entries follow. Each file begins
//! with the JSON files that it lies over, and they are named before they are written: a JSON file that no generation names
//! was written by another broker, and nothing is replayed over it. What the JSON's backup needs is kept, too: with it, the
//! backup is as good. It does not know what entries mean.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sys::disk::{Disk, DiskFile, OpenMode};

use crate::layout::StoreLayout;

/// The largest entry, in bytes. A turn's commits are far smaller; a longer length field on disk is damage.
pub const MAX_ENTRY_BYTES: usize = 16 << 20;

/// Length and CRC before each entry, in bytes.
const ENTRY_HEADER_BYTES: usize = 8;
const PREFIX: &str = "offsets.";
const SUFFIX: &str = ".journal";
/// A file's first entry begins with it. No entry of a broker begins with 0.
const BASE_MARK: &[u8] = b"\0base";
const BASE_BYTES: usize = 16;

/// The contents of the JSON files of the offsets: the one in force first, then the one that is kept beside it.
pub type JsonFiles<'a> = [Option<&'a [u8]>; 2];

/// A JSON file that generations lie over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// The oldest generation that holds something that the file does not cover.
    pub from: u64,
    /// Length of the file, modulo 2^32.
    pub len: u32,
    /// CRC-32 of the file. The version in it does not tell: a Java broker changes it only with every 500th commit.
    pub crc: u32,
}

impl Base {
    fn of(json: &[u8], from: u64) -> Self {
        Self { from, len: json.len() as u32, crc: crc32fast::hash(json) }
    }

    fn is_of(&self, json: &[u8]) -> bool {
        *self == Self::of(json, self.from)
    }
}

/// The open journal. One owner; appends go through it alone.
pub struct OffsetJournal {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// Generations on disk that are not the open one, oldest first.
    closed: Vec<u64>,
    generation: u64,
    /// What the open generation lies over.
    bases: Vec<Base>,
    /// The oldest generation that the JSON file on disk needs; when that becomes the backup, older ones go.
    needed: u64,
    /// Made by the first append or the first JSON file: a broker without commits makes no file.
    file: Option<Arc<dyn DiskFile>>,
    /// Where the next entry goes. Moves only after a whole write.
    end: u64,
    scratch: Vec<u8>,
}

impl OffsetJournal {
    /// Opens the journal of a store and gives to `replay`, oldest first, every whole entry on disk that is newer than the
    /// JSON file in force. Without such a file, or with files that name none, that is every entry; with one that another
    /// broker wrote it is none. Errors: the disk's.
    pub fn open(
        disk: Arc<dyn Disk>,
        layout: &StoreLayout,
        found: JsonFiles<'_>,
        replay: &mut dyn FnMut(&[u8]),
    ) -> io::Result<OffsetJournal> {
        let dir = layout.shards_dir();
        let mut closed: Vec<u64> = disk.list(&dir)?.iter().filter_map(|item| parse_name(&item.name)).collect();
        closed.sort_unstable();
        let generation = closed.last().map_or(1, |last| last + 1);
        let files = read_files(&*disk, &dir, &closed)?;
        let start = |json: &[u8]| {
            let mut known = files.iter().rev().filter_map(|file| file.bases.as_ref()).peekable();
            // Files of a version that named nothing lie over any JSON.
            let unknown = if known.peek().is_none() { 0 } else { generation };
            known.flatten().find(|base| base.is_of(json)).map_or(unknown, |base| base.from)
        };
        let bases: Vec<Base> = found.into_iter().flatten().map(|json| Base::of(json, start(json))).collect();
        let from = found[0].map_or(0, start);
        if from == generation && !files.is_empty() {
            tracing::info!("another broker wrote the consumer offsets: the offset journal does not count");
        }
        for file in files.iter().filter(|file| file.generation >= from) {
            file.entries.iter().for_each(|entry| replay(entry));
        }
        let needed = bases.iter().map(|base| base.from).min().unwrap_or(0);
        Ok(Self { disk, dir, closed, generation, bases, needed, file: None, end: 0, scratch: Vec::new() })
    }

    /// Appends an entry in one write. When it returns, the entry survives the death of the process. After an error the
    /// entry may or may not be replayed; the next append takes its place.
    pub fn append(&mut self, entry: &[u8]) -> io::Result<()> {
        assert!(entry.len() <= MAX_ENTRY_BYTES, "an entry of {} bytes", entry.len());
        let file = self.begun()?;
        frame(&mut self.scratch, entry);
        file.write_at(&[IoSlice::new(&self.scratch)], self.end)?;
        self.end += self.scratch.len() as u64;
        Ok(())
    }

    /// JSON files made from the state of now are about to be written: starts a new generation, which names them, and
    /// returns it. Errors: the disk's; nothing has changed then, and the files must not be written.
    pub fn rotate(&mut self, json: JsonFiles<'_>) -> io::Result<u64> {
        // The JSON on disk stays until the new one is there, so it must be named, too.
        self.begun()?;
        let next = self.generation + 1;
        let bases: Vec<Base> = json.into_iter().flatten().map(|json| Base::of(json, next)).collect();
        let (file, end) = self.create(next, &bases)?;
        self.closed.push(self.generation);
        (self.generation, self.bases, self.file, self.end) = (next, bases, Some(file), end);
        Ok(next)
    }

    /// The JSON files that `generation` began with are durable. What neither they nor their backups, the files before
    /// them, need is removed.
    pub fn written(&mut self, generation: u64) -> io::Result<()> {
        let needed = std::mem::replace(&mut self.needed, generation);
        let mut result = Ok(());
        let (disk, dir) = (&self.disk, &self.dir);
        self.closed.retain(|&g| {
            if g >= needed {
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

    /// The file of the open generation.
    fn begun(&mut self) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(file) = &self.file {
            return Ok(file.clone());
        }
        let (file, end) = self.create(self.generation, &self.bases)?;
        self.end = end;
        Ok(self.file.insert(file).clone())
    }

    /// A file with its first entry, and where that ends.
    fn create(&self, generation: u64, bases: &[Base]) -> io::Result<(Arc<dyn DiskFile>, u64)> {
        self.disk.create_dir_all(&self.dir)?;
        let file = self.disk.open(&self.dir.join(file_name(generation)), OpenMode::Create)?;
        self.disk.sync_dir(&self.dir)?;
        let mut first = Vec::new();
        frame(&mut first, &encode_bases(bases));
        file.write_at(&[IoSlice::new(&first)], 0)?;
        Ok((file, first.len() as u64))
    }
}

/// What a generation on disk holds.
struct Generation {
    generation: u64,
    /// `None`: written by a version that named nothing.
    bases: Option<Vec<Base>>,
    entries: Vec<Vec<u8>>,
}

fn read_files(disk: &dyn Disk, dir: &Path, generations: &[u64]) -> io::Result<Vec<Generation>> {
    let mut files = Vec::new();
    for &generation in generations {
        let Some(bytes) = disk.read(&dir.join(file_name(generation)))? else { continue };
        let mut all = Vec::new();
        let used = entries(&bytes, &mut |entry| all.push(entry.to_vec()));
        if used < bytes.len() {
            tracing::warn!(generation, ignored = bytes.len() - used, "the offset journal ends in a torn entry");
        }
        let bases = all.first().and_then(|entry| decode_bases(entry));
        let entries = all.split_off(usize::from(bases.is_some()));
        files.push(Generation { generation, bases, entries });
    }
    Ok(files)
}

fn encode_bases(bases: &[Base]) -> Vec<u8> {
    let mut entry = BASE_MARK.to_vec();
    for base in bases {
        entry.extend_from_slice(&base.from.to_be_bytes());
        entry.extend_from_slice(&base.len.to_be_bytes());
        entry.extend_from_slice(&base.crc.to_be_bytes());
    }
    entry
}

/// The JSON files that a file's first entry names; `None` when it is an entry of the broker.
pub fn decode_bases(entry: &[u8]) -> Option<Vec<Base>> {
    let (bases, []) = entry.strip_prefix(BASE_MARK)?.as_chunks::<BASE_BYTES>() else { return None };
    let base = |bytes: &[u8; BASE_BYTES]| {
        let bits = u128::from_be_bytes(*bytes);
        Base { from: (bits >> 64) as u64, len: (bits >> 32) as u32, crc: bits as u32 }
    };
    Some(bases.iter().map(base).collect())
}

/// Puts an entry with its header into `out`, in place of what that held.
fn frame(out: &mut Vec<u8>, entry: &[u8]) {
    out.clear();
    out.extend_from_slice(&(entry.len() as u32).to_be_bytes());
    out.extend_from_slice(&crc32fast::hash(entry).to_be_bytes());
    out.extend_from_slice(entry);
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
