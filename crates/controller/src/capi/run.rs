//! The reconcile loop: lead, observe, plan, apply.

use std::sync::Arc;
use std::time::Duration;

use landfall_cluster::{Cluster, Event, Subject};
use landfall_model::chain;
use tokio_util::sync::CancellationToken;

use super::act::{Outcome, act};
use super::condition::{Status, Words};
use super::heard::Hub;
use super::manifests::{LEASE, MANAGER};
use super::metrics::Metrics;
use super::observe::{Look, LookError, Memory, Sources, machines, observe, shape};
use super::plan::{Action, Hearing, Policy, Turn, plan, teardown};
use super::shape::{Shape, Way};
use crate::leading::{Candidate, Leading, may_write};

/// Interval after a pass with writes, which may enable the next decision.
const BREATH: Duration = Duration::from_secs(1);

/// A replica of the controller.
#[expect(missing_debug_implementations, reason = "holds credentials")]
pub struct Controller {
    pub cluster: Cluster,
    pub hub: Option<Arc<dyn Hub>>,
    /// Namespace of the Lease.
    pub namespace: String,
    pub policy: Policy,
    pub words: Words,
    /// Identity of this replica in the leader election.
    pub identity: String,
    /// Interval between two passes.
    pub every: Duration,
    pub metrics: Arc<Metrics>,
}

/// Result of a teardown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    pub hooks: usize,
    pub conditions: usize,
    /// Hooks and conditions that could not be removed; a repetition retries them.
    pub failed: usize,
}

/// Runs until canceled.
pub async fn run(controller: &Controller, cancel: &CancellationToken) {
    let candidate = Candidate {
        cluster: &controller.cluster,
        namespace: &controller.namespace,
        lease: LEASE,
        identity: &controller.identity,
    };
    let leads = |leads| controller.metrics.leads(leads);
    candidate.lead(cancel, leads, |leading| work(controller, leading)).await;
}

/// Removes all hooks and conditions of the controller. Their field manager and paused objects do not matter.
pub async fn tear_down(cluster: &Cluster) -> Result<Removed, LookError> {
    let shape = shape(cluster).await?;
    let machines = machines(cluster, shape).await?;
    // Server-side apply removes only fields of the same manager; another one may have taken over a condition.
    let shape = Shape { way: Way::Replace, ..shape };
    let mut removed = Removed::default();
    for action in teardown(&machines) {
        let count = match action {
            Action::Unhook { .. } => &mut removed.hooks,
            _ => &mut removed.conditions,
        };
        match act(cluster, shape, &action).await {
            Ok(Outcome::Done | Outcome::Gone) => *count += 1,
            Ok(Outcome::Conflict) => removed.failed += 1,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "Something of ours is still there.");
                removed.failed += 1;
            }
        }
    }
    Ok(removed)
}

async fn work(controller: &Controller, mut leading: Leading) {
    let mut memory = Memory::default();
    loop {
        if !may_write(*leading.borrow()) {
            // The channel is never closed: its sender outlives this loop.
            let _ = tokio::time::timeout(controller.every, leading.changed()).await;
            continue;
        }
        let sources = Sources { cluster: &controller.cluster, hub: controller.hub.as_deref() };
        let seen = observe(&sources, &controller.policy, &controller.words, &mut memory).await;
        let has_written = match seen {
            Ok(look) => {
                if look.world.hearing != Hearing::Whole {
                    controller.metrics.hub_failed.increment();
                }
                if !look.ambiguous.is_empty() {
                    let names = look.ambiguous.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
                    tracing::warn!(names, count = look.ambiguous.len(), "Reports fit several Machines.");
                }
                controller.metrics.seen(&look.world, look.ambiguous.len());
                carry_out(controller, &leading, &look, &mut memory).await
            }
            Err(error) => {
                controller.metrics.looks_failed.increment();
                tracing::warn!(error = %chain(&error), "cluster observation failed");
                false
            }
        };
        tokio::time::sleep(if has_written { BREATH } else { controller.every }).await;
    }
}

/// Executes and reports the writes. Returns whether any succeeded.
async fn carry_out(controller: &Controller, leading: &Leading, look: &Look, memory: &mut Memory) -> bool {
    let mut has_written = false;
    for action in plan(&controller.policy, &controller.words, &look.world) {
        if !may_write(*leading.borrow()) {
            break;
        }
        let uid = &action.machine().uid;
        match act(&controller.cluster, look.shape, &action).await {
            Ok(Outcome::Done) => {
                has_written = true;
                memory.failed.remove(uid);
                controller.metrics.done(&action);
                if let Action::Show { .. } = &action {
                    memory.written.insert(uid.clone(), look.world.now);
                }
                tell(controller, look.shape, &action).await;
            }
            // The next pass observes the replacement.
            Ok(Outcome::Gone) => {}
            Ok(Outcome::Conflict) => {
                memory.failed.insert(uid.clone(), look.world.now);
                controller.metrics.conflicts.increment();
                tracing::warn!(?action, "another writer owns a field; skipped");
            }
            Err(error) => {
                controller.metrics.writes_failed.increment();
                let is_denied = matches!(error.answer(), Some((403 | 422, _)));
                if is_denied && let Action::Hook { .. } = &action {
                    // Logged once: the same applies to every failed Machine.
                    if memory.unheld.is_empty() {
                        tracing::warn!(error = %chain(&error), "Machines may not be held for their evidence.");
                    }
                    memory.unheld.insert(uid.clone());
                } else {
                    tracing::warn!(error = %chain(&error), "A write was not made.");
                    memory.failed.insert(uid.clone(), look.world.now);
                }
            }
        }
    }
    has_written
}

/// Writes an Event for every status change of a condition, and for every hook.
async fn tell(controller: &Controller, shape: Shape, action: &Action) {
    let (machine, reason, note, warning) = match action {
        Action::Show { machine, condition, turn: Turn::Status } => (
            machine,
            condition.reason.as_str(),
            condition.message.as_str(),
            condition.status == Status::False,
        ),
        Action::Hook { machine } => {
            (machine, "EvidenceHeld", "Deletion waits until the hub has the bundle", false)
        }
        Action::Unhook { machine } => (machine, "EvidenceReleased", "Deletion no longer waits", false),
        _ => return,
    };
    tracing::info!(
        machine = machine.name,
        namespace = machine.namespace,
        reason,
        "machine condition written"
    );
    let event = Event {
        about: Subject::Object { kind: &shape.machine(), place: machine.place(), uid: &machine.uid },
        component: MANAGER,
        instance: &controller.identity,
        action: "Bootstrap",
        reason,
        note,
        warning,
    };
    if let Err(error) = controller.cluster.tell(&event).await {
        tracing::info!(error = %chain(&error), "An Event was not written.");
    }
}
