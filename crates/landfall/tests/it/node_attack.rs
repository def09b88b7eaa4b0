//! `landfall node prepare` in a hostile environment: full and damaged disks, planted links, malicious lists, a second
//! process.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use landfall_testkit::{Need, Serve, eventually, have};
use serde_json::json;

use crate::node_prepare::{ENV, IMAGE, Node, OS, run_where};

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn a_disk_that_fills_up_in_the_middle_of_a_write_is_told_and_left_clean() {
    if !have(&[Need::Root]) {
        return;
    }
    // The server sends no length, so the free space cannot be checked before; the file system is full in the middle.
    let mut node = Node::new();
    node.image = vec![7; 20 * 1024 * 1024];
    node.manifest(&node.hash());
    node.bucket.serve("/docker.tgz", Serve::Unmeasured(node.image.clone()));
    let run = run_where(
        &node,
        "mkdir -p root/var/lib/torcx && mount -t tmpfs -o size=17m tmpfs root/var/lib/torcx",
    );
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("No space left on device") && run.stderr.contains("hint: "), "{run:?}");
    assert!(!run.stderr.contains("landfall-part\n") && !node.has(ENV), "{run:?}");

    // No space for the ledger, for the profile, and for the last file.
    for (place, size) in [("root/var/lib/landfall", "8k"), ("root/etc/torcx", "4k")] {
        let node = Node::new();
        let fill = format!(
            "mkdir -p {place} && mount -t tmpfs -o size={size} tmpfs {place} && {{ cat /dev/zero > {place}/filler 2>/dev/null || true; }}"
        );
        let run = run_where(&node, &fill);
        assert_eq!(run.code, 1, "{place}: {run:?}");
        assert!(run.stderr.contains("No space left on device"), "{place}: {run:?}");
        assert!(!node.has(ENV) && !run.stderr.contains("landfall-draft\n"), "{place}: {run:?}");
    }
}

#[test]
fn a_read_only_disk_is_told_and_left_clean() {
    if !have(&[Need::Root]) {
        return;
    }
    for place in ["root/etc", "root/var/lib/torcx", "root/var"] {
        let node = Node::new();
        let lock =
            format!("mkdir -p {place} && mount --bind {place} {place} && mount -o remount,ro,bind {place}");
        let run = run_where(&node, &lock);
        assert_eq!(run.code, 1, "{place}: {run:?}");
        let errors: Vec<&str> = run.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert!(errors.len() == 1 && errors[0].contains("Read-only file system"), "{place}: {run:?}");
        assert!(run.stderr.contains("hint: "), "{place}: {run:?}");
        assert!(!node.has(ENV) && !node.has("root/etc/torcx/next-profile"), "{place}");
    }
}

#[test]
fn links_planted_at_our_names_are_replaced_and_not_followed() {
    let node = Node::new();
    let victim = node.bench.file("victim", "precious");
    let links = [
        ENV,
        "root/etc/torcx/next-profile",
        "root/etc/torcx/profiles/tectonic.json",
        "root/var/lib/landfall/node-prepare.events.jsonl",
        "root/var/lib/landfall/node-prepare.json",
    ];
    // A dangling kubelet.env counts as missing.
    let nowhere = node.bench.path().join("nowhere");
    for link in links {
        let path = node.bench.path().join(link);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Files that are read before they are written must be valid: no selected profile, no profile.
        let to = if link.contains("/etc/") { &nowhere } else { &victim };
        std::os::unix::fs::symlink(to, &path).unwrap();
    }
    assert_eq!(node.run(&["--no-verify-signatures"]).code, 100);
    node.boot();
    let run = node.bench.run(&["node", "resume", "--root", "root"]);
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    assert!(!nowhere.exists(), "a link was followed");
    assert!(std::fs::symlink_metadata(node.bench.path().join(ENV)).unwrap().is_file());
}

#[test]
fn a_hostile_list_of_images_gets_nowhere() {
    let hash = "0e".repeat(64);
    let entry = |name: &str, version: &str, location: serde_json::Value| {
        json!({"kind": "torcx-package-list-v0", "value": {"packages": [{"name": name, "versions": [
            {"version": version, "hash": format!("sha512-{hash}"), "locations": [location]}]}]}})
        .to_string()
        .into_bytes()
    };
    let url = json!({"url": "https://127.0.0.1:1/x"});
    let mut nested = b"{\"kind\":\"torcx-package-list-v0\",\"value\":".to_vec();
    nested.extend(b"[".repeat(100_000));
    let lists: [(&str, Vec<u8>); 7] = [
        ("not a plain one", entry("docker", "../../../../etc/shadow", url.clone())),
        ("not a plain one", entry("docker/../../..", "17.03", url.clone())),
        ("not a plain one", entry("docker", "17.03\\n/x", url)),
        ("no place it could come from", entry("docker", "17.03", json!({"url": "file:///etc/shadow"}))),
        (
            "no place it could come from",
            entry("docker", "17.03", json!({"path": "/usr/share/torcx/store/../../../etc/x"})),
        ),
        ("is not JSON", nested),
        ("is longer than the", vec![b' '; 2 * 1024 * 1024]),
    ];
    for (told, list) in lists {
        let node = Node::new();
        node.bucket.file(&format!("/amd64-usr/{OS}/m.json"), list);
        let run = node.run(&["--no-verify-signatures"]);
        assert!(matches!(run.code, 1 | 69), "{told}: {run:?}");
        assert!(run.stderr.contains(told), "{told}: {run:?}");
        assert!(!node.has(ENV) && !node.has("root/var/lib/torcx") && !node.has("root/etc/torcx"), "{told}");
    }
}

#[test]
fn two_processes_do_not_work_on_one_node() {
    let node = Node::new();
    // The first process hangs in the middle of its work.
    node.bucket.serve(&format!("/amd64-usr/{OS}/m.json"), Serve::Claim { claimed: 1000 });
    let mut command = node.command(&["prepare"], &["--no-verify-signatures"]);
    let mut first = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    eventually("the first process to ask for the list", LIMIT, || {
        (!node.bucket.asked().is_empty()).then_some(())
    })
    .unwrap();
    let second = node.run(&["--no-verify-signatures"]);
    assert_eq!(second.code, 75, "{second:?}");
    assert!(second.stderr.contains("another process is working on this run"), "{second:?}");
    // Reading the status is always possible.
    assert_eq!(node.status()["steps"][1]["state"]["is"], "applying");
    // Killed in the middle, it leaves no lock behind.
    first.kill().unwrap();
    first.wait().unwrap();
    node.manifest(&node.hash());
    assert_eq!(node.run(&["--no-verify-signatures"]).code, 100);
    assert!(node.has(IMAGE));
}

fn ledgers(node: &Node) -> Vec<PathBuf> {
    let runs = node.bench.path().join("root/var/lib/landfall/node-prepare");
    let attempts = std::fs::read_dir(runs).unwrap().flatten().filter(|entry| entry.path().is_dir());
    let files = attempts.flat_map(|entry| std::fs::read_dir(entry.path()).unwrap().flatten());
    let mut files: Vec<PathBuf> = files.map(|entry| entry.path()).collect();
    files.sort_by_key(|path| std::fs::metadata(path).unwrap().modified().unwrap());
    files
}

#[test]
fn a_damaged_ledger_is_told_or_its_previous_generation_taken() {
    let node = Node::new();
    assert_eq!(node.run(&["--no-verify-signatures"]).code, 100);
    // The newest generation is truncated: the previous one counts, and the run has the same outcome.
    let newest = ledgers(&node).pop().unwrap();
    let bytes = std::fs::read(&newest).unwrap();
    std::fs::write(&newest, &bytes[..bytes.len() / 2]).unwrap();
    assert_eq!(node.run(&["--no-verify-signatures"]).code, 100);
    node.boot();
    assert_eq!(node.bench.run(&["node", "resume", "--root", "root"]).code, 0);
    assert!(node.has(ENV));

    let node = Node::new();
    assert_eq!(node.run(&["--no-verify-signatures"]).code, 100);
    for path in ledgers(&node) {
        std::fs::write(path, "rubbish\n").unwrap();
    }
    for arguments in [&["node", "resume", "--root", "root"][..], &["node", "status", "--root", "root"]] {
        let run = node.bench.run(arguments);
        run.assert_refused(1, "no complete record is left");
    }
    assert!(!node.has(ENV), "the kubelet could start over a damaged ledger");
}

/// The clock was years ahead at the start, and is right now.
#[test]
fn a_clock_that_went_backwards_changes_nothing() {
    let node = Node::new();
    assert_eq!(node.run(&["--no-verify-signatures"]).code, 100);
    let year = this_year();
    node.rewrite_ledger(&format!("\"{year}-"), "\"2099-");
    assert_eq!(node.run(&["--no-verify-signatures"]).code, 100);
    node.boot();
    let run = node.bench.run(&["node", "resume", "--root", "root"]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(node.has(ENV));
    assert_eq!(node.status()["ended"]["is"], "done");
}

fn this_year() -> String {
    let output = Command::new("date").args(["-u", "+%Y"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
