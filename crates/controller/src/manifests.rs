//! The objects that install the controller, and the pod it starts on a node.
//!
//! No pod may read the Secret of another node. The kubelet mounts a node's Secret into the pod on that node,
//! and a kubelet may fetch only the Secrets of its own pods. The pod's account may read no Secret. An
//! admission policy restricts the account's permissions (removing node labels, writing the node's state) to
//! the node of the pod.

use std::iter;

use landfall_cluster::manifest::{object, objects};
use landfall_model::in_place::{LABEL, SECRET_KEY, SEED_LABEL, STATE_ANNOTATION};
use serde_json::{Value, json};

use crate::certificates::{CLIENT_SIGNER, SERVING_SIGNER};
use crate::record::Phase;

pub const MANAGER: &str = "landfall-controller";
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The pod that runs the bootstrap on a node, and its account.
pub const RUNNER: &str = "landfall-in-place";
pub const RUNNER_SELECTOR: &str = "app.kubernetes.io/name=landfall-in-place";
pub const LEASE: &str = "landfall-controller";
/// Default namespace of the installation.
pub const NAMESPACE: &str = "landfall";
/// An unprivileged user ID for pods that need no permissions on their node.
const USER: u32 = 65_532;

/// Stems of the file names of the objects in `in-place.yaml`.
const STEMS: [&str; 12] = [
    "namespace",
    "account",
    "runner-account",
    "cluster-role",
    "cluster-role-binding",
    "role",
    "role-binding",
    "runner-cluster-role",
    "runner-cluster-role-binding",
    "policy",
    "policy-binding",
    RUNNER_SECURITY,
];
/// Only for OpenShift.
const RUNNER_SECURITY: &str = "runner-security-context-binding";

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
    let values = [
        ("RUNNER", json!(RUNNER)),
        ("MANAGER", json!(MANAGER)),
        ("NODE", json!(node)),
        ("NAMESPACE", json!(settings.namespace)),
        ("IMAGE", json!(settings.image)),
        ("SECRET", json!(secret)),
        ("SECRET_KEY", json!(SECRET_KEY)),
        ("ARGUMENTS", json!(settings.runner_arguments)),
    ];
    object(include_str!("../manifests/runner.yaml"), &values)
}

/// Returns all objects in the order of their application, each with the stem of its file name.
pub fn install(
    settings: &Settings,
    rights: Rights,
    platform: Platform,
    arguments: &[String],
) -> Vec<(&'static str, Value)> {
    let approval = match rights {
        Rights::Usual => Value::Null,
        Rights::Approving => {
            let signers = [("SIGNERS", json!([CLIENT_SIGNER, SERVING_SIGNER]))];
            object(include_str!("../manifests/approval-rules.yaml"), &signers)
        }
    };
    let template = settings.template.as_ref().map(
        |name| json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": [name], "verbs": ["get"]}),
    );
    let values = [
        ("NAMESPACE", json!(settings.namespace)),
        ("MANAGER", json!(MANAGER)),
        ("RUNNER", json!(RUNNER)),
        ("LEASE", json!(LEASE)),
        ("LABEL", json!(LABEL)),
        ("SEED_LABEL", json!(SEED_LABEL)),
        ("STATE_ANNOTATION", json!(STATE_ANNOTATION)),
        ("APPROVAL_RULES", approval),
        ("TEMPLATE_RULE", json!(template)),
    ];
    let all = STEMS.into_iter().zip(objects(include_str!("../manifests/in-place.yaml"), &values));
    iter::once(("definition", crd()))
        .chain(all.filter(|(stem, _)| *stem != RUNNER_SECURITY || platform == Platform::Openshift))
        .chain(iter::once(("deployment", deployment(settings, platform, arguments))))
        .collect()
}

/// Returns the CustomResourceDefinition of `NodeBootstrap`.
pub fn crd() -> Value {
    let phases = Phase::ALL.map(Phase::name);
    object(include_str!("../manifests/definition.yaml"), &[("PHASES", json!(phases))])
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
    deployment_of(MANAGER, &settings.namespace, &settings.image, platform, &all, None)
}

/// Returns the Deployment of a controller, with a Secret mounted at a folder.
pub(crate) fn deployment_of(
    name: &str,
    namespace: &str,
    image: &str,
    platform: Platform,
    arguments: &[String],
    secret: Option<(&str, &str)>,
) -> Value {
    // OpenShift assigns the user ID from the namespace's range and rejects any other one.
    let user = (platform == Platform::Kubernetes).then_some(USER);
    let mounts = secret.map(|(_, folder)| json!([{"name": "hub", "mountPath": folder, "readOnly": true}]));
    let volumes = secret
        .map(|(name, _)| json!([{"name": "hub", "secret": {"secretName": name, "defaultMode": 0o440}}]));
    let values = [
        ("NAME", json!(name)),
        ("NAMESPACE", json!(namespace)),
        ("IMAGE", json!(image)),
        ("USER", json!(user)),
        ("FILE_GROUP", json!(user.filter(|_| secret.is_some()))),
        ("ARGUMENTS", json!(arguments)),
        ("MOUNTS", json!(mounts)),
        ("VOLUMES", json!(volumes)),
    ];
    object(include_str!("../manifests/deployment.yaml"), &values)
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
