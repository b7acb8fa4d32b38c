//! The words of an expression.
//!
//! Role: cuts a text into tokens as the reference's grammar does: the longest token wins, key words count in any case, names
//! keep theirs. Comments and white space are skipped; a line comment needs its line end, else it is two signs. Allocates nothing.

use super::{FilterError, error};

/// A token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// The end of the text.
    End,
    /// A key word.
    Word(Word),
    /// A property.
    Name(&'a str),
    /// Digits, without the `L` that may follow them.
    Whole(&'a str),
    /// A number with a point or an exponent.
    Decimal(&'a str),
    /// What stands between quotes; a quote within is still doubled.
    Text(&'a str),
    /// A sign.
    Sign(Sign),
}

macro_rules! listed {
    ($(#[$about:meta])* $name:ident { $($variant:ident $text:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum $name {
            $(#[doc = $text] $variant,)+
        }

        impl $name {
            const ALL: &'static [($name, &'static str)] = &[$(($name::$variant, $text),)+];

            /// As it is written.
            pub(super) fn text(self) -> &'static str {
                Self::ALL.iter().find(|(one, _)| *one == self).map_or("", |(_, text)| text)
            }
        }
    };
}

listed! {
    /// Key words.
    Word {
        Not "NOT",
        And "AND",
        Or "OR",
        Between "BETWEEN",
        In "IN",
        True "TRUE",
        False "FALSE",
        Null "NULL",
        Is "IS",
        Contains "CONTAINS",
        StartsWith "STARTSWITH",
        EndsWith "ENDSWITH",
    }
}

listed! {
    /// Signs, longer ones before those that they begin with.
    Sign {
        NotEqual "<>",
        AtLeast ">=",
        AtMost "<=",
        Equal "=",
        Greater ">",
        Less "<",
        Open "(",
        Close ")",
        Comma ",",
        Plus "+",
        Minus "-",
    }
}

impl Token<'_> {
    /// How an error calls it.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::End => "the end".to_owned(),
            Self::Word(word) => word.text().to_owned(),
            Self::Name(name) => format!("the property {name}"),
            Self::Whole(number) | Self::Decimal(number) => format!("the number {number}"),
            Self::Text(text) => format!("the text '{text}'"),
            Self::Sign(sign) => sign.text().to_owned(),
        }
    }
}

/// Cuts a text into tokens.
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// The next token and where it begins, in bytes.
    pub(super) fn next(&mut self) -> Result<(Token<'a>, usize), FilterError> {
        self.skip_blank();
        let at = self.at;
        let rest = &self.text[at..];
        let Some(first) = rest.chars().next() else { return Ok((Token::End, at)) };
        let (token, len) = match first {
            'a'..='z' | 'A'..='Z' | '_' | '$' => name_or_word(rest),
            '\'' => self.quoted(rest)?,
            '0'..='9' | '.' => match number(rest) {
                Some(found) => found,
                None => return Err(error(self.text, at, "a point without a digit")),
            },
            _ => match Sign::ALL.iter().find(|(_, text)| rest.starts_with(text)) {
                Some((sign, text)) => (Token::Sign(*sign), text.len()),
                None if rest.starts_with("!=") => return Err(error(self.text, at, "!= is not known (it is <>)")),
                None => return Err(error(self.text, at, format!("the character {first:?} has no meaning here"))),
            },
        };
        self.at += len;
        Ok((token, at))
    }

    fn skip_blank(&mut self) {
        loop {
            let rest = &self.text[self.at..];
            let skipped = match rest.as_bytes() {
                [b' ' | b'\t' | b'\n' | b'\r' | b'\x0c', ..] => Some(1),
                [b'-', b'-', ..] => rest.find(['\n', '\r']).map(|end| end + 1),
                [b'/', b'*', ..] => rest[2..].find("*/").map(|end| end + 4),
                _ => None,
            };
            match skipped {
                Some(len) => self.at += len,
                None => return,
            }
        }
    }

    /// The longest text in quotes: a doubled quote goes on, unless no quote closes what comes after it.
    fn quoted(&self, rest: &'a str) -> Result<(Token<'a>, usize), FilterError> {
        let bytes = rest.as_bytes();
        let mut at = 1;
        let mut closed = None;
        while let Some(step) = memchr::memchr(b'\'', &bytes[at..]) {
            at += step;
            closed = Some((Token::Text(&rest[1..at]), at + 1));
            if bytes.get(at + 1) != Some(&b'\'') {
                break;
            }
            at += 2;
        }
        closed.ok_or_else(|| error(self.text, self.at, "a text without its closing quote"))
    }
}

fn name_or_word(rest: &str) -> (Token<'_>, usize) {
    let len = rest.bytes().take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$')).count();
    let name = &rest[..len];
    let word = Word::ALL.iter().find(|(_, text)| text.eq_ignore_ascii_case(name));
    (word.map_or(Token::Name(name), |(word, _)| Token::Word(*word)), len)
}

/// The longest number: digits with a point or an exponent, else one `0`, else digits and perhaps an `L`.
fn number(rest: &str) -> Option<(Token<'_>, usize)> {
    let bytes = rest.as_bytes();
    let digits = |from: usize| bytes[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let whole = digits(0);
    let mut end = whole;
    if bytes.get(end) == Some(&b'.') {
        let fraction = digits(end + 1);
        if whole + fraction == 0 {
            return None;
        }
        end += 1 + fraction;
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        match digits((end + 1 + sign).min(bytes.len())) {
            0 => {}
            exponent => end += 1 + sign + exponent,
        }
    }
    if end > whole {
        return Some((Token::Decimal(&rest[..end]), end));
    }
    if bytes[0] == b'0' {
        return Some((Token::Whole("0"), 1));
    }
    let suffix = usize::from(matches!(bytes.get(end), Some(b'l' | b'L')));
    Some((Token::Whole(&rest[..end]), end + suffix))
}
