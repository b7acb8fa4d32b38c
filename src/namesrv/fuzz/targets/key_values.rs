//! `namesrv::fuzz::key_values` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| namesrv::fuzz::key_values(data));
