//! `landfall tunnel` with the flags of `proxy-server` and `proxy-agent`.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::{Binary, Need, Process, eventually, free_port, have};
use rustix::process::Signal;

use crate::command::Bench;

const SOON: Duration = Duration::from_secs(30);

/// Certificates, and the binary under upstream's names.
pub(crate) struct Dock {
    pub(crate) bench: Bench,
    agents: u16,
    pub(crate) server_admin: u16,
    agent_admin: u16,
}

impl Dock {
    pub(crate) fn new() -> Self {
        let bench = Bench::new();
        let authority = Authority::new("tunnel", 7).unwrap();
        bench.file("ca.crt", authority.certificate());
        for (name, leaf) in [
            ("server", Leaf::new("server", Purpose::Serve).names(["127.0.0.1"])),
            ("agent", Leaf::new("agent", Purpose::Call)),
        ] {
            let pair = authority.issue(&leaf).unwrap();
            bench.file(&format!("{name}.crt"), &pair.certificate);
            bench.file(&format!("{name}.key"), pair.key.expose());
        }
        for name in ["proxy-server", "proxy-agent"] {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_landfall"), bench.path().join(name)).unwrap();
        }
        let [agents, server_admin, agent_admin] = [(); 3].map(|()| free_port().unwrap());
        Self { bench, agents, server_admin, agent_admin }
    }

    fn socket(&self) -> PathBuf {
        self.bench.path().join("front.sock")
    }

    pub(crate) fn server_flags(&self) -> Vec<String> {
        let health = free_port().unwrap();
        [
            "--mode=http-connect",
            "--uds_name=front.sock",
            "--server-port",
            "0",
            "--agent-bind-address=127.0.0.1",
            &format!("--agent-port={}", self.agents),
            &format!("--health-port={health}"),
            &format!("--admin-port={}", self.server_admin),
            "--cluster-cert=server.crt",
            "--cluster-key=server.key",
            "--cluster-ca-cert=ca.crt",
            "--server-id=harbour",
            "--delete-existing-uds-file=true",
            "--logtostderr=true",
            "-v=4",
        ]
        .map(str::to_owned)
        .into()
    }

    pub(crate) fn agent_flags(&self) -> Vec<String> {
        let health = free_port().unwrap();
        [
            "--proxy-server-host=127.0.0.1",
            &format!("--proxy-server-port={}", self.agents),
            "--ca-cert=ca.crt",
            "--agent-cert=agent.crt",
            "--agent-key=agent.key",
            "--agent-id=boat",
            &format!("--health-server-port={health}"),
            &format!("--admin-server-port={}", self.agent_admin),
            "--sync-forever",
            "--keepalive-time=1h0m0s",
            "-v",
            "2",
        ]
        .map(str::to_owned)
        .into()
    }

    /// Starts the binary under one of the names and returns its socket for systemd notifications.
    pub(crate) fn start(&self, name: &str, flags: &[String]) -> (Process, UnixDatagram) {
        let told = self.bench.path().join(format!("{name}.notify"));
        let manager = UnixDatagram::bind(&told).unwrap();
        manager.set_read_timeout(Some(SOON)).unwrap();
        let process = Process::start(name, &self.bench.path().join(name), self.bench.path(), |command| {
            command.args(flags).current_dir(self.bench.path()).env("NOTIFY_SOCKET", &told);
            command.env_remove("JOURNAL_STREAM").env_remove("LANDFALL_LOG");
        })
        .unwrap();
        assert_eq!(word(&manager), "READY=1", "{}", process.log());
        (process, manager)
    }

    fn connect(&self, address: &str) -> Option<UnixStream> {
        connect(&self.socket(), address)
    }

    fn status(&self, port: u16, output: &str) -> crate::command::Run {
        self.bench.run(&["tunnel", "status", "--address", &format!("127.0.0.1:{port}"), "--output", output])
    }
}

fn word(manager: &UnixDatagram) -> String {
    let mut buffer = [0; 64];
    let length = manager.recv(&mut buffer).unwrap_or(0);
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

fn connect(socket: &Path, address: &str) -> Option<UnixStream> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(SOON)).ok()?;
    write!(stream, "CONNECT {address} HTTP/1.1\r\n\r\n").ok()?;
    let mut answer = [0; 39];
    stream.read_exact(&mut answer).ok()?;
    answer.starts_with(b"HTTP/1.1 200 ").then_some(stream)
}

/// Starts an echo server.
fn echo() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut reader = socket.try_clone().unwrap();
                let _ = std::io::copy(&mut reader, &mut socket);
            });
        }
    });
    address
}

fn ping(stream: &mut UnixStream) {
    stream.write_all(b"ahoy").unwrap();
    let mut back = [0; 4];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"ahoy");
}

#[test]
fn under_upstreams_names_it_serves_shows_its_status_and_drains() {
    let dock = Dock::new();
    let (mut server, server_told) = dock.start("proxy-server", &dock.server_flags());
    let mode = std::fs::metadata(dock.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o770);

    // No agent is connected yet.
    let run = dock.status(dock.server_admin, "text");
    assert_eq!((run.code, run.stderr.as_str()), (1, ""));
    assert!(run.stdout.starts_with("Server harbour (") && run.stdout.contains("no agent"), "{run:?}");

    let (mut agent, agent_told) = dock.start("proxy-agent", &dock.agent_flags());
    let echo = echo();
    let mut stream = eventually("a tunnel", SOON, || dock.connect(&echo)).unwrap();
    ping(&mut stream);

    let table = dock.status(dock.server_admin, "text");
    assert_eq!(table.code, 0, "{table:?}");
    let line = table.stdout.lines().find(|line| line.starts_with("boat ")).unwrap();
    assert!(line.contains(" good "), "{line}");
    let json = dock.status(dock.server_admin, "json").report();
    assert_eq!((json["role"].as_str(), json["server_id"].as_str()), (Some("server"), Some("harbour")));
    let boat = &json["agents"][0];
    assert_eq!((boat["id"].as_str(), boat["tunnels"].as_u64()), (Some("boat"), Some(1)));
    assert_eq!((boat["bytes_sent"].as_u64(), boat["bytes_received"].as_u64()), (Some(4), Some(4)));
    let json = dock.status(dock.agent_admin, "json").report();
    assert_eq!((json["role"].as_str(), json["servers"][0].as_str()), (Some("agent"), Some("harbour")));

    // A stopped agent exits when its tunnels have ended, and not before.
    agent.signal(Signal::TERM).unwrap();
    assert_eq!(word(&agent_told), "STOPPING=1");
    eventually("the drain", SOON, || {
        (dock.status(dock.server_admin, "json").report()["agents"][0]["draining"] == true).then_some(())
    })
    .unwrap();
    ping(&mut stream);
    drop(stream);
    assert_eq!(agent.wait(SOON).unwrap(), Some(0));
    server.signal(Signal::TERM).unwrap();
    assert_eq!(word(&server_told), "STOPPING=1");
    assert_eq!(server.wait(SOON).unwrap(), Some(0));
    assert!(!dock.socket().exists(), "the socket is left over");
    assert_eq!(dock.status(dock.server_admin, "text").code, 69);
}

#[test]
fn logs_tell_what_matters_and_nothing_of_each_tunnel() {
    let dock = Dock::new();
    // Upstream's default logs lines for each packet; ours is the level without a flag.
    let quiet = |flags: Vec<String>| {
        let flags = flags.into_iter().filter(|flag| flag != "-v=4" && flag != "-v" && flag != "2");
        flags.collect::<Vec<_>>()
    };
    let (server, _) = dock.start("proxy-server", &quiet(dock.server_flags()));
    let (agent, _) = dock.start("proxy-agent", &quiet(dock.agent_flags()));
    let (echo, nobody) = (echo(), format!("127.0.0.1:{}", free_port().unwrap()));
    ping(&mut eventually("a tunnel", SOON, || dock.connect(&echo)).unwrap());
    for round in 0..200 {
        ping(&mut dock.connect(&echo).unwrap());
        if round % 4 == 0 {
            assert!(dock.connect(&nobody).is_none(), "nobody listens there");
        }
    }
    for (process, told) in
        [(&server, &["agent connected", "dial failed", &nobody][..]), (&agent, &["connected"])]
    {
        let log = process.log();
        for words in told {
            assert!(log.contains(words), "{words} is not in {log}");
        }
        assert!(!log.contains("ERROR"), "a tunnel that ends is no error: {log}");
        assert!(log.lines().count() < 40, "{} lines for 200 tunnels: {log}", log.lines().count());
    }
}

#[test]
fn a_second_signal_does_not_wait() {
    let dock = Dock::new();
    let (_server, _) = dock.start("proxy-server", &dock.server_flags());
    let flags = [dock.agent_flags(), vec!["--drain-timeout=1h".to_owned()]].concat();
    let (mut agent, told) = dock.start("proxy-agent", &flags);
    let echo = echo();
    let mut stream = eventually("a tunnel", SOON, || dock.connect(&echo)).unwrap();
    ping(&mut stream);
    agent.signal(Signal::TERM).unwrap();
    assert_eq!(word(&told), "STOPPING=1");
    agent.signal(Signal::INT).unwrap();
    assert_eq!(agent.wait(SOON).unwrap(), Some(0));
}

#[test]
fn every_flag_of_upstream_is_known() {
    if !have(&[Need::Built(Binary::KonnectivityServer), Need::Built(Binary::KonnectivityAgent)]) {
        return;
    }
    for (binary, role) in [(Binary::KonnectivityServer, "server"), (Binary::KonnectivityAgent, "agent")] {
        let help = Command::new(binary.path().unwrap()).arg("--help").output().unwrap();
        let theirs = flags(&String::from_utf8(help.stdout).unwrap());
        assert!(theirs.len() > 40, "{theirs:?}");
        let ours = flags(&Bench::new().run(&["tunnel", role, "--help"]).stdout);
        let missing: Vec<&String> = theirs.difference(&ours).collect();
        assert!(missing.is_empty(), "{role}: {missing:?}");
    }
}

/// Returns the flags that a help text lists.
fn flags(help: &str) -> BTreeSet<String> {
    let listed = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let long = listed.filter_map(|line| line.split_whitespace().find_map(|word| word.strip_prefix("--")));
    let name = |flag: &str| flag.split(['[', '=', '.', ',']).next().unwrap_or_default().to_owned();
    long.map(name).collect()
}

#[test]
fn flags_without_effect_say_so() {
    let dock = Dock::new();
    let more = ["--xfr-channel-size=10", "--log-dir=/tmp", "--enable-profiling", "--alsologtostderr=false"];
    let flags = [dock.server_flags(), more.map(str::to_owned).into()].concat();
    let (server, _) = dock.start("proxy-server", &flags);
    let log = server.log();
    for flag in ["xfr-channel-size", "log-dir", "enable-profiling"] {
        assert!(log.contains(&format!("\"flag\":\"{flag}\"")), "{flag} is not in {log}");
    }
    assert!(!log.contains("alsologtostderr") && !log.contains("\"flag\":\"logtostderr"), "{log}");
}

#[test]
fn wrong_flags_are_refused_with_advice() {
    let dock = Dock::new();
    let serve = ["tunnel", "server", "--cluster-cert=server.crt", "--cluster-key=server.key"];
    let cases: [(&[&str], i32, &str); 13] = [
        (&["--uds-name=a.sock"], 64, "--server-port=8090"),
        (&["--uds-name=a.sock", "--server-port=0", "--server-cert=a"], 64, "certificate of the frontend"),
        (&[], 64, "without certificates"),
        (&["--server-port=0"], 64, "without certificates"),
        (&["--uds-name=a.sock", "--server-port=0", "--cluster-key="], 64, "only one"),
        (
            &["--uds-name=a.sock", "--server-port=0", "--cluster-key=ca.crt"],
            1,
            "certificates of the agent port",
        ),
        (&["--uds-name=no/where.sock", "--server-port=0"], 1, "no/where.sock"),
        (&["--uds-name=a.sock", "--server-port=0", "--cluster-ca-cert=no.crt"], 1, "no.crt"),
        (&["--uds-name=a.sock", "--server-port=0", "--agent-namespace=a"], 64, "whose, or what for"),
        (
            &["--uds-name=a.sock", "--server-port=0", "--enable-lease-controller", "--lease-label=x"],
            64,
            "list of labels",
        ),
        (
            &["--uds-name=a.sock", "--server-port=0", "--enable-lease-controller", "--kubeconfig=no.yaml"],
            1,
            "no.yaml",
        ),
        (&["--uds-name=a.sock", "--server-port=0", "--cipher-suites=TLS_ROT13"], 1, "TLS_ROT13"),
        (
            &["--uds-name=a.sock", "--server-port=0", "--agent-bind-address=no.such.host.invalid"],
            64,
            "invalid address",
        ),
    ];
    for (flags, code, said) in cases {
        let run = dock.bench.run(&[&serve[..], flags].concat());
        run.assert_refused(code, said);
        assert!(run.stderr.contains("\nhint: "), "{run:?}");
    }
    dock.bench.run(&["tunnel", "agent"]).assert_refused(64, "without their authority");
    dock.bench.run(&["tunnel", "agent", "--ca-cert=no.crt"]).assert_refused(1, "no.crt");
    dock.bench
        .run(&["tunnel", "agent", "--ca-cert=ca.crt", "--agent-key=agent.key"])
        .assert_refused(64, "only one");
    for flags in [
        &["server", "--mode=socks"][..],
        &["server", "--proxy-strategies=fastest"],
        &["server", "--keepalive-time=10"],
        &["server", "--health-port=0"],
        &["server", "--tls-min-version=VersionSSL30"],
        &["agent", "--sync-forever=maybe"],
        &["agent", "--agent-identifiers=zone=a"],
    ] {
        let run = dock.bench.run(&[&["tunnel"], flags].concat());
        assert_eq!((run.code, run.stdout.as_str()), (64, ""), "{run:?}");
        assert!(run.stderr.contains("hint: ") || run.stderr.contains("is not in 1.."), "{run:?}");
    }
}

#[test]
fn under_upstreams_names_the_version_is_told() {
    let dock = Dock::new();
    for name in ["proxy-server", "proxy-agent"] {
        let output = Command::new(dock.bench.path().join(name)).arg("--version").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.trim_end().ends_with(env!("CARGO_PKG_VERSION")), "{text}");
    }
}
