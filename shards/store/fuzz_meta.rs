//! Fuzz entry points of the store's small files and of the index: any bytes are an answer or an error, never a panic, an
//! endless walk or growth. The same functions run under `cargo fuzz` and under the stable driver.

use crate::index::fuzz as index;
use crate::manifest::{Manifest, SystemQueues};
use crate::offset_journal;
use crate::placement::Placement;
use crate::tombstones;

/// A fuzz target: its name and what it runs.
pub type Target = (&'static str, fn(&[u8]));

/// All targets of this file.
pub const TARGETS: [Target; 6] = [
    ("store_manifest", manifest),
    ("store_placement", placement),
    ("store_tombstones", tombstone_table),
    ("store_offset_journal", journal),
    ("store_index_file", index_file),
    ("store_log_scan", log_scan),
];

/// The manifest: what is accepted is written back to the same.
pub fn manifest(data: &[u8]) {
    if let Ok(manifest) = Manifest::parse(data) {
        assert_eq!(Manifest::parse(&manifest.encode()), Ok(manifest));
    }
}

/// The placement: what is accepted gives a shard that exists for every queue.
pub fn placement(data: &[u8]) {
    let shards = 1 + u16::from(data.first().copied().unwrap_or(0)) % 64;
    let Some(mut placement) = Placement::parse(data, shards, SystemQueues::default()) else { return };
    assert_eq!(Placement::parse(&placement.encode(), shards, SystemQueues::default()).as_ref(), Some(&placement));
    placement.grow("t", 3, u32::from(data.len() as u16));
    for queue in [0, 1, 7, u32::MAX] {
        assert!(placement.shard_of("t", queue).0 < 64);
    }
}

/// The tombstones.
pub fn tombstone_table(data: &[u8]) {
    let _ = tombstones::parse(data);
}

/// The offset journal: what was taken as whole entries is exactly the bytes that it says.
pub fn journal(data: &[u8]) {
    let mut taken = 0;
    let used = offset_journal::entries(data, &mut |entry| {
        taken += entry.len() + 8;
        let named = offset_journal::decode_bases(entry).map_or(0, |bases| bases.len());
        assert!(named * 16 <= entry.len());
    });
    assert!(used == taken && used <= data.len());
}

/// An index file of any content, walked through for some hashes, and merged into.
pub fn index_file(data: &[u8]) {
    index::file(data);
}

/// A piece of a log of any content, read for its keys.
pub fn log_scan(data: &[u8]) {
    index::scan(data);
}

#[cfg(test)]
mod tests {
    use message::fuzz_driver::{DEFAULT_EXECUTIONS, Driver, EXECUTIONS_VARIABLE};

    use super::*;
    use crate::manifest::Manifest;

    fn corpus(name: &str) -> Vec<Vec<u8>> {
        let golden = |name| std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/index/golden/").to_owned() + name);
        let mut placement = Placement::new(3, SystemQueues::default());
        placement.grow("t", 2, 9);
        match name {
            "store_manifest" => vec![Manifest::new(2, true).encode()],
            "store_placement" => vec![placement.encode()],
            "store_tombstones" => vec![br#"{"topics":{"t":{"0":100,"1":36028797018964000}}}"#.to_vec()],
            "store_offset_journal" => {
                let entry = |text: &[u8]| {
                    let head = [(text.len() as u32).to_be_bytes(), crc32fast::hash(text).to_be_bytes()].concat();
                    [head, text.to_vec()].concat()
                };
                vec![[entry(b"\0base\0\0\0\0\0\0\0\x02\0\0\x01\0abcd"), entry(b"another")].concat()]
            }
            "store_index_file" => vec![golden("20261130141241498").unwrap()[..4096].to_vec()],
            _ => vec![golden("commitlog").unwrap()[..4096].to_vec()],
        }
    }

    #[test]
    fn no_finding() {
        let wanted = std::env::var(EXECUTIONS_VARIABLE).ok().and_then(|text| text.parse().ok());
        for (name, target) in TARGETS {
            let mut driver = Driver::new(7, corpus(name)).with_tokens(&[b"\"rules\"", b"\xDA\xA3\x20\xA7", b"KEYS"]);
            driver.run(name, wanted.unwrap_or(DEFAULT_EXECUTIONS), target);
        }
    }
}
