//! Runs the fuzz functions over the golden files and mutations of them; `FUZZ_EXECUTIONS` says how many.

use crate::fuzz_driver::{Driver, corpus, executions};
use crate::{batch, fuzz, record};
use std::path::PathBuf;

fn run(name: &str, tokens: &[&[u8]], more: &[Vec<u8>], target: fn(&[u8])) {
    let seeds = corpus(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden"));
    // Targets of different formats get by on the same corpus: each input is a seed for the lengths of the others.
    Driver::new(0x5EED, seeds.into_iter().chain(more.iter().cloned())).with_tokens(tokens).run(
        name,
        executions(),
        target,
    );
}

#[test]
fn record() {
    let magics = [record::MAGIC_V1, record::MAGIC_V2, record::MAGIC_BLANK].map(u32::to_be_bytes);
    run("record", &[&magics[0], &magics[1], &magics[2]], &[record::blank_record(100).to_vec()], fuzz::record);
}

#[test]
fn properties() {
    run(
        "properties",
        &[b"\x01", b"\x02", b"TAGS\x01", b"UNIQ_KEY", "主".as_bytes(), br"\u0001", br"\u0002"],
        &[],
        fuzz::properties,
    );
}

#[test]
fn batch() {
    let mut body = Vec::new();
    for at in 0..3 {
        let entry = batch::BatchEntry { flag: at, body: b"body", properties: b"k\x01v\x02" };
        batch::encode_entry(&mut body, &entry).unwrap();
    }
    run("batch", &[], &[body], fuzz::batch);
}

#[test]
fn ids() {
    let ids = [b"7F00000100005213000000000000010A".to_vec(), [b'A'; 56].to_vec()];
    run("ids", &[b"0", b"F", b"g"], &ids, fuzz::ids);
}

#[test]
fn names() {
    run("names", &[b"%RETRY%", b"rmq_sys_", b"\xff", "😀".as_bytes()], &[b"Topic-1_%|".to_vec()], fuzz::names);
}
