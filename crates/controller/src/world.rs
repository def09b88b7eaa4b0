//! The complete input of a decision.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use landfall_cluster::{Condition, FleetNode, PodFacts, SigningRequest};
use landfall_model::in_place::{LABEL, SEED_LABEL, STATE_ANNOTATION, Told};

use crate::record::{Notes, Record};

/// Annotation of nodes that the controller has cordoned.
pub const CORDONED_BY: &str = "landfall.dev/cordoned-by";
pub const CORDONER: &str = "landfall-controller";
/// The node condition that shows the progress.
pub const CONDITION: &str = "LandfallInPlace";

/// Labels of control plane nodes.
const CONTROL_PLANE: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
/// Taints that the cluster itself sets and removes.
const LIFECYCLE_TAINTS: [&str; 2] = ["node.kubernetes.io/", "node.cloudprovider.kubernetes.io/"];
/// Annotations that the kubelet, its drivers and machine-config-daemon set themselves.
const OTHERS_ANNOTATIONS: [&str; 6] = [
    "machineconfiguration.openshift.io/",
    "node.alpha.kubernetes.io/",
    "volumes.kubernetes.io/",
    "csi.volume.kubernetes.io/",
    "kubectl.kubernetes.io/",
    "landfall.dev/",
];

/// The cluster at one observation.
#[derive(Clone, Debug)]
pub struct World {
    pub now: Timestamp,
    pub nodes: BTreeMap<String, Node>,
    pub records: BTreeMap<String, Record>,
    pub requests: Vec<SigningRequest>,
    pub refused: Refused,
}

/// Rejections of the last pass with their reasons, used in messages only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Evictions, by `namespace/name` of the pod.
    pub evictions: BTreeMap<String, String>,
    /// The pod that runs the bootstrap, or its Secret, by node.
    pub runners: BTreeMap<String, String>,
}

/// A node at one observation.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Node {
    pub uid: String,
    pub version: String,
    /// Whether one of the labels has the value that requests a bootstrap.
    pub is_requested: bool,
    pub is_ready: bool,
    pub is_control_plane: bool,
    pub boot_id: String,
    pub cordon: Cordon,
    /// Whether the state annotation exists, readable or not.
    pub has_told: bool,
    pub told: Option<Told>,
    /// Properties that must outlive the in-place bootstrap.
    pub notes: Notes,
    /// All taints, including the cluster's own.
    pub taints: BTreeSet<String>,
    pub addresses: BTreeSet<String>,
    pub condition: Option<Condition>,
    /// Its pods, in phases that need them.
    pub pods: Vec<PodFacts>,
    pub secret: SecretState,
    /// Version of the administrator's Secret or of the template; empty if unknown.
    pub source: String,
    pub runner: Runner,
    /// The reason why that pod does not run.
    pub hindrance: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cordon {
    None,
    /// By the controller.
    Own,
    /// By another client, which expects to find it unchanged.
    Foreign,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretState {
    Missing,
    /// Created by an administrator.
    Given {
        name: String,
    },
    /// Created by the controller.
    Own {
        name: String,
    },
}

/// The pod that runs the bootstrap on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runner {
    None,
    There,
    Going,
    /// The kubelet rejected it: it will never run.
    Rejected,
}

// === impl Node ===

impl Node {
    /// Converts a Node object. Pods, Secret and runner are added in phases that need them.
    pub fn new(node: FleetNode) -> Self {
        let FleetNode { uid, version, facts, addresses, mut conditions, .. } = node;
        let value = |label: &str| facts.labels.get(label).map(String::as_str);
        let told = facts.annotations.get(STATE_ANNOTATION);
        let own = facts.annotations.get(CORDONED_BY).is_some_and(|by| by == CORDONER);
        Self {
            is_requested: value(SEED_LABEL) == Some("true") || value(LABEL) == Some("requested"),
            is_ready: facts.ready,
            is_control_plane: CONTROL_PLANE.iter().any(|label| facts.labels.contains_key(*label)),
            cordon: match (facts.cordoned, own) {
                (false, _) => Cordon::None,
                (true, true) => Cordon::Own,
                (true, false) => Cordon::Foreign,
            },
            has_told: told.is_some(),
            told: told.and_then(|text| Told::parse(text)),
            uid,
            version,
            addresses: addresses.into_iter().collect(),
            condition: conditions.remove(CONDITION),
            pods: Vec::new(),
            secret: SecretState::Missing,
            source: String::new(),
            runner: Runner::None,
            hindrance: None,
            taints: facts.taints.iter().cloned().collect(),
            notes: Notes {
                labels: kept(facts.labels, &[SEED_LABEL, LABEL]),
                annotations: kept(facts.annotations, &OTHERS_ANNOTATIONS),
                taints: facts
                    .taints
                    .into_iter()
                    .filter(|taint| !LIFECYCLE_TAINTS.iter().any(|others| taint.starts_with(others)))
                    .collect(),
            },
            boot_id: facts.boot_id,
        }
    }
}

/// Returns the entries whose keys have none of these prefixes.
fn kept(all: BTreeMap<String, String>, without: &[&str]) -> BTreeMap<String, String> {
    all.into_iter().filter(|(key, _)| !without.iter().any(|others| key.starts_with(others))).collect()
}

#[cfg(test)]
mod tests {
    use landfall_cluster::NodeFacts;

    use super::*;

    fn seen(labels: &[(&str, &str)], annotations: &[(&str, &str)], taints: &[&str]) -> Node {
        let pairs = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        Node::new(FleetNode {
            facts: NodeFacts {
                labels: pairs(labels),
                annotations: pairs(annotations),
                taints: taints.iter().map(|taint| (*taint).to_owned()).collect(),
                cordoned: true,
                ..NodeFacts::default()
            },
            ..FleetNode::default()
        })
    }

    #[test]
    fn only_the_right_value_asks() {
        assert!(seen(&[(SEED_LABEL, "true")], &[], &[]).is_requested);
        assert!(seen(&[(LABEL, "requested")], &[], &[]).is_requested);
        let no = seen(&[(SEED_LABEL, "false")], &[], &[]);
        assert!(!no.is_requested);
    }

    #[test]
    fn a_cordon_is_ours_only_when_it_says_so() {
        assert_eq!(seen(&[], &[(CORDONED_BY, CORDONER)], &[]).cordon, Cordon::Own);
        assert_eq!(seen(&[], &[(CORDONED_BY, "somebody")], &[]).cordon, Cordon::Foreign);
        assert_eq!(seen(&[], &[], &[]).cordon, Cordon::Foreign);
    }

    #[test]
    fn what_others_look_after_is_not_kept() {
        let node = seen(
            &[("zone", "a"), (LABEL, "requested")],
            &[("team", "x"), ("machineconfiguration.openshift.io/state", "Done"), (STATE_ANNOTATION, "{}")],
            &["gpu=yes:NoSchedule", "node.kubernetes.io/unschedulable=:NoSchedule"],
        );
        assert_eq!(node.notes.labels.keys().collect::<Vec<_>>(), ["zone"]);
        assert_eq!(node.notes.annotations.keys().collect::<Vec<_>>(), ["team"]);
        assert_eq!(node.notes.taints.iter().collect::<Vec<_>>(), ["gpu=yes:NoSchedule"]);
        assert!(node.has_told && node.told.is_none());
    }
}
