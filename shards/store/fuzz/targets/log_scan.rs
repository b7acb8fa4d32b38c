//! `store::fuzz_meta::log_scan` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| store::fuzz_meta::log_scan(data));
