//! The part of an attempt that one process runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use landfall_durable::Access;
use landfall_model::Secret;
use landfall_model::step::Outcome;
use landfall_steps::RunRecord;
use landfall_steps::events::{EventStream, Sink};
use tokio_util::sync::CancellationToken;

use crate::environment::{make_dir, read};
use crate::in_place::credentials::{self, Credentials};
use crate::in_place::environment::InPlaceEnvironment;
use crate::in_place::flavour::{Flavour, RELEASE_FILES};
use crate::in_place::gate::{self, Gate};
use crate::in_place::places::{Folder, LOGGED, RUN};
use crate::in_place::preflight::{self, Report};
use crate::in_place::progress::{Teller, Wake};
use crate::in_place::request::{ClusterUse, LABEL, Request, SEED_LABEL};
use crate::in_place::steps::{self, Given, INSTALL, REQUEST, SECRET_DIGEST};
use crate::in_place::units;
use crate::run::{
    RunError, STATE, abandon, execute, is_open, make_parent, open_ledger, open_record, records,
};

const MAX_RELEASE: u64 = 64 * 1024;
/// Upper bound for attempts with the same Secret.
const MAX_ATTEMPTS: u32 = 100;
/// Length limit of a line shown to people; the log file contains the complete line.
const MAX_SHOWN: usize = 400;
/// Number of bytes at the end of a log that are searched for the last line.
const MAX_END: usize = 8 * 1024;

/// An attempt: the request, and the Secret while it is available.
#[expect(missing_debug_implementations, reason = "holds credentials")]
pub struct Attempt {
    pub request: Request,
    pub digest: String,
    pub given: Option<Arc<Given>>,
}

/// The log of a program that an attempt ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    pub path: PathBuf,
    pub last_line: String,
}

// === impl Attempt ===

impl Attempt {
    /// Creates an attempt; the same request with the same Secret gives the same attempt.
    pub fn new(request: Request, raw: Secret<Vec<u8>>) -> Self {
        let credentials = Credentials::parse(&raw, request.flavour);
        let digest = credentials::digest(&raw);
        Self { request, digest, given: Some(Arc::new(Given { raw, credentials })) }
    }

    /// Returns the attempt that is open on this machine.
    pub fn open(env: &impl InPlaceEnvironment) -> Result<Self, RunError> {
        let record = open_record(env, RUN)?;
        let request = record.get(&REQUEST).map_err(RunError::Request)?;
        let digest = record.get(&SECRET_DIGEST).map_err(RunError::Request)?;
        let path = Folder::of(record.attempt()).secret();
        let raw = read(env, &path, credentials::MAX_BYTES)
            .map_err(|source| RunError::Read { path: path.clone(), source })?
            .map(Secret::new);
        let given = raw.map(|raw| {
            let credentials = Credentials::parse(&raw, request.flavour);
            Arc::new(Given { raw, credentials })
        });
        Ok(Self { request, digest, given })
    }

    /// Returns the values that programs of the machine must not write to logs.
    pub fn secrets(&self) -> Vec<Secret<String>> {
        let credentials = self.given.as_ref().and_then(|given| given.credentials.as_ref().ok());
        credentials.map(Credentials::secrets).unwrap_or_default()
    }

    /// Returns the name of the attempt.
    pub fn id<W: InPlaceEnvironment>(&self, env: &Arc<W>) -> Result<String, RunError> {
        let plan = steps::plan(env, &self.request, &self.digest, self.given.as_ref());
        Ok(plan.map_err(RunError::Plan)?.attempt().to_owned())
    }
}

/// Continues an attempt as far as this boot allows. The result of an ended attempt comes from its ledger.
pub async fn run<W: InPlaceEnvironment>(
    env: &Arc<W>,
    attempt: &Attempt,
    mut sinks: Vec<Box<dyn Sink>>,
    cancel: &CancellationToken,
) -> Result<Outcome, RunError> {
    let Attempt { request, digest, given } = attempt;
    let plan = steps::plan(env, request, digest, given.as_ref()).map_err(RunError::Plan)?;
    let is_other = |record: &&RunRecord| is_open(record) && record.attempt() != plan.attempt();
    for other in records(&**env, RUN)?.iter().filter(is_other) {
        if is_armed(other) {
            return Err(RunError::InProgress { attempt: other.attempt().to_owned() });
        }
        // Nothing was changed yet: a new Secret replaces the previous one.
        abandon(&**env, other, "another request took its place")?;
        env.remove_all(Folder::of(other.attempt()).path()).map_err(RunError::Cleanup)?;
    }
    let mut ledger = open_ledger(&**env, &plan)?;
    let wake = Wake::default();
    sinks.push(Box::new(wake.clone()));
    let events = EventStream::new(sinks);
    let mut teller = Teller::new(env, request, plan.attempt(), given.as_ref(), &wake);
    let was_ended = !is_open(ledger.record());
    let over = CancellationToken::new();
    let work = async {
        let outcome = execute(&plan, &mut ledger, &events, cancel).await;
        over.cancel();
        outcome
    };
    let telling = async {
        teller.run(&over).await;
        Ok(())
    };
    let (outcome, ()) = tokio::try_join!(work, telling)?;
    if outcome.is_final() {
        conclude(&**env, request, plan.attempt(), was_ended).await?;
    }
    Ok(outcome)
}

/// Removes the units that continue the attempt after each boot, and the label of an attempt that never removed it.
///
/// It is idempotent.
pub async fn conclude(
    env: &impl InPlaceEnvironment,
    request: &Request,
    attempt: &str,
    was_ended: bool,
) -> Result<(), RunError> {
    tidy(env, attempt).await?;
    // The kubelet may have stopped waiting at the gate. Starting a running kubelet has no effect.
    if !was_ended && let Err(error) = env.start_unit("kubelet.service").await {
        tracing::info!(error, "The kubelet is left to the next boot.");
    }
    if request.cluster == ClusterUse::Needed && !was_ended {
        for label in [SEED_LABEL, LABEL] {
            if let Err(error) = env.remove_label(&request.node, label).await {
                tracing::info!(label, error = error.reason, "The label stays: the ledger answers for it.");
            }
        }
    }
    Ok(())
}

/// Removes units, program and work directory.
async fn tidy(env: &impl InPlaceEnvironment, attempt: &str) -> Result<(), RunError> {
    env.remove_all(Folder::of(attempt).path()).map_err(RunError::Cleanup)?;
    let mut removed = false;
    for path in units::to_remove() {
        removed |= env.exists(&path).map_err(RunError::Cleanup)?;
        env.remove_all(&path).map_err(RunError::Cleanup)?;
    }
    if removed && let Err(error) = env.reload_units().await {
        tracing::info!(error, "systemd has not seen yet that the gate is gone.");
    }
    Ok(())
}

/// Removes the remains of an ended attempt, in a boot in which no attempt is open.
pub async fn tidy_up(env: &impl InPlaceEnvironment) -> Result<(), RunError> {
    for record in records(env, RUN)?.iter().filter(|record| !is_open(record)) {
        tidy(env, record.attempt()).await?;
    }
    Ok(())
}

/// Checks whether the attempt would succeed.
///
/// Downloads are kept for the attempt, because they used up the access that the Secret grants.
pub async fn preflight<W: InPlaceEnvironment>(env: &Arc<W>, attempt: &Attempt) -> Result<Report, RunError> {
    let id = attempt.id(env)?;
    let given = attempt.given.as_ref().ok_or(RunError::NothingOpen)?;
    make_parent(&**env)?;
    make_dir(&**env, Path::new(STATE), Access::PRIVATE_DIR).map_err(RunError::State)?;
    Ok(preflight::examine(&**env, &attempt.request, given.credentials.as_ref(), &id).await)
}

/// Returns the number of the first attempt with this Secret that has not ended.
pub fn next_number<W: InPlaceEnvironment>(
    env: &Arc<W>,
    request: &Request,
    raw: &Secret<Vec<u8>>,
) -> Result<u32, RunError> {
    let records = records(&**env, RUN)?;
    for number in 0..MAX_ATTEMPTS {
        let request = Request { number, ..request.clone() };
        let plan = steps::plan(env, &request, &credentials::digest(raw), None).map_err(RunError::Plan)?;
        let record = records.iter().find(|record| record.attempt() == plan.attempt());
        if record.is_none_or(is_open) {
            return Ok(number);
        }
    }
    Err(RunError::TooMany { run: RUN, attempts: MAX_ATTEMPTS })
}

/// Returns the logs of the programs of an attempt, the latest last. Unreadable logs are left out.
pub fn logs(env: &impl InPlaceEnvironment, attempt: &str) -> Vec<Log> {
    let logs = LOGGED.iter().filter_map(|program| {
        let path = Folder::log(attempt, program);
        let last_line = last_line(env.open(&path).ok()?).ok()?;
        Some(Log { path, last_line })
    });
    logs.collect()
}

/// Returns the last line that contains text, truncated to a readable length.
fn last_line(mut reader: impl io::Read) -> io::Result<String> {
    let (mut block, mut end) = (vec![0; 64 * 1024], Vec::new());
    loop {
        let count = reader.read(&mut block)?;
        if count == 0 {
            break;
        }
        end.extend_from_slice(&block[..count]);
        end.drain(..end.len().saturating_sub(MAX_END));
    }
    let end = String::from_utf8_lossy(&end);
    let line = end.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    Ok(line.chars().take(MAX_SHOWN).collect())
}

/// Returns whether the kubelet may start now.
pub fn look_at_gate(env: &impl InPlaceEnvironment) -> Result<Gate, RunError> {
    let boot = env.boot().map_err(RunError::Boot)?;
    Ok(gate::gate(&records(env, RUN)?, &boot))
}

/// Returns the kind of this machine.
pub fn flavour(env: &impl InPlaceEnvironment) -> Result<Flavour, RunError> {
    for path in RELEASE_FILES {
        let text = read(env, Path::new(path), MAX_RELEASE)
            .map_err(|source| RunError::Read { path: path.into(), source })?;
        if let Some(text) = text {
            return Ok(Flavour::of(&String::from_utf8_lossy(&text)));
        }
    }
    Err(RunError::UnknownHost { files: &RELEASE_FILES })
}

fn is_armed(record: &RunRecord) -> bool {
    record.steps().iter().any(|step| step.name == INSTALL && step.attempts > 0)
}
