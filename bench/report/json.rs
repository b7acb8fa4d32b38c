//! A result as one JSON object on one line, and back.

use crate::result::RunResult;

/// One line without its end.
///
/// # Errors
/// None for results of a run; kept for values that JSON cannot hold.
pub fn to_json(result: &RunResult) -> serde_json::Result<String> {
    serde_json::to_string(result)
}

/// Reads what [`to_json`] has written, also by an older version.
///
/// # Errors
/// What is not JSON, and a result without a field that has no default.
pub fn from_json(text: &str) -> serde_json::Result<RunResult> {
    serde_json::from_str(text)
}
