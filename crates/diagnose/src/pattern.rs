//! How a line is recognised: literals first, then a regular expression.

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

/// Compiled size of one expression; a rule that needs more is not a description of a log line.
const MAX_REGEX_BYTES: usize = 1 << 20;

/// An expression that takes more of a line than this does not say what matters in it; a literal does.
const MAX_PLACE: usize = 160;

const WARNING_MARK: &[u8] = b"[WARNING ";

/// What a rule file says about a line, see `rules/README.md`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MatchSpec {
    /// The line holds at least one of these.
    pub(crate) any: Vec<String>,
    /// And all of these.
    #[serde(default)]
    pub(crate) all: Vec<String>,
    /// And none of these.
    #[serde(default)]
    pub(crate) not: Vec<String>,
    /// And matches this.
    pub(crate) regex: Option<String>,
    /// The message begins with the match: the component prints it there, so later in a message it is quoted text.
    #[serde(default)]
    pub(crate) start: bool,
    /// Lines that klog calls fatal hold what `any` asks for, whatever they say.
    #[serde(default)]
    pub(crate) klog_fatal: bool,
}

#[derive(Debug)]
pub(crate) struct Pattern {
    /// What to look for: at least one of these.
    pub(crate) any: Vec<String>,
    all: Vec<memmem::Finder<'static>>,
    not: Vec<memmem::Finder<'static>>,
    regex: Option<Expression>,
    /// The message begins with the match.
    start: bool,
    /// kubeadm marks what does not stop it as `[WARNING …]`; only patterns that name the mark mean such lines.
    takes_warnings: bool,
    /// Also looks at lines that klog calls fatal.
    pub(crate) klog_fatal: bool,
}

/// When expressions are compiled. Some hundred of them take longer than a small log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compile {
    /// At once: the rules come from outside, and a bad one must be refused.
    Now,
    /// When a line first needs it: tests have compiled every one.
    WhenNeeded,
}

#[derive(Debug)]
struct Expression {
    text: String,
    compiled: OnceLock<Option<Regex>>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PatternError {
    #[error("`any` names no literal")]
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
        let finders = |literals: &[String]| {
            literals.iter().map(|literal| memmem::Finder::new(literal.as_bytes()).into_owned()).collect()
        };
        let any = spec.any.iter().flat_map(|literal| quotings(literal)).collect();
        let takes_warnings = spec.any.iter().any(|literal| literal.contains("WARNING"));
        let (start, klog_fatal) = (spec.start, spec.klog_fatal);
        let (all, not) = (finders(&spec.all), finders(&spec.not));
        Ok(Self { any, all, not, regex, start, takes_warnings, klog_fatal })
    }

    /// Whether a line still matches after parts of it were blanked.
    pub(crate) fn is_in(&self, line: &[u8]) -> bool {
        self.any.iter().any(|literal| memmem::find(line, literal.as_bytes()).is_some())
            || self.klog_fatal && !klog::fatal(line).is_empty()
    }

    /// Whether a line that holds one of the `any` literals is the one meant.
    pub(crate) fn confirms(&self, line: &[u8]) -> bool {
        self.fits(line) && !self.excludes(line)
    }

    /// Whether a line has the words and the form of the pattern. Few lines with one of its literals do.
    pub(crate) fn fits(&self, line: &[u8]) -> bool {
        self.all.iter().all(|finder| holds(line, finder))
            && self.regex.as_ref().is_none_or(|regex| regex.get().is_some_and(|regex| regex.is_match(line)))
    }

    /// Whether something else in a line shows that the pattern does not apply.
    pub(crate) fn excludes(&self, line: &[u8]) -> bool {
        !self.takes_warnings && memmem::find(line, WARNING_MARK).is_some()
            || self.not.iter().any(|finder| holds(line, finder))
            || self.start && !self.begins(line::message(line))
    }

    /// Whether a message begins with the match, also without the quote that opens a literal.
    fn begins(&self, message: &[u8]) -> bool {
        match &self.regex {
            Some(regex) => {
                regex.get().and_then(|regex| regex.find(message)).is_some_and(|found| found.start() == 0)
            }
            None => self.any.iter().any(|literal| message.starts_with(literal.trim_matches('"').as_bytes())),
        }
    }

    /// Whether the match begins a message, or follows the name of the unit or device that the message is about.
    pub(crate) fn leads(&self, line: &[u8]) -> bool {
        let message = line::message(line);
        let start = line::subject(message);
        let found = self.regex.as_ref().and_then(|regex| regex.get()?.find(message));
        let found = found.map(|found| found.range()).filter(|found| found.start <= start);
        self.any.iter().any(|literal| {
            let at = memmem::find(message, literal.trim_matches('"').as_bytes());
            // An expression may match words beside the literal, which prove nothing.
            at.is_some_and(|at| at <= start || found.as_ref().is_some_and(|found| at < found.end))
        })
    }

    /// Where in a line that was confirmed the recognised part stands. `plain` is the line without escapes.
    pub(crate) fn place(&self, line: &[u8], plain: &[u8]) -> Range<usize> {
        // Offsets of the expression are those of the plain line.
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
            // An expression beside the literal says where the line belongs; the literal says what happened.
            (Some(expression), Some(literal))
                if expression.start > literal.start || expression.end < literal.end =>
            {
                literal
            }
            (Some(range), _) | (None, Some(range)) => range,
            (None, None) => 0..0,
        }
    }

    /// The named groups of the expression that took part in the match.
    pub(crate) fn captures(&self, line: &[u8]) -> Captures {
        let Some(regex) = self.regex.as_ref().and_then(Expression::get) else { return Captures::new() };
        let Some(found) = regex.captures(line) else { return Captures::new() };
        regex
            .capture_names()
            .flatten()
            .filter_map(|name| {
                let value = String::from_utf8_lossy(found.name(name)?.as_bytes()).into_owned();
                // Alternatives of one expression cannot share a name: `host` and `host2` are the same thing.
                Some((name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned(), value))
            })
            .collect()
    }
}

/// A number at the end of a literal is a whole one: `:2379` is not in `:23791`.
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

    /// `None` for an expression that does not compile, which only an untested rule of our own can be.
    fn get(&self) -> Option<&Regex> {
        self.compiled.get_or_init(|| Self::build(&self.text).ok()).as_ref()
    }

    fn build(text: &str) -> Result<Regex, regex::Error> {
        RegexBuilder::new(text).unicode(false).size_limit(MAX_REGEX_BYTES).build()
    }
}

/// Quotes may be escaped once or twice, because logs quote logs.
fn quotings(literal: &str) -> Vec<String> {
    let escapes: &[&str] = if literal.contains('"') { &["\"", "\\\"", "\\\\\\\""] } else { &["\""] };
    escapes.iter().map(|escape| literal.replace('"', escape)).collect()
}

/// The line without the backslashes before its quotes, so that rules need not care how often it was quoted.
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
