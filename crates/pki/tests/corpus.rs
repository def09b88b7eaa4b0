//! The inputs of the fuzz target, without a fuzzer.

#[path = "../../../fuzz/bodies/envelope.rs"]
mod bodies;
#[path = "../../../fuzz/bodies/inputs.rs"]
mod inputs;

#[test]
fn an_envelope_proves_nothing_but_its_signature() {
    for bytes in inputs::inputs("pki_envelope") {
        bodies::envelope(&bytes);
    }
}
