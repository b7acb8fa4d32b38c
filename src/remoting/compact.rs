//! The compact (ROCKETMQ) header, from front to back.
//!
//! Role: checks each length before anything is taken; shared by `command` and `scan`. It allocates nothing. Layout: code (2),
//! language (1), version (2), opaque (4), flag (4), remark (length 4), fields (length 4), each with name (length 2) and
//! value (length 4).

use crate::codes::LanguageCode;
use crate::frame::FrameError;

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
        let code = i16::from_be_bytes(self.array()?).into();
        let language = LanguageCode::from_number(i8::from_be_bytes(self.array()?).into());
        let version = i16::from_be_bytes(self.array()?).into();
        let opaque = i32::from_be_bytes(self.array()?);
        let flag = i32::from_be_bytes(self.array()?);
        Ok(CompactFixed { code, language, version, opaque, flag })
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

    #[inline]
    pub(crate) fn next_entry(&mut self) -> Result<Option<CompactEntry<'a>>, FrameError> {
        if self.is_empty() {
            return Ok(None);
        }
        let name_len = i16::from_be_bytes(self.array()?);
        let name = self.take(name_len.into())?;
        let value_len = i32::from_be_bytes(self.array()?);
        Ok(Some((name, self.take(value_len)?)))
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
