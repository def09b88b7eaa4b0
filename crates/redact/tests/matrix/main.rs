//! Redaction of all kinds of secrets in all carriers.
//!
//! The secrets in `kinds.toml` are written in each program's notation of `carriers.rs` and must be removed
//! completely. The values in `harmless.toml` must be kept.
//!
//! `LANDFALL_MATRIX=kind×carrier` runs the cells whose names contain these words, and prints their input and
//! output.

#![expect(clippy::print_stderr, reason = "a test that was asked to show its texts")]

mod carriers;
mod readings;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use landfall_redact::{Options, Redactor};
use proptest::strategy::{Strategy, ValueTree as _};
use proptest::string::string_regex;
use proptest::test_runner::TestRunner;
use serde::Deserialize;

use carriers::{CARRIERS, Carrier};

const KINDS_MIN: usize = 250;
const CARRIERS_MIN: usize = 80;
const HARMLESS_MIN: usize = 1000;

/// Samples of each secret in plain lines.
const KIND_SAMPLES: usize = 3;

/// Samples of each harmless value.
const HARMLESS_SAMPLES: usize = 4;

/// Maximum replaced harmless values, per thousand.
const REPLACED_MAX: usize = 5;

/// Maximum withheld harmless lines in a carrier, per thousand.
const WITHHELD_MAX: usize = 5;

/// Consecutive bytes of a secret that count as a leak.
const LEAK: usize = 8;

/// Maximum leaks printed per carrier.
const SHOWN_MAX: usize = 6;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kinds {
    kind: Vec<Kind>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kind {
    name: String,
    #[expect(dead_code, reason = "the documentation is made from it")]
    family: String,
    secret: String,
    text: String,
    #[expect(dead_code, reason = "the documentation is made from it")]
    promise: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HarmlessTexts {
    harmless: Vec<Harmless>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Harmless {
    name: String,
    value: String,
    text: String,
}

fn kinds() -> Vec<Kind> {
    toml::from_str::<Kinds>(include_str!("kinds.toml")).expect("kinds.toml has the form of Kind").kind
}

fn harmless() -> Vec<Harmless> {
    toml::from_str::<HarmlessTexts>(include_str!("harmless.toml"))
        .expect("harmless.toml has its form")
        .harmless
}

/// Generates the same values in each run.
fn samples(expression: &str, count: usize) -> Vec<String> {
    let mut runner = TestRunner::deterministic();
    let strategy = string_regex(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
    (0..count).map(|_| strategy.new_tree(&mut runner).expect("a value").current()).collect()
}

/// Returns the requested kinds and carriers.
fn filter() -> Option<(String, String)> {
    let wanted = std::env::var("LANDFALL_MATRIX").ok()?;
    let (kind, carrier) = wanted.split_once('×').unwrap_or((&wanted, ""));
    Some((kind.to_owned(), carrier.to_owned()))
}

/// Returns the part of the secret that is left, if any.
fn leak(output: &[u8], carrier: &Carrier, secret: &str) -> Option<String> {
    let secret = secret.trim();
    let pieces: BTreeSet<&[u8]> =
        secret.lines().flat_map(|line| line.trim().as_bytes().windows(LEAK)).collect();
    let readings = readings::of(output, carrier.reading);
    let left =
        readings.iter().flat_map(|reading| reading.windows(LEAK)).find(|window| pieces.contains(window))?;
    Some(String::from_utf8_lossy(left).into_owned())
}

#[test]
fn no_kind_leaks_in_any_carrier() {
    let kinds = kinds();
    assert!(kinds.len() >= KINDS_MIN, "{} kinds", kinds.len());
    assert!(CARRIERS.iter().filter(|carrier| !carrier.of_commands).count() >= CARRIERS_MIN);
    let names: BTreeSet<&str> = CARRIERS.iter().map(|carrier| carrier.name).collect();
    assert_eq!(names.len(), CARRIERS.len(), "names of carriers are unique");
    let names: BTreeSet<&str> = kinds.iter().map(|kind| kind.name.as_str()).collect();
    assert_eq!(names.len(), kinds.len(), "names of kinds are unique");
    let redactor = Redactor::builder().build().unwrap();
    let (filter, threads) = (filter(), std::thread::available_parallelism().map_or(1, usize::from));
    let found: Vec<Found<'_>> = std::thread::scope(|scope| {
        let parts = kinds.chunks(kinds.len().div_ceil(threads));
        let threads: Vec<_> =
            parts.map(|part| scope.spawn(|| cells(&redactor, part, filter.as_ref()))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let cells: usize = found.iter().map(|found| found.cells).sum();
    let leaks: Vec<Leak<'_>> = found.into_iter().flat_map(|found| found.leaks).collect();
    assert!(leaks.is_empty(), "{} of {cells} leak\n{}", leaks.len(), shown(&leaks));
    assert!(filter.is_some() || cells >= KINDS_MIN * CARRIERS_MIN, "{cells} cells");
}

/// A kind, a carrier, and the rest of the secret.
type Leak<'k> = (&'k str, &'static str, String);

/// Result for a part of the matrix.
struct Found<'k> {
    cells: usize,
    leaks: Vec<Leak<'k>>,
}

/// Redacts each of these kinds in each carrier.
fn cells<'k>(redactor: &Redactor, kinds: &'k [Kind], filter: Option<&(String, String)>) -> Found<'k> {
    let mut found = Found { cells: 0, leaks: Vec::new() };
    for kind in kinds {
        assert!(kind.text.contains("{secret}"), "{}", kind.name);
        for (number, secret) in samples(&kind.secret, KIND_SAMPLES).iter().enumerate() {
            let text = kind.text.trim_matches('\n').replace("{secret}", secret);
            let is_command = carriers::is_command(&text);
            // Plain lines get all samples, other carriers one.
            let carriers = if number == 0 { CARRIERS } else { &CARRIERS[..1] };
            for carrier in carriers.iter().filter(|carrier| !carrier.of_commands || is_command) {
                let is_wanted = |(wanted_kind, wanted): &(String, String)| {
                    kind.name.contains(wanted_kind) && carrier.name.contains(wanted)
                };
                if filter.is_none_or(is_wanted) {
                    found.cells += 1;
                    let left = cell(redactor, kind, carrier, &text, secret, filter.is_some());
                    found.leaks.extend(left.map(|left| (kind.name.as_str(), carrier.name, left)));
                }
            }
        }
    }
    found
}

/// Redacts a text in a carrier, and returns a part of the secret that is left.
fn cell(
    redactor: &Redactor,
    kind: &Kind,
    carrier: &Carrier,
    text: &str,
    secret: &str,
    is_shown: bool,
) -> Option<String> {
    let input = (carrier.write)(text);
    if leak(&input, carrier, secret).is_none() {
        return Some(format!("the carrier does not hold {secret:?}"));
    }
    let output = carrier.redact(redactor, &input);
    if is_shown {
        let end =
            |text: &[u8]| String::from_utf8_lossy(&text[text.len().saturating_sub(4000)..]).into_owned();
        eprintln!("=== {} × {}\n{}\n---\n{}", kind.name, carrier.name, end(&input), end(&output));
    }
    leak(&output, carrier, secret)
}

/// Formats the kinds that leak in plain lines, the carriers in which others leak, and examples for each
/// carrier.
fn shown(leaks: &[Leak<'_>]) -> String {
    let plain: BTreeSet<&str> =
        leaks.iter().filter(|leak| leak.1 == CARRIERS[0].name).map(|leak| leak.0).collect();
    let mut of_carriers: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for (kind, carrier, left) in leaks.iter().filter(|leak| !plain.contains(leak.0)) {
        of_carriers.entry(carrier).or_default().push((kind, left));
    }
    let mut of_carriers: Vec<_> = of_carriers.into_iter().collect();
    of_carriers.sort_by_key(|(_, leaks)| std::cmp::Reverse(leaks.len()));
    let mut text = format!("in plain lines: {plain:?}\n");
    for (carrier, leaks) in of_carriers {
        let _ = writeln!(text, "{} in {carrier}:", leaks.len());
        for (kind, left) in leaks.iter().take(SHOWN_MAX) {
            let _ = writeln!(text, "    {kind}: {left}");
        }
    }
    text
}

#[test]
fn harmless_values_stay() {
    let redactor = Redactor::builder().build().unwrap();
    let (mut values, mut replaced) = (0, Vec::new());
    for harmless in harmless() {
        assert!(harmless.text.contains("{value}"), "{}", harmless.name);
        for value in samples(&harmless.value, HARMLESS_SAMPLES) {
            values += 1;
            let text = harmless.text.replace("{value}", &value);
            let (output, _) = redactor.redact(text.as_bytes(), Options::default());
            if output != text.as_bytes() {
                replaced.push(format!("{text} -> {}", String::from_utf8_lossy(&output)));
            }
        }
    }
    assert!(values >= HARMLESS_MIN, "{values} values");
    assert!(
        replaced.len() * 1000 <= values * REPLACED_MAX,
        "{} of {values} were replaced:\n{}",
        replaced.len(),
        replaced.join("\n")
    );
}

#[test]
fn harmless_lines_are_not_withheld() {
    let redactor = Redactor::builder().build().unwrap();
    let texts = harmless().into_iter().flat_map(|harmless| {
        let text = harmless.text.trim_matches('\n').to_owned();
        let values = samples(&harmless.value, HARMLESS_SAMPLES).into_iter();
        values.map(move |value| text.replace("{value}", &value))
    });
    let text = texts.collect::<Vec<_>>().join("\n");
    let lines = text.lines().count();
    let mut withheld = Vec::new();
    // A text on one line, or in one payload, is withheld completely if a part of it is.
    let carriers = CARRIERS.iter().filter(|carrier| !carrier.of_commands && !carrier.is_late());
    for carrier in carriers.filter(|carrier| carrier.reading != readings::Reading::Encoded) {
        let input = (carrier.write)(&text);
        if input.iter().filter(|byte| **byte == b'\n').count() < lines {
            continue;
        }
        let output = carrier.redact(&redactor, &input);
        let count = String::from_utf8_lossy(&output).matches("***WITHHELD").count();
        if count * 1000 > lines * WITHHELD_MAX {
            withheld.push(format!("{count} of {lines} in {}", carrier.name));
        }
    }
    assert!(withheld.is_empty(), "{}", withheld.join("\n"));
}
