use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use crate::{Error, kubeconfig};

/// How long one question may take. Longer than an API server's own slow answers (etcd electing a leader), shorter than
/// any caller's patience.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(15);

/// A cluster that can be asked. Cheap to clone; connections are shared.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "holds credentials")]
pub struct Cluster {
    client: Client,
    /// As `client`, but an answer is an answer; made when it is first needed.
    once: Arc<OnceLock<Client>>,
    config: Config,
    deadline: Duration,
}

// === impl Cluster ===

impl Cluster {
    /// The cluster of one kubeconfig file, at its current context.
    pub async fn from_kubeconfig(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Kubeconfig { path: path.to_owned(), source };
        Self::from_config(at_current_context(kubeconfig::read(path)).await.map_err(failed)?)
    }

    /// The cluster everybody's tools would find from here: `KUBECONFIG`, `~/.kube/config`, else the pod's own account.
    pub async fn infer() -> Result<Self, Error> {
        let config = match at_current_context(kubeconfig::of_kubectl()).await {
            Ok(config) => config,
            Err(source) => Config::incluster().map_err(|pod| Error::NoCluster { pod, source })?,
        };
        Self::from_config(config)
    }

    /// The same cluster, asked with another patience.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    fn from_config(config: Config) -> Result<Self, Error> {
        let client = Client::try_from(config.clone()).map_err(|source| Error::Client { source })?;
        Ok(Self { client, once: Arc::default(), config, deadline: DEFAULT_DEADLINE })
    }

    /// The same cluster through connections of its own: behind a load balancer, perhaps to another server.
    pub(crate) fn reconnected(&self) -> Result<Self, Error> {
        Ok(Self { deadline: self.deadline, ..Self::from_config(self.config.clone())? })
    }

    /// One server of the cluster by its own address, under the name the endpoint's certificate is for.
    pub(crate) fn directly(&self, address: &str) -> Result<Self, Error> {
        let asked = || Error::Address { address: address.to_owned() };
        let mut config = self.config.clone();
        let name = config.cluster_url.host().map(|host| host.trim_matches(['[', ']']).to_owned());
        config.cluster_url = format!("https://{address}/").parse().map_err(|_| asked())?;
        config.tls_server_name = config.tls_server_name.or(name);
        // The way to the endpoint may lead through a proxy; to the server itself it does not.
        config.proxy_url = None;
        Ok(Self { deadline: self.deadline, ..Self::from_config(config)? })
    }

    /// The endpoint, as the kubeconfig has it.
    pub fn endpoint(&self) -> String {
        self.config.cluster_url.to_string().trim_end_matches('/').to_owned()
    }

    pub(crate) fn patience(&self) -> Duration {
        self.deadline
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// A client that gives every answer as it is. The usual one asks again after "too many requests" and "unavailable",
    /// which is right for reading, and wrong where this very answer is what was asked for.
    pub(crate) fn client_once(&self) -> Result<Client, Error> {
        if let Some(client) = self.once.get() {
            return Ok(client.clone());
        }
        let mut config = self.config.clone();
        config.default_retry = false;
        let client = Client::try_from(config).map_err(|source| Error::Client { source })?;
        Ok(self.once.get_or_init(|| client).clone())
    }

    /// Ask one thing, within the deadline.
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
