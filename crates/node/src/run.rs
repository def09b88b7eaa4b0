//! The run loop of both kinds of work on a node: opens the ledger of a plan, runs its steps, returns the outcome.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use landfall_model::step::{Outcome, Retry};
use landfall_steps::events::EventStream;
use landfall_steps::{
    BootIdError, Ledger, LedgerError, Plan, PlanError, RunRecord, StepError, ValueError, read_all,
};
use tokio_util::sync::CancellationToken;

use crate::environment::{Environment, PUBLIC_DIR, make_dir};

/// The directory of all ledgers.
pub const STATE: &str = "/var/lib/landfall";

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot tell which boot this is")]
    Boot(#[source] BootIdError),
    #[error("cannot make the directory of the ledger")]
    State(#[source] landfall_durable::Error),
    #[error("cannot read `{path}`")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot remove the files of an ended attempt")]
    Cleanup(#[source] io::Error),
    #[error("the steps do not fit together")]
    Plan(#[source] PlanError),
    #[error("cannot use the ledger")]
    Ledger(#[source] LedgerError),
    #[error("cannot read the request of the open run")]
    Request(#[source] ValueError),
    #[error("no run to resume")]
    NothingOpen,
    #[error("attempt {attempt} is in progress with different parameters")]
    InProgress { attempt: String },
    #[error("all {attempts} attempts with this request have ended: remove `{STATE}/{run}`")]
    TooMany { run: &'static str, attempts: u32 },
    #[error("cannot tell what kind of machine this is: it has none of `{}`", files.join("`, `"))]
    UnknownHost { files: &'static [&'static str] },
}

/// Returns every recorded run of this name.
pub fn records(env: &impl Environment, run: &str) -> Result<Vec<RunRecord>, RunError> {
    read_all(&*env.disk(), &env.host_path(Path::new(STATE)), run).map_err(RunError::Ledger)
}

/// Returns the run of this name that has not ended.
pub fn open_record(env: &impl Environment, run: &str) -> Result<RunRecord, RunError> {
    records(env, run)?.into_iter().find(is_open).ok_or(RunError::NothingOpen)
}

pub(crate) fn is_open(record: &RunRecord) -> bool {
    record.ended().is_none()
}

/// Ends an open run permanently, so that another request can start.
pub(crate) fn abandon(env: &impl Environment, open: &RunRecord, reason: &str) -> Result<(), RunError> {
    let boot = env.boot().map_err(RunError::Boot)?;
    let state = env.host_path(Path::new(STATE));
    Ledger::abandon(&env.disk(), &state, open.run(), open.attempt(), reason, &boot).map_err(RunError::Ledger)
}

/// Creates the parent directory of the ledgers.
pub(crate) fn make_parent(env: &impl Environment) -> Result<(), RunError> {
    make_dir(env, Path::new("/var/lib"), PUBLIC_DIR).map_err(RunError::State)
}

/// Opens the ledger of a plan, or creates it.
pub(crate) fn open_ledger(env: &impl Environment, plan: &Plan) -> Result<Ledger, RunError> {
    let boot = env.boot().map_err(RunError::Boot)?;
    make_parent(env)?;
    Ledger::open(env.disk(), &env.host_path(Path::new(STATE)), plan, boot).map_err(RunError::Ledger)
}

/// Runs the steps of a plan as far as this boot allows. The result of an ended run comes from its ledger.
pub(crate) async fn execute(
    plan: &Plan,
    ledger: &mut Ledger,
    events: &EventStream,
    cancel: &CancellationToken,
) -> Result<Outcome, RunError> {
    landfall_steps::run(plan, ledger, events, cancel).await.map_err(RunError::Ledger)
}

/// Wraps an error that a later process may not encounter.
pub(crate) fn later<E: Error>(error: E) -> StepError {
    StepError::caused(&error, Retry::Later)
}
