//! The server: agents on one side, kube-apiserver on the other.

mod agent_link;
mod agents;
mod connect;
mod dial;
mod lease;
mod proxy;
mod repeats;
mod status;
mod tokens;

pub use lease::{LabelError, LeaseSettings, labels};
#[cfg(feature = "reference")]
pub use status::metrics_of_everything;
pub use status::{AgentStatus, ServerStatus, ServerView};
pub use tokens::{Reviewer, TokenReviews};

pub(crate) use agent_link::granted;

use std::io;
use std::mem::Discriminant;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use landfall_cluster::Cluster;
use landfall_net::{ClientCertificates, Reloading, TlsError};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::agents::Agents;
use self::dial::DialError;
use self::lease::LeaseKeeper;
use self::repeats::Repeats;
use self::status::Metrics;
use crate::config::{DEFAULT_DIAL_TIMEOUT, Frontend, Mode, ServerConfig};
use crate::health::{self, Door};
use crate::mux::Command;
use crate::socket::{Peer, listen};
use crate::transport::{ReadAhead, TLS_WRITE};

/// gRPC peers require ALPN `h2`.
const HTTP_2: &[&[u8]] = &[b"h2"];
/// Timeout from the first byte to the end of the TLS handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Pause after a failed accept, usually because of the descriptor limit.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Timeout to notify all agents that the server stops.
const GOODBYE_LIMIT: Duration = Duration::from_secs(2);

/// A server that listens but does not serve yet.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    agents: TcpListener,
    agent_tls: Option<Arc<Reloading<rustls::ServerConfig>>>,
    frontend: Listener,
    health: Option<landfall_net::Listener>,
    admin: Option<landfall_net::Listener>,
    mode: Mode,
    grace: Duration,
    lease: Option<LeaseKeeper>,
}

/// Authentication of agents by token. The agent receives the reason for a rejection.
pub trait Authenticate: std::fmt::Debug + Send + Sync {
    fn check<'a>(&'a self, token: &'a [u8]) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;
}

#[derive(Debug)]
pub(crate) struct Shared {
    agents: Agents,
    server_id: String,
    server_count: u32,
    /// Number of servers with a lease, at the last count.
    counted: AtomicU32,
    dial_timeout: Duration,
    keepalive: Duration,
    frontend_keepalive: Duration,
    authenticate: Option<Arc<dyn Authenticate>>,
    metrics: Metrics,
    failed_dials: Repeats<Discriminant<DialError>>,
    /// Set on shutdown: open tunnels continue, new ones are rejected.
    draining: AtomicBool,
    /// Tasks of the links to agents.
    links: TaskTracker,
}

#[derive(Debug)]
enum Listener {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener, Arc<Reloading<rustls::ServerConfig>>),
}

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot listen for agents on {address}")]
    ListenForAgents { address: SocketAddr, source: io::Error },
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot listen on `{path}`")]
    ListenUnix { path: PathBuf, source: io::Error },
    #[error("`{path}` is in use by another server")]
    InUse { path: PathBuf },
    #[error("`{path}` exists and is not a socket")]
    NotASocket { path: PathBuf },
    #[error("cannot use the certificates of the agent port")]
    AgentTls(#[source] TlsError),
    #[error("cannot use the certificates of the frontend")]
    FrontendTls(#[source] TlsError),
}

// === impl Server ===

impl Server {
    /// Binds all listeners, or none if a certificate is unusable.
    pub async fn bind(
        config: ServerConfig,
        authenticate: Option<Arc<dyn Authenticate>>,
    ) -> Result<Self, ServerError> {
        let shared = Shared::new(&config, authenticate);
        let policy = || config.tls_policy.clone();
        let agent_tls = config
            .agent_tls
            .map(|files| files.load(ClientCertificates::Required, HTTP_2, policy()))
            .transpose()
            .map_err(ServerError::AgentTls)?;
        let protocols: &[&[u8]] = match config.mode {
            Mode::Grpc => HTTP_2,
            // kube-apiserver's CONNECT client offers no ALPN protocol, and HTTP/2 must not be selected for it.
            Mode::HttpConnect => &[],
        };
        let frontend = match config.frontend {
            Frontend::Unix { path, delete_existing, permissions } => {
                let listener = bind_unix(&path, delete_existing, permissions).await?;
                Listener::Unix(listener, path)
            }
            Frontend::Tcp { address, port, tls } => {
                let tls = tls.load(ClientCertificates::Required, protocols, policy());
                let tls = tls.map_err(ServerError::FrontendTls)?;
                let address = SocketAddr::new(address, port);
                let listener = listen(address).await;
                Listener::Tcp(listener.map_err(|source| ServerError::Listen { address, source })?, tls)
            }
        };
        let address = SocketAddr::new(config.agent_bind_address, config.agent_port);
        let agents = listen(address).await;
        let agents = agents.map_err(|source| ServerError::ListenForAgents { address, source })?;
        let health = listen_for_questions(config.health)?;
        let admin = listen_for_questions(config.admin)?;
        let (mode, grace) = (config.mode, config.graceful_shutdown_timeout);
        Ok(Self {
            shared: Arc::new(shared),
            agents,
            agent_tls,
            frontend,
            health,
            admin,
            mode,
            grace,
            lease: None,
        })
    }

    /// Holds a lease in the cluster while the server runs, so that agents can count servers.
    #[must_use]
    pub fn keeping_a_lease(mut self, cluster: Cluster, settings: LeaseSettings) -> Self {
        self.lease = Some(LeaseKeeper::new(cluster, settings, &self.shared.server_id));
        self
    }

    pub fn view(&self) -> ServerView {
        ServerView(Arc::clone(&self.shared))
    }

    pub fn agent_address(&self) -> io::Result<SocketAddr> {
        self.agents.local_addr()
    }

    /// Returns the address of the frontend, unless it is a Unix socket.
    pub fn frontend_address(&self) -> Option<SocketAddr> {
        match &self.frontend {
            Listener::Unix(..) => None,
            Listener::Tcp(listener, _) => listener.local_addr().ok(),
        }
    }

    /// Returns the address of the health port, if configured.
    pub fn health_address(&self) -> Option<SocketAddr> {
        self.health.as_ref().map(landfall_net::Listener::address)
    }

    /// Serves until `stop` is canceled, then lets open tunnels finish for the grace period.
    pub async fn run(self, stop: CancellationToken) {
        let shared = self.shared;
        let mut watches = tokio::task::JoinSet::new();
        if let Some(tls) = &self.agent_tls {
            watches.spawn(Arc::clone(tls).watch());
        }
        for (listener, door) in [(self.health, Door::Probes), (self.admin, Door::Admin { metrics_at: None })]
        {
            if let Some(listener) = listener {
                watches.spawn(health::serve(listener, Arc::new(ServerView(Arc::clone(&shared))), door));
            }
        }
        // Each listener has its own task, so that a connection starts on the thread that accepted it.
        let mut doors = tokio::task::JoinSet::new();
        doors.spawn({
            let (shared, tls) = (Arc::clone(&shared), self.agent_tls);
            async move {
                loop {
                    let socket = accept(|| self.agents.accept()).await;
                    spawn_agent(Arc::clone(&shared), socket, tls.as_deref());
                }
            }
        });
        let socket_path = match &self.frontend {
            Listener::Unix(_, path) => Some(path.clone()),
            Listener::Tcp(_, tls) => {
                watches.spawn(Arc::clone(tls).watch());
                None
            }
        };
        doors.spawn({
            let (shared, mode) = (Arc::clone(&shared), self.mode);
            async move {
                loop {
                    match &self.frontend {
                        Listener::Unix(listener, _) => {
                            let socket = accept(|| listener.accept()).await;
                            spawn_frontend(Arc::clone(&shared), mode, socket);
                        }
                        Listener::Tcp(listener, tls) => {
                            let socket = accept(|| listener.accept()).await;
                            spawn_tls_frontend(Arc::clone(&shared), mode, socket, tls);
                        }
                    }
                }
            }
        });
        let lease = async {
            match &self.lease {
                Some(lease) => lease.keep(&shared).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = lease => {}
            () = stop.cancelled() => {}
        }
        doors.shutdown().await;
        if let Some(path) = socket_path {
            // The socket may already be removed; the next start removes a stale one.
            let _ = std::fs::remove_file(path);
        }
        shared.draining.store(true, Ordering::Relaxed);
        if let Some(lease) = &self.lease {
            lease.release().await;
        }
        shared.drain(self.grace).await;
    }
}

// === impl Shared ===

impl Shared {
    fn new(config: &ServerConfig, authenticate: Option<Arc<dyn Authenticate>>) -> Self {
        Self {
            agents: Agents::new(config.proxy_strategies.clone(), config.limits),
            server_id: config.server_id.clone(),
            server_count: config.server_count,
            counted: AtomicU32::new(0),
            dial_timeout: match config.backend_dial_timeout {
                Duration::ZERO => DEFAULT_DIAL_TIMEOUT,
                limit => limit,
            },
            keepalive: config.keepalive_time,
            frontend_keepalive: config.frontend_keepalive_time,
            authenticate,
            metrics: Metrics::new(),
            failed_dials: Repeats::default(),
            draining: AtomicBool::new(false),
            links: TaskTracker::new(),
        }
    }

    /// Returns the number of servers for agents. Leases include servers added later; the flag includes servers without
    /// a lease.
    fn server_count(&self) -> u32 {
        self.server_count.max(self.counted.load(Ordering::Relaxed))
    }

    /// Sends GOAWAY to agents, lets open tunnels finish for a while, then ends the links.
    async fn drain(&self, grace: Duration) {
        for agent in self.agents.all() {
            agent.queue.command(Command::GoAway);
        }
        let busy = || self.agents.all().iter().any(|agent| agent.tunnels.load(Ordering::Relaxed) > 0);
        let ended = async {
            while busy() {
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        };
        // The shutdown continues after a timeout, too.
        let _ = tokio::time::timeout(grace, ended).await;
        for agent in self.agents.all() {
            agent.queue.command(Command::Stop);
        }
        self.links.close();
        // An agent that misses the notification detects the end of the connection.
        let _ = tokio::time::timeout(GOODBYE_LIMIT, self.links.wait()).await;
    }
}

fn listen_for_questions(at: Option<(IpAddr, u16)>) -> Result<Option<landfall_net::Listener>, ServerError> {
    let Some((address, port)) = at else { return Ok(None) };
    let address = SocketAddr::new(address, port);
    let bound = landfall_net::Listener::bind(address);
    bound.map(Some).map_err(|source| ServerError::Listen { address, source })
}

/// Accepts the next connection. A failed accept concerns a single connection, or is temporary.
async fn accept<S, A, F: Future<Output = io::Result<(S, A)>>>(next: impl Fn() -> F) -> S {
    loop {
        match next().await {
            Ok((socket, _)) => return socket,
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn spawn_agent(shared: Arc<Shared>, socket: TcpStream, tls: Option<&Reloading<rustls::ServerConfig>>) {
    crate::socket::prepare(&socket);
    let links = shared.links.clone();
    let Some(tls) = tls else {
        links.spawn(agent_link::serve(shared, socket));
        return;
    };
    let acceptor = TlsAcceptor::from(tls.get());
    links.spawn(async move {
        match tokio::time::timeout(HANDSHAKE_LIMIT, acceptor.accept(ReadAhead::new(socket))).await {
            Ok(Ok(mut socket)) => {
                socket.get_mut().1.set_buffer_limit(Some(TLS_WRITE));
                agent_link::serve(shared, socket).await;
            }
            Ok(Err(error)) => tracing::info!(%error, "agent's handshake failed"),
            Err(_) => tracing::debug!("agent's handshake took too long"),
        }
    });
}

fn spawn_frontend(shared: Arc<Shared>, mode: Mode, socket: UnixStream) {
    tokio::spawn(serve_frontend(shared, mode, socket));
}

fn spawn_tls_frontend(
    shared: Arc<Shared>,
    mode: Mode,
    socket: TcpStream,
    tls: &Reloading<rustls::ServerConfig>,
) {
    crate::socket::prepare(&socket);
    let acceptor = TlsAcceptor::from(tls.get());
    tokio::spawn(async move {
        match tokio::time::timeout(HANDSHAKE_LIMIT, acceptor.accept(socket)).await {
            Ok(Ok(socket)) => serve_frontend(shared, mode, socket).await,
            Ok(Err(error)) => tracing::info!(%error, "frontend's handshake failed"),
            Err(_) => tracing::debug!("frontend's handshake took too long"),
        }
    });
}

async fn serve_frontend<S: Peer>(shared: Arc<Shared>, mode: Mode, socket: S) {
    match mode {
        Mode::Grpc => proxy::serve(shared, socket).await,
        Mode::HttpConnect => connect::serve(shared, socket).await,
    }
}

/// Binds a Unix socket with the configured permissions. A stale socket is replaced; one in use, or a file of another
/// type, is not.
async fn bind_unix(
    path: &Path,
    delete_existing: bool,
    permissions: u32,
) -> Result<UnixListener, ServerError> {
    let failed = |source| ServerError::ListenUnix { path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        // Another type of file indicates a wrong path; deleting it could lose data.
        Ok(there) if !there.file_type().is_socket() => {
            return Err(ServerError::NotASocket { path: path.to_owned() });
        }
        Ok(_) if delete_existing => {
            if UnixStream::connect(path).await.is_ok() {
                return Err(ServerError::InUse { path: path.to_owned() });
            }
            std::fs::remove_file(path).map_err(failed)?;
        }
        // `bind` reports the error.
        Ok(_) | Err(_) => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(permissions)).map_err(failed)?;
    Ok(listener)
}

/// A server without listeners, for simulations.
#[cfg(test)]
pub(crate) mod parts {
    use super::{Arc, Mode, Peer, ServerConfig, ServerView, Shared};

    pub(crate) fn view(config: &ServerConfig) -> ServerView {
        ServerView(Arc::new(Shared::new(config, None)))
    }

    pub(crate) async fn serve_agent<S: Peer>(server: ServerView, socket: S) {
        super::agent_link::serve(server.0, socket).await;
    }

    pub(crate) async fn serve_client<S: Peer>(server: ServerView, socket: S) {
        super::serve_frontend(server.0, Mode::HttpConnect, socket).await;
    }
}
