//! `cargo xtask bench tunnel`: compares our server and agent with upstream's, for both frontends.
//!
//! Clients use a Unix socket, and TLS connects server and agent. All four processes run concurrently and are
//! loaded alternately; the load and the endpoints share the machine with them.

mod plane;
mod reliability;

use anyhow::{Context as _, Result};
use landfall_testkit::{Binary, Need, have};

use self::plane::{Bed, Plane, Whose, hold, numbers, program_numbers};
use super::{Bench, Better, median};
use crate::shell;

/// Duration of one measurement, as an argument of the load.
const SECONDS: &str = "3";
const IDLE: usize = 1000;
/// The peer's name in the output.
const UPSTREAM: &str = "konnectivity";

/// Results of one run of the load, one value per figure.
type Figures = Vec<f64>;

/// One output line: name, unit, better direction, and goal.
type Row = (String, &'static str, Better, f64);

pub(super) fn run(bench: &Bench) -> Result<()> {
    if !have(&[Need::Built(Binary::KonnectivityServer), Need::Built(Binary::KonnectivityAgent)]) {
        anyhow::bail!("upstream is not built; hint: `cargo xtask testbed`");
    }
    let build = ["build", "--release", "--locked", "--quiet", "--package"];
    shell::run(shell::cargo().args(build).args(["landfall-tunnel", "--examples"]))?;
    let bed = Bed::new()?;
    for mode in ["http-connect", "grpc"] {
        let (ours, upstream) = (bed.plane(Whose::Ours, mode)?, bed.plane(Whose::Upstreams, mode)?);
        bulk(bench, &ours, &upstream)?;
        dials(bench, &ours, &upstream)?;
        echo(bench, &ours, &upstream)?;
        drop((ours, upstream));
        memory(bench, &bed, mode)?;
        reliability::stalls(bench, &bed, mode)?;
        reliability::farewells(&bed, mode)?;
        reliability::churn(&bed, mode)?;
    }
    reliability::abandons(&bed)?;
    swarm()
}

fn bulk(bench: &Bench, ours: &Plane, upstream: &Plane) -> Result<()> {
    for direction in ["down", "up"] {
        for streams in ["1", "8"] {
            let measure = |plane: &Plane| {
                let before = plane.cpu_seconds()?;
                let moved = numbers(&["bulk", plane.mode, &plane.socket, direction, streams, SECONDS])?;
                let seconds = plane.cpu_seconds()? - before;
                Ok(vec![moved[0], seconds / (moved[1] / 1024.0)])
            };
            let name = format!("{}-{direction}-{streams}", ours.mode);
            let rows = [
                (format!("{name}-rate"), "MiB/s", Better::Higher, 4.0),
                (format!("{name}-cpu"), "s/GiB", Better::Lower, 5.0),
            ];
            side_by_side(bench, &rows, ours, upstream, measure)?;
        }
    }
    Ok(())
}

fn dials(bench: &Bench, ours: &Plane, upstream: &Plane) -> Result<()> {
    for concurrency in ["64", "256"] {
        let measure = |plane: &Plane| {
            let before = plane.cpu_seconds()?;
            let figures = numbers(&["dials", plane.mode, &plane.socket, concurrency, SECONDS])?;
            let seconds: f64 = SECONDS.parse().context("read the time of a measurement")?;
            let each = (plane.cpu_seconds()? - before) * 1e6 / (figures[0] * seconds);
            Ok(vec![figures[0], each])
        };
        let name = format!("{}-dials-{concurrency}", ours.mode);
        let rows = [
            (format!("{name}-rate"), "per s", Better::Higher, 3.0),
            (format!("{name}-cpu"), "us each", Better::Lower, 3.0),
        ];
        side_by_side(bench, &rows, ours, upstream, measure)?;
    }
    Ok(())
}

fn echo(bench: &Bench, ours: &Plane, upstream: &Plane) -> Result<()> {
    let measure = |plane: &Plane| {
        let figures = numbers(&["echo", plane.mode, &plane.socket, "none", SECONDS])?;
        Ok(figures[1..].to_vec())
    };
    let rows = [
        (format!("{}-echo-p50", ours.mode), "us", Better::Lower, 2.0),
        (format!("{}-echo-p99", ours.mode), "us", Better::Lower, 2.0),
    ];
    side_by_side(bench, &rows, ours, upstream, measure)
}

/// Measures the memory of newly started processes.
fn memory(bench: &Bench, bed: &Bed, mode: &'static str) -> Result<()> {
    let measure = |whose| {
        let plane = bed.plane(whose, mode)?;
        let held = hold(&["idle", mode, &plane.socket, &IDLE.to_string()])?;
        let memory = plane.resident_mib()?;
        held.release()?;
        Ok(memory)
    };
    let (ours, upstream) = (|| measure(Whose::Ours), || measure(Whose::Upstreams));
    bench.compare(&format!("{mode}-idle-{IDLE}"), "MiB", Better::Lower, 5.0, UPSTREAM, ours, upstream)
}

fn swarm() -> Result<()> {
    let count = "5000";
    let figures = program_numbers("swarm", &[count])?;
    println!(
        "{count} agents and their server in one process: {:.1} MiB per 1000 agents (both ends), connected in {:.1} s; \
         after a restart of the server all were back in {:.1} s, {:.1} ms of processor each (both ends)",
        figures[0], figures[1], figures[2], figures[3]
    );
    Ok(())
}

/// Measures both alternately and prints a line for each figure.
fn side_by_side(
    bench: &Bench,
    rows: &[Row],
    ours: &Plane,
    upstream: &Plane,
    measure: impl Fn(&Plane) -> Result<Figures>,
) -> Result<()> {
    let (mut our_figures, mut their_figures) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        our_figures.push(measure(ours)?);
        their_figures.push(measure(upstream)?);
    }
    let column = |figures: &[Figures], at: usize| {
        median(&mut figures.iter().filter_map(|round| round.get(at).copied()).collect::<Vec<f64>>())
    };
    for (at, (name, unit, better, goal)) in rows.iter().enumerate() {
        let (ours, theirs) = (column(&our_figures, at), column(&their_figures, at));
        bench.print(name, unit, *better, *goal, UPSTREAM, ours, theirs);
    }
    Ok(())
}
