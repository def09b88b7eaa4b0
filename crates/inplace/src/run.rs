//! One process's part in an attempt: finds the ledger, runs the steps, tells what came of it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use landfall_model::Secret;
use landfall_model::step::Outcome;
use landfall_steps::durable::Access;
use landfall_steps::events::{EventStream, Sink};
use landfall_steps::{
    BootIdError, Ledger, LedgerError, PlanError, RunRecord, ValueError, read_all, run as run_steps,
};
use tokio_util::sync::CancellationToken;

use crate::credentials::{self, Credentials};
use crate::flavour::{Flavour, RELEASE_FILES};
use crate::gate::{self, Gate};
use crate::places::{Folder, LOGGED, RUN, STATE};
use crate::preflight::{self, Report};
use crate::progress::{Teller, Wake};
use crate::request::{ClusterUse, LABEL, Request, SEED_LABEL};
use crate::steps::{self, Given, INSTALL, REQUEST, SECRET_DIGEST};
use crate::units;
use crate::world::{PUBLIC_DIR, World, make_dir, read};

const MAX_RELEASE: u64 = 64 * 1024;
/// Nobody insists more often on the same Secret.
const MAX_ATTEMPTS: u32 = 100;
/// Of a line, for people: more is in the file.
const MAX_SHOWN: usize = 400;
/// Of a log, where its last line is looked for.
const MAX_END: usize = 8 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot tell which boot this is")]
    Boot(#[source] BootIdError),
    #[error("cannot make the folder for the ledger")]
    State(#[source] landfall_steps::durable::Error),
    #[error("cannot read `{path}`")]
    Read { path: String, source: std::io::Error },
    #[error("the steps do not fit together")]
    Plan(#[source] PlanError),
    #[error("cannot use the ledger")]
    Ledger(#[source] LedgerError),
    #[error("attempt {attempt} is under way and was asked for otherwise")]
    UnderWay { attempt: String },
    #[error("cannot read what the open attempt was asked for")]
    Request(#[source] ValueError),
    #[error("cannot tell what kind of machine this is: it has none of `{}`", RELEASE_FILES.join("`, `"))]
    Kind,
    #[error("this Secret was tried {MAX_ATTEMPTS} times")]
    TooMany,
    #[error("there is no attempt to go on with")]
    NothingOpen,
    #[error("cannot clear up after the attempt")]
    ClearUp { source: std::io::Error },
}

/// An attempt: what is asked for, and the Secret while it is there.
#[expect(missing_debug_implementations, reason = "holds credentials")]
pub struct Attempt {
    pub request: Request,
    pub digest: String,
    pub given: Option<Arc<Given>>,
}

/// What a program of an attempt said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    pub path: PathBuf,
    pub last_line: String,
}

// === impl Attempt ===

impl Attempt {
    /// A new one, or the same one again: the same request with the same Secret.
    pub fn new(request: Request, raw: Secret<Vec<u8>>) -> Self {
        let credentials = Credentials::parse(&raw, request.flavour);
        let digest = credentials::digest(&raw);
        Self { request, digest, given: Some(Arc::new(Given { raw, credentials })) }
    }

    /// The one that is open on this machine.
    pub fn open(world: &impl World) -> Result<Self, RunError> {
        let records = records(world)?;
        let record = records.iter().find(|record| record.ended().is_none()).ok_or(RunError::NothingOpen)?;
        let request = record.get(&REQUEST).map_err(RunError::Request)?;
        let digest = record.get(&SECRET_DIGEST).map_err(RunError::Request)?;
        let path = Folder::of(record.attempt()).secret();
        let raw = read(world, &path, credentials::MAX_BYTES)
            .map_err(|source| RunError::Read { path: path.display().to_string(), source })?
            .map(Secret::new);
        let given = raw.map(|raw| {
            let credentials = Credentials::parse(&raw, request.flavour);
            Arc::new(Given { raw, credentials })
        });
        Ok(Self { request, digest, given })
    }

    /// What programs of the machine must not write down.
    pub fn secrets(&self) -> Vec<Secret<String>> {
        let credentials = self.given.as_ref().and_then(|given| given.credentials.as_ref().ok());
        credentials.map(Credentials::secrets).unwrap_or_default()
    }

    /// Its name.
    pub fn id<W: World>(&self, world: &Arc<W>) -> Result<String, RunError> {
        let plan = steps::plan(world, &self.request, &self.digest, self.given.as_ref());
        Ok(plan.map_err(RunError::Plan)?.attempt().to_owned())
    }
}

/// Goes on with an attempt as far as this boot allows. One that has ended is answered from its ledger.
pub async fn run<W: World>(
    world: &Arc<W>,
    attempt: &Attempt,
    mut sinks: Vec<Box<dyn Sink>>,
    cancel: &CancellationToken,
) -> Result<Outcome, RunError> {
    let boot = world.boot().map_err(RunError::Boot)?;
    let Attempt { request, digest, given } = attempt;
    let plan = steps::plan(world, request, digest, given.as_ref()).map_err(RunError::Plan)?;
    make_dir(&**world, Path::new("/var/lib"), PUBLIC_DIR).map_err(RunError::State)?;
    let state = world.place(Path::new(STATE));
    for other in records(&**world)?.iter().filter(|record| record.attempt() != plan.attempt()) {
        if other.ended().is_some() {
            continue;
        }
        if is_armed(other) {
            return Err(RunError::UnderWay { attempt: other.attempt().to_owned() });
        }
        // Nothing was changed yet: a new Secret takes the place of the one before.
        let reason = "another request took its place";
        Ledger::abandon(&world.disk(), &state, RUN, other.attempt(), reason, &boot)
            .map_err(RunError::Ledger)?;
        let folder = Folder::of(other.attempt());
        world.remove_all(folder.path()).map_err(|source| RunError::ClearUp { source })?;
    }
    let mut ledger = Ledger::open(world.disk(), &state, &plan, boot).map_err(RunError::Ledger)?;
    let wake = Wake::default();
    sinks.push(Box::new(wake.clone()));
    let events = EventStream::new(sinks);
    let mut teller = Teller::new(world, request, plan.attempt(), given.as_ref(), &wake);
    let was_ended = ledger.record().ended().is_some();
    let over = CancellationToken::new();
    let work = async {
        let outcome = run_steps(&plan, &mut ledger, &events, cancel).await;
        over.cancel();
        outcome.map_err(RunError::Ledger)
    };
    let telling = async {
        teller.run(&over).await;
        Ok(())
    };
    let (outcome, ()) = tokio::try_join!(work, telling)?;
    if outcome.is_final() {
        conclude(&**world, request, plan.attempt(), was_ended).await?;
    }
    Ok(outcome)
}

/// Takes away what went on after each boot, and the label of an attempt that never came to do it. Done again, it does
/// nothing.
pub async fn conclude(
    world: &impl World,
    request: &Request,
    attempt: &str,
    was_ended: bool,
) -> Result<(), RunError> {
    tidy(world, attempt).await?;
    // It may have given up waiting at the gate; one that runs is left alone.
    if !was_ended && let Err(error) = world.start_unit("kubelet.service").await {
        tracing::info!(error, "The kubelet is left to the next boot.");
    }
    if request.cluster == ClusterUse::Needed && !was_ended {
        for label in [SEED_LABEL, LABEL] {
            if let Err(error) = world.remove_label(&request.node, label).await {
                tracing::info!(label, error = error.reason, "The label stays: the ledger answers for it.");
            }
        }
    }
    Ok(())
}

/// Takes away units, program and work folder.
async fn tidy(world: &impl World, attempt: &str) -> Result<(), RunError> {
    let failed = |source| RunError::ClearUp { source };
    world.remove_all(Folder::of(attempt).path()).map_err(failed)?;
    let mut removed = false;
    for path in units::to_remove() {
        removed |= world.exists(&path).map_err(failed)?;
        world.remove_all(&path).map_err(failed)?;
    }
    if removed && let Err(error) = world.reload_units().await {
        tracing::info!(error, "systemd has not seen yet that the gate is gone.");
    }
    Ok(())
}

/// After a boot in which nothing is open: what an ended attempt may have left behind goes away.
pub async fn tidy_up(world: &impl World) -> Result<(), RunError> {
    for record in records(world)?.iter().filter(|record| record.ended().is_some()) {
        tidy(world, record.attempt()).await?;
    }
    Ok(())
}

/// Looks whether everything would work. What it downloads is kept for the attempt, with its Secret's access spent.
pub async fn preflight<W: World>(world: &Arc<W>, attempt: &Attempt) -> Result<Report, RunError> {
    let id = attempt.id(world)?;
    let given = attempt.given.as_ref().ok_or(RunError::NothingOpen)?;
    make_dir(&**world, Path::new("/var/lib"), PUBLIC_DIR).map_err(RunError::State)?;
    make_dir(&**world, Path::new(STATE), Access::PRIVATE_DIR).map_err(RunError::State)?;
    Ok(preflight::examine(&**world, &attempt.request, given.credentials.as_ref(), &id).await)
}

/// The number of the first attempt with this Secret that has not ended.
pub fn next_number<W: World>(
    world: &Arc<W>,
    request: &Request,
    raw: &Secret<Vec<u8>>,
) -> Result<u32, RunError> {
    let records = records(&**world)?;
    for number in 0..MAX_ATTEMPTS {
        let request = Request { number, ..request.clone() };
        let plan = steps::plan(world, &request, &credentials::digest(raw), None).map_err(RunError::Plan)?;
        let record = records.iter().find(|record| record.attempt() == plan.attempt());
        if record.is_none_or(|record| record.ended().is_none()) {
            return Ok(number);
        }
    }
    Err(RunError::TooMany)
}

/// Every attempt that left a record.
pub fn records(world: &impl World) -> Result<Vec<RunRecord>, RunError> {
    read_all(&*world.disk(), &world.place(Path::new(STATE)), RUN).map_err(RunError::Ledger)
}

/// What the programs of an attempt said, the latest last. What cannot be read is left out.
pub fn logs(world: &impl World, attempt: &str) -> Vec<Log> {
    let logs = LOGGED.iter().filter_map(|program| {
        let path = Folder::log(attempt, program);
        let last_line = last_line(world.open(&path).ok()?).ok()?;
        Some(Log { path, last_line })
    });
    logs.collect()
}

/// The last line with words in it, or as much of it as people read.
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

/// May the kubelet start now?
pub fn look_at_gate(world: &impl World) -> Result<Gate, RunError> {
    let boot = world.boot().map_err(RunError::Boot)?;
    Ok(gate::gate(&records(world)?, &boot))
}

/// Which kind of machine this is.
pub fn flavour(world: &impl World) -> Result<Flavour, RunError> {
    for path in RELEASE_FILES {
        let text = read(world, Path::new(path), MAX_RELEASE)
            .map_err(|source| RunError::Read { path: path.to_owned(), source })?;
        if let Some(text) = text {
            return Ok(Flavour::of(&String::from_utf8_lossy(&text)));
        }
    }
    Err(RunError::Kind)
}

fn is_armed(record: &RunRecord) -> bool {
    record.steps().iter().any(|step| step.name == INSTALL && step.attempts > 0)
}
