//! Fuzz entry points of this crate's decoders: `fn(&[u8])` that panic when an invariant breaks.
//!
//! Role: the same functions run under `cargo fuzz` and under [`crate::fuzz_driver`]. Test support only.

use crate::batch::{Batch, encode_entry};
use crate::ids::OffsetMessageId;
use crate::properties::{PropertyList, find, pairs};
use crate::record::{RecordError, RecordView, encode, patch, peek_size};
use crate::{hash, names};

/// A record: no panic; what parses encodes back to the same bytes.
pub fn record(data: &[u8]) {
    let record = match RecordView::parse(data) {
        Ok(record) => record,
        Err(RecordError::Incomplete { size }) => return assert!(size as usize > data.len()),
        Err(_) => return,
    };
    assert_eq!(peek_size(data), Ok(record.size()));
    let good = record.verify_crc();
    assert_eq!(RecordView::parse_checked(data).is_ok(), good);
    let fields = record.fields();
    let mut again = Vec::new();
    let encoded = encode(&mut again, &fields).expect("a parsed record encodes");
    assert_eq!(encoded, fields.encoded_len());
    patch(&mut again, record.queue_offset(), record.physical_offset(), record.store_timestamp_ms());
    let second = RecordView::parse(&again).expect("an encoded record parses");
    assert!(second.verify_crc());
    assert_eq!(
        (second.body(), second.topic(), second.properties(), second.sys_flag(), second.queue_offset()),
        (record.body(), record.topic(), record.properties(), record.sys_flag(), record.queue_offset())
    );
    assert_eq!(
        (second.born_host(), second.store_host(), second.store_timestamp_ms(), second.prepared_transaction_offset()),
        (record.born_host(), record.store_host(), record.store_timestamp_ms(), record.prepared_transaction_offset())
    );
}

/// A properties text: list, iterator and search agree; a rewritten text reads as the same list.
pub fn properties(data: &[u8]) {
    let mut text = Vec::new();
    let list = PropertyList::parse(data);
    list.write(&mut text);
    assert_eq!(text.len(), list.encoded_len());
    let again = PropertyList::parse(&text);
    assert!(list.iter().eq(again.iter()), "a rewritten text reads as the same list");
    assert!(pairs(data).count() >= list.len());
    in_json(data);
    for (name, value) in list.iter().take(8) {
        assert_eq!(find(data, name), Some(value));
        assert_eq!(list.get(name), Some(value));
    }
}

/// The list of a text and that of its JSON form agree, where the latter can be read as it stands. The text itself, taken for
/// JSON, is read only if what it stands for is plain.
fn in_json(data: &[u8]) {
    let mut raw = Vec::new();
    for &byte in data {
        match byte {
            1 => raw.extend_from_slice(br"\u0001"),
            2 => raw.extend_from_slice(br"\u0002"),
            other => raw.push(other),
        }
    }
    for raw in [&raw[..], data] {
        let text = separators_only(raw);
        let mut escaped = PropertyList::default();
        if escaped.read_escaped(raw) {
            let text = text.as_deref().expect("no other escapes");
            assert!(escaped.iter().eq(PropertyList::parse(text).iter()), "in JSON");
        } else {
            assert!(escaped.is_empty());
        }
    }
}

/// What the inside of a JSON string stands for, if it has no escapes but those of separators.
fn separators_only(mut raw: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    while let [byte, rest @ ..] = raw {
        let (byte, rest) = match raw {
            [b'\\', b'u', b'0', b'0', b'0', digit @ (b'1' | b'2'), rest @ ..] => (digit - b'0', rest),
            [b'\\', ..] => return None,
            _ => (*byte, rest),
        };
        text.push(byte);
        raw = rest;
    }
    Some(text)
}

/// A batch body: what is accepted adds up and encodes back to the same bytes.
pub fn batch(data: &[u8]) {
    let Ok(batch) = Batch::parse(data) else { return };
    let mut again = Vec::new();
    let mut count = 0;
    for entry in &batch {
        encode_entry(&mut again, &entry).expect("a parsed entry encodes");
        count += 1;
    }
    assert_eq!((count, again.len()), (batch.count(), data.len()));
    assert_eq!(Batch::parse(&again).map(|batch| batch.count()), Ok(count));
}

/// An offset message id: what parses is written back the same, in upper case.
pub fn ids(data: &[u8]) {
    if let Some(id) = OffsetMessageId::parse(data) {
        assert_eq!(id.text().as_bytes(), data.to_ascii_uppercase());
    }
}

/// Names and hashes: no panic on any bytes; legal names are ASCII.
pub fn names(data: &[u8]) {
    if names::check_topic(data).is_ok() || names::check_group(data).is_ok() {
        assert!(data.is_ascii() && !data.is_empty());
    }
    let units = String::from_utf8_lossy(data)
        .encode_utf16()
        .fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    assert_eq!(hash::java_hash(data), units);
    assert!(hash::index_key_hash(data, data) <= i32::MAX as u32);
}
