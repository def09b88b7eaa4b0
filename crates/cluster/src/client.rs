use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use crate::Error;

/// Default timeout of a request. Longer than an API server's slowest responses (etcd electing a leader),
/// shorter than the timeout of any caller.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(15);

/// A client of a cluster. Clones are cheap and share connections.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "holds credentials")]
pub struct Cluster {
    client: Client,
    /// A client without retries, created at first use.
    once: Arc<OnceLock<Client>>,
    config: Config,
    deadline: Duration,
}

// === impl Cluster ===

impl Cluster {
    /// Creates a client from one kubeconfig file and its current context.
    pub async fn from_kubeconfig(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Kubeconfig { path: path.to_owned(), source };
        Self::from_config(at_current_context(Kubeconfig::read_from(path)).await.map_err(failed)?)
    }

    /// Creates a client from the default sources: `KUBECONFIG`, `~/.kube/config`, else the pod's own account.
    pub async fn infer() -> Result<Self, Error> {
        let config = match at_current_context(Kubeconfig::read()).await {
            Ok(config) => config,
            Err(source) => Config::incluster().map_err(|pod| Error::NoCluster { pod, source })?,
        };
        Self::from_config(config)
    }

    /// Creates a client from a kubeconfig file, or from the default sources without one.
    pub async fn connect(kubeconfig: Option<&Path>) -> Result<Self, Error> {
        match kubeconfig {
            Some(path) => Self::from_kubeconfig(path).await,
            None => Self::infer().await,
        }
    }

    /// Sets the timeout of requests.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    fn from_config(config: Config) -> Result<Self, Error> {
        let client = Client::try_from(config.clone()).map_err(|source| Error::Client { source })?;
        Ok(Self { client, once: Arc::default(), config, deadline: DEFAULT_DEADLINE })
    }

    /// Returns a client with new connections, which a load balancer may route to another server.
    pub(crate) fn reconnected(&self) -> Result<Self, Error> {
        Ok(Self { deadline: self.deadline, ..Self::from_config(self.config.clone())? })
    }

    /// Returns a client of one server by its own address, with the server name of the endpoint's certificate.
    pub(crate) fn directly(&self, address: &str) -> Result<Self, Error> {
        let asked = || Error::Address { address: address.to_owned() };
        let mut config = self.config.clone();
        let name = config.cluster_url.host().map(|host| host.trim_matches(['[', ']']).to_owned());
        config.cluster_url = format!("https://{address}/").parse().map_err(|_| asked())?;
        config.tls_server_name = config.tls_server_name.or(name);
        // A proxy may be needed for the endpoint, but not for the server itself.
        config.proxy_url = None;
        Ok(Self { deadline: self.deadline, ..Self::from_config(config)? })
    }

    /// Returns the URL of the endpoint from the kubeconfig.
    pub fn endpoint(&self) -> String {
        self.config.cluster_url.to_string().trim_end_matches('/').to_owned()
    }

    pub(crate) fn patience(&self) -> Duration {
        self.deadline
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns a client without retries. The default one retries after 429 and 503, which is right for reads.
    /// It is wrong where such a response is the result of the request.
    pub(crate) fn client_once(&self) -> Result<Client, Error> {
        if let Some(client) = self.once.get() {
            return Ok(client.clone());
        }
        let mut config = self.config.clone();
        config.default_retry = false;
        let client = Client::try_from(config).map_err(|source| Error::Client { source })?;
        Ok(self.once.get_or_init(|| client).clone())
    }

    /// Awaits a response within the timeout.
    pub(crate) async fn ask<T>(
        &self,
        asked: impl FnOnce() -> String,
        answer: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Error> {
        match tokio::time::timeout(self.deadline, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(source)) => Err(Error::Refused { asked: asked(), source }),
            Err(_) => Err(Error::Late { asked: asked(), seconds: self.deadline.as_secs() }),
        }
    }
}

async fn at_current_context(read: Result<Kubeconfig, KubeconfigError>) -> Result<Config, KubeconfigError> {
    Config::from_custom_kubeconfig(read?, &KubeConfigOptions::default()).await
}
