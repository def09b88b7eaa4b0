//! A hub that runs: open what it needs, listen, serve, forget what is old, and end without dropping what it has begun.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use jiff::Timestamp;
use landfall_model::{Secret, chain};
use landfall_wire::Live;
use rustls::ClientConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use crate::access::Access;
use crate::bundles::BundleLimits;
use crate::config::{Config, ConfigError, ObjectPlace, StorePlace};
use crate::converse::converse;
use crate::http::{self, Connection, Events};
use crate::hub::Hub;
use crate::objects::{ObjectError, Objects};
use crate::pull::{self, Pull};
use crate::roles::Roles;
use crate::store::{PostgresStore, SqliteStore, Store, StoreError};
use crate::take::{self, Take};
use crate::tls::{Tls, TlsError};
use crate::token::{TokenError, TokenKey};

/// Connections at once. One costs about 15 KB with what the allocator keeps for it (docs/scale.md), even when it rests.
const MAX_CONNECTIONS: usize = 20_000;
/// How long a client may take for its TLS handshake.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
/// How long requests that are under way may take once the hub is told to end.
const DRAIN: Duration = Duration::from_secs(10);
/// How often old things are forgotten, and the pause between two portions.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
const PRUNE_PAUSE: Duration = Duration::from_millis(50);
/// Portions before bundles are removed too; what is left then is not waited for.
const PRUNE_PORTIONS: u32 = 1000;
/// How often all bundles are looked through, and when for the first time: a hub that has just begun has other things to do.
const SWEEP_EVERY: Duration = Duration::from_secs(24 * 3600);
const SWEEP_FIRST: Duration = Duration::from_secs(900);
/// After an accept that failed, for instance because there are no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
    NatsTls(#[source] landfall_wire::TlsError),
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
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Arc<Tls>>,
    hub: Arc<Hub>,
    keep: Duration,
    keep_bundles: Duration,
    pull: Option<Pull>,
    take: Take,
    nats_tls: Option<Arc<Live<ClientConfig>>>,
}

// === impl Server ===

impl Server {
    /// Opens everything and listens. Nothing is opened before the configuration is known to be good.
    pub async fn bind(config: Config) -> Result<Self, HubError> {
        config.validate().map_err(HubError::Config)?;
        let tokens = config.token_key.as_deref().map(read_key).transpose()?;
        let certificates = config.tls.as_ref().is_some_and(|tls| tls.client_authority.is_some());
        config.pull.as_ref().map(pull::load).transpose().map_err(HubError::PullTls)?;
        let nats_tls =
            config.take.nats.as_ref().map(take::live_tls).transpose().map_err(HubError::NatsTls)?;
        let tls = config.tls.map(Tls::load).transpose().map_err(HubError::Tls)?;
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
            // It is new, so nobody has put one there before.
            let _ = hub.bucket.set(bucket);
        }
        let failed = |source| HubError::Listen { address: config.listen, source };
        let listener = TcpListener::bind(config.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self {
            listener,
            address,
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
        self.address
    }

    /// Serves until `ended`, then finishes what was begun.
    pub async fn serve(self, ended: impl Future<Output = ()>) {
        let (events, watching) = Events::watch(Arc::clone(&self.hub.store));
        let router = http::router(Arc::clone(&self.hub), events);
        let side = async {
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
                        Arc::clone(tls).follow().await;
                    }
                }
            )
        };
        let ending = watch::Sender::new(());
        tokio::select! {
            () = accept(&self.listener, self.tls.as_ref(), &router, &ending) => {}
            _ = side => {}
            () = ended => {}
        }
        drop(self.listener);
        ending.send_replace(());
        if tokio::time::timeout(DRAIN, ending.closed()).await.is_err() {
            tracing::warn!("Some requests did not end in time and were dropped.");
        }
    }
}

fn read_key(path: &std::path::Path) -> Result<TokenKey, HubError> {
    let key = std::fs::read(path).map_err(|source| HubError::ReadKey { path: path.to_owned(), source })?;
    TokenKey::new(Secret::new(key)).map_err(HubError::Key)
}

async fn accept(listener: &TcpListener, tls: Option<&Arc<Tls>>, router: &Router, ending: &watch::Sender<()>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // Beyond the bound connections wait in the kernel's queue.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "A connection could not be accepted.");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Answers are small and waited for.
        let _ = stream.set_nodelay(true);
        let (router, ended) = (router.clone(), ending.subscribe());
        let tls = tls.map(|tls| TlsAcceptor::from(tls.config()));
        tokio::spawn(async move {
            let _place = place;
            let opened = match tls {
                None => Some((Either::Left(stream), None)),
                // In a box, so that a connection without TLS does not pay for it.
                Some(acceptor) => Box::pin(handshake(acceptor, stream)).await,
            };
            if let Some((stream, certificate)) = opened {
                converse(stream, Connection { peer: peer.ip(), certificate }, router, ended).await;
            }
        });
    }
}

/// With TLS or without. It is one type, so that the program has what speaks HTTP once.
type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// The stream, and the certificate the client came with.
async fn handshake(acceptor: TlsAcceptor, stream: TcpStream) -> Option<(Stream, Option<Arc<[u8]>>)> {
    match tokio::time::timeout(HANDSHAKE_PATIENCE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => {
            let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let certificate = certificate.map(|certificate| Arc::from(certificate.as_ref()));
            Some((Either::Right(Box::new(stream)), certificate))
        }
        Ok(Err(error)) => {
            tracing::debug!(error = %chain(&error), "A TLS handshake failed.");
            None
        }
        Err(_) => None,
    }
}

/// Forgets what is old, for ever.
async fn prune(hub: &Hub, keep: Duration, keep_bundles: Duration) {
    let mut is_more = false;
    loop {
        if !is_more {
            // At once when a node was forgotten: its bundles are to be gone soon.
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

/// Looks for bundles without a record, for ever.
async fn sweep(hub: &Hub) {
    tokio::time::sleep(SWEEP_FIRST).await;
    loop {
        hub.sweep().await;
        tokio::time::sleep(SWEEP_EVERY).await;
    }
}
