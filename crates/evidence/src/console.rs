//! Reports over a serial console, the only output of a machine whose network never came up.
//!
//! A report is compressed and split into numbered lines, each with a checksum, and written repeatedly:
//!
//! ```text
//! @landfall/1 9c1b54d0a8f2 3/21 5f0c9a71 KLUv_QBYVQ…
//!             │            │    │        └ up to 120 bytes, base64 for URLs
//!             │            │    └ CRC-32 of the text before and after it
//!             │            └ line number and number of lines
//!             └ the end of the report's ID
//! ```
//!
//! - **Lines damaged by kernel output are discarded**: their checksums do not match. The next repetition
//!   contains them again, and lines of different repetitions are combined into one report.
//! - **A capture of the last 64 KiB contains all lines of a report**: a report takes at most a quarter of
//!   that, and is repeated. Longer reports are reduced to their most important parts, without the signature,
//!   which is then invalid.
//!
//! A frame contains the envelope with an empty payload, a line break, and the payload as it was signed. In base64 the
//! payload would compress to about twice the size.
//!
//! Reading is pure and bounded for any input.

use std::collections::BTreeMap;
use std::io::{self, Read};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use flate2::Crc;
use landfall_model::envelope::{Envelope, EnvelopeError, ReportMessage};
use landfall_model::report::Evidence;
use memchr::{memchr, memmem, memrchr};

/// The prefix of each line, at any position in a line of the console.
const MARK_TEXT: &str = "@landfall/1 ";
const MARK: &[u8] = MARK_TEXT.as_bytes();
/// Bytes of a report per line: with its head a line stays below 200 columns, where some consoles break lines.
const BYTES_PER_LINE: usize = 120;
/// A quarter of the 64 KiB that the smallest cloud console buffer holds, less the line heads.
const MAX_LINES: usize = 80;
/// Digits of the report's ID: enough to distinguish the reports of one machine.
const ID_DIGITS: usize = 12;
/// White space that a console adds before a line. Continued messages and objects of a bundle are indented
/// further.
const MAX_BLANK: usize = 4;
/// A line with its head, and space for additions by the console.
const MAX_LINE: usize = 512;
/// Reports of one console that are assembled concurrently; the least recently updated one is evicted first.
const MAX_REPORTS: usize = 16;
/// A report is below 100 KiB, and hubs reject longer ones than this. A few lines can decompress to far more.
const MAX_UNPACKED: u64 = 1 << 20;
/// Reports are compressed with windows no larger than themselves; frames that need more than 8 MiB are not
/// ours.
const MAX_WINDOW_LOG: u32 = 23;
/// Reports are small: higher levels save nothing and cost memory.
const LEVEL: i32 = 3;

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    #[error("cannot compress the report")]
    Pack(#[source] io::Error),
    #[error("the report does not fit, not even its verdict alone")]
    TooLarge,
}

/// A report found on a console.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub message: ReportMessage,
    /// The envelope, whose signature is not verified. It has none if the report was reduced.
    pub envelope: Envelope,
}

/// Assembles reports from the lines of a console.
#[derive(Debug, Default)]
pub struct Finder {
    reports: BTreeMap<String, Partial>,
    lines: u64,
}

/// The lines of one report received so far.
#[derive(Debug)]
struct Partial {
    of: usize,
    lines: BTreeMap<usize, Vec<u8>>,
    last_line: u64,
}

/// A reader that searches the data for reports.
#[derive(Debug)]
pub(crate) struct Tap<R> {
    reader: R,
    finder: Finder,
    /// The start of a line that is not yet complete.
    held: Vec<u8>,
}

/// Returns the lines to write for a report, given its envelope as JSON; the last line is human-readable.
pub fn frame(envelope: &[u8]) -> Result<String, FrameError> {
    let envelope = Envelope::parse(envelope)?;
    let message = envelope.message()?;
    let mut packed = pack(envelope)?;
    for reduce in [without_details, verdict_alone] {
        if packed.len() <= MAX_LINES * BYTES_PER_LINE {
            break;
        }
        let reduced = serde_json::to_vec(&reduce(message.clone())).map_err(EnvelopeError::Message)?;
        packed = pack(Envelope::unsigned(reduced))?;
    }
    if packed.len() > MAX_LINES * BYTES_PER_LINE {
        return Err(FrameError::TooLarge);
    }
    let id = short_id(&message);
    let of = packed.len().div_ceil(BYTES_PER_LINE);
    // Ends any partial line on the console.
    let mut text = String::from("\n");
    for (number, piece) in packed.chunks(BYTES_PER_LINE).enumerate() {
        let (place, data) = (format!("{}/{of}", number + 1), BASE64.encode(piece));
        let sum = checksum(&id, &place, &data);
        text += &format!("{MARK_TEXT}{id} {place} {sum:08x} {data}\n");
    }
    let verdict = &message.report.verdict;
    let state = serde_json::to_value(verdict.state).unwrap_or_default();
    let state = state.as_str().unwrap_or("unknown");
    let cause = verdict.cause.as_ref().map(|cause| format!(" cause={cause}")).unwrap_or_default();
    text += &format!("{MARK_TEXT}verdict {state}{cause} report={}\n", message.id);
    Ok(text)
}

fn pack(mut envelope: Envelope) -> Result<Vec<u8>, FrameError> {
    let payload = std::mem::take(&mut envelope.payload);
    let mut bytes = serde_json::to_vec(&envelope).map_err(EnvelopeError::Message)?;
    bytes.push(b'\n');
    bytes.extend(payload);
    zstd::bulk::compress(&bytes, LEVEL).map_err(FrameError::Pack)
}

/// Reduces a report to its essential parts, with one line of evidence each.
fn without_details(mut message: ReportMessage) -> ReportMessage {
    let report = &mut message.report;
    report.findings.retain(|finding| finding.root && finding.ruled_out.is_none());
    for finding in &mut report.findings {
        finding.evidence.truncate(1);
        for evidence in &mut finding.evidence {
            evidence.before.clear();
            evidence.after.clear();
        }
    }
    report.sources.clear();
    report.next_steps.clear();
    report.reasoning = None;
    message
}

fn verdict_alone(message: ReportMessage) -> ReportMessage {
    let mut message = without_details(message);
    message.report.findings.clear();
    message.report.timeline.clear();
    message.report.last_seen = None;
    message
}

fn short_id(message: &ReportMessage) -> String {
    let id = message.id.to_string();
    id[id.len() - ID_DIGITS..].to_owned()
}

fn checksum(id: &str, place: &str, data: &str) -> u32 {
    let mut crc = Crc::new();
    for part in [id, place, data] {
        crc.update(part.as_bytes());
        crc.update(b" ");
    }
    crc.sum()
}

// === impl Record ===

impl Record {
    /// Returns the lines of evidence in the report, in the order they were written on the machine.
    pub fn lines(&self) -> String {
        let findings = self.message.report.findings.iter();
        let counted = findings.filter(|finding| finding.ruled_out.is_none());
        let mut evidence: Vec<&Evidence> = counted.flat_map(|finding| &finding.evidence).collect();
        evidence.sort_by(|one, other| {
            (one.time, one.line, &one.text).cmp(&(other.time, other.line, &other.text))
        });
        evidence.dedup_by(|one, other| one.text == other.text);
        let mut text = String::new();
        for evidence in evidence {
            for line in evidence.before.iter().chain([&evidence.text]).chain(&evidence.after) {
                text.extend(line.chars().map(|c| if c.is_control() { ' ' } else { c }));
                text.push('\n');
            }
        }
        text
    }
}

// === impl Finder ===

impl Finder {
    /// Processes a line of the console; most lines are not part of a report.
    pub fn line(&mut self, line: &[u8]) {
        self.lines += 1;
        let Some(at) = memmem::find(line, MARK) else { return };
        if !is_time(&line[..at]) {
            return;
        }
        let Some((id, number, of, bytes)) = parse(&line[at + MARK.len()..]) else { return };
        if !self.reports.contains_key(&id) && self.reports.len() == MAX_REPORTS {
            let oldest = self.reports.iter().min_by_key(|(_, partial)| partial.last_line);
            if let Some(oldest) = oldest.map(|(id, _)| id.clone()) {
                self.reports.remove(&oldest);
            }
        }
        let partial =
            self.reports.entry(id).or_insert_with(|| Partial { of, lines: BTreeMap::new(), last_line: 0 });
        partial.last_line = self.lines;
        if partial.of == of {
            partial.lines.insert(number, bytes);
        }
    }

    /// Returns the complete reports, latest last.
    ///
    /// Each is decompressed when the iterator reaches it: together they may be a thousand times larger than
    /// the console data.
    pub fn records(self) -> impl IntoIterator<Item = Record, IntoIter: Send> {
        let mut whole: Vec<(String, Partial)> =
            self.reports.into_iter().filter(|(_, partial)| partial.lines.len() == partial.of).collect();
        whole.sort_by_key(|(_, partial)| partial.last_line);
        whole.into_iter().filter_map(|(id, partial)| partial.record(&id))
    }
}

/// Returns whether only a timestamp precedes the prefix, as some captures add to each line.
///
/// Agents write the prefix at the start of a line. After a program name it is text that the program quotes,
/// and an attacker may have chosen it.
fn is_time(prefix: &[u8]) -> bool {
    let is_part =
        |byte: &u8| byte.is_ascii_digit() || byte.is_ascii_control() || b"TZ-:.,+/[] ".contains(byte);
    prefix.iter().all(is_part) && (prefix.len() < MAX_BLANK || prefix.iter().any(u8::is_ascii_digit))
}

/// Parses the rest of an intact line: ID, line number, number of lines, and bytes.
fn parse(rest: &[u8]) -> Option<(String, usize, usize, Vec<u8>)> {
    let rest = std::str::from_utf8(&rest[..rest.len().min(MAX_LINE)]).ok()?;
    let mut words = rest.split_ascii_whitespace();
    let (id, place, sum, data) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let (number, of) = place.split_once('/')?;
    let (number, of): (usize, usize) = (number.parse().ok()?, of.parse().ok()?);
    let plain = id.len() == ID_DIGITS && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !plain || number == 0 || number > of || of > MAX_LINES {
        return None;
    }
    if u32::from_str_radix(sum, 16).ok()? != checksum(id, place, data) {
        return None;
    }
    let bytes = BASE64.decode(data).ok().filter(|bytes| bytes.len() <= BYTES_PER_LINE)?;
    Some((id.to_owned(), number, of, bytes))
}

// === impl Partial ===

impl Partial {
    fn record(&self, id: &str) -> Option<Record> {
        let packed: Vec<u8> = self.lines.values().flatten().copied().collect();
        let mut bytes = Vec::new();
        let mut decoder = zstd::Decoder::with_buffer(packed.as_slice()).ok()?;
        decoder.window_log_max(MAX_WINDOW_LOG).ok()?;
        decoder.take(MAX_UNPACKED).read_to_end(&mut bytes).ok()?;
        let end = memchr(b'\n', &bytes)?;
        let mut envelope = Envelope::parse(&bytes[..end]).ok()?;
        envelope.payload = bytes.split_off(end + 1);
        let message = envelope.message().ok()?;
        (short_id(&message) == id).then_some(Record { message, envelope })
    }
}

// === impl Tap ===

impl<R: Read> Tap<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self { reader, finder: Finder::default(), held: Vec::new() }
    }

    /// Returns the reports found, after all data was read.
    pub(crate) fn finish(mut self) -> impl Iterator<Item = Record> {
        self.finder.line(&self.held);
        self.finder.records().into_iter()
    }

    fn look(&mut self, mut bytes: &[u8]) {
        if !self.held.is_empty() {
            let end = memchr(b'\n', bytes);
            let more = &bytes[..end.unwrap_or(bytes.len())];
            let room = MAX_LINE.saturating_sub(self.held.len());
            self.held.extend_from_slice(&more[..more.len().min(room)]);
            let Some(end) = end else { return };
            self.finder.line(&std::mem::take(&mut self.held));
            bytes = &bytes[end + 1..];
        }
        let end = memrchr(b'\n', bytes).map_or(0, |at| at + 1);
        let (mut lines, rest) = bytes.split_at(end);
        while let Some(at) = memmem::find(lines, MARK) {
            let start = memrchr(b'\n', &lines[..at]).map_or(0, |at| at + 1);
            let end = memchr(b'\n', &lines[at..]).map_or(lines.len(), |end| at + end);
            self.finder.line(&lines[start..end]);
            lines = &lines[end..];
        }
        self.held = rest[..rest.len().min(MAX_LINE)].to_vec();
    }
}

impl<R: Read> Read for Tap<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.look(&buffer[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
