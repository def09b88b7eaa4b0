//! The corpora of the fuzz targets, without a fuzzer.

#[path = "../../../fuzz/bodies/dbus.rs"]
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
fn messages_survive_their_corpus() {
    run("dbus_message", bodies::message);
}

#[test]
fn values_survive_their_corpus() {
    run("dbus_values", bodies::values);
}
