//! The one thread that writes.

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

/// Batches of reports that may wait. At the rate one machine writes this is less than a second of work; who comes beyond
/// is told to try again, which costs less than letting everybody wait.
const QUEUE: usize = 4096;
/// The pause from one transaction with reports to the next. On a fast disk there would be thousands of small ones a second,
/// each of which writes its pages anew; so what comes meanwhile goes into one. A report that comes after a pause does not wait.
const PACE: Duration = Duration::from_millis(5);
/// Reports in one transaction: enough to make the disk's delay small for each, few enough to be done in some milliseconds.
const MAX_GROUP: usize = 1024;

/// How long a healthy writer may take to answer who only asks.
const READY_PATIENCE: Duration = Duration::from_secs(5);

type Task = Box<dyn FnOnce(&mut Connection, &Signs) + Send>;
/// Where the answer goes.
type Done = oneshot::Sender<Result<AcceptResults, StoreError>>;
type AcceptResults = Vec<Result<Outcome, Refusal>>;

#[derive(Debug)]
pub(super) struct Writer {
    queue: mpsc::Sender<Job>,
    waiting: Waiting,
    pub(super) signs: Arc<Signs>,
}

/// What is seen of the writer from outside.
#[derive(Debug)]
pub(super) struct Signs {
    /// Grows with every change a board would show.
    pub(super) version: AtomicU64,
    /// The last transaction could not be written.
    fails: AtomicBool,
}

enum Job {
    Accept(Batch),
    /// Words that wait are added to the index.
    Settle {
        done: oneshot::Sender<()>,
    },
    /// Whether the file can be written.
    Look {
        done: oneshot::Sender<Result<(), StoreError>>,
    },
    Other(Task),
}

struct Batch {
    arrivals: Vec<Arrival>,
    done: Done,
    /// Until they are stored and gone.
    _room: OwnedSemaphorePermit,
}

/// What the thread has.
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
        // Begins with the time, so that it grows across restarts as well.
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

    /// Whether the thread is there, is not held up, and could write what it wrote last.
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

    /// Runs in a transaction of its own.
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
            // Nobody waits for the answer any more; what was done is done.
            let _ = done.send(result);
        });
        self.queue.send(Job::Other(task)).await.map_err(|_| StoreError::Closed)?;
        result.await.map_err(|_| StoreError::Closed)?
    }

    /// Has every report that was acknowledged found by search.
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
                    // It may forget bodies whose words wait.
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
                        // Nobody wakes it; if somebody did, the group would be smaller.
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
                // Before the acknowledgement: a request after it sees the change.
                if accepted.is_changed {
                    self.signs.version.fetch_add(1, Ordering::AcqRel);
                }
                accepted.taken.keep();
                self.backlog.add(accepted.words);
                let mut results = accepted.results.into_iter();
                for batch in group {
                    let results = results.by_ref().take(batch.arrivals.len()).collect();
                    // A disconnected sender sends its reports again, and they are duplicates.
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

    /// Tries to write again what could not be written: else nobody would send anything, and nothing would tell that it works.
    fn look(&mut self) -> Result<(), StoreError> {
        if !self.signs.fails.load(Ordering::Acquire) {
            return Ok(());
        }
        let tried = self.connection.execute("UPDATE indexed SET body = body", []);
        self.signs.fails.store(tried.is_err(), Ordering::Release);
        tried.map(drop).map_err(StoreError::failed("write to the store"))
    }
}
