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

/// The names of a length are compared in full: with a length that is known in each arm, that is a word or two.
fn send_slot(name: &[u8]) -> Option<usize> {
    let is = |slot: usize| (SEND_NAMES[slot].as_bytes() == name).then_some(slot);
    match name.len() {
        4 => is(7),
        5 => is(1).or_else(|| is(12)).or_else(|| is(13)),
        7 => is(4).or_else(|| is(5)),
        8 => is(10),
        10 => is(8),
        12 => is(2),
        13 => is(0).or_else(|| is(6)),
        14 => is(9),
        17 => is(11),
        21 => is(3),
        _ => None,
    }
}

fn pull_slot(name: &[u8]) -> Option<usize> {
    let is = |slot: usize| (PULL_NAMES[slot].as_bytes() == name).then_some(slot);
    match name.len() {
        5 => is(1),
        7 => is(2).or_else(|| is(5)),
        10 => is(4).or_else(|| is(9)),
        11 => is(3),
        12 => is(6).or_else(|| is(8)),
        13 => is(0),
        14 => is(10),
        20 => is(7),
        _ => None,
    }
}

fn pop_slot(name: &[u8]) -> Option<usize> {
    let is = |slot: usize| (POP_NAMES[slot].as_bytes() == name).then_some(slot);
    match name.len() {
        3 => is(8),
        5 => is(1).or_else(|| is(10)),
        7 => is(2).or_else(|| is(9)),
        8 => is(3).or_else(|| is(6)).or_else(|| is(7)),
        9 => is(11),
        10 => is(4),
        13 => is(0).or_else(|| is(5)),
        _ => None,
    }
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
