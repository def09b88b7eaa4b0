//! The hub server.
//!
//! It opens its resources, listens, serves, enforces retention, and finishes started requests at shutdown.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use http_body_util::BodyExt as _;
use hyper::{Request, Response};
use jiff::Timestamp;
use landfall_model::{Secret, chain};
use landfall_net::serve::{Accept, Handler, Limits, Peer, RequestBody, ResponseBody, Session};
use landfall_net::{ClientCertificates, Listener, Reloading, ServerTlsFiles, TlsError, TlsPolicy};
use rustix::process::{Resource, getrlimit};
use rustls::{ClientConfig, ServerConfig};
use tower_service::Service as _;

use crate::access::Access;
use crate::bundles::BundleLimits;
use crate::config::{Config, ConfigError, ObjectPlace, StorePlace};
use crate::http::{self, Connection, Events};
use crate::hub::Hub;
use crate::limits::SERVER;
use crate::objects::{ObjectError, Objects};
use crate::pull::{self, Pull};
use crate::roles::Roles;
use crate::store::{PostgresStore, SqliteStore, Store, StoreError};
use crate::take::{self, Take};
use crate::token::{TokenError, TokenKey};

/// Descriptors reserved for the store, bundles, polled agents and reloaded files.
const RESERVED_FDS: usize = 128;
const MIN_CONNECTIONS: usize = 16;
/// Interval between runs of the retention.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// Pause between two portions.
const PRUNE_PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of portions before bundles are removed as well.
const PRUNE_PORTIONS: u32 = 1000;
/// Interval between sweeps over all bundles.
const SWEEP_EVERY: Duration = Duration::from_secs(24 * 3600);
/// Delay of the first sweep, so that it does not compete with the start of the hub.
const SWEEP_FIRST: Duration = Duration::from_secs(900);
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("the configuration cannot be used")]
    Config(#[source] ConfigError),
    #[error("cannot keep reports")]
    Store(#[source] StoreError),
    #[error("cannot open the store of bundles")]
    Objects(#[source] ObjectError),
    #[error("cannot use the TLS files")]
    Tls(#[source] TlsError),
    #[error("cannot use the certificates for agents")]
    PullTls(#[source] TlsError),
    #[error("cannot use the certificates for NATS")]
    NatsTls(#[source] TlsError),
    #[error("cannot open the bucket agents put reports into")]
    Bucket(#[source] ObjectError),
    #[error("cannot read the key for tokens `{}`", path.display())]
    ReadKey { path: PathBuf, source: std::io::Error },
    #[error("cannot use the key for tokens")]
    Key(#[source] TokenError),
    #[error("cannot read the built-in catalogue of causes")]
    Catalogue(#[source] landfall_diagnose::RuleError),
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
}

/// A hub that listens and does not serve yet.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    tls: Option<Arc<Reloading<ServerConfig>>>,
    hub: Arc<Hub>,
    keep: Duration,
    keep_bundles: Duration,
    pull: Option<Pull>,
    take: Take,
    nats_tls: Option<Arc<Reloading<ClientConfig>>>,
}

/// Passes requests to the router, with the connection of the request.
struct RouterHandler(Router);

// === impl Server ===

impl Server {
    /// Opens all resources and listens, after validating the configuration.
    pub async fn bind(config: Config) -> Result<Self, HubError> {
        config.validate().map_err(HubError::Config)?;
        let tokens = config.token_key.as_deref().map(read_key).transpose()?;
        let certificates = config.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        config.pull.as_ref().map(pull::load).transpose().map_err(HubError::PullTls)?;
        let nats_tls =
            config.take.nats.as_ref().map(take::live_tls).transpose().map_err(HubError::NatsTls)?;
        let tls = config.tls.map(load_tls).transpose().map_err(HubError::Tls)?;
        let store: Arc<dyn Store> = match &config.store {
            StorePlace::Sqlite(path) => Arc::new(SqliteStore::open(path).map_err(HubError::Store)?),
            StorePlace::Postgres(place) => {
                Arc::new(PostgresStore::open(place).await.map_err(HubError::Store)?)
            }
        };
        let objects = match config.objects {
            ObjectPlace::Folder(folder) => Objects::folder(&folder),
            ObjectPlace::Bucket(place) => Objects::bucket(&place),
        };
        let objects = objects.map_err(HubError::Objects)?;
        let access = Access { tokens, certificates, proxy: config.proxy };
        let limits = BundleLimits { packed: config.max_bundle };
        let roles = Roles::new(config.watch, config.watch_authority);
        let hub = Hub::new(store, objects, access, limits, roles).map_err(HubError::Catalogue)?;
        if let Some(objects) = &config.take.objects {
            let bucket = objects.place.open().map_err(HubError::Bucket)?;
            // The cell is new, so this cannot fail.
            let _ = hub.bucket.set(bucket);
        }
        let failed = |source| HubError::Listen { address: config.listen, source };
        let listener = Listener::bind(config.listen).map_err(failed)?;
        Ok(Self {
            listener,
            tls,
            hub: Arc::new(hub),
            keep: config.keep,
            keep_bundles: config.keep_bundles,
            pull: config.pull,
            take: config.take,
            nats_tls,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Serves until `ended`, then finishes started requests.
    pub async fn serve(self, ended: impl Future<Output = ()>) {
        let (events, watching) = Events::watch(Arc::clone(&self.hub.store));
        let router = http::router(Arc::clone(&self.hub), events);
        // Boxed because it is large and moves with the future of the server.
        let side = Box::pin(async {
            tokio::join!(
                watching,
                prune(&self.hub, self.keep, self.keep_bundles),
                sweep(&self.hub),
                self.hub.roles.look(),
                async {
                    if let Some(asked) = self.pull {
                        pull::pull(&self.hub, asked).await;
                    }
                },
                async {
                    if let (Some(from), Some(bucket)) = (&self.take.objects, self.hub.bucket.get()) {
                        take::take_from_objects(&self.hub, bucket, from, self.keep).await;
                    }
                },
                async {
                    if let (Some(from), Some(tls)) = (&self.take.nats, &self.nats_tls) {
                        take::take_from_nats(&self.hub, from, tls).await;
                    }
                },
                async {
                    if let Some(tls) = &self.tls {
                        Arc::clone(tls).watch().await;
                    }
                }
            )
        });
        let accept = match &self.tls {
            Some(tls) => Accept::Tls(self.listener, Arc::clone(tls)),
            None => Accept::Tcp(self.listener),
        };
        let ended = async {
            tokio::select! {
                _ = side => {}
                () = ended => {}
            }
        };
        let limits = Limits { connections: connection_limit(), ..SERVER };
        landfall_net::serve::serve(accept, limits, Arc::new(RouterHandler(router)), ended).await;
    }
}

// === impl RouterHandler ===

impl Handler for RouterHandler {
    type State = Connection;

    fn open(&self, peer: Peer) -> Option<Session<Connection>> {
        let certificate = peer.certificate.map(|certificate| Arc::from(certificate.as_ref()));
        Some(Session::new(Connection { peer: peer.address?.ip(), certificate }))
    }

    fn handle<'h>(
        &'h self,
        connection: &'h Arc<Connection>,
        mut request: Request<RequestBody>,
    ) -> Pin<Box<dyn Future<Output = Response<ResponseBody>> + Send + 'h>> {
        request.extensions_mut().insert(Connection::clone(connection));
        let answering = self.0.clone().call(request);
        Box::pin(async move {
            let answer = answering.await.unwrap_or_else(|never| match never {});
            answer.map(|body| body.map_err(Into::into).boxed_unsync())
        })
    }
}

/// Clients without a certificate authenticate with a token.
fn load_tls(files: ServerTlsFiles) -> Result<Arc<Reloading<ServerConfig>>, TlsError> {
    files.load(ClientCertificates::Optional, &[b"h2", b"http/1.1"], TlsPolicy::default())
}

fn read_key(path: &std::path::Path) -> Result<TokenKey, HubError> {
    let key = std::fs::read(path).map_err(|source| HubError::ReadKey { path: path.to_owned(), source })?;
    TokenKey::new(Secret::new(key)).map_err(HubError::Key)
}

/// Each connection needs a file descriptor.
fn connection_limit() -> usize {
    let allowed = getrlimit(Resource::Nofile).current.and_then(|most| usize::try_from(most).ok());
    let most = allowed.map_or(SERVER.connections, |allowed| allowed.saturating_sub(RESERVED_FDS));
    most.clamp(MIN_CONNECTIONS, SERVER.connections)
}

/// Enforces retention forever.
async fn prune(hub: &Hub, keep: Duration, keep_bundles: Duration) {
    let mut is_more = false;
    loop {
        if !is_more {
            // Runs immediately after a node was deleted, so that its bundles are removed soon.
            let _ = tokio::time::timeout(PRUNE_EVERY, hub.loosened.notified()).await;
        }
        is_more = true;
        for _ in 0..PRUNE_PORTIONS {
            let now = Timestamp::now();
            let before = |keep: Duration| now.checked_sub(keep).unwrap_or(Timestamp::MIN);
            match hub.store.prune(before(keep), before(keep_bundles)).await {
                Ok(pruned) if pruned == crate::store::Pruned::default() => {
                    is_more = false;
                    break;
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "What is old could not be forgotten.");
                    is_more = false;
                    break;
                }
            }
            tokio::time::sleep(PRUNE_PAUSE).await;
        }
        hub.remove_loose().await;
    }
}

/// Searches periodically for bundles without a record.
async fn sweep(hub: &Hub) {
    tokio::time::sleep(SWEEP_FIRST).await;
    loop {
        hub.sweep().await;
        tokio::time::sleep(SWEEP_EVERY).await;
    }
}
