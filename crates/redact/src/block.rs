//! Secrets that span lines: PEM, Ignition's configuration dump, cloud-config, here-documents, block scalars,
//! and kubeadm's certificate key below its announcement.
//!
//! A [`Context`] stores the open constructs between lines. Lines can therefore arrive in blocks, or one by
//! one as journal entries. Everything inside an open construct is dropped, and the marker replaces the
//! last part.

use memchr::memmem;

use crate::Kind;
use crate::certificate;
use crate::frame::{self, Frame};
use crate::hit::{Hit, What};
use crate::pseudonym::{Pseudonyms, Tagger};
use crate::region::{Line, Region, Until};
use crate::runs;

/// Maximum size of a PEM body; no certificate is larger.
const PEM_BODY_MAX: usize = 64 << 10;

/// Maximum number of other processes' lines between two lines of one PEM block.
const PEM_STRAY_MAX: u32 = 4;

/// Minimum length of a PEM body line, except the last. OpenVPN writes 32 digits per line.
const PEM_LINE_MIN: usize = 32;

/// Lines after an announcement in which the certificate key is expected: the next one, unless other output
/// precedes it.
const KEY_LINES_MAX: u32 = 3;

/// Treatment of certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Certificates {
    /// Replaced with their public facts.
    Facts,
    /// Kept: they are public, and their facts have a different length.
    Keep,
}

/// The constructs that are open between two lines of a text.
pub(crate) struct Context {
    pub(crate) certificates: Certificates,
    open: Option<Open>,
    /// Open constructs in the texts of each frame.
    pub(crate) framed: Vec<(Frame, Context)>,
    /// Open constructs in the text decoded as UTF-16.
    pub(crate) wide: Option<Box<Context>>,
}

enum Open {
    Pem(Pem),
    Region(Region),
    Key(Key),
}

/// An announced secret of hexadecimal digits, printed on its own line.
struct Key {
    kind: Kind,
    digits: usize,
    tagger: Tagger,
    lines_left: u32,
}

struct Pem {
    tagger: Tagger,
    /// Collected only for certificates.
    body: Option<Vec<u8>>,
    stray: u32,
    /// Text before the body on its last line.
    lead: Vec<u8>,
}

// === impl Context ===

impl Context {
    pub(crate) fn new(certificates: Certificates) -> Self {
        Self { certificates, open: None, framed: Vec::new(), wide: None }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns whether any construct is open, including in frames.
    pub(crate) fn is_open_anywhere(&self) -> bool {
        self.is_open() || !self.framed.is_empty() || self.wide.is_some()
    }

    /// Returns whether all text up to the end of the open construct is dropped, so that it need not be
    /// searched further.
    pub(crate) fn drops_all(&self) -> bool {
        matches!(self.open, Some(Open::Region(_)))
    }

    /// Processes the lines of `text` from `at` (the start of a line) while a construct is open, and returns
    /// where it stopped.
    pub(crate) fn advance(&mut self, text: &[u8], mut at: usize, hits: &mut Vec<Hit>) -> usize {
        while at < text.len() {
            let Some(open) = &mut self.open else { break };
            let end = memchr::memchr(b'\n', &text[at..]).map_or(text.len(), |len| at + len + 1);
            let line = &text[at..end];
            match open {
                Open::Region(region) => match region.line(line) {
                    Line::Inside => hits.push(Hit { start: at, end, what: What::Drop }),
                    Line::Last(len) => {
                        hits.push(Hit {
                            start: at,
                            end: at + len,
                            what: What::Mark(region.kind, region.tag()),
                        });
                        self.open = None;
                    }
                    Line::Outside => {
                        hits.push(Hit { start: at, end: at, what: What::Insert(region.kind, region.tag()) });
                        self.open = None;
                        break;
                    }
                },
                Open::Pem(pem) => {
                    if pem.line(line, at, hits) {
                        self.open = None;
                    }
                }
                Open::Key(key) => {
                    if key.line(line, at, hits) {
                        self.open = None;
                    }
                }
            }
            at = end;
        }
        at
    }

    /// Starts dropping at `start`, at least up to the end of the line.
    pub(crate) fn open_region(
        &mut self,
        text: &[u8],
        (start, line_end): (usize, usize),
        kind: Kind,
        until: Until,
        pseudonyms: &Pseudonyms,
        hits: &mut Vec<Hit>,
    ) -> usize {
        let mut region = Region::new(kind, until, pseudonyms);
        let next = (line_end + 1).min(text.len());
        if let Until::Braces(braces) = &mut region.until
            && let Some(len) = braces.close(&text[start..line_end])
        {
            let end = start + len;
            let tag = pseudonyms.tag(&text[start..end]);
            hits.push(Hit { start, end, what: What::Mark(kind, tag) });
            return end;
        }
        hits.push(Hit { start, end: next, what: What::Drop });
        self.open = Some(Open::Region(region));
        self.advance(text, next, hits)
    }

    /// Starts dropping with the line at `at`.
    pub(crate) fn open_below(
        &mut self,
        text: &[u8],
        at: usize,
        kind: Kind,
        until: Until,
        pseudonyms: &Pseudonyms,
        hits: &mut Vec<Hit>,
    ) -> usize {
        self.open = Some(Open::Region(Region::new(kind, until, pseudonyms)));
        self.advance(text, at, hits)
    }

    /// Opens a PEM block with `-----BEGIN ` at `start`; returns where the search continues.
    pub(crate) fn open_pem(
        &mut self,
        text: &[u8],
        (start, line_end): (usize, usize),
        pseudonyms: &Pseudonyms,
        hits: &mut Vec<Hit>,
    ) -> usize {
        let line = &text[start..line_end];
        let label_end = memmem::find(&line[11..], b"-----").map_or(line.len(), |len| 11 + len);
        let label = &line[11..label_end];
        let is_private =
            memmem::find(label, b"PRIV").is_some() || memmem::find(label, b"Static key").is_some();
        let is_certificate = label == b"CERTIFICATE" || label == b"TRUSTED CERTIFICATE";
        let becomes_facts = is_certificate && self.certificates == Certificates::Facts;
        if !is_private && !becomes_facts {
            return line_end;
        }
        let body_start = (label_end + 5).min(line.len());
        let mut pem = Pem {
            tagger: pseudonyms.tagger(),
            body: (!is_private).then(Vec::new),
            stray: 0,
            lead: Vec::new(),
        };
        // Escaped for JSON, a complete block is on one line.
        if let Some((end, after)) = pem_end(&line[body_start..]) {
            pem.take(&line[body_start..body_start + end]);
            let end = start + body_start + after;
            hits.push(Hit { start, end, what: pem.what() });
            return end;
        }
        pem.take(&line[body_start..]);
        hits.push(Hit { start, end: line_end, what: What::Drop });
        self.open = Some(Open::Pem(pem));
        self.advance(text, (line_end + 1).min(text.len()), hits)
    }

    /// Expects this number of hexadecimal digits below the line that ends at `line_end`; returns where the search continues.
    pub(crate) fn open_key(
        &mut self,
        text: &[u8],
        line_end: usize,
        (kind, digits): (Kind, usize),
        pseudonyms: &Pseudonyms,
        hits: &mut Vec<Hit>,
    ) -> usize {
        self.open =
            Some(Open::Key(Key { kind, digits, tagger: pseudonyms.tagger(), lines_left: KEY_LINES_MAX }));
        self.advance(text, (line_end + 1).min(text.len()), hits)
    }

    /// Returns the marker of a construct without an end.
    pub(crate) fn finish(&mut self) -> Option<What> {
        let framed = self.framed.drain(..).rev().find_map(|(_, mut inner)| inner.finish());
        let wide = self.wide.take().and_then(|mut inner| inner.finish());
        let open = self.open.take().and_then(|open| match open {
            Open::Pem(pem) => Some(pem.what()),
            Open::Region(region) => Some(What::Mark(region.kind, region.tag())),
            Open::Key(_) => None,
        });
        open.or(framed).or(wide)
    }
}

/// Returns where a PEM body ends in a line, and where the line continues after the end marker.
fn pem_end(line: &[u8]) -> Option<(usize, usize)> {
    let end = memmem::find(line, b"-----END")?;
    let label = end + "-----END".len();
    let after = memmem::find(&line[label..], b"-----").map_or(line.len(), |len| label + len + 5);
    Some((end, after))
}

/// Returns whether a word is Base64, on one line or on several with escaped line ends.
fn is_body(word: &[u8]) -> bool {
    let mut rest = word;
    while let Some((byte, more)) = rest.split_first() {
        rest = match (byte, more) {
            (b'\\', [b'n' | b'r', more @ ..]) => more,
            _ if byte.is_ascii_alphanumeric() || b"+/=".contains(byte) => more,
            _ => return false,
        };
    }
    true
}

/// Returns the longest Base64 run in a line, if it can be a body line.
fn body_inside(line: &[u8]) -> Option<(usize, usize)> {
    let runs = runs::runs(line).into_iter().filter(|run| run.len() >= PEM_LINE_MIN);
    runs.max_by_key(|run| run.len()).map(|run| {
        let padding = line[run.end..].iter().take(2).take_while(|byte| **byte == b'=').count();
        (run.start, run.end + padding)
    })
}

// === impl Pem ===

impl Pem {
    /// Drops the block's part of a line; returns whether the block ends here.
    fn line(&mut self, line: &[u8], at: usize, hits: &mut Vec<Hit>) -> bool {
        if let Some((end, after)) = pem_end(line) {
            let start = line[..end].iter().rposition(u8::is_ascii_whitespace).map_or(0, |space| space + 1);
            self.take(&line[start..end]);
            hits.push(Hit { start: at + start, end: at + after, what: self.what() });
            return true;
        }
        let content = line.trim_ascii_end();
        let word_start = content.iter().rposition(u8::is_ascii_whitespace).map_or(0, |space| space + 1);
        let word = &content[word_start..];
        let is_header =
            [&b"Proc-Type:"[..], b"DEK-Info:"].iter().any(|header| memmem::find(line, header).is_some());
        let is_body = !word.is_empty() && is_body(word);
        if !is_body
            && !is_header
            && let Some((start, end)) = body_inside(content)
        {
            self.take(&content[start..end]);
            hits.push(Hit { start: at + start, end: at + end, what: What::Drop });
            self.stray = 0;
            self.lead = content[..start].to_vec();
            return false;
        }
        // The last line is short; its prefix is known only from the previous lines.
        if !is_body
            && !is_header
            && let Some((start, end)) = self.body_behind_lead(content)
        {
            self.take(&content[start..end]);
            hits.push(Hit { start: at + start, end: at + end, what: What::Drop });
            self.stray += 1;
            return false;
        }
        if is_body || is_header {
            self.take(word);
            // A separate line is dropped with its line end; after a prefix, only the word is dropped.
            let alone = content[..word_start].iter().all(u8::is_ascii_whitespace);
            let (start, end) = match (is_header, alone) {
                (true, _) => (0, content.len()),
                (false, true) => (0, line.len()),
                (false, false) => (word_start, content.len()),
            };
            hits.push(Hit { start: at + start, end: at + end, what: What::Drop });
        }
        if is_body && word.len() >= PEM_LINE_MIN || is_header || content.is_empty() {
            self.stray = 0;
            return false;
        }
        self.stray += 1;
        let is_cut_off = self.stray > PEM_STRAY_MAX;
        if is_cut_off {
            let what = match self.what() {
                What::Mark(kind, tag) => What::Insert(kind, tag),
                other => other,
            };
            hits.push(Hit { start: at, end: at, what });
        }
        is_cut_off
    }

    /// Returns the end of a body in a line with the same prefix as the previous line.
    fn body_behind_lead(&self, line: &[u8]) -> Option<(usize, usize)> {
        if self.lead.is_empty() {
            return None;
        }
        let start = frame::behind(&self.lead, line)?;
        let is_body = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
        let len = line[start..].iter().take_while(|byte| is_body(byte)).count();
        let is_whole =
            line.get(start + len).is_none_or(|byte| byte.is_ascii_whitespace() || !byte.is_ascii());
        (len > 3 && len.is_multiple_of(4) && is_whole).then_some((start, start + len))
    }

    fn take(&mut self, piece: &[u8]) {
        // Escaped line ends belong to the notation, not to the key: `\n` would be read as the letter.
        let mut rest = piece;
        while let Some((&byte, more)) = rest.split_first() {
            rest = more;
            if byte == b'\\' {
                rest = more.get(1..).unwrap_or_default();
            } else if byte.is_ascii_alphanumeric() || b"+/=".contains(&byte) {
                self.tagger.push(&[byte]);
                if let Some(body) = self.body.as_mut().filter(|body| body.len() < PEM_BODY_MAX) {
                    body.push(byte);
                }
            }
        }
    }

    fn what(&self) -> What {
        use base64::Engine as _;
        match &self.body {
            None => What::Mark(Kind::PRIVATE_KEY, self.tagger.clone().finish()),
            Some(body) => base64::engine::general_purpose::STANDARD
                .decode(body)
                .ok()
                .and_then(|der| certificate::facts(&der))
                .map_or(What::Withheld("certificate"), What::Facts),
        }
    }
}

// === impl Key ===

impl Key {
    /// Marks the key if the line ends with it. Returns whether it is no longer expected.
    fn line(&mut self, line: &[u8], at: usize, hits: &mut Vec<Hit>) -> bool {
        // An array string or an XML section may enclose the line.
        let is_closing = |byte: &u8| byte.is_ascii_whitespace() || b"\"'\\]>".contains(byte);
        let content = &line[..line.iter().rposition(|byte| !is_closing(byte)).map_or(0, |last| last + 1)];
        let digits = content.iter().rev().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let start = content.len() - digits;
        let is_word = content[..start].last().is_none_or(|byte| !byte.is_ascii_alphanumeric());
        if digits == self.digits && is_word {
            let mut tagger = self.tagger.clone();
            tagger.push(&content[start..]);
            let what = What::Mark(self.kind, tagger.finish());
            hits.push(Hit { start: at + start, end: at + content.len(), what });
            return true;
        }
        self.lines_left -= 1;
        self.lines_left == 0
    }
}
