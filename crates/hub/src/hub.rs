//! What the hub does, free of HTTP: every method is one thing a caller may ask for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use jiff::Timestamp;
use landfall_diagnose::{CauseEntry, RuleSet};
use landfall_model::Cause;
use landfall_model::envelope::ReportId;
use landfall_model::report::{Evidence, Report, State};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::access::{Access, Caller, Denied, Wish};
use crate::bundles::{self, BundleLimits, LogFile, LogPage, LogQuery};
use crate::machine::{self, Machine};
use crate::name::NodeName;
use crate::objects::Objects;
use crate::problem::Problem;
use crate::pull::Speaker;
use crate::receive;
use crate::roles::Roles;
use crate::store::{Arrival, BundleRecord, Fleet, FleetQuery, NodeRecord, Outcome, Store, TrendPoint, Turn};
use crate::token::Holder;
use crate::unpack::{Packing, unpack};

/// A batch of reports, unpacked.
pub(crate) const MAX_BATCH: usize = 16 << 20;
/// Reports in one batch.
pub(crate) const MAX_BATCH_REPORTS: usize = 1000;
/// Words of one search, and their length.
const MAX_WORDS: usize = 16;
const MAX_WORD: usize = 100;
/// Reports one search looks at, and lines it gives.
const MAX_HITS: u32 = 100;
const MAX_HIT_LINES: usize = 5;
/// Bundles unpacked at once, for verifying and for reading: each keeps a core busy.
const MAX_UNPACKING: usize = 2;
/// Batches taken in at once: each may be some fifty megabytes until it is stored, and a few kilobytes on the wire.
const MAX_BATCHES: usize = 2;
/// How long a request waits for its turn to unpack.
const UNPACK_PATIENCE: Duration = Duration::from_secs(30);
/// The longest a token may live.
const MAX_TOKEN_DAYS: u32 = 365;

/// Everything a running hub is made of.
pub(crate) struct Hub {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) objects: Objects,
    pub(crate) access: Access,
    pub(crate) roles: Roles,
    catalogue: BTreeMap<Cause, CauseEntry>,
    limits: BundleLimits,
    unpacking: Arc<Semaphore>,
    batching: Semaphore,
    machines: machine::Remembered,
    pub(crate) counters: Counters,
}

/// What `/metrics` tells.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) stored: AtomicU64,
    pub(crate) late: AtomicU64,
    pub(crate) duplicate: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) bundles: AtomicU64,
    pub(crate) pulls: AtomicU64,
    pub(crate) failed_pulls: AtomicU64,
}

/// The acknowledgement of a report: it is on the disk.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Receipt {
    pub id: ReportId,
    pub outcome: Outcome,
}

/// What became of one report of a batch.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) enum BatchItem {
    Taken(Receipt),
    Refused { problem: Problem },
}

/// A node with the report it shows.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct NodeView {
    #[serde(flatten)]
    pub node: NodeRecord,
    pub report: Report,
    pub bundles: Vec<BundleRecord>,
}

/// A cause, the nodes it holds, and how that came.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct CauseTrend {
    pub since: String,
    /// The length of a step in seconds.
    pub step: u32,
    pub points: Vec<TrendPoint>,
}

/// A report that search found, with the lines that hold the words.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Found {
    pub node: String,
    pub turn: u64,
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub received: Timestamp,
    pub title: String,
    pub cause: Option<Cause>,
    pub lines: Vec<Evidence>,
}

/// A new token, shown this once.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct NewToken {
    pub token: String,
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub expires: Timestamp,
}

// === impl Hub ===

impl Hub {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        objects: Objects,
        access: Access,
        limits: BundleLimits,
        roles: Roles,
    ) -> Result<Self, landfall_diagnose::RuleError> {
        let catalogue = RuleSet::embedded()?
            .catalogue()
            .iter()
            .map(|entry| (entry.name.clone(), entry.clone()))
            .collect();
        Ok(Self {
            store,
            objects,
            access,
            roles,
            catalogue,
            limits,
            unpacking: Arc::new(Semaphore::new(MAX_UNPACKING)),
            batching: Semaphore::new(MAX_BATCHES),
            machines: machine::Remembered::default(),
            counters: Counters::default(),
        })
    }

    /// Takes one report in.
    pub(crate) async fn report(
        &self,
        caller: &Caller,
        packing: Packing,
        body: Bytes,
    ) -> Result<Receipt, Problem> {
        let admitted = |body: Bytes| admit(caller, &unpack(packing, &body, receive::MAX_REPORT)?);
        // The body is gone before the disk is waited for: many wait at once.
        let arrival = admitted(body).inspect_err(|_| self.count_refused())?;
        let id = arrival.id;
        let outcome = self.store.accept(vec![arrival]).await?.pop();
        let outcome = outcome.ok_or_else(|| Problem::new(500, "Defect", "the store gave no answer"))?;
        self.count(outcome.as_ref().ok().copied());
        Ok(Receipt { id, outcome: outcome? })
    }

    /// Takes in what an agent said when it was asked, and tells which node it was about.
    pub(crate) async fn pulled(&self, speaker: Speaker<'_>, body: &[u8]) -> Result<NodeName, Problem> {
        let admitted = || -> Result<Arrival, Problem> {
            let arrival = receive::report(body, Timestamp::now())?;
            let (known, proven) = match speaker {
                Speaker::Itself(names) => (names, true),
                // Others could have written it: only the node's own key tells.
                Speaker::Neighbour(name) => (std::slice::from_ref(name), arrival.key.is_some()),
            };
            if !proven {
                return Err(Problem::new(
                    403,
                    "Not permitted",
                    "what others left with an agent must be signed",
                ));
            }
            if !known.contains(&arrival.node) {
                let known: Vec<&str> = known.iter().map(NodeName::as_str).collect();
                let (caller, claimed) = (known.join("`, `"), arrival.node.to_string());
                return Err(Denied::OtherNode { caller, claimed }.into());
            }
            Ok(arrival)
        };
        let arrival = admitted().inspect_err(|_| self.count_refused())?;
        let node = arrival.node.clone();
        let outcome = self.store.accept(vec![arrival]).await?.pop();
        let outcome = outcome.ok_or_else(|| Problem::new(500, "Defect", "the store gave no answer"))?;
        self.count(outcome.as_ref().ok().copied());
        outcome?;
        Ok(node)
    }

    /// Whether a node failed and nothing has come of its logs since.
    pub(crate) async fn wants_bundle(&self, name: &NodeName) -> bool {
        let Ok(Some(node)) = self.store.node(name.clone()).await else { return false };
        if !matches!(node.line.state, State::Failed | State::Hung) {
            return false;
        }
        let bundles = self.store.bundles(name.clone()).await;
        bundles.is_ok_and(|bundles| bundles.iter().all(|bundle| bundle.received < node.line.since))
    }

    pub(crate) fn count_pull(&self, answered: bool) {
        let counter = if answered { &self.counters.pulls } else { &self.counters.failed_pulls };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes many in, one per line. Each is judged on its own, in the order they came.
    pub(crate) async fn batch(
        &self,
        caller: &Caller,
        packing: Packing,
        body: &[u8],
    ) -> Result<Vec<BatchItem>, Problem> {
        let turn = tokio::time::timeout(UNPACK_PATIENCE, self.batching.acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            return Err(Problem::new(503, "Try again later", "too many batches are being taken in"));
        };
        let body = unpack(packing, body, MAX_BATCH)?;
        let lines: Vec<&[u8]> =
            body.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()).collect();
        if lines.len() > MAX_BATCH_REPORTS {
            return Err(Problem::new(
                413,
                "Too large",
                format!("a batch has {MAX_BATCH_REPORTS} reports at most"),
            ));
        }
        let judged: Vec<Result<Arrival, Problem>> = lines
            .into_iter()
            .map(|line| {
                if line.len() > receive::MAX_REPORT {
                    return Err(Problem::new(413, "Too large", "the report is too long"));
                }
                admit(caller, line)
            })
            .collect();
        let good: Vec<Arrival> = judged.iter().filter_map(|judged| judged.as_ref().ok().cloned()).collect();
        let mut outcomes = self.store.accept(good).await?.into_iter();
        Ok(judged
            .into_iter()
            .map(|judged| {
                let receipt = judged.and_then(|arrival| match outcomes.next() {
                    Some(outcome) => Ok(Receipt { id: arrival.id, outcome: outcome? }),
                    None => Err(Problem::new(500, "Defect", "the store gave too few answers")),
                });
                self.count(receipt.as_ref().ok().map(|receipt| receipt.outcome));
                match receipt {
                    Ok(receipt) => BatchItem::Taken(receipt),
                    Err(problem) => BatchItem::Refused { problem },
                }
            })
            .collect())
    }

    fn count(&self, outcome: Option<Outcome>) {
        let counter = match outcome {
            Some(Outcome::Stored) => &self.counters.stored,
            Some(Outcome::Late) => &self.counters.late,
            Some(Outcome::Duplicate) => &self.counters.duplicate,
            None => &self.counters.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn count_refused(&self) {
        self.count(None);
    }

    /// Takes a bundle in as it comes.
    pub(crate) async fn take_bundle<E: std::error::Error + Send + Sync + 'static>(
        &self,
        caller: &Caller,
        node: NodeName,
        announced: Option<&str>,
        stream: impl Stream<Item = Result<Bytes, E>> + Unpin,
    ) -> Result<BundleRecord, Problem> {
        caller.may(Wish::Report(&node))?;
        let received = bundles::receive(&self.objects, announced, self.limits, stream).await?;
        let name = node.clone();
        let (draft, taken) = self.unpacked(move || bundles::verified(&name, received)).await?;
        let record = BundleRecord {
            digest: taken.digest,
            node: node.to_string(),
            received: Timestamp::now(),
            bytes: taken.bytes,
            files: taken.files,
            cut: taken.cut,
        };
        let (objects, store, known) = (self.objects.clone(), Arc::clone(&self.store), record.clone());
        // To its end, even when the sender is gone: a file nobody has on record would never be forgotten.
        let kept = tokio::spawn(async move {
            objects.keep(draft, &known.digest).await.map_err(bundles::BundleError::Objects)?;
            store.add_bundle(known).await.map_err(Problem::from)
        });
        kept.await.map_err(|_| bundles::BundleError::Stopped)??;
        self.counters.bundles.fetch_add(1, Ordering::Relaxed);
        Ok(record)
    }

    /// The fleet, groups named.
    pub(crate) async fn fleet(&self, caller: &Caller, query: FleetQuery) -> Result<Fleet, Problem> {
        caller.may(Wish::See)?;
        let mut fleet = self.store.fleet(query).await?;
        for group in &mut fleet.groups {
            // Titles name this node's own names and addresses; where they differ, the catalogue says what is common.
            if group.title.is_empty() {
                let entry = group.cause.as_ref().and_then(|cause| self.catalogue.get(cause));
                group.title = match (entry, &group.cause) {
                    (Some(entry), _) => entry.title.clone(),
                    (None, Some(cause)) => cause.to_string(),
                    (None, None) => "No cause is known yet".to_owned(),
                };
            }
        }
        Ok(fleet)
    }

    pub(crate) async fn node(&self, caller: &Caller, name: &NodeName) -> Result<NodeView, Problem> {
        caller.may(Wish::See)?;
        let node = self.store.node(name.clone()).await?;
        let node = node.ok_or_else(|| Problem::not_found(&format!("node `{name}`")))?;
        let report = parse(&node.report)?;
        let bundles = self.store.bundles(name.clone()).await?;
        Ok(NodeView { node, report, bundles })
    }

    pub(crate) async fn history(
        &self,
        caller: &Caller,
        name: &NodeName,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Vec<Turn>, Problem> {
        caller.may(Wish::See)?;
        Ok(self.store.history(name.clone(), before, limit).await?)
    }

    /// A report of the past.
    pub(crate) async fn past_report(
        &self,
        caller: &Caller,
        name: &NodeName,
        turn: u64,
    ) -> Result<Report, Problem> {
        caller.may(Wish::See)?;
        let report = self.store.report(name.clone(), turn).await?;
        parse(&report.ok_or_else(|| Problem::not_found("this report"))?)
    }

    pub(crate) async fn trend(
        &self,
        caller: &Caller,
        since: Timestamp,
        step: u32,
    ) -> Result<CauseTrend, Problem> {
        caller.may(Wish::See)?;
        let points = self.store.trend(since, step).await?;
        Ok(CauseTrend { since: since.to_string(), step, points })
    }

    pub(crate) async fn search(&self, caller: &Caller, text: &str) -> Result<Vec<Found>, Problem> {
        caller.may(Wish::See)?;
        let words: Vec<String> = text
            .split_whitespace()
            .map(|word| word.chars().filter(|c| !c.is_control()).collect::<String>())
            .filter(|word| word.chars().any(char::is_alphanumeric))
            .map(|word| word.chars().take(MAX_WORD).collect())
            .take(MAX_WORDS)
            .collect();
        if words.is_empty() {
            return Ok(Vec::new());
        }
        let hits = self.store.search(words.clone(), MAX_HITS).await?;
        let words: Vec<String> = words.iter().map(|word| word.to_lowercase()).collect();
        let holds = |line: &Evidence| {
            let text = line.text.to_lowercase();
            words.iter().any(|word| text.contains(word))
        };
        hits.into_iter()
            .map(|hit| {
                let report = parse(&hit.report)?;
                let mut lines: Vec<Evidence> = Vec::new();
                for line in report.findings.into_iter().flat_map(|finding| finding.evidence).filter(holds) {
                    // One line may prove several findings.
                    let known = |known: &Evidence| {
                        (&known.source, known.line, &known.text) == (&line.source, line.line, &line.text)
                    };
                    if lines.len() < MAX_HIT_LINES && !lines.iter().any(known) {
                        lines.push(line);
                    }
                }
                Ok(Found {
                    node: hit.node,
                    turn: hit.turn,
                    received: hit.received,
                    title: report.verdict.title,
                    cause: report.verdict.cause,
                    lines,
                })
            })
            .collect()
    }

    pub(crate) async fn bundle(&self, caller: &Caller, digest: &str) -> Result<BundleRecord, Problem> {
        caller.may(Wish::See)?;
        let bundle = self.store.bundle(digest.to_owned()).await?;
        bundle.ok_or_else(|| Problem::not_found("this bundle"))
    }

    /// The packed bundle.
    pub(crate) async fn open_bundle(
        &self,
        caller: &Caller,
        digest: &str,
    ) -> Result<(BundleRecord, std::fs::File), Problem> {
        let record = self.bundle(caller, digest).await?;
        let file = self.objects.read(&record.digest, record.bytes).await;
        let file = file.map_err(bundles::BundleError::Objects)?;
        Ok((record, file))
    }

    pub(crate) async fn log_files(&self, caller: &Caller, digest: &str) -> Result<Vec<LogFile>, Problem> {
        let (_, file) = self.open_bundle(caller, digest).await?;
        self.unpacked(move || bundles::files(file)).await
    }

    /// Units and probes of a bundle; nothing when it is too large to be looked through while somebody waits.
    pub(crate) async fn machine(
        &self,
        caller: &Caller,
        bundle: &BundleRecord,
    ) -> Result<Option<Arc<Machine>>, Problem> {
        caller.may(Wish::See)?;
        if let Some(machine) = self.machines.get(&bundle.digest) {
            return Ok(Some(machine));
        }
        if bundle.bytes > machine::MAX_PACKED {
            return Ok(None);
        }
        let (record, file) = self.open_bundle(caller, &bundle.digest).await?;
        let machine = Arc::new(self.unpacked(move || machine::read(file)).await?);
        self.machines.add(record.digest, &machine);
        Ok(Some(machine))
    }

    pub(crate) async fn log_lines(
        &self,
        caller: &Caller,
        digest: &str,
        query: LogQuery,
    ) -> Result<LogPage, Problem> {
        let (_, file) = self.open_bundle(caller, digest).await?;
        self.unpacked(move || bundles::lines(file, &query)).await
    }

    async fn unpacked<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, bundles::BundleError> + Send + 'static,
    ) -> Result<T, Problem> {
        let turn = self.turn_to_unpack().await?;
        let work = move || {
            // The turn ends with the work: who goes away does not stop it, and must not make room for more.
            let _turn = turn;
            work()
        };
        let done = tokio::task::spawn_blocking(work).await;
        Ok(done.map_err(|_| bundles::BundleError::Stopped)??)
    }

    async fn turn_to_unpack(&self) -> Result<OwnedSemaphorePermit, Problem> {
        match tokio::time::timeout(UNPACK_PATIENCE, Arc::clone(&self.unpacking).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Problem::new(503, "Try again later", "too many bundles are being unpacked")),
        }
    }

    /// Has a node forgotten with everything it ever said: for machines that are gone, and for those made anew under the
    /// same name with another key.
    pub(crate) async fn forget(&self, caller: &Caller, name: &NodeName) -> Result<(), Problem> {
        caller.may(Wish::Operate)?;
        let bundles = self.store.forget(name.clone()).await?;
        let bundles = bundles.ok_or_else(|| Problem::not_found(&format!("node `{name}`")))?;
        for digest in bundles {
            self.objects.remove(&digest).await.map_err(bundles::BundleError::Objects)?;
        }
        Ok(())
    }

    pub(crate) fn new_token(&self, caller: &Caller, holder: Holder, days: u32) -> Result<NewToken, Problem> {
        caller.may(Wish::Operate)?;
        let key = self.access.tokens.as_ref();
        let key =
            key.ok_or_else(|| Problem::new(409, "Refused", "this hub was started without a key for tokens"))?;
        if !(1..=MAX_TOKEN_DAYS).contains(&days) {
            return Err(Problem::bad_request(format!("a token lives between 1 and {MAX_TOKEN_DAYS} days")));
        }
        let expires = Timestamp::now() + jiff::SignedDuration::from_hours(24 * i64::from(days));
        let token = key.issue(holder, expires).map_err(|error| Problem::bad_request(error.to_string()))?;
        Ok(NewToken { token: token.expose().clone(), expires })
    }

    pub(crate) fn cause(&self, cause: &Cause) -> Option<&CauseEntry> {
        self.catalogue.get(cause)
    }
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub")
            .field("store", &self.store)
            .field("objects", &self.objects)
            .finish_non_exhaustive()
    }
}

/// Reads a report and asks whether its sender may say so.
fn admit(caller: &Caller, body: &[u8]) -> Result<Arrival, Problem> {
    let arrival = receive::report(body, Timestamp::now())?;
    caller.may(Wish::Report(&arrival.node))?;
    Ok(arrival)
}

fn parse(report: &str) -> Result<Report, Problem> {
    receive::written(report).map_err(|error| {
        tracing::error!(error = %error, "A stored report cannot be read.");
        Problem::new(500, "Defect", "a stored report cannot be read")
    })
}

#[cfg(test)]
mod tests;
