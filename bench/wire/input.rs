//! The byte stream of a connection taken apart into answers.
//!
//! Answers that lie whole in what was received are read there. One that is cut is gathered; of its body only the length is
//! counted when nobody wants it. Invariant: memory is bounded by one frame of [`MAX_FRAME_BYTES`].

use remoting::SerializeType;
use remoting::frame::{LENGTH_BYTES, PREFIX_BYTES};

use super::answer::Answer;

/// The longest answer that is taken: pulls of 32 of the largest messages stay below it.
pub const MAX_FRAME_BYTES: usize = 256 << 20;

/// What of a frame has arrived.
#[derive(Debug, Default)]
pub struct Input {
    /// The beginning of a frame that is cut: with its body, or up to the end of its header.
    partial: Vec<u8>,
    /// Bytes of its body that are left to be skipped.
    skip: usize,
}

/// The stream makes no sense: the connection is of no use any more.
#[derive(Debug, PartialEq, Eq)]
pub struct BrokenStream;

struct Frame {
    form: SerializeType,
    header_end: usize,
    total: usize,
}

/// What the first bytes of a frame say; `None` when they are not all there.
fn prefix(bytes: &[u8]) -> Result<Option<Frame>, BrokenStream> {
    let Some(prefix) = bytes.first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
    let [a, b, c, d, form, e, f, g] = *prefix;
    let total = LENGTH_BYTES + u32::from_be_bytes([a, b, c, d]) as usize;
    let header_end = PREFIX_BYTES + u32::from_be_bytes([0, e, f, g]) as usize;
    let form = SerializeType::from_byte(form).ok_or(BrokenStream)?;
    if header_end > total || total > MAX_FRAME_BYTES {
        Err(BrokenStream)
    } else {
        Ok(Some(Frame { form, header_end, total }))
    }
}

impl Input {
    /// Takes what has arrived and hands out each answer that is complete with it. `keeps_body`: whether bodies are wanted
    /// (else they may be empty; their length is always right).
    ///
    /// # Errors
    /// The stream cannot be read on.
    pub fn feed(
        &mut self,
        mut bytes: &[u8],
        keeps_body: bool,
        mut take: impl FnMut(Answer<'_>),
    ) -> Result<(), BrokenStream> {
        if !self.partial.is_empty() {
            bytes = self.go_on(bytes, keeps_body, &mut take)?;
        }
        while let Some(frame) = prefix(bytes)? {
            if bytes.len() < frame.total {
                break;
            }
            take(answer(&frame, bytes, frame.total));
            bytes = &bytes[frame.total..];
        }
        if !bytes.is_empty() {
            self.keep(bytes, keeps_body)?;
        }
        Ok(())
    }

    /// Adds to the cut frame what belongs to it; gives what is behind it.
    fn go_on<'b>(
        &mut self,
        mut bytes: &'b [u8],
        keeps_body: bool,
        take: &mut impl FnMut(Answer<'_>),
    ) -> Result<&'b [u8], BrokenStream> {
        loop {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip -= skipped;
                bytes = &bytes[skipped..];
                if self.skip > 0 {
                    return Ok(bytes);
                }
                let Some(frame) = prefix(&self.partial)? else { return Err(BrokenStream) };
                take(answer(&frame, &self.partial, self.partial.len()));
                self.partial.clear();
                return Ok(bytes);
            }
            let wanted = match prefix(&self.partial)? {
                None => PREFIX_BYTES,
                Some(frame) if keeps_body || frame.header_end == frame.total => frame.total,
                Some(frame) => frame.header_end,
            };
            let missing = wanted.saturating_sub(self.partial.len()).min(bytes.len());
            self.partial.extend_from_slice(&bytes[..missing]);
            bytes = &bytes[missing..];
            if self.partial.len() < wanted {
                return Ok(bytes);
            }
            let Some(frame) = prefix(&self.partial)? else { continue };
            if self.partial.len() >= frame.total {
                take(answer(&frame, &self.partial, frame.total));
                self.partial.clear();
                return Ok(bytes);
            }
            if self.partial.len() >= frame.header_end && !keeps_body {
                self.skip = frame.total - self.partial.len();
            }
        }
    }

    fn keep(&mut self, bytes: &[u8], keeps_body: bool) -> Result<(), BrokenStream> {
        match prefix(bytes)? {
            Some(frame) if !keeps_body && bytes.len() >= frame.header_end => {
                self.partial.extend_from_slice(&bytes[..frame.header_end]);
                self.skip = frame.total - bytes.len();
            }
            _ => self.partial.extend_from_slice(bytes),
        }
        Ok(())
    }
}

fn answer<'b>(frame: &Frame, bytes: &'b [u8], end: usize) -> Answer<'b> {
    Answer {
        form: frame.form,
        header: &bytes[PREFIX_BYTES..frame.header_end],
        body: &bytes[frame.header_end..end],
        body_len: frame.total - frame.header_end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use remoting::Command;

    #[test]
    fn a_long_body_is_counted_and_not_kept() {
        let frame = Command::request(1, 2).with_body(vec![9; 100_000]).to_frame();
        let stream = [&frame[..], &frame[..]].concat();
        let (mut input, mut seen) = (Input::default(), 0);
        for chunk in stream.chunks(4096) {
            input
                .feed(chunk, false, |a| {
                    assert_eq!((a.body_len, a.head().unwrap().opaque), (100_000, 2));
                    seen += 1;
                })
                .unwrap();
            assert!(input.partial.len() < 4096);
        }
        assert_eq!(seen, 2);
    }

    #[test]
    fn streams_that_make_no_sense_are_refused() {
        for bytes in [&b"\0\0\0\x04\x07\0\0\0"[..], b"\xFF\0\0\0\0\0\0\0", b"\0\0\0\x03\0\0\0\x10"] {
            assert_eq!(Input::default().feed(bytes, true, |_| ()), Err(BrokenStream));
        }
    }
}
