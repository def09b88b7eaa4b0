//! The store for several hubs: PostgreSQL.
//!
//! Hubs on the same database have no local state, so any of them can accept any report and serve any page.
//!
//! As in the embedded store, all queued batches go into one transaction. It is acknowledged once the database
//! reports it as durable. The hub waits for a restarting database, up to a limit.

mod accept;
mod forget;
mod lane;
mod loose;
mod migrate;
mod place;
mod progress;
mod read;
mod row;

use std::time::{Duration, Instant};

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime,
};
use jiff::Timestamp;
use landfall_model::chain;
use landfall_model::envelope::ReportId;
use landfall_model::in_place::Progress;
use landfall_net::Backoff;
use tokio_postgres::error::SqlState;

use self::lane::{LANES, Lanes};
use super::{
    Answer, Arrival, BundleRecord, Fleet, FleetQuery, Heard, Hit, NodePage, NodeRecord, Outcome, Pinned,
    ProgressEvent, ProgressLine, Pruned, Refusal, Store, StoreError, StoreSize, TrendPoint, Turn,
};
use crate::name::NodeName;

pub use place::{Place, PlaceError};

/// Maximum number of connections per hub, for writes and reads. PostgreSQL allows 100 connections by default.
const MAX_CONNECTIONS: usize = 8;
/// Time a caller waits for an unavailable database before it gets 503.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pauses between tries.
const BACKOFF: Backoff = Backoff::millis::<20, 1000>();

/// Session setting of writers, which select every row by its key. A plan made while the tables were nearly empty
/// uses a sequential scan, and PostgreSQL would keep it until the next analysis of the table.
const BY_KEY: &str = "SET enable_seqscan = off";

#[derive(Debug)]
pub struct PostgresStore {
    pool: Pool,
    lanes: Lanes,
    slot: i64,
}

/// Reasons for a failed operation.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("the database refused")]
    Database(#[from] tokio_postgres::Error),
    #[error("there is no connection to the database")]
    Pool(#[source] PoolError),
    #[error("the database holds `{0}`, which this program does not know")]
    Unknown(String),
    #[error("a stored text cannot be packed or unpacked")]
    Packing(#[source] std::io::Error),
    #[error("another hub changed the same nodes")]
    Overtaken,
}

/// Retries until a deadline.
struct Tries {
    until: Instant,
    backoff: Backoff,
}

// === impl PostgresStore ===

impl PostgresStore {
    /// Connects, and creates or migrates the tables to this version. Waits for a database that does not respond.
    pub async fn open(place: &Place) -> Result<Self, StoreError> {
        let pool = pool(place, MAX_CONNECTIONS - LANES, None)?;
        migrate::run(&pool, place).await?;
        let slot = lane::slot();
        Ok(Self { lanes: Lanes::start(&self::pool(place, LANES, Some(BY_KEY))?), pool, slot })
    }
}

/// Returns a pool whose connections first run this statement.
fn pool(place: &Place, size: usize, first: Option<&'static str>) -> Result<Pool, StoreError> {
    let (config, tls) = place.open()?;
    let manager =
        Manager::from_config(config, tls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
    let mut builder = Pool::builder(manager)
        .max_size(size)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(PATIENCE))
        .create_timeout(Some(PATIENCE));
    if let Some(first) = first {
        builder = builder.post_create(Hook::async_fn(move |client, _| {
            Box::pin(async move { client.batch_execute(first).await.map_err(HookError::Backend) })
        }));
    }
    builder.build().map_err(|error| StoreError::Open { place: place.shown(), source: Box::new(error) })
}

/// Runs an operation with a connection, and again if the connection was lost. The operation must be idempotent.
macro_rules! with {
    ($store:ident, $doing:literal, |$client:ident| $work:expr) => {
        Box::pin(async move {
            let mut tries = Tries::begin();
            loop {
                let done = match connection(&$store.pool).await {
                    Ok(mut own) => {
                        let $client = &mut own;
                        let done = $work.await;
                        give_back(own, &done);
                        done
                    }
                    Err(trouble) => Err(trouble),
                };
                match done {
                    Ok(value) => return Ok(value),
                    Err(trouble) if trouble.may_pass() && tries.again().await => {}
                    Err(trouble) => return Err(StoreError::failed($doing)(trouble)),
                }
            }
        })
    };
}

impl Store for PostgresStore {
    fn accept(&self, arrivals: Vec<Arrival>) -> Answer<'_, Vec<Result<Outcome, Refusal>>> {
        Box::pin(self.lanes.accept(arrivals))
    }

    fn ready(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            if self.lanes.is_one_gone() {
                return Err(StoreError::Closed);
            }
            if self.lanes.fail() {
                // Otherwise the hub stays unready, receives no reports, and cannot notice that writing works again.
                let tried: Answer<'_, ()> =
                    with!(self, "write to the database", |client| accept::trial(client, self.slot));
                tried.await?;
                self.lanes.work_again();
                return Ok(());
            }
            self.version().await.map(drop)
        })
    }

    fn version(&self) -> Answer<'_, u64> {
        with!(self, "ask for changes", |client| read::version(client))
    }

    fn fleet(&self, query: FleetQuery) -> Answer<'_, Fleet> {
        with!(self, "read the fleet", |client| read::fleet(client, &query))
    }

    fn nodes(&self, after: String, limit: u32) -> Answer<'_, NodePage> {
        with!(self, "read the nodes", |client| read::nodes(client, &after, limit))
    }

    fn node(&self, name: NodeName) -> Answer<'_, Option<NodeRecord>> {
        with!(self, "read a node", |client| read::node(client, &name))
    }

    fn size(&self) -> Answer<'_, StoreSize> {
        with!(self, "measure the store", |client| read::size(client))
    }

    fn pinned(&self, name: NodeName) -> Answer<'_, Pinned> {
        with!(self, "read a node's key", |client| read::pinned(client, &name))
    }

    fn history(&self, name: NodeName, before: Option<u64>, limit: u32) -> Answer<'_, Vec<Turn>> {
        with!(self, "read a node's history", |client| read::history(client, &name, before, limit))
    }

    fn report(&self, name: NodeName, turn: u64) -> Answer<'_, Option<String>> {
        with!(self, "read a report", |client| read::report(client, &name, turn))
    }

    fn trend(&self, since: Timestamp, step: u32) -> Answer<'_, Vec<TrendPoint>> {
        with!(self, "read the trend of causes", |client| read::trend(client, since, step))
    }

    fn search(&self, words: Vec<String>, limit: u32) -> Answer<'_, Vec<Hit>> {
        with!(self, "search evidence", |client| read::search(client, &words, limit))
    }

    fn expect_bundle(&self, digest: String, now: Timestamp) -> Answer<'_, bool> {
        with!(self, "expect a bundle", |client| loose::expect(client, &digest, now))
    }

    fn add_bundle(&self, bundle: BundleRecord) -> Answer<'_, bool> {
        with!(self, "record a bundle", |client| loose::add(client, &bundle, self.slot))
    }

    fn has(&self, ids: Vec<ReportId>) -> Answer<'_, Vec<ReportId>> {
        with!(self, "look for reports", |client| read::has(client, &ids))
    }

    fn bundle(&self, digest: String) -> Answer<'_, Option<BundleRecord>> {
        with!(self, "read a bundle's record", |client| read::bundle(client, &digest))
    }

    fn bundles(&self, name: NodeName) -> Answer<'_, Vec<BundleRecord>> {
        with!(self, "read a node's bundles", |client| read::bundles(client, &name))
    }

    fn add_progress(&self, name: NodeName, progress: Progress, received: Timestamp) -> Answer<'_, Heard> {
        with!(self, "store progress", |client| progress::add(client, &name, &progress, received, self.slot))
    }

    fn progress(&self, name: NodeName) -> Answer<'_, Vec<ProgressEvent>> {
        with!(self, "read a node's progress", |client| progress::of_node(client, &name))
    }

    fn progress_lines(&self, limit: u32) -> Answer<'_, Vec<ProgressLine>> {
        with!(self, "read the progress of nodes", |client| progress::lines(client, limit))
    }

    fn forget(&self, name: NodeName) -> Answer<'_, bool> {
        Box::pin(async move {
            let forget: Answer<'_, Option<forget::Forgotten>> =
                with!(self, "forget a node", |client| forget::node(client, &name, self.slot));
            let Some(forgotten) = forget.await? else { return Ok(false) };
            if let Some(node) = forgotten.node {
                let said = || -> Answer<'_, u64> {
                    with!(self, "forget what a node said", |client| forget::bodies(client, node))
                };
                while said().await? > 0 {}
            }
            Ok(true)
        })
    }

    fn prune(&self, older_than: Timestamp, bundles_older_than: Timestamp) -> Answer<'_, Pruned> {
        with!(self, "delete old data", |client| forget::old(
            client,
            older_than,
            bundles_older_than,
            self.slot
        ))
    }

    fn loose(&self, now: Timestamp) -> Answer<'_, Vec<String>> {
        with!(self, "look for what is loose", |client| loose::take(client, now))
    }

    fn removed(&self, digest: String) -> Answer<'_, ()> {
        with!(self, "forget what is removed", |client| loose::removed(client, &digest))
    }

    fn make_loose(&self, digests: Vec<String>, now: Timestamp) -> Answer<'_, u64> {
        with!(self, "note what is loose", |client| loose::make(client, &digests, now))
    }
}

async fn connection(pool: &Pool) -> Result<Object, Trouble> {
    pool.get().await.map_err(Trouble::Pool)
}

/// Drops a connection to a server that became read-only: the next one is made to a writable server.
fn give_back<T>(connection: Object, done: &Result<T, Trouble>) {
    if done.as_ref().is_err_and(Trouble::is_read_only) {
        drop(Object::take(connection));
    }
}

// === impl Trouble ===

impl Trouble {
    /// Returns whether a retry may succeed: the database is unavailable, or another hub was faster.
    fn may_pass(&self) -> bool {
        match self {
            Self::Overtaken | Self::Pool(PoolError::Timeout(_)) => true,
            Self::Pool(PoolError::Backend(error)) | Self::Database(error) => match error.code() {
                Some(code) => passing(code),
                // The connection was lost or not established.
                None => error.is_closed() || is_io(error),
            },
            Self::Pool(_) | Self::Unknown(_) | Self::Packing(_) => false,
        }
    }

    fn is_read_only(&self) -> bool {
        matches!(self, Self::Database(error) if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION))
    }
}

fn passing(code: &SqlState) -> bool {
    // Classes: connection exception, operator intervention (restart), transaction rollback, insufficient resources.
    ["08", "57P", "40", "53"].iter().any(|class| code.code().starts_with(class))
        || [
            &SqlState::UNIQUE_VIOLATION,
            &SqlState::LOCK_NOT_AVAILABLE,
            // Another server has taken over.
            &SqlState::READ_ONLY_SQL_TRANSACTION,
        ]
        .contains(&code)
}

fn is_io(error: &tokio_postgres::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if error.is::<std::io::Error>() {
            return true;
        }
        source = error.source();
    }
    false
}

// === impl Tries ===

impl Tries {
    fn begin() -> Self {
        Self { until: Instant::now() + PATIENCE, backoff: BACKOFF }
    }

    /// Waits before the next try; returns false after the deadline.
    async fn again(&mut self) -> bool {
        let pause = self.backoff.pause();
        if Instant::now() + pause > self.until {
            return false;
        }
        tokio::time::sleep(pause).await;
        true
    }
}

/// Logs the error for the operator; the response to callers contains no details.
fn tell(trouble: &Trouble) {
    tracing::error!(error = %chain(trouble), "Reports could not be stored.");
}
