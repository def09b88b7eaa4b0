//! Line matching: literals first, then a regular expression.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::OnceLock;

use memchr::memmem;
use regex::bytes::{Regex, RegexBuilder};
use serde::Deserialize;

use crate::klog;
use crate::line;
use crate::literals::WINDOW;

/// Maximum compiled size of one expression; a description of a log line does not need more.
const MAX_REGEX_BYTES: usize = 1 << 20;

/// A longer match of an expression is too unspecific to be highlighted; the literal is used.
const MAX_PLACE: usize = 160;

/// Maximum length of a process or interface name.
pub(crate) const COMM: usize = 15;

const WARNING_MARK: &[u8] = b"[WARNING ";

/// A rule file's description of a line, see `rules/README.md`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MatchSpec {
    /// The line contains at least one of these.
    pub(crate) any: Vec<String>,
    /// The line contains all of these.
    #[serde(default)]
    pub(crate) all: Vec<String>,
    /// The line contains none of these.
    #[serde(default)]
    pub(crate) not: Vec<String>,
    /// The line matches this expression.
    pub(crate) regex: Option<String>,
    /// The message starts with the match: the component prints it there, so a later occurrence is quoted
    /// text.
    #[serde(default)]
    pub(crate) start: bool,
    /// klog's fatal lines match like `any`, whatever their text.
    #[serde(default)]
    pub(crate) klog_fatal: bool,
    /// The match counts at any place of a message, even of a component whose messages repeat names that others choose.
    #[serde(skip)]
    pub(crate) anywhere: bool,
}

/// Where in a message a match counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// At its beginning.
    Start,
    /// Where the component that writes it does not repeat names that others choose.
    Own,
    Anywhere,
}

#[derive(Debug)]
pub(crate) struct Pattern {
    /// Literals of which at least one must occur.
    pub(crate) any: Vec<String>,
    all: Vec<memmem::Finder<'static>>,
    not: Vec<memmem::Finder<'static>>,
    regex: Option<Expression>,
    /// The expression without its gaps (`.*`), for components whose messages quote foreign names.
    gapless: Option<Expression>,
    position: Position,
    /// kubeadm marks what does not stop it as `[WARNING …]`; only patterns that name the mark mean such lines.
    takes_warnings: bool,
    /// Whether klog's fatal lines are also checked.
    pub(crate) klog_fatal: bool,
}

/// Whether a match may contain gaps (`.*`), which could contain a foreign name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gaps {
    Allowed,
    Forbidden,
}

/// Time of compilation of expressions. Some hundred of them take longer than a small log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compile {
    /// Immediately: the rules are external, and invalid ones must be rejected.
    Now,
    /// On first use: tests compile each one.
    WhenNeeded,
}

#[derive(Debug)]
struct Expression {
    text: String,
    compiled: OnceLock<Option<Regex>>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PatternError {
    #[error("`any` contains no literal")]
    NoLiteral,
    #[error("the literal `{0}` is shorter than {WINDOW} bytes, or longer than a line")]
    ShortLiteral(String),
    #[error("the expression does not compile")]
    Regex(#[source] Box<regex::Error>),
}

pub(crate) type Captures = BTreeMap<String, String>;

// === impl Pattern ===

impl Pattern {
    pub(crate) fn new(spec: &MatchSpec, compile: Compile) -> Result<Self, PatternError> {
        if spec.any.is_empty() {
            return Err(PatternError::NoLiteral);
        }
        if let Some(short) = spec.any.iter().find(|literal| literal.len() < WINDOW || literal.contains('\n'))
        {
            return Err(PatternError::ShortLiteral(short.clone()));
        }
        let regex = spec.regex.as_deref().map(|text| Expression::new(text, compile)).transpose()?;
        let gapless =
            spec.regex.as_deref().map(|text| Expression::new(&without_gaps(text), compile)).transpose()?;
        let finders = |literals: &[String]| {
            literals.iter().map(|literal| memmem::Finder::new(literal.as_bytes()).into_owned()).collect()
        };
        let any = spec.any.iter().flat_map(|literal| quotings(literal)).collect();
        let takes_warnings = spec.any.iter().any(|literal| literal.contains("WARNING"));
        let position = match spec {
            MatchSpec { start: true, .. } => Position::Start,
            MatchSpec { anywhere: true, .. } => Position::Anywhere,
            _ => Position::Own,
        };
        let klog_fatal = spec.klog_fatal;
        let (all, not) = (finders(&spec.all), finders(&spec.not));
        Ok(Self { any, all, not, regex, gapless, position, takes_warnings, klog_fatal })
    }

    /// Returns whether a line still matches after parts of it were blanked.
    pub(crate) fn is_in(&self, line: &[u8]) -> bool {
        self.any.iter().any(|literal| memmem::find(line, literal.as_bytes()).is_some())
            || self.klog_fatal && !klog::fatal(line).is_empty()
    }

    /// Returns whether a line with one of the `any` literals matches the pattern.
    pub(crate) fn confirms(&self, line: &[u8]) -> bool {
        self.fits(line) && !self.excludes(line)
    }

    /// Returns whether a line has the words and the form of the pattern.
    ///
    /// Few lines with one of its literals do.
    pub(crate) fn fits(&self, line: &[u8]) -> bool {
        self.all.iter().all(|finder| holds(line, finder))
            && self.regex.as_ref().is_none_or(|regex| regex.get().is_some_and(|regex| regex.is_match(line)))
    }

    /// Returns whether other text in a line shows that the pattern does not apply.
    pub(crate) fn excludes(&self, line: &[u8]) -> bool {
        !self.takes_warnings && memmem::find(line, WARNING_MARK).is_some()
            || self.not.iter().any(|finder| holds(line, finder))
            || self.position == Position::Start && !self.begins(line::message(line))
    }

    /// Returns whether a message starts with the match, optionally without a literal's opening quote.
    pub(crate) fn begins(&self, message: &[u8]) -> bool {
        match &self.regex {
            Some(regex) => {
                regex.get().and_then(|regex| regex.find(message)).is_some_and(|found| found.start() == 0)
            }
            None => self.any.iter().any(|literal| message.starts_with(literal.trim_matches('"').as_bytes())),
        }
    }

    /// Returns whether the match starts a message, or follows the unit or device that the message is about.
    ///
    /// It must also extend beyond the subject without a gap in which another name could be. A match of few
    /// bytes may itself be a name.
    pub(crate) fn leads(&self, message: &[u8], start: usize, gaps: Gaps, longer_than: usize) -> bool {
        if self.position == Position::Anywhere {
            return true;
        }
        let regex = if gaps == Gaps::Allowed { &self.regex } else { &self.gapless };
        let found = regex.as_ref().map(|regex| regex.get()?.find(message)).map(|found| Some(found?.range()));
        self.any.iter().any(|literal| {
            let literal = literal.trim_matches('"').as_bytes();
            let Some(at) = memmem::find(message, literal) else { return false };
            let words = at..at + literal.len();
            let own = match &found {
                None => words,
                Some(Some(found)) if found.start <= words.end && words.start <= found.end => {
                    found.start.min(words.start)..found.end.max(words.end)
                }
                Some(_) => return false,
            };
            own.start <= start && own.end > start && own.len() > longer_than
        })
    }

    /// Returns whether one of the literals starts in the first bytes of a message.
    pub(crate) fn is_within(&self, message: &[u8], bytes: usize) -> bool {
        self.any.iter().any(|literal| memmem::find(message, literal.as_bytes()).is_some_and(|at| at <= bytes))
    }

    /// Returns the range of the recognized part in a confirmed line. `plain` is the line without escapes.
    pub(crate) fn place(&self, line: &[u8], plain: &[u8]) -> Range<usize> {
        // Offsets of the expression refer to the plain line.
        let expression = (plain.len() == line.len())
            .then(|| self.regex.as_ref()?.get()?.find(line))
            .flatten()
            .map(|found| found.range())
            .filter(|range| !range.is_empty() && range.len() <= MAX_PLACE);
        let literal = self
            .any
            .iter()
            .filter_map(|literal| {
                let at = memmem::find(line, literal.as_bytes())?;
                Some(at..at + literal.len())
            })
            .min_by_key(|range| range.start);
        match (expression, literal) {
            // An expression next to the literal only selects the line; the literal states the event.
            (Some(expression), Some(literal))
                if expression.start > literal.start || expression.end < literal.end =>
            {
                literal
            }
            (Some(range), _) | (None, Some(range)) => range,
            (None, None) => 0..0,
        }
    }

    /// Returns the named groups of the expression that took part in the match.
    pub(crate) fn captures(&self, line: &[u8]) -> Captures {
        let Some(regex) = self.regex.as_ref().and_then(Expression::get) else { return Captures::new() };
        let Some(found) = regex.captures(line) else { return Captures::new() };
        regex
            .capture_names()
            .flatten()
            .filter_map(|name| {
                let value = String::from_utf8_lossy(found.name(name)?.as_bytes()).into_owned();
                // Alternatives of one expression cannot share a name: `host` and `host2` are equivalent.
                Some((name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned(), value))
            })
            .collect()
    }
}

/// Returns the expression without gaps, so that the words around a gap must be adjacent.
fn without_gaps(expression: &str) -> String {
    expression.replace(".*?", "").replace(".*", "").replace(".{0,20}", "")
}

/// Returns whether a line contains the literal.
///
/// A trailing number must be complete: `:2379` does not match `:23791`.
fn holds(line: &[u8], literal: &memmem::Finder<'_>) -> bool {
    let whole = literal.needle().last().is_some_and(u8::is_ascii_digit);
    let length = literal.needle().len();
    literal.find_iter(line).any(|at| !whole || !line.get(at + length).is_some_and(u8::is_ascii_digit))
}

// === impl Expression ===

impl Expression {
    fn new(text: &str, compile: Compile) -> Result<Self, PatternError> {
        let compiled = match compile {
            Compile::Now => {
                OnceLock::from(Some(Self::build(text).map_err(|error| PatternError::Regex(Box::new(error)))?))
            }
            Compile::WhenNeeded => OnceLock::new(),
        };
        Ok(Self { text: text.to_owned(), compiled })
    }

    /// Returns `None` for an invalid expression, which only an untested built-in rule could have.
    fn get(&self) -> Option<&Regex> {
        self.compiled.get_or_init(|| Self::build(&self.text).ok()).as_ref()
    }

    fn build(text: &str) -> Result<Regex, regex::Error> {
        RegexBuilder::new(text).unicode(false).size_limit(MAX_REGEX_BYTES).build()
    }
}

/// Returns the literal with unescaped quotes and with quotes escaped once or twice, because logs quote logs.
fn quotings(literal: &str) -> Vec<String> {
    let escapes: &[&str] = if literal.contains('"') { &["\"", "\\\"", "\\\\\\\""] } else { &["\""] };
    escapes.iter().map(|escape| literal.replace('"', escape)).collect()
}

/// Removes the backslashes before quotes, so that rules do not depend on the depth of quoting.
pub(crate) fn unescaped(line: &[u8]) -> Cow<'_, [u8]> {
    if memmem::find(line, b"\\\"").is_none() {
        return Cow::Borrowed(line);
    }
    let mut plain = Vec::with_capacity(line.len());
    for byte in line {
        if *byte == b'"' {
            while plain.last() == Some(&b'\\') {
                plain.pop();
            }
        }
        plain.push(*byte);
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_lose_their_escapes() {
        assert_eq!(*unescaped(br#"err="a \"b\" \\\"c\\\"" \n"#), *br#"err="a "b" "c"" \n"#);
        assert!(matches!(unescaped(b"a \\n \"b\""), Cow::Borrowed(_)));
    }

    #[test]
    fn literals_are_looked_for_in_every_quoting() {
        let spec = MatchSpec { any: vec!["say \"x\"".to_owned()], ..MatchSpec::default() };
        let literals = Pattern::new(&spec, Compile::Now).unwrap().any;
        assert_eq!(literals, [r#"say "x""#, r#"say \"x\""#, r#"say \\\"x\\\""#]);
    }
}
