//! The tunnel as a part of the OpenShift installer's bootstrap: what makes its bootkube know of the tunnel, and the service
//! that takes it away, both with records as the installer's own services keep them.

use crate::Completion;
use crate::package::HostFile;
use crate::teardown::{SERVICE, steps};
use crate::tunnel::Settings;

/// Where the settings for the API server's renderer lie on the host.
pub(crate) const OVERRIDE: &str = "/opt/openshift/landfall-tunnel-config-override.yaml";
const PRE_COMMAND: &str = "/usr/local/bin/landfall-tunnel-egress.sh";

/// The installer's library of records, and how its scripts begin.
const BEGIN: &str = "#!/usr/bin/env bash\nset -euo pipefail\n";
const RECORDS: &str = ". /usr/local/bin/bootstrap-service-record.sh\n";

pub(crate) fn files() -> Vec<HostFile> {
    vec![
        HostFile::program(PRE_COMMAND, pre_command()),
        HostFile::open("/etc/systemd/system/bootkube.service.d/10-landfall-tunnel.conf", drop_in()),
    ]
}

/// bootkube goes on when the flag cannot be set: a bootstrap without a tunnel is better than none.
fn drop_in() -> String {
    format!("[Unit]\nWants={SERVICE}\n\n[Service]\nExecStartPre=-{PRE_COMMAND}\n")
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
