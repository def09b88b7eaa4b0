//! The agent: connects to servers and dials endpoints for them.

mod call;
mod endpoint;
mod leases;
mod link;
mod servers;
mod status;

pub use leases::CountSource;
#[cfg(feature = "reference")]
pub use status::metrics_of_everything;
pub use status::{AgentReport, AgentView};

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use landfall_cluster::{Cluster, LeaseQuery};
use landfall_model::chain;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::call::Called;
use self::leases::LeaseCounter;
use self::link::{End, Link};
use self::servers::Servers;
use crate::config::AgentConfig;
use crate::health::{self, Door};
use crate::metrics::{Broke, Segment};
use crate::mux::{Command, Queue};
use crate::number::random;
use crate::socket::{Host, Network};
use landfall_http2::ErrorCode;

/// Interval at which a draining agent checks whether its tunnels have ended.
const DRAIN_LOOK: Duration = Duration::from_millis(100);
/// Timeout to notify all servers that the agent leaves.
const GOODBYE_LIMIT: Duration = Duration::from_secs(2);

/// An agent that is not yet running.
#[derive(Debug)]
pub struct Agent {
    config: AgentConfig,
    servers: Arc<Servers>,
    health: Option<landfall_net::Listener>,
    admin: Option<landfall_net::Listener>,
    /// Tasks of the links to servers.
    links: TaskTracker,
    leases: Option<LeaseCounter>,
}

/// An error that prevents the agent from starting.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct AgentError {
    address: SocketAddr,
    source: io::Error,
}

// === impl Agent ===

impl Agent {
    /// Binds the health and admin ports, if configured.
    #[expect(clippy::unused_async, reason = "registers its sockets with the runtime that awaits it")]
    pub async fn bind(config: AgentConfig) -> Result<Self, AgentError> {
        let health = listen(config.health)?;
        let admin = listen(config.admin)?;
        let servers = Servers::new(&config.agent_id);
        Ok(Self {
            config,
            servers: Arc::new(servers),
            health,
            admin,
            links: TaskTracker::new(),
            leases: None,
        })
    }

    /// Implements `--count-server-leases`: counts servers by their leases.
    #[must_use]
    pub fn counting_leases(mut self, cluster: Cluster, query: LeaseQuery, source: CountSource) -> Self {
        self.servers.count_by(source);
        self.leases = Some(LeaseCounter { cluster, query });
        self
    }

    /// Returns the address of the health port, if configured.
    pub fn health_address(&self) -> Option<SocketAddr> {
        self.health.as_ref().map(landfall_net::Listener::address)
    }

    pub fn view(&self) -> AgentView {
        AgentView(Arc::clone(&self.servers))
    }

    /// Serves until `stop` is canceled, then lets open tunnels finish for the drain timeout.
    pub async fn run(self, stop: CancellationToken) {
        self.run_in(Host, stop).await;
    }

    pub(crate) async fn run_in<N: Network>(mut self, network: N, stop: CancellationToken) {
        let mut probes = tokio::task::JoinSet::new();
        let metrics_at = self.health_address().map(|address| address.port());
        for (listener, door) in
            [(self.health.take(), Door::Probes), (self.admin.take(), Door::Admin { metrics_at })]
        {
            if let Some(listener) = listener {
                probes.spawn(health::serve(listener, Arc::new(self.view()), door));
            }
        }
        let lost = Arc::new(tokio::sync::Notify::new());
        let counting = async {
            match &self.leases {
                Some(leases) => leases.count(&self.servers, &lost).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.keep_connected(&network, &lost) => {}
            () = counting => {}
            () = stop.cancelled() => {}
        }
        self.servers.tell_all(|| Command::Drain);
        let ended = async {
            while self.servers.metrics.tunnels.load(Ordering::Relaxed) > 0 {
                tokio::time::sleep(DRAIN_LOOK).await;
            }
        };
        // The shutdown continues after a timeout, too.
        let _ = tokio::time::timeout(self.config.drain_timeout, ended).await;
        self.servers.tell_all(|| Command::Stop);
        self.links.close();
        // A server that misses the notification detects the end of the connection.
        let _ = tokio::time::timeout(GOODBYE_LIMIT, self.links.wait()).await;
    }

    async fn keep_connected<N: Network>(&self, network: &N, lost: &Arc<tokio::sync::Notify>) {
        let (mut failed, mut attempt) = (0_u32, 0);
        loop {
            if self.servers.is_complete() && !self.config.sync_forever {
                lost.notified().await;
                continue;
            }
            attempt += 1;
            match call::call(&self.config, network, attempt).await {
                Ok(called) => {
                    self.take_on(called, network, lost);
                    failed = 0;
                }
                Err(error) => {
                    self.servers.metrics.calls_failed.increment();
                    tracing::warn!(error = %chain(&error), "no server reached");
                    failed = failed.saturating_add(1);
                }
            }
            if self.servers.is_complete() && !self.config.sync_forever {
                continue;
            }
            // The jitter of a simulation is reproducible.
            let random = u32::try_from(random() & i64::from(u32::MAX)).unwrap_or_default();
            tokio::time::sleep(self.config.sync.pause_with(failed, random)).await;
        }
    }

    fn take_on<N: Network>(&self, called: Called, network: &N, lost: &Arc<tokio::sync::Notify>) {
        let queue: Arc<Queue> = Arc::default();
        if !self.servers.add(&called.server_id, called.server_count, &queue) {
            tracing::debug!(server = called.server_id, "server known already");
            let mut transport = called.transport;
            tokio::spawn(async move {
                transport.connection.go_away(ErrorCode::NO_ERROR, "");
                transport.say_last_word().await;
            });
            return;
        }
        tracing::info!(server = called.server_id, ours = called.credit.is_some(), "connected");
        let leave = {
            let (servers, id) = (Arc::clone(&self.servers), called.server_id.clone());
            let (queue, lost) = (Arc::clone(&queue), Arc::clone(lost));
            move || {
                tracing::info!(server = id, "server is about to leave");
                servers.remove(&id, &queue);
                lost.notify_one();
            }
        };
        let link = Link::new(
            network.clone(),
            called.stream,
            Arc::clone(&queue),
            called.credit,
            Arc::clone(&self.servers.metrics),
            Box::new(leave),
        );
        self.links.spawn(serve(Arc::clone(&self.servers), called, link, queue, Arc::clone(lost)));
    }
}

fn listen(at: Option<(IpAddr, u16)>) -> Result<Option<landfall_net::Listener>, AgentError> {
    let Some((address, port)) = at else { return Ok(None) };
    let address = SocketAddr::new(address, port);
    landfall_net::Listener::bind(address).map(Some).map_err(|source| AgentError { address, source })
}

async fn serve<N: Network>(
    servers: Arc<Servers>,
    called: Called,
    mut link: Link<N>,
    queue: Arc<Queue>,
    lost: Arc<tokio::sync::Notify>,
) {
    let Called { mut transport, server_id, .. } = called;
    let outcome = transport.drive(&mut link).await;
    servers.remove(&server_id, &queue);
    link.end();
    match outcome {
        Ok(End::Stopped) => {}
        Ok(End::ServerLeft(reason)) => tracing::info!(server = server_id, reason, "server left"),
        Ok(End::Garbled(reason)) => {
            servers.metrics.packets.broke(Segment::ToAgent, Broke::Internal);
            tracing::warn!(server = server_id, reason, "server cannot be understood");
        }
        Err(error) => {
            servers.metrics.servers_lost.increment();
            servers.metrics.packets.broke(Segment::ToAgent, Broke::Unavailable);
            tracing::info!(server = server_id, error = %chain(&error), "server lost");
        }
    }
    lost.notify_one();
    transport.connection.go_away(ErrorCode::NO_ERROR, "");
    transport.say_last_word().await;
}
