//! The expressions that came with requests lately.
//!
//! Role: a client that brings its filter along brings the same one with each pull; it is compiled once for a core. Bounded: the
//! oldest goes first. What cannot be compiled is not kept.

use super::{Expression, FilterError};
use std::sync::Arc;

/// How many are kept.
pub const COMPILED: usize = 64;

/// Compiled expressions of one core.
#[derive(Debug, Default)]
pub struct Compiled {
    kept: Vec<Arc<Expression>>,
    /// Which goes next once it is full.
    oldest: usize,
}

impl Compiled {
    /// The expression of a text.
    ///
    /// # Errors
    /// As [`Expression::compile`].
    pub fn get(&mut self, text: &str) -> Result<Arc<Expression>, FilterError> {
        if let Some(known) = self.kept.iter().find(|known| known.text() == text) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(Expression::compile(text)?);
        if self.kept.len() < COMPILED {
            self.kept.push(Arc::clone(&made));
        } else {
            self.kept[self.oldest] = Arc::clone(&made);
            self.oldest = (self.oldest + 1) % COMPILED;
        }
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_compiled_once_while_it_is_kept() {
        let mut compiled = Compiled::default();
        let first = compiled.get("a = 0").unwrap();
        assert!(compiled.get("a =").is_err());
        for at in 1..COMPILED {
            compiled.get(&format!("a = {at}")).unwrap();
        }
        assert!(Arc::ptr_eq(&first, &compiled.get("a = 0").unwrap()));
        let last = compiled.get("b = 0").unwrap();
        assert!(!Arc::ptr_eq(&first, &compiled.get("a = 0").unwrap()), "the oldest went");
        assert!(Arc::ptr_eq(&last, &compiled.get("b = 0").unwrap()));
        assert_eq!(compiled.kept.len(), COMPILED);
    }
}
