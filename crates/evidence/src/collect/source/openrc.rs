//! OpenRC services by state: each state is a directory of links in `/run/openrc`.

use std::fmt::Write as _;

use super::Source;
use crate::collect::forbidden;
use crate::collect::host::Host;
use crate::collect::piece::Trouble;
use crate::collect::sink::{Sink, shown};

const STATES: [&str; 8] =
    ["failed", "starting", "inactive", "stopping", "scheduled", "wasinactive", "hotplugged", "started"];

pub(super) struct Openrc {
    pub(super) to: String,
}

// === impl Openrc ===

impl Source for Openrc {
    fn collect(&self, host: &Host, sink: &mut Sink) -> Result<(), Trouble> {
        host.list("/run/openrc")?;
        let level = forbidden::fact(host, "/run/openrc/softlevel");
        let mut text = format!("runlevel: {}\n", shown(level.as_deref().unwrap_or("unknown")));
        for state in STATES {
            for service in host.list(format!("/run/openrc/{state}")).unwrap_or_default() {
                sink.time_left()?;
                let service = shown(&service.to_string_lossy());
                // OpenRC's daemon file names the process of a supervised or started service.
                let daemon =
                    forbidden::fact(host, format!("/run/openrc/daemons/{service}/001")).unwrap_or_default();
                let pidfile =
                    daemon.lines().find_map(|line| line.strip_prefix("pidfile=")).unwrap_or_default();
                // The daemon chooses the file name, so its content is included only if it is a number.
                let pid = if pidfile.is_empty() { None } else { forbidden::fact(host, pidfile) };
                let pid = pid.filter(|pid| pid.parse::<u32>().is_ok());
                let crashed = state == "started"
                    && pid
                        .as_deref()
                        .is_some_and(|pid| host.exists("/proc/self") && !host.exists(format!("/proc/{pid}")));
                let state = if crashed { "crashed" } else { state };
                // Writing to a string cannot fail.
                let _ = writeln!(
                    text,
                    "{state:<12} {service}{}",
                    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
                );
            }
        }
        sink.text(&self.to, "/run/openrc", &text);
        Ok(())
    }
}
