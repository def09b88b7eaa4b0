//! A separate network for tests that would otherwise change the machine's.
//!
//! The test process runs itself a second time inside it.

use std::process::Command;

use crate::Need;

pub const NEEDS: &[Need] = &[Need::Root, Need::Program("ip"), Need::Program("unshare")];
/// Address of this machine in that network.
pub const HOST: &str = "192.0.2.1";
/// Address of another machine, in the network namespace `client`.
const CLIENT: &str = "192.0.2.2";
const INSIDE: &str = "LANDFALL_TEST_INSIDE_NETWORK";

/// Runs `body` of the named test in a network with two machines connected by a virtual cable.
pub fn in_network(test: &str, body: fn()) {
    if std::env::var_os(INSIDE).is_some() {
        // Mounts made here, including the other network's name, are visible only here.
        shell("mount --make-rprivate / && mount -t tmpfs none /run && mkdir -p /run/netns /run/sshd");
        shell("ip link set lo up && ip netns add client");
        shell("ip link add cable type veth peer name cable-end netns client");
        shell(&format!("ip addr add {HOST}/24 dev cable && ip link set cable up"));
        shell(&format!(
            "ip -n client addr add {CLIENT}/24 dev cable-end && ip -n client link set cable-end up"
        ));
        body();
        return;
    }
    let run = std::env::current_exe().and_then(|test_binary| {
        Command::new("unshare")
            .args(["--net", "--mount", "--fork", "--kill-child", "--"])
            .arg(test_binary)
            .args(["--exact", test, "--nocapture"])
            .env(INSIDE, "1")
            .output()
    });
    let run = run.unwrap_or_else(|error| panic!("run the test in a network of its own: {error}"));
    let (said, wrote) = (String::from_utf8_lossy(&run.stderr), String::from_utf8_lossy(&run.stdout));
    assert!(run.status.success() && wrote.contains("1 passed"), "{wrote}\n{said}");
}

/// Runs a command; panics if it fails.
#[track_caller]
pub fn shell(command: &str) {
    match Command::new("sh").args(["-ec", command]).output() {
        Ok(output) => {
            assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Err(error) => panic!("{command}: {error}"),
    }
}
