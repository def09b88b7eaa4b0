use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use landfall_net::Backoff;
use tempfile::TempDir;
use tokio::process::Command;

/// Directory for the socket of a started collector, unless systemd provides one; it is empty after every boot.
const RUNTIME: &str = "/run/landfall";

/// A supervised collector; it ends when this is dropped, and also when this process is killed.
#[derive(Debug)]
pub(crate) struct Started {
    _folder: TempDir,
    keeping: tokio::task::JoinHandle<()>,
}

/// Starts `PROGRAM collector`, supervises it, and returns the socket it listens on.
pub(crate) fn start(program: &Path, root: &Path) -> io::Result<(Started, PathBuf)> {
    let runtime = std::env::var_os("RUNTIME_DIRECTORY").map_or_else(|| PathBuf::from(RUNTIME), PathBuf::from);
    let place = std::fs::create_dir_all(&runtime).is_ok().then_some(&runtime);
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("collector-");
    // The directory is accessible to this user only, which protects the socket.
    let folder = match place.map(|place| builder.tempdir_in(place)) {
        Some(Ok(folder)) => folder,
        _ => builder.tempdir()?,
    };
    let socket = folder.path().join("socket");
    let keeping = tokio::spawn(keep(program.to_owned(), root.to_owned(), socket.clone()));
    Ok((Started { _folder: folder, keeping }, socket))
}

async fn keep(program: PathBuf, root: PathBuf, socket: PathBuf) {
    let mut backoff = Backoff::millis::<200, 30_000>();
    loop {
        let mut command = Command::new(&program);
        command.arg("collector").arg("--socket").arg(&socket).arg("--root").arg(&root).arg("--with-parent");
        // The child inherits no descriptors and none of the environment except the variables below. Its standard input
        // is a pipe that closes however this process ends.
        command.env_clear().stdin(Stdio::piped()).stdout(Stdio::null()).kill_on_drop(true);
        for name in ["PATH", "LANDFALL_LOG", "JOURNAL_STREAM", "INVOCATION_ID"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        let begun = std::time::Instant::now();
        match command.spawn() {
            Ok(mut child) => {
                let parent = child.stdin.take();
                let status = child.wait().await;
                drop(parent);
                tracing::warn!(?status, "the collector ended; starting another");
            }
            Err(error) => tracing::error!(%error, program = %program.display(), "cannot start the collector"),
        }
        if begun.elapsed() > Duration::from_secs(60) {
            backoff.reset();
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

// === impl Started ===

impl Drop for Started {
    fn drop(&mut self) {
        self.keeping.abort();
    }
}
