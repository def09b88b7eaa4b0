//! Runs the corpora of the fuzz targets without a fuzzer.

#[path = "../../../fuzz/bodies/capi.rs"]
mod bodies;
#[path = "../../../fuzz/bodies/inputs.rs"]
mod inputs;

#[test]
fn what_is_said_survives_its_corpus() {
    for input in inputs::inputs("capi_said") {
        bodies::said(&input);
    }
}
