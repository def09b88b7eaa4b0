//! Resumable runs: a list of named steps, each `check → apply → confirm`, recorded before and after.
//!
//! Work on a node is interrupted by reboots, requested or not, by a full disk, or by an operator. A [`Plan`] is the
//! list of steps, and its [`Ledger`] is the authoritative state on disk. [`run`] executes the plan against the ledger
//! until the run is done or this process cannot continue. Killing the process at any point loses nothing.
//!
//! # Course of a run
//!
//! ```text
//!  Plan::of("node-prepare")…build()      validates the steps; the hash of the inputs identifies the attempt
//!         │
//!  Ledger::open(disk, state, plan, boot) one process per run; the newest undamaged record of this attempt, or a new one
//!         │
//!  run(plan, ledger, events, cancel)
//!         │
//!         ▼                 nothing to do and never started
//!   ┌─▶ check ─────────────────────────────────────────────▶ skipped ─┐
//!   │     │ work to do                                                │
//!   │   [applying]          written, then sent                        │
//!   │     ▼                                                           │
//!   │   apply ──▶ [reboot-needed] ──▶ Outcome::RebootNeeded           │
//!   │     │              ┊ another boot id                            │
//!   │     ▼              ▼                                            ▼
//!   │   confirm ◀────────┘ ──────────────────────────────▶ [done] ─▶ next step, or Outcome::Done
//!   │     │
//!   │     ├─ waiting ─────────▶ [waiting] ─▶ Outcome::Waiting: run again when the event may have happened
//!   │     └─ error ─┬─ now ───▶ [failed]  ─▶ a delay, then ─┐
//!   │               ├─ later ─▶ [failed]  ─▶ Outcome::Failed, the next process retries
//!   │               └─ never ─▶ [failed]  ─▶ Outcome::Failed, or every step begun is rolled back, the last first
//!   └───────────────────────────────────────────────────────┘
//!
//!   interrupted anywhere: the next start finds [applying] and starts at check, which sees the completed work
//! ```
//!
//! A state in brackets is a write: the older of two ledger files is replaced, durably, before any [`events`] sink
//! receives it. Three consecutive boots without a finished step are a failure; boots spent waiting for external events
//! do not count. An ended attempt stays on disk: a late request with the same inputs gets its outcome from the ledger.
//!
//! # How to write a step
//!
//! - `check` only reads. It checks the *result* ("does the file exist with this content?"), never the past ("did I
//!   run?"), so that it sees the work of a process that died before it could record it.
//! - `apply` may be interrupted between any two instructions and starts again. Files are written with
//!   [`landfall_durable`], so each is complete or missing. Work without a visible result writes a marker together with
//!   it, in one operation.
//! - A step that requests a reboot distinguishes "staged" ([`Found::RebootNeeded`]) from "in effect"
//!   ([`Found::Satisfied`]) in `check`.
//! - `confirm` checks the result from outside, after the reboot if there was one.
//! - A step ends its child processes that must not outlive it: they do not inherit the ledger's lock.
//! - Values between steps are [`Key`]s, kept in the ledger across reboots. Secrets are not values: pass them to the
//!   step's constructor and to [`PlanBuilder::asked_with`].
//!
//! ```
//! use std::path::PathBuf;
//! use std::sync::Arc;
//!
//! use landfall_model::step::{Outcome, Retry};
//! use landfall_durable::{self as durable, Access, Disk, HostDisk};
//! use landfall_steps::events::{EventStream, Journal};
//! use landfall_steps::{Applied, BootId, Confirmed, Context, Found, Key, Ledger, Plan, Step, StepError, StepSpec, Outputs};
//!
//! const VERSION: Key<String> = Key::new("cluster-version");
//!
//! struct WriteEnvironment {
//!     path: PathBuf,
//! }
//!
//! impl Step for WriteEnvironment {
//!     fn spec(&self) -> StepSpec {
//!         StepSpec::new("write-environment", "Write `kubelet.env`").needs([VERSION.slot()])
//!     }
//!     async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
//!         let wanted = format!("KUBELET_IMAGE_TAG={}\n", context.get(&VERSION)?);
//!         match HostDisk.read(&self.path, 4096) {
//!             Ok(found) if found == wanted.as_bytes() => {
//!                 Ok(Found::satisfied("it says so already"))
//!             }
//!             _ => Ok(Found::Needed),
//!         }
//!     }
//!     async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
//!         let content = format!("KUBELET_IMAGE_TAG={}\n", context.get(&VERSION)?);
//!         durable::write(&HostDisk, &self.path, content.as_bytes(), Access::PUBLIC)
//!             .map_err(|error| StepError::caused(&error, Retry::Later))?;
//!         Ok(Applied::Done(Outputs::none()))
//!     }
//!     async fn confirm(&self, context: &Context<'_>) -> Result<Confirmed, StepError> {
//!         match self.check(context).await? {
//!             Found::Satisfied { .. } => Ok(Confirmed::Holds),
//!             _ => Err(StepError::now("the file does not say what was written")),
//!         }
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let root = directory.path();
//! let plan = Plan::of("node-prepare")
//!     .input(&VERSION, &"v1.37.0".into())
//!     .step(WriteEnvironment { path: root.join("kubelet.env") })
//!     .build()?;
//! let mut ledger = Ledger::open(Arc::new(HostDisk), &root.join("state"), &plan, BootId::read(&HostDisk)?)?;
//! let events = EventStream::new(vec![Box::new(Journal)]);
//! assert_eq!(landfall_steps::run(&plan, &mut ledger, &events, &Default::default()).await?, Outcome::Done);
//! assert_eq!(std::fs::read_to_string(root.join("kubelet.env"))?, "KUBELET_IMAGE_TAG=v1.37.0\n");
//! # Ok(())
//! # }
//! ```
//!
//! # How to test a list of steps
//!
//! With the feature `simulation` of `landfall-durable`, its `simulated::SimulatedDisk` simulates a power failure before
//! any operation and enumerates every possible state afterwards. Use it for the steps and the ledger, and compare the
//! final states.

mod boot;
mod engine;
pub mod events;
mod ledger;
mod machine;
mod plan;
mod record;
mod step;
mod values;

#[cfg(test)]
mod crash_tests;

pub use boot::{BootId, Error as BootIdError};
pub use engine::run;
pub use ledger::{Ledger, LedgerError, read_all};
pub use machine::IllegalMove;
pub use plan::{OnFailure, Plan, PlanBuilder, PlanError};
pub use record::RunRecord;
pub use step::{Applied, Confirmed, Context, Found, Interrupted, Limits, Step, StepError, StepSpec};
pub use values::{Key, Outputs, Slot, ValueError};
