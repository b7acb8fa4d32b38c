//! Header fields of a command, and reading them by type.
//!
//! Role: an ordered list of names and texts, as both serializations carry it, with the rules of Java's types: what is
//! missing, no number or out of range is a [`FieldError`] that names the field and becomes an answer.

use thiserror::Error;

/// Header fields: names and texts, in the order in which they came. A later value of a name replaces an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtFields {
    fields: Vec<(String, String)>,
    /// Whether they are written at all, be it as an empty object.
    present: bool,
}

impl ExtFields {
    /// No fields, but written as an empty object (Java does so for responses that have a header class).
    #[must_use]
    pub fn empty() -> Self {
        Self { fields: Vec::new(), present: true }
    }

    pub(crate) fn is_present(&self) -> bool {
        self.present
    }

    pub(crate) fn set_present(&mut self, present: bool) {
        self.present = present;
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

/// Up to here names are compared with each other: more than any request has.
const FEW_FIELDS: usize = 16;

/// Collects fields so that many equal or unequal names stay cheap: a map is built only when there are more than a few.
#[derive(Default)]
pub(crate) struct FieldCollector {
    fields: Vec<(String, Option<String>)>,
}

impl FieldCollector {
    pub(crate) fn add(&mut self, name: String, value: Option<String>) {
        self.fields.push((name, value));
    }

    /// The last value of each name, at the place of the first; names whose last value is `null` are left out.
    pub(crate) fn finish(mut self) -> ExtFields {
        // Comparing a few names with each other is cheaper than a map of them.
        if self.fields.len() > FEW_FIELDS {
            self.merge_many();
        } else {
            self.merge_few();
        }
        let fields = self.fields.into_iter().filter_map(|(name, value)| value.map(|value| (name, value))).collect();
        ExtFields { fields, present: true }
    }

    fn merge_few(&mut self) {
        let mut at = 1;
        while at < self.fields.len() {
            let name = &self.fields[at].0;
            match self.fields[..at].iter().position(|(other, _)| other == name) {
                Some(first) => self.fields[first].1 = self.fields.remove(at).1,
                None => at += 1,
            }
        }
    }

    fn merge_many(&mut self) {
        let mut places = std::collections::HashMap::with_capacity(self.fields.len());
        let mut fields: Vec<(String, Option<String>)> = Vec::with_capacity(self.fields.len());
        for (name, value) in self.fields.drain(..) {
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
        self.fields = fields;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_fields_are_merged_alike() {
        for count in [0, 1, 3, FEW_FIELDS, FEW_FIELDS + 1, 60] {
            let collect = || {
                let mut collector = FieldCollector::default();
                for at in 0..count {
                    // Names come twice and more, the last time of some is null.
                    collector.add((at * 7 % 5).to_string(), (at % 3 > 0).then(|| at.to_string()));
                }
                collector
            };
            let (mut few, mut many) = (collect(), collect());
            few.merge_few();
            many.merge_many();
            assert_eq!(few.fields, many.fields);
            assert!(few.fields.len() == count.min(5) && collect().finish().len() <= few.fields.len());
        }
    }
}
