//! Records that the 5.4.0 reference stored (`golden/`, written by `golden/capture.py`) against our encoder and decoder.

use crate::batch::Batch;
use crate::fuzz_driver::{corpus, from_hex};
use crate::properties::{PropertiesSource, PropertyList, SendStamp};
use crate::record::{RecordView, encode, patch};
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden")
}

fn golden(name: &str) -> Vec<u8> {
    from_hex(&std::fs::read(folder().join(name)).unwrap()).unwrap()
}

/// Encodes the fields of a stored record with these properties and patches what only the append knows.
fn again(record: &RecordView<'_>, properties: PropertiesSource<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut fields = record.fields();
    fields.properties = properties;
    encode(&mut out, &fields).unwrap();
    patch(&mut out, record.queue_offset(), record.physical_offset(), record.store_timestamp_ms());
    out
}

#[test]
fn a_single_send_is_stored_as_the_reference_stores_it() {
    let stamp = SendStamp { region: b"DefaultRegion", trace_on: true, cluster: b"DefaultCluster" };
    for name in ["plain", "keys", "twice", "broken", "unicode", "many", "reserved", "compressed", "ipv6"] {
        let (sent, stored) = (golden(&format!("{name}.sent.hex")), golden(&format!("{name}.stored.hex")));
        let record = RecordView::parse_checked(&stored).unwrap();
        assert_eq!(record.topic(), b"GoldenTopic");
        assert_eq!((record.born_timestamp_ms(), record.reconsume_times()), (1_700_000_000_000, 3));
        assert_eq!(record.born_host().is_ipv6(), name == "ipv6");
        let mut list = PropertyList::parse(&sent);
        list.stamp(&stamp, None);
        assert_eq!(again(&record, PropertiesSource::List(list.view())), stored, "{name}");
    }
}

#[test]
fn members_of_a_batch_are_stored_with_their_own_properties() {
    let body = golden("batch.body.hex");
    let batch = Batch::parse(&body).unwrap();
    assert_eq!(batch.count(), 3);
    for (at, entry) in batch.iter().enumerate() {
        let stored = golden(&format!("batch-{at}.stored.hex"));
        let record = RecordView::parse_checked(&stored).unwrap();
        assert_eq!((record.body(), record.properties(), record.flag()), (entry.body, entry.properties, entry.flag));
        assert_eq!(again(&record, PropertiesSource::Text(entry.properties)), stored);
    }
}

#[test]
fn every_golden_file_is_read() {
    assert_eq!(corpus(&folder()).len(), 23);
}
