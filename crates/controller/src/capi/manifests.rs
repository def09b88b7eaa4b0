//! The objects that install the Cluster API controller.
//!
//! Kubernetes can restrict permissions to an object's status, but not to one field of it. A Machine's status
//! decides whether a machine is kept. So the account may patch the status, and an admission policy restricts
//! that to the controller's condition. Of the Machine itself, the policy permits changes to the evidence hook
//! only.

use std::iter;
use std::time::Duration;

use landfall_cluster::manifest::{object, objects};
use serde_json::{Value, json};

use super::condition::TYPE;
use super::machine::HOOK;
use super::report;
use super::shape::{DEFINITION, GROUP};
use crate::manifests::{Platform, deployment_of};

pub const MANAGER: &str = "landfall-capi";
pub const LEASE: &str = "landfall-capi";
/// Default namespace. It differs from the other controller's, because that one's pods have all permissions of
/// their nodes. In a shared namespace, removing one controller would also delete the other one's Secrets.
pub const NAMESPACE: &str = "landfall-capi";
/// Stems of the file names of the objects in `capi.yaml`.
const STEMS: [&str; 8] = [
    "namespace",
    "policy",
    "policy-binding",
    "account",
    "cluster-role",
    "cluster-role-binding",
    "role",
    "role-binding",
];
/// Mount path of the hub's Secret.
const HUB_FOLDER: &str = "/run/landfall-hub";
/// Files of the token and the CA in it.
const TOKEN: &str = "token";
const AUTHORITY: &str = "ca.crt";

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
    let values = [
        ("NAMESPACE", json!(settings.namespace)),
        ("MANAGER", json!(MANAGER)),
        ("LEASE", json!(LEASE)),
        ("GROUP", json!(GROUP)),
        ("DEFINITION", json!(DEFINITION)),
        ("CONDITION", json!(TYPE)),
        ("HOOK", json!(HOOK)),
    ];
    let write_back =
        settings.write_back.iter().flat_map(|(namespace, machine)| write_back(namespace, machine));
    let health_checks = settings.health_checks.iter();
    iter::once(("definition", report::crd()))
        .chain(STEMS.into_iter().zip(objects(include_str!("../../manifests/capi.yaml"), &values)))
        .chain(iter::once(("deployment", deployment(settings, platform, arguments))))
        .chain(write_back)
        .chain(health_checks.map(|(namespace, cluster)| ("health-check", health_check(namespace, cluster))))
        .collect()
}

/// Returns a node's own report object, and the permission to write only its status. The account's short-lived
/// token from `kubectl create token` is for the node.
pub fn write_back(namespace: &str, machine: &str) -> Vec<(&'static str, Value)> {
    let values = [("NAMESPACE", json!(namespace)), ("MACHINE", json!(machine))];
    let rights = objects(include_str!("../../manifests/write-back.yaml"), &values);
    iter::once(("report", report::object(namespace, machine)))
        .chain(["report-account", "report-role", "report-role-binding"].into_iter().zip(rights))
        .collect()
}

/// Returns a MachineHealthCheck that remediates failed bootstraps minutes before the Node startup timeout.
///
/// It acts on `False` only, which needs proven evidence. `Unknown` is also the status of claims. Text that an
/// attacker writes into a log must not delete a Machine. It must not count as unhealthy either, because that
/// would suspend the remediation of other Machines.
pub fn health_check(namespace: &str, cluster: &str) -> Value {
    let values = [
        ("NAMESPACE", json!(namespace)),
        ("CLUSTER", json!(cluster)),
        ("GROUP", json!(GROUP)),
        ("CONDITION", json!(TYPE)),
    ];
    object(include_str!("../../manifests/health-check.yaml"), &values)
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
    let secret = settings.hub_secret.as_deref().map(|name| (name, HUB_FOLDER));
    deployment_of(MANAGER, &settings.namespace, &settings.image, platform, &all, secret)
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
