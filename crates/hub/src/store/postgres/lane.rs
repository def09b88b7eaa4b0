//! Tasks that write reports.
//!
//! Each writes its queue in one transaction while those of the other tasks reach the disk.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use deadpool_postgres::Pool;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::super::waiting::Waiting;
use super::super::{Arrival, Outcome, Refusal, StoreError};
use super::{Tries, Trouble, accept, connection, give_back, tell};

/// Number of concurrent transactions: one is decided and sent while the other is written.
pub(super) const LANES: usize = 2;
/// Maximum number of queued batches per lane. Further requests get 503, which costs less than delaying every
/// request.
const QUEUE: usize = 4096;
/// Maximum number of reports per transaction. It spreads the disk latency over many reports and still completes
/// within milliseconds.
const MAX_GROUP: usize = 1024;
/// Number of rows of `changes`; see the schema.
const SLOTS: u32 = 64;

type Verdicts = Vec<Result<Outcome, Refusal>>;

#[derive(Debug)]
pub(super) struct Lanes {
    queues: Vec<mpsc::Sender<Job>>,
    waiting: Waiting,
    seed: RandomState,
    /// Whether the last transaction failed.
    fails: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Job {
    arrivals: Vec<Arrival>,
    done: oneshot::Sender<Result<Verdicts, StoreError>>,
    /// Held until the reports are stored and dropped.
    _room: OwnedSemaphorePermit,
}

/// One of the tasks that write.
struct Lane {
    pool: Pool,
    /// The row in which it counts its changes.
    slot: i64,
    fails: Arc<AtomicBool>,
}

/// Returns the row in which a writer counts its changes. Two writers with the same row occasionally wait for each
/// other.
pub(super) fn slot() -> i64 {
    let random = (RandomState::new().build_hasher().finish() >> 32) as u32;
    i64::from(random % SLOTS)
}

// === impl Lanes ===

impl Lanes {
    pub(super) fn start(pool: &Pool) -> Self {
        let fails: Arc<AtomicBool> = Arc::default();
        let start = |_| {
            let (queue, jobs) = mpsc::channel(QUEUE);
            let lane = Lane { pool: pool.clone(), slot: slot(), fails: Arc::clone(&fails) };
            tokio::spawn(lane.write(jobs));
            queue
        };
        let queues = (0..LANES).map(start).collect();
        Self { queues, waiting: Waiting::default(), seed: RandomState::new(), fails }
    }

    /// Returns whether a lane has ended, so that its queue is never written.
    pub(super) fn is_one_gone(&self) -> bool {
        self.queues.iter().any(mpsc::Sender::is_closed)
    }

    /// Returns whether the last attempt to write reports failed.
    pub(super) fn fail(&self) -> bool {
        self.fails.load(Ordering::Acquire)
    }

    /// Records that another write succeeded since.
    pub(super) fn work_again(&self) {
        self.fails.store(false, Ordering::Release);
    }

    pub(super) async fn accept(&self, arrivals: Vec<Arrival>) -> Result<Verdicts, StoreError> {
        let Some(first) = arrivals.first() else { return Ok(Vec::new()) };
        // Reports of one node use the same lane, so that transactions seldom conflict.
        let lane = self.seed.hash_one(first.node.as_str()) % LANES as u64;
        let lane = usize::try_from(lane).ok().and_then(|lane| self.queues.get(lane));
        let room = self.waiting.room_for(&arrivals)?;
        let (done, verdicts) = oneshot::channel();
        let job = Job { arrivals, done, _room: room };
        lane.ok_or(StoreError::Closed)?.try_send(job).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => StoreError::Busy,
            mpsc::error::TrySendError::Closed(_) => StoreError::Closed,
        })?;
        verdicts.await.map_err(|_| StoreError::Closed)?
    }
}

// === impl Lane ===

impl Lane {
    async fn write(self, mut jobs: mpsc::Receiver<Job>) {
        while let Some(job) = jobs.recv().await {
            let mut count = job.arrivals.len();
            let mut group = vec![job];
            while count < MAX_GROUP {
                let Ok(job) = jobs.try_recv() else { break };
                count += job.arrivals.len();
                group.push(job);
            }
            match self.store(&group).await {
                Ok(verdicts) => answer(group, verdicts),
                // A batch that fails must not block the others of its group.
                Err(trouble) if group.len() > 1 && !trouble.may_pass() => {
                    for job in group {
                        let alone = [job];
                        match self.store(&alone).await {
                            Ok(verdicts) => answer(alone.into(), verdicts),
                            Err(trouble) => refuse(alone.into(), &trouble),
                        }
                    }
                }
                Err(trouble) => refuse(group, &trouble),
            }
        }
    }

    async fn store(&self, group: &[Job]) -> Result<Verdicts, Trouble> {
        let arrivals: Vec<&Arrival> = group.iter().flat_map(|job| &job.arrivals).collect();
        let mut tries = Tries::begin();
        loop {
            let stored = match connection(&self.pool).await {
                Ok(mut client) => {
                    let stored = accept::group(&mut client, &arrivals, self.slot).await;
                    give_back(client, &stored);
                    stored
                }
                Err(trouble) => Err(trouble),
            };
            match stored {
                Err(trouble) if trouble.may_pass() && tries.again().await => {
                    let nodes =
                        arrivals.iter().map(|arrival| arrival.node.as_str()).collect::<HashSet<_>>().len();
                    tracing::debug!(error = %trouble, nodes, "retrying a group of reports");
                }
                stored => {
                    self.note(&stored);
                    return stored;
                }
            }
        }
    }

    fn note(&self, stored: &Result<Verdicts, Trouble>) {
        let wrote =
            |verdict: &Result<Outcome, Refusal>| matches!(verdict, Ok(Outcome::Stored | Outcome::Late));
        match stored {
            Err(_) => self.fails.store(true, Ordering::Release),
            Ok(verdicts) if verdicts.iter().any(wrote) => self.fails.store(false, Ordering::Release),
            // Nothing had to be written, so the result does not show whether writes succeed.
            Ok(_) => {}
        }
    }
}

fn answer(group: Vec<Job>, verdicts: Verdicts) {
    let mut verdicts = verdicts.into_iter();
    for job in group {
        let own = verdicts.by_ref().take(job.arrivals.len()).collect();
        // A disconnected sender sends its reports again, and they count as duplicates.
        let _ = job.done.send(Ok(own));
    }
}

fn refuse(group: Vec<Job>, trouble: &Trouble) {
    tell(trouble);
    for job in group {
        let source = std::io::Error::other(trouble.to_string());
        let _ = job.done.send(Err(StoreError::failed("store reports")(source)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{PostgresPlace, Store as _};
    use super::super::PostgresStore;
    use super::*;

    #[tokio::test]
    async fn a_lane_that_is_gone_is_noticed() {
        let place = PostgresPlace::parse("postgres://hub@localhost/nowhere").unwrap();
        let pool = super::super::pool(&place, 1, None).unwrap();
        let mut lanes = Lanes::start(&pool);
        assert!(!lanes.is_one_gone());
        lanes.queues[0] = mpsc::channel(1).0;
        let store = PostgresStore { pool, lanes, slot: 0 };
        assert!(matches!(store.ready().await, Err(StoreError::Closed)));
    }
}
