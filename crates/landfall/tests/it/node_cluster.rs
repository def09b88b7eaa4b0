//! `landfall node` with a real kube-apiserver: values of the cluster override those of the node.

use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use landfall_testkit::{ApiServer, Need, Process, free_port, have};
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

    // Newer than the server, and more than three versions older: refused, and no file lets the kubelet start.
    for wrong in [format!("v1.{}.0", minor + 1), format!("v1.{}.0", minor - 4)] {
        let refused = run(&["--torcx-skip-setup", "--start-over", &format!("--force-kube-version={wrong}")]);
        assert_eq!(refused.code, 77, "{refused:?}");
        assert!(!bench.path().join("root/etc/kubernetes/kubelet.env").exists());
    }
    let newer = format!("--force-kube-version=v1.{}.0", minor + 1);
    let told = run(&["--dry-run", "--torcx-skip-setup", "--allow-skew", &newer]);
    assert!(told.stdout.contains("OUTSIDE THE VERSION-SKEW POLICY"), "{told:?}");

    // The ConfigMap overrides the file; an unreadable one is an error.
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

/// During an upgrade of the control plane, two servers of different versions are behind one load balancer.
#[test]
fn of_two_servers_behind_one_endpoint_the_older_one_decides() {
    if !have(ApiServer::NEEDS) || !have(&[Need::Program("haproxy")]) {
        return;
    }
    let server = ApiServer::start().unwrap();
    let version = server.kubectl(&["version", "-o", "json"]).unwrap();
    let version: serde_json::Value = serde_json::from_str(&version).unwrap();
    let newer = version["serverVersion"]["gitVersion"].as_str().unwrap().to_owned();
    let mut parts: Vec<String> = newer.split('.').map(str::to_owned).collect();
    parts[1] = (parts[1].parse::<u32>().unwrap() - 1).to_string();
    let older = parts.join(".");
    let sibling = server.sibling_with_version(&older, &newer).unwrap();

    let bench = Bench::new();
    let port = free_port().unwrap();
    let config = bench.file(
        "haproxy.cfg",
        format!(
            "defaults\n mode tcp\n timeout connect 60s\n timeout client 600s\n timeout server 600s\n\
             listen api\n bind 127.0.0.1:{port}\n balance roundrobin\n server new 127.0.0.1:{}\n server old 127.0.0.1:{}\n",
            server.port(),
            sibling.port()
        ),
    );
    let mut balancer = Process::start("haproxy", Path::new("/usr/sbin/haproxy"), bench.path(), |command| {
        command.arg("-db").arg("-f").arg(&config);
    })
    .unwrap();
    balancer
        .wait_until("the balancer to listen", Duration::from_secs(120), || {
            TcpStream::connect(("127.0.0.1", port)).ok().map(drop)
        })
        .unwrap();
    let kubeconfig = std::fs::read_to_string(server.admin_kubeconfig()).unwrap();
    let kubeconfig = kubeconfig.replace(&server.url(), &format!("https://127.0.0.1:{port}"));
    bench.file("root/etc/kubernetes/kubeconfig", kubeconfig);
    bench.file("root/usr/lib/os-release", "ID=coreos\nVERSION_ID=2000.0.0\nCOREOS_BOARD=amd64-usr\n");
    let run = |more: &[&str]| {
        let mut arguments =
            vec!["node", "prepare", "--root", "root", "--upgrade-os=false", "--torcx-skip-setup"];
        arguments.extend(more);
        bench.run(&arguments)
    };
    let plan = run(&["--dry-run", "--output=json"]).report();
    assert_eq!(plan["inputs"]["clusterVersion"]["value"], older, "{plan}");
    let said: Vec<&str> = plan["inputs"]["apiServers"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|server| server["version"].as_str())
        .collect();
    assert!(said.contains(&newer.as_str()) && said.contains(&older.as_str()), "{said:?}");
    // A version for the newer server is too new for the other.
    let refused = run(&[&format!("--force-kube-version={newer}")]);
    assert_eq!(refused.code, 77, "{refused:?}");
    assert!(refused.stderr.contains(&format!("is newer than API server {older}")), "{refused:?}");
    assert!(!bench.path().join("root/etc/kubernetes/kubelet.env").exists());
    // A version for the older server fits both.
    let prepared = run(&[]);
    assert_eq!(prepared.code, 0, "{prepared:?}");
}
