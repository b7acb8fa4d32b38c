//! A byte stream cut into frames: a length of 4 bytes, big endian, that does not count itself, and as many bytes.
//!
//! Whole frames are given straight out of the receive buffer; only what is cut by its end, or may not be given yet, is
//! copied. Memory grows with the bytes that arrived, never with a length that was only claimed.
//! Invariant: `bytes[..start]` was given, `bytes[start..]` was not. It knows nothing of RocketMQ.

use crate::service::CloseReason;

/// Bytes of the length.
pub const PREFIX_BYTES: usize = 4;

/// An emptied buffer up to this size stays with its connection; a larger one is freed.
const KEPT_BYTES: usize = 2048;

/// A TLS record of the kind that opens a connection begins with this byte. As the first byte of a length it would mean
/// more than 350 MB, which no frame has.
const TLS_HANDSHAKE: u8 = 0x16;

/// The length of the frame at the beginning of `bytes`, prefix included; `None` while the prefix is not whole.
/// Errors: it cannot be a frame.
pub fn frame_len(bytes: &[u8], max_frame_bytes: usize) -> Result<Option<usize>, CloseReason> {
    if bytes.first() == Some(&TLS_HANDSHAKE) {
        return Err(CloseReason::Tls);
    }
    let Some(prefix) = bytes.first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
    let len = usize::try_from(i32::from_be_bytes(*prefix)).map_err(|_| CloseReason::BadLength)?;
    if len < 4 {
        return Err(CloseReason::BadLength);
    }
    if len + PREFIX_BYTES > max_frame_bytes {
        return Err(CloseReason::FrameTooLong);
    }
    Ok(Some(len + PREFIX_BYTES))
}

/// What of a connection's input was not given yet.
#[derive(Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    start: usize,
}

impl Input {
    /// The next whole frame, from what was kept and then from `data`, which is advanced past what was used.
    /// Errors: there is no frame, and the stream cannot be trusted any more.
    pub fn next<'s, 'd: 's>(
        &'s mut self,
        data: &mut &'d [u8],
        max_frame_bytes: usize,
    ) -> Result<Option<&'s [u8]>, CloseReason> {
        while self.start < self.bytes.len() {
            let have = self.bytes.len() - self.start;
            let whole = frame_len(&self.bytes[self.start..], max_frame_bytes)?;
            let want = whole.unwrap_or(PREFIX_BYTES);
            if whole.is_some() && have >= want {
                self.start += want;
                return Ok(Some(&self.bytes[self.start - want..self.start]));
            }
            if data.is_empty() {
                return Ok(None);
            }
            let (more, rest) = data.split_at(data.len().min(want - have));
            self.keep(more);
            *data = rest;
        }
        self.reset();
        match frame_len(data, max_frame_bytes)? {
            Some(len) if data.len() >= len => {
                let (frame, rest) = data.split_at(len);
                *data = rest;
                Ok(Some(frame))
            }
            _ => Ok(None),
        }
    }

    /// Keeps bytes that could not be given yet.
    pub fn keep(&mut self, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        if self.start > 0 && self.start * 2 >= self.bytes.len() {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(data);
    }

    /// Whether a whole frame, or what cannot be one, is at the beginning of what was kept.
    pub fn has_frame(&self, max_frame_bytes: usize) -> bool {
        match frame_len(&self.bytes[self.start..], max_frame_bytes) {
            Ok(Some(len)) => self.len() >= len,
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// Bytes that were not given.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Whether everything was given.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory that it holds, in bytes.
    pub fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    /// Frees the memory if nothing is in it.
    pub fn trim(&mut self) {
        if self.is_empty() {
            *self = Input::default();
        }
    }

    fn reset(&mut self) {
        self.start = 0;
        self.bytes.clear();
        if self.bytes.capacity() > KEPT_BYTES {
            self.bytes = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX: usize = 1 << 20;

    fn frame(body: &[u8]) -> Vec<u8> {
        let mut frame = (body.len() as u32).to_be_bytes().to_vec();
        frame.extend_from_slice(body);
        frame
    }

    fn drain(input: &mut Input, mut data: &[u8]) -> Result<Vec<Vec<u8>>, CloseReason> {
        let mut frames = Vec::new();
        while let Some(frame) = input.next(&mut data, MAX)? {
            frames.push(frame.to_vec());
        }
        input.keep(data);
        Ok(frames)
    }

    proptest! {
        #[test]
        fn any_cutting_gives_the_same_frames(
            sizes in prop::collection::vec(4usize..3000, 0..40),
            cuts in prop::collection::vec(1usize..5000, 1..60),
            blocked in prop::collection::vec(any::<bool>(), 60),
        ) {
            let frames: Vec<Vec<u8>> = sizes.iter().enumerate().map(|(n, size)| frame(&vec![n as u8; *size])).collect();
            let stream = frames.concat();
            let (mut input, mut got, mut rest) = (Input::default(), Vec::new(), &stream[..]);
            for (cut, blocked) in cuts.iter().cycle().zip(blocked.iter().cycle()) {
                if rest.is_empty() {
                    break;
                }
                let (piece, later) = rest.split_at(rest.len().min(*cut));
                rest = later;
                if *blocked {
                    input.keep(piece);
                } else {
                    got.extend(drain(&mut input, piece).unwrap());
                }
            }
            got.extend(drain(&mut input, &[]).unwrap());
            prop_assert_eq!(got, frames);
            prop_assert!(input.is_empty());
        }
    }

    #[test]
    fn what_cannot_be_a_frame_is_named() {
        let verdict = |bytes: &[u8]| frame_len(bytes, MAX);
        assert_eq!(verdict(&[]), Ok(None));
        assert_eq!(verdict(&[0, 0, 0]), Ok(None));
        assert_eq!(verdict(&[0, 0, 0, 3]), Err(CloseReason::BadLength));
        assert_eq!(verdict(&[0, 0, 0, 0]), Err(CloseReason::BadLength));
        assert_eq!(verdict(&[0xff; 4]), Err(CloseReason::BadLength));
        assert_eq!(verdict(&[0x80, 0, 0, 0]), Err(CloseReason::BadLength));
        assert_eq!(verdict(&[0, 0x10, 0, 0]), Err(CloseReason::FrameTooLong));
        assert_eq!(verdict(&[0, 0x0f, 0xff, 0xfc]), Ok(Some(MAX)));
        assert_eq!(verdict(&[0x7f, 0xff, 0xff, 0xff]), Err(CloseReason::FrameTooLong));
        assert_eq!(verdict(&[0x16]), Err(CloseReason::Tls));
        assert_eq!(verdict(&[0x16, 3, 1, 2]), Err(CloseReason::Tls));
    }

    #[test]
    fn a_claimed_length_takes_no_memory() {
        let mut input = Input::default();
        assert!(drain(&mut input, &[0, 0x0f, 0, 0, 1]).unwrap().is_empty());
        assert!(input.memory() < 64, "{}", input.memory());
        for _ in 0..1000 {
            assert!(drain(&mut input, &[7]).unwrap().is_empty());
        }
        assert!(input.memory() <= 4096, "{}", input.memory());
    }

    #[test]
    fn memory_goes_back_once_a_large_frame_was_given() {
        let mut input = Input::default();
        let large = frame(&[1; 100_000]);
        input.keep(&large[..50_000]);
        assert_eq!(drain(&mut input, &large[50_000..]).unwrap().len(), 1);
        assert_eq!(drain(&mut input, &frame(b"next")).unwrap().len(), 1);
        assert!(input.memory() <= KEPT_BYTES);
    }
}
