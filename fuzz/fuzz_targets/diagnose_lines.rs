#![no_main]

#[path = "../bodies/diagnose.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::lines(bytes));
