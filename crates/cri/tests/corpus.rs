//! The corpora of the fuzz targets, without a fuzzer.

#[path = "../../../fuzz/bodies/cri.rs"]
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
fn replies_survive_their_corpus() {
    run("cri_reply", bodies::reply);
}

#[test]
fn messages_survive_their_corpus() {
    run("cri_messages", bodies::messages);
}
