//! The number of a shard and the part of the offset space that is its own.
//!
//! Role: shard *s* owns the physical offsets from *s* × 2^55, so that offsets of all shards live in Java's formats and
//! never collide. A position in a shard is offset − base, never a modulo.

use message::PhysicalOffset;

/// Physical offsets of one shard.
pub const SHARD_SPAN: u64 = 1 << 55;
/// Most shards of a store.
pub const MAX_SHARDS: u16 = 64;

/// A unit of storage: one commit log with its queues and index. 0 to [`MAX_SHARDS`] - 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

impl ShardId {
    /// Where the shard's log starts.
    #[must_use]
    pub const fn base(self) -> PhysicalOffset {
        PhysicalOffset(self.0 as u64 * SHARD_SPAN)
    }

    /// The shard whose part of the offset space holds this offset; it may not exist. `None` beyond the last possible one.
    #[must_use]
    pub const fn of(offset: PhysicalOffset) -> Option<Self> {
        let shard = offset.0 / SHARD_SPAN;
        if shard < MAX_SHARDS as u64 { Some(Self(shard as u16)) } else { None }
    }
}

impl std::fmt::Display for ShardId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
