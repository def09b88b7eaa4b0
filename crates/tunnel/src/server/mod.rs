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
use crate::health::{Door, HealthListener};
use crate::mux::Command;
use crate::socket::{Peer, listen};
use crate::tls::{Alpn, Serving, TLS_WRITE, TlsError};
use crate::transport::ReadAhead;

/// From the first byte to the end of the TLS handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// After an accept that failed, usually for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// For all agents together to be told that the server leaves.
const GOODBYE_LIMIT: Duration = Duration::from_secs(2);

/// A server that listens and does not yet serve.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    agents: TcpListener,
    agent_tls: Option<Arc<Serving>>,
    frontend: Listener,
    health: Option<HealthListener>,
    admin: Option<HealthListener>,
    mode: Mode,
    grace: Duration,
    lease: Option<LeaseKeeper>,
}

/// Says whether an agent's token is good. The answer to a bad one is told to the agent.
pub trait Authenticate: std::fmt::Debug + Send + Sync {
    fn check<'a>(&'a self, token: &'a [u8]) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;
}

#[derive(Debug)]
pub(crate) struct Shared {
    agents: Agents,
    server_id: String,
    server_count: u32,
    /// Servers that hold a lease, as last seen.
    counted: AtomicU32,
    dial_timeout: Duration,
    keepalive: Duration,
    frontend_keepalive: Duration,
    authenticate: Option<Arc<dyn Authenticate>>,
    metrics: Metrics,
    failed_dials: Repeats<Discriminant<DialError>>,
    /// Told to stop: what is open goes on, nothing new is wanted.
    draining: AtomicBool,
    /// The agents' links.
    links: TaskTracker,
}

#[derive(Debug)]
enum Listener {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener, Arc<Serving>),
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
    #[error("`{path}` is there and is no socket")]
    NotASocket { path: PathBuf },
    #[error("cannot use the certificates of the agent port")]
    AgentTls(#[source] TlsError),
    #[error("cannot use the certificates of the frontend")]
    FrontendTls(#[source] TlsError),
}

// === impl Server ===

impl Server {
    /// Binds everything; nothing is bound when any certificate is unusable.
    pub async fn bind(
        config: ServerConfig,
        authenticate: Option<Arc<dyn Authenticate>>,
    ) -> Result<Self, ServerError> {
        let shared = Shared::new(&config, authenticate);
        let policy = &config.tls_policy;
        let agent_tls = config
            .agent_tls
            .map(|files| Serving::load(files, Alpn::Http2, policy).map_err(ServerError::AgentTls));
        let agent_tls = agent_tls.transpose()?;
        let alpn = match config.mode {
            Mode::Grpc => Alpn::Http2,
            Mode::HttpConnect => Alpn::None,
        };
        let frontend = match config.frontend {
            Frontend::Unix { path, delete_existing, permissions } => {
                let listener = bind_unix(&path, delete_existing, permissions).await?;
                Listener::Unix(listener, path)
            }
            Frontend::Tcp { address, port, tls } => {
                let tls = Serving::load(tls, alpn, policy).map_err(ServerError::FrontendTls)?;
                let address = SocketAddr::new(address, port);
                let listener = listen(address).await;
                Listener::Tcp(listener.map_err(|source| ServerError::Listen { address, source })?, tls)
            }
        };
        let address = SocketAddr::new(config.agent_bind_address, config.agent_port);
        let agents = listen(address).await;
        let agents = agents.map_err(|source| ServerError::ListenForAgents { address, source })?;
        let health = listen_for_questions(config.health).await?;
        let admin = listen_for_questions(config.admin).await?;
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

    /// Keeps a lease in the cluster while it runs, so that agents can count servers.
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

    /// Where the frontend listens, unless on a Unix socket.
    pub fn frontend_address(&self) -> Option<SocketAddr> {
        match &self.frontend {
            Listener::Unix(..) => None,
            Listener::Tcp(listener, _) => listener.local_addr().ok(),
        }
    }

    /// Where health is served, if it is.
    pub fn health_address(&self) -> Option<SocketAddr> {
        self.health.as_ref().and_then(|listener| listener.address().ok())
    }

    /// Where administrators are served, if they are.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().and_then(|listener| listener.address().ok())
    }

    /// Serves until told to stop, then lets tunnels end by themselves for a while.
    pub async fn run(self, stop: CancellationToken) {
        let shared = self.shared;
        let mut watches = tokio::task::JoinSet::new();
        if let Some(tls) = &self.agent_tls {
            watches.spawn(Arc::clone(tls).watch());
        }
        for (listener, door) in [(self.health, Door::Probes), (self.admin, Door::Admin { metrics_at: None })]
        {
            if let Some(listener) = listener {
                watches.spawn(listener.serve(Arc::new(ServerView(Arc::clone(&shared))), door));
            }
        }
        // Tasks of their own, so that what is accepted starts on the thread that accepted it.
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
            // It may have been removed already; a leftover is removed by the next start.
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

    /// What agents are told. Leases know of servers that came later; a server that keeps none is only in the flag.
    fn server_count(&self) -> u32 {
        self.server_count.max(self.counted.load(Ordering::Relaxed))
    }

    /// Sends agents to look for another server, lets tunnels end by themselves for a while, then ends the links.
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
        // Whether all ended in time makes no difference to what follows.
        let _ = tokio::time::timeout(grace, ended).await;
        for agent in self.agents.all() {
            agent.queue.command(Command::Stop);
        }
        self.links.close();
        // An agent that does not take the goodbye finds out by itself.
        let _ = tokio::time::timeout(GOODBYE_LIMIT, self.links.wait()).await;
    }
}

async fn listen_for_questions(at: Option<(IpAddr, u16)>) -> Result<Option<HealthListener>, ServerError> {
    let Some((address, port)) = at else { return Ok(None) };
    let address = SocketAddr::new(address, port);
    let bound = HealthListener::bind(address).await;
    bound.map(Some).map_err(|source| ServerError::Listen { address, source })
}

/// The next connection. A failed accept concerns that connection, or passes.
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

fn spawn_agent(shared: Arc<Shared>, socket: TcpStream, tls: Option<&Serving>) {
    crate::socket::prepare(&socket);
    let links = shared.links.clone();
    let Some(tls) = tls else {
        links.spawn(agent_link::serve(shared, socket));
        return;
    };
    let acceptor = TlsAcceptor::from(tls.config());
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

fn spawn_tls_frontend(shared: Arc<Shared>, mode: Mode, socket: TcpStream, tls: &Serving) {
    crate::socket::prepare(&socket);
    let acceptor = TlsAcceptor::from(tls.config());
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

/// A socket for those who may use it. One that is left over is removed; one in use, or a file of any other kind, is not.
async fn bind_unix(
    path: &Path,
    delete_existing: bool,
    permissions: u32,
) -> Result<UnixListener, ServerError> {
    let failed = |source| ServerError::ListenUnix { path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        // Whatever else is there is somebody's, and the name a mistake.
        Ok(there) if !there.file_type().is_socket() => {
            return Err(ServerError::NotASocket { path: path.to_owned() });
        }
        Ok(_) if delete_existing => {
            if UnixStream::connect(path).await.is_ok() {
                return Err(ServerError::InUse { path: path.to_owned() });
            }
            std::fs::remove_file(path).map_err(failed)?;
        }
        // Binding says what is wrong.
        Ok(_) | Err(_) => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(permissions)).map_err(failed)?;
    Ok(listener)
}

/// What a simulation needs: a server without listeners.
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
