//! `namesrv::fuzz::requests` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| namesrv::fuzz::requests(data));
