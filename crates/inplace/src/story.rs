//! Where an attempt stands, in the words users know: a pure view of its ledger.

pub use landfall_model::in_place::State;
use landfall_model::step::{Event, Happening, Outcome, Retry, StepState};
use landfall_steps::RunRecord;

use crate::steps::{
    APPLY_MACHINE_CONFIG, CLAIM, CLEAR_UP, GO_DOWN, INSTALL, PREFLIGHT, RUN_BASE, RUN_KUBE, SET_STATE_ASIDE,
    STAGE, TAKE_LABEL_OFF, VERIFY,
};

/// The state of an attempt.
pub fn state(record: &RunRecord) -> State {
    match record.ended() {
        Some(Outcome::Done) => return State::Done,
        Some(Outcome::RolledBack { step, reason }) => {
            // Before anything was installed there was nothing to take back, and behind the daemon's work no way.
            return match step.as_str() {
                CLAIM | PREFLIGHT | STAGE | VERIFY | CLEAR_UP => {
                    State::Failed { reason, step, retryable: false }
                }
                _ => State::RolledBack { reason, step },
            };
        }
        Some(Outcome::Failed { step, reason, .. } | Outcome::RollbackFailed { step, reason, .. }) => {
            return State::Failed { reason, step, retryable: false };
        }
        Some(Outcome::Abandoned { reason }) => {
            return State::Failed { reason, step: current(record).to_owned(), retryable: false };
        }
        _ => {}
    }
    let Some(step) = record.steps().iter().find(|step| !step.state.is_behind()) else { return State::Done };
    match &step.state {
        StepState::Failed { reason, retry } => State::Failed {
            reason: reason.clone(),
            step: step.name.clone(),
            retryable: *retry != Retry::Never,
        },
        StepState::RebootNeeded => State::Rebooting,
        _ => before(&step.name),
    }
}

/// The state while a step is not behind.
fn before(step: &str) -> State {
    match step {
        CLAIM => State::Requested,
        PREFLIGHT => State::Claimed,
        STAGE => State::Preflight,
        INSTALL => State::Staged,
        TAKE_LABEL_OFF | GO_DOWN => State::Armed,
        SET_STATE_ASIDE | APPLY_MACHINE_CONFIG | RUN_BASE | RUN_KUBE => State::Applying,
        _ => State::Verifying,
    }
}

/// The state an event led to: what is told of it stays the same however often it is told.
pub fn after(event: &Event) -> State {
    match &event.what {
        Happening::Step { step, state, .. } => match state {
            StepState::Failed { reason, retry } => State::Failed {
                reason: reason.clone(),
                step: step.clone(),
                retryable: *retry != Retry::Never,
            },
            StepState::RebootNeeded => State::Rebooting,
            state if state.is_behind() => reached(step),
            _ => before(step),
        },
        Happening::Ended { outcome: Outcome::Done } => State::Done,
        Happening::Ended { outcome: Outcome::RolledBack { step, reason } } => {
            State::RolledBack { reason: reason.clone(), step: step.clone() }
        }
        Happening::Ended {
            outcome: Outcome::Failed { step, reason, .. } | Outcome::RollbackFailed { step, reason, .. },
        } => State::Failed { reason: reason.clone(), step: step.clone(), retryable: false },
        _ => State::Requested,
    }
}

/// The state once a step is behind.
fn reached(step: &str) -> State {
    match step {
        CLAIM => State::Claimed,
        PREFLIGHT => State::Preflight,
        STAGE => State::Staged,
        INSTALL | TAKE_LABEL_OFF => State::Armed,
        GO_DOWN | SET_STATE_ASIDE | RUN_BASE => State::Applying,
        _ => State::Verifying,
    }
}

/// The step the attempt is at.
pub fn current(record: &RunRecord) -> &str {
    let step = record.steps().iter().find(|step| !step.state.is_behind());
    step.map_or("", |step| step.name.as_str())
}

/// For people, in one paragraph.
pub fn text(record: &RunRecord) -> String {
    let state = state(record);
    let tail = match &state {
        State::Failed { reason, step, retryable } => {
            let again = if *retryable { "it will be tried again" } else { "it will not be tried again" };
            format!(" at `{step}`: {reason} ({again})")
        }
        State::RolledBack { reason, step } => {
            format!(": `{step}` failed ({reason}), and the machine is as it was")
        }
        State::Rebooting => format!(": `{}` waits for the next boot", current(record)),
        _ => String::new(),
    };
    format!("{}{tail}\n", state.name())
}
