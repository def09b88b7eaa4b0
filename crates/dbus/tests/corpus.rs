//! The inputs of the fuzz targets, without a fuzzer.

#[path = "../../../fuzz/bodies/dbus.rs"]
mod bodies;

use std::path::Path;

fn run(target: &str, body: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut count = 0;
    for entry in std::fs::read_dir(directory).expect("the corpus is part of the repository") {
        let path = entry.expect("a readable folder").path();
        body(&std::fs::read(&path).expect("a readable file"));
        count += 1;
    }
    assert!(count > 0, "no inputs for `{target}`");
}

#[test]
fn messages_survive_their_corpus() {
    run("dbus_message", bodies::message);
}

#[test]
fn values_survive_their_corpus() {
    run("dbus_values", bodies::values);
}
