//! The data file of patterns and field names, read once and made ready to match.

use std::sync::{Arc, OnceLock};

use regex::bytes::{Regex, RegexBuilder};
use serde::Deserialize;

use crate::frame::Prefixes;
use crate::literals::Literals;
use crate::resolved::View;
use crate::{BuildError, Kind};

const BUILT_IN: &str = include_str!("../redact.toml");

/// Delimiters after the value of a field with a defined form.
const BEHIND_VALUE: &str = r#"$|[\s"'`\\<>&,;()\[\]{}|]"#;

/// A compiled pattern may take this much memory; patterns of ours need a tenth.
const REGEX_SIZE_MAX: usize = 4 << 20;

pub(crate) struct Rules {
    pub(crate) patterns: Vec<Pattern>,
    pub(crate) fields: Vec<Field>,
    /// Finds every literal of every rule in one pass; the number of a word is an index into `triggers`.
    pub(crate) literals: Literals,
    pub(crate) triggers: Vec<Vec<Trigger>>,
    /// The start of a here-document.
    pub(crate) here_document: Regex,
    pub(crate) prefixes: Prefixes,
}

pub(crate) struct Pattern {
    pub(crate) kind: Kind,
    pub(crate) regex: Regex,
    pub(crate) min: usize,
    pub(crate) mixed: bool,
}

pub(crate) struct Field {
    pub(crate) kind: Kind,
    pub(crate) matches: NameMatch,
    pub(crate) place: Place,
    pub(crate) value: Option<Regex>,
    pub(crate) min: usize,
    pub(crate) mixed: bool,
}

/// What to look for where a literal was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    Pattern(usize),
    Field(usize),
    /// A notation that must be resolved before the line is understood.
    View(View),
    /// An equals sign at the end of a line: of quoted-printable, or of Base64.
    SoftLineEnd,
    /// A backslash that continues a command in the next line.
    ContinuedLine,
    /// Two quotes behind a name: one that is written twice, if a value follows.
    DoubledQuotes,
    /// The text of a line of a log driver, which a later line may continue.
    DividedLine,
    /// `-----BEGIN `
    Pem,
    /// The label of a private key: of its last line, if its first line is missing.
    PemEnd,
    /// kubeadm announces its certificate key.
    CertificateKey,
    /// The dump that Ignition makes of its whole configuration when it fails.
    IgnitionDump,
    /// cloud-init announces the passwords that it made.
    RandomPasswords,
    /// The name of an array of Vault's keys.
    KeyArray,
    /// The first line of a cloud-config document.
    CloudConfig,
    /// `<<`, which may start a here-document.
    HereDocument,
    /// The kind of a Secret object.
    SecretObject,
    /// A field named `value`, which belongs to the name before it.
    NamedValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NameMatch {
    Whole,
    Suffix,
    Upper,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Place {
    Anywhere,
    Field,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    pattern: Vec<PatternEntry>,
    field: Vec<FieldEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PatternEntry {
    name: String,
    kind: String,
    literals: Vec<String>,
    regex: String,
    #[serde(default = "one")]
    min: usize,
    #[serde(default)]
    mixed: bool,
    #[cfg_attr(not(test), expect(dead_code, reason = "the examples are tests"))]
    redacts: Vec<(String, String)>,
    #[cfg_attr(not(test), expect(dead_code, reason = "the examples are tests"))]
    keeps: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldEntry {
    name: String,
    kind: String,
    names: Vec<String>,
    r#match: NameMatch,
    place: Place,
    value: Option<String>,
    #[serde(default = "one")]
    min: usize,
    #[serde(default)]
    mixed: bool,
    #[cfg_attr(not(test), expect(dead_code, reason = "the examples are tests"))]
    redacts: Vec<(String, String)>,
    #[cfg_attr(not(test), expect(dead_code, reason = "the examples are tests"))]
    keeps: Vec<String>,
}

const MACHINES: [(&str, Trigger); 69] = [
    (", '-", Trigger::View(View::Arguments)),
    (",'-", Trigger::View(View::Arguments)),
    (", \"-", Trigger::View(View::Arguments)),
    (",\"-", Trigger::View(View::Arguments)),
    (", \\\"-", Trigger::View(View::Arguments)),
    (",\\\"-", Trigger::View(View::Arguments)),
    ("\" \"-", Trigger::View(View::Arguments)),
    ("\\\" \\\"-", Trigger::View(View::Arguments)),
    (", -", Trigger::View(View::Arguments)),
    (" argc=", Trigger::View(View::Arguments)),
    ("\\u00", Trigger::View(View::Escapes)),
    ("\\x", Trigger::View(View::Escapes)),
    ("\\'", Trigger::View(View::Escapes)),
    ("\\/", Trigger::View(View::Escapes)),
    ("\\\\\\\"", Trigger::View(View::Escapes)),
    ("\\\\n", Trigger::View(View::Escapes)),
    ("\\\\t", Trigger::View(View::Escapes)),
    ("=\\t", Trigger::View(View::Escapes)),
    ("#012", Trigger::View(View::Octal)),
    ("#011", Trigger::View(View::Octal)),
    ("#033[", Trigger::View(View::Terminal)),
    ("\\033[", Trigger::View(View::Terminal)),
    ("^[[", Trigger::View(View::Terminal)),
    ("&quot;", Trigger::View(View::Entities)),
    ("&apos;", Trigger::View(View::Entities)),
    ("&amp;", Trigger::View(View::Entities)),
    ("&lt;", Trigger::View(View::Entities)),
    ("&gt;", Trigger::View(View::Entities)),
    ("&#", Trigger::View(View::Entities)),
    ("=3D", Trigger::View(View::QuotedPrintable)),
    ("=3d", Trigger::View(View::QuotedPrintable)),
    ("=\n", Trigger::SoftLineEnd),
    ("=20", Trigger::View(View::QuotedPrintable)),
    ("=C3", Trigger::View(View::QuotedPrintable)),
    ("=E2", Trigger::View(View::QuotedPrintable)),
    ("=F0", Trigger::View(View::QuotedPrintable)),
    ("\"log\":\"", Trigger::DividedLine),
    (" stdout P ", Trigger::DividedLine),
    (" stderr P ", Trigger::DividedLine),
    ("\"\"", Trigger::DoubledQuotes),
    ("''", Trigger::DoubledQuotes),
    ("\\\n", Trigger::ContinuedLine),
    ("\\\\\\n\"", Trigger::ContinuedLine),
    (" \\\\\"", Trigger::ContinuedLine),
    ("message\":[", Trigger::View(View::Numbers)),
    ("message\": [", Trigger::View(View::Numbers)),
    ("message\" : [", Trigger::View(View::Numbers)),
    ("message\\\":[", Trigger::View(View::Numbers)),
    ("certificate key", Trigger::CertificateKey),
    ("-----BEGIN ", Trigger::Pem),
    ("PRIVATE KEY-----", Trigger::PemEnd),
    ("PRIVATE KEY BLOCK-----", Trigger::PemEnd),
    ("Full config:", Trigger::IgnitionDump),
    ("'random' passwords", Trigger::RandomPasswords),
    ("unseal_keys_", Trigger::KeyArray),
    ("recovery_keys_", Trigger::KeyArray),
    ("keys_base64", Trigger::KeyArray),
    ("#cloud-config", Trigger::CloudConfig),
    ("<<", Trigger::HereDocument),
    ("value\"", Trigger::NamedValue),
    ("value\\\"", Trigger::NamedValue),
    ("value:", Trigger::NamedValue),
    ("value=", Trigger::NamedValue),
    ("kind: Secret", Trigger::SecretObject),
    ("kind\": \"Secret", Trigger::SecretObject),
    ("kind\":\"Secret", Trigger::SecretObject),
    ("kind\\\":\\\"Secret", Trigger::SecretObject),
    ("kind\\\": \\\"Secret", Trigger::SecretObject),
    ("kind: \"Secret", Trigger::SecretObject),
];

// === impl Trigger ===

impl Trigger {
    /// Whether it may begin something larger than a value.
    pub(crate) fn opens(self) -> bool {
        matches!(
            self,
            Self::Pem
                | Self::IgnitionDump
                | Self::RandomPasswords
                | Self::KeyArray
                | Self::CloudConfig
                | Self::SecretObject
                | Self::CertificateKey
        )
    }
}

// === impl Rules ===

impl Rules {
    /// The rules of this crate, compiled once for all redactors of the process: that takes milliseconds and megabytes.
    pub(crate) fn built_in() -> Result<Arc<Self>, BuildError> {
        static RULES: OnceLock<Arc<Rules>> = OnceLock::new();
        if let Some(rules) = RULES.get() {
            return Ok(Arc::clone(rules));
        }
        let rules = Arc::new(Self::new(&parse(BUILT_IN)?)?);
        Ok(Arc::clone(RULES.get_or_init(|| rules)))
    }

    fn new(file: &File) -> Result<Self, BuildError> {
        let mut literals: Vec<(String, Trigger)> =
            MACHINES.iter().map(|(literal, trigger)| ((*literal).to_owned(), *trigger)).collect();
        let mut patterns = Vec::new();
        for entry in &file.pattern {
            literals.extend(
                entry.literals.iter().map(|literal| (literal.clone(), Trigger::Pattern(patterns.len()))),
            );
            patterns.push(Pattern {
                kind: kind(&entry.name, &entry.kind)?,
                regex: regex(&entry.name, &entry.regex)?,
                min: entry.min,
                mixed: entry.mixed,
            });
        }
        let mut fields = Vec::new();
        for entry in &file.field {
            literals.extend(entry.names.iter().map(|name| (name.clone(), Trigger::Field(fields.len()))));
            let value = entry
                .value
                .as_ref()
                .map(|value| regex(&entry.name, &format!("^(?P<value>{value})(?:{BEHIND_VALUE})")))
                .transpose()?;
            fields.push(Field {
                kind: kind(&entry.name, &entry.kind)?,
                matches: entry.r#match,
                place: entry.place,
                value,
                min: entry.min,
                mixed: entry.mixed,
            });
        }
        // One entry per distinct literal, so that a place in the text is reported once for all rules that share it.
        for (literal, _) in literals.iter_mut().filter(|(literal, _)| literal.len() > 3) {
            literal.make_ascii_lowercase();
        }
        literals.sort_by(|a, b| a.0.cmp(&b.0));
        let mut words: Vec<Vec<u8>> = Vec::new();
        let mut triggers: Vec<Vec<Trigger>> = Vec::new();
        for (literal, trigger) in literals {
            if words.last().is_none_or(|word| word != literal.as_bytes()) {
                words.push(literal.into_bytes());
                triggers.push(Vec::new());
            }
            if let Some(last) = triggers.last_mut() {
                last.push(trigger);
            }
        }
        let literals = Literals::new(words)
            .map_err(|source| BuildError::Regex { rule: String::from("short words"), source })?;
        Ok(Self {
            patterns,
            fields,
            literals,
            triggers,
            // `<<<` is followed by a word, not by a document.
            here_document: regex(
                "here-document",
                r#"(?:^|[^<])<<-?\s*\\?["']?(?P<word>[A-Za-z_][A-Za-z0-9_]*)"#,
            )?,
            prefixes: Prefixes::new()
                .map_err(|source| BuildError::Regex { rule: "prefix of a line".to_owned(), source })?,
        })
    }
}

/// Whether a word has capital and small letters and digits.
pub(crate) fn is_mixed(word: &[u8]) -> bool {
    let has = |test: fn(&u8) -> bool| word.iter().any(test);
    has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase) && has(u8::is_ascii_digit)
}

fn parse(text: &str) -> Result<File, BuildError> {
    toml::from_str(text).map_err(|source| BuildError::Rules { source })
}

fn kind(rule: &str, label: &str) -> Result<Kind, BuildError> {
    Kind::new(label).map_err(|source| BuildError::Kind { rule: rule.to_owned(), source })
}

fn regex(rule: &str, pattern: &str) -> Result<Regex, BuildError> {
    RegexBuilder::new(pattern)
        .unicode(false)
        .size_limit(REGEX_SIZE_MAX)
        .build()
        .map_err(|source| BuildError::Regex { rule: rule.to_owned(), source })
}

fn one() -> usize {
    1
}

#[cfg(test)]
mod tests {
    use regex_syntax::ParserBuilder;
    use regex_syntax::hir::{Class, Hir, HirKind};

    use super::*;
    use crate::{Options, Redactor};

    /// A rule's name, texts with their secrets, texts without.
    type Examples = (String, Vec<(String, String)>, Vec<String>);

    fn examples() -> Vec<Examples> {
        let file = parse(BUILT_IN).unwrap();
        let patterns = file.pattern.into_iter().map(|entry| (entry.name, entry.redacts, entry.keeps));
        patterns.chain(file.field.into_iter().map(|entry| (entry.name, entry.redacts, entry.keeps))).collect()
    }

    fn redact(redactor: &Redactor, text: &str) -> String {
        String::from_utf8(redactor.redact(text.as_bytes(), Options::default()).0).unwrap()
    }

    #[test]
    fn every_example_of_a_secret_is_redacted() {
        let redactor = Redactor::builder().build().unwrap();
        for (name, redacts, _) in examples() {
            assert!(!redacts.is_empty(), "{name} has no example of a secret");
            for (text, secret) in redacts {
                assert!(text.contains(&secret), "{name}: the example does not hold its secret");
                let redacted = redact(&redactor, &text);
                assert!(
                    !redacted.contains(&secret) && redacted.contains("***<"),
                    "{name}: {text} -> {redacted}"
                );
            }
        }
    }

    /// Texts that match an expression and together take each of its alternatives.
    fn samples(hir: &Hir) -> Vec<String> {
        match hir.kind() {
            HirKind::Empty | HirKind::Look(_) => vec![String::new()],
            HirKind::Literal(literal) => vec![String::from_utf8_lossy(&literal.0).into_owned()],
            HirKind::Class(class) => {
                let ranges = |start: u32, end: u32| (start..=end).find(|c| (0x30..=0x7a).contains(c));
                let usual = match class {
                    Class::Unicode(class) => {
                        class.iter().find_map(|r| ranges(r.start().into(), r.end().into()))
                    }
                    Class::Bytes(class) => {
                        class.iter().find_map(|r| ranges(r.start().into(), r.end().into()))
                    }
                };
                vec![usual.and_then(char::from_u32).unwrap_or(' ').to_string()]
            }
            HirKind::Repetition(repetition) => {
                let count = repetition.min as usize;
                samples(&repetition.sub).into_iter().map(|sample| sample.repeat(count)).collect()
            }
            HirKind::Capture(capture) => samples(&capture.sub),
            HirKind::Alternation(alternatives) => alternatives.iter().flat_map(samples).collect(),
            HirKind::Concat(parts) => {
                let parts: Vec<Vec<String>> = parts.iter().map(samples).collect();
                let most = parts.iter().map(Vec::len).max().unwrap_or(0);
                let text = |at: usize| parts.iter().map(|part| part[at % part.len()].as_str()).collect();
                (0..most).map(text).collect()
            }
        }
    }

    #[test]
    fn every_alternative_of_an_expression_has_a_literal() {
        let mut missing = Vec::new();
        for entry in parse(BUILT_IN).unwrap().pattern {
            let hir = ParserBuilder::new().unicode(false).utf8(false).build().parse(&entry.regex).unwrap();
            for sample in samples(&hir) {
                let folded = sample.to_ascii_lowercase();
                let is_found = entry.literals.iter().any(|literal| {
                    if literal.len() > 3 {
                        folded.contains(&literal.to_ascii_lowercase())
                    } else {
                        sample.contains(literal.as_str())
                    }
                });
                if !is_found {
                    missing.push(format!("{}: {sample}", entry.name));
                }
            }
        }
        assert!(missing.is_empty(), "{}", missing.join("\n"));
    }

    #[test]
    fn every_example_of_innocent_text_is_kept() {
        let redactor = Redactor::builder().build().unwrap();
        for (name, _, keeps) in examples() {
            assert!(!keeps.is_empty(), "{name} has no example of innocent text");
            for text in keeps {
                assert_eq!(redact(&redactor, &text), text, "{name}");
            }
        }
    }
}
