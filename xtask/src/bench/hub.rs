//! Benchmark of the shipped hub under load.
//!
//! Fleet and hub share the machine. The fleet has one thread and prepares its reports in advance, except for
//! ID, time and signature. It keeps its connections, or opens one per report as agents do. Meanwhile the
//! fleet view is requested once a second. Lost reports are determined from the database, not from the hub.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use landfall_hub::{Holder, TokenKey};
use landfall_model::Secret;
use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::{Durability, Postgres, Process, free_port};
use serde::Deserialize;
use tempfile::TempDir;

use super::share::Share;
use super::{Bench, Better};
use crate::shell;

pub(super) const NODES: u32 = 10_000;
pub(super) const SECONDS: u32 = 300;
/// Reporting interval of a node.
const EVERY_MS: u32 = 5000;
/// Heartbeat interval of an agent.
const AGENTS_EVERY_MS: u32 = 60_000;
const START: Duration = Duration::from_secs(60);
/// Connections, nodes and reports of the maximum load, per hub: a hub with fewer connections forms smaller
/// groups.
const FLOOD: [usize; 3] = [64, 2000, 12_000];
/// Share of a core for each compared hub, in hundredths. Two hubs with their database and the load then need
/// less than two cores. The hub is therefore the bottleneck, as in a deployment with a machine per hub.
const SHARE: u32 = 10;
/// The load for a store with many nodes: each reports once.
const LARGE: [&str; 3] = ["64", "100000", "100000"];
/// Number of requests for each page.
const LOOKS: &str = "20";
/// Limits.
const ACCEPT_P99_MS: f64 = 50.0;
const PAGE_MS: f64 = 300.0;
const MEMORY_MIB: f64 = 300.0;
const TWO_REPLICAS: f64 = 1.7;

/// Parameters of the load.
pub(super) struct Load {
    pub(super) nodes: u32,
    pub(super) seconds: u32,
    /// By default, all stores with limits.
    pub(super) store: Option<Store>,
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum Store {
    /// One hub on its own file
    Sqlite,
    /// The same with TLS and tokens, once a minute from each node, over a connection for each report
    Agents,
    /// One hub, then one and two in turns, on a database
    Postgres,
    /// One hub on its own file with a hundred thousand nodes: how long pages take
    Large,
}

/// Results of the load.
#[derive(Deserialize)]
struct Seen {
    seconds: f64,
    acknowledged: u64,
    again: u64,
    refused: u64,
    late: u64,
    accept_p50_ms: f64,
    accept_p99_ms: f64,
    first_p99_ms: f64,
    accept_max_ms: f64,
    page_p50_ms: f64,
    page_max_ms: f64,
    pages: u64,
}

#[derive(Deserialize)]
struct Kept {
    acknowledged: u64,
    stored: u64,
    missing: u64,
}

#[derive(Deserialize)]
struct Looked {
    page_p50_ms: f64,
    page_max_ms: f64,
}

struct Bed {
    folder: TempDir,
    /// The binary under test.
    landfall: PathBuf,
    /// The load generator.
    program: PathBuf,
}

/// Credentials of nodes and hub: files in the test bed's directory.
struct Credentials {
    authority: String,
    token: String,
    /// Options of the hub.
    options: Vec<String>,
}

/// A hub that runs until dropped.
struct Hub {
    process: Process,
    address: String,
}

pub(super) fn run(bench: &Bench, load: &Load) -> Result<()> {
    let build =
        ["build", "--release", "--locked", "--quiet", "--package", "landfall-hub", "--example", "hub-load"];
    shell::run(shell::cargo().args(build))?;
    let bed = Bed {
        folder: tempfile::tempdir().context("make a folder")?,
        landfall: bench.program()?,
        program: shell::target().join("release/examples/hub-load"),
    };
    let parts = match load.store {
        Some(one) => vec![one],
        None => vec![Store::Sqlite, Store::Agents, Store::Postgres],
    };
    for part in parts {
        match part {
            Store::Sqlite => fleet(bench, &bed, load, "", &format!("sqlite:{}", bed.path("hub.db")))?,
            Store::Agents => agents(bench, &bed, load)?,
            Store::Large => large(bench, &bed)?,
            Store::Postgres => {
                let postgres = Postgres::start(Durability::Real)?;
                fleet(bench, &bed, load, "postgres-", &postgres.database()?)?;
                replicas(bench, &bed, &postgres)?;
            }
        }
    }
    Ok(())
}

fn fleet(bench: &Bench, bed: &Bed, load: &Load, named: &str, store: &str) -> Result<()> {
    let hub = bed.hub("hub", store, &[])?;
    let list = bed.path("acknowledged");
    let (nodes, seconds) = (load.nodes.to_string(), load.seconds.to_string());
    let address = hub.address.clone();
    let words = ["fleet", &address, &nodes, &EVERY_MS.to_string(), &seconds, &list];
    measure(bench, bed, named, hub, store, &words)
}

/// Simulates real agents.
fn agents(bench: &Bench, bed: &Bed, load: &Load) -> Result<()> {
    let credentials = bed.credentials()?;
    let options: Vec<&str> = credentials.options.iter().map(String::as_str).collect();
    let store = format!("sqlite:{}", bed.path("agents.db"));
    let hub = bed.hub("hub-with-tls", &store, &options)?;
    let (nodes, seconds, list) = (load.nodes.to_string(), load.seconds.to_string(), bed.path("of-agents"));
    let (authority, token, every) = (&credentials.authority, &credentials.token, AGENTS_EVERY_MS.to_string());
    let address = hub.address.clone();
    let words = ["agents", &address, authority, token, &nodes, &every, &seconds, &list];
    measure(bench, bed, "agents-", hub, &store, &words)
}

/// Runs the load and prints the comparison with the limits.
///
/// The last argument is the file for acknowledged reports.
fn measure(bench: &Bench, bed: &Bed, named: &str, hub: Hub, store: &str, words: &[&str]) -> Result<()> {
    let list = words.last().copied().unwrap_or_default().to_owned();
    let seen: Seen = bed.ask(words)?;
    let (cpu, memory) = (cpu_seconds(hub.process.id())?, hub.peak_mib()?);
    drop(hub);
    let stored: Kept = bed.ask(&["missing", store, &list])?;
    seen.tell(cpu, &stored);
    if let Some(file) = store.strip_prefix("sqlite:") {
        eprintln!("the store: {:.0} bytes a report", stored_bytes(file)? / count(seen.acknowledged).max(1.0));
    }
    ensure!(seen.refused == 0, "{} reports were refused", seen.refused);
    let least = |value: f64| value.max(0.01);
    let print = |metric: &str, unit: &str, value: f64, bar: f64| {
        bench.print(&format!("{named}{metric}"), unit, Better::Lower, 1.0, "bar", value, bar);
    };
    print("lost", "reports", least(count(stored.missing)), least(0.0));
    print("accept-p99", "ms", seen.accept_p99_ms, ACCEPT_P99_MS);
    print("fleet-page-max", "ms", seen.page_max_ms, PAGE_MS);
    print("memory", "MiB", memory, MEMORY_MIB);
    Ok(())
}

/// Measures costs that grow with the number of nodes rather than with their reports.
fn large(bench: &Bench, bed: &Bed) -> Result<()> {
    let file = bed.path("hub.db");
    let hub = bed.hub("hub", &format!("sqlite:{file}"), &[])?;
    let [connections, nodes, reports] = LARGE;
    let seen: Seen = bed.ask(&["flood", &hub.address, connections, nodes, reports, &bed.path("flood")])?;
    eprintln!("{} nodes in {:.0} s", seen.acknowledged, seen.seconds);
    let pages = [
        ("/", "fleet"),
        ("/?q=node-0999", "search-by-name"),
        ("/?state=failed", "filter"),
        ("/causes", "causes"),
    ];
    for (path, name) in pages {
        let look: Looked = bed.ask(&["page", &hub.address, path, LOOKS])?;
        eprintln!("`{path}`: median {:.0} ms, longest {:.0} ms", look.page_p50_ms, look.page_max_ms);
        bench.print(&format!("large-{name}"), "ms", Better::Lower, 1.0, "bar", look.page_p50_ms, PAGE_MS);
    }
    bench.print("large-memory", "MiB", Better::Lower, 1.0, "bar", hub.peak_mib()?, MEMORY_MIB);
    drop(hub);
    let bytes = fs::metadata(&file).context("look at the store")?.len();
    eprintln!(
        "the store: {:.0} bytes a node with its first report",
        count(bytes) / count(seen.acknowledged).max(1.0)
    );
    Ok(())
}

/// Measures the maximum throughput of one hub and of two.
///
/// They share the machine's cores with the database and the load, so each hub is limited to a share of a
/// core. The cost per report is also printed.
fn replicas(bench: &Bench, bed: &Bed, postgres: &Postgres) -> Result<()> {
    let flood = |replicas: usize| -> Result<f64> {
        let store = postgres.database()?;
        // Created before the hubs, so that they are removed after them.
        let shares = (0..replicas).map(|number| Share::of_a_core(&format!("hub-{number}"), SHARE));
        let shares = shares.collect::<Result<Vec<_>>>();
        let shares = shares.context("hold hubs to a part of a core; it takes root and control groups")?;
        let hubs = (0..replicas).map(|number| bed.hub(&format!("replica-{number}"), &store, &[]));
        let hubs = hubs.collect::<Result<Vec<_>>>()?;
        for (hub, share) in hubs.iter().zip(&shares) {
            share.take_in(hub.process.id())?;
        }
        let addresses = hubs.iter().map(|hub| hub.address.as_str()).collect::<Vec<_>>().join(",");
        let database = postgres.id().context("a database that runs")?;
        let before = cpu_seconds(database)?;
        let begun: f64 = hubs.iter().map(|hub| cpu_seconds(hub.process.id())).sum::<Result<f64>>()?;
        let [connections, nodes, reports] = FLOOD.map(|each| (each * replicas).to_string());
        let list = bed.path("flood");
        let seen: Seen = bed.ask(&["flood", &addresses, &connections, &nodes, &reports, &list])?;
        let each = count(seen.acknowledged).max(1.0) / 1e6;
        let own = hubs.iter().map(|hub| cpu_seconds(hub.process.id())).sum::<Result<f64>>()? - begun;
        let stored: Kept = bed.ask(&["missing", &store, &list])?;
        ensure!(stored.missing == 0 && seen.refused == 0, "{} reports are missing", stored.missing);
        let rate = count(seen.acknowledged) / seen.seconds;
        eprintln!(
            "{replicas} hubs, {SHARE} % of a core each: {rate:.0} reports a second; processor time a report: hubs {:.0} µs, database {:.0} µs",
            own / each,
            (cpu_seconds(database)? - before) / each
        );
        Ok(rate)
    };
    bench.compare(
        "two-replicas",
        "reports/s",
        Better::Higher,
        TWO_REPLICAS,
        "one replica",
        || flood(2),
        || flood(1),
    )
}

/// Returns the size of the database file and its write-ahead log.
fn stored_bytes(file: &str) -> Result<f64> {
    let log = fs::metadata(format!("{file}-wal")).map_or(0, |log| log.len());
    Ok(count(fs::metadata(file).context("look at the store")?.len() + log))
}

/// Converts a count; all counts are exactly representable as a double.
fn count(count: u64) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}

/// Returns the CPU time of a process and its children, including ended ones.
fn cpu_seconds(id: u32) -> Result<f64> {
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    let mut ticks = 0.0;
    for id in std::iter::once(id.to_string()).chain(children.split_whitespace().map(str::to_owned)) {
        // A process that ended meanwhile is counted by its parent.
        let Ok(stat) = fs::read_to_string(format!("/proc/{id}/stat")) else { continue };
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        for at in 11..15 {
            ticks += fields.get(at).context("a process's times")?.parse::<f64>()?;
        }
    }
    // On all common systems the kernel's unit is 1/100 s.
    Ok(ticks / 100.0)
}

// === impl Seen ===

impl Seen {
    fn tell(&self, cpu: f64, stored: &Kept) {
        let reports = count(self.acknowledged).max(1.0);
        eprintln!(
            "{} reports in {:.0} s: {:.0} a second; {} sent again, {} made late by the load itself",
            self.acknowledged,
            self.seconds,
            reports / self.seconds,
            self.again,
            self.late
        );
        eprintln!(
            "of {} acknowledged, {} are missing; the store holds {}",
            stored.acknowledged, stored.missing, stored.stored
        );
        eprintln!(
            "accept: median {:.1} ms, p99 {:.1} ms (first reports of nodes: {:.1}), longest {:.1} ms; page: median {:.1} ms, longest {:.1} ms of {}",
            self.accept_p50_ms,
            self.accept_p99_ms,
            self.first_p99_ms,
            self.accept_max_ms,
            self.page_p50_ms,
            self.page_max_ms,
            self.pages
        );
        eprintln!("the hub's processor time: {:.0} µs a report", cpu / reports * 1e6);
    }
}

// === impl Bed ===

impl Bed {
    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn hub(&self, name: &str, store: &str, options: &[&str]) -> Result<Hub> {
        let address = format!("127.0.0.1:{}", free_port()?);
        let bundles = format!("file:{}", self.path(&format!("{name}-bundles")));
        let mut process = Process::start(name, &self.landfall, self.folder.path(), |command| {
            command
                .args(["hub", "--listen", &address, "--store", store, "--objects", &bundles])
                .args(options);
        })?;
        process.wait_until("the hub to listen", START, || std::net::TcpStream::connect(&address).ok())?;
        Ok(Hub { process, address })
    }

    /// Creates a certificate for the hub, and a token that may report as any node: the node does not affect
    /// the cost.
    fn credentials(&self) -> Result<Credentials> {
        let authority = Authority::new("bench", 2)?;
        let served = authority.issue(&Leaf::new("hub", Purpose::Serve).names(["127.0.0.1"]))?;
        let key: String = (0..32).map(|number| format!("{number:02x}")).collect();
        let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24);
        let token = TokenKey::new(Secret::new(key.clone().into_bytes()))?;
        let token = token.issue(Holder::Operator("bench".to_owned()), expires)?;
        for (name, text) in [
            ("ca.crt", authority.certificate()),
            ("tls.crt", &served.certificate),
            ("tls.key", served.key.expose()),
            ("token.key", &key),
            ("token", token.expose()),
        ] {
            fs::write(self.path(name), text).with_context(|| format!("write `{name}`"))?;
        }
        let options = [("--tls-cert", "tls.crt"), ("--tls-key", "tls.key"), ("--token-key", "token.key")];
        let options = options.iter().flat_map(|(option, file)| [(*option).to_owned(), self.path(file)]);
        Ok(Credentials {
            authority: self.path("ca.crt"),
            token: self.path("token"),
            options: options.collect(),
        })
    }

    /// Returns the load's output, a single JSON object.
    fn ask<T: for<'a> Deserialize<'a>>(&self, arguments: &[&str]) -> Result<T> {
        let output = Command::new(&self.program)
            .args(arguments)
            .stderr(Stdio::inherit())
            .output()
            .context("start the load")?;
        ensure!(output.status.success(), "the load {arguments:?} ended with {}", output.status);
        serde_json::from_slice(&output.stdout).context("read what the load says")
    }
}

// === impl Hub ===

impl Hub {
    fn peak_mib(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line =
            status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("a process's memory")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
    }
}
