//! Runs the corpora of the fuzz targets without a fuzzer.

#[path = "../../../fuzz/bodies/cluster.rs"]
mod bodies;
#[path = "../../../fuzz/bodies/inputs.rs"]
mod inputs;

#[test]
fn frames_survive_their_corpus() {
    for input in inputs::inputs("cluster_frames") {
        bodies::frames(&input);
    }
}
