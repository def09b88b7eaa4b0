use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::{Cluster, Error};

/// Labels and annotations of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeNotes {
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

impl Cluster {
    /// Returns the labels and annotations of a node; `None` if the cluster has no such node.
    pub async fn node_notes(&self, name: &str) -> Result<Option<NodeNotes>, Error> {
        let nodes: Api<Node> = Api::all(self.client());
        let found = self.ask(|| format!("read node {name}"), nodes.get_opt(name)).await?;
        Ok(found.map(|node| NodeNotes {
            labels: node.metadata.labels.unwrap_or_default(),
            annotations: node.metadata.annotations.unwrap_or_default(),
        }))
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
