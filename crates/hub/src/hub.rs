//! The hub's operations, independent of HTTP.

mod batch;
mod bundles;
mod loose;
mod search;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use jiff::Timestamp;
use landfall_diagnose::{CauseEntry, RuleSet};
use landfall_fetch::objects::Bucket;
use landfall_model::Cause;
use landfall_model::envelope::ReportId;
use landfall_model::report::{Report, State};
use landfall_net::serve::CallerSemaphore;
use serde::Serialize;
use tokio::sync::Notify;

use crate::access::{Access, Caller, Denied, Wish};
use crate::bundles::BundleLimits;
use crate::counters::Counters;
use crate::enrol::{Enrolments, Way};
use crate::limits::{BATCHES, CONSOLES, NODE_UPLOADS, RELAYED, SEARCHES, UNPACKING, UPLOADS};
use crate::machine;
use crate::name::NodeName;
use crate::objects::Objects;
use crate::problem::Problem;
use crate::pull::Speaker;
use crate::receive;
use crate::roles::Roles;
use crate::store::{
    Arrival, BundleRecord, Fleet, FleetQuery, NodePage, NodeRecord, Outcome, Store, TrendPoint, Turn,
};
use crate::token::Holder;
use crate::unpack::{Packing, unpack};

pub(crate) use self::batch::{BatchItem, MAX_BATCH};
pub(crate) use self::search::Found;

/// Maximum validity of a token.
const MAX_TOKEN_DAYS: u32 = 365;

/// State of a running hub.
pub(crate) struct Hub {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) objects: Objects,
    pub(crate) access: Access,
    pub(crate) roles: Roles,
    catalogue: BTreeMap<Cause, CauseEntry>,
    limits: BundleLimits,
    batches: CallerSemaphore<Caller>,
    unpacking: CallerSemaphore<Caller>,
    searches: CallerSemaphore<Caller>,
    pub(crate) consoles: CallerSemaphore<Caller>,
    pub(crate) relayed: CallerSemaphore<Caller>,
    uploads: CallerSemaphore<Caller>,
    node_uploads: CallerSemaphore<NodeName>,
    /// Bytes that bundles leave free on a disk of this size.
    left_free: fn(u64) -> u64,
    /// Whether the last bundle was rejected for lack of disk space.
    is_crowded: AtomicBool,
    machines: machine::Remembered,
    /// Notified when orphaned objects are to be removed.
    pub(crate) loosened: Notify,
    pub(crate) enrolments: Enrolments,
    /// The bucket into which agents put reports, if configured.
    pub(crate) bucket: OnceLock<Bucket>,
    pub(crate) counters: Counters,
}

/// Acknowledgement of a durably stored report.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Receipt {
    pub id: ReportId,
    pub outcome: Outcome,
}

/// A node with its displayed report.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct NodeView {
    #[serde(flatten)]
    pub node: NodeRecord,
    pub report: Report,
    pub bundles: Vec<BundleRecord>,
}

/// A cause, its nodes, and their number over time.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct CauseTrend {
    pub since: String,
    /// Length of a step in seconds.
    pub step: u32,
    pub points: Vec<TrendPoint>,
}

/// A new token; it cannot be retrieved again.
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
            batches: CallerSemaphore::new(BATCHES),
            unpacking: CallerSemaphore::new(UNPACKING),
            searches: CallerSemaphore::new(SEARCHES),
            consoles: CallerSemaphore::new(CONSOLES),
            relayed: CallerSemaphore::new(RELAYED),
            uploads: CallerSemaphore::new(UPLOADS),
            node_uploads: CallerSemaphore::new(NODE_UPLOADS),
            left_free: crate::bundles::left_free,
            is_crowded: AtomicBool::new(false),
            machines: machine::Remembered::default(),
            loosened: Notify::new(),
            enrolments: Enrolments::default(),
            bucket: OnceLock::new(),
            counters: Counters::default(),
        })
    }

    /// Stores one report.
    pub(crate) async fn report(
        &self,
        caller: &Caller,
        packing: Packing,
        body: Bytes,
    ) -> Result<Receipt, Problem> {
        let begun = Instant::now();
        let admitted = |body: Bytes| self.admit(caller, &unpack(packing, &body, receive::MAX_REPORT)?);
        // The body is dropped before the wait for the disk, because many requests wait concurrently.
        let arrival = admitted(body).inspect_err(|_| self.counters.count(None))?;
        let receipt = self.stored(arrival).await?;
        self.counters.accepts.observe(begun.elapsed());
        Ok(receipt)
    }

    /// Parses a report and authorizes its sender.
    fn admit(&self, caller: &Caller, body: &[u8]) -> Result<Arrival, Problem> {
        let mut arrival = receive::report(body, Timestamp::now())?;
        arrival.standing = self.standing(caller, &arrival.node)?;
        Ok(arrival)
    }

    /// Stores a polled report and returns its node.
    pub(crate) async fn pulled(&self, speaker: Speaker<'_>, body: &[u8]) -> Result<NodeName, Problem> {
        let admitted = || -> Result<Arrival, Problem> {
            let mut arrival = receive::report(body, Timestamp::now())?;
            let known = match speaker {
                Speaker::Itself(names) => names,
                // The polled agent could have written this report; only the node's own key proves the node.
                Speaker::Neighbour(name) => {
                    arrival.standing = self.standing_of_others(Way::Neighbours);
                    std::slice::from_ref(name)
                }
            };
            if !known.contains(&arrival.node) {
                let known: Vec<&str> = known.iter().map(NodeName::as_str).collect();
                let (caller, claimed) = (known.join("`, `"), arrival.node.to_string());
                return Err(Denied::OtherNode { caller, claimed }.into());
            }
            Ok(arrival)
        };
        let arrival = admitted().inspect_err(|_| self.counters.count(None))?;
        let node = arrival.node.clone();
        self.stored(arrival).await?;
        Ok(node)
    }

    /// Returns whether a node failed and has not sent a bundle since.
    pub(crate) async fn wants_bundle(&self, name: &NodeName) -> bool {
        let Ok(Some(node)) = self.store.node(name.clone()).await else { return false };
        if !matches!(node.line.state, State::Failed | State::Hung) {
            return false;
        }
        let bundles = self.store.bundles(name.clone()).await;
        bundles.is_ok_and(|bundles| bundles.iter().all(|bundle| bundle.received < node.line.since))
    }

    /// Returns nodes by name, starting after the given one.
    pub(crate) async fn nodes(
        &self,
        caller: &Caller,
        after: String,
        limit: u32,
    ) -> Result<NodePage, Problem> {
        caller.may(Wish::See)?;
        Ok(self.store.nodes(after, limit).await?)
    }

    /// Returns the fleet with a title for every group.
    pub(crate) async fn fleet(&self, caller: &Caller, query: FleetQuery) -> Result<Fleet, Problem> {
        caller.may(Wish::See)?;
        let mut fleet = self.store.fleet(query).await?;
        for group in &mut fleet.groups {
            // Node titles contain node-specific names and addresses. If they differ, the group gets the catalog's
            // title.
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

    /// Returns an earlier report.
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

    /// Deletes a node with all its reports and bundles. Used for decommissioned machines, and for reinstalled ones
    /// that have the same name and another key.
    pub(crate) async fn forget(&self, caller: &Caller, name: &NodeName) -> Result<(), Problem> {
        caller.may(Wish::Operate)?;
        if !self.store.forget(name.clone()).await? {
            return Err(Problem::not_found(&format!("node `{name}`")));
        }
        // The caller does not wait for the removal of the bundles.
        self.loosened.notify_one();
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

fn parse(report: &str) -> Result<Report, Problem> {
    serde_json::from_str(report).map_err(|error| unreadable(&error))
}

fn unreadable(error: &serde_json::Error) -> Problem {
    tracing::error!(%error, "A stored report cannot be read.");
    Problem::new(500, "Defect", "a stored report cannot be read")
}

#[cfg(test)]
mod tests;
