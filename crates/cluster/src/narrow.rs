//! Of the API's largest kinds only what we read: a node's status lists every image on it and a pod's description has
//! hundreds of fields, for each of which a reader would be in the program and memory be taken for every object of a list.

use k8s_openapi::api::core::v1 as core;
use kube::api::{ApiResource, Object};
use kube::{Api, Client};
use serde::Deserialize;

pub(crate) type Node = Object<NodeSpec, NodeStatus>;
pub(crate) type Pod = Object<PodSpec, PodStatus>;

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct NodeSpec {
    pub(crate) unschedulable: Option<bool>,
    pub(crate) taints: Option<Vec<Taint>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Taint {
    pub(crate) key: String,
    pub(crate) value: Option<String>,
    pub(crate) effect: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct NodeStatus {
    pub(crate) addresses: Option<Vec<Address>>,
    pub(crate) conditions: Option<Vec<NodeCondition>>,
    #[serde(rename = "nodeInfo")]
    pub(crate) info: Option<NodeInfo>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Address {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) address: String,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct NodeCondition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct NodeInfo {
    #[serde(rename = "bootID")]
    pub(crate) boot_id: String,
    #[serde(rename = "kubeletVersion")]
    pub(crate) kubelet_version: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct PodSpec {
    #[serde(rename = "nodeName")]
    pub(crate) node_name: Option<String>,
    #[serde(rename = "hostNetwork")]
    pub(crate) host_network: Option<bool>,
    pub(crate) volumes: Option<Vec<Volume>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Volume {
    /// Whatever is said of it: that it is one is enough.
    #[serde(rename = "emptyDir")]
    pub(crate) empty_dir: Option<serde::de::IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct PodStatus {
    pub(crate) phase: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
    #[serde(rename = "containerStatuses")]
    pub(crate) containers: Option<Vec<ContainerStatus>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ContainerStatus {
    pub(crate) state: Option<ContainerState>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ContainerState {
    pub(crate) waiting: Option<Waiting>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Waiting {
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
}

pub(crate) fn nodes(client: Client) -> Api<Node> {
    Api::all_with(client, &ApiResource::erase::<core::Node>(&()))
}

/// Those of a namespace, or of all.
pub(crate) fn pods(client: Client, namespace: Option<&str>) -> Api<Pod> {
    let resource = ApiResource::erase::<core::Pod>(&());
    match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    }
}
