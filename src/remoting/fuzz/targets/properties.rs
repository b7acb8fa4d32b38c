//! `message::fuzz::properties` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| message::fuzz::properties(data));
