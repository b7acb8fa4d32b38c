//! The bytes of one simulated file: what was written, and what would survive a power cut.
//!
//! Invariant: both are kept by blocks, so that a sparse file of a gigabyte costs what was written to it; the unit of
//! survival is a sector of 512 bytes.

use std::collections::{BTreeMap, BTreeSet};

use rand::RngExt;
use rand::rngs::StdRng;

/// The unit that a device writes whole or not at all.
pub const SECTOR_BYTES: u64 = 512;
const BLOCK_BYTES: u64 = 4096;

type Blocks = BTreeMap<u64, Box<[u8]>>;

/// One file.
#[derive(Clone, Default)]
pub(super) struct Content {
    written: Blocks,
    durable: Blocks,
    len: u64,
    durable_len: u64,
    /// Sectors that differ, or may, between the two.
    dirty: BTreeSet<u64>,
    /// Failed syncs so far: each descriptor reports those that it has not reported yet once.
    pub sync_errors: u64,
    /// Last change, ms since 1970.
    pub modified_ms: i64,
}

impl Content {
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Bytes that the file occupies.
    pub fn occupied(&self) -> u64 {
        self.written.len() as u64 * BLOCK_BYTES
    }

    /// Whether a block at or behind `at` exists.
    pub fn has_data_from(&self, at: u64) -> bool {
        self.written.range(at / BLOCK_BYTES..).next().is_some()
    }

    /// Blocks that a write of this range would add, in bytes.
    pub fn growth(&self, at: u64, len: u64) -> u64 {
        let blocks = at / BLOCK_BYTES..(at + len).div_ceil(BLOCK_BYTES);
        blocks.filter(|block| !self.written.contains_key(block)).count() as u64 * BLOCK_BYTES
    }

    pub fn read(&self, buf: &mut [u8], at: u64) -> usize {
        let count = self.len.saturating_sub(at).min(buf.len() as u64) as usize;
        copy_out(&self.written, &mut buf[..count], at);
        count
    }

    pub fn write(&mut self, bytes: &[u8], at: u64) {
        copy_in(&mut self.written, bytes, at);
        self.len = self.len.max(at + bytes.len() as u64);
        self.mark(at, bytes.len() as u64);
    }

    pub fn set_len(&mut self, len: u64) {
        if len < self.len {
            let gone = self.written.split_off(&len.div_ceil(BLOCK_BYTES));
            for block in gone.into_keys() {
                self.mark(block * BLOCK_BYTES, BLOCK_BYTES);
            }
            if !len.is_multiple_of(BLOCK_BYTES) && self.written.contains_key(&(len / BLOCK_BYTES)) {
                let rest = (BLOCK_BYTES - len % BLOCK_BYTES) as usize;
                copy_in(&mut self.written, &vec![0; rest], len);
                self.mark(len, rest as u64);
            }
        }
        self.len = len;
    }

    /// Reserves blocks for a range: they exist afterwards, with zeros.
    pub fn allocate(&mut self, at: u64, len: u64) {
        for block in at / BLOCK_BYTES..(at + len).div_ceil(BLOCK_BYTES) {
            self.written.entry(block).or_insert_with(zeros);
        }
        self.len = self.len.max(at + len);
    }

    /// Everything written becomes durable.
    pub fn sync(&mut self) {
        for sector in std::mem::take(&mut self.dirty) {
            self.persist(sector);
        }
        self.durable_len = self.len;
        self.durable.retain(|block, _| block * BLOCK_BYTES < self.durable_len);
    }

    /// A sync failed: what was dirty counts as clean and is not durable, although it can still be read.
    pub fn lose_dirty(&mut self) {
        self.dirty.clear();
        self.sync_errors += 1;
    }

    /// The system writes a dirty sector back, as it may at any time.
    pub fn write_back_some(&mut self, random: &mut StdRng) {
        if !self.dirty.is_empty() {
            let from = self.dirty.range(random.random_range(0..=*self.dirty.last().expect("is not empty"))..).next();
            if let Some(&sector) = from {
                self.persist(sector);
                self.durable_len = self.durable_len.max(self.len.min((sector + 1) * SECTOR_BYTES));
            }
        }
    }

    /// The power goes: of what is not durable any subset of sectors survives, and any length in between.
    pub fn cut(&mut self, random: &mut StdRng) {
        // All, nothing, and everything in between have their turn.
        let keep = match random.random_range(0..4) {
            0 => 0.0,
            1 => 1.0,
            _ => random.random::<f64>(),
        };
        let (low, high) = (self.durable_len.min(self.len), self.durable_len.max(self.len));
        let len = match random.random_range(0..3) {
            0 => self.durable_len,
            1 => self.len,
            _ => (random.random_range(low..=high) / SECTOR_BYTES * SECTOR_BYTES).max(low),
        };
        for sector in std::mem::take(&mut self.dirty) {
            if random.random_bool(keep) {
                self.persist(sector);
            }
        }
        self.written = self.durable.clone();
        self.len = u64::MAX;
        self.set_len(len);
        self.dirty.clear();
        (self.durable, self.durable_len) = (self.written.clone(), len);
    }

    fn mark(&mut self, at: u64, len: u64) {
        self.dirty.extend(at / SECTOR_BYTES..(at + len).div_ceil(SECTOR_BYTES));
    }

    fn persist(&mut self, sector: u64) {
        let mut bytes = [0; SECTOR_BYTES as usize];
        copy_out(&self.written, &mut bytes, sector * SECTOR_BYTES);
        copy_in(&mut self.durable, &bytes, sector * SECTOR_BYTES);
    }
}

/// A number below `end` from any generator: the disk's own randomness goes through here.
pub(super) fn below(random: &mut StdRng, end: u64) -> u64 {
    random.random_range(0..end.max(1))
}

fn zeros() -> Box<[u8]> {
    vec![0; BLOCK_BYTES as usize].into_boxed_slice()
}

/// The parts of a range in each block: block, place in the block, place in the range, length.
fn pieces(at: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let position = at + done as u64;
        let inside = (position % BLOCK_BYTES) as usize;
        let count = (len - done).min(BLOCK_BYTES as usize - inside);
        let piece = (position / BLOCK_BYTES, inside, done, count);
        done += count;
        (count > 0).then_some(piece)
    })
}

fn copy_out(blocks: &Blocks, buf: &mut [u8], at: u64) {
    for (block, inside, place, count) in pieces(at, buf.len()) {
        let target = &mut buf[place..place + count];
        match blocks.get(&block) {
            Some(bytes) => target.copy_from_slice(&bytes[inside..inside + count]),
            None => target.fill(0),
        }
    }
}

fn copy_in(blocks: &mut Blocks, bytes: &[u8], at: u64) {
    for (block, inside, place, count) in pieces(at, bytes.len()) {
        let target = blocks.entry(block).or_insert_with(zeros);
        target[inside..inside + count].copy_from_slice(&bytes[place..place + count]);
    }
}
