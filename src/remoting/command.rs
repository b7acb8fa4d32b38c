//! A command in full: any request or response, decoded from or encoded to either serialization.
//!
//! Role: the form for everything outside the hot path. Decoding is as lenient as Java's (any order, unknown names, a
//! language as name or number, numbers and words as field values, `null` as absent); encoding writes the names and order
//! of the 5.4.0 reference. Fields are asked for by name and type, and a missing or wrong one is a [`FieldError`] that
//! becomes an answer, never a closed connection.

use crate::codes::{LanguageCode, ResponseCode, version};
use crate::compact::CompactReader;
use crate::cursor::{Cursor, Malformed, Token, unescape, write_text};
use crate::ext_fields::FieldCollector;
pub(crate) use crate::ext_fields::parse_i64;
pub use crate::ext_fields::{ExtFields, FieldError, Problem};
use crate::frame::{self, FrameError, SerializeType};
use std::borrow::Cow;

/// Flag bit: the command is a response.
pub const FLAG_RESPONSE: i32 = 1;
/// Flag bit: the sender wants no response.
pub const FLAG_ONEWAY: i32 = 2;
/// The remark that a fresh Java response has, and that some of its answers keep.
pub const REMARK_NOT_SET: &str = "not set any response code";

/// A request or a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Request or response code, as it travels.
    pub code: i32,
    /// Language of the sender.
    pub language: LanguageCode,
    /// Version of the sender.
    pub version: i32,
    /// Number that ties a response to its request.
    pub opaque: i32,
    /// [`FLAG_RESPONSE`], [`FLAG_ONEWAY`].
    pub flag: i32,
    /// Free text, mostly of an error.
    pub remark: Option<String>,
    /// Header fields of this code.
    pub ext: ExtFields,
    /// Body; empty for none.
    pub body: Vec<u8>,
    /// Form of the header: as received, or as to be sent.
    pub serialize_type: SerializeType,
}

impl Command {
    /// A request of our own.
    #[must_use]
    pub fn request(code: impl Into<i32>, opaque: i32) -> Self {
        Self {
            code: code.into(),
            language: LanguageCode::Java,
            version: version::CURRENT,
            opaque,
            flag: 0,
            remark: None,
            ext: ExtFields::default(),
            body: Vec::new(),
            serialize_type: SerializeType::Json,
        }
    }

    /// A response in the form of its request.
    #[must_use]
    pub fn response(code: impl Into<i32>, opaque: i32, form: SerializeType) -> Self {
        Self { flag: FLAG_RESPONSE, serialize_type: form, ..Self::request(code, opaque) }
    }

    /// A response to this request.
    #[must_use]
    pub fn reply(&self, code: impl Into<i32>) -> Self {
        Self::response(code, self.opaque, self.serialize_type)
    }

    /// An error response to this request.
    #[must_use]
    pub fn reply_error(&self, code: ResponseCode, remark: impl Into<String>) -> Self {
        self.reply(code).with_remark(remark)
    }

    /// Sets the remark.
    #[must_use]
    pub fn with_remark(mut self, remark: impl Into<String>) -> Self {
        self.remark = Some(remark.into());
        self
    }

    /// Adds a header field.
    #[must_use]
    pub fn with_field(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.ext.set(name, value.to_string());
        self
    }

    /// Adds a header field when there is a value.
    #[must_use]
    pub fn with_optional(self, name: impl Into<String>, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.with_field(name, value),
            None => self,
        }
    }

    /// Sets the body.
    #[must_use]
    pub fn with_body(mut self, body: Vec<u8>) -> Self {
        self.body = body;
        self
    }

    /// Makes it oneway.
    #[must_use]
    pub fn oneway(mut self) -> Self {
        self.flag |= FLAG_ONEWAY;
        self
    }

    /// Whether it is a response.
    #[must_use]
    pub fn is_response(&self) -> bool {
        self.flag & FLAG_RESPONSE != 0
    }

    /// Whether no answer is wanted.
    #[must_use]
    pub fn is_oneway(&self) -> bool {
        self.flag & FLAG_ONEWAY != 0
    }

    /// Decodes a whole frame (its 4 bytes of length included).
    ///
    /// # Errors
    /// The frame cannot be trusted.
    pub fn decode(frame: &[u8]) -> Result<Self, FrameError> {
        let parts = frame::split(frame)?;
        let mut command = match parts.serialize_type {
            SerializeType::Json => decode_json(parts.header)?,
            SerializeType::Compact => decode_compact(parts.header)?,
        };
        command.body = parts.body.to_vec();
        Ok(command)
    }

    /// Appends the whole frame, in the form of `serialize_type`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = frame::begin(out);
        match self.serialize_type {
            SerializeType::Json => self.encode_json(out),
            SerializeType::Compact => self.encode_compact(out),
        }
        frame::finish(out, start, self.serialize_type, self.body.len());
        out.extend_from_slice(&self.body);
    }

    /// The whole frame.
    #[must_use]
    pub fn to_frame(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }

    fn encode_json(&self, out: &mut Vec<u8>) {
        let mut number = itoa::Buffer::new();
        out.extend_from_slice(b"{\"code\":");
        out.extend_from_slice(number.format(self.code).as_bytes());
        if self.ext.is_present() {
            out.extend_from_slice(b",\"extFields\":{");
            for (at, (name, value)) in self.ext.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_text(out, name.as_bytes());
                out.push(b':');
                write_text(out, value.as_bytes());
            }
            out.push(b'}');
        }
        out.extend_from_slice(b",\"flag\":");
        out.extend_from_slice(number.format(self.flag).as_bytes());
        out.extend_from_slice(b",\"language\":\"");
        out.extend_from_slice(self.language.name().as_bytes());
        out.extend_from_slice(b"\",\"opaque\":");
        out.extend_from_slice(number.format(self.opaque).as_bytes());
        if let Some(remark) = &self.remark {
            out.extend_from_slice(b",\"remark\":");
            write_text(out, remark.as_bytes());
        }
        out.extend_from_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
        out.extend_from_slice(number.format(self.version).as_bytes());
        out.push(b'}');
    }

    fn encode_compact(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.code as i16).to_be_bytes());
        out.push(self.language.to_i32() as u8);
        out.extend_from_slice(&(self.version as i16).to_be_bytes());
        out.extend_from_slice(&self.opaque.to_be_bytes());
        out.extend_from_slice(&self.flag.to_be_bytes());
        let remark = self.remark.as_deref().unwrap_or_default().as_bytes();
        out.extend_from_slice(&(remark.len() as u32).to_be_bytes());
        out.extend_from_slice(remark);
        let length_at = out.len();
        out.extend_from_slice(&[0; 4]);
        for (name, value) in self.ext.iter() {
            // A name that its 16-bit length cannot hold does not exist in the protocol.
            let name = &name.as_bytes()[..name.len().min(i16::MAX as usize)];
            out.extend_from_slice(&(name.len() as u16).to_be_bytes());
            out.extend_from_slice(name);
            out.extend_from_slice(&(value.len() as u32).to_be_bytes());
            out.extend_from_slice(value.as_bytes());
        }
        let length = (out.len() - length_at - 4) as u32;
        out[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
    }
}

impl From<Malformed> for FrameError {
    fn from(malformed: Malformed) -> Self {
        Self::Json(malformed.0 as u32)
    }
}

fn decode_json(header: &[u8]) -> Result<Command, FrameError> {
    let mut command = Command { version: 0, language: LanguageCode::Other, ..Command::request(0, 0) };
    let mut cursor = Cursor::new(header, 0);
    let mut members = cursor.enter_object(1)?;
    while members.next(&mut cursor)? {
        let key = key(&mut cursor)?;
        match &*key {
            b"code" => command.code = json_int(&mut cursor)?.unwrap_or(command.code),
            b"flag" => command.flag = json_int(&mut cursor)?.unwrap_or(command.flag),
            b"opaque" => command.opaque = json_int(&mut cursor)?.unwrap_or(command.opaque),
            b"version" => command.version = json_int(&mut cursor)?.unwrap_or(command.version),
            b"language" => command.language = json_language(&mut cursor)?,
            b"remark" => command.remark = json_text(&mut cursor)?,
            b"extFields" => command.ext = json_fields(&mut cursor)?,
            _ => cursor.skip(1)?,
        }
    }
    end(&mut cursor, header)?;
    Ok(command)
}

/// The name of a member, its colon taken.
pub(crate) fn key<'a>(cursor: &mut Cursor<'a>) -> Result<Cow<'a, [u8]>, Malformed> {
    if matches!(cursor.peek(), Some(b'{' | b'[')) {
        cursor.skip(1)?; // an object as key has no name that anyone asks for
        cursor.expect(b':')?;
        return Ok(Cow::Borrowed(b""));
    }
    let token = cursor.scalar()?;
    cursor.expect(b':')?;
    Ok(plain(cursor, token))
}

pub(crate) fn end(cursor: &mut Cursor<'_>, header: &[u8]) -> Result<(), Malformed> {
    cursor.space();
    if cursor.at == header.len() { Ok(()) } else { cursor.malformed() }
}

/// A number of the fixed fields, bare or quoted; `None` for `null`.
pub(crate) fn json_int(cursor: &mut Cursor<'_>) -> Result<Option<i32>, Malformed> {
    cursor.space();
    let at = cursor.at;
    let token = cursor.scalar()?;
    let text = plain(cursor, token);
    if &*text == b"null" && !token.quoted {
        return Ok(None);
    }
    let value = parse_i64(&text).ok().and_then(|value| i32::try_from(value).ok());
    value.map(Some).ok_or(Malformed(at))
}

pub(crate) fn json_language(cursor: &mut Cursor<'_>) -> Result<LanguageCode, Malformed> {
    cursor.space();
    let token = cursor.scalar()?;
    let text = plain(cursor, token);
    Ok(match parse_i64(&text) {
        Ok(number) => i32::try_from(number).map_or(LanguageCode::Other, LanguageCode::from_number),
        Err(_) => LanguageCode::from_name(&text),
    })
}

fn json_text(cursor: &mut Cursor<'_>) -> Result<Option<String>, Malformed> {
    cursor.space();
    if matches!(cursor.peek(), Some(b'{' | b'[')) {
        let start = cursor.at;
        cursor.skip(2)?;
        let whole = Token { start, end: cursor.at, escaped: false, quoted: true };
        return Ok(Some(String::from_utf8_lossy(cursor.raw(whole)).into_owned()));
    }
    let token = cursor.scalar()?;
    let text = plain(cursor, token);
    Ok((token.quoted || &*text != b"null").then(|| String::from_utf8_lossy(&text).into_owned()))
}

fn json_fields(cursor: &mut Cursor<'_>) -> Result<ExtFields, Malformed> {
    cursor.space();
    if cursor.peek() != Some(b'{') {
        cursor.skip(1)?; // null, or nothing that holds fields
        return Ok(ExtFields::default());
    }
    let mut fields = FieldCollector::default();
    let mut members = cursor.enter_object(2)?;
    while members.next(cursor)? {
        let name = key(cursor)?;
        let value = json_text(cursor)?;
        fields.add(String::from_utf8_lossy(&name).into_owned(), value);
    }
    Ok(fields.finish())
}

fn plain<'a>(cursor: &Cursor<'a>, token: Token) -> Cow<'a, [u8]> {
    let raw = cursor.raw(token);
    if !token.escaped {
        return Cow::Borrowed(raw);
    }
    let mut text = Vec::with_capacity(raw.len());
    unescape(raw, &mut text);
    Cow::Owned(text)
}

fn decode_compact(header: &[u8]) -> Result<Command, FrameError> {
    let mut reader = CompactReader::new(header);
    let fixed = reader.fixed()?;
    let remark = reader.remark()?;
    let mut command = Command {
        code: fixed.code,
        language: fixed.language,
        version: fixed.version,
        flag: fixed.flag,
        serialize_type: SerializeType::Compact,
        remark: (!remark.is_empty()).then(|| String::from_utf8_lossy(remark).into_owned()),
        ..Command::request(0, fixed.opaque)
    };
    let mut fields = FieldCollector::default();
    let mut entries = reader.entries()?;
    let present = !entries.is_empty();
    while let Some((name, value)) = entries.next_entry()? {
        let value = (!value.is_empty()).then(|| String::from_utf8_lossy(value).into_owned());
        fields.add(String::from_utf8_lossy(name).into_owned(), value);
    }
    command.ext = fields.finish();
    command.ext.set_present(present);
    Ok(command)
}

#[cfg(test)]
#[path = "command_tests.rs"]
mod tests;
