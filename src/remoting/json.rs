//! JSON as RocketMQ's Java side reads and writes it.
//!
//! Role: [`JsonRef`] reads a text in place, leniently (unquoted numeric keys, objects as keys, single quotes, bare words),
//! without allocating; [`Json`] is a value to be written, compact or pretty with tabs, byte for byte as RocketMQ 5.4.0 does.
//! Invariants: reading checks the whole text first, to a depth of 64; no input panics. It knows no body's shape.

use crate::cursor::{Cursor, MAX_DEPTH, Malformed, Members, unescape, write_text};
use std::borrow::Cow;
use thiserror::Error;

/// A text is no JSON, even by lenient rules; the byte where it stops making sense.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("malformed JSON at byte {0}")]
pub struct JsonError(pub usize);

impl From<Malformed> for JsonError {
    fn from(malformed: Malformed) -> Self {
        Self(malformed.0)
    }
}

/// A value inside a checked JSON text. Missing members read as `null`.
#[derive(Clone, Copy, Debug)]
pub struct JsonRef<'a> {
    /// Exactly this value.
    text: &'a [u8],
}

impl<'a> JsonRef<'a> {
    /// The value that no text stands for.
    pub const NULL: JsonRef<'static> = JsonRef { text: b"null" };

    /// Checks a whole text and gives its value.
    ///
    /// # Errors
    /// It is malformed, nested deeper than 64, or something follows the value.
    pub fn parse(text: &'a [u8]) -> Result<Self, JsonError> {
        let mut cursor = Cursor::new(text, 0);
        cursor.space();
        let start = cursor.at;
        cursor.skip(0)?;
        let end = cursor.at;
        cursor.space();
        if cursor.at != text.len() {
            return Err(JsonError(cursor.at));
        }
        Ok(Self { text: &text[start..end] })
    }

    /// The text of this value, quotes and brackets included.
    #[must_use]
    pub fn text(&self) -> &'a [u8] {
        self.text
    }

    /// Whether it is `null` (or was missing).
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.text == b"null"
    }

    /// Whether it is an object.
    #[must_use]
    pub fn is_object(&self) -> bool {
        self.text.first() == Some(&b'{')
    }

    /// Whether it is a list.
    #[must_use]
    pub fn is_list(&self) -> bool {
        self.text.first() == Some(&b'[')
    }

    /// The member of an object by name, the last one when there are several; `null` when there is none or this is no
    /// object.
    #[must_use]
    pub fn get(&self, name: &str) -> JsonRef<'a> {
        let found = self.entries().filter(|(key, _)| key.is_text(name)).last();
        found.map_or(JsonRef::NULL, |(_, value)| value)
    }

    /// The members of an object, keys as values (text, bare word or object); nothing for anything else.
    pub fn entries(&self) -> impl Iterator<Item = (JsonRef<'a>, JsonRef<'a>)> + use<'a> {
        let mut walk = Walk::new(self.text, b'{');
        std::iter::from_fn(move || {
            walk.more().then_some(())?;
            let key = walk.value()?;
            walk.cursor.expect(b':').ok()?;
            Some((key, walk.value()?))
        })
    }

    /// The items of a list; nothing for anything else.
    pub fn items(&self) -> impl Iterator<Item = JsonRef<'a>> + use<'a> {
        let mut walk = Walk::new(self.text, b'[');
        std::iter::from_fn(move || if walk.more() { walk.value() } else { None })
    }

    /// A scalar as text: quoted text without its escapes, or a bare word (number, `true`) as it stands. `None` for
    /// `null`, objects and lists. Bytes that are no UTF-8 are replaced.
    #[must_use]
    pub fn as_str(&self) -> Option<Cow<'a, str>> {
        if self.is_null() || self.is_object() || self.is_list() {
            return None;
        }
        let raw = self.unquoted();
        if !self.is_quoted() || !raw.contains(&b'\\') {
            return Some(String::from_utf8_lossy(raw));
        }
        let mut plain = Vec::with_capacity(raw.len());
        unescape(raw, &mut plain);
        Some(Cow::Owned(String::from_utf8_lossy(&plain).into_owned()))
    }

    /// A number, or a text that holds one, without fraction; `None` when it is anything else or out of range.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        let text = self.as_str()?;
        let text = text.trim();
        text.parse().ok().or_else(|| {
            let float: f64 = text.parse().ok()?;
            (float.fract() == 0.0 && float.abs() < 9.0e18).then_some(float as i64)
        })
    }

    /// As [`JsonRef::as_i64`], within 32 bits.
    #[must_use]
    pub fn as_i32(&self) -> Option<i32> {
        self.as_i64().and_then(|value| value.try_into().ok())
    }

    /// A finite number, or a text that holds one.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        self.as_str()?.trim().parse().ok().filter(|value: &f64| value.is_finite())
    }

    /// `true` or `false` in any case, as a word or as text; a number other than 0 is true.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        let text = self.as_str()?;
        if text.eq_ignore_ascii_case("true") {
            Some(true)
        } else if text.eq_ignore_ascii_case("false") {
            Some(false)
        } else {
            text.parse::<i64>().ok().map(|number| number != 0)
        }
    }

    /// A text, empty when it is none.
    #[must_use]
    pub fn string(&self) -> String {
        self.as_str().map(Cow::into_owned).unwrap_or_default()
    }

    fn is_text(&self, name: &str) -> bool {
        self.unquoted() == name.as_bytes()
            || (self.text.contains(&b'\\') && self.as_str().is_some_and(|key| key == name))
    }

    fn is_quoted(&self) -> bool {
        matches!(self.text.first(), Some(b'"' | b'\''))
    }

    fn unquoted(&self) -> &'a [u8] {
        if self.is_quoted() { &self.text[1..self.text.len() - 1] } else { self.text }
    }
}

/// Walks a checked object or list.
struct Walk<'a> {
    text: &'a [u8],
    cursor: Cursor<'a>,
    members: Option<Members>,
}

impl<'a> Walk<'a> {
    fn new(text: &'a [u8], open: u8) -> Self {
        let mut cursor = Cursor::new(text, 0);
        let members = match text.first() {
            Some(&byte) if byte == open && open == b'{' => cursor.enter_object(1).ok(),
            Some(&byte) if byte == open => cursor.enter_list(1).ok(),
            _ => None,
        };
        Self { text, cursor, members }
    }

    fn more(&mut self) -> bool {
        let more = self.members.as_mut().is_some_and(|members| members.next(&mut self.cursor) == Ok(true));
        if !more {
            self.members = None;
        }
        more
    }

    fn value(&mut self) -> Option<JsonRef<'a>> {
        self.cursor.space();
        let start = self.cursor.at;
        self.cursor.skip(0).ok()?;
        Some(JsonRef { text: &self.text[start..self.cursor.at] })
    }
}

/// A JSON value to be written.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number without fraction.
    Int(i64),
    /// A number, written as Java's `Double.toString`.
    Float(f64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Json>),
    /// Members in the order in which they are written.
    Object(Vec<(Key, Json)>),
}

/// The key of a member.
#[derive(Clone, Debug, PartialEq)]
pub enum Key {
    /// A quoted text.
    Text(Cow<'static, str>),
    /// A number without quotes, as Java's library writes integer keys.
    Int(i64),
    /// An object without quotes, as Java's library writes object keys.
    Object(Box<Json>),
}

impl From<&'static str> for Key {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Json {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for Json {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i32> for Json {
    fn from(value: i32) -> Self {
        Self::Int(value.into())
    }
}

impl From<i64> for Json {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<f64> for Json {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl<T: Into<Json>> From<Option<T>> for Json {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl Json {
    /// An object of fixed members; `null` values are left out, as Java's beans are written.
    #[must_use]
    pub fn bean<const N: usize>(members: [(&'static str, Json); N]) -> Self {
        let members = members.into_iter().filter(|(_, value)| *value != Json::Null);
        Self::Object(members.map(|(name, value)| (Key::from(name), value)).collect())
    }

    /// An object with a text key for each entry.
    pub fn map<V: Into<Json>>(entries: impl IntoIterator<Item = (String, V)>) -> Self {
        Self::Object(entries.into_iter().map(|(key, value)| (Key::from(key), value.into())).collect())
    }

    /// A list.
    pub fn list<V: Into<Json>>(items: impl IntoIterator<Item = V>) -> Self {
        Self::List(items.into_iter().map(Into::into).collect())
    }

    /// The compact text: no white space.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out, None);
        out
    }

    /// The text with line breaks and tabs, as RocketMQ writes its `config/*.json`.
    #[must_use]
    pub fn to_pretty(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out, Some(0));
        out
    }

    /// The same with integer keys quoted, all the way down: what strict JSON readers need.
    #[must_use]
    pub fn with_quoted_keys(self) -> Self {
        match self {
            Self::List(items) => Self::List(items.into_iter().map(Self::with_quoted_keys).collect()),
            Self::Object(members) => {
                let quoted = members.into_iter().map(|(key, value)| match key {
                    Key::Int(number) => (Key::from(number.to_string()), value.with_quoted_keys()),
                    key => (key, value.with_quoted_keys()),
                });
                Self::Object(quoted.collect())
            }
            scalar => scalar,
        }
    }

    /// A value of a text that was read.
    #[must_use]
    pub fn from_ref(value: JsonRef<'_>) -> Self {
        if value.is_null() {
            Self::Null
        } else if value.is_object() {
            Self::Object(value.entries().map(|(key, value)| (Key::from_ref(key), Self::from_ref(value))).collect())
        } else if value.is_list() {
            Self::List(value.items().map(Self::from_ref).collect())
        } else if value.is_quoted() {
            Self::Text(value.string())
        } else {
            match value.text {
                b"true" => Self::Bool(true),
                b"false" => Self::Bool(false),
                _ => value.string().parse().map(Self::Int).unwrap_or_else(|_| match value.as_f64() {
                    Some(number) => Self::Float(number),
                    None => Self::Text(value.string()),
                }),
            }
        }
    }

    /// `indent`: how deep a pretty text is here; `None` for a compact one.
    fn write(&self, out: &mut Vec<u8>, indent: Option<usize>) {
        match self {
            Self::Null => out.extend_from_slice(b"null"),
            Self::Bool(true) => out.extend_from_slice(b"true"),
            Self::Bool(false) => out.extend_from_slice(b"false"),
            Self::Int(value) => out.extend_from_slice(itoa::Buffer::new().format(*value).as_bytes()),
            Self::Float(value) => out.extend_from_slice(java_double(*value).as_bytes()),
            Self::Text(text) => write_text(out, text.as_bytes()),
            Self::List(items) if items.is_empty() => out.extend_from_slice(b"[]"),
            Self::List(items) => {
                let inner = indent.map(|depth| depth + 1);
                out.push(b'[');
                for (at, item) in items.iter().enumerate() {
                    separate(out, at, inner);
                    item.write(out, inner);
                }
                new_line(out, indent);
                out.push(b']');
            }
            Self::Object(members) => {
                let inner = indent.map(|depth| depth + 1);
                out.push(b'{');
                if members.is_empty() {
                    new_line(out, inner);
                }
                for (at, (key, value)) in members.iter().enumerate() {
                    separate(out, at, inner);
                    key.write(out, inner);
                    out.push(b':');
                    value.write(out, inner);
                }
                new_line(out, indent);
                out.push(b'}');
            }
        }
    }
}

impl Key {
    fn from_ref(key: JsonRef<'_>) -> Self {
        if key.is_object() {
            return Self::Object(Box::new(Json::from_ref(key)));
        }
        match key.string().parse() {
            Ok(number) if !key.is_quoted() => Self::Int(number),
            _ => Self::from(key.string()),
        }
    }

    fn write(&self, out: &mut Vec<u8>, indent: Option<usize>) {
        match self {
            Self::Text(text) => write_text(out, text.as_bytes()),
            Self::Int(value) => out.extend_from_slice(itoa::Buffer::new().format(*value).as_bytes()),
            Self::Object(value) => value.write(out, indent),
        }
    }
}

fn separate(out: &mut Vec<u8>, at: usize, indent: Option<usize>) {
    if at > 0 {
        out.push(b',');
    }
    new_line(out, indent);
}

fn new_line(out: &mut Vec<u8>, indent: Option<usize>) {
    if let Some(depth) = indent {
        out.push(b'\n');
        out.resize(out.len() + depth, b'\t');
    }
}

/// `Double.toString`: plain from 0.001 to 10^7, else with an exponent; always a fraction. What is no number is `null`.
fn java_double(value: f64) -> String {
    if !value.is_finite() {
        return "null".to_owned();
    }
    if value == 0.0 || (1.0e-3..1.0e7).contains(&value.abs()) {
        return format!("{value:?}");
    }
    let text = format!("{value:E}");
    match text.split_once('E') {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0E{exponent}"),
        _ => text,
    }
}

const _: () = assert!(MAX_DEPTH == 64, "the documentation above says so");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn again(text: &str) -> String {
        String::from_utf8(Json::from_ref(JsonRef::parse(text.as_bytes()).unwrap()).to_vec()).unwrap()
    }

    #[test]
    fn odd_shapes_of_java() {
        for same in [
            r#"{0:"a",1:"b"}"#,
            r#"{{"brokerName":"b","queueId":1,"topic":"T"}:7}"#,
            r#"{"a":[1,-2,3.5,true,false,"x"],"b":{},"c":[]}"#,
            r#"[]"#,
            r#""text""#,
            r#"12"#,
        ] {
            assert_eq!(again(same), same);
        }
        assert_eq!(again(" { 'a' : 'b\\'c' , \"n\" : null , k : word , } "), r#"{"a":"b'c","n":null,"k":"word"}"#);
        assert_eq!(again(r#"{"q":{ 0 : 1 }}"#), r#"{"q":{0:1}}"#);
        assert_eq!(again(r#"{"a":"\u4e3b\ud83d\ude00"}"#), r#"{"a":"主😀"}"#);
    }

    #[test]
    fn what_is_no_json() {
        for bad in [
            "",
            " ",
            "{",
            "}",
            "{]",
            "[1",
            "{\"a\"}",
            "{\"a\":}",
            "[1 2]",
            "{}x",
            "\"abc",
            "{\"a\":1 \"b\":2}",
            "[,]",
            "{,}",
        ] {
            assert!(JsonRef::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(JsonRef::parse(deep(64).as_bytes()).is_ok());
        assert!(JsonRef::parse(deep(65).as_bytes()).is_err());
        assert!(JsonRef::parse(deep(1 << 20).as_bytes()).is_err());
    }

    #[test]
    fn reading() {
        let value = JsonRef::parse(br#"{"n":"12","f":1.0,"t":true,"x":null,"n":13,"l":[1,{"a":2}],"o":{"k\u0041":1}}"#)
            .unwrap();
        assert_eq!(value.get("n").as_i32(), Some(13));
        assert_eq!(value.get("f").as_i64(), Some(1));
        assert_eq!(value.get("t").as_bool(), Some(true));
        assert!(value.get("x").is_null() && value.get("none").is_null());
        assert_eq!(value.get("l").items().nth(1).unwrap().get("a").as_i64(), Some(2));
        assert_eq!(value.get("o").get("kA").as_i64(), Some(1));
        assert_eq!(value.get("l").as_str(), None);
        assert_eq!(value.get("t").as_i64(), None);
    }

    #[test]
    fn keys_are_quoted_on_demand() {
        let value = Json::Object(vec![(Key::Int(0), Json::Object(vec![(Key::Int(1), Json::from("b"))]))]);
        assert_eq!(value.to_vec(), br#"{0:{1:"b"}}"#);
        assert_eq!(value.with_quoted_keys().to_vec(), br#"{"0":{"1":"b"}}"#);
    }

    #[test]
    fn doubles_of_java() {
        for (value, text) in [
            (0.0, "0.0"),
            (0.7, "0.7"),
            (1.0e10, "1.0E10"),
            (1.5e-5, "1.5E-5"),
            (1234567.0, "1234567.0"),
            (1.0e7, "1.0E7"),
            (0.001, "0.001"),
        ] {
            assert_eq!(java_double(value), text);
        }
    }

    fn any_json() -> impl Strategy<Value = Json> {
        let leaf = prop_oneof![
            Just(Json::Null),
            any::<bool>().prop_map(Json::Bool),
            any::<i64>().prop_map(Json::Int),
            any::<String>().prop_map(Json::Text),
        ];
        let key = prop_oneof![any::<String>().prop_map(Key::from), any::<i64>().prop_map(Key::Int)];
        leaf.prop_recursive(4, 40, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Json::List),
                prop::collection::vec((key.clone(), inner.clone()), 0..6).prop_map(Json::Object),
                (inner.clone(), inner).prop_map(|(key, value)| {
                    Json::Object(vec![(Key::Object(Box::new(Json::Object(vec![("k".into(), key)]))), value)])
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn written_values_read_back(value in any_json()) {
            for text in [value.to_vec(), value.to_pretty()] {
                let read = JsonRef::parse(&text).unwrap();
                prop_assert_eq!(&Json::from_ref(read), &value);
            }
        }
    }
}
