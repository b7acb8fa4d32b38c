//! Which core carries a shard, and the numbers of tokens.
//!
//! Role: pure arithmetic that every core must agree on. It knows no connection.

use reactor::{CoreId, Token};
use store::ShardId;

/// The core that hosts a shard.
#[must_use]
pub fn core_of(shard: ShardId, cores: u16) -> CoreId {
    CoreId(shard.0 % cores)
}

/// Who asked the driver for a completion or a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TokenKind {
    /// A shard: the shard's id in bits 32 to 47, its own token below.
    Shard = 1,
    /// The metadata owner.
    Owner = 2,
    /// The core's own timer.
    Core = 3,
    /// The name server of the process.
    NameServer = 4,
    /// The saved progress of a shard's services; the shard's id.
    Progress = 5,
}

const VALUE_BITS: u32 = 56;

/// A token of this kind; `value` is below 2^56.
#[must_use]
pub fn token(kind: TokenKind, value: u64) -> Token {
    assert!(value >> VALUE_BITS == 0, "a token's value has 56 bits");
    Token((kind as u64) << VALUE_BITS | value)
}

/// Kind and value of a token.
#[must_use]
pub fn split(token: Token) -> (TokenKind, u64) {
    let kind = match token.0 >> VALUE_BITS {
        1 => TokenKind::Shard,
        2 => TokenKind::Owner,
        3 => TokenKind::Core,
        4 => TokenKind::NameServer,
        5 => TokenKind::Progress,
        other => unreachable!("no token has the kind {other}"),
    };
    (kind, token.0 & ((1 << VALUE_BITS) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_apart_again() {
        let own = [TokenKind::Shard, TokenKind::Owner, TokenKind::Core, TokenKind::NameServer, TokenKind::Progress];
        for kind in own {
            for value in [0, 1, 7 << 32 | 0xFFFF_FFFF, (1 << 56) - 1] {
                assert_eq!(split(token(kind, value)), (kind, value));
            }
        }
    }

    #[test]
    fn shards_spread_over_the_cores() {
        let cores: Vec<u16> = (0..5).map(|shard| core_of(ShardId(shard), 2).0).collect();
        assert_eq!(cores, [0, 1, 0, 1, 0]);
    }
}
