//! The agent and a real hub: the failures of the machine are in the fleet view, whichever process is killed.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use landfall_testkit::{Need, Process, eventually, free_port, have};
use rustix::process::Signal;
use serde_json::Value;

use crate::command::{Bench, message};
use crate::hub::{ask, start};

const LIMIT: Duration = Duration::from_secs(60);
const LOG: &str = "machine/var/log/cloud-init-output.log";

/// Creates the root of a machine with only a name and the log of `kubeadm`.
fn machine(bench: &Bench) {
    for folder in ["machine/etc", "machine/var/log"] {
        fs::create_dir_all(bench.path().join(folder)).unwrap();
    }
    fs::write(bench.path().join("machine/etc/hostname"), "castaway\n").unwrap();
    say(
        bench,
        "Cloud-init v. 24.1 running 'modules:final' at Mon, 16 Nov 2026 02:43:00 +0000. Up 21.10 seconds.",
    );
}

fn say(bench: &Bench, line: &str) {
    let mut log = fs::OpenOptions::new().create(true).append(true).open(bench.path().join(LOG)).unwrap();
    writeln!(log, "{line}").unwrap();
}

fn follow(bench: &Bench, port: u16) -> Process {
    let program = Path::new(env!("CARGO_BIN_EXE_landfall"));
    Process::start("agent", program, bench.path(), |command| {
        command.current_dir(bench.path());
        command.args(["agent", "--root", "machine", "--state", "state"]);
        command.args(["--hub", &format!("http://127.0.0.1:{port}")]);
    })
    .unwrap()
}

/// Succeeds once the hub's fleet view shows this cause for the machine.
fn board_shows(port: u16, cause: &str) -> Option<()> {
    let (status, body) = ask(port, "GET", "/api/v1/fleet", "")?;
    let fleet: Value = (status == 200).then(|| serde_json::from_str(&body).ok())??;
    let nodes = fleet["nodes"].as_array()?;
    let node = nodes.iter().find(|node| node["name"] == "castaway" || node["hostname"] == "castaway")?;
    (node["cause"] == cause).then_some(())
}

/// Two agents would count the same reports and empty each other's spools.
#[test]
fn a_second_agent_keeps_off_the_state_folder_until_the_first_is_gone() {
    let bench = Bench::new();
    machine(&bench);
    let port = free_port().unwrap();
    let mut first = follow(&bench, port);
    let lock = bench.path().join("state/lock");
    let holder = || fs::read_to_string(&lock).ok()?.strip_suffix('\n').map(str::to_owned);
    let held = eventually("the lock to be held", LIMIT, holder).unwrap();
    let second = bench.run(&["agent", "--root", "machine", "--state", "state"]);
    second.assert_refused(75, &format!("another agent, process {held}, works with"));
    first.signal(Signal::KILL).unwrap();
    first.wait(LIMIT).unwrap();
    let third = follow(&bench, port);
    eventually("the lock to be held anew", LIMIT, || holder().filter(|now| *now != held))
        .unwrap_or_else(|error| panic!("{error}\n{}", third.log()));
}

#[test]
fn what_a_machine_suffers_is_on_the_board_though_hub_and_agent_are_killed() {
    let bench = Bench::new();
    machine(&bench);
    let port = free_port().unwrap();
    let mut hub = start(&bench, port);
    let mut agent = follow(&bench, port);
    say(&bench, "[preflight] Running pre-flight checks");
    say(&bench, "error execution phase preflight: [preflight] Some fatal errors occurred:");
    say(&bench, "\t[ERROR Swap]: running with swap on is not supported. Please disable swap");
    eventually("the first cause on the board", LIMIT, || board_shows(port, "swap-enabled")).unwrap_or_else(
        |error| panic!("{error}\n{}\n{:?}", agent.log(), ask(port, "GET", "/api/v1/fleet", "")),
    );

    // While the hub is down, the machine is fixed and fails again; then the agent dies as well.
    hub.signal(Signal::KILL).unwrap();
    hub.wait(LIMIT).unwrap();
    fs::remove_file(bench.path().join(LOG)).unwrap();
    machine(&bench);
    say(&bench, "[ERROR FileExisting-conntrack]: conntrack not found in system path");
    let waits = || {
        let spool = fs::read_dir(bench.path().join("state/spool/hub")).ok()?;
        spool.flatten().any(|entry| entry.path().extension().is_some()).then_some(())
    };
    eventually("a report that waits for the hub", LIMIT, waits).unwrap();
    agent.signal(Signal::KILL).unwrap();
    agent.wait(LIMIT).unwrap();

    let _hub = start(&bench, port);
    let agent = follow(&bench, port);
    eventually("the second cause on the board", LIMIT, || board_shows(port, "missing-host-binary"))
        .unwrap_or_else(|error| {
            panic!("{error}\n{}\n{:?}", agent.log(), ask(port, "GET", "/api/v1/fleet", ""))
        });
}

/// Killed before its first pass, once its report is on the disk, and once the hub has it. The next agent continues
/// from there, nothing is lost, and no number is used twice.
#[test]
fn whenever_the_agent_is_killed_its_successor_goes_on() {
    let bench = Bench::new();
    machine(&bench);
    let port = free_port().unwrap();
    let _hub = start(&bench, port);
    let causes = [
        ("swap-enabled", "\t[ERROR Swap]: running with swap on is not supported. Please disable swap"),
        ("missing-host-binary", "[ERROR FileExisting-conntrack]: conntrack not found in system path"),
    ];
    let on_disk = |cause: &str| {
        let report = message(fs::read(bench.path().join("state/report.json")).ok()?)?;
        (report["report"]["verdict"]["cause"] == cause).then_some(())
    };
    let sequence = || -> u64 {
        let (_, body) = ask(port, "GET", "/api/v1/nodes/castaway", "").unwrap_or_default();
        serde_json::from_str::<Value>(&body).ok().and_then(|node| node["sequence"].as_u64()).unwrap_or(0)
    };
    let mut before = 0;
    for round in 0..6 {
        let (cause, line) = causes[round % 2];
        let mut agent = follow(&bench, port);
        fs::remove_file(bench.path().join(LOG)).unwrap();
        machine(&bench);
        say(&bench, line);
        match round % 3 {
            0 => {}
            1 => eventually("the report on the disk", LIMIT, || on_disk(cause)).unwrap(),
            _ => eventually("the report on the board", LIMIT, || board_shows(port, cause)).unwrap(),
        }
        agent.signal(Signal::KILL).unwrap();
        agent.wait(LIMIT).unwrap();
        let heard = sequence();
        assert!(heard >= before, "the hub heard {before}, then {heard}");
        before = heard;
        // A successor delivers the report that was on the disk when the agent died.
        let successor = follow(&bench, port);
        eventually("the cause on the board", LIMIT, || board_shows(port, cause))
            .unwrap_or_else(|error| panic!("round {round}: {error}\n{}", successor.log()));
        let empty = || {
            let spool = fs::read_dir(bench.path().join("state/spool/hub")).ok()?;
            spool.flatten().all(|entry| entry.path().extension().is_none()).then_some(())
        };
        eventually("everything to be acknowledged", LIMIT, empty).unwrap();
    }
    let (_, metrics) = ask(port, "GET", "/metrics", "").unwrap();
    assert!(metrics.contains("landfall_hub_reports_total{outcome=\"refused\"} 0"), "{metrics}");
}

/// The kernel reports the exit code, whatever the script does with it and whatever was logged.
#[test]
fn a_kubeadm_that_fails_without_a_word_is_noticed() {
    // Process events of the kernel require root.
    if !have(&[Need::Root]) {
        return;
    }
    let bench = Bench::new();
    machine(&bench);
    // The machine shares our kernel, as where a machine is mounted into a container.
    let boot_id = fs::read("/proc/sys/kernel/random/boot_id").unwrap();
    fs::create_dir_all(bench.path().join("machine/proc/sys/kernel/random")).unwrap();
    fs::write(bench.path().join("machine/proc/sys/kernel/random/boot_id"), boot_id).unwrap();
    let port = free_port().unwrap();
    let _hub = start(&bench, port);
    let mut agent = follow(&bench, port);
    let kubeadm = bench.path().join("kubeadm");
    fs::copy("/bin/false", &kubeadm).unwrap();
    agent
        .wait_until("the cause on the board", LIMIT, || {
            std::process::Command::new(&kubeadm).status().ok()?;
            board_shows(port, "kubeadm-failed-silently")
        })
        .unwrap();
}

/// One minute, with a margin for a loaded machine.
#[test]
fn a_machine_that_says_nothing_is_heard_of_all_the_same() {
    let bench = Bench::new();
    machine(&bench);
    let port = free_port().unwrap();
    let _hub = start(&bench, port);
    let agent = follow(&bench, port);
    // The stored report is available on the machine. A heartbeat has the same content with another number.
    let mut last: Option<Value> = None;
    let beat = eventually("a beat", LIMIT * 3, || {
        let kept = message(fs::read(bench.path().join("state/report.json")).ok()?)?;
        let before = last.replace(kept.clone()).filter(|before| before["sequence"] != kept["sequence"])?;
        (before["report"] == kept["report"] && before["id"] != kept["id"]).then_some(kept)
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", agent.log()));
    let heard = || -> Option<u64> {
        let (_, body) = ask(port, "GET", "/api/v1/nodes/castaway", "")?;
        serde_json::from_str::<Value>(&body).ok()?["sequence"].as_u64()
    };
    eventually("the hub to hear it", LIMIT, || {
        heard().filter(|heard| Some(*heard) >= beat["sequence"].as_u64())
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", agent.log()));
}
