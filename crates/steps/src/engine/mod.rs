//! Runs a plan against its ledger: gets the next action from the record, calls the step, and records the result.
//!
//! The disk always has the valid state: an error, a dropped future or a killed process leaves a ledger from which the
//! next start continues.

use std::time::Duration;

use landfall_model::step::{Outcome, Retry, StepState};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::events::EventStream;
use crate::ledger::{Ledger, LedgerError};
use crate::machine::Move;
use crate::plan::Plan;
use crate::record::Todo;
use crate::step::{
    AnyStep, Applied, Confirmed, Context, Found, Interrupted, PlannedStep, StepError, StepSpec, Work, bounded,
};
use crate::values::{Outputs, Slot};

/// Time that `apply` may continue after a cancellation, well below the 90 s that a service manager allows.
const GRACE: Duration = Duration::from_secs(20);

/// Runs a plan until it is done or this process cannot continue.
///
/// The result of an ended attempt comes from the ledger; no step is called and nothing is written. Dropping the
/// future is as safe as killing the process. Cancellation is better, because it gives a step that is changing
/// something a short time to finish. Writing the ledger blocks the thread until the disk has finished, so run this in
/// a separate task of a multi-threaded runtime.
pub async fn run(
    plan: &Plan,
    ledger: &mut Ledger,
    events: &EventStream,
    cancel: &CancellationToken,
) -> Result<Outcome, LedgerError> {
    if let Some(outcome) = ledger.record().ended() {
        return Ok(outcome);
    }
    let told = ledger.enter(plan)?;
    events.tell(&told);
    let mut engine = Engine { plan, ledger, events, cancel };
    engine.run().await
}

struct Engine<'a> {
    plan: &'a Plan,
    ledger: &'a mut Ledger,
    events: &'a EventStream,
    cancel: &'a CancellationToken,
}

/// Result of one attempt at a step.
enum Tried {
    /// The record has advanced and knows the next action.
    Moved,
    /// The attempt failed and may be retried in this process; the failure is already recorded.
    Again,
    Cancelled,
}

/// The run was canceled.
struct Stopped;

// === impl Engine ===

impl Engine<'_> {
    async fn run(&mut self) -> Result<Outcome, LedgerError> {
        let mut failures = 0;
        let mut last = None;
        loop {
            let todo = self.ledger.record().next();
            let index = match todo {
                Todo::Stop(outcome) => return Ok(outcome),
                Todo::Try(index) | Todo::Confirm(index) | Todo::RollBack(index) => index,
            };
            if self.cancel.is_cancelled() {
                return Ok(Outcome::Cancelled);
            }
            if last != Some(index) {
                (failures, last) = (0, Some(index));
            }
            let tried = match todo {
                Todo::RollBack(_) => self.roll_back(index, failures).await?,
                Todo::Confirm(_) => self.confirm(index, failures).await?,
                _ => self.attempt(index, failures).await?,
            };
            match tried {
                Tried::Cancelled => return Ok(Outcome::Cancelled),
                Tried::Moved => {
                    if let Some(outcome) = self.ledger.record().outcome_of(index)
                        && !outcome.is_final()
                    {
                        return Ok(outcome);
                    }
                }
                Tried::Again => {
                    failures += 1;
                    let pause = self.plan.steps[index].spec.limits.backoff.pause_after(failures);
                    let pause = tokio::time::sleep(pause.unwrap_or_default());
                    tokio::select! {
                        () = self.cancel.cancelled() => return Ok(Outcome::Cancelled),
                        () = pause => {}
                    }
                }
            }
        }
    }

    /// Confirms work that takes effect in this boot.
    async fn confirm(&mut self, index: usize, failures: u32) -> Result<Tried, LedgerError> {
        let deadline = Instant::now() + self.plan.steps[index].spec.limits.deadline;
        let confirmed = self.look(index, deadline, |step, context| step.confirm(context)).await;
        self.conclude(index, confirmed, None, failures)
    }

    /// Makes one attempt: `check`, `apply`, `confirm`.
    async fn attempt(&mut self, index: usize, failures: u32) -> Result<Tried, LedgerError> {
        let step = &self.plan.steps[index].spec;
        let deadline = Instant::now() + step.limits.deadline;
        let begun = self.ledger.record().steps()[index].attempts > 0;
        match self.look(index, deadline, |step, context| step.check(context)).await {
            Err(Stopped) => Ok(Tried::Cancelled),
            Ok(Err(error)) => self.fail(index, error, failures),
            Ok(Ok(Found::Waiting { on })) => self.make(index, &Move::Wait { on: bounded(on) }, None),
            Ok(Ok(Found::Satisfied { reason, outputs })) => {
                if let Err(error) = check_outputs(step, &outputs) {
                    return self.fail(index, error, failures);
                }
                if !begun {
                    return self.make(index, &Move::Skip { reason: bounded(reason) }, Some(outputs));
                }
                let confirmed = self.look(index, deadline, |step, context| step.confirm(context)).await;
                self.conclude(index, confirmed, Some(outputs), failures)
            }
            Ok(Ok(Found::RebootNeeded(outputs))) => match check_outputs(step, &outputs) {
                Ok(()) => self.make(index, &Move::AskReboot, Some(outputs)),
                Err(error) => self.fail(index, error, failures),
            },
            Ok(Ok(Found::Needed)) => self.apply(index, deadline, failures).await,
        }
    }

    async fn apply(&mut self, index: usize, deadline: Instant, failures: u32) -> Result<Tried, LedgerError> {
        let step = &self.plan.steps[index].spec;
        let interrupted = self.interrupted(index);
        self.make(index, &Move::Begin, None)?;
        let applied = self.change(index, deadline, interrupted, |step, context| step.apply(context)).await;
        let (outputs, reboot) = match applied {
            Err(Stopped) => return Ok(Tried::Cancelled),
            Ok(Err(error)) => return self.fail(index, error, failures),
            Ok(Ok(Applied::Waiting { on })) => {
                return self.make(index, &Move::Wait { on: bounded(on) }, None);
            }
            Ok(Ok(Applied::Done(outputs))) => (outputs, false),
            Ok(Ok(Applied::RebootNeeded(outputs))) => (outputs, true),
        };
        if let Err(error) = check_outputs(step, &outputs) {
            return self.fail(index, error, failures);
        }
        if reboot {
            return self.make(index, &Move::AskReboot, Some(outputs));
        }
        let confirmed =
            self.change(index, deadline, interrupted, |step, context| step.confirm(context)).await;
        self.conclude(index, confirmed, Some(outputs), failures)
    }

    fn conclude(
        &mut self,
        index: usize,
        confirmed: Result<Result<Confirmed, StepError>, Stopped>,
        outputs: Option<Outputs>,
        failures: u32,
    ) -> Result<Tried, LedgerError> {
        match confirmed {
            Err(Stopped) => Ok(Tried::Cancelled),
            Ok(Err(error)) => self.fail(index, error, failures),
            Ok(Ok(Confirmed::Waiting { on })) => self.make(index, &Move::Wait { on: bounded(on) }, None),
            Ok(Ok(Confirmed::Holds)) => self.make(index, &Move::Finish, outputs),
        }
    }

    /// Records a failure. A step without attempts left in this process is left to the next process.
    fn fail(&mut self, index: usize, error: StepError, failures: u32) -> Result<Tried, LedgerError> {
        let StepError { reason, retry } = error;
        let backoff = self.plan.steps[index].spec.limits.backoff;
        let retry = match retry {
            Retry::Now if backoff.pause_after(failures + 1).is_none() => Retry::Later,
            retry => retry,
        };
        self.make(index, &Move::Fail { reason, retry }, None)?;
        Ok(if retry == Retry::Now { Tried::Again } else { Tried::Moved })
    }

    async fn roll_back(&mut self, index: usize, failures: u32) -> Result<Tried, LedgerError> {
        let limits = self.plan.steps[index].spec.limits;
        let interrupted = self.interrupted(index);
        if self.ledger.record().steps()[index].state != StepState::RollingBack {
            self.make(index, &Move::RollBack, None)?;
        }
        let deadline = Instant::now() + limits.deadline;
        match self.change(index, deadline, interrupted, |step, context| step.roll_back(context)).await {
            Err(Stopped) => Ok(Tried::Cancelled),
            Ok(Ok(())) => self.make(index, &Move::FinishRollBack, None),
            Ok(Err(error))
                if error.retry == Retry::Now && limits.backoff.pause_after(failures + 1).is_some() =>
            {
                Ok(Tried::Again)
            }
            Ok(Err(error)) => self.make(index, &Move::FailRollBack { reason: error.reason }, None),
        }
    }

    /// Calls an operation that only reads; a cancellation ends it immediately.
    async fn look<T>(
        &self,
        index: usize,
        deadline: Instant,
        call: impl for<'c> FnOnce(&'c dyn AnyStep, &'c Context<'_>) -> Work<'c, T>,
    ) -> Result<Result<T, StepError>, Stopped> {
        self.call(index, deadline, self.interrupted(index), Duration::ZERO, call).await
    }

    /// Calls an operation that makes changes; after a cancellation it has time to finish.
    async fn change<T>(
        &self,
        index: usize,
        deadline: Instant,
        interrupted: Interrupted,
        call: impl for<'c> FnOnce(&'c dyn AnyStep, &'c Context<'_>) -> Work<'c, T>,
    ) -> Result<Result<T, StepError>, Stopped> {
        self.call(index, deadline, interrupted, GRACE, call).await
    }

    async fn call<T>(
        &self,
        index: usize,
        deadline: Instant,
        interrupted: Interrupted,
        grace: Duration,
        call: impl for<'c> FnOnce(&'c dyn AnyStep, &'c Context<'_>) -> Work<'c, T>,
    ) -> Result<Result<T, StepError>, Stopped> {
        let PlannedStep { spec, work } = &self.plan.steps[index];
        let readable: Vec<Slot> = spec.needs.iter().chain(&spec.gives).copied().collect();
        let record = self.ledger.record();
        let context = Context {
            step: spec.name,
            readable: &readable,
            values: record.values(),
            attempt: record.attempt(),
            boot: self.ledger.boot(),
            attempts: record.steps()[index].attempts,
            interrupted,
            cancel: self.cancel,
            events: self.events,
        };
        let stopped = async {
            self.cancel.cancelled().await;
            tokio::time::sleep(grace).await;
        };
        tokio::select! {
            biased;
            result = timeout_at(deadline, call(&**work, &context)) => Ok(result.unwrap_or_else(|_| {
                let limit = spec.limits.deadline;
                Err(StepError::now(format!("did not complete within {limit:?}")))
            })),
            () = stopped => Err(Stopped),
        }
    }

    fn interrupted(&self, index: usize) -> Interrupted {
        let step = &self.ledger.record().steps()[index];
        match step.state {
            StepState::Applying | StepState::RollingBack if step.boot_id == self.ledger.boot().as_str() => {
                Interrupted::InThisBoot
            }
            StepState::Applying | StepState::RollingBack => Interrupted::InEarlierBoot,
            _ => Interrupted::No,
        }
    }

    fn make(&mut self, index: usize, wanted: &Move, outputs: Option<Outputs>) -> Result<Tried, LedgerError> {
        let told = self.ledger.change(|record, now| record.make(index, wanted, outputs, now))?;
        self.events.tell(&told);
        Ok(Tried::Moved)
    }
}

/// Checks that a step returns exactly the values it declared: a missing one would otherwise be noticed one reboot
/// later.
fn check_outputs(step: &StepSpec, outputs: &Outputs) -> Result<(), StepError> {
    let declared = &step.gives;
    if let Some(missing) = declared.iter().find(|slot| !outputs.0.contains_key(slot.name)) {
        return Err(StepError::never(format!("the step did not give `{}`", missing.name)));
    }
    if let Some(extra) = outputs.0.keys().find(|name| !declared.iter().any(|slot| slot.name == name.as_str()))
    {
        return Err(StepError::never(format!("the step gave `{extra}`, which it had not declared")));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
