//! The two offsets of a message, as distinct types.
//!
//! Role: keep commit-log positions and queue positions apart at compile time. No arithmetic beyond what both need.

use std::fmt;

/// A position in the commit log, in bytes. Global: shard *s* starts at *s* × 2^55.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhysicalOffset(pub u64);

/// A position in one queue, in messages: entry *n* of the consume queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueOffset(pub u64);

macro_rules! offset {
    ($name:ident) => {
        impl $name {
            /// The offset `count` further on. Saturates at the largest value.
            #[must_use]
            pub const fn plus(self, count: u64) -> Self {
                Self(self.0.saturating_add(count))
            }

            /// How far this offset lies beyond `earlier`; 0 when it does not.
            #[must_use]
            pub const fn since(self, earlier: Self) -> u64 {
                self.0.saturating_sub(earlier.0)
            }

            /// The offset in Java's signed form. Offsets over 2^63 - 1 exist nowhere: they are cut to it.
            #[must_use]
            pub const fn to_i64(self) -> i64 {
                if self.0 > i64::MAX as u64 { i64::MAX } else { self.0 as i64 }
            }

            /// The offset of Java's signed form; `None` when negative.
            #[must_use]
            pub const fn from_i64(value: i64) -> Option<Self> {
                if value < 0 { None } else { Some(Self(value as u64)) }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

offset!(PhysicalOffset);
offset!(QueueOffset);
