use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams, WatchParams};
use serde_json::{Value, json};

use crate::narrow::{self, Node, NodeCondition};
use crate::node::facts;
use crate::{Cluster, Error, NodeFacts};

/// Nodes of one answer; the rest is asked for again.
const PAGE: u32 = 500;
/// More nodes than a cluster has.
const MAX_NODES: usize = 20_000;

/// A node, as one who looks after all of them sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetNode {
    pub name: String,
    pub uid: String,
    /// What was seen: a change may be made under the condition that it is still so.
    pub version: String,
    pub facts: NodeFacts,
    /// Addresses and names, as the node's status has them.
    pub addresses: Vec<String>,
    /// Condition by type: status, reason, message.
    pub conditions: BTreeMap<String, Condition>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    pub status: bool,
    pub reason: String,
    pub message: String,
}

/// The nodes, and the moment they were seen at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    pub nodes: Vec<FleetNode>,
    /// Where a watch goes on.
    pub version: String,
}

/// What is to be changed on a node; what is not named stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeChange {
    /// Nothing: taken away.
    pub labels: BTreeMap<String, Option<String>>,
    pub annotations: BTreeMap<String, Option<String>>,
    pub cordoned: Option<bool>,
    /// All of them, as `key=value:Effect`.
    pub taints: Option<Vec<String>>,
}

impl Cluster {
    /// The nodes with these labels, as `kubectl -l` takes it; all for an empty selector.
    pub async fn fleet(&self, selector: &str) -> Result<Fleet, Error> {
        let nodes = narrow::nodes(self.client());
        let mut fleet = Fleet::default();
        let mut parameters = ListParams::default().labels(selector).limit(PAGE);
        loop {
            let page = self.ask(|| "list nodes".to_owned(), nodes.list(&parameters)).await?;
            fleet.nodes.extend(page.items.into_iter().map(fleet_node));
            fleet.version = page.metadata.resource_version.unwrap_or_default();
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) if fleet.nodes.len() < MAX_NODES => {
                    parameters = parameters.continue_token(&token);
                }
                _ => return Ok(fleet),
            }
        }
    }

    /// Comes back as soon as one of these nodes changes, and after this time anyway.
    pub async fn wait_for_nodes(&self, selector: &str, version: &str, within: Duration) {
        let nodes = narrow::nodes(self.client());
        let seconds = u32::try_from(within.as_secs()).unwrap_or(u32::MAX).max(1);
        let parameters = WatchParams::default().labels(selector).timeout(seconds);
        let change = async {
            match nodes.watch_metadata(&parameters, version).await {
                Ok(events) => {
                    let mut events = std::pin::pin!(events);
                    // Bookmarks and errors wake as well: the next look is at everything anyway.
                    let woken = events.next().await;
                    if !matches!(woken, Some(Ok(_))) {
                        std::future::pending::<()>().await;
                    }
                }
                // Without a watch there is still the clock.
                Err(_) => std::future::pending().await,
            }
        };
        // Late is what was asked for.
        let _ = tokio::time::timeout(within, change).await;
    }

    /// Changes a node, if it still is the version that was seen.
    pub async fn change_node(
        &self,
        name: &str,
        version: Option<&str>,
        change: &NodeChange,
    ) -> Result<(), Error> {
        let nodes = narrow::nodes(self.client());
        let patch = patch(version, change);
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(&patch));
        self.ask(|| format!("change node {name}"), nodes.patch_metadata(name, &parameters, &patch))
            .await
            .map(drop)
    }

    /// Sets one condition of a node; the others are the kubelet's.
    pub async fn set_node_condition(
        &self,
        name: &str,
        kind: &str,
        condition: &Condition,
        now: Timestamp,
    ) -> Result<(), Error> {
        let nodes = narrow::nodes(self.client());
        // To the second, as Kubernetes tells times.
        let now = now.strftime("%FT%TZ").to_string();
        let condition = json!({
            "type": kind,
            "status": if condition.status { "True" } else { "False" },
            "reason": condition.reason,
            "message": condition.message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        });
        let patch = json!({"status": {"conditions": [condition]}});
        let (parameters, patch) = (PatchParams::default(), Patch::Strategic(&patch));
        let asked = || format!("set condition {kind} of node {name}");
        self.ask(asked, nodes.patch_status(name, &parameters, &patch)).await.map(drop)
    }
}

fn fleet_node(node: Node) -> FleetNode {
    let status = node.status.as_ref();
    let addresses = status.and_then(|status| status.addresses.clone()).unwrap_or_default();
    let conditions = status.and_then(|status| status.conditions.clone()).unwrap_or_default();
    FleetNode {
        name: node.metadata.name.clone().unwrap_or_default(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        version: node.metadata.resource_version.clone().unwrap_or_default(),
        addresses: addresses.into_iter().map(|address| address.address).collect(),
        conditions: conditions.into_iter().map(condition).collect(),
        facts: facts(node),
    }
}

fn condition(condition: NodeCondition) -> (String, Condition) {
    let NodeCondition { kind, status, reason, message } = condition;
    let reason = reason.unwrap_or_default();
    (kind, Condition { status: status == "True", reason, message: message.unwrap_or_default() })
}

fn patch(version: Option<&str>, change: &NodeChange) -> Value {
    let mut patch = json!({"metadata": {"labels": change.labels, "annotations": change.annotations}});
    if let Some(version) = version {
        patch["metadata"]["resourceVersion"] = json!(version);
    }
    if let Some(cordoned) = change.cordoned {
        patch["spec"]["unschedulable"] = if cordoned { json!(true) } else { Value::Null };
    }
    if let Some(taints) = &change.taints {
        let taints: Vec<Value> = taints.iter().filter_map(|text| taint(text)).collect();
        patch["spec"]["taints"] = json!(taints);
    }
    patch
}

/// `key=value:Effect` as the API server has it.
fn taint(text: &str) -> Option<Value> {
    let (rest, effect) = text.rsplit_once(':')?;
    let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
    Some(json!({"key": key, "value": value, "effect": effect}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_named_is_in_the_patch() {
        let change = NodeChange {
            cordoned: Some(false),
            labels: [("a".to_owned(), None)].into(),
            taints: Some(vec!["gpu=yes:NoSchedule".to_owned(), "plain=:NoExecute".to_owned()]),
            ..NodeChange::default()
        };
        assert_eq!(
            patch(Some("7"), &change),
            json!({
                "metadata": {"resourceVersion": "7", "labels": {"a": null}, "annotations": {}},
                "spec": {"unschedulable": null, "taints": [
                    {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
                    {"key": "plain", "value": "", "effect": "NoExecute"},
                ]},
            })
        );
        assert_eq!(
            patch(None, &NodeChange::default()),
            json!({"metadata": {"labels": {}, "annotations": {}}})
        );
    }
}
