//! The inputs of a fuzz target, for tests that run them without a fuzzer.

use std::path::Path;

/// Returns all inputs of a target, sorted by name. Panics if there are none.
pub(crate) fn inputs(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).expect("the corpus is part of the repository");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("the corpus can be listed").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "no inputs for `{target}`");
    paths.iter().map(|path| std::fs::read(path).expect("the corpus can be read")).collect()
}
