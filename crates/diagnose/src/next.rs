//! Next steps when the evidence is inconclusive: what to check and collect.

use landfall_model::Phase;

use crate::case::{FACTS, SourceEntry};
use crate::reason::Drafts;
use crate::scan::Engine;
use crate::stages::Stages;
use crate::words::{WORDS, Wanted};

/// Maximum number of steps; more would be a manual.
const MAX_STEPS: usize = 3;

pub(crate) fn steps(
    engine: &Engine,
    sources: &[SourceEntry],
    stages: &Stages<'_>,
    drafts: &Drafts<'_>,
) -> Vec<String> {
    let reached = stages.last_event().map_or(Phase::Kernel, |event| event.phase);
    let read = |wanted: &Wanted| {
        sources.iter().any(|entry| {
            entry.lines > 0
                && wanted.known_as.iter().any(|name| entry.name.contains(name) || entry.kind.contains(name))
        })
    };
    let missing = WORDS.wanted.iter().filter(|wanted| wanted.phases.contains(&reached) && !read(wanted));
    let unconfirmed = drafts.iter().find(|(cause, draft)| {
        draft.is_root() && engine.is_destructive(cause) && !draft.is_corroborated(stages)
    });
    let mut steps: Vec<String> = Vec::new();
    steps.extend(unconfirmed.map(|(cause, _)| {
        format!("Confirm `{cause}` first: its fix destroys data, and a single unproven source reports it.")
    }));
    let room = MAX_STEPS - 1 - steps.len();
    steps.extend(missing.take(room).map(|wanted| format!("Collect {}.", wanted.what)));
    if sources.iter().all(|entry| entry.kind != FACTS) {
        steps.push(
            "Run `landfall diagnose` on the machine, as root: it reads all logs and proves their origin."
                .to_owned(),
        );
    }
    steps
}
