//! `landfall node in-place` against a real registry, an Ignition endpoint over TLS, a real API server, and real
//! systems that boot.
//!
//! The defects of the original, I1 to I11, have a test each: here, or beside the code that avoids them.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use landfall_pki::Authority;
use landfall_testkit::{
    ApiServer, FileServer, HOST_ADDRESS, Need, Node, NodeSpec, Registry, Serve, eventually, have,
};
use serde_json::{Value, json};

use crate::command::{Bench, Run};
use crate::hub;

pub(crate) const DAEMON: &str = include_str!("../../../../testbed/node/machine-config-daemon");
pub(crate) const TOKEN: &str = "Bearer dG9rZW4tb2YtdGhlLWlnbml0aW9uLXNlcnZlcg==";
const PASSWORD: &str = "one-time-password-4711";
/// Enough for three boots on a loaded machine.
const LIMIT: Duration = Duration::from_mins(10);
const SOURCE: &str = "quay.io/openshift-release-dev/ocp-v4.0-art-dev";

pub(crate) fn archive(files: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o755);
        header.set_cksum();
        builder.append_data(&mut header, path, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

/// Returns the answer of an Ignition server: a MachineConfig, the files beside it, mirrors and credentials for the
/// registry.
fn ignition(registry: &Registry, digest: &str, password: &str, fips: bool) -> Vec<u8> {
    ignition_of(registry, digest, password, fips, "new\n", &[("/etc/new", "life")])
}

/// Returns the same with this kubeconfig, and with these files in its MachineConfig.
pub(crate) fn ignition_of(
    registry: &Registry,
    digest: &str,
    password: &str,
    fips: bool,
    kubeconfig: &str,
    files: &[(&str, &str)],
) -> Vec<u8> {
    let data = |text: &str| {
        let escaped: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
        json!({"source": format!("data:,{escaped}")})
    };
    let file = |path: &str, text: &str| json!({"path": path, "mode": 420, "overwrite": true, "contents": data(text)});
    let settings = format!(
        "[[registry]]\nlocation = \"{SOURCE}\"\nmirror-by-digest-only = true\nblocked = true\n\
         [[registry.mirror]]\nlocation = \"{}/ocp\"\n",
        registry.host()
    );
    let files: Vec<Value> = files.iter().map(|(path, text)| file(path, text)).collect();
    let config = json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": {"name": "rendered-worker-2"},
        "spec": {"fips": fips, "config": {"ignition": {"version": "3.2.0"}, "storage": {"files": files}}}});
    json!({"ignition": {"version": "3.2.0"}, "storage": {"files": [
        file("/etc/mcs-machine-config-content.json", &config.to_string()),
        file("/etc/kubernetes/kubeconfig", kubeconfig),
        file("/etc/machine-config-daemon/node-annotations.json", "{}"),
        file("/etc/containers/registries.conf", &settings),
        file("/var/lib/kubelet/config.json", &registry.auth(password)),
        file("/etc/sysconfig/machineconfigdaemonsha", &format!("MACHINE_CONFIG_DAEMON_SHA={digest}\n")),
    ]}})
    .to_string()
    .into_bytes()
}

struct Site {
    bench: Bench,
    server: FileServer,
    registry: Registry,
    digest: String,
}

impl Site {
    /// Creates the root of a machine, an Ignition server and a registry, all correct.
    fn new() -> Self {
        let bench = Bench::new();
        let registry = Registry::start(Ipv4Addr::LOCALHOST).unwrap();
        let digest = registry.push("ocp", &archive(&[("usr/bin/machine-config-daemon", DAEMON)])).unwrap();
        let server = FileServer::start().unwrap();
        bench.file("root/etc/redhat-release", "Red Hat Enterprise Linux CoreOS release 4.14\n");
        bench.file("root/run/ostree-booted", "");
        bench.file(&format!("root/etc/containers/certs.d/{}/ca.crt", registry.host()), registry.authority());
        std::fs::create_dir_all(bench.path().join("root/var/lib")).unwrap();
        let site = Self { bench, server, registry, digest };
        site.serve(Registry::PASSWORD, false);
        site.server.serve(
            "/boot/upiworker",
            Serve::Post { header: "x-one-time-password", value: PASSWORD.into(), refuse: 1 },
        );
        site.secret(TOKEN, site.server.authority());
        site
    }

    fn serve(&self, registry_password: &str, fips: bool) {
        let bytes = ignition(&self.registry, &self.digest, registry_password, fips);
        self.server
            .serve("/ignition", Serve::Guarded { header: "authorization", value: TOKEN.into(), bytes });
    }

    fn secret(&self, token: &str, authority: &str) -> Value {
        let secret = json!({"ignition_url": self.server.url("/ignition"), "ignition_token": token, "ca_cert": authority,
            "bootstrap_url": self.server.url("/boot"), "bootstrap_secret": PASSWORD});
        self.bench.file("secret.json", secret.to_string());
        secret
    }

    fn run(&self, more: &[&str]) -> Run {
        let mut arguments = vec!["node", "in-place", "--root", "root", "--node-name=n1", "--free-space=1"];
        arguments.extend(more);
        self.bench.command(&arguments).env("RUST_LOG", "debug").output().unwrap().into()
    }

    fn preflight(&self) -> (i32, Value) {
        let run =
            self.run(&["--secret-file=secret.json", "--no-cluster", "--preflight-only", "--output=json"]);
        assert_quiet(&run);
        (run.code, run.report())
    }
}

/// I2: the original printed passwords and tokens to its logs.
#[track_caller]
fn assert_quiet(run: &Run) {
    for secret in [TOKEN.trim_start_matches("Bearer "), PASSWORD, Registry::PASSWORD] {
        assert!(!run.stdout.contains(secret) && !run.stderr.contains(secret), "{secret} is told: {run:?}");
    }
}

#[track_caller]
fn check<'a>(report: &'a Value, name: &str) -> (&'a str, &'a str) {
    let checks = report["checks"].as_array().unwrap();
    let found =
        checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("{name}: {report:#}"));
    (found["outcome"].as_str().unwrap(), found["says"].as_str().unwrap())
}

#[test]
fn the_preflight_of_a_machine_that_fits_passes_and_downloads_once() {
    if !have(Registry::NEEDS) {
        return;
    }
    let site = Site::new();
    let (code, report) = site.preflight();
    assert_eq!((code, &report["ready"]), (0, &json!(true)), "{report:#}");
    let (outcome, says) = check(&report, "registry");
    assert_eq!(outcome, "passed");
    assert!(says.starts_with(&format!("{}/ocp has", site.registry.host())), "through the mirror: {says}");
    assert_eq!(check(&report, "progress").0, "passed");
    // The download is kept for the attempt, readable by root only, and is not repeated.
    site.preflight();
    let asked = site.server.asked().iter().filter(|line| *line == "GET /ignition").count();
    assert_eq!(asked, 1, "{:?}", site.server.asked());
    let folder =
        site.bench.path().join("root/var/lib/landfall/in-place").join(report["attempt"].as_str().unwrap());
    let mode = std::fs::metadata(folder.join("ignition.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // Read-only: nothing else on the machine was changed.
    for untouched in ["etc/systemd", "usr", "etc/kubernetes"] {
        assert!(!site.bench.path().join("root").join(untouched).exists(), "{untouched}");
    }
}

#[test]
fn i1_only_the_given_authority_is_trusted() {
    if !have(Registry::NEEDS) {
        return;
    }
    let site = Site::new();
    // A valid certificate of a registry that this machine trusts, but not of the CA in the Secret.
    site.secret(TOKEN, site.registry.authority());
    let (code, report) = site.preflight();
    assert_eq!(code, 1);
    let (outcome, says) = check(&report, "source");
    assert_eq!(outcome, "failed-for-now", "{says}");
    assert!(!site.server.asked().iter().any(|line| line.contains("ignition")), "the token was shown");
}

#[test]
fn a_wrong_token_and_a_machine_that_does_not_fit_are_told_and_nothing_is_touched() {
    if !have(Registry::NEEDS) {
        return;
    }
    let site = Site::new();
    site.secret("Bearer d3Jvbmc=", site.server.authority());
    let (_, report) = site.preflight();
    let (outcome, says) = check(&report, "source");
    assert_eq!(outcome, "failed");
    assert!(says.contains("answered 401") && says.contains("a new Secret"), "{says}");
    site.secret(TOKEN, site.server.authority());
    site.serve(Registry::PASSWORD, true);
    let (_, report) = site.preflight();
    assert_eq!(check(&report, "machine-config").0, "failed");
    // The attempt fails permanently with a reason, and leaves neither Secret nor units.
    let run = site.run(&["--secret-file=secret.json", "--no-cluster"]);
    assert_quiet(&run);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("FIPS is off here and on"), "{run:?}");
    let status = site.bench.run(&["node", "status", "--root", "root", "--output=json"]).report();
    assert_eq!((&status["state"]["is"], &status["state"]["step"]), (&json!("failed"), &json!("preflight")));
    assert!(!site.bench.path().join("root/etc/systemd").exists());
}

#[test]
fn i4_a_registry_that_does_not_give_the_image_stops_it_before_anything_is_touched() {
    if !have(Registry::NEEDS) {
        return;
    }
    let site = Site::new();
    site.serve("wrong-password", false);
    let (code, report) = site.preflight();
    let (outcome, says) = check(&report, "registry");
    assert_eq!((code, outcome), (1, "failed-for-now"), "{says}");
    assert!(says.contains("the credentials are wrong"), "{says}");
}

/// The label is removed before the machine goes down, all listeners receive the events in order, and a second start
/// is the same attempt.
#[test]
fn a_labelled_node_is_armed_once_and_its_label_is_off() {
    if !have(&[Registry::NEEDS, ApiServer::NEEDS, &[Need::Program("curl")]].concat()) {
        return;
    }
    let site = Site::new();
    let authority = Authority::new("hub CA", 1).unwrap();
    let (_hub, hub_port) = hub::start_guarded(&site.bench, &authority);
    let hub_token = hub::token(&site.bench, "node", "n1");
    let api = ApiServer::start().unwrap();
    let kubeconfig = format!("--kubeconfig={}", api.admin_kubeconfig().display());
    let label = "ibm-cloud.kubernetes.io/ipb-schedule";
    api.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {label: "false", "keep": "me"}}})).unwrap();
    let mut secret = site.secret(TOKEN, site.server.authority());
    secret["hub_url"] = json!(format!("https://127.0.0.1:{hub_port}/"));
    secret["hub_token"] = json!(hub_token);
    secret["hub_ca_cert"] = json!(authority.certificate());
    let secret = secret.to_string();
    api.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ibm-ipb-n1", "namespace": "kube-system"},
        "stringData": {"bootstrap": secret}})).unwrap();

    // `=false` requests nothing.
    let run = site.run(&[&kubeconfig]);
    assert_eq!(run.code, 77, "{run:?}");
    // A preflight works without the label, and its download is used later.
    place_pods(&api);
    let run = site.run(&[&kubeconfig, "--preflight-only", "--output=json"]);
    assert_quiet(&run);
    assert_eq!(run.code, 0, "{run:?}");
    let report = run.report();
    let (outcome, says) = check(&report, "drain");
    assert_eq!(outcome, "warned", "{says}");
    assert!(says.contains("default/alone (nothing would make it again)"), "{says}");
    assert!(says.contains("default/guarded (") && !says.contains("default/free"), "{says}");
    let pods = api.kubectl(&["get", "pods", "-n", "default", "-o", "name"]).unwrap();
    assert_eq!(pods.lines().count(), 3, "none was asked to go: {pods}");
    api.kubectl(&["label", "node", "n1", "--overwrite", &format!("{label}=true")]).unwrap();
    let run = site.run(&[&kubeconfig]);
    assert_quiet(&run);
    assert!(!run.stderr.contains(&hub_token), "the hub's token is told: {run:?}");
    assert_eq!(run.code, 100, "{run:?}");
    let labels = api.kubectl(&["get", "node", "n1", "-o", "jsonpath={.metadata.labels}"]).unwrap();
    assert!(!labels.contains(label) && labels.contains("keep"), "{labels}");
    // I9: the cluster shows the state.
    let path = "jsonpath={.metadata.annotations.landfall\\.dev/in-place-state}";
    let shown = api.kubectl(&["get", "node", "n1", "-o", path]).unwrap();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown["state"], &shown["step"]), (&json!("Rebooting"), &json!("go-down")), "{shown}");
    // I8: the label is set again later; the same attempt is still waiting for its reboot, and nothing runs again.
    let asked = site.server.asked().iter().filter(|line| *line == "GET /ignition").count();
    api.kubectl(&["label", "node", "n1", &format!("{label}=true")]).unwrap();
    std::fs::create_dir_all(site.bench.path().join("root/run")).unwrap();
    let run = site.run(&[&kubeconfig, "--reboot=required"]);
    assert_eq!(run.code, 100, "{run:?}");
    assert!(site.bench.path().join("root/run/reboot-required").is_file(), "it is left to others: {run:?}");
    assert_eq!((asked, site.server.asked().iter().filter(|line| *line == "GET /ignition").count()), (1, 1));
    // The webhook received the events in order, although it rejected the first request. Events with a late answer
    // were sent again.
    let mut told: Vec<Value> =
        site.server.posted().iter().map(|text| serde_json::from_str(text).unwrap()).collect();
    told.dedup_by(|again, before| again["sequence"] == before["sequence"]);
    assert_in_order(&told);
    assert_eq!(told.last().unwrap()["state"], "Rebooting");
    assert_eq!(told.last().unwrap()["attempt"], shown["attempt"]);
    // The hub received the same events, and the newest one for the fleet view.
    let heard = hub::view(&site.bench, hub_port, "/api/v1/nodes/n1/progress");
    let heard = heard["events"].as_array().unwrap();
    assert_in_order(heard);
    assert_eq!(heard.len(), told.len(), "told as much as the webhook: {heard:#?}");
    let lines = hub::view(&site.bench, hub_port, "/api/v1/progress");
    assert_eq!(lines["nodes"].as_array().unwrap().len(), 1, "{lines:#}");
    let newest = &lines["nodes"][0];
    assert_eq!((&newest["node"], &newest["attempt"]), (&json!("n1"), &shown["attempt"]), "{newest:#}");
    assert_eq!(newest["state"], json!({"is": "rebooting"}), "{newest:#}");
    assert_eq!(newest["sequence"], json!(heard.len()), "{newest:#}");
    // I7: only root can read the Secret, and it is not where the original left it.
    let root = site.bench.path().join("root");
    assert!(!root.join("etc/armada").exists());
    let folder = root.join("var/lib/landfall/in-place").join(shown["attempt"].as_str().unwrap());
    for (name, mode) in
        [("secret.json", 0o600), ("machine-config.json", 0o600), ("machine-config-daemon", 0o700)]
    {
        let found = std::fs::metadata(folder.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(found, mode, "{name}");
    }
    assert_eq!(std::fs::read_to_string(folder.join("machine-config-daemon")).unwrap(), DAEMON);
}

/// Creates a pod that can be evicted, one with a budget that forbids it, and one without a controller.
fn place_pods(api: &ApiServer) {
    api.kubectl(&["create", "serviceaccount", "-n", "default", "default"]).unwrap();
    for name in ["free", "guarded", "alone"] {
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": "1", "controller": true});
        let owners = if name == "alone" { json!([]) } else { json!([owner]) };
        let metadata =
            json!({"name": name, "namespace": "default", "labels": {"app": name}, "ownerReferences": owners});
        api.apply(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {"nodeName": "n1", "containers": [{"name": "x", "image": "x"}]}}))
            .unwrap();
        // Pods that do not run are pending, and budgets do not count those.
        let running = r#"{"status":{"phase":"Running"}}"#;
        let patch =
            ["patch", "pod", name, "-n", "default", "--subresource=status", "--type=merge", "-p", running];
        api.kubectl(&patch).unwrap();
    }
    api.apply(&json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "guarded", "namespace": "default"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "guarded"}}}}))
        .unwrap();
}

/// Checks that every event is present once, in order from the first.
#[track_caller]
fn assert_in_order(events: &[Value]) {
    let numbers: Vec<u64> = events.iter().map(|event| event["sequence"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=events.len() as u64).collect::<Vec<_>>());
    assert!(events.len() > 1, "{events:#?}");
}

/// A kubelet that records the configuration at each start. The kubelet of the image needs a cluster.
const KUBELET: &str = "[Unit]\nAfter=local-fs.target\n[Service]\nExecStart=/bin/sh -c 'cat /etc/kubernetes/kubeconfig >> /var/lib/started; exec sleep infinity'\n\
[Install]\nWantedBy=multi-user.target\n";

fn node_files(spec: &mut NodeSpec) {
    let file = |path: &str, content: &str| (path.into(), content.as_bytes().to_vec());
    spec.files.push(file("/etc/systemd/system/kubelet.service", KUBELET));
    spec.files.push(file("/etc/systemd/system/kubelet.service.d/10-kubeadm.conf", ""));
    spec.files.push(file("/etc/kubernetes/kubeconfig", "old\n"));
    spec.files.push(file("/var/lib/kubelet/state", "of the old life"));
    spec.files
        .push(("/usr/local/bin/landfall".into(), std::fs::read(env!("CARGO_BIN_EXE_landfall")).unwrap()));
}

/// Waits for the end of an attempt and returns the output of `landfall node status`.
pub(crate) fn wait_for_end(node: &Node) -> Value {
    eventually("the attempt to end", LIMIT, || {
        let status = node.output(&["/usr/local/bin/landfall", "node", "status", "--output=json"]).ok()?;
        let status: Value = serde_json::from_str(&status).ok()?;
        (!status["ended"].is_null()).then_some(status)
    })
    .unwrap()
}

pub(crate) fn start(node: &Node, more: &[&str]) {
    node.output(&["chmod", "+x", "/usr/local/bin/landfall"]).unwrap();
    let mut command = vec!["systemd-run", "--unit=begin", "/usr/local/bin/landfall", "node", "in-place"];
    command.extend([
        "--secret-file=/root/secret.json",
        "--no-cluster",
        "--node-name=n1",
        "--free-space=1",
        "--reboot=systemd",
    ]);
    command.extend(more);
    node.output(&command).unwrap();
}

/// Checks that no secret is left on the disk or in the journal, and that the units that run after each boot are
/// removed.
pub(crate) fn assert_clean(node: &Node) {
    for secret in [TOKEN.trim_start_matches("Bearer "), PASSWORD] {
        let found = node
            .run(&["grep", "-rlF", secret, "/etc", "/var/lib", "/var/log/landfall", "/usr/local"])
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&found.stdout), "", "the secret is left");
        assert!(!node.journal(&[]).unwrap().contains(secret));
    }
    let units = node
        .output(&["ls", "/etc/systemd/system", "/etc/systemd/system/kubelet.service.d", "/usr/local/bin"])
        .unwrap();
    assert!(!units.contains("landfall-in-place"), "{units}");
}

/// Creates a machine that looks like RHCOS, with its Secret, and the servers of its new configuration.
pub(crate) fn rhcos(name: &str) -> (Registry, FileServer, NodeSpec) {
    let registry = Registry::start(HOST_ADDRESS).unwrap();
    let digest = registry.push("ocp", &archive(&[("usr/bin/machine-config-daemon", DAEMON)])).unwrap();
    let server =
        FileServer::start_at(SocketAddr::from(([0, 0, 0, 0], 0)), &[&HOST_ADDRESS.to_string()]).unwrap();
    let bytes = ignition(&registry, &digest, Registry::PASSWORD, false);
    server.serve("/ignition", Serve::Guarded { header: "authorization", value: TOKEN.into(), bytes });
    let at = format!("https://{HOST_ADDRESS}:{}/ignition", server.address().port());
    let secret = json!({"ignition_url": at, "ignition_token": TOKEN, "ca_cert": server.authority()});

    let mut spec = NodeSpec::new(name);
    node_files(&mut spec);
    let file = |path: &str, content: &str| (path.into(), content.as_bytes().to_vec());
    spec.files.push(file("/etc/redhat-release", "Red Hat Enterprise Linux CoreOS release 4.14\n"));
    spec.files.push(file("/etc/tmpfiles.d/ostree.conf", "f /run/ostree-booted 0644 root root -\n"));
    spec.files
        .push(file(&format!("/etc/containers/certs.d/{}/ca.crt", registry.host()), registry.authority()));
    spec.files.push(file("/root/secret.json", &secret.to_string()));
    (registry, server, spec)
}

#[test]
fn a_real_rhcos_like_system_begins_its_new_life_in_two_reboots() {
    if !have(Node::NEEDS) || !have(Registry::NEEDS) {
        return;
    }
    let (_registry, server, spec) = rhcos("second-life");
    let mut node = Node::boot(&spec).unwrap();
    node.wait_for_boot().unwrap();
    start(&node, &[]);
    let status = wait_for_end(&node);
    assert_eq!(status["state"]["is"], "done", "{status:#}");
    let root = node.root();
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    // The kubelet never started with a partial configuration: not in the boot in which the daemon worked.
    assert_eq!(read("var/lib/started"), "old\nnew\n");
    assert_eq!(read("var/lib/machine-config-daemon-runs"), "run\n", "applied once");
    assert_eq!(read("etc/new"), "life");
    let boots = node.journal(&["--list-boots"]).unwrap();
    assert_eq!(boots.lines().count(), 3, "two reboots:\n{boots}");
    assert!(!root.join("var/lib/kubelet/state").exists(), "I6: the state of the old life is gone");
    assert_eq!(server.asked().iter().filter(|line| line.as_str() == "GET /ignition").count(), 1);
    node.output(&["rm", "/root/secret.json"]).unwrap();
    assert_clean(&node);
}

#[test]
fn i5_a_real_system_whose_daemon_fails_gets_its_old_life_back() {
    if !have(Node::NEEDS) || !have(Registry::NEEDS) {
        return;
    }
    let (_registry, _server, mut spec) = rhcos("old-life");
    // The daemon also prints the token.
    spec.files.push(("/etc/fail-machine-config-daemon".into(), TOKEN.into()));
    let mut node = Node::boot(&spec).unwrap();
    node.wait_for_boot().unwrap();
    start(&node, &[]);
    let status = wait_for_end(&node);
    assert_eq!(status["state"]["is"], "rolled-back", "{status:#}");
    let reason = status["state"]["reason"].as_str().unwrap();
    assert!(reason.contains("told to fail") && reason.contains("***"), "I2: {reason}");
    eventually("the old kubelet to start again", LIMIT, || {
        (std::fs::read_to_string(node.root().join("var/lib/started")).ok()? == "old\nold\n").then_some(())
    })
    .unwrap();
    assert_eq!(
        std::fs::read_to_string(node.root().join("var/lib/kubelet/state")).unwrap(),
        "of the old life"
    );
    node.output(&["rm", "/root/secret.json", "/etc/fail-machine-config-daemon"]).unwrap();
    assert_clean(&node);
}

const BASE: &str = "#!/bin/bash\nset -euo pipefail\ncd \"$(dirname \"$0\")\"\nexport PYTHONPATH=/opt/ansible\ncat \"$LANDFALL_SECRET_FILE\"\n\
python3 /opt/ansible-playbook -i localhost, -c local \"$1.yml\"\n";
const BASE_PLAY: &str = r#"
- hosts: localhost
  gather_facts: false
  tasks:
  - copy: {dest: /etc/sysctl.d/90-new.conf, content: "vm.swappiness = 1"}
  - lineinfile: {path: /var/lib/halves, create: true, line: base}
"#;
const KUBE_PLAY: &str = r#"
- hosts: localhost
  gather_facts: false
  tasks:
  - lineinfile: {path: /var/lib/halves, line: kube}
  - file: {path: /etc/kubernetes, state: directory}
  - copy: {dest: /etc/kubernetes/kubeconfig, content: "new\n"}
  - copy: {dest: /etc/systemd/system/kubelet.service, src: kubelet.service}
  - command: systemctl daemon-reload
  - command: systemctl enable --now kubelet.service
"#;

/// Runs real ansible, in two boots; the second half starts the kubelet itself.
#[test]
fn a_real_rhel_like_system_runs_its_payload_in_two_boots() {
    if !have(Node::NEEDS) || !have(&[landfall_testkit::Need::Program("ansible-playbook")]) {
        return;
    }
    let server =
        FileServer::start_at(SocketAddr::from(([0, 0, 0, 0], 0)), &[&HOST_ADDRESS.to_string()]).unwrap();
    let payload = archive(&[
        ("bootstrap/bootstrap_base_openshift_4.sh", BASE),
        ("bootstrap/base.yml", BASE_PLAY),
        ("bootstrap/kube.yml", KUBE_PLAY),
        ("bootstrap/kubelet.service", KUBELET),
    ]);
    let guarded = Serve::Guarded { header: "x-one-time-password", value: PASSWORD.into(), bytes: payload };
    server.serve("/boot?workerid=w%201&clusterid=c", guarded);
    server.serve(
        "/boot/upiworker",
        Serve::Post { header: "x-one-time-password", value: PASSWORD.into(), refuse: 0 },
    );
    server.file("/repodata/repomd.xml", "<repomd/>");
    let at = format!("https://{HOST_ADDRESS}:{}", server.address().port());
    let secret = json!({"bootstrap_url": format!("{at}/boot"), "bootstrap_secret": PASSWORD, "workerid": "w 1",
        "clusterid": "c", "region": "eu-de", "ca_cert": server.authority()});
    let mut spec = NodeSpec::new("two-boots");
    node_files(&mut spec);
    let file = |path: &str, content: &str| (path.into(), content.as_bytes().to_vec());
    spec.files.push(file("/etc/redhat-release", "Red Hat Enterprise Linux release 8.6 (Ootpa)\n"));
    spec.files.push(file("/etc/yum.repos.d/base.repo", &format!("[base]\nbaseurl={at}/\n")));
    spec.files.push(file("/usr/local/share/ca-certificates/mirror.crt", server.authority()));
    spec.files.push(file("/root/secret.json", &secret.to_string()));
    spec.arguments.push("--bind-ro=/usr/lib/python3/dist-packages:/opt/ansible".to_owned());
    spec.arguments.push("--bind-ro=/usr/bin/ansible-playbook:/opt/ansible-playbook".to_owned());
    let mut node = Node::boot(&spec).unwrap();
    node.wait_for_boot().unwrap();
    node.output(&["update-ca-certificates"]).unwrap();
    start(&node, &[]);
    let status = wait_for_end(&node);
    assert_eq!(status["state"]["is"], "done", "{status:#}");
    let read = |path: &str| std::fs::read_to_string(node.root().join(path)).unwrap_or_default();
    assert_eq!(read("var/lib/halves"), "base\nkube\n");
    assert_eq!(read("var/lib/started"), "old\nnew\n");
    let boots = node.journal(&["--list-boots"]).unwrap();
    assert_eq!(boots.lines().count(), 3, "two reboots:\n{boots}");
    // Progress is reported concurrently, without blocking the work.
    let last = eventually("the last word to arrive", LIMIT, || {
        let last: Value = serde_json::from_str(server.posted().last()?).ok()?;
        (last["state"] == "Done").then_some(last)
    })
    .unwrap();
    assert_eq!(last["worker_id"], "w 1");
    node.output(&["rm", "/root/secret.json"]).unwrap();
    // I2: the output of the payload is in the log, without the password.
    let logs = node.output(&["sh", "-c", "cat /var/log/landfall/*-base.log"]).unwrap();
    assert!(logs.contains("PLAY RECAP") && logs.contains("***"), "{logs}");
    assert_clean(&node);
}
