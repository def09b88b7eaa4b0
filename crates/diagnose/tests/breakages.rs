//! What real components logged when they were broken on purpose (`e2e/`): the rules must still name what was broken.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use landfall_diagnose::{Engine, RuleSet, Stream};

/// Fewer would mean that the fixtures are gone, not that nothing is broken.
const LEAST: usize = 25;

#[test]
fn every_kept_breakage_is_named() {
    let engine = Engine::new(RuleSet::embedded().unwrap()).unwrap();
    let mut count = 0;
    let mut wrong = Vec::new();
    for folder in entries(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/breakages")) {
        // The folder is named after the cause.
        let cause = folder.file_name().unwrap().to_string_lossy().into_owned();
        for path in entries(&folder) {
            count += 1;
            let mut case = engine.open();
            let source = case.add_source("log", "text");
            case.add(source, engine.scan(&Stream::default(), 1, &fs::read(&path).unwrap()));
            let verdict = case.finish().verdict;
            if verdict.cause.as_ref().map(landfall_model::Cause::as_str) != Some(cause.as_str()) {
                let name = path.file_stem().unwrap().to_string_lossy().into_owned();
                wrong.push(format!(
                    "{name}: expected {cause}, got {:?} ({})",
                    verdict.cause,
                    verdict.confidence.value()
                ));
            }
        }
    }
    assert!(count >= LEAST, "only {count} fixtures");
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}
