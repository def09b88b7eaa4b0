//! From a real agent's report to the line in a real bundle of the same machine.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use landfall_testkit::{Need, Process, eventually, free_port, have};
use serde_json::Value;

use crate::command::Bench;
use crate::hub::{ask, start};

const LIMIT: Duration = Duration::from_secs(60);
/// Not in the default `PATH`.
const REMOTE: &str = "/usr/lib/systemd/systemd-journal-remote";
const BOOT: &str = "0123456789abcdef0123456789abcdef";
/// On a full second, whose fraction may be printed with zeros or omitted.
const START: u64 = 1_767_323_045_000_000;

/// An entry as `journalctl -o export` prints it.
fn entry(number: u64, unit: &str, message: &str) -> String {
    let time = START + number * 500_000;
    format!(
        "__CURSOR=s={number:032x};i={number:x};b={BOOT};m={number:x};t={time:x};x={number:x}\n\
         __REALTIME_TIMESTAMP={time}\n__MONOTONIC_TIMESTAMP={number}\n_BOOT_ID={BOOT}\n_HOSTNAME=castaway\n\
         SYSLOG_IDENTIFIER={unit}\n_PID=7\n_SYSTEMD_UNIT={unit}.service\nMESSAGE={message}\n\n"
    )
}

/// A machine whose kubelet cannot pull, and whose kubeadm found swap enabled.
fn machine(bench: &Bench) {
    bench.file("machine/etc/hostname", "castaway\n");
    let boot =
        format!("{}-{}-{}-{}-{}\n", &BOOT[..8], &BOOT[8..12], &BOOT[12..16], &BOOT[16..20], &BOOT[20..]);
    bench.file("machine/proc/sys/kernel/random/boot_id", boot);
    let mut log =
        String::from("Cloud-init v. 24.1 running 'modules:final' at Mon, 16 Nov 2026 02:43:00 +0000.\n");
    for number in 0..60 {
        log += &format!("Get:{number} http://deb.debian.org/debian bookworm/main amd64 package\n");
    }
    log += "\t[ERROR Swap]: running with swap on is not supported. Please disable swap\n";
    bench.file("machine/var/log/cloud-init-output.log", log);
    bench.file("machine/run/cloud-init/status.json", "{}");
    let mut export = String::new();
    for number in 1..=80 {
        let unit = if number % 2 == 0 { "containerd" } else { "kubelet" };
        export += &entry(number, unit, &format!("an ordinary line {number}"));
    }
    let pull = "E0102 03:04:45.000000       7 remote_image.go:238] \"PullImage from image service failed\" err=\"rpc error: code = \
                Unknown desc = failed to pull and unpack image \\\"registry.corp/pause:3.9\\\": failed to resolve reference: \
                unexpected status from HEAD request: 401 Unauthorized\" image=\"registry.corp/pause:3.9\"";
    export += &entry(81, "kubelet", pull);
    let folder = bench.path().join("machine/var/log/journal").join(BOOT);
    fs::create_dir_all(&folder).unwrap();
    let file = bench.file("boot.export", export);
    let mut remote = Command::new(REMOTE);
    remote.arg("-o").arg(folder.join("system.journal")).arg(file);
    let made = remote.stdout(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
    assert!(made.status.success(), "{made:?}");
}

/// Returns the targets of the links *show in the log* of a page: the path, the line's number, its text.
fn shown_in_the_log(port: u16) -> Vec<(String, String)> {
    let (status, page) = ask(port, "GET", "/nodes/castaway", "").unwrap();
    assert_eq!(status, 200, "{page}");
    let links = page.split("<a href=\"").skip(1).filter_map(|rest| rest.split_once("\">show in the log"));
    let links: Vec<String> =
        links.map(|(link, _)| link.replace("&#38;", "&")).filter(|link| link.contains("/find?")).collect();
    links
        .iter()
        .map(|link| {
            let place = redirected(port, link);
            let (path, line) = place.rsplit_once("#L").unwrap_or_else(|| panic!("{link} leads to {place}"));
            let (_, log) = ask(port, "GET", path, "").unwrap();
            let (_, marked) = log.split_once(&format!("<li id=\"L{line}\" class=\"marked\">")).unwrap();
            let text = marked.split_once("</li>").unwrap().0.to_owned();
            let file = path.split_once("path=").unwrap().1.split('&').next().unwrap().to_owned();
            (file, text)
        })
        .collect()
}

fn redirected(port: u16, link: &str) -> String {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--noproxy", "*", "-m", "60", "-o", "/dev/null", "-w", "%{redirect_url}"]);
    let output = curl.arg(format!("http://127.0.0.1:{port}{link}")).output().unwrap();
    let place = String::from_utf8(output.stdout).unwrap();
    place.strip_prefix(&format!("http://127.0.0.1:{port}")).unwrap_or(&place).to_owned()
}

#[test]
fn every_proof_of_an_agents_report_is_found_in_the_machines_bundle() {
    if !have(&[Need::Program(REMOTE), Need::Program("curl")]) {
        return;
    }
    let bench = Bench::new();
    machine(&bench);
    let port = free_port().unwrap();
    let _hub = start(&bench, port);
    let program = Path::new(env!("CARGO_BIN_EXE_landfall"));
    let agent = Process::start("agent", program, bench.path(), |command| {
        command.current_dir(bench.path()).args(["agent", "--root", "machine", "--state", "state"]);
        command.args(["--hub", &format!("http://127.0.0.1:{port}")]);
    })
    .unwrap();
    let node = eventually("the agent's report", LIMIT, || {
        let (_, body) = ask(port, "GET", "/api/v1/nodes/castaway", "")?;
        let node: Value = serde_json::from_str(&body).ok()?;
        (node["report"]["findings"].as_array()?.len() >= 2).then_some(node)
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", agent.log()));
    let sources: Vec<&str> = node["report"]["findings"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|finding| finding["evidence"].as_array().unwrap())
        .filter_map(|line| line["source"].as_str())
        .collect();
    for kind in ["journal", "/var/log/cloud-init-output.log"] {
        assert!(sources.iter().any(|source| source.starts_with(kind)), "{kind}: {sources:?}");
    }
    let run = bench.run(&["agent", "--once", "--root", "machine", "-o", "bundle.tar.gz"]);
    assert_eq!(run.code, 0, "{run:?}");
    let mut curl = Command::new("curl");
    curl.current_dir(bench.path()).args(["-sS", "--noproxy", "*", "--data-binary", "@bundle.tar.gz"]);
    let sent = curl.arg(format!("http://127.0.0.1:{port}/api/v1/nodes/castaway/bundles")).output().unwrap();
    assert!(String::from_utf8_lossy(&sent.stdout).contains("digest"), "{sent:?}");

    let shown = shown_in_the_log(port);
    let found = |file: &str, words: &str| {
        assert!(
            shown.iter().any(|(path, text)| path == file && text.contains(words)),
            "`{words}` in `{file}`: {shown:#?}"
        );
    };
    found("bootstrap/journals/kubelet.log", "401 Unauthorized");
    found("bootstrap/cloud-init/cloud-init-output.log", "[ERROR Swap]");
}
