use std::collections::BTreeSet;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::ListParams;

use crate::{Cluster, Error, ServerVersion};

/// Connections to the endpoint: enough to reach each of three servers behind a round-robin load balancer.
const SAMPLES: usize = 6;
/// Limit, above the size of any control plane.
const MAX_SERVERS: usize = 32;

/// The response of one API server.
#[derive(Debug)]
pub struct ServerProbe {
    /// The endpoint, or the server's own address.
    pub address: String,
    pub version: Result<ServerVersion, Error>,
}

impl Cluster {
    /// Returns the versions of the API servers behind the endpoint. It queries the endpoint over several new
    /// connections, then each server that the cluster itself lists. The first result is always the first
    /// response of the endpoint.
    pub async fn server_versions(&self) -> Vec<ServerProbe> {
        let endpoint = self.endpoint();
        let mut probes = vec![ServerProbe { address: endpoint.clone(), version: self.version().await }];
        if probes[0].version.is_err() {
            return probes;
        }
        for _ in 1..SAMPLES {
            let version = match self.reconnected() {
                Ok(cluster) => cluster.version().await,
                Err(error) => Err(error),
            };
            let is_news = match &version {
                Ok(version) => !probes.iter().any(|probe| probe.version.as_ref().is_ok_and(|v| v == version)),
                Err(_) => true,
            };
            if is_news {
                probes.push(ServerProbe { address: endpoint.clone(), version });
            }
        }
        match self.server_addresses().await {
            Ok(addresses) => {
                for address in addresses {
                    let version = match self.directly(&address) {
                        Ok(cluster) => cluster.version().await,
                        Err(error) => Err(error),
                    };
                    probes.push(ServerProbe { address, version });
                }
            }
            // Without permission to list the servers, the result has the endpoint's responses only.
            Err(error) => {
                probes.push(ServerProbe { address: "kubernetes.default".to_owned(), version: Err(error) });
            }
        }
        probes
    }

    /// Returns the API servers that the cluster lists, as `address:port`.
    async fn server_addresses(&self) -> Result<BTreeSet<String>, Error> {
        let slices: Api<EndpointSlice> = Api::namespaced(self.client(), "default");
        let parameters = ListParams::default().labels("kubernetes.io/service-name=kubernetes");
        let asked = || "list the API servers of the cluster".to_owned();
        let found = self.ask(asked, slices.list(&parameters)).await?;
        let mut addresses = BTreeSet::new();
        for slice in &found.items {
            let ports = slice.ports.iter().flatten().filter_map(|port| port.port);
            for port in ports {
                for address in slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses) {
                    let address =
                        if address.contains(':') { format!("[{address}]") } else { address.clone() };
                    addresses.insert(format!("{address}:{port}"));
                }
            }
        }
        Ok(addresses.into_iter().take(MAX_SERVERS).collect())
    }
}
