//! `store::fuzz::queue_table` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| store::fuzz::queue_table(data));
