//! Example lines of the diagnosis rules are unchanged: redaction does not hide evidence.

use std::path::Path;

use landfall_redact::{Options, Redactor};
use toml::Value;

/// Examples that contain a secret, with the reason.
const WITH_SECRETS: &[(&str, &str)] = &[
    ("+ kubeadm join 10.0.0.1:6443 --token abcdef.0123456789abcdef", "has the form of a bootstrap token"),
    ("kubeadm join 10.0.0.1:6443 --token abcdef.0123456789abcdef \\", "has the form of a bootstrap token"),
];

/// Collects all strings in `examples`.
fn examples<'v>(value: &'v Value, inside: bool, found: &mut Vec<&'v str>) {
    match value {
        Value::String(text) if inside => found.push(text),
        Value::Array(values) => values.iter().for_each(|value| examples(value, inside, found)),
        Value::Table(table) => {
            for (key, value) in table {
                examples(value, inside || key == "examples", found);
            }
        }
        _ => {}
    }
}

#[test]
fn example_lines_of_the_rules_are_kept() {
    let redactor = Redactor::builder().build().unwrap();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../rules");
    let mut count = 0;
    let mut changed = Vec::new();
    for entry in std::fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let file: Value = toml::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let mut lines = Vec::new();
        examples(&file, false, &mut lines);
        count += lines.len();
        for line in lines {
            let (redacted, _) = redactor.redact(line.as_bytes(), Options::default());
            let redacted = String::from_utf8_lossy(&redacted);
            if redacted != line && !WITH_SECRETS.iter().any(|(example, _)| *example == line) {
                changed.push(format!("{}: {line} -> {redacted}", path.display()));
            }
        }
    }
    assert!(count >= 500, "{count} examples");
    assert!(changed.is_empty(), "{} examples are changed:\n{}", changed.len(), changed.join("\n"));
}
