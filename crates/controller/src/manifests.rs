//! The objects that install the controller, and the pod it starts on a node: values, never text templates.
//!
//! No pod may read the Secret of another node. The kubelet mounts a node's Secret into the pod on that node,
//! and a kubelet may fetch only the Secrets of its own pods. The pod's account may read no Secret. An
//! admission policy restricts the account's permissions (removing node labels, writing the node's state) to
//! the node of the pod.

use serde_json::{Value, json};

use landfall_model::in_place::{LABEL, SECRET_KEY, SEED_LABEL, STATE_ANNOTATION};

use crate::certificates::{CLIENT_SIGNER, SERVING_SIGNER};
use crate::record::{KIND, Phase};

pub const MANAGER: &str = "landfall-controller";
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The pod that runs the bootstrap on a node, and its account.
pub const RUNNER: &str = "landfall-in-place";
pub const RUNNER_SELECTOR: &str = "app.kubernetes.io/name=landfall-in-place";
pub const LEASE: &str = "landfall-controller";
/// Default namespace of the installation.
pub const NAMESPACE: &str = "landfall";
const NAME: &str = "app.kubernetes.io/name";
/// An unprivileged user ID for pods that need no permissions on their node.
pub(crate) const USER: u32 = 65_532;
/// Mount path of the Secret in the pod.
const SECRET_FOLDER: &str = "/run/landfall-secret";

/// Settings of an installation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of the Secrets, the pods and the Lease.
    pub namespace: String,
    /// Label selector of the managed nodes in the format of `kubectl -l`; empty for all nodes.
    pub selector: String,
    /// Image of the pods on nodes.
    pub image: String,
    /// The Secret from which the nodes' Secrets are created.
    pub template: Option<String>,
    /// Additional arguments of `landfall node in-place`.
    pub runner_arguments: Vec<String>,
}

/// Permissions of an installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    Usual,
    /// The usual permissions, and approval of kubelet certificates.
    Approving,
}

/// The platform whose pod security rules apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    Kubernetes,
    /// Assigns user IDs itself, and requires a RoleBinding for privileged pods.
    Openshift,
}

/// Returns the pod that runs the bootstrap on one node.
pub fn runner(settings: &Settings, node: &str, secret: &str) -> Value {
    let mut arguments = vec![
        "node".to_owned(),
        "in-place".to_owned(),
        "--root=/host".to_owned(),
        "--reboot=systemd".to_owned(),
        // The label may be removed before this pod starts.
        "--if-labelled".to_owned(),
        format!("--secret-file={SECRET_FOLDER}/{SECRET_KEY}"),
    ];
    arguments.extend(settings.runner_arguments.iter().cloned());
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("{RUNNER}-{node}"),
            "namespace": settings.namespace,
            "labels": {NAME: RUNNER, MANAGED_BY: MANAGER},
        },
        "spec": {
            // The node is cordoned, so the pod bypasses the scheduler.
            "nodeName": node,
            "serviceAccountName": RUNNER,
            "restartPolicy": "OnFailure",
            "priorityClassName": "system-node-critical",
            "hostPID": true,
            "hostNetwork": true,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": "in-place",
                "image": settings.image,
                "command": ["/landfall"],
                "args": arguments,
                "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                "securityContext": {"privileged": true, "runAsUser": 0},
                "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
                "volumeMounts": [
                    {"name": "host", "mountPath": "/host"},
                    {"name": "secret", "mountPath": SECRET_FOLDER, "readOnly": true},
                ],
            }],
            "volumes": [
                {"name": "host", "hostPath": {"path": "/"}},
                {"name": "secret", "secret": {"secretName": secret, "defaultMode": 0o400}},
            ],
        },
    })
}

/// Returns all objects in the order of their application, each with the stem of its file name.
pub fn install(
    settings: &Settings,
    rights: Rights,
    platform: Platform,
    arguments: &[String],
) -> Vec<(&'static str, Value)> {
    let namespace = &settings.namespace;
    let [policy, policy_binding] = own_node_only(namespace);
    let mut all = vec![
        ("definition", crd()),
        (
            "namespace",
            json!({
                "apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": namespace, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}},
            }),
        ),
        ("account", account(namespace, MANAGER)),
        ("runner-account", account(namespace, RUNNER)),
        (
            "cluster-role",
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": {"name": MANAGER}, "rules": cluster_rules(rights),
            }),
        ),
        ("cluster-role-binding", binding("ClusterRoleBinding", None, "ClusterRole", MANAGER, namespace)),
        (
            "role",
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
                "metadata": {"name": MANAGER, "namespace": namespace}, "rules": namespace_rules(settings),
            }),
        ),
        ("role-binding", binding("RoleBinding", Some(namespace), "Role", MANAGER, namespace)),
        (
            "runner-cluster-role",
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": {"name": RUNNER},
                "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}],
            }),
        ),
        (
            "runner-cluster-role-binding",
            binding("ClusterRoleBinding", None, "ClusterRole", RUNNER, namespace),
        ),
        ("policy", policy),
        ("policy-binding", policy_binding),
    ];
    if platform == Platform::Openshift {
        all.push(("runner-security-context-binding", privileged_runner(namespace)));
    }
    all.push(("deployment", deployment(settings, platform, arguments)));
    all
}

/// Returns the RoleBinding that OpenShift requires for the account of a privileged pod.
fn privileged_runner(namespace: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": format!("{RUNNER}-privileged"), "namespace": namespace},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:openshift:scc:privileged",
        },
        "subjects": [{"kind": "ServiceAccount", "name": RUNNER, "namespace": namespace}],
    })
}

/// Returns the CustomResourceDefinition of `NodeBootstrap`.
pub fn crd() -> Value {
    let text = json!({"type": "string"});
    let time = json!({"type": "string", "format": "date-time"});
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let list = json!({"type": "array", "items": {"type": "string"}});
    let phases: Vec<&str> = Phase::ALL.iter().map(|phase| phase.name()).collect();
    let column = |name: &str, path: &str| json!({"name": name, "type": "string", "jsonPath": path});
    let status = json!({
        "type": "object",
        "required": ["phase", "since"],
        "properties": {
            "phase": {"type": "string", "enum": phases},
            "reason": text, "message": text, "state": text, "attempt": text,
            "bootBefore": text, "nodeBefore": text, "source": text, "cordonedBefore": {"type": "boolean"},
            "since": time, "started": time, "handedOver": time, "finished": time,
            "saved": {"type": "object", "properties": {
                "labels": texts, "annotations": texts, "taints": list,
            }},
            "approved": list,
        },
    });
    let schema = json!({
        "type": "object",
        "description": "The way of one node through an in-place bootstrap. Written by the controller; deleting it says that a \
            failure was looked after.",
        "properties": {
            "spec": {
                "type": "object", "properties": {"nodeName": text}, "required": ["nodeName"],
                "x-kubernetes-validations": [
                    {"rule": "self.nodeName == oldSelf.nodeName", "message": "it is about one node, for good"},
                ],
            },
            "status": status,
        },
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.{}", KIND.plural, KIND.group)},
        "spec": {
            "group": KIND.group,
            "scope": "Cluster",
            "names": {
                "kind": KIND.kind, "plural": KIND.plural, "singular": "nodebootstrap", "shortNames": ["nbs"],
            },
            "versions": [{
                "name": KIND.version, "served": true, "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    column("Phase", ".status.phase"),
                    column("State", ".status.state"),
                    column("Reason", ".status.reason"),
                    json!({"name": "Since", "type": "date", "jsonPath": ".status.since"}),
                    json!({"name": "Message", "type": "string", "jsonPath": ".status.message", "priority": 1}),
                ],
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    })
}

fn cluster_rules(rights: Rights) -> Vec<Value> {
    let mut rules = vec![
        json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch", "patch"]}),
        json!({"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]}),
        json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}),
        json!({"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}),
        json!({"apiGroups": [KIND.group], "resources": [KIND.plural],
            "verbs": ["list", "create", "patch", "delete"]}),
        json!({"apiGroups": [KIND.group], "resources": [format!("{}/status", KIND.plural)], "verbs": ["patch"]}),
        json!({"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]}),
    ];
    if rights == Rights::Approving {
        let group = "certificates.k8s.io";
        rules.extend([
            json!({"apiGroups": [group], "resources": ["certificatesigningrequests"], "verbs": ["get", "list"]}),
            json!({"apiGroups": [group], "resources": ["certificatesigningrequests/approval"],
                "verbs": ["update"]}),
            json!({"apiGroups": [group], "resources": ["signers"], "verbs": ["approve"],
                "resourceNames": [CLIENT_SIGNER, SERVING_SIGNER]}),
        ]);
    }
    rules
}

fn namespace_rules(settings: &Settings) -> Vec<Value> {
    let mut rules = vec![
        json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete"]}),
        json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["list", "create", "delete"]}),
        json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]}),
        json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [LEASE],
            "verbs": ["get", "update"]}),
    ];
    if let Some(template) = &settings.template {
        rules.push(json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": [template],
            "verbs": ["get"]}));
    }
    rules
}

pub(crate) fn account(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}})
}

pub(crate) fn binding(kind: &str, within: Option<&str>, role: &str, name: &str, namespace: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
        "metadata": match within {
            Some(within) => json!({"name": name, "namespace": within}),
            None => json!({"name": name}),
        },
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    })
}

/// Returns an admission policy and the binding that enforces it in the whole cluster.
pub(crate) fn admission(name: &str, spec: &Value) -> [Value; 2] {
    let object = |kind: &str, spec: &Value| json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let bound = json!({"policyName": name, "validationActions": ["Deny"]});
    [object("ValidatingAdmissionPolicy", spec), object("ValidatingAdmissionPolicyBinding", &bound)]
}

/// Returns a validation: an expression that must be true, and the message otherwise.
pub(crate) fn unless(expression: impl Into<Value>, message: &str) -> Value {
    json!({"expression": expression.into(), "message": message})
}

/// Returns a policy that limits the pod on a node to that node, and to the fields it needs to change.
fn own_node_only(namespace: &str) -> [Value; 2] {
    let user = format!("system:serviceaccount:{namespace}:{RUNNER}");
    let name = "landfall-in-place-own-node";
    let map = |of: &str, what: &str| format!("has({of}.metadata.{what}) ? {of}.metadata.{what} : {{}}");
    let variable = |name: &str, expression: String| json!({"name": name, "expression": expression});
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"],
        }]},
        "matchConditions": [{
            "name": "by-the-pod-on-a-node", "expression": format!("request.userInfo.username == '{user}'"),
        }],
        "variables": [
            variable("labels", map("object", "labels")),
            variable("labelsBefore", map("oldObject", "labels")),
            variable("notes", map("object", "annotations")),
            variable("notesBefore", map("oldObject", "annotations")),
        ],
        "validations": [
            unless(
                "request.userInfo.extra[?'authentication.kubernetes.io/node-name'][?0].orValue('') == \
                 object.metadata.name"
                    .to_owned(),
                "the pod on a node may change its own node only",
            ),
            unless("object.spec == oldObject.spec", "the pod on a node may not change its spec"),
            unless(
                format!(
                    "variables.labels.all(k, k in variables.labelsBefore && \
                     variables.labels[k] == variables.labelsBefore[k]) && \
                     variables.labelsBefore.all(k, k in variables.labels || k in ['{SEED_LABEL}', '{LABEL}'])"
                ),
                "the pod on a node may take off the labels that asked for it, and no other",
            ),
            unless(
                format!(
                    "variables.notes.all(k, k == '{STATE_ANNOTATION}' || (k in variables.notesBefore && \
                     variables.notes[k] == variables.notesBefore[k])) && \
                     variables.notesBefore.all(k, k in variables.notes || k == '{STATE_ANNOTATION}')"
                ),
                "the pod on a node may tell its state, and nothing else",
            ),
        ],
    });
    admission(name, &spec)
}

fn deployment(settings: &Settings, platform: Platform, arguments: &[String]) -> Value {
    let mut all = vec![
        "controller".to_owned(),
        format!("--namespace={}", settings.namespace),
        format!("--image={}", settings.image),
        "--listen=0.0.0.0:9464".to_owned(),
    ];
    all.extend(settings.template.iter().map(|name| format!("--secret-template={name}")));
    if !settings.selector.is_empty() {
        all.push(format!("--selector={}", settings.selector));
    }
    all.extend(arguments.iter().cloned());
    deployment_of(MANAGER, &settings.namespace, &settings.image, platform, &all)
}

/// Returns the Deployment of a controller. One replica leads; another one takes over when the leader's own
/// node is drained.
pub(crate) fn deployment_of(
    name: &str,
    namespace: &str,
    image: &str,
    platform: Platform,
    arguments: &[String],
) -> Value {
    let labels = json!({NAME: name});
    let mut user = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    // OpenShift assigns the user ID from the namespace's range and rejects any other one.
    if platform == Platform::Kubernetes {
        user["runAsUser"] = json!(USER);
    }
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": "metrics"}, "periodSeconds": 10});
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": name,
                    "priorityClassName": "system-cluster-critical",
                    "securityContext": user,
                    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
                        "weight": 100,
                        "podAffinityTerm": {
                            "labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname",
                        },
                    }]}},
                    "containers": [{
                        "name": "controller",
                        "image": image,
                        "command": ["/landfall"],
                        "args": arguments,
                        "ports": [{"name": "metrics", "containerPort": 9464}],
                        "livenessProbe": probe("/livez"),
                        "readinessProbe": probe("/readyz"),
                        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
                        "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                            "capabilities": {"drop": ["ALL"]}},
                    }],
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            namespace: "landfall".to_owned(),
            selector: "pool=edge".to_owned(),
            image: "registry.example/landfall:1".to_owned(),
            template: Some("template".to_owned()),
            runner_arguments: vec!["--kind=rhel".to_owned()],
        }
    }

    /// I11: in the original, every node's pod could read every node's Secret. It could also read all others
    /// of `kube-system`.
    #[test]
    fn i11_the_pod_on_a_node_may_read_no_secret_and_is_given_its_own() {
        let objects: Vec<Value> = install(&settings(), Rights::Approving, Platform::Kubernetes, &[])
            .into_iter()
            .map(|(_, object)| object)
            .collect();
        let of = |kind: &str, name: &str| {
            objects
                .iter()
                .find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
                .unwrap()
        };
        let rules = &of("ClusterRole", RUNNER)["rules"];
        assert_eq!(*rules, json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]));
        let bound = objects.iter().filter(|object| object["subjects"][0]["name"] == RUNNER);
        assert_eq!(bound.count(), 1, "nothing else is granted to it");
        let pod = runner(&settings(), "worker-1", "ibm-ipb-worker-1");
        let secrets: Vec<&Value> = pod["spec"]["volumes"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|volume| volume.pointer("/secret/secretName"))
            .collect();
        assert_eq!(secrets, ["ibm-ipb-worker-1"]);
    }

    #[test]
    fn what_is_rendered() {
        let arguments = ["--max-unavailable=3".to_owned()];
        let objects = install(&settings(), Rights::Approving, Platform::Kubernetes, &arguments);
        let mut objects: Vec<Value> = objects.into_iter().map(|(_, object)| object).collect();
        objects.push(runner(&settings(), "worker-1", "ibm-ipb-worker-1"));
        insta::assert_snapshot!(serde_json::to_string_pretty(&objects).unwrap());
    }

    #[test]
    fn openshift_chooses_users_and_lets_the_pod_on_a_node_have_its_rights() {
        let objects = install(&settings(), Rights::Usual, Platform::Openshift, &[]);
        let of = |word: &str| &objects.iter().find(|(own, _)| *own == word).unwrap().1;
        insta::assert_snapshot!(
            serde_json::to_string_pretty(&[of("runner-security-context-binding"), of("deployment")]).unwrap()
        );
        let usual = install(&settings(), Rights::Usual, Platform::Kubernetes, &[]);
        assert!(usual.iter().all(|(word, _)| *word != "runner-security-context-binding"));
    }
}
