//! How a node stands, as one document: the steps, the decision, and why there is none. `node status` prints it, the node
//! carries it as an annotation, and a bundle holds it as a file.

use std::path::Path;

use landfall_cluster::{Cluster, Error};
use landfall_model::step::{Outcome, StepRecord, StepState};
use landfall_steps::RunRecord;
use landfall_steps::durable::{self, Access};
use serde::{Deserialize, Serialize};

use super::decision::{Action, Decision, Fetched, Inputs, Origin, PassedOver};
use super::run::{self, RunError};
use super::steps::FETCHED;
use super::why::{Trouble, Why};
use super::world::{World, read};

/// The document as the last process left it, for those who only collect files.
pub const PATH: &str = "/var/lib/landfall/node-prepare.json";
/// The document on the node itself.
pub const ANNOTATION: &str = "landfall.dev/node-prepare";

/// The version of the document.
const FORMAT: u32 = 1;
/// A document with two operating systems and ten extensions has 20 kilobytes.
const MAX_BYTES: u64 = 1024 * 1024;
/// All annotations of an object together may have 256 KiB; others need room, too.
const MAX_ANNOTATION_BYTES: usize = 64 * 1024;

/// The document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusDocument {
    pub format: u32,
    /// Nothing when nothing was ever done to this node.
    pub run: Option<String>,
    #[serde(default)]
    pub attempt: Option<String>,
    /// How the run ended, once it has.
    #[serde(default)]
    pub ended: Option<Outcome>,
    /// How the last process that worked on it left it.
    #[serde(default)]
    pub outcome: Option<Outcome>,
    /// The kind of trouble, when it failed.
    #[serde(default)]
    pub why: Option<Why>,
    #[serde(default)]
    pub steps: Vec<StepRecord>,
    #[serde(default)]
    pub decision: Option<Decision>,
    /// The images that were fetched, and the place each came from.
    #[serde(default)]
    pub fetched: Vec<Fetched>,
    /// What was known when it stopped, when there is no decision.
    #[serde(default)]
    pub inputs: Option<Inputs>,
}

/// What became of an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    Written,
    /// The cluster does not know the node yet.
    NoSuchNode,
}

/// How the node stands.
pub fn status(world: &impl World) -> Result<StatusDocument, RunError> {
    let mut records = run::records(world)?;
    // The open one, else the one that ended last.
    records.sort_by_key(|record| {
        (record.ended().is_none(), record.steps().iter().filter_map(|step| step.ended).max())
    });
    let Some(record) = records.last() else { return Ok(StatusDocument::nothing()) };
    let mut document = StatusDocument::of(record);
    // What the ledger does not hold is in the file, if the file is of the same attempt.
    let left = read(world, Path::new(PATH), MAX_BYTES).ok().flatten();
    let left: Option<StatusDocument> = left.and_then(|text| serde_json::from_str(&text).ok());
    if let Some(left) = left.filter(|left| left.attempt == document.attempt && left.steps == document.steps) {
        document.outcome = left.outcome;
        document.why = left.why;
        document.inputs = left.inputs;
    }
    Ok(document)
}

/// Leaves the document for others. The work does not depend on it.
pub(crate) fn leave(world: &impl World, record: &RunRecord, outcome: &Outcome, trouble: Option<Trouble>) {
    let mut document = StatusDocument::of(record);
    document.outcome = Some(outcome.clone());
    if let Some(Trouble { why, inputs }) = trouble {
        document.why = Some(why);
        document.inputs = inputs;
    }
    let written = serde_json::to_vec_pretty(&document).map_err(std::io::Error::other).and_then(|mut text| {
        text.push(b'\n');
        let place = world.place(Path::new(PATH));
        durable::write(&*world.disk(), &place, &text, Access::PRIVATE).map_err(std::io::Error::other)
    });
    if let Err(error) = written {
        tracing::warn!(%error, "The status could not be left for others.");
    }
}

/// Writes the document on the node.
pub async fn publish(
    world: &impl World,
    kubeconfig: &Path,
    node: &str,
    document: &StatusDocument,
) -> Result<Published, Error> {
    let cluster = cluster(world, kubeconfig).await?;
    if cluster.node_notes(node).await?.is_none() {
        return Ok(Published::NoSuchNode);
    }
    cluster.annotate_node(node, ANNOTATION, Some(&document.annotation())).await?;
    Ok(Published::Written)
}

/// By the node's kubeconfig; in a pod there is no such file, but an account.
pub(crate) async fn cluster(world: &impl World, kubeconfig: &Path) -> Result<Cluster, Error> {
    let path = world.place(kubeconfig);
    if path.exists() { Cluster::from_kubeconfig(&path).await } else { Cluster::infer().await }
}

// === impl StatusDocument ===

impl StatusDocument {
    fn nothing() -> Self {
        Self {
            format: FORMAT,
            run: None,
            attempt: None,
            ended: None,
            outcome: None,
            why: None,
            steps: Vec::new(),
            decision: None,
            fetched: Vec::new(),
            inputs: None,
        }
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

    /// The decision of a hook, which keeps no ledger.
    pub fn of_decision(decision: Decision) -> Self {
        Self { decision: Some(decision), ..Self::nothing() }
    }

    /// Without what a URL may carry to open a door: more people read a node than a mirror.
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

    /// In one line, and within what an annotation may hold: rather no plan than no answer.
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

/// Words for people, in which URLs stand between backticks.
fn masked_words(text: &str) -> String {
    let piece = |piece: &str| if piece.contains("://") { masked(piece) } else { piece.to_owned() };
    text.split('`').map(piece).collect::<Vec<String>>().join("`")
}

/// A URL without name, password and question.
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
