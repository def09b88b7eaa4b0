//! Logs of real components that were broken deliberately (`e2e/`): the rules must name the fault.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use landfall_diagnose::{Engine, RuleSet, Stream};
use regex::Regex;

/// Fewer would mean that fixtures are missing, not that there are fewer faults.
const LEAST: usize = 25;

#[test]
fn every_kept_breakage_is_named() {
    name_every_breakage(|log| log);
}

/// Times, process IDs and ports are arbitrary.
///
/// Rules that match significant numbers must not match them there.
#[test]
fn no_verdict_hangs_on_a_number_that_is_chance() {
    let fraction = Regex::new(r"(:\d\d\.)\d{6}\b").unwrap();
    let process = Regex::new(r"(\w\[|:\d\d\.\d{6} +)\d+(\]:| \w)").unwrap();
    let port = Regex::new(r"(landfall\.test:)\d{5}\b").unwrap();
    for (code, tail) in
        [("2379", "1"), ("2380", "4"), ("403", ""), ("401", ""), ("404", ""), ("503", ""), ("137", "")]
    {
        name_every_breakage(|log| {
            let log = fraction.replace_all(&log, format!("${{1}}{code:0<6}")).into_owned();
            // The service manager is always process 1.
            let log = process.replace_all(&log, format!("${{1}}{code}${{2}}")).into_owned();
            let log = log.replace(&format!("systemd[{code}]"), "systemd[1]");
            port.replace_all(&log, format!("${{1}}{code}{tail}")).into_owned()
        });
    }
}

fn name_every_breakage(changed: impl Fn(String) -> String) {
    let engine = Engine::new(RuleSet::embedded().unwrap()).unwrap();
    let mut count = 0;
    let mut wrong = Vec::new();
    for folder in entries(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/breakages")) {
        // The directory is named after the cause.
        let cause = folder.file_name().unwrap().to_string_lossy().into_owned();
        for path in entries(&folder) {
            count += 1;
            let log = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
            let mut case = engine.open();
            let source = case.add_source("log", "text");
            case.add(source, engine.scan(&Stream::default(), 1, changed(log).as_bytes()));
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
