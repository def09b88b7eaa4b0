//! The inputs of the fuzz targets, run as plain tests.

#[path = "../../../fuzz/bodies/dns.rs"]
mod bodies;
#[path = "../../../fuzz/bodies/inputs.rs"]
mod inputs;

use inputs::inputs;

fn run(target: &str, body: fn(&[u8])) {
    for input in inputs(target) {
        body(&input);
    }
}

#[test]
fn dns_messages_survive_their_corpus() {
    run("dns_message", bodies::message);
}
