//! Records that lie near each other, read at once: for whoever goes through many of them in the order of the log.
//!
//! Role: a buffer between the page cache and [`Shard::record_at`], which reads one record. Invariants: only what is visible and
//! in memory is read, so that nothing waits for the disk; a record is handed out only whole and checked; what is not here is to
//! be asked of [`Shard::record_at`], whose answer is the only one that counts. The log is never changed below its visible end,
//! so the buffer never goes stale. Bounded by [`RUN_BYTES`].

use message::PhysicalOffset;
use message::record::RecordView;

use crate::lookup::whole_record;
use crate::shard::Shard;

/// Most bytes of a run.
const RUN_BYTES: u64 = 256 << 10;
/// From the start of one record to that of the next: reading what lies between is cheaper than another read.
const STEP_BYTES: u64 = 8 << 10;
/// Room for the last record of a run, whose size is not known.
const LAST_BYTES: u64 = 1 << 10;

/// See the head of the file.
#[derive(Debug, Default)]
pub struct LookAhead {
    from: u64,
    bytes: Vec<u8>,
}

impl LookAhead {
    /// The record that starts at `offset`; `None` when it is not here.
    pub fn record(&self, offset: PhysicalOffset) -> Option<RecordView<'_>> {
        let at = usize::try_from(offset.0.checked_sub(self.from)?).ok()?;
        whole_record(self.bytes.get(at..)?, offset)
    }

    /// Whether the run reaches over `offset`: then it was looked for before.
    pub fn reaches(&self, offset: PhysicalOffset) -> bool {
        offset.0.checked_sub(self.from).is_some_and(|at| at < self.bytes.len() as u64)
    }

    fn clear(&mut self) {
        self.bytes.clear();
    }
}

impl Shard {
    /// Reads the first of these records and those that follow close behind it into `ahead`, in place of what was there. A record
    /// alone is not read.
    pub fn look_ahead(&mut self, offsets: impl IntoIterator<Item = PhysicalOffset>, ahead: &mut LookAhead) {
        ahead.clear();
        let mut offsets = offsets.into_iter();
        let Some(PhysicalOffset(from)) = offsets.next() else { return };
        let visible = self.visible_to().0;
        if from < self.log.start() || from >= visible {
            return;
        }
        let end = visible.min(self.log.base_of(from) + self.log.segment_size()).min(from + RUN_BYTES);
        let mut last = from;
        for PhysicalOffset(next) in offsets {
            if next <= last || next - last > STEP_BYTES || next >= end {
                break;
            }
            last = next;
        }
        if last == from {
            return;
        }
        ahead.from = from;
        let span = from..end.min(last + LAST_BYTES);
        let wanted = span.end - span.start;
        if self.read_resident(span, &mut ahead.bytes) as u64 != wanted {
            ahead.clear();
        }
    }
}
