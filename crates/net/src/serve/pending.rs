//! Connections that have not sent a request yet. Any client can open one and send nothing, so their timeout is short.
//! If no slot is free for a new connection, the oldest one of the client network with the most of them is evicted.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Age below which a connection is not evicted for another one. Without it, simultaneous clients evict each other, and
/// none is served.
const MIN_AGE: Duration = Duration::from_millis(500);
/// Number of pending connections above which a network loses the minimum age. Otherwise they fill the kernel's accept
/// queue meanwhile, and clients that do not fit retry after seconds.
const MAX_PER_NETWORK: usize = 256;

/// Set when a connection sends its first request.
#[derive(Clone, Debug, Default)]
pub(super) struct FirstRequest(Arc<AtomicBool>);

#[derive(Debug)]
pub(super) struct PendingConnections {
    /// By client network, the oldest first.
    networks: HashMap<IpAddr, VecDeque<PendingConnection>>,
    /// From accepting a connection to its first request.
    limit: Duration,
}

#[derive(Debug)]
struct PendingConnection {
    since: Instant,
    first_request: FirstRequest,
    task: AbortHandle,
}

/// Groups IPv6 clients by /64: one subscriber controls the whole prefix. Unix sockets form one group.
pub(super) fn network(client: Option<IpAddr>) -> IpAddr {
    match client.map(|client| client.to_canonical()) {
        Some(IpAddr::V6(address)) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        Some(address @ IpAddr::V4(_)) => address,
        None => Ipv4Addr::UNSPECIFIED.into(),
    }
}

// === impl FirstRequest ===

impl FirstRequest {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

// === impl PendingConnections ===

impl PendingConnections {
    pub(super) fn new(limit: Duration) -> Self {
        Self { networks: HashMap::new(), limit }
    }

    pub(super) fn add(&mut self, client: Option<IpAddr>, first_request: FirstRequest, task: AbortHandle) {
        let connection = PendingConnection { since: Instant::now(), first_request, task };
        self.networks.entry(network(client)).or_default().push_back(connection);
    }

    pub(super) fn evict_expired(&mut self) {
        let limit = self.limit;
        self.networks.retain(|_, connections| {
            connections.retain(|connection| {
                let expired = connection.since.elapsed() >= limit;
                if connection.is_pending() && expired {
                    connection.task.abort();
                }
                connection.is_pending() && !expired
            });
            !connections.is_empty()
        });
    }

    /// Evicts one connection, if one is old enough.
    pub(super) fn evict_oldest(&mut self) {
        while let Some((&network, connections)) =
            self.networks.iter_mut().max_by_key(|(_, connections)| connections.len())
        {
            let before = connections.len();
            connections.retain(PendingConnection::is_pending);
            match connections.front() {
                Some(oldest) if connections.len() == before => {
                    if before > MAX_PER_NETWORK || oldest.since.elapsed() >= MIN_AGE {
                        oldest.task.abort();
                        connections.pop_front();
                    }
                    return;
                }
                // Another network may have the most pending connections now.
                Some(_) => {}
                None => {
                    self.networks.remove(&network);
                }
            }
        }
    }

    /// Evicts all connections without a request when the server stops, instead of waiting for them.
    pub(super) fn evict_all(&mut self) {
        for connection in self.networks.drain().flat_map(|(_, connections)| connections) {
            if connection.is_pending() {
                connection.task.abort();
            }
        }
    }
}

// === impl PendingConnection ===

impl PendingConnection {
    fn is_pending(&self) -> bool {
        !self.first_request.0.load(Ordering::Relaxed) && !self.task.is_finished()
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinHandle;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn connect(pending: &mut PendingConnections, client: &str) -> (FirstRequest, JoinHandle<()>) {
        let (first_request, task) = (FirstRequest::default(), tokio::spawn(std::future::pending()));
        pending.add(Some(client.parse().unwrap()), first_request.clone(), task.abort_handle());
        (first_request, task)
    }

    async fn are_open<const N: usize>(tasks: [&JoinHandle<()>; N]) -> [bool; N] {
        // An aborted task ends when it is scheduled.
        tokio::task::yield_now().await;
        tasks.map(|task| !task.is_finished())
    }

    #[tokio::test(start_paused = true)]
    async fn silent_connection_is_evicted_after_the_limit() {
        let mut pending = PendingConnections::new(LIMIT);
        let (_, silent) = connect(&mut pending, "10.0.0.1");
        let (first_request, active) = connect(&mut pending, "10.0.0.1");
        first_request.set();
        tokio::time::advance(LIMIT / 2).await;
        let (_, later) = connect(&mut pending, "10.0.0.1");
        pending.evict_expired();
        assert_eq!(are_open([&silent, &active, &later]).await, [true; 3]);
        tokio::time::advance(LIMIT / 2).await;
        pending.evict_expired();
        assert_eq!(are_open([&silent, &active, &later]).await, [false, true, true]);
        tokio::time::advance(LIMIT).await;
        pending.evict_expired();
        assert_eq!(are_open([&active, &later]).await, [true, false]);
        assert!(pending.networks.is_empty(), "closed and active connections are forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn eviction_starts_with_the_busiest_network() {
        let mut pending = PendingConnections::new(LIMIT);
        let (_, single) = connect(&mut pending, "10.0.0.1");
        // Many connections, all but one with a request.
        let active: Vec<_> = (0..9).map(|_| connect(&mut pending, "10.0.0.2")).collect();
        let (_, proxy) = connect(&mut pending, "10.0.0.2");
        for (first_request, _) in &active {
            first_request.set();
        }
        let (_, first) = connect(&mut pending, "2001:db8::1");
        let (_, second) = connect(&mut pending, "2001:db8::2");
        pending.evict_oldest();
        assert_eq!(are_open([&first, &second]).await, [true; 2], "below the minimum age");
        tokio::time::advance(MIN_AGE).await;
        pending.evict_oldest();
        assert_eq!(are_open([&first, &second, &single, &proxy]).await, [false, true, true, true]);
        for _ in 0..3 {
            pending.evict_oldest();
        }
        assert_eq!(are_open([&second, &single, &proxy]).await, [false; 3]);
        pending.evict_oldest();
        assert!(active.iter().all(|(_, task)| !task.is_finished()), "connections with a request stay");
    }

    #[tokio::test(start_paused = true)]
    async fn large_network_is_evicted_immediately() {
        let mut pending = PendingConnections::new(LIMIT);
        let (_, single) = connect(&mut pending, "10.0.0.1");
        let many: Vec<_> = (0..MAX_PER_NETWORK + 2).map(|_| connect(&mut pending, "10.0.0.2")).collect();
        for _ in 0..4 {
            pending.evict_oldest();
        }
        assert_eq!(are_open([&single]).await, [true]);
        let evicted = many.iter().take_while(|(_, task)| task.is_finished()).count();
        assert_eq!(evicted, 2, "until it is below the limit");
    }
}
