//! Simulated machines: directories with recorded logs, written line by line like real ones.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use jiff::fmt::rfc2822;

use super::cast::Cast;

/// Delay between two lines: slow enough to be watched.
const BEAT: Duration = Duration::from_millis(30);

pub(super) const BOOT_0: &str = include_str!("recorded/boot-0.log");
pub(super) const BOOT_0_MENDED: &str = include_str!("recorded/boot-0-mended.log");
pub(super) const WORKER_WAITS: &str = include_str!("recorded/worker-waits.log");
pub(super) const WORKER_JOINS: &str = include_str!("recorded/worker-joins.log");
pub(super) const WORKER_CLOCK: &str = include_str!("recorded/worker-clock.log");

/// Creates a root directory with a name and an empty log.
pub(super) fn make(cast: &Cast, name: &str, number: usize) -> Result<()> {
    cast.write(&format!("{name}/etc/hostname"), &format!("{name}\n"))?;
    cast.write(&format!("{name}/etc/machine-id"), &format!("{number:032x}\n"))?;
    cast.write(&format!("{name}/etc/os-release"), "PRETTY_NAME=\"Demo Linux (a folder)\"\nID=demo\n")?;
    let boot = format!("00000000-0000-4000-8000-{number:012x}\n");
    cast.write(&format!("{name}/proc/sys/kernel/random/boot_id"), &boot)?;
    cast.write(&format!("{name}/var/log/cloud-init-output.log"), "")
}

/// Writes the recorded logs of several machines concurrently.
pub(super) async fn say(cast: &Cast, told: &[(&str, &str)]) -> Result<()> {
    let now = Timestamp::now();
    let rfc = rfc2822::to_string(&now.to_zoned(jiff::tz::TimeZone::UTC)).context("say the time")?;
    let longest = told.iter().map(|(_, recorded)| recorded.lines().count()).max().unwrap_or(0);
    for number in 0..longest {
        for (name, recorded) in told {
            let Some(line) = recorded.lines().nth(number) else { continue };
            let line = line.replace("@NOW@", &rfc).replace("@STARTED@", &format!("{now:.0}"));
            let path = cast.path(&format!("{name}/var/log/cloud-init-output.log"));
            let mut log = OpenOptions::new().append(true).open(&path);
            let log = log.as_mut().map_err(|error| std::io::Error::from(error.kind()));
            let written = log.and_then(|log| writeln!(log, "{line}"));
            written.with_context(|| format!("write `{}`", path.display()))?;
        }
        tokio::time::sleep(BEAT).await;
    }
    Ok(())
}

/// Returns ports that are free at this moment.
pub(super) fn ports<const COUNT: usize>() -> Result<[u16; COUNT]> {
    // Reserved concurrently, so that they differ.
    let mut held = Vec::new();
    let mut ports = [0; COUNT];
    for port in &mut ports {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").context("find a free port")?;
        *port = listener.local_addr().context("find a free port")?.port();
        held.push(listener);
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_logs_hold_nothing_but_the_two_times_to_fill_in() {
        for recorded in [BOOT_0, BOOT_0_MENDED, WORKER_WAITS, WORKER_JOINS, WORKER_CLOCK] {
            let rest = recorded.replace("@NOW@", "").replace("@STARTED@", "");
            assert!(!rest.contains('@') && recorded.ends_with('\n'), "{rest}");
        }
    }
}
