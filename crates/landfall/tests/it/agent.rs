use std::fs;
use std::io::Read as _;

use landfall_testkit::{Dns, Need, Node, NodeSpec, have};

use crate::command::Bench;

/// Output of `kubeadm join` when the name of the API endpoint does not resolve.
const DEAD_DNS: &str = "\
[preflight] Running pre-flight checks
error: error execution phase preflight: couldn't validate the identity of the API Server: failed to request the \
cluster-info ConfigMap: Get \"https://api.c1.example:6443/api/v1/x\": dial tcp: lookup api.c1.example on 10.0.0.2:53: no such host
";

/// The disk of a node that did not join.
fn disk() -> Bench {
    let bench = Bench::new();
    bench.file("disk/etc/hostname", "n1\n");
    bench.file("disk/var/log/cloud-init-output.log", DEAD_DNS);
    bench.file("disk/etc/cloud/cloud.cfg", "");
    bench
}

#[test]
fn a_bundle_of_a_disk_is_diagnosed() {
    let bench = disk();
    let cases: [(&[&str], &str, &[u8]); 4] = [
        (&["--format", "gzip"], "b.tar.gz", b"\x1f\x8b"),
        (&["--format", "zstd"], "b", b"\x28\xb5\x2f\xfd"),
        // The name implies the format.
        (&[], "c.tar.zst", b"\x28\xb5\x2f\xfd"),
        (&[], "c", b"\x1f\x8b"),
    ];
    for (format, name, magic) in cases {
        let run = bench.run(&[&["agent", "--once", "--root", "disk", "-o", name], format].concat());
        assert!(fs::read(bench.path().join(name)).unwrap().starts_with(magic), "{name}");
        assert_eq!((run.code, run.stdout.as_str()), (0, ""), "{run:?}");
        assert!(run.stderr.contains(&format!("to `{name}`")), "{run:?}");
        assert!(run.stderr.ends_with(&format!("next: landfall diagnose {name}\n")), "{run:?}");
        let run = bench.run(&["diagnose", "--output", "json", name]);
        assert_eq!(run.code, 2, "{run:?}");
        assert_eq!(run.report()["verdict"]["cause"], "dns-resolution-failure");
    }
}

#[test]
fn a_bundle_can_be_piped() {
    let bench = disk();
    let output = bench.command(&["agent", "--once", "--root", "disk", "-o", "-"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.starts_with(b"\x1f\x8b"));
    let run = bench.run_with_input(&["diagnose", "--output", "json", "-"], &output.stdout);
    assert_eq!(run.report()["verdict"]["cause"], "dns-resolution-failure", "{run:?}");
}

#[test]
fn without_a_name_the_bundle_is_named_after_its_time() {
    let bench = disk();
    let run = bench.run(&["agent", "--once", "--root", "disk"]);
    assert_eq!(run.code, 0, "{run:?}");
    let names: Vec<String> = fs::read_dir(bench.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let name = names.iter().find(|name| name.starts_with("log-bundle-")).unwrap();
    assert!(name.ends_with(".tar.gz") && name.len() == "log-bundle-20260102030405.tar.gz".len(), "{name}");
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &fs::metadata(bench.path().join(name)).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600, "nobody else may read it");
}

#[test]
fn what_could_not_be_read_is_told_with_the_reason() {
    let bench = disk();
    bench.file("disk/var/log/messages", b"\0".repeat(5000));
    let run = bench.run(&["agent", "--once", "--root", "disk", "-o", "b"]);
    assert_eq!(run.code, 0, "{run:?}");
    let line =
        "not collected: /var/log/messages: withheld: it is not text and cannot be searched for secrets";
    assert!(run.stderr.lines().any(|told| told == line), "{run:?}");
}

#[test]
fn mistakes_are_refused_with_advice() {
    let bench = disk();
    bench.run(&["agent", "--once", "--root", "nowhere", "-o", "b"]).assert_refused(1, "`nowhere`");
    bench
        .run(&["agent", "--once", "--root", "disk", "-o", "no/such/folder/b"])
        .assert_refused(1, "no/such/folder/b");
    assert_eq!(bench.run(&["agent", "-o", "b"]).code, 64);
    assert_eq!(bench.run(&["agent", "--once", "--hub", "https://hub.corp"]).code, 64);
    bench.run(&["agent", "--hub", "ftp://hub.corp"]).assert_refused(64, "ftp://hub.corp");
}

#[test]
fn a_full_disk_is_told_with_advice() {
    let bench = disk();
    // Every write to it fails with ENOSPC.
    let run = bench.run(&["agent", "--once", "--root", "disk", "-o", "/dev/full"]);
    run.assert_refused(1, "No space left on device");
    assert!(run.stderr.contains("`/dev/full`"), "{run:?}");
    assert!(run.stderr.contains("\nhint: what was written so far can be diagnosed; "), "{run:?}");
}

#[test]
fn a_reader_that_ends_early_is_told() {
    let bench = disk();
    let mut child = bench.command(&["agent", "--once", "--root", "disk", "-o", "-"]).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(
        told.contains("hint: the reader of standard output ended before the bundle was complete"),
        "{told}"
    );
}

#[test]
fn a_bundle_for_a_recipient_is_read_by_nobody_else() {
    if !have(&[Need::Program("age"), Need::Program("age-keygen")]) {
        return;
    }
    let bench = disk();
    let shell = |script: &str| {
        let output =
            std::process::Command::new("sh").args(["-euc", script]).current_dir(bench.path()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    let public =
        String::from_utf8(shell("age-keygen -o key.txt 2>/dev/null; age-keygen -y key.txt")).unwrap();
    let run =
        bench.run(&["agent", "--once", "--root", "disk", "--age-recipient", public.trim(), "-o", "b.age"]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stderr.ends_with("next: age --decrypt -i IDENTITY b.age | landfall diagnose -\n"), "{run:?}");
    let opened = shell("age --decrypt -i key.txt b.age");
    let run = bench.run_with_input(&["diagnose", "--output", "json", "-"], &opened);
    assert_eq!(run.report()["verdict"]["cause"], "dns-resolution-failure", "{run:?}");
    let run = bench.run(&["agent", "--once", "--root", "disk", "--age-recipient", "age1mistyped", "-o", "c"]);
    assert_eq!(run.code, 64, "{run:?}");
}

#[test]
fn a_broken_drop_in_is_told_and_does_not_stop_the_rest() {
    let bench = disk();
    bench.file("disk/etc/landfall/gather.d/bad.toml", "[[item]]\nid = \"hunter2\" oops\n");
    let run = bench.run(&["agent", "--once", "--root", "disk", "-o", "b"]);
    assert_eq!(run.code, 0, "{run:?}");
    let line = "/etc/landfall/gather.d/bad.toml: line 2 is not part of a list of items to collect";
    assert!(run.stderr.contains(line) && !run.stderr.contains("hunter2"), "{run:?}");
    assert!(run.stderr.contains("hint: fix or remove the file in `/etc/landfall/gather.d`"), "{run:?}");
    assert_eq!(
        bench.run(&["diagnose", "--output", "json", "b"]).report()["verdict"]["cause"],
        "dns-resolution-failure"
    );
}

/// Memory use is constant for any amount of data: the child is observed while it writes.
#[test]
fn memory_does_not_grow_with_the_machine() {
    let bench = disk();
    let line =
        "I0102 03:04:05.678901 1 kubelet.go:1] one of very many lines that all say nearly the same thing\n";
    let log = line.repeat((8 << 20) / line.len());
    // Most of it is the same file under other names. `cargo xtask bench bundle` does it with 4 GiB.
    for number in 0..4 {
        let name = |copy: usize| format!("disk/var/log/containers/pod-{number}-{copy}.log");
        bench.file(&name(0), &log);
        for copy in 1..5 {
            fs::hard_link(bench.path().join(name(0)), bench.path().join(name(copy))).unwrap();
        }
    }
    let mut child = bench.command(&["agent", "--once", "--root", "disk", "-o", "-"]).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut stdout = child.stdout.take().unwrap();
    let (mut peak, mut total) = (0, 0);
    let mut buffer = vec![0; 4096];
    loop {
        let count = stdout.read(&mut buffer).unwrap();
        if count == 0 {
            break;
        }
        total += count;
        let text = fs::read_to_string(&status).unwrap_or_default();
        let high = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = high.and_then(|high| high.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        peak = peak.max(kib.unwrap_or(0));
    }
    assert!(child.wait().unwrap().success() && total > 0);
    assert!(peak > 0, "the child was never seen");
    assert!(peak < 64 << 10, "{peak} KiB");
}

#[test]
fn on_a_node_with_dead_dns_the_probes_tell_which_server_is_silent() {
    if !have(Node::NEEDS) {
        return;
    }
    let mut spec = NodeSpec::new("prober");
    spec.dns = Dns::Dead;
    let program = fs::read(env!("CARGO_BIN_EXE_landfall")).unwrap();
    spec.files.push(("/usr/local/bin/landfall".into(), program));
    let kubeconfig = "clusters:\n- cluster:\n    server: https://api.c1.example:6443\n";
    spec.files.push(("/etc/kubernetes/bootstrap-kubelet.conf".into(), kubeconfig.into()));
    let mut node = Node::boot(&spec).unwrap();
    node.wait_for_boot().unwrap();
    node.output(&["chmod", "+x", "/usr/local/bin/landfall"]).unwrap();

    // Not under `/tmp`, which is not visible outside.
    node.output(&["landfall", "agent", "--once", "-o", "/var/bundle.tar.gz"]).unwrap();

    let bench = Bench::new();
    let bundle = node.root().join("var/bundle.tar.gz");
    let script =
        "tar xzf \"$0\" --strip-components=1 && cat bootstrap/probes/*.txt bootstrap/kubelet-healthz.txt";
    let output = std::process::Command::new("sh")
        .args(["-euc", script])
        .arg(&bundle)
        .current_dir(bench.path())
        .output();
    let told = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(told.contains("lookup api.c1.example on 203.0.113.53:53: i/o timeout (A, "), "{told}");
    assert!(told.contains("api.c1.example:6443: no name server gave an address"), "{told}");
    assert!(told.contains("GET http://127.0.0.1:10248/healthz: no answer"), "{told}");
    let run = bench.run(&["diagnose", "--output", "json", bundle.to_str().unwrap()]);
    assert_eq!(run.report()["verdict"]["cause"], "dns-resolution-failure", "nothing else tells: {run:?}");
}
