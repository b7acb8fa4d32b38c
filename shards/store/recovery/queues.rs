//! Queues as their files and the queue table tell.
//!
//! Role: restores bounds without reading the log. With a queue table, each queue's files are only checked against its row:
//! all there, and the last entry ends where the row says. Without one (Java's store), entries are read as Java reads them:
//! from the third last file on, up to the first that is not valid. What cannot be right is marked lost and made again.

use std::io;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use sys::disk::{Disk, DiskFile, OpenMode};

use super::Recovery;
use crate::consume_queue::{ENTRY_BYTES, Entry, QueueFiles, QueueTable, Slot, is_file_name};
use crate::error::OpenError;
use crate::layout::{offset_file_name, parse_offset_file_name};
use crate::queue_table::{QueueRow, QueueTableFile};

/// Java looks at this many of a queue's last files.
const FILES_READ: usize = 3;

/// The files of each queue, by topic and queue id: start offsets in bytes, ascending.
pub(super) type FoundQueues = HashMap<(Arc<[u8]>, u32), FoundFiles>;

/// A queue and the offset at which it goes on.
pub(super) type QueueEnd = (Arc<[u8]>, u32, u64);

/// Files of one queue.
#[derive(Default)]
pub(super) struct FoundFiles {
    starts: Vec<u64>,
    /// Files that were not made to their end.
    unmade: Vec<u64>,
}

/// Lists all queue files and checks every size. Changes nothing.
pub(super) fn list(disk: &dyn Disk, files: &QueueFiles, clean: bool) -> Result<FoundQueues, OpenError> {
    let mut found = FoundQueues::new();
    for topic in disk.list(&files.root).map_err(OpenError::io(&files.root))?.iter().filter(|item| item.is_dir) {
        if !is_file_name(topic.name.as_bytes()) {
            continue;
        }
        let name: Arc<[u8]> = topic.name.as_bytes().into();
        let dir = files.root.join(&topic.name);
        for queue in disk.list(&dir).map_err(OpenError::io(&dir))?.iter().filter(|item| item.is_dir) {
            let Ok(id) = queue.name.parse::<u32>() else { continue };
            found.insert((Arc::clone(&name), id), list_queue(disk, files, &name, id, clean)?);
        }
    }
    Ok(found)
}

fn list_queue(
    disk: &dyn Disk,
    files: &QueueFiles,
    topic: &[u8],
    id: u32,
    clean: bool,
) -> Result<FoundFiles, OpenError> {
    let dir = files.queue_dir(topic, id);
    let mut items: Vec<(u64, u64)> = disk
        .list(&dir)
        .map_err(OpenError::io(&dir))?
        .iter()
        .filter(|item| !item.is_dir)
        .filter_map(|item| parse_offset_file_name(&item.name).map(|start| (start, item.len)))
        .collect();
    items.sort_unstable();
    // A crash while a file was made leaves it empty, or, when the power went, with a part of its length.
    let mut unmade: Vec<u64> = items.pop_if(|&mut (_, len)| len == 0).map(|(start, _)| start).into_iter().collect();
    if !clean {
        unmade.extend(items.extract_if(.., |&mut (_, len)| len < files.file_size).map(|(start, _)| start));
    }
    let wrong = items.iter().find(|&&(start, len)| len != files.file_size || start % files.file_size != 0);
    if let Some(&(start, found)) = wrong {
        let path = dir.join(offset_file_name(start));
        return Err(OpenError::WrongSize {
            path,
            found,
            expected: files.file_size,
            setting: "mappedFileSizeConsumeQueue",
        });
    }
    Ok(FoundFiles { starts: items.into_iter().map(|(start, _)| start).collect(), unmade })
}

/// What a queue's files say about its row of the queue table.
pub(super) struct Look {
    /// They hold what it says.
    agrees: bool,
    /// Where the record of its first readable entry lies, if that entry was looked at and has one.
    min_offset: Option<u64>,
    /// There may be something behind its last entry.
    behind: bool,
}

/// Looks at a queue's files and changes nothing: one file is opened, in most cases. `found` is their list; after an orderly end they
/// are listed only when that is not enough.
pub(super) fn look_at(
    disk: &dyn Disk,
    files: &QueueFiles,
    clean: bool,
    row: &QueueRow,
    found: Option<&FoundQueues>,
) -> Result<Look, OpenError> {
    let at = || OpenError::io(files.queue_dir(&row.topic, row.id));
    let (first, last) = (files.file_of(row.min), files.file_of(row.max.saturating_sub(1)));
    let empty = row.max <= row.min;
    if clean && (empty || first == last) {
        if empty {
            return Ok(Look { agrees: true, min_offset: None, behind: false });
        }
        if let Some(file) = open(disk, files, row, last).map_err(at())?
            && file.len().map_err(at())? == files.file_size
        {
            return inspect(files, row, &*file, true).map_err(at());
        }
    }
    let listed;
    let starts = match found {
        Some(found) => found.get(&(Arc::clone(&row.topic), row.id)).map_or(&[][..], |found| &found.starts),
        None => {
            listed = list_queue(disk, files, &row.topic, row.id, clean)?;
            &listed.starts
        }
    };
    let lost = Look { agrees: false, min_offset: None, behind: false };
    if empty {
        return Ok(Look { agrees: true, min_offset: None, behind: !clean && !starts.is_empty() });
    }
    if !(first..=last).step_by(files.file_size as usize).all(|start| starts.binary_search(&start).is_ok()) {
        return Ok(lost);
    }
    let Some(file) = open(disk, files, row, last).map_err(at())? else { return Ok(lost) };
    let mut look = inspect(files, row, &*file, clean).map_err(at())?;
    look.behind |= !clean && starts.iter().any(|&start| start > last);
    Ok(look)
}

/// What the last file of a queue that has entries says.
fn inspect(files: &QueueFiles, row: &QueueRow, file: &dyn DiskFile, clean: bool) -> io::Result<Look> {
    let start = files.file_of(row.max - 1);
    let entry = |index: u64| {
        let mut bytes = [0; ENTRY_BYTES];
        let read = file.read_at(&mut bytes, index * ENTRY_BYTES as u64 - start)?;
        io::Result::Ok(Entry::decode(&bytes[..read]))
    };
    let last = entry(row.max - 1)?;
    let agrees = last.is_some_and(|entry| !entry.has_record() || entry.end() == row.last_end);
    let min = match row.min == row.max - 1 {
        true => last,
        false if files.file_of(row.min) == start => entry(row.min)?,
        false => None,
    };
    let min_offset = min.filter(Entry::has_record).map(|entry| entry.offset);
    let behind = !clean && is_written_from(file, row.max * ENTRY_BYTES as u64 - start)?;
    Ok(Look { agrees, min_offset, behind })
}

/// Whether a byte at or behind `position` may be other than zero.
fn is_written_from(file: &dyn DiskFile, position: u64) -> io::Result<bool> {
    let mut bytes = [0; 4096];
    let block_end = position.next_multiple_of(4096);
    let rest = &mut bytes[..(block_end - position) as usize];
    let read = file.read_at(rest, position)?;
    Ok(rest[..read].iter().any(|&byte| byte != 0) || file.has_data_from(block_end)?)
}

fn open(disk: &dyn Disk, files: &QueueFiles, row: &QueueRow, start: u64) -> io::Result<Option<Arc<dyn DiskFile>>> {
    match disk.open(&files.path(&row.topic, row.id, start), OpenMode::Read) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Recovery<'_> {
    /// Restores what the queue table vouches for. `looks`: what [`look_at`] found, row by row.
    pub(super) fn restore_saved(
        &mut self,
        saved: QueueTableFile,
        looks: &[Look],
        found: &FoundQueues,
    ) -> io::Result<()> {
        self.remove_unmade(found)?;
        let mut kept: HashMap<Arc<[u8]>, bool> = HashMap::new();
        let mut known: HashSet<(Arc<[u8]>, u32)> =
            HashSet::with_capacity(if self.clean { 0 } else { saved.rows.len() });
        for (row, look) in saved.rows.iter().zip(looks) {
            if !self.clean {
                known.insert((Arc::clone(&row.topic), row.id));
            }
            if let Some(end) = self.deleted_before(&row.topic) {
                let deleted = row.last_end <= end;
                *kept.entry(Arc::clone(&row.topic)).or_default() |= !deleted;
                if deleted {
                    continue;
                }
            }
            self.restore_row(row, look, found)?;
        }
        if !self.clean {
            // Queues that the table does not know have entries only for records that are dispatched again.
            for (topic, id) in found.keys().filter(|key| !known.contains(*key)) {
                self.disk.remove_dir_all(&self.files.queue_dir(topic, *id))?;
            }
        }
        self.remove_deleted(&kept)
    }

    fn restore_row(&mut self, row: &QueueRow, look: &Look, found: &FoundQueues) -> io::Result<()> {
        let slot = self.table.find_or_make(&row.topic, row.id);
        if look.agrees {
            let held = look.min_offset.is_some_and(|offset| offset >= self.log.start());
            let min = if held { row.min } else { self.first_in_log(&row.topic, row.id, row.min, row.max)? };
            self.table.restore(slot, row.first, min, row.max);
            if look.behind {
                let files = found.get(&(Arc::clone(&row.topic), row.id));
                self.clear_behind(&row.topic, row.id, row.max, files.map_or(&[], |files| &files.starts), false)?;
            }
        } else {
            self.mark_lost(slot, row.max);
        }
        let queue = self.table.get_mut(slot);
        queue.last_end = row.last_end;
        queue.last_store_ms = row.last_store_ms;
        Ok(())
    }

    /// Restores queues from what their files hold. Gives the highest end of a record that has an entry.
    pub(super) fn restore_from_files(&mut self, found: &FoundQueues) -> io::Result<u64> {
        self.remove_unmade(found)?;
        if self.log.bases().next().is_none() {
            // Java's rule: without a log no queue has anything to name.
            self.disk.remove_dir_all(&self.files.root)?;
            return Ok(0);
        }
        let mut highest = 0;
        for ((topic, id), files) in found {
            let slot = self.table.find_or_make(topic, *id);
            if self.deleted_before(topic).is_some() {
                // What of it is older than the deletion is not told apart in the files: the log tells.
                self.mark_lost(slot, 0);
                continue;
            }
            let Some((from, max, last_end)) = self.read_valid(topic, *id, &files.starts)? else { continue };
            let min = self.first_in_log(topic, *id, from, max)?;
            self.table.restore(slot, from, min, max);
            self.table.get_mut(slot).last_end = last_end;
            self.table.doubt(slot);
            highest = highest.max(last_end);
        }
        Ok(highest)
    }

    /// Removes all queue files; gives the queues and where they end.
    pub(super) fn forget_files(&mut self) -> io::Result<Vec<QueueEnd>> {
        self.disk.remove_dir_all(&self.files.root)?;
        self.lost.clear();
        let table = std::mem::replace(&mut self.table, QueueTable::new());
        let queue = |slot| (Arc::clone(table.topic_of(slot)), table.get(slot).id, table.get(slot).next);
        Ok(table.slots().map(queue).filter(|&(.., end)| end > 0).collect())
    }

    /// Cuts entries that point behind the end of the log.
    pub(super) fn cut_queues(&mut self, end: u64, found: &FoundQueues) -> io::Result<()> {
        let slots: Vec<Slot> = self.table.slots().collect();
        for slot in slots {
            let queue = self.table.get(slot);
            if queue.last_end <= end || queue.lost {
                continue;
            }
            let (topic, id, first, mut max) =
                (Arc::clone(self.table.topic_of(slot)), queue.id, queue.first, queue.dispatched());
            let mut last_end = 0;
            while max > first {
                match self.entry(&topic, id, max - 1)? {
                    Some(entry) if entry.end() <= end => {
                        last_end = entry.end();
                        break;
                    }
                    _ => max -= 1,
                }
            }
            let min = self.table.get(slot).min.min(max);
            self.table.reset(slot);
            self.table.restore(slot, first, min, max);
            self.table.get_mut(slot).last_end = last_end;
            self.table.doubt(slot);
            let files = found.get(&(Arc::clone(&topic), id));
            self.clear_behind(&topic, id, max, files.map_or(&[], |files| &files.starts), true)?;
        }
        Ok(())
    }

    fn mark_lost(&mut self, slot: Slot, go_on_at: u64) {
        self.table.get_mut(slot).lost = true;
        self.lost.push((slot, go_on_at));
    }

    fn deleted_before(&self, topic: &[u8]) -> Option<u64> {
        let name = std::str::from_utf8(topic).ok()?;
        self.tombstones.end(name, self.id).map(|end| end.0)
    }

    fn remove_unmade(&self, found: &FoundQueues) -> io::Result<()> {
        for ((topic, id), files) in found {
            for &start in &files.unmade {
                self.disk.remove_file(&self.files.path(topic, *id, start))?;
            }
            if !files.unmade.is_empty() {
                self.disk.sync_dir(&self.files.queue_dir(topic, *id))?;
            }
        }
        Ok(())
    }

    /// Removes the folders of deleted topics that the last process did not come to.
    fn remove_deleted(&self, kept: &HashMap<Arc<[u8]>, bool>) -> io::Result<()> {
        for topic in self.tombstones.topics() {
            if is_file_name(topic.as_bytes())
                && !kept.get(topic.as_bytes()).copied().unwrap_or(false)
                && self.deleted_before(topic.as_bytes()).is_some()
            {
                self.disk.remove_dir_all(&self.files.topic_dir(topic.as_bytes()))?;
            }
        }
        Ok(())
    }

    /// Makes the space of entries `from..` zero and removes later files. Where the table does not vouch, this is durable
    /// before the log grows again: an old entry that came back after the next power cut would name a new record.
    fn clear_behind(&self, topic: &[u8], id: u32, from: u64, starts: &[u64], durable: bool) -> io::Result<()> {
        let file_start = self.files.file_of(from);
        let position = from * ENTRY_BYTES as u64 - file_start;
        let mut removed = false;
        for &start in starts.iter().filter(|&&start| start > file_start) {
            match self.disk.remove_file(&self.files.path(topic, id, start)) {
                // Removed before, when less was known.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            }
            removed = true;
        }
        if removed && durable {
            self.disk.sync_dir(&self.files.queue_dir(topic, id))?;
        }
        if let Some(file) = self.open(topic, id, file_start, OpenMode::ReadWrite)? {
            let mut next = [0; ENTRY_BYTES];
            let read = file.read_at(&mut next, position)?;
            // After an unclean end there may be old entries behind a gap, too.
            if !self.clean || next[..read].iter().any(|&byte| byte != 0) {
                file.set_len(position)?;
                file.set_len(self.files.file_size)?;
                if durable {
                    file.sync_data()?;
                }
            }
        }
        Ok(())
    }

    /// First entry in the last files, entry after the last valid one, highest end. `None` without files.
    fn read_valid(&self, topic: &[u8], id: u32, starts: &[u64]) -> io::Result<Option<(u64, u64, u64)>> {
        // Only an unbroken row of files up to the last one counts.
        let row = starts.windows(2).rposition(|pair| pair[0] + self.files.file_size != pair[1]).map_or(0, |at| at + 1);
        let starts = &starts[row..];
        let Some(&first) = starts.first() else { return Ok(None) };
        let per_file = self.files.entries_per_file();
        let mut max = first / ENTRY_BYTES as u64;
        let mut last_end = 0;
        for &start in &starts[starts.len().saturating_sub(FILES_READ)..] {
            max = start / ENTRY_BYTES as u64;
            let Some(file) = self.open(topic, id, start, OpenMode::Read)? else { break };
            let mut bytes = vec![0; self.files.file_size as usize];
            let read = file.read_at(&mut bytes, 0)?;
            let entries = bytes[..read].chunks_exact(ENTRY_BYTES).map_while(Entry::decode);
            let count = entries.fold(0, |count, entry| {
                last_end = last_end.max(entry.end());
                count + 1
            });
            max += count;
            if count < per_file {
                break;
            }
        }
        self.clear_behind(topic, id, max, starts, true)?;
        Ok(Some((first / ENTRY_BYTES as u64, max, last_end)))
    }

    /// The first offset in `min..max` whose record the log still holds.
    fn first_in_log(&self, topic: &[u8], id: u32, min: u64, max: u64) -> io::Result<u64> {
        let log_start = self.log.start();
        let held = |entry: Option<Entry>| entry.is_some_and(|entry| entry.has_record() && entry.offset >= log_start);
        if min >= max || held(self.entry(topic, id, min)?) {
            return Ok(min);
        }
        let (mut low, mut high) = (min, max);
        while low < high {
            let middle = low + (high - low) / 2;
            // A blank in the middle stands for a damaged record: judge by its neighbour.
            let mut probe = middle;
            let mut entry = self.entry(topic, id, probe)?;
            while entry.is_some_and(|entry| !entry.has_record()) && probe + 1 < high {
                probe += 1;
                entry = self.entry(topic, id, probe)?;
            }
            if held(entry) {
                high = middle;
            } else {
                low = probe + 1;
            }
        }
        Ok(low)
    }

    /// One entry from its file.
    fn entry(&self, topic: &[u8], id: u32, index: u64) -> io::Result<Option<Entry>> {
        let file_start = self.files.file_of(index);
        let Some(file) = self.open(topic, id, file_start, OpenMode::Read)? else { return Ok(None) };
        let mut bytes = [0; ENTRY_BYTES];
        let read = file.read_at(&mut bytes, index * ENTRY_BYTES as u64 - file_start)?;
        Ok(Entry::decode(&bytes[..read]))
    }

    fn open(&self, topic: &[u8], id: u32, start: u64, mode: OpenMode) -> io::Result<Option<Arc<dyn DiskFile>>> {
        match self.disk.open(&self.files.path(topic, id, start), mode) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}
