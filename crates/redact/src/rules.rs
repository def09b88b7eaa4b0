//! The data file of patterns and field names, loaded once and compiled for matching.

use std::sync::{Arc, OnceLock};

use regex::bytes::Regex;
use serde::Deserialize;

use crate::expression::{self, Expression};
use crate::frame::Prefixes;
use crate::literals::Literals;
use crate::resolved::View;
use crate::{BuildError, Kind};

const BUILT_IN: &str = include_str!("../redact.toml");

/// Delimiters after the value of a field with a defined form.
const BEHIND_VALUE: &str = r#"$|[\s"'`\\<>&,;()\[\]{}|]"#;

pub(crate) struct Rules {
    pub(crate) patterns: Vec<Pattern>,
    pub(crate) fields: Vec<Field>,
    /// Finds each literal of each rule in one pass; a word's number is an index into `triggers`.
    pub(crate) literals: Literals,
    pub(crate) triggers: Vec<Vec<Trigger>>,
    /// The start of a here-document.
    pub(crate) here_document: Regex,
    /// A path of a file of secrets, in the line that starts a here-document.
    pub(crate) secret_place: Regex,
    pub(crate) prefixes: Prefixes,
}

pub(crate) struct Pattern {
    pub(crate) kind: Kind,
    pub(crate) regex: Expression,
    pub(crate) min: usize,
    pub(crate) mixed: bool,
}

pub(crate) struct Field {
    pub(crate) kind: Kind,
    pub(crate) matches: NameMatch,
    pub(crate) place: Place,
    pub(crate) value: Option<Expression>,
    pub(crate) min: usize,
    pub(crate) mixed: bool,
}

/// The search to run where a literal was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    Pattern(usize),
    Field(usize),
    /// A notation that must be resolved before the line can be parsed.
    View(View),
    /// An equals sign at a line end: quoted-printable or Base64.
    SoftLineEnd,
    /// A backslash that continues a command on the next line.
    ContinuedLine,
    /// Two quotes after a name: doubled if a value follows.
    DoubledQuotes,
    /// The text of a log driver's line, which a later line may continue.
    DividedLine,
    /// `-----BEGIN `
    Pem,
    /// The label of a private key, in its last line if the first one is missing.
    PemEnd,
    /// Announcement of kubeadm's certificate key.
    CertificateKey,
    /// Announcement of Jenkins' initial password.
    FirstPassword,
    /// Start of a private key without PEM on the following lines.
    KeyBelow,
    /// A program's name in a list of arguments. If a line ends with it, each argument may be on its own line.
    Program,
    /// Ignition's dump of its configuration after a failure.
    IgnitionDump,
    /// cloud-init's announcement of generated passwords.
    RandomPasswords,
    /// The name of an array of Vault keys.
    KeyArray,
    /// The first line of a cloud-config document.
    CloudConfig,
    /// `<<`, which may start a here-document.
    HereDocument,
    /// The `kind` of a Secret object.
    SecretObject,
    /// A field named `value` that belongs to the preceding name.
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
    /// Programs whose arguments contain secrets without a flag.
    programs: Vec<String>,
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

const MACHINES: [(&str, Trigger); 79] = [
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
    ("password to proceed to installation:", Trigger::FirstPassword),
    ("private-lines:", Trigger::KeyBelow),
    ("begin ssh2 encrypted private key", Trigger::KeyBelow),
    ("privateexponent:", Trigger::KeyBelow),
    ("prime1:", Trigger::KeyBelow),
    ("prime2:", Trigger::KeyBelow),
    ("exponent1:", Trigger::KeyBelow),
    ("exponent2:", Trigger::KeyBelow),
    ("coefficient:", Trigger::KeyBelow),
    ("priv:", Trigger::KeyBelow),
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
    /// Returns whether it may start a construct larger than a value.
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
                | Self::FirstPassword
                | Self::KeyBelow
        )
    }
}

// === impl Rules ===

impl Rules {
    /// Returns this crate's rules, compiled once per process: that takes milliseconds and megabytes.
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
        for program in &file.programs {
            literals.extend(forms_in_a_list(program).map(|form| (form, Trigger::Program)));
        }
        let mut patterns = Vec::new();
        for entry in &file.pattern {
            literals.extend(
                entry.literals.iter().map(|literal| (literal.clone(), Trigger::Pattern(patterns.len()))),
            );
            patterns.push(Pattern {
                kind: kind(&entry.name, &entry.kind)?,
                regex: Expression::new(entry.regex.clone()),
                min: entry.min,
                mixed: entry.mixed,
            });
        }
        let mut fields = Vec::new();
        for entry in &file.field {
            literals.extend(entry.names.iter().map(|name| (name.clone(), Trigger::Field(fields.len()))));
            let value = entry.value.as_ref();
            let value = value.map(|value| format!("^(?P<value>{value})(?:{BEHIND_VALUE})"));
            fields.push(Field {
                kind: kind(&entry.name, &entry.kind)?,
                matches: entry.r#match,
                place: entry.place,
                value: value.map(Expression::new),
                min: entry.min,
                mixed: entry.mixed,
            });
        }
        // One entry per distinct literal, so that each match is reported once for all rules that share it.
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
            secret_place: regex(
                "place of secrets",
                r"/etc/kubernetes|/pki/|\.key|kubeconfig|/\.kube/|/\.docker/|\.netrc|token|secret|passw|cred|/\.ssh/|/\.aws/|cloud\.conf|azure\.json",
            )?,
            prefixes: Prefixes::new()
                .map_err(|source| BuildError::Regex { rule: "prefix of a line".to_owned(), source })?,
        })
    }
}

/// Returns the forms of a program as a list element: quoted, escaped, between commas, on its own line, with
/// its path.
fn forms_in_a_list(program: &str) -> impl Iterator<Item = String> {
    let before = ["\"", "'", "\\\"", "[", "- ", "- ", "- ", "- ", "/"];
    let after = ["\"", "'", "\\\"", ", ", "\n", "\r", "\\n", "\"", "\","];
    before.into_iter().zip(after).map(move |(before, after)| format!("{before}{program}{after}"))
}

/// Returns whether a word has upper-case letters, lower-case letters and digits.
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
    expression::compile(pattern).map_err(|source| BuildError::Regex { rule: rule.to_owned(), source })
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

    /// A rule's name, texts with their secrets, and texts without secrets.
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

    /// Generates texts that match an expression and together use each alternative.
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
    fn every_expression_compiles() {
        let rules = Rules::built_in().unwrap();
        rules.patterns.iter().for_each(|pattern| assert!(!pattern.regex.get().as_str().is_empty()));
        rules.fields.iter().filter_map(|field| field.value.as_ref()).for_each(|value| {
            assert!(!value.get().as_str().is_empty());
        });
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
