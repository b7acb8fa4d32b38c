//! Checks and tools of the project.
fn main() {}
