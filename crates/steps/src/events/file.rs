//! State events as lines of a file, for later readers: an agent that delivers them to the hub, a bundle that contains
//! them.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use landfall_model::step::Event;

use super::Sink;

/// Enough for some thousand events; a run has 50. Older ones are in the previous file, and then deleted.
const MAX_BYTES: u64 = 1024 * 1024;

/// Appends each state event as one line of JSON.
///
/// The ledger is authoritative. This copy can be read while a run continues and after it was abandoned.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    /// `None` before the first event: the directory may not exist yet.
    open: Option<(File, u64)>,
}

// === impl EventFile ===

impl EventFile {
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), open: None }
    }

    fn append(&mut self, event: &Event) -> io::Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        let (mut file, mut length) = match self.open.take() {
            Some(open) => open,
            None => self.open()?,
        };
        if length > 0 && length + line.len() as u64 > MAX_BYTES {
            let mut before = self.path.clone().into_os_string();
            before.push(".1");
            std::fs::rename(&self.path, before)?;
            (file, length) = self.open()?;
        }
        // A single write: a reader never sees a partial line of a running process.
        file.write_all(&line)?;
        self.open = Some((file, length + line.len() as u64));
        Ok(())
    }

    fn open(&self) -> io::Result<(File, u64)> {
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600);
        // A link created in place of this file must not redirect the lines.
        options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
        let file = options.open(&self.path)?;
        let length = file.metadata()?.len();
        Ok((file, length))
    }
}

impl Sink for EventFile {
    fn take(&mut self, event: &Event) {
        // Progress is only for live observers.
        if event.part > 0 {
            return;
        }
        if let Err(error) = self.append(event) {
            tracing::debug!(%error, path = %self.path.display(), "event not kept in the file");
        }
    }
}
