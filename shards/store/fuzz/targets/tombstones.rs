//! `store::fuzz_meta::tombstone_table` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| store::fuzz_meta::tombstone_table(data));
