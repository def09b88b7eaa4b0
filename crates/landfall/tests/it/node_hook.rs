//! The hooks of a reboot operator, with a real kube-apiserver; the operator's part is played as CLUO and FLUO play it.

use landfall_testkit::{ApiServer, Serve, have};
use serde_json::{Value, json};

use crate::command::Run;
use crate::node_prepare::{ENV, IMAGE, Node};

const KEY: &str = "example.com/runtime";
const PLAN: &str = "landfall.dev/node-prepare";

/// A node of a cluster that runs, with another runtime than it should have.
fn joined(server: &ApiServer) -> Node {
    let node = Node::new();
    node.bench.file(ENV, "KUBELET_IMAGE_TAG=v1.9.3_coreos.0\n");
    node.bench.file("root/etc/kubernetes/kubeconfig", std::fs::read(server.admin_kubeconfig()).unwrap());
    runs(&node, "1.12");
    node
}

/// This boot has this docker.
fn runs(node: &Node, version: &str) {
    let profile = json!({"kind": "profile-manifest-v0", "value": {"images": [{"name": "docker", "reference": version}]}});
    node.bench.file("root/run/torcx/profile.json", profile.to_string());
    node.bench.file("root/run/metadata/torcx", "");
}

fn hook(node: &Node, when: &str, more: &[&str]) -> Run {
    let mut flags = vec!["--no-verify-signatures", "--node-name=n1", "--node-annotation", KEY];
    flags.extend(more);
    node.command(&["hook", when], &flags).output().unwrap().into()
}

fn annotation(server: &ApiServer, key: &str) -> Option<String> {
    let node = server.kubectl(&["get", "node", "n1", "-o", "json"]).unwrap();
    let node: Value = serde_json::from_str(&node).unwrap();
    node["metadata"]["annotations"][key].as_str().map(str::to_owned)
}

/// The whole way of one node through an operator's hands: marked, hooked, allowed, booted, looked at.
#[test]
fn an_operator_of_either_kind_gets_its_word_before_and_after_the_reboot() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let server = ApiServer::start().unwrap();
    server.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})).unwrap();
    for prefix in ["container-linux-update.v1.coreos.com", "flatcar-linux-update.v1.flatcar-linux.net"] {
        let node = joined(&server);
        let note = |what: &str, text: &str| {
            server.kubectl(&[what, "node", "n1", text, "--overwrite"]).unwrap();
        };
        let only = ["--only-when-labelled"];
        // Nobody asks yet.
        note("annotate", &format!("{KEY}-"));
        let run = hook(&node, "before-reboot", &only);
        assert_eq!(run.code, 75, "{run:?}");
        assert!(!node.has(IMAGE) && annotation(&server, KEY).is_none());

        note("label", &format!("{prefix}/before-reboot=true"));
        let run = hook(&node, "after-reboot", &only);
        assert_eq!(run.code, 75, "another moment: {run:?}");
        // What fails leaves the word unsaid, and the fleet stops here.
        node.manifest(&"0e".repeat(64));
        let run = hook(&node, "before-reboot", &only);
        assert_eq!(run.code, 1, "{run:?}");
        assert!(run.stderr.contains("its sha512 is") && annotation(&server, KEY).is_none(), "{run:?}");
        node.manifest(&node.hash());
        for _ in 0..2 {
            // The label lingers: the hook comes again, and it is the same.
            let run = hook(&node, "before-reboot", &only);
            assert_eq!(run.code, 0, "{run:?}");
            assert_eq!(annotation(&server, KEY).as_deref(), Some("true"));
        }
        assert!(node.has(IMAGE) && node.text("root/etc/torcx/next-profile").is_some());
        let plan: Value = serde_json::from_str(&annotation(&server, PLAN).unwrap()).unwrap();
        assert_eq!(plan["decision"]["runtimes"][0]["chosen"], "17.03", "{plan}");
        assert_eq!(plan["decision"]["reboot"]["needed"], true);

        // check-before: the operator takes its label and the word away and lets the node go.
        note("label", &format!("{prefix}/before-reboot-"));
        note("annotate", &format!("{KEY}-"));
        note("annotate", &format!("{prefix}/reboot-ok=true"));
        // The machine came back with the old runtime: the after-hook says so, and the next machine is spared.
        note("label", &format!("{prefix}/after-reboot=true"));
        let run = hook(&node, "after-reboot", &only);
        assert_eq!(run.code, 1, "{run:?}");
        assert!(run.stderr.contains("docker 17.03 is unpacked at boot, and this boot has 1.12"), "{run:?}");
        assert!(run.stderr.contains("hint: ") && annotation(&server, KEY).is_none(), "{run:?}");
        // It came back right.
        runs(&node, "17.03");
        let run = hook(&node, "after-reboot", &only);
        assert_eq!(run.code, 0, "{run:?}");
        assert_eq!(annotation(&server, KEY).as_deref(), Some("true"));
        // An image that was damaged meanwhile would not survive the next boot.
        note("annotate", &format!("{KEY}-"));
        node.bench.file(IMAGE, "torn");
        let run = hook(&node, "after-reboot", &only);
        assert_eq!(run.code, 1, "{run:?}");
        assert!(run.stderr.contains("is missing or damaged"), "{run:?}");
        note("label", &format!("{prefix}/after-reboot-"));
    }

    let node = joined(&server);
    // Who may not write on nodes is told what is lacking.
    let nobody = server.kubeconfig_for("nobody", "nobodies").unwrap();
    node.bench.file("root/etc/kubernetes/kubeconfig", std::fs::read(nobody).unwrap());
    let run = hook(&node, "before-reboot", &[]);
    assert_eq!(run.code, 69, "{run:?}");
    assert!(run.stderr.contains("forbidden") && run.stderr.contains("`patch` on nodes"), "{run:?}");
    let run = hook(&node, "before-reboot", &["--only-when-labelled"]);
    assert_eq!(run.code, 69, "{run:?}");

    // The status of a prepared node, and of one that failed, on the node itself.
    let node = Node::new();
    node.bench.file("root/etc/kubernetes/kubeconfig", std::fs::read(server.admin_kubeconfig()).unwrap());
    let run = node.run(&["--torcx-skip-setup", "--force-kube-version=v1.9.3", "--node-name=n1"]);
    assert_eq!(run.code, 77, "{run:?}");
    let told: Value = serde_json::from_str(&annotation(&server, PLAN).unwrap()).unwrap();
    assert_eq!(
        (&told["why"], &told["outcome"]["step"]),
        (&json!("version-skew"), &json!("decide")),
        "{told}"
    );
    assert_eq!(told["inputs"]["clusterVersion"]["value"], "v1.9.3", "{told}");
    let run =
        node.run(&["--torcx-skip-setup", "--force-kube-version=v1.9.3", "--allow-skew", "--start-over"]);
    assert_eq!(run.code, 0, "{run:?}");
    let status = ["node", "status", "--root", "root", "--annotate"];
    let run = node.bench.run(&[&status[..], &["n1"]].concat());
    assert_eq!(run.code, 0, "{run:?}");
    let told: Value = serde_json::from_str(&annotation(&server, PLAN).unwrap()).unwrap();
    assert_eq!(told["decision"]["skew"]["is"], "allowed", "{told}");
    let run = node.bench.run(&[&status[..], &["n2"]].concat());
    assert!(run.code == 75 && run.stderr.contains("has no node `n2`"), "{run:?}");
}

/// kured asks a command whether a reboot is due: it is, once the next boot has what it needs.
#[test]
fn a_required_reboot_waits_until_the_next_boot_has_its_runtime() {
    let node = Node::new();
    node.bench.file(ENV, "KUBELET_IMAGE_TAG=v1.9.3_coreos.0\n");
    let ask = || -> Run {
        node.command(&["hook", "reboot-required"], &["--no-verify-signatures"]).output().unwrap().into()
    };
    let run = ask();
    assert_eq!((run.code, node.has(IMAGE)), (75, false), "no reboot is due: {run:?}");
    node.bench.file("root/run/reboot-required", "");
    node.manifest(&"0e".repeat(64));
    let run = ask();
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("its sha512 is"), "{run:?}");
    node.manifest(&node.hash());
    let run = ask();
    assert_eq!((run.code, node.has(IMAGE)), (0, true), "{run:?}");
}

#[test]
fn prepare_leaves_word_for_whoever_reboots_machines_here() {
    let node = Node::new();
    node.bench.file("root/run/here", "");
    let ask = || -> Run {
        node.command(&["hook", "reboot-required"], &["--no-verify-signatures"]).output().unwrap().into()
    };
    // Somebody else wants a reboot while the node is being prepared and its image is not there: not now.
    node.bucket.serve("/docker.tgz", Serve::Status(404));
    assert_eq!(node.run(&["--no-verify-signatures", "--reboot=required"]).code, 69);
    node.bench.file("root/run/reboot-required", "");
    let run = ask();
    assert_eq!(run.code, 75, "{run:?}");
    assert!(run.stderr.contains("is not laid down yet"), "{run:?}");
    node.bucket.file("/docker.tgz", node.image.clone());
    let run = node.run(&["--no-verify-signatures", "--reboot=required"]);
    assert_eq!(run.code, 100, "{run:?}");
    assert!(node.has("root/run/reboot-required"), "{run:?}");
    assert!(!node.has(ENV));
    // kured asks before the file is there that comes only after the reboot: what the next boot needs is laid down.
    let run = ask();
    assert_eq!(run.code, 0, "{run:?}");
    node.bench.file(IMAGE, "torn");
    let run = ask();
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("is missing or damaged"), "{run:?}");
}

/// A node that was never prepared, and of which somebody wants a reboot: what its installer says counts.
#[test]
fn a_reboot_before_a_node_is_prepared_has_what_its_installer_wants() {
    let node = Node::new();
    node.bench.file("root/run/reboot-required", "");
    let run: Run =
        node.command(&["hook", "reboot-required"], &["--no-verify-signatures"]).output().unwrap().into();
    assert_eq!((run.code, node.has(IMAGE)), (0, true), "{run:?}");
    node.bucket.serve("/docker.tgz", Serve::Status(404));
    std::fs::remove_file(node.bench.path().join(IMAGE)).unwrap();
    let run: Run =
        node.command(&["hook", "reboot-required"], &["--no-verify-signatures"]).output().unwrap().into();
    assert_eq!(run.code, 69, "{run:?}");
}
