//! The embedded store: one SQLite file, one thread that writes, a few connections that read.
//!
//! The writer takes whatever waits, up to a bound, into one transaction and acknowledges when that is on the disk: the
//! more is coming in, the cheaper each report gets. Readers never wait for it (write-ahead log).

mod accept;
mod carry;
mod forget;
mod progress;
mod read;
mod row;
mod words;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use landfall_model::in_place::Progress;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};
use tokio::sync::Semaphore;

use self::writer::Writer;
use super::{
    Answer, Arrival, BundleRecord, Fleet, FleetQuery, Heard, Hit, NodeRecord, Outcome, ProgressEvent,
    ProgressLine, Pruned, Refusal, Store, StoreError, TrendPoint, Turn,
};
use crate::name::NodeName;

/// The version of the tables, kept in the file as `user_version`.
const FORMAT: i64 = 1;
/// More readers than cores do not read faster.
const READERS: usize = 4;
/// Statements kept ready by each connection: all there are.
const STATEMENTS: usize = 64;
/// Pages kept in memory, in KiB (a negative number means these): what reports change again and again, the indexes of ten
/// thousands of nodes. A reader has to read pages anew whenever something was written, so that more is of no use to it.
const WRITER_CACHE: i64 = -16_384;
const READER_CACHE: i64 = -2048;
/// How long a statement waits for a lock somebody else holds, such as an operator's `sqlite3`.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct SqliteStore {
    writer: Writer,
    readers: Arc<Readers>,
}

/// Connections that only read.
#[derive(Debug)]
struct Readers {
    path: PathBuf,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Connection>>,
}

/// What holds for every connection.
fn prepared(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(LOCK_PATIENCE)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // Else a statement is planned anew for every value it is given.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

// === impl SqliteStore ===

impl SqliteStore {
    /// Opens the file, or makes it.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let place = || path.display().to_string();
        let failed = |source: rusqlite::Error| StoreError::Open { place: place(), source: Box::new(source) };
        let connection = Connection::open(path).map_err(failed)?;
        prepared(&connection).map_err(failed)?;
        connection.pragma_update(None, "journal_mode", "wal").map_err(failed)?;
        // An acknowledged report survives the power cut, not only the end of the process.
        connection.pragma_update(None, "synchronous", "full").map_err(failed)?;
        connection.pragma_update(None, "cache_size", WRITER_CACHE).map_err(failed)?;
        let found: i64 =
            connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(failed)?;
        match found {
            0 => {
                let make = format!(
                    "BEGIN IMMEDIATE;{}PRAGMA user_version = {FORMAT};COMMIT;",
                    include_str!("schema.sql")
                );
                connection.execute_batch(&make).map_err(failed)?;
            }
            FORMAT => {}
            _ => return Err(StoreError::Newer { place: place(), found, known: FORMAT }),
        }
        connection.execute_batch(include_str!("later.sql")).map_err(failed)?;
        // It writes what it read: one that only reads at first is turned away when another hub, which is ending, writes meanwhile.
        let catching_up =
            Transaction::new_unchecked(&connection, TransactionBehavior::Immediate).map_err(failed)?;
        words::catch_up(&catching_up).and_then(|()| catching_up.commit()).map_err(failed)?;
        let readers = Readers {
            path: path.to_owned(),
            permits: Arc::new(Semaphore::new(READERS)),
            idle: Mutex::new(Vec::with_capacity(READERS)),
        };
        Ok(Self { writer: Writer::start(connection, path)?, readers: Arc::new(readers) })
    }

    fn read<T: Send + 'static>(
        &self,
        doing: &'static str,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Answer<'_, T> {
        let readers = Arc::clone(&self.readers);
        Box::pin(async move {
            let permit =
                Arc::clone(&readers.permits).acquire_owned().await.map_err(|_| StoreError::Closed)?;
            let work = tokio::task::spawn_blocking(move || {
                // It ends with the work: who goes away does not stop it, and must not make room for one more connection.
                let _permit = permit;
                let connection = readers.take()?;
                let result = read(&connection);
                readers.give_back(connection);
                result
            });
            work.await.map_err(StoreError::failed(doing))?.map_err(StoreError::failed(doing))
        })
    }
}

impl Store for SqliteStore {
    fn accept(&self, arrivals: Vec<Arrival>) -> Answer<'_, Vec<Result<Outcome, Refusal>>> {
        Box::pin(self.writer.accept(arrivals))
    }

    fn version(&self) -> Answer<'_, u64> {
        Box::pin(async { Ok(self.writer.version.load(Ordering::Acquire)) })
    }

    fn fleet(&self, query: FleetQuery) -> Answer<'_, Fleet> {
        self.read("read the fleet", move |connection| read::fleet(connection, &query))
    }

    fn node(&self, name: NodeName) -> Answer<'_, Option<NodeRecord>> {
        self.read("read a node", move |connection| read::node(connection, &name))
    }

    fn history(&self, name: NodeName, before: Option<u64>, limit: u32) -> Answer<'_, Vec<Turn>> {
        self.read("read a node's history", move |connection| read::history(connection, &name, before, limit))
    }

    fn report(&self, name: NodeName, turn: u64) -> Answer<'_, Option<String>> {
        self.read("read a report", move |connection| read::report(connection, &name, turn))
    }

    fn trend(&self, since: Timestamp, step: u32) -> Answer<'_, Vec<TrendPoint>> {
        self.read("read the trend of causes", move |connection| read::trend(connection, since, step))
    }

    fn search(&self, words: Vec<String>, limit: u32) -> Answer<'_, Vec<Hit>> {
        Box::pin(async move {
            self.writer.settle().await?;
            self.read("search evidence", move |connection| read::search(connection, &words, limit)).await
        })
    }

    fn add_bundle(&self, bundle: BundleRecord) -> Answer<'_, ()> {
        Box::pin(self.writer.run("record a bundle", move |connection| accept::bundle(connection, &bundle)))
    }

    fn bundle(&self, digest: String) -> Answer<'_, Option<BundleRecord>> {
        self.read("read a bundle's record", move |connection| read::bundle(connection, &digest))
    }

    fn bundles(&self, name: NodeName) -> Answer<'_, Vec<BundleRecord>> {
        self.read("read a node's bundles", move |connection| read::bundles(connection, &name))
    }

    fn add_progress(&self, name: NodeName, progress: Progress, received: Timestamp) -> Answer<'_, Heard> {
        Box::pin(
            self.writer.run("store progress", move |connection| {
                progress::add(connection, &name, &progress, received)
            }),
        )
    }

    fn progress(&self, name: NodeName) -> Answer<'_, Vec<ProgressEvent>> {
        self.read("read a node's progress", move |connection| progress::of_node(connection, &name))
    }

    fn progress_lines(&self, limit: u32) -> Answer<'_, Vec<ProgressLine>> {
        self.read("read the progress of nodes", move |connection| progress::lines(connection, limit))
    }

    fn forget(&self, name: NodeName) -> Answer<'_, Option<Vec<String>>> {
        Box::pin(self.writer.run("forget a node", move |connection| forget::node(connection, &name)))
    }

    fn prune(&self, older_than: Timestamp, bundles_older_than: Timestamp) -> Answer<'_, Pruned> {
        Box::pin(self.writer.run("forget what is old", move |connection| {
            forget::old(connection, older_than, bundles_older_than)
        }))
    }
}

// === impl Readers ===

impl Readers {
    fn take(&self) -> rusqlite::Result<Connection> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(connection) = idle {
            return Ok(connection);
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        prepared(&connection)?;
        connection.pragma_update(None, "cache_size", READER_CACHE)?;
        Ok(connection)
    }

    fn give_back(&self, connection: Connection) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_goes_away_makes_no_room_for_another_connection() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("hub.db")).unwrap();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (begin, begun) = tokio::sync::oneshot::channel();
        let reading = store.read("wait", move |_| {
            let _ = begin.send(());
            let _ = ended.recv();
            Ok(())
        });
        tokio::select! {
            _ = reading => panic!("nobody told it to end"),
            begun = begun => begun.unwrap(),
        }
        assert_eq!(
            store.readers.permits.available_permits(),
            READERS - 1,
            "the work goes on without its caller"
        );
        drop(end);
        drop(store.readers.permits.acquire_many(u32::try_from(READERS).unwrap()).await.unwrap());
    }
}
