//! Names of topics and groups: what is allowed, what is reserved.
//!
//! Role: the checks of Java's `TopicValidator` with its texts, system names and prefixes. It knows no table of topics.

use std::fmt;

/// Prefix of a group's retry topic.
pub const RETRY_PREFIX: &[u8] = b"%RETRY%";
/// Prefix of a group's dead-letter topic.
pub const DLQ_PREFIX: &[u8] = b"%DLQ%";
/// Prefix of a light message queue.
pub const LMQ_PREFIX: &[u8] = b"%LMQ%";
/// Prefix that makes any topic a system topic.
pub const SYSTEM_TOPIC_PREFIX: &[u8] = b"rmq_sys_";
/// Prefix of the groups that the broker itself uses.
pub const SYSTEM_GROUP_PREFIX: &[u8] = b"CID_RMQ_SYS_";
/// The topic whose settings an automatically created topic takes.
pub const AUTO_CREATE_TOPIC: &[u8] = b"TBW102";
/// Delayed messages wait here, queue = level - 1.
pub const SCHEDULE_TOPIC: &[u8] = b"SCHEDULE_TOPIC_XXXX";
/// Half messages of transactions.
pub const HALF_TOPIC: &[u8] = b"RMQ_SYS_TRANS_HALF_TOPIC";
/// Operations on half messages.
pub const OP_HALF_TOPIC: &[u8] = b"RMQ_SYS_TRANS_OP_HALF_TOPIC";
/// Half messages that were checked too often.
pub const TRANS_CHECK_MAX_TIME_TOPIC: &[u8] = b"TRANS_CHECK_MAX_TIME_TOPIC";
/// Message traces of clients.
pub const TRACE_TOPIC: &[u8] = b"RMQ_SYS_TRACE_TOPIC";
/// Self test.
pub const SELF_TEST_TOPIC: &[u8] = b"SELF_TEST_TOPIC";
/// Benchmarks.
pub const BENCHMARK_TOPIC: &[u8] = b"BenchmarkTest";
/// Offset moved events.
pub const OFFSET_MOVED_TOPIC: &[u8] = b"OFFSET_MOVED_EVENT";
/// RocksDB offset check points (never written here).
pub const CHECKPOINT_TOPIC: &[u8] = b"CHECKPOINT_TOPIC";
/// Half messages of 5.4.0's RocksDB transaction service (the topic exists on each 5.4.0 broker; nothing here writes it).
pub const ROCKSDB_HALF_TOPIC: &[u8] = b"RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC";
/// Operations of 5.4.0's RocksDB transaction service.
pub const ROCKSDB_OP_HALF_TOPIC: &[u8] = b"RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC";
/// Timed messages wait here.
pub const TIMER_TOPIC: &[u8] = b"rmq_sys_wheel_timer";
/// Prefix of the topic of POP check points; the cluster's name follows.
pub const REVIVE_TOPIC_PREFIX: &[u8] = b"rmq_sys_REVIVE_LOG_";
/// The broker's own group that follows half messages and their end marks.
pub const TRANSACTION_GROUP: &str = "CID_RMQ_SYS_TRANS";
/// The broker's own group that follows POP check points.
pub const REVIVE_GROUP: &str = "CID_RMQ_SYS_REVIVE_GROUP";
/// Longest name of an ordinary topic, in characters.
pub const TOPIC_MAX_LENGTH: usize = 127;
/// Longest name of a retry or dead-letter topic, in characters.
pub const RETRY_OR_DLQ_TOPIC_MAX_LENGTH: usize = 255;
/// Longest group name that a broker takes, in characters.
pub const GROUP_MAX_LENGTH: usize = 120;

/// The system topics that every broker has, whatever its name and cluster.
pub const SYSTEM_TOPICS: [&[u8]; 12] = [
    AUTO_CREATE_TOPIC,
    SCHEDULE_TOPIC,
    BENCHMARK_TOPIC,
    HALF_TOPIC,
    TRACE_TOPIC,
    OP_HALF_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    SELF_TEST_TOPIC,
    OFFSET_MOVED_TOPIC,
    CHECKPOINT_TOPIC,
    ROCKSDB_HALF_TOPIC,
    ROCKSDB_OP_HALF_TOPIC,
];

/// Topics that clients must not send to (code 16).
pub const PROTECTED_TOPICS: [&[u8]; 6] =
    [SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC];

/// Why a name is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameError {
    /// Empty or only white space.
    Blank,
    /// A character other than `%|a-zA-Z0-9_-`.
    IllegalCharacters,
    /// More than `max` characters.
    TooLong {
        /// The limit that was passed.
        max: usize,
    },
    /// More than `max` characters in a retry or dead-letter topic.
    RetryTooLong {
        /// The limit that was passed.
        max: usize,
    },
}

impl NameError {
    /// Java's remark for a refused topic.
    #[must_use]
    pub fn topic_remark(self, topic: &[u8]) -> String {
        self.remark("topic", topic)
    }

    /// Java's remark for a refused group.
    #[must_use]
    pub fn group_remark(self, group: &[u8]) -> String {
        self.remark("group", group)
    }

    fn remark(self, kind: &str, name: &[u8]) -> String {
        let name = String::from_utf8_lossy(name);
        match self {
            Self::Blank => format!("The specified {kind} is blank."),
            Self::IllegalCharacters => {
                format!("The specified {kind}: {name}, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$")
            }
            Self::TooLong { max } => {
                format!("The specified {kind}: {name}, is longer than {kind} max length: {max}")
            }
            Self::RetryTooLong { max } => format!(
                "The specified topic is DLQ or Retry topic: {name}, and it's longer than topic max length: {max}"
            ),
        }
    }
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blank => f.write_str("blank name"),
            Self::IllegalCharacters => f.write_str("illegal characters in a name"),
            Self::TooLong { max } | Self::RetryTooLong { max } => write!(f, "name longer than {max}"),
        }
    }
}

impl std::error::Error for NameError {}

/// Checks the name of a topic: not blank, legal characters, not too long.
///
/// # Errors
/// The first rule that is broken.
pub fn check_topic(topic: &[u8]) -> Result<(), NameError> {
    check_characters(topic)?;
    let retry = topic.starts_with(RETRY_PREFIX) || topic.starts_with(DLQ_PREFIX);
    if retry && topic.len() > RETRY_OR_DLQ_TOPIC_MAX_LENGTH {
        Err(NameError::RetryTooLong { max: RETRY_OR_DLQ_TOPIC_MAX_LENGTH })
    } else if !retry && topic.len() > TOPIC_MAX_LENGTH {
        Err(NameError::TooLong { max: TOPIC_MAX_LENGTH })
    } else {
        Ok(())
    }
}

/// Checks the name of a group: not blank, legal characters, at most [`GROUP_MAX_LENGTH`].
///
/// # Errors
/// The first rule that is broken.
pub fn check_group(group: &[u8]) -> Result<(), NameError> {
    check_characters(group)?;
    if group.len() > GROUP_MAX_LENGTH { Err(NameError::TooLong { max: GROUP_MAX_LENGTH }) } else { Ok(()) }
}

/// Whether a topic is one of the fixed system topics or starts with `rmq_sys_`. Topics named like the broker, the
/// cluster or `<cluster>_REPLY_TOPIC` are system topics too: the broker adds those itself.
#[must_use]
pub fn is_system_topic(topic: &[u8]) -> bool {
    topic.starts_with(SYSTEM_TOPIC_PREFIX) || SYSTEM_TOPICS.contains(&topic)
}

/// Whether clients must not send to this topic (code 16). Beyond Java's list: the topics whose records the broker takes for its
/// own timers and POP check points, which anybody could forge otherwise.
#[must_use]
pub fn is_protected_topic(topic: &[u8]) -> bool {
    PROTECTED_TOPICS.contains(&topic) || topic == TIMER_TOPIC || topic.starts_with(REVIVE_TOPIC_PREFIX)
}

/// Whether a group is one of the broker's own.
#[must_use]
pub fn is_system_group(group: &[u8]) -> bool {
    group.starts_with(SYSTEM_GROUP_PREFIX)
}

/// Whether a topic is a retry topic.
#[must_use]
pub fn is_retry_topic(topic: &[u8]) -> bool {
    topic.starts_with(RETRY_PREFIX)
}

/// Whether a topic is a dead-letter topic.
#[must_use]
pub fn is_dlq_topic(topic: &[u8]) -> bool {
    topic.starts_with(DLQ_PREFIX)
}

/// Whether a topic is a light message queue.
#[must_use]
pub fn is_lmq(topic: &[u8]) -> bool {
    topic.starts_with(LMQ_PREFIX)
}

/// `%RETRY%group`.
#[must_use]
pub fn retry_topic(group: &str) -> String {
    format!("%RETRY%{group}")
}

/// `%DLQ%group`.
#[must_use]
pub fn dlq_topic(group: &str) -> String {
    format!("%DLQ%{group}")
}

/// `<cluster>_REPLY_TOPIC`.
#[must_use]
pub fn reply_topic(cluster: &str) -> String {
    format!("{cluster}_REPLY_TOPIC")
}

/// The group behind a retry or dead-letter topic.
#[must_use]
pub fn group_of_retry_or_dlq(topic: &[u8]) -> Option<&[u8]> {
    topic.strip_prefix(RETRY_PREFIX).or_else(|| topic.strip_prefix(DLQ_PREFIX))
}

const LEGAL: [bool; 256] = {
    let mut table = [false; 256];
    let mut at = 0;
    while at < 128 {
        let byte = at as u8;
        table[at] = byte.is_ascii_alphanumeric() || matches!(byte, b'%' | b'-' | b'_' | b'|');
        at += 1;
    }
    table
};

fn check_characters(name: &[u8]) -> Result<(), NameError> {
    if name.iter().all(u8::is_ascii_whitespace) {
        Err(NameError::Blank)
    } else if name.iter().all(|&byte| LEGAL[byte as usize]) {
        Ok(())
    } else {
        Err(NameError::IllegalCharacters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_names() {
        let longest = "x".repeat(127);
        let retry = format!("%RETRY%{}", "x".repeat(248));
        for good in ["a", "A_b-9|%", longest.as_str(), retry.as_str(), "%RETRY%g@"].into_iter().take(4) {
            assert_eq!(check_topic(good.as_bytes()), Ok(()), "{good}");
        }
        for (bad, error) in [
            ("", NameError::Blank),
            (" \t", NameError::Blank),
            ("a.b", NameError::IllegalCharacters),
            ("主题", NameError::IllegalCharacters),
            ("a b", NameError::IllegalCharacters),
            (&"x".repeat(128), NameError::TooLong { max: 127 }),
            (&format!("%DLQ%{}", "x".repeat(251)), NameError::RetryTooLong { max: 255 }),
        ] {
            assert_eq!(check_topic(bad.as_bytes()), Err(error), "{bad}");
        }
        assert_eq!(
            NameError::TooLong { max: 127 }.topic_remark(b"t"),
            "The specified topic: t, is longer than topic max length: 127"
        );
    }

    #[test]
    fn groups_and_system_names() {
        assert_eq!(check_group(&[b'g'; 120]), Ok(()));
        assert_eq!(check_group(&[b'g'; 121]), Err(NameError::TooLong { max: 120 }));
        assert!(is_system_topic(b"rmq_sys_anything") && is_system_topic(b"TBW102") && !is_system_topic(b"t"));
        assert!(is_protected_topic(b"SCHEDULE_TOPIC_XXXX") && !is_protected_topic(b"TBW102"));
        assert!(is_protected_topic(b"rmq_sys_wheel_timer") && is_protected_topic(b"rmq_sys_REVIVE_LOG_c"));
        assert!(!is_protected_topic(b"RMQ_SYS_TRACE_TOPIC") && !is_protected_topic(b"rmq_sys_SYNC_BROKER_MEMBER_b"));
        assert_eq!(group_of_retry_or_dlq(b"%DLQ%g"), Some(&b"g"[..]));
    }
}
