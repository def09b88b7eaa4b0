//! The part of preparing a node that one process runs.

use std::sync::Arc;

use landfall_model::step::Outcome;

use landfall_steps::RunRecord;
use landfall_steps::events::EventStream;
use tokio_util::sync::CancellationToken;

use super::decision::Decision;
use super::request::Request;
use super::status;
use super::steps::{self, DECISION, REQUEST, RUN};
use super::why::{TroubleBox, Why};
use crate::environment::read;
use crate::prepare::environment::PrepareEnvironment;
use crate::run::{RunError, abandon, execute, is_open, open_ledger, open_record, records};

/// Event log, one event per line, for tools that only collect files.
pub const EVENTS: &str = "/var/lib/landfall/node-prepare.events.jsonl";
/// A node is prepared only a few times before it is reinstalled.
const MAX_RUNS: u32 = 1000;

/// Outcome of preparing a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Prepared {
    /// `kubelet.env` existed before the first run, and no run is open.
    Before,
    Run(Outcome),
    /// A step failed for this kind of reason. The next process tries again.
    Failed {
        step: String,
        reason: String,
        why: Why,
        decided: Decided,
    },
}

/// Whether a run has reached a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decided {
    /// Nothing has been written; the request may still change.
    NotYet,
    /// The decision holds until it is applied or abandoned.
    Yes,
}

/// Handling of an unfinished run with a different request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// Leave the run to an administrator.
    Respect,
    /// Abandon the run.
    Abandon,
}

/// Prepares the node as requested, or continues an unfinished run.
pub async fn prepare<W: PrepareEnvironment>(
    env: &Arc<W>,
    request: &Request,
    other: Other,
    events: &EventStream,
    cancel: &CancellationToken,
) -> Result<Prepared, RunError> {
    let mut records = records(&**env, RUN)?;
    let open = records.iter().find(|record| is_open(record));
    if open.is_none() && is_written(&**env, request)? {
        return Ok(Prepared::Before);
    }
    if let Some((open, reason)) = open.and_then(|open| Some((open, give_up(open, request, other)?))) {
        abandon(&**env, open, reason)?;
        records = self::records(&**env, RUN)?;
    }
    for number in 0..MAX_RUNS {
        let trouble = TroubleBox::default();
        let plan = steps::plan(env, request, number, &trouble).map_err(RunError::Plan)?;
        let earlier = records.iter().find(|record| record.attempt() == plan.attempt());
        if earlier.is_some_and(|record| !is_open(record)) {
            continue;
        }
        let mut ledger = open_ledger(&**env, &plan)?;
        let outcome = execute(&plan, &mut ledger, events, cancel).await?;
        let trouble = match &outcome {
            Outcome::Failed { step, .. } => Some(trouble.take(step)),
            _ => None,
        };
        let why = trouble.as_ref().map(|trouble| trouble.why);
        status::leave(&**env, ledger.record(), &outcome, trouble);
        let decided = if decision_of(ledger.record()).is_some() { Decided::Yes } else { Decided::NotYet };
        return Ok(match (outcome, why) {
            (Outcome::Failed { step, reason, .. }, Some(why)) => {
                Prepared::Failed { step, reason, why, decided }
            }
            (outcome, _) => Prepared::Run(outcome),
        });
    }
    Err(RunError::TooMany { run: RUN, attempts: MAX_RUNS })
}

/// Returns the reason for abandoning an open run, if there is one.
///
/// A run may be abandoned even for an identical request: the inputs of its decision may have been fixed since. A run
/// without a decision has written nothing, so a different request abandons it without [`Other::Abandon`].
fn give_up(open: &RunRecord, request: &Request, other: Other) -> Option<&'static str> {
    if other == Other::Abandon {
        return Some("a restart was requested");
    }
    let same = open.get(&REQUEST).is_ok_and(|asked| asked == *request);
    (!same && decision_of(open).is_none()).then_some("the options changed before the decision")
}

/// Returns the request of the open run, to resume it.
pub fn open_request(env: &impl PrepareEnvironment) -> Result<Request, RunError> {
    open_record(env, RUN)?.get(&REQUEST).map_err(RunError::Request)
}

/// Returns the decision of a run, if it has reached one.
pub fn decision_of(record: &RunRecord) -> Option<Decision> {
    record.get(&DECISION).ok()
}

fn is_written(env: &impl PrepareEnvironment, request: &Request) -> Result<bool, RunError> {
    let Some(path) = &request.kubelet_env else { return Ok(false) };
    // A dangling link does not count as a file: the kubelet cannot read it.
    let found = read(env, path, u64::from(u32::MAX));
    found.map(|found| found.is_some()).map_err(|source| RunError::Read { path: path.clone(), source })
}
