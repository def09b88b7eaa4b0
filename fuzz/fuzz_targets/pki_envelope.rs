#![no_main]

#[path = "../bodies/envelope.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::envelope(bytes));
