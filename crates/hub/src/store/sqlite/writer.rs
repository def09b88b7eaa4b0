//! The single thread that writes to the database.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use landfall_model::chain;
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::super::waiting::Waiting;
use super::super::{Arrival, Outcome, Refusal, StoreError};
use super::accept::{self, Accepted};
use super::carry::Carrier;
use super::words::Backlog;

/// Maximum number of queued batches, less than a second of work at the write rate of one machine. Further requests
/// get 503, which costs less than delaying every request.
const QUEUE: usize = 4096;
/// Minimum interval between two transactions with reports. A fast disk would otherwise perform thousands of small
/// transactions per second, each of which rewrites its pages. Reports that arrive within the interval share one
/// transaction. A report after an idle interval does not wait.
const PACE: Duration = Duration::from_millis(5);
/// Maximum number of reports per transaction. It spreads the disk latency over many reports and still completes
/// within milliseconds.
const MAX_GROUP: usize = 1024;

/// Time within which a healthy writer responds to a readiness check.
const READY_PATIENCE: Duration = Duration::from_secs(5);

type Task = Box<dyn FnOnce(&mut Connection, &Signs) + Send>;
/// Channel for the result.
type Done = oneshot::Sender<Result<AcceptResults, StoreError>>;
type AcceptResults = Vec<Result<Outcome, Refusal>>;

#[derive(Debug)]
pub(super) struct Writer {
    queue: mpsc::Sender<Job>,
    waiting: Waiting,
    pub(super) signs: Arc<Signs>,
}

/// State of the writer that other threads can read.
#[derive(Debug)]
pub(super) struct Signs {
    /// Grows with every change of the fleet view.
    pub(super) version: AtomicU64,
    /// Whether the last transaction failed.
    fails: AtomicBool,
}

enum Job {
    Accept(Batch),
    /// Adds the pending words to the index.
    Settle {
        done: oneshot::Sender<()>,
    },
    /// Checks whether the file can be written.
    Look {
        done: oneshot::Sender<Result<(), StoreError>>,
    },
    Other(Task),
}

struct Batch {
    arrivals: Vec<Arrival>,
    done: Done,
    /// Held until the reports are stored and dropped.
    _room: OwnedSemaphorePermit,
}

/// State of the writer thread.
struct Desk {
    connection: Connection,
    backlog: Backlog,
    carrier: Carrier,
    signs: Arc<Signs>,
}

// === impl Writer ===

impl Writer {
    pub(super) fn start(connection: Connection, path: &Path) -> Result<Self, StoreError> {
        let opened = |source| StoreError::Open { place: path.display().to_string(), source };
        let (queue, jobs) = mpsc::channel(QUEUE);
        // Starts with the current time, so that it also grows across restarts.
        let start = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
        let signs = Arc::new(Signs { version: AtomicU64::new(start), fails: AtomicBool::new(false) });
        connection.pragma_update(None, "wal_autocheckpoint", 0).map_err(|source| opened(Box::new(source)))?;
        let desk = Desk {
            connection,
            backlog: Backlog::default(),
            carrier: Carrier::start(path)?,
            signs: Arc::clone(&signs),
        };
        thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || desk.write(jobs))
            .map_err(|source| opened(Box::new(source)))?;
        Ok(Self { queue, waiting: Waiting::default(), signs })
    }

    pub(super) async fn accept(&self, arrivals: Vec<Arrival>) -> Result<AcceptResults, StoreError> {
        let room = self.waiting.room_for(&arrivals)?;
        let (done, results) = oneshot::channel();
        self.put(Job::Accept(Batch { arrivals, done, _room: room }))?;
        results.await.map_err(|_| StoreError::Closed)?
    }

    /// Checks that the thread runs, responds in time, and that its last write succeeded.
    pub(super) async fn ready(&self) -> Result<(), StoreError> {
        let (done, looked) = oneshot::channel();
        self.put(Job::Look { done })?;
        match tokio::time::timeout(READY_PATIENCE, looked).await {
            Ok(looked) => looked.map_err(|_| StoreError::Closed)?,
            Err(_) => Err(StoreError::Busy),
        }
    }

    fn put(&self, job: Job) -> Result<(), StoreError> {
        self.queue.try_send(job).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => StoreError::Busy,
            mpsc::error::TrySendError::Closed(_) => StoreError::Closed,
        })
    }

    /// Runs a task in its own transaction.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (done, result) = oneshot::channel();
        let task: Task = Box::new(move |connection, signs| {
            let result = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .and_then(|transaction| {
                    let value = work(&transaction)?;
                    transaction.commit()?;
                    Ok(value)
                })
                .map_err(StoreError::failed(doing));
            signs.fails.store(result.is_err(), Ordering::Release);
            if result.is_ok() {
                signs.version.fetch_add(1, Ordering::AcqRel);
            }
            // The requester may be gone; the result of the task remains valid.
            let _ = done.send(result);
        });
        self.queue.send(Job::Other(task)).await.map_err(|_| StoreError::Closed)?;
        result.await.map_err(|_| StoreError::Closed)?
    }

    /// Adds all acknowledged reports to the search index.
    pub(super) async fn settle(&self) -> Result<(), StoreError> {
        let (done, settled) = oneshot::channel();
        self.queue.send(Job::Settle { done }).await.map_err(|_| StoreError::Closed)?;
        settled.await.map_err(|_| StoreError::Closed)
    }
}

// === impl Desk ===

impl Desk {
    fn write(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut next = None;
        let mut last: Option<Instant> = None;
        while let Some(job) = next.take().or_else(|| jobs.blocking_recv()) {
            match job {
                Job::Other(task) => {
                    // The task may delete bodies that are not indexed yet.
                    self.settle();
                    task(&mut self.connection, &self.signs);
                }
                Job::Settle { done } => {
                    self.settle();
                    let _ = done.send(());
                }
                Job::Look { done } => {
                    let _ = done.send(self.look());
                }
                Job::Accept(batch) => {
                    if let Some(rest) = last.and_then(|last| PACE.checked_sub(last.elapsed())) {
                        // No thread unparks this one; an early wake-up would only make the group smaller.
                        thread::park_timeout(rest);
                    }
                    last = Some(Instant::now());
                    let mut count = batch.arrivals.len();
                    let mut group = vec![batch];
                    while count < MAX_GROUP {
                        match jobs.try_recv() {
                            Ok(Job::Accept(batch)) => {
                                count += batch.arrivals.len();
                                group.push(batch);
                            }
                            Ok(other) => {
                                next = Some(other);
                                break;
                            }
                            Err(_) => break,
                        }
                    }
                    self.accept(group);
                }
            }
            self.carrier.look(&self.connection);
        }
        self.settle();
    }

    fn accept(&mut self, group: Vec<Batch>) {
        let settles = self.backlog.is_enough();
        let arrivals: Vec<&Arrival> = group.iter().flat_map(|batch| &batch.arrivals).collect();
        let mut write = || -> rusqlite::Result<Accepted> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let accepted = accept::group(&transaction, &arrivals)?;
            if settles {
                self.backlog.write(&transaction)?;
            }
            transaction.commit()?;
            Ok(accepted)
        };
        let written = write();
        if settles {
            self.backlog.end(written.is_ok());
        }
        self.signs.fails.store(written.is_err(), Ordering::Release);
        match written {
            Ok(accepted) => {
                // Incremented before the acknowledgement, so that a later request sees the change.
                if accepted.is_changed {
                    self.signs.version.fetch_add(1, Ordering::AcqRel);
                }
                accepted.taken.keep();
                self.backlog.add(accepted.words);
                let mut results = accepted.results.into_iter();
                for batch in group {
                    let results = results.by_ref().take(batch.arrivals.len()).collect();
                    // A disconnected sender sends its reports again, and they count as duplicates.
                    let _ = batch.done.send(Ok(results));
                }
            }
            Err(error) => {
                tracing::error!(error = %chain(&error), "Reports could not be stored.");
                let text = error.to_string();
                for batch in group {
                    let source = std::io::Error::other(text.clone());
                    let _ = batch.done.send(Err(StoreError::failed("store reports")(source)));
                }
            }
        }
    }

    fn settle(&mut self) {
        if self.backlog.is_empty() {
            return;
        }
        let written = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).and_then(
            |transaction| {
                self.backlog.write(&transaction)?;
                transaction.commit()
            },
        );
        if let Err(error) = &written {
            tracing::error!(error = %chain(error), "Words could not be stored.");
        }
        self.signs.fails.store(written.is_err(), Ordering::Release);
        self.backlog.end(written.is_ok());
    }

    /// Retries a failed write. Otherwise the hub stays unready, receives no reports, and cannot notice that writing
    /// works again.
    fn look(&mut self) -> Result<(), StoreError> {
        if !self.signs.fails.load(Ordering::Acquire) {
            return Ok(());
        }
        let tried = self.connection.execute("UPDATE indexed SET body = body", []);
        self.signs.fails.store(tried.is_err(), Ordering::Release);
        tried.map(drop).map_err(StoreError::failed("write to the store"))
    }
}
