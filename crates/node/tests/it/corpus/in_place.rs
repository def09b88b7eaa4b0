#[path = "../../../../../fuzz/bodies/inplace.rs"]
mod bodies;

use super::inputs::inputs;

/// Runs each input unchanged, truncated, and modified at positions all over it.
fn run(target: &str, body: fn(&[u8])) {
    const PLACES: usize = 120;
    for input in inputs(target) {
        body(&input);
        for at in (0..input.len()).step_by((input.len() / PLACES).max(1)) {
            body(&input[..at]);
            let mut changed = input.clone();
            changed[at] ^= 0x15;
            body(&changed);
        }
    }
}

#[test]
fn ignition_survives_its_corpus() {
    run("inplace_ignition", bodies::ignition);
}

#[test]
fn manifests_survive_their_corpus() {
    run("inplace_manifest", bodies::manifest);
}

#[test]
fn settings_survive_their_corpus() {
    run("inplace_settings", bodies::settings);
}

#[test]
fn messages_survive_their_corpus() {
    run("inplace_messages", bodies::messages);
}

#[test]
fn archives_survive_their_corpus() {
    run("inplace_archive", bodies::archive);
}
