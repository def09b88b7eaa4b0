//! Measurement of run time and memory of a program, with its output discarded.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

/// Returns wall-clock seconds; `expected` are the exit codes of success.
pub(super) fn seconds(command: &mut Command, expected: &[i32]) -> Result<f64> {
    let started = Instant::now();
    let status = command.stdout(Stdio::null()).status().context("start the measured program")?;
    let seconds = started.elapsed().as_secs_f64();
    ensure!(
        status.code().is_some_and(|code| expected.contains(&code)),
        "the measured program ended with {status}"
    );
    Ok(seconds)
}

/// Returns the peak memory in MiB; `expected` as above.
pub(super) fn peak_mib(command: &Command, expected: &[i32]) -> Result<f64> {
    let mut timed = Command::new("/usr/bin/time");
    timed.args(["-f", "%M"]).arg(command.get_program()).args(command.get_args()).stdout(Stdio::null());
    let output = timed.output().context("start `/usr/bin/time`; hint: install the package `time`")?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.code().is_some_and(|code| expected.contains(&code)),
        "the measured program ended with {}: {text}",
        output.status
    );
    let kibibytes: f64 =
        text.lines().last().unwrap_or_default().trim().parse().context("read the peak memory")?;
    Ok(kibibytes / 1024.0)
}
