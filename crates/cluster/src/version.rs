use crate::{Cluster, Error};

/// The version of an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerVersion {
    /// As served: `v1.31.4`, `v1.31.4+k3s1`, `v1.29.5-gke.1000`.
    pub git_version: String,
    pub platform: String,
}

impl Cluster {
    /// Returns the version of the API server that responds; behind a load balancer, of one of them.
    pub async fn version(&self) -> Result<ServerVersion, Error> {
        let client = self.client();
        let info =
            self.ask(|| "ask the API server for its version".to_owned(), client.apiserver_version()).await?;
        Ok(ServerVersion { git_version: info.git_version, platform: info.platform })
    }
}
