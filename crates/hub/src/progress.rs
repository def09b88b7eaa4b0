//! Progress of in-place bootstraps, as reported by nodes.

use jiff::Timestamp;
use landfall_model::in_place::{Progress, State};
use serde::Serialize;

use crate::access::{Caller, Wish};
use crate::hub::Hub;
use crate::name::NodeName;
use crate::problem::Problem;
use crate::store::{Heard, ProgressEvent, ProgressLine};

/// Maximum size of an event, including its reason.
pub(crate) const MAX_PROGRESS: usize = 64 << 10;
/// Maximum length of a name: attempts are hashes, boots are UUIDs, steps are a few words.
const MAX_NAME: usize = 128;
/// Maximum count that JSON readers with double precision represent exactly.
const MAX_SEQUENCE: u64 = 1 << 53;
/// Maximum number of nodes per response.
const MAX_LINES: u32 = 1000;

/// Acknowledgement of a durably stored event.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ProgressReceipt {
    outcome: Heard,
}

/// The newest attempt of a node, with its events in order.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct NodeProgress {
    pub(crate) events: Vec<ProgressEvent>,
}

/// All nodes with an in-place bootstrap, most recently received first.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ProgressLines {
    pub(crate) nodes: Vec<ProgressLine>,
}

// === impl Hub ===

impl Hub {
    /// Stores an event. Events may arrive in any order and repeatedly.
    pub(crate) async fn take_progress(
        &self,
        caller: &Caller,
        node: NodeName,
        body: &[u8],
    ) -> Result<ProgressReceipt, Problem> {
        caller.may(Wish::Report(&node))?;
        let progress: Progress =
            serde_json::from_slice(body).map_err(|error| not_progress(&error.to_string()))?;
        check(&progress)?;
        match self.store.add_progress(node, progress, Timestamp::now()).await? {
            Heard::Taken => {
                Err(Problem::new(409, "Refused", "another event has this attempt and this sequence"))
            }
            outcome => Ok(ProgressReceipt { outcome }),
        }
    }

    pub(crate) async fn progress(&self, caller: &Caller, node: NodeName) -> Result<NodeProgress, Problem> {
        caller.may(Wish::See)?;
        let missing = Problem::not_found(&format!("an in-place bootstrap of node `{node}`"));
        let events = self.store.progress(node).await?;
        if events.is_empty() { Err(missing) } else { Ok(NodeProgress { events }) }
    }

    pub(crate) async fn progress_lines(&self, caller: &Caller) -> Result<ProgressLines, Problem> {
        caller.may(Wish::See)?;
        Ok(ProgressLines { nodes: self.store.progress_lines(MAX_LINES).await? })
    }
}

fn check(progress: &Progress) -> Result<(), Problem> {
    let is_name = |text: &str| {
        !text.is_empty() && text.len() <= MAX_NAME && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let named_step = match &progress.state {
        State::Failed { step, .. } | State::RolledBack { step, .. } => Some(step),
        _ => None,
    };
    let steps = progress.step.iter().chain(named_step);
    if !is_name(&progress.attempt) || !is_name(&progress.boot_id) {
        return Err(not_progress("`attempt` and `bootId` are words of at most 128 characters"));
    }
    if steps.into_iter().any(|step| !step.is_empty() && !is_name(step)) {
        return Err(not_progress("`step` is a word of at most 128 characters"));
    }
    if !(1..=MAX_SEQUENCE).contains(&progress.sequence) {
        return Err(not_progress("`sequence` is not between 1 and 2^53"));
    }
    Ok(())
}

fn not_progress(detail: &str) -> Problem {
    Problem::new(422, "Not an event of an in-place bootstrap", detail)
}
