//! The hub's database behind one trait: embedded SQLite for one hub, PostgreSQL for several.
//!
//! Every acknowledged report has its own row, so that no report is stored twice or lost. Its body is stored only
//! when it differs from the previous body. A node that repeats the same report every 5 s therefore costs about 80
//! bytes per report. The sequence of bodies is the node's history; a body whose verdict differs from its
//! predecessor's is a *turn*.

mod board;
mod columns;
mod decide;
mod forgotten;
mod loose;
mod packing;
mod postgres;
mod progress;
mod sqlite;
mod standing;
mod waiting;

use std::fmt;
use std::pin::Pin;

use jiff::Timestamp;
use landfall_model::envelope::ReportId;
use landfall_model::identity::NodeIdentity;
use landfall_model::in_place::Progress;
use landfall_model::report::{State, Trust, Verdict};
use landfall_model::{Cause, Confidence, Phase};
use serde::Serialize;

use crate::name::NodeName;

pub use progress::{Heard, MAX_ATTEMPTS, MAX_EVENTS, ProgressEvent, ProgressLine};

pub use postgres::{Place as PostgresPlace, PlaceError as PostgresPlaceError, PostgresStore};
pub use sqlite::SqliteStore;
pub use standing::{Allowance, NEW_NODES_A_MINUTE, Standing};

/// Maximum number of bundles kept per node, so that one node cannot fill the disk.
const MAX_BUNDLES: i64 = 16;

/// Future returned by every method of [`Store`].
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// The hub's database. Everything acknowledged survives a crash of the process and of the machine.
pub trait Store: fmt::Debug + Send + Sync {
    /// Stores each report independently: a rejected report does not affect the others. On error, no report was
    /// stored.
    fn accept(&self, arrivals: Vec<Arrival>) -> Answer<'_, Vec<Result<Outcome, Refusal>>>;
    /// Checks whether reports could be stored now, as far as that is known without storing one.
    fn ready(&self) -> Answer<'_, ()>;
    /// Returns the reports that were acknowledged before and not yet pruned. Reports of deleted nodes are included.
    fn has(&self, ids: Vec<ReportId>) -> Answer<'_, Vec<ReportId>>;
    /// Returns a number that grows whenever the fleet view changes.
    fn version(&self) -> Answer<'_, u64>;
    fn fleet(&self, query: FleetQuery) -> Answer<'_, Fleet>;
    /// Returns nodes by name, starting after the given one.
    fn nodes(&self, after: String, limit: u32) -> Answer<'_, NodePage>;
    fn node(&self, name: NodeName) -> Answer<'_, Option<NodeRecord>>;
    /// Returns the size of the database and of all bundles.
    fn size(&self) -> Answer<'_, StoreSize>;
    /// Returns the node's pinned key.
    fn pinned(&self, name: NodeName) -> Answer<'_, Pinned>;
    /// Returns verdict changes, newest first, optionally those before the given turn.
    fn history(&self, name: NodeName, before: Option<u64>, limit: u32) -> Answer<'_, Vec<Turn>>;
    /// Returns the report of a turn as the node sent it.
    fn report(&self, name: NodeName, turn: u64) -> Answer<'_, Option<String>>;
    /// Returns how many nodes changed to each cause, in steps of `step` seconds since `since`.
    fn trend(&self, since: Timestamp, step: u32) -> Answer<'_, Vec<TrendPoint>>;
    /// Returns reports whose evidence contains all words, newest first.
    fn search(&self, words: Vec<String>, limit: u32) -> Answer<'_, Vec<Hit>>;
    /// Announces an object before it is written, so that it is known even without a record. Returns false while the
    /// same object is being removed.
    fn expect_bundle(&self, digest: String, now: Timestamp) -> Answer<'_, bool>;
    /// Records a bundle whose object is stored; an existing record is not changed. Returns false if the object was
    /// removed in the meantime. Objects of a node's older bundles, beyond the newest `MAX_BUNDLES`, become orphaned.
    fn add_bundle(&self, bundle: BundleRecord) -> Answer<'_, bool>;
    fn bundle(&self, digest: String) -> Answer<'_, Option<BundleRecord>>;
    /// Returns the node's bundles, newest first.
    fn bundles(&self, name: NodeName) -> Answer<'_, Vec<BundleRecord>>;
    /// Stores an event of an in-place bootstrap. The store keeps the newest [`MAX_ATTEMPTS`] attempts of a node and
    /// the newest [`MAX_EVENTS`] events of an attempt.
    fn add_progress(&self, name: NodeName, progress: Progress, received: Timestamp) -> Answer<'_, Heard>;
    /// Returns the events of the node's newest attempt, by sequence. The newest attempt is the one whose first event
    /// arrived last.
    fn progress(&self, name: NodeName) -> Answer<'_, Vec<ProgressEvent>>;
    /// Returns the newest event of every node's newest attempt, most recently received first.
    fn progress_lines(&self, limit: u32) -> Answer<'_, Vec<ProgressLine>>;
    /// Deletes the node, its reports and its bundles, whose objects become orphaned. Returns whether the node
    /// existed. Reports signed earlier by its key are rejected as replays for as long as reports are kept.
    fn forget(&self, name: NodeName) -> Answer<'_, bool>;
    /// Deletes a bounded number of older records and returns their number. The objects of deleted bundles become
    /// orphaned.
    fn prune(&self, older_than: Timestamp, bundles_older_than: Timestamp) -> Answer<'_, Pruned>;
    /// Returns some orphaned objects for the caller to remove and then confirm with [`removed`](Self::removed).
    /// Unconfirmed objects are returned again later.
    fn loose(&self, now: Timestamp) -> Answer<'_, Vec<String>>;
    fn removed(&self, digest: String) -> Answer<'_, ()>;
    /// Marks those of these objects that have no record as orphaned. Returns their number.
    fn make_loose(&self, digests: Vec<String>, now: Timestamp) -> Answer<'_, u64>;
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot open the store `{place}`")]
    Open { place: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error(
        "the store `{place}` was made by a newer version: it has format {found}, this program knows {known}"
    )]
    Newer { place: String, found: i64, known: i64 },
    #[error("cannot {doing}")]
    Failed { doing: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the store has more to write than it can; try again")]
    Busy,
    #[error("the store is closed")]
    Closed,
}

/// A validated report that may be stored.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub id: ReportId,
    pub node: NodeName,
    pub identity: NodeIdentity,
    /// Boot counter of the node, if it counts boots.
    pub boot_number: Option<u64>,
    pub sequence: u64,
    pub time: Timestamp,
    pub received: Timestamp,
    pub verdict: Verdict,
    /// The report as received.
    pub report: String,
    /// SHA-256 digest of the report.
    pub digest: [u8; 32],
    /// Text for the full-text index.
    pub words: String,
    /// The key of the verified signature.
    pub key: Option<Vec<u8>>,
    pub standing: Standing,
}

/// Size of the stored data in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreSize {
    /// Size of the database.
    pub store: u64,
    /// Compressed size of all bundles.
    pub bundles: u64,
}

/// The pinned key of a node: the key of its first signed report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pinned {
    /// The node does not exist.
    Unknown,
    /// The node does not sign its reports.
    Nothing,
    Key(Vec<u8>),
}

/// Outcome of a report that was not rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Outcome {
    /// The report is the node's current one.
    Stored,
    /// A newer report is stored; this one is in the history only.
    Late,
    /// The report is already stored; nothing changed.
    Duplicate,
}

/// Reasons for not storing a report. Retrying helps only for [`Self::TooManyNew`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("another report has this id")]
    IdTaken,
    #[error(
        "reports of this boot up to and beyond this sequence were here and are forgotten: this is a replay"
    )]
    Replay,
    #[error(
        "the node signed earlier reports, and this one is not signed by the same key; if the machine was reinstalled, have an \
         operator forget the node (`landfall hub forget NODE`); if two machines have this name, name their clusters (`/etc/landfall/cluster`)"
    )]
    WrongKey,
    #[error("the node was forgotten, and had said this or something newer by then: this is a replay")]
    Forgotten,
    #[error("its sender could be any of several nodes, so the report must be signed")]
    NotSigned,
    #[error(
        "the node is known without a key, and the sender could be any of many; use a credential of the node's own, or have an \
         operator forget the node (`landfall hub forget NODE`)"
    )]
    KnownUnsigned,
    #[error("more than {NEW_NODES_A_MINUTE} new nodes by this carrier within a minute; retry later")]
    TooManyNew,
}

/// Filter for the nodes of the fleet view.
#[derive(Clone, Debug, Default)]
pub struct FleetQuery {
    pub state: Option<State>,
    /// `none` selects nodes without a cause.
    pub cause: Option<Cause>,
    pub phase: Option<Phase>,
    /// Substring of the name, the title or the cause.
    pub text: String,
    pub limit: u32,
    pub offset: u32,
}

/// The fleet as shown in the fleet view.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Fleet {
    /// Number of all nodes, regardless of the query.
    pub total: u64,
    /// Number of nodes in each state, worst first; states without nodes are omitted.
    pub states: Vec<StateCount>,
    /// Failing nodes grouped by cause, largest group first.
    pub groups: Vec<Group>,
    /// Number of nodes that match the query.
    pub found: u64,
    /// One page of the matching nodes, worst first.
    pub nodes: Vec<NodeLine>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StateCount {
    pub state: State,
    pub nodes: u64,
}

/// Failing nodes with the same cause.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Group {
    /// `null` for failing nodes without a known cause.
    pub cause: Option<Cause>,
    pub title: String,
    /// Worst state of these nodes.
    pub state: State,
    pub nodes: u64,
    /// Phases in which these nodes stopped, earliest first.
    pub phases: Vec<Phase>,
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub first: Timestamp,
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub last: Timestamp,
    /// Names of some of these nodes.
    pub examples: Vec<String>,
}

/// A node of the fleet view.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeLine {
    pub name: String,
    pub state: State,
    pub cause: Option<Cause>,
    pub title: String,
    pub component: Option<String>,
    pub phase: Option<Phase>,
    pub confidence: Confidence,
    /// Whether the evidence of the verdict has a proven origin.
    pub trust: Trust,
    /// When the node first reported this verdict.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub since: Timestamp,
    /// When the last report was received, by the hub's clock.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub last_seen: Timestamp,
    /// Provider ID of the machine, if the node reported one.
    pub provider_id: Option<String>,
}

/// A page of nodes, ordered by name: names do not change between two pages, unlike states.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodePage {
    pub nodes: Vec<NodeLine>,
    /// Value of `after` for the next page; `null` on the last page.
    pub next: Option<String>,
}

/// Details of one node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeRecord {
    #[serde(flatten)]
    pub line: NodeLine,
    pub identity: NodeIdentity,
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub first_seen: Timestamp,
    pub boots: u64,
    pub reports: u64,
    pub sequence: u64,
    /// When the current report was made, by the node's clock.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub time: Timestamp,
    /// Whether the node signs its reports.
    pub signed: bool,
    /// Number of the current turn.
    pub turn: u64,
    /// The current report as the node sent it.
    #[serde(skip)]
    pub report: String,
}

/// A change of a node's verdict.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Turn {
    pub turn: u64,
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub received: Timestamp,
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub time: Timestamp,
    pub state: State,
    pub cause: Option<Cause>,
    pub title: String,
    pub phase: Option<Phase>,
    pub confidence: Confidence,
    /// Whether the evidence of the verdict has a proven origin.
    pub trust: Trust,
    /// Whether it arrived after a newer report.
    pub late: bool,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TrendPoint {
    pub cause: Option<Cause>,
    /// Number of the step, starting at 0.
    pub step: u32,
    pub nodes: u64,
}

/// A report found by a search, without its body: 100 bodies may take 100 MB.
#[derive(Clone, Debug)]
pub struct Hit {
    pub node: String,
    pub turn: u64,
    pub received: Timestamp,
    pub title: String,
    pub cause: Option<Cause>,
}

/// A verified and stored bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BundleRecord {
    /// SHA-256 digest of the compressed bundle; identifies it everywhere.
    pub digest: String,
    pub node: String,
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub received: Timestamp,
    /// Compressed size.
    pub bytes: u64,
    pub files: u64,
    /// Whether the bundle is truncated; the remaining files are verified.
    pub cut: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    pub reports: u64,
    pub turns: u64,
    pub bundles: u64,
}

// === impl StoreError ===

impl StoreError {
    pub(crate) fn failed<E: std::error::Error + Send + Sync + 'static>(
        doing: &'static str,
    ) -> impl FnOnce(E) -> Self {
        move |source| Self::Failed { doing, source: Box::new(source) }
    }
}

// === impl Arrival ===

impl Arrival {
    /// Returns the time that orders boots without a number. It is at most the time of receipt. Otherwise a clock
    /// that is ahead would make all later reports older until that time.
    fn moment(&self) -> i64 {
        self.time.min(self.received).as_microsecond()
    }

    fn numbered(&self) -> Option<i64> {
        self.boot_number.map(u64::cast_signed)
    }
}

// === impl Pinned ===

impl From<Option<Option<Vec<u8>>>> for Pinned {
    /// Converts the key column of a row that may not exist.
    fn from(column: Option<Option<Vec<u8>>>) -> Self {
        match column {
            None => Self::Unknown,
            Some(None) => Self::Nothing,
            Some(Some(key)) => Self::Key(key),
        }
    }
}

// === impl FleetQuery ===

impl FleetQuery {
    /// Returns the number of matching nodes if the state counts suffice to compute it.
    fn counted_by(&self, states: &[StateCount]) -> Option<u64> {
        if self.cause.is_some() || self.phase.is_some() || !self.text.is_empty() {
            return None;
        }
        let wanted = states.iter().filter(|count| self.state.is_none_or(|state| state == count.state));
        Some(wanted.map(|count| count.nodes).sum())
    }
}

// === impl NodePage ===

impl NodePage {
    /// Builds a page from up to `limit + 1` nodes; the extra node shows that another page exists.
    fn new(mut nodes: Vec<NodeLine>, limit: u32) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let is_last = nodes.len() <= limit;
        nodes.truncate(limit);
        let next = nodes.last().filter(|_| !is_last).map(|node| node.name.clone());
        Self { nodes, next }
    }
}

// === impl Group ===

impl Group {
    /// States in which a node needs attention.
    pub const TROUBLE: [State; 3] = [State::Failed, State::Hung, State::Degraded];
}
