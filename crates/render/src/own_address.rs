//! A tunnel whose address is not known beforehand.
//!
//! Some machines get their addresses only when they are created. The OpenShift bootstrap host determines its
//! own address and issues certificates for it. It installs all dependent files before bootkube starts. The
//! rendered files contain no key and are the same for every cluster.

use crate::download::PROGRAM;
use crate::installer::{self, HOME, MANIFESTS, OVERRIDE};
use crate::names;
use crate::package::{HostFile, install_script};
use crate::tunnel::{self, HOST_FOLDER, RunAs, Settings, UNIT, egress_file, static_pod_file};

pub(crate) const SCRIPT: &str = "/usr/local/bin/landfall-tunnel-bootstrap.sh";
/// Time limit for external downloads, as a `timeout` command. systemd tolerates failures of bootkube's
/// pre-commands but not their timeout, so an unresponsive registry would prevent the start of bootkube.
const FETCH_LIMIT: &str = "timeout -k 10 300";

/// One stage of the script. Like those of bootkube, it leaves a marker and a record.
struct Stage {
    name: &'static str,
    what: &'static str,
    commands: Vec<String>,
}

/// Returns the script and the drop-in that runs it before bootkube. bootkube's pre-commands have 90 s by
/// default, and the image may have to be pulled. The timeout here exceeds the script's maximum: one minute
/// for the address, then [`FETCH_LIMIT`]. bootkube continues if the script fails: a bootstrap without a
/// tunnel is better than a failed one.
pub(crate) fn files(settings: &Settings, days: u32) -> Vec<HostFile> {
    let drop_in = installer::drop_in(&format!("ExecStartPre=-{SCRIPT}\nTimeoutStartSec=10min\n"));
    vec![HostFile::program(SCRIPT, script(settings, days)), drop_in]
}

fn script(settings: &Settings, days: u32) -> String {
    let mut text = format!(
        "{}# Makes the tunnel of this bootstrap, with certificates for the address this host has. May be run again at any time.\n\
         export PRE_COMMAND=landfall-tunnel-bootstrap\n\
         {}\
         {}\
         home={HOME}\n\
         {ADDRESS}\n{PUT}",
        installer::BEGIN,
        installer::RECORDS,
        installer::not_in_place(),
    );
    for Stage { name, what, commands } in stages(settings, days) {
        let stage = format!("landfall-tunnel-{name}");
        let mark = format!("/opt/openshift/{stage}.done");
        text += &format!("\n# {what}\nif [ ! -e {mark} ]; then\n  record_service_stage_start {stage}\n");
        for line in commands.iter().flat_map(|command| command.lines()) {
            text += &format!("  {line}\n");
        }
        text += &format!("  record_service_stage_success\n  touch {mark}\nfi\n");
    }
    text
}

/// Returns the stages, each of which needs the previous ones. The API server uses the tunnel only after its
/// server is installed.
fn stages(settings: &Settings, days: u32) -> Vec<Stage> {
    let target = settings.target;
    let from_host = |path: &str| format!("put \"$home/host{path}\" {path}");
    let mut server: Vec<String> =
        ["ca.crt", "server.crt", "server.key"].map(|name| from_host(&format!("{HOST_FOLDER}/{name}"))).into();
    server.push(from_host(&egress_file(target)));
    match settings.run_as {
        RunAs::Pod => server.push(from_host(&static_pod_file(target))),
        RunAs::Unit => server.extend([
            from_host(&format!("/etc/systemd/system/{UNIT}")),
            "systemctl daemon-reload".to_owned(),
            // Does not wait, because bootkube itself is still starting.
            format!("systemctl enable --now --no-block {UNIT}"),
        ]),
    }
    vec![
        Stage {
            name: "certs",
            what: "The address, and in one step everything that depends on it: the CA key is not kept",
            commands: certificates(settings, days),
        },
        Stage { name: "server-bootstrap", what: "The server", commands: server },
        Stage {
            name: "override",
            what: "What the API server is rendered with",
            commands: vec![from_host(OVERRIDE), installer::add_flag()],
        },
        Stage {
            name: "agent-manifest",
            what: "The agents, for cluster-bootstrap to apply",
            commands: vec![format!(
                "for file in \"$home\"/manifests/*.yaml; do put \"$file\" \"{MANIFESTS}/${{file##*/}}\"; done"
            )],
        },
    ]
}

fn certificates(settings: &Settings, days: u32) -> Vec<String> {
    let image = names::shell_word(&settings.image);
    let install = install_script(tunnel::PACKAGE);
    let (namespace, port, run_as) = (&settings.namespace, settings.agent_port, settings.run_as.name());
    let words = format!(
        "render tunnel --for openshift --server \"$address\" \\\n  \
         --image {image} --run-as {run_as} --namespace {namespace} --agent-port {port} --days {days}"
    );
    let mut commands = vec![
        "address=".to_owned(),
        "for i in $(seq 30); do address=$(own_address) && break; sleep 2; done".to_owned(),
        "[ -n \"$address\" ] || { echo 'this host has no address that nodes could call' >&2; exit 1; }"
            .to_owned(),
        "echo \"nodes call the tunnel at $address\"".to_owned(),
        "rm -rf \"$home\" \"$home.new\"".to_owned(),
        "mkdir -m 0700 \"$home.new\"".to_owned(),
    ];
    match settings.run_as {
        RunAs::Pod => commands.push(format!(
            "{FETCH_LIMIT} podman run --quiet --rm --net=none --user 0 --entrypoint /landfall --volume \"$home.new:/out:z\" {image} \\\n  \
             {words} -o /out"
        )),
        RunAs::Unit => commands.extend([
            format!("[ ! -x {install} ] || {FETCH_LIMIT} {install}"),
            format!("{PROGRAM} {words} -o \"$home.new\""),
        ]),
    }
    commands.push("mv \"$home.new\" \"$home\"".to_owned());
    commands
}

/// Finds the address as the installer's own scripts do. It is the kubelet's setting, else the source address
/// of outgoing packets.
const ADDRESS: &str = include_str!("../files/own-address.sh");

const PUT: &str = include_str!("../files/put.sh");
