//! `store::fuzz_meta::placement` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| store::fuzz_meta::placement(data));
