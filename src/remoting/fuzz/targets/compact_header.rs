//! `remoting::fuzz::compact_header` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| remoting::fuzz::compact_header(data));
