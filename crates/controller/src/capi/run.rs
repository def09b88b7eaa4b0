//! The loop: lead, look, decide, write.

use std::sync::Arc;
use std::time::Duration;

use landfall_cluster::{Cluster, ObjectEvent};
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

/// After a look that led to writes: what was written may make the next decision possible.
const BREATH: Duration = Duration::from_secs(1);

/// One controller.
#[expect(missing_debug_implementations, reason = "holds credentials")]
pub struct Controller {
    pub cluster: Cluster,
    pub hub: Option<Arc<dyn Hub>>,
    /// Of the Lease.
    pub namespace: String,
    pub policy: Policy,
    pub words: Words,
    /// Who we are among those that want to lead.
    pub identity: String,
    /// Between two looks.
    pub every: Duration,
    pub metrics: Arc<Metrics>,
}

/// What a teardown came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    pub hooks: usize,
    pub conditions: usize,
    /// What is still there; to be done again.
    pub failed: usize,
}

/// Until it is cancelled.
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

/// Takes every hook and every condition of ours off, whoever put them on and whatever is paused.
pub async fn tear_down(cluster: &Cluster) -> Result<Removed, LookError> {
    let shape = shape(cluster).await?;
    let machines = machines(cluster, shape).await?;
    // What is applied takes back only what the same manager applied; somebody may have taken a condition over.
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
            // The sender lives as long as we do.
            let _ = tokio::time::timeout(controller.every, leading.changed()).await;
            continue;
        }
        let sources = Sources { cluster: &controller.cluster, hub: controller.hub.as_deref() };
        let seen = observe(&sources, &controller.policy, &controller.words, &mut memory).await;
        let has_written = match seen {
            Ok(look) => {
                if look.world.hearing != Hearing::Whole {
                    controller.metrics.hub_failed();
                }
                if !look.ambiguous.is_empty() {
                    let names = look.ambiguous.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
                    tracing::warn!(names, count = look.ambiguous.len(), "Reports fit several Machines.");
                }
                controller.metrics.seen(&look.world, look.ambiguous.len());
                carry_out(controller, &leading, &look, &mut memory).await
            }
            Err(error) => {
                controller.metrics.look_failed();
                tracing::warn!(error = %chain(&error), "The cluster could not be looked at.");
                false
            }
        };
        tokio::time::sleep(if has_written { BREATH } else { controller.every }).await;
    }
}

/// Makes the writes, and tells of them. Gives whether anything was written.
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
            // The next look finds out what is there instead.
            Ok(Outcome::Gone) => {}
            Ok(Outcome::Conflict) => {
                memory.failed.insert(uid.clone(), look.world.now);
                controller.metrics.conflict();
                tracing::warn!(?action, "Somebody else owns what is ours: it is left to them.");
            }
            Err(error) => {
                controller.metrics.write_failed();
                let is_denied = matches!(error.answer(), Some((403 | 422, _)));
                if is_denied && let Action::Hook { .. } = &action {
                    // Once: every Machine in trouble meets the same.
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

/// An Event for every turn of a condition, and for every hook.
async fn tell(controller: &Controller, shape: Shape, action: &Action) {
    let (machine, reason, note, warning) = match action {
        Action::Show { machine, condition, turn: Turn::Status } => (
            machine,
            condition.reason.as_str(),
            condition.message.as_str(),
            condition.status == Status::False,
        ),
        Action::Hook { machine } => {
            (machine, "EvidenceHeld", "Its end is held back until its bundle is in the hub", false)
        }
        Action::Unhook { machine } => (machine, "EvidenceReleased", "Its end is no longer held back", false),
        _ => return,
    };
    tracing::info!(machine = machine.name, namespace = machine.namespace, reason, "A Machine was told.");
    let event = ObjectEvent {
        kind: &shape.machine(),
        place: machine.place(),
        uid: &machine.uid,
        component: MANAGER,
        instance: &controller.identity,
        action: "Bootstrap",
        reason,
        note,
        warning,
    };
    if let Err(error) = controller.cluster.tell_of(&event).await {
        tracing::info!(error = %chain(&error), "An Event was not written.");
    }
}
