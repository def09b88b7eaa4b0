//! The hooks of a reboot operator: before a reboot the runtime for the next operating system is laid down, after it the
//! machine is looked at. What fails leaves the operator's annotation unset, and the fleet stops there.

use std::path::{Path, PathBuf};
use std::time::Duration;

use landfall_cluster::Cluster;
use landfall_model::chain;
use landfall_steps::StepError;

use super::decision::{Backend, Decision};
use super::planner::STORE;
use super::request::Request;
use super::steps::images::{bring, missing};
use super::steps::select::{is_written, write};
use super::version::OsVersion;
use super::world::World;
use super::{DecideError, decide, gather};

#[derive(Debug, thiserror::Error)]
pub enum HookError {
    #[error("cannot tell what the next boot needs")]
    Decide(#[source] DecideError),
    #[error("cannot lay down what the next boot needs")]
    Stage(#[source] StepError),
    #[error("cannot clear what no boot needs any more: {reason}")]
    Clear { reason: String },
    #[error("cannot write `{key}` on node `{node}`")]
    Annotate { node: String, key: String, source: Box<landfall_cluster::Error> },
    #[error("this boot is not what it was to be: {reason}")]
    Wrong { reason: String },
}

/// Lays down what the next boot needs, from what this node knows by itself. May be run any number of times.
pub async fn before_reboot<W: World>(world: &W, request: &Request) -> Result<Decision, HookError> {
    let request = Request { local_only: true, ..request.clone() };
    let decision = decide(world, &request).await.map_err(HookError::Decide)?;
    for artefact in missing(world, &decision).await.map_err(HookError::Stage)? {
        bring(world, &artefact, &|_, _| {}).await.map_err(HookError::Stage)?;
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
    if let Some(artefact) = missing(world, &decision).await.map_err(HookError::Stage)?.first() {
        return Err(wrong(format!("`{}` is missing or damaged", artefact.path.display())));
    }
    gather::current_os(world).map_err(|error| wrong(chain(&error).to_string()))?;
    Ok(decision)
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
        let annotated = async {
            let path = world.place(kubeconfig);
            // In a pod there is no such file, but an account.
            let cluster =
                if path.exists() { Cluster::from_kubeconfig(&path).await? } else { Cluster::infer().await? };
            cluster.annotate_node(node, key, Some("true")).await
        };
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
    let store = world.place(Path::new(STORE));
    let Ok(names) = world.disk().names(&store) else { return Ok(()) };
    let names: Vec<&str> = names.iter().filter_map(|name| name.to_str()).collect();
    for name in outdated(names.into_iter(), current) {
        let path: PathBuf = store.join(name);
        if path.is_dir() {
            std::fs::remove_dir_all(&path)
                .map_err(|error| HookError::Clear { reason: format!("`{}`: {error}", path.display()) })?;
        }
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
