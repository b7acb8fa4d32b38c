//! Fuzz targets of the store's decoders. Each takes any bytes and must neither panic nor take more than the bytes are
//! worth. The same functions run under `cargo fuzz` and under `message::fuzz_driver`.

use message::PhysicalOffset;
use message::record::RecordView;

use crate::checkpoint::{CHECKPOINT_BYTES, Checkpoint};
use crate::consume_queue::{ENTRY_BYTES, Entry, QueueTable};
use crate::dispatch::{self, Trust};
use crate::layout::parse_offset_file_name;
use crate::queue_table::QueueTableFile;

/// Consume-queue entries: what decodes encodes to the same bytes.
pub fn entries(data: &[u8]) {
    for bytes in data.chunks(ENTRY_BYTES) {
        let mut again = Vec::new();
        if let Some(entry) = Entry::decode(bytes) {
            entry.encode(&mut again);
            assert_eq!(again, bytes);
            assert!(entry.end() >= entry.offset || !entry.has_record());
        }
    }
}

/// The checkpoint file.
pub fn checkpoint(data: &[u8]) {
    let Some(read) = Checkpoint::decode(data) else { return assert!(data.len() < 40) };
    assert!(read.own.is_some() || !read.agrees);
    assert!(read.safe_ms() <= read.java.log_ms || read.java.log_ms < i64::MIN + 3000);
    if let Some(own) = read.own {
        let again = Checkpoint::encode(read.java, own);
        assert_eq!(again.len(), CHECKPOINT_BYTES);
        assert_eq!(Checkpoint::decode(&again).map(|again| again.own), Some(read.own));
    }
}

/// The queue table file, with and without a right CRC.
pub fn queue_table(data: &[u8]) {
    let mut with_crc = data.to_vec();
    with_crc.extend_from_slice(&crc32fast::hash(data).to_be_bytes());
    for bytes in [data, &with_crc[..]] {
        if let Some(table) = QueueTableFile::decode(bytes) {
            assert_eq!(QueueTableFile::decode(&table.encode()).map(|again| again.rows.len()), Some(table.rows.len()));
        }
    }
}

/// Records on their way to queues, as recovery gives them: whatever they say, the queues stay consistent.
pub fn dispatch_records(data: &[u8]) {
    let mut table = QueueTable::new();
    let (mut rest, mut at) = (data, 0);
    while let Ok(record) = RecordView::parse(rest) {
        for trust in [Trust::WholeLog, Trust::Table, Trust::Files] {
            let damaged = at % 3 == 1;
            dispatch::recovered(&mut table, &record, PhysicalOffset(at), damaged, trust, &[1_000]);
        }
        at += u64::from(record.size());
        rest = &rest[record.size() as usize..];
    }
    for slot in table.slots() {
        let queue = table.get(slot);
        assert!(queue.min <= queue.visible && queue.visible == queue.dispatched() && queue.dispatched() == queue.next);
    }
}

/// File names.
pub fn file_names(data: &[u8]) {
    if let Ok(name) = std::str::from_utf8(data)
        && let Some(offset) = parse_offset_file_name(name)
    {
        assert_eq!(crate::layout::offset_file_name(offset), name);
    }
}

#[cfg(test)]
mod tests {
    use message::fuzz_driver::{Driver, executions};
    use message::record;

    use super::*;
    use crate::checkpoint::{JavaFields, OwnArea};
    use crate::queue_table::QueueRow;

    fn records() -> Vec<u8> {
        let mut bytes = Vec::new();
        for queue_offset in [0, 1, 2, 5, 1 << 30] {
            let start = bytes.len();
            let fields = message::record::RecordFields {
                queue_id: 1,
                flag: 0,
                sys_flag: 0,
                born_timestamp_ms: 0,
                born_host: "1.2.3.4:5".parse().unwrap(),
                store_host: "1.2.3.4:5".parse().unwrap(),
                reconsume_times: 0,
                prepared_transaction_offset: 0,
                topic: b"topic",
                body: b"",
                properties: message::properties::PropertiesSource::Text(b"TAGS\x01a\x02"),
            };
            record::encode(&mut bytes, &fields).unwrap();
            record::patch(&mut bytes[start..], message::QueueOffset(queue_offset), PhysicalOffset(0), 0);
        }
        bytes
    }

    #[test]
    fn decoders_survive_anything() {
        let count = executions();
        let row = QueueRow { topic: b"t"[..].into(), id: 0, first: 0, min: 0, max: 9, last_end: 99, last_store_ms: 9 };
        let table = QueueTableFile { vouched: 9, last_store_ms: 9, rows: vec![row] }.encode();
        let mut entry = Vec::new();
        Entry { offset: 9, size: 99, tag: -1 }.encode(&mut entry);
        Driver::new(1, [entry]).run("entries", count, entries);
        let file = Checkpoint::encode(JavaFields::default(), OwnArea::default());
        Driver::new(2, [file]).run("checkpoint", count, checkpoint);
        let content = table[..table.len() - 4].to_vec();
        Driver::new(3, [table, content]).with_tokens(&[b"RMQQTBL\n"]).run("queue table", count, queue_table);
        Driver::new(4, [records()]).run("records", count, dispatch_records);
        Driver::new(5, [b"00000000001073741824".to_vec()]).run("file names", count, file_names);
    }
}
