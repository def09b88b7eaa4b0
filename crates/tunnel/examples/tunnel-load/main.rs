//! Loads a tunnel, landfall's or upstream's, and prints plain numbers. `cargo xtask bench tunnel` runs it.
//!
//! ```text
//! tunnel-load bulk     MODE SOCKET down|up STREAMS SECONDS   MiB/s, MiB
//! tunnel-load dials    MODE SOCKET CONCURRENCY SECONDS       tunnels/s, p50 and p99 in microseconds
//! tunnel-load echo     MODE SOCKET none|frontend|endpoint SECONDS
//!                                                            rounds/s, p50 and p99 in microseconds
//! tunnel-load idle     MODE SOCKET COUNT                     open tunnels, until its input ends
//! tunnel-load abandon  SOCKET COUNT MILLISECONDS             canceled CONNECTs; endpoints stay until its input ends
//! tunnel-load farewell MODE SOCKET COUNT                     tunnels whose last bytes did not arrive
//! tunnel-load churn    MODE SOCKET COUNT CONCURRENCY         tunnels opened, used and closed
//! ```
//! MODE is `grpc` or `http-connect`.
#![expect(clippy::print_stdout, clippy::cast_precision_loss, reason = "a tool for measurements")]

mod client;
mod endpoint;

use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use client::{Client, Way};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Timeout of a round trip; slower ones count as failed.
const ROUND_LIMIT: Duration = Duration::from_secs(2);
/// Timeout to open a tunnel.
const DIAL_LIMIT: Duration = Duration::from_secs(30);
/// Time for a stalled neighbor tunnel to fill every buffer on its path.
const SETTLE: Duration = Duration::from_secs(2);
const MEBIBYTE: usize = 1 << 20;
/// Concurrent tunnels of `farewell`.
const FAREWELLS: usize = 16;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // One thread leaves most CPU time to the tunnel; bulk needs one for each end.
    let mut builder = match words.first() {
        Some(&"bulk") => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    builder.worker_threads(2).enable_all().build()?.block_on(run(&words))
}

async fn run(words: &[&str]) -> Result<()> {
    match *words {
        ["bulk", mode, socket, direction, streams, seconds] => {
            bulk(&Way::new(mode, socket)?, direction == "up", streams.parse()?, span(seconds)?).await
        }
        ["dials", mode, socket, concurrency, seconds] => {
            dials(&Way::new(mode, socket)?, concurrency.parse()?, span(seconds)?).await
        }
        ["echo", mode, socket, neighbour, seconds] => {
            echo(&Way::new(mode, socket)?, neighbour, span(seconds)?).await
        }
        ["idle", mode, socket, count] => idle(&Way::new(mode, socket)?, count.parse()?).await,
        ["abandon", socket, count, pause] => {
            abandon(socket, count.parse()?, Duration::from_millis(pause.parse()?)).await
        }
        ["farewell", mode, socket, count] => farewell(&Way::new(mode, socket)?, count.parse()?).await,
        ["churn", mode, socket, count, concurrency] => {
            churn(&Way::new(mode, socket)?, count.parse()?, concurrency.parse()?).await
        }
        _ => Err(anyhow!("hint: the words are at the top of the example's source")),
    }
}

fn span(seconds: &str) -> Result<Duration> {
    Ok(Duration::from_secs(seconds.parse().context("read a number of seconds")?))
}

/// Transfers bytes in one direction as fast as possible.
async fn bulk(way: &Way, up: bool, streams: usize, span: Duration) -> Result<()> {
    let (address, received) = if up { endpoint::sink().await? } else { endpoint::source().await? };
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for _ in 0..streams {
        let (mut client, stop, received) =
            (open(way, address).await?, Arc::clone(&stop), Arc::clone(&received));
        clients.spawn(async move {
            let mut buffer = vec![0; 128 * 1024];
            while !stop.load(Ordering::Relaxed) {
                if up {
                    client.write(&buffer).await?;
                } else {
                    received.fetch_add(client.read(&mut buffer).await?, Ordering::Relaxed);
                }
            }
            anyhow::Ok(())
        });
    }
    let started = Instant::now();
    tokio::time::sleep(span).await;
    let bytes = received.load(Ordering::Relaxed);
    let seconds = started.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    let mebibytes = bytes as f64 / MEBIBYTE as f64;
    println!("{:.1} {mebibytes:.1}", mebibytes / seconds);
    clients.abort_all();
    Ok(())
}

/// Opens tunnels, each with one small exchange.
async fn dials(way: &Way, concurrency: usize, span: Duration) -> Result<()> {
    let address = endpoint::echo().await?;
    let started = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..concurrency {
        let way = way.clone();
        clients.spawn(async move {
            let mut times = Vec::new();
            while started.elapsed() < span {
                let begun = Instant::now();
                exchange(&way, address).await?;
                times.push(begun.elapsed());
            }
            anyhow::Ok(times)
        });
    }
    let mut times = Vec::new();
    while let Some(ended) = clients.join_next().await {
        times.extend(ended.context("a client")??);
    }
    print_times(times, started.elapsed());
    Ok(())
}

async fn exchange(way: &Way, address: SocketAddr) -> Result<()> {
    let mut client = open(way, address).await?;
    client.write(&[1; 1024]).await?;
    client.read_exact(&mut [0; 1024]).await?;
    client.close().await
}

/// Measures small round trips on one tunnel, next to a tunnel with one end that reads nothing.
async fn echo(way: &Way, neighbour: &str, span: Duration) -> Result<()> {
    let mut client = open(way, endpoint::echo().await?).await?;
    let stalled = match neighbour {
        "none" => None,
        "frontend" => Some(open(way, endpoint::source().await?.0).await?),
        "endpoint" => {
            let mut stalled = open(way, endpoint::stalled().await?).await?;
            let block = vec![0; 64 * 1024];
            // Ends when no buffer accepts more data.
            while let Ok(written) = timeout(SETTLE, stalled.write(&block)).await {
                written?;
            }
            Some(stalled)
        }
        other => return Err(anyhow!("`{other}` is no neighbour")),
    };
    if stalled.is_some() {
        tokio::time::sleep(SETTLE).await;
    }
    let started = Instant::now();
    let mut times = Vec::new();
    while started.elapsed() < span {
        let begun = Instant::now();
        let round = async {
            client.write(&[1; 64]).await?;
            client.read_exact(&mut [0; 64]).await
        };
        match timeout(ROUND_LIMIT, round).await {
            Ok(round) => round?,
            // The response is lost, so that later round trips cannot be matched.
            Err(_) => break,
        }
        times.push(begun.elapsed());
    }
    print_times(times, started.elapsed());
    Ok(())
}

async fn idle(way: &Way, count: usize) -> Result<()> {
    let address = endpoint::echo().await?;
    let mut clients = Vec::new();
    for _ in 0..count {
        let mut client = open(way, address).await?;
        client.write(b"x").await?;
        client.read_exact(&mut [0]).await?;
        clients.push(client);
    }
    println!("{}", clients.len());
    until_input_ends().await
}

async fn abandon(socket: &str, count: usize, pause: Duration) -> Result<()> {
    let address = endpoint::echo().await?;
    for _ in 0..count {
        let mut client = UnixStream::connect(socket).await?;
        client.write_all(format!("CONNECT {address} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").as_bytes()).await?;
        tokio::time::sleep(pause).await;
    }
    println!("{count}");
    until_input_ends().await
}

async fn farewell(way: &Way, count: usize) -> Result<()> {
    let (address, whole, ended) = endpoint::slow_sink(MEBIBYTE).await?;
    let left = Arc::new(AtomicUsize::new(count));
    let mut clients = JoinSet::new();
    for _ in 0..FAREWELLS {
        let (way, left) = (way.clone(), Arc::clone(&left));
        clients.spawn(async move {
            let block = vec![1; MEBIBYTE];
            while take_one(&left) {
                let mut client = open(&way, address).await?;
                client.write_all(&block).await?;
                client.close().await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(client) = clients.join_next().await {
        client.context("a client")??;
    }
    // Broken tunnels have already ended; slow ones still deliver.
    let all_ended = async {
        while ended.load(Ordering::Relaxed) < count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let _ = timeout(DIAL_LIMIT, all_ended).await;
    println!("{}", count - whole.load(Ordering::Relaxed));
    Ok(())
}

async fn churn(way: &Way, count: usize, concurrency: usize) -> Result<()> {
    let address = endpoint::echo().await?;
    let left = Arc::new(AtomicUsize::new(count));
    let mut clients = JoinSet::new();
    for _ in 0..concurrency {
        let (way, left) = (way.clone(), Arc::clone(&left));
        clients.spawn(async move {
            while take_one(&left) {
                exchange(&way, address).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(client) = clients.join_next().await {
        client.context("a client")??;
    }
    println!("{count}");
    Ok(())
}

fn take_one(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

async fn open(way: &Way, address: SocketAddr) -> Result<Client> {
    timeout(DIAL_LIMIT, Client::open(way, address)).await.context("a tunnel was not to be had")?
}

fn print_times(mut times: Vec<Duration>, span: Duration) {
    times.sort_unstable();
    let at = |percent: usize| {
        let index = (times.len() * percent / 100).min(times.len().saturating_sub(1));
        times.get(index).map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    println!("{:.1} {:.1} {:.1}", times.len() as f64 / span.as_secs_f64(), at(50), at(99));
}

/// Waits for the end of input while the runtime serves sockets.
async fn until_input_ends() -> Result<()> {
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    Ok(())
}
