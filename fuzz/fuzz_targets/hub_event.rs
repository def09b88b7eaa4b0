#![no_main]

#[path = "../bodies/hub.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::event(bytes));
