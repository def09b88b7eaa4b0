//! Collection from directories that look like machines: existing files are collected, secrets are removed,
//! and missing files are reported.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "machine/mod.rs"]
mod machine;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use landfall_evidence::collect::{Host, Plan};
use landfall_model::bundle::{BundleItem, ItemOutcome};
use landfall_pki::Authority;
use landfall_testkit::{Need, have};
use proptest::prelude::*;

use machine::{Bundle, Machine};

/// Directories of the machine below.
const PLACES: [&str; 8] =
    ["etc", "run", "run/cloud-init", "run/kubeadm", "var", "var/lib", "var/lib/cloud", "var/log"];

const TOKEN: &str = "abcdef.0f1e2d3c4b5a6978";
const PASSWORD: &str = "plum-Jam-und-Zimt-77";

/// Returns a node whose join failed, with secrets in their real files and in logs.
fn failed_node() -> Machine {
    let machine = Machine::new();
    machine
        .file("etc/hostname", "n1\n")
        .file("run/kubeadm/kubeadm-join-config.yaml", format!("discovery:\n  bootstrapToken:\n    token: {TOKEN}\n"))
        .file("var/lib/cloud/instance/user-data.txt", format!("#cloud-config\npassword: {PASSWORD}\n"))
        .file("var/lib/cloud/instance/boot-finished", "49.9 - Fri, 02 Jan 2026 03:04:05 +0000 - v. 25.1\n")
        .file("run/cloud-init/status.json", r#"{"v1":{"stage":null,"modules-final":{"errors":[]}}}"#)
        .file("run/cloud-init/result.json", r#"{"v1":{"datasource":"DataSourceNoCloud","errors":[]}}"#)
        .file(
            "var/log/cloud-init-output.log",
            format!(
                "+ echo {PASSWORD}\n+ kubeadm join --token {TOKEN} api.c1.example:6443\n[preflight] Running pre-flight checks\n\
                 error: error execution phase preflight: couldn't validate the identity of the API Server: failed to \
                 request the cluster-info ConfigMap: Get \"https://api.c1.example:6443/api/v1/x\": dial tcp: lookup \
                 api.c1.example on 10.0.0.2:53: no such host\n"
            ),
        )
        .file("var/log/cloud-init.log.1.gz", gzip(format!("older words, {PASSWORD}\n").as_bytes()))
        .file("var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\nfailSwapOn: true\n");
    machine
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn secrets_vanish_and_the_story_stays() {
    let bundle = failed_node().collect();
    for secret in [PASSWORD, &TOKEN[7..]] {
        assert_eq!(bundle.contains(secret), None, "{secret}");
    }
    let output = bundle.text("bootstrap/cloud-init/cloud-init-output.log");
    assert!(output.contains("abcdef."), "the public half of the token tells which it was: {output}");
    assert!(output.contains("lookup api.c1.example on 10.0.0.2:53: no such host"), "{output}");
    assert!(bundle.text("bootstrap/cloud-init/cloud-init.log.1").contains("older words"));
    assert!(bundle.text("bootstrap/cloud-init/boot-finished").starts_with("49.9"));
    let item =
        bundle.manifest.items.iter().find(|item| item.source == "/var/log/cloud-init-output.log").unwrap();
    assert!(item.redactions.values().sum::<u64>() >= 2, "{item:?}");
    assert_eq!(bundle.manifest.node.hostname, "n1");
}

#[test]
fn diagnose_reads_the_bundle() {
    let bundle = failed_node().collect();
    let report = bundle.diagnose();
    assert_eq!(report.verdict.cause.as_ref().unwrap().as_str(), "dns-resolution-failure", "{report:#?}");
}

#[test]
fn user_data_keys_and_kubeconfigs_do_not_come() {
    let machine = failed_node();
    machine
        .file("etc/kubernetes/admin.conf", "users:\n- user:\n    client-key-data: c2VjcmV0LWtleS1vZi1hZG1pbg==\n")
        .file("var/log/openshift/odd.json", "[]")
        .file("etc/landfall/gather.d/greedy.toml", "[[item]]\nid = \"greedy\"\nto = \"greedy/\"\nsource.files.paths = [\"/etc/kubernetes/**/*\", \"/var/lib/cloud/instance/*\", \"/run/kubeadm/*\"]\n");
    let bundle = machine.collect();
    assert!(
        !bundle.files.keys().any(|path| path.contains("user-data") || path.contains("admin.conf")),
        "{:?}",
        bundle.files.keys()
    );
    for source in [
        "/etc/kubernetes/admin.conf",
        "/var/lib/cloud/instance/user-data.txt",
        "/run/kubeadm/kubeadm-join-config.yaml",
    ] {
        assert!(matches!(bundle.outcome(source), ItemOutcome::Withheld { .. }), "{source}");
    }
}

#[test]
fn links_lead_neither_out_of_the_root_nor_to_what_is_forbidden() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret.log"), "what lies outside\n").unwrap();
    let machine = failed_node();
    machine
        .link("var/log/cloud-init.log", outside.path().join("secret.log"))
        .link("var/log/syslog", "/var/lib/cloud/instance/user-data.txt")
        .link("var/log/pods/x/y/a.log", "../../../../../../../../../../etc/passwd")
        .link("var/log/openshift", outside.path());
    let bundle = machine.collect();
    assert_eq!(bundle.contains("what lies outside"), None);
    assert_eq!(bundle.contains("root:x:0:0"), None);
    assert!(matches!(bundle.outcome("/var/log/syslog"), ItemOutcome::Withheld { .. }));
}

#[test]
fn what_is_not_text_is_withheld_and_pipes_are_not_opened() {
    let machine = failed_node();
    let wide: Vec<u8> = format!("password={PASSWORD}\n").encode_utf16().flat_map(u16::to_le_bytes).collect();
    machine
        .file("var/log/messages", b"\0".repeat(5000))
        .file("var/log/kern.log", b"LPKSHHRH\0\0\0")
        .file("var/log/dmesg", wide)
        .file("var/log/rc.log", [b"before the power cut\n".as_slice(), &[0; 20], b"\nafter\n"].concat());
    let pipe = machine.root.path().join("var/log/boot.log");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let bundle = machine.collect();
    for path in ["/var/log/messages", "/var/log/kern.log", "/var/log/dmesg"] {
        assert!(matches!(bundle.outcome(path), ItemOutcome::Withheld { .. }), "{path}");
    }
    assert!(bundle.text("bootstrap/log/rc.log").ends_with("after\n"));
    let ItemOutcome::Failed { error } = bundle.outcome("/var/log/boot.log") else { panic!("opened") };
    assert_eq!(error, "it is a named pipe, not a file");
}

#[test]
fn a_log_that_is_too_long_keeps_its_head_and_its_end() {
    let machine = failed_node();
    let key_lines: String = (0..20)
        .map(|n| format!("{n:02}aGVsbG8gd29ybGQgdGhpcyBpcyBhIHNlY3JldCBrZXkgYm9keS0xMjM0NTY3OD\n"))
        .collect();
    let filler = "I0102 03:04:05.678901 1 kubelet.go:1] one of many lines that say nothing at all\n";
    let mut log = String::from("the first line\n");
    log += &filler.repeat((12 << 20) / filler.len());
    // The kept end starts inside this key: without the preceding lines, the key's lines are not recognizable.
    let end = filler.repeat(((2 << 20) - 600) / filler.len());
    log += &format!(
        "-----BEGIN RSA PRIVATE KEY-----\n{key_lines}-----END RSA PRIVATE KEY-----\n{end}the last line\n"
    );
    machine.file("var/log/syslog", &log);
    let bundle = machine.collect();
    let kept = bundle.files.iter().filter(|(path, _)| path.starts_with("bootstrap/log/syslog"));
    let kept: Vec<u8> = kept.flat_map(|(_, content)| content.clone()).collect();
    let kept = String::from_utf8(kept).unwrap();
    assert!(kept.starts_with("the first line\n") && kept.contains("the last line\n"));
    assert!(kept.contains("bytes left out here]"));
    assert!(kept.len() < 9 << 20, "{}", kept.len());
    assert!(!kept.contains("aGVsbG8gd29ybGQ"), "a piece of the key is left");
    let item = bundle.manifest.items.iter().rfind(|item| item.source == "/var/log/syslog").unwrap();
    assert!(item.truncated > 5 << 20, "{item:?}");
}

#[test]
fn certificates_are_told_by_their_public_facts() {
    let authority = Authority::new("test-ca", 30).unwrap();
    let machine = failed_node();
    machine.file("etc/kubernetes/pki/etcd/ca.crt", authority.certificate());
    let bundle = machine.collect();
    let facts = bundle.text("bootstrap/certificates.txt");
    assert!(facts.contains("/etc/kubernetes/pki/etcd/ca.crt\n") && facts.contains("test-ca"), "{facts}");
    assert!(facts.contains("not after: ") && facts.contains("authority: yes"), "{facts}");
    assert!(!facts.contains("BEGIN"));
}

proptest! {
    // Each case creates and reads a bundle.
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_source_may_be_missing(missing in prop::collection::vec(any::<bool>(), PLACES.len())) {
        let machine = failed_node();
        for (place, _) in PLACES.iter().zip(&missing).filter(|(_, missing)| **missing) {
            // The parent directory may already be removed.
            let _ = fs::remove_dir_all(machine.root.path().join(place));
        }
        let bundle = machine.collect();
        let failed = |item: &&BundleItem| {
            !matches!(item.outcome, ItemOutcome::Collected | ItemOutcome::Absent | ItemOutcome::Skipped { .. })
        };
        prop_assert_eq!(bundle.manifest.items.iter().find(failed), None);
        let output = bundle.files.contains_key("bootstrap/cloud-init/cloud-init-output.log");
        prop_assert_eq!(output, machine.root.path().join("var/log/cloud-init-output.log").exists());
    }
}

#[test]
fn this_very_machine_gives_a_bundle() {
    let bundle = Bundle::of(Host::at(Path::new("/")).unwrap());
    assert!(bundle.text("bootstrap/machine/meminfo").contains("MemTotal"));
    assert!(bundle.text("bootstrap/machine/df.txt").lines().any(|line| line.ends_with(" /")));
    assert!(bundle.text("bootstrap/network/ip-addr.txt").contains("lo: "));
    assert!(bundle.text("bootstrap/kubelet-healthz.txt").starts_with("GET http://127.0.0.1:10248/healthz: "));
    let order: Vec<&str> = bundle.manifest.items.iter().map(|item| item.path.as_str()).collect();
    let at = |path: &str| order.iter().position(|item| *item == path);
    assert!(at("bootstrap/machine/meminfo") < at("bootstrap/probes/dns.txt"), "probes come last: {order:?}");
}

#[test]
fn a_container_log_with_two_names_comes_once_and_earlier_instances_come_too() {
    let machine = Machine::new();
    let line = |text: &str| format!("2026-01-02T03:04:05.123456789Z stderr F {text}\n");
    machine
        .file("var/log/pods/kube-system_etcd_1/etcd/0.log", line("the first life"))
        .file("var/log/pods/kube-system_etcd_1/etcd/1.log", line("the second life"))
        .link(
            "var/log/containers/etcd_kube-system_etcd-abc.log",
            "/var/log/pods/kube-system_etcd_1/etcd/1.log",
        );
    let bundle = machine.collect();
    let logs: Vec<&str> =
        bundle.files.keys().map(String::as_str).filter(|path| path.contains("containers/")).collect();
    let expected = [
        "bootstrap/containers/etcd_kube-system_etcd-abc.log",
        "bootstrap/containers/kube-system_etcd_1/etcd/0.log",
    ];
    assert_eq!(logs, expected);
    assert!(bundle.text(expected[0]).contains("the second life"));
}

#[test]
fn a_bad_drop_in_is_a_record_and_nothing_of_it_leaves() {
    let machine = failed_node();
    machine
        .file("etc/landfall/gather.d/bad.toml", format!("[[item]]\nid = \"x\"\npassword = \"{PASSWORD}\"\n"))
        .file("etc/shadow", "root:$6$salt$hash:19000:0:99999:7:::\n")
        .file("etc/landfall/gather.d/greedy.toml", "[[item]]\nid = \"g\"\nto = \"g.txt\"\nsource.facts.paths = [\"/etc/shadow\", \"/srv/link\", \"/etc/hostname\"]\n")
        .link("srv/link", "/etc/shadow")
        .link("etc/landfall/gather.d/link.toml", "/etc/shadow");
    let bundle = machine.collect();
    let refused = |name: &str| bundle.outcome(&format!("/etc/landfall/gather.d/{name}"));
    let error = "line 3 is not part of a list of items to collect".to_owned();
    assert_eq!(refused("bad.toml"), &ItemOutcome::Failed { error });
    assert!(matches!(refused("link.toml"), ItemOutcome::Withheld { .. }));
    assert_eq!(bundle.text("g.txt"), "/etc/hostname = n1\n");
    assert_eq!(bundle.contains("$6$"), None);
    assert!(bundle.files.contains_key("bootstrap/cloud-init/cloud-init-output.log"), "the rest is collected");
}

#[test]
fn what_is_for_machines_of_another_kind_is_told() {
    let bundle = failed_node().collect();
    for source in ["openrc", "bootkube-journal", "openshift-journals", "service-records"] {
        assert!(matches!(bundle.outcome(source), ItemOutcome::Skipped { .. }), "{source}");
    }
    let reason = "it is available on the machine itself only, not with another root".to_owned();
    assert_eq!(bundle.outcome("dns"), &ItemOutcome::Skipped { reason });
}

#[test]
fn a_pid_file_that_is_none_stays_where_it_is() {
    let machine = Machine::new();
    machine
        .file("run/openrc/softlevel", "default\x1b[2J")
        .file("run/openrc/started/kubelet", "")
        .file("run/openrc/daemons/kubelet/001", "exec=/usr/bin/kubelet\npidfile=/etc/shadow\n")
        .file("run/openrc/started/cron", "")
        .file("run/openrc/daemons/cron/001", "pidfile=/run/cron.pid\n")
        .file("run/cron.pid", "77\n")
        .file("etc/shadow", "root:$6$salt$hash:19000:0:99999:7:::\n");
    let text = machine.collect().text("bootstrap/openrc.txt");
    assert!(text.starts_with("runlevel: default\\u{1b}[2J\n"), "{text}");
    assert!(
        text.contains("cron (pid 77)\n") && text.contains("kubelet\n") && !text.contains("$6$"),
        "{text}"
    );
}

/// Limits for one item, as set by an administrator.
const ONE_SECOND: &str = "[[item]]\nid = \"units\"\nto = \"\"\nseconds = 1\nsource.units.names = []\n";

#[test]
fn a_service_that_does_not_answer_is_given_up_and_the_rest_is_collected() {
    let machine = failed_node();
    machine.file("etc/landfall/gather.d/short.toml", ONE_SECOND).file("run/systemd/system", "");
    let socket = machine.root.path().join("run/systemd/private");
    // The kernel accepts connections, but no process responds.
    let _listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
    let bundle = machine.collect();
    assert_eq!(bundle.outcome("units"), &ItemOutcome::TimedOut);
    assert!(bundle.files.contains_key("bootstrap/cloud-init/cloud-init-output.log"));
}

#[test]
fn a_bus_without_systemd_is_told() {
    if !have(&[Need::Program("dbus-daemon")]) {
        return;
    }
    let machine = failed_node();
    machine.file("run/dbus/here", "").file("run/systemd/system", "");
    let socket = machine.root.path().join("run/dbus/system_bus_socket");
    let address = format!("--address=unix:path={}", socket.display());
    let mut daemon = Command::new("dbus-daemon")
        .args(["--session", "--nofork", "--print-address", &address])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // It prints its address when it listens.
    let mut line = String::new();
    BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let bundle = machine.collect();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    let ItemOutcome::Failed { error } = bundle.outcome("units") else {
        panic!("{:?}", bundle.outcome("units"))
    };
    assert!(
        error.starts_with("`ListUnits` failed: ") && error.contains("org.freedesktop.systemd1"),
        "{error}"
    );
}

/// Identity files are read first; on a hostile disk they link to keys.
#[test]
fn a_machine_is_named_by_plain_words_or_not_at_all() {
    let machine = Machine::new();
    machine.file(
        "etc/kubernetes/pki/ca.key",
        "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----\n",
    );
    machine.link("etc/machine-id", "/etc/kubernetes/pki/ca.key");
    machine.file("etc/hostname", "password=hunter2\x1b[2J\n");
    machine.file("etc/os-release", "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n");
    let node = Host::at(machine.root.path()).unwrap().identity();
    assert_eq!(node.hostname, "unknown");
    assert_eq!(node.machine_id, None);
    assert_eq!(node.os.as_deref(), Some("Debian GNU/Linux 12 (bookworm)"));
}

#[test]
fn logs_from_before_the_time_that_was_asked_for_stay_and_state_comes() {
    let machine = Machine::new();
    machine
        .file("/var/log/cloud-init.log", "old\n")
        .file("/var/log/cloud-init-output.log", "new\n")
        .file("/run/cloud-init/status.json", "{}");
    let root = machine.root.path();
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    for path in ["var/log/cloud-init.log", "run/cloud-init/status.json"] {
        fs::File::options().write(true).open(root.join(path)).unwrap().set_modified(long_ago).unwrap();
    }
    let host = Host::at(root).unwrap();
    let plan = Plan::of(&host).unwrap().since("2020-01-01T00:00:00Z".parse().unwrap());
    let bundle = Bundle::with_plan(host, &plan);
    assert!(matches!(bundle.outcome("/var/log/cloud-init.log"), ItemOutcome::Skipped { .. }));
    assert_eq!(bundle.outcome("/var/log/cloud-init-output.log"), &ItemOutcome::Collected);
    assert_eq!(bundle.outcome("/run/cloud-init/status.json"), &ItemOutcome::Collected);
}
