//! Access to the cluster: that given by the caller, the pod's service account, else that of the kubelet.

use std::path::{Path, PathBuf};

use landfall_cluster::{Cluster, Error, Eviction, PodFacts};
use landfall_model::chain;

use crate::environment::ClusterUnavailable;

/// Credentials of kubelets, the permanent ones first.
const KUBELET: [&str; 3] =
    ["/var/lib/kubelet/kubeconfig", "/etc/kubernetes/kubelet.conf", "/etc/kubernetes/kubeconfig"];

/// More pods than a kubelet runs by default.
const MAX_ASKED: usize = 300;

/// Credentials for the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClusterAccess {
    /// A file of this process.
    Kubeconfig(PathBuf),
    /// The pod's own account.
    Pod,
    /// The credentials of the node's kubelet, once it has some.
    #[default]
    Kubelet,
}

// === impl ClusterAccess ===

impl ClusterAccess {
    /// Connects again for each call, because credentials change during a bootstrap.
    pub(super) async fn connect(
        &self,
        host_path: impl Fn(&Path) -> PathBuf,
    ) -> Result<Cluster, ClusterUnavailable> {
        let cluster = match self {
            Self::Kubeconfig(path) => Cluster::from_kubeconfig(path).await,
            Self::Pod => Cluster::infer().await,
            Self::Kubelet => {
                let found = KUBELET.iter().map(|path| host_path(Path::new(path))).find(|path| path.is_file());
                let Some(found) = found else {
                    return Err(ClusterUnavailable {
                        reason: "this machine has no access to its cluster yet".to_owned(),
                    });
                };
                Cluster::from_kubeconfig(&found).await
            }
        };
        cluster.map_err(|error| no_answer(&error))
    }
}

/// Returns the pods that must be evicted before a drain ends, but whose eviction would be rejected now.
pub(super) async fn drain_blockers(cluster: &Cluster, node: &str) -> Result<Vec<String>, Error> {
    let mut found = Vec::new();
    for pod in cluster.pods_on(node).await?.iter().filter(|pod| must_go(pod)).take(MAX_ASKED) {
        let name = format!("{}/{}", pod.namespace, pod.name);
        if pod.controller.is_none() {
            found.push(format!("{name} (nothing would make it again)"));
        } else if let Eviction::Refused { reason } = cluster.would_evict(pod).await? {
            found.push(format!("{name} ({reason})"));
        }
    }
    Ok(found)
}

/// Pods of DaemonSets and static pods belong to the node, and so does the pod of this process.
fn must_go(pod: &PodFacts) -> bool {
    let is_ours = pod.name.starts_with("landfall-in-place-");
    let is_over = pod.has_finished || pod.is_going;
    !is_ours && !is_over && !pod.is_mirror && pod.controller.as_deref() != Some("DaemonSet")
}

pub(super) fn no_answer(error: &Error) -> ClusterUnavailable {
    ClusterUnavailable { reason: format!("cannot {}", chain(error)) }
}
