//! What a step is: `check → apply → confirm`, and what it says after each.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use landfall_model::chain;
use landfall_model::step::{Retry, Unit};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::boot::BootId;
use crate::events::EventStream;
use crate::values::{Key, Outputs, Slot, ValueError, Values};

/// A reason is a sentence for people, in the ledger and on every wire; a longer one is a log.
const MAX_REASON_BYTES: usize = 2048;

/// One piece of work that can be interrupted anywhere.
///
/// The three calls are made in this order, and again from `check` after every interruption, so that `apply` runs only
/// while `check` finds work to do. A step whose work cannot be seen afterwards must leave a mark with it.
pub trait Step: Send + Sync {
    /// Plain words joined by hyphens, unique within the run; it is in the ledger and does not change between versions.
    fn name(&self) -> &'static str;

    /// What a person reads while it runs: "Fetch the manifest".
    fn title(&self) -> String;

    /// Values it reads: each an input of the run or given by an earlier step.
    fn needs(&self) -> Vec<Slot> {
        Vec::new()
    }

    /// Values it gives, all of them, whichever way it ends well.
    fn gives(&self) -> Vec<Slot> {
        Vec::new()
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// Looks, and changes nothing: is the work already done?
    fn check(&self, context: &Context<'_>) -> impl Future<Output = Result<Found, StepError>> + Send;

    /// Does the work. It may be cut off anywhere, and is then begun again if `check` still finds work.
    fn apply(&self, context: &Context<'_>) -> impl Future<Output = Result<Applied, StepError>> + Send;

    /// Looks at the result, after the reboot if one was asked for, and changes nothing.
    fn confirm(&self, context: &Context<'_>) -> impl Future<Output = Result<Confirmed, StepError>> + Send;

    /// Takes the work back, all of it or the part that was done; called more than once after an interruption. Only in
    /// runs that say so.
    fn roll_back(&self, _context: &Context<'_>) -> impl Future<Output = Result<(), StepError>> + Send {
        std::future::ready(Ok(()))
    }
}

/// How long a step may take and how often it is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For one try: `check`, `apply` and `confirm` together.
    pub deadline: Duration,
    /// Between tries that failed with [`Retry::Now`].
    pub backoff: Backoff,
}

/// What `check` found.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// There is work to do.
    Needed,
    /// The work is done, by an earlier try or by someone else.
    Satisfied { reason: String, outputs: Outputs },
    /// The work is done as far as this boot can go: an earlier try that was cut off, or someone else, has staged it. A
    /// step that asks for reboots must be able to tell this from `Satisfied`.
    RebootNeeded(Outputs),
    /// It cannot be told, or not begun, before something outside happens.
    Waiting { on: String },
}

/// How `apply` came out.
#[derive(Clone, Debug, PartialEq)]
pub enum Applied {
    Done(Outputs),
    /// The work takes effect at the next boot.
    RebootNeeded(Outputs),
    Waiting {
        on: String,
    },
}

/// What `confirm` saw. That the work did not take is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confirmed {
    Holds,
    Waiting { on: String },
}

/// Why a step did not come out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct StepError {
    pub(crate) reason: String,
    pub(crate) retry: Retry,
}

/// Whether an earlier process was cut off in the middle of this step's `apply` or `roll_back`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupted {
    No,
    InThisBoot,
    InEarlierBoot,
}

/// What a step knows about its run.
#[derive(Debug)]
pub struct Context<'a> {
    pub(crate) step: &'static str,
    pub(crate) readable: &'a [Slot],
    pub(crate) values: &'a Values,
    pub(crate) attempt: &'a str,
    pub(crate) boot: &'a BootId,
    pub(crate) attempts: u32,
    pub(crate) interrupted: Interrupted,
    pub(crate) cancel: &'a CancellationToken,
    pub(crate) events: &'a EventStream,
}

/// A step in a list of different steps.
pub(crate) trait AnyStep: Send + Sync {
    fn name(&self) -> &'static str;
    fn title(&self) -> String;
    fn needs(&self) -> Vec<Slot>;
    fn gives(&self) -> Vec<Slot>;
    fn limits(&self) -> Limits;
    fn check<'a>(&'a self, context: &'a Context<'_>) -> Work<'a, Found>;
    fn apply<'a>(&'a self, context: &'a Context<'_>) -> Work<'a, Applied>;
    fn confirm<'a>(&'a self, context: &'a Context<'_>) -> Work<'a, Confirmed>;
    fn roll_back<'a>(&'a self, context: &'a Context<'_>) -> Work<'a, ()>;
}

pub(crate) type Work<'a, T> = Pin<Box<dyn Future<Output = Result<T, StepError>> + Send + 'a>>;

/// Text that fits the ledger: what is too long is cut and says so.
pub(crate) fn bounded(mut text: String) -> String {
    if text.len() > MAX_REASON_BYTES {
        let end = (0..=MAX_REASON_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

// === impl AnyStep ===

impl<S: Step> AnyStep for S {
    fn name(&self) -> &'static str {
        Step::name(self)
    }

    fn title(&self) -> String {
        Step::title(self)
    }

    fn needs(&self) -> Vec<Slot> {
        Step::needs(self)
    }

    fn gives(&self) -> Vec<Slot> {
        Step::gives(self)
    }

    fn limits(&self) -> Limits {
        Step::limits(self)
    }

    fn check<'a>(&'a self, context: &'a Context<'_>) -> Work<'a, Found> {
        Box::pin(Step::check(self, context))
    }

    fn apply<'a>(&'a self, context: &'a Context<'_>) -> Work<'a, Applied> {
        Box::pin(Step::apply(self, context))
    }

    fn confirm<'a>(&'a self, context: &'a Context<'_>) -> Work<'a, Confirmed> {
        Box::pin(Step::confirm(self, context))
    }

    fn roll_back<'a>(&'a self, context: &'a Context<'_>) -> Work<'a, ()> {
        Box::pin(Step::roll_back(self, context))
    }
}

impl fmt::Debug for dyn AnyStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Step({})", self.name())
    }
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self { deadline: Duration::from_mins(10), backoff: Backoff::default() }
    }
}

// === impl StepError ===

impl StepError {
    /// Trying again cannot help: the run has failed.
    pub fn never(reason: impl Into<String>) -> Self {
        Self { reason: bounded(reason.into()), retry: Retry::Never }
    }

    /// Trying again soon may help; the step's backoff says how soon and how often.
    pub fn now(reason: impl Into<String>) -> Self {
        Self { reason: bounded(reason.into()), retry: Retry::Now }
    }

    /// Trying again may help, but not within this process.
    pub fn later(reason: impl Into<String>) -> Self {
        Self { reason: bounded(reason.into()), retry: Retry::Later }
    }

    /// An error with everything that caused it.
    pub fn caused(error: &dyn std::error::Error, retry: Retry) -> Self {
        Self { reason: bounded(chain(error).to_string()), retry }
    }
}

/// A step that mishandles its own values is a defect; no retry mends it.
impl From<ValueError> for StepError {
    fn from(error: ValueError) -> Self {
        Self::caused(&error, Retry::Never)
    }
}

// === impl Context ===

impl Context<'_> {
    /// A value the step needs, or one it has given itself before.
    pub fn get<T: Serialize + DeserializeOwned>(&self, key: &Key<T>) -> Result<T, ValueError> {
        if self.readable.contains(&key.slot()) {
            key.decode(self.values)
        } else {
            Err(ValueError::Undeclared { name: key.slot().name })
        }
    }

    /// The identity of the request, for everything that must not be done twice elsewhere.
    pub fn attempt(&self) -> &str {
        self.attempt
    }

    /// The boot this is, for the mark of a step that stages what the next one brings.
    pub fn boot(&self) -> &BootId {
        self.boot
    }

    /// How often the step was begun, this time not counted while `check` looks.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    pub fn interrupted(&self) -> Interrupted {
        self.interrupted
    }

    /// Comes when the process was asked to stop; a step that can stop early listens. It has a short time to do so.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// Tells how far the step is. Cheap, and may be lost on its way.
    pub fn progress(&self, done: u64, total: Option<u64>, unit: Unit) {
        self.events.progress(self.step, done, total, unit);
    }
}
