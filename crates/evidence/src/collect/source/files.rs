//! Files by name and pattern.
//!
//! Compressed logs are decompressed, because compressed data cannot be searched for secrets.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use jiff::Timestamp;

use super::Source;
use crate::collect::direct::{self, CHUNK, is_gzip, is_text};
use crate::collect::forbidden;
use crate::collect::host::Host;
use crate::collect::piece::Trouble;
use crate::collect::plan::Lines;
use crate::collect::sink::{FileSink, Framing, Sink};

/// Bytes before a file's kept end that are searched but not kept, to recognize a secret that extends into the
/// end. Earlier bytes are omitted unsearched.
const SEARCHED_MAX: u64 = 64 << 20;

pub(super) struct Files {
    pub(super) to: String,
    pub(super) paths: Vec<String>,
    pub(super) lines: Lines,
}

// === impl Files ===

impl Source for Files {
    fn collect(&self, host: &Host, sink: &mut Sink) -> Result<(), Trouble> {
        let mut found = false;
        let mut seen = HashSet::new();
        for pattern in &self.paths {
            // The path above the first star is not repeated in the bundle.
            let base = pattern
                .find('*')
                .and_then(|star| pattern[..star].rfind('/'))
                .map_or("", |end| &pattern[..end]);
            let paths = if pattern.contains('*') {
                host.find(pattern, sink.deadline())?
            } else {
                vec![pattern.into()]
            };
            for path in paths {
                if !pattern.contains('*') && !host.exists(&path) {
                    continue;
                }
                found = true;
                let name = if pattern.contains('*') {
                    path.strip_prefix(base).unwrap_or(&path).to_string_lossy().into_owned()
                } else {
                    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
                };
                let to = if self.to.ends_with('/') { format!("{}{name}", self.to) } else { self.to.clone() };
                self.one(host, sink, &path, &to, &mut seen)?;
            }
        }
        if found { Ok(()) } else { Err(Trouble::Absent) }
    }
}

impl Files {
    fn one(
        &self,
        host: &Host,
        sink: &mut Sink,
        path: &Path,
        to: &str,
        seen: &mut HashSet<PathBuf>,
    ) -> Result<(), Trouble> {
        // At the item's deadline the remaining files become one record, not thousands.
        sink.time_left()?;
        let source = path.to_string_lossy();
        let to = to.strip_suffix(".gz").unwrap_or(to);
        let (real, file) = match forbidden::open(host, path) {
            Ok(opened) => opened,
            Err(trouble) => {
                sink.note(to, &source, &trouble);
                return Ok(());
            }
        };
        // Container logs are reachable by two names.
        if !seen.insert(real) {
            return Ok(());
        }
        if is_old_log(path, &file, sink.since()) {
            sink.note(to, &source, &Trouble::Skipped("not written since the requested time"));
            return Ok(());
        }
        if sink.is_for_diagnosis() {
            if let Err(trouble) = direct::file(file, &source, sink) {
                sink.note(to, &source, &trouble);
            }
            return Ok(());
        }
        let framing = match self.lines {
            Lines::Plain => Framing::Lines,
            Lines::Cri => Framing::Cri,
        };
        let read = file.try_clone()?;
        sink.file(to, &source, framing, |sink| {
            fill(file, sink)?;
            forbidden::verify(host, &read).map(|_| ())
        });
        Ok(())
    }
}

/// Returns whether this is a log last written before `since`.
///
/// State and configuration are relevant regardless of age.
fn is_old_log(path: &Path, file: &File, since: Option<Timestamp>) -> bool {
    let Some(since) = since.filter(|_| path.starts_with("/var/log")) else { return false };
    let written = file.metadata().and_then(|metadata| metadata.modified()).ok();
    written.and_then(|written| Timestamp::try_from(written).ok()).is_some_and(|written| written < since)
}

fn fill(mut file: File, sink: &mut FileSink<'_>) -> Result<(), Trouble> {
    let mut head = Vec::new();
    file.by_ref().take(CHUNK as u64).read_to_end(&mut head)?;
    if is_gzip(&head) {
        file.seek(SeekFrom::Start(0))?;
        return copy(&mut MultiGzDecoder::new(file), sink, u64::MAX);
    }
    if !is_text(&head) {
        return Err(direct::not_text());
    }
    let limits = sink.limits();
    let size = file.metadata()?.len();
    sink.write(&head)?;
    if size <= limits.bytes + SEARCHED_MAX {
        // Includes files of unknown size, such as those in `/proc`. A file being written may have grown
        // meanwhile.
        return copy(&mut file, sink, u64::MAX);
    }
    let start = head.len() as u64;
    let wanted = limits.head().saturating_sub(start);
    copy(&mut file, sink, wanted)?;
    let behind = size - limits.tail() - SEARCHED_MAX;
    file.seek(SeekFrom::Start(behind))?;
    sink.pass_over(behind.saturating_sub(start + wanted));
    copy(&mut file, sink, u64::MAX)
}

fn copy(reader: &mut impl Read, sink: &mut FileSink<'_>, limit: u64) -> Result<(), Trouble> {
    let mut reader = reader.take(limit);
    let mut buffer = vec![0; CHUNK];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => sink.write(&buffer[..count])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}
