use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use landfall_model::envelope::Envelope;
use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::{Durability, HOST_ADDRESS, Postgres, Process, free_port, have};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::command::Bench;

const PATIENCE: Duration = Duration::from_secs(60);
/// Number of nodes that report concurrently, and number of times the hub is killed.
const NODES: u64 = 8;
const ROUNDS: u64 = 3;
/// Number of acknowledgements before each kill.
const BEFORE_KILL: usize = 60;

pub(crate) fn start(bench: &Bench, port: u16) -> Process {
    start_on(bench, port, "sqlite:hub.db")
}

/// Starts a hub with additional arguments.
pub(crate) fn start_with(bench: &Bench, port: u16, more: &[&str]) -> Process {
    start_as(bench, port, "sqlite:hub.db", more)
}

fn start_on(bench: &Bench, port: u16, store: &str) -> Process {
    start_as(bench, port, store, &[])
}

fn start_as(bench: &Bench, port: u16, store: &str, more: &[&str]) -> Process {
    let program = Path::new(env!("CARGO_BIN_EXE_landfall"));
    let mut hub = Process::start("hub", program, bench.path(), |command| {
        command.current_dir(bench.path()).args(["hub", "--listen", &format!("127.0.0.1:{port}")]);
        command.args(["--store", store, "--objects", "file:bundles"]).args(more);
    })
    .unwrap();
    hub.wait_until("it listens", PATIENCE, || {
        ask(port, "GET", "/readyz", "").filter(|(status, _)| *status == 200)
    })
    .unwrap();
    hub
}

/// Starts a hub for machines, with TLS and tokens. Returns its port as well.
pub(crate) fn start_guarded(bench: &Bench, authority: &Authority) -> (Process, u16) {
    let leaf = Leaf::new("hub", Purpose::Serve).names([HOST_ADDRESS.to_string(), "127.0.0.1".to_owned()]);
    let served = authority.issue(&leaf).unwrap();
    bench.file("hub-ca.crt", authority.certificate());
    bench.file("hub.crt", &served.certificate);
    bench.file("hub.pem", served.key.expose());
    let port = free_port().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_landfall"));
    let mut hub = Process::start("hub", program, bench.path(), |command| {
        command.current_dir(bench.path()).args(["hub", "--listen", &format!("0.0.0.0:{port}")]);
        command.args(["--store", "sqlite:hub.db", "--objects", "file:bundles", "--token-key", "tokens.key"]);
        command.args(["--tls-cert", "hub.crt", "--tls-key", "hub.pem"]);
    })
    .unwrap();
    hub.wait_until("it listens", PATIENCE, || TcpStream::connect(("127.0.0.1", port)).ok()).unwrap();
    (hub, port)
}

/// Creates a token for such a hub.
pub(crate) fn token(bench: &Bench, kind: &str, name: &str) -> String {
    let run = bench.run(&["hub", "token", kind, name, "--token-key", "tokens.key"]);
    assert_eq!(run.code, 0, "{run:?}");
    run.stdout.trim().to_owned()
}

/// Returns the answer of such a hub to a viewer.
#[track_caller]
pub(crate) fn view(bench: &Bench, port: u16, path: &str) -> Value {
    let header = format!("authorization: Bearer {}", token(bench, "viewer", "ann"));
    let mut curl = Command::new("curl");
    curl.current_dir(bench.path()).args(["-sS", "--noproxy", "*", "-m", "60", "--cacert", "hub-ca.crt"]);
    let output = curl.args(["-H", &header, &format!("https://127.0.0.1:{port}{path}")]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Sends one request; returns `None` when the hub is down.
pub(crate) fn ask(port: u16, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// Returns a message in an envelope without a signature.
pub(crate) fn unsigned(message: &Value) -> String {
    serde_json::to_string(&Envelope::unsigned(message.to_string().into_bytes())).unwrap()
}

pub(crate) fn report(node: u64, sequence: u64, number: u64) -> Value {
    let title = format!("Step {number}");
    json!({
        "id": format!("01a1e1d7-cfdd-7000-8000-{number:012x}"),
        "node": {"hostname": format!("n{node}"), "bootId": "b"},
        "sequence": sequence,
        "time": "2026-01-02T03:04:05Z",
        "report": {
            "format": 1,
            "verdict": {"state": "running", "cause": null, "title": title, "component": null, "phase": "join", "confidence": 0.0},
            "findings": [], "timeline": [], "sources": []
        }
    })
}

#[test]
fn a_connection_that_rests_between_reports_is_the_same_over_tls() {
    let bench = Bench::new();
    let (_hub, port) = start_guarded(&bench, &Authority::new("test CA", 1).unwrap());
    let header = format!("authorization: Bearer {}", token(&bench, "node", "n1"));
    let url = format!("https://127.0.0.1:{port}/api/v1/reports");
    let mut curl = Command::new("curl");
    curl.current_dir(bench.path());
    for number in 1..=4 {
        if number > 1 {
            curl.arg("--next");
        }
        curl.args(["-sS", "--http1.1", "--noproxy", "*", "-m", "60", "--cacert", "hub-ca.crt"]);
        curl.args(["-H", &header, "-H", "content-type: application/json"]);
        curl.args(["--data", &unsigned(&report(1, number, number)), "-o", "/dev/null"]);
        curl.args(["-w", "%{http_code} by %{num_connects} new\n", &url]);
    }
    let output = curl.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let later = "200 by 0 new\n";
    assert_eq!(told, format!("200 by 1 new\n{later}{later}{later}"), "{output:?}");
}

#[test]
fn what_a_killed_hub_acknowledged_is_there_when_it_comes_back() {
    kill_again_and_again("sqlite:hub.db");
}

#[test]
fn what_a_killed_hub_acknowledged_is_in_the_database() {
    if !have(Postgres::NEEDS) {
        return;
    }
    let postgres = Postgres::start(Durability::None).unwrap();
    kill_again_and_again(&postgres.database().unwrap());
}

/// Kills the hub repeatedly under load, and checks that the last one has every acknowledged report.
fn kill_again_and_again(store: &str) {
    let bench = Bench::new();
    let port = free_port().unwrap();
    let acknowledged: Mutex<Vec<String>> = Mutex::default();
    let numbers = AtomicU64::new(1);
    let sequences: Vec<AtomicU64> = (0..NODES).map(|_| AtomicU64::new(1)).collect();
    for round in 1..=ROUNDS {
        let mut hub = start_on(&bench, port, store);
        let wanted = acknowledged.lock().unwrap().len() + BEFORE_KILL;
        std::thread::scope(|scope| {
            for node in 0..NODES {
                let (acknowledged, numbers, sequences) = (&acknowledged, &numbers, &sequences);
                scope.spawn(move || {
                    loop {
                        let sequence =
                            sequences[usize::try_from(node).unwrap()].fetch_add(1, Ordering::Relaxed);
                        let body = unsigned(&report(node, sequence, numbers.fetch_add(1, Ordering::Relaxed)));
                        match ask(port, "POST", "/api/v1/reports", &body) {
                            Some((200, _)) => acknowledged.lock().unwrap().push(body),
                            Some(other) => panic!("{other:?}"),
                            None => return,
                        }
                    }
                });
            }
            let enough = || (acknowledged.lock().unwrap().len() >= wanted).then_some(());
            landfall_testkit::eventually("reports under way", PATIENCE, enough).unwrap();
            // The process is `landfall` itself: `setpriv` executes it in place.
            hub.signal(Signal::KILL).unwrap();
            assert_eq!(hub.wait(PATIENCE).unwrap(), None, "round {round}");
        });
    }
    let _hub = start_on(&bench, port, store);
    let acknowledged = acknowledged.into_inner().unwrap();
    assert!(acknowledged.len() >= BEFORE_KILL * 3);
    for body in &acknowledged {
        let (status, answer) = ask(port, "POST", "/api/v1/reports", body).unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((status, answer["outcome"].as_str()), (200, Some("duplicate")), "{body}");
    }
}

#[test]
fn status_shows_the_board_and_tells_trouble_by_its_exit_code() {
    let bench = Bench::new();
    let port = free_port().unwrap();
    let _hub = start(&bench, port);
    let address = format!("http://127.0.0.1:{port}");
    let run = bench.run(&["status", "--hub", &address]);
    assert_eq!((run.code, run.stdout.as_str()), (0, "No node has reported yet\n"), "{run:?}");
    let mut failed = report(1, 1, 1);
    failed["report"]["verdict"]["state"] = "failed".into();
    failed["report"]["verdict"]["cause"] = "disk-full".into();
    assert_eq!(ask(port, "POST", "/api/v1/reports", &unsigned(&failed)).unwrap().0, 200);
    let run = bench.run(&["status", "--hub", &address]);
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.stdout.starts_with("1 node: 1 failed\n\n     1  failed     Step 1 (disk-full)\n"), "{run:?}");
    let run = bench.run(&["status", "--hub", &address, "--output", "json"]);
    assert_eq!(run.report()["groups"][0]["cause"], "disk-full");
}

/// A fleet with one token for all machines, and one reinstalled machine.
#[test]
fn a_fleet_shares_a_token_and_a_machine_installed_anew_is_forgotten() {
    let bench = Bench::new();
    let authority = Authority::new("test CA", 1).unwrap();
    let (_hub, port) = start_guarded(&bench, &authority);
    let address = format!("https://127.0.0.1:{port}");
    let run = bench.run(&["hub", "token", "nodes", "worker-", "--token-key", "tokens.key", "--days", "365"]);
    assert_eq!(run.code, 0, "{run:?}");
    bench.file("fleet.token", &run.stdout);
    bench.file("operator.token", token(&bench, "operator", "ann"));
    bench.file("viewer.token", token(&bench, "viewer", "ben"));
    let program = Path::new(env!("CARGO_BIN_EXE_landfall"));
    let agent = |name: &str, state: &str| {
        bench.file(&format!("{state}-root/etc/hostname"), format!("{name}\n"));
        bench.file(
            &format!("{state}-root/var/log/cloud-init-output.log"),
            "Cloud-init v. 24.1 running 'modules:final'\n[ERROR Swap]: running with swap on is not supported. Please disable swap\n",
        );
        Process::start(state, program, bench.path(), |command| {
            command.current_dir(bench.path()).args([
                "agent",
                "--root",
                &format!("{state}-root"),
                "--state",
                state,
            ]);
            command.args(["--hub", &address, "--hub-ca", "hub-ca.crt", "--hub-token", "fleet.token"]);
        })
        .unwrap()
    };
    let total = || view(&bench, port, "/api/v1/fleet")["total"].as_u64();
    let first = agent("worker-1", "first");
    let _other = agent("worker-2", "other");
    landfall_testkit::eventually("two machines on the board", PATIENCE, || {
        (total() == Some(2)).then_some(())
    })
    .unwrap();
    assert_eq!(view(&bench, port, "/api/v1/nodes/worker-1")["signed"], true);
    drop(first);

    // The same name with another state directory, so with another key.
    let anew = agent("worker-1", "anew");
    landfall_testkit::eventually("the hub's refusal in the agent's log", PATIENCE, || {
        anew.log().contains("landfall hub forget NODE").then_some(())
    })
    .unwrap();
    let forget = |token: &str, nodes: &[&str]| {
        let words = ["--hub", &address, "--ca", "hub-ca.crt", "--token-file", token];
        bench.run(&[&["hub", "forget"], nodes, &words].concat())
    };
    let viewers = forget("viewer.token", &["worker-1"]);
    viewers.assert_refused(77, "may not do that");
    assert!(viewers.stderr.contains("hint: name a token of an operator"), "{viewers:?}");
    let help = bench.run(&["hub", "forget", "--help"]).stdout;
    assert!(help.contains("a token of an operator") && !help.contains("viewer"), "{help}");
    forget("operator.token", &["worker-9"]).assert_refused(1, "worker-9");
    forget("operator.token", &["a/b"]).assert_refused(64, "a node's name");
    let run = forget("operator.token", &["worker-1"]);
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (0, "", "Forgot worker-1\n"));
    landfall_testkit::eventually("the machine under its new key", PATIENCE, || {
        (total() == Some(2)).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", anew.log()));
}

#[test]
fn mistakes_are_refused_with_advice() {
    let bench = Bench::new();
    let port = free_port().unwrap();
    bench
        .run(&["hub", "--listen", "0.0.0.0:0", "--store", "sqlite:x", "--objects", "file:y"])
        .assert_refused(64, "configuration");
    bench.run(&["hub", "--store", "mysql://x", "--objects", "file:y"]).assert_refused(64, "mysql");
    bench.run(&["hub", "--store", "sqlite:no/such/x", "--objects", "file:y"]).assert_refused(1, "store");
    bench
        .run(&["status", "--hub", &format!("http://127.0.0.1:{port}")])
        .assert_refused(69, &format!("cannot connect to 127.0.0.1:{port}"));
    bench.run(&["status", "--hub", "nowhere"]).assert_refused(64, "nowhere");
    let run = bench.run(&["hub", "token", "node", "n1", "--token-key", "key"]);
    assert!(run.code == 0 && run.stdout.starts_with("landfall."), "{run:?}");
    bench.run(&["hub", "token", "node", "a/b", "--token-key", "key"]).assert_refused(64, "name");
    bench.run(&["hub", "token", "nodes", "a/b", "--token-key", "key"]).assert_refused(64, "name");
    let run = bench.run(&["hub", "token", "nodes", "--token-key", "key"]);
    assert!(run.code == 0 && run.stdout.starts_with("landfall."), "{run:?}");
    let run = bench.run(&["hub", "token", "viewer", "--token-key", "key"]);
    assert!(run.code == 64 && run.stderr.contains("<NAME>"), "{run:?}");
    for days in ["0", "4294967295"] {
        let run = bench.run(&["hub", "token", "node", "n1", "--token-key", "key", "--days", days]);
        assert!(run.code == 64 && run.stderr.contains("--days"), "{run:?}");
    }
}
