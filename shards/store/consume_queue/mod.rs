//! Consume queues: for each queue of a topic, where its messages lie in the log.
//!
//! Role: bounds and tails in memory (`table`), Java's files behind a bounded number of descriptors (`files`), what was
//! read of them lately (`windows`), batches of writes and syncs for the background (`writer`). It reads no record.

mod entry;
mod files;
mod table;
mod windows;
mod writer;

pub(crate) use entry::{ENTRY_BYTES, Entry};
pub(crate) use files::{EntryReader, FileCache, QueueFiles, is_file_name, read_entries};
pub(crate) use table::{QueueTable, Slot};
pub(crate) use windows::EntryWindows;
pub(crate) use writer::{QueueSync, SyncItem, WriteBatch, WrittenBatch, write_now};
