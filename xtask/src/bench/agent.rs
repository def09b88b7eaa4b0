//! Benchmark of the idle node agent after it delivered its report, measured against limits because there is
//! no comparable program.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use landfall_testkit::Process;

use super::{Bench, Better};
use crate::first_boot::FirstBoot;

/// Anonymous memory; pages of the binary belong to the page cache.
const MEMORY_BAR_MIB: f64 = 10.0;
const CORE_BAR_PERCENT: f64 = 1.0;
/// Log size that a first boot produces before it is idle.
const LOG: usize = 64 << 20;
const START_LIMIT: Duration = Duration::from_mins(2);
/// Long enough that a clock tick is less than a tenth of a percent.
const WATCHED: Duration = Duration::from_secs(20);
/// Interval at which memory is read while the agent works.
const SAMPLE: Duration = Duration::from_millis(20);
/// Linux' clock tick rate for process times.
const TICKS_PER_SECOND: f64 = 100.0;

pub(super) fn run(bench: &Bench) -> Result<()> {
    let program = bench.program()?;
    let boot = FirstBoot::new(LOG)?;
    let _hub = boot.hub(&program)?;
    let mut agent = boot.agent(&program)?;
    let done = AtomicBool::new(false);
    let peak = std::thread::scope(|scope| {
        let peak = scope.spawn({
            let (id, done) = (agent.id(), &done);
            move || peak_mib(id, done)
        });
        let told = boot.until_told(&mut agent, START_LIMIT);
        done.store(true, Ordering::Relaxed);
        let peak = peak.join().map_err(|_| anyhow!("the thread that samples memory panicked"))?;
        told.and(Ok(peak))
    })?;
    let core = || core_percent(&agent);
    bench.compare("at-rest-core", "%", Better::Lower, 1.0, "bar", core, || Ok(CORE_BAR_PERCENT))?;
    let rest = || anonymous_mib(agent.id());
    for (metric, memory) in [
        ("at-rest-anonymous-memory", &rest as &dyn Fn() -> Result<f64>),
        ("peak-anonymous-memory-64MiB-of-logs", &|| Ok(peak)),
    ] {
        bench.compare(metric, "MiB", Better::Lower, 1.0, "bar", memory, || Ok(MEMORY_BAR_MIB))?;
    }
    Ok(())
}

/// Returns the largest sample until `done`.
fn peak_mib(id: u32, done: &AtomicBool) -> f64 {
    let mut peak: f64 = 0.0;
    while !done.load(Ordering::Relaxed) {
        peak = peak.max(anonymous_mib(id).unwrap_or_default());
        std::thread::park_timeout(SAMPLE);
    }
    peak
}

/// Returns the use of one core while idle.
fn core_percent(agent: &Process) -> Result<f64> {
    let (before, started) = (ticks(agent)?, Instant::now());
    while let Some(left) = WATCHED.checked_sub(started.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
    let used = (ticks(agent)? - before) / TICKS_PER_SECOND;
    Ok(100.0 * used / started.elapsed().as_secs_f64())
}

/// Returns user and system time so far.
fn ticks(agent: &Process) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", agent.id())).context("look at the agent")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    ensure!(fields.len() > 12, "the kernel tells less of processes than it should");
    Ok(fields[11].parse::<f64>()? + fields[12].parse::<f64>()?)
}

fn anonymous_mib(id: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).context("read the agent's status")?;
    let value = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let value = value.and_then(|value| value.split_whitespace().next()).context("find its memory")?;
    Ok(value.parse::<f64>()? / 1024.0)
}
