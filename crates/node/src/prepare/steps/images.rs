use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use landfall_fetch::{Order, Patience};
use landfall_model::chain;
use landfall_model::step::Unit;
use landfall_steps::durable::{self, Access};
use landfall_steps::{Applied, Backoff, Confirmed, Context, Found, Limits, Outputs, Slot, Step, StepError};

use super::{DECISION, FETCHED, PUBLIC_DIR};
use crate::prepare::decision::{Action, Artefact, Backend, Decision, Fetched, PassedOver};
use crate::prepare::os_release::Architecture;
use crate::prepare::sysext;
use crate::prepare::sysext::release::System;
use crate::prepare::why::{NotBrought, Trouble, TroubleBox, Why};
use crate::prepare::world::{Progress, World, make_dir};

/// A runtime has some hundred megabytes, a Kubernetes extension not many more.
const MAX_IMAGE_BYTES: u64 = 4 * 1024 * 1024 * 1024;
const FETCH_LIMIT: Duration = Duration::from_hours(2);

/// Brings the images to this machine.
pub(super) struct Fetch<W> {
    world: Arc<W>,
    /// Where it says why it did not.
    trouble: TroubleBox,
    /// What came in earlier tries of this process.
    came: Mutex<Vec<Fetched>>,
}

/// Opens extension images and holds them against the operating systems that will meet them.
pub(super) struct Check<W> {
    pub(super) world: Arc<W>,
}

async fn is_there(world: &impl World, path: &Path, artefact: &Artefact) -> Result<bool, StepError> {
    let found = world.is_file(path, &artefact.digest).await;
    found.map_err(|error| StepError::later(format!("cannot read `{}`: {error}", path.display())))
}

/// Brings one image to its place.
pub(crate) async fn bring(
    world: &impl World,
    artefact: &Artefact,
    progress: Progress<'_>,
) -> Result<Option<Fetched>, NotBrought> {
    let here = |error| NotBrought { why: Why::Machine, error };
    let parent = artefact.path.parent().unwrap_or(Path::new("/"));
    make_dir(world, parent, PUBLIC_DIR).map_err(|error| here(super::later(&error)))?;
    let urls = match &artefact.action {
        Action::Copy { from } if is_there(world, from, artefact).await.map_err(here)? => {
            return copy(world, from, &artefact.path).map(|()| None).map_err(here);
        }
        Action::Fetch { urls } => urls.clone(),
        // Present or copyable when it was decided, and gone since: the next decision sees that.
        _ => {
            let path = artefact.path.display();
            return Err(here(StepError::later(format!("`{path}` was there and is not any more"))));
        }
    };
    let order = Order {
        urls,
        target: world.place(&artefact.path),
        digest: artefact.digest.expected().clone(),
        mode: 0o644,
        max_bytes: MAX_IMAGE_BYTES,
        patience: Patience::IMAGE,
    };
    let source = world.fetch(&order, progress).await.map_err(|error| {
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

fn copy(world: &impl World, from: &Path, to: &Path) -> Result<(), StepError> {
    let disk = world.disk();
    let bytes = disk.read(&world.place(from), MAX_IMAGE_BYTES);
    let bytes =
        bytes.map_err(|error| StepError::later(format!("cannot read `{}`: {error}", from.display())))?;
    durable::write(&*disk, &world.place(to), &bytes, Access::PUBLIC).map_err(|error| super::later(&error))
}

/// The images that are not where they should be, with the content they should have.
pub(crate) async fn missing(world: &impl World, decision: &Decision) -> Result<Vec<Artefact>, StepError> {
    let mut missing = Vec::new();
    for artefact in &decision.artefacts {
        if artefact.action != Action::ShipsWithSystem && !is_there(world, &artefact.path, artefact).await? {
            missing.push(artefact.clone());
        }
    }
    Ok(missing)
}

// === impl Fetch ===

impl<W> Fetch<W> {
    pub(super) fn new(world: Arc<W>, trouble: TroubleBox) -> Self {
        Self { world, trouble, came: Mutex::default() }
    }

    fn came(&self) -> MutexGuard<'_, Vec<Fetched>> {
        self.came.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: World> Step for Fetch<W> {
    fn name(&self) -> &'static str {
        super::FETCH
    }

    fn title(&self) -> String {
        "Fetch the images".to_owned()
    }

    fn needs(&self) -> Vec<Slot> {
        vec![DECISION.slot()]
    }

    fn gives(&self) -> Vec<Slot> {
        vec![FETCHED.slot()]
    }

    fn limits(&self) -> Limits {
        Limits { deadline: FETCH_LIMIT, backoff: Backoff::default() }
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        if missing(&*self.world, &context.get(&DECISION)?).await?.is_empty() {
            return Ok(Found::Satisfied {
                reason: "they are all there".to_owned(),
                outputs: Outputs::none().give(&FETCHED, &self.came())?,
            });
        }
        Ok(Found::Needed)
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        for artefact in missing(&*self.world, &context.get(&DECISION)?).await? {
            let progress = |done, total| context.progress(done, total, Unit::Bytes);
            let came =
                bring(&*self.world, &artefact, &progress).await.map_err(|NotBrought { why, error }| {
                    self.trouble.put(super::FETCH, Trouble { why, inputs: None });
                    error
                })?;
            self.came().extend(came);
        }
        Ok(Applied::Done(Outputs::none().give(&FETCHED, &self.came())?))
    }

    async fn confirm(&self, context: &Context<'_>) -> Result<Confirmed, StepError> {
        match missing(&*self.world, &context.get(&DECISION)?).await?.first() {
            None => Ok(Confirmed::Holds),
            Some(missing) => {
                Err(StepError::now(format!("`{}` is not what was fetched", missing.path.display())))
            }
        }
    }
}

// === impl Check ===

impl<W: World> Check<W> {
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
            let release = self.world.extension(&artefact.path, &artefact.name).await;
            let release = release.map_err(|error| super::later(&error))?;
            for system in &systems {
                release.fits(system).map_err(|misfit| {
                    StepError::later(format!("extension {} {}: {misfit}", artefact.name, artefact.version))
                })?;
            }
        }
        self.find_blockers(decision).await
    }

    /// One image that cannot be opened blocks all the others: whoever put it there has to take it away.
    async fn find_blockers(&self, decision: &Decision) -> Result<(), StepError> {
        let ours: Vec<PathBuf> =
            decision.artefacts.iter().map(|artefact| sysext::link_path(&artefact.name)).collect();
        for dir in sysext::SEARCHED {
            let Ok(names) = self.world.disk().names(&self.world.place(Path::new(dir))) else { continue };
            for name in names.iter().filter_map(|name| name.to_str()) {
                let path = Path::new(dir).join(name);
                let Some(extension) = name.strip_suffix(".raw").filter(|name| !name.starts_with('.')) else {
                    continue;
                };
                // A link to `/dev/null` masks; another link leads to an image outside this folder.
                let target = self.world.link(&path).ok().flatten();
                if ours.contains(&path) || target.as_deref() == Some(Path::new("/dev/null")) {
                    continue;
                }
                let image = target.filter(|target| target.is_absolute()).unwrap_or_else(|| path.clone());
                if let Err(error) = self.world.extension(&image, extension).await {
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

impl<W: World> Step for Check<W> {
    fn name(&self) -> &'static str {
        super::CHECK
    }

    fn title(&self) -> String {
        "Hold the images against the operating system".to_owned()
    }

    fn needs(&self) -> Vec<Slot> {
        vec![DECISION.slot()]
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        let decision = context.get(&DECISION)?;
        let reason = if decision.backend == Backend::Sysext {
            self.look(&decision).await?;
            "every image opens and fits"
        } else {
            "there are no extensions"
        };
        Ok(Found::Satisfied { reason: reason.to_owned(), outputs: Outputs::none() })
    }

    async fn apply(&self, _: &Context<'_>) -> Result<Applied, StepError> {
        Ok(Applied::Done(Outputs::none()))
    }

    async fn confirm(&self, _: &Context<'_>) -> Result<Confirmed, StepError> {
        Ok(Confirmed::Holds)
    }
}
