//! `namesrv::fuzz::registration` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| namesrv::fuzz::registration(data));
