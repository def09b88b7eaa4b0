//! Reliability benchmark for upstream's defects: stalls, leaks and lost bytes.
//!
//! The goals are absolute; upstream's results are printed next to ours.

use std::time::Duration;

use anyhow::Result;
use landfall_testkit::eventually;

use super::plane::{Bed, Plane, Whose, hold, numbers};
use super::{Bench, Better, SECONDS, UPSTREAM};

const ABANDONED: usize = 1000;
const FAREWELLS: usize = 1000;
/// Upstream loses bytes in almost every run; this many are sufficient to show it.
const UPSTREAM_FAREWELLS: usize = 100;
const CHURN: usize = 100_000;
/// Warm-up before the first measurement, until allocators and tables have reached their size.
const WARM: usize = 5000;
/// Limit of the goal.
const AFTER_ABANDON: Duration = Duration::from_secs(5);

/// Stops reading one tunnel at either end, and measures the round trips of another.
pub(super) fn stalls(bench: &Bench, bed: &Bed, mode: &'static str) -> Result<()> {
    let (ours, upstream) = (bed.plane(Whose::Ours, mode)?, bed.plane(Whose::Upstreams, mode)?);
    let echo = |plane: &Plane, neighbour| numbers(&["echo", mode, &plane.socket, neighbour, SECONDS]);
    for neighbour in ["frontend", "endpoint"] {
        let (mut rates, mut alone_rates, mut tails, mut alone_tails) = (vec![], vec![], vec![], vec![]);
        for _ in 0..bench.rounds {
            let alone = echo(&ours, "none")?;
            let beside = echo(&ours, neighbour)?;
            rates.push(beside[0]);
            alone_rates.push(alone[0]);
            tails.push(beside[2]);
            alone_tails.push(alone[2]);
        }
        let middle = |values: &mut Vec<f64>| super::median(values);
        let name = format!("{mode}-stalled-{neighbour}");
        let (rate, alone) = (middle(&mut rates), middle(&mut alone_rates));
        bench.print(
            &format!("{name}-rate"),
            "per s",
            Better::Higher,
            0.9,
            "ours without a neighbour",
            rate,
            alone,
        );
        let (tail, alone) = (middle(&mut tails), middle(&mut alone_tails));
        bench.print(
            &format!("{name}-p99"),
            "us",
            Better::Lower,
            1.0 / 1.5,
            "ours without a neighbour",
            tail,
            alone,
        );
        let theirs = echo(&upstream, neighbour)?;
        println!("{name}: beside the same neighbour {UPSTREAM} makes {:.0} round trips per s", theirs[0]);
    }
    Ok(())
}

/// Sends 1 MiB and the end of the stream to an endpoint that reads slowly.
pub(super) fn farewells(bed: &Bed, mode: &'static str) -> Result<()> {
    for (whose, count) in [(Whose::Ours, FAREWELLS), (Whose::Upstreams, UPSTREAM_FAREWELLS)] {
        let plane = bed.plane(whose, mode)?;
        let cut = numbers(&["farewell", mode, &plane.socket, &count.to_string()])?[0];
        println!("{mode}-farewell: {} cut {cut:.0} of {count} short (goal 0)", name(whose));
    }
    Ok(())
}

pub(super) fn churn(bed: &Bed, mode: &'static str) -> Result<()> {
    let plane = bed.plane(Whose::Ours, mode)?;
    let churn = |count: usize| numbers(&["churn", mode, &plane.socket, &count.to_string(), "64"]);
    churn(WARM)?;
    let before = plane.resident_mib()?;
    churn(CHURN)?;
    let after = plane.resident_mib()?;
    println!(
        "{mode}-churn: {before:.1} MiB after {WARM} tunnels, {after:.1} MiB after {CHURN} more: {:+.1} % (goal: within 10 %)",
        (after / before - 1.0) * 100.0
    );
    Ok(())
}

/// Disconnects clients while their tunnel is being dialed.
pub(super) fn abandons(bed: &Bed) -> Result<()> {
    for pause in ["0", "1", "3"] {
        for whose in [Whose::Ours, Whose::Upstreams] {
            let plane = bed.plane(whose, "http-connect")?;
            let before = plane.descriptors()?;
            let held = hold(&["abandon", &plane.socket, &ABANDONED.to_string(), pause])?;
            let left = settled(&plane, before)?;
            held.release()?;
            println!(
                "abandoned-after-{pause}-ms: {} keeps {left} descriptors of {ABANDONED} dials after {} s (goal 0)",
                name(whose),
                AFTER_ABANDON.as_secs()
            );
        }
    }
    Ok(())
}

/// Returns the number of additional descriptors after all were closed or at the timeout.
fn settled(plane: &Plane, before: usize) -> Result<usize> {
    let left = || Ok(plane.descriptors()?.saturating_sub(before));
    let gone = || left().is_ok_and(|left: usize| left == 0).then_some(());
    // Remaining descriptors are a result here, not a failure.
    let _ = eventually("descriptors to be closed", AFTER_ABANDON, gone);
    left()
}

fn name(whose: Whose) -> &'static str {
    match whose {
        Whose::Ours => "landfall",
        Whose::Upstreams => UPSTREAM,
    }
}
