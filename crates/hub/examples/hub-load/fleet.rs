//! A load of many concurrently reporting nodes, with a client that requests the fleet view meanwhile.

use std::cell::RefCell;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::Instant;

use crate::line::{Line, Way};
use crate::node::{Bodies, Node, Report, UNCHANGED};

/// Interval between requests of the fleet view.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause before a broken connection is re-established.
const AGAIN: Duration = Duration::from_millis(200);
/// Maximum number of attempts to send a report before the run is aborted.
const MAX_SENDS: u32 = 50;

/// Measurements of all nodes.
#[derive(Default)]
struct Seen {
    acknowledged: Vec<[u8; 16]>,
    accept_ms: Vec<f64>,
    /// Latency of each node's first report, which creates the node and therefore takes longer.
    first_ms: Vec<f64>,
    page_ms: Vec<f64>,
    /// Number of reports made more than half a period late because the load generator itself was overloaded.
    late: u64,
    /// Number of repeated sends after a broken connection or a 503.
    again: u64,
    refused: u64,
}

/// Runs a fleet in which each node reports at its own times. Each node has already counted `made` reports.
pub(crate) async fn run(
    addresses: &[SocketAddr],
    way: Way,
    nodes: usize,
    made: u64,
    every: Duration,
    length: Duration,
    list: &Path,
) -> Result<()> {
    let seen: Rc<RefCell<Seen>> = Rc::default();
    let bodies = Rc::new(Bodies::new());
    let mut fleet = Vec::with_capacity(nodes);
    for number in 0..nodes {
        let mut line = Line::new(addresses[number % addresses.len()], way.clone());
        line.prepare().await?;
        fleet.push((Node::new(number, made, Rc::clone(&bodies))?, line));
    }
    let start = Instant::now() + Duration::from_secs(1);
    let end = start + length;
    let local = LocalSet::new();
    let mut tasks = JoinSet::new();
    for (number, (node, line)) in fleet.into_iter().enumerate() {
        let first =
            start + every.mul_f64(f64::from(u32::try_from(number)?) / f64::from(u32::try_from(nodes)?));
        tasks.spawn_local_on(keep_reporting(node, line, first, every, end, Rc::clone(&seen)), &local);
    }
    let board = addresses[0];
    let looking = Rc::clone(&seen);
    local
        .run_until(async {
            let look = tokio::task::spawn_local(async move {
                let mut line = Line::new(board, way);
                loop {
                    tokio::time::sleep(LOOK_EVERY).await;
                    let begun = Instant::now();
                    let found = line.exchange(&line.request("GET /", b"")).await;
                    if found.is_ok_and(|status| status == 200) {
                        looking.borrow_mut().page_ms.push(begun.elapsed().as_secs_f64() * 1e3);
                    }
                }
            });
            while let Some(done) = tasks.join_next().await {
                done??;
            }
            look.abort();
            Ok::<_, anyhow::Error>(())
        })
        .await?;
    // The client of the fleet view may still hold a reference for a moment.
    seen.take().tell(length, list)
}

async fn keep_reporting(
    mut node: Node,
    mut line: Line,
    mut next: Instant,
    every: Duration,
    end: Instant,
    seen: Rc<RefCell<Seen>>,
) -> Result<()> {
    while next < end {
        tokio::time::sleep_until(next).await;
        if next.elapsed() > every / 2 {
            seen.borrow_mut().late += 1;
        }
        let report = node.report()?;
        deliver(&mut line, &report, &seen).await?;
        next += every;
    }
    Ok(())
}

/// Sends as many reports as the hubs accept, over a few connections. Each node makes few reports, so failing nodes
/// fail from the start.
pub(crate) async fn flood(
    addresses: &[SocketAddr],
    connections: usize,
    nodes: usize,
    reports: usize,
    list: &Path,
) -> Result<()> {
    let seen: Rc<RefCell<Seen>> = Rc::default();
    let bodies = Rc::new(Bodies::new());
    let local = LocalSet::new();
    let mut tasks = JoinSet::new();
    for connection in 0..connections {
        let mut own = Vec::new();
        for number in (connection..nodes).step_by(connections) {
            own.push(Node::new(number, UNCHANGED, Rc::clone(&bodies))?);
        }
        ensure!(!own.is_empty(), "fewer nodes than connections");
        let mut line = Line::new(addresses[connection % addresses.len()], Way::Kept);
        let seen = Rc::clone(&seen);
        let rounds = reports / connections;
        tasks.spawn_local_on(
            async move {
                let count = own.len();
                for round in 0..rounds {
                    let report = own[round % count].report()?;
                    deliver(&mut line, &report, &seen).await?;
                }
                Ok::<_, anyhow::Error>(())
            },
            &local,
        );
    }
    let begun = Instant::now();
    local
        .run_until(async {
            while let Some(done) = tasks.join_next().await {
                done??;
            }
            Ok::<_, anyhow::Error>(())
        })
        .await?;
    let length = begun.elapsed();
    seen.take().tell(length, list)
}

/// Measures the latency of a page over repeated requests.
pub(crate) async fn pages(address: SocketAddr, path: &str, times: usize) -> Result<()> {
    let mut line = Line::new(address, Way::Kept);
    let mut seen = Seen::default();
    let request = line.request(&format!("GET {path}"), b"");
    for _ in 0..times {
        let begun = Instant::now();
        let status = line.exchange(&request).await?;
        ensure!(status == 200, "`{path}` gave {status}");
        seen.page_ms.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    println!(
        "{}",
        json!({"page_p50_ms": part(&mut seen.page_ms, 0.5), "page_max_ms": part(&mut seen.page_ms, 1.0)})
    );
    Ok(())
}

/// Sends a report until it is acknowledged or permanently rejected.
async fn deliver(line: &mut Line, report: &Report, seen: &Rc<RefCell<Seen>>) -> Result<()> {
    let request = line.request("POST /api/v1/reports", &report.json);
    for _ in 0..MAX_SENDS {
        let begun = Instant::now();
        match line.exchange(&request).await {
            Ok(200) => {
                let mut seen = seen.borrow_mut();
                let taken_ms = begun.elapsed().as_secs_f64() * 1e3;
                seen.accept_ms.push(taken_ms);
                if report.first {
                    seen.first_ms.push(taken_ms);
                }
                seen.acknowledged.push(*report.id.as_bytes());
                return Ok(());
            }
            Ok(429 | 503) | Err(_) => {
                seen.borrow_mut().again += 1;
                tokio::time::sleep(AGAIN).await;
            }
            Ok(_) => {
                seen.borrow_mut().refused += 1;
                return Ok(());
            }
        }
    }
    bail!("the hub took nothing for too long");
}

// === impl Seen ===

impl Seen {
    fn tell(mut self, length: Duration, list: &Path) -> Result<()> {
        let mut file = std::io::BufWriter::new(std::fs::File::create(list).context("make the list")?);
        for id in &self.acknowledged {
            file.write_all(id)?;
        }
        file.flush()?;
        let told = json!({
            "seconds": length.as_secs_f64(), "acknowledged": self.acknowledged.len(), "again": self.again,
            "refused": self.refused, "late": self.late,
            "accept_p50_ms": part(&mut self.accept_ms, 0.5), "accept_p99_ms": part(&mut self.accept_ms, 0.99),
            "first_p99_ms": part(&mut self.first_ms, 0.99),
            "accept_max_ms": part(&mut self.accept_ms, 1.0),
            "page_p50_ms": part(&mut self.page_ms, 0.5), "page_max_ms": part(&mut self.page_ms, 1.0),
            "pages": self.page_ms.len()
        });
        println!("{told}");
        Ok(())
    }
}

/// Returns the value below which this share of the values lies.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "there are fewer values than a double counts exactly"
)]
fn part(values: &mut [f64], part: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let at = (values.len() as f64 * part).ceil() as usize;
    values.get(at.saturating_sub(1)).copied().unwrap_or(0.0)
}
