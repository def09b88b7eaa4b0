//! The list of steps that prepare a node.
//!
//! ```text
//! update-os ▶ decide ▶ fetch-images ▶ check-images ▶ select-runtime ▶ merge-extensions ▶ reboot ▶ verify-runtime ▶ write-kubelet-env
//!                │                                        │
//!                └ Decision, kept in the ledger           └ the boot in which the choice was made
//! ```
//!
//! Whatever can fail is not lasting to the ledger: a server that is down today is up tomorrow, and a machine that waits for
//! its kubelet must be able to go on once somebody has mended what was wrong.

pub(crate) mod images;
mod kubelet;
pub(crate) mod reboot;
pub(crate) mod select;
mod update;

use std::sync::Arc;

use landfall_model::step::Retry;
use landfall_steps::durable::Access;
use landfall_steps::{Key, Plan, PlanError, StepError};

use super::decision::{Decision, Fetched};
use super::request::Request;
use super::why::TroubleBox;
use super::world::World;

pub const RUN: &str = "node-prepare";
// The names of the steps, in their order.
pub(crate) const UPDATE_OS: &str = "update-os";
pub(crate) const DECIDE: &str = "decide";
pub(crate) const FETCH: &str = "fetch-images";
pub(crate) const CHECK: &str = "check-images";
pub(crate) const SELECT: &str = "select-runtime";
pub(crate) const MERGE: &str = "merge-extensions";
pub(crate) const REBOOT: &str = "reboot";
pub(crate) const VERIFY: &str = "verify-runtime";
pub(crate) const WRITE_ENV: &str = "write-kubelet-env";

pub(crate) const REQUEST: Key<Request> = Key::new("request");
/// Counts runs with the same request: a node whose `kubelet.env` was taken away is prepared again.
pub(crate) const NUMBER: Key<u32> = Key::new("number");
pub const DECISION: Key<Decision> = Key::new("decision");
/// Where each image came from in the end.
pub const FETCHED: Key<Vec<Fetched>> = Key::new("fetched");
/// The boot in which the runtime was selected: only a later one has it.
pub(crate) const SELECTED_IN: Key<String> = Key::new("selected-in");

/// Folders others may look into.
pub(crate) const PUBLIC_DIR: Access = Access { mode: 0o755, owner: None };

/// The steps for a request.
pub(crate) fn plan<W: World>(
    world: &Arc<W>,
    request: &Request,
    number: u32,
    trouble: &TroubleBox,
) -> Result<Plan, PlanError> {
    Plan::of(RUN)
        .input(&REQUEST, request)
        .input(&NUMBER, &number)
        .step(update::UpdateOs { world: world.clone() })
        .step(update::Decide { world: world.clone(), trouble: trouble.clone() })
        .step(images::Fetch::new(world.clone(), trouble.clone()))
        .step(images::Check { world: world.clone() })
        .step(select::Select { world: world.clone() })
        .step(select::Merge { world: world.clone() })
        .step(reboot::Reboot { world: world.clone() })
        .step(reboot::Verify { world: world.clone() })
        .step(kubelet::WriteEnv { world: world.clone() })
        .build()
}

/// An error that a later process may not meet.
pub(crate) fn later(error: &dyn std::error::Error) -> StepError {
    StepError::caused(error, Retry::Later)
}
