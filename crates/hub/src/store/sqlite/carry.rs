//! Carries the write-ahead log over into the file, beside the writer.
//!
//! On a slow disk this takes most of a second when much has come together, and everybody who reports would wait for it. So
//! it is done on a thread of its own, in short passes; only the last few pages are the writer's, because the log can begin
//! anew only when nobody adds to it.

use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use landfall_model::chain;
use rusqlite::Connection;

use super::super::StoreError;

/// A pass is made when this much is new in the log (pages of 4 KiB): long enough that a page which is written again and
/// again is carried over once, short enough that the disk is not kept from the reports that come meanwhile.
const PASS_PAGES: i64 = 2048;
/// From this length on the log should begin anew.
const LOG_PAGES: i64 = 8192;
/// What the writer carries over itself for that: some milliseconds of work.
const REST_PAGES: i64 = 256;
/// A log that grows faster than it is carried over stops the writer here.
const MAX_LOG_PAGES: i64 = 16 * LOG_PAGES;

pub(super) struct Carrier {
    wanted: SyncSender<()>,
}

/// The log, in pages.
#[derive(Clone, Copy, Debug)]
struct Length {
    all: i64,
    carried: i64,
}

/// What is to be done about a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    /// A pass beside the writer.
    Pass,
    /// The writer's own part.
    Rest,
}

// === impl Carrier ===

impl Carrier {
    pub(super) fn start(path: &Path) -> Result<Self, StoreError> {
        let opened = |source| StoreError::Open { place: path.display().to_string(), source };
        let connection = Connection::open(path).map_err(|source| opened(Box::new(source)))?;
        super::prepared(&connection).map_err(|source| opened(Box::new(source)))?;
        // One wish may wait while a pass is made; more would say the same.
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

    /// Looks after the log; the writer asks for it after each transaction.
    pub(super) fn look(&self, writer: &Connection) {
        match Length::of(writer).map_or(Due::Nothing, Length::due) {
            Due::Nothing => {}
            Due::Rest => pass(writer),
            Due::Pass => {
                // A full queue means that it is told already.
                let _ = self.wanted.try_send(());
            }
        }
    }
}

/// Carries over what can be without waiting for anybody.
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
            // The next transaction begins the log anew by itself.
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
