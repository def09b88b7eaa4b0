//! Resumable runs: a list of named steps, each `check → apply → confirm`, written down before and after.
//!
//! Work on a node is interrupted: by reboots it asks for, by reboots nobody asked for, by a full disk, by an operator.
//! A [`Plan`] is the list of steps; its [`Ledger`] is the truth on disk; [`run`] brings the two together until the run is
//! done or this process can do no more. Killing the process anywhere loses nothing.
//!
//! # The life of a run
//!
//! ```text
//!  Plan::of("node-prepare")…build()      do the steps fit together? what was asked, hashed = the attempt
//!         │
//!  Ledger::open(disk, state, plan, boot) one process per run; the newest whole record of this attempt, or a new one
//!         │
//!  run(plan, ledger, events, cancel)
//!         │
//!         ▼                 nothing to do and never begun
//!   ┌─▶ check ─────────────────────────────────────────────▶ skipped ─┐
//!   │     │ work to do                                                │
//!   │   [applying]          written, then told                        │
//!   │     ▼                                                           │
//!   │   apply ──▶ [reboot-needed] ──▶ Outcome::RebootNeeded           │
//!   │     │              ┊ another boot id                            │
//!   │     ▼              ▼                                            ▼
//!   │   confirm ◀────────┘ ──────────────────────────────▶ [done] ─▶ next step, or Outcome::Done
//!   │     │
//!   │     ├─ waiting ─────────▶ [waiting] ─▶ Outcome::Waiting: run again when it may have come
//!   │     └─ error ─┬─ now ───▶ [failed]  ─▶ a pause, then ─┐
//!   │               ├─ later ─▶ [failed]  ─▶ Outcome::Failed, the next process tries again
//!   │               └─ never ─▶ [failed]  ─▶ Outcome::Failed, or every step begun is rolled back, the last first
//!   └───────────────────────────────────────────────────────┘
//!
//!   cut off anywhere: the next start finds [applying] and begins at check, which sees what was done
//! ```
//!
//! A state in brackets is a write: the other of two ledger files is replaced, durably, before any [`events`] sink hears of
//! it. Three boots in a row in which no step came out are a failure; boots spent waiting for others do not count. An
//! attempt that has ended stays: the same request, coming late, is answered from the ledger.
//!
//! # How to write a step
//!
//! - `check` only looks. It answers for the *result* ("is this file there with this content?"), never for the past ("did
//!   I run?"), so that it sees the work of a process that died before it could write it down.
//! - `apply` may be cut off between any two instructions and is begun again. Files go through [`durable`], so each is there
//!   whole or not at all. What cannot be seen afterwards leaves a mark with it, in one operation.
//! - A step that asks for a reboot tells in `check` "staged" ([`Found::RebootNeeded`]) from "in effect"
//!   ([`Found::Satisfied`]).
//! - `confirm` looks at the result from outside, after the reboot if there was one.
//! - Children that must not outlive the step are ended by the step: the ledger's lock is not theirs.
//! - Values between steps are [`Key`]s, kept in the ledger across reboots. Secrets are not values: hand them to the step's
//!   constructor and to [`PlanBuilder::asked_with`].
//!
//! ```
//! use std::path::PathBuf;
//! use std::sync::Arc;
//!
//! use landfall_model::step::{Outcome, Retry};
//! use landfall_steps::durable::{self, Access, Disk, HostDisk};
//! use landfall_steps::events::{EventStream, Journal};
//! use landfall_steps::{Applied, BootId, Confirmed, Context, Found, Key, Ledger, Outputs, Plan, Slot, Step, StepError};
//!
//! const VERSION: Key<String> = Key::new("cluster-version");
//!
//! struct WriteEnvironment {
//!     path: PathBuf,
//! }
//!
//! impl Step for WriteEnvironment {
//!     fn name(&self) -> &'static str {
//!         "write-environment"
//!     }
//!     fn title(&self) -> String {
//!         "Write `kubelet.env`".into()
//!     }
//!     fn needs(&self) -> Vec<Slot> {
//!         vec![VERSION.slot()]
//!     }
//!     async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
//!         let wanted = format!("KUBELET_IMAGE_TAG={}\n", context.get(&VERSION)?);
//!         match HostDisk.read(&self.path, 4096) {
//!             Ok(found) if found == wanted.as_bytes() => {
//!                 Ok(Found::Satisfied { reason: "it says so already".into(), outputs: Outputs::none() })
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
//! With the feature `simulation`, `durable::simulated::SimulatedDisk` takes the power away before any operation and shows
//! every world that may be found afterwards; hand it to the steps and the ledger and compare the ends.

mod backoff;
mod boot;
pub mod durable;
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
#[cfg(test)]
mod script;

pub use backoff::{Backoff, InvalidBackoff};
pub use boot::{BootId, Error as BootIdError};
pub use engine::run;
pub use ledger::{Ledger, LedgerError, read_all};
pub use machine::IllegalMove;
pub use plan::{OnFailure, Plan, PlanBuilder, PlanError};
pub use record::RunRecord;
pub use step::{Applied, Confirmed, Context, Found, Interrupted, Limits, Step, StepError};
pub use values::{Key, Outputs, Slot, ValueError};
