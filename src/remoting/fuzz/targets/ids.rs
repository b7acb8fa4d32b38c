//! `message::fuzz::ids` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| message::fuzz::ids(data));
