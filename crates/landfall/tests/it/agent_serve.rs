//! The agent's port: access control, content, and fetching with `gather`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use landfall_model::envelope::Envelope;
use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::{Need, Process, free_port, have};
use serde_json::Value;

use crate::command::{Bench, message};

const LIMIT: Duration = Duration::from_secs(90);
/// Output of `kubeadm join` when the name of the API endpoint does not resolve.
const DEAD_DNS: &str = "\
[preflight] Running pre-flight checks
error: error execution phase preflight: couldn't validate the identity of the API Server: failed to request the \
cluster-info ConfigMap: Get \"https://api.c1.example:6443/api/v1/x\": dial tcp: lookup api.c1.example on 10.0.0.2:53: no such host
";

/// Issues certificates of one CA: those of the agent, and those of users.
fn certificates(bench: &Bench, authority: &Authority, address: &str) {
    bench.file("ca.crt", authority.certificate());
    let people = ["landfall:operators", "landfall:viewers", "system:masters", "system:nodes"];
    let people = people.map(|group| (group, Leaf::new("someone", Purpose::Call).organization(group)));
    let own = ("agent", Leaf::new("agent", Purpose::Serve).names([address]));
    for (name, leaf) in people.into_iter().chain([own]) {
        let issued = authority.issue(&leaf).unwrap();
        bench.file(&format!("{name}.crt"), &issued.certificate);
        bench.file(&format!("{name}.key"), issued.key.expose());
    }
}

/// Starts the agent of a machine that did not join.
pub(crate) fn agent(bench: &Bench, authority: &Authority, address: &str, port: u16) -> Process {
    certificates(bench, authority, address);
    bench.file("machine/etc/hostname", "castaway\n");
    bench.file("machine/etc/cloud/cloud.cfg", "");
    bench.file("machine/var/log/cloud-init-output.log", DEAD_DNS);
    let program = Path::new(env!("CARGO_BIN_EXE_landfall"));
    Process::start("agent", program, bench.path(), |command| {
        command.current_dir(bench.path()).args(["agent", "--root", "machine", "--state", "state"]);
        command.args(["--serve", &format!("{address}:{port}"), "--serve-client-ca", "ca.crt"]);
        command.args(["--serve-cert", "agent.crt", "--serve-key", "agent.key"]);
    })
    .unwrap()
}

/// Sends a request as a member of this group; returns status and body, or `None` without an answer.
fn ask(bench: &Bench, port: u16, group: Option<&str>, method: &str, path: &str) -> Option<(u16, String)> {
    let mut curl = Command::new("curl");
    curl.current_dir(bench.path()).args([
        "-s",
        "--noproxy",
        "*",
        "-m",
        "60",
        "--cacert",
        "ca.crt",
        "-X",
        method,
    ]);
    if let Some(group) = group {
        curl.args([
            "--cert",
            &format!("{}.crt", group.replace(':', "\\:")),
            "--key",
            &format!("{group}.key"),
        ]);
    }
    let output =
        curl.args(["-w", "\n%{http_code}"]).arg(format!("https://127.0.0.1:{port}{path}")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n')?;
    let status = status.parse().ok().filter(|status| *status > 0)?;
    Some((status, body.to_owned()))
}

#[test]
fn those_who_may_read_the_report_and_nobody_else() {
    if !have(&[Need::Program("curl")]) {
        return;
    }
    let bench = Bench::new();
    let port = free_port().unwrap();
    let authority = Authority::new("kubernetes", 2).unwrap();
    let mut process = agent(&bench, &authority, "127.0.0.1", port);
    let operators = Some("landfall:operators");
    let report = process.wait_until("the first report", LIMIT, || {
        let (status, body) = ask(&bench, port, operators, "GET", "/report")?;
        let report = (status == 200).then(|| message(&body))??;
        (report["report"]["verdict"]["cause"] == "dns-resolution-failure").then_some((report, body))
    });
    let (report, body) = report.unwrap();
    assert_eq!(report["node"]["hostname"], "castaway");
    let envelope = Envelope::parse(body.as_bytes()).unwrap();
    assert!(landfall_pki::verify_envelope(&envelope).unwrap().is_some(), "{body}");
    for group in ["landfall:viewers", "system:masters"] {
        assert_eq!(
            ask(&bench, port, Some(group), "GET", "/livez"),
            Some((200, "ok\n".to_owned())),
            "{group}"
        );
    }
    for (group, method, path, status) in [
        ("system:nodes", "GET", "/livez", 403),
        ("system:nodes", "GET", "/report", 403),
        ("system:nodes", "GET", "/bundle", 403),
        ("system:nodes", "GET", "/metrics", 403),
        ("landfall:viewers", "POST", "/metrics", 405),
        ("landfall:viewers", "POST", "/report", 405),
        ("landfall:viewers", "GET", "/state/signing.key", 404),
        ("landfall:viewers", "GET", "/", 404),
    ] {
        let answer = ask(&bench, port, Some(group), method, path);
        assert_eq!(
            answer.as_ref().map(|(status, _)| *status),
            Some(status),
            "{group} {method} {path}: {answer:?}"
        );
    }
    let (status, metrics) = ask(&bench, port, Some("landfall:viewers"), "GET", "/metrics").unwrap();
    assert_eq!(status, 200, "{metrics}");
    let time: jiff::Timestamp = report["time"].as_str().unwrap().parse().unwrap();
    for line in [
        "landfall_agent_state{state=\"failed\"} 1".to_owned(),
        "landfall_agent_state{state=\"running\"} 0".to_owned(),
        format!("landfall_agent_report_timestamp_seconds {}", time.as_second()),
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    // Without a certificate, or with one of another CA, no HTTP request is possible.
    assert_eq!(ask(&bench, port, None, "GET", "/livez"), None);
    let stranger = Authority::new("kubernetes", 2).unwrap();
    let issued = stranger.issue(&Leaf::new("someone", Purpose::Call).organization("system:masters")).unwrap();
    bench.file("stranger.crt", &issued.certificate);
    bench.file("stranger.key", issued.key.expose());
    assert_eq!(ask(&bench, port, Some("stranger"), "GET", "/report"), None);
}

#[test]
fn a_bundle_is_gathered_from_an_agent_and_diagnosed() {
    let bench = Bench::new();
    let port = free_port().unwrap();
    let authority = Authority::new("kubernetes", 2).unwrap();
    let mut process = agent(&bench, &authority, "127.0.0.1", port);
    process.wait_until("the port", LIMIT, || std::net::TcpStream::connect(("127.0.0.1", port)).ok()).unwrap();
    let from = format!("127.0.0.1:{port}");
    let gather = |group: &str, packing: &str| {
        let (certificate, key) = (format!("{group}.crt"), format!("{group}.key"));
        bench.run(&[
            "gather",
            "--from-agent",
            &from,
            "--certificate-authority",
            "ca.crt",
            "--client-certificate",
            &certificate,
            "--client-key",
            &key,
            "-o",
            "gathered",
            "--format",
            packing,
            "--output",
            "json",
        ])
    };
    for (packing, magic) in [("gzip", &b"\x1f\x8b"[..]), ("zstd", b"\x28\xb5\x2f\xfd")] {
        let run = gather("landfall:viewers", packing);
        assert_eq!(run.code, 2, "{run:?}");
        assert_eq!(run.report()["verdict"]["cause"], "dns-resolution-failure");
        assert!(run.stderr.contains("verified"), "{run:?}");
        assert!(std::fs::read(bench.path().join("gathered")).unwrap().starts_with(magic));
    }
    gather("system:nodes", "gzip").assert_refused(77, "ask the agent on 127.0.0.1 for a bundle: 403");
}

#[test]
fn a_neighbour_keeps_the_report_of_a_node_that_reaches_nobody_else() {
    if !have(&[Need::Program("curl")]) {
        return;
    }
    let bench = Bench::new();
    let port = free_port().unwrap();
    let authority = Authority::new("kubernetes", 2).unwrap();
    let mut healthy = agent(&bench, &authority, "127.0.0.1", port);
    let leaf = Leaf::new("system:node:marooned", Purpose::Call).organization("system:nodes");
    let issued = authority.issue(&leaf).unwrap();
    bench.file("marooned.crt", &issued.certificate);
    bench.file("marooned.key", issued.key.expose());
    bench.file("other/etc/hostname", "marooned\n");
    bench.file("other/var/log/cloud-init-output.log", DEAD_DNS);
    let _marooned =
        Process::start("marooned", Path::new(env!("CARGO_BIN_EXE_landfall")), bench.path(), |command| {
            command.current_dir(bench.path()).args(["agent", "--root", "other", "--state", "other-state"]);
            command.args(["--neighbour", &format!("127.0.0.1:{port}"), "--neighbour-ca", "ca.crt"]);
            command.args(["--neighbour-cert", "marooned.crt", "--neighbour-key", "marooned.key"]);
        })
        .unwrap();
    let operators = Some("landfall:operators");
    // Identical to the byte, so that its signature is valid.
    let own = || std::fs::read_to_string(bench.path().join("other-state/report.json")).unwrap_or_default();
    let kept = healthy.wait_until("the neighbour's report", LIMIT, || {
        let (status, body) = ask(&bench, port, operators, "GET", "/neighbours/marooned/report")?;
        let report = (status == 200).then(|| message(&body))??;
        (report["report"]["verdict"]["cause"] == "dns-resolution-failure" && body == own()).then_some(())
    });
    kept.unwrap();
    let listed = ask(&bench, port, operators, "GET", "/neighbours");
    assert_eq!(listed, Some((200, "{\"nodes\":[\"marooned\"]}".to_owned())));
    // A node may store its own report, but read none.
    for path in ["/neighbours", "/neighbours/marooned/report", "/report"] {
        let answer = ask(&bench, port, Some("marooned"), "GET", path);
        assert_eq!(answer.map(|(status, _)| status), Some(403), "{path}");
    }
}

/// kubeadm writes the cluster's CA in the middle of a join.
#[test]
fn a_port_opens_when_its_files_come_and_nothing_waits_for_it() {
    if !have(&[Need::Program("curl")]) {
        return;
    }
    let bench = Bench::new();
    let run = bench.run(&["agent", "--serve", "8710"]);
    assert!(run.code == 64 && run.stderr.contains("--serve-client-ca"), "{run:?}");
    let port = free_port().unwrap();
    bench.file("machine/var/log/cloud-init-output.log", DEAD_DNS);
    bench.file("reports/README", "");
    let program = Path::new(env!("CARGO_BIN_EXE_landfall"));
    let start = |command: &mut Command| {
        command.current_dir(bench.path()).args(["agent", "--root", "machine", "--state", "state"]);
        command.args(["--serve", &format!("127.0.0.1:{port}"), "--serve-client-ca", "ca.crt"]);
        command.args(["--serve-cert", "agent.crt", "--serve-key", "agent.key"]);
        // The files for the connection to the hub are missing as well.
        command.args(["--hub", "https://127.0.0.1:1", "--hub-ca", "hub-ca.crt"]);
        command.args(["--report-folder", "reports"]);
    };
    let mut process = Process::start("agent", program, bench.path(), start).unwrap();
    let brought = || {
        let mut files = std::fs::read_dir(bench.path().join("reports")).ok()?.flatten();
        files.any(|file| file.path().extension().is_some_and(|kind| kind == "json")).then_some(())
    };
    process.wait_until("a report in the folder", LIMIT, brought).unwrap();
    certificates(&bench, &Authority::new("kubernetes", 2).unwrap(), "127.0.0.1");
    let alive = || ask(&bench, port, Some("landfall:viewers"), "GET", "/livez").filter(|it| it.0 == 200);
    process.wait_until("the port", LIMIT, alive).unwrap();
}

#[test]
fn a_hub_fetches_what_an_agent_has_to_say() {
    let bench = Bench::new();
    let port = free_port().unwrap();
    let authority = Authority::new("kubernetes", 2).unwrap();
    let _agent = agent(&bench, &authority, "127.0.0.1", port);
    let own = free_port().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_landfall"));
    let mut hub = Process::start("hub", program, bench.path(), |command| {
        command.current_dir(bench.path()).args(["hub", "--listen", &format!("127.0.0.1:{own}")]);
        command.args(["--store", "sqlite:hub.db", "--objects", "file:bundles"]);
        command.args([
            "--pull",
            &format!("castaway=127.0.0.1:{port}"),
            "--pull-every",
            "1",
            "--pull-bundles",
        ]);
        command.args(["--pull-ca", "ca.crt", "--pull-cert", "landfall:viewers.crt"]);
        command.args(["--pull-key", "landfall:viewers.key"]);
    })
    .unwrap();
    let node = hub.wait_until("the node with its bundle", LIMIT, || {
        let (status, body) = crate::hub::ask(own, "GET", "/api/v1/nodes/castaway", "")?;
        let node: Value = (status == 200).then(|| serde_json::from_str(&body).ok())??;
        let fetched = node["bundles"].as_array().is_some_and(|bundles| !bundles.is_empty());
        (fetched && node["cause"] == "dns-resolution-failure").then_some(node)
    });
    assert_eq!(node.unwrap()["signed"], true);
}
