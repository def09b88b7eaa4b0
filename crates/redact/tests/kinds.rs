//! Kinds of secrets are removed from plain lines, and harmless values are kept. The data is in `matrix/`.

use std::collections::BTreeSet;

use landfall_redact::{Options, Redactor};
use proptest::strategy::{Strategy, ValueTree};
use proptest::string::string_regex;
use proptest::test_runner::TestRunner;
use serde::Deserialize;

const KINDS: &str = include_str!("matrix/kinds.toml");
const HARMLESS: &str = include_str!("matrix/harmless.toml");

const SAMPLES_OF_A_KIND: usize = 3;
const SAMPLES_OF_A_HARMLESS_VALUE: usize = 4;

/// Shorter pieces of a secret occur in harmless text.
const WINDOW: usize = 8;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kinds {
    kind: Vec<Kind>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kind {
    name: String,
    family: String,
    secret: String,
    text: String,
    promise: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HarmlessValues {
    harmless: Vec<Harmless>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Harmless {
    name: String,
    value: String,
    text: String,
}

/// Samples of an expression, the same in every run.
fn samples(name: &str, expression: &str, count: usize) -> Vec<String> {
    let mut runner = TestRunner::deterministic();
    let strategy = string_regex(expression).unwrap_or_else(|error| panic!("{name}: {error}"));
    let sample =
        |_| strategy.new_tree(&mut runner).unwrap_or_else(|error| panic!("{name}: {error}")).current();
    (0..count).map(sample).collect()
}

fn redact(redactor: &Redactor, text: &str) -> String {
    String::from_utf8_lossy(&redactor.redact(text.as_bytes(), Options::default()).0).into_owned()
}

fn survives(redacted: &str, secret: &str) -> bool {
    let window = WINDOW.min(secret.len());
    secret.as_bytes().windows(window).any(|part| memchr::memmem::find(redacted.as_bytes(), part).is_some())
}

fn names_are_unique<'n>(names: impl Iterator<Item = &'n str>) {
    let mut seen = BTreeSet::new();
    for name in names {
        assert!(seen.insert(name), "{name} occurs twice");
    }
}

#[test]
fn secrets_of_every_kind_are_removed() {
    let kinds = toml::from_str::<Kinds>(KINDS).unwrap().kind;
    assert!(kinds.len() >= 250, "{} kinds", kinds.len());
    names_are_unique(kinds.iter().map(|kind| kind.name.as_str()));
    let redactor = Redactor::builder().build().unwrap();
    let mut failures = Vec::new();
    for kind in &kinds {
        assert!(!kind.family.is_empty() && !kind.promise.is_empty(), "{}", kind.name);
        for secret in samples(&kind.name, &kind.secret, SAMPLES_OF_A_KIND) {
            assert!(secret.len() >= WINDOW, "{}: `{secret}` is too short", kind.name);
            let text = kind.text.replace("{secret}", &secret);
            assert!(text.contains(&secret), "{}: the text does not contain the secret", kind.name);
            let redacted = redact(&redactor, &text);
            if survives(&redacted, &secret) {
                failures.push(format!("{}: {redacted}", kind.name));
            }
        }
    }
    assert!(failures.is_empty(), "{} secrets survive:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn harmless_values_are_kept() {
    let values = toml::from_str::<HarmlessValues>(HARMLESS).unwrap().harmless;
    names_are_unique(values.iter().map(|harmless| harmless.name.as_str()));
    let redactor = Redactor::builder().build().unwrap();
    let mut changed = Vec::new();
    let mut count = 0;
    for harmless in &values {
        for value in samples(&harmless.name, &harmless.value, SAMPLES_OF_A_HARMLESS_VALUE) {
            let text = harmless.text.replace("{value}", &value);
            let redacted = redact(&redactor, &text);
            count += 1;
            if redacted != text {
                changed.push(format!("{}: {text} -> {redacted}", harmless.name));
            }
        }
    }
    assert!(count >= 1000, "{count} harmless values");
    assert!(
        changed.len() * 200 <= count,
        "{} of {count} harmless values are changed:\n{}",
        changed.len(),
        changed.join("\n")
    );
}
