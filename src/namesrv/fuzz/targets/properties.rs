//! `namesrv::fuzz::properties` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| namesrv::fuzz::properties(data));
