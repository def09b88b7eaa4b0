//! Bundles: taken in as a stream, verified, kept by digest, and read line by line.

use std::io::{self, BufRead as _, BufReader, Read, Seek as _, SeekFrom, Write as _};
use std::ops::ControlFlow;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use futures_util::{Stream, StreamExt as _};
use landfall_evidence::bundle::{self, VerifyError};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;

use crate::name::NodeName;
use crate::objects::{ObjectError, Objects};

/// What all files of a bundle may be together, unpacked: far more than collectors put in.
pub(crate) const MAX_UNPACKED: u64 = 8 << 30;
/// Lines longer than this are cut: a page must stay a page.
const MAX_LINE: usize = 4096;
/// Lines on one page.
pub(crate) const MAX_LINES: u32 = 2000;
/// Files listed of one bundle.
const MAX_FILES: usize = 20_000;

/// What may be sent, packed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BundleLimits {
    pub packed: u64,
}

/// A bundle that has arrived and is not looked into yet.
#[derive(Debug)]
pub(crate) struct Received {
    draft: NamedTempFile,
    digest: String,
    bytes: u64,
}

/// A bundle that is what it says it is.
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
    /// What it was read from on the machine.
    pub source: String,
    /// Bytes a limit left out.
    pub truncated: u64,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct LogLine {
    pub path: String,
    /// Counted from 1.
    pub line: u64,
    pub text: String,
}

/// Some lines of a bundle.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct LogPage {
    pub lines: Vec<LogLine>,
    /// There are more after these.
    pub more: bool,
}

/// Which lines are wanted.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogQuery {
    /// All files when there is none.
    pub path: Option<String>,
    /// The first line, counted from 1.
    pub from: u64,
    pub count: u32,
    /// Only lines that hold this, without regard to the case of letters.
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
    #[error("it holds no whole file")]
    Empty,
    #[error("it is a bundle of node `{found}`, not of `{claimed}`")]
    OtherNode { found: String, claimed: String },
    #[error("cannot keep or read the bundle")]
    Objects(#[source] ObjectError),
    #[error("cannot write the bundle")]
    Write(#[source] io::Error),
    #[error("the work was stopped")]
    Stopped,
}

/// Writes a bundle to the disk as it comes, under no name yet.
pub(crate) async fn receive<E: std::error::Error + Send + Sync + 'static>(
    objects: &Objects,
    announced: Option<&str>,
    limits: BundleLimits,
    mut stream: impl Stream<Item = Result<Bytes, E>> + Unpin,
) -> Result<Received, BundleError> {
    let mut draft = objects.draft().map_err(BundleError::Objects)?;
    let mut hasher = Sha256::new();
    let mut bytes = 0;
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| BundleError::Stream(Box::new(error)))?;
        bytes += chunk.len() as u64;
        if bytes > limits.packed {
            return Err(BundleError::TooLarge { limit: limits.packed });
        }
        hasher.update(&chunk);
        // Chunks are small and go to the page cache; a thread for each would cost more than the write.
        draft.write_all(&chunk).map_err(BundleError::Write)?;
    }
    let digest: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
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
    // A bundle that was cut has no manifest and does not say whose it is: its sender, who may speak for the node, does.
    if let Some(manifest) = &verified.manifest
        && manifest.node.hostname != node.as_str()
    {
        let found = manifest.node.hostname.chars().take(253).collect();
        return Err(BundleError::OtherNode { found, claimed: node.to_string() });
    }
    Ok((verified.whole.len() as u64, verified.cut))
}

/// The files of a kept bundle. Blocking.
pub(crate) fn files(reader: impl Read) -> Result<Vec<LogFile>, BundleError> {
    let mut files = Vec::new();
    walk(reader, &mut |path, record, _| {
        files.push(LogFile {
            path: path.to_owned(),
            bytes: record.item.bytes,
            source: record.item.source.clone(),
            truncated: record.item.truncated,
        });
        Ok(if files.len() < MAX_FILES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(files)
}

/// Lines of a kept bundle. Blocking.
pub(crate) fn lines(reader: impl Read, query: &LogQuery) -> Result<LogPage, BundleError> {
    let count = query.count.clamp(1, MAX_LINES) as usize;
    let search = query.search.to_lowercase();
    let mut page = LogPage::default();
    walk(reader, &mut |path, _, content| {
        if query.path.as_ref().is_some_and(|wanted| wanted != path) {
            return Ok(ControlFlow::Continue(()));
        }
        let mut content = BufReader::new(content);
        let packed = is_packed(&mut content)?;
        let mut content: Box<dyn Read> =
            if packed { Box::new(MultiGzDecoder::new(content)) } else { Box::new(content) };
        let mut content = BufReader::new((&mut *content).take(MAX_UNPACKED));
        let mut number = 0;
        while let Some(text) = next_line(&mut content)? {
            number += 1;
            if number < query.from || (!search.is_empty() && !text.to_lowercase().contains(&search)) {
                continue;
            }
            if page.lines.len() == count {
                page.more = true;
                return Ok(ControlFlow::Break(()));
            }
            page.lines.push(LogLine { path: path.to_owned(), line: number, text });
        }
        Ok(if query.path.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(page)
}

/// Whether a file of a bundle is packed once more: the journal of all units is.
pub(crate) fn is_packed(content: &mut impl io::BufRead) -> io::Result<bool> {
    Ok(content.fill_buf()?.starts_with(&[0x1f, 0x8b]))
}

/// One line without its end, cut where it is too long; the rest of a long line is skipped.
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

/// What is done with a file: given are its path, its record and its content.
pub(crate) type Visit<'a> =
    dyn FnMut(&str, &bundle::Record, &mut dyn Read) -> io::Result<ControlFlow<()>> + 'a;

pub(crate) fn walk(reader: impl Read, visit: &mut Visit<'_>) -> Result<(), BundleError> {
    bundle::walk(reader, MAX_UNPACKED, &mut |_, record, content| match record {
        Some(record) => visit(&record.item.path, &record, content),
        None => Ok(ControlFlow::Continue(())),
    })
    .map(drop)
    .map_err(BundleError::NotABundle)
}
