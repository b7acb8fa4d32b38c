//! Message ids: where a record lies (offset message id), and the client's unique id.
//!
//! Role: both ids in text form, upper-case hexadecimal. An offset message id is store host address (4 or 16 bytes), port
//! (4) and commit-log offset (8): 32 or 56 characters. A unique id is address (4 or 16), process (2), a salt (4), ms since
//! the start of the month (4) and a counter (2): 32 or 56 characters too. Made without allocation.

use crate::PhysicalOffset;
use crate::words::ONES;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use wide::u8x16;

/// Longest id, in characters.
pub const MAX_ID_LENGTH: usize = 56;

/// An id in text form, on the stack.
#[derive(Clone, Copy)]
pub struct IdText {
    text: [u8; MAX_ID_LENGTH],
    len: u8,
}

impl IdText {
    fn new() -> Self {
        Self { text: [0; MAX_ID_LENGTH], len: 0 }
    }

    fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let at = usize::from(self.len);
            self.text[at] = HEX[usize::from(byte >> 4)];
            self.text[at + 1] = HEX[usize::from(byte & 15)];
            self.len += 2;
        }
    }

    /// The same for eight bytes at once, the highest first.
    #[inline]
    fn push_u64(&mut self, value: u64) {
        let at = usize::from(self.len);
        self.text[at..at + 16].copy_from_slice(&hex16(value));
        self.len += 16;
    }

    fn push_ip(&mut self, ip: IpAddr) {
        match ip {
            IpAddr::V4(ip) => self.push(&ip.octets()),
            IpAddr::V6(ip) => self.push(&ip.octets()),
        }
    }

    /// The text: ASCII.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.text[..usize::from(self.len)]
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).expect("hexadecimal digits are ASCII")
    }
}

impl fmt::Display for IdText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for IdText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a record lies: a broker and an offset in its commit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetMessageId {
    /// The record's store host.
    pub store_host: SocketAddr,
    /// The record's commit-log offset.
    pub offset: PhysicalOffset,
}

impl OffsetMessageId {
    /// The id as text: 32 characters (IPv4) or 56 (IPv6).
    #[must_use]
    pub fn text(&self) -> IdText {
        OffsetIdPrefix::new(self.store_host).id(self.offset)
    }

    /// Reads an id; `None` when it is none. Lower-case digits are read too.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut bytes = [0u8; MAX_ID_LENGTH / 2];
        let bytes = bytes.get_mut(..text.len() / 2)?;
        let ip_len = match text.len() {
            32 => 4,
            56 => 16,
            _ => return None,
        };
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        let ip = match ip_len {
            4 => IpAddr::from(<[u8; 4]>::try_from(&bytes[..4]).expect("four bytes")),
            _ => IpAddr::from(<[u8; 16]>::try_from(&bytes[..16]).expect("sixteen bytes")),
        };
        let port = u32::from_be_bytes(bytes[ip_len..ip_len + 4].try_into().expect("four bytes"));
        let offset = u64::from_be_bytes(bytes[ip_len + 4..].try_into().expect("eight bytes"));
        Some(Self { store_host: SocketAddr::new(ip, u16::try_from(port).ok()?), offset: PhysicalOffset(offset) })
    }
}

/// The constant first part of a broker's offset message ids.
#[derive(Clone, Copy, Debug)]
pub struct OffsetIdPrefix(IdText);

impl OffsetIdPrefix {
    /// The prefix of a store host.
    #[must_use]
    pub fn new(store_host: SocketAddr) -> Self {
        let mut id = IdText::new();
        id.push_ip(store_host.ip());
        id.push(&u32::from(store_host.port()).to_be_bytes());
        Self(id)
    }

    /// The text of it, which [`hex16`] of an offset completes: ASCII, 16 bytes (IPv4) or 40 (IPv6).
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// The id of a record at `offset`.
    #[must_use]
    pub fn id(&self, offset: PhysicalOffset) -> IdText {
        let mut id = self.0;
        id.push_u64(offset.0);
        id
    }
}

/// Makes unique ids for messages that come without one, in the form of the Java client.
#[derive(Clone, Debug)]
pub struct UniqueIdMaker {
    prefix: IdText,
    utc_offset_ms: i64,
    /// Start of the month that `month_end_ms` ends, ms since 1970.
    month_start_ms: i64,
    month_end_ms: i64,
    counter: u16,
}

impl UniqueIdMaker {
    /// A maker for this address and process. `salt` tells makers of one process apart; `utc_offset_ms` is the local
    /// time's distance from UTC (tools read the month by local time).
    #[must_use]
    pub fn new(ip: IpAddr, process_id: u32, salt: u32, utc_offset_ms: i64) -> Self {
        let mut prefix = IdText::new();
        prefix.push_ip(ip);
        prefix.push(&(process_id as u16).to_be_bytes());
        prefix.push(&salt.to_be_bytes());
        Self { prefix, utc_offset_ms, month_start_ms: 0, month_end_ms: 0, counter: 0 }
    }

    /// The next id. `now_ms`: ms since 1970. Ids repeat only after 65,536 within one ms.
    pub fn next_id(&mut self, now_ms: i64) -> IdText {
        if now_ms >= self.month_end_ms || now_ms < self.month_start_ms {
            let local_day = now_ms.saturating_add(self.utc_offset_ms).div_euclid(DAY_MS);
            let (start_day, end_day) = month_of(local_day);
            self.month_start_ms = start_day.saturating_mul(DAY_MS).saturating_sub(self.utc_offset_ms);
            self.month_end_ms = end_day.saturating_mul(DAY_MS).saturating_sub(self.utc_offset_ms);
        }
        let mut id = self.prefix;
        id.push(&(now_ms.wrapping_sub(self.month_start_ms) as u32).to_be_bytes());
        id.push(&self.counter.to_be_bytes());
        self.counter = self.counter.wrapping_add(1);
        id
    }
}

/// The 16 hexadecimal digits of a number, the highest first: ASCII, upper case.
#[must_use]
#[inline]
pub fn hex16(value: u64) -> [u8; 16] {
    let bytes = value.swap_bytes();
    let half = |halves: u64| {
        let mut wide = [0; 16];
        wide[..8].copy_from_slice(&(halves & (ONES * 15)).to_le_bytes());
        u8x16::new(wide)
    };
    let digits = u8x16::unpack_low(half(bytes >> 4), half(bytes));
    let letters = digits.max(u8x16::splat(10)).simd_eq(digits);
    (digits + u8x16::splat(b'0') + (letters & u8x16::splat(b'A' - b'0' - 10))).to_array()
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";
const DAY_MS: i64 = 86_400_000;

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

/// First day of the month of a day, and of the next month; days since 1970 in the Gregorian calendar.
fn month_of(day: i64) -> (i64, i64) {
    let day = day.clamp(-100_000_000, 100_000_000);
    let shifted = day + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153; // 0 = March
    let start = day - (day_of_year - (153 * month + 2) / 5);
    let year = year_of_era + era * 400 + i64::from(month >= 10);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = [31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 31, 28 + i64::from(leap)][month as usize];
    (start, start + length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sixteen_digits_at_once() {
        for value in [0, 1, 0x0123_4567_89AB_CDEF, 0xFEDC_BA98_7654_3210, u64::MAX, 0x00A0_0F09_9F0A_A0F0] {
            assert_eq!(std::str::from_utf8(&hex16(value)).unwrap(), format!("{value:016X}"));
        }
    }

    #[test]
    fn as_the_java_broker_writes_it() {
        let id = OffsetMessageId { store_host: "127.0.0.1:21011".parse().unwrap(), offset: PhysicalOffset(0x10A) };
        assert_eq!(id.text().as_str(), "7F00000100005213000000000000010A");
        assert_eq!(OffsetMessageId::parse(b"7f00000100005213000000000000010a"), Some(id));
        for bad in [&b""[..], b"7F", &[b'0'; 33], &[b'g'; 32], &[b'f'; 32], &[b'0'; 58], "é".repeat(16).as_bytes()] {
            assert_eq!(OffsetMessageId::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn unique_ids_count_from_the_start_of_the_month() {
        let mut maker = UniqueIdMaker::new("127.0.0.1".parse().unwrap(), 0x1_2345, 0xAABB_CCDD, 0);
        // 2026-11-30 14:05:00 UTC
        let now = 1_796_047_500_000;
        let since = now - 1_793_491_200_000i64; // 2026-11-01
        let first = maker.next_id(now);
        assert_eq!(first.as_str(), format!("7F0000012345AABBCCDD{since:08X}0000"));
        assert_eq!(maker.next_id(now + 1).as_str(), format!("7F0000012345AABBCCDD{:08X}0001", since + 1));
        // The month turns in local time.
        let mut east = UniqueIdMaker::new("::1".parse().unwrap(), 1, 2, 8 * 3_600_000);
        let december_ms = 1_796_083_200_000i64 - 8 * 3_600_000;
        assert_eq!(&east.next_id(december_ms).as_str()[44..52], "00000000");
        assert_eq!(east.next_id(december_ms - 1).as_bytes().len(), 56);
    }

    #[test]
    fn months() {
        assert_eq!(month_of(0), (0, 31));
        assert_eq!(month_of(31 + 28), (31 + 28, 31 + 28 + 31));
        assert_eq!(month_of(11_016), (10_988, 11_017)); // 2000-02-29
        assert_eq!(month_of(-1), (-31, 0));
    }

    proptest! {
        #[test]
        fn round_trip(v6 in any::<bool>(), ip in any::<u128>(), port in any::<u16>(), offset in any::<u64>()) {
            let ip = if v6 { IpAddr::from(ip.to_be_bytes()) } else { IpAddr::from((ip as u32).to_be_bytes()) };
            let id = OffsetMessageId { store_host: SocketAddr::new(ip, port), offset: PhysicalOffset(offset) };
            prop_assert_eq!(OffsetMessageId::parse(id.text().as_bytes()), Some(id));
            let prefix = OffsetIdPrefix::new(id.store_host);
            prop_assert!([prefix.as_bytes(), &hex16(id.offset.0)].concat() == id.text().as_bytes());
        }

        #[test]
        fn each_day_lies_in_its_month(day in -800_000i64..800_000) {
            let (start, end) = month_of(day);
            prop_assert!(start <= day && day < end && (28..=31).contains(&(end - start)));
            prop_assert_eq!(month_of(start), (start, end));
            prop_assert_eq!(month_of(end - 1), (start, end));
            prop_assert_eq!(month_of(end).0, end);
        }
    }
}
