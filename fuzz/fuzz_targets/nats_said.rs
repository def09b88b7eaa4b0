#![no_main]

#[path = "../bodies/nats.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::said(bytes));
