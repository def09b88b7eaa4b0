//! The relevant parts of a Machine, independent of its version.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::condition::Condition;

/// While this annotation exists, the infrastructure of a Machine that is being deleted stays.
pub const HOOK: &str = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/landfall-evidence";
const PAUSED: &str = "cluster.x-k8s.io/paused";
/// Cluster API's conditions of a Machine's Node: of v1beta2, then of v1beta1.
const NODE_CONDITIONS: [&str; 2] = ["NodeReady", "NodeHealthy"];
/// Address types that are names.
const NAMES: [&str; 3] = ["Hostname", "InternalDNS", "ExternalDNS"];

/// The identity of a Machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MachineName {
    pub namespace: String,
    pub name: String,
    /// The object's UID: a new Machine of the same name is another one.
    pub uid: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    pub id: MachineName,
    pub cluster: String,
    pub created: Timestamp,
    pub deleted: Option<Timestamp>,
    /// Whether the Machine is paused by its owner, so that no controller may change it.
    pub is_paused: bool,
    /// Whether the evidence hook is set.
    pub has_hook: bool,
    pub provider_id: Option<String>,
    pub infrastructure: Option<String>,
    pub node: Option<String>,
    pub addresses: BTreeSet<String>,
    /// Time since which its Node is ready, if it is.
    pub ready_since: Option<Timestamp>,
    pub condition: Option<Condition>,
}

// === impl Machine ===

impl Machine {
    /// Creates a Machine without any observation.
    #[cfg(test)]
    pub(super) fn fresh(name: &str, created: Timestamp) -> Self {
        let id =
            MachineName { namespace: "ns".to_owned(), name: name.to_owned(), uid: format!("uid-{name}") };
        Self {
            id,
            cluster: "c".to_owned(),
            created,
            deleted: None,
            is_paused: false,
            has_hook: false,
            provider_id: None,
            infrastructure: None,
            node: None,
            addresses: BTreeSet::new(),
            ready_since: None,
            condition: None,
        }
    }

    pub fn read(object: &Value) -> Option<Self> {
        let metadata = &object["metadata"];
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).map(str::to_owned);
        let time = |value: &Value| value.as_str().and_then(|time| time.parse::<Timestamp>().ok());
        let annotation = |key: &str| metadata["annotations"].get(key).is_some();
        let conditions = &object["status"]["conditions"];
        let ready = NODE_CONDITIONS.iter().find_map(|name| {
            let mut all = conditions.as_array()?.iter();
            let found = all.find(|condition| condition["type"] == *name && condition["status"] == "True")?;
            time(&found["lastTransitionTime"])
        });
        let addresses = object["status"]["addresses"].as_array().into_iter().flatten();
        let names = addresses.filter(|address| NAMES.iter().any(|kind| address["type"] == *kind));
        Some(Self {
            id: MachineName {
                namespace: text("/metadata/namespace")?,
                name: text("/metadata/name")?,
                uid: text("/metadata/uid")?,
            },
            cluster: text("/spec/clusterName").unwrap_or_default(),
            created: time(&metadata["creationTimestamp"])?,
            deleted: time(&metadata["deletionTimestamp"]),
            is_paused: annotation(PAUSED),
            has_hook: annotation(HOOK),
            provider_id: text("/spec/providerID").filter(|id| !id.is_empty()),
            infrastructure: text("/spec/infrastructureRef/name").filter(|name| !name.is_empty()),
            node: text("/status/nodeRef/name").filter(|name| !name.is_empty()),
            addresses: names.filter_map(|address| Some(address["address"].as_str()?.to_owned())).collect(),
            ready_since: ready,
            condition: Condition::read(conditions),
        })
    }
}

/// Returns the namespace and name of a paused Cluster. No controller may change its Machines.
pub fn paused_cluster(object: &Value) -> Option<(String, String)> {
    let metadata = &object["metadata"];
    let is_paused = object["spec"]["paused"] == true || metadata["annotations"].get(PAUSED).is_some();
    let name = || Some((metadata["namespace"].as_str()?.to_owned(), metadata["name"].as_str()?.to_owned()));
    is_paused.then(name)?
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::condition::{Status, TYPE};
    use super::*;

    #[test]
    fn both_shapes_are_read() {
        for node_condition in NODE_CONDITIONS {
            let object = json!({
                "metadata": {"namespace": "ns", "name": "m1", "uid": "u1", "creationTimestamp": "2026-01-02T03:00:00Z",
                    "annotations": {HOOK: "x", PAUSED: ""}},
                "spec": {"clusterName": "c", "providerID": "aws:///i-1", "infrastructureRef": {"name": "infra-1"}},
                "status": {
                    "nodeRef": {"name": "n1"},
                    "addresses": [{"type": "Hostname", "address": "host"}, {"type": "InternalIP", "address": "10.0.0.1"}],
                    "conditions": [
                        {"type": node_condition, "status": "True", "lastTransitionTime": "2026-01-02T03:10:00Z"},
                        {"type": TYPE, "status": "False", "reason": "DiskFull", "message": "Full",
                         "lastTransitionTime": "2026-01-02T03:05:00Z"},
                    ],
                },
            });
            let machine = Machine::read(&object).unwrap();
            assert!(machine.has_hook && machine.is_paused && machine.deleted.is_none());
            assert_eq!(machine.addresses, ["host".to_owned()].into());
            assert_eq!(machine.ready_since.unwrap().to_string(), "2026-01-02T03:10:00Z");
            let condition = machine.condition.unwrap();
            assert_eq!((condition.status, condition.reason.as_str()), (Status::False, "DiskFull"));
        }
        assert_eq!(Machine::read(&json!({"metadata": {"name": "m"}})), None);
    }

    #[test]
    fn a_cluster_is_paused_by_its_spec_or_an_annotation() {
        let cluster = |spec: Value, annotations: Value| {
            let metadata = json!({"namespace": "ns", "name": "c", "annotations": annotations});
            paused_cluster(&json!({"metadata": metadata, "spec": spec}))
        };
        let name = Some(("ns".to_owned(), "c".to_owned()));
        assert_eq!(cluster(json!({"paused": true}), json!({})), name);
        assert_eq!(cluster(json!({}), json!({PAUSED: "true"})), name);
        assert_eq!(cluster(json!({"paused": false}), json!({})), None);
    }
}
