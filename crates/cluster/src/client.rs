use std::path::Path;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::Error;

/// How long one question may take. Longer than an API server's own slow answers (etcd electing a leader), shorter than
/// any caller's patience.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(15);

/// A cluster that can be asked. Cheap to clone; connections are shared.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "holds credentials")]
pub struct Cluster {
    client: Client,
    deadline: Duration,
}

// === impl Cluster ===

impl Cluster {
    /// The cluster of one kubeconfig file, at its current context.
    pub async fn from_kubeconfig(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Kubeconfig { path: path.to_owned(), source };
        let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .map_err(failed)?;
        Self::from_config(config)
    }

    /// The cluster everybody's tools would find from here: `KUBECONFIG`, `~/.kube/config`, else the pod's own account.
    pub async fn infer() -> Result<Self, Error> {
        Self::from_config(Config::infer().await.map_err(|source| Error::NoCluster { source })?)
    }

    /// The same cluster, asked with another patience.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    fn from_config(config: Config) -> Result<Self, Error> {
        let client = Client::try_from(config).map_err(|source| Error::Client { source })?;
        Ok(Self { client, deadline: DEFAULT_DEADLINE })
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
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
