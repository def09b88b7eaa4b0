//! One process's part in preparing a node: finds the ledger, runs the steps, says what came of it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use landfall_model::step::Outcome;

use landfall_steps::events::EventStream;
use landfall_steps::{
    BootIdError, Ledger, LedgerError, PlanError, RunRecord, ValueError, read_all, run as run_steps,
};
use tokio_util::sync::CancellationToken;

use super::decision::Decision;
use super::request::Request;
use super::status;
use super::steps::{self, DECISION, REQUEST, RUN};
use super::why::{TroubleBox, Why};
use super::world::{World, make_dir};

pub const STATE: &str = "/var/lib/landfall";
/// What happened, line by line, for those who only collect files.
pub const EVENTS: &str = "/var/lib/landfall/node-prepare.events.jsonl";
/// A node is prepared a few times in its life.
const MAX_RUNS: u32 = 1000;

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Prepared {
    /// `kubelet.env` was there before we came, and no run of ours is open.
    Before,
    Run(Outcome),
    /// A step failed, and this kind of trouble is why. The next process tries again.
    Failed {
        step: String,
        reason: String,
        why: Why,
        decided: Decided,
    },
}

/// Whether a run has come to a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decided {
    /// Nothing is laid down: what is asked for may still change.
    NotYet,
    /// The decision holds until it is carried out or given up.
    Yes,
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot tell which boot this is")]
    Boot(#[source] BootIdError),
    #[error("cannot make the folder for the ledger")]
    State(#[source] landfall_steps::durable::Error),
    #[error("cannot look for `{path}`")]
    Look { path: PathBuf, source: io::Error },
    #[error("the steps do not fit together")]
    Plan(#[source] PlanError),
    #[error("cannot use the ledger")]
    Ledger(#[source] LedgerError),
    #[error("this node was prepared {MAX_RUNS} times: remove `{STATE}/{RUN}`")]
    TooMany,
    #[error("cannot read what the open run was asked for")]
    Request(#[source] ValueError),
    #[error("there is no run to go on with")]
    NothingOpen,
}

/// What to do with an unfinished run that was asked for otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// Leave it to a person.
    Respect,
    /// Give it up.
    Abandon,
}

/// Prepares the node as asked, or goes on with it.
pub async fn prepare<W: World>(
    world: &Arc<W>,
    request: &Request,
    other: Other,
    events: &EventStream,
    cancel: &CancellationToken,
) -> Result<Prepared, RunError> {
    let mut records = self::records(&**world)?;
    let is_written = is_written(&**world, request)?;
    let open = records.iter().find(|record| record.ended().is_none());
    if is_written && open.is_none() {
        return Ok(Prepared::Before);
    }
    let boot = world.boot().map_err(RunError::Boot)?;
    let state = world.place(Path::new(STATE));
    let given_up = open.and_then(|open| Some((open.attempt().to_owned(), give_up(open, request, other)?)));
    if let Some((attempt, reason)) = given_up {
        Ledger::abandon(&world.disk(), &state, RUN, &attempt, reason, &boot).map_err(RunError::Ledger)?;
        records = self::records(&**world)?;
    }
    for number in 0..MAX_RUNS {
        let trouble = TroubleBox::default();
        let plan = steps::plan(world, request, number, &trouble).map_err(RunError::Plan)?;
        let earlier = records.iter().find(|record| record.attempt() == plan.attempt());
        if earlier.is_some_and(|record| record.ended().is_some()) {
            continue;
        }
        make_dir(&**world, Path::new("/var/lib"), steps::PUBLIC_DIR).map_err(RunError::State)?;
        let mut ledger = Ledger::open(world.disk(), &state, &plan, boot).map_err(RunError::Ledger)?;
        let outcome = run_steps(&plan, &mut ledger, events, cancel).await.map_err(RunError::Ledger)?;
        let trouble = match &outcome {
            Outcome::Failed { step, .. } => Some(trouble.take(step)),
            _ => None,
        };
        let why = trouble.as_ref().map(|trouble| trouble.why);
        status::leave(&**world, ledger.record(), &outcome, trouble);
        let decided = if decision_of(ledger.record()).is_some() { Decided::Yes } else { Decided::NotYet };
        return Ok(match (outcome, why) {
            (Outcome::Failed { step, reason, .. }, Some(why)) => {
                Prepared::Failed { step, reason, why, decided }
            }
            (outcome, _) => Prepared::Run(outcome),
        });
    }
    Err(RunError::TooMany)
}

/// Why an open run is given up, if it is. Also when the same is asked for again: what it was decided from may have been
/// mended. A run that came to no decision has laid nothing down, and need not be asked about.
fn give_up(open: &RunRecord, request: &Request, other: Other) -> Option<&'static str> {
    if other == Other::Abandon {
        return Some("somebody asked to start over");
    }
    let same = open.get(&REQUEST).is_ok_and(|asked| asked == *request);
    (!same && decision_of(open).is_none()).then_some("it was asked for otherwise before anything was decided")
}

/// What the open run was asked for, to go on with it.
pub fn open_request(world: &impl World) -> Result<Request, RunError> {
    let records = records(world)?;
    let open = records.iter().find(|record| record.ended().is_none()).ok_or(RunError::NothingOpen)?;
    open.get(&REQUEST).map_err(RunError::Request)
}

/// Every run of this node that left a record.
pub fn records(world: &impl World) -> Result<Vec<RunRecord>, RunError> {
    read_all(&*world.disk(), &world.place(Path::new(STATE)), RUN).map_err(RunError::Ledger)
}

/// The decision of a run, once it has come to one.
pub fn decision_of(record: &RunRecord) -> Option<Decision> {
    record.get(&DECISION).ok()
}

fn is_written(world: &impl World, request: &Request) -> Result<bool, RunError> {
    let Some(path) = &request.kubelet_env else { return Ok(false) };
    match world.disk().read(&world.place(path), u64::from(u32::MAX)) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(false)
        }
        Err(source) => Err(RunError::Look { path: path.clone(), source }),
    }
}
