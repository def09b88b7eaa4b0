//! Hub, controller and status as a user runs them, on a management cluster.

use std::path::Path;
use std::time::Duration;

use landfall_testkit::{ApiServer, ClusterApi, Process, eventually, free_port, have};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::command::Bench;
use crate::hub::{ask, start, unsigned};

const PATIENCE: Duration = Duration::from_secs(180);
const CONDITION: &str = "bootstrap.landfall.dev/Succeeded";

#[test]
fn a_report_to_the_hub_becomes_a_condition_and_the_board_shows_it() {
    if !have(&[ApiServer::NEEDS, ClusterApi::NEEDS].concat()) {
        return;
    }
    let bench = Bench::new();
    let server = ApiServer::start().unwrap();
    ClusterApi::V1beta2.install(&server).unwrap();
    let port = free_port().unwrap();
    let address = format!("http://127.0.0.1:{port}");
    let render =
        ["render", "controller", "--for", "capi", "--image", "registry.corp/landfall:1", "-o", "capi"];
    let run = bench.run(&[&render[..], &["--hold-evidence", "1h", "--hub", &address]].concat());
    assert_eq!(run.code, 0, "{run:?}");
    let manifests = bench.path().join("capi/manifests").display().to_string();
    eventually("the manifests to be taken", PATIENCE, || server.kubectl(&["apply", "-f", &manifests]).ok())
        .unwrap();
    let infrastructure =
        json!({"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "TestMachine", "name": "edge-1"});
    let machine = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {"name": "edge-1", "namespace": "default"}, "spec": {"clusterName": "edge",
            "bootstrap": {"dataSecretName": "edge-1"}, "infrastructureRef": infrastructure}});
    eventually("Machines to be taken", PATIENCE, || server.apply(&machine).ok()).unwrap();
    let kubeconfig = server.admin_kubeconfig().display().to_string();

    let _hub = start(&bench, port);
    let report = json!({
        "id": "01a1e1d7-cfdd-7000-8000-000000000001", "node": {"hostname": "edge-1", "bootId": "b"},
        "sequence": 1, "time": "2026-01-02T03:04:05Z",
        "report": {"format": 1, "findings": [], "timeline": [], "sources": [], "verdict": {
            "state": "failed", "cause": "disk-full", "title": "Full", "component": "kubelet", "phase": "join",
            "confidence": 0.9, "trust": "claimed"}},
    });
    assert_eq!(ask(port, "POST", "/api/v1/reports", &unsigned(&report)).unwrap().0, 200);

    // With the permissions of its pod, and no others.
    let own = access(&bench, &server);
    let listen = format!("127.0.0.1:{}", free_port().unwrap());
    let mut controller =
        Process::start("controller", Path::new(env!("CARGO_BIN_EXE_landfall")), bench.path(), |command| {
            command.args(["controller", "--capi", "--every=1s", "--listen", &listen]);
            command.args(["--kubeconfig", &own, "--hub", &address]);
            command.args(["--hold-evidence=1h"]);
        })
        .unwrap();
    let reason = format!("jsonpath={{.status.conditions[?(@.type==\"{CONDITION}\")].reason}}");
    let shown = || server.kubectl(&["get", "machine", "edge-1", "-o", &reason]).unwrap();
    eventually("the claim", PATIENCE, || (shown() == "FailureClaimed").then_some(())).unwrap();
    let mut proven = report;
    proven["id"] = json!("01a1e1d7-cfdd-7000-8000-000000000002");
    proven["sequence"] = json!(2);
    proven["report"]["verdict"]["trust"] = json!("proven");
    assert_eq!(ask(port, "POST", "/api/v1/reports", &unsigned(&proven)).unwrap().0, 200);
    eventually("the condition", PATIENCE, || (shown() == "DiskFull").then_some(())).unwrap();

    let run = bench.run(&["status", "--cluster", "--kubeconfig", &kubeconfig, "--output", "json"]);
    assert_eq!(run.code, 2, "{run:?}");
    let board: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(
        (&board["total"], &board["groups"][0]["cause"]),
        (&json!(1), &json!("disk-full")),
        "{board:#}"
    );
    let run = bench.run(&["status", "--cluster", "--kubeconfig", &kubeconfig]);
    assert!(run.stdout.starts_with("1 node: 1 failed\n"), "{run:?}");
    let row =
        run.stdout.lines().find(|line| line.contains("default/edge-1")).unwrap_or_else(|| panic!("{run:?}"));
    assert!(row.contains("join") && row.ends_with("A filesystem that bootstrap needs is full"), "{row}");
    // In watch mode, one object after the other.
    let mut watched =
        bench.command(&["status", "--cluster", "--kubeconfig", &kubeconfig, "--watch", "--every", "1"]);
    let mut watched = watched.spawn().unwrap();
    let told = std::io::BufReader::new(watched.stdout.take().unwrap());
    let rows =
        std::io::BufRead::lines(told).map_while(Result::ok).filter(|line| line.contains("default/edge-1"));
    assert_eq!(rows.take(2).count(), 2);
    watched.kill().unwrap();
    watched.wait().unwrap();

    controller.signal(Signal::TERM).unwrap();
    assert_eq!(controller.wait(PATIENCE).unwrap(), Some(0));
    let run = bench.run(&["controller", "--capi", "--teardown", "--kubeconfig", &kubeconfig]);
    assert_eq!((run.code, run.stdout.as_str()), (0, "Removed: hooks 1, conditions 1\n"), "{run:?}");
    assert_eq!(shown(), "");
    let run = bench.run(&["status", "--cluster", "--kubeconfig", &kubeconfig]);
    assert_eq!((run.code, run.stdout.as_str()), (0, "No node has reported yet\n"), "{run:?}");
}

#[test]
fn a_cluster_without_machines_is_told_in_one_line() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let (bench, server) = (Bench::new(), ApiServer::start().unwrap());
    let kubeconfig = server.admin_kubeconfig().display().to_string();
    for words in [&["status", "--cluster"][..], &["controller", "--capi", "--teardown"]] {
        let words = [words, &["--kubeconfig", &kubeconfig]].concat();
        bench.run(&words).assert_refused(1, "is it a management cluster of Cluster API?");
    }
}

#[test]
fn flags_of_the_other_work_are_refused() {
    let bench = Bench::new();
    let render = ["render", "controller", "--image", "registry.example/landfall:1"];
    for (words, error) in [
        (&["--for", "capi", "--approve-certificates"][..], "for in-place bootstraps"),
        (&["--hub", "https://hub"], "for Cluster API"),
    ] {
        bench.run(&[&render[..], words].concat()).assert_refused(64, error);
    }
    let run = bench.run(&[&render[..], &["--for", "capi", "--write-back", "Team/m1"]].concat());
    assert!(run.code == 64 && run.stderr.contains("a namespace and a name"), "{run:?}");
    let words = ["--for", "capi", "--hub", "https://hub.corp", "--health-check", "team-a/edge", "--dry-run"];
    let run = bench.run(&[&render[..], &words].concat());
    assert!(run.code == 0 && run.stdout.contains("unhealthyMachineConditions"), "{run:?}");
}

/// Deleting one of them must not delete the other.
#[test]
fn the_two_controllers_have_namespaces_of_their_own() {
    let bench = Bench::new();
    let render = ["render", "controller", "--image", "registry.example/landfall:1", "--dry-run"];
    for (words, namespace) in [
        (&["--for", "capi"][..], "landfall-capi"),
        (&["--for", "openshift", "--work", "capi"], "landfall-capi"),
        (&["--for", "openshift"], "landfall"),
        (&["--for", "capi", "--namespace", "own"], "own"),
    ] {
        let run = bench.run(&[&render[..], words].concat());
        assert!(run.code == 0 && run.stdout.contains(&format!("--namespace={namespace}\n")), "{run:?}");
    }
}

/// Returns a kubeconfig for the rendered account.
fn access(bench: &Bench, server: &ApiServer) -> String {
    let token = server.kubectl(&["create", "token", "-n", "landfall-capi", "landfall-capi"]).unwrap();
    let authority = server.directory().join("ca.crt").display().to_string();
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server.url(), "certificate-authority": authority}}],
        "users": [{"name": "u", "user": {"token": token.trim()}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    bench.file("controller.kubeconfig", config.to_string()).display().to_string()
}

/// The manifests as a user installs them, the permission as a node has it, and the agent as it runs there.
#[test]
fn an_agent_writes_its_verdict_into_the_object_made_for_it() {
    if !have(&[ApiServer::NEEDS, ClusterApi::NEEDS].concat()) {
        return;
    }
    let bench = Bench::new();
    let server = ApiServer::start().unwrap();
    let render =
        ["render", "controller", "--for", "capi", "--image", "registry.corp/landfall:1", "-o", "capi"];
    let run = bench
        .run(&[&render[..], &["--write-back", "default/edge-1", "--health-check", "default/edge"]].concat());
    assert_eq!(run.code, 0, "{run:?}");
    let manifests = bench.path().join("capi/manifests").display().to_string();
    ClusterApi::V1beta2.install(&server).unwrap();
    let apply = ["apply", "--validate=strict", "-f", &manifests];
    eventually("the manifests to be taken", PATIENCE, || server.kubectl(&apply).ok()).unwrap();
    let token = server.kubectl(&["create", "token", "-n", "default", "landfall-report-edge-1"]).unwrap();
    bench.file("token", token.trim());
    bench.file("ca.crt", server.authority().certificate());
    bench.file("machine/etc/hostname", "edge-1\n");
    bench.file(
        "machine/var/log/cloud-init-output.log",
        "[preflight] Running pre-flight checks\n\
         error: error execution phase preflight: couldn't validate the identity of the API Server: Get \
         \"https://api.c1.example:6443/\": dial tcp: lookup api.c1.example on 10.0.0.2:53: no such host\n",
    );
    let _agent =
        Process::start("agent", Path::new(env!("CARGO_BIN_EXE_landfall")), bench.path(), |command| {
            command.current_dir(bench.path()).args(["agent", "--root", "machine", "--state", "state"]);
            command.args([
                "--bootstrap-report",
                "default/edge-1",
                "--bootstrap-report-server",
                &server.url(),
            ]);
            command.args(["--bootstrap-report-ca", "ca.crt", "--bootstrap-report-token", "token"]);
        })
        .unwrap();
    let get = ["get", "bootstrapreport", "edge-1", "-n", "default", "-o", "json"];
    let status = eventually("the verdict", PATIENCE, || {
        let object: Value = serde_json::from_str(&server.kubectl(&get).ok()?).ok()?;
        (object["status"]["cause"] == "dns-resolution-failure").then(|| object["status"].clone())
    });
    let status = status.unwrap();
    assert_eq!(status["state"], "failed", "{status}");
    assert!(status["title"].as_str().is_some_and(|title| !title.is_empty()), "{status}");
}
