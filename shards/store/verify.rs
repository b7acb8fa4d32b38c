//! Looks through a whole shard on the disk, offline, and tells everything that is wrong with it.
//!
//! Role: one judge for crash tests, the simulator and the admin command. It trusts nothing but the log: every record is
//! read, every entry compared with the record that it names. Changes nothing, needs the lock only by agreement of the
//! caller. It does not look at the index: an index that misses a key costs work, not messages.

use std::io;
use std::sync::Arc;

use hashbrown::HashMap;
use message::record::RecordView;
use message::{PhysicalOffset, sys_flag};
use sys::disk::{Disk, OpenMode};

use crate::commit_log::list_segments;
use crate::consume_queue::{ENTRY_BYTES, Entry, QueueFiles, is_file_name};
use crate::entry_tag;
use crate::error::OpenError;
use crate::index::RecordKeys;
use crate::layout::{ShardId, ShardLayout, offset_file_name, parse_offset_file_name};
use crate::light_queues;
use crate::options::StoreOptions;
use crate::recovery::{LogFiles, max_record};
use crate::tombstones::Tombstones;
use crate::walk::Walk;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Good records in the log.
    pub records: u64,
    /// Bad places in the log with good records behind them.
    pub damaged: u64,
    /// End of the log.
    pub end: u64,
    /// Entries in the queues' files that name a record.
    pub entries: u64,
    /// Records without the entry that they should have, in order. Normal for the last ones of a store that was not
    /// closed: they are dispatched again at the next start.
    pub missing_entries: u64,
    /// What is wrong, at most [`FAULTS`] of it.
    pub faults: Vec<String>,
}

/// Most faults that a report holds.
pub const FAULTS: usize = 100;

/// An entry as the log says that it should be.
type Expected = HashMap<(Arc<[u8]>, u32), HashMap<u64, Entry>>;

/// Reads the shard's files. Errors: the disk's, and files of a wrong size.
pub fn verify_shard(
    disk: &dyn Disk,
    layout: &ShardLayout,
    id: ShardId,
    options: &StoreOptions,
    tombstones: &Tombstones,
) -> Result<VerifyReport, OpenError> {
    let segments = list_segments(disk, &layout.commit_log, options.segment_size_bytes)?;
    let mut report = VerifyReport::default();
    let mut expected = Expected::new();
    let start = segments.bases.first().copied().unwrap_or(id.base().0);
    let mut files = LogFiles::new(disk, &layout.commit_log, segments.bases.iter().copied());
    let size = options.segment_size_bytes;
    let walked = Walk::new(&mut files, start, size, max_record(options, size), u64::MAX)
        .and_then(|mut walk| {
            walk.run(start, u64::MAX, &mut |record, at, damaged| {
                let queue_id = u32::try_from(record.queue_id()).ok().filter(|_| is_file_name(record.topic()));
                let queued = sys_flag::is_queued(record.sys_flag()) && !tombstones.covers(record.topic(), at);
                if let Some(queue_id) = queue_id.filter(|_| queued && !damaged) {
                    let entry = Entry {
                        offset: at.0,
                        size: record.size(),
                        tag: RecordKeys::scan(record.properties()).tags_code(),
                    };
                    let queue = expected.entry((record.topic().into(), queue_id)).or_default();
                    if queue.insert(record.queue_offset().0, entry).is_some() {
                        report.fault(|| format!("offset {} given twice in a queue", record.queue_offset()));
                    }
                }
                if options.light_queues && !damaged {
                    expect_light(&mut expected, record, at, tombstones);
                }
                Ok(())
            })
        })
        .map_err(OpenError::io(layout.commit_log.clone()))?;
    report.records = walked.records;
    report.damaged = walked.damaged;
    report.end = walked.end;
    let queue_files = QueueFiles { root: layout.consume_queue.clone(), file_size: options.queue_file_size_bytes };
    check_queues(disk, &queue_files, start, &mut expected, &mut report)
        .map_err(OpenError::io(layout.consume_queue.clone()))?;
    report.missing_entries = expected.values().map(|queue| queue.len() as u64).sum();
    Ok(report)
}

/// The entries of a record in its light queues. A queue that it names twice has one.
fn expect_light(expected: &mut Expected, record: &RecordView<'_>, at: PhysicalOffset, tombstones: &Tombstones) {
    for (queue, offset) in light_queues::of_record(record).filter(|(queue, _)| !tombstones.covers(queue, at)) {
        let tag = RecordKeys::scan(record.properties()).tags_code();
        let entry = Entry { offset: at.0, size: record.size(), tag };
        expected.entry((queue.into(), light_queues::LIGHT_QUEUE_ID)).or_default().insert(offset, entry);
    }
}

impl VerifyReport {
    fn fault(&mut self, text: impl FnOnce() -> String) {
        if self.faults.len() < FAULTS {
            self.faults.push(text());
        }
    }
}

/// Compares every entry in the files with the log, and takes it out of `expected`.
fn check_queues(
    disk: &dyn Disk,
    files: &QueueFiles,
    log_start: u64,
    expected: &mut Expected,
    report: &mut VerifyReport,
) -> io::Result<()> {
    for topic in disk.list(&files.root)?.iter().filter(|item| item.is_dir) {
        for queue in disk.list(&files.root.join(&topic.name))?.iter().filter(|item| item.is_dir) {
            let Ok(id) = queue.name.parse::<u32>() else { continue };
            let name: Arc<[u8]> = topic.name.as_bytes().into();
            let entries = expected.entry((Arc::clone(&name), id)).or_default();
            let dir = files.queue_dir(&name, id);
            let mut starts: Vec<_> =
                disk.list(&dir)?.iter().filter_map(|item| parse_offset_file_name(&item.name)).collect();
            starts.sort_unstable();
            for start in starts {
                let file = disk.open(&dir.join(offset_file_name(start)), OpenMode::Read)?;
                let mut bytes = vec![0; files.file_size as usize];
                let read = file.read_at(&mut bytes, 0)?;
                for (at, bytes) in bytes[..read].chunks_exact(ENTRY_BYTES).enumerate() {
                    let offset = start / ENTRY_BYTES as u64 + at as u64;
                    match Entry::decode(bytes) {
                        Some(entry) if entry.has_record() => {
                            report.entries += 1;
                            let mut known = entries.remove(&offset);
                            if entry_tag::is_time(&name) {
                                // A time follows the settings at the append; Java writes another value for timers.
                                known = known.map(|known| Entry { tag: entry.tag, ..known });
                            }
                            if known != Some(entry) && entry.offset >= log_start {
                                report.fault(|| format!("{}/{id} at {offset}: {entry:?}, not {known:?}", topic.name));
                            }
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    Ok(())
}
