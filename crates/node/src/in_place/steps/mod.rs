//! The steps of an in-place bootstrap; see the picture in the crate's documentation.
//!
//! Up to `go-down` nothing of the running machine is changed. From there on every step can be rolled back, until the
//! new configuration is applied. After that only the remaining steps can run.

mod apply;
mod arm;
pub(crate) mod aside;
mod claim;
pub(crate) mod stage;
mod verify;

use std::path::Path;
use std::sync::Arc;

use landfall_model::Secret;
use landfall_steps::{Key, OnFailure, Plan, PlanError};

use crate::in_place::credentials::{Credentials, CredentialsError};
use crate::in_place::environment::InPlaceEnvironment;
use crate::in_place::flavour::Flavour;
use crate::in_place::places::{Folder, MACHINE_CONFIG, MACHINE_CONFIG_DONE, RUN};
use crate::in_place::preflight::Report;
use crate::in_place::request::Request;

pub const CLAIM: &str = "claim";
pub const PREFLIGHT: &str = "preflight";
pub const STAGE: &str = "stage";
pub const INSTALL: &str = "install";
pub const TAKE_LABEL_OFF: &str = "take-label-off";
pub const GO_DOWN: &str = "go-down";
pub const SET_STATE_ASIDE: &str = "set-state-aside";
pub const APPLY_MACHINE_CONFIG: &str = "apply-machine-config";
pub const RUN_BASE: &str = "run-base";
pub const RUN_KUBE: &str = "run-kube";
pub const VERIFY: &str = "verify";
pub const CLEAR_UP: &str = "clear-up";

pub const REQUEST: Key<Request> = Key::new("request");
/// Identifies the Secret, so that the same label with the same Secret is the same attempt.
pub const SECRET_DIGEST: Key<String> = Key::new("secret-digest");
pub const REPORT: Key<Report> = Key::new("preflight-report");
/// The boot in which the gate was installed; in every later boot it holds the kubelet from the start.
pub(crate) const INSTALLED_IN: Key<String> = Key::new("installed-in");

/// The Secret, while it is needed.
#[expect(missing_debug_implementations, reason = "holds credentials")]
pub struct Given {
    pub raw: Secret<Vec<u8>>,
    pub credentials: Result<Credentials, CredentialsError>,
}

/// Returns the steps of an attempt. The Secret itself is available only until it is no longer needed.
pub fn plan<W: InPlaceEnvironment>(
    env: &Arc<W>,
    request: &Request,
    digest: &str,
    given: Option<&Arc<Given>>,
) -> Result<Plan, PlanError> {
    let given = given.cloned();
    let plan = Plan::of(RUN)
        .input(&REQUEST, request)
        .input(&SECRET_DIGEST, &digest.to_owned())
        .on_failure(OnFailure::RollBack)
        .step(claim::Claim { env: env.clone(), given: given.clone() })
        .step(claim::Preflight { env: env.clone(), given: given.clone() })
        .step(stage::Stage { env: env.clone(), given })
        .step(arm::Install { env: env.clone() })
        .step(arm::TakeLabelOff { env: env.clone() })
        .step(arm::GoDown { env: env.clone() })
        .step(aside::SetStateAside { env: env.clone() });
    let plan = match request.flavour {
        Flavour::Rhcos => plan.step(apply::ApplyMachineConfig { env: env.clone() }),
        Flavour::Rhel => plan
            .step(apply::RunHalf { env: env.clone(), half: apply::Half::Base })
            .step(apply::RunHalf { env: env.clone(), half: apply::Half::Kube }),
    };
    plan.step(verify::Verify { env: env.clone() }).step(verify::ClearUp { env: env.clone() }).build()
}

/// Returns whether the new configuration is applied: from then on the old one cannot be restored.
pub(crate) fn is_applied(
    env: &impl InPlaceEnvironment,
    flavour: Flavour,
    folder: &Folder,
) -> std::io::Result<bool> {
    match flavour {
        Flavour::Rhcos => Ok(env.exists(Path::new(MACHINE_CONFIG_DONE))?
            && !env.exists(Path::new(MACHINE_CONFIG))?
            && env.exists(&folder.machine_config())?),
        Flavour::Rhel => env.exists(&folder.half_done(RUN_KUBE)),
    }
}
