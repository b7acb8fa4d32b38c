//! `store::fuzz::dispatch_records` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| store::fuzz::dispatch_records(data));
