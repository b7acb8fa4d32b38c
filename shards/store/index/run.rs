//! Index items in memory, in the order of the log, until they are merged into a file.
//!
//! Invariants: offsets never fall; the run covers every keyed record that starts in `from..to`. An append is three pushes;
//! a search looks at the hashes only, in blocks that the compiler turns into vector compares. It knows no file.

use message::PhysicalOffset;

/// Items of one chunk: 1.25 MiB. Chunks are allocated whole, so that a growing run copies nothing.
const CHUNK_ITEMS: usize = 1 << 16;
/// Unused chunks that are kept: those of one run. Fresh memory from the kernel costs more than an append.
const SPARE_CHUNKS: usize = 16;
/// Hashes compared at once.
const BLOCK: usize = 64;

/// One item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunItem {
    pub hash: u32,
    pub offset: PhysicalOffset,
    pub store_timestamp_ms: i64,
}

/// A stretch of the log's index.
pub(crate) struct Run {
    /// First byte of the log that the run covers.
    from: PhysicalOffset,
    /// First byte behind what it covers.
    to: PhysicalOffset,
    chunks: Vec<Chunk>,
    len: usize,
    /// Empty ones, for later.
    spare: Vec<Chunk>,
}

struct Chunk {
    hashes: Vec<u32>,
    offsets: Vec<PhysicalOffset>,
    times: Vec<i64>,
}

impl Run {
    /// An empty run whose first record starts at `from` or later.
    pub fn new(from: PhysicalOffset) -> Self {
        Self { from, to: from, chunks: Vec::new(), len: 0, spare: Vec::new() }
    }

    /// The run that goes on behind this one, with its unused memory.
    pub fn next(&mut self) -> Self {
        Self { spare: std::mem::take(&mut self.spare), ..Self::new(self.to) }
    }

    /// Takes over the memory of a run that nobody needs any more.
    pub fn reuse(&mut self, run: Run) {
        let room = SPARE_CHUNKS - self.spare.len();
        self.spare.extend(run.chunks.into_iter().take(room).map(Chunk::emptied));
    }

    pub fn from(&self) -> PhysicalOffset {
        self.from
    }

    pub fn to(&self) -> PhysicalOffset {
        self.to
    }

    /// The run covers the log up to `to`, although no keyed record was there.
    pub fn cover(&mut self, to: PhysicalOffset) {
        self.to = self.to.max(to);
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds the item of a record that starts at `offset`: not before that of the previous item.
    #[inline]
    pub fn push(&mut self, hash: u32, offset: PhysicalOffset, store_timestamp_ms: i64) {
        debug_assert!(offset.plus(1) >= self.to, "an index item of {offset} after {}", self.to);
        let full = self.chunks.last().is_none_or(|chunk| chunk.hashes.len() == CHUNK_ITEMS);
        if full {
            let chunk = self.spare.pop().unwrap_or_else(Chunk::new);
            self.chunks.push(chunk);
        }
        let chunk = self.chunks.last_mut().expect("one was just pushed");
        chunk.hashes.push(hash);
        chunk.offsets.push(offset);
        chunk.times.push(store_timestamp_ms);
        self.len += 1;
        self.to = offset.plus(1);
    }

    /// The item with this number.
    pub fn item(&self, at: usize) -> RunItem {
        let (chunk, at) = (&self.chunks[at / CHUNK_ITEMS], at % CHUNK_ITEMS);
        RunItem { hash: chunk.hashes[at], offset: chunk.offsets[at], store_timestamp_ms: chunk.times[at] }
    }

    /// The hash of the item with this number.
    pub fn hash(&self, at: usize) -> u32 {
        self.chunks[at / CHUNK_ITEMS].hashes[at % CHUNK_ITEMS]
    }

    /// The newest item; `None` in an empty run.
    pub fn last(&self) -> Option<RunItem> {
        self.len.checked_sub(1).map(|at| self.item(at))
    }

    /// Adds the records with this hash that were stored in the window, newest first, until `found` holds `limit`.
    pub fn find(&self, hash: u32, begin_ms: i64, end_ms: i64, limit: usize, found: &mut Vec<PhysicalOffset>) {
        for chunk in self.chunks.iter().rev() {
            if !chunk.find(hash, begin_ms, end_ms, limit, found) {
                return;
            }
        }
    }
}

impl Chunk {
    fn new() -> Self {
        Self {
            hashes: Vec::with_capacity(CHUNK_ITEMS),
            offsets: Vec::with_capacity(CHUNK_ITEMS),
            times: Vec::with_capacity(CHUNK_ITEMS),
        }
    }

    fn emptied(mut self) -> Self {
        self.hashes.clear();
        self.offsets.clear();
        self.times.clear();
        self
    }

    /// Whether the search goes on in older chunks.
    fn find(&self, hash: u32, begin_ms: i64, end_ms: i64, limit: usize, found: &mut Vec<PhysicalOffset>) -> bool {
        let mut end = self.hashes.len();
        while end > 0 {
            let start = (end - 1) / BLOCK * BLOCK;
            let block = &self.hashes[start..end];
            if block.iter().fold(false, |any, &one| any | (one == hash)) {
                for at in (start..end).rev().filter(|&at| self.hashes[at] == hash) {
                    if found.len() >= limit {
                        return false;
                    }
                    // A key that a record has twice is one hit: its items are neighbours.
                    let is_new = found.last() != Some(&self.offsets[at]);
                    if is_new && (begin_ms..=end_ms).contains(&self.times[at]) {
                        found.push(self.offsets[at]);
                    }
                }
            }
            end = start;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_newest_first_in_the_window() {
        let mut run = Run::new(PhysicalOffset(0));
        for number in 0..200_000_u64 {
            run.push((number % 7) as u32, PhysicalOffset(number * 100), number as i64);
        }
        assert_eq!(run.len(), 200_000);
        assert_eq!(run.to(), PhysicalOffset(19_999_901));
        assert_eq!(
            run.item(65_536),
            RunItem { hash: 2, offset: PhysicalOffset(6_553_600), store_timestamp_ms: 65_536 }
        );
        let mut found = Vec::new();
        run.find(3, 100, 199_990, 3, &mut found);
        assert_eq!(found, [19_998_600, 19_997_900, 19_997_200].map(PhysicalOffset));
        found.clear();
        run.find(3, 3, 10, 10, &mut found);
        assert_eq!(found, [1000, 300].map(PhysicalOffset));
        found.clear();
        run.find(9, 0, i64::MAX, 10, &mut found);
        assert!(found.is_empty());
    }
}
