//! `landfall demo`, as a script and as somebody who has seen enough runs it.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use landfall_testkit::eventually;
use rustix::process::{Pid, Signal, kill_process};

use crate::command::{Bench, Run};

const LIMIT: Duration = Duration::from_secs(120);

/// Processes that have this folder in their command line or work in it.
fn processes_in(folder: &Path) -> usize {
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter(|entry| fs::read_link(entry.path().join("cwd")).is_ok_and(|place| place.starts_with(folder)))
        .count()
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

#[test]
fn the_whole_story_is_told_and_nothing_is_left() {
    let bench = Bench::new();
    let sandboxes = bench.path().join("t");
    fs::create_dir(&sandboxes).unwrap();
    let run: Run = bench.command(&["demo", "--once"]).env("TMPDIR", &sandboxes).output().unwrap().into();
    assert_eq!(run.code, 0, "{run:?}");
    for told in [
        "one bootstrap authority",
        "the fleet is on one page: http://127.0.0.1:",
        "before there is an API server",
        "(cri-plugin-disabled)",
        "(apiserver-unreachable)",
        "$ landfall gather https://127.0.0.1:",
        "FAILED",
        "{\"allowed\":true}",
        "This is a replay",
        "rhel-3: Claimed",
        "(clock-skew)",
        "Everything is removed.",
    ] {
        assert!(run.stdout.contains(told), "`{told}` is missing in {}", run.stdout);
    }
    assert!(is_empty(&sandboxes), "the sandbox is still there");
    assert_eq!(processes_in(&sandboxes), 0);
}

/// Interrupted, it takes everything along; killed, at least the processes.
#[test]
fn whoever_ends_it_ends_its_roles() {
    for (words, signal, code) in [
        (&["demo"][..], Signal::INT, Some(0)),
        (&["demo"], Signal::HUP, Some(0)),
        // A script is told that it did not hear the end.
        (&["demo", "--once"], Signal::TERM, Some(1)),
        (&["demo"], Signal::KILL, None),
    ] {
        let bench = Bench::new();
        let mut child = bench
            .command(words)
            .env("TMPDIR", bench.path())
            .current_dir("/")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        eventually("its roles", LIMIT, || (processes_in(bench.path()) > 2).then_some(())).unwrap();
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), code);
        eventually("the end of its roles", LIMIT, || (processes_in(bench.path()) == 0).then_some(()))
            .unwrap();
        assert_eq!(is_empty(bench.path()), signal != Signal::KILL);
    }
}

#[test]
fn the_sandbox_is_for_this_machine_only() {
    let bench = Bench::new();
    bench.run(&["demo", "--once", "--listen", "0.0.0.0:8700"]).assert_refused(64, "no address of loopback");
    let long = bench.path().join("a".repeat(100));
    fs::create_dir(&long).unwrap();
    let run: Run = bench.command(&["demo", "--once"]).env("TMPDIR", &long).output().unwrap().into();
    run.assert_refused(1, "the path is too long");
}
