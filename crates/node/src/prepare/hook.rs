//! The hooks of a reboot operator: before a reboot the runtime for the next operating system is laid down, after it the
//! machine is looked at. What fails leaves the operator's annotation unset, and the fleet stops there.

use std::path::{Path, PathBuf};
use std::time::Duration;

use landfall_model::chain;
use landfall_model::step::{StepRecord, StepState};
use landfall_steps::StepError;
use tokio_util::sync::CancellationToken;

use super::decision::{Backend, Decision};
use super::operator::{Moment, REBOOT_REQUIRED};
use super::planner::STORE;
use super::request::Request;
use super::run::{self, RunError};
use super::status::cluster;
use super::steps::REBOOT;
use super::steps::images::{bring, missing};
use super::steps::reboot::inactive;
use super::steps::select::{is_written, left_out, write};
use super::update_engine::Pending;
use super::version::OsVersion;
use super::why::{NotBrought, Why};
use super::world::{World, read};
use super::{DecideError, decide};

/// A mark's content does not matter.
const MAX_MARK_BYTES: u64 = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum HookError {
    #[error("cannot tell what the next boot needs")]
    Decide(#[source] DecideError),
    #[error("cannot lay down what the next boot needs")]
    Stage(#[source] StepError),
    #[error("cannot lay down what the next boot needs")]
    Bring(#[source] NotBrought),
    #[error("cannot read how far preparing this node has come")]
    Ledger(#[source] RunError),
    #[error("this node is being prepared, and what its next boot needs is not laid down yet")]
    Unready,
    #[error("cannot clear what no boot needs any more: {reason}")]
    Clear { reason: String },
    #[error("cannot write `{key}` on node `{node}`")]
    Annotate { node: String, key: String, source: Box<landfall_cluster::Error> },
    #[error("cannot read what is written on node `{node}`")]
    Notes { node: String, source: Box<landfall_cluster::Error> },
    #[error("the cluster has no node `{node}`")]
    NoNode { node: String },
    #[error("cannot tell whether a reboot is due")]
    Mark(#[source] std::io::Error),
    #[error("this machine is not what it was to be: {reason}")]
    Wrong { reason: String },
}

// === impl HookError ===

impl HookError {
    /// The kind of trouble, where there is a word for it.
    pub fn why(&self) -> Option<Why> {
        match self {
            Self::Decide(error) => Some(error.into()),
            Self::Bring(error) => Some(error.why),
            Self::Stage(_) | Self::Clear { .. } | Self::Mark(_) | Self::Ledger(_) => Some(Why::Machine),
            Self::Wrong { .. } => Some(Why::NotActive),
            Self::Annotate { .. } | Self::Notes { .. } | Self::NoNode { .. } | Self::Unready => None,
        }
    }
}

/// Lays down what the next boot needs, from what this node knows by itself. May be run any number of times.
pub async fn before_reboot<W: World>(world: &W, request: &Request) -> Result<Decision, HookError> {
    let request = Request { local_only: true, ..request.clone() };
    let decision = decide(world, &request).await.map_err(HookError::Decide)?;
    for artefact in missing(world, &decision).await.map_err(HookError::Stage)? {
        bring(world, &artefact, &|_, _| {}).await.map_err(HookError::Bring)?;
    }
    for file in &decision.files {
        if !is_written(world, file).map_err(HookError::Stage)? {
            write(world, file).map_err(HookError::Stage)?;
        }
    }
    // Only when something newer is to come: until then, older systems are what a machine falls back to.
    if decision.backend == Backend::Torcx && decision.inputs.next_os.value.is_some() {
        clear(world, &decision.inputs.current_os.value.version)?;
    }
    Ok(decision)
}

/// Looks whether this boot has what was selected for it.
pub async fn after_reboot<W: World>(world: &W, request: &Request) -> Result<Decision, HookError> {
    let request = Request { local_only: true, ..request.clone() };
    let decision = decide(world, &request).await.map_err(HookError::Decide)?;
    let wrong = |reason: String| HookError::Wrong { reason };
    if let Some(reason) = decision.reboot.because.first() {
        return Err(wrong(reason.clone()));
    }
    if let Some(reason) = inactive(world, &decision).map_err(HookError::Stage)? {
        return Err(wrong(reason));
    }
    if let Some(artefact) = missing(world, &decision).await.map_err(HookError::Stage)?.first() {
        return Err(wrong(format!("`{}` is missing or damaged", artefact.path.display())));
    }
    for file in &decision.files {
        if !is_written(world, file).map_err(HookError::Stage)? {
            return Err(wrong(format!("`{}` does not say what it should", file.path.display())));
        }
    }
    if decision.backend == Backend::Sysext {
        let left_out = left_out(world, &decision).await.map_err(HookError::Stage)?;
        if !left_out.is_empty() {
            return Err(wrong(format!("it left out {}", left_out.join(", "))));
        }
    }
    Ok(decision)
}

/// Whether a reboot is due here, by the file that distributions leave. If so, what the next boot needs is laid down
/// first: who asks reboots when this says yes.
pub async fn reboot_required<W: World>(world: &W, request: &Request) -> Result<Option<Decision>, HookError> {
    match read(world, Path::new(REBOOT_REQUIRED), MAX_MARK_BYTES) {
        Ok(None) => Ok(None),
        Ok(Some(_)) => match waits_for_reboot(world)? {
            // It laid down what the next boot needs, from what the cluster says; only the file the kubelet waits for is
            // missing, and that comes after the reboot.
            Some(decision) => staged(world, decision).await.map(Some),
            None => before_reboot(world, request).await.map(Some),
        },
        Err(error) => Err(HookError::Mark(error)),
    }
}

/// The decision of a run that prepares this node and waits for its reboot.
fn waits_for_reboot(world: &impl World) -> Result<Option<Decision>, HookError> {
    let records = run::records(world).map_err(HookError::Ledger)?;
    let Some(open) = records.iter().find(|record| record.ended().is_none()) else { return Ok(None) };
    let waits = |step: &StepRecord| step.name == REBOOT && step.state == StepState::RebootNeeded;
    match run::decision_of(open).filter(|_| open.steps().iter().any(waits)) {
        Some(decision) => Ok(Some(decision)),
        None => Err(HookError::Unready),
    }
}

/// A decision whose images are where it wanted them.
async fn staged(world: &impl World, decision: Decision) -> Result<Decision, HookError> {
    match missing(world, &decision).await.map_err(HookError::Stage)?.first() {
        None => Ok(decision),
        Some(artefact) => {
            Err(HookError::Wrong { reason: format!("`{}` is missing or damaged", artefact.path.display()) })
        }
    }
}

/// Lays down what the next boot needs as soon as an update is pending, until it is asked to stop. A reboot that no operator
/// announces, by hand or by a power cut, then finds its runtime, too.
pub async fn keep_staged<W: World>(
    world: &W,
    request: &Request,
    every: Duration,
    cancel: &CancellationToken,
) {
    let mut staged = Pending::Nothing;
    loop {
        match world.update_status().await.map(|status| status.pending()) {
            Ok(pending) if pending != staged && pending != Pending::Nothing => {
                match before_reboot(world, request).await {
                    Ok(decision) => {
                        let next = decision.inputs.next_os.value.as_ref().map(ToString::to_string);
                        tracing::info!(next, "What the next boot needs is laid down.");
                        staged = pending;
                    }
                    Err(error) => {
                        tracing::error!(error = %chain(&error), "The next boot would lack its runtime.");
                    }
                }
            }
            Ok(pending) => staged = pending,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "Cannot ask whether an update is pending.");
            }
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(every) => {}
        }
    }
}

/// Whether an operator asks for the hook of this moment.
pub async fn is_asked_for(
    world: &impl World,
    kubeconfig: &Path,
    node: &str,
    moment: Moment,
) -> Result<bool, HookError> {
    let failed = |source| HookError::Notes { node: node.to_owned(), source: Box::new(source) };
    let notes = cluster(world, kubeconfig).await.map_err(failed)?.node_notes(node).await.map_err(failed)?;
    let notes = notes.ok_or_else(|| HookError::NoNode { node: node.to_owned() })?;
    Ok(moment.is_asked_for(&notes.labels))
}

/// Tells the operator that the hook is done.
pub async fn annotate(
    world: &impl World,
    kubeconfig: &Path,
    node: &str,
    key: &str,
    tries: u32,
    pause: Duration,
) -> Result<(), HookError> {
    let mut tried = 1;
    loop {
        let annotated =
            async { cluster(world, kubeconfig).await?.annotate_node(node, key, Some("true")).await };
        match annotated.await {
            Ok(()) => return Ok(()),
            Err(source) if tried >= tries || source.is_denied() => {
                let source = Box::new(source);
                return Err(HookError::Annotate { node: node.to_owned(), key: key.to_owned(), source });
            }
            Err(error) => {
                tracing::info!(error = %chain(&error), tried, "The API server did not take the annotation.");
            }
        }
        tried += 1;
        tokio::time::sleep(pause).await;
    }
}

/// The stores of versions before this one; everything that is not named after a version stays.
pub fn outdated<'a>(names: impl Iterator<Item = &'a str>, keep_from: &OsVersion) -> Vec<&'a str> {
    let is_version = |name: &str| {
        let parts: Vec<&str> = name.split('.').collect();
        parts.len() == 3
            && parts.iter().all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    names
        .filter(|name| {
            is_version(name) && name.parse::<OsVersion>().is_ok_and(|version| version < *keep_from)
        })
        .collect()
}

fn clear(world: &impl World, current: &OsVersion) -> Result<(), HookError> {
    let disk = world.disk();
    let Ok(names) = disk.names(&world.place(Path::new(STORE))) else { return Ok(()) };
    let names: Vec<&str> = names.iter().filter_map(|name| name.to_str()).collect();
    for name in outdated(names.into_iter(), current) {
        let path: PathBuf = Path::new(STORE).join(name);
        // Not a folder: not a store, and not ours.
        if disk.names(&world.place(&path)).is_err() {
            continue;
        }
        world
            .remove_folder(&path)
            .map_err(|error| HookError::Clear { reason: format!("`{}`: {error}", path.display()) })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_older_versions_are_cleared() {
        let names = ["101.0.0", "102.0.0", "102.0.1", "102.1.1", "xtra", "a"];
        assert_eq!(outdated(names.into_iter(), &"102.0.1".parse().unwrap()), ["101.0.0", "102.0.0"]);
    }
}
