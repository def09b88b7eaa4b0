//! The tunnel as a part of the OpenShift installer's bootstrap: what makes its bootkube know of the tunnel, and the service
//! that takes it away, both with records as the installer's own services keep them.

use crate::package::{HostFile, Unit};
use crate::teardown::steps;
use crate::tunnel::Settings;

/// Where the settings for the API server's renderer lie on the host.
pub(crate) const OVERRIDE: &str = "/opt/openshift/landfall-tunnel-config-override.yaml";
const PRE_COMMAND: &str = "/usr/local/bin/landfall-tunnel-egress.sh";
const TEARDOWN: &str = "/usr/local/bin/landfall-tunnel-teardown.sh";
const TEARDOWN_UNIT: &str = "landfall-tunnel-teardown.service";

/// The installer's library of records, and how its scripts begin.
const BEGIN: &str = "#!/usr/bin/env bash\nset -euo pipefail\n";
const RECORDS: &str = ". /usr/local/bin/bootstrap-service-record.sh\n";

pub(crate) fn files(settings: &Settings) -> Vec<HostFile> {
    let program = |path: &str, text: String| HostFile { mode: 0o755, ..HostFile::open(path, text) };
    vec![
        program(PRE_COMMAND, pre_command()),
        program(TEARDOWN, teardown(settings)),
        HostFile::open("/etc/systemd/system/bootkube.service.d/10-landfall-tunnel.conf", drop_in()),
    ]
}

pub(crate) fn unit() -> Unit {
    let text = format!(
        "[Unit]\n\
         Description=Take the bootstrap tunnel away when the bootstrap is over\n\
         After=bootkube.service\n\
         ConditionPathExists=!/opt/openshift/landfall-tunnel-teardown.done\n\n\
         [Service]\n\
         Type=exec\n\
         ExecStart={TEARDOWN}\n\
         Environment=KUBECONFIG=/opt/openshift/auth/kubeconfig\n\
         Restart=on-failure\n\
         RestartSec=5s\n\n\
         [Install]\n\
         WantedBy=multi-user.target\n"
    );
    Unit { name: TEARDOWN_UNIT, text }
}

/// bootkube goes on when the flag cannot be set: a bootstrap without a tunnel is better than none.
fn drop_in() -> String {
    format!("[Unit]\nWants={TEARDOWN_UNIT}\n\n[Service]\nExecStartPre=-{PRE_COMMAND}\n")
}

/// Adds one flag to the call of the API server's renderer, once.
fn pre_command() -> String {
    format!(
        "{BEGIN}# Tells the API server's renderer of the tunnel. May be run again at any time.\n\
         export PRE_COMMAND=landfall-tunnel-egress\n\
         {RECORDS}\
         script=${{LANDFALL_BOOTKUBE:-/usr/local/bin/bootkube.sh}}\n\
         flag=--config-override-files=/assets/{}\n\
         if grep -q -e \"$flag\" \"$script\"; then exit 0; fi\n\
         sed \"s|/usr/bin/cluster-kube-apiserver-operator render \\\\\\\\\\$|&\\n      $flag \\\\\\\\|\" \"$script\" >\"$script.landfall\"\n\
         if ! grep -q -e \"$flag\" \"$script.landfall\"; then\n  \
           rm -f \"$script.landfall\"\n  \
           echo \"$script calls the renderer in a way that is not known: the API server will not use the tunnel\" >&2\n  \
           exit 1\n\
         fi\n\
         chmod --reference=\"$script\" \"$script.landfall\"\n\
         mv \"$script.landfall\" \"$script\"\n",
        OVERRIDE.trim_start_matches("/opt/openshift/"),
    )
}

/// The same steps as in the script for people, each a stage with a mark that it is done.
fn teardown(settings: &Settings) -> String {
    let mut text = format!(
        "{BEGIN}# Takes the bootstrap tunnel away when the bootstrap is over. May be run again at any time.\n\
         {RECORDS}\
         done_folder=${{LANDFALL_DONE:-/opt/openshift}}\n\n\
         if [ ! -e \"$done_folder/.bootkube.done\" ]; then\n  \
           record_service_stage_start landfall-tunnel-wait\n  \
           until [ -e \"$done_folder/.bootkube.done\" ]; do sleep 5; done\n  \
           record_service_stage_success\n\
         fi\n"
    );
    for step in steps(settings) {
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
