//! The tunnel as part of the OpenShift installer's bootstrap.
//!
//! It consists of the settings that make bootkube use the tunnel, and the service that removes it. Both write
//! records like the installer's own services.

use crate::package::{HostFile, filled};
use crate::teardown::{self, SERVICE, steps};
use crate::tunnel::{Settings, UNIT, static_pod_file};
use crate::{Completion, Target, own_address};

/// Path of the settings for the API server's renderer on the host.
pub(crate) const OVERRIDE: &str = "/opt/openshift/landfall-tunnel-config-override.yaml";
/// Directory of the manifests that cluster-bootstrap applies.
pub(crate) const MANIFESTS: &str = "/opt/openshift/manifests";
/// Directory of the files that a host renders for its own address.
pub(crate) const HOME: &str = "/opt/openshift/landfall-tunnel";
const PRE_COMMAND: &str = "/usr/local/bin/landfall-tunnel-egress.sh";
const BOOTKUBE: &str = "/usr/local/bin/bootkube.sh";
const DROP_INS: &str = "/etc/systemd/system/bootkube.service.d";
/// Marker that the tunnel was removed, or never existed.
pub(crate) const TORN_DOWN: &str = "/opt/openshift/landfall-tunnel-teardown.done";

/// The installer's library of records, and the beginning of its scripts.
pub(crate) const BEGIN: &str = "#!/usr/bin/env bash\nset -euo pipefail\n";
pub(crate) const RECORDS: &str = ". /usr/local/bin/bootstrap-service-record.sh\n";

/// bootkube continues if the flag cannot be set: a bootstrap without a tunnel is better than a failed one.
pub(crate) fn files() -> Vec<HostFile> {
    let script = format!(
        "{BEGIN}# Tells the API server's renderer of the tunnel. May be run again at any time.\n\
         export PRE_COMMAND=landfall-tunnel-egress\n\
         {RECORDS}\
         {}\
         {}",
        not_in_place(),
        add_flag()
    );
    let drop_in = drop_in(&format!("ExecStartPre=-{PRE_COMMAND}\n"));
    vec![HostFile::program(PRE_COMMAND, script), drop_in]
}

/// Returns the drop-in that connects bootkube with the tunnel.
pub(crate) fn drop_in(service: &str) -> HostFile {
    let text = format!("[Unit]\nWants={SERVICE}\n\n[Service]\n{service}");
    HostFile::open(format!("{DROP_INS}/10-landfall-tunnel.conf"), text)
}

/// Returns shell lines that end the script on a host that becomes a node of its own cluster. Such a host
/// copies all files in the directory of the API server's pod to the node. The copy would fail on the socket,
/// and the node's API server would keep the tunnel's settings. Files that Ignition has written are removed
/// before they are copied or applied.
pub(crate) fn not_in_place() -> String {
    let pod = static_pod_file(Target::Openshift);
    let files = [teardown::files(Target::Openshift).join(" "), manifests().join(" ")].join(" ");
    filled(
        include_str!("../files/not-in-place.sh"),
        &[
            ("@BOOTKUBE@", BOOTKUBE),
            ("@TORN_DOWN@", TORN_DOWN),
            ("@POD@", &pod),
            ("@OVERRIDE@", OVERRIDE),
            ("@UNIT@", UNIT),
            ("@FILES@", &files),
        ],
    )
}

/// Returns shell lines that add the flag to the call of the API server's renderer, once.
pub(crate) fn add_flag() -> String {
    filled(include_str!("../files/add-flag.sh"), &[("@FLAG@", &flag())])
}

fn flag() -> String {
    format!("--config-override-files=/assets/{}", OVERRIDE.trim_start_matches("/opt/openshift/"))
}

/// Returns shell lines that disconnect bootkube from the tunnel. A running bootkube has already read its
/// script.
pub(crate) fn forget() -> Vec<String> {
    let text = filled(
        include_str!("../files/forget.sh"),
        &[("@FLAG@", &flag()), ("@BOOTKUBE@", BOOTKUBE), ("@LEFTOVERS@", &leftovers().join(" "))],
    );
    text.lines().map(str::to_owned).collect()
}

/// Returns the files that only bootkube and its renderer read.
pub(crate) fn leftovers() -> [String; 5] {
    [
        OVERRIDE.to_owned(),
        PRE_COMMAND.to_owned(),
        own_address::SCRIPT.to_owned(),
        format!("{DROP_INS}/10-landfall-tunnel.conf"),
        format!("{DROP_INS}/20-landfall-tunnel.conf"),
    ]
}

/// Returns the paths of the agents' manifests, which contain their key. The first is the directory from which
/// they are applied. bootkube copies them to the second for the machine config controller.
pub(crate) fn manifests() -> [String; 2] {
    [MANIFESTS, "/etc/mcc/bootstrap"].map(|folder| format!("{folder}/*-landfall-tunnel-*.yaml"))
}

/// Returns a shell line that reports bootkube's script if it still has the flag.
pub(crate) fn look() -> String {
    format!("! grep -qs -e {} {BOOTKUBE} || left=\"$left {BOOTKUBE}\"", flag())
}

/// Returns the steps of the manual script, each as a stage with a completion marker.
pub(crate) fn teardown(settings: &Settings) -> String {
    let mut text = format!(
        "{BEGIN}# Takes the bootstrap tunnel away when the bootstrap is over. May be run again at any time.\n\
         {RECORDS}\
         done_folder=${{LANDFALL_DONE:-/opt/openshift}}\n"
    );
    let completion = settings.completion.clone().or_else(|| Some(Completion::of_bootkube()));
    let settings = Settings { completion, ..settings.clone() };
    for step in steps(&settings) {
        let stage = format!("landfall-tunnel-{}", step.name);
        text +=
            &format!("\n# {}: {}\nif [ ! -e \"$done_folder/{stage}.done\" ]; then\n", step.what, step.why);
        text += &format!("  record_service_stage_start {stage}\n");
        for command in &step.commands {
            for line in command.lines() {
                text += &format!("  {line}\n");
            }
        }
        text += &format!("  record_service_stage_success\n  touch \"$done_folder/{stage}.done\"\nfi\n");
    }
    text + "\ntouch \"$done_folder/landfall-tunnel-teardown.done\"\n"
}
