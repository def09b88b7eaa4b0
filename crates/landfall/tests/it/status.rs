//! `landfall status --watch`: on a terminal, in a pipe, and while the hub is down.

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::{Need, Process, free_port, have};
use rustix::process::Signal;
use serde_json::Value;

use crate::command::Bench;
use crate::hub::{ask, report, start, start_guarded, unsigned};

const LIMIT: Duration = Duration::from_secs(60);

/// A running `--watch`, and its lines as they arrive. The process ends with the value.
struct Watched {
    child: Child,
    lines: Receiver<String>,
}

// === impl Watched ===

impl Watched {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let stdout: ChildStdout = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// Returns the next line that contains this text.
    #[track_caller]
    fn until(&self, part: &str) -> String {
        let end = Instant::now() + LIMIT;
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(part) => return line,
                Ok(line) => seen.push(line),
                Err(error) => panic!("no line with `{part}`: {error}; seen: {seen:#?}"),
            }
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send(port: u16, sequence: u64, state: &str) {
    let mut message = report(1, sequence, sequence);
    message["report"]["verdict"]["state"] = state.into();
    assert_eq!(ask(port, "POST", "/api/v1/reports", &unsigned(&message)).unwrap().0, 200);
}

#[test]
fn what_happens_is_followed_also_past_a_hub_that_restarts() {
    let bench = Bench::new();
    let port = free_port().unwrap();
    let mut hub = start(&bench, port);
    let address = format!("http://127.0.0.1:{port}");
    let words = ["status", "--hub", &address, "--watch", "--every", "1"];
    let table = Watched::start(bench.command(&words));
    let objects = Watched::start(bench.command(&[&words[..], &["--output", "json"]].concat()));
    table.until("No node has reported yet");
    send(port, 1, "running");
    table.until("1 node: 1 running");
    table.until("running    n1");
    let object: Value = serde_json::from_str(&objects.until("\"running\"")).unwrap();
    assert_eq!(object["total"], 1, "one object on a line: {object}");
    hub.signal(Signal::KILL).unwrap();
    hub.wait(LIMIT).unwrap();
    let _hub = start(&bench, port);
    send(port, 2, "failed");
    let line = table.until("1 node: 1 failed");
    assert!(!line.contains('\x1b'), "nothing but text into a pipe: {line:?}");
    objects.until("\"failed\"");
}

#[test]
fn on_a_terminal_one_look_takes_the_place_of_the_last() {
    if !have(&[Need::Program("script")]) {
        return;
    }
    let bench = Bench::new();
    let port = free_port().unwrap();
    let _hub = start(&bench, port);
    send(port, 1, "failed");
    let program = env!("CARGO_BIN_EXE_landfall");
    let line = format!("{program} status --hub http://127.0.0.1:{port} --watch --every 1");
    let mut script = Command::new("script");
    script.args(["-qfec", &line, "/dev/null"]).stdin(Stdio::null()).env("TERM", "xterm");
    let watched = Watched::start(script);
    // Twice: each refresh starts at the top of the screen and clears everything below.
    for _ in 0..2 {
        let first = watched.until("1 node: 1 failed");
        assert!(first.contains("\x1b[H") && first.contains("\x1b[K"), "{first:?}");
        let row = watched.until("n1");
        assert!(row.contains("\x1b[1;31mfailed"), "in colour: {row:?}");
    }
}

#[test]
fn a_cause_nobody_has_is_not_taken_for_the_whole_fleet() {
    let bench = Bench::new();
    let port = free_port().unwrap();
    let _hub = start(&bench, port);
    send(port, 1, "failed");
    let address = format!("http://127.0.0.1:{port}");
    let status = |words: &[&str]| bench.run(&[&["status", "--hub", &address], words].concat());
    assert_eq!(status(&[]).code, 2);
    let run = status(&["--cause", "swap"]);
    assert_eq!((run.code, run.stdout.as_str()), (64, "0 of 1 node match\n"), "{run:?}");
    assert!(run.stderr.starts_with("hint: there is no cause `swap`; there is `swap-enabled`"), "{run:?}");
    let run = status(&["--cause", "swap-enabled"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:?}");
    let run = status(&["--state", "failed"]);
    assert!(run.code == 2 && run.stdout.starts_with("1 of 1 node matches\n"), "{run:?}");
}

#[test]
fn a_hub_that_is_called_the_wrong_way_is_not_taken_for_a_dead_one() {
    let bench = Bench::new();
    let open = free_port().unwrap();
    let _open = start(&bench, open);
    let guarded = Bench::new();
    let (_guarded, port) = start_guarded(&guarded, &Authority::new("hub authority", 7).unwrap());
    bench.file("other.crt", Authority::new("another", 7).unwrap().certificate());
    for (words, hint) in [
        (&["--hub", &format!("http://127.0.0.1:{port}")][..], "hint: does it want TLS?"),
        (&["--hub", &format!("https://127.0.0.1:{open}")], "hint: does it speak plain HTTP?"),
        (
            &["--hub", &format!("https://127.0.0.1:{port}"), "--ca", "other.crt"],
            "hint: its certificate is not trusted: name the authority that issued it with `--ca`",
        ),
    ] {
        let run = bench.run(&[&["status"], words].concat());
        run.assert_refused(69, "127.0.0.1");
        assert!(run.stderr.contains(hint), "{run:?}");
    }
}

/// Usage errors, unreadable files and an unavailable peer have different exit codes.
#[test]
fn mistakes_have_the_exit_codes_that_are_promised() {
    let bench = Bench::new();
    let certificate = Authority::new("somebody", 7).unwrap().certificate().to_owned();
    bench.file("ca.crt", certificate);
    bench.file("short", "hunter2");
    for (words, code, error) in [
        (&["hub", "token", "node", "bad name/..", "--token-key", "new"][..], 64, "a node's name has letters"),
        (&["hub", "token", "viewer", "ann", "--token-key", "short"], 1, "at least 32 bytes"),
        (&["hub", "token", "viewer", "ann", "--token-key", "ca.crt"], 1, "holds a certificate"),
        (&["status", "--token-file", "nowhere"], 1, "read `nowhere`"),
        (&["status", "--cluster", "--kubeconfig", "nowhere"], 1, "nowhere"),
    ] {
        bench.run(words).assert_refused(code, error);
    }
    assert!(!bench.path().join("new").exists(), "no key is made for a mistake");
}

/// A hub that authenticates callers by certificates only.
#[test]
fn a_certificate_is_as_good_as_a_token() {
    let bench = Bench::new();
    let authority = Authority::new("hub authority", 7).unwrap();
    bench.file("ca.crt", authority.certificate());
    let hub = Leaf::new("hub", Purpose::Serve).names(["127.0.0.1".to_owned()]);
    let viewer = Leaf::new("ann", Purpose::Call).organization("landfall:viewers");
    let operator = Leaf::new("bob", Purpose::Call).organization("landfall:operators");
    let elsewhere = Authority::new("another authority", 7).unwrap();
    for (name, leaf, authority) in [
        ("hub", hub, &authority),
        ("stranger", viewer.clone(), &elsewhere),
        ("ann", viewer, &authority),
        ("bob", operator, &authority),
    ] {
        let pair = authority.issue(&leaf).unwrap();
        bench.file(&format!("{name}.crt"), &pair.certificate);
        bench.file(&format!("{name}.key"), pair.key.expose());
    }
    let port = free_port().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_landfall"));
    let mut hub = Process::start("hub", program, bench.path(), |command| {
        command.current_dir(bench.path()).args(["hub", "--listen", &format!("127.0.0.1:{port}")]);
        command.args(["--store", "sqlite:hub.db", "--objects", "file:bundles", "--client-ca", "ca.crt"]);
        command.args(["--tls-cert", "hub.crt", "--tls-key", "hub.key"]);
    })
    .unwrap();
    hub.wait_until("it listens", LIMIT, || TcpStream::connect(("127.0.0.1", port)).ok()).unwrap();
    let address = format!("https://127.0.0.1:{port}");
    let ask = |words: &[&str], name: &str| {
        let (certificate, key) = (format!("{name}.crt"), format!("{name}.key"));
        let who = ["--client-certificate", &certificate, "--client-key", &key];
        bench.run(&[words, &["--hub", &address, "--ca", "ca.crt"], &who].concat())
    };
    let run = ask(&["status"], "ann");
    assert_eq!((run.code, run.stdout.as_str()), (0, "No node has reported yet\n"), "{run:?}");
    ask(&["status"], "nobody").assert_refused(1, "cannot read `nobody.crt`");
    ask(&["status"], "stranger").assert_refused(77, "does not accept our certificate");
    ask(&["hub", "forget", "n1"], "ann").assert_refused(77, "refused");
    ask(&["hub", "forget", "n1"], "bob").assert_refused(1, "n1");
    let run = bench.run(&["status", "--hub", &address, "--ca", "ca.crt"]);
    run.assert_refused(77, "a credential is needed");
    assert!(run.stderr.contains("`--client-certificate`"), "{run:?}");
}
