//! Benchmark of the gateway against haproxy, nginx and sslh in front of the same backend.
//!
//! Client, proxy and backend share the machine, so proxies are compared with each other. A direct connection
//! is also measured for comparison.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::{Process, free_port};
use tempfile::TempDir;

use super::{Bench, Better};
use crate::shell;

const BULK_MIB: &str = "2048";
const ECHO_ROUNDS: &str = "4000";
const SECONDS: &str = "3";
/// Each takes two sockets, within the limit of 20,000 descriptors on many systems.
const IDLE: usize = 8_000;
const START: Duration = Duration::from_secs(30);
/// Maximum KiB per idle connection.
const SPLICE_BAR: f64 = 8.0;
const INTERCEPT_BAR: f64 = 40.0;
/// Maximum milliseconds from a bundle request to its first byte, including the TLS handshake.
const FIRST_BYTE_BAR: f64 = 100.0;
const TOKEN: &str = "a-token-for-measurements";

/// All processes of the benchmark, in one directory.
struct Bed {
    folder: TempDir,
    program: PathBuf,
    load: PathBuf,
    backend: u16,
    _backend: Process,
}

/// A proxy and its port.
struct Proxy {
    process: Process,
    address: String,
}

pub(super) fn run(bench: &Bench) -> Result<()> {
    let program = bench.program()?;
    let build = [
        "build",
        "--release",
        "--locked",
        "--quiet",
        "--package",
        "landfall-gateway",
        "--example",
        "gateway-load",
    ];
    shell::run(shell::cargo().args(build))?;
    let bed = Bed::new(program)?;
    splice(bench, &bed)?;
    intercept(bench, &bed)?;
    first_byte(bench, &bed)
}

fn splice(bench: &Bench, bed: &Bed) -> Result<()> {
    let ours = bed.gateway("splice")?;
    let haproxy = bed.haproxy("tcp", HAPROXY_TCP)?;
    let sslh = bed.sslh()?;
    let bulk =
        |proxy: &Proxy| bed.numbers(&["bulk", &proxy.address, BULK_MIB, "4"]).map(|numbers| numbers[0]);
    let cpu = |proxy: &Proxy| {
        let before = proxy.cpu_seconds()?;
        bulk(proxy)?;
        Ok((proxy.cpu_seconds()? - before) / 2.0)
    };
    let echo = |proxy: &Proxy, at: usize| {
        bed.numbers(&["echo", &proxy.address, "8", ECHO_ROUNDS]).map(|numbers| numbers[at])
    };
    let direct = format!("127.0.0.1:{}", bed.backend);
    let straight = bed.numbers(&["bulk", &direct, BULK_MIB, "4"])?[0];
    eprintln!("without a proxy: {straight:.0} MiB/s");
    let named = |what: &'static str| move |proxy: &str| format!("{what}-{proxy}");
    bench.compare(
        "splice-bulk",
        "MiB/s",
        Better::Higher,
        1.0,
        "haproxy tcp, splice",
        || bulk(&ours),
        || bulk(&haproxy),
    )?;
    bench.compare(
        &named("splice-bulk")("sslh"),
        "MiB/s",
        Better::Higher,
        1.5,
        "sslh",
        || bulk(&ours),
        || bulk(&sslh),
    )?;
    bench.compare(
        "splice-cpu",
        "s/GiB",
        Better::Lower,
        1.0,
        "haproxy tcp, splice",
        || cpu(&ours),
        || cpu(&haproxy),
    )?;
    bench.compare(
        "splice-echo-p50",
        "us",
        Better::Lower,
        1.0,
        "haproxy tcp",
        || echo(&ours, 0),
        || echo(&haproxy, 0),
    )?;
    bench.compare(
        "splice-echo-p99",
        "us",
        Better::Lower,
        1.0,
        "haproxy tcp",
        || echo(&ours, 1),
        || echo(&haproxy, 1),
    )?;
    let idle = bed.idle("splice", "raw")?;
    bench.print("splice-idle", "KiB each", Better::Lower, 1.0, "bar", idle, SPLICE_BAR);
    Ok(())
}

fn intercept(bench: &Bench, bed: &Bed) -> Result<()> {
    let ours = bed.gateway("intercept")?;
    let haproxy = bed.haproxy("http", HAPROXY_HTTP)?;
    let nginx = bed.nginx()?;
    let authority = bed.path("ca.crt");
    let handshakes = |proxy: &Proxy| {
        bed.numbers(&["handshakes", &proxy.address, "16", SECONDS, &authority]).map(|numbers| numbers[0])
    };
    let requests = |proxy: &Proxy, version: &str, at: usize| {
        let numbers = bed.numbers(&["requests", version, &proxy.address, "32", SECONDS, &authority])?;
        Ok(numbers[at])
    };
    for (name, peer) in [("haproxy", &haproxy), ("nginx", &nginx)] {
        let metric = format!("handshakes-{name}");
        bench.compare(
            &metric,
            "per s",
            Better::Higher,
            1.0,
            name,
            || handshakes(&ours),
            || handshakes(peer),
        )?;
        for version in ["h1", "h2"] {
            let metric = format!("requests-{version}-{name}");
            let (ours_at, peer_at) = (|| requests(&ours, version, 0), || requests(peer, version, 0));
            bench.compare(&metric, "per s", Better::Higher, 1.0, name, ours_at, peer_at)?;
            let metric = format!("requests-{version}-p99-{name}");
            let (ours_at, peer_at) = (|| requests(&ours, version, 2), || requests(peer, version, 2));
            bench.compare(&metric, "us", Better::Lower, 1.0, name, ours_at, peer_at)?;
        }
    }
    let idle = bed.idle("intercept", "tls")?;
    bench.print("intercept-idle", "KiB each", Better::Lower, 1.0, "bar", idle, INTERCEPT_BAR);
    Ok(())
}

/// Measures the first byte of a bundle from a collector started by the gateway.
fn first_byte(bench: &Bench, bed: &Bed) -> Result<()> {
    let ours = bed.gateway("bundle")?;
    let mut times = Vec::new();
    for _ in 0..bench.rounds {
        let output = Command::new("curl")
            .args(["-sfk", "-m", "60", "-o", "/dev/null", "-w", "%{time_starttransfer}"])
            .args(["-H", &format!("Authorization: Bearer {TOKEN}")])
            .arg(format!("https://{}/bootstrap", ours.address))
            .output()
            .context("start curl")?;
        ensure!(output.status.success(), "no bundle came: {}", output.status);
        times.push(String::from_utf8_lossy(&output.stdout).parse::<f64>()? * 1000.0);
    }
    let time = super::median(&mut times);
    bench.print("bundle-first-byte", "ms", Better::Lower, 1.0, "bar", time, FIRST_BYTE_BAR);
    Ok(())
}

const HAPROXY_TCP: &str = "\
global\n nbthread 2\n maxconn 4000\n\
defaults\n mode tcp\n timeout connect 5s\n timeout client 300s\n timeout server 300s\n option splice-auto\n\
frontend f\n bind 127.0.0.1:PORT\n default_backend b\n\
backend b\n server s 127.0.0.1:BACKEND\n";

const HAPROXY_HTTP: &str = "\
global\n nbthread 2\n maxconn 4000\n\
defaults\n mode http\n timeout connect 5s\n timeout client 300s\n timeout server 300s\n http-reuse safe\n\
frontend f\n bind 127.0.0.1:PORT ssl crt FOLDER/both.pem alpn h2,http/1.1\n default_backend b\n\
backend b\n server s 127.0.0.1:BACKEND ssl verify required ca-file FOLDER/ca.crt sni str(localhost) alpn h2,http/1.1\n";

const NGINX: &str = "\
worker_processes 2;\ndaemon off;\npid FOLDER/nginx.pid;\nerror_log FOLDER/nginx-error.log;\n\
events { worker_connections 4000; }\n\
http {\n access_log off;\n keepalive_requests 10000000;\n\
 client_body_temp_path FOLDER/n1;\n proxy_temp_path FOLDER/n2;\n fastcgi_temp_path FOLDER/n3;\n\
 uwsgi_temp_path FOLDER/n4;\n scgi_temp_path FOLDER/n5;\n\
 upstream b { server 127.0.0.1:BACKEND; keepalive 64; keepalive_requests 10000000; }\n\
 server {\n listen 127.0.0.1:PORT ssl http2;\n ssl_certificate FOLDER/server.crt;\n ssl_certificate_key FOLDER/server.key;\n\
 location / { proxy_pass https://b; proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_ssl_verify on;\n\
 proxy_ssl_trusted_certificate FOLDER/ca.crt; proxy_ssl_name localhost; proxy_ssl_server_name on; }\n }\n}\n";

const GATEWAY: &str = "\
listen = [\"127.0.0.1:PORT\"]\nmode = \"MODE\"\nroot = \"FOLDER\"\nclient_authority = \"FOLDER/ca.crt\"\n\
collector = \"FOLDER/none.sock\"\nadmin = \"127.0.0.1:ADMIN\"\n\
[[serving]]\ncertificate = \"FOLDER/server.crt\"\nkey = \"FOLDER/server.key\"\n\
[front_proxy]\ncertificate = \"FOLDER/front.crt\"\nkey = \"FOLDER/front.key\"\nauthority = \"FOLDER/ca.crt\"\n\
[upstream]\nlocal = \"127.0.0.1:BACKEND\"\nauthority = \"FOLDER/ca.crt\"\nname = \"localhost\"\n";

// === impl Bed ===

impl Bed {
    fn new(program: PathBuf) -> Result<Self> {
        let folder = tempfile::tempdir().context("make a folder")?;
        let authority = Authority::new("bench", 2)?;
        fs::write(folder.path().join("ca.crt"), authority.certificate())?;
        for (name, leaf) in [
            ("server", Leaf::new("server", Purpose::Serve).names(["localhost", "127.0.0.1"])),
            ("front", Leaf::new("front-proxy-client", Purpose::Call)),
        ] {
            let issued = authority.issue(&leaf)?;
            fs::write(folder.path().join(format!("{name}.crt")), &issued.certificate)?;
            fs::write(folder.path().join(format!("{name}.key")), issued.key.expose())?;
            fs::write(
                folder.path().join("both.pem"),
                format!("{}{}", issued.certificate, issued.key.expose()),
            )?;
            if name == "server" {
                fs::copy(folder.path().join("both.pem"), folder.path().join("server.pem"))?;
            }
        }
        fs::rename(folder.path().join("server.pem"), folder.path().join("both.pem"))?;
        let load = shell::root().join("target/release/examples/gateway-load");
        let backend = free_port()?;
        let mut process = Process::start("backend", &load, folder.path(), |command| {
            command.args(["backend", &format!("127.0.0.1:{backend}")]);
            command.arg(folder.path().join("server.crt")).arg(folder.path().join("server.key"));
        })?;
        process.wait_until("the backend to listen", START, || {
            std::net::TcpStream::connect(("127.0.0.1", backend)).ok()
        })?;
        Ok(Self { folder, program, load, backend, _backend: process })
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Writes a configuration with its placeholders filled in.
    fn settings(&self, name: &str, text: &str, port: u16) -> Result<String> {
        let text = text
            .replace("FOLDER", &self.folder.path().display().to_string())
            .replace("PORT", &port.to_string())
            .replace("BACKEND", &self.backend.to_string());
        let path = self.path(name);
        fs::write(&path, text).with_context(|| format!("write `{path}`"))?;
        Ok(path)
    }

    fn start(&self, name: &str, program: &Path, port: u16, arguments: &[&str]) -> Result<Proxy> {
        let mut process = Process::start(name, program, self.folder.path(), |command| {
            command.args(arguments);
        })?;
        process
            .wait_until("it to listen", START, || std::net::TcpStream::connect(("127.0.0.1", port)).ok())?;
        Ok(Proxy { process, address: format!("127.0.0.1:{port}") })
    }

    fn gateway(&self, mode: &str) -> Result<Proxy> {
        let (port, admin) = (free_port()?, free_port()?);
        let mut text = GATEWAY.replace("ADMIN", &admin.to_string());
        if mode == "bundle" {
            fs::write(self.path("token"), TOKEN)?;
            text = text.replace("collector = \"FOLDER/none.sock\"", "gather_token = \"FOLDER/token\"");
        }
        let text = text.replace("MODE", if mode == "splice" { "splice" } else { "intercept" });
        let settings = self.settings(&format!("gateway-{mode}.toml"), &text, port)?;
        let mut proxy =
            self.start(&format!("gateway-{mode}"), &self.program, port, &["gateway", "--config", &settings])?;
        proxy.process.wait_until("the gateway to see its backend", START, || {
            let metrics = Command::new("curl")
                .args(["-s", &format!("http://127.0.0.1:{admin}/metrics")])
                .output()
                .ok()?;
            String::from_utf8_lossy(&metrics.stdout).contains("phase=\"local\"").then_some(())
        })?;
        Ok(proxy)
    }

    fn haproxy(&self, name: &str, text: &str) -> Result<Proxy> {
        let port = free_port()?;
        let settings = self.settings(&format!("haproxy-{name}.cfg"), text, port)?;
        self.start(&format!("haproxy-{name}"), Path::new("haproxy"), port, &["-db", "-f", &settings])
    }

    fn nginx(&self) -> Result<Proxy> {
        let port = free_port()?;
        let settings = self.settings("nginx.conf", NGINX, port)?;
        self.start("nginx", Path::new("nginx"), port, &["-c", &settings])
    }

    fn sslh(&self) -> Result<Proxy> {
        let port = free_port()?;
        let (listen, backend) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", self.backend));
        self.start("sslh", Path::new("sslh-select"), port, &["-f", "-n", "-p", &listen, "--tls", &backend])
    }

    /// Returns the load generator's results.
    fn numbers(&self, arguments: &[&str]) -> Result<Vec<f64>> {
        let output = Command::new(&self.load)
            .args(arguments)
            .stderr(Stdio::inherit())
            .output()
            .context("start the load")?;
        ensure!(output.status.success(), "the load {arguments:?} ended with {}", output.status);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.split_whitespace().map(|word| word.parse().with_context(|| format!("read {text:?}"))).collect()
    }

    /// Returns the gateway's KiB per idle connection.
    fn idle(&self, mode: &str, kind: &str) -> Result<f64> {
        let proxy = self.gateway(mode)?;
        let before = proxy.resident_kib()?;
        let count = IDLE.to_string();
        let mut load = Command::new(&self.load)
            .args(["idle", &proxy.address, &count, kind, &self.path("ca.crt")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the load")?;
        let mut line = String::new();
        BufReader::new(load.stdout.take().context("the load's output")?).read_line(&mut line)?;
        ensure!(line.trim() == count, "only {line:?} connections were opened");
        let after = proxy.resident_kib()?;
        drop(load.stdin.take());
        load.wait()?;
        Ok((after - before) / f64::from(u32::try_from(IDLE)?))
    }
}

// === impl Proxy ===

impl Proxy {
    /// Returns the CPU time of the process and its children.
    fn cpu_seconds(&self) -> Result<f64> {
        let id = self.process.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        let mut ticks = 0.0;
        for id in std::iter::once(id.to_string()).chain(children.split_whitespace().map(str::to_owned)) {
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).context("read a process's times")?;
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
            for at in [11, 12] {
                ticks += fields.get(at).context("a process's times")?.parse::<f64>()?;
            }
        }
        // On all common systems the kernel's unit is 1/100 s.
        Ok(ticks / 100.0)
    }

    fn resident_kib(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line =
            status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("a process's memory")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }
}
