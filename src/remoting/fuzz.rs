//! Fuzz entry points of this crate's decoders: `fn(&[u8])` that panic when an invariant breaks.
//!
//! Role: the same functions run under `cargo fuzz` and under `message::fuzz_driver`. Test support only.
