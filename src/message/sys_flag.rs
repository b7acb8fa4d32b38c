//! Bits of a message's system flag, and of a pull request's.
//!
//! Role: the names of the bits; no behaviour beyond testing them.

/// The body is compressed.
pub const COMPRESSED: i32 = 1;
/// The topic's tag filter type is MULTI_TAG.
pub const MULTI_TAGS: i32 = 1 << 1;
/// Both transaction bits.
pub const TRANSACTION_MASK: i32 = 3 << 2;
/// Transaction type: half message.
pub const TRANSACTION_PREPARED: i32 = 1 << 2;
/// Transaction type: committed message.
pub const TRANSACTION_COMMIT: i32 = 2 << 2;
/// Transaction type: rollback mark.
pub const TRANSACTION_ROLLBACK: i32 = 3 << 2;
/// The born host is an IPv6 address (20 bytes in the record instead of 8).
pub const BORN_HOST_V6: i32 = 1 << 4;
/// The store host is an IPv6 address (20 bytes in the record instead of 8).
pub const STORE_HOST_V6: i32 = 1 << 5;
/// The record holds an inner batch that clients unwrap.
pub const NEED_UNWRAP: i32 = 1 << 6;
/// The record is an inner batch.
pub const INNER_BATCH: i32 = 1 << 7;
/// Bits 8 to 10: compression type (0 and 3 zlib, 1 LZ4 frame, 2 zstd).
pub const COMPRESSION_TYPE_MASK: i32 = 7 << 8;

/// Pull request: commit the offset of the header.
pub const PULL_COMMIT_OFFSET: i32 = 1;
/// Pull request: may be held while nothing is there.
pub const PULL_SUSPEND: i32 = 1 << 1;
/// Pull request: the header carries the subscription text.
pub const PULL_SUBSCRIPTION: i32 = 1 << 2;
/// Pull request: class filter (removed from RocketMQ).
pub const PULL_CLASS_FILTER: i32 = 1 << 3;
/// Pull request: from a lite pull consumer.
pub const PULL_LITE: i32 = 1 << 4;

/// The transaction bits of a system flag: 0, [`TRANSACTION_PREPARED`], [`TRANSACTION_COMMIT`] or [`TRANSACTION_ROLLBACK`].
#[must_use]
pub const fn transaction(sys_flag: i32) -> i32 {
    sys_flag & TRANSACTION_MASK
}

/// `sys_flag` with its transaction bits replaced by `kind` (one of the `TRANSACTION_*` values, or 0).
#[must_use]
pub const fn with_transaction(sys_flag: i32, kind: i32) -> i32 {
    (sys_flag & !TRANSACTION_MASK) | (kind & TRANSACTION_MASK)
}

/// Whether a record of this flag gets a consume queue entry: prepared and rollback records do not.
#[must_use]
pub const fn is_queued(sys_flag: i32) -> bool {
    matches!(transaction(sys_flag), 0 | TRANSACTION_COMMIT)
}
