//! The corpora of the fuzz targets as regular tests, so that known defects stay fixed without a fuzzer.

#[path = "../../../../fuzz/bodies/journal.rs"]
mod bodies;
#[path = "../../../../fuzz/bodies/inputs.rs"]
mod inputs;

use inputs::inputs;

fn run(target: &str, body: fn(&[u8])) {
    for input in inputs(target) {
        body(&input);
    }
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
