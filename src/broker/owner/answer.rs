//! Who asked, and the forms of an answer.

use super::{Origin, OwnerAction, Refusal};
use remoting::command::FieldError;
use remoting::json::JsonRef;
use remoting::{Command, LanguageCode, ResponseCode, SerializeType};

/// Where the answer of one request goes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asker {
    /// Connection and address.
    pub origin: Origin,
    /// The client's language.
    pub language: LanguageCode,
    /// The client's version.
    pub version: i32,
    code: i32,
    opaque: i32,
    form: SerializeType,
    oneway: bool,
}

/// What became of a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// This is the answer.
    Now(Command),
    /// It is answered later.
    Later,
}

impl Asker {
    /// Of a request.
    pub fn of(origin: Origin, command: &Command) -> Self {
        Self {
            origin,
            language: command.language,
            version: command.version,
            code: command.code,
            opaque: command.opaque,
            form: command.serialize_type,
            oneway: command.is_oneway(),
        }
    }

    /// An answer with this code.
    pub fn response(&self, code: ResponseCode) -> Command {
        Command::response(code, self.opaque, self.form)
    }

    /// Success.
    pub fn ok(&self) -> Command {
        self.response(ResponseCode::Success)
    }

    /// Success with a JSON body.
    pub fn json(&self, body: &remoting::Json) -> Command {
        self.ok().with_body(body.to_vec())
    }

    /// A refusal.
    pub fn refuse(&self, refusal: &Refusal) -> Command {
        Command::response(refusal.code, self.opaque, self.form).with_remark(refusal.remark.clone())
    }

    /// Code 3.
    pub fn unsupported(&self) -> Command {
        self.response(ResponseCode::RequestCodeNotSupported)
            .with_remark(format!(" request type {} not supported", self.code))
    }

    /// Sends an answer, unless none is wanted.
    pub fn answer(&self, response: Command, out: &mut Vec<OwnerAction>) {
        if !self.oneway {
            out.push(OwnerAction::Reply { origin: self.origin, response });
        }
    }
}

impl Refusal {
    /// A refusal.
    pub fn new(code: ResponseCode, remark: impl Into<String>) -> Self {
        Self { code: code.to_i32(), remark: remark.into() }
    }

    /// A bad parameter (29).
    pub fn parameter(remark: impl Into<String>) -> Self {
        Self::new(ResponseCode::InvalidParameter, remark)
    }
}

impl From<FieldError> for Refusal {
    fn from(error: FieldError) -> Self {
        Self::new(ResponseCode::SystemError, error.to_string())
    }
}

/// The JSON object in a request's body.
pub(crate) fn body_object(command: &Command) -> Result<JsonRef<'_>, Refusal> {
    let bad = |why: String| Refusal::new(ResponseCode::SystemError, format!("the body is not as expected: {why}"));
    let json = JsonRef::parse(&command.body).map_err(|e| bad(e.to_string()))?;
    if json.is_object() { Ok(json) } else { Err(bad("no JSON object".into())) }
}
