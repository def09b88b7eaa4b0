#![no_main]

#[path = "../bodies/capi.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::said(bytes));
