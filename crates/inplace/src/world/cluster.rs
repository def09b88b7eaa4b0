//! The cluster, by whatever access there is: what the caller gave, the pod's own account, else the kubelet's.

use std::path::{Path, PathBuf};

use landfall_cluster::{Cluster, Error};
use landfall_model::chain;

use super::NoAnswer;

/// Where kubelets keep their access, the lasting one first.
const KUBELET: [&str; 3] =
    ["/var/lib/kubelet/kubeconfig", "/etc/kubernetes/kubelet.conf", "/etc/kubernetes/kubeconfig"];

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

pub(super) fn no_answer(error: &Error) -> NoAnswer {
    NoAnswer { reason: format!("cannot {}", chain(error)) }
}
