//! The corpora of the fuzz targets, without a fuzzer.

#[path = "../../../fuzz/bodies/wire.rs"]
mod bodies;
#[path = "../../../fuzz/bodies/inputs.rs"]
mod inputs;

use inputs::inputs;

fn run(target: &str, body: fn(&[u8])) {
    for input in inputs(target) {
        body(&input);
        // Inputs with one flipped bit.
        for at in 0..input.len() {
            let mut damaged = input.clone();
            damaged[at] ^= 1 << (at % 8);
            body(&damaged);
        }
    }
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
