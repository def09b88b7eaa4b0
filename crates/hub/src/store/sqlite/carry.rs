//! Checkpoints of the write-ahead log, beside the writer.
//!
//! After a burst of writes on a slow disk, a checkpoint takes most of a second, and every report would wait for it.
//! A separate thread therefore performs it in short passes. The writer only copies the last few pages, because the
//! log can restart only while no page is added.

use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use landfall_model::chain;
use rusqlite::Connection;

use super::super::StoreError;

/// Number of new log pages (4 KiB each) that starts a pass. It is large enough to copy frequently rewritten pages
/// only once. It is small enough not to occupy the disk while reports arrive.
const PASS_PAGES: i64 = 2048;
/// Log length from which the log should restart.
const LOG_PAGES: i64 = 8192;
/// Number of pages that the writer copies itself for a restart of the log: a few milliseconds of work.
const REST_PAGES: i64 = 256;
/// Log length at which the writer stops for a checkpoint, because the log grows faster than the passes copy it.
const MAX_LOG_PAGES: i64 = 16 * LOG_PAGES;

pub(super) struct Carrier {
    wanted: SyncSender<()>,
}

/// Length of the log in pages.
#[derive(Clone, Copy, Debug)]
struct Length {
    all: i64,
    carried: i64,
}

/// Action required for a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    /// A pass beside the writer.
    Pass,
    /// A checkpoint by the writer.
    Rest,
}

// === impl Carrier ===

impl Carrier {
    pub(super) fn start(path: &Path) -> Result<Self, StoreError> {
        let opened = |source| StoreError::Open { place: path.display().to_string(), source };
        let connection = Connection::open(path).map_err(|source| opened(Box::new(source)))?;
        super::prepared(&connection).map_err(|source| opened(Box::new(source)))?;
        // A single queued request suffices while a pass runs.
        let (wanted, wishes) = sync_channel(1);
        thread::Builder::new()
            .name("store-carrier".to_owned())
            .spawn(move || {
                while let Ok(()) = wishes.recv() {
                    pass(&connection);
                }
            })
            .map_err(|source| opened(Box::new(source)))?;
        Ok(Self { wanted })
    }

    /// Checks the log; the writer calls this after each transaction.
    pub(super) fn look(&self, writer: &Connection) {
        match Length::of(writer).map_or(Due::Nothing, Length::due) {
            Due::Nothing => {}
            Due::Rest => pass(writer),
            Due::Pass => {
                // If the queue is full, a pass is already requested.
                let _ = self.wanted.try_send(());
            }
        }
    }
}

/// Copies the pages that can be copied without waiting for readers or the writer.
fn pass(connection: &Connection) {
    let done = connection
        .prepare_cached("PRAGMA wal_checkpoint(PASSIVE)")
        .and_then(|mut statement| statement.query_row([], |_| Ok(())));
    if let Err(error) = done {
        tracing::warn!(error = %chain(&error), "The write-ahead log could not be carried over; it grows.");
    }
}

// === impl Length ===

impl Length {
    fn of(connection: &Connection) -> Option<Self> {
        let mut statement = connection.prepare_cached("PRAGMA wal_checkpoint(NOOP)").ok()?;
        statement.query_row([], |row| Ok(Self { all: row.get(1)?, carried: row.get(2)? })).ok()
    }

    fn due(self) -> Due {
        let rest = self.all - self.carried;
        if rest == 0 {
            // The next transaction restarts the log by itself.
            Due::Nothing
        } else if self.all > MAX_LOG_PAGES || (self.all > LOG_PAGES && rest <= REST_PAGES) {
            Due::Rest
        } else if rest > PASS_PAGES || self.all > LOG_PAGES {
            Due::Pass
        } else {
            Due::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_writer_has_only_a_short_rest_to_do() {
        let due = |all, carried| Length { all, carried }.due();
        assert_eq!(due(100, 0), Due::Nothing);
        assert_eq!(due(PASS_PAGES + 1, 0), Due::Pass);
        assert_eq!(due(PASS_PAGES + 1, PASS_PAGES), Due::Nothing);
        assert_eq!(due(LOG_PAGES + 1, 0), Due::Pass, "too much for the writer");
        assert_eq!(due(LOG_PAGES + 1, LOG_PAGES), Due::Rest);
        assert_eq!(due(LOG_PAGES + 1, LOG_PAGES + 1), Due::Nothing, "all is carried over");
        assert_eq!(due(MAX_LOG_PAGES + 1, 0), Due::Rest, "nobody carries it over");
    }
}
