//! The names of the fields that the hot path reads, and the place of each in the slots of a scan.
//!
//! Invariant: a name has one slot; every other name has none. Pure.

/// Which names a code's fields have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    SendShort,
    SendLong,
    Pull,
    Pop,
    End,
    None,
}

impl Names {
    pub(super) fn of(code: i32) -> Self {
        match code {
            310 | 320 => Self::SendShort,
            10 => Self::SendLong,
            11 | 361 => Self::Pull,
            200_050 => Self::Pop,
            37 => Self::End,
            _ => Self::None,
        }
    }

    /// The slot of a field name; sends use the order of the short names, a to n.
    #[inline]
    pub(super) fn slot(self, name: &[u8]) -> Option<usize> {
        match self {
            Self::SendShort => match name {
                [letter @ b'a'..=b'n'] => Some(usize::from(letter - b'a')),
                _ => None,
            },
            Self::SendLong => send_slot(name),
            Self::Pull => pull_slot(name),
            Self::Pop => pop_slot(name),
            Self::End => END_NAMES.iter().position(|known| known.as_bytes() == name),
            Self::None => None,
        }
    }

    /// What a field is called in errors.
    pub(super) fn long_name(self, slot: usize) -> &'static str {
        match self {
            Self::Pull => PULL_NAMES[slot],
            Self::Pop => POP_NAMES[slot],
            Self::End => END_NAMES[slot],
            Self::SendShort | Self::SendLong | Self::None => SEND_NAMES[slot],
        }
    }
}

/// Length and one letter tell the long names apart; the whole name is then compared once.
fn send_slot(name: &[u8]) -> Option<usize> {
    let slot = match (name.len(), name.first()?) {
        (13, b'p') => 0,
        (5, b't') => 1,
        (12, _) => 2,
        (21, _) => 3,
        (7, b'q') => 4,
        (7, _) => 5,
        (13, _) => 6,
        (4, _) => 7,
        (10, _) => 8,
        (14, _) => 9,
        (8, _) => 10,
        (17, _) => 11,
        (5, _) if name[1] == b'a' => 12,
        (5, _) => 13,
        _ => return None,
    };
    (SEND_NAMES[slot].as_bytes() == name).then_some(slot)
}

fn pull_slot(name: &[u8]) -> Option<usize> {
    let slot = match (name.len(), name.first()?) {
        (13, _) => 0,
        (5, _) => 1,
        (7, b'q') => 2,
        (11, _) => 3,
        (10, b'm') => 4,
        (7, _) => 5,
        (12, b'c') => 6,
        (20, _) => 7,
        (12, _) => 8,
        (10, _) => 9,
        (14, _) => 10,
        _ => return None,
    };
    (PULL_NAMES[slot].as_bytes() == name).then_some(slot)
}

fn pop_slot(name: &[u8]) -> Option<usize> {
    let slot = match (name.len(), name.first()?) {
        (13, b'c') => 0,
        (5, b't') => 1,
        (7, b'q') => 2,
        (8, b'b') => 3,
        (10, _) => 4,
        (13, _) => 5,
        (8, b'p') => 6,
        (8, _) => 7,
        (3, _) => 8,
        (7, _) => 9,
        (5, _) => 10,
        (9, _) => 11,
        _ => return None,
    };
    (POP_NAMES[slot].as_bytes() == name).then_some(slot)
}

pub(super) const SEND_NAMES: [&str; 14] = [
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
    "bname",
];

pub(super) const PULL_NAMES: [&str; 11] = [
    "consumerGroup",
    "topic",
    "queueId",
    "queueOffset",
    "maxMsgNums",
    "sysFlag",
    "commitOffset",
    "suspendTimeoutMillis",
    "subscription",
    "subVersion",
    "expressionType",
];

pub(super) const POP_NAMES: [&str; 12] = [
    "consumerGroup",
    "topic",
    "queueId",
    "bornTime",
    "maxMsgNums",
    "invisibleTime",
    "pollTime",
    "initMode",
    "exp",
    "expType",
    "order",
    "attemptId",
];

pub(super) const END_NAMES: [&str; 5] =
    ["producerGroup", "tranStateTableOffset", "commitLogOffset", "commitOrRollback", "fromTransactionCheck"];
