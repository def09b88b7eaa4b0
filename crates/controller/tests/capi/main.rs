//! Tests of the Cluster API controller against a real kube-apiserver.
//!
//! The controller has only the permissions of its installation.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod stage;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use landfall_cluster::{Cluster, Part, Place};
use landfall_controller::capi::act::{Outcome, act};
use landfall_controller::capi::condition::{Condition, Status, TYPE};
use landfall_controller::capi::machine::{HOOK, MachineName};
use landfall_controller::capi::manifests::{self, MANAGER};
use landfall_controller::capi::observe::shape;
use landfall_controller::capi::plan::{Action, Turn};
use landfall_controller::capi::run::tear_down;
use landfall_controller::capi::shape::Way;
use landfall_controller::manifests::Platform;
use landfall_testkit::{ApiServer, ClusterApi, have};
use serde_json::{Value, json};
use stage::{FakeHub, Led, NAMESPACE, PATIENCE, Stage, settings};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn machines_show_what_their_nodes_say_where_conditions_are_a_map() {
    if !have(&[ApiServer::NEEDS, ClusterApi::NEEDS].concat()) {
        return;
    }
    // A failed test shows the controller's log.
    let _ = tracing_subscriber::fmt().with_test_writer().with_ansi(false).try_init();
    let stage = Stage::set(ClusterApi::V1beta2);
    let hub = Arc::new(FakeHub::default());
    for machine in ["m1", "m2", "m3"] {
        stage.machine(machine);
    }
    hub.says("m1", "failed", Some("disk-full"));
    hub.says("m2", "running", None);
    let led = Led::start(&stage, &hub, LONG).await;
    a_failure_is_shown_and_held(&stage, &hub);
    a_recovery_is_shown(&stage, &hub, &led);
    a_node_writes_its_own_report_and_no_other(&stage);
    a_health_check_is_taken(&stage).unwrap();
    proven_failure_is_unhealthy_until_report_changes(&stage, &hub);
    claims_are_not_unhealthy(&stage, &hub);
    ready_node_is_never_unhealthy(&stage, &hub);
    led.end().await;
    only_our_condition_and_our_hook_may_be_written(&stage).await;
    nothing_more_is_allowed(&stage);
    what_is_not_ours_is_not_fought_over(&stage).await;
    teardown_leaves_nothing(&stage).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn machines_show_what_their_nodes_say_where_conditions_are_one_value() {
    if !have(&[ApiServer::NEEDS, ClusterApi::NEEDS].concat()) {
        return;
    }
    let _ = tracing_subscriber::fmt().with_test_writer().with_ansi(false).try_init();
    let stage = Stage::set(ClusterApi::V1beta1);
    let hub = Arc::new(FakeHub::default());
    stage.machine("m1");
    stage.machine("m2");
    hub.says("m1", "failed", Some("disk-full"));
    let led = Led::start(&stage, &hub, Duration::from_secs(3)).await;
    stage.wait_for("m1", "False", "DiskFull");
    assert_eq!(stage.shown("m1", "severity").as_deref(), Some("Error"));
    stage.others_are_untouched("m1");
    a_deadline_ends_the_hold(&stage);

    hub.reports("m2", "failed", None, Some("claimed"));
    stage.wait_for("m2", "Unknown", "FailureClaimed");
    assert_eq!(stage.shown("m2", "severity"), None);
    ready_node_is_shown_as_ready(&stage, &hub);
    hub.says("m2", "failed", None);
    stage.wait_for("m2", "False", "Failed");
    hub.forgets("m2");
    stage.wait("a condition nobody stands behind to go", || {
        stage.shown("m2", "status").is_none().then_some(())
    });
    stage.others_are_untouched("m2");
    // The MachineHealthCheck needs an API of Cluster API 1.12, as documented in the guide.
    let refused = a_health_check_is_taken(&stage).unwrap_err();
    assert!(refused.contains("no matches for kind"), "{refused}");
    led.end().await;
    only_our_condition_and_our_hook_may_be_written(&stage).await;
    a_hook_that_is_denied_holds_back_no_condition(&stage, &hub).await;
    teardown_leaves_nothing(&stage).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_is_installed_from_is_taken_by_an_api_server() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let server = ApiServer::start().unwrap();
    server.kubectl(&["create", "namespace", NAMESPACE]).unwrap();
    // The definition that the nodes' objects need.
    server.apply(&landfall_controller::capi::report::crd()).unwrap();
    server
        .kubectl(&[
            "wait",
            "--for=condition=Established",
            "crd/bootstrapreports.landfall.dev",
            "--timeout=120s",
        ])
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (hold, platform) in [(None, Platform::Openshift), (Some(LONG), Platform::Kubernetes)] {
        let settings = manifests::Settings { hold, ..settings() };
        for (_, object) in manifests::install(&settings, platform, &["--every=5s".to_owned()]) {
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

fn a_failure_is_shown_and_held(stage: &Stage, hub: &FakeHub) {
    stage.wait_for("m1", "False", "DiskFull");
    assert!(stage.has_hook("m1"), "it was in place before anybody could act on the condition");
    stage.wait_for("m2", "Unknown", "InProgress");
    assert!(!stage.has_hook("m2"));
    stage.others_are_untouched("m1");
    let message = stage.shown("m1", "message").unwrap();
    assert!(message.contains("disk-full") && message.contains("https://hub.corp/nodes/m1"), "{message}");
    assert!(!message.contains("hunter2"), "{message}");
    let fields = stage.get("m1")["metadata"]["managedFields"].clone();
    let ours = fields
        .as_array()
        .unwrap()
        .iter()
        .find(|entry| entry["manager"] == MANAGER && entry["operation"] == "Apply");
    let ours = ours.unwrap_or_else(|| panic!("{fields:#}"));
    let owned = ours["fieldsV1"]["f:status"]["f:conditions"].as_object().unwrap();
    assert_eq!(owned.len(), 1, "exactly one condition is ours: {owned:#?}");
    hub.stores_bundle("m1");
    stage.wait("the hold to end with the bundle in the hub", || (!stage.has_hook("m1")).then_some(()));
    let events = stage.kubectl(&["get", "events", "-o", "jsonpath={.items[*].reason}"]);
    for reason in ["EvidenceHeld", "DiskFull", "EvidenceReleased"] {
        assert!(events.contains(reason), "{reason} in {events}");
    }
}

fn a_recovery_is_shown(stage: &Stage, hub: &FakeHub, led: &Led) {
    let failed = stage.shown("m1", "lastTransitionTime").unwrap();
    hub.says("m1", "succeeded", None);
    hub.says("m2", "succeeded", None);
    stage.wait_for("m1", "True", "Succeeded");
    stage.wait_for("m2", "True", "Succeeded");
    assert_ne!(stage.shown("m1", "lastTransitionTime").unwrap(), failed, "the status turned");
    stage.others_are_untouched("m1");
    let line = "landfall_controller_machines_count{status=\"True\"} 2";
    stage.wait("the metrics to count it", || led.counts(line).then_some(()));
    assert!(led.counts("landfall_controller_leader_info 1"));
}

/// A node may write only its own report object, by name, and the Machine shows it.
fn a_node_writes_its_own_report_and_no_other(stage: &Stage) {
    let access = stage.access("default", "landfall-report-m3");
    let patch = |trust: Option<&str>| {
        json!({"status": {"state": "failed", "trust": trust, "cause": "disk-full", "title": "Full",
            "time": "2026-01-02T03:04:05Z"}})
        .to_string()
    };
    let write = |name: &str, patch: &str| {
        stage.attempt(
            &access,
            &["patch", "bootstrapreport", name, "--subresource=status", "--type=merge", "-p", patch],
        )
    };
    write("m3", &patch(None)).unwrap();
    let refused = write("m4", &patch(None)).unwrap_err();
    assert!(refused.contains("Forbidden") || refused.contains("forbidden"), "{refused}");
    // The schema rejects log lines.
    let lines = json!({"status": {"state": "failed", "time": "2026-01-02T03:04:05Z", "title": "one\ntwo"}});
    assert!(write("m3", &lines.to_string()).unwrap_err().contains("title"));
    let spec = r#"{"spec":{"machineName":"m1"}}"#;
    for arguments in [
        &["patch", "bootstrapreport", "m3", "--type=merge", "-p", spec][..],
        &["get", "bootstrapreport", "m4"],
        &["get", "bootstrapreports"],
        &["delete", "bootstrapreport", "m3"],
        &["get", "machine", "m3"],
        &["get", "secrets"],
    ] {
        assert!(stage.attempt(&access, arguments).is_err(), "{arguments:?}");
    }
    assert!(write("m3", &patch(Some("certain"))).unwrap_err().contains("trust"));
    // An older agent does not report the trust.
    stage.wait_for("m3", "Unknown", "FailureClaimed");
    write("m3", &patch(Some("proven"))).unwrap();
    stage.wait_for("m3", "False", "DiskFull");
    let owner = "jsonpath={.metadata.ownerReferences[0].uid} {.metadata.labels}";
    stage.wait("the Machine to own its report", || {
        let found = stage.kubectl(&["get", "bootstrapreport", "m3", "-o", owner]);
        let uid = stage.get("m3")["metadata"]["uid"].as_str()?.to_owned();
        (found.starts_with(&uid) && found.contains("cluster.x-k8s.io/cluster-name")).then_some(())
    });
    let table = stage.kubectl(&["get", "bootstrapreports"]);
    assert!(table.contains("CAUSE") && table.contains("disk-full"), "{table}");
}

/// Applies the rendered MachineHealthCheck to Cluster API's own schema. The schema rejects unknown and
/// misspelled fields.
fn a_health_check_is_taken(stage: &Stage) -> Result<(), String> {
    let file = stage.server.directory().join("check.json");
    std::fs::write(&file, manifests::health_check("default", "c").to_string()).unwrap();
    let file = file.display().to_string();
    let arguments = ["apply", "--server-side", "--validate=strict", "-f", &file];
    stage.server.kubectl(&arguments).map(drop).map_err(|error| format!("{error:#}"))
}

fn proven_failure_is_unhealthy_until_report_changes(stage: &Stage, hub: &FakeHub) {
    stage.machine("proven");
    hub.says("proven", "failed", Some("disk-full"));
    stage.wait_for("proven", "False", "DiskFull");
    let unhealthy = stage.unhealthy_conditions("proven");
    assert_eq!(unhealthy.len(), 1, "{unhealthy:#?}");
    assert_eq!(unhealthy[0]["type"], TYPE);
    let message = stage.shown("proven", "message").unwrap();
    assert!(message.contains("; based on proven evidence). See "), "{message}");
    // The newest report counts, even if it is only a claim.
    hub.reports("proven", "failed", Some("disk-full"), Some("claimed"));
    stage.wait_for("proven", "Unknown", "FailureClaimed");
    assert_eq!(stage.unhealthy_conditions("proven"), Vec::<Value>::new());
}

/// Holds for every claim, and for a hub that does not report the trust.
fn claims_are_not_unhealthy(stage: &Stage, hub: &FakeHub) {
    let mut expected = Vec::new();
    for (number, trust) in [Some("claimed"), None].into_iter().enumerate() {
        for (state, reason) in [
            ("failed", "FailureClaimed"),
            ("hung", "Hung"),
            ("degraded", "DegradedClaimed"),
            ("succeeded", "SuccessClaimed"),
        ] {
            let name = format!("{state}-{number}");
            stage.machine(&name);
            hub.reports(&name, state, Some("disk-full"), trust);
            expected.push((name, reason));
        }
    }
    for (name, reason) in expected {
        stage.wait_for(&name, "Unknown", reason);
        assert_eq!(stage.unhealthy_conditions(&name), Vec::<Value>::new(), "{name}");
        let message = stage.shown(&name, "message").unwrap();
        assert!(message.contains("based on claimed evidence). See "), "{message}");
        stage.others_are_untouched(&name);
    }
    assert!(stage.has_hook("failed-0"), "its evidence is held all the same");
}

/// Tests both orders of report and ready Node, with proven and claimed failures.
fn ready_node_is_never_unhealthy(stage: &Stage, hub: &FakeHub) {
    for trust in ["proven", "claimed"] {
        let (before, after) = (format!("ready-before-{trust}"), format!("ready-after-{trust}"));
        stage.machine(&before);
        stage.node_is_ready(&before);
        stage.machine(&after);
        for name in [&before, &after] {
            hub.reports(name, "failed", Some("disk-full"), Some(trust));
        }
        stage.wait_for(&before, "True", "NodeReady");
        match trust {
            "proven" => stage.wait_for(&after, "False", "DiskFull"),
            _ => stage.wait_for(&after, "Unknown", "FailureClaimed"),
        }
        stage.node_is_ready(&after);
        stage.wait_for(&after, "True", "NodeReady");
        for name in [&before, &after] {
            assert_eq!(stage.unhealthy_conditions(name), Vec::<Value>::new(), "{name}");
            assert!(!stage.has_hook(name), "{name}");
        }
        stage.wait("the Event of the ready Node", || (!stage.events(&before).is_empty()).then_some(()));
        assert_eq!(stage.events(&before), ["NodeReady"], "it never showed anything else");
    }
}

fn ready_node_is_shown_as_ready(stage: &Stage, hub: &FakeHub) {
    stage.machine("ready");
    stage.node_is_ready("ready");
    hub.says("ready", "failed", Some("disk-full"));
    stage.wait_for("ready", "True", "NodeReady");
    stage.wait("the Event of the ready Node", || (!stage.events("ready").is_empty()).then_some(()));
    assert_eq!(stage.events("ready"), ["NodeReady"], "it never showed anything else");
}

/// A Machine that is being deleted is held for the time limit at most, with or without a bundle.
fn a_deadline_ends_the_hold(stage: &Stage) {
    assert!(stage.has_hook("m1"), "nothing ends a hold before the Machine is deleted");
    stage.kubectl(&["delete", "machine", "m1", "--wait=false"]);
    stage.wait("the deadline to end the hold", || (!stage.has_hook("m1")).then_some(()));
    assert_eq!(
        stage.shown("m1", "status").as_deref(),
        Some("False"),
        "and the condition goes with the Machine"
    );
}

/// Without permission to write Machines, the condition is still written.
async fn a_hook_that_is_denied_holds_back_no_condition(stage: &Stage, hub: &Arc<FakeHub>) {
    let rules = stage.kubectl(&["get", "clusterrole", MANAGER, "-o", "jsonpath={.rules}"]);
    let mut rules: Value = serde_json::from_str(&rules).unwrap();
    for rule in
        rules.as_array_mut().unwrap().iter_mut().filter(|rule| rule["resources"] == json!(["machines"]))
    {
        rule["verbs"] = json!(["get", "list"]);
    }
    let patch = json!({"rules": rules}).to_string();
    stage.kubectl(&["patch", "clusterrole", MANAGER, "--type=merge", "-p", &patch]);
    let access = stage.access(NAMESPACE, MANAGER);
    let question = ["auth", "can-i", "patch", "machines.cluster.x-k8s.io"];
    stage.wait("the right to be gone", || stage.attempt(&access, &question).is_err().then_some(()));
    hub.says("m2", "failed", Some("disk-full"));
    let led = Led::start(stage, hub, LONG).await;
    stage.wait_for("m2", "False", "DiskFull");
    assert!(!stage.has_hook("m2"));
    led.end().await;
}

/// RBAC cannot restrict single fields; the admission policy does.
async fn only_our_condition_and_our_hook_may_be_written(stage: &Stage) {
    let cluster = Cluster::from_kubeconfig(&stage.access(NAMESPACE, MANAGER)).await.unwrap();
    let kind = shape(&cluster).await.unwrap().machine();
    let place = Place { namespace: "default", name: "m2" };
    let conditions = |edit: &dyn Fn(&mut Vec<Value>)| {
        let mut conditions = stage.get("m2")["status"]["conditions"].as_array().unwrap().clone();
        edit(&mut conditions);
        json!({"status": {"conditions": conditions}})
    };
    let entry = |kind: &str| {
        json!({"type": kind, "status": "True", "reason": "Lie", "message": "x",
        "lastTransitionTime": "2026-01-02T03:04:05Z"})
    };
    let other = conditions(&|all| all[0]["status"] = json!("False"));
    // The API server enforces a policy a moment after accepting it.
    let end = std::time::Instant::now() + PATIENCE;
    while cluster.merge_placed(&kind, place, "test", Part::Status, &other).await.is_ok() {
        assert!(std::time::Instant::now() < end, "the policy is not in force");
    }
    let (own, beside) = ("conditions of others", "beside its own condition");
    for (patch, words) in [
        (other, own),
        (conditions(&|all| drop(all.remove(0))), own),
        (conditions(&|all| all.push(entry("Ready"))), own),
        (json!({"status": {"conditions": null}}), own),
        (json!({"status": null}), beside),
        (json!({"status": {"phase": "Failed"}}), beside),
        (json!({"status": {"phase": null}}), beside),
        (json!({"status": {"nodeRef": {"name": "x"}}}), beside),
    ] {
        let denied = cluster.merge_placed(&kind, place, "test", Part::Status, &patch).await.unwrap_err();
        assert!(denied.said().is_some_and(|said| said.contains(words)), "{patch}: {denied:?}");
    }
    let (note, rest) = ("no annotation", "labels, finalizers or owners");
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}]);
    for (patch, words) in [
        (json!({"spec": {"clusterName": "other"}}), "the spec"),
        (json!({"metadata": {"annotations": {"theirs": "2"}}}), note),
        (json!({"metadata": {"annotations": {"theirs": null}}}), note),
        (json!({"metadata": {"annotations": null}}), note),
        (json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}}}), note),
        (json!({"metadata": {"labels": {"x": "y"}}}), rest),
        (json!({"metadata": {"finalizers": null}}), rest),
        (json!({"metadata": {"ownerReferences": owner}}), rest),
    ] {
        let denied = cluster.merge_placed(&kind, place, "test", Part::Object, &patch).await.unwrap_err();
        assert!(denied.said().is_some_and(|said| said.contains(words)), "{patch}: {denied:?}");
    }
    // Either the schema or the policy rejects it.
    let nothing = json!({"spec": null});
    assert!(cluster.merge_placed(&kind, place, "test", Part::Object, &nothing).await.is_err());
    stage.others_are_untouched("m2");
    // Permitted writes.
    for value in [json!("x"), Value::Null] {
        let patch = json!({"metadata": {"annotations": {HOOK: value}}});
        cluster.merge_placed(&kind, place, "test", Part::Object, &patch).await.unwrap();
    }
    let with_ours = conditions(&|all| {
        all.retain(|condition| condition["type"] != TYPE);
        all.push(entry(TYPE));
    });
    cluster.merge_placed(&kind, place, "test", Part::Status, &with_ours).await.unwrap();
}

/// Asserts operations that the controller's account must not be able to do.
fn nothing_more_is_allowed(stage: &Stage) {
    let access = stage.access(NAMESPACE, MANAGER);
    for question in [
        &["list", "secrets", "-A"][..],
        &["get", "secrets", "-n", NAMESPACE],
        &["delete", "machines.cluster.x-k8s.io"],
        &["create", "machines.cluster.x-k8s.io"],
        &["update", "machines.cluster.x-k8s.io"],
        &["patch", "clusters.cluster.x-k8s.io"],
        &["patch", "bootstrapreports.landfall.dev", "--subresource=status"],
        &["delete", "bootstrapreports.landfall.dev"],
        &["get", "customresourcedefinitions.apiextensions.k8s.io/clusters.cluster.x-k8s.io"],
        &["create", "serviceaccounts/token", "-n", NAMESPACE],
        &["update", "leases.coordination.k8s.io/another", "-n", NAMESPACE],
        &["create", "pods", "-A"],
    ] {
        let question: Vec<&str> = ["auth", "can-i"].into_iter().chain(question.iter().copied()).collect();
        assert!(stage.attempt(&access, &question).is_err(), "{question:?}");
    }
    let may = ["auth", "can-i", "patch", "machines.cluster.x-k8s.io", "--subresource=status"];
    assert!(stage.attempt(&access, &may).is_ok(), "{may:?}");
}

/// Another Machine of the same name, and a condition that another manager has taken over, are left unchanged.
async fn what_is_not_ours_is_not_fought_over(stage: &Stage) {
    let cluster = Cluster::from_kubeconfig(&stage.access(NAMESPACE, MANAGER)).await.unwrap();
    let shape = shape(&cluster).await.unwrap();
    assert_eq!((shape.version, shape.way), ("v1beta2", Way::Apply));
    let condition = Condition {
        status: Status::False,
        reason: "DiskFull".to_owned(),
        message: "Full".to_owned(),
        since: Timestamp::now(),
    };
    let name = |uid: &str| MachineName {
        namespace: "default".to_owned(),
        name: "m2".to_owned(),
        uid: uid.to_owned(),
    };
    let of_another_life = name("00000000-0000-0000-0000-000000000000");
    for action in [
        Action::Show { machine: of_another_life.clone(), condition: condition.clone(), turn: Turn::Status },
        Action::Hook { machine: of_another_life },
    ] {
        // Server-side apply conflicts with its precondition; a merge patch conflicts with an immutable field.
        let outcome = act(&cluster, shape, &action).await.unwrap();
        assert!(matches!(outcome, Outcome::Gone | Outcome::Conflict), "{action:?}: {outcome:?}");
    }
    assert!(!stage.has_hook("m2"));
    // An administrator takes over the condition.
    let theirs = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": {"name": "m2", "namespace": "default"},
        "status": {"conditions": [{"type": TYPE, "status": "Unknown", "reason": "Theirs", "message": "x",
            "lastTransitionTime": "2026-01-02T03:04:05Z"}]},
    });
    let file = stage.server.directory().join("theirs.json");
    std::fs::write(&file, theirs.to_string()).unwrap();
    let file = file.display().to_string();
    stage.kubectl(&[
        "apply",
        "--server-side",
        "--force-conflicts",
        "--field-manager=somebody",
        "--subresource=status",
        "-f",
        &file,
    ]);
    let uid = stage.get("m2")["metadata"]["uid"].as_str().unwrap().to_owned();
    let action = Action::Show { machine: name(&uid), condition, turn: Turn::Status };
    assert_eq!(act(&cluster, shape, &action).await.unwrap(), Outcome::Conflict);
    assert_eq!(stage.shown("m2", "reason").as_deref(), Some("Theirs"));
}

/// A Machine with a leftover hook could not be deleted, so the teardown removes everything of the controller.
async fn teardown_leaves_nothing(stage: &Stage) {
    let hook = format!("{HOOK}=x");
    stage.kubectl(&["annotate", "machine", "m2", &hook]);
    let admin = Cluster::from_kubeconfig(&stage.server.admin_kubeconfig()).await.unwrap();
    let removed = tear_down(&admin).await.unwrap();
    assert!(removed.hooks > 0 && removed.failed == 0, "{removed:?}");
    let path = "jsonpath={.items[*].metadata.annotations} {.items[*].status.conditions[*].type}";
    let left = stage.kubectl(&["get", "machines", "-o", path]);
    assert!(!left.contains("landfall"), "{left}");
    stage.others_are_untouched("m2");
}
