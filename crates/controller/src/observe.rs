//! One observation of the cluster.

use std::collections::BTreeMap;

use jiff::Timestamp;
use landfall_cluster::{Cluster, Error, PodFacts, SecretFacts};
use landfall_model::in_place::secret_names;

use crate::certificates::{CLIENT_SIGNER, SERVING_SIGNER};
use crate::manifests::{MANAGED_BY, MANAGER, RUNNER, RUNNER_SELECTOR, Settings};
use crate::policy::{Approvals, Policy};
use crate::record::{KIND, Phase, Record};
use crate::world::{Node, Refused, Runner, SecretState, World};

/// The observed world, and the resource version from which a watch continues.
#[derive(Clone, Debug)]
pub struct Seen {
    pub world: World,
    pub version: String,
}

pub async fn observe(
    cluster: &Cluster,
    settings: &Settings,
    policy: &Policy,
    refused: &Refused,
) -> Result<Seen, Error> {
    let fleet = cluster.fleet(&settings.selector).await?;
    let objects = cluster.objects(&KIND).await?;
    let records: BTreeMap<String, Record> = objects.iter().filter_map(Record::read).collect();
    let mut nodes: BTreeMap<String, Node> =
        fleet.nodes.into_iter().map(|node| (node.name.clone(), Node::new(node))).collect();

    let secrets = cluster.secrets(&settings.namespace).await?;
    let runners = cluster.pods(&settings.namespace, RUNNER_SELECTOR).await?;
    for (name, node) in &mut nodes {
        (node.secret, node.source) = secret(&secrets, name, settings.template.as_deref());
        (node.runner, node.hindrance) = runner(&runners, name);
        let phase = records.get(name).map(|record| record.phase);
        if matches!(phase, Some(Phase::Draining | Phase::HandedOver)) {
            let pods = cluster.pods_on(name).await?.into_iter();
            node.pods = pods.filter(|pod| !is_runner(pod, settings)).collect();
        }
    }
    let mut requests = Vec::new();
    let is_awaited = records.values().any(|record| matches!(record.phase, Phase::Running | Phase::Restoring));
    if is_awaited && policy.approvals != Approvals::Never {
        for signer in [CLIENT_SIGNER, SERVING_SIGNER] {
            requests.extend(cluster.open_signing_requests(signer).await?);
        }
    }
    let world = World { now: Timestamp::now(), nodes, records, requests, refused: refused.clone() };
    Ok(Seen { world, version: fleet.version })
}

/// Returns the state of a node's Secret, and the version of the source it is created from.
fn secret(
    secrets: &BTreeMap<String, SecretFacts>,
    node: &str,
    template: Option<&str>,
) -> (SecretState, String) {
    let found = secret_names(node).into_iter().find_map(|name| secrets.get_key_value(&name));
    let template = template.and_then(|name| secrets.get(name)).map(|facts| facts.version.clone());
    match found {
        None => (SecretState::Missing, template.unwrap_or_default()),
        Some((name, facts)) if facts.labels.get(MANAGED_BY).is_some_and(|by| by == MANAGER) => {
            (SecretState::Own { name: name.clone() }, template.unwrap_or_default())
        }
        Some((name, facts)) => (SecretState::Given { name: name.clone() }, facts.version.clone()),
    }
}

fn runner(runners: &[PodFacts], node: &str) -> (Runner, Option<String>) {
    let Some(pod) = runners.iter().find(|pod| pod.node == node) else { return (Runner::None, None) };
    let runner = match pod {
        pod if pod.is_going => Runner::Going,
        pod if pod.has_finished && pod.hindrance.is_some() => Runner::Rejected,
        _ => Runner::There,
    };
    (runner, pod.hindrance.clone())
}

fn is_runner(pod: &PodFacts, settings: &Settings) -> bool {
    pod.namespace == settings.namespace && pod.name == format!("{RUNNER}-{}", pod.node)
}
