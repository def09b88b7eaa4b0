use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, WatchParams};
use serde_json::{Value, json};

use crate::node::facts;
use crate::{Cluster, Error, NodeFacts};

/// Nodes per response.
const PAGE: u32 = 500;
/// Limit, above the size of any cluster.
const MAX_NODES: usize = 20_000;

/// A node with the properties that a fleet controller needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetNode {
    pub name: String,
    pub uid: String,
    /// The observed resource version, which can be the precondition of a change.
    pub version: String,
    pub facts: NodeFacts,
    /// Addresses and names in the node's status.
    pub addresses: Vec<String>,
    /// Conditions by type: status, reason, message.
    pub conditions: BTreeMap<String, Condition>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    pub status: bool,
    pub reason: String,
    pub message: String,
}

/// All nodes at one resource version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    pub nodes: Vec<FleetNode>,
    /// Resource version from which a watch continues.
    pub version: String,
}

/// A change of a node; properties that are not listed stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeChange {
    /// Values to set; `None` removes the label.
    pub labels: BTreeMap<String, Option<String>>,
    pub annotations: BTreeMap<String, Option<String>>,
    pub cordoned: Option<bool>,
    /// The complete list, as `key=value:Effect`.
    pub taints: Option<Vec<String>>,
}

impl Cluster {
    /// Returns the nodes with these labels, in the format of `kubectl -l`; all nodes for an empty selector.
    pub async fn fleet(&self, selector: &str) -> Result<Fleet, Error> {
        let nodes: Api<Node> = Api::all(self.client());
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

    /// Returns as soon as one of these nodes changes, or after this time.
    pub async fn wait_for_nodes(&self, selector: &str, version: &str, within: Duration) {
        let nodes: Api<Node> = Api::all(self.client());
        let seconds = u32::try_from(within.as_secs()).unwrap_or(u32::MAX).max(1);
        let parameters = WatchParams::default().labels(selector).timeout(seconds);
        let change = async {
            match nodes.watch_metadata(&parameters, version).await {
                Ok(events) => {
                    let mut events = std::pin::pin!(events);
                    // Any event ends the wait, including bookmarks: the caller reads all nodes anyway. A
                    // broken stream does not.
                    let woken = events.next().await;
                    if !matches!(woken, Some(Ok(_))) {
                        std::future::pending::<()>().await;
                    }
                }
                // Without a watch, the timeout remains.
                Err(_) => std::future::pending().await,
            }
        };
        // A timeout is an expected end of the wait.
        let _ = tokio::time::timeout(within, change).await;
    }

    /// Changes a node, if it still has the observed version.
    pub async fn change_node(
        &self,
        name: &str,
        version: Option<&str>,
        change: &NodeChange,
    ) -> Result<(), Error> {
        let nodes: Api<Node> = Api::all(self.client());
        let patch = patch(version, change);
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(&patch));
        self.ask(|| format!("change node {name}"), nodes.patch_metadata(name, &parameters, &patch))
            .await
            .map(drop)
    }

    /// Sets one condition of a node; the others belong to the kubelet.
    pub async fn set_node_condition(
        &self,
        name: &str,
        kind: &str,
        condition: &Condition,
        now: Timestamp,
    ) -> Result<(), Error> {
        let nodes: Api<Node> = Api::all(self.client());
        // Kubernetes times have no fractional seconds.
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
    let NodeCondition { type_, status, reason, message, .. } = condition;
    let reason = reason.unwrap_or_default();
    (type_, Condition { status: status == "True", reason, message: message.unwrap_or_default() })
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

/// Converts `key=value:Effect` to the API server's format.
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
