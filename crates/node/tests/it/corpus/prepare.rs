#[path = "../../../../../fuzz/bodies/node.rs"]
mod bodies;

use super::inputs::inputs;

/// Runs each input unchanged, truncated everywhere, and with every byte of its beginning modified.
fn run(target: &str, body: fn(&[u8])) {
    const CHANGED: usize = 100;
    for input in inputs(target) {
        body(&input);
        for at in 0..input.len().min(CHANGED) {
            body(&input[..at]);
            let mut changed = input.clone();
            changed[at] ^= 0x15;
            body(&changed);
        }
    }
}

#[test]
fn files_survive_their_corpus() {
    run("node_files", bodies::files);
}

#[test]
fn lists_of_images_survive_their_corpus() {
    run("node_manifest", bodies::manifest);
}

#[test]
fn lists_of_hashes_survive_their_corpus() {
    run("node_sums", bodies::sums);
}

#[test]
fn extension_releases_survive_their_corpus() {
    run("node_release", bodies::release);
}

#[test]
fn runtime_mappings_survive_their_corpus() {
    run("node_mappings", bodies::mappings);
}

#[test]
fn images_survive_their_corpus() {
    run("node_image", bodies::image);
}

#[test]
fn keyrings_and_signatures_survive_their_corpus() {
    run("node_signature", bodies::signature);
}
