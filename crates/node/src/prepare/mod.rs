//! `node prepare`: the right runtime for the cluster, verified, exactly once, before the kubelet can start.
//!
//! ```text
//! API server, ConfigMap ─┐
//! installer's files ─────┼─▶ gather ─▶ Facts ─▶ planner ─▶ Decision ─▶ steps: fetch, check, select, reboot, kubelet.env
//! os-release, D-Bus ─────┤              pure                 │
//! signed indexes ────────┘                                   └─▶ dry run, ledger, status, failure report
//! ```

pub mod choice;
pub mod decision;
pub mod digest;
pub mod environment;
pub mod gather;
pub mod hook;
pub mod kubelet_env;
pub mod manifest;
pub mod mappings;
pub mod next_os;
pub mod operator;
pub mod os_release;
pub mod planner;
pub mod profile;
pub mod request;
pub mod run;
pub mod show;
pub mod skew;
pub mod status;
pub mod steps;
pub mod sysext;
pub mod template;
pub mod update_engine;
pub mod verify;
pub mod version;
pub mod why;

#[cfg(test)]
mod bucket_tests;
#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod defect_tests;

use decision::{Decision, Inputs};
use environment::PrepareEnvironment;
use request::Request;

/// The reason why there is no decision.
#[derive(Debug, thiserror::Error)]
pub enum DecideError {
    #[error("cannot find out what this node needs")]
    Gather(#[source] gather::GatherError),
    #[error("cannot decide what this node gets")]
    Plan {
        source: planner::PlanError,
        /// The inputs that were known.
        inputs: Box<Inputs>,
    },
}

/// Collects facts and decides; changes nothing.
pub async fn decide<W: PrepareEnvironment>(env: &W, request: &Request) -> Result<Decision, DecideError> {
    let facts = gather::gather(env, request).await.map_err(DecideError::Gather)?;
    // The error needs the inputs to be understandable.
    let inputs = facts.inputs();
    planner::plan(request, facts).map_err(|source| DecideError::Plan { source, inputs: Box::new(inputs) })
}
