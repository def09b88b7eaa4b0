//! In-place bootstrap by name: a pod on each requested node, with only the permissions it needs.

use landfall_cluster::manifest;
use serde_json::{Value, json};

use crate::package::Package;
use crate::{Format, Plan, RenderError, Target, chart, names, objects};

const NAME: &str = "landfall-in-place";
/// Namespace of the nodes' Secrets, in which the pods may read them.
const NAMESPACE: &str = "kube-system";
/// Prefixes of the Secrets' names, before the node's name.
const SECRETS: [&str; 2] = ["landfall-in-place-", "ibm-ipb-"];
/// Labels that request a bootstrap.
const LABELS: [(&str, &str); 2] =
    [("landfall.dev/in-place", "requested"), ("ibm-cloud.kubernetes.io/ipb-schedule", "true")];

/// Stems of the file names of the objects in `in-place.yaml`.
const STEMS: [&str; 7] = [
    "service-account",
    "role",
    "role-binding",
    "cluster-role",
    "cluster-role-binding",
    OPENSHIFT_BINDING,
    "daemon-set",
];
/// Only for OpenShift.
const OPENSHIFT_BINDING: &str = "security-context-binding";

#[derive(Clone, Debug)]
pub struct Settings {
    pub target: Target,
    pub image: String,
    /// The nodes to bootstrap: permissions are granted by name.
    pub nodes: Vec<String>,
}

pub fn plan(settings: &Settings, format: Format) -> Result<Plan, RenderError> {
    settings.check()?;
    if matches!(format, Format::Ignition | Format::Installer) {
        return Err(RenderError::Combination { way: "in-place", format: format.name() });
    }
    let mut package = Package::new(NAME, "Re-bootstraps nodes in place", settings.target);
    if format == Format::Helm {
        package.objects = objects(&Settings { image: chart::IMAGE.into(), ..settings.clone() });
        let image = Some(settings.image.clone());
        package.values = chart::Values { image, ..chart::Values::default() };
    } else {
        package.objects = objects(settings);
    }
    package.plan(format)
}

fn objects(settings: &Settings) -> Vec<(&'static str, Value)> {
    let secrets = settings.nodes.iter().flat_map(|node| SECRETS.map(|prefix| format!("{prefix}{node}")));
    // One term per node and label: one term must match, and a field has one value.
    let terms = settings.nodes.iter().flat_map(|node| LABELS.map(|label| term(node, label)));
    let values = [
        ("NAME", json!(NAME)),
        ("NAMESPACE", json!(NAMESPACE)),
        ("METADATA", objects::metadata(NAME, NAMESPACE)),
        ("LABELS", objects::labels(NAME)),
        ("SECRETS", secrets.collect()),
        ("NODES", json!(settings.nodes)),
        ("TERMS", terms.collect()),
        ("IMAGE", json!(settings.image)),
    ];
    let all = STEMS.into_iter().zip(manifest::objects(include_str!("../files/in-place.yaml"), &values));
    all.filter(|(stem, _)| *stem != OPENSHIFT_BINDING || settings.target == Target::Openshift).collect()
}

fn term(node: &str, (key, value): (&str, &str)) -> Value {
    json!({
        "matchExpressions": [{"key": key, "operator": "In", "values": [value]}],
        "# matchFields": "Where it has no rights it has no business.",
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}],
    })
}

// === impl Settings ===

impl Settings {
    fn check(&self) -> Result<(), RenderError> {
        names::image(&self.image)?;
        if self.nodes.is_empty() {
            return Err(RenderError::Missing { what: "the name of a node" });
        }
        let longest = SECRETS.into_iter().max_by_key(|prefix| prefix.len()).unwrap_or_default();
        self.nodes.iter().try_for_each(|node| names::node(node, longest))
    }
}
