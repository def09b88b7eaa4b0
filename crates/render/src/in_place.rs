//! In-place bootstrap by name: a pod on each requested node, with only the permissions it needs.

use serde_json::{Value, json};

use crate::package::Package;
use crate::{Format, Plan, RenderError, Target, chart, names, objects};

const NAME: &str = "landfall-in-place";
/// The controller's pods use a role for all nodes, restricted by a policy. Both roles may exist in one
/// cluster.
const CLUSTER_ROLE: &str = "landfall-in-place-by-name";
/// Namespace of the nodes' Secrets, in which the pods may read them.
const NAMESPACE: &str = "kube-system";
/// Prefixes of the Secrets' names, before the node's name.
const SECRETS: [&str; 2] = ["landfall-in-place-", "ibm-ipb-"];
/// Labels that request a bootstrap.
const LABELS: [(&str, &str); 2] =
    [("landfall.dev/in-place", "requested"), ("ibm-cloud.kubernetes.io/ipb-schedule", "true")];

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
    let metadata = objects::metadata(NAME, NAMESPACE);
    let secrets: Vec<String> =
        settings.nodes.iter().flat_map(|node| SECRETS.map(|prefix| format!("{prefix}{node}"))).collect();
    let mut cluster_role_binding =
        objects::binding("ClusterRoleBinding", NAME, NAMESPACE, "ClusterRole", CLUSTER_ROLE);
    cluster_role_binding["metadata"]["name"] = json!(CLUSTER_ROLE);
    let mut all = vec![
        ("service-account", objects::service_account(NAME, NAMESPACE)),
        (
            "role",
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "Role",
                "metadata": metadata,
                "rules": [{
                    "apiGroups": [""], "resources": ["secrets"], "verbs": ["get"],
                    "# resourceNames": "One Secret of a node, by each of the names it may have.",
                    "resourceNames": secrets,
                }],
            }),
        ),
        ("role-binding", objects::binding("RoleBinding", NAME, NAMESPACE, "Role", NAME)),
        (
            "cluster-role",
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": {"name": CLUSTER_ROLE, "labels": objects::labels(NAME)},
                "rules": [{
                    "apiGroups": [""], "resources": ["nodes"], "resourceNames": settings.nodes,
                    "verbs": ["get", "patch"],
                }],
            }),
        ),
        ("cluster-role-binding", cluster_role_binding),
    ];
    if settings.target == Target::Openshift {
        let mut binding = objects::security_context_binding(NAME, NAMESPACE, "privileged");
        binding["metadata"]["name"] = json!(format!("{NAME}-privileged"));
        all.push(("security-context-binding", binding));
    }
    all.push(("daemon-set", daemon_set(settings)));
    all
}

fn daemon_set(settings: &Settings) -> Value {
    let term = |node: &String, (key, value): (&str, &str)| {
        json!({
            "matchExpressions": [{"key": key, "operator": "In", "values": [value]}],
            "# matchFields": "Where it has no rights it has no business.",
            "matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}],
        })
    };
    // One term per node and label: one term must match, and a field has one value.
    let terms: Vec<Value> =
        settings.nodes.iter().flat_map(|node| LABELS.map(|label| term(node, label))).collect();
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": objects::metadata(NAME, NAMESPACE),
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
            "# updateStrategy": "A pod that works on its node is not to be replaced under it.",
            "updateStrategy": {"type": "OnDelete"},
            "template": {
                "metadata": {"labels": objects::labels(NAME)},
                "spec": {
                    "affinity": {"nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
                    }},
                    "hostNetwork": true,
                    "hostPID": true,
                    "dnsPolicy": "ClusterFirstWithHostNet",
                    "priorityClassName": "system-node-critical",
                    "serviceAccountName": NAME,
                    "automountServiceAccountToken": true,
                    "# tolerations": "The node is cordoned.",
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{
                        "name": "in-place",
                        "image": settings.image,
                        "imagePullPolicy": "IfNotPresent",
                        "command": ["/landfall"],
                        "args": ["node", "in-place", "--root=/host", "--reboot=systemd", "--stay"],
                        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
                        "# securityContext": "It does on the host what its administrator would: packages, units, a reboot.",
                        "securityContext": {"privileged": true},
                        "volumeMounts": [{"name": "host", "mountPath": "/host", "mountPropagation": "HostToContainer"}],
                    }],
                    "volumes": [{"name": "host", "hostPath": {"path": "/", "type": "Directory"}}],
                },
            },
        },
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
