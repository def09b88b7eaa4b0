//! The texts that rules and milestones recognize, for tests that write them where they must not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Maximum length of a process name, the shortest carrier.
const NAME: usize = 15;

/// Returns the examples and literals of all rules and milestones, by effect: phrases of one effect cannot
/// cancel each other out.
pub(crate) fn phrases() -> BTreeMap<String, BTreeSet<String>> {
    let mut phrases: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../rules")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "toml") {
            continue;
        }
        let file: toml::Table = fs::read_to_string(&path).unwrap().parse().unwrap();
        let blocks = ["rule", "milestone"].into_iter().filter_map(|kind| file.get(kind)?.as_array());
        for block in blocks.flatten() {
            let effect = block.get("event").and_then(toml::Value::as_str).unwrap_or("rule");
            let examples = texts(block.get("examples").and_then(|examples| examples.get("yes")));
            let mut literals = texts(block.get("match").and_then(|spec| spec.get("any")));
            // Examples contain them; short ones fit where an example does not.
            literals.retain(|literal| {
                literal.len() <= NAME || !examples.iter().any(|example| example.contains(literal))
            });
            phrases.entry(effect.to_owned()).or_default().extend(examples.into_iter().chain(literals));
        }
    }
    assert!(phrases.values().map(BTreeSet::len).sum::<usize>() > 1000);
    phrases
}

fn texts(array: Option<&toml::Value>) -> Vec<String> {
    let texts = array.and_then(toml::Value::as_array).into_iter().flatten();
    texts.filter_map(|text| text.as_str()).map(|text| text.replace('\n', " ")).collect()
}
