use std::path::PathBuf;

/// The user of kube-apiserver at kubelets, in kubeadm clusters.
const KUBELET_CLIENT: &str = "apiserver-kubelet-client";

/// Reason why a request to the cluster failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("read the kubeconfig {path}")]
    Kubeconfig { path: PathBuf, source: kube::config::KubeconfigError },
    #[error("use the kubeconfig {path}: {what}")]
    Context { path: PathBuf, what: &'static str },
    #[error("read the credential file {path}")]
    CredentialFile { path: PathBuf, source: std::io::Error },
    #[error("use the kubeconfig: {what}")]
    CredentialData { what: &'static str },
    #[error(
        "find a cluster: neither KUBECONFIG, nor ~/.kube/config, nor a pod's service account ({pod}) works here"
    )]
    NoCluster { pod: kube::config::InClusterError, source: kube::config::KubeconfigError },
    #[error("make a client for the cluster")]
    Client { source: kube::Error },
    #[error("use the address {address} of an API server")]
    Address { address: String },
    #[error("{asked}")]
    Refused { asked: String, source: kube::Error },
    #[error("list {plural}: there are more than {limit}, which is more than Landfall looks at")]
    Many { plural: &'static str, limit: usize },
    #[error("read or write a {kind} as JSON")]
    Manifest { kind: &'static str, source: serde_json::Error },
    #[error("{asked}: {said} ({status})")]
    NotForwarded { asked: String, status: u16, said: String },
    #[error("{asked}")]
    Forward { asked: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("{asked}: no answer within {seconds} s")]
    Late { asked: String, seconds: u64 },
}

// === impl Error ===

impl Error {
    /// Whether the API server rejected the credentials or the permission (401 or 403).
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Refused { source: kube::Error::Api(status), .. } if matches!(status.code, 401 | 403))
    }

    /// Returns the fix, if it is known.
    pub fn hint(&self) -> Option<&'static str> {
        let Self::NotForwarded { said, .. } = self else { return None };
        // This is a rejection by the kubelet: the API server's own rejections name the account of the
        // request.
        said.contains(KUBELET_CLIENT).then_some(
            "the kubelet does not let the API server in: these versions of Kubernetes need the ClusterRoleBinding \
             `kubeadm:apiserver-kubelet-client` (of the user `kube-apiserver-kubelet-client` to `system:kubelet-api-admin`)",
        )
    }

    /// Whether the API server responded, so that the failure is not one of the network.
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::Refused { source: kube::Error::Api(_), .. })
    }

    /// Returns the API server's HTTP status and its reason, such as `Forbidden`.
    pub fn answer(&self) -> Option<(u16, &str)> {
        match self {
            Self::Refused { source: kube::Error::Api(status), .. } => Some((status.code, &status.reason)),
            _ => None,
        }
    }

    /// Whether the object does not exist.
    pub fn is_gone(&self) -> bool {
        self.answer().is_some_and(|(code, _)| code == 404)
    }

    /// Whether another client was faster: the object exists already, or has changed since it was read.
    pub fn is_conflict(&self) -> bool {
        self.answer().is_some_and(|(code, _)| code == 409)
    }

    /// Returns the API server's message.
    pub fn said(&self) -> Option<&str> {
        match self {
            Self::Refused { source: kube::Error::Api(status), .. } => Some(&status.message),
            _ => None,
        }
    }
}

/// Treats a missing object as deleted.
pub(crate) fn deleted<T>(result: Result<T, Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.is_gone() => Ok(()),
        result => result.map(drop),
    }
}

/// Treats an existing object as created.
pub(crate) fn created<T>(result: Result<T, Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.is_conflict() => Ok(()),
        result => result.map(drop),
    }
}
