//! Bodies of test messages: each names its message and follows from that name, byte for byte.

/// A message of a test: the number of its sender and its number there, both from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId {
    /// Index into the senders of the history.
    pub sender: usize,
    /// Index into the messages of that sender.
    pub number: usize,
}

/// What a body tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// Every byte is as this message was sent.
    Whole(MessageId),
    /// It names this message, but its bytes are others, or do not match the checksum of the record.
    Altered(MessageId),
    /// It names no message.
    Unknown,
}

impl Identity {
    /// The message that is named, altered or not.
    pub fn id(self) -> Option<MessageId> {
        match self {
            Identity::Whole(id) | Identity::Altered(id) => Some(id),
            Identity::Unknown => None,
        }
    }
}

/// The body of a message: its name, then 0 to 511 bytes that follow from it.
pub fn body(id: MessageId) -> Vec<u8> {
    let mut body = format!("{}/{}/", id.sender, id.number).into_bytes();
    let mut state = (id.sender as u64) << 32 ^ id.number as u64 ^ 0x9e37_79b9_7f4a_7c15;
    let mut random = || {
        // xorshift64*: any sequence will do that differs from message to message.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    for _ in 0..random() >> 58 {
        body.extend(random().to_le_bytes());
    }
    body
}

/// Whose body this is. `crc` is the checksum that its record carries, the low 31 bits of the body's CRC-32.
pub fn identify(bytes: &[u8], crc: u32) -> Identity {
    let mut words = bytes.split(|b| *b == b'/');
    let mut number = || std::str::from_utf8(words.next()?).ok()?.parse().ok();
    let (Some(sender), Some(number)) = (number(), number()) else { return Identity::Unknown };
    let id = MessageId { sender, number };
    if body(id) == bytes && crc32fast::hash(bytes) & 0x7fff_ffff == crc {
        Identity::Whole(id)
    } else {
        Identity::Altered(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crc(bytes: &[u8]) -> u32 {
        crc32fast::hash(bytes) & 0x7fff_ffff
    }

    #[test]
    fn a_body_names_its_message() {
        for sender in [0, 3, 77] {
            for number in 0..100 {
                let id = MessageId { sender, number };
                let bytes = body(id);
                assert_eq!(identify(&bytes, crc(&bytes)), Identity::Whole(id));
            }
        }
    }

    #[test]
    fn every_changed_byte_and_a_wrong_checksum_are_found() {
        let id = MessageId { sender: 1, number: 5 };
        let bytes = body(id);
        assert!(bytes.len() > 20, "a body with something to change");
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert_ne!(identify(&bytes, crc(&bytes)), Identity::Whole(id), "byte {at}");
        }
        assert_eq!(identify(&bytes, crc(&bytes) ^ 1), Identity::Altered(id));
        let cut = &bytes[..bytes.len() - 1];
        assert_eq!(identify(cut, crc(cut)), Identity::Altered(id));
        assert_eq!(identify(b"hello", crc(b"hello")), Identity::Unknown);
        assert_eq!(identify(b"", 0), Identity::Unknown);
    }
}
