//! The API endpoint of a cluster while it bootstraps.
//!
//! The first bytes of a connection decide whether it is spliced unmodified or terminated with the API server's
//! certificates. The gateway serves `/bootstrap` itself, whatever the state of the API server. It forwards all other
//! requests with exactly the identity of their client.

mod access;
mod admin;
mod answer;
mod audit;
mod body;
pub mod collector;
pub mod config;
mod connection;
mod credentials;
mod forward;
mod gather;
mod headers;
mod health;
mod identity;
pub mod layout;
mod metrics;
mod network;
mod own;
mod phase;
mod redirect;
mod review;
mod situation;
mod tunnel;
mod upstream;
mod websocket;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use landfall_model::chain;
use landfall_net::{Drain, Lanes, Listener, Pipes, Reloading, TlsError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpStream;

pub use self::connection::OWN_NAME;
pub use self::credentials::OWN_PROTOCOL;
#[cfg(feature = "schema")]
pub use self::metrics::page_at_start;
pub use self::phase::Phase;
use crate::audit::Audit;
use crate::config::{Collector, Config};
use crate::credentials::Credentials;
use crate::gather::Gathers;
use crate::headers::Believed;
use crate::metrics::Metrics;
use crate::review::Reviewer;
use crate::situation::{Lookout, Outlook};

/// Sufficient for the default `max_connections`, with two sockets and a pipe each.
const DESCRIPTORS: u64 = 100_000;
/// A readiness probe within this time shows that a load balancer watches this gateway.
const WATCHED_WITHIN: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    #[error("load certificates and keys")]
    Credentials(#[source] TlsError),
    #[error("listen on {address}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("open the audit log `{path}`")]
    Audit { path: PathBuf, source: io::Error },
    #[error("make a place for the collector's socket")]
    Collector(#[source] io::Error),
    #[error("redirect connections of the API port")]
    Redirect(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("start the threads that serve connections")]
    Threads(#[source] io::Error),
}

/// State that all connections share.
pub(crate) struct Gateway {
    pub(crate) config: Config,
    pub(crate) credentials: Arc<Reloading<Credentials>>,
    pub(crate) believed: Believed,
    pub(crate) outlook: Arc<Outlook>,
    pub(crate) reviewer: Arc<Reviewer>,
    pub(crate) gathers: Gathers,
    pub(crate) audit: Audit,
    pub(crate) metrics: Metrics,
    pub(crate) drain: Drain,
    pub(crate) pipes: Pipes,
    leaving: AtomicBool,
    /// Time of the last readiness probe.
    probed: Mutex<Option<Instant>>,
}

/// A gateway whose listeners are bound.
#[expect(missing_debug_implementations, reason = "holds private keys")]
pub struct Bound {
    gateway: Arc<Gateway>,
    listeners: Vec<Listener>,
    admin: Option<Listener>,
    lookout: Lookout,
    lanes: Lanes,
    collector: Option<collector::Started>,
}

/// Checks certificates, keys and tokens without listening.
pub fn check(config: &Config) -> Result<(), GatewayError> {
    credentials::load(config).map(drop).map_err(GatewayError::Credentials)
}

/// Loads all files, then binds the listeners: no port is open before everything is valid.
pub fn bind(config: Config) -> Result<Bound, GatewayError> {
    let credentials = credentials::load(&config).map_err(GatewayError::Credentials)?;
    let audit = Audit::open(config.audit_log.clone()).map_err(|source| GatewayError::Audit {
        path: config.audit_log.clone().unwrap_or_default(),
        source,
    })?;
    let listen = |address: &SocketAddr| {
        Listener::bind(*address).map_err(|source| GatewayError::Listen { address: *address, source })
    };
    let listeners = config.listen.iter().map(listen).collect::<Result<Vec<_>, _>>()?;
    let admin = config.admin.as_ref().map(listen).transpose()?;
    let (started, socket) = match &config.collector {
        Collector::Socket(socket) => (None, socket.clone()),
        Collector::Started { program } => {
            let (started, socket) =
                collector::start(program, &config.root).map_err(GatewayError::Collector)?;
            (Some(started), socket)
        }
    };
    let lanes = Lanes::start(config.threads).map_err(GatewayError::Threads)?;
    let outlook = Outlook::new();
    let reviewer = Arc::new(Reviewer::new(config.kubeconfig.clone()));
    let lookout =
        Lookout::new(config.clone(), Arc::clone(&credentials), Arc::clone(&reviewer), Arc::clone(&outlook));
    let gateway = Arc::new(Gateway {
        believed: Believed::new(config.front_proxy.as_ref()),
        credentials,
        outlook,
        reviewer,
        gathers: Gathers::new(collector::Collector::at(socket)),
        audit,
        metrics: Metrics::default(),
        drain: Drain::default(),
        pipes: Pipes::default(),
        leaving: AtomicBool::new(false),
        probed: Mutex::default(),
        config,
    });
    Ok(Bound { gateway, listeners, admin, lookout, lanes, collector: started })
}

// === impl Bound ===

impl Bound {
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(Listener::address).collect()
    }

    /// Checks whether this host supports the configured redirect rule.
    pub async fn check(&self) -> Result<(), GatewayError> {
        match self.gateway.config.redirect {
            Some(_) => redirect::check().await.map_err(GatewayError::Redirect),
            None => Ok(()),
        }
    }

    /// Serves until `stop` resolves, then drains requests.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        raise_descriptor_limit();
        let Self { gateway, listeners, admin, lookout, lanes, collector } = self;
        let lanes = Arc::new(lanes);
        let background = Drain::default();
        let own_port = listeners.first().map(|listener| listener.address().port());
        background.spawn(lookout.run());
        background.spawn(Arc::clone(&gateway.credentials).watch());
        for listener in &listeners {
            lanes.on_each(&background, |lane| {
                let (gateway, lanes, shared) = (Arc::clone(&gateway), Arc::clone(&lanes), listener.share());
                async move {
                    match shared.and_then(Listener::adopt) {
                        Ok(listener) => accept(gateway, lanes, lane, listener).await,
                        Err(error) => tracing::error!(lane, %error, "one thread accepts no connections"),
                    }
                }
            });
            tracing::info!(address = %listener.address(), "serving");
        }
        if let Some(admin) = admin {
            background.spawn(admin::serve(Arc::clone(&gateway), admin));
        }
        let redirected = gateway.config.redirect.zip(own_port);
        if let Some((from, port)) = redirected {
            background.spawn(redirect::keep(Arc::clone(&gateway), from, port));
        }
        stop.await;
        gateway.leaving.store(true, Ordering::Relaxed);
        if redirected.is_some() {
            // New connections now bypass the gateway; open ones stay.
            redirect::clear().await;
        } else if gateway.is_watched() {
            let notice = gateway.config.patience.notice;
            tracing::info!(seconds = notice.as_secs(), "serving until load balancers have noticed");
            tokio::time::sleep(notice).await;
        }
        let left = gateway.drain.finish(gateway.config.patience.finish).await;
        if left > 0 {
            tracing::warn!(left, "connections were cut");
        }
        background.finish(Duration::ZERO).await;
        drop(listeners);
        if redirected.is_some() {
            redirect::clear().await;
        }
        drop(collector);
    }
}

/// Raises the descriptor limit to its maximum. As root, the process can raise that maximum to the number that
/// connections may need.
fn raise_descriptor_limit() {
    let allowed = getrlimit(Resource::Nofile).maximum;
    let wished = allowed.map(|allowed| allowed.max(DESCRIPTORS));
    for most in [wished, allowed] {
        if setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).is_ok() {
            return;
        }
    }
    tracing::debug!("the limit of descriptors stays");
}

/// Accepts connections on one lane and assigns each to the lane with the fewest.
async fn accept(gateway: Arc<Gateway>, lanes: Arc<Lanes>, here: usize, mut listener: Listener) {
    loop {
        let (stream, peer) = listener.accept().await;
        if gateway.metrics.connections.get() >= gateway.config.max_connections as u64 {
            gateway.refuse(peer, &TooMany);
            continue;
        }
        let (held, shared) = (gateway.metrics.connections.guard(), Arc::clone(&gateway));
        let lane = lanes.least(here);
        if lane == here {
            lanes.spawn(&gateway.drain, lane, async move {
                let _held = held;
                connection::serve(shared, lane, stream, peer).await;
            });
            continue;
        }
        // A socket must leave the runtime of this lane before another one can register it.
        let stream = match stream.into_std() {
            Ok(stream) => stream,
            Err(error) => {
                gateway.refuse(peer, &error);
                continue;
            }
        };
        lanes.spawn(&gateway.drain, lane, async move {
            let _held = held;
            match TcpStream::from_std(stream) {
                Ok(stream) => connection::serve(shared, lane, stream, peer).await,
                Err(error) => shared.refuse(peer, &error),
            }
        });
    }
}

#[derive(Debug, thiserror::Error)]
#[error("too many connections are open")]
struct TooMany;

// === impl Gateway ===

impl Gateway {
    /// Counts and logs a connection that is not served.
    pub(crate) fn refuse(&self, client: SocketAddr, reason: &dyn std::error::Error) {
        self.metrics.refused.add(1);
        tracing::debug!(%client, reason = %chain(reason), "refused");
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Records a readiness probe.
    pub(crate) fn probed(&self) {
        *self.probed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn is_watched(&self) -> bool {
        let probed = *self.probed.lock().unwrap_or_else(PoisonError::into_inner);
        probed.is_some_and(|at| at.elapsed() < WATCHED_WITHIN)
    }
}
