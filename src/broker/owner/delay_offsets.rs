//! `delayOffset.json` and GET_ALL_DELAY_OFFSET (45): how far the delay levels are delivered, for Java's tools and slaves.
//!
//! Role: a copy of what the shards have saved of themselves; the shards never read it back but to see whether a Java broker went
//! on in between. Invariant: a number is here only when the deliveries below it are durable.

use super::answer::{Asker, Outcome};
use super::version::DataVersion;
use super::{Contents, Owner, OwnerAction, OwnerFile, Turn};
use remoting::Json;
use remoting::json::Key;
use std::collections::BTreeMap;

/// Java's `flushDelayOffsetInterval`, in microseconds.
const WRITE_EVERY_US: u64 = 10_000_000;

/// See the head of the file.
#[derive(Debug, Default)]
pub struct DelayOffsets {
    /// By queue of the schedule topic.
    table: BTreeMap<u32, u64>,
    version: DataVersion,
    dirty: bool,
    written_us: u64,
    writing: Option<u64>,
}

/// The file's contents: a level is the queue plus one.
pub fn to_json(table: &BTreeMap<u32, u64>, version: DataVersion) -> Json {
    let offsets = table.iter().map(|(queue, offset)| (Key::Int(i64::from(*queue) + 1), Json::Int(*offset as i64)));
    Json::bean([("dataVersion", version.to_json()), ("offsetTable", Json::Object(offsets.collect()))])
}

impl DelayOffsets {
    /// A shard has saved this, by queue.
    pub fn saved(&mut self, now_ms: i64, delivered: &BTreeMap<u32, u64>) {
        let before = self.table.clone();
        self.table.extend(delivered);
        if self.table != before {
            self.version.next(now_ms);
            self.dirty = true;
        }
    }

    /// The file was written, or not; `false`: it is about another file.
    pub fn persisted(&mut self, token: u64, written: bool) -> bool {
        let mine = self.writing.take_if(|writing| *writing == token).is_some();
        self.dirty |= mine && !written;
        mine
    }
}

impl Owner {
    /// Writes the file if it is behind and its time has come.
    pub(super) fn write_delay_offsets(&mut self, turn: &mut Turn<'_>) {
        let delays = &self.delay_offsets;
        let due = delays.dirty && turn.now.mono_us.saturating_sub(delays.written_us) >= WRITE_EVERY_US;
        if !due || delays.writing.is_some() {
            return;
        }
        let contents = Contents::Bytes(to_json(&delays.table, delays.version).to_pretty());
        let token = self.token();
        self.delay_offsets.dirty = false;
        self.delay_offsets.written_us = turn.now.mono_us;
        self.delay_offsets.writing = Some(token);
        turn.out.push(OwnerAction::Persist { token, file: OwnerFile::DelayOffsets, contents });
    }

    /// 45.
    pub(super) fn all_delay_offsets(&self, asker: &Asker) -> Outcome {
        Outcome::Now(asker.json(&to_json(&self.delay_offsets.table, self.delay_offsets.version)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_that_of_java() {
        let mut delays = DelayOffsets::default();
        delays.saved(9, &BTreeMap::from([(0, 5), (2, 7)]));
        delays.saved(10, &BTreeMap::from([(0, 5)]));
        assert!(delays.dirty && !delays.persisted(1, true));
        let text = String::from_utf8(to_json(&delays.table, delays.version).to_vec()).unwrap();
        assert_eq!(text, r#"{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":9},"offsetTable":{1:5,3:7}}"#);
    }
}
