//! One report, delivered by every carrier to one real hub, is stored once.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::{
    Durability, NatsServer, Need, ObjectServer, Postgres, Process, eventually, free_port, have,
};
use serde_json::Value;

use crate::command::{Bench, message};
use crate::hub::{ask, start_guarded, token, view};

const LIMIT: Duration = Duration::from_secs(120);
const DEAD_DNS: &str = "\
[preflight] Running pre-flight checks
error: error execution phase preflight: couldn't validate the identity of the API Server: failed to request the \
cluster-info ConfigMap: Get \"https://api.c1.example:6443/api/v1/x\": dial tcp: lookup api.c1.example on 10.0.0.2:53: no such host
";

fn program(bench: &Bench, name: &str, arguments: &[&str]) -> Process {
    Process::start(name, Path::new(env!("CARGO_BIN_EXE_landfall")), bench.path(), |command| {
        command.current_dir(bench.path()).args(arguments);
    })
    .unwrap()
}

/// Creates a machine that did not join, in a directory of this name.
fn machine(bench: &Bench, name: &str) {
    bench.file(&format!("{name}/etc/hostname"), format!("{name}\n"));
    bench.file(&format!("{name}/var/log/cloud-init-output.log"), DEAD_DNS);
}

fn certificate(bench: &Bench, authority: &Authority, name: &str, leaf: &Leaf) {
    let issued = authority.issue(leaf).unwrap();
    bench.file(&format!("{name}.crt"), &issued.certificate);
    bench.file(&format!("{name}.key"), issued.key.expose());
}

fn count(port: u16, outcome: &str) -> usize {
    let (_, metrics) = ask(port, "GET", "/metrics", "").unwrap_or_default();
    let name = format!("landfall_hub_reports_total{{outcome=\"{outcome}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap_or(0)
}

fn node(port: u16, name: &str) -> Option<Value> {
    let (status, body) = ask(port, "GET", &format!("/api/v1/nodes/{name}"), "")?;
    (status == 200).then(|| serde_json::from_str(&body).ok())?
}

/// One agent delivers by push, bucket, stream, event, console and pull to one hub.
fn by_every_way(store: &str) {
    let bench = Bench::new();
    machine(&bench, "castaway");
    let (objects, nats) = (ObjectServer::Versitygw.start().unwrap(), NatsServer::start().unwrap());
    nats.create_stream("REPORTS", "landfall.reports.>").unwrap();
    let authority = Authority::new("agents", 2).unwrap();
    bench.file("ca.crt", authority.certificate());
    certificate(&bench, &authority, "agent", &Leaf::new("a", Purpose::Serve).names(["127.0.0.1"]));
    let viewer = Leaf::new("hub", Purpose::Call).organization("landfall:viewers");
    certificate(&bench, &authority, "viewer", &viewer);
    let (hub_port, agent_port) = (free_port().unwrap(), free_port().unwrap());
    let (credentials, bucket_ca) = (objects.credentials(), objects.authority());
    let (credentials, bucket_ca) = (credentials.to_str().unwrap(), bucket_ca.to_str().unwrap());
    let (login, nats_ca) = (nats.login(), nats.authority());
    let (login, nats_ca) = (login.to_str().unwrap(), nats_ca.to_str().unwrap());
    let listen = format!("127.0.0.1:{hub_port}");
    let bucket = objects.location("prod");
    let taken = format!("{bucket}&credentials-file={credentials}&ca-file={bucket_ca}");
    let pulled = format!("castaway=127.0.0.1:{agent_port}");
    let mut hub = program(
        &bench,
        "hub",
        &[
            "hub",
            "--listen",
            &listen,
            "--store",
            store,
            "--objects",
            "file:bundles",
            "--take-objects",
            &taken,
            "--take-objects-every",
            "1",
            "--take-nats",
            &nats.url(),
            "--take-nats-ca",
            nats_ca,
            "--take-nats-login",
            login,
            "--pull",
            &pulled,
            "--pull-ca",
            "ca.crt",
            "--pull-cert",
            "viewer.crt",
            "--pull-key",
            "viewer.key",
            "--pull-every",
            "1",
        ],
    );
    hub.wait_until("it listens", LIMIT, || ask(hub_port, "GET", "/readyz", "")).unwrap();
    bench.file("ttyS0", "[    0.000000] Linux version 6.1.0\r\n");
    let agent = program(
        &bench,
        "agent",
        &[
            "agent",
            "--root",
            "castaway",
            "--state",
            "state",
            "--console",
            "ttyS0",
            "--no-bundle",
            "--hub",
            &format!("http://{listen}"),
            "--events",
            &format!("http://{listen}/api/v1/events"),
            "--objects",
            &bucket,
            "--objects-credentials",
            credentials,
            "--objects-ca",
            bucket_ca,
            "--nats",
            &nats.url(),
            "--nats-ca",
            nats_ca,
            "--nats-login",
            login,
            "--serve",
            &format!("127.0.0.1:{agent_port}"),
            "--serve-cert",
            "agent.crt",
            "--serve-key",
            "agent.key",
            "--serve-client-ca",
            "ca.crt",
        ],
    );
    let failed = || node(hub_port, "castaway").filter(|node| node["cause"] == "dns-resolution-failure");
    eventually("the node on the board", LIMIT, failed)
        .unwrap_or_else(|error| panic!("{error}\n{}\n{}", agent.log(), hub.log()));
    // The agent may have sent reports before it had read all sources: each report has one object and one message.
    let reports = || -> Option<usize> {
        let spools = ["hub", "objects", "events", "nats", "console"].map(|way| {
            let spool = fs::read_dir(bench.path().join("state/spool").join(way));
            spool.map_or(1, |files| files.flatten().filter(|file| file.path().extension().is_some()).count())
        });
        let messages = nats.messages("REPORTS").ok()?.len();
        let bucket = objects.objects("prod/reports/castaway").ok()?.len();
        (spools.iter().sum::<usize>() == 0 && messages == bucket).then_some(messages)
    };
    let made = eventually("every way to have every report", LIMIT, reports)
        .unwrap_or_else(|error| panic!("{error}\n{}\n{}", agent.log(), hub.log()));
    let settled = || nats.pending("REPORTS", "landfall-hub").ok().filter(|pending| *pending == 0);
    eventually("the stream to be settled", LIMIT, settled).unwrap();
    let console = fs::read_to_string(bench.path().join("ttyS0")).unwrap();
    let (status, answer) = ask(hub_port, "POST", "/api/v1/console", &console).unwrap();
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), made, "{answer}");
    assert!(results.iter().all(|result| result["outcome"] == "duplicate"), "{answer}");
    // Stream, event and console always cause duplicates. The bucket is not read for known reports, and the hub may
    // have pulled a report before its push.
    let stored = count(hub_port, "stored") + count(hub_port, "late");
    assert_eq!((stored, count(hub_port, "refused")), (made, 0), "{}", hub.log());
    assert!(count(hub_port, "duplicate") >= 3 * made);
    let known = node(hub_port, "castaway").unwrap();
    assert_eq!(known["reports"], made, "{known}");
    assert_eq!(known["signed"], true);
    let kept = message(fs::read(bench.path().join("state/report.json")).unwrap()).unwrap();
    assert_eq!(known["sequence"], kept["sequence"]);
}

#[test]
fn one_report_by_every_way_is_one_report() {
    if have(ObjectServer::Versitygw.needs()) && have(NatsServer::NEEDS) {
        by_every_way("sqlite:hub.db");
    }
}

#[test]
fn one_report_by_every_way_is_one_report_on_postgres() {
    if !have(ObjectServer::Versitygw.needs()) || !have(NatsServer::NEEDS) || !have(Postgres::NEEDS) {
        return;
    }
    let postgres = Postgres::start(Durability::None).unwrap();
    by_every_way(&postgres.database().unwrap());
}

/// A node that only pushes sends its logs once, without a request.
#[test]
fn a_node_that_fails_sends_its_logs() {
    let bench = Bench::new();
    machine(&bench, "castaway");
    let port = free_port().unwrap();
    let hub = crate::hub::start(&bench, port);
    let address = format!("http://127.0.0.1:{port}");
    let follow = ["agent", "--root", "castaway", "--state", "state", "--hub", &address];
    let bundles = |agent: &Process| {
        eventually("the bundle", LIMIT, || {
            let bundles = node(port, "castaway")?["bundles"].as_array()?.clone();
            (!bundles.is_empty()).then_some(bundles)
        })
        .unwrap_or_else(|error| panic!("{error}\n{}\n{}", agent.log(), hub.log()))
    };
    let agent = program(&bench, "agent", &follow);
    let sent = bundles(&agent);
    let digest = sent[0]["digest"].as_str().unwrap();
    let path = format!("/api/v1/bundles/{digest}/lines?q=no%20such%20host");
    let (status, lines) = ask(port, "GET", &path, "").unwrap();
    assert!(status == 200 && lines.contains("lookup api.c1.example"), "{lines}");
    // The link from the evidence leads to the log page.
    let (status, page) = ask(port, "GET", &format!("/logs/{digest}?q=no%20such%20host"), "").unwrap();
    assert!(status == 200 && page.contains("lookup api.c1.example"), "{status} {page}");
    let gone = || {
        let left = fs::read_dir(bench.path().join("state/bundle")).ok()?.flatten();
        left.map(|file| file.path()).all(|path| !path.to_string_lossy().contains("tar")).then_some(())
    };
    eventually("the bundle to be removed", LIMIT, gone).unwrap();
    drop(agent);
    // For the same failure of the same boot, the successor sends nothing.
    let agent = program(&bench, "agent", &follow);
    let spooled = || {
        let spool = fs::read_dir(bench.path().join("state/spool/bundle")).ok()?.flatten();
        spool.map(|file| file.path()).all(|path| path.extension().is_none()).then_some(())
    };
    eventually("nothing to be left to send", LIMIT, spooled).unwrap();
    assert_eq!(bundles(&agent).len(), 1);
}

/// With the files of `render agent --hub` without a CA, the CAs of the machine are trusted.
#[test]
fn a_hub_with_a_certificate_of_the_machines_authorities_is_believed_without_naming_them() {
    if !have(&[Need::Program("curl")]) {
        return;
    }
    let bench = Bench::new();
    machine(&bench, "castaway");
    let authority = Authority::new("corporate", 1).unwrap();
    let (_hub, port) = start_guarded(&bench, &authority);
    bench.file("node.token", token(&bench, "node", "castaway"));
    bench.file("viewer.token", token(&bench, "viewer", "ann"));
    let address = format!("https://127.0.0.1:{port}");
    let agent = Process::start("agent", Path::new(env!("CARGO_BIN_EXE_landfall")), bench.path(), |command| {
        // The variable replaces the CA list of the distribution.
        command.current_dir(bench.path()).env("SSL_CERT_FILE", bench.path().join("hub-ca.crt"));
        command.args(["agent", "--root", "castaway", "--state", "state", "--hub", &address]);
        command.args(["--hub-token", "node.token"]);
    })
    .unwrap();
    let heard = || {
        view(&bench, port, "/api/v1/fleet")["nodes"].as_array().filter(|nodes| !nodes.is_empty()).map(drop)
    };
    eventually("the report", LIMIT, heard).unwrap_or_else(|error| panic!("{error}\n{}", agent.log()));
    let status = |believed: bool| {
        let mut command: Command =
            bench.command(&["status", "--hub", &address, "--token-file", "viewer.token"]);
        if believed {
            command.env("SSL_CERT_FILE", bench.path().join("hub-ca.crt"));
        }
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, board) = status(true);
    assert!(board.contains("castaway"), "{code:?} {board}");
    assert!(!status(false).1.contains("castaway"), "a stranger's hub was believed");
}

/// A node without a connection to the hub stores its report on a peer, where the hub pulls it.
#[test]
fn a_report_comes_through_a_neighbour() {
    let bench = Bench::new();
    machine(&bench, "castaway");
    bench.file("neighbour/etc/hostname", "neighbour\n");
    let authority = Authority::new("cluster", 2).unwrap();
    bench.file("ca.crt", authority.certificate());
    certificate(&bench, &authority, "agent", &Leaf::new("a", Purpose::Serve).names(["127.0.0.1"]));
    let viewer = Leaf::new("hub", Purpose::Call).organization("landfall:viewers");
    certificate(&bench, &authority, "viewer", &viewer);
    let own = Leaf::new("system:node:castaway", Purpose::Call).organization("system:nodes");
    certificate(&bench, &authority, "node", &own);
    let (hub_port, agent_port) = (free_port().unwrap(), free_port().unwrap());
    let serve = format!("127.0.0.1:{agent_port}");
    let neighbour = program(
        &bench,
        "neighbour",
        &[
            "agent",
            "--root",
            "neighbour",
            "--state",
            "neighbour-state",
            "--serve",
            &serve,
            "--serve-cert",
            "agent.crt",
            "--serve-key",
            "agent.key",
            "--serve-client-ca",
            "ca.crt",
        ],
    );
    let pulled = format!("neighbour={serve}");
    let hub = program(
        &bench,
        "hub",
        &[
            "hub",
            "--listen",
            &format!("127.0.0.1:{hub_port}"),
            "--store",
            "sqlite:hub.db",
            "--objects",
            "file:bundles",
            "--pull",
            &pulled,
            "--pull-ca",
            "ca.crt",
            "--pull-cert",
            "viewer.crt",
            "--pull-key",
            "viewer.key",
            "--pull-every",
            "1",
            "--pull-neighbours",
        ],
    );
    // Its hub address and one of its peers have no listener.
    let dead = format!("https://127.0.0.1:{}", free_port().unwrap());
    let gone = format!("127.0.0.1:{}", free_port().unwrap());
    let castaway = program(
        &bench,
        "castaway",
        &[
            "agent",
            "--root",
            "castaway",
            "--state",
            "state",
            "--hub",
            &dead,
            "--hub-ca",
            "ca.crt",
            "--neighbour",
            &gone,
            "--neighbour",
            &serve,
            "--neighbour-ca",
            "ca.crt",
            "--neighbour-cert",
            "node.crt",
            "--neighbour-key",
            "node.key",
        ],
    );
    let heard = || node(hub_port, "castaway").filter(|node| node["cause"] == "dns-resolution-failure");
    let known = eventually("the report at the hub", LIMIT, heard)
        .unwrap_or_else(|error| panic!("{error}\n{}\n{}\n{}", castaway.log(), neighbour.log(), hub.log()));
    assert_eq!(known["signed"], true);
}
