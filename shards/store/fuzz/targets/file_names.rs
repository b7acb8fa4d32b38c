//! `store::fuzz::file_names` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| store::fuzz::file_names(data));
