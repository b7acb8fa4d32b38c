//! Cold ranges of the store that the background brought into memory, shared by all readers of a shard.
//!
//! Role: between a fetch and the next run of the step that needed it. Bounded in bytes; the oldest goes first. A range
//! that could not be read leaves its error for the next reader, once. It checks no content: whoever hands bytes out does.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::error::ReadError;
use crate::step::ColdSource;

/// The cache.
pub(crate) struct ColdCache {
    ranges: BTreeMap<(ColdSource, u64), Result<Bytes, ReadError>>,
    /// Keys by age. May hold keys that are gone.
    order: VecDeque<(ColdSource, u64)>,
    bytes: usize,
    capacity: usize,
}

impl ColdCache {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { ranges: BTreeMap::new(), order: VecDeque::new(), bytes: 0, capacity }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The bytes from `address` on, at least `len` of them, if they are here; the error if they cannot be read.
    pub(crate) fn get(&mut self, source: ColdSource, address: u64, len: u64) -> Option<Result<Bytes, ReadError>> {
        if self.is_empty() {
            return None;
        }
        let (&key, found) = self.ranges.range(..=(source, address)).next_back()?;
        if key.0 != source {
            return None;
        }
        let skip = address - key.1;
        match found {
            Ok(bytes) => {
                let held = bytes.len() as u64;
                (skip + len <= held).then(|| Ok(bytes.slice(skip as usize..)))
            }
            Err(error) if skip == 0 => {
                let error = error.clone();
                self.ranges.remove(&key);
                Some(Err(error))
            }
            Err(_) => None,
        }
    }

    /// Keeps a range.
    pub(crate) fn insert(&mut self, source: ColdSource, address: u64, bytes: Bytes) {
        self.bytes += bytes.len();
        self.put((source, address), Ok(bytes));
        while self.bytes > self.capacity && self.order.len() > 1 {
            let key = self.order.pop_front().expect("the list is not empty");
            self.remove(key);
        }
    }

    /// Keeps the news that a range cannot be read.
    pub(crate) fn insert_error(&mut self, source: ColdSource, address: u64, error: ReadError) {
        self.put((source, address), Err(error));
    }

    /// Drops what belongs to a source.
    pub(crate) fn forget(&mut self, source: ColdSource) {
        let keys: Vec<_> = self.ranges.range((source, 0)..=(source, u64::MAX)).map(|(&key, _)| key).collect();
        for key in keys {
            self.remove(key);
        }
        self.order.retain(|key| key.0 != source);
    }

    fn put(&mut self, key: (ColdSource, u64), value: Result<Bytes, ReadError>) {
        match self.ranges.insert(key, value) {
            Some(old) => self.bytes -= old.map_or(0, |bytes| bytes.len()),
            None => self.order.push_back(key),
        }
    }

    fn remove(&mut self, key: (ColdSource, u64)) {
        if let Some(Ok(bytes)) = self.ranges.remove(&key) {
            self.bytes -= bytes.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_inside_ranges_and_stays_bounded() {
        let mut cache = ColdCache::new(250);
        cache.insert(ColdSource::Log, 1000, Bytes::from(vec![1; 100]));
        cache.insert(ColdSource::Queue(1), 0, Bytes::from(vec![2; 100]));
        assert_eq!(cache.get(ColdSource::Log, 1050, 50).unwrap().unwrap().len(), 50);
        assert!(cache.get(ColdSource::Log, 1050, 51).is_none());
        assert!(cache.get(ColdSource::Log, 999, 1).is_none());
        assert!(cache.get(ColdSource::Queue(2), 50, 1).is_none());
        cache.insert(ColdSource::Log, 5000, Bytes::from(vec![3; 100]));
        assert!(cache.get(ColdSource::Log, 1000, 1).is_none(), "the oldest went");
        cache.insert_error(ColdSource::Log, 7000, ReadError::Io("bad".into()));
        assert!(cache.get(ColdSource::Log, 7000, 10).unwrap().is_err());
        assert!(cache.get(ColdSource::Log, 7000, 10).is_none(), "an error is told once");
        cache.forget(ColdSource::Log);
        assert!(cache.get(ColdSource::Log, 5000, 1).is_none());
        assert_eq!(cache.bytes, 100);
    }
}
