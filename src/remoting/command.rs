//! A command in full: any request or response, decoded from or encoded to either serialization.
//!
//! Role: the form for everything outside the hot path. Decoding is as lenient as Java's (any order, unknown names, a
//! language as name or number, numbers and words as field values, `null` as absent); encoding writes the names and order
//! of the 5.4.0 reference. Fields are asked for by name and type, and a missing or wrong one is a [`FieldError`] that
//! becomes an answer, never a closed connection.

use crate::codes::{LanguageCode, ResponseCode, version};
use crate::cursor::{Cursor, Malformed, Token, unescape, write_text};
use crate::frame::{self, FrameError, SerializeType};
use std::borrow::Cow;
use thiserror::Error;

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
        if self.ext.present {
            out.extend_from_slice(b",\"extFields\":{");
            for (at, (name, value)) in self.ext.fields.iter().enumerate() {
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

/// Header fields: names and texts, in the order in which they came. A later value of a name replaces an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtFields {
    fields: Vec<(String, String)>,
    present: bool,
}

impl ExtFields {
    /// No fields, but written as an empty object (Java does so for responses that have a header class).
    #[must_use]
    pub fn empty() -> Self {
        Self { fields: Vec::new(), present: true }
    }

    /// The value of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Sets a value.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.present = true;
        let (name, value) = (name.into(), value.into());
        match self.fields.iter_mut().find(|(key, _)| *key == name) {
            Some(field) => field.1 = value,
            None => self.fields.push((name, value)),
        }
    }

    /// Takes a field out.
    pub fn remove(&mut self, name: &str) {
        self.fields.retain(|(key, _)| key != name);
    }

    /// All fields.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Number of fields.
    #[must_use]
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// A text that must be there (it may be empty).
    ///
    /// # Errors
    /// It is missing.
    pub fn text(&self, field: &'static str) -> Result<&str, FieldError> {
        self.get(field).ok_or(FieldError { field, problem: Problem::Missing })
    }

    /// A 32-bit number that must be there.
    ///
    /// # Errors
    /// It is missing, no number, or out of range.
    pub fn i32(&self, field: &'static str) -> Result<i32, FieldError> {
        self.optional_i32(field)?.ok_or(FieldError { field, problem: Problem::Missing })
    }

    /// A 64-bit number that must be there.
    ///
    /// # Errors
    /// It is missing, no number, or out of range.
    pub fn i64(&self, field: &'static str) -> Result<i64, FieldError> {
        self.optional_i64(field)?.ok_or(FieldError { field, problem: Problem::Missing })
    }

    /// A 32-bit number that may be missing (an empty text counts as missing).
    ///
    /// # Errors
    /// It is no number, or out of range.
    pub fn optional_i32(&self, field: &'static str) -> Result<Option<i32>, FieldError> {
        let value = self.optional_i64(field)?;
        value
            .map(|value| i32::try_from(value).map_err(|_| FieldError { field, problem: Problem::OutOfRange }))
            .transpose()
    }

    /// A 64-bit number that may be missing (an empty text counts as missing).
    ///
    /// # Errors
    /// It is no number, or out of range.
    pub fn optional_i64(&self, field: &'static str) -> Result<Option<i64>, FieldError> {
        match self.get(field) {
            None | Some("") => Ok(None),
            Some(text) => parse_i64(text.as_bytes()).map(Some).map_err(|problem| FieldError { field, problem }),
        }
    }

    /// A truth value: `true` in any case is true, any other text false; `None` when it is missing.
    #[must_use]
    pub fn boolean(&self, field: &str) -> Option<bool> {
        self.get(field).map(|text| text.eq_ignore_ascii_case("true"))
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for ExtFields {
    fn from_iter<T: IntoIterator<Item = (N, V)>>(fields: T) -> Self {
        let mut ext = Self::empty();
        fields.into_iter().for_each(|(name, value)| ext.set(name, value));
        ext
    }
}

/// A header field that does not serve. Becomes an answer with an error code.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the header field <{field}> is {problem}")]
pub struct FieldError {
    /// Long name of the field.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a header field.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Problem {
    /// It is required and not there.
    #[error("missing")]
    Missing,
    /// It should be a number.
    #[error("not a number")]
    NotANumber,
    /// The number does not fit its type.
    #[error("out of range")]
    OutOfRange,
}

/// `Long.parseLong`: a sign, then digits.
pub(crate) fn parse_i64(text: &[u8]) -> Result<i64, Problem> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if digits.is_empty() {
        return Err(Problem::NotANumber);
    }
    let (mut value, mut fits) = (0i64, true);
    for &digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return Err(Problem::NotANumber);
        }
        // Counted downwards, where one more number fits.
        match value.checked_mul(10).and_then(|value| value.checked_sub(i64::from(digit))) {
            Some(next) => value = next,
            None => fits = false,
        }
    }
    let value = if negative { Some(value) } else { value.checked_neg() };
    value.filter(|_| fits).ok_or(Problem::OutOfRange)
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

/// Collects fields so that many equal or unequal names stay cheap: a map is built only when there are more than a few.
#[derive(Default)]
struct FieldCollector {
    fields: Vec<(String, Option<String>)>,
}

impl FieldCollector {
    fn add(&mut self, name: String, value: Option<String>) {
        self.fields.push((name, value));
    }

    /// The last value of each name, at the place of the first; names whose last value is `null` are left out.
    fn finish(self) -> ExtFields {
        let mut places = std::collections::HashMap::with_capacity(self.fields.len());
        let mut fields: Vec<(String, Option<String>)> = Vec::with_capacity(self.fields.len());
        for (name, value) in self.fields {
            match places.get(&name) {
                Some(&at) => {
                    let field: &mut (String, Option<String>) = &mut fields[at];
                    field.1 = value;
                }
                None => {
                    places.insert(name.clone(), fields.len());
                    fields.push((name, value));
                }
            }
        }
        let fields = fields.into_iter().filter_map(|(name, value)| value.map(|value| (name, value))).collect();
        ExtFields { fields, present: true }
    }
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
    command.ext = ExtFields { present, ..fields.finish() };
    Ok(command)
}

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

#[cfg(test)]
#[path = "command_tests.rs"]
mod tests;
