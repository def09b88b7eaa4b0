//! Notification of writes by journald.
//!
//! journald writes through a memory map, which the kernel does not report. It therefore truncates the file to its own
//! size after each batch, which the kernel does report.

use std::collections::HashSet;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

/// Buffer size for the events of one read; only their existence matters, not which files changed.
const EVENTS: usize = 4096;

#[derive(Debug)]
pub(crate) struct Watch {
    inotify: OwnedFd,
    places: HashSet<PathBuf>,
}

// === impl Watch ===

impl Watch {
    pub(crate) fn new() -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self { inotify, places: HashSet::new() })
    }

    /// Watches a directory or a file; returns `true` if it was not watched before.
    pub(crate) fn add(&mut self, path: &Path) -> bool {
        let events = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE;
        // A path that cannot be watched is still checked after each wait.
        !self.places.contains(path)
            && inotify::add_watch(&self.inotify, path, events).is_ok()
            && self.places.insert(path.to_owned())
    }

    /// Returns after an event, or after `timeout`.
    pub(crate) fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(&self.inotify, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut buffer = [MaybeUninit::uninit(); EVENTS];
        let mut events = inotify::Reader::new(&self.inotify, &mut buffer);
        loop {
            match events.next() {
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
