//! The complete in-place bootstrap of one node, without simulated components.
//!
//! There are a real API server and controller manager, and a system that joined with `kubeadm join`. `landfall
//! controller` runs as a process with the account that its manifests create. The node's own kubelet and containerd
//! run the pod that it creates. The node reboots twice and gets a new configuration with a new identity.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use landfall_testkit::{
    ApiServer, ControllerManager, FileServer, HOST_ADDRESS, Invitation, Need, Node, POD_IMAGE, Process,
    Registry, Serve, eventually, have,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::command::Bench;
use crate::node_in_place::{DAEMON, TOKEN, assert_clean, ignition_of};

const NODE: &str = "way";
const IMAGE: &str = "testbed.invalid/landfall:1";
const NAMESPACE: &str = "landfall";
/// Enough for two reboots, a drain and a registration on a loaded machine.
const LIMIT: Duration = Duration::from_mins(10);
/// The kubelet of the new configuration: OpenShift's paths in place of those of kubeadm.
const NEW_KUBELET: &str = "[Service]\nExecStart=\n\
ExecStart=/usr/bin/kubelet --bootstrap-kubeconfig=/etc/kubernetes/kubeconfig --kubeconfig=/var/lib/kubelet/kubeconfig \
--config=/var/lib/kubelet/config.yaml --node-labels=life=new\n";

struct Site {
    // Fields drop in this order: the node before its cluster.
    node: Node,
    controller: Option<Process>,
    api: ApiServer,
    _controllers: ControllerManager,
    invitation: Invitation,
    registry: Registry,
    server: FileServer,
    bench: Bench,
}

#[test]
fn a_node_goes_the_whole_way_led_by_the_controller() {
    let needs = [
        Node::NEEDS,
        ApiServer::NEEDS,
        ControllerManager::NEEDS,
        Invitation::NEEDS,
        Registry::NEEDS,
        &[Need::Program("ldd"), Need::Program("strip")],
    ];
    if !have(&needs.concat()) {
        return;
    }
    let mut site = Site::set();
    site.offer_new_life();
    site.install_controller();
    site.import_image();
    let first = site.node.boot_id().unwrap();
    let uid = site.get("node", NODE, "{.metadata.uid}");
    site.kubectl(&["label", "node", NODE, "zone=a"]);
    site.kubectl(&["taint", "node", NODE, "gpu=yes:NoSchedule"]);
    site.guest();
    // From here on, only the controller approves the certificate of the new identity.
    site.kubectl(&["delete", "clusterrolebinding", "kubeadm:node-autoapprove-bootstrap"]);

    site.kubectl(&["label", "node", NODE, "landfall.dev/in-place=requested"]);
    site.wait("the pod's command to run on the node", |site| {
        let told = site.get("nodebootstrap", NODE, "{.status.attempt}");
        (!told.is_empty()).then_some(())
    });
    // The machine is down, or up again with the kubelet waiting at the gate. Its Node object is deleted, as some
    // automation does.
    site.wait("the node to go down", |site| site.node.boot_id().ok().filter(|boot| *boot != first).map(drop));
    site.wait("the controller to know how far it was", |site| {
        let state = site.get("nodebootstrap", NODE, "{.status.state}");
        ["Staged", "Armed", "Applying", "Rebooting", "Verifying"].contains(&state.as_str()).then_some(())
    });
    let table = site.kubectl(&["get", "nodebootstraps"]);
    let columns: Vec<&str> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(columns, ["NAME", "PHASE", "STATE", "REASON", "SINCE"], "{table}");
    assert!(table.contains("Running"), "{table}");
    let wide = site.kubectl(&["get", "nbs", "-o", "wide"]);
    assert!(wide.contains("MESSAGE") && wide.contains("the node says it is"), "{wide}");
    site.kubectl(&["delete", "node", NODE]);
    site.wait("the controller to see it done", |site| {
        (site.get("nodebootstrap", NODE, "{.status.phase}") == "Done").then_some(())
    });
    site.assert_new_life(&first, &uid);
}

// === impl Site ===

impl Site {
    /// Creates a cluster with one node that has joined.
    fn set() -> Self {
        let mut spec = Invitation::api_server();
        spec.arguments.push("--allow-privileged=true".to_owned());
        let api = ApiServer::start_with(&spec).unwrap();
        let controllers = ControllerManager::start(&api).unwrap();
        let invitation = Invitation::create(&api).unwrap();
        let registry = Registry::start(HOST_ADDRESS).unwrap();
        let at = SocketAddr::from(([0, 0, 0, 0], 0));
        let server = FileServer::start_at(at, &[&HOST_ADDRESS.to_string()]).unwrap();

        let mut spec = invitation.node(NODE);
        let file = |path: &str, content: &str| (path.into(), content.as_bytes().to_vec());
        spec.files.push(file("/etc/redhat-release", "Red Hat Enterprise Linux CoreOS release 4.14\n"));
        spec.files.push(file("/etc/tmpfiles.d/ostree.conf", "f /run/ostree-booted 0644 root root -\n"));
        spec.files
            .push(file(&format!("/etc/containers/certs.d/{}/ca.crt", registry.host()), registry.authority()));
        // Replaces kube-proxy for pods: the cluster's address of the API server.
        let proxy = format!(
            "[Service]\nExecStartPre=-/sbin/ip address add 10.96.0.1/32 dev lo\n\
             ExecStart=/usr/bin/socat TCP-LISTEN:443,bind=10.96.0.1,fork,reuseaddr TCP:{HOST_ADDRESS}:{}\nRestart=always\n",
            api.port()
        );
        spec.files.push(file("/etc/systemd/system/service-address.service", &proxy));
        let wanted = "[Unit]\nWants=service-address.service\n";
        spec.files.push(file("/etc/systemd/system/multi-user.target.d/service-address.conf", wanted));
        let mut node = Node::boot(&spec).unwrap();
        assert_eq!(node.wait_for_cloud_init().unwrap(), [""; 0], "`kubeadm join` failed");
        eventually("the node to be ready", LIMIT, || node.is_ready(&api).unwrap().then_some(())).unwrap();
        let (bench, controller) = (Bench::new(), None);
        Self { node, controller, api, _controllers: controllers, invitation, registry, server, bench }
    }

    /// Writes the Ignition document of the new configuration, and the template of the Secrets that refer to it.
    fn offer_new_life(&self) {
        let layer = crate::node_in_place::archive(&[("usr/bin/machine-config-daemon", DAEMON)]);
        let digest = self.registry.push("ocp", &layer).unwrap();
        let settings = self.node.read("/var/lib/kubelet/config.yaml").unwrap();
        let network = self.node.read("/etc/cni/net.d/10-pods.conflist").unwrap();
        let authority = std::fs::read(self.api.directory().join("ca.crt")).unwrap();
        let access = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {
                "server": format!("https://{}", self.invitation.endpoint),
                "certificate-authority-data": BASE64.encode(authority),
            }}],
            "users": [{"name": "u", "user": {"token": self.invitation.token.text()}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        let files = [
            ("/var/lib/kubelet/config.yaml", settings.as_str()),
            ("/etc/cni/net.d/10-pods.conflist", &network),
            ("/etc/systemd/system/kubelet.service.d/10-kubeadm.conf", NEW_KUBELET),
        ];
        let bytes =
            ignition_of(&self.registry, &digest, Registry::PASSWORD, false, &access.to_string(), &files);
        let path = format!("/ignition/{NODE}");
        self.server.serve(&path, Serve::Guarded { header: "authorization", value: TOKEN.into(), bytes });
        let at = format!("https://{HOST_ADDRESS}:{}/ignition/{{node}}", self.server.address().port());
        let template =
            json!({"ignition_url": at, "ignition_token": TOKEN, "ca_cert": self.server.authority()});
        self.kubectl(&["create", "namespace", NAMESPACE]);
        let literal = format!("--from-literal=bootstrap={template}");
        self.kubectl(&["create", "secret", "generic", "template", "-n", NAMESPACE, &literal]);
    }

    /// Installs the controller like a user: rendered, applied, and run with its own account.
    fn install_controller(&mut self) {
        let image = format!("--image={IMAGE}");
        let rendered = self.bench.run(&[
            "render",
            "controller",
            &image,
            "--secret-template=template",
            "--approve-certificates",
            "-o",
            "controller",
        ]);
        assert_eq!(rendered.code, 0, "{rendered:?}");
        let folder = self.bench.path().join("controller/manifests");
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            // The controller runs outside of the cluster, where the test can observe it.
            if !path.to_string_lossy().contains("deployment") {
                self.kubectl(&["apply", "-f", &path.display().to_string()]);
            }
        }
        let wait =
            ["wait", "--for=condition=Established", "crd/nodebootstraps.landfall.dev", "--timeout=60s"];
        self.kubectl(&wait);
        let token =
            self.kubectl(&["create", "token", "-n", NAMESPACE, "landfall-controller", "--duration=2h"]);
        let access = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {
                "server": self.api.url(), "certificate-authority": self.api.directory().join("ca.crt"),
            }}],
            "users": [{"name": "u", "user": {"token": token.trim()}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        let access = self.bench.file("controller.kubeconfig", access.to_string());
        let program = Path::new(env!("CARGO_BIN_EXE_landfall"));
        let process = Process::start("controller", program, self.bench.path(), |command| {
            command.args(["controller", "--secret-template=template", "--approve-certificates"]);
            command.args(["--listen=127.0.0.1:0", "--evict-unmanaged", "--runner-argument=--free-space=1"]);
            command.arg(format!("--image={IMAGE}")).arg(format!("--kubeconfig={}", access.display()));
        });
        self.controller = Some(process.unwrap());
    }

    /// Imports the image of the pods into the node's containerd: nothing is pulled.
    fn import_image(&self) {
        let archive = image(self.bench.path());
        std::fs::copy(&archive, self.node.root().join("root/landfall.tar")).unwrap();
        self.node.output(&["ctr", "-n", "k8s.io", "images", "import", "/root/landfall.tar"]).unwrap();
        self.node.output(&["rm", "/root/landfall.tar"]).unwrap();
    }

    /// Creates a pod that must be evicted before the node is drained.
    fn guest(&self) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "guest", "namespace": "default"},
            "spec": {
                "nodeName": NODE,
                "automountServiceAccountToken": false,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "guest", "image": POD_IMAGE, "imagePullPolicy": "Never"}],
            },
        });
        self.api.apply(&pod).unwrap();
        eventually("the guest to run", LIMIT, || {
            let phase = self.kubectl(&["get", "pod", "guest", "-o", "jsonpath={.status.phase}"]);
            (phase == "Running").then_some(())
        })
        .unwrap();
    }

    fn assert_new_life(&self, first_boot: &str, first_uid: &str) {
        let root = self.node.root();
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
        assert_eq!(read("var/lib/machine-config-daemon-runs"), "run\n", "applied once");
        let boots = self.node.journal(&["--list-boots"]).unwrap();
        assert_eq!(boots.lines().count(), 3, "two reboots:\n{boots}");
        let asked = self.server.asked();
        let asked = asked.iter().filter(|line| line.starts_with("GET /ignition")).count();
        assert_eq!(asked, 1, "what the preflight got is what was applied");
        // Another Node object, of another boot, with the labels and taints of the previous one.
        assert_ne!(self.get("node", NODE, "{.metadata.uid}"), first_uid);
        let boot = self.get("node", NODE, "{.status.nodeInfo.bootID}");
        assert_eq!(boot, self.node.boot_id().unwrap());
        assert_ne!(boot, first_boot);
        assert_eq!(self.get("node", NODE, "{.metadata.labels.life}"), "new", "the kubelet of the new life");
        assert_eq!(self.get("node", NODE, "{.metadata.labels.zone}"), "a");
        let taints = self.get("node", NODE, "{.spec.taints[*].key}");
        assert!(taints.contains("gpu") && !taints.contains("unschedulable"), "{taints}");
        assert_eq!(self.get("node", NODE, "{.spec.unschedulable}"), "");
        for label in [
            r"{.metadata.labels.landfall\.dev/in-place}",
            r"{.metadata.annotations.landfall\.dev/cordoned-by}",
        ] {
            assert_eq!(self.get("node", NODE, label), "", "{label}");
        }
        assert!(self.node.is_ready(&self.api).unwrap());
        let secrets = self.kubectl(&["get", "secrets", "-n", NAMESPACE, "-o", "name"]);
        assert_eq!(secrets.trim(), "secret/template", "the node's Secret is deleted, the template is not");
        let guests = self.kubectl(&["get", "pods", "-n", "default", "-o", "name"]);
        assert_eq!(guests.trim(), "", "the guest was asked to go");
        let approved = self.get("nodebootstrap", NODE, "{.status.approved}");
        assert!(
            approved.contains("node-csr") || approved.contains("csr-"),
            "approved by the controller: {approved}"
        );
        let events = self.kubectl(&["get", "events", "-n", "default", "-o", "jsonpath={.items[*].reason}"]);
        for reason in ["Cordoning", "Draining", "HandedOver", "Running", "Restoring", "Done"] {
            assert!(events.contains(reason), "{reason} in {events}");
        }
        assert_clean(&self.node);
        let said = self.controller.as_ref().unwrap().log();
        assert!(!said.contains(TOKEN.trim_start_matches("Bearer ")), "{said}");
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        self.api.kubectl(arguments).unwrap()
    }

    /// Returns one field of an object; empty when the object or the field is missing.
    fn get(&self, kind: &str, name: &str, path: &str) -> String {
        self.api.kubectl(&["get", kind, name, "-o", &format!("jsonpath={path}")]).unwrap_or_default()
    }

    /// Waits for a condition; a failure shows the current state.
    #[track_caller]
    fn wait(&self, what: &str, probe: impl Fn(&Self) -> Option<()>) {
        if let Err(error) = eventually(what, LIMIT, || probe(self)) {
            let shown = self.kubectl(&["get", "nodebootstraps,nodes,pods,csr,events", "-A", "-o", "wide"]);
            let pod = ["describe", "pod", "-n", NAMESPACE];
            let log =
                ["logs", "-n", NAMESPACE, "landfall-in-place-way", "--insecure-skip-tls-verify-backend"];
            let more = [self.api.kubectl(&pod), self.api.kubectl(&log)].map(|said| match said {
                Ok(said) => said,
                Err(error) => format!("{error:#}\n"),
            });
            panic!("{error}\n{shown}\n{}", more.concat());
        }
    }
}

/// Builds an image with this binary and its libraries, in the format of `docker save`.
fn image(folder: &Path) -> PathBuf {
    let program = folder.join("landfall");
    let stripped = Command::new("strip").arg("-o").arg(&program).arg(env!("CARGO_BIN_EXE_landfall")).status();
    assert!(stripped.unwrap().success());
    let mut layer = tar::Builder::new(Vec::new());
    let mut add = |name: &str, from: &Path| {
        let bytes = std::fs::read(from).unwrap();
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o755);
        layer.append_data(&mut header, name.trim_start_matches('/'), bytes.as_slice()).unwrap();
    };
    add("landfall", &program);
    // Lines look like `libc.so.6 => /lib/…/libc.so.6 (0x…)`; that of the loader has only its path.
    let libraries = Command::new("ldd").arg(&program).output().unwrap();
    let libraries = String::from_utf8(libraries.stdout).unwrap();
    for path in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        add(path, Path::new(path));
    }
    let layer = layer.into_inner().unwrap();
    let digest = hex::encode(Sha256::digest(&layer));
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = json!({
        "architecture": architecture, "os": "linux", "config": {"Entrypoint": ["/landfall"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    let manifest: Value = json!([{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]);
    let archive = folder.join("image.tar");
    let mut builder = tar::Builder::new(std::fs::File::create(&archive).unwrap());
    let parts = [
        ("manifest.json", manifest.to_string().into_bytes()),
        ("config.json", config.to_string().into_bytes()),
        ("layer.tar", layer),
    ];
    for (name, bytes) in parts {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, bytes.as_slice()).unwrap();
    }
    builder.into_inner().unwrap();
    archive
}
