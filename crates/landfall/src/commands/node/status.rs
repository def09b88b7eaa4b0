use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use clap::{Args, ValueEnum};
use landfall_model::step::{Outcome, StepState};
use landfall_node::prepare::request;
use landfall_node::prepare::show;
use landfall_node::prepare::status::{self, Published, StatusDocument};
use landfall_node::prepare::world::HostWorld;

use super::work;
use crate::exit::{Exit, Failure};
use crate::output;

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
        let document = status::status(&world).map_err(work::failure)?;
        let text = match self.output {
            Format::Json => {
                let json = serde_json::to_string_pretty(&document).context("write the status as JSON")?;
                format!("{json}\n")
            }
            Format::Text => text(&document),
        };
        output::print(&text)?;
        if let Some(node) = &self.annotate {
            annotate(&world, &self.kubeconfig, node, &document)?;
        }
        Ok(Exit::Done)
    }
}

fn annotate(
    world: &HostWorld,
    kubeconfig: &Path,
    node: &str,
    document: &StatusDocument,
) -> Result<(), Failure> {
    let published = work::runtime()?.block_on(status::publish(world, kubeconfig, node, document));
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
    for step in &document.steps {
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
    if let Some(decision) = &document.decision {
        text.push('\n');
        text.push_str(&show::text(decision));
    } else if let Some(inputs) = &document.inputs {
        text.push('\n');
        text.push_str(&show::inputs(inputs));
    }
    text
}

/// One word for people.
fn stands(document: &StatusDocument) -> &'static str {
    match (&document.ended, &document.outcome) {
        (Some(Outcome::Done), _) => "prepared",
        (Some(Outcome::Abandoned { .. }), _) => "given up",
        (Some(_), _) => "failed",
        (None, Some(Outcome::Failed { .. })) => "failed, and tried again by the next process",
        (None, Some(Outcome::RebootNeeded { .. })) => "waits for a reboot",
        (None, Some(Outcome::Waiting { .. })) => "waits",
        (None, _) => "not finished",
    }
}
