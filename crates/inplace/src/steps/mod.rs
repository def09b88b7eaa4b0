//! The list of steps that give a machine a new life; see the picture in the crate's documentation.
//!
//! Up to `go-down` nothing of the running machine is changed. From there on every step knows the way back, until the new
//! life is laid down; behind that there is only forward.

mod apply;
mod arm;
pub(crate) mod aside;
mod claim;
pub(crate) mod stage;
mod verify;

use std::path::Path;
use std::sync::Arc;

use landfall_model::Secret;
use landfall_model::step::Retry;
use landfall_steps::{Key, OnFailure, Plan, PlanError, StepError};

use crate::credentials::{Credentials, CredentialsError};
use crate::flavour::Flavour;
use crate::places::{Folder, MACHINE_CONFIG, MACHINE_CONFIG_DONE, RUN};
use crate::preflight::Report;
use crate::request::Request;
use crate::world::World;

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
/// Names the Secret, so that the same label with the same Secret is the same attempt.
pub const SECRET_DIGEST: Key<String> = Key::new("secret-digest");
pub const REPORT: Key<Report> = Key::new("preflight-report");
/// The boot in which the gate was put before the kubelet: every later one has begun with it.
pub(crate) const INSTALLED_IN: Key<String> = Key::new("installed-in");

/// The Secret, as long as it is needed.
#[expect(missing_debug_implementations, reason = "holds credentials")]
pub struct Given {
    pub raw: Secret<Vec<u8>>,
    pub credentials: Result<Credentials, CredentialsError>,
}

/// The steps of an attempt. The Secret itself is only there until it is no longer needed.
pub fn plan<W: World>(
    world: &Arc<W>,
    request: &Request,
    digest: &str,
    given: Option<&Arc<Given>>,
) -> Result<Plan, PlanError> {
    let given = given.cloned();
    let plan = Plan::of(RUN)
        .input(&REQUEST, request)
        .input(&SECRET_DIGEST, &digest.to_owned())
        .on_failure(OnFailure::RollBack)
        .step(claim::Claim { world: world.clone(), given: given.clone() })
        .step(claim::Preflight { world: world.clone(), given: given.clone() })
        .step(stage::Stage { world: world.clone(), given })
        .step(arm::Install { world: world.clone() })
        .step(arm::TakeLabelOff { world: world.clone() })
        .step(arm::GoDown { world: world.clone() })
        .step(aside::SetStateAside { world: world.clone() });
    let plan = match request.flavour {
        Flavour::Rhcos => plan.step(apply::ApplyMachineConfig { world: world.clone() }),
        Flavour::Rhel => plan
            .step(apply::RunHalf { world: world.clone(), half: apply::Half::Base })
            .step(apply::RunHalf { world: world.clone(), half: apply::Half::Kube }),
    };
    plan.step(verify::Verify { world: world.clone() }).step(verify::ClearUp { world: world.clone() }).build()
}

/// Whether the new life is laid down: from here on the old one cannot be had back.
pub(crate) fn is_applied(world: &impl World, flavour: Flavour, folder: &Folder) -> std::io::Result<bool> {
    match flavour {
        Flavour::Rhcos => Ok(world.exists(Path::new(MACHINE_CONFIG_DONE))?
            && !world.exists(Path::new(MACHINE_CONFIG))?
            && world.exists(&folder.machine_config())?),
        Flavour::Rhel => world.exists(&folder.half_done(RUN_KUBE)),
    }
}

/// An error that a later process may not meet.
pub(crate) fn later(error: &dyn std::error::Error) -> StepError {
    StepError::caused(error, Retry::Later)
}
