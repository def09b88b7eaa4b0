//! `landfall gateway` as a process: the mode it selects, the collector it starts, and its exit.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::{Need, Process, eventually, free_port, have};
use rustix::process::Signal;

use crate::command::Bench;

const LIMIT: Duration = Duration::from_secs(90);

/// Creates a machine that looks like a kubeadm control plane whose API server never started.
pub(crate) fn kubeadm(bench: &Bench) -> Authority {
    let authority = Authority::new("kubernetes", 2).unwrap();
    let front = Authority::new("front-proxy", 2).unwrap();
    bench.file("root/etc/kubernetes/pki/ca.crt", authority.certificate());
    bench.file("root/etc/kubernetes/pki/front-proxy-ca.crt", front.certificate());
    let serving = Leaf::new("kube-apiserver", Purpose::Serve).names([
        "localhost",
        "127.0.0.1",
        "kubernetes.default.svc",
    ]);
    let admin = Leaf::new("kubernetes-admin", Purpose::Call).organization("system:masters");
    for (name, authority, leaf) in [
        ("root/etc/kubernetes/pki/apiserver", &authority, serving),
        (
            "root/etc/kubernetes/pki/front-proxy-client",
            &front,
            Leaf::new("front-proxy-client", Purpose::Call),
        ),
        ("admin", &authority, admin),
    ] {
        let issued = authority.issue(&leaf).unwrap();
        bench.file(&format!("{name}.crt"), &issued.certificate);
        bench.file(&format!("{name}.key"), issued.key.expose());
    }
    bench.file("root/etc/hostname", "control-plane-0\n");
    bench.file("root/var/log/cloud-init-output.log", "a line\n");
    authority
}

fn processes_with(text: &str) -> usize {
    let all = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| std::fs::read(entry.ok()?.path().join("cmdline")).ok());
    all.filter(|words| String::from_utf8_lossy(words).contains(text)).count()
}

#[test]
fn a_bundle_comes_from_a_machine_without_an_api_server() {
    if !have(&[Need::Program("curl")]) {
        return;
    }
    let bench = Bench::new();
    kubeadm(&bench);
    let (port, upstream) = (free_port().unwrap(), free_port().unwrap());
    let root = bench.path().join("root").display().to_string();
    let socket = bench.path().join("collector.sock").display().to_string();
    for collector in [None, Some(&socket)] {
        let program = Path::new(env!("CARGO_BIN_EXE_landfall"));
        let _elsewhere = collector.map(|socket| {
            Process::start("collector", program, bench.path(), |command| {
                command.args(["collector", "--socket", socket, "--root", &root]);
            })
            .unwrap()
        });
        let mut gateway = Process::start("gateway", program, bench.path(), |command| {
            command.args(["gateway", "--root", &root, "--listen", &format!("127.0.0.1:{port}")]);
            command.args(["--upstream", &format!("127.0.0.1:{upstream}")]);
            command.env("RUNTIME_DIRECTORY", bench.path());
            if let Some(socket) = collector {
                command.args(["--collector", socket]);
            }
        })
        .unwrap();
        let bundle = bench.path().join("bundle.tar.gz");
        gateway
            .wait_until("a bundle", LIMIT, || {
                let mut curl = Command::new("curl");
                curl.current_dir(bench.path()).args([
                    "-sf",
                    "-m",
                    "60",
                    "--cacert",
                    "root/etc/kubernetes/pki/ca.crt",
                ]);
                curl.args(["--cert", "admin.crt", "--key", "admin.key", "-o"]).arg(&bundle);
                curl.arg(format!("https://localhost:{port}/bootstrap"));
                curl.stdout(Stdio::null()).status().unwrap().success().then_some(())
            })
            .unwrap();
        let read = bench.run(&["diagnose", "--output", "json", "bundle.tar.gz"]);
        let sources = read.report()["sources"].to_string();
        assert!(sources.contains("cloud-init-output.log"), "{sources}");
        let log = gateway.log();
        assert!(log.contains("a kubeadm control plane") && log.contains("mode `intercept`"), "{log}");
        if collector.is_none() {
            let mark = format!("collector\0--socket\0{}/collector-", bench.path().display());
            assert_eq!(processes_with(&mark), 1);
        }
        gateway.signal(Signal::TERM).unwrap();
        assert_eq!(gateway.wait(LIMIT).unwrap(), Some(0), "{}", gateway.log());
    }
}

#[test]
fn a_check_loads_what_it_names() {
    let bench = Bench::new();
    kubeadm(&bench);
    let check = ["gateway", "--root", "root", "--check"];
    let good = bench.run(&check);
    assert_eq!(good.code, 0, "{good:?}");
    let key = std::fs::read(bench.path().join("admin.key")).unwrap();
    bench.file("root/etc/kubernetes/pki/apiserver.key", key);
    bench.run(&check).assert_refused_after_words(1, "load certificates and keys");
}

#[test]
fn a_collector_ends_with_its_gateway() {
    let bench = Bench::new();
    kubeadm(&bench);
    let root = bench.path().join("root").display().to_string();
    let mark = format!("--root\0{root}\0--with-parent");
    let gateway =
        Process::start("gateway", Path::new(env!("CARGO_BIN_EXE_landfall")), bench.path(), |command| {
            command.args(["gateway", "--root", &root, "--listen", "127.0.0.1:0"]);
            command.env("RUNTIME_DIRECTORY", bench.path());
        })
        .unwrap();
    eventually("a collector", LIMIT, || (processes_with(&mark) == 1).then_some(())).unwrap();
    gateway.signal(Signal::KILL).unwrap();
    eventually("no collector", LIMIT, || (processes_with(&mark) == 0).then_some(())).unwrap();
}

#[test]
fn a_machine_without_a_control_plane_is_told_so() {
    let bench = Bench::new();
    let run = bench.run(&["gateway", "--root", bench.path().to_str().unwrap()]);
    run.assert_refused(1, "no certificate to serve is configured and none was found");
    let settings = bench.file("gateway.toml", "modus = \"splice\"\n");
    let run = bench.run(&["gateway", "--config", settings.to_str().unwrap()]);
    run.assert_refused(1, "gateway.toml");
}

#[test]
fn mistakes_are_told_in_one_line_with_advice() {
    let bench = Bench::new();
    kubeadm(&bench);
    let root = bench.path().join("root").display().to_string();
    let gateway = |further: &[&str]| bench.run(&[&["gateway", "--root", &root], further].concat());
    let refused = |run: &crate::command::Run, code: i32, error: &str, hint: &str| {
        let lines: Vec<&str> = run.stderr.lines().filter(|line| line.starts_with("error:")).collect();
        assert_eq!(run.code, code, "{run:?}");
        assert!(lines.len() == 1 && lines[0].contains(error), "{run:?}");
        assert!(run.stderr.lines().any(|line| line.starts_with("hint: ") && line.contains(hint)), "{run:?}");
    };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    refused(&gateway(&["--listen", &address]), 1, "in use", "--listen");
    let free = ["--listen", "127.0.0.1:0"];
    refused(&gateway(&["--listen", "203.0.113.1:6444"]), 1, "listen on 203.0.113.1:6444", "--listen");
    refused(
        &gateway(&[&free[..], &["--audit-log", "root/etc/hostname/audit.log"]].concat()),
        1,
        "open the audit log",
        "--audit-log",
    );
    refused(
        &gateway(&[&free[..], &["--gather-token", "/nowhere/token"]].concat()),
        1,
        "/nowhere/token",
        "files named",
    );
    // Without `nft` the requested redirect rule is impossible; the gateway exits rather than serving without it.
    refused(&gateway(&[&free[..], &["--redirect", "6443"]].concat()), 1, "nft", "nftables");
    std::fs::remove_file(bench.path().join("root/etc/kubernetes/pki/ca.crt")).unwrap();
    refused(&gateway(&free), 1, "ca.crt", "files named");
    bench.file("root/etc/kubernetes/pki/apiserver.key", "not a key");
    refused(&gateway(&free), 1, "apiserver.key", "files named");
}

/// Out of descriptors: existing connections are served, new ones wait, and the process continues.
#[test]
fn without_descriptors_it_goes_on() {
    if !have(&[Need::Root, Need::Program("setpriv"), Need::Program("prlimit"), Need::Program("curl")]) {
        return;
    }
    let bench = Bench::new();
    kubeadm(&bench);
    let (port, upstream) = (free_port().unwrap(), free_port().unwrap());
    let root = bench.path().join("root").display().to_string();
    let mut gateway = Process::start("gateway", Path::new("setpriv"), bench.path(), |command| {
        // Root could raise its own limit.
        command.args(["--bounding-set=-sys_resource", "prlimit", "--nofile=80:80"]);
        command.env("RUNTIME_DIRECTORY", bench.path());
        command.args([env!("CARGO_BIN_EXE_landfall"), "-v", "gateway", "--root", &root]);
        command.args([
            "--listen",
            &format!("127.0.0.1:{port}"),
            "--upstream",
            &format!("127.0.0.1:{upstream}"),
        ]);
    })
    .unwrap();
    let answers = || {
        let mut curl = Command::new("curl");
        curl.args(["-sk", "-m", "5", "-o", "/dev/null", &format!("https://localhost:{port}/livez")]);
        curl.status().unwrap().success()
    };
    gateway.wait_until("an answer", LIMIT, || answers().then_some(())).unwrap();
    let mut held: Vec<_> =
        (0..120).map_while(|_| std::net::TcpStream::connect(("127.0.0.1", port)).ok()).collect();
    eventually("it to run out of descriptors", LIMIT, || {
        gateway.log().contains("cannot accept connections").then_some(())
    })
    .unwrap();
    held.clear();
    gateway.wait_until("an answer again", LIMIT, || answers().then_some(())).unwrap();
    gateway.signal(Signal::TERM).unwrap();
    assert_eq!(gateway.wait(LIMIT).unwrap(), Some(0), "{}", gateway.log());
}

/// The complete procedure of an operator: find the machine, fetch, verify, and read the cause, or the reason of a
/// denial.
#[test]
fn gather_names_the_cause_through_the_gateway() {
    const CAUSE: &str = "error execution phase preflight: couldn't validate the identity of the API Server: \
        Get \"https://api.corp:6443/api/v1/namespaces/kube-public/configmaps/cluster-info\": dial tcp: \
        lookup api.corp on 10.0.0.2:53: no such host\n";
    let bench = Bench::new();
    let authority = kubeadm(&bench);
    bench.file("root/var/log/cloud-init-output.log", CAUSE);
    let sailor = authority.issue(&Leaf::new("sailor", Purpose::Call)).unwrap();
    bench.file("sailor.crt", &sailor.certificate);
    bench.file("sailor.key", sailor.key.expose());
    let (port, upstream) = (free_port().unwrap(), free_port().unwrap());
    let root = bench.path().join("root").display().to_string();
    let mut gateway =
        Process::start("gateway", Path::new(env!("CARGO_BIN_EXE_landfall")), bench.path(), |command| {
            command.args(["gateway", "--root", &root, "--listen", &format!("127.0.0.1:{port}")]);
            command.args(["--upstream", &format!("127.0.0.1:{upstream}")]);
            command.env("RUNTIME_DIRECTORY", bench.path());
        })
        .unwrap();
    let url = format!("https://localhost:{port}");
    let gather = |user: &str, further: &[&str]| {
        let (certificate, key) = (format!("{user}.crt"), format!("{user}.key"));
        let mut arguments = vec!["gather", url.as_str(), "--output", "json", "-o", "gathered.tar.gz"];
        arguments.extend(["--certificate-authority", "root/etc/kubernetes/pki/ca.crt"]);
        arguments.extend(["--client-certificate", &certificate, "--client-key", &key]);
        arguments.extend(further);
        bench.run(&arguments)
    };
    let run = gather("admin", &["--wait", "90"]);
    assert_eq!(run.code, 2, "{run:?} {}", gateway.log());
    assert_eq!(run.report()["verdict"]["cause"], "dns-resolution-failure", "{run:?}");
    assert!(run.stderr.contains("bootstrap machine control-plane-0 (phase no-api)"), "{run:?}");
    assert!(bench.path().join("gathered.tar.gz").is_file());
    assert!(!bench.path().join("gathered.tar.gz.partial").exists());

    let run = gather("admin", &["--since", "never"]);
    run.assert_refused_after_words(1, "since: this is neither how long ago");

    let run = gather("sailor", &[]);
    run.assert_refused_after_words(77, "403 Forbidden");
    // The right machine, which cannot verify this token yet, is not reported as "another server".
    bench.file("token", "a-token-of-somebody-else");
    let mut arguments = vec!["gather", url.as_str(), "--wait", "1", "--token-file", "token"];
    arguments.extend(["--certificate-authority", "root/etc/kubernetes/pki/ca.crt"]);
    let run = bench.run(&arguments);
    run.assert_refused(69, "503 Service Unavailable");
    assert!(run.stderr.contains("gather token"), "{run:?}");
    gateway.signal(Signal::TERM).unwrap();
    assert_eq!(gateway.wait(LIMIT).unwrap(), Some(0), "{}", gateway.log());
}
