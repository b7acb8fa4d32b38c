//! Results as text, JSON, `.hgrm` and a page.
//!
//! Role: pure functions from results to text. Invariants: any result gives a text (empty series, one sample, huge values),
//! whatever its names contain; nothing is read, nothing is fetched. It knows no broker.

mod json;

pub use json::{from_json, to_json};
