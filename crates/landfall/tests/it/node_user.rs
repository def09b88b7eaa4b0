//! `landfall node` from the view of a user: before, during, after, and on failure.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use landfall_testkit::{Need, Serve, have};
use serde_json::{Value, json};

use crate::command::Run;
use crate::node_prepare::{ENV, Node, OS};

/// Returns the lines that are not log entries.
fn words(run: &Run) -> Vec<&str> {
    run.stderr.lines().filter(|line| !line.starts_with('{')).collect()
}

#[test]
fn the_status_is_right_before_in_failure_and_after() {
    let node = Node::new();
    let text = |node: &Node| node.bench.run(&["node", "status", "--root", "root"]).stdout;
    assert_eq!(text(&node), "Nothing was done to this node.\n");
    assert_eq!(node.status()["run"], Value::Null);

    let manifest = format!("/amd64-usr/{OS}/m.json");
    node.bucket.serve(&manifest, Serve::Status(404));
    let run = node.run(&["--no-verify-signatures"]);
    assert_eq!(run.code, 69, "{run:?}");
    let told = text(&node);
    let stands = "failed (fetch); fix it, then `landfall node resume` retries";
    assert!(told.lines().next().unwrap().ends_with(stands), "{told}");
    assert!(told.contains("decide              failed: ") && told.contains("answered 404"), "{told}");
    let status = node.status();
    assert_eq!((&status["why"], &status["outcome"]["is"]), (&json!("fetch"), &json!("failed")), "{status}");
    // The same document is stored for tools that collect files.
    let left: Value =
        serde_json::from_str(&node.text("root/var/lib/landfall/node-prepare.json").unwrap()).unwrap();
    assert_eq!(left, status);

    node.manifest(&node.hash());
    assert_eq!(node.run(&["--no-verify-signatures"]).code, 100);
    let told = text(&node);
    assert!(told.lines().next().unwrap().contains("waits for a reboot; "), "{told}");
    assert!(told.contains("Reboot            docker 17.03 is unpacked at boot"), "{told}");
    assert_eq!(node.status()["why"], Value::Null);
    node.boot();
    assert_eq!(node.bench.run(&["node", "resume", "--root", "root"]).code, 0);
    assert!(text(&node).lines().next().unwrap().ends_with("prepared"), "{}", text(&node));
    // Having nothing to resume is not a failure.
    assert_eq!(node.bench.run(&["node", "resume", "--root", "root"]).code, 0);

    // All events, in order, one per line.
    let events = node.text("root/var/lib/landfall/node-prepare.events.jsonl").unwrap();
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sequences: Vec<u64> = events.iter().map(|event| event["sequence"].as_u64().unwrap()).collect();
    assert!(sequences.is_sorted() && sequences.len() > 15, "{sequences:?}");
    assert_eq!(events.last().unwrap()["what"]["outcome"]["is"], "done");
}

/// One clear line and one with advice, and nothing was written.
#[test]
fn what_cannot_work_is_told_in_one_line_with_advice() {
    type Break = fn(&Node);
    let nothing: Break = |_| {};
    let cases: [(&[&str], i32, &str, &str, Break); 9] = [
        (&[], 1, "cannot tell the version of the cluster", "--force-kube-version", |node| {
            std::fs::remove_file(node.bench.path().join("root/etc/kubernetes/installer/kubelet.env"))
                .unwrap();
        }),
        (
            &["--force-kube-version=v1.99.0"],
            1,
            "the runtime mappings contain no `docker` for Kubernetes 1.99",
            "--version-manifest",
            nothing,
        ),
        (
            &["--force-kube-version=latest"],
            64,
            "`--force-kube-version` cannot be used",
            "--force-kube-version",
            nothing,
        ),
        (
            &["--trusted-key=18AD5014", "--no-verify-signatures=false"],
            64,
            "is not the fingerprint",
            "fingerprint",
            |node| {
                node.bench.file("root/pubring.gpg", "");
            },
        ),
        (
            &["--no-verify-signatures=false"],
            1,
            "pubring.gpg`",
            "fix the problem that the line names",
            nothing,
        ),
        (
            &["--torcx-manifest-url=ftp://h/m.json"],
            64,
            "neither an `https://` nor",
            "such as `https://",
            nothing,
        ),
        (
            &["--torcx-manifest-url=https://h/{{.Bord}}"],
            64,
            "known are `{{.Board}}`",
            "such as `https://",
            nothing,
        ),
        (&[], 1, "has no `VERSION_ID`", "fix the problem that the line names", |node| {
            node.bench.file("root/usr/lib/os-release", "ID=coreos\n");
        }),
        (&["--upgrade-os=true"], 69, "cannot reach the system bus", "--upgrade-os=false", nothing),
    ];
    for (flags, code, told, hint, break_it) in cases {
        let node = Node::new();
        break_it(&node);
        let mut arguments = vec!["node", "prepare", "--dry-run", "--root=root", "--ca-file=ca.crt"];
        let has = |name: &str| flags.iter().any(|flag| flag.starts_with(name));
        let url = format!("--torcx-manifest-url={}", node.bucket.url("/{{.Board}}/{{.OSVersion}}/m.json"));
        arguments.extend(flags);
        if !has("--upgrade-os") {
            arguments.push("--upgrade-os=false");
        }
        if !has("--no-verify") {
            arguments.push("--no-verify-signatures");
        }
        if !has("--torcx-manifest-url") {
            arguments.push(&url);
        }
        let run = node.bench.run(&arguments);
        let lines = words(&run);
        assert_eq!((run.code, lines.len(), run.stdout.as_str()), (code, 2, ""), "{flags:?}: {run:?}");
        assert!(lines[0].starts_with("error: ") && lines[0].contains(told), "{flags:?}: {run:?}");
        assert!(lines[1].starts_with("hint: ") && lines[1].contains(hint), "{flags:?}: {run:?}");
        assert!(!node.has("root/var") && !node.has(ENV), "{flags:?}");
    }
}

#[test]
fn wrong_flags_are_usage_errors() {
    let node = Node::new();
    for wrong in [
        "--upgrade-os=maybe",
        "--signatures=two",
        "--signatures=0",
        "--force-kube-version=latest",
        "--manifest-mirror=mirror.corp",
        "--extension-url=https://h/{{.Name}}/",
        "--fleet-lock=lock.corp",
        "--trusted-key=18AD5014",
        "--torcx-profile=../x",
        "--torcx-profile=vendor",
        "--backend=apt",
        "--reboot=now",
        "--output=poem",
        "--fleet-lock-group=g",
        "--no-such-flag",
    ] {
        let run = node.run(&[wrong]);
        assert_eq!((run.code, run.stdout.as_str()), (64, ""), "{wrong}: {run:?}");
        assert!(!node.has("root/var"), "{wrong}");
    }
    let run = node.bench.run(&["node", "hook", "before-reboot", "--only-when-labelled", "--root=root"]);
    assert_eq!(run.code, 64, "{run:?}");
}

/// Every flag of the programs with the old names, each with its default value, in Go's notation.
#[test]
fn the_old_names_take_every_old_flag() {
    let node = Node::new();
    let both = [
        "--kubeconfig=/etc/kubernetes/kubeconfig",
        "--torcx-bin=/usr/bin/torcx",
        "--torcx-manifest-url=",
        "--torcx-profile=tectonic",
        "--force-kube-version=v1.9.3+coreos.0",
        "--no-verify-signatures=F",
        "--keyring=/pubring.gpg",
        "--verbose=info",
        "--root=root",
    ];
    let call = |name: &str, more: &[&str]| -> Run {
        let link = node.bench.path().join(name);
        let _ = std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_landfall"), &link);
        Command::new(link)
            .args(both)
            .args(more)
            .current_dir(node.bench.path())
            .env_clear()
            .output()
            .unwrap()
            .into()
    };
    let run = call(
        "tectonic-torcx-bootstrap",
        &[
            "--version-manifest=/etc/kubernetes/installer/runtime-mappings.yaml",
            "--kubelet-env-path=/etc/kubernetes/kubelet.env",
            "--upgrade-os=0",
            "--torcx-skip-setup=T",
        ],
    );
    assert_eq!(run.code, 0, "{run:?}");
    assert!(node.text(ENV).unwrap().contains("KUBELET_IMAGE_TAG=v1.9.3_coreos.0"));
    let run = call(
        "tectonic-torcx-hook-pre",
        &["--sleep=0", "--node-name=n", "--torcx-skip-setup", "--upgrade-os=false"],
    );
    assert_eq!(run.code, 0, "{run:?}");
    let run = call(
        "tectonic-torcx-hook-pre",
        &["--node-annotation=x/y", "--torcx-skip-setup", "--upgrade-os=false"],
    );
    assert_eq!(run.code, 64, "{run:?}");
    assert!(run.stderr.contains("`--node-annotation` needs `--node-name`"), "{run:?}");

    // Their usage shows the old names, and their flags accept only the original values.
    for name in ["tectonic-torcx-bootstrap", "tectonic-torcx-hook-pre"] {
        let usage = format!("Usage: {name} [OPTIONS]\n");
        let help = call(name, &["--help"]);
        assert!(
            help.code == 0 && help.stdout.contains(&usage) && !help.stdout.contains("Usage: landfall"),
            "{help:?}"
        );
        for wrong in ["--no-such-flag", "--verbose=bogus", "--verbose"] {
            let run = call(name, &[wrong]);
            assert_eq!((run.code, run.stdout.as_str()), (64, ""), "{wrong}: {run:?}");
            assert!(
                run.stderr.contains(usage.trim_end()) && !run.stderr.contains("landfall"),
                "{wrong}: {run:?}"
            );
        }
    }
}

#[test]
fn on_a_terminal_a_download_has_a_bar() {
    if !have(&[Need::Program("script")]) {
        return;
    }
    let node = Node::new();
    // Served in two parts, so that there is a state to check between them.
    let after = node.image.len() / 2;
    node.bucket.serve("/docker.tgz", Serve::Cut { bytes: node.image.clone(), after, times: 1 });
    let url = node.bucket.url("/{{.Board}}/{{.OSVersion}}/m.json");
    let line = format!(
        "'{}' node prepare --root root --ca-file ca.crt --upgrade-os=false --no-verify-signatures '--torcx-manifest-url={url}'",
        env!("CARGO_BIN_EXE_landfall")
    );
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "typescript"])
        .current_dir(node.bench.path())
        .env("TERM", "xterm")
        .env("COLUMNS", "100")
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(100), "{shown}");
    assert!(shown.contains("[3/9] Fetch the images") && shown.contains("KiB/"), "{shown:?}");
}

#[test]
fn the_service_manager_hears_of_every_step() {
    let node = Node::new();
    let socket = node.bench.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    // Reads while the work continues, like a service manager: the kernel buffers only a few lines.
    let listening = std::thread::spawn(move || {
        let mut heard: Vec<String> = Vec::new();
        let mut datagram = [0; 4096];
        while heard.last().is_none_or(|line| line != "STATUS=Done") {
            let Ok(length) = manager.recv(&mut datagram) else { break };
            heard.push(String::from_utf8_lossy(&datagram[..length]).into_owned());
        }
        heard
    });
    let mut command = node.command(&["prepare"], &["--torcx-skip-setup"]);
    let output = command.env("NOTIFY_SOCKET", &socket).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let heard = listening.join().unwrap();
    assert!(heard.iter().any(|line| line == "STATUS=9/9 Let the kubelet start: done"), "{heard:?}");
    assert_eq!(heard.last().map(String::as_str), Some("STATUS=Done"), "{heard:?}");
}
