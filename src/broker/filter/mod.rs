//! SQL92 filters: the text of a subscription, compiled once, asked for each message.
//!
//! Role: which messages a subscription of the type `SQL92` wants, by their properties alone, as the reference decides it. Pure:
//! no clock, no request, no store. A text is compiled to a tree whose names are numbered; a message's properties text is scanned
//! once and nothing is allocated for up to [`INLINE_NAMES`] names.
//!
//! Rules of the reference that surprise, kept on purpose because clients rely on the same messages:
//! - A property is always a text. Beside a number it is read as a number of that very kind: `6.5` is none beside `5`, but is one
//!   beside `5.0`; a number over the range of its kind is none.
//! - What cannot be compared makes the whole expression not match, whatever stands beside it in an OR. It is never an error.
//! - Comparison with what is missing is unknown, by the usual three values; two missing properties are equal, and a property
//!   that is there differs from one that is missing.
//! - A property alone is never true. `NOT` binds tighter than a comparison.
//! - What follows a whole expression is not looked at (one token of it is read): `a = 1 b` is `a = 1`. See
//!   [`Expression::ignores_rest`].
//!
//! Different from it: `TRUE = a` reads `a` as a truth value like `a = TRUE` does; a hexadecimal number with a fraction or exponent
//! is not read as a number; depth and length have limits.

mod compiled;
mod evaluate;
mod lexer;
mod number;
mod parser;

pub mod fuzz;

#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;

pub use compiled::Compiled;

use smallvec::{SmallVec, smallvec};
use std::fmt;

/// Longest text of an expression, in bytes.
pub const MAX_TEXT_BYTES: usize = 4 << 10;
/// Deepest nesting: brackets and signs within each other, or comparisons applied to comparisons.
pub const MAX_DEPTH: u32 = 64;
/// Distinct property names of an expression up to which a message costs no allocation.
pub const INLINE_NAMES: usize = 16;

/// Why a text is no filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause} at character {position}")]
pub struct FilterError {
    /// Where, in characters from 1 on.
    pub position: usize,
    /// What is wrong there.
    pub cause: String,
}

/// A compiled filter. Equal when the texts are.
pub struct Expression {
    text: Box<str>,
    root: evaluate::Node,
    /// Sorted; a property of the tree is an index here.
    names: Box<[Box<[u8]>]>,
    ignores_rest: bool,
}

impl Expression {
    /// Compiles a text.
    ///
    /// # Errors
    /// It is longer than [`MAX_TEXT_BYTES`], nested deeper than [`MAX_DEPTH`], or not an expression.
    pub fn compile(text: &str) -> Result<Self, FilterError> {
        if text.len() > MAX_TEXT_BYTES {
            let position = text.floor_char_boundary(MAX_TEXT_BYTES);
            return Err(error(text, position, format!("a filter has at most {MAX_TEXT_BYTES} bytes: it goes on")));
        }
        let parser::Parsed { root, names, ignores_rest } = parser::parse(text)?;
        Ok(Self { text: text.into(), root, names, ignores_rest })
    }

    /// Whether a message with this properties text is wanted. Never fails: what cannot be compared is no match.
    #[must_use]
    pub fn matches(&self, properties: &[u8]) -> bool {
        let mut values: SmallVec<[Option<&[u8]>; INLINE_NAMES]> = smallvec![None; self.names.len()];
        if !values.is_empty() {
            for (name, value) in message::properties::pairs(properties) {
                if let Ok(at) = self.names.binary_search_by(|known| (**known).cmp(name)) {
                    values[at] = Some(value);
                }
            }
        }
        evaluate::is_true(&self.root, &values)
    }

    /// The text that it was compiled from.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether something follows the expression in its text. It has no effect, which its author hardly wanted.
    #[must_use]
    pub fn ignores_rest(&self) -> bool {
        self.ignores_rest
    }

    /// Bytes on the heap, without the text; for the fuzz target.
    fn heap_bytes(&self) -> usize {
        self.root.heap_bytes() + self.names.iter().map(|name| name.len() + size_of::<Box<[u8]>>()).sum::<usize>()
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Expression {}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.text).finish()
    }
}

/// An error at a byte of the text.
fn error(text: &str, at: usize, cause: impl Into<String>) -> FilterError {
    let before = text.get(..at).unwrap_or(text);
    FilterError { position: before.chars().count() + 1, cause: cause.into() }
}
