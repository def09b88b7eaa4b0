//! The nodes of a workload cluster, each with a pod through which its port can be reached.
//!
//! The cluster is listed repeatedly, because nodes and kubeconfigs change.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use landfall_cluster::{Cluster, PodPlace};
use landfall_model::chain;
use landfall_net::Backoff;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use super::agent::PulledAgent;
use super::pause;
use crate::config::ConfigError;
use crate::name::NodeName;

/// Maximum number of polled clusters; larger fleets should use several hubs.
pub(crate) const MAX_CLUSTERS: usize = 64;
/// Pauses between listings of nodes and pods.
const LOOK_EVERY: Backoff = Backoff::millis::<30_000, 300_000>();
/// Namespaces searched for pods with host networking: that of `landfall render agent`, and that of every cluster.
/// Permission to forward ports of these pods does not extend to pods of other namespaces.
const NAMESPACES: [&str; 2] = ["landfall-agent", "kube-system"];

/// A workload cluster whose nodes are polled through its API server: `[NAME=]KUBECONFIG`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PulledCluster {
    /// Name of the cluster in the log; its nodes may use it as a prefix of their names.
    pub name: String,
    pub kubeconfig: PathBuf,
}

/// Result of the last successful listing.
pub(super) struct Reach {
    pub(super) name: String,
    pub(super) cluster: Cluster,
    nodes: Vec<NodeName>,
    /// Pods by the name of their node.
    pub(super) pods: BTreeMap<String, PodPlace>,
}

/// The newest listing; `None` before the first one succeeds.
pub(super) type Found = watch::Receiver<Option<Arc<Reach>>>;

#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error("read the kubeconfig `{}`", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Cluster(#[from] landfall_cluster::Error),
}

/// Lists the cluster forever; a failed listing keeps the previous result.
pub(super) async fn follow(place: PulledCluster, found: watch::Sender<Option<Arc<Reach>>>) {
    let mut client = None;
    let mut failed = 0_u32;
    loop {
        match look(&place, &mut client).await {
            Ok(reach) => {
                if failed > 0 {
                    tracing::info!(cluster = place.name, "A cluster answers again.");
                }
                failed = 0;
                if found.send(Some(Arc::new(reach))).is_err() {
                    return;
                }
            }
            Err(error) => {
                if failed == 0 {
                    tracing::warn!(cluster = place.name, error = %chain(&error), "cluster discovery failed");
                }
                failed = failed.saturating_add(1);
            }
        }
        tokio::time::sleep(pause(&LOOK_EVERY, failed)).await;
    }
}

async fn look(place: &PulledCluster, client: &mut Option<([u8; 32], Cluster)>) -> Result<Reach, LookError> {
    let path: &Path = &place.kubeconfig;
    let content = tokio::fs::read(path).await;
    let content = content.map_err(|source| LookError::Read { path: path.to_owned(), source })?;
    let digest: [u8; 32] = Sha256::digest(&content).into();
    let cluster = match client {
        Some((before, cluster)) if *before == digest => cluster.clone(),
        _ => {
            let cluster = Cluster::from_kubeconfig(path).await?;
            client.insert((digest, cluster)).1.clone()
        }
    };
    let names = cluster.node_names().await?;
    let pods = cluster.host_pods(&NAMESPACES).await?;
    let nodes = names.into_iter().filter_map(|name| NodeName::new(name).ok()).collect();
    Ok(Reach { name: place.name.clone(), cluster, nodes, pods })
}

// === impl PulledCluster ===

impl PulledCluster {
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let invalid = || ConfigError::PullCluster(text.to_owned());
        let (name, path) = match text.split_once('=') {
            Some((name, path)) if !name.contains('/') => (Some(name.to_owned()), path),
            _ => (None, text),
        };
        let kubeconfig = PathBuf::from(path);
        let file = kubeconfig.file_name().ok_or_else(invalid)?.to_string_lossy().into_owned();
        let name = name.unwrap_or(file);
        // The name appears in log lines.
        let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
        if name.is_empty() || name.len() > 253 || !is_plain {
            Err(invalid())
        } else {
            Ok(Self { name, kubeconfig })
        }
    }
}

// === impl Reach ===

impl Reach {
    pub(super) fn agents(&self) -> impl Iterator<Item = PulledAgent> {
        self.nodes.iter().map(|node| PulledAgent::within(&self.name, node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_a_kubeconfig_with_or_without_a_name() {
        for (text, name, path) in [
            ("east=/etc/landfall/east.kubeconfig", "east", "/etc/landfall/east.kubeconfig"),
            ("/etc/landfall/west.kubeconfig", "west.kubeconfig", "/etc/landfall/west.kubeconfig"),
            ("./a=b/value", "value", "./a=b/value"),
        ] {
            let parsed = PulledCluster::parse(text).unwrap();
            assert_eq!((parsed.name.as_str(), parsed.kubeconfig.as_path()), (name, Path::new(path)));
        }
        for bad in ["", "=", "east=", "=x", "/", "a b=/x", "ea\nst=/x"] {
            assert!(PulledCluster::parse(bad).is_err(), "{bad:?}");
        }
    }
}
