//! A carrier to a serial console, for machines without a network.
//!
//! Any user with access to the console can read it, so it gets the report only, with secrets already
//! redacted.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use landfall_evidence::console::{FrameError, frame};
use landfall_model::envelope::ReportId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

use super::{Carrier, CarryError};

/// Interval between repetitions of the last report, so that the console's scrollback always contains it.
const REPEAT: Duration = Duration::from_secs(60);
/// 16 KiB take 17 s at 9600 baud. A longer wait means that no reader is attached.
const PATIENCE: Duration = Duration::from_secs(30);

/// A console and the last text written to it.
#[derive(Debug)]
pub struct Console {
    path: PathBuf,
    last: Option<(Instant, String)>,
}

#[derive(Debug, thiserror::Error)]
enum ConsoleError {
    #[error("cannot write to the console `{}`", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot frame the report for the console")]
    Frame(#[source] FrameError),
}

// === impl Console ===

impl Console {
    pub fn new(path: PathBuf) -> Self {
        Self { path, last: None }
    }

    fn say(&self, text: &str) -> Result<(), ConsoleError> {
        write(&self.path, text).map_err(|source| ConsoleError::Write { path: self.path.clone(), source })
    }
}

impl Carrier for Console {
    fn name(&self) -> &'static str {
        "console"
    }

    fn carry(&mut self, _: ReportId, envelope: &[u8]) -> Result<(), CarryError> {
        let text =
            frame(envelope).map_err(|error| CarryError::Never(Box::new(ConsoleError::Frame(error))))?;
        self.say(&text).map_err(|error| CarryError::Later(Box::new(error)))?;
        self.last = Some((Instant::now(), text));
        Ok(())
    }

    fn idle(&mut self) -> Result<(), CarryError> {
        let Some((at, text)) = self.last.take_if(|(at, _)| at.elapsed() >= REPEAT) else { return Ok(()) };
        let said = self.say(&text);
        self.last = Some((if said.is_ok() { Instant::now() } else { at }, text));
        said.map_err(|error| CarryError::Later(Box::new(error)))
    }
}

/// Writes without blocking on a console that has no reader, and without making it the controlling terminal.
fn write(path: &Path, text: &str) -> io::Result<()> {
    // A wrong path must not overwrite a file system.
    if std::fs::metadata(path)?.file_type().is_block_device() {
        return Err(io::Error::other("it is a disk and no console"));
    }
    let flags = OFlags::NOCTTY | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.append(true).custom_flags(flags.bits().cast_signed());
    let mut console: File = options.open(path)?;
    let until = Instant::now() + PATIENCE;
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match console.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                let left = Timespec::try_from(left).map_err(io::Error::other)?;
                poll(&mut [PollFd::new(&console, PollFlags::OUT)], Some(&left))?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
