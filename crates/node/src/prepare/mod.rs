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
pub mod systemd;
pub mod template;
pub mod update_engine;
pub mod verify;
pub mod version;
pub mod why;
pub mod world;

#[cfg(test)]
mod bucket_tests;
#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod defects;

use decision::{Decision, Inputs};
use request::Request;
use world::World;

/// Why there is no decision.
#[derive(Debug, thiserror::Error)]
pub enum DecideError {
    #[error("cannot find out what this node needs")]
    Gather(#[source] gather::GatherError),
    #[error("cannot decide what this node gets")]
    Plan {
        source: planner::PlanError,
        /// What was known.
        inputs: Box<Inputs>,
    },
}

/// Looks around and decides; changes nothing.
pub async fn decide<W: World>(world: &W, request: &Request) -> Result<Decision, DecideError> {
    let facts = gather::gather(world, request).await.map_err(DecideError::Gather)?;
    // A refusal without what it rests on could not be understood.
    let inputs = facts.inputs();
    planner::plan(request, facts).map_err(|source| DecideError::Plan { source, inputs: Box::new(inputs) })
}
