//! Loads a tunnel, ours or upstream's, and prints what it saw: `load MODE SOCKET SERVER-PID AGENT-PID`.
#![expect(clippy::print_stdout, clippy::cast_precision_loss, reason = "a tool for measurements")]

#[path = "../tests/bed/client.rs"]
#[allow(dead_code, unreachable_pub, clippy::allow_attributes, reason = "shared with the tests")]
mod client;
#[path = "../tests/bed/endpoint.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "shared with the tests"
)]
mod endpoint;

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use client::{Client, GrpcClient, connect, connect_loosely};
use endpoint::Endpoint;

const RUN: Duration = Duration::from_secs(4);

#[derive(Clone)]
struct Way {
    grpc: bool,
    socket: PathBuf,
    processes: Vec<String>,
}

impl Way {
    fn open(&self, address: SocketAddr) -> Result<Client> {
        let address = address.to_string();
        if self.grpc {
            let client = GrpcClient::dial(&self.socket, &address).map_err(|error| anyhow!("{error}"))?;
            return Ok(Client::Grpc(Box::new(client)));
        }
        connect(&self.socket, &address).map(Client::Connect).map_err(|error| anyhow!("{error}"))
    }

    /// Upstream's server may send data together with its answer, or before it, which kube-apiserver takes for an
    /// error.
    fn open_loosely(&self, address: SocketAddr) -> Result<Client> {
        if self.grpc {
            return self.open(address);
        }
        let connected = connect_loosely(&self.socket, &address.to_string());
        connected.map(Client::Connect).map_err(|error| anyhow!("{error}"))
    }

    /// Processor seconds of server and agent.
    fn cpu(&self) -> Result<f64> {
        let mut ticks = 0.0;
        for process in &self.processes {
            let stat = std::fs::read_to_string(Path::new("/proc").join(process).join("stat"))?;
            let fields: Vec<&str> =
                stat.rsplit_once(')').context("a stat line")?.1.split_whitespace().collect();
            ticks += fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
        }
        Ok(ticks / 100.0)
    }

    fn memory(&self) -> Result<f64> {
        let mut total = 0.0;
        for process in &self.processes {
            let status = std::fs::read_to_string(Path::new("/proc").join(process).join("status"))?;
            let line = status.lines().find(|line| line.starts_with("VmRSS")).context("VmRSS")?;
            total += line.split_whitespace().nth(1).context("a size")?.parse::<f64>()? / 1024.0;
        }
        Ok(total)
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, socket, processes @ ..] = &arguments[..] else {
        anyhow::bail!("hint: load MODE SOCKET PID…")
    };
    let way = Way { grpc: mode == "grpc", socket: socket.into(), processes: processes.to_vec() };
    let (echo, source, sink) = (Endpoint::echo()?, Endpoint::source()?, Endpoint::sink()?);
    println!("idle memory {:.1} MiB", way.memory()?);
    let wanted = |name: &str| std::env::var("ONLY").map_or(true, |only| only == name);
    if wanted("dials") {
        for concurrency in [1, 64, 256] {
            dials(&way, concurrency, echo.address())?;
        }
    }
    if !wanted("bulk") {
        return Ok(());
    }
    for streams in [1, 8] {
        bulk("down", &way, streams, source.address(), std::io::Read::read)?;
        bulk("up", &way, streams, sink.address(), |client, buffer| client.write(buffer))?;
    }
    pings(&way, echo.address())?;
    memory(&way, echo.address())
}

fn bulk(
    name: &str,
    way: &Way,
    streams: usize,
    address: SocketAddr,
    step: fn(&mut Client, &mut [u8]) -> std::io::Result<usize>,
) -> Result<()> {
    let (total, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (started, cpu) = (Instant::now(), way.cpu()?);
    let threads: Vec<_> = (0..streams)
        .map(|_| {
            let (way, total, stop) = (way.clone(), Arc::clone(&total), Arc::clone(&stop));
            std::thread::spawn(move || -> Result<()> {
                let mut client = way.open_loosely(address)?;
                let mut buffer = vec![0; 128 * 1024];
                while !stop.load(Ordering::Relaxed) {
                    match step(&mut client, &mut buffer) {
                        Ok(length) => total.fetch_add(length, Ordering::Relaxed),
                        Err(_) if stop.load(Ordering::Relaxed) => break,
                        Err(error) => return Err(error.into()),
                    };
                }
                Ok(())
            })
        })
        .collect();
    std::thread::park_timeout(RUN);
    stop.store(true, Ordering::Relaxed);
    let mebibytes = total.load(Ordering::Relaxed) as f64 / f64::from(1 << 20);
    let (seconds, cpu) = (started.elapsed().as_secs_f64(), way.cpu()? - cpu);
    println!(
        "{name} x{streams}: {:.0} MiB/s, {:.2} CPU-s/GiB",
        mebibytes / seconds,
        cpu / (mebibytes / 1024.0)
    );
    for thread in threads {
        thread.join().map_err(|_| anyhow!("a thread panicked"))??;
    }
    Ok(())
}

fn dials(way: &Way, concurrency: usize, address: SocketAddr) -> Result<()> {
    let (total, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (started, cpu) = (Instant::now(), way.cpu()?);
    let threads: Vec<_> = (0..concurrency)
        .map(|_| {
            let (way, total, stop) = (way.clone(), Arc::clone(&total), Arc::clone(&stop));
            std::thread::spawn(move || -> Result<Vec<Duration>> {
                let mut times = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    let mut client = way.open(address)?;
                    client.write_all(&[1; 1024])?;
                    let mut back = [0; 1024];
                    client.read_exact(&mut back)?;
                    times.push(begun.elapsed());
                    total.fetch_add(1, Ordering::Relaxed);
                }
                Ok(times)
            })
        })
        .collect();
    std::thread::park_timeout(RUN);
    stop.store(true, Ordering::Relaxed);
    let mut times = Vec::new();
    for thread in threads {
        times.extend(thread.join().map_err(|_| anyhow!("a thread panicked"))??);
    }
    let (seconds, cpu) = (started.elapsed().as_secs_f64(), way.cpu()? - cpu);
    times.sort();
    let count = times.len();
    println!(
        "dials x{concurrency}: {:.0}/s, p50 {:.2} ms, p99 {:.2} ms, {:.0} CPU-us each",
        count as f64 / seconds,
        times[count / 2].as_secs_f64() * 1e3,
        times[count * 99 / 100].as_secs_f64() * 1e3,
        cpu * 1e6 / count as f64
    );
    Ok(())
}

fn pings(way: &Way, address: SocketAddr) -> Result<()> {
    let mut client = way.open(address)?;
    let mut times = Vec::new();
    let started = Instant::now();
    while started.elapsed() < RUN {
        let begun = Instant::now();
        client.write_all(&[1; 64])?;
        let mut back = [0; 64];
        client.read_exact(&mut back)?;
        times.push(begun.elapsed());
    }
    times.sort();
    let count = times.len();
    println!(
        "ping: {:.0}/s, p50 {:.3} ms, p99 {:.3} ms",
        count as f64 / started.elapsed().as_secs_f64(),
        times[count / 2].as_secs_f64() * 1e3,
        times[count * 99 / 100].as_secs_f64() * 1e3
    );
    Ok(())
}

fn memory(way: &Way, address: SocketAddr) -> Result<()> {
    let tunnels: Vec<Client> = (0..1000).map(|_| way.open(address)).collect::<Result<_>>()?;
    println!("memory with {} idle tunnels: {:.1} MiB", tunnels.len(), way.memory()?);
    Ok(())
}
