//! The `ringmq` program.
fn main() {}
