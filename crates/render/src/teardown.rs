//! Removal of the tunnel.
//!
//! The order matters: the tunnel must work as long as an API server is configured to use it.

use serde_json::json;

use crate::package::{HostFile, Unit as HostUnit, filled, install_script};
use crate::tunnel::{
    self, EGRESS_FLAG, EGRESS_FOLDER, HOST_FOLDER, K3S_DROP_IN, Settings, UNIT, VOLUMES, egress_file,
    static_pod_file,
};
use crate::{Target, installer};

/// An API request with a timeout.
pub(crate) const GET: &str = "kubectl get --request-timeout=10s";
/// The script that runs at the end of the bootstrap, and its service.
pub(crate) const PROGRAM: &str = "/usr/local/bin/landfall-tunnel-teardown.sh";
pub(crate) const SERVICE: &str = "landfall-tunnel-teardown.service";
/// The API server's static pod as created by kubeadm.
const API_SERVER: &str = "/etc/kubernetes/manifests/kube-apiserver.yaml";
/// Marker that the end of the bootstrap was detected, until all is removed. OpenShift has a marker per step.
const OVER: &str = "/var/lib/landfall/tunnel-over";
/// Timeout for the deletion of objects, for `kubectl`.
const DELETE_LIMIT: &str = "120s";

/// One step that waits, removes or checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Lower-case words joined by hyphens.
    pub name: &'static str,
    pub what: &'static str,
    pub why: &'static str,
    /// Shell lines, each of them idempotent.
    pub commands: Vec<String>,
}

/// Returns the steps in their order.
pub fn steps(settings: &Settings) -> Vec<Step> {
    let (namespace, target) = (&settings.namespace, settings.target);
    let delete = |what: &str| format!("kubectl delete {what} --ignore-not-found --timeout={DELETE_LIMIT}");
    let agent = format!("landfall-tunnel-agent --namespace={namespace}");
    let pod = static_pod_file(target);
    let files = files(target).join(" ");
    let install = install_script(tunnel::PACKAGE);
    let wait = settings.completion.as_ref().map(|completion| Step {
        name: "wait",
        what: "wait for the end of the bootstrap",
        why: "until then the API server needs the tunnel",
        commands: completion.wait((target != Target::Openshift).then_some(OVER)),
    });
    let mut steps = Vec::from_iter(wait);
    steps.extend([
        Step {
            name: "egress",
            what: "the API server's egress configuration",
            why: "an API server that still uses the tunnel would lose its webhooks with it",
            commands: egress_commands(target),
        },
        Step {
            name: "agents",
            what: "the agents",
            why: "nothing calls through them any more",
            commands: vec![delete(&format!("daemonset {agent}"))],
        },
        Step {
            name: "credentials",
            what: "the agents' certificate, account and namespace",
            why: "a credential does not outlive its use",
            commands: ["secret", "rolebinding", "serviceaccount"]
                .map(|kind| delete(&format!("{kind} {agent}")))
                .into_iter()
                .chain([delete(&format!("namespace {namespace}"))])
                .chain(
                    (target == Target::Openshift)
                        .then(|| format!("rm -f {}", installer::manifests().join(" "))),
                )
                .collect(),
        },
        Step {
            name: "server",
            what: "the server",
            why: "no agent is left to call it",
            commands: vec![
                format!("rm -f {pod}"),
                format!("if systemctl cat {UNIT} >/dev/null 2>&1; then systemctl disable --now {UNIT}; fi"),
                format!("rm -rf /etc/systemd/system/{UNIT} /etc/systemd/system/{UNIT}.d {install}"),
            ],
        },
        Step {
            name: "server-files",
            what: "the server's certificates and socket",
            why: "a credential does not outlive its use",
            commands: vec![format!("rm -rf {files}")],
        },
        Step {
            name: "verify",
            what: "check that nothing is left",
            why: "what was not seen to be gone is not gone",
            commands: verify(settings),
        },
    ]);
    if settings.completion.is_some() && settings.target != Target::Openshift {
        steps.push(Step {
            name: "itself",
            what: "what did all this",
            why: "it has nothing left to do",
            commands: vec![
                format!("if systemctl cat {SERVICE} >/dev/null 2>&1; then systemctl disable {SERVICE}; fi"),
                format!("rm -f /etc/systemd/system/{SERVICE} {PROGRAM} {OVER}"),
            ],
        });
    }
    steps
}

/// Returns the files that remove the tunnel automatically at the end of the bootstrap. `None` without a
/// signal for it.
pub(crate) fn service(settings: &Settings) -> Option<(HostFile, HostUnit)> {
    let after_bootkube = format!("After=bootkube.service\nConditionPathExists=!{}\n", installer::TORN_DOWN);
    let (text, kubeconfig, condition) = match settings.target {
        Target::Openshift => {
            (installer::teardown(settings), "/opt/openshift/auth/kubeconfig", after_bootkube.as_str())
        }
        _ if settings.completion.is_none() => return None,
        Target::Kubeadm | Target::Capi => (script(settings), "/etc/kubernetes/admin.conf", ""),
        Target::K3s => (script(settings), "/etc/rancher/k3s/k3s.yaml", "After=k3s.service\n"),
    };
    let unit = filled(
        include_str!("../files/tunnel-teardown.service"),
        &[("@CONDITION@", condition), ("@PROGRAM@", PROGRAM), ("@KUBECONFIG@", kubeconfig)],
    );
    Some((HostFile::program(PROGRAM, text), HostUnit { name: SERVICE, text: unit }))
}

/// Returns the steps as a script that may be run repeatedly.
pub fn script(settings: &Settings) -> String {
    let mut text =
        "#!/bin/sh\n# Takes the bootstrap tunnel away. May be run again at any time.\nset -eu\n".to_owned();
    for (number, step) in steps(settings).iter().enumerate() {
        text += &format!("\n# {}. {}: {}\n", number + 1, step.what, step.why);
        for command in &step.commands {
            text += command;
            text.push('\n');
        }
    }
    text
}

/// Returns the directories of the server and of its setup.
pub(crate) fn files(target: Target) -> Vec<&'static str> {
    let mut files = vec![EGRESS_FOLDER, HOST_FOLDER, target.socket_folder()];
    if target == Target::Openshift {
        files.push(installer::HOME);
    }
    files
}

/// Returns shell lines that check for every path and object that was ever installed.
fn verify(settings: &Settings) -> Vec<String> {
    let target = settings.target;
    let mut paths = vec![
        static_pod_file(target),
        format!("/etc/systemd/system/{UNIT}"),
        format!("/etc/systemd/system/{UNIT}.d"),
        install_script(tunnel::PACKAGE),
    ];
    paths.extend(files(target).into_iter().map(str::to_owned));
    let mut looks = Vec::new();
    match target {
        Target::Openshift => {
            paths.extend(installer::leftovers());
            paths.extend(installer::manifests());
            looks.push(installer::look());
        }
        Target::Kubeadm | Target::Capi => {
            looks.push(format!("! {} || left=\"$left {API_SERVER}\"", knows_in_pod(target)));
        }
        Target::K3s => paths.extend([K3S_DROP_IN.to_owned(), format!("{K3S_DROP_IN}.removed")]),
    }
    [
        format!("left=$({GET} namespace {} --ignore-not-found -o name)", settings.namespace),
        format!("for path in {}; do", paths.join(" ")),
        "  [ ! -e \"$path\" ] || left=\"$left $path\"".to_owned(),
        "done".to_owned(),
    ]
    .into_iter()
    .chain(looks)
    .chain(["[ -z \"$left\" ] || { echo \"still there: $left\" >&2; exit 1; }".to_owned()])
    .collect()
}

fn egress_commands(target: Target) -> Vec<String> {
    match target {
        // The API server's static pod is removed at the end of the bootstrap, together with its settings.
        Target::Openshift => [
            "for i in $(seq 240); do [ -e /etc/kubernetes/manifests/kube-apiserver-pod.yaml ] || break; sleep 5; done",
            "[ ! -e /etc/kubernetes/manifests/kube-apiserver-pod.yaml ] || {\n  \
             echo 'the bootstrap API server is still there' >&2\n  exit 1\n}",
        ]
        .map(str::to_owned)
        .into_iter()
        .chain(installer::forget())
        .collect(),
        Target::Kubeadm | Target::Capi => forget_in_pod(target).into_iter().chain(wait_for_api()).collect(),
        Target::K3s => {
            // k3s reads `.yaml` files only. The renamed file records that k3s was not restarted yet.
            let aside = format!("{K3S_DROP_IN}.removed");
            [
                format!("[ ! -e {K3S_DROP_IN} ] || mv {K3S_DROP_IN} {aside}"),
                format!("if [ -e {aside} ]; then systemctl restart k3s; rm -f {aside}; fi"),
            ]
            .into_iter()
            .chain(wait_for_api())
            .collect()
        }
    }
}

/// Returns shell lines that wait until the old API server has stopped and a new one is ready. On a timeout
/// they fail, so that no further step runs.
fn wait_for_api() -> Vec<String> {
    let old = format!("pgrep -f -- '{EGRESS_FLAG}{EGRESS_FOLDER}/' >/dev/null");
    let ready = format!("{GET} --raw /readyz >/dev/null 2>&1");
    let text = filled(include_str!("../files/wait-for-api.sh"), &[("@OLD@", &old), ("@READY@", &ready)]);
    text.lines().map(str::to_owned).collect()
}

/// Returns a shell condition: whether the API server's static pod has the tunnel's flag or a volume. The
/// patterns are exact, because other settings may contain the same word.
fn knows_in_pod(target: Target) -> String {
    let [egress, tunnel] = VOLUMES;
    format!(
        "grep -qs -e '{EGRESS_FLAG}{}' -e 'name: {egress}$' -e 'name: {tunnel}$' {API_SERVER}",
        egress_file(target)
    )
}

/// Returns shell lines that remove the flag, the mounts and the volumes from the API server's static pod.
/// `kubectl` changes the object instead of its text. They exist only there, so neither an upgrade nor a
/// joining control plane restores them.
///
/// The new file is not in the directory of manifests, where the kubelet would run a second API server from it. It is
/// synced before it replaces the working one, so that the API server's manifest survives a power failure.
fn forget_in_pod(target: Target) -> Vec<String> {
    let volumes = VOLUMES.map(|name| json!({"$patch": "delete", "name": name}));
    let mounts =
        [EGRESS_FOLDER, target.socket_folder()].map(|path| json!({"$patch": "delete", "mountPath": path}));
    let text = filled(
        include_str!("../files/forget-in-pod.sh"),
        &[
            ("@KNOWS@", &knows_in_pod(target)),
            ("@API_SERVER@", API_SERVER),
            ("@FLAG@", &format!("{EGRESS_FLAG}{}", egress_file(target))),
            ("@MOUNTS@", &json!(mounts).to_string()),
            ("@VOLUMES@", &json!(volumes).to_string()),
        ],
    );
    text.lines().map(str::to_owned).collect()
}
