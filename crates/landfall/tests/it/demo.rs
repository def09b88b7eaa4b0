//! `landfall demo`, run by a script and by a user who interrupts it.

use std::fs;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use landfall_testkit::{Need, eventually, have};
use rustix::process::{Pid, Signal, kill_process};

use crate::command::{Bench, Run};
use crate::hub::ask;

const LIMIT: Duration = Duration::from_secs(120);
const NEEDS: &[Need] = &[Need::Root, Need::Program("setpriv")];
const NOBODY: u32 = 65_534;
/// Time limit from the start to the first useful line.
const FIRST_LINE: Duration = Duration::from_secs(3);
/// Time limit for the complete demo.
const STORY: Duration = Duration::from_secs(30);

/// Counts processes that have this directory in their command line or as working directory.
fn processes_in(folder: &Path) -> usize {
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter(|entry| fs::read_link(entry.path().join("cwd")).is_ok_and(|place| place.starts_with(folder)))
        .count()
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

/// The output of the demo: each line with its time.
struct Told {
    lines: Vec<(Duration, String)>,
    /// Kept open until the end: the demo prints more.
    _rest: Lines<BufReader<ChildStdout>>,
}

/// Starts the demo as an unprivileged user, with that user's own directory for the sandbox.
fn start(bench: &Bench, words: &[&str]) -> (Child, PathBuf) {
    let sandboxes = bench.path().join("t");
    fs::create_dir(&sandboxes).unwrap();
    chown(&sandboxes, Some(NOBODY), Some(NOBODY)).unwrap();
    // The user may not access the build directory, for example in a home directory.
    let program = bench.path().join("landfall");
    let built = Path::new(env!("CARGO_BIN_EXE_landfall"));
    fs::hard_link(built, &program).or_else(|_| fs::copy(built, &program).map(|_| ())).unwrap();
    fs::set_permissions(bench.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let nobody = NOBODY.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &nobody, "--regid", &nobody, "--clear-groups", "--no-new-privs", "--"]);
    command.arg(program).args(words).current_dir("/").env_clear().env("TMPDIR", &sandboxes);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    (child, sandboxes)
}

#[test]
fn a_port_that_is_taken_is_told_before_the_story_begins() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let run = Bench::new().run(&["demo", "--once", "--listen", &address]);
    run.assert_refused(1, &format!("listen on {address}: Address already in use"));
    assert!(run.stderr.contains("omit it to select one"), "{run:?}");
}

#[test]
fn the_whole_story_is_told_in_time_to_somebody_without_rights_and_nothing_is_left() {
    if !have(NEEDS) {
        return;
    }
    let bench = Bench::new();
    let begun = Instant::now();
    let (mut child, sandboxes) = start(&bench, &["demo", "--once"]);
    let told = Told::read(&mut child, begun, |_| false);
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}\n{ended:?}", told.text());
    for line in [
        "one bootstrap CA",
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
        assert!(told.when(line).is_some(), "`{line}` is missing in {}", told.text());
    }
    let useful = told.when("the fleet is on one page").unwrap();
    let whole = told.when("Completed in ").unwrap();
    // Printed on every run, for information.
    let figures = format!("demo: first useful line after {useful:.1?}, told after {whole:.1?}\n");
    let _ = std::io::stderr().write_all(figures.as_bytes());
    assert!(useful <= FIRST_LINE, "{}", told.text());
    assert!(whole <= STORY, "{}", told.text());
    assert!(is_empty(&sandboxes), "the sandbox is still there");
    assert_eq!(processes_in(&sandboxes), 0);
}

#[test]
fn the_page_stays_open_and_shows_who_failed() {
    if !have(NEEDS) {
        return;
    }
    let bench = Bench::new();
    let (mut child, sandboxes) = start(&bench, &["demo"]);
    let told = Told::read(&mut child, Instant::now(), |line| line.contains("stays open at"));
    let (_, line) = told.lines.last().unwrap();
    let port = line.split_once("http://127.0.0.1:").and_then(|(_, rest)| rest.split(' ').next());
    let port: u16 = port.and_then(|port| port.parse().ok()).unwrap_or_else(|| panic!("{}", told.text()));
    let (status, page) = ask(port, "GET", "/", "").unwrap();
    assert_eq!(status, 200);
    let (status, node) = ask(port, "GET", "/nodes/node-3", "").unwrap();
    assert_eq!(status, 200);
    assert!(page.contains("node-3") && page.contains("clock-skew"), "{page}");
    assert!(node.contains("clock-skew"), "{node}");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(is_empty(&sandboxes), "the sandbox is still there");
}

/// Interrupted, it removes everything; killed, at least the processes end.
#[test]
fn whoever_ends_it_ends_its_roles() {
    for (words, signal, code) in [
        (&["demo"][..], Signal::INT, Some(0)),
        (&["demo"], Signal::HUP, Some(0)),
        // A script gets an exit code that shows the interruption.
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
    bench
        .run(&["demo", "--once", "--listen", "0.0.0.0:8700"])
        .assert_refused(64, "must be a loopback address");
    let long = bench.path().join("a".repeat(100));
    fs::create_dir(&long).unwrap();
    let run: Run = bench.command(&["demo", "--once"]).env("TMPDIR", &long).output().unwrap().into();
    run.assert_refused(1, "the path is too long");
}

// === impl Told ===

impl Told {
    /// Reads lines up to the expected one, or to the end of the demo. Every step of the demo has a deadline, so there
    /// is an end.
    fn read(child: &mut Child, begun: Instant, is_last: impl Fn(&str) -> bool) -> Self {
        let mut lines = Vec::new();
        let mut rest = BufReader::new(child.stdout.take().unwrap()).lines();
        for line in rest.by_ref() {
            let line = line.unwrap();
            let last = is_last(&line);
            lines.push((begun.elapsed(), line));
            if last {
                break;
            }
        }
        Self { lines, _rest: rest }
    }

    fn when(&self, words: &str) -> Option<Duration> {
        self.lines.iter().find(|(_, line)| line.contains(words)).map(|(when, _)| *when)
    }

    fn text(&self) -> String {
        self.lines.iter().map(|(when, line)| format!("{when:6.1?} {line}\n")).collect()
    }
}
