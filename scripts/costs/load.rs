//! A cheap load: frames made once and patched in place, a window of requests on each of several connections, one write for
//! a window, one thread for all. Each kind of load says what it asks next and what it takes from an answer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::client::frame;

/// Connections of a load.
pub const LINKS: usize = 8;
const TIMEOUT: Duration = Duration::from_secs(20);
const MAX_FRAME: usize = 64 << 20;
/// Numbers of ten digits, so that a patched frame keeps its length.
const FIRST_NUMBER: u64 = 1_000_000_000;
/// Stands in a frame where the number of the message goes.
pub const KEY: &str = "KKKKKKKKKK";

/// A frame with places for numbers.
#[derive(Debug, Clone)]
pub struct Template {
    bytes: Vec<u8>,
    key_at: Option<usize>,
}

impl Template {
    /// A request; [`KEY`] in its fields is replaced by the number of each use.
    pub fn new(code: i32, flag: i32, fields: Value, body: &[u8]) -> Template {
        let bytes = frame(code, 0, flag, fields, body);
        let key_at = bytes.windows(KEY.len()).position(|w| w == KEY.as_bytes());
        Template { bytes, key_at }
    }

    /// Adds the frame with a number below 9 * 10^9.
    pub fn push(&self, out: &mut Vec<u8>, number: u64) {
        let base = out.len();
        out.extend_from_slice(&self.bytes);
        let Some(at) = self.key_at else { return };
        let mut rest = FIRST_NUMBER + number;
        for digit in out[base + at..base + at + KEY.len()].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
    }
}

/// One answer.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// The JSON header.
    pub header: &'a [u8],
    /// What is behind it.
    pub body: &'a [u8],
}

impl<'a> Answer<'a> {
    /// The response code.
    pub fn code(&self) -> Result<u64> {
        let at = find(self.header, b"\"code\":").context("an answer without code")?;
        Ok(digits(&self.header[at..]))
    }

    /// A field that holds text without escapes.
    pub fn text(&self, field: &str) -> Result<&'a [u8]> {
        let name = [b"\"", field.as_bytes(), b"\":\""].concat();
        let at = find(self.header, &name).with_context(|| format!("an answer without {field}"))?;
        let end = self.header[at..].iter().position(|b| *b == b'"').context("an answer that ends in a text")?;
        Ok(&self.header[at..at + end])
    }

    /// A field that holds a number.
    pub fn number(&self, field: &str) -> Result<u64> {
        Ok(digits(self.text(field)?))
    }
}

/// Where what follows `needle` begins.
fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|w| w == needle).map(|at| at + needle.len())
}

/// The number that bytes begin with.
pub fn digits(bytes: &[u8]) -> u64 {
    bytes.iter().take_while(|b| b.is_ascii_digit()).fold(0, |n, b| n * 10 + u64::from(b - b'0'))
}

/// A kind of load.
pub trait Work {
    /// Adds the next requests of a connection; gives the number of answers that they get. With `last` only what ends
    /// what was begun.
    fn ask(&mut self, link: usize, out: &mut Vec<u8>, last: bool) -> usize;
    /// Takes an answer. Errors: it is not what a correct client must get.
    fn take(&mut self, link: usize, answer: Answer) -> Result<()>;
    /// What was done so far.
    fn done(&self) -> u64;
    /// Whether there is nothing left to do.
    fn is_exhausted(&self) -> bool {
        false
    }
}

/// What a load came to.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// Operations, each complete.
    pub operations: u64,
    /// From the first request to the last answer.
    pub seconds: f64,
}

/// Runs a load for a time, or until it is exhausted.
pub fn run(address: SocketAddr, work: &mut dyn Work, length: Duration) -> Result<Run> {
    let mut links = (0..LINKS).map(|_| Link::open(address)).collect::<Result<Vec<Link>>>()?;
    let begin = Instant::now();
    for (n, link) in links.iter_mut().enumerate() {
        link.ask(n, work, false)?;
    }
    while begin.elapsed() < length && !work.is_exhausted() {
        for (n, link) in links.iter_mut().enumerate() {
            link.take(n, work)?;
            link.ask(n, work, false)?;
        }
    }
    for (n, link) in links.iter_mut().enumerate() {
        link.take(n, work)?;
        link.ask(n, work, true)?;
        link.take(n, work)?;
    }
    Ok(Run { operations: work.done(), seconds: begin.elapsed().as_secs_f64() })
}

/// A connection of a load.
struct Link {
    stream: TcpStream,
    out: Vec<u8>,
    input: Vec<u8>,
    filled: usize,
    awaited: usize,
}

impl Link {
    fn open(address: SocketAddr) -> Result<Link> {
        let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Link { stream, out: Vec::new(), input: vec![0; 1 << 20], filled: 0, awaited: 0 })
    }

    fn ask(&mut self, n: usize, work: &mut dyn Work, last: bool) -> Result<()> {
        self.out.clear();
        self.awaited += work.ask(n, &mut self.out, last);
        Ok(self.stream.write_all(&self.out)?)
    }

    /// Takes all answers that are awaited.
    fn take(&mut self, n: usize, work: &mut dyn Work) -> Result<()> {
        while self.awaited > 0 {
            let mut at = 0;
            while let Some((answer, length)) = next_frame(&self.input[at..self.filled])? {
                work.take(n, answer)?;
                self.awaited = self.awaited.checked_sub(1).context("an answer to no request")?;
                at += length;
            }
            self.input.copy_within(at..self.filled, 0);
            self.filled -= at;
            if self.awaited > 0 {
                self.receive()?;
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        if self.filled == self.input.len() {
            ensure!(self.filled < MAX_FRAME, "an answer of more than {MAX_FRAME} bytes");
            self.input.resize(2 * self.filled, 0);
        }
        let count = self.stream.read(&mut self.input[self.filled..]).context("waiting for answers")?;
        ensure!(count > 0, "the broker closed a connection");
        self.filled += count;
        Ok(())
    }
}

/// The first whole frame and its length.
fn next_frame(bytes: &[u8]) -> Result<Option<(Answer<'_>, usize)>> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    let Some(content) = rest.get(..length) else { return Ok(None) };
    let Some((header_length, content)) = content.split_first_chunk::<4>() else { bail!("a frame of {length} bytes") };
    let [form, high, middle, low] = *header_length;
    ensure!(form == 0, "an answer in another form than the request");
    let header_length = u32::from_be_bytes([0, high, middle, low]) as usize;
    let (header, body) = content.split_at_checked(header_length).context("a header beyond its frame")?;
    Ok(Some((Answer { header, body }, 4 + length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_template_gets_its_number_and_keeps_its_length() {
        let template = Template::new(310, 0, json!({"i": format!("UNIQ_KEY\u{1}{KEY}\u{2}")}), b"body");
        let mut out = Vec::new();
        template.push(&mut out, 7);
        assert_eq!(out.len(), template.bytes.len());
        assert!(find(&out, b"UNIQ_KEY\\u00011000000007\\u0002").is_some());
    }

    #[test]
    fn fields_of_an_answer_are_found() {
        let mut bytes = frame(0, 5, 1, json!({"queueOffset": "12", "msgId": "AB"}), b"body");
        bytes.extend(frame(19, 5, 1, json!({}), b""));
        let (answer, length) = next_frame(&bytes).unwrap().unwrap();
        assert_eq!((answer.code().unwrap(), answer.number("queueOffset").unwrap()), (0, 12));
        assert_eq!((answer.text("msgId").unwrap(), answer.body), (&b"AB"[..], &b"body"[..]));
        assert!(answer.text("other").is_err());
        let (second, rest) = next_frame(&bytes[length..]).unwrap().unwrap();
        assert_eq!((second.code().unwrap(), length + rest), (19, bytes.len()));
        assert!(next_frame(&bytes[..length - 1]).unwrap().is_none(), "not whole yet");
    }
}
