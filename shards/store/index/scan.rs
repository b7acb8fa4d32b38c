//! Finds the records in a piece of a log file.
//!
//! Pure, and safe on any bytes. A place without a record is searched through for the next one that says that it belongs
//! exactly there: keys behind damage are still found.

use message::PhysicalOffset;
use message::record::{BLANK_RECORD_BYTES, MAGIC_BLANK, MAGIC_V1, MIN_RECORD_BYTES, RecordError, RecordView};

/// What stands at a position.
pub(crate) enum Found<'a> {
    /// A record.
    Record(RecordView<'a>),
    /// Perhaps a record, of which this piece has only the start: this many bytes are needed.
    Cut(usize),
    /// Nothing more in this file.
    End,
    /// No record: go on this many bytes later.
    Skip(usize),
}

/// What is at the start of `bytes`, which lie at `position` of the log; its file goes on for `room` bytes from there.
pub(crate) fn record_at(bytes: &[u8], position: PhysicalOffset, room: u64) -> Found<'_> {
    if room < BLANK_RECORD_BYTES as u64 {
        return Found::End;
    }
    if bytes.len() < BLANK_RECORD_BYTES {
        return Found::Cut(BLANK_RECORD_BYTES);
    }
    if bytes[4..8] == MAGIC_BLANK.to_be_bytes() {
        return Found::End;
    }
    match RecordView::parse(bytes) {
        Ok(record) if record.physical_offset() == position => Found::Record(record),
        Err(RecordError::Incomplete { size }) if u64::from(size) <= room => Found::Cut(size as usize),
        _ => Found::Skip(next(bytes, position)),
    }
}

/// How far to go to what may be the next record.
fn next(bytes: &[u8], position: PhysicalOffset) -> usize {
    // The three bytes that both kinds of records share, at 4; the record's own offset, at 28.
    let magic = &MAGIC_V1.to_be_bytes()[..3];
    let fits = |at: usize| {
        bytes[at + 4..at + 7] == *magic && bytes[at + 28..at + 36] == position.plus(at as u64).0.to_be_bytes()
    };
    let last = bytes.len().saturating_sub(MIN_RECORD_BYTES);
    (1..=last).find(|&at| fits(at)).unwrap_or(last.max(1))
}
