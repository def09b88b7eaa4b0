//! The tasks that write reports: each takes what waits into one transaction, while the others' are on their way to the disk.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use deadpool_postgres::Pool;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::super::waiting::Waiting;
use super::super::{Arrival, Outcome, Refusal, StoreError};
use super::{Tries, Trouble, accept, connection, give_back, tell};

/// Transactions under way at once: one is judged and sent while the other is being written.
pub(super) const LANES: usize = 2;
/// Batches of reports that may wait in a lane. Who comes beyond is told to try again, which costs less than letting
/// everybody wait.
const QUEUE: usize = 4096;
/// Reports in one transaction: enough to make the disk's delay small for each, few enough to be done in some milliseconds.
const MAX_GROUP: usize = 1024;
/// Rows of `changes`; see the schema.
const SLOTS: u32 = 64;

type Verdicts = Vec<Result<Outcome, Refusal>>;

#[derive(Debug)]
pub(super) struct Lanes {
    queues: Vec<mpsc::Sender<Job>>,
    waiting: Waiting,
    seed: RandomState,
    /// The last transaction could not be written.
    fails: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Job {
    arrivals: Vec<Arrival>,
    done: oneshot::Sender<Result<Verdicts, StoreError>>,
    /// Until they are stored and gone.
    _room: OwnedSemaphorePermit,
}

/// One of the tasks that write.
struct Lane {
    pool: Pool,
    /// Where it counts its changes.
    slot: i64,
    fails: Arc<AtomicBool>,
}

/// A number nobody can foresee, for pauses and places.
pub(super) fn random() -> u32 {
    (RandomState::new().build_hasher().finish() >> 32) as u32
}

/// The row in which a writer counts its changes. Two may have the same: they then wait for each other now and then.
pub(super) fn slot() -> i64 {
    i64::from(random() % SLOTS)
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

    /// Whether a lane has ended: what is put into it is never written.
    pub(super) fn is_one_gone(&self) -> bool {
        self.queues.iter().any(mpsc::Sender::is_closed)
    }

    /// Whether reports could not be written when it was last tried.
    pub(super) fn fail(&self) -> bool {
        self.fails.load(Ordering::Acquire)
    }

    /// Something else could be written since.
    pub(super) fn work_again(&self) {
        self.fails.store(false, Ordering::Release);
    }

    pub(super) async fn accept(&self, arrivals: Vec<Arrival>) -> Result<Verdicts, StoreError> {
        let Some(first) = arrivals.first() else { return Ok(Vec::new()) };
        // One node's reports go one way, so that they seldom meet each other.
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
                // What one batch brings must not keep the others out.
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
                    tracing::debug!(error = %trouble, nodes, "A group of reports is tried again.");
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
            // It was read that there is nothing to write, which says nothing.
            Ok(_) => {}
        }
    }
}

fn answer(group: Vec<Job>, verdicts: Verdicts) {
    let mut verdicts = verdicts.into_iter();
    for job in group {
        let own = verdicts.by_ref().take(job.arrivals.len()).collect();
        // A sender that went away will send again and be told that it is a duplicate.
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
