//! Formats events as "step 3 of 9: Fetch the manifest", for terminals and status lines.

use landfall_model::step::{Event, Happening, Outcome, StepState, StepTitle, Unit};

use super::Sink;

/// Display of a terminal. The binary draws; numbers and titles come from here.
pub trait Renderer: Send {
    /// A step is in progress: `number` of `count`, both for people, from 1.
    fn step(&mut self, number: usize, count: usize, title: &str, state: &StepState);
    fn progress(
        &mut self,
        number: usize,
        count: usize,
        title: &str,
        done: u64,
        total: Option<u64>,
        unit: Unit,
    );
    fn ended(&mut self, outcome: &Outcome);
}

/// Sends events to a renderer.
#[derive(Debug)]
pub struct Terminal<R> {
    renderer: R,
    titles: Titles,
}

/// The step titles of the run, from its first event.
#[derive(Debug, Default)]
pub(super) struct Titles(Vec<StepTitle>);

// === impl Terminal ===

impl<R: Renderer> Terminal<R> {
    pub fn new(renderer: R) -> Self {
        Self { renderer, titles: Titles::default() }
    }
}

impl<R: Renderer> Sink for Terminal<R> {
    fn take(&mut self, event: &Event) {
        self.titles.learn(event);
        match &event.what {
            Happening::Step { step, state, .. } => {
                if let Some((number, count, title)) = self.titles.find(step) {
                    self.renderer.step(number, count, title, state);
                }
            }
            Happening::Progress { step, done, total, unit } => {
                if let Some((number, count, title)) = self.titles.find(step) {
                    self.renderer.progress(number, count, title, *done, *total, *unit);
                }
            }
            Happening::Ended { outcome } => self.renderer.ended(outcome),
            Happening::Opened { .. } | Happening::Reopened { .. } => {}
        }
    }
}

// === impl Titles ===

impl Titles {
    pub(super) fn learn(&mut self, event: &Event) {
        if let Happening::Opened { steps, .. } = &event.what {
            self.0.clone_from(steps);
        }
    }

    fn find(&self, step: &str) -> Option<(usize, usize, &str)> {
        let index = self.0.iter().position(|title| title.name == step)?;
        Some((index + 1, self.0.len(), &self.0[index].title))
    }

    /// Returns the event as one line, if it should be shown.
    pub(super) fn line(&self, event: &Event) -> Option<String> {
        match &event.what {
            Happening::Step { step, state, .. } => {
                let (number, count, title) = self.find(step)?;
                let tail = match state {
                    StepState::Applying | StepState::Pending => String::new(),
                    StepState::Skipped { reason } => format!(": skipped, {reason}"),
                    StepState::Waiting { on } => format!(": waiting for {on}"),
                    StepState::Failed { reason, .. } => format!(": failed, {reason}"),
                    StepState::RollbackFailed { reason } => format!(": could not be rolled back, {reason}"),
                    StepState::Done => ": done".to_owned(),
                    StepState::RebootNeeded => ": reboot needed".to_owned(),
                    StepState::RollingBack => ": rolling back".to_owned(),
                    StepState::RolledBack => ": rolled back".to_owned(),
                };
                Some(format!("{number}/{count} {title}{tail}"))
            }
            Happening::Progress { step, done, total: Some(total), .. } if *total > 0 => {
                let (number, count, title) = self.find(step)?;
                let percent = u128::from(*done.min(total)) * 100 / u128::from(*total);
                Some(format!("{number}/{count} {title}: {percent} %"))
            }
            Happening::Ended { outcome } => Some(match outcome {
                Outcome::Done => "Done".to_owned(),
                Outcome::Failed { step, reason, .. } => format!("Failed in {step}: {reason}"),
                Outcome::RolledBack { step, reason } => format!("Rolled back after {step} failed: {reason}"),
                Outcome::RollbackFailed { stuck, .. } => {
                    format!("Could not be rolled back: {}", stuck.join(", "))
                }
                Outcome::Abandoned { reason } => format!("Abandoned: {reason}"),
                Outcome::RebootNeeded { .. } | Outcome::Waiting { .. } | Outcome::Cancelled => return None,
            }),
            Happening::Progress { .. } | Happening::Opened { .. } | Happening::Reopened { .. } => None,
        }
    }
}
