//! `remoting::fuzz::frame` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| remoting::fuzz::frame(data));
