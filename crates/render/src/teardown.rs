//! Taking the tunnel away again. The order matters: as long as an API server is told to use the tunnel, it has to work.

use crate::Target;
use crate::tunnel::{EGRESS_FOLDER, HOST_FOLDER, K3S_DROP_IN, STATIC_POD, Settings, UNIT};

/// How long objects may take to go, for `kubectl`.
const DELETE_LIMIT: &str = "120s";

/// One thing that is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Plain words joined by hyphens.
    pub name: &'static str,
    pub what: &'static str,
    pub why: &'static str,
    /// Lines of shell, each of them harmless when its work is done already.
    pub commands: Vec<String>,
}

/// What is removed, first things first.
pub fn steps(settings: &Settings) -> Vec<Step> {
    let namespace = &settings.namespace;
    let delete = |what: &str| format!("kubectl delete {what} --ignore-not-found --timeout={DELETE_LIMIT}");
    let agent = format!("landfall-tunnel-agent --namespace={namespace}");
    vec![
        Step {
            name: "egress",
            what: "the API server's egress configuration",
            why: "an API server that still uses the tunnel would lose its webhooks with it",
            commands: egress_commands(settings.target),
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
                .collect(),
        },
        Step {
            name: "server",
            what: "the server",
            why: "no agent is left to call it",
            commands: vec![
                format!("rm -f {STATIC_POD}"),
                format!("if systemctl cat {UNIT} >/dev/null 2>&1; then systemctl disable --now {UNIT}; fi"),
                format!("rm -f /etc/systemd/system/{UNIT}"),
            ],
        },
        Step {
            name: "server-files",
            what: "the server's certificates and socket",
            why: "a credential does not outlive its use",
            commands: vec![format!(
                "rm -rf {EGRESS_FOLDER} {HOST_FOLDER} {}",
                settings.target.socket_folder()
            )],
        },
    ]
}

/// The same as a script that may be run again at any time.
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

fn egress_commands(target: Target) -> Vec<String> {
    match target {
        // Its static pod goes at the end of the bootstrap, and with it what it was told.
        Target::Openshift => vec![
            "for i in $(seq 240); do [ -e /etc/kubernetes/manifests/kube-apiserver-pod.yaml ] || break; sleep 5; done"
                .to_owned(),
            "[ ! -e /etc/kubernetes/manifests/kube-apiserver-pod.yaml ]".to_owned(),
            "rm -f /opt/openshift/landfall-tunnel-config-override.yaml".to_owned(),
        ],
        Target::Kubeadm | Target::Capi => [
            "if [ -e /etc/kubernetes/manifests/kube-apiserver.yaml ]; then".to_owned(),
            "  umask 077".to_owned(),
            // Beside the folder: kubelet would run a second API server from a temporary file in it.
            format!(
                "  sed '\\|--egress-selector-config-file={EGRESS_FOLDER}/|d' \\\n    \
                 /etc/kubernetes/manifests/kube-apiserver.yaml >/etc/kubernetes/kube-apiserver.yaml.new"
            ),
            "  mv /etc/kubernetes/kube-apiserver.yaml.new /etc/kubernetes/manifests/kube-apiserver.yaml".to_owned(),
            "fi".to_owned(),
        ]
        .into_iter()
        .chain(wait_for_api())
        .collect(),
        Target::K3s => {
            [format!("if [ -e {K3S_DROP_IN} ]; then rm -f {K3S_DROP_IN}; systemctl restart k3s; fi")]
                .into_iter()
                .chain(wait_for_api())
                .collect()
        }
    }
}

/// Until the old API server is gone and a new one answers. Without that, nothing further is removed.
fn wait_for_api() -> Vec<String> {
    let old = format!("pgrep -f -- '--egress-selector-config-file={EGRESS_FOLDER}/' >/dev/null");
    let ready = "kubectl get --raw /readyz >/dev/null 2>&1";
    vec![
        format!("for i in $(seq 60); do {old} || break; sleep 5; done"),
        format!("! {old} || {{ echo 'the API server still uses the tunnel' >&2; exit 1; }}"),
        format!("for i in $(seq 60); do {ready} && break; sleep 5; done"),
        format!("{ready} || {{ echo 'the API server does not answer' >&2; exit 1; }}"),
    ]
}
