//! The node agent at rest: what it costs a machine that has said what it had to say. Against the bar, for want of a peer.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use landfall_testkit::Process;

use super::{Bench, Better};
use crate::first_boot::FirstBoot;

const MEMORY_BAR_MIB: f64 = 15.0;
const CORE_BAR_PERCENT: f64 = 1.0;
/// What a first boot may say before it comes to rest.
const LOG: usize = 64 << 20;
const START_LIMIT: Duration = Duration::from_mins(2);
/// Long enough that a tick of the clock is no tenth of a percent.
const WATCHED: Duration = Duration::from_secs(20);
/// The kernel's clock for processes, wherever Linux runs.
const TICKS_PER_SECOND: f64 = 100.0;

pub(super) fn run(bench: &Bench) -> Result<()> {
    let program = bench.program()?;
    let boot = FirstBoot::new(LOG)?;
    let _hub = boot.hub(&program)?;
    let mut agent = boot.agent(&program, &[])?;
    boot.until_told(&mut agent, START_LIMIT)?;
    let core = || core_percent(&agent);
    bench.compare("at-rest-core", "%", Better::Lower, 1.0, "bar", core, || Ok(CORE_BAR_PERCENT))?;
    for (metric, field) in [("at-rest-memory", "VmRSS:"), ("peak-memory-64MiB-of-logs", "VmHWM:")] {
        let memory = || memory_mib(&agent, field);
        bench.compare(metric, "MiB", Better::Lower, 1.0, "bar", memory, || Ok(MEMORY_BAR_MIB))?;
    }
    Ok(())
}

/// Of one core, while nothing happens.
fn core_percent(agent: &Process) -> Result<f64> {
    let (before, started) = (ticks(agent)?, Instant::now());
    while let Some(left) = WATCHED.checked_sub(started.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
    let used = (ticks(agent)? - before) / TICKS_PER_SECOND;
    Ok(100.0 * used / started.elapsed().as_secs_f64())
}

/// User and system time so far.
fn ticks(agent: &Process) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", agent.id())).context("look at the agent")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    ensure!(fields.len() > 12, "the kernel tells less of processes than it should");
    Ok(fields[11].parse::<f64>()? + fields[12].parse::<f64>()?)
}

fn memory_mib(agent: &Process, field: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{}/status", agent.id())).context("look at the agent")?;
    let value = status.lines().find_map(|line| line.strip_prefix(field));
    let value = value.and_then(|value| value.split_whitespace().next()).context("find its memory")?;
    Ok(value.parse::<f64>()? / 1024.0)
}
