use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use crate::{Cluster, Error};

/// Labels of control plane nodes, current and former.
const ROLES: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
/// Limit, above the size of any control plane.
const MAX_NODES: u32 = 64;

/// State of a node in its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Whether the kubelet reports the node as ready, and the report has not expired.
    pub ready: bool,
    /// The boot ID that the kubelet last reported.
    pub boot_id: String,
    pub kubelet_version: String,
    /// Whether the node is unschedulable.
    pub cordoned: bool,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// `key=value:Effect`.
    pub taints: Vec<String>,
}

impl Cluster {
    /// Returns the state of a node; `None` if the cluster has no such node.
    pub async fn node_facts(&self, name: &str) -> Result<Option<NodeFacts>, Error> {
        let nodes: Api<Node> = Api::all(self.client());
        let found = self.ask(|| format!("read node {name}"), nodes.get_opt(name)).await?;
        Ok(found.map(facts))
    }

    /// Returns the addresses of the control plane nodes.
    pub async fn control_plane_addresses(&self) -> Result<Vec<IpAddr>, Error> {
        let nodes: Api<Node> = Api::all(self.client());
        let mut addresses = Vec::new();
        for role in ROLES {
            let parameters = ListParams::default().labels(role).limit(MAX_NODES);
            let found = self.ask(|| format!("list nodes labelled {role}"), nodes.list(&parameters)).await?;
            for address in found.items.iter().flat_map(internal_addresses) {
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
        }
        Ok(addresses)
    }

    /// Sets or removes an annotation of a node without changing other fields.
    pub async fn annotate_node(&self, name: &str, key: &str, value: Option<&str>) -> Result<(), Error> {
        self.patch_node(name, &json!({"metadata": {"annotations": {key: value}}}), key).await
    }

    /// Sets or removes a label of a node.
    pub async fn label_node(&self, name: &str, key: &str, value: Option<&str>) -> Result<(), Error> {
        self.patch_node(name, &json!({"metadata": {"labels": {key: value}}}), key).await
    }

    async fn patch_node(&self, name: &str, patch: &serde_json::Value, key: &str) -> Result<(), Error> {
        let nodes: Api<Node> = Api::all(self.client());
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
        let asked = || format!("write {key} on node {name}");
        self.ask(asked, nodes.patch_metadata(name, &parameters, &patch)).await.map(drop)
    }
}

pub(crate) fn facts(node: Node) -> NodeFacts {
    let (spec, status) = (node.spec.unwrap_or_default(), node.status.unwrap_or_default());
    let info = status.node_info.unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let taints = spec.taints.unwrap_or_default().into_iter();
    NodeFacts {
        ready: conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"),
        boot_id: info.boot_id,
        kubelet_version: info.kubelet_version,
        cordoned: spec.unschedulable == Some(true),
        labels: node.metadata.labels.unwrap_or_default(),
        annotations: node.metadata.annotations.unwrap_or_default(),
        taints: taints
            .map(|taint| format!("{}={}:{}", taint.key, taint.value.unwrap_or_default(), taint.effect))
            .collect(),
    }
}

fn internal_addresses(node: &Node) -> Vec<IpAddr> {
    let told = node.status.as_ref().and_then(|status| status.addresses.as_ref());
    let internal = told.into_iter().flatten().filter(|address| address.type_ == "InternalIP");
    internal.filter_map(|address| address.address.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_internal_addresses_count() {
        let node = |status| -> Node {
            serde_json::from_value(json!({"metadata": {"name": "n1"}, "spec": {}, "status": status})).unwrap()
        };
        let told = node(json!({"addresses": [
            {"type": "Hostname", "address": "192.0.2.1"},
            {"type": "InternalIP", "address": "192.0.2.2"},
            {"type": "InternalIP", "address": "not an address"},
            {"type": "ExternalIP", "address": "192.0.2.3"},
        ]}));
        assert_eq!(internal_addresses(&told), ["192.0.2.2".parse::<IpAddr>().unwrap()]);
        assert_eq!(internal_addresses(&node(json!({"addresses": null}))), [] as [IpAddr; 0]);
    }
}
