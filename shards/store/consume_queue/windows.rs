//! Entries of queue files that were read lately, in windows of a fixed size.
//!
//! Role: readers that go through a queue, or several groups one behind the other, ask the file once for each window instead
//! of once for each pull. Invariants: only whole windows that lie in the files are kept (what is in a file never changes);
//! bounded, the oldest goes first. It reads no file.

use std::collections::VecDeque;

use foldhash::HashMap;

use super::entry::Entry;
use crate::limits;

/// A window: number of its queue, and its first entry.
type Key = (u64, u64);

/// The windows of a shard.
#[derive(Default)]
pub(crate) struct EntryWindows {
    windows: HashMap<Key, Box<[Entry]>>,
    /// By age. Holds each key once; it may be gone.
    order: VecDeque<Key>,
}

/// The window that holds an entry, as (first, end): windows are counted from the start of each file, so that none lies in
/// two of them.
pub(crate) fn window_of(index: u64, entries_per_file: u64) -> (u64, u64) {
    let file_first = index / entries_per_file * entries_per_file;
    let first = index - (index - file_first) % limits::ENTRY_WINDOW;
    (first, (first + limits::ENTRY_WINDOW).min(file_first + entries_per_file))
}

impl EntryWindows {
    /// Entries of a queue from `from` on, in its window `first`: at most `max`.
    pub(crate) fn get(&self, uid: u64, first: u64, from: u64, max: usize) -> Option<&[Entry]> {
        let window = self.windows.get(&(uid, first))?;
        let entries = window.get((from - first) as usize..)?;
        Some(&entries[..entries.len().min(max)])
    }

    /// Keeps a window.
    pub(crate) fn insert(&mut self, uid: u64, first: u64, entries: Box<[Entry]>) {
        while self.order.len() >= limits::ENTRY_WINDOWS
            && let Some(oldest) = self.order.pop_front()
        {
            self.windows.remove(&oldest);
        }
        if self.windows.insert((uid, first), entries).is_none() {
            self.order.push_back((uid, first));
        }
    }

    /// Drops the windows of a queue.
    pub(crate) fn forget(&mut self, uid: u64) {
        self.windows.retain(|&(of, _), _| of != uid);
        self.order.retain(|&(of, _)| of != uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_end_with_their_file() {
        let window = limits::ENTRY_WINDOW;
        assert_eq!(window_of(0, 1000), (0, window));
        assert_eq!(window_of(window, 1000), (window, 2 * window));
        assert_eq!(window_of(999, 1000), (999 / window * window, 1000));
        assert_eq!(window_of(1000, 1000), (1000, 1000 + window));
        assert_eq!(window_of(1000 + window + 3, 1000), (1000 + window, 1000 + 2 * window));
        assert_eq!(window_of(7, 5), (5, 10));
    }

    #[test]
    fn gives_what_is_asked_and_stays_bounded() {
        let mut windows = EntryWindows::default();
        let entry = |offset| Entry { offset, size: 1, tag: 0 };
        windows.insert(1, 256, (0..4).map(entry).collect());
        assert_eq!(windows.get(1, 256, 257, 2).unwrap(), [entry(1), entry(2)]);
        assert_eq!(windows.get(1, 256, 259, 9).unwrap(), [entry(3)]);
        assert!(windows.get(2, 256, 257, 2).is_none() && windows.get(1, 0, 257, 2).is_none());
        for uid in 10..10 + 2 * limits::ENTRY_WINDOWS as u64 {
            windows.insert(uid, 0, Box::new([entry(uid)]));
            assert!(windows.windows.len() <= limits::ENTRY_WINDOWS);
            assert_eq!(windows.windows.len(), windows.order.len());
        }
        assert!(windows.get(1, 256, 257, 1).is_none(), "the oldest went");
        windows.forget(10 + 2 * limits::ENTRY_WINDOWS as u64 - 1);
        assert_eq!(windows.order.len(), limits::ENTRY_WINDOWS - 1);
    }
}
