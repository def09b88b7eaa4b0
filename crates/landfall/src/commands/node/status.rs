use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use landfall_model::step::StepState;
use landfall_node::prepare::world::HostWorld;
use landfall_node::prepare::{run, show};
use landfall_steps::RunRecord;
use serde_json::json;

use super::work;
use crate::exit::{Exit, Failure};
use crate::output;

/// Show what was done to this node, and why
#[derive(Args)]
pub(crate) struct Status {
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,

    /// The node's root folder
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// For programs
    Json,
}

// === impl Status ===

impl Status {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let world = HostWorld::new(&self.root, None).context("prepare to look around")?;
        let mut records = run::records(&world).map_err(work::failure)?;
        // The open one, else the one that ended last.
        records.sort_by_key(|record| {
            (record.ended().is_none(), record.steps().iter().filter_map(|step| step.ended).max())
        });
        let text = match (self.output, records.last()) {
            (Format::Json, record) => {
                let document = record.map_or_else(|| json!({"format": 1, "run": null}), document);
                let json = serde_json::to_string_pretty(&document).context("write the status as JSON")?;
                format!("{json}\n")
            }
            (Format::Text, None) => "Nothing was done to this node.\n".to_owned(),
            (Format::Text, Some(record)) => text(record),
        };
        output::print(&text)?;
        Ok(Exit::Done)
    }
}

fn document(record: &RunRecord) -> serde_json::Value {
    json!({
        "format": 1,
        "run": record.run(),
        "attempt": record.attempt(),
        "ended": record.ended(),
        "steps": record.steps(),
        "decision": run::decision_of(record),
    })
}

fn text(record: &RunRecord) -> String {
    let mut text = format!("{} {}\n\n", record.run(), record.attempt());
    for step in record.steps() {
        let tail = match &step.state {
            StepState::Skipped { reason }
            | StepState::Failed { reason, .. }
            | StepState::RollbackFailed { reason } => {
                format!(": {reason}")
            }
            StepState::Waiting { on } => format!(": {on}"),
            _ => String::new(),
        };
        text.push_str(&format!("{:<20}{}{tail}\n", step.name, step.state.name()));
    }
    if let Some(decision) = run::decision_of(record) {
        text.push('\n');
        text.push_str(&show::text(&decision));
    }
    text
}
