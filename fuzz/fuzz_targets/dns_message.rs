#![no_main]

#[path = "../bodies/dns.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::message(bytes));
