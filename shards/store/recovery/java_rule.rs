//! Where the walk begins in a store whose queue table does not count: the rule of a Java broker.
//!
//! The newest file whose first record was stored before the checkpoint's safe time, and lies within what the queues know.
//! Without a checkpoint, the first file.

use std::io;

use message::record::{MIN_RECORD_BYTES, RecordView};

use super::{Recovery, max_record};
use crate::checkpoint::Checkpoint;

impl Recovery<'_> {
    /// The start of the walk, always the start of a file. `queues_end`: the highest end of a record that has an entry.
    pub(super) fn java_start(&mut self, checkpoint: &Checkpoint, queues_end: u64) -> io::Result<u64> {
        let safe_ms = checkpoint.safe_ms();
        let bases: Vec<u64> = self.log.bases().rev().collect();
        for base in bases {
            if let Some(stored_ms) = self.first_stored_ms(base)?
                && stored_ms <= safe_ms
                && base <= queues_end
            {
                return Ok(base);
            }
        }
        Ok(self.log.start())
    }

    /// Store time of the record at the start of a file; `None` when there is no good one.
    pub(super) fn first_stored_ms(&mut self, base: u64) -> io::Result<Option<i64>> {
        let Some((file, position)) = self.log.locate(base)? else { return Ok(None) };
        let mut bytes = vec![0; 4096.max(MIN_RECORD_BYTES)];
        let read = file.read_at(&mut bytes, position)?;
        bytes.truncate(read);
        let limit = max_record(self.options, self.log.segment_size());
        if let Ok(size) = message::record::peek_size(&bytes)
            && size <= limit
            && size as usize > bytes.len()
        {
            bytes.resize(size as usize, 0);
            let read = file.read_at(&mut bytes, position)?;
            bytes.truncate(read);
        }
        let record = RecordView::parse(&bytes).ok().filter(|record| record.physical_offset().0 == base);
        Ok(record.map(|record| record.store_timestamp_ms()))
    }
}
