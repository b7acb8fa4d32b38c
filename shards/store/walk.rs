//! Reading the log record by record, as recovery, verification and the repair of queues do.
//!
//! Role: decides what is a record and where the log ends. A record counts only if its magic number, sizes and CRC are
//! right and its physical offset is its position. Below the durable offset a bad record is damage: reading goes on at
//! the next good one. Behind it, it is a torn tail: the log ends there. It changes nothing.

use std::io;
use std::sync::Arc;

use message::PhysicalOffset;
use message::record::{BLANK_RECORD_BYTES, MAGIC_V1, MAGIC_V2, RecordError, RecordView};
use sys::disk::DiskFile;

use crate::limits;

/// Where the walker gets its bytes.
pub(crate) trait Segments {
    /// The open file of the segment that begins here; `None` if there is none.
    fn segment(&mut self, base: u64) -> io::Result<Option<Arc<dyn DiskFile>>>;
}

/// What a walk found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Walked {
    /// End of the last record, or of the blank record before a segment that holds nothing yet.
    pub(crate) end: u64,
    /// Good records.
    pub(crate) records: u64,
    /// Bad places that were passed over.
    pub(crate) damaged: u64,
    /// Store time of the last record; 0 without one.
    pub(crate) last_store_ms: i64,
}

/// What stands at a position.
enum Found {
    Record(u32),
    /// All is there, but the CRC of the body is wrong.
    WrongCrc(u32),
    EndOfSegment,
    Nothing,
}

/// Walks through a log.
pub(crate) struct Walk<'a> {
    segments: &'a mut dyn Segments,
    segment_size: u64,
    /// Largest record that may be there.
    max_record: u32,
    /// Below, a bad record is damage.
    durable: u64,
    /// Base of the present segment.
    base: u64,
    file: Option<Arc<dyn DiskFile>>,
    buffer: Vec<u8>,
    /// Offset of the first byte in the buffer.
    buffer_at: u64,
}

impl<'a> Walk<'a> {
    /// A walk from `base`, the start of a segment.
    pub(crate) fn new(
        segments: &'a mut dyn Segments,
        base: u64,
        segment_size: u64,
        max_record: u32,
        durable: u64,
    ) -> io::Result<Self> {
        let file = segments.segment(base)?;
        let buffer = Vec::with_capacity(limits::WALK_BUFFER_BYTES);
        Ok(Self { segments, segment_size, max_record, durable, base, file, buffer, buffer_at: base })
    }

    /// Gives each record from `from` on, with its offset and whether its body is damaged. Stops at `until`.
    pub(crate) fn run(
        &mut self,
        from: u64,
        until: u64,
        visit: &mut dyn FnMut(&RecordView<'_>, PhysicalOffset, bool) -> io::Result<()>,
    ) -> io::Result<Walked> {
        let mut walked = Walked { end: from, records: 0, damaged: 0, last_store_ms: 0 };
        let mut at = from;
        while at < until && self.file.is_some() {
            match self.look(at)? {
                Found::Record(size) if !self.is_torn(at, size)? => {
                    let record = RecordView::parse(self.bytes(at, size as usize)).expect("parsed before");
                    walked.last_store_ms = walked.last_store_ms.max(record.store_timestamp_ms());
                    visit(&record, PhysicalOffset(at), false)?;
                    walked.records += 1;
                    at += u64::from(size);
                }
                Found::WrongCrc(size) if at < self.durable => {
                    let record = RecordView::parse(self.bytes(at, size as usize)).expect("parsed before");
                    visit(&record, PhysicalOffset(at), true)?;
                    walked.damaged += 1;
                    at += u64::from(size);
                }
                Found::EndOfSegment => {
                    walked.end = at;
                    at = self.base + self.segment_size;
                    if !self.enter(at)? {
                        return Ok(walked);
                    }
                }
                Found::Record(_) | Found::WrongCrc(_) | Found::Nothing => match self.next_good(at)? {
                    Some(next) => {
                        walked.damaged += 1;
                        at = next;
                    }
                    None => return Ok(Walked { end: at, ..walked }),
                },
            }
            walked.end = at;
        }
        Ok(walked)
    }

    /// What stands at a position of the present segment.
    fn look(&mut self, at: u64) -> io::Result<Found> {
        let left = self.base + self.segment_size - at;
        if left < BLANK_RECORD_BYTES as u64 {
            return Ok(Found::Nothing);
        }
        self.fill(at, BLANK_RECORD_BYTES)?;
        match message::record::peek_size(self.bytes(at, BLANK_RECORD_BYTES)) {
            Ok(size) if size <= self.max_record && u64::from(size) + BLANK_RECORD_BYTES as u64 <= left => {
                self.fill(at, size as usize)?;
                Ok(judge(self.bytes(at, size as usize), at, size))
            }
            Err(RecordError::Blank { size }) if u64::from(size) == left => Ok(Found::EndOfSegment),
            _ => Ok(Found::Nothing),
        }
    }

    /// Whether a record that is good by its CRC is a torn one after all: the last one, not known to be durable, with a
    /// topic or properties (which no CRC covers) that are no text.
    fn is_torn(&mut self, at: u64, size: u32) -> io::Result<bool> {
        if at < self.durable {
            return Ok(false);
        }
        let is_text = |bytes: &[u8]| !bytes.contains(&0) && std::str::from_utf8(bytes).is_ok();
        let record = RecordView::parse(self.bytes(at, size as usize)).expect("parsed before");
        if is_text(record.topic()) && is_text(record.properties()) {
            return Ok(false);
        }
        let is_last = !matches!(self.look(at + u64::from(size))?, Found::Record(_) | Found::EndOfSegment);
        self.fill(at, size as usize)?;
        Ok(is_last)
    }

    /// The next good record behind a bad place, if the bad place is damage: within the largest record's size in this
    /// segment, or at the start of the next one.
    fn next_good(&mut self, bad: u64) -> io::Result<Option<u64>> {
        if bad >= self.durable {
            return Ok(None);
        }
        let segment_end = self.base + self.segment_size;
        let window = u64::from(self.max_record).min(segment_end - bad) as usize;
        self.fill(bad, window)?;
        let held = self.held(bad).min(window);
        for skip in 1..held.saturating_sub(7) {
            let bytes = &self.bytes(bad, held)[skip..];
            let magic = u32::from_be_bytes(bytes[4..8].try_into().expect("four bytes"));
            if matches!(magic, MAGIC_V1 | MAGIC_V2) && matches!(self.look(bad + skip as u64)?, Found::Record(_)) {
                return Ok(Some(bad + skip as u64));
            }
        }
        if !self.enter(segment_end)? {
            return Ok(None);
        }
        Ok(matches!(self.look(segment_end)?, Found::Record(_)).then_some(segment_end))
    }

    /// Goes to the segment at `base`; whether there is one.
    fn enter(&mut self, base: u64) -> io::Result<bool> {
        let next = self.segments.segment(base)?;
        if next.is_none() {
            return Ok(false);
        }
        self.file = next;
        self.base = base;
        self.buffer.clear();
        self.buffer_at = base;
        Ok(true)
    }

    /// Brings `len` bytes from `at` into the buffer, or zeros where the file ends.
    fn fill(&mut self, at: u64, len: usize) -> io::Result<()> {
        if at >= self.buffer_at && self.held(at) >= len {
            return Ok(());
        }
        let file = self.file.as_ref().expect("a walk has its segment");
        let wanted = len.max(limits::WALK_BUFFER_BYTES).min((self.base + self.segment_size - at) as usize);
        self.buffer.resize(wanted, 0);
        let read = file.read_at(&mut self.buffer, at - self.base)?;
        self.buffer[read..].fill(0);
        self.buffer_at = at;
        Ok(())
    }

    /// Bytes in the buffer from `at` on.
    fn held(&self, at: u64) -> usize {
        (self.buffer_at + self.buffer.len() as u64).saturating_sub(at) as usize
    }

    fn bytes(&self, at: u64, len: usize) -> &[u8] {
        let start = (at - self.buffer_at) as usize;
        &self.buffer[start..start + len]
    }
}

fn judge(bytes: &[u8], at: u64, size: u32) -> Found {
    match RecordView::parse(bytes) {
        Ok(record) if record.physical_offset().0 != at => Found::Nothing,
        Ok(record) if record.verify_crc() => Found::Record(size),
        Ok(_) => Found::WrongCrc(size),
        Err(_) => Found::Nothing,
    }
}
