//! The state of an attempt in the terms that users know: a pure view of its ledger.

pub use landfall_model::in_place::State;
use landfall_model::step::{Event, Happening, Outcome, Retry, StepState};
use landfall_steps::RunRecord;

use crate::in_place::steps::{
    APPLY_MACHINE_CONFIG, CLAIM, CLEAR_UP, GO_DOWN, INSTALL, PREFLIGHT, RUN_BASE, RUN_KUBE, SET_STATE_ASIDE,
    STAGE, TAKE_LABEL_OFF, VERIFY,
};

/// The state of an attempt.
pub fn state(record: &RunRecord) -> State {
    if let Some(state) = record.ended().and_then(|outcome| ended(outcome, current(record))) {
        return state;
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

/// The state while this step is not finished.
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

/// Returns the state that the last of these events of an attempt led to.
///
/// Reports of an event are therefore always the same. A process that resumes the attempt does not change the state.
pub fn after(events: &[Event]) -> State {
    events.iter().rev().find_map(led_to).unwrap_or(State::Requested)
}

fn led_to(event: &Event) -> Option<State> {
    Some(match &event.what {
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
        Happening::Reopened { step } => before(step),
        Happening::Ended { outcome } => return ended(outcome.clone(), ""),
        Happening::Opened { .. } | Happening::Progress { .. } => return None,
    })
}

/// Returns the state of an attempt with this outcome at this step; `None` where it has not ended.
fn ended(outcome: Outcome, current: &str) -> Option<State> {
    match outcome {
        Outcome::Done => Some(State::Done),
        Outcome::RolledBack { step, reason } => Some(match step.as_str() {
            // Before the installation there was nothing to roll back, and after the daemon's work a rollback is
            // impossible.
            CLAIM | PREFLIGHT | STAGE | VERIFY | CLEAR_UP => State::Failed { reason, step, retryable: false },
            _ => State::RolledBack { reason, step },
        }),
        Outcome::Failed { step, reason, .. } | Outcome::RollbackFailed { step, reason, .. } => {
            Some(State::Failed { reason, step, retryable: false })
        }
        Outcome::Abandoned { reason } => {
            Some(State::Failed { reason, step: current.to_owned(), retryable: false })
        }
        _ => None,
    }
}

/// The state after this step has finished.
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

/// Returns the current step of the attempt.
pub fn current(record: &RunRecord) -> &str {
    let step = record.steps().iter().find(|step| !step.state.is_behind());
    step.map_or("", |step| step.name.as_str())
}

/// Formats the state as one paragraph of text.
pub fn text(record: &RunRecord) -> String {
    let state = state(record);
    let tail = match &state {
        State::Failed { reason, step, retryable } => {
            let again = if *retryable { "it will be retried" } else { "it will not be retried" };
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

#[cfg(test)]
mod tests {
    use landfall_model::step::Start;

    use super::*;

    fn events(happenings: Vec<Happening>) -> Vec<Event> {
        let event = |(sequence, what)| Event {
            format: 1,
            attempt: "a".to_owned(),
            sequence,
            part: 0,
            time: jiff::Timestamp::UNIX_EPOCH,
            boot_id: "b".to_owned(),
            what,
        };
        (1..).zip(happenings).map(event).collect()
    }

    fn opened(start: Start) -> Happening {
        Happening::Opened { run: "in-place".to_owned(), steps: Vec::new(), start }
    }

    fn step(name: &str, state: StepState) -> Happening {
        Happening::Step { step: name.to_owned(), state, attempts: 1 }
    }

    #[test]
    fn a_process_that_comes_again_asks_for_nothing_anew() {
        let events = events(vec![
            opened(Start::Fresh),
            step(CLAIM, StepState::Done),
            step(GO_DOWN, StepState::RebootNeeded),
            opened(Start::Restarted),
            opened(Start::Rebooted),
            step(GO_DOWN, StepState::Done),
        ]);
        let told: Vec<State> = (1..=events.len()).map(|count| after(&events[..count])).collect();
        let down = State::Rebooting;
        assert_eq!(
            told,
            [State::Requested, State::Claimed, down.clone(), down.clone(), down, State::Applying]
        );
    }

    /// The status of the machine and the reported progress agree about the end.
    #[test]
    fn where_nothing_was_taken_back_nobody_is_told_that_it_was() {
        let end = |outcome| after(&events(vec![step(CLAIM, StepState::Done), Happening::Ended { outcome }]));
        let (step, reason) = (PREFLIGHT.to_owned(), "no".to_owned());
        let failed = State::Failed { reason: reason.clone(), step: step.clone(), retryable: false };
        assert_eq!(end(Outcome::RolledBack { step, reason }), failed);
        let abandoned = end(Outcome::Abandoned { reason: "another".to_owned() });
        assert!(matches!(abandoned, State::Failed { retryable: false, .. }), "{abandoned:?}");
    }
}
