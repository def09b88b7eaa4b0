use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use landfall_durable::{self as durable, Access};
use landfall_fetch::{Order, Patience};
use landfall_model::chain;
use landfall_model::step::Unit;
use landfall_steps::{Applied, Confirmed, Context, Found, Outputs, Step, StepError, StepSpec};

use super::{DECISION, FETCHED};
use crate::environment::{PUBLIC_DIR, make_dir};
use crate::prepare::decision::{Action, Artefact, Backend, Decision, Fetched, PassedOver};
use crate::prepare::environment::{PrepareEnvironment, Progress};
use crate::prepare::os_release::Architecture;
use crate::prepare::sysext;
use crate::prepare::sysext::release::System;
use crate::prepare::why::{NotBrought, Trouble, TroubleBox, Why};
use crate::run::later;

/// A runtime has some hundred megabytes, a Kubernetes extension not much more.
const MAX_IMAGE_BYTES: u64 = 4 * 1024 * 1024 * 1024;
const FETCH_LIMIT: Duration = Duration::from_hours(2);

pub(super) struct Fetch<W> {
    env: Arc<W>,
    /// Receives the reason of a failure.
    trouble: TroubleBox,
    /// Images fetched in earlier attempts of this process.
    came: Mutex<Vec<Fetched>>,
}

/// Opens extension images and checks them against the operating systems that will load them.
pub(super) struct Check<W> {
    pub(super) env: Arc<W>,
}

async fn is_there(
    env: &impl PrepareEnvironment,
    path: &Path,
    artefact: &Artefact,
) -> Result<bool, StepError> {
    let found = env.is_file(path, &artefact.digest).await;
    found.map_err(|error| StepError::later(format!("cannot read `{}`: {error}", path.display())))
}

pub(crate) async fn bring(
    env: &impl PrepareEnvironment,
    artefact: &Artefact,
    progress: Progress<'_>,
) -> Result<Option<Fetched>, NotBrought> {
    let here = |error| NotBrought { why: Why::Machine, error };
    let parent = artefact.path.parent().unwrap_or(Path::new("/"));
    make_dir(env, parent, PUBLIC_DIR).map_err(|error| here(later(error)))?;
    let urls = match &artefact.action {
        Action::Copy { from } if is_there(env, from, artefact).await.map_err(here)? => {
            return copy(env, from, &artefact.path).map(|()| None).map_err(here);
        }
        Action::Fetch { urls } => urls.clone(),
        // The image was present or copyable at the decision and is missing now. The next decision takes that into
        // account.
        _ => {
            let path = artefact.path.display();
            return Err(here(StepError::later(format!("`{path}` was there and is not any more"))));
        }
    };
    let order = Order {
        urls,
        target: env.host_path(&artefact.path),
        digest: artefact.digest.expected().clone(),
        mode: 0o644,
        max_bytes: MAX_IMAGE_BYTES,
        patience: Patience::IMAGE,
    };
    let source = env.fetch(&order, progress).await.map_err(|error| {
        let what = format!("cannot fetch {} {}: {}", artefact.name, artefact.version, chain(&error));
        let why = (&error).into();
        NotBrought {
            why,
            error: if error.is_lasting() { StepError::later(what) } else { StepError::now(what) },
        }
    })?;
    Ok(Some(Fetched {
        path: artefact.path.clone(),
        url: source.url,
        passed_over: source.passed_over.into_iter().map(PassedOver::from).collect(),
    }))
}

fn copy(env: &impl PrepareEnvironment, from: &Path, to: &Path) -> Result<(), StepError> {
    let disk = env.disk();
    let bytes = disk.read(&env.host_path(from), MAX_IMAGE_BYTES);
    let bytes =
        bytes.map_err(|error| StepError::later(format!("cannot read `{}`: {error}", from.display())))?;
    durable::write(&*disk, &env.host_path(to), &bytes, Access::PUBLIC).map_err(later)
}

/// Returns the images that are missing at their path, or that have other content than expected.
pub(crate) async fn missing(
    env: &impl PrepareEnvironment,
    decision: &Decision,
) -> Result<Vec<Artefact>, StepError> {
    let mut missing = Vec::new();
    for artefact in &decision.artefacts {
        if artefact.action != Action::ShipsWithSystem && !is_there(env, &artefact.path, artefact).await? {
            missing.push(artefact.clone());
        }
    }
    Ok(missing)
}

// === impl Fetch ===

impl<W> Fetch<W> {
    pub(super) fn new(env: Arc<W>, trouble: TroubleBox) -> Self {
        Self { env, trouble, came: Mutex::default() }
    }

    fn came(&self) -> MutexGuard<'_, Vec<Fetched>> {
        self.came.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: PrepareEnvironment> Step for Fetch<W> {
    fn spec(&self) -> StepSpec {
        StepSpec::new(super::FETCH, "Fetch the images")
            .needs([DECISION.slot()])
            .gives([FETCHED.slot()])
            .deadline(FETCH_LIMIT)
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        if missing(&*self.env, &context.get(&DECISION)?).await?.is_empty() {
            return Ok(Found::Satisfied {
                reason: "they are all there".to_owned(),
                outputs: Outputs::none().give(&FETCHED, &self.came())?,
            });
        }
        Ok(Found::Needed)
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        for artefact in missing(&*self.env, &context.get(&DECISION)?).await? {
            let progress = |done, total| context.progress(done, total, Unit::Bytes);
            let came =
                bring(&*self.env, &artefact, &progress).await.map_err(|NotBrought { why, error }| {
                    self.trouble.put(super::FETCH, Trouble { why, inputs: None });
                    error
                })?;
            self.came().extend(came);
        }
        Ok(Applied::Done(Outputs::none().give(&FETCHED, &self.came())?))
    }

    async fn confirm(&self, context: &Context<'_>) -> Result<Confirmed, StepError> {
        match missing(&*self.env, &context.get(&DECISION)?).await?.first() {
            None => Ok(Confirmed::Holds),
            Some(missing) => {
                Err(StepError::now(format!("`{}` is not what was fetched", missing.path.display())))
            }
        }
    }
}

// === impl Check ===

impl<W: PrepareEnvironment> Check<W> {
    async fn look(&self, decision: &Decision) -> Result<(), StepError> {
        let Some(architecture) = Architecture::here() else { return Ok(()) };
        let current = &decision.inputs.current_os.value;
        let versions = decision.inputs.next_os.value.iter().chain([&current.version]);
        let systems: Vec<System> = versions
            .map(|version| System {
                id: current.id.clone(),
                version: version.to_string(),
                sysext_level: current.sysext_level.clone(),
                architecture,
            })
            .collect();
        for artefact in &decision.artefacts {
            let release = self.env.extension(&artefact.path, &artefact.name).await;
            let release = release.map_err(later)?;
            for system in &systems {
                release.fits(system).map_err(|misfit| {
                    StepError::later(format!("extension {} {}: {misfit}", artefact.name, artefact.version))
                })?;
            }
        }
        self.find_blockers(decision).await
    }

    /// One image that cannot be opened blocks all others. The administrator has to remove it.
    async fn find_blockers(&self, decision: &Decision) -> Result<(), StepError> {
        let ours: Vec<PathBuf> =
            decision.artefacts.iter().map(|artefact| sysext::link_path(&artefact.name)).collect();
        for dir in sysext::SEARCHED {
            let Ok(names) = self.env.disk().names(&self.env.host_path(Path::new(dir))) else { continue };
            for name in names.iter().filter_map(|name| name.to_str()) {
                let path = Path::new(dir).join(name);
                let Some(extension) = name.strip_suffix(".raw").filter(|name| !name.starts_with('.')) else {
                    continue;
                };
                // A link to `/dev/null` masks an extension; any other link names an image outside this directory.
                let target = self.env.link(&path).ok().flatten();
                if ours.contains(&path) || target.as_deref() == Some(Path::new("/dev/null")) {
                    continue;
                }
                let image = target.filter(|target| target.is_absolute()).unwrap_or_else(|| path.clone());
                if let Err(error) = self.env.extension(&image, extension).await {
                    let why = chain(&error).to_string();
                    return Err(StepError::later(format!(
                        "`{}` would block every extension: {why}",
                        path.display()
                    )));
                }
            }
        }
        Ok(())
    }
}

impl<W: PrepareEnvironment> Step for Check<W> {
    fn spec(&self) -> StepSpec {
        StepSpec::new(super::CHECK, "Hold the images against the operating system").needs([DECISION.slot()])
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        let decision = context.get(&DECISION)?;
        let reason = if decision.backend == Backend::Sysext {
            self.look(&decision).await?;
            "every image opens and fits"
        } else {
            "there are no extensions"
        };
        Ok(Found::satisfied(reason))
    }

    async fn apply(&self, _: &Context<'_>) -> Result<Applied, StepError> {
        Ok(Applied::Done(Outputs::none()))
    }
}
