//! The hot path's reading of a header: one pass, no allocation, no tree.
//!
//! Role: [`scan`] gives code, opaque, flag, language and version of any frame, and for sends, pulls, pops and ends of transactions their
//! fields: numbers parsed, texts as offsets into the frame. The result is `Copy` and holds no reference, so it travels with a copied frame to
//! another core. A field that is missing or wrong becomes [`Fields::Invalid`], which is answered; a header that makes no
//! sense is a [`FrameError`], which closes the connection. Agrees with [`crate::Command::decode`] on every input (fuzzed).

use crate::codes::LanguageCode;
use crate::command::{FLAG_ONEWAY, FLAG_RESPONSE, FieldError, Problem, end, json_int, json_language, key, parse_i64};
use crate::compact::CompactReader;
use crate::cursor::{Cursor, Malformed, Token, unescape};
use crate::frame::{self, FrameError, PREFIX_BYTES, SerializeType};
use message::properties::PropertyList;
use names::Names;
use std::borrow::Cow;

mod names;
mod plain;

/// A text of a header: where it lies in its frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First byte, counted from the start of the frame; 0 when the field is absent.
    pub start: u32,
    /// Bytes of it.
    pub len: u32,
    /// It has JSON escapes, resolved by [`HeaderText`].
    pub escaped: bool,
}

impl Span {
    /// Whether the field was there.
    #[must_use]
    pub const fn is_present(self) -> bool {
        self.start != 0
    }

    /// Whether it is absent or an empty text.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The bytes as they stand in `frame`, the one that was scanned (or a copy of it). Escapes are not resolved.
    #[must_use]
    pub fn bytes(self, frame: &[u8]) -> &[u8] {
        &frame[self.start as usize..self.start as usize + self.len as usize]
    }

    /// The text together with its frame.
    #[must_use]
    pub fn in_frame(self, frame: &[u8]) -> HeaderText<'_> {
        HeaderText { raw: self.bytes(frame), escaped: self.escaped }
    }

    /// The text without escapes: borrowed when it has none.
    #[must_use]
    pub fn text(self, frame: &[u8]) -> Cow<'_, [u8]> {
        self.in_frame(frame).text()
    }
}

/// A text of a header as it stands in its frame, with or without escapes.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeaderText<'a> {
    raw: &'a [u8],
    escaped: bool,
}

impl<'a> HeaderText<'a> {
    /// A text without escapes.
    #[must_use]
    pub const fn plain(raw: &'a [u8]) -> Self {
        Self { raw, escaped: false }
    }

    /// The text without escapes, `\u0001` and the like resolved, surrogate pairs as UTF-8: borrowed when it has none.
    #[must_use]
    pub fn text(self) -> Cow<'a, [u8]> {
        if !self.escaped {
            return Cow::Borrowed(self.raw);
        }
        let mut out = Vec::with_capacity(self.raw.len() + 8);
        unescape(self.raw, &mut out);
        Cow::Owned(out)
    }

    /// Makes `list` that of this properties text. `memory` holds the text where escapes other than the separators' are in
    /// it; a send's properties have none but those nearly always, and are read where they stand.
    pub fn read_properties(self, list: &mut PropertyList<'a>, memory: &'a mut Vec<u8>) {
        if !self.escaped {
            list.read(self.raw);
        } else if !list.read_escaped(self.raw) {
            memory.clear();
            unescape(self.raw, memory);
            list.read(memory);
        }
    }
}

/// What the hot path needs of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannedHeader {
    /// Request code (or response code when the response flag is set).
    pub code: i32,
    /// Number that ties a response to its request.
    pub opaque: i32,
    /// Flag bits.
    pub flag: i32,
    /// Version of the sender.
    pub version: i32,
    /// Language of the sender.
    pub language: LanguageCode,
    /// Form of the header, and so of the answer.
    pub serialize_type: SerializeType,
    /// Where the body starts in the frame; it goes to the frame's end.
    pub body_start: u32,
    /// Fields of the hot codes.
    pub fields: Fields,
}

impl ScannedHeader {
    /// The body of the frame that was scanned.
    #[must_use]
    pub fn body<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        &frame[self.body_start as usize..]
    }

    /// Whether it is a response.
    #[must_use]
    pub const fn is_response(&self) -> bool {
        self.flag & FLAG_RESPONSE != 0
    }

    /// Whether no answer is wanted.
    #[must_use]
    pub const fn is_oneway(&self) -> bool {
        self.flag & FLAG_ONEWAY != 0
    }
}

/// The fields of a header, by its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fields {
    /// SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320).
    Send(SendHeader),
    /// PULL_MESSAGE (11), LITE_PULL_MESSAGE (361).
    Pull(PullHeader),
    /// POP_MESSAGE (200050).
    Pop(PopHeader),
    /// END_TRANSACTION (37).
    End(EndHeader),
    /// One of those codes with a field that does not serve.
    Invalid(FieldError),
    /// Any other code, or a response.
    Other,
}

/// The header of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendHeader {
    /// Producer group; may be absent.
    pub producer_group: Span,
    /// Topic; always present, perhaps empty.
    pub topic: Span,
    /// Topic whose settings a new topic takes; may be absent.
    pub default_topic: Span,
    /// Properties text; may be absent.
    pub properties: Span,
    /// When the message was made, ms since 1970, by the sender's clock.
    pub born_timestamp_ms: i64,
    /// Queues of a new topic; 4 when absent.
    pub default_topic_queue_nums: i32,
    /// Queue; negative lets the broker choose.
    pub queue_id: i32,
    /// System flag of the message.
    pub sys_flag: i32,
    /// The sender's own flag.
    pub flag: i32,
    /// How often it was delivered before; 0 when absent.
    pub reconsume_times: i32,
    /// Limit of redeliveries; `None` when absent.
    pub max_reconsume_times: Option<i32>,
    /// Unit mode; false when absent.
    pub unit_mode: bool,
    /// Whether the header says that the body is a batch.
    pub batch: bool,
}

/// The header of a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullHeader {
    /// Consumer group; always present.
    pub group: Span,
    /// Topic; always present.
    pub topic: Span,
    /// Subscription text; may be absent.
    pub subscription: Span,
    /// `TAG` or `SQL92`; may be absent (TAG).
    pub expression_type: Span,
    /// First offset wanted.
    pub queue_offset: i64,
    /// Offset to commit when [`message::sys_flag::PULL_COMMIT_OFFSET`] is set; 0 when absent.
    pub commit_offset: i64,
    /// How long it may be held, in ms; 0 when absent.
    pub suspend_timeout_ms: i64,
    /// Version of the subscription; 0 when absent.
    pub sub_version: i64,
    /// Queue.
    pub queue_id: i32,
    /// Most messages wanted.
    pub max_msg_nums: i32,
    /// Bits of [`message::sys_flag`], the `PULL_*` ones.
    pub sys_flag: i32,
}

/// The header of a pop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PopHeader {
    /// Consumer group; always present, perhaps empty.
    pub group: Span,
    /// Topic; always present, perhaps empty.
    pub topic: Span,
    /// Filter; may be absent.
    pub expression: Span,
    /// `TAG` or `SQL92`; may be absent (TAG).
    pub expression_type: Span,
    /// Names the attempt of an ordered pop; may be absent.
    pub attempt: Span,
    /// When the client asked, ms since 1970, by its clock; 0 when absent.
    pub born_ms: i64,
    /// How long the messages are to be invisible, in ms.
    pub invisible_ms: i64,
    /// How long it may be held, in ms.
    pub poll_ms: i64,
    /// Queue; negative: any.
    pub queue_id: i32,
    /// Most messages wanted.
    pub max_msg_nums: i32,
    /// Where a new group starts: 0 at the smallest offset.
    pub init_mode: i32,
    /// FIFO; false when absent.
    pub order: bool,
}

/// The header of the end of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndHeader {
    /// Producer group; may be absent.
    pub producer_group: Span,
    /// The half message's place in its queue, as the sender says.
    pub table_offset: i64,
    /// The half message's place in the log, as the sender says.
    pub log_offset: i64,
    /// What is asked for: one of [`message::sys_flag`]'s `TRANSACTION_*`, or nonsense.
    pub end: i32,
    /// It answers a check; false when absent.
    pub from_check: bool,
}

/// Scans a whole frame (its 4 bytes of length included).
///
/// # Errors
/// The frame cannot be trusted.
pub fn scan(frame: &[u8]) -> Result<ScannedHeader, FrameError> {
    let parts = frame::split(frame)?;
    let header_end = PREFIX_BYTES + parts.header.len();
    let unknown = ScannedHeader {
        code: 0,
        opaque: 0,
        flag: 0,
        version: 0,
        language: LanguageCode::Other,
        serialize_type: parts.serialize_type,
        body_start: header_end as u32,
        fields: Fields::Other,
    };
    let mut scanned = unknown;
    let mut slots = Slots::default();
    match parts.serialize_type {
        SerializeType::Json => {
            let bytes = &frame[..header_end];
            if plain::scan(bytes, &mut scanned, &mut slots).is_none() {
                (scanned, slots) = (unknown, Slots::default());
                scan_json(bytes, &mut scanned, &mut slots)?;
            }
        }
        SerializeType::Compact => scan_compact(parts.header, &mut scanned, &mut slots)?,
    }
    if !scanned.is_response() {
        scanned.fields = fields(frame, scanned.code, &slots).unwrap_or_else(Fields::Invalid);
    }
    Ok(scanned)
}

/// Fields of the widest header (a send has 14).
const SLOTS: usize = 14;
type Slots = [Span; SLOTS];

fn scan_json(frame: &[u8], scanned: &mut ScannedHeader, slots: &mut Slots) -> Result<(), FrameError> {
    let relative = |Malformed(at): Malformed| FrameError::Json((at - PREFIX_BYTES) as u32);
    scan_json_object(frame, scanned, slots).map_err(relative)
}

fn scan_json_object(frame: &[u8], scanned: &mut ScannedHeader, slots: &mut Slots) -> Result<(), Malformed> {
    let mut cursor = Cursor::new(frame, PREFIX_BYTES);
    // Fields can be taken at once only when the code is known; else they are gone through again at the end.
    let mut names = None;
    let mut fields_at = None;
    let mut members = cursor.enter_object(1)?;
    while members.next(&mut cursor)? {
        let name = key(&mut cursor)?;
        match &*name {
            b"code" => {
                scanned.code = json_int(&mut cursor)?.unwrap_or(scanned.code);
                names = Some(Names::of(scanned.code));
            }
            b"extFields" => {
                cursor.space();
                fields_at = (cursor.peek() == Some(b'{')).then_some((cursor.at, names));
                *slots = Slots::default();
                match names {
                    Some(names) if names != Names::None && fields_at.is_some() => {
                        json_fields(&mut cursor, names, slots)?
                    }
                    _ => cursor.skip(1)?,
                }
            }
            b"flag" => scanned.flag = json_int(&mut cursor)?.unwrap_or(scanned.flag),
            b"opaque" => scanned.opaque = json_int(&mut cursor)?.unwrap_or(scanned.opaque),
            b"version" => scanned.version = json_int(&mut cursor)?.unwrap_or(scanned.version),
            b"language" => scanned.language = json_language(&mut cursor)?,
            b"remark" => json_field_value(&mut cursor).map(drop)?,
            _ => cursor.skip(1)?,
        }
    }
    end(&mut cursor, frame)?;
    let names = Names::of(scanned.code);
    if let Some((at, taken)) = fields_at
        && taken != Some(names)
        && names != Names::None
    {
        *slots = Slots::default();
        json_fields(&mut Cursor::new(frame, at), names, slots)?;
    }
    Ok(())
}

/// Puts the wanted fields of an object into their slots; a later one of a name wins, `null` empties the slot.
fn json_fields(cursor: &mut Cursor<'_>, names: Names, slots: &mut Slots) -> Result<(), Malformed> {
    let mut members = cursor.enter_object(2)?;
    while members.next(cursor)? {
        let name = key(cursor)?;
        let value = json_field_value(cursor)?;
        if let Some(slot) = names.slot(&name) {
            slots[slot] = value;
        }
    }
    Ok(())
}

#[inline]
fn json_field_value(cursor: &mut Cursor<'_>) -> Result<Span, Malformed> {
    cursor.space();
    if matches!(cursor.peek(), Some(b'{' | b'[')) {
        let start = cursor.at;
        cursor.skip(2)?;
        return Ok(span(Token { start, end: cursor.at, escaped: false, quoted: true }));
    }
    let token = cursor.scalar()?;
    if !token.quoted && cursor.raw(token) == b"null" {
        return Ok(Span::default());
    }
    Ok(span(token))
}

#[inline]
fn span(token: Token) -> Span {
    Span { start: token.start as u32, len: (token.end - token.start) as u32, escaped: token.escaped }
}

fn scan_compact(header: &[u8], scanned: &mut ScannedHeader, slots: &mut Slots) -> Result<(), FrameError> {
    let mut reader = CompactReader::new(header);
    let fixed = reader.fixed()?;
    scanned.code = fixed.code;
    scanned.language = fixed.language;
    scanned.version = fixed.version;
    scanned.opaque = fixed.opaque;
    scanned.flag = fixed.flag;
    reader.remark()?;
    let names = Names::of(fixed.code);
    let mut entries = reader.entries()?;
    let mut put = |slot: usize, start: usize, len: usize| {
        // An empty value reads as absent in this form.
        let start = if len == 0 { 0 } else { (PREFIX_BYTES + start) as u32 };
        if let Some(place) = slots.get_mut(slot) {
            *place = Span { start, len: len as u32, escaped: false };
        }
    };
    if names == Names::SendShort {
        loop {
            if let Some((letter, value)) = entries.next_letter() {
                put(usize::from(letter.wrapping_sub(b'a')), value.start, value.len());
            } else if entries.next_entry()?.is_none() {
                return Ok(());
            }
        }
    }
    while let Some((name, value)) = entries.next_entry()? {
        if let Some(slot) = names.slot(name) {
            put(slot, entries.position() - value.len(), value.len());
        }
    }
    Ok(())
}

fn fields(frame: &[u8], code: i32, slots: &Slots) -> Result<Fields, FieldError> {
    let names = Names::of(code);
    let fields = Reader { frame, slots, names };
    match names {
        Names::SendShort | Names::SendLong => Ok(Fields::Send(SendHeader {
            producer_group: slots[0],
            topic: fields.required(1)?,
            default_topic: slots[2],
            default_topic_queue_nums: fields.optional_i32(3)?.unwrap_or(4),
            queue_id: fields.i32(4)?,
            sys_flag: fields.i32(5)?,
            born_timestamp_ms: fields.i64(6)?,
            flag: fields.i32(7)?,
            properties: slots[8],
            reconsume_times: fields.optional_i32(9)?.unwrap_or(0),
            unit_mode: fields.boolean(10),
            max_reconsume_times: fields.optional_i32(11)?,
            batch: fields.boolean(12),
        })),
        Names::Pull => Ok(Fields::Pull(PullHeader {
            group: fields.required(0)?,
            topic: fields.required(1)?,
            queue_id: fields.i32(2)?,
            queue_offset: fields.i64(3)?,
            max_msg_nums: fields.i32(4)?,
            sys_flag: fields.i32(5)?,
            commit_offset: fields.optional_i64(6)?.unwrap_or(0),
            suspend_timeout_ms: fields.optional_i64(7)?.unwrap_or(0),
            subscription: slots[8],
            sub_version: fields.optional_i64(9)?.unwrap_or(0),
            expression_type: slots[10],
        })),
        Names::Pop => Ok(Fields::Pop(PopHeader {
            group: fields.required(0)?,
            topic: fields.required(1)?,
            queue_id: fields.i32(2)?,
            born_ms: fields.optional_i64(3)?.unwrap_or(0),
            max_msg_nums: fields.i32(4)?,
            invisible_ms: fields.i64(5)?,
            poll_ms: fields.i64(6)?,
            init_mode: fields.i32(7)?,
            expression: slots[8],
            expression_type: slots[9],
            order: fields.boolean(10),
            attempt: slots[11],
        })),
        Names::End => Ok(Fields::End(EndHeader {
            producer_group: slots[0],
            table_offset: fields.i64(1)?,
            log_offset: fields.i64(2)?,
            end: fields.i32(3)?,
            from_check: fields.boolean(4),
        })),
        Names::None => Ok(Fields::Other),
    }
}

/// Turns slots into values.
struct Reader<'a> {
    frame: &'a [u8],
    slots: &'a Slots,
    names: Names,
}

impl Reader<'_> {
    fn error(&self, slot: usize, problem: Problem) -> FieldError {
        FieldError { field: self.names.long_name(slot), problem }
    }

    fn required(&self, slot: usize) -> Result<Span, FieldError> {
        let span = self.slots[slot];
        if span.is_present() { Ok(span) } else { Err(self.error(slot, Problem::Missing)) }
    }

    /// A number of plain digits.
    #[inline(always)]
    fn digits(&self, slot: usize) -> Option<i64> {
        let span = self.slots[slot];
        if span.len == 1 {
            let digit = self.frame[span.start as usize].wrapping_sub(b'0');
            return (digit <= 9).then_some(digit.into());
        }
        longer_digits(self.frame, span)
    }

    #[inline(always)]
    fn i64(&self, slot: usize) -> Result<i64, FieldError> {
        self.digits(slot).map_or_else(|| self.odd_i64(slot), Ok)
    }

    #[inline(always)]
    fn i32(&self, slot: usize) -> Result<i32, FieldError> {
        match self.digits(slot).map(i32::try_from) {
            Some(Ok(value)) => Ok(value),
            _ => self.odd_i32(slot),
        }
    }

    #[inline(always)]
    fn optional_i64(&self, slot: usize) -> Result<Option<i64>, FieldError> {
        if self.slots[slot].is_empty() { Ok(None) } else { self.i64(slot).map(Some) }
    }

    #[inline(always)]
    fn optional_i32(&self, slot: usize) -> Result<Option<i32>, FieldError> {
        if self.slots[slot].is_empty() { Ok(None) } else { self.i32(slot).map(Some) }
    }

    /// A number with a sign, of more digits or with escapes, or what is none.
    #[cold]
    #[inline(never)]
    fn odd_i64(&self, slot: usize) -> Result<i64, FieldError> {
        let span = self.slots[slot];
        if span.is_empty() {
            return Err(self.error(slot, Problem::Missing));
        }
        parse_i64(&span.text(self.frame)).map_err(|problem| self.error(slot, problem))
    }

    #[cold]
    #[inline(never)]
    fn odd_i32(&self, slot: usize) -> Result<i32, FieldError> {
        i32::try_from(self.odd_i64(slot)?).map_err(|_| self.error(slot, Problem::OutOfRange))
    }

    fn boolean(&self, slot: usize) -> bool {
        let span = self.slots[slot];
        span.len >= 4 && span.bytes(self.frame) != b"false" && span.text(self.frame).eq_ignore_ascii_case(b"true")
    }
}

/// Not to be compiled into each place that reads a number: most have one digit.
#[inline(never)]
fn longer_digits(frame: &[u8], span: Span) -> Option<i64> {
    plain::number(frame, span.start as usize, span.len as usize)
}

#[cfg(test)]
mod tests;
