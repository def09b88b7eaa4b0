//! The corpus of the fuzz target, without a fuzzer.

#[path = "../../../fuzz/bodies/nats.rs"]
mod bodies;
#[path = "../../../fuzz/bodies/inputs.rs"]
mod inputs;

#[test]
fn servers_may_say_anything() {
    for bytes in inputs::inputs("nats_said") {
        bodies::said(&bytes);
    }
}
