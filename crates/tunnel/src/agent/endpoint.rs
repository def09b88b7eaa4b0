//! The endpoint side of a tunnel: dial, then relay.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::status::Metrics;
use crate::mux::{Command, Queue, Tunnel};
use crate::packet::{ConnectId, Random};
use crate::relay::{Socket, relay};
use crate::socket::Network;

/// The timeout of upstream.
const DIAL_LIMIT: Duration = Duration::from_secs(5);

/// A request for a tunnel.
pub(super) struct Dial {
    pub(super) queue: Arc<Queue>,
    pub(super) random: Random,
    pub(super) connect_id: ConnectId,
    pub(super) address: String,
    pub(super) tunnel: Tunnel,
}

/// Dials for one request and relays the tunnel to its end.
pub(super) async fn serve<N: Network>(dial: Dial, network: N, metrics: Arc<Metrics>) {
    let Dial { queue, random, connect_id, address, tunnel } = dial;
    let started = Instant::now();
    let dialing = tokio::time::timeout(DIAL_LIMIT, connect(&network, &address));
    let dialed = tokio::select! {
        dialed = dialing => dialed.unwrap_or_else(|_| {
            metrics.dial_timeouts.increment();
            Err(format!("dial tcp {address}: i/o timeout"))
        }),
        // The server has canceled the dial, so no response is due.
        () = poll_fn(|cx| tunnel.poll_incoming(cx)) => return,
    };
    match dialed {
        Ok(mut socket) => {
            metrics.dial_duration.observe(started.elapsed());
            queue.command(Command::Dialed { random, connect_id, error: None });
            relay(Socket::Endpoint, &mut socket, &tunnel, None).await;
        }
        Err(error) => {
            if !error.ends_with("i/o timeout") {
                metrics.dial_failures.increment();
            }
            queue.command(Command::Dialed { random, connect_id, error: Some(error) });
        }
    }
}

/// Connects, or returns the error in Go's wording, which upstream's server parses.
async fn connect<N: Network>(network: &N, address: &str) -> Result<N::Socket, String> {
    let (host, _) = address
        .rsplit_once(':')
        .ok_or_else(|| format!("dial tcp: address {address}: missing port in address"))?;
    let resolved = network.resolve(address).await;
    let candidates = resolved.map_err(|_| format!("dial tcp: lookup {host}: no such host"))?;
    let mut failure = format!("dial tcp: lookup {host}: no such host");
    for candidate in candidates {
        match network.connect(candidate).await {
            Ok(socket) => return Ok(socket),
            Err(error) => failure = format!("dial tcp {candidate}: {}", reason(&error)),
        }
    }
    Err(failure)
}

fn reason(error: &io::Error) -> String {
    /// `EMFILE`: this process has reached its descriptor limit.
    const NO_DESCRIPTORS: i32 = 24;
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
        io::ErrorKind::TimedOut => "connect: connection timed out (i/o timeout)".to_owned(),
        _ if error.raw_os_error() == Some(NO_DESCRIPTORS) => "socket: too many open files".to_owned(),
        _ => format!("connect: {error}"),
    }
}
