//! The inputs of the fuzz targets, run as plain tests.

#[path = "../../../fuzz/bodies/evidence.rs"]
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
fn tar() {
    run("evidence_tar", bodies::tar);
}

#[test]
fn zip() {
    run("evidence_zip", bodies::zip);
}

#[test]
fn evtx() {
    run("evidence_evtx", bodies::evtx);
}

#[test]
fn utf16() {
    run("evidence_utf16", bodies::utf16);
}

#[test]
fn any() {
    run("evidence_any", bodies::any);
}
