#![no_main]

#[path = "../bodies/objects.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::answer(bytes));
