//! From a record in the log to its consume-queue entry.
//!
//! Role: the one rule by which an entry is made, in the turn of an append and again when recovery reads the log.
//! Invariants: the queue offset of an entry is the previous one + 1; giving a record again changes nothing; bytes from a
//! damaged disk end as a skipped record or a blank entry, never as an assertion.

use message::record::RecordView;
use message::{PhysicalOffset, sys_flag};

use crate::consume_queue::{Entry, QueueTable, Slot, is_file_name};
use crate::entry_tag;
use crate::index::RecordKeys;
use crate::light_queues::{self, LIGHT_QUEUE_ID};

/// Most blank entries that stand in for lost records of one queue. A larger jump in queue offsets is not believed.
const BLANK_ENTRIES: u64 = 1 << 20;
/// The same of a light queue: a property says the offset, which a client may have made up while there were none.
const LIGHT_BLANK_ENTRIES: u64 = 1 << 16;

/// What became of a record that recovery gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dispatched {
    /// An entry was added.
    Added,
    /// There is one already.
    Known,
    /// It gets none: a half or rollback record, or nothing that can be queued.
    NotQueued,
    /// Its queue begins later than its first record in the log: entries before it are missing.
    Gap(Slot),
}

/// What recovery knows of the entries before the record that it gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The log was read from its first byte: a queue begins at its first record, and a jump means lost records.
    WholeLog,
    /// The queue table vouches for all queues: a jump means lost records, a new queue that begins late a lost queue.
    Table,
    /// The queues are what their files held: any jump means lost entries.
    Files,
}

/// Dispatches a record that recovery read. `damaged`: its body is not what was stored; its place in the queue is kept by
/// a blank entry. `level_ms`: the delay of each level.
pub(crate) fn recovered(
    table: &mut QueueTable,
    record: &RecordView<'_>,
    at: PhysicalOffset,
    damaged: bool,
    trust: Trust,
    level_ms: &[i64],
) -> Dispatched {
    let Ok(queue_id) = u32::try_from(record.queue_id()) else { return Dispatched::NotQueued };
    if !sys_flag::is_queued(record.sys_flag()) {
        return Dispatched::NotQueued;
    }
    let store_ms = record.store_timestamp_ms();
    let found = RecordKeys::scan(record.properties());
    let tag = entry_tag::of_record(record.topic(), record.properties(), &found, store_ms, level_ms);
    let entry = Entry { offset: at.0, size: record.size(), tag };
    let place = Place { topic: record.topic(), queue_id, offset: record.queue_offset().0, blanks: BLANK_ENTRIES };
    add(table, &place, if damaged { Entry::BLANK } else { entry }, store_ms, trust)
}

/// Dispatches a record that recovery read to the light queues that it names; gives what became of each to `f`. Queues of which
/// `wanted` is false are passed over.
pub(crate) fn recovered_light(
    table: &mut QueueTable,
    record: &RecordView<'_>,
    at: PhysicalOffset,
    damaged: bool,
    trust: Trust,
    wanted: &dyn Fn(&QueueTable, &[u8]) -> bool,
    f: &mut dyn FnMut(&mut QueueTable, Dispatched),
) {
    let store_ms = record.store_timestamp_ms();
    let tag = RecordKeys::scan(record.properties()).tags_code();
    let entry = Entry { offset: at.0, size: record.size(), tag };
    for (topic, offset) in light_queues::of_record(record) {
        if wanted(table, topic) {
            let place = Place { topic, queue_id: LIGHT_QUEUE_ID, offset, blanks: LIGHT_BLANK_ENTRIES };
            let dispatched = add(table, &place, if damaged { Entry::BLANK } else { entry }, store_ms, trust);
            f(table, dispatched);
        }
    }
}

/// Where an entry belongs.
struct Place<'a> {
    topic: &'a [u8],
    queue_id: u32,
    offset: u64,
    /// Most blank entries before it.
    blanks: u64,
}

/// Adds the entry of a record; a blank one for a damaged record.
fn add(table: &mut QueueTable, place: &Place<'_>, entry: Entry, store_ms: i64, trust: Trust) -> Dispatched {
    let &Place { topic, queue_id, offset, blanks } = place;
    let damaged = !entry.has_record();
    if !is_file_name(topic) || offset > i64::MAX as u64 / 20 {
        return Dispatched::NotQueued;
    }
    if damaged && table.find(topic, queue_id).is_none() {
        // Nothing in a damaged record is reason enough to make a queue.
        return Dispatched::NotQueued;
    }
    let slot = table.find_or_make(topic, queue_id);
    let next = table.get(slot).next;
    if trust == Trust::Files && offset < table.get(slot).first {
        return Dispatched::Gap(slot);
    }
    if offset < next || table.get(slot).lost && trust != Trust::WholeLog {
        return Dispatched::Known;
    }
    if offset > next {
        let queue = table.get(slot);
        let is_new = queue.dispatched() == 0 && queue.last_end == 0;
        match trust {
            Trust::WholeLog if is_new => table.start_at(slot, offset),
            Trust::Table if is_new => return Dispatched::Gap(slot),
            Trust::Files => return Dispatched::Gap(slot),
            _ if damaged || offset - next > blanks => return Dispatched::NotQueued,
            _ => (next..offset).for_each(|_| push(table, slot, Entry::BLANK, 0)),
        }
    }
    push(table, slot, entry, store_ms);
    Dispatched::Added
}

fn push(table: &mut QueueTable, slot: Slot, entry: Entry, store_ms: i64) {
    table.get_mut(slot).next += 1;
    table.push(slot, entry, store_ms);
    let queue = table.get_mut(slot);
    queue.visible = queue.dispatched();
}
