//! The one thread that writes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use landfall_model::chain;
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::super::{Arrival, Outcome, Refusal, StoreError};
use super::accept;

/// Batches of reports that may wait. At the rate one machine writes this is less than a second of work; who comes beyond
/// is told to try again, which costs less than letting everybody wait.
const QUEUE: usize = 4096;
/// Reports in one transaction: enough to make the disk's delay small for each, few enough to be done in some milliseconds.
const MAX_GROUP: usize = 1024;
/// The write-ahead log is carried over into the file from this length on (pages of 4 KiB).
const LOG_PAGES: i64 = 4096;

type Task = Box<dyn FnOnce(&mut Connection, &AtomicU64) + Send>;
/// Where the answer goes.
type Done = oneshot::Sender<Result<Verdicts, StoreError>>;
type Verdicts = Vec<Result<Outcome, Refusal>>;

#[derive(Debug)]
pub(super) struct Writer {
    queue: mpsc::Sender<Job>,
    /// Grows with every change a board would show.
    pub(super) version: Arc<AtomicU64>,
}

enum Job {
    Accept { arrivals: Vec<Arrival>, done: Done },
    Other(Task),
}

// === impl Writer ===

impl Writer {
    pub(super) fn start(connection: Connection, path: &Path) -> Result<Self, StoreError> {
        let opened = |source| StoreError::Open { place: path.display().to_string(), source };
        let (queue, jobs) = mpsc::channel(QUEUE);
        // Begins with the time, so that it grows across restarts as well.
        let start = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
        let version = Arc::new(AtomicU64::new(start));
        let shown = Arc::clone(&version);
        connection.pragma_update(None, "wal_autocheckpoint", 0).map_err(|source| opened(Box::new(source)))?;
        thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || write(connection, jobs, &shown))
            .map_err(|source| opened(Box::new(source)))?;
        Ok(Self { queue, version })
    }

    pub(super) async fn accept(&self, arrivals: Vec<Arrival>) -> Result<Verdicts, StoreError> {
        let (done, verdicts) = oneshot::channel();
        self.queue.try_send(Job::Accept { arrivals, done }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => StoreError::Busy,
            mpsc::error::TrySendError::Closed(_) => StoreError::Closed,
        })?;
        verdicts.await.map_err(|_| StoreError::Closed)?
    }

    /// Runs in a transaction of its own.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (done, result) = oneshot::channel();
        let task: Task = Box::new(move |connection, version| {
            let result = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .and_then(|transaction| {
                    let value = work(&transaction)?;
                    transaction.commit()?;
                    Ok(value)
                })
                .map_err(StoreError::failed(doing));
            if result.is_ok() {
                version.fetch_add(1, Ordering::AcqRel);
            }
            // Nobody waits for the answer any more; what was done is done.
            let _ = done.send(result);
        });
        self.queue.send(Job::Other(task)).await.map_err(|_| StoreError::Closed)?;
        result.await.map_err(|_| StoreError::Closed)?
    }
}

fn write(mut connection: Connection, mut jobs: mpsc::Receiver<Job>, version: &AtomicU64) {
    let mut next = None;
    while let Some(job) = next.take().or_else(|| jobs.blocking_recv()) {
        match job {
            Job::Other(task) => task(&mut connection, version),
            Job::Accept { arrivals, done } => {
                let mut count = arrivals.len();
                let mut group = vec![(arrivals, done)];
                while count < MAX_GROUP {
                    match jobs.try_recv() {
                        Ok(Job::Accept { arrivals, done }) => {
                            count += arrivals.len();
                            group.push((arrivals, done));
                        }
                        Ok(other) => {
                            next = Some(other);
                            break;
                        }
                        Err(_) => break,
                    }
                }
                accept_group(&mut connection, group, version);
            }
        }
        carry_over(&connection);
    }
}

fn accept_group(connection: &mut Connection, group: Vec<(Vec<Arrival>, Done)>, version: &AtomicU64) {
    let mut changed = false;
    let mut write = || -> rusqlite::Result<Vec<Verdicts>> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut all = Vec::with_capacity(group.len());
        for (arrivals, _) in &group {
            let taken = arrivals.iter().map(|arrival| accept::report(&transaction, arrival, &mut changed));
            all.push(taken.collect::<rusqlite::Result<Verdicts>>()?);
        }
        transaction.commit()?;
        Ok(all)
    };
    match write() {
        Ok(all) => {
            // Before anybody is told: who asks after the answer sees the change.
            if changed {
                version.fetch_add(1, Ordering::AcqRel);
            }
            for ((_, done), verdicts) in group.into_iter().zip(all) {
                // A sender that went away will send again and be told that it is a duplicate.
                let _ = done.send(Ok(verdicts));
            }
        }
        Err(error) => {
            tracing::error!(error = %chain(&error), "Reports could not be stored.");
            let text = error.to_string();
            for (_, done) in group {
                let source = std::io::Error::other(text.clone());
                let _ = done.send(Err(StoreError::failed("store reports")(source)));
            }
        }
    }
}

/// Carries a long write-ahead log over into the file, so that it can be used from its beginning again.
fn carry_over(connection: &Connection) {
    let pages = connection.query_row("PRAGMA wal_checkpoint(NOOP)", [], |row| row.get::<_, i64>(1));
    if pages.is_ok_and(|pages| pages > LOG_PAGES) {
        let done = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        if let Err(error) = done {
            tracing::warn!(error = %chain(&error), "The write-ahead log could not be carried over; it grows.");
        }
    }
}
