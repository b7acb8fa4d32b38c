//! `store::fuzz::entries` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| store::fuzz::entries(data));
