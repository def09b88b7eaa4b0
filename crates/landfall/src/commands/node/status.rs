use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use clap::Args;
use jiff::Timestamp;
use landfall_model::step::{Outcome, StepRecord, StepState};
use landfall_node::environment::HostEnvironment;
use landfall_node::in_place::gate::Gate;
use landfall_node::in_place::places::RUN as IN_PLACE;
use landfall_node::in_place::run::{self, Log};
use landfall_node::in_place::steps::{REPORT, REQUEST};
use landfall_node::in_place::story;
use landfall_node::prepare::request;
use landfall_node::prepare::show;
use landfall_node::prepare::status::{self, Published, StatusDocument};
use landfall_node::run::records;
use landfall_steps::RunRecord;
use serde::Serialize;
use serde_json::json;

use super::{Format, work};
use crate::exit::{Exit, Failure};
use crate::{output, runtime};

/// Width of most step names; a longer one widens the column.
const STEP_WIDTH: usize = 18;

/// Show what was done to this node, and why
#[derive(Args)]
pub(crate) struct Status {
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,

    /// Also write it on this node of the cluster, as annotation `landfall.dev/node-prepare`
    #[arg(long, value_name = "NAME")]
    annotate: Option<String>,

    /// Access to the API server
    #[arg(long, value_name = "FILE", default_value = request::KUBECONFIG)]
    kubeconfig: PathBuf,

    /// The node's root folder
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

/// An in-place attempt, with its effect on this machine.
struct InPlace {
    record: RunRecord,
    /// For an open attempt.
    gate: Option<Gate>,
    /// Logs of its programs, the latest last.
    logs: Vec<Log>,
}

// === impl Status ===

impl Status {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        work::root_is_there(&self.root)?;
        let env = HostEnvironment::new(&self.root, None).context("prepare to look around")?;
        let document = status::status(&env).map_err(work::failure)?;
        let in_place = last_in_place(&env)?.filter(|InPlace { record, .. }| {
            age(record.ended().is_none(), record.steps()) > age(document.ended.is_none(), &document.steps)
        });
        let text = match (self.output, &in_place) {
            (Format::Json, Some(in_place)) => json(&in_place.document())?,
            (Format::Json, None) => json(&document)?,
            (Format::Text, Some(in_place)) => in_place.text(),
            (Format::Text, None) => text(&document),
        };
        output::print(&text)?;
        if let Some(node) = &self.annotate {
            annotate(&env, &self.kubeconfig, node, &document)?;
        }
        Ok(Exit::Done)
    }
}

/// Returns the open in-place attempt, otherwise the one that ended last.
fn last_in_place(env: &HostEnvironment) -> Result<Option<InPlace>, Failure> {
    let records = records(env, IN_PLACE).map_err(work::failure)?;
    // The current boot of a disk without its machine is unknown.
    let gate = run::look_at_gate(env).ok();
    let record = records.into_iter().max_by_key(|record| age(record.ended().is_none(), record.steps()));
    Ok(record.map(|record| {
        let gate = gate.filter(|_| record.ended().is_none());
        let logs = run::logs(env, record.attempt());
        InPlace { record, gate, logs }
    }))
}

/// Sort key: open attempts before ended ones, later before earlier ones, and those that never started last.
fn age(open: bool, steps: &[StepRecord]) -> (bool, Option<Timestamp>) {
    (open && !steps.is_empty(), steps.iter().filter_map(|step| step.ended).max())
}

pub(super) fn json(document: &impl Serialize) -> Result<String, Failure> {
    Ok(serde_json::to_string_pretty(document).context("write the output as JSON")? + "\n")
}

fn annotate(
    env: &HostEnvironment,
    kubeconfig: &Path,
    node: &str,
    document: &StatusDocument,
) -> Result<(), Failure> {
    let published = runtime::multi_threaded()?.block_on(status::publish(env, kubeconfig, node, document));
    let hint = "give this account `get` and `patch` on nodes";
    match published.map_err(|error| Failure::new(error, hint).exit(Exit::Unavailable))? {
        Published::Written => Ok(()),
        Published::NoSuchNode => {
            let error = anyhow!("the cluster has no node `{node}`");
            Err(Failure::new(error, "a node is there once its kubelet has registered it")
                .exit(Exit::TryLater))
        }
    }
}

fn text(document: &StatusDocument) -> String {
    let (Some(run), Some(attempt)) = (&document.run, &document.attempt) else {
        return "Nothing was done to this node.\n".to_owned();
    };
    let mut text = format!("{run} {attempt}: {}\n\n", stands(document));
    push_steps(&mut text, &document.steps);
    if let Some(decision) = &document.decision {
        text.push('\n');
        text.push_str(&show::text(decision));
        text.push_str(&show::fetched(&document.fetched));
    } else if let Some(inputs) = &document.inputs {
        text.push('\n');
        text.push_str(&show::inputs(inputs));
    }
    text
}

fn push_steps(text: &mut String, steps: &[StepRecord]) {
    let width = steps.iter().map(|step| step.name.len()).max().unwrap_or(0).max(STEP_WIDTH);
    for step in steps {
        let tail = match &step.state {
            StepState::Skipped { reason }
            | StepState::Failed { reason, .. }
            | StepState::RollbackFailed { reason } => {
                format!(": {reason}")
            }
            StepState::Waiting { on } => format!(": {on}"),
            _ => String::new(),
        };
        text.push_str(&format!("{:<width$}  {}{tail}\n", step.name, step.state.name()));
    }
}

/// Formats the state and the next step as text.
fn stands(document: &StatusDocument) -> String {
    let why = document.why.map(|why| format!(" ({})", why.name())).unwrap_or_default();
    match (&document.ended, &document.outcome) {
        (Some(Outcome::Done), _) => "prepared".to_owned(),
        (Some(Outcome::Abandoned { reason }), _) => format!("given up: {reason}"),
        (Some(_), _) => format!("failed permanently{why}; `landfall node prepare --start-over` starts again"),
        (None, Some(Outcome::Failed { .. })) => {
            format!("failed{why}; fix it, then `landfall node resume` retries")
        }
        (None, Some(Outcome::RebootNeeded { .. })) => {
            "waits for a reboot; `landfall node resume` continues after it".to_owned()
        }
        (None, Some(Outcome::Waiting { on, .. })) => {
            format!("waits for {on}; `landfall node resume` asks again")
        }
        (None, _) => {
            "not finished; `landfall node resume` continues, unless another process is running".to_owned()
        }
    }
}

// === impl InPlace ===

impl InPlace {
    fn document(&self) -> serde_json::Value {
        let record = &self.record;
        let kubelet = self.gate.as_ref().map(|gate| match gate {
            Gate::Open { why } => json!({"may_start": true, "why": why}),
            Gate::Closed { why } => json!({"may_start": false, "why": why}),
        });
        let logs: Vec<_> =
            self.logs.iter().map(|log| json!({"path": log.path, "last_line": log.last_line})).collect();
        json!({
            "format": 1,
            "run": IN_PLACE,
            "attempt": record.attempt(),
            "state": story::state(record),
            "kubelet": kubelet,
            "logs": logs,
            "ended": record.ended(),
            "steps": record.steps(),
            "request": record.get(&REQUEST).ok(),
            "preflight": record.get(&REPORT).ok(),
        })
    }

    fn text(&self) -> String {
        let mut text = format!("{IN_PLACE} {}\n\n{}", self.record.attempt(), story::text(&self.record));
        if let Some(Gate::Closed { why }) = &self.gate {
            text.push_str(&format!("The kubelet must wait: {why}.\n"));
        }
        for Log { path, last_line } in &self.logs {
            text.push_str(&format!("`{}` ends with: {last_line}\n", path.display()));
        }
        text.push('\n');
        push_steps(&mut text, self.record.steps());
        text
    }
}
