//! Steps: `check → apply → confirm`, and the result of each.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use landfall_model::chain;
use landfall_model::step::{Retry, Unit};
use landfall_net::Retries;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::boot::BootId;
use crate::events::EventStream;
use crate::values::{Key, Outputs, Slot, ValueError, Values};

/// A reason is a sentence for people, in the ledger and in every protocol; longer text belongs in a log.
const MAX_REASON_BYTES: usize = 2048;

/// One unit of work that may be interrupted anywhere.
///
/// The three calls are made in this order, and again from `check` after every interruption, so that `apply` runs only
/// while `check` finds work to do. A step whose work leaves no visible result must write a marker together with it.
pub trait Step: Send + Sync {
    /// Returns the declaration of the step; the same at every call.
    fn spec(&self) -> StepSpec;

    /// Checks whether the work is already done, and changes nothing.
    fn check(&self, context: &Context<'_>) -> impl Future<Output = Result<Found, StepError>> + Send;

    /// Does the work. It may be interrupted anywhere, and starts again if `check` still finds work.
    fn apply(&self, context: &Context<'_>) -> impl Future<Output = Result<Applied, StepError>> + Send;

    /// Checks the result, after the requested reboot if there was one, and changes nothing.
    ///
    /// Only a step without a visible result keeps this default.
    fn confirm(&self, _context: &Context<'_>) -> impl Future<Output = Result<Confirmed, StepError>> + Send {
        std::future::ready(Ok(Confirmed::Holds))
    }

    /// Rolls the work back, completely or as far as it was done. It is called more than once after an interruption.
    ///
    /// Only plans with rollback call it.
    fn roll_back(&self, _context: &Context<'_>) -> impl Future<Output = Result<(), StepError>> + Send {
        std::future::ready(Ok(()))
    }
}

/// The declaration of a step, made before it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSpec {
    pub(crate) name: &'static str,
    pub(crate) title: String,
    pub(crate) needs: Vec<Slot>,
    pub(crate) gives: Vec<Slot>,
    pub(crate) limits: Limits,
}

/// Time limit and number of attempts of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For one attempt: `check`, `apply` and `confirm` together.
    pub deadline: Duration,
    /// Delays between attempts that failed with [`Retry::Now`].
    pub backoff: Retries,
}

/// Result of `check`.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// There is work to do.
    Needed,
    /// The work is done, by an earlier attempt or by another process.
    Satisfied { reason: String, outputs: Outputs },
    /// The work is done as far as possible in this boot: an interrupted attempt, or another process, has staged it. A
    /// step that requests reboots must be able to distinguish this from `Satisfied`.
    RebootNeeded(Outputs),
    /// The state cannot be determined, or the work not started, before an external event.
    Waiting { on: String },
}

/// Result of `apply`.
#[derive(Clone, Debug, PartialEq)]
pub enum Applied {
    Done(Outputs),
    /// The work takes effect at the next boot.
    RebootNeeded(Outputs),
    Waiting {
        on: String,
    },
}

/// Result of `confirm`. Work without effect is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confirmed {
    Holds,
    Waiting { on: String },
}

/// The reason why a step failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct StepError {
    pub(crate) reason: String,
    pub(crate) retry: Retry,
}

/// Whether an earlier process was interrupted during this step's `apply` or `roll_back`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupted {
    No,
    InThisBoot,
    InEarlierBoot,
}

/// Information about the run, for a step.
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

/// A step of a plan, with its declaration.
#[derive(Debug)]
pub(crate) struct PlannedStep {
    pub(crate) spec: StepSpec,
    pub(crate) work: Box<dyn AnyStep>,
}

/// Object-safe form of [`Step`], for lists of different steps.
pub(crate) trait AnyStep: Send + Sync {
    fn check<'a>(&'a self, context: &'a Context<'_>) -> Work<'a, Found>;
    fn apply<'a>(&'a self, context: &'a Context<'_>) -> Work<'a, Applied>;
    fn confirm<'a>(&'a self, context: &'a Context<'_>) -> Work<'a, Confirmed>;
    fn roll_back<'a>(&'a self, context: &'a Context<'_>) -> Work<'a, ()>;
}

pub(crate) type Work<'a, T> = Pin<Box<dyn Future<Output = Result<T, StepError>> + Send + 'a>>;

/// Truncates text to the limit of the ledger, with a note about the truncation.
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
        f.write_str("AnyStep")
    }
}

// === impl Found ===

impl Found {
    /// The work is done, without values.
    pub fn satisfied(reason: impl Into<String>) -> Self {
        Self::Satisfied { reason: reason.into(), outputs: Outputs::none() }
    }
}

// === impl StepSpec ===

impl StepSpec {
    /// Creates a declaration.
    ///
    /// The name consists of plain words joined by hyphens and is unique within the run; it is in the ledger and must
    /// not change between versions. The title is shown while the step runs: "Fetch the manifest".
    pub fn new(name: &'static str, title: impl Into<String>) -> Self {
        Self { name, title: title.into(), needs: Vec::new(), gives: Vec::new(), limits: Limits::default() }
    }

    /// Declares the values that the step reads: each an input of the run or a value of an earlier step.
    #[must_use]
    pub fn needs(self, needs: impl IntoIterator<Item = Slot>) -> Self {
        Self { needs: needs.into_iter().collect(), ..self }
    }

    /// Declares the values that the step returns, all of them whenever it succeeds.
    #[must_use]
    pub fn gives(self, gives: impl IntoIterator<Item = Slot>) -> Self {
        Self { gives: gives.into_iter().collect(), ..self }
    }

    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Limits one attempt to this time.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { limits: Limits { deadline, ..self.limits }, ..self }
    }
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self { deadline: Duration::from_mins(10), backoff: Retries::default() }
    }
}

// === impl StepError ===

impl StepError {
    /// A retry cannot help: the run has failed.
    pub fn never(reason: impl Into<String>) -> Self {
        Self { reason: bounded(reason.into()), retry: Retry::Never }
    }

    /// A retry in this process may help; the step's backoff limits delays and attempts.
    pub fn now(reason: impl Into<String>) -> Self {
        Self { reason: bounded(reason.into()), retry: Retry::Now }
    }

    /// A retry may help, but not in this process.
    pub fn later(reason: impl Into<String>) -> Self {
        Self { reason: bounded(reason.into()), retry: Retry::Later }
    }

    /// Wraps an error with all its causes.
    pub fn caused(error: &dyn std::error::Error, retry: Retry) -> Self {
        Self { reason: bounded(chain(error).to_string()), retry }
    }
}

/// A step with invalid values has a defect, so a retry does not help.
impl From<ValueError> for StepError {
    fn from(error: ValueError) -> Self {
        Self::caused(&error, Retry::Never)
    }
}

// === impl Context ===

impl Context<'_> {
    /// Returns a value that the step needs, or one it returned before.
    pub fn get<T: Serialize + DeserializeOwned>(&self, key: &Key<T>) -> Result<T, ValueError> {
        if self.readable.contains(&key.slot()) {
            key.decode(self.values)
        } else {
            Err(ValueError::Undeclared { name: key.slot().name })
        }
    }

    /// Returns the identity of the request, for external operations that must not be done twice.
    pub fn attempt(&self) -> &str {
        self.attempt
    }

    /// Returns the current boot, for the marker of a step that stages work for the next one.
    pub fn boot(&self) -> &BootId {
        self.boot
    }

    /// Returns the number of starts of this step; the current one counts only after `check`.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    pub fn interrupted(&self) -> Interrupted {
        self.interrupted
    }

    /// Completes on cancellation. A step that can stop early waits for it; it then has a short time to do so.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// Reports progress. Cheap, and may be lost.
    pub fn progress(&self, done: u64, total: Option<u64>, unit: Unit) {
        self.events.progress(self.step, done, total, unit);
    }
}
