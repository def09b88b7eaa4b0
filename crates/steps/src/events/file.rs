//! State events as lines of a file, for whoever comes later: an agent that carries them to the hub, a bundle that holds
//! them.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use landfall_model::step::Event;

use super::Sink;

/// Some thousand events; a run has fifty. What is older is in the file before this one, and then gone.
const MAX_BYTES: u64 = 1024 * 1024;

/// Appends each state event as one line of JSON. The ledger is the truth; this is a copy that can be read while a run is
/// going on and after it was given up.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    /// Nothing before the first event: the folder may not be there yet.
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
        // One write: a reader never sees half a line of a process that goes on.
        file.write_all(&line)?;
        self.open = Some((file, length + line.len() as u64));
        Ok(())
    }

    fn open(&self) -> io::Result<(File, u64)> {
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600);
        // A link planted in place of our file must not lead the lines elsewhere.
        options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
        let file = options.open(&self.path)?;
        let length = file.metadata()?.len();
        Ok((file, length))
    }
}

impl Sink for EventFile {
    fn take(&mut self, event: &Event) {
        // Progress is for those who watch.
        if event.part > 0 {
            return;
        }
        if let Err(error) = self.append(event) {
            tracing::debug!(%error, path = %self.path.display(), "event not kept in the file");
        }
    }
}
