//! Taking the tunnel away again. The order matters: as long as an API server is told to use the tunnel, it has to work.

use crate::package::{HostFile, Unit as HostUnit};
use crate::tunnel::{EGRESS_FOLDER, HOST_FOLDER, K3S_DROP_IN, Settings, UNIT, static_pod_file};
use crate::{Target, installer};

/// A question to the API server that ends by itself.
pub(crate) const GET: &str = "kubectl get --request-timeout=10s";
/// What does it when the bootstrap is over, and what starts that.
pub(crate) const PROGRAM: &str = "/usr/local/bin/landfall-tunnel-teardown.sh";
pub(crate) const SERVICE: &str = "landfall-tunnel-teardown.service";
/// How long objects may take to go, for `kubectl`.
const DELETE_LIMIT: &str = "120s";

/// One thing that is waited for, removed or looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Plain words joined by hyphens.
    pub name: &'static str,
    pub what: &'static str,
    pub why: &'static str,
    /// Lines of shell, each of them harmless when its work is done already.
    pub commands: Vec<String>,
}

/// What is done, first things first.
pub fn steps(settings: &Settings) -> Vec<Step> {
    let namespace = &settings.namespace;
    let delete = |what: &str| format!("kubectl delete {what} --ignore-not-found --timeout={DELETE_LIMIT}");
    let agent = format!("landfall-tunnel-agent --namespace={namespace}");
    let pod = static_pod_file(settings.target);
    let files = [EGRESS_FOLDER, HOST_FOLDER, settings.target.socket_folder()].join(" ");
    let wait = settings.completion.as_ref().map(|completion| Step {
        name: "wait",
        what: "wait for the end of the bootstrap",
        why: "until then the API server needs the tunnel",
        commands: completion.wait(),
    });
    let mut steps = Vec::from_iter(wait);
    steps.extend([
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
                format!("rm -f {pod}"),
                format!("if systemctl cat {UNIT} >/dev/null 2>&1; then systemctl disable --now {UNIT}; fi"),
                format!("rm -f /etc/systemd/system/{UNIT}"),
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
            what: "look whether anything is left",
            why: "what was not seen to be gone is not gone",
            commands: vec![
                format!("left=$({GET} namespace {namespace} --ignore-not-found -o name)"),
                format!("for path in {pod} /etc/systemd/system/{UNIT} {files}; do"),
                "  [ ! -e \"$path\" ] || left=\"$left $path\"".to_owned(),
                "done".to_owned(),
                "[ -z \"$left\" ] || { echo \"still there: $left\" >&2; exit 1; }".to_owned(),
            ],
        },
    ]);
    if settings.completion.is_some() && settings.target != Target::Openshift {
        steps.push(Step {
            name: "itself",
            what: "what did all this",
            why: "it has nothing left to do",
            commands: vec![
                format!("if systemctl cat {SERVICE} >/dev/null 2>&1; then systemctl disable {SERVICE}; fi"),
                format!("rm -f /etc/systemd/system/{SERVICE} {PROGRAM}"),
            ],
        });
    }
    steps
}

/// What lies on the host to do it by itself when the bootstrap is over, if anything tells that.
pub(crate) fn service(settings: &Settings) -> Option<(HostFile, HostUnit)> {
    let (text, kubeconfig, condition) = match settings.target {
        Target::Openshift => (
            installer::teardown(settings),
            "/opt/openshift/auth/kubeconfig",
            "After=bootkube.service\nConditionPathExists=!/opt/openshift/landfall-tunnel-teardown.done\n",
        ),
        _ if settings.completion.is_none() => return None,
        Target::Kubeadm | Target::Capi => (script(settings), "/etc/kubernetes/admin.conf", ""),
        Target::K3s => (script(settings), "/etc/rancher/k3s/k3s.yaml", "After=k3s.service\n"),
    };
    let unit = format!(
        "[Unit]\n\
         Description=Take the bootstrap tunnel away when the bootstrap is over\n\
         {condition}\
         StartLimitIntervalSec=0\n\n\
         [Service]\n\
         Type=exec\n\
         ExecStart={PROGRAM}\n\
         Environment=KUBECONFIG={kubeconfig}\n\
         Restart=on-failure\n\
         RestartSec=5s\n\n\
         [Install]\n\
         WantedBy=multi-user.target\n"
    );
    Some((HostFile::program(PROGRAM, text), HostUnit { name: SERVICE, text: unit }))
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
            "[ ! -e /etc/kubernetes/manifests/kube-apiserver-pod.yaml ] || {\n  \
             echo 'the bootstrap API server is still there' >&2\n  exit 1\n}"
                .to_owned(),
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
        .chain(forget_in_kubeadm())
        .collect(),
        Target::K3s => {
            // k3s reads no other file than `.yaml`. What was set aside tells the next run that k3s has not heard of it yet.
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

/// Until the old API server is gone and a new one answers. Without that, nothing further is removed.
fn wait_for_api() -> Vec<String> {
    let old = format!("pgrep -f -- '--egress-selector-config-file={EGRESS_FOLDER}/' >/dev/null");
    let ready = format!("{GET} --raw /readyz >/dev/null 2>&1");
    vec![
        format!("for i in $(seq 60); do {old} || break; sleep 5; done"),
        format!("! {old} || {{ echo 'the API server still uses the tunnel' >&2; exit 1; }}"),
        format!("for i in $(seq 60); do {ready} && break; sleep 5; done"),
        format!("{ready} || {{ echo 'the API server does not answer' >&2; exit 1; }}"),
    ]
}

/// kubeadm would bring the flag back with the next upgrade.
fn forget_in_kubeadm() -> Vec<String> {
    vec![
        format!(
            "config=$({GET} configmap kubeadm-config --namespace=kube-system --ignore-not-found -o yaml)"
        ),
        "case $config in *egress-selector-config-file*)".to_owned(),
        // As a list since v1beta4, as a map before.
        "  printf '%s\\n' \"$config\" | sed -e '/^ *- name: egress-selector-config-file$/{N;d;}' \\\n    \
         -e '/^ *egress-selector-config-file: /d' | kubectl replace -f - ;;"
            .to_owned(),
        "esac".to_owned(),
    ]
}
