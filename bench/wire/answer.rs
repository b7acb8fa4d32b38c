//! An answer, read where it lies: opaque, flag and code in one look, a field when somebody asks for it.
//!
//! The headers of the reference and of this broker are read by their known order; any other valid header by the codec of
//! `remoting`. Invariant: on any header both ways agree (fuzzed).

use memchr::memmem;
use remoting::frame::{LENGTH_BYTES, PREFIX_BYTES};
use remoting::{Command, SerializeType};

/// What every answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Response code (of a request of the broker: what it asks).
    pub code: i32,
    /// Ties it to its request.
    pub opaque: i32,
    /// Whether it is a response.
    pub is_response: bool,
}

/// A whole answer, or its header alone when nobody wants the body.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// Form of the header.
    pub form: SerializeType,
    /// Header bytes.
    pub header: &'a [u8],
    /// Body bytes; empty when they were skipped.
    pub body: &'a [u8],
    /// How long the body is, skipped or not.
    pub body_len: usize,
}

impl<'a> Answer<'a> {
    /// Code, opaque and kind; `None` for a header that is none.
    pub fn head(&self) -> Option<Head> {
        match self.form {
            SerializeType::Json => json_head(self.header).or_else(|| self.decoded_head()),
            SerializeType::Compact => compact_head(self.header),
        }
    }

    #[cold]
    fn decoded_head(&self) -> Option<Head> {
        let command = self.decode()?;
        Some(Head { code: command.code, opaque: command.opaque, is_response: command.is_response() })
    }

    /// The whole header by the codec; its body is left out.
    #[cold]
    pub fn decode(&self) -> Option<Command> {
        let mut frame = Vec::with_capacity(PREFIX_BYTES + self.header.len());
        frame.extend_from_slice(&((LENGTH_BYTES + self.header.len()) as u32).to_be_bytes());
        frame.extend_from_slice(&((self.form as u32) << 24 | self.header.len() as u32).to_be_bytes());
        frame.extend_from_slice(self.header);
        Command::decode(&frame).ok()
    }

    /// The text of a field when it needs no unescaping, as all names and numbers; `None` when it is not there.
    pub fn text(&self, field: &str) -> Option<&'a [u8]> {
        match self.form {
            SerializeType::Json => json_field(self.header, field.as_bytes()),
            SerializeType::Compact => compact_field(self.header, field.as_bytes()),
        }
    }

    /// A field that holds a number.
    pub fn number(&self, field: &str) -> Option<i64> {
        integer(self.text(field)?)
    }
}

/// A whole text as a number.
pub fn integer(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Reads `{"code":N,["extFields":{...},]"flag":N,"language":"X","opaque":N,`: the order of alphabet. `None`: not that.
fn json_head(header: &[u8]) -> Option<Head> {
    let rest = header.strip_prefix(b"{\"code\":")?;
    let (code, rest) = leading(rest)?;
    let rest = match rest.strip_prefix(b",\"extFields\":{") {
        None => rest.strip_prefix(b",\"flag\":")?,
        // A quote inside a text is escaped, so that this can only be where an object ends and the flag begins. An object
        // within the fields would be none of the protocol's.
        Some(fields) => {
            let end = memchr::memchr3(b'}', b'{', b'[', fields)?;
            fields[end..].strip_prefix(b"},\"flag\":")?
        }
    };
    let (flag, rest) = leading(rest)?;
    let rest = rest.strip_prefix(b",\"language\":\"")?;
    let rest = &rest[memchr::memchr(b'"', rest)?..];
    let (opaque, rest) = leading(rest.strip_prefix(b"\",\"opaque\":")?)?;
    // What is behind it must be there, and be no second opaque or code.
    let rest = match rest.strip_prefix(b",\"remark\":\"") {
        None => rest,
        Some(remark) => {
            let end = memchr::memchr2(b'"', b'\\', remark)?;
            if remark[end] == b'\\' {
                return None;
            }
            &remark[end + 1..]
        }
    };
    let rest = rest.strip_prefix(b",\"serializeTypeCurrentRPC\":\"JSON\"").unwrap_or(rest);
    let (_, rest) = leading(rest.strip_prefix(b",\"version\":")?)?;
    (rest == b"}").then_some(Head { code, opaque, is_response: flag & 1 != 0 })
}

/// The number that bytes begin with, at most nine digits and a sign or ten that fit; and what is behind it.
fn leading(bytes: &[u8]) -> Option<(i32, &[u8])> {
    let negative = bytes.first() == Some(&b'-');
    let from = usize::from(negative);
    let mut value = 0i64;
    let mut at = from;
    while let Some(digit) = bytes.get(at).filter(|b| b.is_ascii_digit()) {
        if at - from >= 10 {
            return None;
        }
        value = value * 10 + i64::from(digit - b'0');
        at += 1;
    }
    let zeros = bytes[from..at].len() > 1 && bytes[from] == b'0';
    if at == from || zeros {
        return None;
    }
    Some((i32::try_from(if negative { -value } else { value }).ok()?, &bytes[at..]))
}

/// The value of `"name":"value"`. A name in quotes with a colon behind can only be a name (a quote inside a text is
/// escaped).
fn json_field<'a>(header: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut from = 0;
    loop {
        let at = from + memmem::find(&header[from..], name)?;
        let behind = &header[at + name.len()..];
        if at > 0 && header[at - 1] == b'"' && behind.starts_with(b"\":\"") {
            let value = &behind[3..];
            let end = memchr::memchr2(b'"', b'\\', value)?;
            return (value[end] == b'"').then_some(&value[..end]);
        }
        from = at + 1;
    }
}

fn compact_head(header: &[u8]) -> Option<Head> {
    let head = header.get(..13)?;
    let code = i16::from_be_bytes([head[0], head[1]]);
    let opaque = i32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    Some(Head { code: i32::from(code), opaque, is_response: head[12] & 1 != 0 })
}

fn compact_field<'a>(header: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (_remark, rest) = block(header.get(13..)?)?;
    let (mut fields, _) = block(rest)?;
    while !fields.is_empty() {
        let length = i16::from_be_bytes([*fields.first()?, *fields.get(1)?]);
        let (key, rest) = fields[2..].split_at_checked(usize::try_from(length).ok()?)?;
        let (value, rest) = block(rest)?;
        if key == name {
            return Some(value);
        }
        fields = rest;
    }
    None
}

/// Bytes with four bytes of length before them, and the rest.
fn block(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(usize::try_from(i32::from_be_bytes(*length)).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use remoting::ResponseCode;

    fn answer(command: &Command, check: impl Fn(Answer<'_>)) {
        let frame = command.to_frame();
        let parts = remoting::frame::split(&frame).unwrap();
        let (form, header, body) = (parts.serialize_type, parts.header, parts.body);
        check(Answer { form, header, body, body_len: body.len() });
    }

    #[test]
    fn answers_in_both_forms() {
        for form in [SerializeType::Json, SerializeType::Compact] {
            let good = Command::response(ResponseCode::Success, 77, form)
                .with_field("msgId", "7F000001")
                .with_field("queueOffset", 12)
                .with_field("xmsgId", "no");
            answer(&good, |a| {
                assert_eq!(a.head(), Some(Head { code: 0, opaque: 77, is_response: true }));
                assert_eq!((a.text("msgId"), a.number("queueOffset")), (Some(&b"7F000001"[..]), Some(12)));
                assert_eq!((a.text("other"), a.text("sgId"), a.number("msgId")), (None, None, None));
            });
            let bad = Command::response(ResponseCode::SystemBusy, i32::MIN, form).with_remark("say \"opaque\":1, {}");
            answer(&bad, |a| {
                assert_eq!(a.head(), Some(Head { code: 2, opaque: i32::MIN, is_response: true }));
            });
        }
        answer(&Command::request(40, 5), |a| assert!(!a.head().unwrap().is_response));
    }

    #[test]
    fn fields_cannot_stand_in_for_the_header() {
        let tricky = Command::response(ResponseCode::Success, 3, SerializeType::Json)
            .with_field("opaque", "9")
            .with_field("x", "},\"flag\":0,\"language\":\"JAVA\",\"opaque\":8,");
        answer(&tricky, |a| assert_eq!(a.head().unwrap().opaque, 3));
    }

    #[test]
    fn the_known_order_is_read_without_the_codec() {
        let plain = Command::response(ResponseCode::Success, 3, SerializeType::Json).with_field("msgId", "1");
        answer(&plain, |a| assert!(json_head(a.header).is_some()));
        answer(&plain.clone().with_remark("FOUND"), |a| assert!(json_head(a.header).is_some()));
    }
}
