//! The body of a batch acknowledgement as clients write it: no white space, quoted names, no escapes.
//!
//! Role: the quick way through such a body, in one pass, without a copy. Whatever is unusual ends in `None`, and the body is read
//! again by the general rules; so this file may give up, but must never disagree.

use super::{Ack, Acks};
use std::borrow::Cow;

/// Longest number that is read here, in digits: any of them fits.
const DIGITS: usize = 18;

/// Reads a body. `None`: it is unusual.
pub(super) fn read(body: &[u8]) -> Option<Acks<'_>> {
    let mut text = Text { bytes: body, at: 0 };
    let mut acks = None;
    text.expect(b'{')?;
    loop {
        let name = text.quoted()?;
        text.expect(b':')?;
        match name {
            "acks" if acks.is_none() => acks = Some(list(&mut text)?),
            "acks" => return None,
            _ => drop(text.value()?),
        }
        if !text.goes_on(b'}')? {
            break;
        }
    }
    (text.at == body.len()).then_some(acks?)
}

fn list<'a>(text: &mut Text<'a>) -> Option<Acks<'a>> {
    let mut acks = Acks::new();
    text.expect(b'[')?;
    loop {
        acks.push(one(text)?);
        if !text.goes_on(b']')? {
            return Some(acks);
        }
    }
}

fn one<'a>(text: &mut Text<'a>) -> Option<Ack<'a>> {
    let mut ack = Ack::default();
    // Bits of the members that were there, each once.
    let mut seen = 0u8;
    text.expect(b'{')?;
    loop {
        let name = text.quoted()?;
        text.expect(b':')?;
        let value = text.value()?;
        let at = match name {
            "t" | "topic" => 0,
            "c" | "consumerGroup" => 1,
            "r" | "retry" => 2,
            "q" | "queueId" => 3,
            "rq" | "reviveQueueId" => 4,
            "so" | "startOffset" => 5,
            "pt" | "popTime" => 6,
            "b" | "bitSet" => 7,
            _ => 8,
        };
        if at < 8 && seen & 1 << at != 0 {
            return None;
        }
        match at {
            0 => ack.topic = Cow::Borrowed(value),
            1 => ack.group = Cow::Borrowed(value),
            2 => ack.retry = Cow::Borrowed(value),
            3 => ack.queue_id = number(value)?,
            4 => ack.revive_queue = number(value)?,
            5 => ack.start = number(value)?,
            6 => ack.pop_time_ms = number(value)?,
            7 => ack.bits = Cow::Borrowed(value),
            _ => {}
        }
        seen |= 1u8.checked_shl(at).unwrap_or(0);
        if !text.goes_on(b'}')? {
            break;
        }
    }
    (seen == u8::MAX).then_some(ack)
}

fn number(value: &str) -> Option<i64> {
    let digits = value.strip_prefix('-').unwrap_or(value);
    let plain = (1..=DIGITS).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !plain {
        return None;
    }
    let value_of = digits.bytes().fold(0, |sum: i64, digit| sum * 10 + i64::from(digit - b'0'));
    Some(if digits.len() < value.len() { -value_of } else { value_of })
}

struct Text<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Text<'a> {
    fn expect(&mut self, byte: u8) -> Option<()> {
        let found = self.bytes.get(self.at) == Some(&byte);
        self.at += 1;
        found.then_some(())
    }

    /// Behind a member: whether another follows, or the end.
    fn goes_on(&mut self, close: u8) -> Option<bool> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        match byte {
            b',' => Some(true),
            _ => (byte == close).then_some(false),
        }
    }

    /// A text in double quotes without escapes.
    fn quoted(&mut self) -> Option<&'a str> {
        self.expect(b'"')?;
        let rest = self.bytes.get(self.at..)?;
        let len = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
        if rest[len] == b'\\' {
            return None;
        }
        self.at += len + 1;
        std::str::from_utf8(&rest[..len]).ok()
    }

    /// A quoted text or a number without quotes.
    fn value(&mut self) -> Option<&'a str> {
        if self.bytes.get(self.at) == Some(&b'"') {
            return self.quoted();
        }
        let rest = self.bytes.get(self.at..)?;
        let len = rest.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'-').count();
        self.at += len;
        (len > 0).then(|| std::str::from_utf8(&rest[..len]).unwrap_or_default())
    }
}
