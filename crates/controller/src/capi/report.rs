//! `BootstrapReport`: the object for a node's verdict when no hub is reachable.
//!
//! There is one object per Machine, created before the node. The node may change its status only. It has no
//! field for log lines.

use std::collections::HashMap;

use jiff::Timestamp;
use landfall_cluster::{Kind, manifest};
use landfall_model::report::{State, Trust};
use landfall_model::{Cause, Phase};
use serde::Deserialize;
use serde_json::{Value, json};

use super::heard::Heard;
use super::machine::Machine;
use super::plan::Orphan;

pub const KIND: Kind =
    Kind { group: "landfall.dev", version: "v1alpha1", kind: "BootstrapReport", plural: "bootstrapreports" };
pub const CLUSTER_LABEL: &str = "cluster.x-k8s.io/cluster-name";

/// Pattern of a single-line text without control characters.
const LINE: &str = "^[^\\x00-\\x1f\\x7f]*$";

/// A report and its owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub namespace: String,
    pub name: String,
    pub machine: String,
    /// The UIDs of its owners.
    pub owners: Vec<String>,
    /// `None` before the node's first write.
    pub heard: Option<Heard>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    state: State,
    /// Older agents do not write it: their verdicts are claims.
    #[serde(default)]
    trust: Trust,
    cause: Option<Cause>,
    #[serde(default)]
    title: String,
    component: Option<String>,
    phase: Option<Phase>,
    time: Timestamp,
}

/// Parses an object. The node wrote its status, so an invalid status counts as none.
pub fn read(object: &Value) -> Option<Found> {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).map(str::to_owned);
    let (namespace, name) = (text("/metadata/namespace")?, text("/metadata/name")?);
    let machine = text("/spec/machineName")?;
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let owners = owners.filter_map(|owner| Some(owner["uid"].as_str()?.to_owned())).collect();
    let status: Option<Status> =
        object.get("status").and_then(|status| serde_json::from_value(status.clone()).ok());
    let heard = status.map(|status| Heard {
        name: name.clone(),
        provider_id: None,
        bound: Some((namespace.clone(), machine.clone())),
        state: status.state,
        trust: status.trust,
        cause: status.cause,
        title: status.title,
        component: status.component,
        phase: status.phase,
        since: None,
        last_seen: written(object).unwrap_or(status.time),
        is_in_hub: false,
    });
    Some(Found { namespace, name, machine, owners, heard })
}

/// Returns the time of the last status write by the API server's clock. The clock of a new node is often
/// wrong.
fn written(object: &Value) -> Option<Timestamp> {
    let writes = object["metadata"]["managedFields"].as_array()?.iter();
    let of_status = writes.filter(|write| write["subresource"] == "status");
    of_status.filter_map(|write| write["time"].as_str()?.parse().ok()).max()
}

/// Returns the reports whose existing Machine is not their owner yet.
pub fn orphans(found: &[Found], machines: &[Machine]) -> Vec<Orphan> {
    let living = machines.iter().filter(|machine| machine.deleted.is_none());
    let by_name: HashMap<(&str, &str), &Machine> =
        living.map(|machine| ((machine.id.namespace.as_str(), machine.id.name.as_str()), machine)).collect();
    let orphan = |found: &Found| {
        let machine = by_name.get(&(found.namespace.as_str(), found.machine.as_str()))?;
        if found.owners.contains(&machine.id.uid) {
            return None;
        }
        let (machine, cluster) = (machine.id.clone(), machine.cluster.clone());
        Some(Orphan { report: found.name.clone(), machine, cluster })
    };
    found.iter().filter_map(orphan).collect()
}

/// Returns the object of a node before the node's first write.
pub fn object(namespace: &str, machine: &str) -> Value {
    json!({
        "apiVersion": KIND.api_version(),
        "kind": KIND.kind,
        "metadata": {"name": machine, "namespace": namespace},
        "spec": {"machineName": machine},
    })
}

pub fn crd() -> Value {
    let values = [
        ("STATES", json!(State::ALL.map(State::name))),
        ("TRUSTS", json!([Trust::Claimed, Trust::Proven].map(Trust::name))),
        ("PHASES", json!(Phase::ALL.map(Phase::name))),
        ("LINE", json!(LINE)),
    ];
    manifest::object(include_str!("../../manifests/capi-definition.yaml"), &values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_heard_once_its_node_wrote() {
        let mut object = object("ns", "m1");
        let silent = read(&object).unwrap();
        assert_eq!((silent.machine.as_str(), silent.heard), ("m1", None));
        object["status"] = json!({"state": "failed", "cause": "disk-full", "title": "Full", "phase": "join",
            "time": "2026-01-02T03:04:05Z"});
        let heard = read(&object).unwrap().heard.unwrap();
        assert_eq!((heard.state, heard.bound), (State::Failed, Some(("ns".to_owned(), "m1".to_owned()))));
        assert_eq!(heard.trust, Trust::Claimed, "an older agent does not state it");
        object["status"]["trust"] = json!("proven");
        let heard = read(&object).unwrap().heard.unwrap();
        assert_eq!(heard.trust, Trust::Proven);
        assert_eq!(heard.last_seen.to_string(), "2026-01-02T03:04:05Z");
        object["metadata"]["managedFields"] = json!([
            {"manager": "x", "time": "2026-01-09T03:04:05Z"},
            {"manager": "y", "subresource": "status", "time": "2026-01-03T03:04:05Z"},
        ]);
        let heard = read(&object).unwrap().heard.unwrap();
        assert_eq!(heard.last_seen.to_string(), "2026-01-03T03:04:05Z", "the API server's clock counts");
        object["status"]["cause"] = json!("../etc");
        assert_eq!(read(&object).unwrap().heard, None, "what does not fit was not said");
    }

    #[test]
    fn a_report_is_an_orphan_until_the_living_machine_of_its_namespace_owns_it() {
        let machine = Machine::fresh("m1", "2026-01-02T03:04:05Z".parse().unwrap());
        let found = |namespace: &str, owners: &[&str]| {
            let owners = owners.iter().map(|owner| (*owner).to_owned()).collect();
            Found { owners, ..read(&object(namespace, "m1")).unwrap() }
        };
        let all = [found("ns", &[]), found("ns", &["uid-m1"]), found("elsewhere", &[])];
        let orphans = |machine: &Machine| orphans(&all, std::slice::from_ref(machine));
        let [Orphan { report, machine: owner, .. }] = &orphans(&machine)[..] else { panic!() };
        assert_eq!((report.as_str(), owner), ("m1", &machine.id));
        let going = Machine { deleted: Some(machine.created), ..machine };
        assert_eq!(orphans(&going), []);
    }
}
