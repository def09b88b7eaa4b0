//! Tests of a teardown that is killed after any of its commands.
//!
//! The next run must complete it in the right order.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use landfall_model::Secret;
use landfall_pki::KeyedCertificate;
use landfall_render::tunnel::{self, RunAs, Settings};
use landfall_render::{Completion, Content, Credentials, Format, Target, script};
use landfall_testkit::{Binary, Need, have};
use tempfile::TempDir;

/// A cluster that records deletions. It reports an error if agents are deleted while an API server still uses
/// them. Local commands run the real `kubectl`.
const KUBECTL: &str = r#"#!/usr/bin/env bash
case $1 in
patch) exec KUBECTL "$@" ;;
delete)
  if [ "$2" = daemonset ] && grep -qs egress-selector "$USES"; then echo 'agents went too early' >>"$STATE/wrong"; fi
  rm -f "$STATE/$2" ;;
get) case "$*" in *' namespace '*) [ ! -e "$STATE/namespace" ] || echo namespace/landfall-bootstrap ;; esac ;;
esac
"#;
/// The API server's pod as created by kubeadm with the rendered patch. It also has an unrelated path with
/// `landfall` in it.
const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: kube-apiserver\n  namespace: kube-system\nspec:\n  containers:\n  \
- command:\n    - kube-apiserver\n    - --allow-privileged=true\n    - --audit-log-path=/var/log/landfall/audit.log\n    - --egress-selector-config-file=/etc/landfall/egress/egress-selector.yaml\n    \
image: kube-apiserver:v1\n    name: kube-apiserver\n    volumeMounts:\n    - mountPath: /etc/ssl/certs\n      name: ca-certs\n    \
- mountPath: /etc/landfall/egress\n      name: landfall-egress\n    - mountPath: /run/landfall/tunnel\n      name: landfall-tunnel\n  \
volumes:\n  - hostPath:\n      path: /etc/ssl/certs\n    name: ca-certs\n  - hostPath:\n      path: /etc/landfall/egress\n    \
name: landfall-egress\n  - hostPath:\n      path: /run/landfall/tunnel\n    name: landfall-tunnel\n";
const BOOTKUBE: &str =
    "render \\\n  --config-override-files=/assets/landfall-tunnel-config-override.yaml \\\n  --x\n";
const RECORDS: &str = "record_service_stage_start(){ :; }; record_service_stage_success(){ :; }\n";

/// A machine below one directory.
struct Machine {
    folder: TempDir,
    settings: Settings,
}

#[test]
fn a_teardown_killed_anywhere_is_finished_by_the_next() {
    if !have(&[Need::Built(Binary::Kubectl)]) {
        return;
    }
    for (target, run_as, completion) in [
        (Target::Kubeadm, RunAs::Pod, "marker=/run/over"),
        (Target::K3s, RunAs::Unit, "marker=/run/over"),
        (Target::Openshift, RunAs::Unit, "marker"),
    ] {
        let completion = Some(Completion::parse(completion, target).unwrap());
        let settings =
            Settings { run_as, completion, ..Settings::new(target, "10.0.0.5", "registry.example/a") };
        let mut commands = 0;
        loop {
            let machine = Machine::set(&settings);
            let run = machine.tear_down(Some(commands));
            let killed = run.status.signal() == Some(9);
            assert!(killed || run.status.success(), "{target:?} {commands}: {}", said(&run));
            let again = machine.tear_down(None);
            assert!(again.status.success(), "{target:?}, killed after {commands}: {}", said(&again));
            machine.assert_clean(commands);
            if !killed {
                break;
            }
            commands += 1;
        }
        assert!(commands > 20, "{target:?} was killed only {commands} times");
    }
}

/// Any object or file that was not removed is named in the error.
#[test]
fn what_is_left_is_named() {
    if !have(&[Need::Built(Binary::Kubectl)]) {
        return;
    }
    for (target, paths) in [
        (
            Target::Openshift,
            &[
                "/opt/openshift/landfall-tunnel-config-override.yaml",
                "/opt/openshift/landfall-tunnel",
                "/opt/openshift/manifests/04-landfall-tunnel-secret.yaml",
                "/etc/mcc/bootstrap/04-landfall-tunnel-secret.yaml",
                "/etc/systemd/system/bootkube.service.d/10-landfall-tunnel.conf",
                "/usr/local/bin/landfall-tunnel-egress.sh",
                "/usr/local/bin/landfall-tunnel-install.sh",
                "/usr/local/bin/landfall-tunnel-bootstrap.sh",
                "/usr/local/bin/bootkube.sh",
                "/etc/landfall/tunnel",
            ][..],
        ),
        (Target::Kubeadm, &["/etc/kubernetes/manifests/kube-apiserver.yaml", "/run/landfall/tunnel"]),
        (Target::K3s, &["/etc/rancher/k3s/config.yaml.d/90-landfall-tunnel.yaml.removed"]),
    ] {
        let machine = Machine::set(&Settings::new(target, "10.0.0.5", "registry.example/a"));
        for path in paths.iter().filter(|path| !Path::new(&machine.here(path)).is_dir()) {
            machine
                .put(path, "--config-override-files=/assets/landfall-tunnel-config-override.yaml\nname: landfall-egress\n");
        }
        let steps = landfall_render::steps(&machine.settings);
        let verify = steps.iter().find(|step| step.name == "verify").unwrap().commands.join("\n");
        fs::remove_file(machine.at("state/namespace")).unwrap();
        let run = machine.run(&format!("set -eu\n{verify}"), None);
        assert_eq!(run.status.code(), Some(1), "{}", said(&run));
        for path in paths {
            assert!(said(&run).contains(&machine.here(path)), "{path} is missing in {}", said(&run));
        }
    }
}

/// The cluster does not respond during the teardown. Until it does, the completion signal disappears: an
/// Event expires, or a reboot removes a marker below /run.
#[test]
fn the_end_of_a_bootstrap_is_not_forgotten() {
    if !have(&[Need::Built(Binary::Kubectl)]) {
        return;
    }
    for target in [Target::Kubeadm, Target::K3s, Target::Capi] {
        let completion = Some(Completion::parse("marker=/run/over", target).unwrap());
        let settings = Settings { completion, ..Settings::new(target, "10.0.0.5", "registry.example/a") };
        let machine = Machine::set(&settings);
        let kubectl = fs::read_to_string(machine.at("bin/kubectl")).unwrap();
        let refuses = kubectl.replace("delete)", "delete) exit 1 ;;\ndeleted)");
        fs::write(machine.at("bin/kubectl"), refuses).unwrap();
        let run = machine.tear_down(None);
        assert!(!run.status.success(), "{target:?}: {}", said(&run));
        fs::write(machine.at("bin/kubectl"), kubectl).unwrap();
        fs::remove_file(machine.at("run/over")).unwrap();
        let again = machine.tear_down(None);
        assert!(again.status.success(), "{target:?}: {}", said(&again));
        machine.assert_clean(0);
        // The next bootstrap has a completion signal of its own.
        let next = machine.run(&script(&settings), None);
        assert!(said(&next).contains("the bootstrap is not over yet"), "{target:?}: {}", said(&next));
    }
}

/// Files in the directory of the API server's pod would be copied to the node. Those in
/// /opt/openshift/manifests would be applied to its cluster.
#[test]
fn a_host_that_bootstraps_in_place_keeps_nothing_of_a_tunnel() {
    if !have(&[Need::Built(Binary::Kubectl)]) {
        return;
    }
    for run_as in [RunAs::Pod, RunAs::Unit] {
        let target = Target::Openshift;
        let machine =
            Machine::set(&Settings { run_as, ..Settings::new(target, "10.0.0.5", "registry.example/a") });
        let bootkube = format!("set -e\nBOOTSTRAP_INPLACE=true\n\nETCD_ENDPOINTS=\n{BOOTKUBE}");
        machine.put("/usr/local/bin/bootkube.sh", &bootkube);
        machine.put("/etc/kubernetes/bootstrap-configs/landfall-tunnel/server.sock", "");
        machine.put("/etc/kubernetes/bootstrap-configs/kube-apiserver-config.yaml", "");
        let script = fs::read_to_string(machine.at("usr/local/bin/landfall-tunnel-egress.sh")).unwrap();
        for _ in 0..2 {
            let run = machine.run(&script, None);
            assert!(run.status.success(), "{run_as:?}: {}", said(&run));
            assert!(said(&run).contains("it gets no tunnel"), "{run_as:?}: {}", said(&run));
        }
        let find = Command::new("find")
            .args(["etc", "opt", "-type", "f", "-not", "-path", "*/bootkube.service.d/*"])
            .current_dir(machine.folder.path())
            .output()
            .unwrap();
        let mut left: Vec<&str> = std::str::from_utf8(&find.stdout).unwrap().lines().collect();
        left.sort_unstable();
        let wanted = [
            "etc/kubernetes/bootstrap-configs/kube-apiserver-config.yaml",
            "etc/systemd/system/landfall-tunnel-teardown.service",
            "opt/openshift/.bootkube.done",
            // With this marker, the teardown service does not start.
            "opt/openshift/landfall-tunnel-teardown.done",
        ];
        assert_eq!(left, wanted, "{run_as:?}");
        assert_eq!(fs::read_to_string(machine.at("usr/local/bin/bootkube.sh")).unwrap(), bootkube);
    }
}

// === impl Machine ===

impl Machine {
    /// Installs all rendered files.
    fn set(settings: &Settings) -> Self {
        let machine = Self { folder: tempfile::tempdir().unwrap(), settings: settings.clone() };
        let pair =
            |name: &str| KeyedCertificate { certificate: name.to_owned(), key: Secret::new(name.to_owned()) };
        let credentials =
            Credentials { authority: "ca".to_owned(), server: pair("server"), agent: pair("agent") };
        for file in tunnel::plan(settings, &credentials, Format::Yaml).unwrap().files {
            let text = match &file.content {
                Content::Open(text) => text,
                Content::Secret(text) => text.expose(),
            };
            let path = match file.path.strip_prefix("host") {
                Ok(path) => Path::new("/").join(path),
                Err(_) if settings.target == Target::Openshift => {
                    Path::new("/opt/openshift").join(&file.path)
                }
                // Manifests are applied from another host.
                Err(_) => continue,
            };
            machine.put(&path.display().to_string(), text);
        }
        match settings.target {
            Target::Kubeadm | Target::Capi => {
                machine.put("/etc/kubernetes/manifests/kube-apiserver.yaml", POD);
            }
            Target::Openshift => {
                machine.put("/usr/local/bin/bootkube.sh", BOOTKUBE);
                machine.put("/usr/local/bin/bootstrap-service-record.sh", RECORDS);
                machine.put("/etc/mcc/bootstrap/04-landfall-tunnel-secret.yaml", "key");
                machine.put("/opt/openshift/.bootkube.done", "");
            }
            Target::K3s => {}
        }
        machine.put("/run/over", "");
        for kind in ["namespace", "daemonset", "secret", "rolebinding", "serviceaccount"] {
            machine.write("state", kind, "");
        }
        let real = Binary::Kubectl.path().unwrap().display().to_string();
        let systemctl = machine.text("#!/bin/sh\n[ \"$1\" != cat ] || [ -e \"/etc/systemd/system/$2\" ]\n");
        for (name, text) in [
            ("kubectl", KUBECTL.replace("exec KUBECTL", &format!("exec {real}"))),
            ("systemctl", systemctl),
            ("pgrep", "#!/bin/sh\nexit 1\n".to_owned()),
            ("sleep", "#!/bin/sh\n".to_owned()),
        ] {
            let path = machine.write("bin", name, &text);
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        machine
    }

    fn tear_down(&self, limit: Option<usize>) -> Output {
        let program = self.at("usr/local/bin/landfall-tunnel-teardown.sh");
        // The last step removes the script; the next run is then the manual one.
        let text = fs::read_to_string(program).unwrap_or_else(|_| self.text(&script(&self.settings)));
        self.run(&text, limit)
    }

    /// Runs the text in bash, which can be killed after `limit` commands.
    fn run(&self, text: &str, limit: Option<usize>) -> Output {
        let count = limit.map_or_else(String::new, |limit| {
            format!("n=0; trap 'n=$((n+1)); [ $n -le {limit} ] || kill -9 $$' DEBUG\n")
        });
        let path = self.write("run", "script", &format!("{count}{}", self.text(text)));
        let uses = match self.settings.target {
            Target::Kubeadm | Target::Capi => "etc/kubernetes/manifests/kube-apiserver.yaml",
            Target::K3s => "etc/rancher/k3s/config.yaml.d/90-landfall-tunnel.yaml",
            Target::Openshift => "opt/openshift/landfall-tunnel-config-override.yaml",
        };
        Command::new("bash")
            .arg(path)
            .env("PATH", format!("{}:{}", self.at("bin").display(), std::env::var("PATH").unwrap()))
            .env("STATE", self.at("state"))
            .env("USES", self.at(uses))
            .output()
            .unwrap()
    }

    fn assert_clean(&self, commands: usize) {
        let target = self.settings.target;
        let left: Vec<_> =
            fs::read_dir(self.at("state")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [""; 0], "{target:?} {commands}: in the cluster");
        let find = Command::new("find")
            .arg(self.folder.path())
            .args(["-type", "f", "-path", "*landfall*", "-not", "-name", "*.done"])
            .args(["-not", "-name", "landfall-tunnel-teardown.*"])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(find.stdout).unwrap(), "", "{target:?} {commands}: on the machine");
        let read = |path: &str| fs::read_to_string(self.at(path)).unwrap();
        match target {
            Target::Kubeadm | Target::Capi => {
                let pod = read("etc/kubernetes/manifests/kube-apiserver.yaml");
                assert!(
                    pod.contains("--allow-privileged=true") && pod.contains("name: ca-certs"),
                    "{commands}: {pod}"
                );
                let kept = "--audit-log-path=/var/log/landfall/audit.log";
                assert!(pod.contains(kept) && pod.matches("landfall").count() == 1, "{commands}: {pod}");
            }
            Target::Openshift => assert_eq!(read("usr/local/bin/bootkube.sh"), "render \\\n  --x\n"),
            Target::K3s => {}
        }
    }

    fn put(&self, path: &str, text: &str) {
        let (folder, name) = path.trim_start_matches('/').rsplit_once('/').unwrap();
        self.write(folder, name, &self.text(text));
    }

    fn write(&self, folder: &str, name: &str, text: &str) -> PathBuf {
        fs::create_dir_all(self.at(folder)).unwrap();
        let path = self.at(folder).join(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn here(&self, path: &str) -> String {
        format!("{}{path}", self.folder.path().display())
    }

    /// Moves every path in the text below the machine's directory, unless it is there already.
    fn text(&self, text: &str) -> String {
        let root = self.folder.path().display().to_string();
        ["/etc/", "/opt/", "/run/", "/usr/local/", "/var/lib/"]
            .into_iter()
            .fold(text.to_owned(), |text, folder| text.replace(folder, &format!("{root}{folder}")))
            .replace(&format!("{root}{root}"), &root)
    }
}

fn said(run: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr))
}
