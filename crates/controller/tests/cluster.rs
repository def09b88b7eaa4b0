//! Tests of the controller against a real kube-apiserver, with only the permissions of its installation.
//!
//! The test acts as the nodes: it writes the updates of kubelets and of `landfall node in-place`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod stage;

use std::sync::Arc;
use std::time::Duration;

use landfall_cluster::{Cluster, NodeChange};
use landfall_controller::manifests::{self, Platform, Rights};
use landfall_controller::metrics::Metrics;
use landfall_controller::policy::{Approvals, AtOnce, Policy};
use landfall_controller::run::{Controller, run};
use landfall_model::in_place::{LABEL, SEED_LABEL, STATE_ANNOTATION};
use landfall_testkit::{ApiServer, eventually, have};
use serde_json::json;
use stage::{NAMESPACE, PATIENCE, Stage, settings};
use tokio_util::sync::CancellationToken;

fn policy() -> Policy {
    let mut policy = Policy {
        max_unavailable: AtOnce::Nodes(2),
        approvals: Approvals::Proven { bootstrap_users: Vec::new() },
        ..Policy::default()
    };
    // No kubelet ends pods here.
    policy.drain.grace = Some(Duration::ZERO);
    policy
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_fleet_is_led() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    // A failed test shows the controller's log.
    let _ = tracing_subscriber::fmt().with_test_writer().with_ansi(false).try_init();
    let stage = Stage::set();
    stage.node("w1", &[(LABEL, "requested"), ("zone", "a")]);
    stage.pod("default", "web", "w1");
    stage.budget("web", 0);
    // Cordoned by hand, as the original requires.
    stage.node("w2", &[(SEED_LABEL, "true")]);
    stage.kubectl(&["cordon", "w2"]);
    stage.node("w3", &[(LABEL, "requested")]);
    for node in ["w1", "w2"] {
        stage.secret(&format!("ibm-ipb-{node}"));
    }

    forbid_pods(&stage, "w2");
    let (first, second) = (Led::start(&stage, "one").await, Led::start(&stage, "two").await);
    one_leads(&first, &second);
    a_refused_pod_is_told_at_once(&stage, "w2", [&first, &second]);
    a_hindered_pod_is_told_at_once(&stage, "w2");
    a_budget_is_honoured(&stage);
    the_pod_is_on_the_node_with_its_secret(&stage);
    a_node_without_a_secret_waits(&stage);
    only_the_own_node_may_be_changed(&stage).await;
    only_proven_requests_are_approved(&stage);

    // The leader stops; the other replica completes the rollout.
    let (leader, other) = if first.leads() { (first, second) } else { (second, first) };
    leader.end().await;
    eventually("the other one to lead", PATIENCE, || other.leads().then_some(())).unwrap();
    nodes_come_back(&stage);
    other.end().await;
    nothing_more_is_allowed(&stage);
}

/// Another client edits records that only the controller should write.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_others_write_into_records_is_put_right() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let _ = tracing_subscriber::fmt().with_test_writer().with_ansi(false).try_init();
    let stage = Stage::set();
    stage.node("w1", &[(LABEL, "requested")]);
    stage.secret("ibm-ipb-w1");
    stage.node("w9", &[]);
    let led = Led::start(&stage, "one").await;
    let is = |field: &str, value: &str| (stage.status("w1", field).as_deref() == Some(value)).then_some(());
    let forge = |node: &str, status: &str| {
        let status = format!("{{\"status\":{status}}}");
        stage.kubectl(&[
            "patch",
            "nodebootstrap",
            node,
            "--subresource=status",
            "--type=merge",
            "-p",
            status.as_str(),
        ]);
    };
    stage.wait("its turn", || is("phase", "HandedOver"));

    // A forged record of a node that was never requested does not lead to the approval of a certificate
    // request.
    stage.apply(&json!({"apiVersion": "landfall.dev/v1alpha1", "kind": "NodeBootstrap",
        "metadata": {"name": "w9"}, "spec": {"nodeName": "w9"}}));
    forge(
        "w9",
        r#"{"phase":"Running","state":"Armed","since":"2026-01-02T03:04:05Z","handedOver":"2026-01-02T03:04:05Z"}"#,
    );
    stage.request("forged", "w9");
    // The node of a record is immutable.
    let other = r#"{"spec":{"nodeName":"w9"}}"#;
    assert!(stage.is_refused(&["patch", "nodebootstrap", "w1", "--type=merge", "-p", other]));

    // A record forged as done while the node is requested: the node starts again.
    forge("w1", r#"{"phase":"Done"}"#);
    stage.wait("it to be begun anew", || is("phase", "HandedOver"));
    // A deadline that counts from a time of a wrong clock would never be reached.
    forge("w1", r#"{"since":"2099-01-02T03:04:05Z","handedOver":"2099-01-02T03:04:05Z"}"#);
    stage.wait("the moment to be put right", || {
        let is_right = |field: &str| stage.status("w1", field).is_some_and(|time| !time.starts_with("2099"));
        (is_right("since") && is_right("handedOver")).then_some(())
    });

    // The node is armed and its record is forged as done: it stays cordoned until it returns.
    stage.annotate("w1", &told("armed"));
    stage.kubectl(&["label", "node", "w1", &format!("{LABEL}-")]);
    stage.wait("it to run", || is("phase", "Running"));
    forge("w1", r#"{"phase":"Done"}"#);
    stage.wait("the word to be shown", || {
        let path = "{.status.conditions[?(@.type==\"LandfallInPlace\")].reason}";
        (stage.get("node", "w1", path).as_deref() == Some("Done")).then_some(())
    });
    assert_eq!(stage.get("node", "w1", "{.spec.unschedulable}").as_deref(), Some("true"));
    // A deleted record has the same effect.
    stage.kubectl(&["delete", "nodebootstrap", "w1"]);
    stage.boot("w1", "boot-1");
    stage.annotate("w1", &told("done"));
    stage.wait("the node to have its place back", || {
        let is_free = stage.get("node", "w1", "{.spec.unschedulable}").is_none();
        (is_free && !stage.exists("pod", NAMESPACE, "landfall-in-place-w1")).then_some(())
    });
    assert!(stage.exists("secret", NAMESPACE, "ibm-ipb-w1"), "a person's Secret stays");
    assert_eq!(stage.get("csr", "forged", "{.status.conditions}"), None, "nothing is granted");
    led.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_is_installed_from_is_taken_by_an_api_server() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let server = ApiServer::start().unwrap();
    server.kubectl(&["create", "namespace", NAMESPACE]).unwrap();
    for (rights, platform) in
        [(Rights::Usual, Platform::Openshift), (Rights::Approving, Platform::Kubernetes)]
    {
        let arguments = ["--max-unavailable=3".to_owned()];
        for (_, object) in manifests::install(&settings(), rights, platform, &arguments) {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("object.json");
            std::fs::write(&file, object.to_string()).unwrap();
            let file = file.display().to_string();
            // Unknown and misspelled fields are rejected.
            let arguments =
                ["apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", file.as_str()];
            server.kubectl(&arguments).unwrap_or_else(|error| panic!("{error:#}: {object:#}"));
        }
    }
}

/// A running controller.
struct Led {
    metrics: Arc<Metrics>,
    cancel: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Led {
    async fn start(stage: &Stage, identity: &str) -> Self {
        let metrics = Arc::new(Metrics::default());
        let controller = Controller {
            cluster: Cluster::from_kubeconfig(&stage.controller).await.unwrap(),
            settings: settings(),
            policy: policy(),
            identity: identity.to_owned(),
            metrics: Arc::clone(&metrics),
        };
        let cancel = CancellationToken::new();
        let ended = cancel.clone();
        let task = tokio::spawn(async move { run(&controller, &ended).await });
        Self { metrics, cancel, task }
    }

    fn leads(&self) -> bool {
        self.metrics.text().contains("landfall_controller_leader_info 1")
    }

    async fn end(self) {
        self.cancel.cancel();
        self.task.await.unwrap();
    }
}

fn one_leads(first: &Led, second: &Led) {
    eventually("somebody to lead", PATIENCE, || (first.leads() || second.leads()).then_some(())).unwrap();
    assert!(!(first.leads() && second.leads()), "two lead");
}

/// Rejects pods as a quota or policy of the cluster would.
fn forbid_pods(stage: &Stage, node: &str) {
    let name = "no-pods";
    stage.apply(&json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
            }]},
            "validations": [{
                "expression": format!("object.metadata.name != 'landfall-in-place-{node}'"),
                "message": "no privileged pods on Mondays",
            }],
        },
    }));
    stage.apply(&json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]},
    }));
    let pod = format!("landfall-in-place-{node}");
    // The API server enforces a policy a moment after accepting it.
    stage.wait("the policy to be in force", || {
        stage.is_refused(&["run", &pod, "-n", "default", "--image=x"]).then_some(())
    });
}

/// The rejection is reported immediately, not after the time limit of the node's first state.
fn a_refused_pod_is_told_at_once(stage: &Stage, node: &str, controllers: [&Led; 2]) {
    stage.wait("the refusal to be told", || {
        (stage.status(node, "reason").as_deref() == Some("PodRefused")).then_some(())
    });
    let message = stage.status(node, "message").unwrap();
    assert!(message.contains("no privileged pods on Mondays"), "{message}");
    let path = r#"{.status.conditions[?(@.type=="LandfallInPlace")].reason}"#;
    stage.wait("the condition", || {
        (stage.get("node", node, path).as_deref() == Some("PodRefused")).then_some(())
    });
    stage.wait("the Event", || {
        let events = stage.kubectl(&["get", "events", "-n", "default", "-o", "jsonpath={.items[*].reason}"]);
        events.contains("PodRefused").then_some(())
    });
    let refused = |led: &Led| !led.metrics.text().contains("landfall_controller_pods_refused_total 0\n");
    assert!(controllers.into_iter().any(refused), "the metric counts it");
    a_secret_that_goes_is_told_at_once(stage, node);
    for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
        stage.kubectl(&["delete", kind, "no-pods"]);
    }
    stage.wait("the pod to be taken after all", || {
        let pod = format!("landfall-in-place-{node}");
        stage.exists("pod", NAMESPACE, &pod).then_some(())
    });
    stage.wait("the refusal to be history", || stage.status(node, "reason").is_none().then_some(()));
}

/// The node is handed over and has no pod yet: the missing Secret is the only obstacle now.
fn a_secret_that_goes_is_told_at_once(stage: &Stage, node: &str) {
    let secret = format!("ibm-ipb-{node}");
    stage.kubectl(&["delete", "secret", "-n", NAMESPACE, &secret]);
    stage.wait("the missing Secret to be told", || {
        (stage.status(node, "reason").as_deref() == Some("SecretMissing")).then_some(())
    });
    assert_eq!(stage.status(node, "phase").as_deref(), Some("HandedOver"));
    stage.secret(&secret);
    stage.wait("the Secret to be used", || {
        (stage.status(node, "reason").as_deref() == Some("PodRefused")).then_some(())
    });
}

/// The reason has the kubelet's wording, and a pod that the kubelet rejected is replaced.
fn a_hindered_pod_is_told_at_once(stage: &Stage, node: &str) {
    let pod = format!("landfall-in-place-{node}");
    let report = |status: &serde_json::Value| {
        let patch = json!({"status": status}).to_string();
        stage.kubectl(&["patch", "pod", &pod, "-n", NAMESPACE, "--subresource=status", "-p", &patch]);
    };
    let hindered = |why: &str| {
        stage.wait("the hindrance to be told", || {
            let told = stage.status(node, "message").is_some_and(|message| message.contains(why));
            (told && stage.status(node, "reason").as_deref() == Some("PodHindered")).then_some(())
        });
    };
    let container = stage.get_in(NAMESPACE, "pod", &pod, "{.spec.containers[0].name}").unwrap();
    let waiting = json!({"reason": "ImagePullBackOff", "message": "no such image"});
    report(&json!({"containerStatuses": [{"name": container, "image": "x", "imageID": "", "ready": false,
        "restartCount": 0, "state": {"waiting": waiting}}]}));
    hindered("ImagePullBackOff: no such image");

    let uid = || stage.get_in(NAMESPACE, "pod", &pod, "{.metadata.uid}");
    let first = uid();
    assert!(first.is_some());
    let failed =
        json!({"phase": "Failed", "reason": "OutOfmemory", "message": "no room", "containerStatuses": null});
    report(&failed);
    stage.wait("another pod", || uid().filter(|uid| Some(uid) != first.as_ref()).map(drop));
    stage.wait("the hindrance to be history", || stage.status(node, "reason").is_none().then_some(()));
    let events = stage.kubectl(&["get", "events", "-n", "default", "-o", "jsonpath={.items[*].reason}"]);
    assert!(events.contains("PodHindered"), "{events}");
}

fn a_budget_is_honoured(stage: &Stage) {
    stage.wait("the drain to be held up by the budget", || {
        let message = stage.status("w1", "message")?;
        message.contains("disruption budget").then_some(())
    });
    assert_eq!(stage.status("w1", "phase").as_deref(), Some("Draining"));
    assert!(stage.exists("pod", "default", "web"), "it was not pushed");
    assert!(!stage.exists("pod", NAMESPACE, "landfall-in-place-w1"), "and nothing was begun");
    let shown = stage.get("node", "w1", r#"{.status.conditions[?(@.type=="LandfallInPlace")].reason}"#);
    assert_eq!(shown.as_deref(), Some("Draining"));
    stage.allow("web", 1);
    stage.wait("the pod to be evicted", || (!stage.exists("pod", "default", "web")).then_some(()));
}

fn the_pod_is_on_the_node_with_its_secret(stage: &Stage) {
    for node in ["w1", "w2"] {
        let pod = format!("landfall-in-place-{node}");
        stage.wait("the pod on the node", || stage.exists("pod", NAMESPACE, &pod).then_some(()));
        let path = "{.spec.nodeName} {.spec.volumes[?(@.name==\"secret\")].secret.secretName}";
        let found = stage.get_in(NAMESPACE, "pod", &pod, path);
        assert_eq!(found, Some(format!("{node} ibm-ipb-{node}")));
    }
    let by = stage.get("node", "w1", r"{.metadata.annotations.landfall\.dev/cordoned-by}");
    assert_eq!(by.as_deref(), Some("landfall-controller"));
    let by = stage.get("node", "w2", r"{.metadata.annotations.landfall\.dev/cordoned-by}");
    assert_eq!(by, None, "somebody else's cordon is not ours");
}

fn a_node_without_a_secret_waits(stage: &Stage) {
    stage.wait("w3 to wait", || {
        (stage.status("w3", "reason").as_deref() == Some("SecretMissing")).then_some(())
    });
    assert_eq!(stage.get("node", "w3", "{.spec.unschedulable}"), None);
    let table = stage.kubectl(&["get", "nodebootstraps"]);
    assert!(table.contains("PHASE") && table.contains("SecretMissing"), "{table}");
}

/// I11: in the original, every node's pod could read every node's Secret.
async fn only_the_own_node_may_be_changed(stage: &Stage) {
    let kubeconfig = stage.token_of_pod("landfall-in-place-w1");
    let cluster = Cluster::from_kubeconfig(&kubeconfig).await.unwrap();
    for name in ["ibm-ipb-w1", "ibm-ipb-w2"] {
        let denied = cluster.secret(NAMESPACE, name).await.err().unwrap();
        assert!(denied.is_denied(), "{name}");
    }
    // The API server enforces a policy a moment after accepting it.
    let end = std::time::Instant::now() + PATIENCE;
    while cluster.annotate_node("w2", STATE_ANNOTATION, Some("{}")).await.is_ok() {
        assert!(std::time::Instant::now() < end, "the policy is not in force");
    }
    let denied = cluster.annotate_node("w2", STATE_ANNOTATION, Some("{}")).await.unwrap_err();
    assert!(denied.said().unwrap().contains("its own node only"), "{:?}", denied.said());
    for (what, change) in [
        ("its spec", NodeChange { cordoned: Some(false), ..NodeChange::default() }),
        (
            "only the labels that requested it",
            NodeChange {
                labels: [("zone".to_owned(), Some("b".to_owned()))].into(),
                ..NodeChange::default()
            },
        ),
        (
            "only the labels that requested it",
            NodeChange { labels: [("zone".to_owned(), None)].into(), ..NodeChange::default() },
        ),
        (
            "only its state",
            NodeChange {
                annotations: [("x".to_owned(), Some("y".to_owned()))].into(),
                ..NodeChange::default()
            },
        ),
    ] {
        let denied = cluster.change_node("w1", None, &change).await.unwrap_err();
        assert!(denied.said().unwrap().contains(what), "{change:?}: {:?}", denied.said());
    }
    // Permitted writes: its state, and the removal of the label.
    cluster.annotate_node("w1", STATE_ANNOTATION, Some(&told("armed"))).await.unwrap();
    cluster.label_node("w1", LABEL, None).await.unwrap();
    stage.annotate("w2", &told("armed"));
    stage.kubectl(&["label", "node", "w2", &format!("{SEED_LABEL}-")]);
    for node in ["w1", "w2"] {
        stage.wait("the node to run", || {
            (stage.status(node, "phase").as_deref() == Some("Running")).then_some(())
        });
    }
}

fn only_proven_requests_are_approved(stage: &Stage) {
    stage.request("foreign", "w9");
    stage.request("not-under-way", "w3");
    stage.request("own", "w1");
    stage.wait("the node's own request to be approved", || {
        let approved = stage.get("csr", "own", "{.status.conditions[0].reason}")?;
        (approved == "LandfallProven").then_some(())
    });
    for name in ["foreign", "not-under-way"] {
        assert_eq!(stage.get("csr", name, "{.status.conditions[0].type}"), None, "{name}");
    }
    assert_eq!(stage.status("w1", "approved").as_deref(), Some(r#"["own"]"#));
}

fn nodes_come_back(stage: &Stage) {
    // The Node was deleted and registered again without labels.
    stage.kubectl(&["delete", "node", "w1"]);
    stage.node("w1", &[]);
    for node in ["w1", "w2"] {
        stage.boot(node, "boot-1");
        stage.annotate(node, &told("done"));
        stage.wait("the node to be done", || {
            (stage.status(node, "phase").as_deref() == Some("Done")).then_some(())
        });
    }
    assert_eq!(stage.get("node", "w1", "{.metadata.labels.zone}").as_deref(), Some("a"), "put back");
    assert_eq!(stage.get("node", "w1", "{.spec.unschedulable}"), None);
    let kept = stage.get("node", "w2", "{.spec.unschedulable}");
    assert_eq!(kept.as_deref(), Some("true"), "a cordon that is not ours stays");
    let events = stage.kubectl(&["get", "events", "-n", "default", "-o", "jsonpath={.items[*].reason}"]);
    for reason in ["Draining", "HandedOver", "Running", "Restoring", "Done"] {
        assert!(events.contains(reason), "{reason} in {events}");
    }
}

/// Asserts operations that the controller's account must not be able to do.
fn nothing_more_is_allowed(stage: &Stage) {
    let user = format!("--as=system:serviceaccount:{NAMESPACE}:landfall-controller");
    for question in [
        &["get", "secrets", "-n", "kube-system"][..],
        &["list", "secrets", "-A"],
        &["get", "secret/ibm-ipb-w1", "-n", NAMESPACE],
        &["update", "secrets", "-n", NAMESPACE],
        &["create", "pods", "-n", "default"],
        &["delete", "pods", "-n", "default"],
        &["delete", "nodes"],
        &["create", "nodes"],
        &["create", "serviceaccounts/token", "-n", NAMESPACE],
        &["create", "clusterrolebindings.rbac.authorization.k8s.io"],
        &["update", "leases.coordination.k8s.io/another", "-n", NAMESPACE],
        &["delete", "certificatesigningrequests.certificates.k8s.io"],
    ] {
        assert!(!stage.may(&user, question), "{question:?}");
    }
    assert!(stage.may(&user, &["list", "secrets", "-n", NAMESPACE]));
}

fn told(state: &str) -> String {
    json!({"attempt": "a1", "state": state, "detail": {"is": state}, "step": "", "time": "2026-01-02T03:04:05Z"})
        .to_string()
}
