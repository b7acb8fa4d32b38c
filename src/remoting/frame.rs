//! The outer form of a frame: total length, serialize type, header length.
//!
//! Role: says where a frame ends and which of its bytes are header and body, or that it cannot be trusted. Layout, big
//! endian: 4 bytes total length (of everything behind them), 1 byte serialize type, 3 bytes header length, header, body.
//! In this crate "frame" always means the whole thing, its length included.

use thiserror::Error;

/// Bytes of the total length.
pub const LENGTH_BYTES: usize = 4;
/// Bytes before the header.
pub const PREFIX_BYTES: usize = 8;
/// Largest total length, in bytes (Java's default of `com.rocketmq.remoting.frameMaxLength`).
pub const MAX_FRAME_BYTES: u32 = 16_777_216;
/// Largest header length that three bytes can say.
pub const MAX_HEADER_BYTES: u32 = 0x00FF_FFFF;

/// The form of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SerializeType {
    /// JSON text.
    Json = 0,
    /// The compact binary form that Java calls ROCKETMQ.
    Compact = 1,
}

impl SerializeType {
    /// The type of its byte.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Json),
            1 => Some(Self::Compact),
            _ => None,
        }
    }

    /// Java's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Json => "JSON",
            Self::Compact => "ROCKETMQ",
        }
    }
}

/// Why a frame cannot be trusted. The connection is closed; no answer is possible.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    /// The total length leaves no room for the header's length.
    #[error("frame of {0} bytes is too short")]
    TooShort(u32),
    /// The total length is over [`MAX_FRAME_BYTES`] (or negative).
    #[error("frame of {0} bytes is too long")]
    TooLong(u32),
    /// The header's length is more than the frame holds.
    #[error("header of {header} bytes in a frame of {frame} bytes")]
    HeaderLength {
        /// Header length, in bytes.
        header: u32,
        /// Total length, in bytes.
        frame: u32,
    },
    /// Neither JSON nor compact.
    #[error("unknown serialize type {0}")]
    SerializeType(u8),
    /// The header is no JSON object of header fields; the byte where it stops making sense.
    #[error("malformed JSON header at byte {0}")]
    Json(u32),
    /// The compact header's inner lengths are negative or do not fit.
    #[error("malformed compact header at byte {0}")]
    Compact(u32),
}

/// A frame taken apart.
#[derive(Clone, Copy, Debug)]
pub struct FrameParts<'a> {
    /// Form of the header.
    pub serialize_type: SerializeType,
    /// Header bytes.
    pub header: &'a [u8],
    /// Body bytes; empty when there is none.
    pub body: &'a [u8],
}

/// Length of the whole frame (4 bytes of length included) that starts with these bytes; `None` when fewer than 4 are there.
///
/// # Errors
/// The length is out of range.
pub fn frame_len(bytes: &[u8]) -> Result<Option<usize>, FrameError> {
    let Some(length) = bytes.first_chunk() else { return Ok(None) };
    let total = u32::from_be_bytes(*length);
    if total < 4 {
        Err(FrameError::TooShort(total))
    } else if total > MAX_FRAME_BYTES {
        Err(FrameError::TooLong(total))
    } else {
        Ok(Some(LENGTH_BYTES + total as usize))
    }
}

/// Takes a whole frame apart.
///
/// # Errors
/// The frame cannot be trusted: its length is not that of `frame`, or its header does not fit, or its type is unknown.
pub fn split(frame: &[u8]) -> Result<FrameParts<'_>, FrameError> {
    let len = frame_len(frame)?.unwrap_or(usize::MAX);
    if len != frame.len() {
        return Err(FrameError::TooShort(frame.len() as u32));
    }
    let (prefix, rest) = frame.split_first_chunk::<PREFIX_BYTES>().ok_or(FrameError::TooShort(frame.len() as u32))?;
    let serialize_type = SerializeType::from_byte(prefix[4]).ok_or(FrameError::SerializeType(prefix[4]))?;
    let header_len = u32::from_be_bytes([0, prefix[5], prefix[6], prefix[7]]);
    let parts = rest.split_at_checked(header_len as usize);
    let (header, body) =
        parts.ok_or(FrameError::HeaderLength { header: header_len, frame: len as u32 - LENGTH_BYTES as u32 })?;
    Ok(FrameParts { serialize_type, header, body })
}

/// Begins a frame at the end of `out`; give the result to [`finish`].
#[must_use]
pub fn begin(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX_BYTES]);
    start
}

/// Ends the header of a frame that [`begin`] began: sets both lengths. `body_len` bytes of body must follow it, in `out`
/// or from elsewhere.
///
/// # Panics
/// The header is longer than [`MAX_HEADER_BYTES`] or the frame than 2^31 - 1 bytes: callers bound both.
pub fn finish(out: &mut [u8], start: usize, serialize_type: SerializeType, body_len: usize) {
    let header_len = out.len() - start - PREFIX_BYTES;
    assert!(header_len <= MAX_HEADER_BYTES as usize, "a header fits its 24-bit length");
    let total = i32::try_from(4 + header_len + body_len).expect("a frame is shorter than 2 GiB");
    out[start..start + 4].copy_from_slice(&total.to_be_bytes());
    let word = u32::from(serialize_type as u8) << 24 | header_len as u32;
    out[start + 4..start + PREFIX_BYTES].copy_from_slice(&word.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(total: u32, word: u32, rest: &[u8]) -> Vec<u8> {
        [&total.to_be_bytes()[..], &word.to_be_bytes(), rest].concat()
    }

    #[test]
    fn lengths() {
        assert_eq!(frame_len(&[0, 0, 0]), Ok(None));
        for short in [0u32, 1, 3] {
            assert_eq!(frame_len(&short.to_be_bytes()), Err(FrameError::TooShort(short)));
        }
        for long in [MAX_FRAME_BYTES + 1, 0x7fff_ffff, 0xffff_ffff] {
            assert_eq!(frame_len(&long.to_be_bytes()), Err(FrameError::TooLong(long)));
        }
        assert_eq!(frame_len(&MAX_FRAME_BYTES.to_be_bytes()), Ok(Some(MAX_FRAME_BYTES as usize + 4)));
    }

    #[test]
    fn parts() {
        let frame = raw(9, 2, b"{}abc");
        let parts = split(&frame).unwrap();
        assert_eq!((parts.header, parts.body), (&b"{}"[..], &b"abc"[..]));
        assert_eq!(split(&raw(9, 6, b"{}abc")).unwrap_err(), FrameError::HeaderLength { header: 6, frame: 9 });
        assert_eq!(split(&raw(9, 2 << 24, b"{}abc")).unwrap_err(), FrameError::SerializeType(2));
        assert_eq!(split(&raw(10, 2, b"{}abc")).unwrap_err(), FrameError::TooShort(13));
        assert!(split(&raw(4, 0, b"")).is_ok());
    }
}
