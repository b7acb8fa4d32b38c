//! The compact (ROCKETMQ) header, from front to back.
//!
//! Role: checks each length before anything is taken; shared by `command` and `scan`. It allocates nothing. Layout: code (2),
//! language (1), version (2), opaque (4), flag (4), remark (length 4), fields (length 4), each with name (length 2) and
//! value (length 4).

use crate::codes::LanguageCode;
use crate::frame::FrameError;
use std::ops::Range;

/// The fixed fields of a compact header.
pub(crate) struct CompactFixed {
    pub(crate) code: i32,
    pub(crate) language: LanguageCode,
    pub(crate) version: i32,
    pub(crate) opaque: i32,
    pub(crate) flag: i32,
}

/// Name and value of a field.
pub(crate) type CompactEntry<'a> = (&'a [u8], &'a [u8]);

/// Reads a compact header from front to back; lengths are checked before anything is taken.
pub(crate) struct CompactReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> CompactReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    #[inline]
    pub(crate) fn fixed(&mut self) -> Result<CompactFixed, FrameError> {
        let [code_0, code_1, language, version_0, version_1, rest @ ..] = self.array::<13>()?;
        let numbers = u64::from_be_bytes(rest);
        Ok(CompactFixed {
            code: i16::from_be_bytes([code_0, code_1]).into(),
            language: LanguageCode::from_number((language as i8).into()),
            version: i16::from_be_bytes([version_0, version_1]).into(),
            opaque: (numbers >> 32) as i32,
            flag: numbers as i32,
        })
    }

    pub(crate) fn remark(&mut self) -> Result<&'a [u8], FrameError> {
        let len = i32::from_be_bytes(self.array()?);
        self.take(len)
    }

    /// A reader of the block of fields alone; a header may end before it.
    pub(crate) fn entries(&mut self) -> Result<CompactReader<'a>, FrameError> {
        let len = i32::from_be_bytes(self.array()?).max(0);
        let start = self.at;
        self.take(len)?;
        Ok(CompactReader { bytes: &self.bytes[..self.at], at: start })
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// The next field if its name is one byte: that byte, and where its value lies. `None`: ask [`Self::next_entry`].
    #[inline(always)]
    pub(crate) fn next_letter(&mut self) -> Option<(u8, Range<usize>)> {
        // Both lengths and the name, and a byte of the value.
        let word = u64::from_be_bytes(*self.bytes.get(self.at..)?.first_chunk()?);
        let start = self.at + 7;
        let end = start + (word >> 8) as u32 as usize;
        if word >> 48 != 1 || end > self.bytes.len() {
            return None;
        }
        self.at = end;
        Some(((word >> 40) as u8, start..end))
    }

    #[inline(always)]
    pub(crate) fn next_entry(&mut self) -> Result<Option<CompactEntry<'a>>, FrameError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        if let Some(((name, value), rest)) = entry(rest) {
            self.at = self.bytes.len() - rest.len();
            return Ok(Some((name, value)));
        }
        if rest.is_empty() { Ok(None) } else { self.malformed_entry() }
    }

    /// Says at which byte an entry makes no sense.
    #[cold]
    fn malformed_entry<T>(&mut self) -> Result<T, FrameError> {
        let name_len = i16::from_be_bytes(self.array()?);
        self.take(name_len.into())?;
        self.array::<4>()?;
        Err(FrameError::Compact(self.at as u32))
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let bytes = self.bytes[self.at..].first_chunk().ok_or(FrameError::Compact(self.at as u32))?;
        self.at += N;
        Ok(*bytes)
    }

    #[inline]
    fn take(&mut self, len: i32) -> Result<&'a [u8], FrameError> {
        let rest = &self.bytes[self.at..];
        let bytes = usize::try_from(len).ok().and_then(|len| rest.get(..len));
        let bytes = bytes.ok_or(FrameError::Compact(self.at as u32))?;
        self.at += bytes.len();
        Ok(bytes)
    }
}

/// The field at the front of some bytes, if it is whole, and what follows it.
#[inline(always)]
fn entry(bytes: &[u8]) -> Option<(CompactEntry<'_>, &[u8])> {
    let (name_len, rest) = bytes.split_first_chunk()?;
    let name_len = usize::try_from(i16::from_be_bytes(*name_len)).ok()?;
    let (name, rest) = rest.split_at_checked(name_len)?;
    let (value_len, rest) = rest.split_first_chunk()?;
    // A negative length is larger than any header.
    let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*value_len) as usize)?;
    Some(((name, value), rest))
}
