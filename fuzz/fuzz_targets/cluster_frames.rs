#![no_main]

#[path = "../bodies/cluster.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::frames(bytes));
