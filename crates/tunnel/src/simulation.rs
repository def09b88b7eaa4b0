//! Server, agents, endpoints and a client in a simulation with packet loss, latency, partitions and restarts.
//!
//! A seed determines time and randomness: `LANDFALL_SEED=17 cargo test -p landfall-tunnel simulat` repeats one run.
//!
//! Invariants: bytes arrive unchanged and in order, or the tunnel ends. After the network has recovered, tunnels can be
//! opened. After the clients have left, their tunnels end.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::sync::CancellationToken;
use turmoil::net::{TcpListener, TcpStream};
use turmoil::{Builder, Sim};

use crate::agent::Agent;
use crate::config::{AgentConfig, DEFAULT_UDS_PERMISSIONS, Frontend, ServerConfig};
use crate::server::{ServerView, parts};
use crate::socket::{Network, Peer};

const SEEDS: u64 = 1000;
/// Faults end here; afterwards everything must succeed.
const HEALED: Duration = Duration::from_secs(8);
/// Sufficient for every timeout to expire after that.
const END: Duration = Duration::from_secs(400);
const PATIENCE: Duration = Duration::from_secs(15);
const AGENTS: [&str; 2] = ["agent-0", "agent-1"];

/// The current server; each restart replaces it.
type Current = Rc<RefCell<Option<ServerView>>>;

#[derive(Clone, Copy, Debug)]
struct Simulated;

/// A small random number generator, so that the plan of a seed depends on nothing else.
struct Chance(u64);

#[derive(Debug)]
enum Trouble {
    Partition(&'static str, &'static str),
    Hold(&'static str, &'static str),
    Release(&'static str, &'static str),
    Repair(&'static str, &'static str),
    Restart(&'static str),
    Slow(&'static str, &'static str, Duration),
}

/// Reason for an incomplete exchange.
#[derive(Debug)]
enum Failed {
    /// Allowed while there are faults.
    Broken,
    /// Never allowed.
    Wrong(String),
}

#[test]
fn a_simulated_network_never_corrupts_leaks_or_wedges() {
    let told = std::env::var("LANDFALL_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = told.map_or(0..SEEDS, |seed| seed..seed + 1);
    let (next, threads) = (AtomicU64::new(seeds.start), std::thread::available_parallelism());
    std::thread::scope(|scope| {
        for _ in 0..threads.map_or(1, usize::from) {
            scope.spawn(|| simulate_until(&next, seeds.end));
        }
    });
}

/// Runs seeds in turn. A panic here fails the test when the threads are joined.
fn simulate_until(next: &AtomicU64, end: u64) {
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= end {
            return;
        }
        let outcome = std::panic::catch_unwind(|| simulate(seed));
        let failure = outcome.unwrap_or_else(|panicked| Err(format!("{panicked:?}"))).err();
        let replay = format!("hint: LANDFALL_SEED={seed} cargo test -p landfall-tunnel simulated");
        assert!(failure.is_none(), "seed {seed}: {}; {replay}", failure.unwrap_or_default());
    }
}

#[test]
fn a_simulated_seed_can_be_replayed() {
    for seed in [3, 7] {
        assert_eq!(simulate(seed).unwrap(), simulate(seed).unwrap(), "seed {seed}");
    }
}

/// Runs one seed; returns when it ended and how many tunnels succeeded.
fn simulate(seed: u64) -> Result<(Duration, usize), String> {
    let mut chance = Chance(seed);
    fastrand::seed(seed);
    let mut sim = Builder::new()
        .rng_seed(seed)
        .simulation_duration(END)
        .tick_duration(Duration::from_millis(25))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(chance.below(200) + 2))
        .tcp_capacity(1024)
        .build();
    let current: Current = Rc::default();
    let went_well = Rc::new(RefCell::new(0));
    populate(&mut sim, &current);
    sim.client("client", client(seed, Rc::clone(&current), Rc::clone(&went_well)));
    let mut plan = plan(&mut chance).into_iter().peekable();
    loop {
        while let Some((_, trouble)) = plan.next_if(|(at, _)| *at <= sim.elapsed()) {
            trouble.make(&mut sim);
        }
        match sim.step() {
            Ok(true) => break,
            Ok(false) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    let went_well = *went_well.borrow();
    Ok((sim.elapsed(), went_well))
}

fn populate(sim: &mut Sim<'_>, current: &Current) {
    let shown = Rc::clone(current);
    sim.host("server", move || {
        let shown = Rc::clone(&shown);
        async move {
            let frontend = Frontend::Unix {
                path: "unused".into(),
                delete_existing: false,
                permissions: DEFAULT_UDS_PERMISSIONS,
            };
            let server = parts::view(&ServerConfig {
                keepalive_time: Duration::from_secs(5),
                backend_dial_timeout: Duration::from_secs(10),
                ..ServerConfig::new(frontend, "server".to_owned())
            });
            *shown.borrow_mut() = Some(server.clone());
            let agents = TcpListener::bind("0.0.0.0:8091").await?;
            let clients = TcpListener::bind("0.0.0.0:8090").await?;
            loop {
                tokio::select! {
                    accepted = agents.accept() => {
                        tokio::spawn(parts::serve_agent(server.clone(), accepted?.0));
                    }
                    accepted = clients.accept() => {
                        tokio::spawn(parts::serve_client(server.clone(), accepted?.0));
                    }
                }
            }
        }
    });
    for name in AGENTS {
        sim.host(name, move || async move {
            let agent = Agent::bind(AgentConfig {
                proxy_server_host: "server".to_owned(),
                keepalive_time: Duration::from_secs(5),
                ..AgentConfig::new(name.to_owned())
            });
            agent.await?.run_in(Simulated, CancellationToken::new()).await;
            Ok(())
        });
    }
    sim.host("echo", || async {
        let listener = TcpListener::bind("0.0.0.0:7").await?;
        loop {
            let (socket, _) = listener.accept().await?;
            tokio::spawn(async move {
                let (mut reader, mut writer) = tokio::io::split(socket);
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
        }
    });
    sim.host("flood", || async {
        let listener = TcpListener::bind("0.0.0.0:9").await?;
        loop {
            let (mut socket, _) = listener.accept().await?;
            tokio::spawn(async move { while socket.write_all(&[0; 16 * 1024]).await.is_ok() {} });
        }
    });
}

/// Returns the faults, in order of time.
fn plan(chance: &mut Chance) -> Vec<(Duration, Trouble)> {
    let mut plan: Vec<(Duration, Trouble)> = (0..chance.below(8))
        .map(|_| {
            let at = Duration::from_millis(chance.below(7_000));
            let agent = AGENTS[usize::from(chance.below(2) == 1)];
            let other = if chance.below(2) == 0 { "server" } else { "echo" };
            let trouble = match chance.below(6) {
                0 => Trouble::Partition(agent, other),
                1 => Trouble::Hold(agent, other),
                2 => Trouble::Release(agent, other),
                3 => Trouble::Repair(agent, other),
                4 => Trouble::Restart(if chance.below(4) == 0 { "server" } else { agent }),
                _ => Trouble::Slow(agent, other, Duration::from_millis(chance.below(900))),
            };
            (at, trouble)
        })
        .collect();
    plan.sort_by_key(|(at, _)| *at);
    for agent in AGENTS {
        for other in ["server", "echo"] {
            plan.push((HEALED, Trouble::Release(agent, other)));
            plan.push((HEALED, Trouble::Repair(agent, other)));
            plan.push((HEALED, Trouble::Slow(agent, other, Duration::from_millis(20))));
        }
    }
    plan
}

async fn client(seed: u64, current: Current, went_well: Rc<RefCell<usize>>) -> turmoil::Result {
    let mut chance = Chance(!seed);
    // A tunnel that is never read; it must not slow down others.
    let mut stalled = None;
    while turmoil::sim_elapsed().is_some_and(|elapsed| elapsed < HEALED) {
        if stalled.is_none() {
            stalled = tokio::time::timeout(PATIENCE, connect("flood:9")).await.ok().and_then(Result::ok);
        }
        let length = usize::try_from(chance.below(40_000))?;
        match tokio::time::timeout(PATIENCE, exchange(length)).await {
            Ok(Ok(())) => *went_well.borrow_mut() += 1,
            Ok(Err(Failed::Wrong(error))) => return Err(error.into()),
            Ok(Err(Failed::Broken)) | Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(chance.below(1000))).await;
    }
    // Dead peers must be detected first.
    let healing = tokio::time::timeout(Duration::from_secs(120), async {
        loop {
            match tokio::time::timeout(PATIENCE, exchange(10_000)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(Failed::Wrong(error))) => return Err(error),
                Ok(Err(Failed::Broken)) | Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        }
    });
    healing.await.map_err(|_| "no tunnel can be had although the network is whole again")??;
    drop(stalled);
    let left = || {
        let agents = current.borrow().as_ref().map(ServerView::agents).unwrap_or_default();
        agents.iter().map(|agent| agent.tunnels + agent.pending).sum::<usize>()
    };
    let emptied = tokio::time::timeout(Duration::from_secs(120), async {
        while left() > 0 {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
    emptied.await.map_err(|_| format!("{} tunnels are left of clients that are gone", left()))?;
    Ok(())
}

async fn connect(address: &str) -> Result<TcpStream, Failed> {
    let broken = |_| Failed::Broken;
    let mut socket = TcpStream::connect("server:8090").await.map_err(broken)?;
    socket.write_all(format!("CONNECT {address} HTTP/1.1\r\n\r\n").as_bytes()).await.map_err(broken)?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(socket.read_u8().await.map_err(broken)?);
    }
    if answer.starts_with(b"HTTP/1.1 200 ") { Ok(socket) } else { Err(Failed::Broken) }
}

/// Sends `length` bytes to the echo endpoint and compares the response.
async fn exchange(length: usize) -> Result<(), Failed> {
    let sent: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251).unwrap_or(0)).collect();
    let (mut reader, mut writer) = tokio::io::split(connect("echo:7").await?);
    let reading = async {
        let mut received = vec![0; length];
        let mut filled = 0;
        while filled < length {
            let count = reader.read(&mut received[filled..]).await.map_err(|_| Failed::Broken)?;
            if received[filled..filled + count] != sent[filled..filled + count] {
                return Err(Failed::Wrong(format!("other bytes came back after {filled} of {length}")));
            }
            if count == 0 {
                return Err(Failed::Broken);
            }
            filled += count;
        }
        Ok(())
    };
    let writing = async { writer.write_all(&sent).await.map_err(|_| Failed::Broken) };
    tokio::try_join!(reading, writing).map(|_| ())
}

// === impl Chance ===

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % limit
    }
}

// === impl Trouble ===

impl Trouble {
    fn make(self, sim: &mut Sim<'_>) {
        match self {
            Self::Partition(one, other) => sim.partition(one, other),
            Self::Hold(one, other) => sim.hold(one, other),
            Self::Release(one, other) => sim.release(one, other),
            Self::Repair(one, other) => sim.repair(one, other),
            Self::Restart(name) => sim.bounce(name),
            Self::Slow(one, other, latency) => sim.set_link_latency(one, other, latency),
        }
    }
}

// === impl Simulated ===

impl Network for Simulated {
    type Socket = TcpStream;

    async fn resolve(&self, address: &str) -> io::Result<Vec<SocketAddr>> {
        let (host, port) = address.rsplit_once(':').ok_or(io::ErrorKind::InvalidInput)?;
        let port = port.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(vec![SocketAddr::new(turmoil::lookup(host), port)])
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(address).await
    }
}

impl Peer for TcpStream {
    fn has_hung_up(&self) -> bool {
        false
    }
}
