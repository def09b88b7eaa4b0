//! Breaks real components in many ways and checks that the diagnosis names each cause.
//!
//! The node breakages share one API server and one booted node, which is repaired after each. At the end the
//! same node joins, becomes ready and must be diagnosed as healthy, so that a missing repair is detected.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench;
mod breakage;
mod fixture;
mod trial;

use landfall_testkit::{ApiServer, ControllerManager, Invitation, Need, Node, have};

use self::bench::{Bench, Commands};
use self::breakage::Breakage;
use self::trial::Trials;

#[test]
fn what_is_broken_on_a_node_is_named() {
    let needs = [Node::NEEDS, ApiServer::NEEDS, ControllerManager::NEEDS, Invitation::NEEDS].concat();
    if !have(&needs) {
        return;
    }
    let mut bench = Bench::new().unwrap();
    let mut trials = Trials::default();
    trials.expect_health("the node before", &bench.health().unwrap());
    for breakage in Breakage::read(include_str!("../../breakages/node.toml")) {
        trials.run(&breakage, |breakage| bench.suffer(breakage));
    }
    trials.expect_health("the node after", &bench.health().unwrap());
    // A failure then prints the trials' results instead of all logs.
    drop(bench);
    trials.finish();
}

#[test]
fn what_is_broken_in_a_control_plane_is_named() {
    let needs =
        [ApiServer::NEEDS, &[Need::Root, Need::Program("python3"), Need::Program("unshare")]].concat();
    if !have(&needs) {
        return;
    }
    let commands = Commands::new().unwrap();
    let mut trials = Trials::default();
    for breakage in Breakage::read(include_str!("../../breakages/control-plane.toml")) {
        trials.run(&breakage, |breakage| commands.suffer(breakage));
    }
    trials.finish();
}
