//! Properties, records, hashes and ids.

use std::hint::black_box;
use std::net::SocketAddr;

use message::batch::{Batch, BatchEntry, encode_entry};
use message::hash::{IndexKeyPrefix, tag_hash};
use message::ids::UniqueIdMaker;
use message::names::check_topic;
use message::properties::{PropertiesSource, PropertyList, SendStamp, find_each, name};
use message::record::{RecordFields, RecordView, encode, patch};
use message::{PhysicalOffset, QueueOffset};

use crate::frames::{BODY, NOW_MS, PROPERTIES, TOPIC};
use crate::{Case, Operation};

const STAMP: SendStamp<'_> = SendStamp { region: b"DefaultRegion", trace_on: true, cluster: b"DefaultCluster" };
const UNIQUE_KEY: &[u8] = b"7F00000100002A139A16KKKKKKKKKK00";

pub fn cases() -> Vec<Case> {
    vec![
        Case::pure("message: read and stamp properties", read_and_stamp),
        Case::pure("message: find properties in a text", found_properties),
        Case::pure("message: encode and patch a record", encoded),
        Case::pure("message: parse a record", parsed),
        Case::pure("message: parse a batch of 32", batch_parsed),
        Case::pure("message: hash a tag", tag_hashed),
        Case::pure("message: hash a key for the index", key_hashed),
        Case::pure("message: check a topic's name", topic_checked),
        Case::pure("message: make a unique id", unique_id_made),
    ]
}

/// The record of a send, with these properties.
pub fn record<'a>(properties: PropertiesSource<'a>) -> RecordFields<'a> {
    let host = SocketAddr::from(([127, 0, 0, 1], 10911));
    RecordFields {
        queue_id: 3,
        flag: 0,
        sys_flag: 0,
        born_timestamp_ms: NOW_MS,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        topic: TOPIC.as_bytes(),
        body: &BODY,
        properties,
    }
}

fn read_and_stamp() -> Operation {
    Box::new(|| {
        let mut list = PropertyList::parse(black_box(PROPERTIES.as_bytes()));
        list.stamp(black_box(&STAMP), None);
        black_box(&list);
    })
}

fn found_properties() -> Operation {
    Box::new(|| {
        let names = [name::UNIQ_KEY, name::TAGS, name::KEYS];
        black_box(find_each(black_box(PROPERTIES.as_bytes()), black_box(names)));
    })
}

fn encoded() -> Operation {
    let mut list = PropertyList::parse(PROPERTIES.as_bytes());
    list.stamp(&STAMP, None);
    let mut out = Vec::new();
    Box::new(move || {
        out.clear();
        encode(&mut out, black_box(&record(PropertiesSource::List(list.view())))).expect("a record of bearable size");
        patch(&mut out, QueueOffset(1), PhysicalOffset(2), black_box(NOW_MS));
        black_box(&out);
    })
}

fn parsed() -> Operation {
    let mut bytes = Vec::new();
    encode(&mut bytes, &record(PropertiesSource::Text(PROPERTIES.as_bytes()))).expect("a record of bearable size");
    Box::new(move || {
        black_box(RecordView::parse(black_box(&bytes)).expect("a good record"));
    })
}

fn batch_parsed() -> Operation {
    let mut body = Vec::new();
    let entry = BatchEntry { flag: 0, body: &BODY, properties: PROPERTIES.as_bytes() };
    (0..32).for_each(|_| encode_entry(&mut body, &entry).expect("an entry of bearable size"));
    Box::new(move || {
        let batch = Batch::parse(black_box(&body)).expect("a good batch");
        batch.iter().for_each(|entry| {
            black_box(entry);
        });
    })
}

fn tag_hashed() -> Operation {
    Box::new(|| {
        black_box(tag_hash(black_box(Some(b"TagA"))));
    })
}

fn key_hashed() -> Operation {
    Box::new(|| {
        black_box(IndexKeyPrefix::new(black_box(TOPIC.as_bytes())).key(black_box(UNIQUE_KEY)));
    })
}

fn topic_checked() -> Operation {
    Box::new(|| {
        check_topic(black_box(TOPIC.as_bytes())).expect("a good name");
    })
}

fn unique_id_made() -> Operation {
    let mut maker = UniqueIdMaker::new("127.0.0.1".parse().expect("an address"), 1, 2, 0);
    Box::new(move || {
        black_box(maker.next_id(black_box(NOW_MS)));
    })
}
