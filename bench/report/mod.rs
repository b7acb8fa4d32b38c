//! Results as text, JSON, `.hgrm` and a page.
//!
//! Role: pure functions from results to text. Invariants: any result gives a text (empty series, one sample, huge values),
//! whatever its names contain; nothing is read, nothing is fetched. It knows no broker.

mod chart;
mod hgrm;
mod json;
mod page;
mod text;
pub mod units;

#[cfg(test)]
mod fixtures;

pub use hgrm::to_hgrm;
pub use json::{from_json, to_json};
pub use page::{Page, Row, Section, Table, page_of};
pub use text::{aligned, to_text};
