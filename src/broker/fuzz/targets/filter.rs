//! `broker::filter::fuzz::filter` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| broker::filter::fuzz::filter(data));
