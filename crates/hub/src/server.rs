//! A hub that runs: open what it needs, listen, serve, forget what is old, and end without dropping what it has begun.

mod newcomers;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use jiff::Timestamp;
use landfall_model::{Secret, chain};
use landfall_wire::Live;
use rustix::process::{Resource, getrlimit};
use rustls::ClientConfig;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, MissedTickBehavior};
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

pub(crate) use self::newcomers::Asked;
use self::newcomers::Newcomers;

/// Connections at once. One costs about 15 KB with what the allocator keeps for it (docs/scale.md), even when it rests.
const MAX_CONNECTIONS: usize = 20_000;
/// Descriptors that are not for connections: the store, bundles, agents that are asked, files that are read anew.
const RESERVE: usize = 128;
/// Connections there is always a place for, however few descriptors there are.
const FEW_CONNECTIONS: usize = 16;
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
/// Connections the kernel keeps until they are accepted, as far as it allows: whoever finds no room there tries again after
/// a second or more.
const BACKLOG: u32 = 4096;
/// After an accept that failed, for instance because there are no more file descriptors, and between two looks for a place.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often those are looked for who have asked nothing for too long.
const TIDY_EVERY: Duration = Duration::from_secs(1);
/// How often the operator is told of the same shortage.
const TELL_EVERY: Duration = Duration::from_secs(60);

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

/// Where connections come in.
#[derive(Debug)]
struct Door {
    places: Arc<Semaphore>,
    newcomers: Newcomers,
    /// When the operator was told that there is no place.
    told: Option<Instant>,
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
        let listener = listen(config.listen).map_err(failed)?;
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
            () = accept(&self.listener, self.tls.as_ref(), &router, &ending, places()) => {}
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

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A hub that starts anew does not wait for connections of the one before it.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// How many connections there may be: each has a descriptor.
fn places() -> usize {
    let allowed = getrlimit(Resource::Nofile).current.and_then(|most| usize::try_from(most).ok());
    let most = allowed.map_or(MAX_CONNECTIONS, |allowed| allowed.saturating_sub(RESERVE));
    most.clamp(FEW_CONNECTIONS, MAX_CONNECTIONS)
}

async fn accept(
    listener: &TcpListener,
    tls: Option<&Arc<Tls>>,
    router: &Router,
    ending: &watch::Sender<()>,
    places: usize,
) {
    let mut door =
        Door { places: Arc::new(Semaphore::new(places)), newcomers: Newcomers::default(), told: None };
    let mut tidying = tokio::time::interval(TIDY_EVERY);
    tidying.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = tidying.tick() => {
                door.newcomers.tidy();
                continue;
            }
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                door.tell(&chain(&error).to_string());
                door.newcomers.make_room();
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Meanwhile others wait in the kernel's queue.
        let place = door.place().await;
        // Answers are small and waited for.
        let _ = stream.set_nodelay(true);
        let (router, ended) = (router.clone(), ending.subscribe());
        let tls = tls.map(|tls| TlsAcceptor::from(tls.config()));
        let asked = Asked::default();
        let asking = asked.clone();
        let serving = tokio::spawn(async move {
            let _place = place;
            let opened = match tls {
                None => Some((Either::Left(stream), None)),
                // In a box, so that a connection without TLS does not pay for it.
                Some(acceptor) => Box::pin(handshake(acceptor, stream)).await,
            };
            if let Some((stream, certificate)) = opened {
                converse(stream, Connection { peer: peer.ip(), certificate }, router, ended, asking).await;
            }
        });
        door.newcomers.add(peer.ip(), asked, serving.abort_handle());
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

// === impl Door ===

impl Door {
    /// A place for a connection. When there is none, those make room who have not asked anything; a connection that rests
    /// between two reports stays.
    async fn place(&mut self) -> OwnedSemaphorePermit {
        loop {
            if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
                return place;
            }
            self.tell("all places are taken");
            self.newcomers.make_room();
            let place = Arc::clone(&self.places).acquire_owned();
            if let Ok(Ok(place)) = tokio::time::timeout(ACCEPT_PAUSE, place).await {
                return place;
            }
        }
    }

    fn tell(&mut self, error: &str) {
        if self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            self.told = Some(Instant::now());
            tracing::warn!(
                error,
                "Connections have to wait; those that ask nothing are closed. If this many nodes keep theirs, allow the \
                 hub more open files (`LimitNOFILE=`, `ulimit -Hn`). This is told once a minute."
            );
        }
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

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const PLACES: usize = 4;
    const LIMIT: Duration = Duration::from_secs(8);

    async fn ask(stream: &mut TcpStream) -> String {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut piece = [0; 1024];
        let read = tokio::time::timeout(LIMIT, stream.read(&mut piece)).await.expect("an answer in time");
        String::from_utf8_lossy(&piece[..read.unwrap()]).into_owned()
    }

    #[tokio::test]
    async fn who_says_nothing_keeps_nobody_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(async || "here"));
        let serving = tokio::spawn(async move {
            accept(&listener, None, &router, &watch::Sender::new(()), PLACES).await;
        });
        let mut kept = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut kept).await.ends_with("here"));
        let mut silent = Vec::new();
        for _ in 0..PLACES * 2 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        assert!(ask(&mut TcpStream::connect(address).await.unwrap()).await.ends_with("here"));
        assert!(ask(&mut kept).await.ends_with("here"), "who has asked before stays");
        assert_eq!(silent[0].read(&mut [0]).await.unwrap(), 0, "who waited longest went first");
        serving.abort();
    }
}
