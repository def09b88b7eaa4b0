//! The objects that install the Cluster API controller: values, never text templates.
//!
//! Kubernetes can restrict permissions to an object's status, but not to one field of it. A Machine's status
//! decides whether a machine is kept. So the account may patch the status, and an admission policy restricts
//! that to the controller's condition. Of the Machine itself, the policy permits changes to the evidence hook
//! only.

use std::time::Duration;

use serde_json::{Value, json};

use super::condition::TYPE;
use super::machine::HOOK;
use super::report::{self, KIND};
use super::shape::{DEFINITION, GROUP};
use crate::manifests::{Platform, USER, account, admission, binding, deployment_of, unless};

pub const MANAGER: &str = "landfall-capi";
pub const LEASE: &str = "landfall-capi";
/// Default namespace. It differs from the other controller's, because that one's pods have all permissions of
/// their nodes. In a shared namespace, removing one controller would also delete the other one's Secrets.
pub const NAMESPACE: &str = "landfall-capi";
/// Mount path of the hub's Secret.
const HUB_FOLDER: &str = "/run/landfall-hub";
/// Files of the token and the CA in it.
const TOKEN: &str = "token";
const AUTHORITY: &str = "ca.crt";

/// Settings of an installation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of the pods and the Lease.
    pub namespace: String,
    pub image: String,
    /// URL of the hub; `hub_secret` is the Secret with its `token` and `ca.crt`.
    pub hub: Option<String>,
    pub hub_secret: Option<String>,
    pub hold: Option<Duration>,
    /// Machines whose nodes may write their own report, by namespace and name.
    pub write_back: Vec<(String, String)>,
    /// Clusters that get a MachineHealthCheck, by namespace and name.
    pub health_checks: Vec<(String, String)>,
}

/// Returns all objects in the order of their application, each with the stem of its file name.
pub fn install(settings: &Settings, platform: Platform, arguments: &[String]) -> Vec<(&'static str, Value)> {
    let namespace = &settings.namespace;
    let [policy, policy_binding] = own_condition_only(namespace);
    let mut all = vec![
        ("definition", report::crd()),
        (
            "namespace",
            json!({
                "apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": namespace, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
            }),
        ),
        // Applied before the permissions that it restricts.
        ("policy", policy),
        ("policy-binding", policy_binding),
        ("account", account(namespace, MANAGER)),
        (
            "cluster-role",
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": {"name": MANAGER}, "rules": cluster_rules(),
            }),
        ),
        ("cluster-role-binding", binding("ClusterRoleBinding", None, "ClusterRole", MANAGER, namespace)),
        (
            "role",
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
                "metadata": {"name": MANAGER, "namespace": namespace},
                "rules": [
                    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
                    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [LEASE],
                        "verbs": ["get", "update"]},
                ],
            }),
        ),
        ("role-binding", binding("RoleBinding", Some(namespace), "Role", MANAGER, namespace)),
        ("deployment", deployment(settings, platform, arguments)),
    ];
    for (namespace, machine) in &settings.write_back {
        all.extend(write_back(namespace, machine));
    }
    all.extend(
        settings
            .health_checks
            .iter()
            .map(|(namespace, cluster)| ("health-check", health_check(namespace, cluster))),
    );
    all
}

/// Returns a node's own report object, and the permission to write only its status. The account's short-lived
/// token from `kubectl create token` is for the node.
pub fn write_back(namespace: &str, machine: &str) -> Vec<(&'static str, Value)> {
    let name = format!("landfall-report-{machine}");
    vec![
        ("report", report::object(namespace, machine)),
        ("report-account", account(namespace, &name)),
        (
            "report-role",
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
                "metadata": {"name": name, "namespace": namespace},
                "rules": [
                    {"apiGroups": [KIND.group], "resources": [KIND.plural], "resourceNames": [machine],
                        "verbs": ["get"]},
                    {"apiGroups": [KIND.group], "resources": [format!("{}/status", KIND.plural)],
                        "resourceNames": [machine], "verbs": ["get", "patch"]},
                ],
            }),
        ),
        ("report-role-binding", binding("RoleBinding", Some(namespace), "Role", &name, namespace)),
    ]
}

/// Returns a MachineHealthCheck that remediates failed bootstraps minutes before the Node startup timeout.
///
/// It acts on `False` only, which needs proven evidence. `Unknown` is also the status of claims. Text that an
/// attacker writes into a log must not delete a Machine. It must not count as unhealthy either, because that
/// would suspend the remediation of other Machines.
pub fn health_check(namespace: &str, cluster: &str) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1beta2"),
        "kind": "MachineHealthCheck",
        "metadata": {"name": format!("{cluster}-bootstrap"), "namespace": namespace},
        "spec": {
            "clusterName": cluster,
            "selector": {"matchLabels": {report::CLUSTER_LABEL: cluster}},
            "checks": {
                // Covers bootstraps that hang, are silent, or failed without proof.
                "nodeStartupTimeoutSeconds": 1200,
                "unhealthyMachineConditions": [{"type": TYPE, "status": "False", "timeoutSeconds": 60}],
            },
            // Forty Machines with the same cause indicate one shared fault, not forty broken machines.
            "remediation": {"triggerIf": {"unhealthyLessThanOrEqualTo": "40%"}},
        },
    })
}

fn cluster_rules() -> Value {
    json!([
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"],
            "resourceNames": [DEFINITION], "verbs": ["get"]},
        // Needed even when no evidence is held any more: a hook that cannot be removed blocks the deletion of
        // its Machine.
        {"apiGroups": [GROUP], "resources": ["machines"], "verbs": ["get", "list", "patch"]},
        {"apiGroups": [GROUP], "resources": ["clusters"], "verbs": ["list"]},
        {"apiGroups": [GROUP], "resources": ["machines/status"], "verbs": ["patch"]},
        {"apiGroups": [KIND.group], "resources": [KIND.plural], "verbs": ["list", "patch"]},
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]},
    ])
}

/// Returns a policy that limits the account to the controller's condition and hook on a Machine.
fn own_condition_only(namespace: &str) -> [Value; 2] {
    let user = format!("system:serviceaccount:{namespace}:{MANAGER}");
    let name = "landfall-capi-own-condition";
    let variable = |name: &str, expression: String| json!({"name": name, "expression": expression});
    let map = |of: &str, what: &str| format!("has({of}.{what}) ? {of}.{what} : {{}}");
    let others = |of: &str| {
        format!(
            "has({of}.status) && has({of}.status.conditions) ? \
             {of}.status.conditions.filter(c, c.type != '{TYPE}') : []"
        )
    };
    // Both maps are equal except for one key.
    let same_but = |one: &str, two: &str, key: &str| {
        format!(
            "variables.{one}.all(k, k == '{key}' || (k in variables.{two} && \
             variables.{one}[k] == variables.{two}[k])) && \
             variables.{two}.all(k, k == '{key}' || k in variables.{one})"
        )
    };
    let same = |what: &str| {
        format!(
            "has(object.{what}) == has(oldObject.{what}) && (!has(object.{what}) || object.{what} == oldObject.{what})"
        )
    };
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{
            "apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"],
            "resources": ["machines", "machines/*"],
        }]},
        "matchConditions": [{
            "name": "by-landfall", "expression": format!("request.userInfo.username == '{user}'"),
        }],
        "variables": [
            variable("status", map("object", "status")),
            variable("statusBefore", map("oldObject", "status")),
            variable("others", others("object")),
            variable("othersBefore", others("oldObject")),
            variable("notes", map("object.metadata", "annotations")),
            variable("notesBefore", map("oldObject.metadata", "annotations")),
        ],
        "validations": [
            unless("request.operation == 'UPDATE'", "landfall may not make Machines"),
            unless(same("spec"), "landfall may not change the spec of a Machine"),
            unless(
                same_but("status", "statusBefore", "conditions"),
                "landfall may not change the status of a Machine beside its own condition",
            ),
            unless(
                "variables.others == variables.othersBefore",
                "landfall may not change conditions of others",
            ),
            unless(
                same_but("notes", "notesBefore", HOOK),
                "landfall may change no annotation of a Machine but its own hook",
            ),
            unless(
                ["labels", "finalizers", "ownerReferences"]
                    .map(|what| format!("({})", same(&format!("metadata.{what}"))))
                    .join(" && "),
                "landfall may not change labels, finalizers or owners of a Machine",
            ),
        ],
    });
    admission(name, &spec)
}

fn deployment(settings: &Settings, platform: Platform, arguments: &[String]) -> Value {
    let mut all = vec![
        "controller".to_owned(),
        "--capi".to_owned(),
        format!("--namespace={}", settings.namespace),
        "--listen=0.0.0.0:9464".to_owned(),
    ];
    all.extend(settings.hub.iter().map(|hub| format!("--hub={hub}")));
    if settings.hub_secret.is_some() {
        all.push(format!("--hub-token-file={HUB_FOLDER}/{TOKEN}"));
        all.push(format!("--hub-ca={HUB_FOLDER}/{AUTHORITY}"));
    }
    all.extend(settings.hold.iter().map(|hold| format!("--hold-evidence={}s", hold.as_secs())));
    all.extend(arguments.iter().cloned());
    let mut object = deployment_of(MANAGER, &settings.namespace, &settings.image, platform, &all);
    if let Some(secret) = &settings.hub_secret {
        let pod = &mut object["spec"]["template"]["spec"];
        pod["volumes"] = json!([{"name": "hub", "secret": {"secretName": secret, "defaultMode": 0o440}}]);
        if platform == Platform::Kubernetes {
            pod["securityContext"]["fsGroup"] = json!(USER);
        }
        pod["containers"][0]["volumeMounts"] =
            json!([{"name": "hub", "mountPath": HUB_FOLDER, "readOnly": true}]);
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            namespace: NAMESPACE.to_owned(),
            image: "registry.example/landfall:1".to_owned(),
            hub: Some("https://hub.corp:8700".to_owned()),
            hub_secret: Some("landfall-hub".to_owned()),
            hold: Some(Duration::from_mins(15)),
            write_back: vec![("team-a".to_owned(), "edge-1".to_owned())],
            health_checks: vec![("team-a".to_owned(), "edge".to_owned())],
        }
    }

    #[test]
    fn what_is_rendered() {
        let objects = install(&settings(), Platform::Kubernetes, &[]);
        let objects: Vec<Value> = objects.into_iter().map(|(_, object)| object).collect();
        insta::assert_snapshot!(serde_json::to_string_pretty(&objects).unwrap());
    }

    #[test]
    fn openshift_chooses_users_and_groups() {
        let objects = install(&settings(), Platform::Openshift, &[]);
        let (_, deployment) = objects.iter().find(|(word, _)| *word == "deployment").unwrap();
        let security = &deployment["spec"]["template"]["spec"]["securityContext"];
        assert_eq!(*security, json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}}));
    }

    /// A controller that no longer holds evidence must still remove its hooks.
    #[test]
    fn the_rights_are_the_same_whether_evidence_is_held_or_not() {
        let role = |hold| {
            let objects = install(&Settings { hold, ..settings() }, Platform::Kubernetes, &[]);
            objects.into_iter().find(|(word, _)| *word == "cluster-role").unwrap().1
        };
        assert_eq!(role(None), role(Some(Duration::from_mins(15))));
        let machines = |rule: &&Value| rule["resources"] == json!(["machines"]);
        let rules = role(None)["rules"].as_array().unwrap().clone();
        assert_eq!(rules.iter().find(machines).unwrap()["verbs"], json!(["get", "list", "patch"]));
    }
}
