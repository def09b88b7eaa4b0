//! The list of steps that prepare a node.
//!
//! ```text
//! update-os ▶ decide ▶ fetch-images ▶ check-images ▶ select-runtime ▶ merge-extensions ▶ reboot ▶ verify-runtime ▶ write-kubelet-env
//!                │                                        │
//!                └ Decision, kept in the ledger           └ the boot in which the choice was made
//! ```
//!
//! The ledger treats no failure as permanent. A server that is down today may be up tomorrow, and a machine that
//! waits for its kubelet must be able to continue once the problem is fixed.

pub(crate) mod images;
mod kubelet;
pub(crate) mod reboot;
pub(crate) mod select;
mod update;

use std::sync::Arc;

use landfall_steps::{Key, Plan, PlanError};

use super::decision::{Decision, Fetched};
use super::request::Request;
use super::why::TroubleBox;
use crate::prepare::environment::PrepareEnvironment;

pub const RUN: &str = "node-prepare";
// The names of the steps, in order.
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
/// Counts runs with the same request: a node whose `kubelet.env` was removed is prepared again.
pub(crate) const NUMBER: Key<u32> = Key::new("number");
pub const DECISION: Key<Decision> = Key::new("decision");
/// The final source of each image.
pub const FETCHED: Key<Vec<Fetched>> = Key::new("fetched");
/// The boot in which the runtime was selected: only a later boot uses it.
pub(crate) const SELECTED_IN: Key<String> = Key::new("selected-in");

pub(crate) fn plan<W: PrepareEnvironment>(
    env: &Arc<W>,
    request: &Request,
    number: u32,
    trouble: &TroubleBox,
) -> Result<Plan, PlanError> {
    Plan::of(RUN)
        .input(&REQUEST, request)
        .input(&NUMBER, &number)
        .step(update::UpdateOs { env: env.clone() })
        .step(update::Decide { env: env.clone(), trouble: trouble.clone() })
        .step(images::Fetch::new(env.clone(), trouble.clone()))
        .step(images::Check { env: env.clone() })
        .step(select::Select { env: env.clone() })
        .step(select::Merge { env: env.clone() })
        .step(reboot::Reboot { env: env.clone() })
        .step(reboot::Verify { env: env.clone() })
        .step(kubelet::WriteEnv { env: env.clone() })
        .build()
}
