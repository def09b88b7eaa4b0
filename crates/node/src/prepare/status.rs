//! The status of a node as one document: the steps, the decision, and the reason why there is none.
//!
//! `node status` prints it, the node has it as an annotation, and a bundle contains it as a file.

use std::path::Path;

use landfall_cluster::{Cluster, Error};
use landfall_durable::{self as durable, Access};
use landfall_model::step::{Outcome, StepRecord, StepState};
use landfall_steps::RunRecord;
use serde::{Deserialize, Serialize};

use super::decision::{Action, Decision, Fetched, Inputs, Origin, PassedOver};
use super::run;
use super::steps::{FETCHED, RUN};
use super::why::{Trouble, Why};
use crate::environment::read_text as read;
use crate::prepare::environment::PrepareEnvironment;
use crate::run::{RunError, is_open, records};

/// Path of the document that the last process wrote, for tools that only collect files.
pub const PATH: &str = "/var/lib/landfall/node-prepare.json";
/// Name of the annotation that holds the document on the node.
pub const ANNOTATION: &str = "landfall.dev/node-prepare";

/// The version of the document.
const FORMAT: u32 = 1;
/// A document with two operating systems and ten extensions has 20 KB.
const MAX_BYTES: u64 = 1024 * 1024;
/// All annotations of an object together may have 256 KiB, so this one leaves space for others.
const MAX_ANNOTATION_BYTES: usize = 64 * 1024;

/// The status of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusDocument {
    pub format: u32,
    /// The run; `None` when no run was ever started on this node.
    pub run: Option<String>,
    #[serde(default)]
    pub attempt: Option<String>,
    /// The outcome of the run, once it has ended.
    #[serde(default)]
    pub ended: Option<Outcome>,
    /// The outcome of the last process that worked on the run.
    #[serde(default)]
    pub outcome: Option<Outcome>,
    /// The kind of failure, if it failed.
    #[serde(default)]
    pub why: Option<Why>,
    #[serde(default)]
    pub steps: Vec<StepRecord>,
    #[serde(default)]
    pub decision: Option<Decision>,
    /// The fetched images, and the source of each.
    #[serde(default)]
    pub fetched: Vec<Fetched>,
    /// The inputs that were known when the run stopped without a decision.
    #[serde(default)]
    pub inputs: Option<Inputs>,
}

/// Result of writing the annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    Written,
    /// The cluster does not have this node yet.
    NoSuchNode,
}

/// Returns the status of the node.
pub fn status(env: &impl PrepareEnvironment) -> Result<StatusDocument, RunError> {
    let mut records = records(env, RUN)?;
    // The open run, otherwise the one that ended last.
    records
        .sort_by_key(|record| (is_open(record), record.steps().iter().filter_map(|step| step.ended).max()));
    let Some(record) = records.last() else { return Ok(StatusDocument::nothing()) };
    let mut document = StatusDocument::of(record);
    // Fields that the ledger lacks come from the file, if it is of the same attempt.
    let left = read(env, Path::new(PATH), MAX_BYTES).ok().flatten();
    let left: Option<StatusDocument> = left.and_then(|text| serde_json::from_str(&text).ok());
    if let Some(left) = left.filter(|left| left.attempt == document.attempt && left.steps == document.steps) {
        document.outcome = left.outcome;
        document.why = left.why;
        document.inputs = left.inputs;
    }
    Ok(document)
}

/// Writes the document to its file. The work does not depend on it.
pub(crate) fn leave(
    env: &impl PrepareEnvironment,
    record: &RunRecord,
    outcome: &Outcome,
    trouble: Option<Trouble>,
) {
    let mut document = StatusDocument::of(record);
    document.outcome = Some(outcome.clone());
    if let Some(Trouble { why, inputs }) = trouble {
        document.why = Some(why);
        document.inputs = inputs;
    }
    let written = serde_json::to_vec_pretty(&document).map_err(std::io::Error::other).and_then(|mut text| {
        text.push(b'\n');
        let place = env.host_path(Path::new(PATH));
        durable::write(&*env.disk(), &place, &text, Access::PRIVATE).map_err(std::io::Error::other)
    });
    if let Err(error) = written {
        tracing::warn!(%error, "The status could not be left for others.");
    }
}

/// Writes the document to the annotation of the node.
pub async fn publish(
    env: &impl PrepareEnvironment,
    kubeconfig: &Path,
    node: &str,
    document: &StatusDocument,
) -> Result<Published, Error> {
    let cluster = cluster(env, kubeconfig).await?;
    if cluster.node_facts(node).await?.is_none() {
        return Ok(Published::NoSuchNode);
    }
    cluster.annotate_node(node, ANNOTATION, Some(&document.annotation())).await?;
    Ok(Published::Written)
}

/// Connects with the kubeconfig of the node; in a pod there is no such file, but a service account.
pub(crate) async fn cluster(env: &impl PrepareEnvironment, kubeconfig: &Path) -> Result<Cluster, Error> {
    let path = env.host_path(kubeconfig);
    if path.exists() { Cluster::from_kubeconfig(&path).await } else { Cluster::infer().await }
}

// === impl StatusDocument ===

impl StatusDocument {
    fn nothing() -> Self {
        Self { format: FORMAT, ..Self::default() }
    }

    fn of(record: &RunRecord) -> Self {
        Self {
            run: Some(record.run().to_owned()),
            attempt: Some(record.attempt().to_owned()),
            ended: record.ended(),
            steps: record.steps().to_vec(),
            decision: run::decision_of(record),
            fetched: record.get(&FETCHED).unwrap_or_default(),
            ..Self::nothing()
        }
    }

    /// Wraps the decision of a hook, which has no ledger.
    pub fn of_decision(decision: Decision) -> Self {
        Self { decision: Some(decision), ..Self::nothing() }
    }

    /// Removes credentials from URLs: more people can read a node than a mirror.
    fn masked(mut self) -> Self {
        let decided = self.decision.as_mut().map(|decision| &mut decision.inputs);
        for index in decided.into_iter().chain(self.inputs.as_mut()).flat_map(|inputs| &mut inputs.indexes) {
            index.url = masked(&index.url);
            mask_all(&mut index.passed_over);
        }
        for fetched in &mut self.fetched {
            fetched.url = masked(&fetched.url);
            mask_all(&mut fetched.passed_over);
        }
        for step in &mut self.steps {
            if let StepState::Failed { reason, .. } = &mut step.state {
                *reason = masked_words(reason);
            }
        }
        for outcome in self.outcome.iter_mut().chain(&mut self.ended) {
            if let Outcome::Failed { reason, .. } = outcome {
                *reason = masked_words(reason);
            }
        }
        for artefact in self.decision.iter_mut().flat_map(|decision| &mut decision.artefacts) {
            if let Action::Fetch { urls } = &mut artefact.action {
                for url in urls {
                    *url = masked(url);
                }
            }
        }
        self
    }

    /// One line within the size limit of the annotation; a document that is too large loses its plan.
    fn annotation(&self) -> String {
        let line = |document: &Self| serde_json::to_string(document).unwrap_or_default();
        let whole = line(&self.clone().masked());
        if whole.len() <= MAX_ANNOTATION_BYTES {
            return whole;
        }
        line(&Self { decision: None, inputs: None, fetched: Vec::new(), ..self.clone().masked() })
    }
}

fn mask_all(passed_over: &mut [PassedOver]) {
    for entry in passed_over {
        if let Origin::Url { url } = &mut entry.origin {
            *url = masked(url);
        }
        entry.reason = masked_words(&entry.reason);
    }
}

/// Masks the URLs between backticks in a message.
fn masked_words(text: &str) -> String {
    let piece = |piece: &str| if piece.contains("://") { masked(piece) } else { piece.to_owned() };
    text.split('`').map(piece).collect::<Vec<String>>().join("`")
}

/// A URL without user name, password and query.
fn masked(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (rest, question) = rest.split_once('?').map_or((rest, ""), |(rest, _)| (rest, "?…"));
    let (host, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let host = host.rsplit_once('@').map_or(host.to_owned(), |(_, host)| format!("…@{host}"));
    format!("{scheme}://{host}{path}{question}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_opens_doors_is_not_published() {
        assert_eq!(masked("https://h:1/a/m.json"), "https://h:1/a/m.json");
        assert_eq!(masked("https://user:pass@h/a@b?sig=x&y"), "https://…@h/a@b?…");
        assert_eq!(masked("https://h?token=x"), "https://h?…");
        assert_eq!(
            masked_words("cannot fetch docker: `https://u:p@h/i?s=1` answered 404"),
            "cannot fetch docker: `https://…@h/i?…` answered 404"
        );
    }

    #[test]
    fn an_annotation_never_grows_out_of_bounds() {
        let steps = |count: usize, length: usize| -> Vec<StepRecord> {
            (0..count)
                .map(|number| StepRecord {
                    name: format!("{number}{}", "x".repeat(length)),
                    state: StepState::Done,
                    attempts: 1,
                    reboots: 0,
                    boot_id: "b".to_owned(),
                    started: None,
                    ended: None,
                })
                .collect()
        };
        let small = StatusDocument { steps: steps(9, 10), ..StatusDocument::nothing() };
        assert_eq!(serde_json::from_str::<StatusDocument>(&small.annotation()).unwrap(), small);
        assert!(!small.annotation().contains('\n'));
    }
}
