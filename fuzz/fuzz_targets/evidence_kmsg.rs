#![no_main]

#[path = "../bodies/evidence.rs"]
#[expect(dead_code, reason = "each target runs one of the bodies")]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::kmsg(bytes));
