//! The tasks that write reports: each takes what waits into one transaction, while the others' are on their way to the disk.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use deadpool_postgres::Pool;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::super::waiting::Waiting;
use super::super::{Arrival, Outcome, Refusal, StoreError};
use super::{Tries, Trouble, accept, connection, tell};

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
}

#[derive(Debug)]
struct Job {
    arrivals: Vec<Arrival>,
    done: oneshot::Sender<Result<Verdicts, StoreError>>,
    /// Until they are stored and gone.
    _room: OwnedSemaphorePermit,
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
        let start = |_| {
            let (queue, jobs) = mpsc::channel(QUEUE);
            tokio::spawn(write(pool.clone(), jobs));
            queue
        };
        let queues = (0..LANES).map(start).collect();
        Self { queues, waiting: Waiting::default(), seed: RandomState::new() }
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

async fn write(pool: Pool, mut jobs: mpsc::Receiver<Job>) {
    let slot = slot();
    while let Some(job) = jobs.recv().await {
        let mut count = job.arrivals.len();
        let mut group = vec![job];
        while count < MAX_GROUP {
            let Ok(job) = jobs.try_recv() else { break };
            count += job.arrivals.len();
            group.push(job);
        }
        match store(&pool, &group, slot).await {
            Ok(verdicts) => answer(group, verdicts),
            // What one batch brings must not keep the others out.
            Err(trouble) if group.len() > 1 && !trouble.may_pass() => {
                for job in group {
                    let alone = [job];
                    let stored = store(&pool, &alone, slot).await;
                    match stored {
                        Ok(verdicts) => answer(alone.into(), verdicts),
                        Err(trouble) => refuse(alone.into(), &trouble),
                    }
                }
            }
            Err(trouble) => refuse(group, &trouble),
        }
    }
}

async fn store(pool: &Pool, group: &[Job], slot: i64) -> Result<Verdicts, Trouble> {
    let arrivals: Vec<&Arrival> = group.iter().flat_map(|job| &job.arrivals).collect();
    let mut tries = Tries::begin();
    loop {
        let stored = match connection(pool).await {
            Ok(mut client) => accept::group(&mut client, &arrivals, slot).await,
            Err(trouble) => Err(trouble),
        };
        match stored {
            Err(trouble) if trouble.may_pass() && tries.again().await => {
                let nodes =
                    arrivals.iter().map(|arrival| arrival.node.as_str()).collect::<HashSet<_>>().len();
                tracing::debug!(error = %trouble, nodes, "A group of reports is tried again.");
            }
            other => return other,
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
