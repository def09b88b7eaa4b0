//! Routes to an agent: direct, through a proxy, or through the API server of the agent's cluster.
//!
//! Each route carries TLS between hub and agent, so intermediaries can neither read nor change the bytes.

use std::io;
use std::sync::Arc;

use landfall_net::{ConnectError, ConnectProxy, ProxyPlace, ask_connect};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::PulledAgent;
use super::cluster::Reach;

/// A bidirectional byte stream.
pub(super) trait Carries: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Carries for T {}

/// The route to an agent.
#[derive(Clone)]
pub(super) enum Way {
    Direct,
    Proxy(Arc<Gate>),
    /// Through a pod that shares the node's network; `None` before the cluster was listed.
    Forward(Option<Arc<Reach>>),
}

/// A proxy and its TLS configuration.
pub(super) struct Gate {
    pub(super) proxy: ConnectProxy,
    /// For a proxy that requires TLS.
    pub(super) tls: Option<Arc<ClientConfig>>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum WayError {
    #[error("cannot reach it")]
    Reach(#[source] io::Error),
    #[error("cannot reach the proxy {proxy}")]
    Proxy { proxy: String, source: io::Error },
    #[error("the proxy {proxy} does not lead there")]
    Connect { proxy: String, source: ConnectError },
    #[error("no pod that runs in its node's network is known on it, so there is no way there")]
    NoPod,
    #[error("the API server does not lead there")]
    Forward(#[source] landfall_cluster::Error),
}

// === impl Way ===

impl Way {
    pub(super) async fn open(&self, agent: &PulledAgent) -> Result<Box<dyn Carries>, WayError> {
        match self {
            Self::Direct => {
                let stream = TcpStream::connect((agent.host.as_str(), agent.port)).await;
                Ok(Box::new(stream.map_err(WayError::Reach)?))
            }
            Self::Proxy(gate) => gate.open(&agent.place()).await,
            Self::Forward(reach) => {
                let reach = reach.as_ref().ok_or(WayError::NoPod)?;
                let pod = reach.pods.get(&agent.host).ok_or(WayError::NoPod)?;
                Ok(Box::new(reach.cluster.forward(pod, agent.port).await.map_err(WayError::Forward)?))
            }
        }
    }
}

// === impl Gate ===

impl Gate {
    async fn open(&self, target: &str) -> Result<Box<dyn Carries>, WayError> {
        let failed = |source| WayError::Proxy { proxy: self.proxy.to_string(), source };
        let mut stream = self.dial().await.map_err(failed)?;
        ask_connect(&mut stream, self.proxy.authorization.as_deref(), target)
            .await
            .map_err(|source| WayError::Connect { proxy: self.proxy.to_string(), source })?;
        Ok(stream)
    }

    async fn dial(&self) -> io::Result<Box<dyn Carries>> {
        match (&self.proxy.place, &self.tls) {
            (ProxyPlace::Unix(path), _) => Ok(Box::new(UnixStream::connect(path).await?)),
            (ProxyPlace::Tcp { host, port }, _) => {
                Ok(Box::new(TcpStream::connect((host.as_str(), *port)).await?))
            }
            (ProxyPlace::Tls { host, port }, Some(tls)) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                Ok(Box::new(TlsConnector::from(Arc::clone(tls)).connect(name, stream).await?))
            }
            (ProxyPlace::Tls { .. }, None) => Err(io::Error::other("nothing to speak TLS with")),
        }
    }
}

// === impl WayError ===

impl WayError {
    pub(super) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Forward(error) => error.hint(),
            Self::NoPod => Some(
                "run a static pod, kube-proxy or the agent with `hostNetwork: true` in `kube-system` or `landfall-agent`",
            ),
            _ => None,
        }
    }
}
