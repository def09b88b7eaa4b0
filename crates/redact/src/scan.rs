//! All passes over one text: hits are redacted regardless of the text's source.

use std::sync::Arc;

use landfall_model::terminal;
use memchr::{memchr, memrchr};

use crate::Kind;
use crate::block::Context;
use crate::field::{self, Value};
use crate::frame::{self, Frame};
use crate::hit::{self, Hit, What};
use crate::identity::Identities;
use crate::known::Known;
use crate::named_value;
use crate::nested::Nested;
use crate::pem_end;
use crate::pseudonym::Pseudonyms;
use crate::region::{Braces, Until};
use crate::resolved::{Framed, View, Views};
use crate::rules::{self, Place, Rules, Trigger};
use crate::runs::{self, Run};
use crate::secret_object;
use crate::views;

/// State that is constant during a bundle.
pub(crate) struct Engine {
    pub(crate) rules: Arc<Rules>,
    pub(crate) known: Known,
    pub(crate) pseudonyms: Pseudonyms,
    pub(crate) identities: Identities,
}

/// Which optional passes run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    Secrets,
    SecretsAndIdentities,
}

/// Relation between the lines of a text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lines {
    OneText,
    /// Each line is a separate text: constructs do not continue on the next line.
    Apart,
}

/// Whether high-entropy words are searched for. Only callers that count lines can report their positions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entropy {
    Unwanted,
    Wanted,
}

/// State of one scan, passed to nested searches.
pub(crate) struct Scan {
    pub(crate) extent: Extent,
    pub(crate) lines: Lines,
    pub(crate) depth: u32,
    /// Number of nested frames that were removed.
    pub(crate) frames: u32,
    pub(crate) nested: Nested,
    pub(crate) entropy: Entropy,
    /// Offsets of unredacted high-entropy words, if requested.
    pub(crate) suspicious: Vec<usize>,
    /// Offsets in independent lines of constructs that must be searched as a separate text.
    pub(crate) opens: Vec<usize>,
    /// Bytes of all searched texts.
    #[cfg(test)]
    searched: usize,
}

// === impl Scan ===

impl Scan {
    pub(crate) fn new(extent: Extent) -> Self {
        Self {
            extent,
            lines: Lines::OneText,
            depth: 0,
            frames: 0,
            nested: Nested::default(),
            entropy: Entropy::Unwanted,
            suspicious: Vec::new(),
            opens: Vec::new(),
            #[cfg(test)]
            searched: 0,
        }
    }

    /// Creates a scan that also searches for high-entropy words.
    pub(crate) fn with_entropy(extent: Extent) -> Self {
        Self { entropy: Entropy::Wanted, ..Self::new(extent) }
    }

    /// Creates a scan of independent lines.
    pub(crate) fn over_lines(extent: Extent) -> Self {
        Self { lines: Lines::Apart, ..Self::new(extent) }
    }
}

// === impl Engine ===

impl Engine {
    /// Returns the merged hits in `text`, which starts at the start of a line.
    ///
    /// `context` is the state before the text, and is updated to the state after it.
    pub(crate) fn find(&self, text: &[u8], context: &mut Context, scan: &mut Scan) -> Vec<Hit> {
        if scan.depth > 0 && scan.nested.is_exhausted() {
            return Vec::new();
        }
        let mut hits = if memchr(terminal::ESCAPE, text).is_some() {
            self.find_behind_escapes(text, context, scan)
        } else {
            self.find_plain(text, context, scan)
        };
        if context.wide.is_some() || memchr(0, text).is_some() {
            self.find_wide(text, context, scan, &mut hits);
        }
        hits
    }

    pub(crate) fn find_plain(&self, text: &[u8], context: &mut Context, scan: &mut Scan) -> Vec<Hit> {
        #[cfg(test)]
        {
            scan.searched += text.len();
        }
        let mut hits = Vec::new();
        let mut framed = Framed::default();
        self.known.find(text, &mut hits);
        let runs = runs::runs(text);
        self.find_bootstrap_tokens(text, &runs, &mut hits);
        self.find_percent_encoded(text, context.certificates, scan, &mut hits);
        self.find_encoded(text, &runs, context.certificates, scan, &mut framed, &mut hits);
        self.find_by_literals(text, context, scan, &mut framed, &mut hits);
        if !framed.starts.is_empty() || !context.framed.is_empty() {
            self.find_in_frames(text, &framed, context, scan, &mut hits);
        }
        if scan.extent == Extent::SecretsAndIdentities && scan.depth == 0 && scan.frames == 0 {
            self.identities.find(text, &self.pseudonyms, &mut hits);
        }
        hit::merge(&mut hits);
        hits
    }

    fn find_by_literals(
        &self,
        text: &[u8],
        context: &mut Context,
        scan: &mut Scan,
        framed: &mut Framed,
        hits: &mut Vec<Hit>,
    ) {
        // Constructs that are already open are processed first; dropped text is not searched.
        let dropped = if context.drops_all() { context.advance(text, 0, hits) } else { 0 };
        let mut dropped_until = dropped;
        let mut opened_until = if context.is_open() { context.advance(text, dropped, hits) } else { dropped };
        let is_apart = scan.lines == Lines::Apart && scan.depth == 0;
        if is_apart {
            opened_until = usize::MAX;
        }
        let mut line = (0, 0);
        let mut pattern_done = vec![0; self.rules.patterns.len()];
        let mut views = Views::default();
        for found in self.rules.literals.find(text) {
            if found.start < dropped_until {
                continue;
            }
            if found.start >= line.1 {
                line = line_around(text, found.start);
                if !is_apart && may_be_joined(text, line) {
                    views.want_joined(line.0);
                } else if !is_apart && ends_with_argument(text, line) {
                    framed.add(text, line, found.start, &self.rules.prefixes);
                }
            }
            for trigger in &self.rules.triggers[found.word] {
                if is_apart && trigger.opens() {
                    scan.opens.push(found.start);
                }
                if let Trigger::View(view) = *trigger {
                    want(view, line.0, is_apart, framed, &mut views);
                    continue;
                }
                if *trigger == Trigger::Program {
                    if has_elements(&text[found.end - 1..line.1.max(found.end)]) {
                        views.want(View::Elements, line.0);
                    }
                    if views.has_escapes(text, line) {
                        views.want(View::Escapes, line.0);
                    }
                    want(View::Arguments, line.0, is_apart, framed, &mut views);
                    if !is_apart {
                        framed.add(text, line, found.start, &self.rules.prefixes);
                    }
                    continue;
                }
                if *trigger == Trigger::ContinuedLine {
                    // The line is searched with the other views.
                    if !is_apart {
                        framed.add(text, line, found.start, &self.rules.prefixes);
                    }
                    continue;
                }
                if *trigger == Trigger::SoftLineEnd {
                    if views::ends_softly(text, line) {
                        want(View::QuotedPrintable, line.0, is_apart, framed, &mut views);
                    }
                    continue;
                }
                if *trigger == Trigger::DoubledQuotes {
                    let is_value = |byte: &u8| byte.is_ascii_graphic() && !b"\",;)}]".contains(byte);
                    let opens = text[found.start] == b'\''
                        || matches!(
                            text[..found.start].last(),
                            Some(b':' | b' ' | b'=' | b',' | b'[' | b'{')
                        );
                    if opens && text.get(found.end).is_some_and(is_value) {
                        want(View::DoubledQuotes, line.0, is_apart, framed, &mut views);
                    }
                    continue;
                }
                // In escaped text, words start after escaped line ends, and escaped quotes enclose them.
                if views.has_escapes(text, line) {
                    views.want(View::Escapes, line.0);
                }
                if let Trigger::Pattern(pattern) = *trigger {
                    if pattern_done[pattern] <= found.start {
                        pattern_done[pattern] = line.1.max(found.start + 1);
                        self.find_pattern(text, line, pattern, hits);
                    }
                    continue;
                }
                if *trigger == Trigger::DividedLine {
                    if !is_apart && let Some(frame) = frame::of_divided(&text[line.0..line.1]) {
                        // A construct may start before the first split line.
                        framed.begin(frame, 0);
                    }
                    continue;
                }
                // Inside a frame, only the text without the frame shows where a construct ends.
                let opens = trigger.opens() || *trigger == Trigger::HereDocument;
                let may_span_elements = match *trigger {
                    Trigger::PemEnd => has_elements(&text[line.0..found.start]),
                    Trigger::Field(_) if field::is_listed_flag(text, line, (found.start, found.end)) => {
                        if !is_apart {
                            framed.add(text, line, found.start, &self.rules.prefixes);
                        }
                        has_elements(&text[found.end..line.1])
                    }
                    Trigger::Field(_) if !field::may_open_block(&text[found.end..line.1]) => false,
                    Trigger::Field(_) => has_elements(&text[found.end..line.1]),
                    _ => opens && has_elements(&text[found.end..line.1]),
                };
                if may_span_elements {
                    views.want(View::Elements, line.0);
                }
                if opens && !is_apart && framed.add(text, line, found.start, &self.rules.prefixes) {
                    if *trigger == Trigger::SecretObject {
                        framed.widen();
                    }
                    // kubeadm prints its key without the frame.
                    if *trigger != Trigger::CertificateKey {
                        continue;
                    }
                }
                match *trigger {
                    Trigger::Field(field) => {
                        let field = &self.rules.fields[field];
                        let name = (found.start, found.end);
                        let value = field::value(text, line, name, field).or_else(|| {
                            // After a logger's prefix, a field is at the start of its line.
                            let len = match field.place {
                                Place::Field => {
                                    framed.prefix_before(text, line, name.0, &self.rules.prefixes)
                                }
                                Place::Anywhere => 0,
                            };
                            let behind = (line.0 + len, line.1);
                            if len > 0 { field::value(text, behind, name, field) } else { None }
                        });
                        match value {
                            Some(Value::Inline { start, end }) => {
                                self.mark(text, start, end, field.kind, hits);
                            }
                            Some(Value::Block { start, indent }) if opened_until <= start => {
                                let until = Until::Dedent(indent);
                                dropped_until = context.open_region(
                                    text,
                                    (start, line.1),
                                    field.kind,
                                    until,
                                    &self.pseudonyms,
                                    hits,
                                );
                                opened_until = dropped_until;
                            }
                            _ => {}
                        }
                        if !is_apart && field::may_open_block(&text[found.end..line.1]) {
                            framed.add(text, line, found.start, &self.rules.prefixes);
                        }
                    }
                    Trigger::Pem if is_apart => {
                        let mut line_only = Context::new(context.certificates);
                        line_only.open_pem(&text[..line.1], (found.start, line.1), &self.pseudonyms, hits);
                    }
                    Trigger::Pem if opened_until <= found.start => {
                        opened_until = context.open_pem(text, (found.start, line.1), &self.pseudonyms, hits);
                    }
                    Trigger::PemEnd if opened_until <= found.start => {
                        if !is_apart
                            && pem_end::is_here(&text[line.0..found.start])
                            && framed.add(text, line, found.start, &self.rules.prefixes)
                        {
                            framed.widen();
                        }
                        if let Some((start, end)) = pem_end::body(text, line, found.start) {
                            self.mark(text, start, end, Kind::PRIVATE_KEY, hits);
                        }
                    }
                    Trigger::CertificateKey
                        if opened_until <= found.start
                            && matches!(text[found.end..line.1].trim_ascii(), b"" | b":") =>
                    {
                        let key = (Kind::CERTIFICATE_KEY, CERTIFICATE_KEY_DIGITS);
                        opened_until = context.open_key(text, line.1, key, &self.pseudonyms, hits);
                    }
                    Trigger::FirstPassword if opened_until <= found.start => {
                        let password = (Kind::PASSWORD, FIRST_PASSWORD_DIGITS);
                        opened_until = context.open_key(text, line.1, password, &self.pseudonyms, hits);
                    }
                    Trigger::KeyBelow
                        if opened_until <= found.start
                            && text[found.end..line.1]
                                .iter()
                                .all(|byte| byte.is_ascii_digit() || b" \t\r-".contains(byte)) =>
                    {
                        let below = (line.1 + 1).min(text.len());
                        let (kind, until) = (Kind::PRIVATE_KEY, Until::NotKey);
                        dropped_until = context.open_below(text, below, kind, until, &self.pseudonyms, hits);
                        opened_until = dropped_until;
                    }
                    Trigger::IgnitionDump if opened_until <= found.start => {
                        let until = Until::Braces(Braces::default());
                        let kind = Kind::IGNITION_CONFIG;
                        dropped_until = context.open_region(
                            text,
                            (found.end, line.1),
                            kind,
                            until,
                            &self.pseudonyms,
                            hits,
                        );
                        opened_until = dropped_until;
                    }
                    Trigger::RandomPasswords if opened_until <= found.start => {
                        let below = (line.1 + 1).min(text.len());
                        let (kind, until) = (Kind::PASSWORD, Until::NotUser);
                        dropped_until = context.open_below(text, below, kind, until, &self.pseudonyms, hits);
                        opened_until = dropped_until;
                    }
                    Trigger::KeyArray
                        if opened_until <= found.start && text[..content_end(text, line)].ends_with(b"[") =>
                    {
                        let below = (line.1 + 1).min(text.len());
                        let (kind, until) = (Kind::VENDOR, Until::ArrayEnd);
                        dropped_until = context.open_below(text, below, kind, until, &self.pseudonyms, hits);
                        opened_until = dropped_until;
                    }
                    Trigger::CloudConfig
                        if opened_until <= found.start && found.end == content_end(text, line) =>
                    {
                        let kind = Kind::USER_DATA;
                        let start = (found.start, line.1);
                        dropped_until =
                            context.open_region(text, start, kind, Until::NotYaml, &self.pseudonyms, hits);
                        opened_until = dropped_until;
                    }
                    Trigger::HereDocument if opened_until <= found.start => {
                        if let Some(word) = self.secret_here_document(&text[line.0..line.1]) {
                            let (kind, until) = (Kind::FILE, Until::Word(word.to_vec()));
                            let below = (line.1 + 1).min(text.len());
                            dropped_until =
                                context.open_below(text, below, kind, until, &self.pseudonyms, hits);
                            opened_until = dropped_until;
                        }
                    }
                    Trigger::NamedValue => {
                        if let Some((start, end)) = named_value::find(text, line, (found.start, found.end)) {
                            self.mark(text, start, end, Kind::ENVIRONMENT, hits);
                        }
                    }
                    Trigger::SecretObject if !is_apart => {
                        secret_object::find(text, line, found.end, &self.pseudonyms, hits);
                    }
                    _ => {}
                }
            }
        }
        self.find_in_views(text, &views, context.certificates, scan, hits);
    }

    fn find_pattern(&self, text: &[u8], (start, end): (usize, usize), pattern: usize, hits: &mut Vec<Hit>) {
        let pattern = &self.rules.patterns[pattern];
        for captures in pattern.regex.get().captures_iter(&text[start..end]) {
            let secret = captures.name("s").or_else(|| captures.name("t"));
            let counts =
                |secret: &[u8]| secret.len() >= pattern.min && (!pattern.mixed || rules::is_mixed(secret));
            if let Some(secret) = secret.filter(|secret| counts(secret.as_bytes())) {
                self.mark(text, start + secret.start(), start + secret.end(), pattern.kind, hits);
            }
        }
    }

    /// Marks a secret.
    ///
    /// Of a bootstrap token only the secret half is redacted: its ID is public, and shows whether the token
    /// has expired.
    fn mark(&self, text: &[u8], start: usize, end: usize, kind: Kind, hits: &mut Vec<Hit>) {
        let secret = &text[start..end];
        if secret.len() == TOKEN_ID + 1 + TOKEN_SECRET && is_bootstrap_token(secret, TOKEN_ID) {
            let secret = &secret[TOKEN_ID + 1..];
            let what = What::Mark(Kind::BOOTSTRAP_TOKEN, self.pseudonyms.tag(secret));
            hits.push(Hit { start: start + TOKEN_ID + 1, end, what });
        } else if !secret.starts_with(b"***<") {
            hits.push(Hit { start, end, what: What::Mark(kind, self.pseudonyms.tag(secret)) });
        }
    }

    fn find_bootstrap_tokens(&self, text: &[u8], runs: &[Run], hits: &mut Vec<Hit>) {
        // The secret half is a run or the start of one, because a dot precedes it.
        for dot in runs.iter().filter_map(|run| run.start.checked_sub(1)) {
            if text[dot] == b'.' && is_bootstrap_token(text, dot) {
                self.mark(text, dot - TOKEN_ID, dot + 1 + TOKEN_SECRET, Kind::BOOTSTRAP_TOKEN, hits);
            }
        }
    }

    /// Returns the end word of a here-document that is written to a location of secrets.
    fn secret_here_document<'t>(&self, line: &'t [u8]) -> Option<&'t [u8]> {
        let captures = self.rules.here_document.captures(line)?;
        let is_secret = self.rules.secret_place.is_match(line);
        captures.name("word").filter(|_| is_secret).map(|word| word.as_bytes())
    }
}

/// Number of hexadecimal digits in kubeadm's certificate key and in Jenkins' initial password.
const CERTIFICATE_KEY_DIGITS: usize = 64;
const FIRST_PASSWORD_DIGITS: usize = 32;

/// The parts of a bootstrap token, `id.secret`.
const TOKEN_ID: usize = 6;
const TOKEN_SECRET: usize = 16;

/// Returns whether the dot at `dot` is between the halves of a bootstrap token.
///
/// Only adjacent token characters make it a longer word: programs print any other character next to a token.
fn is_bootstrap_token(text: &[u8], dot: usize) -> bool {
    let is_token = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let (before, after) = (&text[..dot], &text[dot + 1..]);
    // The ID is checked first: most dots follow a number, and the text before a number rarely matches an ID.
    let Some(id_start) = before.len().checked_sub(TOKEN_ID) else { return false };
    if !before[id_start..].iter().rev().all(is_token) {
        return false;
    }
    let Some(secret) = after.get(..TOKEN_SECRET) else { return false };
    if !secret.iter().all(is_token) || after.get(TOKEN_SECRET).is_some_and(is_token) {
        return false;
    }
    // Names of Event objects: the object's name and its time in hexadecimal nanoseconds.
    let is_event = matches!(secret, [b'1', b'6'..=b'9', ..])
        && secret.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    // The letter of `\n` and similar escapes is not part of a word.
    let goes_on = match &before[..id_start] {
        [.., b'\\', b'n' | b'r' | b't'] | [] => false,
        [.., last] => is_token(last),
    };
    !goes_on && !is_event
}

/// Returns the range of the line around `at`, without its line feed.
pub(crate) fn line_around(text: &[u8], at: usize) -> (usize, usize) {
    let start = memrchr(b'\n', &text[..at]).map_or(0, |feed| feed + 1);
    let end = memchr(b'\n', &text[at..]).map_or(text.len(), |len| at + len);
    (start, end)
}

fn content_end(text: &[u8], (start, end): (usize, usize)) -> usize {
    start + text[start..end].trim_ascii_end().len()
}

/// Schedules a line to be searched in a notation; if lines stay lines in it, the complete text.
fn want(view: View, line: usize, is_apart: bool, framed: &mut Framed, views: &mut Views) {
    if view.keeps_lines() && !is_apart {
        framed.begin(Frame::Written(view), 0);
    } else {
        views.want(view, line);
    }
}

/// Returns whether a text closes an array string and opens the next one.
///
/// The name of an object member is not such a string.
fn has_elements(text: &[u8]) -> bool {
    memchr::memchr_iter(b',', text).any(|at| {
        let Some(quote @ (b'"' | b'\'')) = text[..at].last() else { return false };
        let next = text[at + 1..].trim_ascii_start();
        let depth = next.iter().take_while(|byte| **byte == b'\\').count();
        next.get(depth) == Some(quote) && {
            let string = &next[depth + 1..];
            let end = memchr(*quote, string).unwrap_or(string.len());
            string.get(end + 1) != Some(&b':')
        }
    })
}

/// Returns whether a line ends with a list item after a prefix, such as a command logged line by line.
fn ends_with_argument(text: &[u8], line: (usize, usize)) -> bool {
    let content = text[line.0..line.1].trim_ascii_end();
    let last = memrchr(b' ', content).map_or(0, |blank| blank + 1);
    let is_string = || {
        let string = content.strip_suffix(b",").unwrap_or(content);
        content[last..].starts_with(b"\"") && string.len() > last + 1 && string.ends_with(b"\"")
    };
    last > 0 && (content[..last].ends_with(b" - ") || is_string())
}

/// Returns whether a line may be part of a command on several lines.
fn may_be_joined(text: &[u8], line: (usize, usize)) -> bool {
    let ends = |end: usize| end > 0 && text[end - 1] == b'\\';
    let start = text[line.0..line.1].trim_ascii_start();
    let is_part = match start {
        [b'\\', ..] => views::opens_escaped(start),
        _ => matches!(start, [b'-' | b'"', ..]),
    };
    ends(line.1) || line.0 > 0 && ends(line.0 - 1) || is_part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Certificates;
    use crate::{HOLD_MAX, Redactor};

    /// Notations that nest in each other in any order.
    const NOTATIONS: [&str; 24] = [
        "', '-",
        "\", \"-",
        ",\\\"-",
        "\\u0041",
        "\\x41",
        "\\'",
        "\\/",
        "\\\\\\\"",
        "\\\\n",
        "#012",
        "#033[31m",
        "&quot;",
        "&#34;",
        "=3D",
        "=20",
        "\"log\":\"",
        "\"\"x",
        " ''x",
        "message\":[1,2",
        "%20",
        "+",
        "aGVsbG8gd29ybGQgdGhpcyBpcyB0ZXh0",
        "68656c6c6f20776f726c6468656c6c6f",
        "password=",
    ];

    /// Bytes that may be searched for each byte of a block.
    const WORK_MAX: usize = 160;

    fn mixture(line: usize) -> Vec<u8> {
        let (mut text, mut state) = (Vec::with_capacity(HOLD_MAX), 7_usize);
        let mut end = line;
        while text.len() < HOLD_MAX - 64 {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            text.extend_from_slice(NOTATIONS[(state >> 33) % NOTATIONS.len()].as_bytes());
            if text.len() > end {
                text.push(b'\n');
                end = text.len() + line;
            }
        }
        text
    }

    #[test]
    fn work_on_mixed_notations_is_bounded() {
        let redactor = Redactor::builder().build().unwrap();
        for line in [127, 1000, 16_000] {
            let text = mixture(line);
            let mut scan = Scan::new(Extent::Secrets);
            redactor.engine.find(&text, &mut Context::new(Certificates::Keep), &mut scan);
            let work = scan.searched / text.len();
            assert!(work <= WORK_MAX, "lines of {line} bytes: {work} bytes for each byte");
        }
    }
}
