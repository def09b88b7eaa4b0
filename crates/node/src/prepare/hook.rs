//! Hooks of a reboot operator.
//!
//! Before a reboot they install the runtime for the next operating system; after it they check the machine. After a
//! failure the operator's annotation stays unset, which stops the rollout to the fleet.

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
use super::run;
use super::status::cluster;
use super::steps::images::{bring, missing};
use super::steps::reboot::inactive;
use super::steps::select::{is_written, left_out, write};
use super::steps::{REBOOT, RUN};
use super::update_engine::Pending;
use super::version::OsVersion;
use super::why::{NotBrought, Why};
use super::{DecideError, decide};
use crate::environment::read_text as read;
use crate::prepare::environment::PrepareEnvironment;
use crate::run::{RunError, open_record};

/// The content of a marker file does not matter.
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
    /// Returns the kind of failure, where one is defined.
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

/// Installs the runtime for the next boot, based on local information only. It may run any number of times.
pub async fn before_reboot<W: PrepareEnvironment>(env: &W, request: &Request) -> Result<Decision, HookError> {
    let request = Request { local_only: true, ..request.clone() };
    let decision = decide(env, &request).await.map_err(HookError::Decide)?;
    for artefact in missing(env, &decision).await.map_err(HookError::Stage)? {
        bring(env, &artefact, &|_, _| {}).await.map_err(HookError::Bring)?;
    }
    for file in &decision.files {
        if !is_written(env, file).map_err(HookError::Stage)? {
            write(env, file).map_err(HookError::Stage)?;
        }
    }
    // Only when a newer system is pending: until then, the machine may fall back to older systems.
    if decision.backend == Backend::Torcx && decision.inputs.next_os.value.is_some() {
        clear(env, &decision.inputs.current_os.value.version)?;
    }
    Ok(decision)
}

/// Checks that this boot has the runtime that was selected for it.
pub async fn after_reboot<W: PrepareEnvironment>(env: &W, request: &Request) -> Result<Decision, HookError> {
    let request = Request { local_only: true, ..request.clone() };
    let decision = decide(env, &request).await.map_err(HookError::Decide)?;
    let wrong = |reason: String| HookError::Wrong { reason };
    if let Some(reason) = decision.reboot.because.first() {
        return Err(wrong(reason.clone()));
    }
    if let Some(reason) = inactive(env, &decision).map_err(HookError::Stage)? {
        return Err(wrong(reason));
    }
    if let Some(artefact) = missing(env, &decision).await.map_err(HookError::Stage)?.first() {
        return Err(wrong(format!("`{}` is missing or damaged", artefact.path.display())));
    }
    for file in &decision.files {
        if !is_written(env, file).map_err(HookError::Stage)? {
            return Err(wrong(format!("`{}` does not say what it should", file.path.display())));
        }
    }
    if decision.backend == Backend::Sysext {
        let left_out = left_out(env, &decision).await.map_err(HookError::Stage)?;
        if !left_out.is_empty() {
            return Err(wrong(format!("it left out {}", left_out.join(", "))));
        }
    }
    Ok(decision)
}

/// Returns a decision if a reboot is due, according to the file that distributions write.
///
/// The runtime for the next boot is installed first, because the caller reboots on a positive answer.
pub async fn reboot_required<W: PrepareEnvironment>(
    env: &W,
    request: &Request,
) -> Result<Option<Decision>, HookError> {
    match read(env, Path::new(REBOOT_REQUIRED), MAX_MARK_BYTES) {
        Ok(None) => Ok(None),
        Ok(Some(_)) => match waits_for_reboot(env)? {
            // The run installed the runtime for the next boot, based on the version of the cluster. Only the file
            // that the kubelet waits for is missing, and it is written after the reboot.
            Some(decision) => staged(env, decision).await.map(Some),
            None => before_reboot(env, request).await.map(Some),
        },
        Err(error) => Err(HookError::Mark(error)),
    }
}

/// Returns the decision of a run that prepares this node and waits for its reboot.
fn waits_for_reboot(env: &impl PrepareEnvironment) -> Result<Option<Decision>, HookError> {
    let open = match open_record(env, RUN) {
        Err(RunError::NothingOpen) => return Ok(None),
        open => open.map_err(HookError::Ledger)?,
    };
    let waits = |step: &StepRecord| step.name == REBOOT && step.state == StepState::RebootNeeded;
    match run::decision_of(&open).filter(|_| open.steps().iter().any(waits)) {
        Some(decision) => Ok(Some(decision)),
        None => Err(HookError::Unready),
    }
}

/// Returns the decision if all its images are complete at their planned paths.
async fn staged(env: &impl PrepareEnvironment, decision: Decision) -> Result<Decision, HookError> {
    match missing(env, &decision).await.map_err(HookError::Stage)?.first() {
        None => Ok(decision),
        Some(artefact) => {
            Err(HookError::Wrong { reason: format!("`{}` is missing or damaged", artefact.path.display()) })
        }
    }
}

/// Installs the runtime for the next boot as soon as an update is pending, until canceled.
///
/// An unannounced reboot, by hand or after a power failure, then finds its runtime as well.
pub async fn keep_staged<W: PrepareEnvironment>(
    env: &W,
    request: &Request,
    every: Duration,
    cancel: &CancellationToken,
) {
    let mut staged = Pending::Nothing;
    loop {
        match env.update_status().await.map(|status| status.pending()) {
            Ok(pending) if pending != staged && pending != Pending::Nothing => {
                match before_reboot(env, request).await {
                    Ok(decision) => {
                        let next = decision.inputs.next_os.value.as_ref().map(ToString::to_string);
                        tracing::info!(next, "files for the next boot written");
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

/// Returns whether the operator requests the hook of this phase.
pub async fn is_asked_for(
    env: &impl PrepareEnvironment,
    kubeconfig: &Path,
    node: &str,
    moment: Moment,
) -> Result<bool, HookError> {
    let failed = |source| HookError::Notes { node: node.to_owned(), source: Box::new(source) };
    let notes = cluster(env, kubeconfig).await.map_err(failed)?.node_facts(node).await.map_err(failed)?;
    let notes = notes.ok_or_else(|| HookError::NoNode { node: node.to_owned() })?;
    Ok(moment.is_asked_for(&notes.labels))
}

/// Reports to the operator that the hook succeeded.
pub async fn annotate(
    env: &impl PrepareEnvironment,
    kubeconfig: &Path,
    node: &str,
    key: &str,
    tries: u32,
    pause: Duration,
) -> Result<(), HookError> {
    let mut tried = 1;
    loop {
        let annotated =
            async { cluster(env, kubeconfig).await?.annotate_node(node, key, Some("true")).await };
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

/// Returns the stores of older versions; names other than versions are kept.
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

fn clear(env: &impl PrepareEnvironment, current: &OsVersion) -> Result<(), HookError> {
    let disk = env.disk();
    let Ok(names) = disk.names(&env.host_path(Path::new(STORE))) else { return Ok(()) };
    let names: Vec<&str> = names.iter().filter_map(|name| name.to_str()).collect();
    for name in outdated(names.into_iter(), current) {
        let path: PathBuf = Path::new(STORE).join(name);
        // Not a directory, so not a store that this code created.
        if disk.names(&env.host_path(&path)).is_err() {
            continue;
        }
        env.remove_all(&path)
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
