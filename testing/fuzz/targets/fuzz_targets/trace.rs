//! The fuzz target `trace` for libFuzzer; its body is in testing/fuzz.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| railweave_fuzz::run("trace", bytes));
