//! The inputs of the fuzz targets, run as plain tests.

#[path = "../../../fuzz/bodies/redact.rs"]
mod bodies;

use std::path::Path;

fn run(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut inputs = 0;
    for entry in std::fs::read_dir(&folder).expect("the corpus is part of the repository") {
        let path = entry.expect("the corpus can be listed").path();
        body(&std::fs::read(path).expect("the corpus can be read"));
        inputs += 1;
    }
    assert!(inputs > 0, "{target} has no corpus");
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
