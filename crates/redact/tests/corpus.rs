//! The inputs of the fuzz targets, run as plain tests.

#[path = "../../../fuzz/bodies/redact.rs"]
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
fn lines() {
    run("redact_lines", bodies::lines);
}

#[test]
fn cri() {
    run("redact_cri", bodies::cri);
}

#[test]
fn journal() {
    run("redact_journal", bodies::journal);
}
