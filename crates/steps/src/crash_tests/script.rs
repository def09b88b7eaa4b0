//! A scripted step for tests that returns prepared answers and records every call.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use landfall_model::step::Outcome;
use tokio_util::sync::CancellationToken;

use crate::events::EventStream;
use crate::*;
use landfall_durable::simulated::SimulatedDisk;

pub(crate) const STATE: &str = "/var/lib/landfall";

/// The recorded calls, in order: `check one`, `apply one`, …
pub(crate) type Calls = Arc<Mutex<Vec<String>>>;

#[derive(Clone, Debug)]
pub(crate) enum Answer<T> {
    Say(Result<T, StepError>),
    /// Never returns.
    Hang,
    /// Returns some seconds after a cancellation.
    AfterCancel(T),
}

#[derive(Clone, Default)]
pub(crate) struct Script {
    pub(crate) name: &'static str,
    pub(crate) limits: Limits,
    pub(crate) needs: Vec<Slot>,
    pub(crate) gives: Vec<Slot>,
    pub(crate) reads: Option<Key<String>>,
    pub(crate) check: Arc<Mutex<VecDeque<Answer<Found>>>>,
    pub(crate) apply: Arc<Mutex<VecDeque<Answer<Applied>>>>,
    pub(crate) confirm: Arc<Mutex<VecDeque<Answer<Confirmed>>>>,
    pub(crate) roll_back: Arc<Mutex<VecDeque<Answer<()>>>>,
    pub(crate) calls: Calls,
}

pub(crate) fn disk() -> SimulatedDisk {
    SimulatedDisk::new(&["/var/lib"])
}

pub(crate) fn boot(id: &str) -> BootId {
    BootId::parse(id).unwrap()
}

pub(crate) fn plan(steps: &[&Script], on_failure: OnFailure) -> Plan {
    let plan = Plan::of("test").on_failure(on_failure);
    steps.iter().fold(plan, |plan, step| plan.step((*step).clone())).build().unwrap()
}

/// Simulates one process: opens the ledger and runs until it has to stop.
pub(crate) async fn process(
    disk: &SimulatedDisk,
    plan: &Plan,
    boot_id: &str,
) -> Result<Outcome, LedgerError> {
    process_until(disk, plan, boot_id, &CancellationToken::new()).await
}

pub(crate) async fn process_until(
    disk: &SimulatedDisk,
    plan: &Plan,
    boot_id: &str,
    cancel: &CancellationToken,
) -> Result<Outcome, LedgerError> {
    let mut ledger = Ledger::open(Arc::new(disk.clone()), Path::new(STATE), plan, boot(boot_id))?;
    run(plan, &mut ledger, &EventStream::default(), cancel).await
}

// === impl Script ===

impl Script {
    pub(crate) fn new(name: &'static str, calls: &Calls) -> Self {
        Self { name, calls: calls.clone(), ..Self::default() }
    }

    pub(crate) fn check(self, answers: impl IntoIterator<Item = Answer<Found>>) -> Self {
        self.check.lock().unwrap().extend(answers);
        self
    }

    pub(crate) fn apply(self, answers: impl IntoIterator<Item = Answer<Applied>>) -> Self {
        self.apply.lock().unwrap().extend(answers);
        self
    }

    pub(crate) fn confirm(self, answers: impl IntoIterator<Item = Answer<Confirmed>>) -> Self {
        self.confirm.lock().unwrap().extend(answers);
        self
    }

    pub(crate) fn roll_back(self, answers: impl IntoIterator<Item = Answer<()>>) -> Self {
        self.roll_back.lock().unwrap().extend(answers);
        self
    }

    async fn answer<T>(
        &self,
        what: &str,
        answers: &Mutex<VecDeque<Answer<T>>>,
        usual: T,
        context: &Context<'_>,
    ) -> Result<T, StepError> {
        self.calls.lock().unwrap().push(format!("{what} {}", self.name));
        let answer = answers.lock().unwrap().pop_front();
        match answer {
            None => Ok(usual),
            Some(Answer::Say(answer)) => answer,
            Some(Answer::Hang) => std::future::pending().await,
            Some(Answer::AfterCancel(answer)) => {
                context.cancelled().await;
                tokio::time::sleep(Duration::from_secs(5)).await;
                Ok(answer)
            }
        }
    }
}

impl Step for Script {
    fn spec(&self) -> StepSpec {
        StepSpec::new(self.name, format!("Do {}", self.name))
            .needs(self.needs.clone())
            .gives(self.gives.clone())
            .limits(self.limits)
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        if let Some(key) = &self.reads {
            context.get(key)?;
        }
        self.answer("check", &self.check, Found::Needed, context).await
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        if context.interrupted() != Interrupted::No {
            self.calls.lock().unwrap().push(format!("interrupted {:?}", context.interrupted()));
        }
        self.answer("apply", &self.apply, Applied::Done(Outputs::none()), context).await
    }

    async fn confirm(&self, context: &Context<'_>) -> Result<Confirmed, StepError> {
        self.answer("confirm", &self.confirm, Confirmed::Holds, context).await
    }

    async fn roll_back(&self, context: &Context<'_>) -> Result<(), StepError> {
        self.answer("roll back", &self.roll_back, (), context).await
    }
}
