//! The embedded store: one SQLite file, one writer thread and a few reader connections.
//!
//! The writer puts all queued batches, up to a limit, into one transaction and acknowledges them once it is on disk.
//! The cost per report therefore falls as the load grows. Readers never wait for the writer (write-ahead log).

mod accept;
mod carry;
mod forget;
mod loose;
mod progress;
mod read;
mod row;
mod words;
mod writer;

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use landfall_model::envelope::ReportId;
use landfall_model::in_place::Progress;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};
use tokio::sync::Semaphore;

use self::writer::Writer;
use super::{
    Answer, Arrival, BundleRecord, Fleet, FleetQuery, Heard, Hit, NodePage, NodeRecord, Outcome, Pinned,
    ProgressEvent, ProgressLine, Pruned, Refusal, Store, StoreError, StoreSize, TrendPoint, Turn,
};
use crate::name::NodeName;

/// Version of the tables, stored in the file as `user_version`.
const FORMAT: i64 = 1;
/// Number of reader connections; more of them than cores do not read faster.
const READERS: usize = 4;
/// Capacity of each connection's statement cache; fits all statements.
const STATEMENTS: usize = 64;
/// Page cache of the writer in KiB (SQLite expects a negative number). It holds frequently changed pages, such as
/// the indexes of tens of thousands of nodes. Readers must reload pages after every write, so a larger cache would
/// not help them.
const WRITER_CACHE: i64 = -16_384;
const READER_CACHE: i64 = -2048;
/// Time a statement waits for a lock of another process, such as an operator's `sqlite3`.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct SqliteStore {
    writer: Writer,
    readers: Arc<Readers>,
}

/// Read-only connections.
#[derive(Debug)]
struct Readers {
    path: PathBuf,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Connection>>,
}

/// Applies the settings common to all connections.
fn prepared(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(LOCK_PATIENCE)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // Without this, SQLite plans a statement again for every bound value.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// Adds columns and tables that earlier versions did not have.
fn later(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(include_str!("later.sql"))?;
    if !connection.column_exists(None, "boots", "number")? {
        // The node's boot counter; earlier agents do not count boots.
        connection.execute_batch("ALTER TABLE boots ADD COLUMN number INTEGER")?;
    }
    if !connection.column_exists(None, "bodies", "proven")? {
        // Whether the origin of the evidence is proven. Earlier versions leave it empty, so their verdicts are
        // claims.
        connection.execute_batch("ALTER TABLE bodies ADD COLUMN proven INTEGER")?;
    }
    if !connection.column_exists(None, "nodes", "proven_body")? {
        // The body whose verdict is proven. An earlier version that writes another body does not change this column,
        // and its verdict is therefore not proven.
        connection.execute_batch("ALTER TABLE nodes ADD COLUMN proven_body INTEGER")?;
    }
    Ok(())
}

// === impl SqliteStore ===

impl SqliteStore {
    /// Opens the file, or creates it.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let place = || path.display().to_string();
        let failed = |source: rusqlite::Error| StoreError::Open { place: place(), source: Box::new(source) };
        // Reports are confidential. SQLite creates its other files with the permissions of this one.
        let made = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
        made.map_err(|source| StoreError::Open { place: place(), source: Box::new(source) })?;
        let connection = Connection::open(path).map_err(failed)?;
        prepared(&connection).map_err(failed)?;
        connection.pragma_update(None, "journal_mode", "wal").map_err(failed)?;
        // An acknowledged report must survive a power failure, not only the end of the process.
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
        later(&connection).map_err(failed)?;
        // The transaction takes the write lock first. A transaction that begins by reading fails if another hub,
        // which is shutting down, writes in the meantime.
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
                // Held until the work is done. A caller that disconnects does not stop the work, and must not free a
                // slot for another connection.
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

    fn ready(&self) -> Answer<'_, ()> {
        Box::pin(self.writer.ready())
    }

    fn version(&self) -> Answer<'_, u64> {
        Box::pin(async { Ok(self.writer.signs.version.load(Ordering::Acquire)) })
    }

    fn fleet(&self, query: FleetQuery) -> Answer<'_, Fleet> {
        self.read("read the fleet", move |connection| read::fleet(connection, &query))
    }

    fn nodes(&self, after: String, limit: u32) -> Answer<'_, NodePage> {
        self.read("read the nodes", move |connection| read::nodes(connection, &after, limit))
    }

    fn node(&self, name: NodeName) -> Answer<'_, Option<NodeRecord>> {
        self.read("read a node", move |connection| read::node(connection, &name))
    }

    fn size(&self) -> Answer<'_, StoreSize> {
        self.read("measure the store", read::size)
    }

    fn pinned(&self, name: NodeName) -> Answer<'_, Pinned> {
        self.read("read a node's key", move |connection| read::pinned(connection, &name))
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

    fn expect_bundle(&self, digest: String, now: Timestamp) -> Answer<'_, bool> {
        Box::pin(
            self.writer.run("expect a bundle", move |connection| loose::expect(connection, &digest, now)),
        )
    }

    fn add_bundle(&self, bundle: BundleRecord) -> Answer<'_, bool> {
        Box::pin(self.writer.run("record a bundle", move |connection| loose::add(connection, &bundle)))
    }

    fn has(&self, ids: Vec<ReportId>) -> Answer<'_, Vec<ReportId>> {
        self.read("look for reports", move |connection| read::has(connection, &ids))
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

    fn forget(&self, name: NodeName) -> Answer<'_, bool> {
        Box::pin(async move {
            let forget = self.writer.run("forget a node", move |connection| forget::node(connection, &name));
            let Some(forgotten) = forget.await? else { return Ok(false) };
            if let Some(node) = forgotten.node {
                let said =
                    || self.writer.run("forget a node", move |connection| forget::bodies(connection, node));
                while said().await? > 0 {}
            }
            Ok(true)
        })
    }

    fn prune(&self, older_than: Timestamp, bundles_older_than: Timestamp) -> Answer<'_, Pruned> {
        Box::pin(self.writer.run("delete old data", move |connection| {
            forget::old(connection, older_than, bundles_older_than)
        }))
    }

    fn loose(&self, now: Timestamp) -> Answer<'_, Vec<String>> {
        Box::pin(self.writer.run("look for what is loose", move |connection| loose::take(connection, now)))
    }

    fn removed(&self, digest: String) -> Answer<'_, ()> {
        Box::pin(
            self.writer.run("forget what is removed", move |connection| loose::removed(connection, &digest)),
        )
    }

    fn make_loose(&self, digests: Vec<String>, now: Timestamp) -> Answer<'_, u64> {
        Box::pin(
            self.writer.run("note what is loose", move |connection| loose::make(connection, &digests, now)),
        )
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

    /// Returns the query plan of a statement.
    pub(super) fn plan(statement: &str) -> String {
        let connection = Connection::open_in_memory().unwrap();
        prepared(&connection).unwrap();
        connection.execute_batch(include_str!("schema.sql")).unwrap();
        later(&connection).unwrap();
        let mut explained = connection.prepare(&format!("EXPLAIN QUERY PLAN {statement}")).unwrap();
        let nothing = vec![rusqlite::types::Null; explained.parameter_count()];
        let steps = explained.query_map(rusqlite::params_from_iter(nothing), |row| row.get::<_, String>(3));
        steps.unwrap().collect::<rusqlite::Result<Vec<_>>>().unwrap().join("\n")
    }

    #[tokio::test]
    async fn a_file_of_an_earlier_version_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hub.db");
        let earlier = Connection::open(&path).unwrap();
        earlier.execute_batch(include_str!("schema.sql")).unwrap();
        earlier.pragma_update(None, "user_version", FORMAT).unwrap();
        let add = "INSERT INTO boots (node, name) VALUES (1, 'a'); INSERT INTO bundles VALUES ('ab', 'n1', 1, 1, 1, 0)";
        earlier.execute_batch(add).unwrap();
        drop(earlier);
        // Twice: existing columns are not added again.
        for _ in 0..2 {
            let store = SqliteStore::open(&path).unwrap();
            assert_eq!(store.bundle("ab".to_owned()).await.unwrap().map(|bundle| bundle.bytes), Some(1));
        }
        let store = SqliteStore::open(&path).unwrap();
        assert_eq!(store.prune(Timestamp::MIN, Timestamp::now()).await.unwrap().bundles, 1);
        assert_eq!(store.loose(Timestamp::now()).await.unwrap(), ["ab"]);
    }

    #[test]
    fn only_the_hub_reads_what_nodes_say() {
        use std::os::unix::fs::PermissionsExt as _;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hub.db");
        let _store = SqliteStore::open(&path).unwrap();
        for end in ["", "-wal", "-shm"] {
            let found = std::fs::metadata(format!("{}{end}", path.display())).unwrap();
            assert_eq!(found.permissions().mode() & 0o777, 0o600, "{end}");
        }
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_written_is_noticed_and_noticed_again_when_it_can() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hub.db");
        let store = SqliteStore::open(&path).unwrap();
        store.ready().await.unwrap();
        // Another connection holds the lock, so the write fails.
        let other = Connection::open(&path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        store.make_loose(vec!["a".to_owned()], Timestamp::now()).await.unwrap_err();
        store.ready().await.unwrap_err();
        other.execute_batch("COMMIT").unwrap();
        let mut last = store.ready().await;
        for _ in 0..100 {
            if last.is_ok() {
                break;
            }
            last = store.ready().await;
        }
        last.unwrap();
    }

    #[tokio::test]
    async fn a_writer_that_is_gone_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("hub.db")).unwrap();
        let broken = store.writer.run("break", |_| -> rusqlite::Result<()> { panic!("a defect") });
        broken.await.unwrap_err();
        assert!(matches!(store.ready().await, Err(StoreError::Closed)));
    }

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
