//! Routes to an agent: direct, through a proxy, or through the API server of the agent's cluster.
//!
//! Each route carries TLS between hub and agent, so intermediaries can neither read nor change the bytes.

use std::sync::Arc;

use landfall_net::ConnectProxy;
use landfall_net::http::{BoxStream, HttpError, connect};
use rustls::ClientConfig;

use super::PulledAgent;
use super::cluster::Reach;
use super::talk::PATIENCE;

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
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("no pod that runs in its node's network is known on it, so there is no way there")]
    NoPod,
    #[error("the API server does not lead there")]
    Forward(#[source] landfall_cluster::Error),
}

// === impl Way ===

impl Way {
    pub(super) async fn open(&self, agent: &PulledAgent) -> Result<BoxStream, WayError> {
        match self {
            Self::Direct => Ok(connect(&agent.host, agent.port, &agent.place()).await?),
            Self::Proxy(gate) => Ok(gate.proxy.open(&agent.place(), gate.tls.clone(), PATIENCE).await?),
            Self::Forward(reach) => {
                let reach = reach.as_ref().ok_or(WayError::NoPod)?;
                let pod = reach.pods.get(&agent.host).ok_or(WayError::NoPod)?;
                Ok(Box::new(reach.cluster.forward(pod, agent.port).await.map_err(WayError::Forward)?))
            }
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
            Self::Http(_) => None,
        }
    }
}
