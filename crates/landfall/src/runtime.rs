//! The runtime of a command, and the signals that ask it to end.

use anyhow::{Context as _, Result};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The termination signals, caught from the creation of this value on.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// Returns a runtime for commands that mostly wait.
pub(crate) fn single_threaded() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("start the runtime")
}

pub(crate) fn multi_threaded() -> Result<Runtime> {
    Runtime::new().context("start the runtime")
}

impl Signals {
    /// Needs a runtime.
    pub(crate) fn new() -> Result<Self> {
        let listen = |kind| signal(kind).context("listen for signals");
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
