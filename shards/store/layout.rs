//! Where everything of a store lies: the one place that joins paths, knows file names and splits the offset space.
//!
//! Invariants: shard 0 lies at the root in Java's folders, shard `s` ≥ 1 under `shards/<s>/` with the same names; shard
//! `s` owns the physical offsets from `s` × 2^55, so that offsets of all shards keep Java's formats and never collide; log
//! files are named by the 20-digit offset of their first byte. It reads and writes nothing.

use std::fmt;
use std::path::{Path, PathBuf};

use message::PhysicalOffset;

/// How far the logs of neighbouring shards lie apart, in bytes: shard `s` starts at `s * SHARD_SPAN`.
pub const SHARD_SPAN: u64 = 1 << 55;

/// The largest number of shards of a store. All offsets stay below 2^61, far from the sign bit of Java's `long`.
pub const MAX_SHARDS: u16 = 64;

/// The file in `commitlog/` of a store with several shards. Its length is no segment's, so that a Java broker refuses to
/// load the store instead of serving shard 0 alone. Its name sorts behind all segments.
pub const GUARD_FILE: &str = "several-shards-not-for-java";

/// Digits in the name of a log or queue file.
const NAME_DIGITS: usize = 20;

/// The number of a shard: 0 to [`MAX_SHARDS`] - 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

impl ShardId {
    /// The physical offset of the first byte that this shard's log can hold.
    #[must_use]
    pub const fn base(self) -> PhysicalOffset {
        PhysicalOffset(self.0 as u64 * SHARD_SPAN)
    }

    /// The shard whose log would hold this offset; it need not exist. `None` beyond every possible shard.
    #[must_use]
    pub const fn of(offset: PhysicalOffset) -> Option<Self> {
        let shard = offset.0 / SHARD_SPAN;
        if shard < MAX_SHARDS as u64 { Some(Self(shard as u16)) } else { None }
    }

    /// As an index of a list of shards.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The paths of the whole store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreLayout {
    root: PathBuf,
}

impl StoreLayout {
    /// The layout beneath a data folder.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The data folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The file whose first byte is locked while a process has the store open.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// The mark of a store that was not closed in order.
    #[must_use]
    pub fn abort(&self) -> PathBuf {
        self.root.join("abort")
    }

    /// The folder of the metadata files, in Java's forms.
    #[must_use]
    pub fn config_dir(&self) -> PathBuf {
        self.root.join("config")
    }

    /// The folder of everything that Java does not know.
    #[must_use]
    pub fn shards_dir(&self) -> PathBuf {
        self.root.join("shards")
    }

    /// The paths of one shard.
    #[must_use]
    pub fn shard(&self, id: ShardId) -> ShardLayout {
        let dir = if id.0 == 0 { self.root.clone() } else { self.shards_dir().join(id.0.to_string()) };
        ShardLayout {
            commit_log: dir.join("commitlog"),
            consume_queue: dir.join("consumequeue"),
            index: dir.join("index"),
            checkpoint: dir.join("checkpoint"),
            dir,
        }
    }

    /// The guard against Java: see [`GUARD_FILE`].
    #[must_use]
    pub fn guard(&self) -> PathBuf {
        self.shard(ShardId(0)).commit_log.join(GUARD_FILE)
    }
}

/// The paths of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardLayout {
    /// The folder of the shard; for shard 0 the root of the store.
    pub dir: PathBuf,
    /// The folder of the log's segments.
    pub commit_log: PathBuf,
    /// The folder of the queues: `<topic>/<queueId>/<20 digits>`.
    pub consume_queue: PathBuf,
    /// The folder of the index files.
    pub index: PathBuf,
    /// The checkpoint file.
    pub checkpoint: PathBuf,
}

/// The name of a log or queue file that starts at this offset.
#[must_use]
pub fn offset_file_name(offset: u64) -> String {
    format!("{offset:020}")
}

/// The offset in the name of a log or queue file; `None` for any other name.
#[must_use]
pub fn parse_offset_file_name(name: &str) -> Option<u64> {
    (name.len() == NAME_DIGITS && name.bytes().all(|b| b.is_ascii_digit())).then(|| name.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_lie_in_folders_of_their_own() {
        let layout = StoreLayout::new(Path::new("/d"));
        assert_eq!(layout.shard(ShardId(0)).commit_log, Path::new("/d/commitlog"));
        assert_eq!(layout.shard(ShardId(3)).index, Path::new("/d/shards/3/index"));
        assert_eq!(layout.guard(), Path::new("/d/commitlog/several-shards-not-for-java"));
    }

    #[test]
    fn offsets_name_their_shard() {
        assert_eq!(ShardId::of(PhysicalOffset(SHARD_SPAN - 1)), Some(ShardId(0)));
        assert_eq!(ShardId::of(ShardId(63).base()), Some(ShardId(63)));
        assert_eq!(ShardId::of(PhysicalOffset(64 * SHARD_SPAN)), None);
        assert_eq!(ShardId::of(PhysicalOffset(u64::MAX)), None);
    }

    #[test]
    fn names_are_twenty_digits() {
        assert_eq!(offset_file_name(1_073_741_824), "00000000001073741824");
        assert_eq!(parse_offset_file_name("00000000001073741824"), Some(1_073_741_824));
        for bad in ["1", "0000000000107374182x", "+0000000000000000001", "99999999999999999999", GUARD_FILE] {
            assert_eq!(parse_offset_file_name(bad), None, "{bad}");
        }
    }
}
