//! Connections to API servers, by the identity they prove.
//!
//! Requests of different users may share a connection only because each request head contains the identity. Connections
//! with and without the gateway's certificate never mix.

mod pool;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub(crate) use self::pool::{Pool, Returning};
use crate::body::{Body, BoxError};

/// Timeout to connect to an API server.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error("connect to the API server {target}")]
    Connect { target: SocketAddr, source: io::Error },
    #[error("the API server {target} took longer than {} s to connect", CONNECT_LIMIT.as_secs())]
    Late { target: SocketAddr },
    #[error("`{0}` is not a name a server can have")]
    Name(String),
    #[error("speak with the API server")]
    Speak { source: BoxError },
}

/// A failure, with the request if it was not sent at all.
pub(crate) struct Unsent {
    pub(crate) error: UpstreamError,
    pub(crate) request: Option<Box<Request<Body>>>,
}

/// The identity of an upstream connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum As {
    /// No certificate: the request has its own token, or no identity.
    Plain,
    /// The front proxy, which names the user in each request.
    FrontProxy,
}

/// Connection pools for each lane, so that an upstream connection runs on the same thread as its client's connection.
pub(crate) struct Pools {
    own: Pair,
    lanes: Vec<Pair>,
}

struct Pair {
    plain: Pool,
    fronted: Option<Pool>,
}

// === impl Pools ===

impl Pools {
    pub(crate) fn new(
        plain: &[Arc<ClientConfig>; 2],
        fronted: Option<&[Arc<ClientConfig>; 2]>,
        name: &str,
        lanes: usize,
    ) -> Self {
        let pair = || Pair {
            plain: Pool::new(plain.clone(), name.to_owned()),
            fronted: fronted.map(|tls| Pool::new(tls.clone(), name.to_owned())),
        };
        Self { own: pair(), lanes: (0..lanes).map(|_| pair()).collect() }
    }

    /// Returns the pool for the gateway's own requests.
    pub(crate) fn own(&self, who: As) -> Option<&Pool> {
        self.own.get(who)
    }

    /// Returns the pool for requests of connections on this lane.
    pub(crate) fn of_lane(&self, lane: usize, who: As) -> Option<&Pool> {
        self.lanes.get(lane).unwrap_or(&self.own).get(who)
    }
}

// === impl Pair ===

impl Pair {
    fn get(&self, who: As) -> Option<&Pool> {
        match who {
            As::Plain => Some(&self.plain),
            As::FrontProxy => self.fronted.as_ref(),
        }
    }
}

/// Opens a TLS connection to an API server. The future is large: callers box it.
async fn connect(
    target: SocketAddr,
    tls: &Arc<ClientConfig>,
    name: &str,
) -> Result<TokioIo<TlsStream<TcpStream>>, UpstreamError> {
    let name = ServerName::try_from(name.to_owned()).map_err(|_| UpstreamError::Name(name.to_owned()))?;
    let connecting = async {
        let stream = TcpStream::connect(target).await?;
        landfall_net::prepare(&stream);
        TlsConnector::from(Arc::clone(tls)).connect(name, stream).await
    };
    match tokio::time::timeout(CONNECT_LIMIT, connecting).await {
        Ok(Ok(stream)) => Ok(TokioIo::new(stream)),
        Ok(Err(source)) => Err(UpstreamError::Connect { target, source }),
        Err(_) => Err(UpstreamError::Late { target }),
    }
}
