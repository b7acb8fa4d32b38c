//! Writing consume queues: batches of entries of many queues, and the syncs of a checkpoint pass.
//!
//! Role: runs in the background (or inline at recovery and close), one batch at a time for each shard, so that removals
//! of deleted topics and later writes keep their order. Invariants: a file is made at its full size; the space before a
//! queue's first entry in its first file is filled with Java's blank entries; writing the same entries again is harmless.

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

use reactor::{BackgroundTask, Step};
use sys::disk::{Disk, DiskFile, OpenMode};

use super::entry::{ENTRY_BYTES, Entry};
use super::files::{FileCache, QueueFiles};
use super::table::{QueueTable, Slot};
use crate::limits;

/// Entries of one queue in a batch.
struct WriteItem {
    slot: Slot,
    uid: u64,
    topic: Arc<[u8]>,
    id: u32,
    /// Offset of the first entry.
    from: u64,
    /// Whether it is the first entry that the queue ever has in a file.
    first: bool,
    /// Its bytes in the batch.
    start: usize,
    end: usize,
}

/// A batch for the background.
pub(crate) struct WriteBatch {
    files: QueueFiles,
    cache: FileCache,
    /// Topics whose folders go away before anything is written.
    removals: Vec<Arc<[u8]>>,
    items: Vec<WriteItem>,
    bytes: Vec<u8>,
    done: usize,
}

/// What a batch is done with.
pub(crate) struct WrittenBatch {
    /// Descriptors for the next batch.
    pub(crate) cache: FileCache,
    /// Memory for the next batch.
    pub(crate) bytes: Vec<u8>,
    /// Each queue, its number, and up to where its entries are written now.
    pub(crate) written: Vec<(Slot, u64, u64)>,
}

impl WriteBatch {
    /// Collects unwritten entries of the longest waiting queues, a queue at a time: at most `max_bytes` of them and as many
    /// queues as one batch may have. `bytes` is memory to use.
    pub(crate) fn collect(
        table: &mut QueueTable,
        files: &QueueFiles,
        cache: FileCache,
        removals: Vec<Arc<[u8]>>,
        mut bytes: Vec<u8>,
        max_bytes: usize,
    ) -> Self {
        bytes.clear();
        bytes.reserve(max_bytes.min(table.unwritten() as usize * ENTRY_BYTES));
        let mut batch = Self { files: files.clone(), cache, removals, items: Vec::new(), bytes, done: 0 };
        // Queues that grow on are put back at the end: look at each only once.
        for _ in 0..table.dirty.len() {
            if batch.bytes.len() >= max_bytes || batch.items.len() >= limits::QUEUE_BATCH_QUEUES {
                break;
            }
            let Some((slot, uid)) = table.dirty.pop_front() else { break };
            let topic = match table.live(slot, uid) {
                Some(_) => Arc::clone(table.topic_of(slot)),
                None => continue,
            };
            batch.add(table, slot, topic, max_bytes);
            let queue = table.get_mut(slot);
            let taken = batch.items.last().map_or(queue.written, |item| item.from + item.entries());
            queue.in_dirty = taken < queue.dispatched();
            if queue.in_dirty {
                table.dirty.push_back((slot, uid));
            }
        }
        batch
    }

    /// The queues in it.
    pub(crate) fn queues(&self) -> impl Iterator<Item = (Slot, u64)> {
        self.items.iter().map(|item| (item.slot, item.uid))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.removals.is_empty()
    }

    fn add(&mut self, table: &QueueTable, slot: Slot, topic: Arc<[u8]>, max_bytes: usize) {
        let queue = table.get(slot);
        let room = (max_bytes - self.bytes.len()).div_ceil(ENTRY_BYTES);
        let start = self.bytes.len();
        for entry in queue.in_tail(queue.written, room).into_iter().flatten() {
            entry.encode(&mut self.bytes);
        }
        let (from, first) = (queue.written, queue.written == queue.first);
        let end = self.bytes.len();
        self.items.push(WriteItem { slot, uid: queue.uid, topic, id: queue.id, from, first, start, end });
    }

    /// Does the next few items; whether the batch is done.
    fn advance(&mut self, disk: &dyn Disk) -> io::Result<bool> {
        /// Bytes, and files that may have to be made, of one step.
        const STEP_BYTES: usize = 1 << 20;
        const STEP_ITEMS: usize = 32;
        if !self.removals.is_empty() {
            let topic = self.removals.remove(0);
            disk.remove_dir_all(&self.files.topic_dir(&topic))?;
            sync_dir(disk, &self.files.root)?;
            return Ok(self.items.is_empty() && self.removals.is_empty());
        }
        let mut bytes = 0;
        let until = (self.done + STEP_ITEMS).min(self.items.len());
        while self.done < until && bytes < STEP_BYTES {
            let item = &self.items[self.done];
            bytes += item.end - item.start;
            write_item(disk, &self.files, &mut self.cache, item, &self.bytes[item.start..item.end])?;
            self.done += 1;
        }
        Ok(self.done == self.items.len())
    }

    fn finish(self) -> WrittenBatch {
        let written = self.items.iter().map(|item| (item.slot, item.uid, item.from + item.entries())).collect();
        WrittenBatch { cache: self.cache, bytes: self.bytes, written }
    }

    /// Nothing, in place of a batch that was taken away.
    fn hollow(files: &QueueFiles) -> Self {
        Self {
            files: files.clone(),
            cache: FileCache::new(0),
            removals: Vec::new(),
            items: Vec::new(),
            bytes: Vec::new(),
            done: 0,
        }
    }
}

impl BackgroundTask for WriteBatch {
    fn step(&mut self, disk: &dyn Disk) -> io::Result<Step> {
        if !self.advance(disk)? {
            return Ok(Step::More);
        }
        let hollow = Self::hollow(&self.files);
        Ok(Step::Done(Box::new(std::mem::replace(self, hollow).finish())))
    }
}

impl WriteItem {
    fn entries(&self) -> u64 {
        ((self.end - self.start) / ENTRY_BYTES) as u64
    }
}

/// Writes all unwritten entries at once, inline: for recovery and close.
pub(crate) fn write_now(
    disk: &dyn Disk,
    table: &mut QueueTable,
    files: &QueueFiles,
    removals: &mut Vec<Arc<[u8]>>,
) -> io::Result<()> {
    let (mut cache, mut bytes) = (FileCache::new(limits::OPEN_QUEUE_WRITERS), Vec::new());
    loop {
        let mut batch = WriteBatch::collect(table, files, cache, std::mem::take(removals), bytes, 4 << 20);
        if batch.is_empty() {
            return Ok(());
        }
        while !batch.advance(disk)? {}
        let done = batch.finish();
        (cache, bytes) = (done.cache, done.bytes);
        for (slot, uid, to) in done.written {
            if table.live(slot, uid).is_some() {
                table.set_written(slot, to);
            }
        }
    }
}

fn write_item(
    disk: &dyn Disk,
    files: &QueueFiles,
    cache: &mut FileCache,
    item: &WriteItem,
    mut bytes: &[u8],
) -> io::Result<()> {
    let mut index = item.from;
    while !bytes.is_empty() {
        let file_start = files.file_of(index);
        let position = index * ENTRY_BYTES as u64 - file_start;
        let mut made = false;
        let file = cache.get(item.uid, file_start, || {
            let (file, new) = open_for_write(disk, files, &item.topic, item.id, file_start)?;
            made = new;
            Ok(file)
        })?;
        if made && item.first && index == item.from && position > 0 {
            fill_blank(&*file, position)?;
        }
        let room = (files.file_size - position).min(bytes.len() as u64) as usize;
        file.write_at(&[IoSlice::new(&bytes[..room])], position)?;
        bytes = &bytes[room..];
        index += (room / ENTRY_BYTES) as u64;
    }
    Ok(())
}

/// Opens a queue's file, made at its full size if it is not there; and whether it was made.
fn open_for_write(
    disk: &dyn Disk,
    files: &QueueFiles,
    topic: &[u8],
    queue_id: u32,
    file_start: u64,
) -> io::Result<(Arc<dyn DiskFile>, bool)> {
    let path = files.path(topic, queue_id, file_start);
    let file = match disk.open(&path, OpenMode::ReadWrite) {
        Ok(file) if file.len()? == files.file_size => return Ok((file, false)),
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            disk.create_dir_all_unsynced(&files.queue_dir(topic, queue_id))?;
            disk.open(&path, OpenMode::Create)?
        }
        Err(error) => return Err(error),
    };
    file.set_len(files.file_size)?;
    Ok((file, true))
}

fn fill_blank(file: &dyn DiskFile, until: u64) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(until as usize);
    while (bytes.len() as u64) < until {
        Entry::BLANK.encode(&mut bytes);
    }
    file.write_at(&[IoSlice::new(&bytes)], 0)
}

/// Entries of a queue that a checkpoint pass makes durable.
pub(crate) struct SyncItem {
    pub(crate) topic: Arc<[u8]>,
    pub(crate) id: u32,
    /// Entries below are durable already.
    pub(crate) from: u64,
    /// Entries below are to be made durable.
    pub(crate) to: u64,
}

/// Makes what many queues have in their files durable, with the names of files and folders, in short steps.
pub(crate) struct QueueSync {
    files: QueueFiles,
    items: Vec<SyncItem>,
    topics: Vec<Arc<[u8]>>,
    started: bool,
}

impl QueueSync {
    pub(crate) fn new(files: &QueueFiles, items: Vec<SyncItem>) -> Self {
        Self { files: files.clone(), items, topics: Vec::new(), started: false }
    }

    /// Lists the topics' folders. Not before it is known that they are needed: of 80,000 queues that takes its time.
    fn start(&mut self) {
        self.topics = self.items.iter().map(|item| Arc::clone(&item.topic)).collect();
        self.topics.sort_unstable();
        self.topics.dedup();
    }

    /// The next step; whether all is durable.
    pub(crate) fn advance(&mut self, disk: &dyn Disk) -> io::Result<bool> {
        /// A sync may take a millisecond.
        const STEP_ITEMS: usize = 4;
        /// From here on one sync of the file system is cheaper.
        const MANY_ITEMS: usize = 128;
        if !std::mem::replace(&mut self.started, true) {
            if self.items.len() >= MANY_ITEMS {
                match disk.sync_file_system(&self.files.root) {
                    Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
                    result => return result.map(|()| true),
                }
            }
            self.start();
        }
        if self.topics.is_empty() {
            return Ok(true);
        }
        for item in self.items.drain(self.items.len().saturating_sub(STEP_ITEMS)..) {
            sync_queue(disk, &self.files, &item)?;
        }
        if !self.items.is_empty() {
            return Ok(false);
        }
        match self.topics.pop() {
            Some(topic) => sync_dir(disk, &self.files.topic_dir(&topic))?,
            None => return Ok(true),
        }
        if self.topics.is_empty() {
            sync_dir(disk, &self.files.root)?;
        }
        Ok(self.topics.is_empty())
    }
}

/// Syncs the files of a queue, and its folder. Files that are gone (the topic was deleted) are passed over.
fn sync_queue(disk: &dyn Disk, files: &QueueFiles, item: &SyncItem) -> io::Result<()> {
    let mut file_start = files.file_of(item.from);
    let last = files.file_of(item.to.saturating_sub(1).max(item.from));
    while file_start <= last {
        match disk.open(&files.path(&item.topic, item.id, file_start), OpenMode::ReadWrite) {
            Ok(file) => file.sync_data()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        file_start += files.file_size;
    }
    sync_dir(disk, &files.queue_dir(&item.topic, item.id))
}

/// Syncs a folder that may be gone.
fn sync_dir(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    match disk.sync_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
