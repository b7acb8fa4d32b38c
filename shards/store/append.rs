//! Writing: staging the records of a turn, one write for all of them, dispatch, syncs.
//!
//! Invariants: records of one append lie side by side in one segment; a queue offset is given out when its record is
//! staged and given back when the write fails; entries, index items and visibility follow the completed write, in the
//! order of the log. Nothing here waits for the device.

use std::io;
use std::sync::Arc;

use message::record::{self, RecordFields};
use message::{PhysicalOffset, QueueOffset, sys_flag};
use reactor::{JobOutput, Now};
use smallvec::SmallVec;
use sys::disk::DiskFile;

use crate::consume_queue::{Entry, Slot, is_file_name};
use crate::entry_tag;
use crate::error::{AppendError, WriteError};
use crate::flush::SyncPart;
use crate::index::RecordKeys;
use crate::limits;
use crate::options::FlushMode;
use crate::shard::{Pending, Shard};
use crate::step::{Completion, ShardCommand};
use crate::types::Appended;

/// A staged record that gets an entry.
pub(crate) struct Staged {
    pub(crate) slot: Slot,
    pub(crate) entry: Entry,
    pub(crate) store_ms: i64,
}

/// A staged index item.
pub(crate) struct StagedKey {
    hash: u32,
    offset: PhysicalOffset,
    store_ms: i64,
}

/// A message that is visible once the log is durable up to `end`.
pub(crate) struct VisibleLater {
    pub(crate) slot: Slot,
    pub(crate) uid: u64,
    end: u64,
    pub(crate) max_offset: QueueOffset,
    pub(crate) tags_code: i64,
}

impl Shard {
    /// Stages 1..n records of one queue: they will lie side by side. Queue offsets are given out; nothing is stored
    /// before [`Shard::write_staged`]. Half and rollback records get queue offset 0 and no entry. Errors: nothing was
    /// staged.
    ///
    /// # Panics
    /// There is no record, or they are of several queues.
    pub fn append(&mut self, now: Now, records: &[RecordFields<'_>]) -> Result<Appended, AppendError> {
        if self.options.light_queues {
            return self.append_with_light(now, records);
        }
        self.append_records(now, records)
    }

    pub(crate) fn append_records(&mut self, now: Now, records: &[RecordFields<'_>]) -> Result<Appended, AppendError> {
        self.is_writable()?;
        let first = records.first().expect("an append has a record");
        let queue_id = u32::try_from(first.queue_id).map_err(|_| AppendError::Illegal("negative queue id"))?;
        // The name of a queue that is there was looked at when it was made.
        let known = self.table.find(first.topic, queue_id);
        if known.is_none() && !is_file_name(first.topic) {
            return Err(AppendError::Illegal("the topic's name cannot be stored"));
        }
        let mut size = 0;
        for fields in records {
            assert!(fields.queue_id == first.queue_id && fields.topic == first.topic, "one append, one queue");
            size += self.checked_len(fields)?;
        }
        let mut at = self.log.reserve(size)?;
        let store_ms = self.last_store_ms.max(now.wall_ms);
        let queued = sys_flag::is_queued(first.sys_flag);
        let slot = queued.then(|| known.unwrap_or_else(|| self.table.find_or_make(first.topic, queue_id)));
        let queue_offset = QueueOffset(slot.map_or(0, |slot| self.table.get(slot).next));
        let mut offsets = SmallVec::new();
        for (index, fields) in records.iter().enumerate() {
            let buffer = self.log.staging();
            let start = buffer.len();
            let len = record::encode(buffer, fields).expect("the parts were checked");
            let queue_offset = if queued { queue_offset.plus(index as u64) } else { queue_offset };
            record::patch(&mut buffer[start..], queue_offset, PhysicalOffset(at), store_ms);
            let properties = buffer.len() - fields.properties.encoded_len();
            self.stage(fields, slot, properties, Entry { offset: at, size: len as u32, tag: 0 }, store_ms);
            self.log.commit_staged(len);
            offsets.push(PhysicalOffset(at));
            at += len as u64;
        }
        if let Some(slot) = slot {
            self.table.get_mut(slot).next += records.len() as u64;
        }
        self.last_store_ms = store_ms;
        Ok(Appended { queue_offset, offsets, end: PhysicalOffset(at), store_timestamp_ms: store_ms })
    }

    /// Writes what the turn staged, in one write for each file that it touches, and dispatches it. With an error
    /// everything staged in the turn is undone, and the shard takes no writes any more.
    pub fn write_staged(&mut self, now: Now) -> Result<(), WriteError> {
        if !self.log.has_staged() {
            return Ok(());
        }
        if let Err(error) = self.log.write() {
            for staged in self.staged.drain(..) {
                self.table.get_mut(staged.slot).next -= 1;
            }
            self.staged_keys.clear();
            self.set_read_only(&format!("a write to the commit log failed: {error}"));
            return Err(WriteError(error));
        }
        for key in self.staged_keys.drain(..) {
            self.index.put(key.hash, key.offset, key.store_ms);
        }
        self.earliest_ms = self.earliest_ms.or(Some(self.last_store_ms));
        self.dispatch_staged();
        self.start_syncs(now);
        self.start_write_back();
        Ok(())
    }

    /// Starts a sync if one is due and descriptors are free.
    pub(crate) fn start_syncs(&mut self, now: Now) {
        let written = self.log.written();
        if !self.flush.is_due(written, now.mono_us) {
            return;
        }
        let mut files: SmallVec<[(u64, Arc<dyn DiskFile>); 2]> = SmallVec::new();
        let mut base = self.log.base_of(self.flush.started());
        while base < written {
            match self.log.take_sync_file(base) {
                Some(file) => files.push((base, file)),
                None => {
                    files.into_iter().for_each(|(base, file)| self.log.return_sync_file(base, file));
                    return;
                }
            }
            base += self.log.segment_size();
        }
        let bases: SmallVec<[u64; 2]> = files.iter().map(|&(base, _)| base).collect();
        let parts: SmallVec<[SyncPart; 2]> =
            self.flush.start(written, self.last_store_ms, &bases, now.mono_us).collect();
        for (part, (_, file)) in parts.into_iter().zip(files) {
            let token = self.token(Pending::Sync { part, file: Arc::clone(&file) });
            self.commands.push(ShardCommand::Sync { file, token });
        }
    }

    /// A sync has come back.
    pub(crate) fn sync_done(
        &mut self,
        now: Now,
        part: SyncPart,
        file: Arc<dyn DiskFile>,
        result: io::Result<JobOutput>,
    ) -> Completion {
        self.log.return_sync_file(part.base, file);
        let news = self.flush.completed(part.group, result.map(|_| ()).map_err(|error| error.to_string()));
        if let Some(reason) = self.flush.failure() {
            let reason = format!("a sync of the commit log failed: {reason}");
            self.set_read_only(&reason);
        }
        self.show_durable();
        self.start_syncs(now);
        if news { Completion::Durable } else { Completion::Nothing }
    }

    /// Makes visible what has become durable (sync mode).
    fn show_durable(&mut self) {
        let durable = self.flush.durable();
        while let Some(event) = self.visible_later.pop_front_if(|event| event.end <= durable) {
            if let Some(queue) = self.table.live(event.slot, event.uid) {
                queue.visible = event.max_offset.0;
                self.visible_now.push(event);
            }
        }
    }

    /// Size of a record whose parts all fit their fields.
    fn checked_len(&self, fields: &RecordFields<'_>) -> Result<usize, AppendError> {
        if fields.body.len() > self.options.max_message_size_bytes as usize {
            return Err(AppendError::Illegal("the body is over maxMessageSize"));
        }
        if fields.properties.encoded_len() > message::properties::MAX_PROPERTIES_BYTES {
            return Err(AppendError::Illegal("the properties are longer than 32767 bytes"));
        }
        Ok(fields.encoded_len())
    }

    /// Notes what the record that was just encoded needs once it is written. Its properties begin at `properties` in the
    /// staging buffer.
    fn stage(
        &mut self,
        fields: &RecordFields<'_>,
        slot: Option<Slot>,
        properties: usize,
        mut entry: Entry,
        store_ms: i64,
    ) {
        let offset = PhysicalOffset(entry.offset);
        let level_ms = &self.options.delay_level_ms;
        let found = RecordKeys::of(&fields.properties);
        let properties = &self.log.staging()[properties..];
        entry.tag = entry_tag::of_record(fields.topic, properties, &found, store_ms, level_ms);
        if self.options.message_index_enable {
            let keys = &mut self.staged_keys;
            found.hashes(fields.topic, fields.sys_flag, &mut |hash| {
                keys.push(StagedKey { hash, offset, store_ms });
            });
        }
        if let Some(slot) = slot {
            self.staged.push(Staged { slot, entry, store_ms });
        }
    }

    fn dispatch_staged(&mut self) {
        let at_once = self.flush.mode() == FlushMode::Async;
        for staged in self.staged.drain(..) {
            self.table.push(staged.slot, staged.entry, staged.store_ms);
            let queue = self.table.get_mut(staged.slot);
            let event = VisibleLater {
                slot: staged.slot,
                uid: queue.uid,
                end: staged.entry.end(),
                max_offset: QueueOffset(queue.dispatched()),
                tags_code: staged.entry.tag,
            };
            if at_once {
                queue.visible = queue.dispatched();
                self.visible_now.push(event);
            } else {
                self.visible_later.push_back(event);
            }
        }
    }

    /// Starts write-back of what has piled up, so that little is dirty when the sync comes.
    fn start_write_back(&mut self) {
        let written = self.log.written();
        if written - self.written_back < limits::WRITE_BACK_STEP_BYTES {
            return;
        }
        let base = self.log.base_of(self.written_back);
        let to = written.min(base + self.log.segment_size());
        if let Some(file) = self.log.written_file(base) {
            let (offset, len) = (self.written_back - base, to - self.written_back);
            self.commands.push(ShardCommand::WriteBack { file: Arc::clone(file), offset, len });
        }
        self.written_back = to;
    }
}
