//! The inputs of the fuzz targets, without a fuzzer.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../fuzz/bodies/wire.rs"]
mod bodies;

use std::path::Path;

fn run(target: &str, body: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut inputs = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        body(&bytes);
        // What a bit of damage makes of it.
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            body(&damaged);
        }
        inputs += 1;
    }
    assert!(inputs > 0, "no inputs for {target}");
}

#[test]
fn hellos() {
    run("wire_hello", bodies::hello);
}

#[test]
fn proxy_headers() {
    run("wire_proxy", bodies::proxy);
}

#[test]
fn protocols() {
    run("wire_protocol", bodies::protocol);
}
