//! Bundles: received as a stream, verified, stored by digest and read line by line.

use std::cell::Cell;
use std::io::{self, BufRead as _, BufReader, Read, Seek as _, SeekFrom, Write as _};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use futures_util::{Stream, StreamExt as _};
use landfall_evidence::bundle::{self, VerifyError};
use landfall_net::serve::BoxError;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;

use crate::name::NodeName;
use crate::objects::{ObjectError, Objects};

/// Maximum decompressed size of all files of a bundle; far above the limits of the collectors.
pub(crate) const MAX_UNPACKED: u64 = 8 << 30;
/// Minimum number of bytes per minute, about 35 kbit/s, so that a slow sender does not occupy an upload slot.
pub(crate) const LEAST: usize = 256 << 10;
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
/// Time limit for reading one bundle while a client waits and other requests are queued.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum length of a displayed line, in bytes; longer lines are truncated to bound the size of a page.
const MAX_LINE: usize = 4096;
/// Maximum number of lines on one page.
pub(crate) const MAX_LINES: u32 = 2000;
/// Number of received bytes between checks of the free disk space.
const LOOK_EVERY: u64 = 1 << 20;
/// Disk space that bundles leave free for other uses: one twentieth of the disk, at most this many bytes.
const FREE: u64 = 1 << 30;
/// Maximum number of listed files per bundle.
const MAX_FILES: usize = 20_000;
/// Maximum text size of a response about one bundle; equals a page of long lines.
const MAX_ANSWER: usize = 8 << 20;

/// Limits on uploaded bundles, compressed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BundleLimits {
    pub packed: u64,
}

/// Budget for reading all files of one bundle. Files may be compressed again, and a small bundle can contain
/// thousands that decompress to gigabytes.
#[derive(Debug)]
pub(crate) struct Effort {
    left: Cell<u64>,
    until: Instant,
    spent: Cell<bool>,
}

/// A reader that stops when its [`Effort`] is spent.
struct Within<'e, R> {
    reader: R,
    effort: &'e Effort,
}

/// A received bundle that is not verified yet.
#[derive(Debug)]
pub(crate) struct Received {
    draft: NamedTempFile,
    digest: String,
    bytes: u64,
}

/// A verified bundle.
#[derive(Debug)]
pub(crate) struct Taken {
    pub digest: String,
    pub bytes: u64,
    pub files: u64,
    pub cut: bool,
}

/// A file of a bundle.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct LogFile {
    pub path: String,
    pub bytes: u64,
    /// The source of the file on the machine.
    pub source: String,
    /// Number of bytes omitted by a limit.
    pub truncated: u64,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct LogLine {
    pub path: String,
    /// Line number, starting at 1.
    pub line: u64,
    pub text: String,
}

/// Some lines of a bundle.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct LogPage {
    pub lines: Vec<LogLine>,
    /// Whether more lines follow.
    pub more: bool,
}

/// Selection of lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogQuery {
    /// `None` selects all files.
    pub path: Option<String>,
    /// The first line, starting at 1.
    pub from: u64,
    pub count: u32,
    /// Case-insensitive substring of the selected lines.
    pub search: String,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BundleError {
    #[error("a bundle may have {limit} bytes at most")]
    TooLarge { limit: u64 },
    #[error("the bundle's stream ended early")]
    Stream(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the bundle's digest is not the one it was announced with")]
    Digest,
    #[error("it is not a bundle")]
    NotABundle(#[source] VerifyError),
    #[error("`{file}` is not as it was collected: {problem}")]
    Damaged { file: String, problem: String },
    #[error("it contains no complete file")]
    Empty,
    #[error("it is a bundle of node `{found}`, not of `{claimed}`")]
    OtherNode { found: String, claimed: String },
    #[error(
        "it was not found within {} s and {} GiB of its files, some compressed twice: download the bundle and search it locally",
        PATIENCE.as_secs(),
        MAX_UNPACKED >> 30
    )]
    Long,
    #[error("the disk has too little room left for bundles")]
    NoRoom,
    #[error("cannot keep or read the bundle")]
    Objects(#[source] ObjectError),
    #[error("cannot write the bundle")]
    Write(#[source] io::Error),
    #[error("the work was stopped")]
    Stopped,
}

/// Writes a bundle to an unnamed draft file as it arrives. `free` maps the size of a disk to the bytes to leave
/// free.
pub(crate) async fn receive<E: Into<BoxError>>(
    objects: &Objects,
    announced: Option<&str>,
    limits: BundleLimits,
    free: fn(u64) -> u64,
    mut stream: impl Stream<Item = Result<Bytes, E>> + Unpin,
) -> Result<Received, BundleError> {
    let mut draft = objects.draft().map_err(BundleError::Objects)?;
    let mut hasher = Sha256::new();
    let mut bytes = 0;
    let mut looked = None;
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| BundleError::Stream(error.into()))?;
        bytes += chunk.len() as u64;
        if bytes > limits.packed {
            return Err(BundleError::TooLarge { limit: limits.packed });
        }
        // Checked again as the bundle grows: other bundles arrive concurrently.
        let part = bytes / LOOK_EVERY;
        if looked.replace(part) != Some(part) && !objects.leaves(free).map_err(BundleError::Objects)? {
            return Err(BundleError::NoRoom);
        }
        hasher.update(&chunk);
        // Chunks are small and go to the page cache; a blocking task per chunk would cost more than the write.
        draft.write_all(&chunk).map_err(BundleError::Write)?;
    }
    let digest = hex::encode(hasher.finalize());
    if announced.is_some_and(|announced| announced != digest) {
        return Err(BundleError::Digest);
    }
    Ok(Received { draft, digest, bytes })
}

/// Verifies a bundle. Blocking.
pub(crate) fn verified(node: &NodeName, received: Received) -> Result<(NamedTempFile, Taken), BundleError> {
    let Received { mut draft, digest, bytes } = received;
    let (files, cut) = verify(draft.as_file_mut(), node)?;
    Ok((draft, Taken { digest, bytes, files, cut }))
}

fn verify(file: &mut std::fs::File, node: &NodeName) -> Result<(u64, bool), BundleError> {
    file.seek(SeekFrom::Start(0)).map_err(BundleError::Write)?;
    let verified = bundle::verify_within(file, MAX_UNPACKED).map_err(BundleError::NotABundle)?;
    if let Some((file, problem)) = verified.wrong.into_iter().next() {
        return Err(BundleError::Damaged { file, problem });
    }
    if verified.whole.is_empty() {
        return Err(BundleError::Empty);
    }
    // A truncated bundle has no manifest that names its node. The authenticated sender, which may report for the
    // node, then determines it.
    if let Some(manifest) = &verified.manifest
        && manifest.node.hostname != node.as_str()
    {
        let found = manifest.node.hostname.chars().take(253).collect();
        return Err(BundleError::OtherNode { found, claimed: node.to_string() });
    }
    Ok((verified.whole.len() as u64, verified.cut))
}

/// Returns the bytes to leave free on a disk of this size.
pub(crate) fn left_free(disk: u64) -> u64 {
    FREE.min(disk / 20)
}

/// Lists the files of a stored bundle. Blocking.
pub(crate) fn files(reader: impl Read) -> Result<Vec<LogFile>, BundleError> {
    let mut files = Vec::new();
    let mut answer = 0;
    let effort = Effort::default();
    walk(reader, &effort, &mut |path, record, _| {
        answer += path.len() + record.item.source.len();
        files.push(LogFile {
            path: path.to_owned(),
            bytes: record.item.bytes,
            source: record.item.source.clone(),
            truncated: record.item.truncated,
        });
        let more = files.len() < MAX_FILES && answer < MAX_ANSWER;
        Ok(if more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    if effort.is_spent() { Err(BundleError::Long) } else { Ok(files) }
}

/// Returns lines of a stored bundle. Blocking.
pub(crate) fn lines(reader: impl Read, query: &LogQuery, effort: &Effort) -> Result<LogPage, BundleError> {
    let count = query.count.clamp(1, MAX_LINES) as usize;
    let search = query.search.to_lowercase();
    let mut page = LogPage::default();
    let mut answer = 0;
    walk(reader, effort, &mut |path, _, content| {
        if query.path.as_ref().is_some_and(|wanted| wanted != path) {
            return Ok(ControlFlow::Continue(()));
        }
        let mut content = unpacked(content, effort)?;
        let mut number = 0;
        while let Some(text) = next_line(&mut content)? {
            number += 1;
            if number < query.from || (!search.is_empty() && !text.to_lowercase().contains(&search)) {
                continue;
            }
            if page.lines.len() == count || answer >= MAX_ANSWER {
                page.more = true;
                return Ok(ControlFlow::Break(()));
            }
            answer += path.len() + text.len();
            page.lines.push(LogLine { path: path.to_owned(), line: number, text });
        }
        Ok(if query.path.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    if effort.is_spent() {
        if page.lines.is_empty() {
            return Err(BundleError::Long);
        }
        page.more = true;
    }
    Ok(page)
}

/// Returns a reader for a file of a bundle, which may be compressed again, such as the journal of all units.
pub(crate) fn unpacked<'c>(
    content: &'c mut dyn Read,
    effort: &'c Effort,
) -> io::Result<impl io::BufRead + 'c> {
    let mut content = BufReader::new(content);
    let packed = content.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    let content: Box<dyn Read + 'c> =
        if packed { Box::new(MultiGzDecoder::new(content)) } else { Box::new(content) };
    Ok(BufReader::new(Within { reader: content, effort }))
}

/// Reads one line without its line end. Truncates long lines and skips their rest.
pub(crate) fn next_line(reader: &mut impl io::BufRead) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    if reader.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.len() == MAX_LINE && !line.ends_with(b"\n") {
        skip_line(reader)?;
    }
    while line.last().is_some_and(|byte| b"\r\n".contains(byte)) {
        line.pop();
    }
    Ok(Some(String::from_utf8_lossy(&line).into_owned()))
}

fn skip_line(reader: &mut impl io::BufRead) -> io::Result<()> {
    loop {
        let buffer = reader.fill_buf()?;
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let (count, done) = (end.map_or(buffer.len(), |end| end + 1), end.is_some() || buffer.is_empty());
        reader.consume(count);
        if done {
            return Ok(());
        }
    }
}

/// Callback for a file, with its path, its record and its content.
pub(crate) type Visit<'a> =
    dyn FnMut(&str, &bundle::Record, &mut dyn Read) -> io::Result<ControlFlow<()>> + 'a;

/// Visits the files of a bundle; stops when the effort is spent.
pub(crate) fn walk(reader: impl Read, effort: &Effort, visit: &mut Visit<'_>) -> Result<(), BundleError> {
    bundle::walk(Within { reader, effort }, MAX_UNPACKED, &mut |_, record, content| match record {
        Some(record) => visit(&record.item.path, &record, content),
        None => Ok(ControlFlow::Continue(())),
    })
    .map(drop)
    .map_err(BundleError::NotABundle)
}

// === impl Effort ===

impl Default for Effort {
    fn default() -> Self {
        Self::new(MAX_UNPACKED, PATIENCE)
    }
}

impl Effort {
    fn new(bytes: u64, patience: Duration) -> Self {
        Self { left: Cell::new(bytes), until: Instant::now() + patience, spent: Cell::new(false) }
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.spent.get()
    }
}

// === impl Within ===

impl<R: Read> Read for Within<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Effort { left, until, spent } = self.effort;
        if left.get() == 0 || Instant::now() >= *until {
            spent.set(true);
            return Err(io::Error::other("search limit reached"));
        }
        let most = usize::try_from(left.get()).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.reader.read(&mut buffer[..most])?;
        left.set(left.get() - count as u64);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use jiff::Timestamp;
    use landfall_evidence::bundle::{BundleWriter, Packing, bundle_id};
    use landfall_model::bundle::{BundleItem, ItemOutcome};
    use landfall_model::identity::NodeIdentity;

    use super::*;

    /// A bundle of `count` files, each of which decompresses to 1 MiB of empty lines.
    fn bombs(count: usize) -> Vec<u8> {
        packed(count, &vec![b'\n'; 1 << 20])
    }

    fn packed(count: usize, content: &[u8]) -> Vec<u8> {
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        packed.write_all(content).unwrap();
        let packed = packed.finish().unwrap();
        let started = Timestamp::UNIX_EPOCH;
        let node = NodeIdentity {
            hostname: "n1".to_owned(),
            machine_id: None,
            boot_id: None,
            os: None,
            architecture: None,
            provider_id: None,
        };
        let mut bundle = BundleWriter::new(Vec::new(), Packing::Gzip, &bundle_id(started), node, started);
        for number in 0..count {
            let item = BundleItem {
                path: format!("bootstrap/journals/{number}.log.gz"),
                source: "journal".to_owned(),
                outcome: ItemOutcome::Collected,
                duration_ms: 1,
                bytes: 0,
                truncated: 0,
                sha256: None,
                redactions: std::collections::BTreeMap::new(),
            };
            bundle.add(item, packed.as_slice()).unwrap();
        }
        bundle.finish(started).unwrap().out
    }

    fn query(search: &str) -> LogQuery {
        LogQuery { search: search.to_owned(), count: 10, ..LogQuery::default() }
    }

    #[test]
    fn files_that_are_packed_once_more_have_a_bound_all_together() {
        let bundle = bombs(8);
        let enough = Effort::new(9 << 20, PATIENCE);
        assert!(lines(bundle.as_slice(), &query("nowhere"), &enough).unwrap().lines.is_empty());
        let effort = Effort::new(4 << 20, PATIENCE);
        let refused = lines(bundle.as_slice(), &query("nowhere"), &effort);
        assert!(matches!(refused, Err(BundleError::Long)), "{refused:?}");
        assert_eq!(effort.left.get(), 0, "not more, and not less");
        // The lines found so far are returned.
        let found = lines(bundle.as_slice(), &LogQuery { count: MAX_LINES, ..query("") }, &enough).unwrap();
        assert!(found.more && found.lines.len() == MAX_LINES as usize);
    }

    #[test]
    fn answers_have_a_bound() {
        // Each byte that is not valid UTF-8 becomes three bytes in the response.
        let line = [vec![0xff; MAX_LINE - 1], vec![b'\n']].concat();
        let bundle = packed(1, &line.repeat(MAX_LINES as usize));
        let query = LogQuery { count: MAX_LINES, ..query("") };
        let page = lines(bundle.as_slice(), &query, &Effort::default()).unwrap();
        let told: usize = page.lines.iter().map(|line| line.path.len() + line.text.len()).sum();
        assert!(page.more && (MAX_ANSWER..MAX_ANSWER + 4 * MAX_LINE).contains(&told), "{told}");
    }

    #[test]
    fn nobody_looks_for_ever() {
        let late = Effort::new(MAX_UNPACKED, Duration::ZERO);
        assert!(lines(bombs(1).as_slice(), &query("nowhere"), &late).is_err());
        assert!(late.is_spent());
    }

    #[test]
    fn large_disks_are_not_kept_empty_for_nothing() {
        assert_eq!((left_free(10 << 30), left_free(1 << 40)), (512 << 20, 1 << 30));
    }
}
