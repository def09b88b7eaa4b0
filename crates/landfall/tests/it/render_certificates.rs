//! Renewal of rendered certificates in use by an agent that serves, and by a hub and an operator as clients.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use landfall_testkit::{Need, Process, eventually, free_port, have};

use crate::command::{Bench, Run};
use crate::hub::ask;

/// Files are checked every 15 s.
const LIMIT: Duration = Duration::from_secs(90);
const LEAVES: [&str; 8] = [
    "--leaf",
    "agent=localhost,127.0.0.1",
    "--leaf",
    "viewer=hub",
    "--leaf",
    "operator=ann",
    "--leaf",
    "node=castaway",
];

fn render(bench: &Bench, words: &[&str], folder: &str) {
    let run = bench.run(&[&["render", "pki"], &LEAVES[..], words, &["-o", folder]].concat());
    assert_eq!(run.code, 0, "{run:?}");
}

/// Replaces files in use, each atomically.
fn install(bench: &Bench, files: &[(&str, &str)]) {
    for (from, to) in files {
        let new = bench.path().join("live/new");
        fs::copy(bench.path().join(from), &new).unwrap();
        fs::rename(new, bench.path().join("live").join(to)).unwrap();
    }
}

fn install_leaves(bench: &Bench, folder: &str) {
    let of = |name: &str| format!("{folder}/{name}");
    install(
        bench,
        &[
            (&of("localhost/agent.crt"), "agent.crt"),
            (&of("localhost/agent.key"), "agent.key"),
            (&of("hub/viewer.crt"), "viewer.crt"),
            (&of("hub/viewer.key"), "viewer.key"),
        ],
    );
}

/// Fetches a bundle from the agent with the certificate at `who`.
fn gather(bench: &Bench, port: u16, authority: &str, who: &str) -> Run {
    let (from, certificate, key) = (format!("localhost:{port}"), format!("{who}.crt"), format!("{who}.key"));
    let words =
        ["gather", "--from-agent", &from, "--certificate-authority", authority, "--client-certificate"];
    bench.run(&[&words[..], &[&certificate, "--client-key", &key, "-o", "bundle.tar.gz"]].concat())
}

/// Returns whether the agent serves the certificate in this file.
fn serves(bench: &Bench, port: u16, folder: &str) -> bool {
    let mut curl = Command::new("curl");
    curl.current_dir(bench.path()).args([
        "-s",
        "-m",
        "10",
        "--noproxy",
        "*",
        "-o",
        "/dev/null",
        "-w",
        "%{certs}",
    ]);
    curl.args(["--cacert", &format!("{folder}/ca.crt"), "--cert", &format!("{folder}/ann/operator.crt")]);
    curl.args(["--key", &format!("{folder}/ann/operator.key"), &format!("https://localhost:{port}/livez")]);
    let served = String::from_utf8(curl.output().unwrap().stdout).unwrap();
    let wanted = fs::read_to_string(bench.path().join(folder).join("localhost/agent.crt")).unwrap();
    served.contains(wanted.trim())
}

/// Returns the number of the hub's polls with this outcome.
fn pulls(port: u16, outcome: &str) -> u64 {
    let (_, metrics) = ask(port, "GET", "/metrics", "").unwrap();
    let name = format!("landfall_hub_pulls_total{{outcome=\"{outcome}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
}

#[test]
fn certificates_and_their_authority_change_under_a_live_pair() {
    if !have(&[Need::Program("curl")]) {
        return;
    }
    let bench = Bench::new();
    bench.file("machine/etc/hostname", "castaway\n");
    bench.file(
        "machine/var/log/cloud-init-output.log",
        "[ERROR Swap]: running with swap on is not supported\n",
    );
    bench.file("live/.keep", "");
    render(&bench, &[], "one");
    let authorities = |from: &str| install(&bench, &[(from, "agents-ca.crt"), (from, "hubs-ca.crt")]);
    authorities("one/ca.crt");
    install_leaves(&bench, "one");
    let program = Path::new(env!("CARGO_BIN_EXE_landfall"));
    let (port, own) = (free_port().unwrap(), free_port().unwrap());
    let _agent = Process::start("agent", program, bench.path(), |command| {
        command.current_dir(bench.path()).args(["agent", "--root", "machine", "--state", "state"]);
        command.args(["--serve", &format!("127.0.0.1:{port}"), "--serve-client-ca", "live/agents-ca.crt"]);
        command.args(["--serve-cert", "live/agent.crt", "--serve-key", "live/agent.key"]);
    })
    .unwrap();
    eventually("the agent", LIMIT, || std::net::TcpStream::connect(("127.0.0.1", port)).ok()).unwrap();
    let _hub = Process::start("hub", program, bench.path(), |command| {
        command.current_dir(bench.path()).args(["hub", "--listen", &format!("127.0.0.1:{own}")]);
        command.args(["--store", "sqlite:hub.db", "--objects", "file:bundles", "--pull-every", "1"]);
        command.args(["--pull", &format!("castaway=127.0.0.1:{port}"), "--pull-ca", "live/hubs-ca.crt"]);
        command.args(["--pull-cert", "live/viewer.crt", "--pull-key", "live/viewer.key"]);
    })
    .unwrap();
    eventually("the hub to hear of the node", LIMIT, || {
        ask(own, "GET", "/api/v1/nodes/castaway", "").filter(|(status, _)| *status == 200)
    })
    .unwrap();
    assert_eq!(gather(&bench, port, "one/ca.crt", "one/ann/operator").code, 2);
    let of_a_node = gather(&bench, port, "one/ca.crt", "one/castaway/node");
    assert_eq!(of_a_node.code, 77, "a node reads nobody's logs: {of_a_node:?}");

    // New certificates of the same CA: no connection is interrupted.
    render(&bench, &["--ca", "one"], "two");
    install_leaves(&bench, "two");
    eventually("the renewed certificate", LIMIT, || serves(&bench, port, "two").then_some(())).unwrap();
    let answered = pulls(own, "answered");
    eventually("the hub to go on", LIMIT, || (pulls(own, "answered") > answered + 2).then_some(())).unwrap();
    assert_eq!(pulls(own, "failed"), 0);

    // A new CA: both are trusted first, then certificates change, then the old one is removed.
    render(&bench, &["--add-ca", "one/ca.crt"], "next");
    let unknown = gather(&bench, port, "next/ca.crt", "next/ann/operator");
    assert_eq!(unknown.code, 1, "nobody knows it yet: {unknown:?}");
    authorities("next/ca.crt");
    eventually("the new authority to be trusted", LIMIT, || {
        (gather(&bench, port, "next/ca.crt", "next/ann/operator").code == 2).then_some(())
    })
    .unwrap();
    assert_eq!(gather(&bench, port, "one/ca.crt", "one/ann/operator").code, 2, "the old one still is");
    install_leaves(&bench, "next");
    eventually("a certificate of the new authority", LIMIT, || serves(&bench, port, "next").then_some(()))
        .unwrap();
    let answered = pulls(own, "answered");
    eventually("the hub to go on", LIMIT, || (pulls(own, "answered") > answered + 2).then_some(())).unwrap();

    let both = fs::read_to_string(bench.path().join("next/ca.crt")).unwrap();
    let end = both.find("-----END CERTIFICATE-----\n").unwrap() + "-----END CERTIFICATE-----\n".len();
    assert!(both[end..].contains(fs::read_to_string(bench.path().join("one/ca.crt")).unwrap().trim()));
    bench.file("new-alone.crt", &both[..end]);
    authorities("new-alone.crt");
    eventually("the old authority to be forgotten", LIMIT, || {
        (gather(&bench, port, "next/ca.crt", "one/ann/operator").code != 2).then_some(())
    })
    .unwrap();
    assert_eq!(gather(&bench, port, "new-alone.crt", "next/ann/operator").code, 2);
}
