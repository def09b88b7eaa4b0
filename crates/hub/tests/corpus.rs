//! The inputs of the fuzz target, without a fuzzer.

#[path = "../../../fuzz/bodies/hub.rs"]
mod bodies;
#[path = "../../../fuzz/bodies/inputs.rs"]
mod inputs;

#[test]
fn anybody_may_call_anything_an_event() {
    for bytes in inputs::inputs("hub_event") {
        bodies::event(&bytes);
    }
}
