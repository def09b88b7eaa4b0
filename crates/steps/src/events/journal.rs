//! Events as log lines: a constant message and fields.

use landfall_model::step::{Event, Happening, Outcome, StepState};

use super::Sink;

/// Sends every event to `tracing`; the binary decides whether that is the journal or a terminal.
#[derive(Clone, Copy, Debug, Default)]
pub struct Journal;

// === impl Journal ===

impl Sink for Journal {
    fn take(&mut self, event: &Event) {
        let (attempt, sequence) = (event.attempt.as_str(), event.sequence);
        match &event.what {
            Happening::Opened { run, steps, start } => {
                tracing::info!(run, attempt, sequence, steps = steps.len(), ?start, "run taken up");
            }
            Happening::Step { step, state, attempts } => match state {
                StepState::Failed { reason, retry } => {
                    tracing::warn!(attempt, sequence, step, attempts, reason, ?retry, "step failed");
                }
                StepState::RollbackFailed { reason } => {
                    tracing::error!(attempt, sequence, step, reason, "step could not be rolled back");
                }
                StepState::Skipped { reason } => {
                    tracing::info!(attempt, sequence, step, reason, "step skipped");
                }
                StepState::Waiting { on } => tracing::info!(attempt, sequence, step, on, "step waits"),
                _ => tracing::info!(attempt, sequence, step, attempts, state = state.name(), "step changed"),
            },
            Happening::Reopened { step } => tracing::info!(attempt, sequence, step, "step reopened"),
            Happening::Ended { outcome: Outcome::Done } => tracing::info!(attempt, sequence, "run done"),
            Happening::Ended { outcome } => tracing::error!(attempt, sequence, ?outcome, "run failed"),
            Happening::Progress { step, done, total, .. } => {
                tracing::debug!(attempt, sequence, step, done, total, "step progress");
            }
        }
    }
}
