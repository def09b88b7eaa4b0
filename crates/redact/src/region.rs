//! Regions that are dropped completely: JSON dumps, YAML documents, here-documents, block scalars.

use crate::Kind;
use crate::pseudonym::{Pseudonyms, Tag, Tagger};

/// Number of lines without JSON syntax after which a JSON dump is assumed to be truncated.
const JSON_STRAY_MAX: u32 = 8;

/// Maximum lines of a here-document without an end.
const HERE_DOCUMENT_LINES_MAX: u32 = 4096;

/// Maximum lines of an array without an end.
const ARRAY_LINES_MAX: u32 = 64;

/// Minimum length of a line that may belong to a private key.
const KEY_LINE_MIN: usize = 32;

/// Maximum lines of a private key.
const KEY_LINES_MAX: u32 = 256;

pub(crate) struct Region {
    pub(crate) kind: Kind,
    tagger: Tagger,
    pub(crate) until: Until,
    stray: u32,
}

/// The end condition of a dropped region.
#[derive(Clone, Debug)]
pub(crate) enum Until {
    /// The brace that closes the first one.
    Braces(Braces),
    /// A line that is not YAML.
    NotYaml,
    /// The line that consists of this word.
    Word(Vec<u8>),
    /// A line indented no deeper than this.
    Dedent(usize),
    /// A line that is not `user:password`.
    NotUser,
    /// The line that closes a JSON array.
    ArrayEnd,
    /// A line that is neither Base64 nor hexadecimal digits.
    NotKey,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Braces {
    depth: u32,
    in_string: bool,
    escaped: bool,
}

pub(crate) enum Line {
    Inside,
    /// The construct ends at this offset of the line.
    Last(usize),
    /// The construct ended before this line.
    Outside,
}

// === impl Region ===

impl Region {
    pub(crate) fn new(kind: Kind, until: Until, pseudonyms: &Pseudonyms) -> Self {
        Self { kind, tagger: pseudonyms.tagger(), until, stray: 0 }
    }

    pub(crate) fn tag(&self) -> Tag {
        self.tagger.clone().finish()
    }

    /// Processes the next line, and returns whether it belongs to the region.
    pub(crate) fn line(&mut self, line: &[u8]) -> Line {
        let content = line.trim_ascii_end();
        let is_blank = content.is_empty();
        let verdict = match &mut self.until {
            Until::Braces(braces) => {
                if let Some(len) = braces.close(line) {
                    Line::Last(len)
                } else {
                    let is_json = is_blank
                        || matches!(content.last(), Some(b'{' | b'}' | b'[' | b']' | b',' | b'"' | b':'));
                    self.stray = if is_json { 0 } else { self.stray + 1 };
                    if self.stray > JSON_STRAY_MAX { Line::Outside } else { Line::Inside }
                }
            }
            Until::NotYaml => {
                if is_blank || is_yaml(content) {
                    Line::Inside
                } else {
                    Line::Outside
                }
            }
            Until::Word(word) => {
                self.stray += 1;
                if content.ends_with(word) && content.trim_ascii_start().len() == word.len() {
                    Line::Last(content.len())
                } else if self.stray > HERE_DOCUMENT_LINES_MAX {
                    Line::Outside
                } else {
                    Line::Inside
                }
            }
            Until::Dedent(indent) => {
                let depth = line.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
                if is_blank || depth > *indent { Line::Inside } else { Line::Outside }
            }
            Until::ArrayEnd => {
                self.stray += 1;
                let ends = content.trim_ascii_start().starts_with(b"]") || self.stray > ARRAY_LINES_MAX;
                if ends { Line::Outside } else { Line::Inside }
            }
            Until::NotKey => {
                self.stray += 1;
                let goes_on = is_of_key(content.trim_ascii_start()) && self.stray <= KEY_LINES_MAX;
                if goes_on { Line::Inside } else { Line::Outside }
            }
            Until::NotUser => {
                if is_user(content.trim_ascii_start()) {
                    Line::Inside
                } else {
                    Line::Outside
                }
            }
        };
        match verdict {
            Line::Inside => self.tagger.push(line),
            Line::Last(len) => self.tagger.push(&line[..len]),
            Line::Outside => {}
        }
        verdict
    }
}

/// Returns whether a line can belong to a cloud-config document: indented, a list item, a comment or a
/// lower-case key.
pub(crate) fn is_yaml(line: &[u8]) -> bool {
    let key = line.iter().take_while(|byte| byte.is_ascii_lowercase() || matches!(byte, b'_' | b'-')).count();
    matches!(line, [b' ' | b'\t' | b'#', ..] | [b'-', b' ', ..] | b"-" | b"---")
        || key > 0 && matches!(&line[key..], [b':'] | [b':', b' ', ..])
}

/// Returns whether a line belongs to a private key without PEM, or is one of its headers.
fn is_of_key(line: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=:".contains(byte);
    let has_digits = line.iter().filter(|byte| byte.is_ascii_digit()).count() > 0;
    let is_header = [&b"Comment: "[..], b"Subject: "].iter().any(|header| line.starts_with(header));
    is_header || !line.is_empty() && line.iter().all(is_part) && (has_digits || line.len() >= KEY_LINE_MIN)
}

/// Returns whether a line has the form `user:password`.
fn is_user(line: &[u8]) -> bool {
    let name = line.iter().position(|byte| *byte == b':').unwrap_or(0);
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-".contains(byte);
    name > 0
        && name + 1 < line.len()
        && line[..name].iter().all(is_name)
        && !line.iter().any(u8::is_ascii_whitespace)
}

// === impl Braces ===

impl Braces {
    /// Returns the offset after the brace that closes the first one, if it is in this piece.
    pub(crate) fn close(&mut self, piece: &[u8]) -> Option<usize> {
        for (i, &byte) in piece.iter().enumerate() {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    // Strings do not span lines: a quote is missing.
                    b'"' | b'\n' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' if self.depth > 0 => self.in_string = true,
                b'{' => self.depth += 1,
                b'}' if self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Some(i + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}
