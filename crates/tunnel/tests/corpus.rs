//! The corpora of the fuzz targets, without a fuzzer.

#[path = "../../../fuzz/bodies/http2.rs"]
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
fn the_server_survives_its_corpus() {
    run("http2_server", bodies::server);
}

#[test]
fn the_client_survives_its_corpus() {
    run("http2_client", bodies::client);
}

#[test]
fn packets_survive_their_corpus() {
    run("http2_packets", bodies::packets);
}
