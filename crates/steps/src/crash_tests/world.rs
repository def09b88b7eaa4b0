//! A simulated world that counts every change, steps that change it, and a machine that crashes on request.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use landfall_model::step::{Event, Outcome, StepState};
use landfall_net::{Backoff, Retries};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::events::{EventStream, Sink};
use crate::*;
use landfall_durable::simulated::{Aftermath, Moment, SimulatedDisk};
use landfall_durable::{self as durable, Access, Disk};

const STATE: &str = "/var/lib/landfall";
/// A run of the tests needs far fewer starts; more means that it loops.
const MAX_STARTS: usize = 40;

/// The effect of a step on the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One effect outside the machine.
    Effect,
    /// Two effects, with a crash possible between them.
    Twofold,
    /// Two effects, failing once between them.
    Flaky,
    /// A file, written durably.
    File,
    /// Already done by another process.
    Satisfied,
    /// Takes effect at the next boot.
    Reboot,
    /// Waits for an external event, once, before it changes anything.
    Waits,
    /// Changes something and waits for an external event, once.
    WaitsAfter,
    /// Changes something, then fails permanently.
    Fails,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Crash {
    Kill,
    PowerCut(Aftermath),
}

/// The parts of the final state that must not depend on crashes.
#[derive(Debug, PartialEq)]
pub(super) struct End {
    pub(super) outcome: Outcome,
    pub(super) states: Vec<StepState>,
    pub(super) values: BTreeMap<String, Value>,
    pub(super) present: Vec<String>,
    pub(super) files: Vec<Option<Vec<u8>>>,
}

/// A machine with a run on it.
#[derive(Clone)]
pub(super) struct Machine {
    kinds: Vec<Kind>,
    on_failure: OnFailure,
    world: World,
    heard: Collector,
}

#[derive(Clone, Debug, Default)]
struct Effects {
    /// Existing effects, and the boot in which they were made.
    present: BTreeMap<String, u32>,
    boot: u32,
    calls: BTreeMap<&'static str, u32>,
    violations: Vec<String>,
}

#[derive(Clone, Debug)]
struct World {
    disk: SimulatedDisk,
    effects: Arc<Mutex<Effects>>,
}

struct Scripted {
    name: &'static str,
    kind: Kind,
    needs: Option<&'static str>,
    world: World,
}

#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Event>>>);

const NAMES: [&str; 9] = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];

// === impl Machine ===

impl Machine {
    pub(super) fn new(kinds: &[Kind], on_failure: OnFailure) -> Self {
        let world = World { disk: SimulatedDisk::new(&["/var/lib", "/etc"]), effects: Arc::default() };
        Self { kinds: kinds.to_vec(), on_failure, world, heard: Collector::default() }
    }

    /// Returns the same machine with a copy of the world.
    pub(super) fn fork(&self) -> Self {
        let effects = self.world.effects().clone();
        let world = World { disk: self.world.disk.fork(), effects: Arc::new(Mutex::new(effects)) };
        Self { world, heard: Collector(Arc::new(Mutex::new(self.heard.events()))), ..self.clone() }
    }

    pub(super) fn operations(&self) -> Vec<String> {
        self.world.disk.operations()
    }

    /// Starts the run repeatedly while it requests it, until it has ended or was interrupted before the operation
    /// with this number.
    pub(super) fn run(&self, runtime: &Runtime, cut: Option<usize>) -> Option<End> {
        let disk = &self.world.disk;
        for _ in 0..MAX_STARTS {
            if let Some(cut) = cut {
                disk.cut_power_at(cut, Moment::Before);
            }
            let outcome = runtime.block_on(self.start());
            if disk.is_off() {
                return None;
            }
            // The process was not interrupted, so its outcome must be correct.
            match outcome.unwrap() {
                ended if ended.is_final() => return Some(self.end(ended)),
                Outcome::RebootNeeded { .. } => self.world.effects().boot += 1,
                _ => {}
            }
            disk.restart_process();
        }
        panic!("no end after {MAX_STARTS} starts: {:#?}", self.operations());
    }

    /// Returns every crash that a power failure or kill at this moment could mean.
    pub(super) fn crashes(&self) -> Vec<Crash> {
        self.world.disk.aftermaths().into_iter().map(Crash::PowerCut).chain([Crash::Kill]).collect()
    }

    pub(super) fn crash(&self, crash: Crash) {
        match crash {
            Crash::Kill => self.world.disk.restart_process(),
            Crash::PowerCut(aftermath) => {
                self.world.disk.power_on(aftermath);
                self.world.effects().boot += 1;
            }
        }
    }

    async fn start(&self) -> Result<Outcome, LedgerError> {
        const TARGET: Key<String> = Key::new("target");
        let mut plan = Plan::of("crash").input(&TARGET, &"v1.2.3".to_owned()).on_failure(self.on_failure);
        for (index, kind) in self.kinds.iter().enumerate() {
            let needs = index.checked_sub(1).map(|before| NAMES[before]);
            plan = plan.step(Scripted { name: NAMES[index], kind: *kind, needs, world: self.world.clone() });
        }
        let plan = plan.build().unwrap();
        let boot = BootId::parse(&format!("b-{}", self.world.effects().boot)).unwrap();
        let mut ledger = Ledger::open(Arc::new(self.world.disk.clone()), Path::new(STATE), &plan, boot)?;
        let events = EventStream::new(vec![Box::new(self.heard.clone())]);
        run(&plan, &mut ledger, &events, &CancellationToken::new()).await
    }

    fn end(&self, outcome: Outcome) -> End {
        let effects = self.world.effects();
        assert!(effects.violations.is_empty(), "{:?}\n{:#?}", effects.violations, self.operations());
        let record = read_all(&self.world.disk, Path::new(STATE), "crash").unwrap().remove(0);
        check_events(record.events_after(0), &self.heard.events());
        End {
            outcome,
            states: record.steps().iter().map(|step| step.state.clone()).collect(),
            values: record.values().clone(),
            present: effects.present.keys().cloned().collect(),
            files: NAMES.iter().map(|name| self.world.disk.peek(&file(name))).collect(),
        }
    }
}

// === impl World ===

impl World {
    fn effects(&self) -> MutexGuard<'_, Effects> {
        self.effects.lock().unwrap()
    }

    fn has(&self, effect: &str) -> bool {
        self.effects().present.contains_key(effect)
    }

    /// Returns whether the effect was made in this boot.
    fn is_new(&self, effect: &str) -> bool {
        let effects = self.effects();
        effects.present.get(effect) == Some(&effects.boot)
    }

    fn make(&self, effect: &str) -> Result<(), StepError> {
        let made = self.disk.effect(effect, || {
            let mut effects = self.effects();
            let boot = effects.boot;
            if effects.present.insert(effect.to_owned(), boot).is_some() {
                effects.violations.push(format!("{effect} was done twice"));
            }
        });
        made.map_err(|error| StepError::never(error.to_string()))
    }

    fn undo(&self, effect: &str) -> Result<(), StepError> {
        let undone = self.disk.effect(&format!("undo {effect}"), || self.effects().present.remove(effect));
        undone.map(drop).map_err(|error| StepError::never(error.to_string()))
    }

    /// Counts calls of a step. The world keeps the count, so that a crash does not reset it.
    fn calls(&self, step: &'static str) -> u32 {
        let mut effects = self.effects();
        let calls = effects.calls.entry(step).or_default();
        *calls += 1;
        *calls - 1
    }
}

/// Checks that the events consumers received are in order and in the ledger, and that no number was used for two
/// events.
fn check_events(recorded: &[Event], heard: &[Event]) {
    assert!(recorded.windows(2).all(|pair| pair[0].sequence + 1 == pair[1].sequence));
    assert!(heard.windows(2).all(|pair| pair[0].place() < pair[1].place()), "{heard:#?}");
    for event in heard.iter().filter(|event| event.part == 0) {
        assert!(recorded.contains(event), "{event:?} was told and is not in the ledger");
    }
}

fn file(name: &str) -> PathBuf {
    Path::new("/etc").join(name)
}

// === impl Scripted ===

impl Scripted {
    /// Returns the effects of the step, in order.
    fn effects(&self) -> Vec<String> {
        match self.kind {
            Kind::Twofold | Kind::Flaky => vec![format!("{}-a", self.name), format!("{}-b", self.name)],
            Kind::Satisfied => Vec::new(),
            _ => vec![self.name.to_owned()],
        }
    }

    fn outputs(&self) -> Outputs {
        Outputs::none().give(&Key::<String>::new(self.name), &format!("from {}", self.name)).unwrap()
    }

    fn read_inputs(&self, context: &Context<'_>) -> Result<(), StepError> {
        if let Some(needs) = self.needs {
            assert_eq!(context.get(&Key::<String>::new(needs))?, format!("from {needs}"));
        }
        Ok(())
    }
}

impl Step for Scripted {
    fn spec(&self) -> StepSpec {
        let second = Duration::from_secs(1);
        StepSpec::new(self.name, format!("Step {}", self.name))
            .needs(self.needs.iter().map(|name| Key::<String>::new(name).slot()))
            .gives([Key::<String>::new(self.name).slot()])
            .limits(Limits {
                deadline: Duration::from_mins(1),
                backoff: Retries::new(Backoff::new(second, second).unwrap(), 3).unwrap(),
            })
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        self.read_inputs(context)?;
        if self.kind == Kind::Waits && self.world.calls(self.name) == 0 {
            return Ok(Found::Waiting { on: "someone".into() });
        }
        let done = match self.kind {
            Kind::Fails => false,
            Kind::File => match self.world.disk.read(&file(self.name), 100) {
                Ok(content) => content == self.name.as_bytes(),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
                Err(error) => return Err(StepError::never(error.to_string())),
            },
            _ => self.effects().iter().all(|effect| self.world.has(effect)),
        };
        if done && self.kind == Kind::Reboot && self.world.is_new(self.name) {
            return Ok(Found::RebootNeeded(self.outputs()));
        }
        if done {
            return Ok(Found::Satisfied { reason: "it is there".into(), outputs: self.outputs() });
        }
        Ok(Found::Needed)
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        self.read_inputs(context)?;
        context.progress(1, Some(2), landfall_model::step::Unit::Items);
        if self.kind == Kind::File {
            let written =
                durable::write(&self.world.disk, &file(self.name), self.name.as_bytes(), Access::PUBLIC);
            return match written {
                Ok(()) => Ok(Applied::Done(self.outputs())),
                Err(error) => Err(StepError::never(error.to_string())),
            };
        }
        for effect in self.effects() {
            if !self.world.has(&effect) {
                self.world.make(&effect)?;
                if self.kind == Kind::Flaky && self.world.calls(self.name) == 0 {
                    return Err(StepError::now("not this time"));
                }
            }
        }
        match self.kind {
            Kind::Reboot => Ok(Applied::RebootNeeded(self.outputs())),
            Kind::Fails => Err(StepError::never("it cannot be done")),
            _ => Ok(Applied::Done(self.outputs())),
        }
    }

    async fn confirm(&self, context: &Context<'_>) -> Result<Confirmed, StepError> {
        self.read_inputs(context)?;
        if self.kind == Kind::WaitsAfter && self.world.calls(self.name) == 0 {
            return Ok(Confirmed::Waiting { on: "someone".into() });
        }
        for effect in self.effects() {
            let missing = match self.kind {
                Kind::File => self.world.disk.peek(&file(self.name)).is_none(),
                _ => !self.world.has(&effect),
            };
            if missing {
                return Err(StepError::never(format!("{effect} is not there")));
            }
        }
        if self.kind == Kind::Reboot && self.world.is_new(self.name) {
            return Err(StepError::never("confirmed before the reboot"));
        }
        Ok(Confirmed::Holds)
    }

    async fn roll_back(&self, _: &Context<'_>) -> Result<(), StepError> {
        if self.kind == Kind::File {
            return durable::remove(&self.world.disk, &file(self.name))
                .map_err(|error| StepError::never(error.to_string()));
        }
        self.effects().iter().rev().try_for_each(|effect| self.world.undo(effect))
    }
}

// === impl Collector ===

impl Collector {
    fn events(&self) -> Vec<Event> {
        self.0.lock().unwrap().clone()
    }
}

impl Sink for Collector {
    fn take(&mut self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }
}
