//! Taking the oldest file out of the log.
//!
//! Role: the mechanism; when a file may go is decided by whoever calls it. Invariants: the file being written never goes;
//! readers that hold the file's mapping keep it, the kernel frees it after the last one; smallest offsets of queues rise
//! in the background, and until then a pull below passes over what is gone.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use message::PhysicalOffset;
use reactor::{BackgroundTask, Job, JobClass, JobOutput, Step};
use sys::disk::{Disk, OpenMode};

use crate::consume_queue::{ENTRY_BYTES, Entry, QueueFiles, Slot};
use crate::shard::{Pending, Shard, task_output};
use crate::step::ShardCommand;

impl Shard {
    /// Store time and end of the oldest file that may go, to be judged by the caller: `None` while there is only the file
    /// being written, or while everything in the next one is not durable yet.
    #[must_use]
    pub fn oldest_removable(&self) -> Option<PhysicalOffset> {
        let end = self.log.oldest_removable()? + self.log.segment_size();
        (end <= self.flush.durable() && end <= self.upkeep.vouched()).then_some(PhysicalOffset(end))
    }

    /// Removes the oldest file of the log if it may go; whether it did. The file and what only it needed disappear in the
    /// background.
    pub fn expire_oldest(&mut self) -> bool {
        if self.oldest_removable().is_none() {
            return false;
        }
        let Some(path) = self.log.remove_oldest() else { return false };
        self.earliest_ms = None;
        self.index.expire(PhysicalOffset(self.log.start()));
        let queues = self.table.slots().filter_map(|slot| {
            let queue = self.table.get(slot);
            (queue.min < queue.written).then(|| Candidate {
                slot,
                uid: queue.uid,
                topic: Arc::clone(self.table.topic_of(slot)),
                id: queue.id,
                min: queue.min,
                written: queue.written,
            })
        });
        let task = Expire {
            path,
            unlinked: false,
            files: self.queue_files.clone(),
            log_start: self.log.start(),
            queues: queues.collect(),
            found: Vec::new(),
        };
        let token = self.token(Pending::Expire);
        let job = Job::Task { class: JobClass::Upkeep, task: Box::new(task) };
        self.commands.push(ShardCommand::Background { job, token });
        true
    }

    /// The background has found the queues' new smallest offsets.
    pub(crate) fn expired(&mut self, result: io::Result<JobOutput>) {
        match task_output::<Vec<(Slot, u64, u64)>>(result) {
            Ok(found) => {
                for (slot, uid, min) in *found {
                    if let Some(queue) = self.table.live(slot, uid) {
                        queue.min = queue.min.max(min).min(queue.visible);
                    }
                }
            }
            Err(error) => tracing::warn!(shard = %self.id, %error, "an old commit log file could not be removed"),
        }
    }
}

/// A queue whose smallest offset may rise.
struct Candidate {
    slot: Slot,
    uid: u64,
    topic: Arc<[u8]>,
    id: u32,
    min: u64,
    written: u64,
}

/// Background: unlinks a file of the log, then searches each queue for its first entry that still has a record.
struct Expire {
    path: PathBuf,
    unlinked: bool,
    files: QueueFiles,
    log_start: u64,
    queues: Vec<Candidate>,
    found: Vec<(Slot, u64, u64)>,
}

impl BackgroundTask for Expire {
    fn step(&mut self, disk: &dyn Disk) -> io::Result<Step> {
        const STEP_QUEUES: usize = 16;
        if !self.unlinked {
            disk.remove_file(&self.path)?;
            disk.sync_dir(self.path.parent().expect("a segment lies in a folder"))?;
            self.unlinked = true;
            return Ok(Step::More);
        }
        for queue in self.queues.drain(self.queues.len().saturating_sub(STEP_QUEUES)..) {
            let (mut low, mut high) = (queue.min, queue.written);
            while low < high {
                let middle = low + (high - low) / 2;
                if is_gone(disk, &self.files, &queue, middle, self.log_start)? {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            self.found.push((queue.slot, queue.uid, low));
        }
        if self.queues.is_empty() { Ok(Step::Done(Box::new(std::mem::take(&mut self.found)))) } else { Ok(Step::More) }
    }
}

/// Whether the record of an entry is gone. Blank entries count as gone: the first entry to be read is one with a record.
fn is_gone(disk: &dyn Disk, files: &QueueFiles, queue: &Candidate, index: u64, log_start: u64) -> io::Result<bool> {
    let file_start = files.file_of(index);
    let file = match disk.open(&files.path(&queue.topic, queue.id, file_start), OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error),
    };
    let mut bytes = [0; ENTRY_BYTES];
    let read = file.read_at(&mut bytes, index * ENTRY_BYTES as u64 - file_start)?;
    Ok(Entry::decode(&bytes[..read]).is_none_or(|entry| !entry.has_record() || entry.offset < log_start))
}
