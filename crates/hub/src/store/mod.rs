//! What the hub remembers, behind one trait: embedded SQLite on one machine, PostgreSQL beyond it.
//!
//! Every report that is acknowledged has a row of its own, so that none is taken twice and none is lost. Its body is kept
//! only when it differs from the one before it: a node that says the same thing every five seconds costs some eighty
//! bytes each time. Bodies in their order are the node's history; a body whose verdict differs from its predecessor's is a
//! *turn*.

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

/// Bundles of one node that are kept: a node that sends ever more of them fills nobody's disk.
const MAX_BUNDLES: i64 = 16;

/// What a store gives, in time.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// The hub's memory. What an answer says was stored survives the end of the process and of the machine.
pub trait Store: fmt::Debug + Send + Sync {
    /// Takes reports in, each on its own: a refused one does not keep the others out. When this fails, none was taken.
    fn accept(&self, arrivals: Vec<Arrival>) -> Answer<'_, Vec<Result<Outcome, Refusal>>>;
    /// Whether reports could be stored now, as far as that is known without storing one.
    fn ready(&self) -> Answer<'_, ()>;
    /// Which of these were acknowledged before, until they are old; also when their node was forgotten since.
    fn has(&self, ids: Vec<ReportId>) -> Answer<'_, Vec<ReportId>>;
    /// Grows whenever anything a board shows has changed.
    fn version(&self) -> Answer<'_, u64>;
    fn fleet(&self, query: FleetQuery) -> Answer<'_, Fleet>;
    /// Nodes by name, those after the given one.
    fn nodes(&self, after: String, limit: u32) -> Answer<'_, NodePage>;
    fn node(&self, name: NodeName) -> Answer<'_, Option<NodeRecord>>;
    /// How much is kept.
    fn size(&self) -> Answer<'_, StoreSize>;
    /// The key the node is known by.
    fn pinned(&self, name: NodeName) -> Answer<'_, Pinned>;
    /// Newest first, before the given turn when there is one.
    fn history(&self, name: NodeName, before: Option<u64>, limit: u32) -> Answer<'_, Vec<Turn>>;
    /// The report as the node sent it, by the number of its turn.
    fn report(&self, name: NodeName, turn: u64) -> Answer<'_, Option<String>>;
    /// How many nodes turned to each cause, in steps of `step` seconds since `since`.
    fn trend(&self, since: Timestamp, step: u32) -> Answer<'_, Vec<TrendPoint>>;
    /// Reports whose evidence holds all the words, newest first.
    fn search(&self, words: Vec<String>, limit: u32) -> Answer<'_, Vec<Hit>>;
    /// Says that an object is about to be kept, before it is: what is without a record is known from then on. Says no while
    /// the same object is being removed.
    fn expect_bundle(&self, digest: String, now: Timestamp) -> Answer<'_, bool>;
    /// Records a bundle whose object is kept; one that is on record already stays as it is. Says no when the object was
    /// removed meanwhile. Beyond the newest [`MAX_BUNDLES`] of a node the others become loose.
    fn add_bundle(&self, bundle: BundleRecord) -> Answer<'_, bool>;
    fn bundle(&self, digest: String) -> Answer<'_, Option<BundleRecord>>;
    /// Newest first.
    fn bundles(&self, name: NodeName) -> Answer<'_, Vec<BundleRecord>>;
    /// Takes in an event of an in-place bootstrap. Of a node the newest [`MAX_ATTEMPTS`] attempts are kept, of an attempt
    /// the newest [`MAX_EVENTS`] events.
    fn add_progress(&self, name: NodeName, progress: Progress, received: Timestamp) -> Answer<'_, Heard>;
    /// The events of the node's newest attempt (the one that was first heard of last), by sequence.
    fn progress(&self, name: NodeName) -> Answer<'_, Vec<ProgressEvent>>;
    /// The newest event of every node's newest attempt, the one heard last first.
    fn progress_lines(&self, limit: u32) -> Answer<'_, Vec<ProgressLine>>;
    /// Forgets the node, its reports and its bundles, whose objects become loose; says whether it was known. What its key signed
    /// before does not bring it back, for as long as reports are kept.
    fn forget(&self, name: NodeName) -> Answer<'_, bool>;
    /// Forgets a bounded number of what is older; says how much. The objects of bundles become loose.
    fn prune(&self, older_than: Timestamp, bundles_older_than: Timestamp) -> Answer<'_, Pruned>;
    /// Some objects that have no record and are to be removed now, by whoever asked, who says then what was
    /// [removed](Self::removed). What was not is given again later.
    fn loose(&self, now: Timestamp) -> Answer<'_, Vec<String>>;
    fn removed(&self, digest: String) -> Answer<'_, ()>;
    /// Makes those of these objects loose that nobody knows; says how many.
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

/// A report that was read, checked and may be stored.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub id: ReportId,
    pub node: NodeName,
    pub identity: NodeIdentity,
    /// Counts the boots of the node, where it counts them.
    pub boot_number: Option<u64>,
    pub sequence: u64,
    pub time: Timestamp,
    pub received: Timestamp,
    pub verdict: Verdict,
    /// The report as it came.
    pub report: String,
    /// SHA-256 of the report.
    pub digest: [u8; 32],
    /// What full-text search finds it by.
    pub words: String,
    /// The key it was signed with; the signature is good.
    pub key: Option<Vec<u8>>,
    pub standing: Standing,
}

/// How much is kept, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreSize {
    /// Of the database.
    pub store: u64,
    /// Of all bundles, packed.
    pub bundles: u64,
}

/// The key a node is known by: that of its first signed report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pinned {
    /// There is no such node.
    Unknown,
    /// It does not sign.
    Nothing,
    Key(Vec<u8>),
}

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Outcome {
    /// It is what the node says now.
    Stored,
    /// Something newer is known: kept in the history.
    Late,
    /// It is here already; nothing changed.
    Duplicate,
}

/// Why a report was not stored. Sending it again cannot help, but for the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("another report has this id")]
    IdTaken,
    #[error(
        "reports of this boot up to and beyond this sequence were here and are forgotten: this is a replay"
    )]
    Replay,
    #[error(
        "the node signed earlier reports, and this one is not signed by the same key; if the machine was installed anew, have an \
         operator forget the node (`landfall hub forget NODE`); if two machines have this name, name their clusters (`/etc/landfall/cluster`)"
    )]
    WrongKey,
    #[error("the node was forgotten, and had said this or something newer by then: this is a replay")]
    Forgotten,
    #[error(
        "its sender could be any of many nodes, and only a signature tells which: the report must be signed"
    )]
    NotSigned,
    #[error(
        "the node is known without a key, and the sender could be any of many; use a credential of the node's own, or have an \
         operator forget the node (`landfall hub forget NODE`)"
    )]
    KnownUnsigned,
    #[error("more than {NEW_NODES_A_MINUTE} nodes became known by this way within a minute; come again")]
    TooManyNew,
}

/// Which nodes a board shows.
#[derive(Clone, Debug, Default)]
pub struct FleetQuery {
    pub state: Option<State>,
    /// `none` finds nodes without a cause.
    pub cause: Option<Cause>,
    pub phase: Option<Phase>,
    /// Part of the name, the title or the cause.
    pub text: String,
    pub limit: u32,
    pub offset: u32,
}

/// The fleet, as a board shows it.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Fleet {
    /// All nodes, whatever the query.
    pub total: u64,
    /// How many are in each state, worst first; states nobody is in are left out.
    pub states: Vec<StateCount>,
    /// What is wrong, one line per cause, the largest first.
    pub groups: Vec<Group>,
    /// How many nodes the query finds.
    pub found: u64,
    /// One page of them, worst first.
    pub nodes: Vec<NodeLine>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StateCount {
    pub state: State,
    pub nodes: u64,
}

/// Nodes that are in trouble for the same reason.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Group {
    /// `null`: the nodes are in trouble and no cause is known.
    pub cause: Option<Cause>,
    pub title: String,
    /// The worst state any of them is in.
    pub state: State,
    pub nodes: u64,
    /// The phases they stopped in, earliest first.
    pub phases: Vec<Phase>,
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub first: Timestamp,
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub last: Timestamp,
    /// Some of their names.
    pub examples: Vec<String>,
}

/// One node on the board.
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
    /// Since when it says this.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub since: Timestamp,
    /// When it was last heard, by the hub's clock.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub last_seen: Timestamp,
    /// The cloud's name for the machine, where it told one.
    pub provider_id: Option<String>,
}

/// Some nodes, in the order of their names: the one thing about a node that does not change while it is read.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodePage {
    pub nodes: Vec<NodeLine>,
    /// What to ask for next with `after`; `null` when these are the last.
    pub next: Option<String>,
}

/// All that is known of one node.
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
    /// When the present report was made, by the node's clock.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub time: Timestamp,
    /// Whether its reports are signed.
    pub signed: bool,
    /// The number of the present turn.
    pub turn: u64,
    /// The present report as the node sent it.
    #[serde(skip)]
    pub report: String,
}

/// A moment at which a node's verdict changed.
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
    /// It came after something newer.
    pub late: bool,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TrendPoint {
    pub cause: Option<Cause>,
    /// Which step, counted from 0.
    pub step: u32,
    pub nodes: u64,
}

/// A report that search found. The report itself is not here: a hundred of them are a hundred megabytes.
#[derive(Clone, Debug)]
pub struct Hit {
    pub node: String,
    pub turn: u64,
    pub received: Timestamp,
    pub title: String,
    pub cause: Option<Cause>,
}

/// A bundle that was verified and kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BundleRecord {
    /// SHA-256 of the packed bundle, its name everywhere.
    pub digest: String,
    pub node: String,
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub received: Timestamp,
    /// Packed.
    pub bytes: u64,
    pub files: u64,
    /// Its stream ended before its time; what is here is whole.
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
    /// When it was, for boots without a number. A clock that runs ahead is not believed: else nothing would be newer until
    /// that time had come.
    fn moment(&self) -> i64 {
        self.time.min(self.received).as_microsecond()
    }

    fn numbered(&self) -> Option<i64> {
        self.boot_number.map(u64::cast_signed)
    }
}

// === impl Pinned ===

impl From<Option<Option<Vec<u8>>>> for Pinned {
    /// From the column of a row that may be missing.
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
    /// How many nodes it finds, when the counts of states tell.
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
    /// Of one more node than was asked for, when there is one.
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
    /// States in which a node needs somebody.
    pub const TROUBLE: [State; 3] = [State::Failed, State::Hung, State::Degraded];
}
