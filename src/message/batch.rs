//! The body of a batch send (code 320): client-side records, one after another.
//!
//! Role: checks the whole body before anything of it is stored, and walks it. Each entry, big endian: total size, 0
//! (magic), 0 (CRC), flag, body length, body, properties length (2 bytes), properties. The total size counts itself and
//! must be the sum of the parts. A last property without its separator is fine.

use std::fmt;

/// Bytes of an entry without body and properties.
const ENTRY_OVERHEAD: usize = 22;

/// One message of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchEntry<'a> {
    /// The sender's own flag.
    pub flag: i32,
    /// Body.
    pub body: &'a [u8],
    /// Properties text, as sent.
    pub properties: &'a [u8],
}

/// Why a batch body is refused as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchError {
    /// There is no message in it.
    Empty,
    /// Entry number `entry` (from 0) is cut short, or its sizes do not add up.
    Sizes {
        /// Which entry.
        entry: u32,
    },
    /// The properties of entry number `entry` (from 0) are longer than 32,767 bytes.
    PropertiesTooLong {
        /// Which entry.
        entry: u32,
    },
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the batch holds no message"),
            Self::Sizes { entry } => write!(f, "sizes of message {entry} of the batch do not add up"),
            Self::PropertiesTooLong { entry } => write!(f, "properties of message {entry} of the batch are too long"),
        }
    }
}

impl std::error::Error for BatchError {}

/// A batch body of which every size was checked.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    body: &'a [u8],
    count: u32,
}

impl<'a> Batch<'a> {
    /// Checks a body.
    ///
    /// # Errors
    /// The first thing wrong with it.
    pub fn parse(body: &'a [u8]) -> Result<Self, BatchError> {
        let (mut rest, mut count) = (body, 0);
        while !rest.is_empty() {
            (_, rest) = split_entry(rest, count)?;
            count += 1;
        }
        if count == 0 { Err(BatchError::Empty) } else { Ok(Self { body, count }) }
    }

    /// Number of messages: at least 1.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The messages in their order.
    #[must_use]
    pub fn iter(&self) -> BatchIter<'a> {
        BatchIter { rest: self.body }
    }
}

impl<'a> IntoIterator for &Batch<'a> {
    type Item = BatchEntry<'a>;
    type IntoIter = BatchIter<'a>;

    fn into_iter(self) -> BatchIter<'a> {
        self.iter()
    }
}

/// Walks the messages of a checked batch.
#[derive(Clone, Debug)]
pub struct BatchIter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for BatchIter<'a> {
    type Item = BatchEntry<'a>;

    fn next(&mut self) -> Option<BatchEntry<'a>> {
        let (entry, rest) = split_entry(self.rest, 0).ok()?;
        self.rest = rest;
        Some(entry)
    }
}

/// Appends one message in the client's form.
///
/// # Errors
/// The properties are longer than 32,767 bytes, or the entry is longer than 2^31 - 1.
pub fn encode_entry(out: &mut Vec<u8>, entry: &BatchEntry<'_>) -> Result<(), BatchError> {
    let size = ENTRY_OVERHEAD + entry.body.len() + entry.properties.len();
    if entry.properties.len() > i16::MAX as usize {
        return Err(BatchError::PropertiesTooLong { entry: 0 });
    }
    let size = i32::try_from(size).map_err(|_| BatchError::Sizes { entry: 0 })?;
    out.extend_from_slice(&size.to_be_bytes());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&entry.flag.to_be_bytes());
    out.extend_from_slice(&(entry.body.len() as u32).to_be_bytes());
    out.extend_from_slice(entry.body);
    out.extend_from_slice(&(entry.properties.len() as u16).to_be_bytes());
    out.extend_from_slice(entry.properties);
    Ok(())
}

fn split_entry(bytes: &[u8], entry: u32) -> Result<(BatchEntry<'_>, &[u8]), BatchError> {
    let wrong = BatchError::Sizes { entry };
    let int = |at: usize| -> Result<usize, BatchError> {
        let raw = bytes.get(at..at + 4).ok_or(wrong)?;
        let value = i32::from_be_bytes(raw.try_into().expect("four bytes"));
        usize::try_from(value).map_err(|_| wrong)
    };
    let size = int(0)?;
    if size < ENTRY_OVERHEAD || size > bytes.len() {
        return Err(wrong);
    }
    let (whole, rest) = bytes.split_at(size);
    let flag = i32::from_be_bytes(whole[12..16].try_into().expect("four bytes"));
    let body_len = int(16)?;
    let properties_at = 20usize + body_len + 2;
    let body = whole.get(20..20 + body_len).ok_or(wrong)?;
    let length = whole.get(20 + body_len..properties_at).ok_or(wrong)?;
    let properties_len = usize::from(u16::from_be_bytes([length[0], length[1]]));
    let properties = &whole[properties_at..];
    if properties_len != properties.len() {
        return Err(wrong);
    }
    if properties_len > i16::MAX as usize {
        return Err(BatchError::PropertiesTooLong { entry });
    }
    Ok((BatchEntry { flag, body, properties }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn body(entries: &[BatchEntry<'_>]) -> Vec<u8> {
        let mut out = Vec::new();
        for entry in entries {
            encode_entry(&mut out, entry).unwrap();
        }
        out
    }

    #[test]
    fn lying_and_cut_sizes_are_refused() {
        let good = body(&[BatchEntry { flag: 0, body: b"ok", properties: b"k\x01v\x02" }]);
        assert_eq!(Batch::parse(&good).unwrap().count(), 1);
        let ints = |values: &[i32], tail: usize| {
            let mut out = good.clone();
            values.iter().for_each(|value| out.extend(value.to_be_bytes()));
            out.resize(out.len() + tail, 0);
            out
        };
        for bad in [
            ints(&[0x7fff_ffff], 30),
            ints(&[50], 10),
            ints(&[30, 0, 0, 0, 0x7fff_fff0], 10),
            ints(&[30, 0, 0, 0, -1], 10),
            ints(&[], 2),
            ints(&[-1], 30),
            ints(&[21, 0, 0, 0, 0], 1),
        ] {
            assert_eq!(Batch::parse(&bad).unwrap_err(), BatchError::Sizes { entry: 1 }, "{bad:?}");
        }
        assert_eq!(Batch::parse(b"").unwrap_err(), BatchError::Empty);
        let mut long = 22u32.wrapping_add(40000).to_be_bytes().to_vec();
        long.extend([0; 16]);
        long.extend(40000u16.to_be_bytes());
        long.resize(22 + 40000, b'x');
        assert_eq!(Batch::parse(&long).unwrap_err(), BatchError::PropertiesTooLong { entry: 0 });
    }

    proptest! {
        #[test]
        fn round_trip(entries in prop::collection::vec((any::<i32>(), prop::collection::vec(any::<u8>(), 0..50), prop::collection::vec(any::<u8>(), 0..50)), 1..10)) {
            let entries: Vec<_> = entries.iter().map(|(flag, body, properties)| BatchEntry { flag: *flag, body, properties }).collect();
            let bytes = body(&entries);
            let batch = Batch::parse(&bytes).unwrap();
            prop_assert_eq!(batch.count() as usize, entries.len());
            prop_assert_eq!(batch.iter().collect::<Vec<_>>(), entries);
            for cut in 1..bytes.len().min(40) {
                let cut = &bytes[..bytes.len() - cut];
                prop_assert!(Batch::parse(cut).is_err() || Batch::parse(cut).unwrap().count() < batch.count());
            }
        }
    }
}
