//! The cluster, by whatever access there is: what the caller gave, the pod's own account, else the kubelet's.

use std::path::{Path, PathBuf};

use landfall_cluster::{Cluster, Error, Eviction, PodFacts};
use landfall_model::chain;

use super::NoAnswer;

/// Where kubelets keep their access, the lasting one first.
const KUBELET: [&str; 3] =
    ["/var/lib/kubelet/kubeconfig", "/etc/kubernetes/kubelet.conf", "/etc/kubernetes/kubeconfig"];

/// As many pods as a kubelet runs, and some.
const MAX_ASKED: usize = 300;

/// How the cluster is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClusterAccess {
    /// A file of this process.
    Kubeconfig(PathBuf),
    /// The pod's own account.
    Pod,
    /// As the kubelet of the node does, once it does.
    #[default]
    Kubelet,
}

// === impl ClusterAccess ===

impl ClusterAccess {
    /// Anew each time: credentials come and go while a node is made anew.
    pub(super) async fn connect(&self, place: impl Fn(&Path) -> PathBuf) -> Result<Cluster, NoAnswer> {
        let cluster = match self {
            Self::Kubeconfig(path) => Cluster::from_kubeconfig(path).await,
            Self::Pod => Cluster::infer().await,
            Self::Kubelet => {
                let found = KUBELET.iter().map(|path| place(Path::new(path))).find(|path| path.is_file());
                let Some(found) = found else {
                    return Err(NoAnswer {
                        reason: "this machine has no access to its cluster yet".to_owned(),
                    });
                };
                Cluster::from_kubeconfig(&found).await
            }
        };
        cluster.map_err(|error| no_answer(&error))
    }
}

/// Pods that must go before a node does, and would not: as an eviction asked for now would be answered.
pub(super) async fn in_the_way(cluster: &Cluster, node: &str) -> Result<Vec<String>, Error> {
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

/// Those of DaemonSets and static ones belong to the node, and so do we.
fn must_go(pod: &PodFacts) -> bool {
    let is_ours = pod.name.starts_with("landfall-in-place-");
    let is_over = pod.has_finished || pod.is_going;
    !is_ours && !is_over && !pod.is_mirror && pod.controller.as_deref() != Some("DaemonSet")
}

pub(super) fn no_answer(error: &Error) -> NoAnswer {
    NoAnswer { reason: format!("cannot {}", chain(error)) }
}
