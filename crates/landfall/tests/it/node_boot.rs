//! A real system that boots: `landfall node prepare` runs in its unit and requests the reboot from systemd.
//!
//! The kubelet starts with the installed runtime, and not before.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use landfall_testkit::{FileServer, HOST_ADDRESS, Node, NodeSpec, eventually, have};
use serde_json::json;

const UNIT: &str = include_str!("../../../../dist/systemd/k8s-node-bootstrap.service");
/// Enough for two boots on a loaded machine.
const LIMIT: Duration = Duration::from_secs(300);

/// The relevant effect of torcx at boot: it unpacks the images of the selected profile.
const TORCX: &str = "\
[Unit]
DefaultDependencies=no
After=local-fs.target
Before=sysinit.target
[Service]
Type=oneshot
RemainAfterExit=true
ExecStart=/bin/sh -euc 'test -e /etc/torcx/next-profile || exit 0; name=$(cat /etc/torcx/next-profile); \
mkdir -p /run/torcx/unpack; cp /etc/torcx/profiles/$name.json /run/torcx/profile.json; \
tar xzf /var/lib/torcx/store/2000.0.0/docker:17.03.torcx.tgz -C /run/torcx/unpack; \
mkdir -p /run/metadata; echo TORCX_UPPER_PROFILE=$name > /run/metadata/torcx'
";

/// Not under the kubelet's own name, because the image of the test bed has settings for that.
const KUBELET: &str = "\
[Unit]
Requires=k8s-node-bootstrap.service
After=k8s-node-bootstrap.service
[Service]
Type=oneshot
RemainAfterExit=true
EnvironmentFile=/etc/kubernetes/kubelet.env
ExecStart=/bin/sh -euc 'echo kubelet $KUBELET_IMAGE_TAG with $(/run/torcx/unpack/bin/docker) >> /var/lib/started'
";

#[test]
fn defect_09_a_node_is_prepared_reboots_and_its_kubelet_starts_with_the_right_runtime() {
    if !have(Node::NEEDS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let docker = folder.path().join("bin/docker");
    std::fs::create_dir(folder.path().join("bin")).unwrap();
    std::fs::write(&docker, "#!/bin/sh\necho docker 17.03\n").unwrap();
    let script = "chmod +x bin/docker && tar czf image.tgz bin && sha512sum image.tgz";
    let output = Command::new("sh").args(["-euc", script]).current_dir(folder.path()).output().unwrap();
    let hash = String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned();
    let image = std::fs::read(folder.path().join("image.tgz")).unwrap();

    let mut spec = NodeSpec::new("prepared");
    let file = |path: &str, content: &str| (path.into(), content.as_bytes().to_vec());
    spec.files.push(file("/usr/lib/os-release", "ID=coreos\nVERSION_ID=2000.0.0\nCOREOS_BOARD=amd64-usr\n"));
    let env = "KUBELET_IMAGE_URL=\"quay.io/coreos/hyperkube\"\nKUBELET_IMAGE_TAG=\"v1.9.3_coreos.0\"\n";
    spec.files.push(file("/etc/kubernetes/installer/kubelet.env", env));
    spec.files.push(file("/etc/systemd/system/k8s-node-bootstrap.service", UNIT));
    let executable = "[Service]\nExecStartPre=/bin/chmod +x /usr/local/bin/landfall\n";
    spec.files.push(file("/etc/systemd/system/k8s-node-bootstrap.service.d/test.conf", executable));
    spec.files.push(file("/etc/systemd/system/torcx.service", TORCX));
    spec.files.push(file("/etc/systemd/system/stub-kubelet.service", KUBELET));
    let wants = "[Unit]\nWants=torcx.service k8s-node-bootstrap.service stub-kubelet.service\n";
    spec.files.push(file("/etc/systemd/system/multi-user.target.d/test.conf", wants));
    spec.files
        .push(("/usr/local/bin/landfall".into(), std::fs::read(env!("CARGO_BIN_EXE_landfall")).unwrap()));

    // The address exists once the node runs, but its certificate and port are needed before. So it listens on all
    // addresses.
    let bucket =
        FileServer::start_at(SocketAddr::from(([0, 0, 0, 0], 0)), &[&HOST_ADDRESS.to_string()]).unwrap();
    let at = format!("https://{HOST_ADDRESS}:{}", bucket.address().port());
    bucket.file("/image", image);
    let manifest = json!({"kind": "torcx-package-list-v0", "value": {"packages": [{"name": "docker", "versions": [
        {"version": "17.03", "hash": format!("sha512-{hash}"), "locations": [{"url": format!("{at}/image")}]},
    ]}]}});
    bucket.file("/amd64-usr/2000.0.0/m.json", manifest.to_string());
    spec.files.push(file("/etc/ca.crt", bucket.authority()));
    let flags = format!(
        "LANDFALL_NODE_PREPARE_FLAGS=\"--upgrade-os=false --no-verify-signatures --ca-file=/etc/ca.crt --torcx-manifest-url={at}/{{{{.Board}}}}/{{{{.OSVersion}}}}/m.json\"\n"
    );
    spec.files.push(file("/etc/landfall/environment", &flags));

    let mut node = Node::boot(&spec).unwrap();
    let started = node.root().join("var/lib/started");
    eventually("the kubelet to start", LIMIT, || {
        std::fs::read_to_string(&started).ok().filter(|text| !text.is_empty())
    })
    .unwrap();
    node.wait_for_boot().unwrap();
    let text = std::fs::read_to_string(&started).unwrap();
    assert_eq!(text, "kubelet v1.9.3_coreos.0 with docker 17.03\n", "once, with the right runtime");
    let boots = node.journal(&["--list-boots"]).unwrap();
    assert_eq!(boots.lines().count(), 2, "one reboot:\n{boots}");
    // The ninth defect of the original: it ran inside the docker that it replaced, so its end by the reboot looked
    // like a failure.
    let first = node.journal(&["--boot=-1", "--unit=k8s-node-bootstrap.service", "--output=cat"]).unwrap();
    assert!(first.contains("Rebooting.") && !first.contains("Failed with result"), "{first}");
    let images = bucket.asked().iter().filter(|line| line.as_str() == "GET /image").count();
    assert_eq!(images, 1, "{:?}", bucket.asked());

    // A third boot changes nothing.
    node.reboot().unwrap();
    let status = node.output(&["landfall", "node", "status", "--output", "json"]).unwrap();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["ended"]["is"], "done");
    let asked = bucket.asked().len();
    node.output(&["landfall", "node", "prepare", "--upgrade-os=false"]).unwrap();
    assert_eq!(bucket.asked().len(), asked, "a prepared node was prepared again");
}
