//! The state of a run: the content of the ledger, the next action, and the only transitions. No I/O, no clock.

use jiff::Timestamp;
use landfall_model::step::{
    Event, FORMAT, Happening, Outcome, Retry, Start, StepRecord, StepState, StepTitle,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::boot::BootId;
use crate::machine::{IllegalMove, Move, advance};
use crate::plan::{OnFailure, Plan};
use crate::step::bounded;
use crate::values::{Key, Outputs, ValueError, Values};

/// Number of boots without a finished step after which the run fails: one may be a power failure, two a coincidence,
/// and three are a pattern.
const MAX_IDLE_BOOTS: u32 = 3;
/// State events kept for consumers that were disconnected. A run has two or three per step; the rest is for retries.
const MAX_HISTORY: usize = 512;
/// Gap in the sequence after a damaged record was lost, so that no number is used twice: more than one change of the
/// record can have.
const SEQUENCE_GAP: u64 = 16;

/// The complete state of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunRecord {
    pub(crate) generation: u64,
    run: String,
    attempt: String,
    on_failure: OnFailure,
    boot: BootRecord,
    steps: Vec<StepRecord>,
    values: Values,
    failure: Option<Failure>,
    abandoned: Option<String>,
    sequence: u64,
    history: Vec<Event>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct BootRecord {
    id: String,
    /// A step finished in this boot, or requested its first reboot.
    progressed: bool,
    /// Number of preceding consecutive boots without progress.
    idle: u32,
}

/// The reason of the failure; it is kept when the steps change to rolling back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Failure {
    step: String,
    reason: String,
}

/// The next action of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Todo {
    /// Starts with `check`.
    Try(usize),
    /// The reboot has happened.
    Confirm(usize),
    RollBack(usize),
    Stop(Outcome),
}

/// Time and boot of a change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now<'a> {
    pub(crate) boot: &'a BootId,
    pub(crate) time: Timestamp,
}

// === impl RunRecord ===

impl RunRecord {
    pub(crate) fn new(plan: &Plan, boot: &BootId) -> Self {
        let pending = |title: StepTitle| StepRecord {
            name: title.name,
            state: StepState::Pending,
            attempts: 0,
            reboots: 0,
            boot_id: boot.as_str().to_owned(),
            started: None,
            ended: None,
        };
        Self {
            generation: 0,
            run: plan.name.clone(),
            attempt: plan.attempt.clone(),
            on_failure: plan.on_failure,
            boot: BootRecord { id: boot.as_str().to_owned(), progressed: false, idle: 0 },
            steps: plan.titles().into_iter().map(pending).collect(),
            values: plan.inputs.clone(),
            failure: None,
            abandoned: None,
            sequence: 0,
            history: Vec::new(),
        }
    }

    pub fn run(&self) -> &str {
        &self.run
    }

    pub fn attempt(&self) -> &str {
        &self.attempt
    }

    pub fn steps(&self) -> &[StepRecord] {
        &self.steps
    }

    /// Returns state events after a sequence number, oldest first.
    ///
    /// If the first of them is not the next number, the ones between are no longer stored.
    pub fn events_after(&self, sequence: u64) -> &[Event] {
        &self.history[self.history.partition_point(|event| event.sequence <= sequence)..]
    }

    /// Returns the outcome of the run, if nothing is left to do.
    pub fn ended(&self) -> Option<Outcome> {
        match self.next() {
            Todo::Stop(outcome) if outcome.is_final() => Some(outcome),
            _ => None,
        }
    }

    pub(crate) fn last_sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns a value of the run for observers: an input, or a value that a step returned.
    pub fn get<T: Serialize + DeserializeOwned>(&self, key: &Key<T>) -> Result<T, ValueError> {
        key.decode(&self.values)
    }

    pub(crate) fn values(&self) -> &Values {
        &self.values
    }

    /// Returns the last recorded state of a step as an outcome, if it allows a retry.
    pub(crate) fn outcome_of(&self, index: usize) -> Option<Outcome> {
        let step = self.steps.get(index)?;
        let name = step.name.clone();
        match &step.state {
            StepState::Waiting { on } => Some(Outcome::Waiting { step: name, on: on.clone() }),
            StepState::Failed { reason, retry } => {
                Some(Outcome::Failed { step: name, reason: reason.clone(), retry: *retry })
            }
            _ => None,
        }
    }

    /// Returns the next action in the boot in which the record was last entered.
    pub(crate) fn next(&self) -> Todo {
        if let Some(reason) = &self.abandoned {
            return Todo::Stop(Outcome::Abandoned { reason: reason.clone() });
        }
        if let Some(failure) = &self.failure {
            let Failure { step, reason } = failure.clone();
            return match (self.on_failure, self.last_to_roll_back()) {
                (OnFailure::Stop, _) => Todo::Stop(Outcome::Failed { step, reason, retry: Retry::Never }),
                (OnFailure::RollBack, Some(index)) => Todo::RollBack(index),
                (OnFailure::RollBack, None) => match self.stuck() {
                    stuck if stuck.is_empty() => Todo::Stop(Outcome::RolledBack { step, reason }),
                    stuck => Todo::Stop(Outcome::RollbackFailed { step, reason, stuck }),
                },
            };
        }
        let Some(index) = self.current() else { return Todo::Stop(Outcome::Done) };
        let step = &self.steps[index];
        match &step.state {
            StepState::RebootNeeded if step.boot_id == self.boot.id => {
                Todo::Stop(Outcome::RebootNeeded { step: step.name.clone() })
            }
            StepState::RebootNeeded => Todo::Confirm(index),
            _ => Todo::Try(index),
        }
    }

    /// Starts a process for the run: boots are counted, and one too many without progress ends the run.
    pub(crate) fn enter(
        &mut self,
        titles: Vec<StepTitle>,
        recovered: bool,
        now: Now<'_>,
    ) -> Result<(), IllegalMove> {
        let rebooted = self.boot.id != now.boot.as_str();
        let start = match (recovered, self.sequence, rebooted) {
            (true, ..) => Start::Recovered,
            (false, 0, _) => Start::Fresh,
            (false, _, false) => Start::Restarted,
            (false, _, true) => Start::Rebooted,
        };
        if recovered {
            self.sequence += SEQUENCE_GAP;
        }
        if rebooted {
            let waiting = self
                .current()
                .is_some_and(|index| matches!(self.steps[index].state, StepState::Waiting { .. }));
            let idle = match (self.boot.progressed, waiting) {
                (true, _) => 0,
                // The run waits for an external event, so boots of this machine do not matter.
                (false, true) => self.boot.idle,
                (false, false) => self.boot.idle + 1,
            };
            self.boot = BootRecord { id: now.boot.as_str().to_owned(), progressed: false, idle };
        }
        self.tell(Happening::Opened { run: self.run.clone(), steps: titles, start }, now);
        if self.boot.idle >= MAX_IDLE_BOOTS {
            self.give_up(now)?;
        }
        Ok(())
    }

    /// Makes a transition, and stores the values of the step.
    pub(crate) fn make(
        &mut self,
        index: usize,
        wanted: &Move,
        outputs: Option<Outputs>,
        now: Now<'_>,
    ) -> Result<(), IllegalMove> {
        self.check_order(index, wanted)?;
        let state = advance(&self.steps[index], wanted, now.boot)?;
        let step = &mut self.steps[index];
        if *wanted == Move::AskReboot {
            step.reboots = step.reboots.saturating_add(1);
        }
        // A first reboot is progress; a step that requests one again and again is a loop.
        let first_reboot = *wanted == Move::AskReboot && step.reboots == 1;
        if first_reboot || matches!(wanted, Move::Finish | Move::Skip { .. } | Move::FinishRollBack) {
            self.boot.progressed = true;
            self.boot.idle = 0;
        }
        if *wanted == Move::Begin {
            step.attempts = step.attempts.saturating_add(1);
            step.started = Some(now.time);
        }
        step.ended = (!matches!(state, StepState::Applying | StepState::RollingBack)).then_some(now.time);
        now.boot.as_str().clone_into(&mut step.boot_id);
        step.state = state.clone();
        let name = step.name.clone();
        let attempts = step.attempts;
        if let Some(outputs) = outputs {
            self.values.extend(outputs.0);
        }
        match (wanted, &state) {
            (Move::Reopen, StepState::Failed { .. }) => {
                self.failure = None;
                self.boot.idle = 0;
                self.tell(Happening::Reopened { step: name }, now);
                return Ok(());
            }
            (Move::Reopen, _) => self.tell(Happening::Reopened { step: name.clone() }, now),
            (Move::Fail { .. }, StepState::Failed { reason, retry: Retry::Never }) => {
                self.failure = Some(Failure { step: name.clone(), reason: reason.clone() });
            }
            _ => {}
        }
        self.tell(Happening::Step { step: name, state, attempts }, now);
        self.tell_end(now);
        Ok(())
    }

    /// Abandons the run on request of an administrator, so that another request can use the machine.
    pub(crate) fn abandon(&mut self, reason: String, now: Now<'_>) -> Result<(), IllegalMove> {
        if self.ended().is_some() {
            return Err(IllegalMove::Ended { verb: "be abandoned" });
        }
        self.abandoned = Some(bounded(reason));
        self.tell_end(now);
        Ok(())
    }

    /// Allows another attempt on request of an administrator: of the failed step, or, in a rollback, of the failed
    /// rollbacks.
    pub(crate) fn reopen(&mut self, now: Now<'_>) -> Result<(), IllegalMove> {
        let back = self.steps.iter().any(is_going_back);
        let gave_up = |step: &StepRecord| match step.state {
            StepState::Failed { retry: Retry::Never, .. } => !back,
            StepState::RollbackFailed { .. } => true,
            _ => false,
        };
        let stuck: Vec<_> = (0..self.steps.len()).filter(|index| gave_up(&self.steps[*index])).collect();
        if stuck.is_empty() {
            return Err(IllegalMove::NothingToReopen);
        }
        stuck.into_iter().try_for_each(|index| self.make(index, &Move::Reopen, None, now))
    }

    fn give_up(&mut self, now: Now<'_>) -> Result<(), IllegalMove> {
        let reason = format!("{MAX_IDLE_BOOTS} boots passed without progress");
        // The rollback, or the rest of it, has its own count of boots.
        self.boot.idle = 0;
        match self.next() {
            Todo::Try(index) | Todo::Confirm(index) => {
                self.make(index, &Move::Fail { reason, retry: Retry::Never }, None, now)
            }
            Todo::RollBack(index) => {
                if self.steps[index].state != StepState::RollingBack {
                    self.make(index, &Move::RollBack, None, now)?;
                }
                self.make(index, &Move::FailRollBack { reason }, None, now)
            }
            Todo::Stop(_) => Ok(()),
        }
    }

    /// Checks that steps run in order, and roll back in reverse order.
    fn check_order(&self, index: usize, wanted: &Move) -> Result<(), IllegalMove> {
        let verb = wanted.verb();
        let Some(step) = self.steps.get(index) else { return Err(IllegalMove::NoStep { index }) };
        if self.abandoned.is_some() {
            return Err(IllegalMove::Ended { verb });
        }
        let blocked = |blocker: &StepRecord| IllegalMove::Order {
            step: step.name.clone(),
            verb,
            blocker: blocker.name.clone(),
            state: blocker.state.name(),
        };
        match wanted {
            Move::RollBack | Move::FinishRollBack | Move::FailRollBack { .. } => {
                if self.failure.is_none() || self.on_failure == OnFailure::Stop {
                    return Err(IllegalMove::State {
                        step: step.name.clone(),
                        state: step.state.name(),
                        verb,
                    });
                }
                self.steps[index + 1..]
                    .iter()
                    .find(|later| is_to_roll_back(later))
                    .map_or(Ok(()), |later| Err(blocked(later)))
            }
            Move::Reopen => match self.steps.iter().find(|other| is_going_back(other)) {
                Some(other) if matches!(step.state, StepState::Failed { .. }) => Err(blocked(other)),
                _ => Ok(()),
            },
            _ if self.failure.is_some() => Err(IllegalMove::Ended { verb }),
            _ => self.steps[..index]
                .iter()
                .find(|earlier| !earlier.state.is_behind())
                .map_or(Ok(()), |earlier| Err(blocked(earlier))),
        }
    }

    /// Returns the first unfinished step.
    fn current(&self) -> Option<usize> {
        self.steps.iter().position(|step| !step.state.is_behind())
    }

    fn last_to_roll_back(&self) -> Option<usize> {
        self.steps.iter().rposition(is_to_roll_back)
    }

    fn stuck(&self) -> Vec<String> {
        let stuck = |step: &&StepRecord| matches!(step.state, StepState::RollbackFailed { .. });
        self.steps.iter().filter(stuck).map(|step| step.name.clone()).collect()
    }

    fn tell_end(&mut self, now: Now<'_>) {
        if let Some(outcome) = self.ended() {
            self.tell(Happening::Ended { outcome }, now);
        }
    }

    fn tell(&mut self, what: Happening, now: Now<'_>) {
        self.sequence += 1;
        if self.history.len() >= MAX_HISTORY {
            self.history.remove(0);
        }
        self.history.push(Event {
            format: FORMAT,
            attempt: self.attempt.clone(),
            sequence: self.sequence,
            part: 0,
            time: now.time,
            boot_id: now.boot.as_str().to_owned(),
            what,
        });
    }
}

fn is_going_back(step: &StepRecord) -> bool {
    matches!(step.state, StepState::RollingBack | StepState::RolledBack | StepState::RollbackFailed { .. })
}

/// The step changed something that was not rolled back or abandoned yet.
fn is_to_roll_back(step: &StepRecord) -> bool {
    step.attempts > 0
        && !matches!(
            step.state,
            StepState::RolledBack
                | StepState::RollbackFailed { .. }
                | StepState::Skipped { .. }
                | StepState::Pending
        )
}

#[cfg(test)]
mod tests;
