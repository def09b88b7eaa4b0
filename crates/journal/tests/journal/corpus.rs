//! The fuzz targets' corpora, run as plain tests: what once was found stays fixed, without a fuzzer at hand.

use std::fs;
use std::path::Path;

#[path = "../../../../fuzz/bodies/journal.rs"]
mod bodies;

fn run(target: &str, body: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut inputs = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        body(&fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs > 0, "no corpus in {}", folder.display());
}

#[test]
fn journal_file() {
    run("journal_file", bodies::file);
}

#[test]
fn journal_export() {
    run("journal_export", bodies::export);
}

#[test]
fn journal_json() {
    run("journal_json", bodies::json);
}
