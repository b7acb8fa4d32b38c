//! Request frames made once, with holes that each use fills: opaque, numbers, texts; the body comes behind.
//!
//! Invariants: what is written equals what `remoting` would encode of the same command (tests); lengths in it are right
//! whatever the holes take. Texts for holes need no escaping in JSON: [`is_plain`].

use remoting::codes::version;
use remoting::{RequestCode, SerializeType};

/// Places of a [`Values::texts`].
pub const TEXTS: usize = 4;

/// What goes into a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hole {
    /// [`Values::queue`], decimal.
    Queue,
    /// [`Values::unique`], 16 hexadecimal digits.
    Unique,
    /// [`Values::number`], decimal.
    Number,
    /// [`Values::other`], decimal.
    Other,
    /// [`Values::born_ms`], decimal.
    BornMs,
    /// One of [`Values::texts`].
    Text(usize),
}

/// A part of a field's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Always the same.
    Fixed(String),
    /// Another one for each use.
    Hole(Hole),
}

/// A header field: its name, and its value in parts.
pub type Field = (&'static str, Vec<Part>);

/// A field that is always the same.
pub fn fixed(name: &'static str, value: impl ToString) -> Field {
    (name, vec![Part::Fixed(value.to_string())])
}

/// A field that is one hole.
pub fn hole(name: &'static str, hole: Hole) -> Field {
    (name, vec![Part::Hole(hole)])
}

/// What fills the holes of one use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Values<'a> {
    /// Ties the answer to the request.
    pub opaque: i32,
    /// Queue.
    pub queue: u32,
    /// Number of the message, part of its unique key.
    pub unique: u64,
    /// An offset, or what the template takes it for.
    pub number: i64,
    /// A second number.
    pub other: i64,
    /// Time of the request, ms since 1970.
    pub born_ms: i64,
    /// Names.
    pub texts: [&'a [u8]; TEXTS],
}

#[derive(Clone, Copy, Debug)]
enum Op {
    /// Bytes of the template.
    Bytes(u32, u32),
    Hole(Hole),
    /// The opaque, as the form has it.
    Opaque,
    /// Four bytes for the length of what comes until the `Close` of the same depth.
    Open(usize),
    Close(usize),
}

/// A request with holes.
#[derive(Clone, Debug)]
pub struct Template {
    form: SerializeType,
    bytes: Vec<u8>,
    ops: Vec<Op>,
    /// Room that one use needs at most, without texts and body.
    room: usize,
}

/// Whether a text may fill a hole: printable ASCII that JSON writes as it is, or a separator-free name.
pub fn is_plain(text: &[u8]) -> bool {
    text.iter().all(|b| (0x20..0x7F).contains(b) && !matches!(b, b'"' | b'\\' | b'/'))
}

impl Template {
    /// A request of a code with its fields in this order. `flag`: 0, or 2 for one without an answer.
    pub fn new(form: SerializeType, code: RequestCode, flag: i32, fields: &[Field]) -> Template {
        let mut template = Template { form, bytes: Vec::new(), ops: Vec::new(), room: 64 };
        match form {
            SerializeType::Json => template.json(code.to_i32(), flag, fields),
            SerializeType::Compact => template.compact(code.to_i32(), flag, fields),
        }
        let holes = template.ops.iter().filter(|op| !matches!(op, Op::Bytes(..))).count();
        template.room += template.bytes.len() + 20 * holes;
        template
    }

    fn json(&mut self, code: i32, flag: i32, fields: &[Field]) {
        self.fix(format!("{{\"code\":{code},\"extFields\":{{").as_bytes());
        for (n, (name, value)) in fields.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            self.fix(format!("{comma}\"{name}\":\"").as_bytes());
            for part in value {
                match part {
                    Part::Fixed(text) => self.fix(json_text(text).as_bytes()),
                    Part::Hole(hole) => self.ops.push(Op::Hole(*hole)),
                }
            }
            self.fix(b"\"");
        }
        self.fix(format!("}},\"flag\":{flag},\"language\":\"JAVA\",\"opaque\":").as_bytes());
        self.ops.push(Op::Opaque);
        self.fix(format!(",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":{}}}", version::CURRENT).as_bytes());
    }

    fn compact(&mut self, code: i32, flag: i32, fields: &[Field]) {
        self.fix(&(code as i16).to_be_bytes());
        self.fix(&[0]);
        self.fix(&(version::CURRENT as i16).to_be_bytes());
        self.ops.push(Op::Opaque);
        self.fix(&flag.to_be_bytes());
        self.fix(&0i32.to_be_bytes());
        self.ops.push(Op::Open(0));
        for (name, value) in fields {
            self.fix(&(name.len() as i16).to_be_bytes());
            self.fix(name.as_bytes());
            self.ops.push(Op::Open(1));
            for part in value {
                match part {
                    Part::Fixed(text) => self.fix(text.as_bytes()),
                    Part::Hole(hole) => self.ops.push(Op::Hole(*hole)),
                }
            }
            self.ops.push(Op::Close(1));
        }
        self.ops.push(Op::Close(0));
    }

    fn fix(&mut self, bytes: &[u8]) {
        let from = self.bytes.len() as u32;
        self.bytes.extend_from_slice(bytes);
        match self.ops.last_mut() {
            Some(Op::Bytes(_, to)) => *to = self.bytes.len() as u32,
            _ => self.ops.push(Op::Bytes(from, self.bytes.len() as u32)),
        }
    }

    /// Appends the frame of one use. What of a body comes in `body`; more may be appended behind it with
    /// [`extend_body`].
    pub fn write(&self, out: &mut Vec<u8>, values: &Values<'_>, body: &[u8]) {
        let texts: usize = values.texts.iter().map(|text| text.len()).sum();
        out.reserve(self.room + texts + body.len());
        let start = out.len();
        out.extend_from_slice(&[0; 8]);
        let mut opened = [0; 2];
        for op in &self.ops {
            match *op {
                Op::Bytes(from, to) => out.extend_from_slice(&self.bytes[from as usize..to as usize]),
                Op::Hole(hole) => fill(out, hole, values),
                Op::Opaque if self.form == SerializeType::Json => decimal(out, i64::from(values.opaque)),
                Op::Opaque => out.extend_from_slice(&values.opaque.to_be_bytes()),
                Op::Open(depth) => {
                    opened[depth] = out.len();
                    out.extend_from_slice(&[0; 4]);
                }
                Op::Close(depth) => {
                    let at = opened[depth];
                    let length = (out.len() - at - 4) as u32;
                    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
                }
            }
        }
        let header = (out.len() - start - 8) as u32;
        out.extend_from_slice(body);
        let total = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&total.to_be_bytes());
        out[start + 4..start + 8].copy_from_slice(&((self.form as u32) << 24 | header).to_be_bytes());
    }
}

/// Makes the frame at `start` reach to the end of `out`: bytes of its body were appended.
pub fn extend_body(out: &mut [u8], start: usize) {
    let total = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&total.to_be_bytes());
}

fn fill(out: &mut Vec<u8>, hole: Hole, values: &Values<'_>) {
    match hole {
        Hole::Queue => decimal(out, i64::from(values.queue)),
        Hole::Unique => out.extend_from_slice(&hex(values.unique)),
        Hole::Number => decimal(out, values.number),
        Hole::Other => decimal(out, values.other),
        Hole::BornMs => decimal(out, values.born_ms),
        Hole::Text(place) => out.extend_from_slice(values.texts[place]),
    }
}

fn decimal(out: &mut Vec<u8>, number: i64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// 16 hexadecimal digits.
pub fn hex(number: u64) -> [u8; 16] {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut digits = [0; 16];
    for (n, digit) in digits.iter_mut().enumerate() {
        *digit = DIGITS[(number >> (60 - 4 * n)) as usize & 15];
    }
    digits
}

/// A text between the quotes of JSON.
fn json_text(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use remoting::Command;

    fn fields() -> Vec<Field> {
        vec![
            fixed("a", "group"),
            hole("b", Hole::Text(0)),
            hole("e", Hole::Queue),
            hole("g", Hole::BornMs),
            (
                "i",
                vec![
                    Part::Fixed("UNIQ_KEY\u{1}7F00000100002A13".into()),
                    Part::Hole(Hole::Unique),
                    Part::Fixed("\u{2}TAGS\u{1}".into()),
                    Part::Hole(Hole::Text(1)),
                    Part::Fixed("\u{2}".into()),
                ],
            ),
            hole("n", Hole::Number),
            hole("o", Hole::Other),
        ]
    }

    /// The same by the codec of the product.
    fn command(form: SerializeType, flag: i32, values: &Values<'_>, body: &[u8]) -> Command {
        let text = |at: usize| String::from_utf8(values.texts[at].to_vec()).unwrap();
        let mut command = Command::request(RequestCode::SendMessageV2, values.opaque).with_body(body.to_vec());
        command.serialize_type = form;
        command.flag = flag;
        command
            .with_field("a", "group")
            .with_field("b", text(0))
            .with_field("e", values.queue)
            .with_field("g", values.born_ms)
            .with_field(
                "i",
                format!("UNIQ_KEY\u{1}7F00000100002A13{:016X}\u{2}TAGS\u{1}{}\u{2}", values.unique, text(1)),
            )
            .with_field("n", values.number)
            .with_field("o", values.other)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn frames_are_those_of_the_codec(
            numbers in (any::<i32>(), any::<u32>(), any::<u64>(), any::<i64>(), any::<i64>(), any::<i64>()),
            topic in "[a-zA-Z0-9_%|-]{1,200}",
            tag in "[a-zA-Z0-9]{1,20}",
            body in prop::collection::vec(any::<u8>(), 0..300),
            compact: bool,
            oneway: bool,
        ) {
            let (opaque, queue, unique, number, other, born_ms) = numbers;
            let texts = [topic.as_bytes(), tag.as_bytes(), b"", b""];
            let values = Values { opaque, queue, unique, number, other, born_ms, texts };
            let form = if compact { SerializeType::Compact } else { SerializeType::Json };
            let flag = if oneway { 2 } else { 0 };
            let template = Template::new(form, RequestCode::SendMessageV2, flag, &fields());
            let mut out = b"before".to_vec();
            template.write(&mut out, &values, &body);
            let wanted = command(form, flag, &values, &body);
            prop_assert_eq!(&out[6..], &wanted.to_frame()[..]);
            prop_assert_eq!(Command::decode(&out[6..]).unwrap(), wanted);
            prop_assert!(is_plain(topic.as_bytes()));
        }
    }

    #[test]
    fn a_body_can_be_extended() {
        let template = Template::new(SerializeType::Json, RequestCode::SendBatchMessage, 0, &fields());
        let mut out = b"x".to_vec();
        template.write(&mut out, &Values::default(), b"one");
        out.extend_from_slice(b"two");
        extend_body(&mut out, 1);
        assert_eq!(Command::decode(&out[1..]).unwrap().body, b"onetwo");
    }

    #[test]
    fn texts_that_need_an_escape_are_not_plain() {
        assert!(is_plain(b"") && is_plain(b"%RETRY%g|t_1-2 x"));
        for text in [&b"\""[..], b"\\", b"\n", b"\x01", b"\xC3\xA9", b"a/b"] {
            assert!(!is_plain(text), "{text:?}");
        }
    }
}
