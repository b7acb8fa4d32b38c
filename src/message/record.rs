//! The commit-log record, V1 and V2, and the blank record that ends a file.
//!
//! Role: encoding a record in one pass and reading one without copies. Layout, big endian:
//!
//! ```text
//! 0  size | 4 magic | 8 body CRC | 12 queue id | 16 flag | 20 queue offset (8) | 28 physical offset (8) | 36 sys flag
//! 40 born time (8) | 48 born host (8 or 20) | store time (8) | store host (8 or 20) | reconsume times
//! prepared transaction offset (8) | body length | body | topic length (1, V2: 2) | topic | properties length (2) | properties
//! ```
//!
//! Invariants: the encoder's bytes parse back to its fields; the parser accepts only records whose inner lengths add up
//! to their size, and never panics. It does not judge offsets, names or the CRC unless asked.

use crate::properties::{MAX_PROPERTIES_BYTES, PropertiesSource};
use crate::{PhysicalOffset, QueueOffset, sys_flag};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Magic number of a record with a one-byte topic length.
pub const MAGIC_V1: u32 = 0xDAA3_20A7;
/// Magic number of a record with a two-byte topic length.
pub const MAGIC_V2: u32 = 0xDAA3_20AB;
/// Magic number of the blank record at the end of a commit-log file.
pub const MAGIC_BLANK: u32 = 0xCBD4_3194;
/// Bytes that a commit-log file always keeps for its blank record.
pub const BLANK_RECORD_BYTES: usize = 8;
/// Bytes of a V1 record between IPv4 hosts without topic, body and properties: the smallest record.
pub const MIN_RECORD_BYTES: usize = 91;
/// Topics longer than this need a V2 record.
pub const MAX_V1_TOPIC_BYTES: usize = 127;
/// Mask of the stored CRC.
pub const CRC_MASK: u32 = 0x7FFF_FFFF;

const QUEUE_OFFSET_AT: usize = 20;
const PHYSICAL_OFFSET_AT: usize = 28;
const SYS_FLAG_AT: usize = 36;
const BORN_HOST_AT: usize = 48;
/// Everything up to the body of a record between IPv6 hosts.
const MAX_HEAD_BYTES: usize = 112;

/// What a record is made of. Queue offset, physical offset and store time come later, by [`patch`].
#[derive(Clone, Copy, Debug)]
pub struct RecordFields<'a> {
    /// Queue of the topic.
    pub queue_id: i32,
    /// The sender's own flag.
    pub flag: i32,
    /// System flag; its two host bits are set by the encoder.
    pub sys_flag: i32,
    /// When the message was made, ms since 1970, by the sender's clock.
    pub born_timestamp_ms: i64,
    /// The sender's address.
    pub born_host: SocketAddr,
    /// The broker's address.
    pub store_host: SocketAddr,
    /// How often it was delivered before.
    pub reconsume_times: i32,
    /// Commit-log offset of the half record of a committed message, else 0.
    pub prepared_transaction_offset: i64,
    /// Topic, UTF-8.
    pub topic: &'a [u8],
    /// Body as sent.
    pub body: &'a [u8],
    /// Properties.
    pub properties: PropertiesSource<'a>,
}

impl RecordFields<'_> {
    /// Size of the whole record, in bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        self.head_len()
            + self.body.len()
            + self.topic_length_bytes()
            + self.topic.len()
            + 2
            + self.properties.encoded_len()
    }

    fn topic_length_bytes(&self) -> usize {
        if self.topic.len() > MAX_V1_TOPIC_BYTES { 2 } else { 1 }
    }

    /// Bytes before the body.
    fn head_len(&self) -> usize {
        88 + 12 * usize::from(self.born_host.is_ipv6()) + 12 * usize::from(self.store_host.is_ipv6())
    }

    fn stored_sys_flag(&self) -> i32 {
        let hosts = (i32::from(self.born_host.is_ipv6()) * sys_flag::BORN_HOST_V6)
            | (i32::from(self.store_host.is_ipv6()) * sys_flag::STORE_HOST_V6);
        (self.sys_flag & !(sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6)) | hosts
    }
}

/// Why fields make no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// The topic is longer than 32,767 bytes.
    TopicTooLong,
    /// The properties text is longer than 32,767 bytes.
    PropertiesTooLong,
    /// The record is longer than 2^31 - 1 bytes.
    TooLarge,
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TopicTooLong => "topic longer than 32767 bytes",
            Self::PropertiesTooLong => "properties longer than 32767 bytes",
            Self::TooLarge => "record longer than 2147483647 bytes",
        })
    }
}

impl std::error::Error for EncodeError {}

/// Appends a record with zero for queue offset, physical offset and store time; gives its size in bytes.
///
/// # Errors
/// A part is too long for its length field; nothing is appended then.
pub fn encode(out: &mut Vec<u8>, fields: &RecordFields<'_>) -> Result<usize, EncodeError> {
    let properties_len = fields.properties.encoded_len();
    let size = fields.encoded_len();
    if fields.topic.len() > i16::MAX as usize {
        return Err(EncodeError::TopicTooLong);
    }
    if properties_len > MAX_PROPERTIES_BYTES {
        return Err(EncodeError::PropertiesTooLong);
    }
    if size > i32::MAX as usize {
        return Err(EncodeError::TooLarge);
    }
    let v2 = fields.topic.len() > MAX_V1_TOPIC_BYTES;
    let mut head = Head::new();
    head.put(&(size as u32).to_be_bytes());
    head.put(&(if v2 { MAGIC_V2 } else { MAGIC_V1 }).to_be_bytes());
    head.put(&body_crc(fields.body).to_be_bytes());
    head.put(&fields.queue_id.to_be_bytes());
    head.put(&fields.flag.to_be_bytes());
    head.put(&[0; 16]);
    head.put(&fields.stored_sys_flag().to_be_bytes());
    head.put(&fields.born_timestamp_ms.to_be_bytes());
    head.put_host(fields.born_host);
    head.put(&[0; 8]);
    head.put_host(fields.store_host);
    head.put(&fields.reconsume_times.to_be_bytes());
    head.put(&fields.prepared_transaction_offset.to_be_bytes());
    head.put(&(fields.body.len() as u32).to_be_bytes());
    let start = out.len();
    out.reserve(size);
    out.extend_from_slice(head.bytes());
    out.extend_from_slice(fields.body);
    if v2 {
        out.extend_from_slice(&(fields.topic.len() as u16).to_be_bytes());
    } else {
        out.push(fields.topic.len() as u8);
    }
    out.extend_from_slice(fields.topic);
    out.extend_from_slice(&(properties_len as u16).to_be_bytes());
    fields.properties.write(out);
    assert_eq!(out.len() - start, size, "a record's size is the sum of its parts");
    Ok(size)
}

/// Sets what is known only at the append: both offsets and the store time (ms since 1970) of an encoded record.
///
/// # Panics
/// `record` does not start with a record that [`encode`] wrote.
pub fn patch(record: &mut [u8], queue_offset: QueueOffset, physical_offset: PhysicalOffset, store_timestamp_ms: i64) {
    let flags = u32_at(record, SYS_FLAG_AT) as i32;
    let store_time_at = BORN_HOST_AT + host_len(flags, sys_flag::BORN_HOST_V6);
    record[QUEUE_OFFSET_AT..QUEUE_OFFSET_AT + 8].copy_from_slice(&queue_offset.0.to_be_bytes());
    record[PHYSICAL_OFFSET_AT..PHYSICAL_OFFSET_AT + 8].copy_from_slice(&physical_offset.0.to_be_bytes());
    record[store_time_at..store_time_at + 8].copy_from_slice(&store_timestamp_ms.to_be_bytes());
}

/// The CRC of a body as it is stored.
#[must_use]
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & CRC_MASK
}

/// The eight bytes of the blank record that ends a file with `remaining` bytes left.
#[must_use]
pub fn blank_record(remaining: u32) -> [u8; BLANK_RECORD_BYTES] {
    let mut bytes = [0; BLANK_RECORD_BYTES];
    bytes[..4].copy_from_slice(&remaining.to_be_bytes());
    bytes[4..].copy_from_slice(&MAGIC_BLANK.to_be_bytes());
    bytes
}

/// The size of the record that starts here, by its first 8 bytes alone: enough to know how much to read.
///
/// # Errors
/// As [`RecordView::parse`], except that nothing behind the first 8 bytes is looked at.
pub fn peek_size(bytes: &[u8]) -> Result<u32, RecordError> {
    if bytes.len() < BLANK_RECORD_BYTES {
        return Err(RecordError::Incomplete { size: BLANK_RECORD_BYTES as u32 });
    }
    let (size, magic) = (u32_at(bytes, 0), u32_at(bytes, 4));
    match magic {
        MAGIC_V1 | MAGIC_V2 if size < MIN_RECORD_BYTES as u32 || size > i32::MAX as u32 => Err(RecordError::Sizes),
        MAGIC_V1 | MAGIC_V2 => Ok(size),
        MAGIC_BLANK => Err(RecordError::Blank { size }),
        magic => Err(RecordError::Magic(magic)),
    }
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// Not a fault: the blank record that ends a file; `size` bytes of the file are left from its start.
    Blank {
        /// Bytes to the end of the file, as written in it.
        size: u32,
    },
    /// The bytes end before the record does; `size` bytes are needed.
    Incomplete {
        /// Bytes needed from the start of the record.
        size: u32,
    },
    /// No known magic number (zero where nothing was written yet).
    Magic(u32),
    /// Inner lengths that are negative or do not add up to the size.
    Sizes,
    /// The body's CRC is not the stored one.
    Crc,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blank { size } => write!(f, "end of file, {size} bytes left"),
            Self::Incomplete { size } => write!(f, "record cut short, {size} bytes needed"),
            Self::Magic(magic) => write!(f, "magic number {magic:08x}"),
            Self::Sizes => f.write_str("sizes in the record do not add up"),
            Self::Crc => f.write_str("wrong CRC of the body"),
        }
    }
}

impl std::error::Error for RecordError {}

/// A whole record, read in place.
#[derive(Clone, Copy, Debug)]
pub struct RecordView<'a> {
    /// Exactly the record.
    bytes: &'a [u8],
    body_at: u32,
    topic_at: u32,
    properties_at: u32,
    /// Bytes of the length field of the topic.
    topic_length_bytes: u8,
}

impl<'a> RecordView<'a> {
    /// The record at the start of `bytes`, which may go on behind it. The CRC is not looked at.
    ///
    /// # Errors
    /// What is there instead of a record.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, RecordError> {
        let size = peek_size(bytes)?;
        let topic_length_bytes = if u32_at(bytes, 4) == MAGIC_V2 { 2 } else { 1 };
        let bytes = bytes.get(..size as usize).ok_or(RecordError::Incomplete { size })?;
        let flags = u32_at(bytes, SYS_FLAG_AT) as i32;
        let body_at = 72 + host_len(flags, sys_flag::BORN_HOST_V6) + host_len(flags, sys_flag::STORE_HOST_V6);
        // Three lengths, each of which must leave room for the next.
        let body_len = read_length(bytes, body_at - 4, 4)?;
        let topic_length_at = body_at + body_len;
        let topic_at = topic_length_at + topic_length_bytes;
        let topic_len = read_length(bytes, topic_length_at, topic_length_bytes)?;
        let properties_at = topic_at + topic_len + 2;
        let properties_len = read_length(bytes, topic_at + topic_len, 2)?;
        if properties_at + properties_len != bytes.len() {
            return Err(RecordError::Sizes);
        }
        Ok(Self {
            bytes,
            body_at: body_at as u32,
            topic_at: topic_at as u32,
            properties_at: properties_at as u32,
            topic_length_bytes: topic_length_bytes as u8,
        })
    }

    /// The record at the start of `bytes`, with its CRC checked.
    ///
    /// # Errors
    /// What is there instead of a good record.
    pub fn parse_checked(bytes: &'a [u8]) -> Result<Self, RecordError> {
        let record = Self::parse(bytes)?;
        if record.verify_crc() { Ok(record) } else { Err(RecordError::Crc) }
    }

    /// Whether the body has the CRC that the record says. A CRC of 0 is as good as any other.
    #[must_use]
    pub fn verify_crc(&self) -> bool {
        body_crc(self.body()) == self.body_crc()
    }

    /// The whole record.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Size of the record, in bytes.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// [`MAGIC_V1`] or [`MAGIC_V2`].
    #[must_use]
    pub fn magic(&self) -> u32 {
        u32_at(self.bytes, 4)
    }

    /// The stored CRC of the body.
    #[must_use]
    pub fn body_crc(&self) -> u32 {
        u32_at(self.bytes, 8)
    }

    /// Queue of the topic.
    #[must_use]
    pub fn queue_id(&self) -> i32 {
        u32_at(self.bytes, 12) as i32
    }

    /// The sender's own flag.
    #[must_use]
    pub fn flag(&self) -> i32 {
        u32_at(self.bytes, 16) as i32
    }

    /// Offset in its queue.
    #[must_use]
    pub fn queue_offset(&self) -> QueueOffset {
        QueueOffset(u64_at(self.bytes, QUEUE_OFFSET_AT))
    }

    /// Offset in the commit log, as the record says.
    #[must_use]
    pub fn physical_offset(&self) -> PhysicalOffset {
        PhysicalOffset(u64_at(self.bytes, PHYSICAL_OFFSET_AT))
    }

    /// System flag.
    #[must_use]
    pub fn sys_flag(&self) -> i32 {
        u32_at(self.bytes, SYS_FLAG_AT) as i32
    }

    /// When it was made, ms since 1970.
    #[must_use]
    pub fn born_timestamp_ms(&self) -> i64 {
        u64_at(self.bytes, 40) as i64
    }

    /// The sender's address.
    #[must_use]
    pub fn born_host(&self) -> SocketAddr {
        host_at(self.bytes, BORN_HOST_AT, self.sys_flag() & sys_flag::BORN_HOST_V6 != 0)
    }

    /// When it was stored, ms since 1970.
    #[must_use]
    pub fn store_timestamp_ms(&self) -> i64 {
        u64_at(self.bytes, self.store_time_at()) as i64
    }

    /// The broker's address.
    #[must_use]
    pub fn store_host(&self) -> SocketAddr {
        host_at(self.bytes, self.store_time_at() + 8, self.sys_flag() & sys_flag::STORE_HOST_V6 != 0)
    }

    /// How often it was delivered before.
    #[must_use]
    pub fn reconsume_times(&self) -> i32 {
        u32_at(self.bytes, self.body_at as usize - 16) as i32
    }

    /// Commit-log offset of the half record of a committed message, else 0.
    #[must_use]
    pub fn prepared_transaction_offset(&self) -> i64 {
        u64_at(self.bytes, self.body_at as usize - 12) as i64
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        &self.bytes[self.body_at as usize..self.topic_at as usize - usize::from(self.topic_length_bytes)]
    }

    /// The topic.
    #[must_use]
    pub fn topic(&self) -> &'a [u8] {
        &self.bytes[self.topic_at as usize..self.properties_at as usize - 2]
    }

    /// The properties text.
    #[must_use]
    pub fn properties(&self) -> &'a [u8] {
        &self.bytes[self.properties_at as usize..]
    }

    /// The fields that would encode this record again (without offsets and store time).
    #[must_use]
    pub fn fields(&self) -> RecordFields<'a> {
        RecordFields {
            queue_id: self.queue_id(),
            flag: self.flag(),
            sys_flag: self.sys_flag(),
            born_timestamp_ms: self.born_timestamp_ms(),
            born_host: self.born_host(),
            store_host: self.store_host(),
            reconsume_times: self.reconsume_times(),
            prepared_transaction_offset: self.prepared_transaction_offset(),
            topic: self.topic(),
            body: self.body(),
            properties: PropertiesSource::Text(self.properties()),
        }
    }

    fn store_time_at(&self) -> usize {
        BORN_HOST_AT + host_len(self.sys_flag(), sys_flag::BORN_HOST_V6)
    }
}

/// The part of a record before its body, built on the stack.
struct Head {
    bytes: [u8; MAX_HEAD_BYTES],
    len: usize,
}

impl Head {
    fn new() -> Self {
        Self { bytes: [0; MAX_HEAD_BYTES], len: 0 }
    }

    fn put(&mut self, part: &[u8]) {
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
    }

    fn put_host(&mut self, host: SocketAddr) {
        match host.ip() {
            IpAddr::V4(ip) => self.put(&ip.octets()),
            IpAddr::V6(ip) => self.put(&ip.octets()),
        }
        self.put(&u32::from(host.port()).to_be_bytes());
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A non-negative length of 1, 2 or 4 signed bytes at `at`.
fn read_length(bytes: &[u8], at: usize, width: usize) -> Result<usize, RecordError> {
    let raw = bytes.get(at..at + width).ok_or(RecordError::Sizes)?;
    let value = raw.iter().fold(0u32, |value, &byte| value << 8 | u32::from(byte));
    if raw[0] & 0x80 != 0 { Err(RecordError::Sizes) } else { Ok(value as usize) }
}

fn host_len(flags: i32, bit: i32) -> usize {
    if flags & bit == 0 { 8 } else { 20 }
}

fn host_at(bytes: &[u8], at: usize, v6: bool) -> SocketAddr {
    if v6 {
        let mut ip = [0; 16];
        ip.copy_from_slice(&bytes[at..at + 16]);
        SocketAddr::new(IpAddr::V6(Ipv6Addr::from(ip)), u32_at(bytes, at + 16) as u16)
    } else {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::from(u32_at(bytes, at))), u32_at(bytes, at + 4) as u16)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn host() -> impl Strategy<Value = SocketAddr> {
        (any::<bool>(), any::<u128>(), any::<u16>()).prop_map(|(v6, ip, port)| {
            let ip = if v6 { IpAddr::from(ip.to_be_bytes()) } else { IpAddr::from((ip as u32).to_be_bytes()) };
            SocketAddr::new(ip, port)
        })
    }

    fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..max)
    }

    proptest! {
        #[test]
        fn round_trip(
            numbers in (any::<i32>(), any::<i32>(), any::<i32>(), any::<i64>(), any::<i32>(), any::<i64>()),
            hosts in (host(), host()),
            texts in (bytes(300), bytes(100), bytes(60)),
            places in (any::<u64>(), any::<u64>(), any::<i64>()),
            cut in 1usize..80,
        ) {
            let fields = RecordFields {
                queue_id: numbers.0, flag: numbers.1, sys_flag: numbers.2, born_timestamp_ms: numbers.3,
                born_host: hosts.0, store_host: hosts.1, reconsume_times: numbers.4, prepared_transaction_offset: numbers.5,
                topic: &texts.0, body: &texts.1, properties: PropertiesSource::Text(&texts.2),
            };
            let mut out = b"before".to_vec();
            prop_assert_eq!(encode(&mut out, &fields), Ok(fields.encoded_len()));
            let mut record = out.split_off(6);
            prop_assert_eq!(record.len(), fields.encoded_len());
            patch(&mut record, QueueOffset(places.0), PhysicalOffset(places.1), places.2);
            let size = record.len();
            prop_assert_eq!(RecordView::parse(&record[..size - cut.min(size)]).is_err(), true);
            record.extend_from_slice(b"the next record");
            let view = RecordView::parse_checked(&record).unwrap();
            prop_assert_eq!(view.bytes(), &record[..size]);
            prop_assert_eq!((view.queue_offset().0, view.physical_offset().0, view.store_timestamp_ms()), places);
            let read = view.fields();
            prop_assert_eq!((read.queue_id, read.flag, read.born_timestamp_ms), (numbers.0, numbers.1, numbers.3));
            prop_assert_eq!((read.reconsume_times, read.prepared_transaction_offset), (numbers.4, numbers.5));
            prop_assert_eq!(read.sys_flag & !0x30, numbers.2 & !0x30);
            prop_assert_eq!((read.born_host, read.store_host), hosts);
            prop_assert_eq!((view.topic(), view.body(), view.properties()), (&*texts.0, &*texts.1, &*texts.2));
            prop_assert_eq!(view.magic(), if texts.0.len() > 127 { MAGIC_V2 } else { MAGIC_V1 });
        }
    }

    fn small<'a>(body: &'a [u8], topic: &'a [u8], properties: &'a [u8]) -> RecordFields<'a> {
        RecordFields {
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp_ms: 0,
            born_host: "127.0.0.1:1".parse().unwrap(),
            store_host: "127.0.0.1:2".parse().unwrap(),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            topic,
            body,
            properties: PropertiesSource::Text(properties),
        }
    }

    #[test]
    fn limits_and_ends() {
        let long = vec![b'x'; 32_768];
        let mut out = Vec::new();
        assert_eq!(encode(&mut out, &small(b"", b"t", &long)), Err(EncodeError::PropertiesTooLong));
        assert_eq!(encode(&mut out, &small(b"", &long, b"")), Err(EncodeError::TopicTooLong));
        assert!(out.is_empty());
        assert_eq!(encode(&mut out, &small(b"", b"", b"")), Ok(MIN_RECORD_BYTES));
        assert_eq!(RecordView::parse(&blank_record(77)).unwrap_err(), RecordError::Blank { size: 77 });
        assert_eq!(RecordView::parse(&[0; 100]).unwrap_err(), RecordError::Magic(0));
        assert_eq!(RecordView::parse(&[0; 7]).unwrap_err(), RecordError::Incomplete { size: 8 });
        assert_eq!(RecordView::parse(&out[..50]).unwrap_err(), RecordError::Incomplete { size: 91 });
    }

    #[test]
    fn a_body_whose_crc_is_zero_is_good() {
        // Four bytes can bring any CRC to zero.
        let body = [0x9D, 0x0A, 0xD9, 0x6D];
        assert_eq!(body_crc(&body), 0);
        let mut out = Vec::new();
        encode(&mut out, &small(&body, b"t", b"")).unwrap();
        assert!(RecordView::parse_checked(&out).is_ok());
        out[90] ^= 1;
        assert_eq!(RecordView::parse_checked(&out).unwrap_err(), RecordError::Crc);
    }
}
