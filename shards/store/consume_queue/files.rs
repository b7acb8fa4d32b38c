//! The files of consume queues: names, a bounded cache of descriptors, reads.
//!
//! ```text
//! consumequeue/<topic>/<queue id>/<20 digits: position of the first byte>     entry n of the queue lies at n × 20
//! ```
//!
//! Invariants: all files have the configured size; a topic name never leaves the folder (checked before a queue exists).

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use foldhash::HashMap;
use sys::disk::{Disk, DiskFile, OpenMode};

use super::entry::{ENTRY_BYTES, Entry};
use super::table::{Queue, QueueTable, Slot};
use super::windows::{EntryWindows, window_of};
use crate::cold_cache::ColdCache;
use crate::step::{ColdSource, Missing, MissingRange, ReadStep};

/// Where the files lie.
#[derive(Clone, Debug)]
pub(crate) struct QueueFiles {
    /// `consumequeue/` of the shard.
    pub(crate) root: PathBuf,
    /// Size of a file in bytes.
    pub(crate) file_size: u64,
}

impl QueueFiles {
    pub(crate) fn topic_dir(&self, topic: &[u8]) -> PathBuf {
        self.root.join(std::str::from_utf8(topic).expect("topics with a queue have legal names"))
    }

    pub(crate) fn queue_dir(&self, topic: &[u8], queue_id: u32) -> PathBuf {
        self.topic_dir(topic).join(queue_id.to_string())
    }

    pub(crate) fn path(&self, topic: &[u8], queue_id: u32, file_start: u64) -> PathBuf {
        let topic = std::str::from_utf8(topic).expect("topics with a queue have legal names");
        // In one piece: 80,000 are made for a start.
        let root = self.root.as_os_str();
        let mut path = std::ffi::OsString::with_capacity(root.len() + topic.len() + 40);
        path.push(root);
        let _ = write!(path, "/{topic}/{queue_id}/{file_start:020}");
        debug_assert!(path.to_str().is_none_or(|path| path.ends_with(&crate::layout::offset_file_name(file_start))));
        path.into()
    }

    pub(crate) fn entries_per_file(&self) -> u64 {
        self.file_size / ENTRY_BYTES as u64
    }

    /// Start of the file that holds an entry, in bytes.
    pub(crate) fn file_of(&self, index: u64) -> u64 {
        index * ENTRY_BYTES as u64 / self.file_size * self.file_size
    }
}

/// Whether a topic may have files: a name that is one path component (records of a damaged log may say anything).
pub(crate) fn is_file_name(topic: &[u8]) -> bool {
    let one_component = !topic.is_empty() && topic != b"." && topic != b".." && topic.len() <= 255;
    one_component && std::str::from_utf8(topic).is_ok() && !topic.iter().any(|&byte| byte == b'/' || byte == 0)
}

/// Open files, a bounded number of them.
pub(crate) struct FileCache {
    files: HashMap<(u64, u64), (Arc<dyn DiskFile>, u64)>,
    capacity: usize,
    tick: u64,
}

impl FileCache {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { files: HashMap::default(), capacity, tick: 0 }
    }

    /// The file of a queue, opened by `open` if it is not in the cache.
    pub(crate) fn get(
        &mut self,
        uid: u64,
        file_start: u64,
        open: impl FnOnce() -> io::Result<Arc<dyn DiskFile>>,
    ) -> io::Result<Arc<dyn DiskFile>> {
        self.tick += 1;
        if let Some((file, used)) = self.files.get_mut(&(uid, file_start)) {
            *used = self.tick;
            return Ok(Arc::clone(file));
        }
        let file = open()?;
        if self.files.len() >= self.capacity
            && let Some(oldest) = self.files.iter().min_by_key(|(_, (_, used))| *used).map(|(&key, _)| key)
        {
            self.files.remove(&oldest);
        }
        self.files.insert((uid, file_start), (Arc::clone(&file), self.tick));
        Ok(file)
    }

    /// Closes the files of a queue.
    pub(crate) fn forget(&mut self, uid: u64) {
        self.files.retain(|&(of, _), _| of != uid);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }
}

/// What [`read_entries`] works with, beside the queue.
pub(crate) struct EntryReader<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) files: &'a QueueFiles,
    pub(crate) cache: &'a mut FileCache,
    pub(crate) windows: &'a mut EntryWindows,
    pub(crate) cold: &'a mut ColdCache,
}

/// Appends entries of a queue from `from` on to `out`: at most `max`, and only as many as lie in one file or in memory.
/// None, if the queue has none there or their file is lost. Entries that no one wrote read as blank.
pub(crate) fn read_entries(
    reader: &mut EntryReader<'_>,
    table: &QueueTable,
    slot: Slot,
    from: u64,
    max: usize,
    out: &mut Vec<Entry>,
) -> ReadStep<()> {
    let queue = table.get(slot);
    if let Some(entries) = queue.in_tail(from, max) {
        out.extend(entries);
        return ReadStep::Ready(());
    }
    if from < queue.first || from >= queue.tail_start() {
        return ReadStep::Ready(());
    }
    let (first, end) = window_of(from, reader.files.entries_per_file());
    if let Some(entries) = reader.windows.get(queue.uid, first, from, max) {
        out.extend_from_slice(entries);
        return ReadStep::Ready(());
    }
    let entry = ENTRY_BYTES as u64;
    let file_start = reader.files.file_of(from);
    let position = from * entry - file_start;
    let count = (queue.tail_start() - from).min((reader.files.file_size - position) / entry).min(max as u64);
    let source = ColdSource::Queue(queue.uid);
    if let Some(found) = reader.cold.get(source, from * entry, entry) {
        return match found {
            Ok(bytes) => {
                decode_into(&bytes, count, out);
                ReadStep::Ready(())
            }
            Err(error) => ReadStep::Failed(error),
        };
    }
    let open = || reader.disk.open(&reader.files.path(table.topic_of(slot), queue.id, file_start), OpenMode::Read);
    let file = match reader.cache.get(queue.uid, file_start, open) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return ReadStep::Ready(()),
        Err(error) => return ReadStep::Failed(error.into()),
    };
    if end <= queue.tail_start() && read_window(reader, queue, &*file, first, end) {
        let entries = reader.windows.get(queue.uid, first, from, max);
        out.extend_from_slice(entries.expect("the window was read"));
        return ReadStep::Ready(());
    }
    let mut bytes = vec![0; (count * entry) as usize];
    match file.read_at_resident(&mut bytes, position) {
        Ok(Some(read)) if read >= ENTRY_BYTES => {
            decode_into(&bytes[..read], count, out);
            ReadStep::Ready(())
        }
        Ok(_) => {
            let file_range = position..position + count * entry;
            ReadStep::Missing(Missing {
                file,
                source,
                ranges: vec![MissingRange { file_range, address: from * entry }],
            })
        }
        Err(error) => ReadStep::Failed(error.into()),
    }
}

/// Reads the entries `first..end`, which lie in `file`, as a window. Whether all of them were in memory; an error is left to
/// the read of what was asked for.
fn read_window(reader: &mut EntryReader<'_>, queue: &Queue, file: &dyn DiskFile, first: u64, end: u64) -> bool {
    let entry = ENTRY_BYTES as u64;
    let mut bytes = vec![0; ((end - first) * entry) as usize];
    let position = first * entry - reader.files.file_of(first);
    if !matches!(file.read_at_resident(&mut bytes, position), Ok(Some(read)) if read == bytes.len()) {
        return false;
    }
    let mut entries = Vec::with_capacity((end - first) as usize);
    decode_into(&bytes, end - first, &mut entries);
    reader.windows.insert(queue.uid, first, entries.into());
    true
}

fn decode_into(bytes: &[u8], count: u64, out: &mut Vec<Entry>) {
    let entries = bytes.chunks_exact(ENTRY_BYTES).take(count as usize);
    out.extend(entries.map(|bytes| Entry::decode(bytes).unwrap_or(Entry::BLANK)));
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use simulator::SimulatedDisk;

    use super::*;

    #[test]
    fn the_cache_stays_bounded_and_keeps_what_is_used() {
        let disk = SimulatedDisk::new(1);
        disk.open(Path::new("/f"), OpenMode::Create).unwrap();
        let open = || disk.open(Path::new("/f"), OpenMode::Read);
        let mut cache = FileCache::new(8);
        for uid in 0..1000 {
            cache.get(uid, 0, open).unwrap();
            cache.get(0, 0, || panic!("the file in use went")).unwrap();
            assert!(cache.len() <= 8);
        }
        cache.forget(0);
        assert_eq!(cache.len(), 7);
    }

    #[test]
    fn names_stay_in_the_folder() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b", b"\xff", &[b'x'; 256]] {
            assert!(!is_file_name(bad), "{bad:?}");
        }
        assert!(is_file_name(b"%RETRY%group") && is_file_name("主题".as_bytes()));
    }
}
