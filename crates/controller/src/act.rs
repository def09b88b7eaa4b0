//! Execution of one action as a write to the cluster.

use landfall_cluster::{Cluster, Error, Eviction, NodeChange, Part};
use landfall_model::chain;
use landfall_model::in_place::{LABEL, SECRET_KEY, SEED_LABEL, STATE_ANNOTATION, secret_names};

use crate::manifests::{self, MANAGED_BY, MANAGER, RUNNER, Settings};
use crate::plan::{Action, Recordon};
use crate::policy::Policy;
use crate::record::{KIND, Phase, Record};
use crate::template::{self, TemplateError};
use crate::world::{CONDITION, CORDONED_BY, CORDONER, World};

/// Reason why a write failed.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    #[error(transparent)]
    Cluster(#[from] Error),
    #[error("write the record of a node")]
    Record(#[source] serde_json::Error),
    #[error("there is no Secret `{name}` to make others from")]
    NoTemplate { name: String },
    #[error("make a Secret from the template")]
    Template(#[source] TemplateError),
}

// === impl ActError ===

impl ActError {
    /// Returns the API server's message if it rejected the write. A retry fails until the object or a policy
    /// changes.
    pub fn decision(&self) -> Option<String> {
        match self {
            Self::Cluster(error) => error.said().map(str::to_owned),
            other => Some(chain(other).to_string()),
        }
    }
}

/// Outcome of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// A PodDisruptionBudget does not permit the eviction now.
    Refused {
        pod: String,
        reason: String,
    },
}

pub async fn act(
    cluster: &Cluster,
    settings: &Settings,
    policy: &Policy,
    world: &World,
    action: &Action,
) -> Result<Outcome, ActError> {
    match action {
        Action::Write { node, record } => {
            // Only the first writes create the object: one that an administrator deleted later stays deleted.
            if matches!(record.phase, Phase::Waiting | Phase::Cordoning) {
                cluster.apply(&KIND, node, MANAGER, Part::Object, &Record::object(node)).await?;
            }
            let status = record.status().map_err(ActError::Record)?;
            cluster.apply(&KIND, node, MANAGER, Part::Status, &status).await?;
        }
        Action::Forget { node } => cluster.delete_object(&KIND, node).await?,
        Action::Cordon { node, version } => {
            let annotations =
                [(CORDONED_BY.to_owned(), Some(CORDONER.to_owned())), (STATE_ANNOTATION.to_owned(), None)];
            let change =
                NodeChange { cordoned: Some(true), annotations: annotations.into(), ..NodeChange::default() };
            cluster.change_node(node, Some(version), &change).await?;
        }
        Action::ClearTold { node, version } => {
            let annotations = [(STATE_ANNOTATION.to_owned(), None)].into();
            let change = NodeChange { annotations, ..NodeChange::default() };
            cluster.change_node(node, Some(version), &change).await?;
        }
        Action::Uncordon { node, version } => {
            let annotations = [(CORDONED_BY.to_owned(), None)].into();
            let change = NodeChange { cordoned: Some(false), annotations, ..NodeChange::default() };
            cluster.change_node(node, Some(version), &change).await?;
        }
        Action::TakeLabelsOff { node } => {
            let labels = [(SEED_LABEL.to_owned(), None), (LABEL.to_owned(), None)].into();
            let change = NodeChange { labels, ..NodeChange::default() };
            cluster.change_node(node, None, &change).await?;
        }
        Action::Evict { pod, .. } => {
            if let Eviction::Refused { reason } = cluster.evict(pod, policy.drain.grace).await? {
                let pod = format!("{}/{}", pod.namespace, pod.name);
                return Ok(Outcome::Refused { pod, reason });
            }
        }
        Action::MakeSecret { node } => make_secret(cluster, settings, node).await?,
        Action::DropSecret { name, .. } => cluster.delete_secret(&settings.namespace, name).await?,
        Action::StartRunner { node, secret } => {
            cluster.create_pod(&settings.namespace, manifests::runner(settings, node, secret)).await?;
        }
        Action::StopRunner { node } => {
            cluster.delete_pod(&settings.namespace, &format!("{RUNNER}-{node}")).await?;
        }
        Action::Restore { node, version, missing, taints, cordon } => {
            let given = |pairs: &std::collections::BTreeMap<String, String>| {
                pairs.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect()
            };
            let change = NodeChange {
                labels: given(&missing.labels),
                annotations: given(&missing.annotations),
                taints: taints.clone(),
                cordoned: (*cordon == Recordon::Theirs).then_some(true),
            };
            cluster.change_node(node, Some(version), &change).await?;
        }
        Action::Approve { node, request } => {
            let message = format!("node {node} re-bootstraps, and every part of the request matches it");
            cluster.approve(request, "LandfallProven", &message).await?;
        }
        Action::Show { node, condition } => {
            cluster.set_node_condition(node, CONDITION, condition, world.now).await?;
        }
    }
    Ok(Outcome::Done)
}

async fn make_secret(cluster: &Cluster, settings: &Settings, node: &str) -> Result<(), ActError> {
    let name = settings.template.clone().unwrap_or_default();
    let missing = || ActError::NoTemplate { name: name.clone() };
    let mut found = cluster.secret(&settings.namespace, &name).await?.ok_or_else(missing)?;
    let template = found.remove(SECRET_KEY).ok_or_else(missing)?;
    let filled = template::fill(&template, node).map_err(ActError::Template)?;
    let [own, _] = secret_names(node);
    let labels = [(MANAGED_BY.to_owned(), MANAGER.to_owned())].into();
    let data = [(SECRET_KEY.to_owned(), filled)].into();
    cluster.create_secret(&settings.namespace, &own, &labels, &data).await?;
    Ok(())
}
