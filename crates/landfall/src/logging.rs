//! Logging: text on a terminal, native journal entries under systemd, JSON otherwise.

use std::io::{self, IsTerminal as _};

use rustix::fs::fstat;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, fmt};

/// Starts logging to standard error. `verbose` counts `-v`; `LANDFALL_LOG` overrides it.
pub(crate) fn start(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    // The HTTP/2 library logs a warning for each misbehaving client, which is not useful here.
    let usual = || EnvFilter::new(format!("{level},h2={}", if verbose == 0 { "error" } else { level }));
    let filter = filter_from_environment().unwrap_or_else(usual);
    let registry = tracing_subscriber::registry();
    let layer: Box<dyn tracing_subscriber::Layer<Registry> + Send + Sync> = match journal() {
        Some(journal) => journal.boxed(),
        None if io::stderr().is_terminal() => fmt::layer()
            .with_writer(io::stderr)
            .with_target(false)
            .with_ansi(crate::output::colour_on_stderr())
            .boxed(),
        None => fmt::layer().json().flatten_event(true).with_writer(io::stderr).boxed(),
    };
    // A second start in one process, as in tests, keeps the first.
    let _ = registry.with(layer.with_filter(filter)).try_init();
}

/// Returns the filter in `LANDFALL_LOG`, such as `info` or `landfall_evidence=debug`.
fn filter_from_environment() -> Option<EnvFilter> {
    let text = std::env::var("LANDFALL_LOG").ok().filter(|text| !text.is_empty())?;
    match EnvFilter::try_new(&text) {
        Ok(filter) => Some(filter),
        Err(error) => {
            crate::output::complain(&format!("`LANDFALL_LOG={text}` is ignored: {error}"), None);
            None
        }
    }
}

/// Returns a journal layer if standard error is connected to the journal.
///
/// systemd names the connected file in `JOURNAL_STREAM`. If it is standard error, entries can be sent with their
/// fields instead of as text.
fn journal() -> Option<tracing_journald::Layer> {
    let stream = std::env::var("JOURNAL_STREAM").ok()?;
    let (device, inode) = stream.split_once(':')?;
    let stderr = fstat(io::stderr()).ok()?;
    let ours = stderr.st_dev.to_string() == device && stderr.st_ino.to_string() == inode;
    if ours { tracing_journald::layer().ok() } else { None }
}
