//! Runs the inputs of the fuzz targets without a fuzzer.

#[path = "../../../fuzz/bodies/objects.rs"]
mod bodies;
#[path = "../../../fuzz/bodies/inputs.rs"]
mod inputs;

#[test]
fn answers_survive_their_corpus() {
    for input in inputs::inputs("objects_answer") {
        bodies::answer(&input);
    }
}
