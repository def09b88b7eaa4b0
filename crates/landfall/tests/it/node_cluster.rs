//! `landfall node` with a real kube-apiserver: what the cluster says counts before what the node has.

use landfall_testkit::{ApiServer, have};
use serde_json::json;

use crate::command::Bench;

#[test]
fn the_cluster_decides_and_the_skew_policy_refuses() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let server = ApiServer::start().unwrap();
    let version = server.kubectl(&["version", "-o", "json"]).unwrap();
    let version: serde_json::Value = serde_json::from_str(&version).unwrap();
    let version = version["serverVersion"]["gitVersion"].as_str().unwrap().to_owned();
    let minor: u32 = version.split('.').nth(1).unwrap().parse().unwrap();

    let bench = Bench::new();
    bench.file("root/usr/lib/os-release", "ID=coreos\nVERSION_ID=2000.0.0\nCOREOS_BOARD=amd64-usr\n");
    bench
        .file("root/etc/kubernetes/installer/kubelet.env", "KUBELET_IMAGE_URL=h\nKUBELET_IMAGE_TAG=v1.2.3\n");
    // The kubeconfig names its certificates by paths of this machine.
    bench.file("root/etc/kubernetes/kubeconfig", std::fs::read(server.admin_kubeconfig()).unwrap());
    let run = |more: &[&str]| {
        let mut arguments = vec!["node", "prepare", "--root", "root", "--upgrade-os=false"];
        arguments.extend(more);
        bench.run(&arguments)
    };
    let plan = run(&["--dry-run", "--output=json", "--torcx-skip-setup"]).report();
    assert_eq!(plan["inputs"]["clusterVersion"]["value"], version);
    assert_eq!(plan["inputs"]["clusterVersion"]["origin"]["kind"], "api-server");
    assert_eq!(plan["skew"]["is"], "within");

    // Newer than the server, and more than three behind: refused, and no file lets the kubelet start.
    for wrong in [format!("v1.{}.0", minor + 1), format!("v1.{}.0", minor - 4)] {
        let refused = run(&["--torcx-skip-setup", "--start-over", &format!("--force-kube-version={wrong}")]);
        assert_eq!(refused.code, 77, "{refused:?}");
        assert!(!bench.path().join("root/etc/kubernetes/kubelet.env").exists());
    }
    let newer = format!("--force-kube-version=v1.{}.0", minor + 1);
    let told = run(&["--dry-run", "--torcx-skip-setup", "--allow-skew", &newer]);
    assert!(told.stdout.contains("OUTSIDE THE VERSION-SKEW POLICY"), "{told:?}");

    // The ConfigMap counts before the file; one that cannot be read is an error.
    server.kubectl(&["create", "namespace", "tectonic-system"]).unwrap();
    let map = |text: &str| {
        let name = "tectonic-torcx-runtime-mappings";
        let metadata = json!({"name": name, "namespace": "tectonic-system"});
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"runtime-mappings.yaml": text}});
        server.apply(&map).unwrap();
    };
    map("kind: Other\n");
    let refused = run(&["--dry-run", "--no-verify-signatures"]);
    refused.assert_refused(1, "cannot use the runtime mappings from ConfigMap");

    // The hook's annotation.
    server.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})).unwrap();
    bench.file("root/etc/kubernetes/kubelet.env", format!("KUBELET_IMAGE_TAG={version}\n"));
    let key = "container-linux-update.v1.coreos.com/torcx";
    let hook =
        ["node", "hook", "before-reboot", "--root", "root", "--torcx-skip-setup", "--upgrade-os=false"];
    let mut arguments = hook.to_vec();
    arguments.extend(["--node-name=n1", "--node-annotation", key]);
    let run = bench.run(&arguments);
    assert_eq!(run.code, 0, "{run:?}");
    let annotations =
        server.kubectl(&["get", "node", "n1", "-o", "jsonpath={.metadata.annotations}"]).unwrap();
    assert!(annotations.contains(&format!("\"{key}\":\"true\"")), "{annotations}");
}
