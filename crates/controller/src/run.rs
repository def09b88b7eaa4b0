//! The reconcile loop: lead, observe, plan, apply, and repeat when an object changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use landfall_cluster::{Cluster, Event, Subject};
use landfall_model::chain;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::act::{Outcome, act};
use crate::leading::{Candidate, may_write};
use crate::manifests::{LEASE, MANAGER, Settings};
use crate::metrics::Metrics;
use crate::observe::observe;
use crate::plan::{Action, plan};
use crate::policy::Policy;
use crate::record::{Phase, Record};
use crate::world::{Refused, World};

/// Intervals between two passes: while a node is active, without requests, and the minimum.
const BUSY: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(60);
const BREATH: Duration = Duration::from_secs(1);
/// A replica of the controller.
#[expect(missing_debug_implementations, reason = "holds credentials")]
pub struct Controller {
    pub cluster: Cluster,
    pub settings: Settings,
    pub policy: Policy,
    /// Identity of this replica in the leader election.
    pub identity: String,
    pub metrics: Arc<Metrics>,
}

/// Runs until canceled.
pub async fn run(controller: &Controller, cancel: &CancellationToken) {
    let candidate = Candidate {
        cluster: &controller.cluster,
        namespace: &controller.settings.namespace,
        lease: LEASE,
        identity: &controller.identity,
    };
    let leads = |leads| controller.metrics.leads(leads);
    candidate.lead(cancel, leads, |leading| work(controller, leading)).await;
}

async fn work(controller: &Controller, mut leading: watch::Receiver<Option<Instant>>) {
    let Controller { cluster, settings, policy, metrics, .. } = controller;
    let mut refused = Refused::default();
    loop {
        if !may_write(*leading.borrow()) {
            // The channel is never closed: its sender outlives this loop.
            let _ = tokio::time::timeout(BUSY, leading.changed()).await;
            continue;
        }
        let version = match observe(cluster, settings, policy, &refused).await {
            Ok(seen) => {
                metrics.seen(&seen.world);
                let actions = plan(policy, &seen.world);
                refused = carry_out(controller, &leading, &seen.world, &actions).await;
                // These writes may enable the next decision.
                let is_stuck = |action: &Action| {
                    matches!(action, Action::Evict { .. }) || refused.runners.contains_key(action.node())
                };
                let more = !actions.iter().all(is_stuck);
                let busy = seen.world.records.values().any(|record| record.phase.is_active());
                (
                    seen.version,
                    if more {
                        BREATH
                    } else if busy {
                        BUSY
                    } else {
                        IDLE
                    },
                )
            }
            Err(error) => {
                metrics.looks_failed.increment();
                tracing::warn!(error = %chain(&error), "cluster observation failed");
                (String::new(), BUSY)
            }
        };
        let (version, patience) = version;
        tokio::time::sleep(BREATH).await;
        if patience > BREATH && !version.is_empty() {
            cluster.wait_for_nodes(&settings.selector, &version, patience).await;
        } else {
            tokio::time::sleep(patience).await;
        }
    }
}

/// Executes and reports the writes. Returns the rejected ones.
async fn carry_out(
    controller: &Controller,
    leading: &watch::Receiver<Option<Instant>>,
    world: &World,
    actions: &[Action],
) -> Refused {
    let Controller { cluster, settings, policy, metrics, .. } = controller;
    let mut refused = Refused::default();
    for action in actions {
        if !may_write(*leading.borrow()) {
            break;
        }
        match act(cluster, settings, policy, world, action).await {
            Ok(Outcome::Done) => {
                metrics.done(action);
                tell(controller, world, action).await;
            }
            Ok(Outcome::Refused { pod, reason }) => {
                metrics.evictions_refused.increment();
                refused.evictions.insert(pod, reason);
            }
            // The next pass decides again: another client may have written first.
            Err(error) => {
                metrics.writes_failed.increment();
                tracing::warn!(error = %chain(&error), "A write was not made.");
                let is_runner = matches!(action, Action::StartRunner { .. } | Action::MakeSecret { .. });
                if is_runner && let Some(why) = error.decision() {
                    metrics.runners_refused.increment();
                    refused.runners.insert(action.node().to_owned(), why);
                }
            }
        }
    }
    refused
}

/// Writes an Event for every phase that a node enters, and for every blocked reason.
async fn tell(controller: &Controller, world: &World, action: &Action) {
    let Action::Write { node, record } = action else { return };
    let is_hindered = record.phase.is_active() && !record.reason.is_empty();
    let before = world.records.get(node);
    let is_new =
        |before: &Record| before.phase != record.phase || (is_hindered && before.reason != record.reason);
    if before.is_some_and(|before| !is_new(before)) {
        return;
    }
    let reason = if record.reason.is_empty() { record.phase.name() } else { &record.reason };
    tracing::info!(node, phase = record.phase.name(), reason, message = record.message, "node phase changed");
    let event = Event {
        about: Subject::Node { name: node },
        component: MANAGER,
        instance: &controller.identity,
        action: "InPlaceBootstrap",
        reason,
        note: &record.message,
        warning: record.phase == Phase::Failed || is_hindered,
    };
    if let Err(error) = controller.cluster.tell(&event).await {
        tracing::info!(error = %chain(&error), "An Event was not written.");
    }
}
